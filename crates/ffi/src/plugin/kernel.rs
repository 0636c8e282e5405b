//! Calls of a plugin's kernels.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use keyfold_core::{DeviceType, Error, ErrorKind, Result, USER_DEVICE_TYPES};
use keyfold_dispatch::schema::{Schema, Type};
use keyfold_dispatch::{CallContext, DispatchKeySet, HostLock, Kernel, Provenance};
use keyfold_plugin::abi::{self, Any, CallFrame, KernelSpec, SafeCall, Text};
use keyfold_tensor::{Tensor, Value, ValueRef};
use smallvec::SmallVec;

use super::library::Library;
use super::table;
use super::values::PassedArgs;
use crate::kernel::{each_tensor, note_writes};
use crate::outputs::{Output, outputs};

/// A kernel's function and the plugin's data for it. Keeps the library loaded.
pub(super) struct Code {
    /// Not null.
    function: Option<SafeCall>,
    data: *mut c_void,
    drop: Option<unsafe extern "C" fn(*mut c_void)>,
    returns: i32,
    /// Dropped after `drop` ran: fields are dropped after the value's own `Drop`.
    _library: Arc<Library>,
}

// SAFETY: the ABI requires that any thread may call the function, several at a time.
unsafe impl Send for Code {}
// SAFETY: as above.
unsafe impl Sync for Code {}

impl Drop for Code {
    fn drop(&mut self) {
        if let Some(drop) = self.drop {
            // SAFETY: no call is running or can begin, and the library is still loaded.
            unsafe { drop(self.data) }
        }
    }
}

impl Code {
    /// # Safety
    /// `spec` keeps to the ABI, and so do its function and data.
    pub(super) unsafe fn new(spec: &KernelSpec, library: Arc<Library>) -> Result<Self> {
        let (function, data, drop, returns) = (spec.function, spec.data, spec.drop, spec.returns);
        let code = Code { function, data, drop, returns, _library: library };
        if function.is_none() {
            let message = "a kernel's function is null";
            return Err(Error::new(ErrorKind::Registration, message));
        }
        if !(abi::RETURNS_NOTHING..=abi::RETURNS_VALUES).contains(&returns) {
            return Err(Error::new(
                ErrorKind::Registration,
                format!("a kernel returns {returns}, which stands for nothing"),
            ));
        }
        Ok(code)
    }

    /// Returns the kernel that runs the function.
    pub(super) fn kernel(self, name: &str, provenance: Provenance) -> Kernel<Value> {
        let (name, returns) = (name.to_owned(), self.returns);
        Kernel::boxed(move |context, args| self.run(context, args))
            .with_provenance(provenance)
            .with_host_lock(HostLock::ReleaseFrom(0))
            .with_check(move |schema| check(schema, &name, returns))
    }

    fn run(&self, context: &CallContext<'_, Value>, args: &[ValueRef<'_>]) -> Result<Value> {
        let schema = context.operator().schema();
        let fills = self.returns == abi::RETURNS_NOTHING && !schema.returns.is_empty();
        let outputs = if fills { outputs(context, args)? } else { SmallVec::new() };
        let mut passed = PassedArgs::default();
        pass(&mut passed, context, args, &outputs)?;
        let (values, flags) = passed.set_pointers();
        let key = DispatchKeySet::EMPTY.insert(context.key());
        let mut running = RunningCall {
            frame: CallFrame {
                size: size_of::<CallFrame>() as u32,
                inputs: args.len() as i32,
                host: table::address(),
                data: self.data,
                keyset: context.keyset().bits(),
                key: key.bits(),
                flags: flags.as_ptr(),
                operator: Text::new(context.operator().name()),
            },
            context,
            args,
            outcome: Mutex::new(Outcome::default()),
        };
        let function = self
            .function
            .ok_or_else(|| Error::new(ErrorKind::KernelFailed, "the kernel's function is null"))?;
        let mut result = Any::new(abi::NONE, 0);
        // SAFETY: the plugin keeps to the convention; `passed`, `outputs` and the caller's
        // arguments keep all pointees alive until after the call.
        let code = unsafe {
            let (handle, count) = ((&raw mut running).cast::<c_void>(), values.len() as i32);
            function(handle, values.as_ptr(), count, &raw mut result)
        };
        let outcome = running.outcome.into_inner().unwrap_or_else(PoisonError::into_inner);
        drop(passed);
        if code != 0 {
            return Err(failed(context, outcome.error, code));
        }
        if fills {
            let mut tensors = outputs.into_iter().map(|output| Value::Tensor(output.tensor));
            return Ok(match schema.returns.len() {
                1 => tensors.next().unwrap_or(Value::None),
                _ => Value::Tuple(tensors.collect()),
            });
        }
        if self.returns != abi::RETURNS_VALUES {
            return number(context, result);
        }
        let mut given = outcome.given;
        Ok(match given.len() {
            0 => Value::None,
            1 => given.remove(0),
            _ => Value::Tuple(given),
        })
    }
}

/// A call in progress. Plugins access only the first field.
#[repr(C)]
pub(super) struct RunningCall<'a> {
    frame: CallFrame,
    pub(super) context: &'a CallContext<'a, Value>,
    pub(super) args: &'a [ValueRef<'a>],
    /// Locked, since a kernel may use threads of its own.
    outcome: Mutex<Outcome>,
}

#[derive(Default)]
struct Outcome {
    given: Vec<Value>,
    error: Option<table::HeldError>,
}

impl<'a> RunningCall<'a> {
    /// # Safety
    /// `frame` is the frame of a call in progress.
    pub(super) unsafe fn of(frame: *const CallFrame) -> &'a RunningCall<'a> {
        // SAFETY: the contract; only `Code::run` makes frames.
        unsafe { &*frame.cast::<RunningCall<'a>>() }
    }

    pub(super) fn give(&self, value: Value) {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner).given.push(value);
    }

    pub(super) fn fail(&self, error: table::HeldError) {
        let mut outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        let before = outcome.error.replace(error);
        drop(outcome);
        drop(before);
    }
}

/// Adds the arguments and, after them, the outputs that replace no argument.
fn pass<'a>(
    passed: &mut PassedArgs<'a>,
    context: &CallContext<'_, Value>,
    args: &'a [ValueRef<'a>],
    outputs: &'a [Output],
) -> Result<()> {
    let (operator, mut writes) = (context.operator(), false);
    let kind = context.key().device_type().filter(|kind| is_users(*kind));
    for (at, (argument, value)) in operator.schema().arguments.iter().zip(args).enumerate() {
        let made = outputs.iter().find(|output| output.argument == Some(at));
        let value = match made {
            Some(output) if matches!(value, ValueRef::None) => ValueRef::Tensor(&output.tensor),
            _ => *value,
        };
        let written = argument.alias.as_ref().is_some_and(|alias| alias.write);
        let flags = if written { abi::FLAG_WRITABLE } else { 0 };
        let mut done = if written { each_tensor(value, &mut Tensor::check_write) } else { Ok(()) };
        if done.is_ok()
            && let Some(kind) = kind
        {
            done = each_tensor(value, &mut |tensor| check_device(tensor, kind));
        }
        if done.is_ok() {
            done = passed.push(value, flags);
        }
        done.map_err(|error| {
            error.at(&format!("{}() argument '{}'", operator.name(), argument.name))
        })?;
        writes |= written;
    }
    if writes {
        note_writes(operator.schema(), args)?;
    }
    for output in outputs.iter().filter(|output| output.argument.is_none()) {
        passed.push(ValueRef::Tensor(&output.tensor), abi::FLAG_WRITABLE)?;
    }
    Ok(())
}

/// Returns whether a backend registered the device type.
fn is_users(kind: DeviceType) -> bool {
    USER_DEVICE_TYPES.contains(&kind.index())
}

/// Refuses a tensor of another backend's device: a kernel at a device's key takes the handles that
/// it gets for its own device's.
fn check_device(tensor: &Tensor, kind: DeviceType) -> Result<()> {
    let device = tensor.device();
    if device.kind() == kind || !is_users(device.kind()) {
        return Ok(());
    }
    let message = format!("it is on {device}, and the kernel takes handles of {kind} only");
    Err(Error::new(ErrorKind::Device, message))
}

/// Converts a number that the kernel stored.
fn number(context: &CallContext<'_, Value>, result: Any) -> Result<Value> {
    Ok(match result.type_index {
        abi::NONE => Value::None,
        abi::INT => Value::Int(result.payload as i64),
        abi::BOOL => Value::Bool(result.payload != 0),
        abi::FLOAT => Value::Float(f64::from_bits(result.payload)),
        other => {
            let given = format!("a value of type index {other}");
            return Err(context.operator().wrong_return(context.kernel(), &given));
        }
    })
}

#[cold]
fn failed(context: &CallContext<'_, Value>, error: Option<table::HeldError>, code: i32) -> Error {
    let (name, kernel) = (context.operator().name(), context.kernel().provenance());
    let Some(table::HeldError { error, own, .. }) = error else {
        let message = format!("{name}: the kernel {kernel} failed with code {code}");
        return Error::new(ErrorKind::KernelFailed, message);
    };
    if !own {
        return error;
    }
    match error.message().strip_prefix(table::PANICKED) {
        Some(text) if error.kind() == ErrorKind::KernelPanic => {
            let key = context.key();
            let message = format!("{name}: the kernel {kernel} at {key} panicked: {text}");
            Error::new(ErrorKind::KernelPanic, message)
        }
        _ => error.at(name),
    }
}

/// Refuses a schema whose returns the kernel can't produce.
fn check(schema: &Schema, name: &str, returns: i32) -> Result<()> {
    let types: Vec<&Type> = schema.returns.iter().map(|r| &r.ty).collect();
    let (what, fits) = match returns {
        abi::RETURNS_NOTHING => {
            ("fills tensors or returns nothing", types.iter().all(|ty| **ty == Type::Tensor))
        }
        abi::RETURNS_INT => {
            ("an int", matches!(types[..], [Type::Int | Type::Float | Type::Scalar]))
        }
        abi::RETURNS_BOOL => ("a bool", matches!(types[..], [Type::Bool | Type::Scalar])),
        abi::RETURNS_FLOAT => ("a float", matches!(types[..], [Type::Float | Type::Scalar])),
        _ => return Ok(()),
    };
    if fits {
        return Ok(());
    }
    let returns = if returns == abi::RETURNS_NOTHING { "" } else { "returns " };
    Err(Error::new(
        ErrorKind::Registration,
        format!("{}: the kernel {name} can't serve it: it {returns}{what}: {schema}", schema.name),
    ))
}
