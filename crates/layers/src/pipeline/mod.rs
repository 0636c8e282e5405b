//! The pipeline: deferred execution.
//!
//! While a [`Session`] is open, a call returns at once, with a pending tensor whose form was inferred,
//! and the operation is recorded. A flush runs what was recorded, in order, and so does every way to
//! read a pending tensor.
//!
//! ```
//! use keyfold::ops::aten;
//! use keyfold_layers::pipeline::{Ending, Options, Session};
//! # use keyfold_tensor::Tensor;
//! keyfold::init();
//! let x = Tensor::from_slice(&[1.0_f64, 2.0], &[2])?;
//! let session = Session::new(Options::default())?;
//! session.open();
//! let guard = session.enter();
//! let y = aten::exp(&aten::mul(&x, &x)?)?;
//! assert!(y.is_pending() && session.pending_count() == 2);
//! assert_eq!(y.to_vec::<f64>()?, [1.0_f64.exp(), 4.0_f64.exp()]); // reading runs both
//! assert!(!y.is_pending());
//! guard.close()?;
//! session.close(Ending::Run)?;
//! # Ok::<(), keyfold_core::Error>(())
//! ```
//!
//! # How it is laid out
//! - the key Pipeline is the mode: its fallback notes the line of the call. The key Deferred, just
//!   above the backends, records (`record`) what `decide` doesn't have run at once (`compute`), so Vmap, Autograd and Autocast have run by then. A
//!   pending tensor carries it, which brings later calls here on any thread
//! - operators' own inference comes with a kernel at Deferred ([`kernel`]); others infer by Meta
//! - an `operation` keeps its arguments, key set, local context and stream; `plan` selects
//!   those that a flush runs, `run` runs them: failures stay with what depends on them
//! - `fusion` computes pointwise operations that read each other's results in one pass
//! - steps that don't depend on each other run [concurrently](concurrent), if their [cost] is worth it
//! - memory is a [`PendingBuffer`](keyfold_tensor::PendingBuffer): staged while operations may still
//!   write to it, then filled
//! - `check` runs each flush's operations eagerly as well and compares, where `Options::check` asks
//! - [`Failure`] and [`Explanation`] say what went wrong and what waits
//!
//! Without a session the keys are in no set, and calls cost what they cost.

mod check;
mod compute;
mod concurrent;
mod copies;
mod cost;
mod decide;
mod explain;
mod failure;
mod fork;
mod fusion;
mod host;
mod known;
mod operation;
mod plan;
mod record;
mod recording;
mod run;
mod runner;
mod same;
mod sequence;
mod session;
mod settle;
mod timer;
mod waiting;

use std::sync::Arc;

use keyfold_core::Result;
use keyfold_dispatch::{DispatchKey, Dispatcher, HostLock, Kernel, Override};
use keyfold_tensor::Value;

pub use check::Check;
pub use decide::{Evaluated, Form, Infer, Memory, Work};
pub use explain::{Explanation, Planned, PlannedConcurrent, PlannedGroup};
pub use failure::Failure;
pub use fusion::BackendKernel;
pub use host::{Host, ProgramPlace, Site, set_host};
pub use operation::for_each_tensor;
pub(crate) use recording::note_requires_grad;
pub use recording::{READS, Recording, is_recording, is_recording_here, note_unrecordable};
pub use session::{AtOnce, Ending, Options, Session, Statistics, as_data};
pub(crate) use settle::shares_held_by_pipelines;

pub(crate) fn register(dispatcher: &Dispatcher<Value>) -> Result<()> {
    // The lock is kept: the line is read from the host language's frames.
    let layer = Kernel::boxed(record::at_pipeline).named("defer the calls below");
    dispatcher.fallback(
        DispatchKey::Pipeline,
        layer.with_host_lock(HostLock::Keep),
        Override::Error,
    )?;
    let layer = Kernel::boxed(|context, args| record::at_deferred(context, args, None));
    let layer = layer.named("record for later").with_host_lock(HostLock::Keep);
    dispatcher.fallback(DispatchKey::Deferred, layer, Override::Error)?;
    Ok(())
}

/// Makes the kernel at Deferred of an operator that infers its results itself. The results may depend on
/// what arguments are: numbers, texts, and of tensors the dtype, device, shape and strides, and which of
/// them are one object. The kernel infers once for calls that agree in that, unless they write in place.
pub fn kernel(infer: Arc<Infer>) -> Kernel<Value> {
    let inference = decide::Inference::new(infer);
    let kernel =
        Kernel::boxed(move |context, args| record::at_deferred(context, args, Some(&inference)));
    kernel.named("record for later").with_host_lock(HostLock::Keep)
}

/// Runs what waits in the pipeline that is open here; nothing otherwise.
///
/// # Errors
/// As [`Session::flush`].
pub fn flush() -> Result<()> {
    Session::current().map_or(Ok(()), |session| session.flush())
}

/// Runs what waits in the pipeline that is open here, and keeps failures for later. Returns whether anything waited.
///
/// # Errors
/// An interrupt.
pub(crate) fn run_waiting() -> Result<bool> {
    match Session::current().filter(|session| !session.only_records() && !session.is_run_here()) {
        Some(session) if session.pending_count() > 0 => session.run_all().map(|()| true),
        _ => Ok(false),
    }
}

/// Runs what waits in the pipeline that is open here, if its option says that a backward pass does.
pub(crate) fn flush_on_backward() -> Result<()> {
    match Session::current().filter(|session| session.options().flush_on_backward) {
        Some(session) => session.flush(),
        None => Ok(()),
    }
}
