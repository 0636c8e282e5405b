//! The tracer layer: records a function's outer calls as a graph that can be printed, drawn,
//! replayed and stored as JSON.
//!
//! A trace is a mode. The function runs with real tensors while a [`Session`] is the data of a
//! local include of the key Tracer; the fallback there records each outer call and redispatches it.
//! Calls inside operators aren't recorded, as in every layer, with one exception: if gradients are
//! recorded for the inner calls (on whole batches below Vmap, and those of a composite), the graph
//! has these, since gradients flow back through them.
//!
//! ```
//! use keyfold::ops::aten;
//! use keyfold_layers::tracer;
//! use keyfold_tensor::Tensor;
//! keyfold::init();
//!
//! let w = Tensor::from_slice(&[2.0, 3.0], &[2])?;
//! let x = Tensor::from_slice(&[1.0, 1.0], &[2])?;
//! let graph = tracer::trace(&[&x], |x| Ok(vec![aten::exp(&aten::mul(&x[0], &w)?)?]))?;
//! assert_eq!(
//!     graph.to_string(),
//!     "graph(%0: float64[2]):\n\
//!      \x20 %c0: float64[2] = constant\n\
//!      \x20 %1:  float64[2] = aten::mul(%0, %c0)\n\
//!      \x20 %2:  float64[2] = aten::exp(%1)\n\
//!      \x20 return %2\n"
//! );
//! let again = graph.run(keyfold::dispatcher(), &[&w])?;
//! assert_eq!(again[0].clone().into_tensor()?.get::<f64>(&[0])?, 4.0_f64.exp());
//! # Ok::<(), keyfold_core::Error>(())
//! ```

mod assemble;
mod base64;
mod dot;
mod errors;
mod from_json;
mod ir;
mod memory_refs;
mod mermaid;
mod print;
mod run;
mod session;
mod simplify;
mod to_json;
mod value_map;

use keyfold_core::Result;
use keyfold_dispatch::{DispatchKey, Dispatcher, HostLock, Kernel, Override};
use keyfold_tensor::{Tensor, Value, ValueRef};

pub(crate) use assemble::{Assembly, Results};
pub use dot::Direction;
pub use ir::{Arg, Argument, Constant, Graph, Info, Input, Node, ValueId};
pub use run::Wrap;
pub use session::{Session, check_readable, is_recording, is_recording_here, note_wrapped};
pub(crate) use session::{note_saved, shares_held_by_traces};

pub(crate) fn register(dispatcher: &Dispatcher<Value>) -> Result<()> {
    let layer = Kernel::boxed(|context, args| match crate::vmap::traced(context, args) {
        Some(result) => result,
        None => session::record(context, args),
    });
    let layer = layer
        .named("record in the graph")
        .with_host_lock(HostLock::ReleaseFrom(crate::HOST_LOCK_FROM));
    dispatcher.fallback(DispatchKey::Tracer, layer, Override::Error)?;
    Ok(())
}

/// Runs a function on tensors and records it.
///
/// # Errors
/// The function's errors, and those of [`Session::finish`].
pub fn trace(
    inputs: &[&Tensor],
    f: impl FnOnce(&[Tensor]) -> Result<Vec<Tensor>>,
) -> Result<Graph> {
    let session = Session::begin();
    let inputs = inputs.iter().map(|tensor| session.input(tensor, ""));
    let inputs = inputs.collect::<Result<Vec<Tensor>>>()?;
    let guard = session.enter();
    let outputs = f(&inputs);
    guard.close()?;
    let outputs = outputs.inspect_err(|_| session.abandon())?;
    let outputs: Vec<ValueRef<'_>> = outputs.iter().map(ValueRef::Tensor).collect();
    session.finish(&outputs)
}
