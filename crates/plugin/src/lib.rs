//! The SDK for plugins: kernels in a Rust crate of their own, loaded at run time.
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
//! `plugin::load`. A plugin calls the host only through a table of functions ([`abi`]): it has no
//! registry and no thread-locals of its own, and it doesn't link the host.
//!
//! - [`Registrar`]: definitions and kernels, applied all together or not at all
//! - [`Args`], [`TensorView`], [`TensorMut`]: a kernel's arguments and outputs
//! - [`Host`]: the host's functions: key set, calls, redispatch, new tensors
//! - [`OwnedValue`], [`OwnedTensor`]: results of calls, released through the table
//! - [`Backend`]: a device with memory and operations, for [`Registrar::device`]; [`Compiler`]: one
//!   that compiles whole expressions
//! - [`Layout`], [`Number`]: where a tensor's elements are, and what they are, for short kernels
//! - [`Error`]: a kind and a message, or an error of the host passed through
//!
//! A panic of a kernel becomes an error of its call; therefore a plugin is compiled with unwinding
//! (Rust's default).

pub mod abi;
mod args;
mod backend;
mod element;
mod error;
mod host;
mod keyset;
mod number;
mod owned;
mod register;
mod tensor;
#[cfg(test)]
mod tests;
mod types;
mod value;

pub use args::Args;
pub use backend::{
    Argument, Backend, ByteOffsets, Compiler, Content, DeviceTensor, Execution, Field, Fields,
    Groups, Language, Launch, Layout, Operation, Params, Source, Statistics, dims,
};
pub use element::{Bool, Element, Plain};
pub use error::{Error, ErrorKind, Result};
pub use host::Host;
pub use keyset::KeySet;
pub use number::Number;
pub use owned::{OwnedTensor, OwnedValue};
pub use register::{Registrar, Return};
pub use tensor::{Elements, TensorMut, TensorView};
pub use types::{DType, Device};
pub use value::{Passed, Value};

#[doc(hidden)]
pub use register::enter as __enter;

/// Exports the plugin's descriptor with the crate's name and version and a register function
/// `fn(&mut Registrar<'_>) -> Result<()>`. Once per crate.
///
/// `plugin!(register)` works with hosts of ABI 1.0 and later; `plugin!(register, needs = devices)`
/// is for plugins that can't work without devices: hosts without that feature refuse them before
/// any of their code runs.
///
/// A macro, since the C symbols have to be static items of the plugin's own crate.
#[macro_export]
macro_rules! plugin {
    ($register:path) => {
        $crate::plugin!(@ $register, $crate::abi::Requirements::new(0, 0));
    };
    ($register:path, needs = devices) => {
        $crate::plugin!(
            @ $register,
            $crate::abi::Requirements::new(1, $crate::abi::FEATURE_DEVICES)
        );
    };
    (@ $register:path, $requirements:expr) => {
        const _: () = {
            unsafe extern "C" fn __keyfold_plugin_register(
                host: *const $crate::abi::HostTable,
                registrar: *mut $crate::abi::HostRegistrar,
            ) -> *mut $crate::abi::HostError {
                // SAFETY: the host calls this with its table and registrar, as the ABI specifies.
                unsafe { $crate::__enter(host, registrar, $register) }
            }

            // SAFETY: the symbol is reserved for plugins, and a cdylib exports it once.
            #[unsafe(no_mangle)]
            #[allow(non_upper_case_globals)]
            static keyfold_plugin_requirements: $crate::abi::Requirements = $requirements;

            // SAFETY: as above.
            #[unsafe(no_mangle)]
            #[allow(non_upper_case_globals)]
            static keyfold_plugin: $crate::abi::Descriptor = $crate::abi::Descriptor::new(
                env!("CARGO_PKG_NAME"),
                env!("CARGO_PKG_VERSION"),
                &$requirements,
                __keyfold_plugin_register,
            );
        };
    };
}
