//! Operators as TVM FFI function objects.

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::Operator;
use keyfold_tensor::{Value, ValueRef};
use smallvec::SmallVec;

use crate::abi::Any;
use crate::error::{ForeignError, kind_for};
use crate::from_args::{self, ArgValue, BorrowTracker};
use crate::object::Object;
use crate::runtime::Runtime;
use crate::to_any::{OwnedAny, to_any};

/// Callbacks of the host language for exported operators.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    /// Returns kind and message of an error from that language.
    pub describe: fn(Error) -> (String, String),
    /// Releases references whose release the language postponed.
    pub settle: fn(),
    /// Runs a call from foreign code. Foreign code may have released the language's lock (Python's
    /// GIL), so this function restores a known state first.
    pub run: fn(&mut dyn FnMut()),
}

impl Host {
    /// The callbacks of a process without a host language.
    pub const NONE: Host = Host { describe, settle: || {}, run: |call| call() };
}

/// Returns kind and message of an error, in Python's terms.
pub fn describe(error: Error) -> (String, String) {
    let (kind, message) = (kind_for(&error), error.message().to_owned());
    match error.into_source().map(|source| source.downcast::<ForeignError>()) {
        // An error of another foreign function keeps its kind and message.
        Some(Ok(raised)) => (raised.kind, raised.message),
        _ => (kind.to_owned(), message),
    }
}

/// An operator as a function object.
struct ExportedOperator {
    operator: Arc<Operator<Value>>,
    runtime: &'static Runtime,
    host: Host,
}

/// Creates a function object that calls the operator. Arguments are positional; trailing ones with
/// defaults may be left out. Tensors may be `DLTensor*` or tensor objects. Results are tensor
/// objects that share the memory, numbers, strings and arrays. Errors are raised with kind and
/// message; panics are caught. The object keeps the operator alive.
///
/// The memory of a `DLTensor*` may be freed after the call. A result in that memory is copied, and
/// a call whose operator keeps such a tensor fails.
///
/// # Errors
/// The errors that the library raises.
pub fn export(
    operator: Arc<Operator<Value>>,
    runtime: &'static Runtime,
    host: Host,
) -> Result<Object> {
    let exported = Box::into_raw(Box::new(ExportedOperator { operator, runtime, host }));
    let mut handle = std::ptr::null_mut();
    // SAFETY: the function and its deleter take this box, which the object owns from here on.
    let code = unsafe {
        (runtime.function_create)(exported.cast(), call_exported, Some(delete), &raw mut handle)
    };
    if let Err(error) = runtime.check(code) {
        // SAFETY: no object owns the box.
        drop(unsafe { Box::from_raw(exported) });
        return Err(error);
    }
    // SAFETY: a new reference, owned here.
    unsafe { Object::owned(handle, runtime) }
        .ok_or_else(|| Error::new(ErrorKind::Library, "TVM FFI made no function object"))
}

unsafe extern "C" fn delete(exported: *mut c_void) {
    // SAFETY: the object's box, deleted once. A panic here aborts the process.
    drop(unsafe { Box::from_raw(exported.cast::<ExportedOperator>()) });
}

/// The C function of every exported operator.
unsafe extern "C" fn call_exported(
    handle: *mut c_void,
    args: *const Any,
    count: i32,
    result: *mut Any,
) -> c_int {
    // SAFETY: the object's box; the caller's reference keeps it alive.
    let exported = unsafe { &*handle.cast::<ExportedOperator>() };
    let mut code = -1;
    // SAFETY: the caller's contract.
    (exported.host.run)(&mut || code = unsafe { call_inside(exported, args, count, result) });
    code
}

/// # Safety
/// The ABI's contract for the arguments and the result.
unsafe fn call_inside(
    exported: &ExportedOperator,
    args: *const Any,
    count: i32,
    result: *mut Any,
) -> c_int {
    let done = catch_unwind(AssertUnwindSafe(|| {
        let args = match usize::try_from(count) {
            Ok(0) => &[][..],
            // SAFETY: the ABI's contract.
            Ok(count) if !args.is_null() => unsafe { std::slice::from_raw_parts(args, count) },
            _ => return Err(Error::new(ErrorKind::Binding, format!("{count} arguments"))),
        };
        // SAFETY: the ABI's contract.
        unsafe { exported.call(args) }
    }));
    let (kind, message) = match done {
        Ok(Ok(given)) => {
            // SAFETY: the ABI's contract: `result` is writable and holds nothing.
            unsafe { result.write(given.into_any()) };
            return 0;
        }
        Ok(Err(error)) => {
            let describe = AssertUnwindSafe(|| (exported.host.describe)(error));
            catch_unwind(describe).unwrap_or_else(|_| panicked(exported))
        }
        Err(_) => panicked(exported),
    };
    exported.runtime.raise(&kind, &message);
    -1
}

fn panicked(exported: &ExportedOperator) -> (String, String) {
    let message = format!("{}: a kernel panicked", exported.operator.name());
    ("RuntimeError".to_owned(), message)
}

impl ExportedOperator {
    /// # Safety
    /// `args` are values of the ABI, valid for the call.
    unsafe fn call(&self, args: &[Any]) -> Result<OwnedAny> {
        let name = self.operator.name();
        let schema = self.operator.schema();
        let mut tracker = BorrowTracker::default();
        if args.len() > schema.arguments.len() {
            return Err(Error::new(
                ErrorKind::Binding,
                format!(
                    "{name}() takes {} arguments but {} were given",
                    schema.arguments.len(),
                    args.len()
                ),
            ));
        }
        let mut places: SmallVec<[ArgValue<'_>; 6]> = SmallVec::new();
        for (any, argument) in args.iter().zip(&schema.arguments) {
            // SAFETY: the caller's contract; the views are dropped below.
            let read =
                unsafe { from_args::from_arg(any, &argument.ty, Some(self.runtime), &mut tracker) };
            places.push(
                read.map_err(|error| error.at(&format!("{name}() argument '{}'", argument.name)))?,
            );
        }
        let values: SmallVec<[ValueRef<'_>; 6]> = places.iter().map(ArgValue::value).collect();
        let value = own(self.operator.call(&values)?, &tracker)?;
        let given = to_any(keyfold_dispatch::Value::as_ref(&value), self.runtime)
            .map_err(|error| error.at(&format!("{name}: its result")))?;
        drop(value);
        drop(values);
        drop(places);
        if tracker.outstanding() > 0 {
            (self.host.settle)();
            if tracker.outstanding() > 0 {
                return Err(Error::new(
                    ErrorKind::Exchange,
                    format!(
                        "{name} keeps a tensor that was passed as a DLTensor*, whose memory is the \
                         caller's again after the call; pass a tensor object (ffi::Tensor)"
                    ),
                ));
            }
        }
        Ok(given)
    }
}

/// Returns the value with a copy of every tensor that lies, or may lie, in borrowed memory.
fn own(value: Value, tracker: &BorrowTracker) -> Result<Value> {
    Ok(match value {
        Value::Tensor(tensor) if tracker.contains(&tensor) => Value::Tensor(tensor.copy()?),
        Value::Foreign(object) if tracker.outstanding() > 0 => {
            Value::Tensor(object.tensor()?.copy()?)
        }
        Value::List(items) | Value::Tuple(items) => {
            Value::List(items.into_iter().map(|item| own(item, tracker)).collect::<Result<_>>()?)
        }
        other => other,
    })
}
