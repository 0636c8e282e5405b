//! The classes that users hold: `keyfold.Tensor`, operators, dispatchers, layers, devices, and the module's functions.
//!
//! - `tensor`: the methods of `keyfold.Tensor`, those that rows name in `method`; `aten`, the operators that they call; `array_kind`
//! - `operator`, `packet`, `redispatch`, `dispatcher`, `handle`, `explain`, `schema`, `expression`: operators
//! - `function`: the package's functions that call operators, methods of tensors among them; `number_or_array`
//! - `nativekernel`, `plugin`, `tvmffi`: kernels that aren't Python's
//! - `guards`, `block`: `with` blocks
//! - `autocast`, `autograd`, `derivative` (derivatives written in Python), `jvp`, `meta`, `profiler`,
//!   `pipeline`, `tracer`, `vmap`: the layers
//! - `devices`, `backend` (those that are written in Python), `memory`, `random`, `threads`
//! - `method_defs`, `vectorcall`: functions that CPython calls without PyO3's packing
//! - `cudnn`: graphs of cuDNN
//! - `conformance`, `delayed`, `testing`: for tests

pub(crate) mod array_kind;
pub(crate) mod aten;
pub(crate) mod autocast;
pub(crate) mod autograd;
pub(crate) mod backend;
pub(crate) mod block;
pub(crate) mod conformance;
pub(crate) mod cudnn;
pub(crate) mod delayed;
pub(crate) mod derivative;
pub(crate) mod devices;
pub(crate) mod dispatcher;
pub(crate) mod explain;
pub(crate) mod expression;
pub(crate) mod function;
pub(crate) mod fused;
pub(crate) mod guards;
pub(crate) mod handle;
pub(crate) mod jvp;
pub(crate) mod memory;
pub(crate) mod meta;
pub(crate) mod method_defs;
pub(crate) mod nativekernel;
pub(crate) mod number_or_array;
pub(crate) mod operator;
pub(crate) mod packet;
pub(crate) mod pipeline;
pub(crate) mod plugin;
pub(crate) mod profiler;
pub(crate) mod random;
pub(crate) mod redispatch;
pub(crate) mod schema;
pub(crate) mod tensor;
pub(crate) mod testing;
pub(crate) mod threads;
pub(crate) mod tracer;
pub(crate) mod tvmffi;
#[cfg(not(feature = "abi3"))]
pub(crate) mod vectorcall;
pub(crate) mod vmap;

use pyo3::prelude::*;

/// Adds what isn't a class or a function of PyO3's. Called once, at import.
pub(crate) fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("fallthrough", Bound::new(module.py(), dispatcher::PyFallthrough)?)?;
    method_defs::init(module)?;
    pipeline::init();
    #[cfg(not(feature = "abi3"))]
    vectorcall::init(module.py())?;
    tensor::method::init(module.py())
}
