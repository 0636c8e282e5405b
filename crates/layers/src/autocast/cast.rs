//! The kernel of a category: casts arguments, then calls the operator below.

use keyfold_core::{DType, Result};
use keyfold_dispatch::schema::Argument;
use keyfold_dispatch::{CallContext, HostLock, Kernel, Value as _, local_data};
use keyfold_tensor::{Tensor, Value, ValueRef};

use super::{Category, Settings};
use crate::{HOST_LOCK_FROM, aten};

/// Makes the kernel at Autocast of an operator of that category.
#[track_caller]
pub(super) fn kernel(category: Category) -> Kernel<Value> {
    if category == Category::Leave {
        return Kernel::fallthrough();
    }
    Kernel::boxed(move |context, args| run(context, args, category))
        .named(format!("autocast as {category}"))
        .with_host_lock(HostLock::ReleaseFrom(HOST_LOCK_FROM))
}

fn run(
    context: &CallContext<'_, Value>,
    args: &[ValueRef<'_>],
    category: Category,
) -> Result<Value> {
    // The key can be included without a scope, and then there is no dtype to cast to.
    let Some(settings) = local_data::<Settings>().filter(|settings| settings.enabled) else {
        return context.call_below(args);
    };
    let schema = &context.operator().schema().arguments;
    let floats = floats(schema, args);
    let Some(widest) = floats.iter().copied().reduce(DType::promote) else {
        return context.call_below(args);
    };
    let target = |given: DType| category.target(given, settings.dtype, widest);
    if floats.iter().all(|dtype| target(*dtype) == *dtype) {
        return context.call_below(args);
    }
    let cast = |arg: ValueRef<'_>| -> Result<Option<Tensor>> {
        let Some(given) = tensor_of(arg) else { return Ok(None) };
        let dtype = target(given.dtype());
        if dtype == given.dtype() {
            return Ok(None);
        }
        aten::to(given, dtype).map(Some)
    };
    let mut replaced = Vec::with_capacity(args.len());
    for (arg, argument) in args.iter().zip(schema) {
        replaced.push(match arg.list_len() {
            _ if !is_cast(argument) => None,
            None => cast(*arg)?.map(Value::Tensor),
            Some(_) => list(*arg, cast)?,
        });
    }
    let args: Vec<_> = args
        .iter()
        .zip(&replaced)
        .map(|(arg, new)| new.as_ref().map_or(*arg, keyfold_dispatch::Value::as_ref))
        .collect();
    context.call_below(&args)
}

/// Casts the items of a list; `None` if no item has to be cast.
fn list(
    arg: ValueRef<'_>,
    cast: impl Fn(ValueRef<'_>) -> Result<Option<Tensor>>,
) -> Result<Option<Value>> {
    let new = arg.items().map(cast).collect::<Result<Vec<_>>>()?;
    if new.iter().all(Option::is_none) {
        return Ok(None);
    }
    let items = arg.items().zip(new).map(|(old, new)| match new {
        Some(tensor) => Ok(Value::Tensor(tensor)),
        None => Value::from_ref(old),
    });
    Ok(Some(Value::List(items.collect::<Result<_>>()?)))
}

/// Returns whether an argument may be cast. An argument that the operator writes to or returns a view of may
/// not: the operator would write to the copy, or return a view of it.
fn is_cast(argument: &Argument) -> bool {
    argument.ty.carries_tensors() && argument.alias.is_none()
}

/// Returns the dtypes of the floating tensors that may be cast.
fn floats(schema: &[Argument], args: &[ValueRef<'_>]) -> Vec<DType> {
    let mut dtypes = Vec::new();
    let mut push = |arg: ValueRef<'_>| {
        let dtype = tensor_of(arg).map(Tensor::dtype);
        dtypes.extend(dtype.filter(|dtype| dtype.is_floating()));
    };
    for (arg, _) in args.iter().zip(schema).filter(|(_, argument)| is_cast(argument)) {
        match arg.list_len() {
            None => push(*arg),
            Some(_) => arg.items().for_each(&mut push),
        }
    }
    dtypes
}

/// Returns the tensor of an argument; `None` for an absent one, and for an array of another library that can't
/// be viewed, for which the kernel below raises a better error.
fn tensor_of(arg: ValueRef<'_>) -> Option<&Tensor> {
    arg.tensor().ok()
}
