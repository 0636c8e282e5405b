//! The host's functions that a plugin calls.
//!
//! No function unwinds: a panic, such as one of a Rust kernel that the plugin calls, becomes an
//! error, or is dropped where a function has none.

use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::DispatchKeySet;
use keyfold_plugin::abi::{
    ABI_MAJOR, ABI_MINOR, Any, CallFrame, DLDataType, DLDevice, HostError, HostRegistrar,
    HostTable, HostTable1, HostValue, KernelSpec, Text, device::DeviceSpec,
};
use keyfold_tensor::device::current_stream;
use keyfold_tensor::{Tensor, Value};

use super::kernel::RunningCall;
use super::staging::Staging;
use super::text::{checked, shown};
use super::values::{self, Owned};
use super::versions::HOST;

/// The prefix of a caught panic's message, which `keyfold-plugin` writes.
pub(super) const PANICKED: &str = "panicked: ";

/// The host's table.
static TABLE: HostTable1 = HostTable1 {
    base: HostTable {
        size: size_of::<HostTable1>() as u32,
        abi_major: ABI_MAJOR,
        abi_minor: ABI_MINOR,
        reserved: 0,
        define,
        kernel,
        fallthrough,
        call,
        redispatch,
        empty,
        keys,
        give,
        fail,
        value_get,
        value_len,
        value_item,
        value_release,
        error_new,
        error_kind,
        error_message,
        error_release,
    },
    features: HOST.feature_bits(),
    device,
    fault,
    late,
    stream,
};

/// Returns the host's table, for a plugin.
pub(super) fn address() -> *const HostTable {
    (&raw const TABLE).cast()
}

/// An error that a plugin holds.
pub(super) struct HeldError {
    pub(super) error: Error,
    /// Whether the plugin created it; otherwise it came from a call.
    pub(super) own: bool,
    /// Whether it is the error of an operation that an earlier call queued.
    pub(super) late: bool,
    kind: String,
}

impl HeldError {
    fn boxed(error: Error, own: bool) -> *mut HostError {
        let kind = error.kind().name();
        Box::into_raw(Box::new(HeldError { error, own, late: false, kind })).cast()
    }
}

/// Takes ownership of an error from a plugin; `None` for success.
///
/// # Safety
/// `error` is null or an error of this table that isn't used any more.
pub(super) unsafe fn take_held(error: *mut HostError) -> Option<HeldError> {
    // SAFETY: the contract.
    (!error.is_null()).then(|| *unsafe { Box::from_raw(error.cast::<HeldError>()) })
}

/// Runs a function of the table; returns null for success.
fn guarded(run: impl FnOnce() -> Result<()>) -> *mut HostError {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(())) => null_mut(),
        Ok(Err(error)) => HeldError::boxed(error, false),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            let text = text.unwrap_or_else(|| "no message".to_owned());
            let message = format!("a kernel that the plugin called panicked: {text}");
            HeldError::boxed(Error::new(ErrorKind::KernelPanic, message), false)
        }
    }
}

/// Runs a function of the table that has no error, such as one that drops a tensor of another
/// plugin.
fn without_error<T>(run: impl FnOnce() -> T) -> Option<T> {
    let outcome = catch_unwind(AssertUnwindSafe(run));
    // The payload is leaked, since its destructor is unknown code that may panic.
    outcome.map_err(ManuallyDrop::new).ok()
}

unsafe extern "C" fn define(registrar: *mut HostRegistrar, schema: Text) -> *mut HostError {
    // SAFETY: the registrar that `load` passed, and text valid for the call.
    guarded(|| unsafe { (*registrar.cast::<Staging>()).define(checked(schema, "a schema")?) })
}

unsafe extern "C" fn kernel(
    registrar: *mut HostRegistrar,
    spec: *const KernelSpec,
) -> *mut HostError {
    // SAFETY: as above; the plugin keeps to the ABI.
    guarded(|| unsafe { (*registrar.cast::<Staging>()).kernel(spec) })
}

unsafe extern "C" fn fallthrough(
    registrar: *mut HostRegistrar,
    operator: Text,
    key: Text,
) -> *mut HostError {
    // SAFETY: as above.
    guarded(|| unsafe {
        let operator = checked(operator, "a fallthrough's operator")?;
        let key = checked(key, "a fallthrough's key")?;
        (*registrar.cast::<Staging>()).fallthrough(operator, key)
    })
}

unsafe extern "C" fn device(
    registrar: *mut HostRegistrar,
    spec: *const DeviceSpec,
) -> *mut HostError {
    // SAFETY: as above; the plugin keeps to the ABI.
    guarded(|| unsafe { (*registrar.cast::<Staging>()).device(spec) })
}

/// Returns the name of an operator that a plugin calls.
///
/// # Safety
/// As for [`checked`].
unsafe fn named<'a>(operator: Text) -> Result<&'a str> {
    // SAFETY: the contract.
    unsafe { checked(operator, "the name of the operator to call") }
}

unsafe extern "C" fn call(
    frame: *const CallFrame,
    operator: Text,
    args: *const Any,
    count: i32,
    result: *mut *mut HostValue,
) -> *mut HostError {
    guarded(|| {
        // SAFETY: the frame of a call in progress, and values of the ABI.
        let (running, args, operator) =
            unsafe { (RunningCall::of(frame), values::read(args, count)?, named(operator)?) };
        let value = running.context.dispatcher()?.call(operator, &args)?;
        // SAFETY: `result` is a writable pointer.
        unsafe { result.write(Owned::into_raw(value)) };
        Ok(())
    })
}

unsafe extern "C" fn redispatch(
    frame: *const CallFrame,
    operator: Text,
    keyset: u64,
    args: *const Any,
    count: i32,
    result: *mut *mut HostValue,
) -> *mut HostError {
    guarded(|| {
        // SAFETY: as in `call`.
        let (running, operator) = unsafe { (RunningCall::of(frame), named(operator)?) };
        let keyset = DispatchKeySet::from_bits_truncate(keyset);
        let given;
        let args = if args.is_null() && operator.is_empty() {
            running.args
        } else {
            // SAFETY: as in `call`.
            given = unsafe { values::read(args, count)? };
            &given[..]
        };
        let value = if operator.is_empty() {
            running.context.operator().redispatch(keyset, args)?
        } else {
            running.context.dispatcher()?.redispatch(operator, keyset, args)?
        };
        // SAFETY: `result` is a writable pointer.
        unsafe { result.write(Owned::into_raw(value)) };
        Ok(())
    })
}

unsafe extern "C" fn empty(
    shape: *const i64,
    ndim: i32,
    dtype: DLDataType,
    device: DLDevice,
    result: *mut *mut HostValue,
) -> *mut HostError {
    guarded(|| {
        let sizes: &[i64] = match ndim {
            0 => &[],
            ..0 => {
                let message = format!("a tensor of {ndim} dimensions: there are 0 or more");
                return Err(Error::new(ErrorKind::Shape, message));
            }
            // SAFETY: `ndim` sizes, valid for the call.
            _ => unsafe { std::slice::from_raw_parts(shape, ndim as usize) },
        };
        let negative = |_| {
            Error::new(
                ErrorKind::Shape,
                format!("a tensor of shape {sizes:?}: sizes are 0 or more"),
            )
        };
        let shape: Vec<usize> = sizes
            .iter()
            .map(|&size| usize::try_from(size).map_err(negative))
            .collect::<Result<_>>()?;
        let (dtype, device) = (values::dtype_from(dtype)?, values::device_from(device)?);
        let tensor = Tensor::empty(&shape, dtype, device)?;
        // SAFETY: `result` is a writable pointer.
        unsafe { result.write(Owned::into_raw(Value::Tensor(tensor))) };
        Ok(())
    })
}

unsafe extern "C" fn keys(name: Text, bits: *mut u64) -> *mut HostError {
    guarded(|| {
        // SAFETY: text valid for the call, and a writable number.
        unsafe { bits.write(DispatchKeySet::parse(checked(name, "a key's name")?)?.bits()) };
        Ok(())
    })
}

unsafe extern "C" fn give(frame: *const CallFrame, value: *mut HostValue) {
    // SAFETY: the frame of a call in progress, and a value that the plugin gives up.
    without_error(|| unsafe { RunningCall::of(frame).give(Owned::from_raw(value)) });
}

unsafe extern "C" fn fail(frame: *const CallFrame, error: *mut HostError) {
    // SAFETY: the frame of a call in progress, and an error that the plugin gives up.
    without_error(|| unsafe {
        RunningCall::of(frame).fail(*Box::from_raw(error.cast::<HeldError>()));
    });
}

unsafe extern "C" fn value_get(value: *const HostValue) -> Any {
    // SAFETY: a live value.
    unsafe { Owned::borrow(value) }.any()
}

unsafe extern "C" fn value_len(value: *const HostValue) -> i64 {
    // SAFETY: a live value.
    unsafe { Owned::borrow(value) }.items().map_or(-1, |items| items.len() as i64)
}

unsafe extern "C" fn value_item(value: *const HostValue, at: i64) -> *mut HostValue {
    // SAFETY: a live value.
    let items = unsafe { Owned::borrow(value) }.items().unwrap_or_default();
    usize::try_from(at)
        .ok()
        .and_then(|at| items.get(at))
        .map_or(null_mut(), |item| Owned::into_raw(item.clone()))
}

unsafe extern "C" fn value_release(value: *mut HostValue) {
    // SAFETY: a live value that isn't used any more.
    without_error(|| drop(unsafe { Owned::from_raw(value) }));
}

unsafe extern "C" fn error_new(kind: Text, message: Text) -> *mut HostError {
    // SAFETY: text valid for the call.
    let (kind, message) = unsafe { (shown(kind), shown(message)) };
    let known = ErrorKind::ALL.into_iter().find(|known| known.name() == kind);
    // A kind of a later version, or one that needs more than a message.
    let kind = known.filter(|kind| *kind != ErrorKind::Foreign).unwrap_or(ErrorKind::KernelFailed);
    HeldError::boxed(Error::new(kind, message.into_owned()), true)
}

unsafe extern "C" fn error_kind(error: *const HostError) -> Text {
    // SAFETY: a live error.
    Text::new(unsafe { &(*error.cast::<HeldError>()).kind })
}

unsafe extern "C" fn error_message(error: *const HostError) -> Text {
    // SAFETY: a live error.
    Text::new(unsafe { (*error.cast::<HeldError>()).error.message() })
}

unsafe extern "C" fn error_release(error: *mut HostError) {
    // SAFETY: a live error that isn't used any more.
    without_error(|| drop(unsafe { Box::from_raw(error.cast::<HeldError>()) }));
}

unsafe extern "C" fn fault(code: u32, operator: Text) -> *mut HostError {
    let error = keyfold_backend::primitives::fault(code);
    // SAFETY: text valid for the call.
    let operator = unsafe { shown(operator) };
    let error = if operator.is_empty() { error } else { error.at(&operator) };
    HeldError::boxed(error, true)
}

unsafe extern "C" fn late(error: *mut HostError) -> *mut HostError {
    if !error.is_null() {
        // SAFETY: a live error that the plugin owns.
        unsafe { (*error.cast::<HeldError>()).late = true };
    }
    error
}

unsafe extern "C" fn stream(device: DLDevice) -> u32 {
    values::device_from(device).map_or(0, |device| current_stream(device).number())
}
