//! Calls that run at once, with the memory that fills their pending arguments.

use std::sync::Arc;

use keyfold_core::Result;
use keyfold_dispatch::{CallContext, Tags, Value as _};
use keyfold_tensor::{Tensor, Value, ValueRef};
use smallvec::SmallVec;

use super::operation::for_each_tensor;
use super::session::Session;

/// Runs a call now, with the memory that fills its pending arguments. `session` is the pipeline that
/// is open here, whose order is kept.
pub(super) fn compute(
    context: &CallContext<'_, Value>,
    args: &[ValueRef<'_>],
    session: Option<&Arc<Session>>,
) -> Result<Value> {
    if let Some(session) = session {
        let mut written = SmallVec::<[&Tensor; 2]>::new();
        for (argument, arg) in context.operator().schema().arguments.iter().zip(args) {
            if argument.alias.as_ref().is_some_and(|alias| alias.write) {
                for_each_tensor(*arg, &mut |tensor| written.push(tensor));
            }
        }
        session.settle_memories(&written)?;
        if context.operator().tags().contains(Tags::NONDETERMINISTIC_SEEDED) {
            session.settle_random()?;
        }
    }
    let mut waits = false;
    let is_one = |tensor: &Tensor| tensor.pending_buffer().is_some();
    args.iter().for_each(|arg| for_each_tensor(*arg, &mut |tensor| waits |= is_one(tensor)));
    if !waits {
        return context.call_below(args);
    }
    let mut ready = SmallVec::<[(usize, Value); 2]>::new();
    for (at, arg) in args.iter().enumerate() {
        if let Some(done) = completed(*arg)? {
            ready.push((at, done));
        }
    }
    let mut refs = SmallVec::<[ValueRef<'_>; 8]>::from_slice(args);
    ready.iter().for_each(|(at, done)| refs[*at] = done.as_ref());
    let result = context.call_below(&refs)?;
    // A result that is an argument is the caller's own.
    if let Value::Tensor(tensor) = &result
        && tensor.token() != 0
    {
        let is_it = |(_, done): &&(usize, Value)| match done {
            Value::Tensor(done) => same_view(done, tensor),
            _ => false,
        };
        if let Some((at, _)) = ready.iter().find(is_it) {
            return Value::from_ref(args[*at]);
        }
    }
    Ok(result)
}

fn same_view(a: &Tensor, b: &Tensor) -> bool {
    a.buffer().shares_with(b.buffer())
        && a.offset() == b.offset()
        && a.dtype() == b.dtype()
        && a.shape() == b.shape()
        && a.strides() == b.strides()
}

/// Returns an argument with its pending tensors replaced; `None` if there are none in it.
fn completed(arg: ValueRef<'_>) -> Result<Option<Value>> {
    match arg {
        ValueRef::Tensor(tensor) => completed_tensor(tensor),
        // A binding's own tensor, in a list.
        ValueRef::Foreign(object) if object.is_tensor() => completed_tensor(object.tensor()?),
        list if list.list_len().is_some() => {
            let mut changed = false;
            let mut items = Vec::new();
            for item in list.items() {
                match completed(item)? {
                    Some(done) => {
                        changed = true;
                        items.push(done);
                    }
                    None => items.push(Value::from_ref(item)?),
                }
            }
            Ok(changed.then_some(Value::List(items)))
        }
        _ => Ok(None),
    }
}

fn completed_tensor(tensor: &Tensor) -> Result<Option<Value>> {
    let Some(mut done) = tensor.completed()? else { return Ok(None) };
    done.set_token(tensor.token());
    Ok(Some(Value::Tensor(done)))
}
