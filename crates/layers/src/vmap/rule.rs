//! Batching rules: one call for the whole batch.

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::{DispatchKey, HostLock, Kernel, outside_layers};
use keyfold_tensor::Value;

use super::batch::Batch;
use super::fallback::looped;
use crate::HOST_LOCK_FROM;

/// A rule: the result, or `None` to leave the call to the loop.
///
/// It takes the arguments' physical tensors, puts the batch in front where it has to, calls the operator
/// (or one that does the same along dimensions) once, and wraps the result. Wrong arguments it leaves to
/// the loop, whose errors speak of one example.
pub type Rule = fn(&Batch<'_, '_>) -> Result<Option<Value>>;

/// Whether an error is about sizes and dimensions, which aren't an example's in a rule.
fn speaks_of_shapes(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Shape | ErrorKind::Index | ErrorKind::Value)
}

/// The kernel at Vmap that serves a call by a rule.
pub fn kernel(rule: Rule, name: &str) -> Kernel<Value> {
    Kernel::boxed(move |context, args| {
        let Some(batch) = Batch::of(context, args)? else { return context.call_below(args) };
        outside_layers(DispatchKey::Vmap.into(), || match rule(&batch) {
            Ok(Some(result)) => Ok(result),
            Ok(None) => looped(&batch),
            Err(error) if speaks_of_shapes(&error) && !batch.writes() => {
                // The same error in terms of one example, if the loop gives one.
                Err(looped(&batch).err().unwrap_or(error))
            }
            Err(error) => Err(error),
        })
    })
    .named(name)
    .with_host_lock(HostLock::ReleaseFrom(HOST_LOCK_FROM))
}
