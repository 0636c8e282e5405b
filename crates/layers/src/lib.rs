//! The layers above the backends, one module per dispatch key.
//!
//! Each layer is one boxed fallback that works for every operator, also one that a user defined a
//! minute ago, and rules for single operators, which are kernels at (operator, key), where a rule
//! does better than the general way. So a new operator gets all layers for nothing, and a new layer
//! all operators.
//!
//! | key | the general way | a rule |
//! | --- | --- | --- |
//! | Tracer | one node in the graph per outer call | |
//! | Profiler | one event per outer call | |
//! | Vmap | a loop over the batch | a batching rule |
//! | Autograd | a node whose backward is an error that names the operator | a derivative |
//! | Autocast | leaves the arguments as they are | a category |
//! | Meta | an error that says how to add a rule | shapes and dtypes without data |
#![forbid(unsafe_code)]

pub mod aten;
pub mod autocast;
pub mod autograd;
pub mod meta;
pub mod profiler;
pub mod tracer;
pub mod vmap;

use keyfold_core::Result;
use keyfold_dispatch::Dispatcher;
use keyfold_tensor::Value;

/// From how many elements on a layer gives the host language's lock up for what is below it, as
/// the built-in kernels do.
pub(crate) const HOST_LOCK_FROM: usize = 1 << 15;

/// Registers the layers in a dispatcher: a fallback at each key. Rules of single operators come with the
/// operators. What layers compute themselves goes through the process's dispatcher.
///
/// # Errors
/// [`keyfold_core::ErrorKind::Registration`] where one of the keys has a fallback already.
pub fn register(dispatcher: &Dispatcher<Value>) -> Result<()> {
    tracer::register(dispatcher)?;
    profiler::register(dispatcher)?;
    vmap::register(dispatcher)?;
    autograd::register(dispatcher)?;
    autocast::register(dispatcher)
}
