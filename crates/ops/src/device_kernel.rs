//! Kernels of devices other than the host. 0-dim tensors of the host are copied to the device. An operator
//! that the backend doesn't offer runs on another device if `allow_fallback` was called.

use keyfold_backend::{fallback_of, note_fallback};
use keyfold_core::{Device, DeviceType, Error, ErrorKind, Result};
use keyfold_dispatch::schema::{Alias, Argument, Schema};
use keyfold_dispatch::{CallContext, Kernel, Value as _};
use keyfold_tensor::{Tensor, Value, ValueRef};

use crate::op::Runner;
use crate::pointwise::check_apart;

/// Wraps a device's kernel. `falls_back` is whether the operator may run on another device.
pub(crate) fn device_kernel(
    kernel: Kernel<Value>,
    runner: &Runner,
    falls_back: bool,
) -> Kernel<Value> {
    let (kind, memory) = (runner.kind, runner.memory);
    let (lock, provenance) = (kernel.host_lock(), kernel.provenance().clone());
    let wrapped = Kernel::boxed(move |context: &CallContext<'_, Value>, args| {
        check_memory(context, args, (kind, memory))?;
        let result = with_scalars(context, args, kind, |args| kernel.invoke(context, args));
        match result {
            Err(error) if error.kind() == ErrorKind::NotSupported => {
                match fallback_of(kind).filter(|_| falls_back) {
                    Some(to) => run_fallback(context, args, (kind, to)),
                    None => Err(error),
                }
            }
            result => {
                note_writes(context, args);
                result
            }
        }
    });
    wrapped.with_provenance(provenance).with_host_lock(lock)
}

/// Refuses tensors whose device has this one's name but belongs to a backend that was removed.
///
/// # Errors
/// [`ErrorKind::Device`], with the argument.
fn check_memory(
    context: &CallContext<'_, Value>,
    args: &[ValueRef<'_>],
    (kind, memory): (DeviceType, usize),
) -> Result<()> {
    let schema = context.operator().schema();
    for (argument, arg) in schema.arguments.iter().zip(args) {
        let mut removed = None;
        for_each_tensor(*arg, &mut |tensor| {
            if tensor.device().kind() == kind && !tensor.is_of(memory) {
                removed = Some(tensor);
            }
        });
        if let Some(tensor) = removed {
            return Err(error_at(tensor.backend_removed(), schema, argument));
        }
    }
    Ok(())
}

/// Adds the operator and the argument to an error.
#[cold]
fn error_at(error: Error, schema: &Schema, argument: &Argument) -> Error {
    error.at(&format!("argument '{}'", argument.name)).at(&schema.name.qualified())
}

/// Refuses written arguments that aren't writable. The fallback writes to copies, which would be writable.
///
/// # Errors
/// Those of a kernel that writes to the arguments.
fn check_written(schema: &Schema, args: &[ValueRef<'_>]) -> Result<()> {
    for (argument, arg) in schema.arguments.iter().zip(args) {
        if is_written(argument) && !matches!(arg, ValueRef::None) {
            let tensor = arg.tensor()?;
            check_apart(&schema.name.qualified(), &argument.name, tensor)?;
            tensor.check_writable().map_err(|error| error_at(error, schema, argument))?;
        }
    }
    Ok(())
}

/// Increments the write count of each argument that the operator writes to, which kernels of backends don't.
fn note_writes(context: &CallContext<'_, Value>, args: &[ValueRef<'_>]) {
    for (argument, arg) in context.operator().schema().arguments.iter().zip(args) {
        if is_written(argument)
            && let Ok(tensor) = arg.tensor()
        {
            tensor.note_write();
        }
    }
}

fn is_written(argument: &Argument) -> bool {
    argument.alias.as_ref().is_some_and(|alias| alias.write)
}

/// Returns whether a schema declares a result to be an argument.
fn is_same_memory(result: &Option<Alias>, argument: &Option<Alias>) -> bool {
    match (result, argument) {
        (Some(result), Some(argument)) => result.sets == argument.sets,
        _ => false,
    }
}

/// Calls `f` with the arguments, after copying 0-dim tensors of the host to the device. Calls accept these
/// beside tensors of any device.
///
/// # Errors
/// [`ErrorKind::Device`] for one that is to be written, unless the operator copies between devices; and
/// those of `f`.
fn with_scalars(
    context: &CallContext<'_, Value>,
    args: &[ValueRef<'_>],
    kind: DeviceType,
    f: impl FnOnce(&[ValueRef<'_>]) -> Result<Value>,
) -> Result<Value> {
    let operator = context.operator();
    if operator.allows_mixed_devices() || !args.iter().any(|arg| host_scalar(*arg).is_some()) {
        return f(args);
    }
    let home = device_of_call(args, kind);
    let arguments = &operator.schema().arguments;
    if let Some((argument, _)) = arguments
        .iter()
        .zip(args)
        .find(|(argument, arg)| is_written(argument) && host_scalar(**arg).is_some())
    {
        let message = format!(
            "{}: argument '{}' is on the host, and the others on {home}; give a tensor on {home} to write to",
            operator.name(),
            argument.name
        );
        return Err(Error::new(ErrorKind::Device, message));
    }
    let copies = args.iter().map(|arg| match host_scalar(*arg) {
        Some(from) => copy_between(*arg, (from, home)).map(Some),
        None => Ok(None),
    });
    let copies = copies.collect::<Result<Vec<_>>>()?;
    let all = args.iter().zip(&copies);
    let all = all.map(|(arg, copy)| copy.as_ref().map_or(*arg, Value::as_ref));
    f(&all.collect::<Vec<_>>())
}

/// Returns the device type of an argument, or an item of it, that is a 0-dim tensor of the host.
fn host_scalar(arg: ValueRef<'_>) -> Option<DeviceType> {
    let mut found = None;
    for_each_tensor(arg, &mut |tensor| {
        let kind = tensor.device().kind();
        if tensor.ndim() == 0 && kind.is_host() {
            found = Some(kind);
        }
    });
    found
}

/// Returns the device of that type of the first argument that has one, else the type's device 0.
fn device_of_call(args: &[ValueRef<'_>], kind: DeviceType) -> Device {
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

/// Copies a value's tensors from one type of device to a device of another.
fn copy_between(arg: ValueRef<'_>, (from, target): (DeviceType, Device)) -> Result<Value> {
    Ok(match arg {
        ValueRef::Device(device) if device.kind() == from => Value::Device(target),
        arg => match (arg.tensor(), arg.list_len()) {
            (Ok(tensor), _) if tensor.device().kind() == from => {
                Value::Tensor(tensor.to_device(target)?)
            }
            (Err(_), Some(_)) => {
                let items = arg.items().map(|item| copy_between(item, (from, target)));
                Value::List(items.collect::<Result<_>>()?)
            }
            _ => Value::from_ref(arg)?,
        },
    })
}

/// Runs an operator on the fallback device: copies the arguments there, and the results and written
/// arguments back.
#[cold]
fn run_fallback(
    context: &CallContext<'_, Value>,
    args: &[ValueRef<'_>],
    (from, to): (DeviceType, DeviceType),
) -> Result<Value> {
    let schema = context.operator().schema();
    check_written(schema, args)?;
    let home = device_of_call(args, from);
    let there = (from, Device::new(to, 0));
    let copies = args.iter().map(|arg| copy_between(*arg, there)).collect::<Result<Vec<_>>>()?;
    let there: Vec<ValueRef<'_>> = copies.iter().map(Value::as_ref).collect();
    note_fallback(&schema.name.to_string(), from, to)?;
    let result = context.dispatcher()?.call(&schema.name.to_string(), &there)?;
    // The written argument that each result is.
    let mut returned = vec![None; schema.returns.len()];
    for (place, argument) in schema.arguments.iter().enumerate().filter(|(_, a)| is_written(a)) {
        if matches!(args[place], ValueRef::None) {
            continue;
        }
        let (target, copy) = (args[place].tensor()?, there[place].tensor()?);
        let written = copy.to_device(home).and_then(|copy| {
            // SAFETY: the schema says that the operator writes to this argument, so the caller gave its
            // memory up for the time of the call.
            unsafe { target.copy_from(&copy) }
        });
        written.map_err(|error| error_at(error, schema, argument))?;
        for (result, returned) in schema.returns.iter().zip(&mut returned) {
            if is_same_memory(&result.alias, &argument.alias) {
                *returned = Some(place);
            }
        }
    }
    match (result, &returned[..]) {
        (_, [Some(at)]) => Ok(Value::Argument(*at)),
        // A value's reference doesn't tell several results from a list.
        (Value::Tuple(results), _) => {
            let all = results.iter().zip(returned).map(|(result, returned)| match returned {
                Some(at) => Value::from_ref(args[at]),
                None => copy_between(result.as_ref(), (to, home)),
            });
            all.collect::<Result<_>>().map(Value::Tuple)
        }
        (result, _) => copy_between(result.as_ref(), (to, home)),
    }
}
