//! What a plugin is written with: kernels in a Rust crate of their own, loaded at run time.
//!
//! ```
//! use keyfold_plugin::{Args, Host, Registrar, Result};
//!
//! fn double(args: &Args<'_>, _host: &Host<'_>) -> Result<()> {
//!     let x = args.tensor(0)?;
//!     let mut out = args.output(0)?;
//!     out.fill(x.elements::<f64>()?.map(|v| 2.0 * v))
//! }
//!
//! fn register(host: &mut Registrar<'_>) -> Result<()> {
//!     host.define("my::double(Tensor x) -> Tensor")?;
//!     host.kernel("my::double", "CPU", double)
//! }
//!
//! keyfold_plugin::plugin!(register);
//! # fn main() {}
//! ```
//!
//! The crate is built as a `cdylib` and loaded with `keyfold.load_plugin(path)` or the host crate's
//! `plugin::load`. Whatever a plugin does, it does through the host's table of functions ([`abi`]):
//! it has no registry and no thread-locals of its own, and nothing of the host is linked into it.
//!
//! - [`Registrar`]: definitions and kernels, applied all together or not at all
//! - [`Args`], [`TensorView`], [`TensorMut`]: what a kernel is given
//! - [`Host`]: what a kernel can ask for: its key set, calls, redispatch, new tensors
//! - [`OwnedValue`], [`OwnedTensor`]: results of calls, released through the table
//! - [`Error`]: a kind and a message, or an error of the host's on its way through
//!
//! Kernels that panic are errors of the call that they serve; a plugin is compiled with unwinding
//! (Rust's default) for that.

pub mod abi;
mod args;
mod element;
mod error;
mod host;
mod keyset;
mod owned;
mod register;
mod tensor;
#[cfg(test)]
mod tests;
mod types;
mod value;

pub use args::Args;
pub use element::{Bool, Element, Plain};
pub use error::{Error, ErrorKind, Result};
pub use host::Host;
pub use keyset::KeySet;
pub use owned::{OwnedTensor, OwnedValue};
pub use register::{Registrar, Return};
pub use tensor::{Elements, TensorMut, TensorView};
pub use types::{DType, Device};
pub use value::{Passed, Value};

#[doc(hidden)]
pub use register::enter as __enter;

/// Exports the plugin's descriptor, with the crate's name and version and this function
/// `fn(&mut Registrar<'_>) -> Result<()>`. Once per crate.
///
/// A macro, since a C symbol has to be a static item of the plugin's own crate: a function can't
/// make one, and one exported from here would name this crate.
#[macro_export]
macro_rules! plugin {
    ($register:path) => {
        const _: () = {
            unsafe extern "C" fn __keyfold_plugin_register(
                host: *const $crate::abi::HostTable,
                registrar: *mut $crate::abi::HostRegistrar,
            ) -> *mut $crate::abi::HostError {
                // SAFETY: the host calls this with its table and registrar, as the ABI says.
                unsafe { $crate::__enter(host, registrar, $register) }
            }

            // SAFETY: the symbol belongs to plugins, and a cdylib has one.
            #[unsafe(no_mangle)]
            #[allow(non_upper_case_globals)]
            static keyfold_plugin: $crate::abi::Descriptor = $crate::abi::Descriptor::new(
                env!("CARGO_PKG_NAME"),
                env!("CARGO_PKG_VERSION"),
                __keyfold_plugin_register,
            );
        };
    };
}
