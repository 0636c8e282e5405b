//! Batching rules: one call for the whole batch.

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::{DispatchKey, HostLock, Kernel, outside_layers};
use keyfold_tensor::Value;

use super::batch::Batch;
use super::fallback::loop_over_examples;
use crate::HOST_LOCK_FROM;

/// A batching rule: returns the result, or `None` for the loop.
///
/// It unwraps the physical tensors, moves batch dimensions to the front if necessary, calls the
/// operator (or an equivalent one with dimensions) once, and wraps the result. It leaves invalid
/// arguments to the loop, whose errors are in terms of one example.
pub type Rule = fn(&Batch<'_, '_>) -> Result<Option<Value>>;

/// Returns whether an error is about sizes and dimensions, which in a rule aren't an example's.
fn speaks_of_shapes(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Shape | ErrorKind::Index | ErrorKind::Value)
}

/// Returns the kernel at Vmap that runs a rule.
pub fn kernel(rule: Rule, name: &str) -> Kernel<Value> {
    Kernel::boxed(move |context, args| {
        let Some(batch) = Batch::of(context, args)? else { return context.call_below(args) };
        outside_layers(DispatchKey::Vmap.into(), || match rule(&batch) {
            Ok(Some(result)) => Ok(result),
            Ok(None) => loop_over_examples(&batch),
            Err(error) if speaks_of_shapes(&error) && !batch.writes() => {
                // The loop's error is in terms of one example.
                Err(loop_over_examples(&batch).err().unwrap_or(error))
            }
            Err(error) => Err(error),
        })
    })
    .named(name)
    .with_host_lock(HostLock::ReleaseFrom(HOST_LOCK_FROM))
}
