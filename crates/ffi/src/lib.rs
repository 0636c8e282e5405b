//! TVM FFI's stable C ABI, in both directions.
//!
//! The ABI is one function type, `int (void* handle, const TVMFFIAny* args, int32_t n, TVMFFIAny*
//! result)`, with DLPack's tensors as arguments. FlashInfer, TileLang, CuTe DSL and others compile
//! to it.
//!
//! - In: [`NativeFunction`] makes a kernel of such a function.
//! - Out: [`export()`] makes a TVM FFI function object of an operator.
//!
//! Numbers, text and borrowed tensors need only the ABI. Objects (tensors that own their memory,
//! lists, errors) belong to TVM FFI's library. keyfold uses it if the process has loaded it, and
//! never loads it by itself: see [`runtime`].
//!
//! Modules, lowest layer first:
//!
//! - [`abi`]: structs and constants; [`runtime`]: the library's functions; [`object`]: counted
//!   references
//! - [`arg_frame`]: arguments for a foreign function; [`from_result`]: its result
//! - [`from_args`]: arguments from a foreign caller; [`to_any`]: results for it
//! - [`plugin`]: crates with kernels and devices, loaded at run time, over an ABI of their own
//! - `alloc`: the allocator of tensors that foreign functions create
//! - [`error`]: errors in both directions; [`guard`]: C++ exceptions
//! - [`kernel`]: foreign functions as kernels, with `outputs` and `check`; [`mod@export`]: operators as
//!   foreign functions

pub mod abi;
mod alloc;
pub mod arg_frame;
mod check;
pub mod error;
pub mod export;
pub mod from_args;
pub mod from_result;
pub mod guard;
pub mod kernel;
pub mod object;
mod outputs;
pub mod plugin;
pub mod runtime;
pub mod to_any;

pub use abi::{Any, SafeCall};
pub use error::ForeignError;
pub use export::export;
pub use kernel::{NativeFunction, Outputs, Tensors};
pub use object::Object;
pub use runtime::Runtime;
