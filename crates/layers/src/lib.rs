//! The layers above the backends, one module per dispatch key.
//!
//! Each layer is one boxed fallback that works for every operator, including users' operators, and rules,
//! which are kernels at (operator, key) for operators for which a rule is better than the fallback. So a new
//! operator works under all layers, and a new layer with all operators.
//!
//! | key | fallback | rule |
//! | --- | --- | --- |
//! | Tracer | one node in the graph per outer call | |
//! | Profiler | one event per outer call | |
//! | Pipeline | notes the line of the call, which is recorded at Deferred | |
//! | Vmap | a loop over the batch | a batching rule |
//! | Autograd | a node whose backward is an error that names the operator | a derivative |
//! | Autocast | leaves the arguments as they are | a category |
//! | Deferred | records the call for later | the operator's own inference |
//! | Meta | an error that says how to add a rule | shapes and dtypes without data |
#![forbid(unsafe_code)]

pub mod aten;
pub mod autocast;
pub mod autograd;
pub mod meta;
pub mod pipeline;
pub mod profiler;
pub mod tracer;
pub mod vmap;

use keyfold_core::Result;
use keyfold_dispatch::Dispatcher;
use keyfold_tensor::Value;

/// The number of elements from which on a layer's kernel releases the host language's lock, as the built-in
/// kernels do.
pub(crate) const HOST_LOCK_FROM: usize = 1 << 15;

/// Registers the layers in a dispatcher: a fallback at each key. Rules are registered with their operators. The
/// layers call operators of the process's dispatcher.
///
/// # Errors
/// [`keyfold_core::ErrorKind::Registration`] if one of the keys has a fallback already.
pub fn register(dispatcher: &Dispatcher<Value>) -> Result<()> {
    tracer::register(dispatcher)?;
    profiler::register(dispatcher)?;
    vmap::register(dispatcher)?;
    autograd::register(dispatcher)?;
    autocast::register(dispatcher)?;
    pipeline::register(dispatcher)
}
