//! TVM FFI's stable C ABI, both ways.
//!
//! The ABI is one function type, `int (void* handle, const TVMFFIAny* args, int32_t n, TVMFFIAny*
//! result)`, with DLPack's tensors inside. FlashInfer, TileLang, CuTe DSL and others compile to it.
//!
//! - In: [`NativeFunction`] makes a kernel of such a function.
//! - Out: [`export()`] makes a TVM FFI function object of an operator.
//!
//! Numbers, text and borrowed tensors need nothing but the ABI. Objects (tensors with an owner,
//! lists, raised errors) belong to TVM FFI's library, which is used where the process has loaded it
//! and never loaded by itself: see [`runtime`].
//!
//! Modules, from the ABI upwards:
//!
//! - [`abi`]: the structs and numbers; [`runtime`]: the library's functions; [`object`]: references
//!   that are counted
//! - [`pass`]: values into a foreign function; [`take`]: its result back; [`read`]: what a foreign
//!   caller passes; [`give`]: what it gets
//! - [`plugin`]: Rust crates with kernels, loaded at run time, by an ABI of their own
//! - `alloc`: memory for tensors that foreign functions make
//! - [`raised`]: errors, both ways; [`guard`]: exceptions of C++
//! - [`kernel`]: foreign functions as kernels, with `outputs` and `check`; [`export`]: operators as
//!   foreign functions

pub mod abi;
mod alloc;
mod check;
pub mod export;
pub mod give;
pub mod guard;
pub mod kernel;
pub mod object;
mod outputs;
pub mod pass;
pub mod plugin;
pub mod raised;
pub mod read;
pub mod runtime;
pub mod take;

pub use abi::{Any, SafeCall};
pub use export::export;
pub use kernel::{NativeFunction, Outputs, Tensors};
pub use object::Object;
pub use raised::Raised;
pub use runtime::Runtime;
