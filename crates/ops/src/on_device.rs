//! Kernels of devices other than the host. Numbers that are tensors of the host are copied to the device,
//! and where the backend doesn't offer an operator it runs on another device, if that was allowed.

use keyfold_backend::{fallback_of, note_fallback};
use keyfold_core::{Device, DeviceType, ErrorKind, Result};
use keyfold_dispatch::{CallContext, Kernel, Value as _};
use keyfold_tensor::{Tensor, Value, ValueRef};

/// A kernel of a device's, with that.
pub(crate) fn on_device(kernel: Kernel<Value>, kind: DeviceType) -> Kernel<Value> {
    let (lock, provenance) = (kernel.host_lock(), kernel.provenance().clone());
    let wrapped = Kernel::boxed(move |context: &CallContext<'_, Value>, args| {
        let result = with_scalars(args, kind, |args| kernel.invoke(context, args));
        note_writes(context, args);
        match result {
            Err(error) if error.kind() == ErrorKind::NotSupported => match fallback_of(kind) {
                Some(to) => elsewhere(context, args, (kind, to)),
                None => Err(error),
            },
            result => result,
        }
    });
    wrapped.with_provenance(provenance).with_host_lock(lock)
}

/// Counts the write to each argument that the operator writes to: backends' kernels don't.
fn note_writes(context: &CallContext<'_, Value>, args: &[ValueRef<'_>]) {
    for (argument, arg) in context.operator().schema().arguments.iter().zip(args) {
        if argument.alias.as_ref().is_some_and(|alias| alias.write)
            && let Ok(tensor) = arg.tensor()
        {
            tensor.note_write();
        }
    }
}

/// Calls `f` with the arguments; 0-dim tensors of the host, which calls take beside tensors of any device,
/// are copied to that device.
fn with_scalars(
    args: &[ValueRef<'_>],
    kind: DeviceType,
    f: impl FnOnce(&[ValueRef<'_>]) -> Result<Value>,
) -> Result<Value> {
    let is_scalar = |tensor: &Tensor| tensor.ndim() == 0 && tensor.device().kind().is_host();
    let place = |arg: &ValueRef<'_>| arg.tensor().is_ok_and(is_scalar);
    if !args.iter().any(place) {
        return f(args);
    }
    let home = home(args, kind);
    let copies = args.iter().map(|arg| match arg.tensor() {
        Ok(tensor) if is_scalar(tensor) => tensor.to_device(home).map(Some),
        _ => Ok(None),
    });
    let copies = copies.collect::<Result<Vec<_>>>()?;
    let all = args.iter().zip(&copies);
    let all = all.map(|(arg, copy)| copy.as_ref().map_or(*arg, ValueRef::Tensor));
    f(&all.collect::<Vec<_>>())
}

/// The device of that type that a call is about.
fn home(args: &[ValueRef<'_>], kind: DeviceType) -> Device {
    let mut home = None;
    for arg in args {
        for_each_tensor(*arg, &mut |tensor| {
            if tensor.device().kind() == kind {
                home.get_or_insert(tensor.device());
            }
        });
        if let ValueRef::Device(device) = arg {
            home.get_or_insert(*device);
        }
    }
    home.unwrap_or(Device::new(kind, 0))
}

/// Calls `f` with each tensor of an argument.
fn for_each_tensor<'a>(arg: ValueRef<'a>, f: &mut impl FnMut(&'a Tensor)) {
    match arg.tensor() {
        Ok(tensor) => f(tensor),
        Err(_) => arg.items().for_each(|item| for_each_tensor(item, f)),
    }
}

/// A value with its tensors of one type of device on a device of another.
fn moved(arg: ValueRef<'_>, (from, target): (DeviceType, Device)) -> Result<Value> {
    Ok(match arg {
        ValueRef::Device(device) if device.kind() == from => Value::Device(target),
        arg => match (arg.tensor(), arg.list_len()) {
            (Ok(tensor), _) if tensor.device().kind() == from => {
                Value::Tensor(tensor.to_device(target)?)
            }
            (Err(_), Some(_)) => {
                let items = arg.items().map(|item| moved(item, (from, target)));
                Value::List(items.collect::<Result<_>>()?)
            }
            _ => Value::from_ref(arg)?,
        },
    })
}

/// Runs an operator on another device: its arguments are copied there, its results back, and what it
/// wrote to arguments, too.
#[cold]
fn elsewhere(
    context: &CallContext<'_, Value>,
    args: &[ValueRef<'_>],
    (from, to): (DeviceType, DeviceType),
) -> Result<Value> {
    let schema = context.operator().schema();
    let home = home(args, from);
    let there = (from, Device::new(to, 0));
    let copies = args.iter().map(|arg| moved(*arg, there)).collect::<Result<Vec<_>>>()?;
    let there: Vec<ValueRef<'_>> = copies.iter().map(Value::as_ref).collect();
    note_fallback(&schema.name.to_string(), from, to)?;
    let result = context.dispatcher()?.call(&schema.name.to_string(), &there)?;
    let written = schema.arguments.iter().map(|a| a.alias.as_ref().is_some_and(|a| a.write));
    let mut returned = None;
    for (at, _) in written.enumerate().filter(|(_, written)| *written) {
        let (target, copy) = (args[at].tensor()?, there[at].tensor()?);
        // SAFETY: the schema says that the operator writes to this argument, so the caller gave its
        // memory up for the time of the call.
        unsafe { target.copy_from(&copy.to_device(home)?)? };
        returned = Some(at);
    }
    match returned {
        Some(at) if schema.returns.iter().any(|r| r.alias.is_some()) => Ok(Value::Argument(at)),
        _ => moved(result.as_ref(), (to, home)),
    }
}
