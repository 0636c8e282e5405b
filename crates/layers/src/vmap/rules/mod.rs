//! Batching rules of the built-in operators, by family: one call for the whole batch.
//!
//! A rule takes the arguments' physical tensors, puts the batch in front where it has to, calls the
//! operator (or one that does the same along dimensions) once, and wraps the result. What a rule
//! can't do, and wrong arguments, it leaves to the loop, whose errors speak of one example.

mod index;
mod join;
mod matmul;
mod pointwise;
mod reduce;
mod view;

pub(crate) use pointwise::several;

use keyfold_core::{Error, ErrorKind, Result, layout};
use keyfold_dispatch::{DispatchKey, Dispatcher, HostLock, Kernel, Override, outside_layers};
use keyfold_tensor::{Value, ValueRef};

use keyfold_ops::elementwise::FUNCTIONS;

use super::batch::Batch;
use super::fallback::looped;
use crate::HOST_LOCK_FROM;

/// A rule: the result, or `None` to leave the call to the loop.
pub(crate) type Rule = fn(&Batch<'_, '_>) -> Result<Option<Value>>;

/// The whole number that an argument is.
fn int(value: ValueRef<'_>) -> Option<i64> {
    if let ValueRef::Int(n) = value { Some(n) } else { None }
}

fn truth(value: ValueRef<'_>) -> bool {
    matches!(value, ValueRef::Bool(true))
}

/// The whole numbers of a list; a lone one is a list of one.
fn ints(value: ValueRef<'_>) -> Option<Vec<i64>> {
    match value {
        ValueRef::Ints(items) => Some(items.to_vec()),
        ValueRef::Int(n) => Some(vec![n]),
        list => {
            list.list_len()?;
            list.items().map(int).collect()
        }
    }
}

/// A dimension of an example of that rank, where the batch stands before it.
fn behind_batch(dim: i64, rank: usize) -> Option<i64> {
    Some(layout::normalize_axis(dim, rank).ok()? as i64 + 1)
}

/// Whether an error is about sizes and dimensions, which aren't an example's in a rule.
fn speaks_of_shapes(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Shape | ErrorKind::Index | ErrorKind::Value)
}

/// The kernel at Vmap that serves a call by a rule.
pub(crate) fn kernel(rule: Rule, name: &str) -> Kernel<Value> {
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

/// Registers the rules of those operators that the dispatcher has.
pub(super) fn register(dispatcher: &Dispatcher<Value>) -> Result<()> {
    let families: [&[(&str, Rule)]; 6] =
        [pointwise::RULES, reduce::RULES, matmul::RULES, view::RULES, join::RULES, index::RULES];
    let unary = FUNCTIONS.map(|(name, _)| (name, pointwise::one as Rule));
    let listed = [crate::elementwise::LISTED];
    let all = families.into_iter().flatten().chain(&unary).chain(&listed);
    for (name, rule) in all {
        let Ok(operator) = dispatcher.operator(name) else { continue };
        let short = name.trim_start_matches("aten::").replace('.', "_").to_lowercase();
        let kernel = kernel(*rule, &format!("{short}_vmap"));
        dispatcher.register_with(&operator, DispatchKey::Vmap, kernel, Override::Error)?;
    }
    Ok(())
}
