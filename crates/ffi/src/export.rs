//! Operators as TVM FFI function objects.

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::Operator;
use keyfold_tensor::{Value, ValueRef};
use smallvec::SmallVec;

use crate::abi::Any;
use crate::give::{self, Given};
use crate::object::Object;
use crate::raised::{Raised, kind_for};
use crate::read::{self, Lender, Read};
use crate::runtime::Runtime;

/// What the language that keyfold is used from does for exported operators.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    /// Kind and message of an error that came from that language.
    pub describe: fn(Error) -> (String, String),
    /// Lets go of references whose release that language puts off.
    pub settle: fn(),
    /// Runs a call that foreign code makes, with the language's lock in a state that the language
    /// knows: foreign code may have let go of it.
    pub run: fn(&mut dyn FnMut()),
}

impl Host {
    /// Rust alone.
    pub const NONE: Host = Host { describe, settle: || {}, run: |call| call() };
}

/// Kind and message of an error, in Python's terms.
pub fn describe(error: Error) -> (String, String) {
    let (kind, message) = (kind_for(&error), error.message().to_owned());
    match error.into_source().map(|source| source.downcast::<Raised>()) {
        // What another foreign function raised goes on as it was.
        Some(Ok(raised)) => (raised.kind, raised.message),
        _ => (kind.to_owned(), message),
    }
}

/// An operator as a function object.
struct Exported {
    operator: Arc<Operator<Value>>,
    runtime: &'static Runtime,
    host: Host,
}

/// A function object that calls the operator: by position, trailing arguments with defaults may be
/// left out. Tensors may be `DLTensor*` or tensor objects. Results are tensor objects that share
/// the memory, numbers, strings and arrays. Errors are raised with kind and message; panics are
/// caught. The object keeps the operator.
///
/// A `DLTensor*` is the caller's again after the call: a result in its memory is a copy, and an
/// operator that keeps one otherwise fails.
///
/// # Errors
/// What the library raises.
pub fn export(
    operator: Arc<Operator<Value>>,
    runtime: &'static Runtime,
    host: Host,
) -> Result<Object> {
    let exported = Box::into_raw(Box::new(Exported { operator, runtime, host }));
    let mut handle = std::ptr::null_mut();
    // SAFETY: the function and its deleter take such a box, which the object owns from here on.
    let code = unsafe {
        (runtime.function_create)(exported.cast(), call_exported, Some(delete), &raw mut handle)
    };
    if let Err(error) = runtime.done(code) {
        // SAFETY: no object owns the box.
        drop(unsafe { Box::from_raw(exported) });
        return Err(error);
    }
    // SAFETY: a new reference, which is ours.
    unsafe { Object::owned(handle, runtime) }
        .ok_or_else(|| Error::new(ErrorKind::Library, "TVM FFI made no function object"))
}

unsafe extern "C" fn delete(exported: *mut c_void) {
    // SAFETY: the object's box, deleted once. A panic here would end the process, as it should.
    drop(unsafe { Box::from_raw(exported.cast::<Exported>()) });
}

/// The function of every exported operator.
unsafe extern "C" fn call_exported(
    handle: *mut c_void,
    args: *const Any,
    count: i32,
    result: *mut Any,
) -> c_int {
    // SAFETY: the object's box, which the caller's reference keeps.
    let exported = unsafe { &*handle.cast::<Exported>() };
    let mut code = -1;
    // SAFETY: what the caller promised.
    (exported.host.run)(&mut || code = unsafe { call_inside(exported, args, count, result) });
    code
}

/// # Safety
/// As the ABI promises of a call's arguments and its room for a result.
unsafe fn call_inside(
    exported: &Exported,
    args: *const Any,
    count: i32,
    result: *mut Any,
) -> c_int {
    let done = catch_unwind(AssertUnwindSafe(|| {
        let args = match usize::try_from(count) {
            Ok(0) => &[][..],
            // SAFETY: the ABI's promise.
            Ok(count) if !args.is_null() => unsafe { std::slice::from_raw_parts(args, count) },
            _ => return Err(Error::new(ErrorKind::Binding, format!("{count} arguments"))),
        };
        // SAFETY: the ABI's promise.
        unsafe { exported.call(args) }
    }));
    let (kind, message) = match done {
        Ok(Ok(given)) => {
            // SAFETY: the ABI's promise: room for one value, which holds nothing.
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

fn panicked(exported: &Exported) -> (String, String) {
    let message = format!("{}: a kernel panicked", exported.operator.name());
    ("RuntimeError".to_owned(), message)
}

impl Exported {
    /// # Safety
    /// `args` are values of the ABI, good for the call.
    unsafe fn call(&self, args: &[Any]) -> Result<Given> {
        let name = self.operator.name();
        let schema = self.operator.schema();
        let mut lender = Lender::default();
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
        let mut places: SmallVec<[Read<'_>; 6]> = SmallVec::new();
        for (any, argument) in args.iter().zip(&schema.arguments) {
            // SAFETY: as for the caller; the views are dropped below.
            let read = unsafe { read::read(any, &argument.ty, Some(self.runtime), &mut lender) };
            places.push(
                read.map_err(|error| error.at(&format!("{name}() argument '{}'", argument.name)))?,
            );
        }
        let values: SmallVec<[ValueRef<'_>; 6]> = places.iter().map(Read::value).collect();
        let value = own(self.operator.call(&values)?, &lender)?;
        let given = give::give(keyfold_dispatch::Value::as_ref(&value), self.runtime)
            .map_err(|error| error.at(&format!("{name}: its result")))?;
        drop(value);
        drop(values);
        drop(places);
        if lender.outstanding() > 0 {
            (self.host.settle)();
            if lender.outstanding() > 0 {
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

/// The value with a copy of every tensor that lies, or may lie, in memory that was lent.
fn own(value: Value, lender: &Lender) -> Result<Value> {
    Ok(match value {
        Value::Tensor(tensor) if lender.lent(&tensor) => Value::Tensor(tensor.copy()?),
        Value::Foreign(object) if lender.outstanding() > 0 => {
            Value::Tensor(object.tensor()?.copy()?)
        }
        Value::List(items) | Value::Tuple(items) => {
            Value::List(items.into_iter().map(|item| own(item, lender)).collect::<Result<_>>()?)
        }
        other => other,
    })
}
