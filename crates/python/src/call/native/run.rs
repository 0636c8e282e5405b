//! Runs a native kernel and hands its result on.

use std::mem::ManuallyDrop;

use keyfold_core::{Error, Result};
use keyfold_dispatch::schema::Type;
use keyfold_dispatch::{CallContext, HostLock, Kernel};
use keyfold_layers::vmap;
use keyfold_tensor::{Value, ValueRef};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::call::finish::finish_slowly;
use crate::call::panics::PanicWatch;
use crate::call::results;
use crate::marshal::arrays::numpy_array::is_ndarray;
use crate::marshal::arrays::{self, caller::Caller, classes};
use crate::marshal::errors::from_pyerr;
use crate::marshal::tensor::{is_tensor, wrap};

/// Runs the kernel, without the GIL if it wants so, and hands its result on. `numbered` are the
/// objects by argument, null where an argument is no object or can't be a result; `objects` all
/// arrays of the call.
///
/// # Safety
/// As for [`call`].
#[inline(always)]
pub(super) unsafe fn run(
    context: &CallContext<'_, Value>,
    kernel: &Kernel<Value>,
    args: &[ValueRef<'_>],
    numbered: &[*mut ffi::PyObject],
    objects: &[*mut ffi::PyObject],
    caller: Caller,
) -> Result<*mut ffi::PyObject> {
    // SAFETY: the GIL is held, by the contract.
    let py = unsafe { Python::assume_attached() };
    let releases = match kernel.host_lock() {
        HostLock::Keep => false,
        HostLock::ReleaseFrom(least) => least == 0 || work(args) >= least,
    };
    // Looked at in place: a value is large, and moving it about costs more than the rest.
    let result = {
        let frame = results::RunningCall::new(objects, caller);
        let _known = frame.enter();
        let watch = PanicWatch { context, kernel };
        let result = match releases {
            true => without_gil(py, context, kernel, args, caller),
            false => kernel.invoke(context, args),
        };
        // It has work only where a panic unwinds.
        let _ = ManuallyDrop::new(watch);
        result
    };
    let value = match &result {
        Ok(value) => value,
        Err(_) => return Err(error_of(result)),
    };
    if let &Value::Argument(number) = value {
        // It owns nothing, and dropping it would be a call that finds out.
        let _ = ManuallyDrop::new(result);
        let object = numbered.get(number).copied().filter(|object| !object.is_null());
        let Some(object) = object else {
            let given = format!("argument {number} of {}", numbered.len());
            return Err(context.operator().wrong_return(kernel, &given));
        };
        // SAFETY: the caller's object, alive, and the GIL is held again.
        return unsafe { hand_back(context, kernel, object, objects, caller) };
    }
    context.operator().check_return(kernel, value)?;
    if let Value::Tensor(tensor) = value
        && let Some(object) = results::original(tensor, objects)
    {
        // SAFETY: the caller's object, alive, and the GIL is held again.
        return unsafe { hand_back(context, kernel, object, objects, caller) };
    }
    if let Some(object) = plain_object(value) {
        return Ok(object);
    }
    if has_foreign(value) {
        let object = results::value_to_py(py, result?, objects, caller).map_err(from_pyerr)?;
        // A Python kernel below a layer: its result is treated as without the layer.
        // SAFETY: a new reference; the caller's objects are alive, and the GIL is held again.
        return unsafe { finish_slowly(context, kernel, object.into_ptr(), objects, caller) };
    }
    hand_over(py, result, objects, caller)
}

/// A number or nothing as a new reference, without moving the value about: it is as large as a
/// tensor. `None` for anything else, and where Python has no memory left.
#[inline(always)]
fn plain_object(value: &Value) -> Option<*mut ffi::PyObject> {
    // SAFETY: callers hold the GIL; each function gives a new reference or null.
    let object = unsafe {
        match value {
            Value::None => ffi::Py_NewRef(ffi::Py_None()),
            Value::Bool(flag) => ffi::PyBool_FromLong(i64::from(*flag)),
            Value::Int(number) => ffi::PyLong_FromLongLong(*number),
            Value::Float(number) => ffi::PyFloat_FromDouble(*number),
            _ => return None,
        }
    };
    (!object.is_null()).then_some(object)
}

/// Whether there are objects of Python's among the results.
fn has_foreign(value: &Value) -> bool {
    match value {
        Value::Foreign(_) => true,
        Value::List(items) | Value::Tuple(items) => items.iter().any(has_foreign),
        _ => false,
    }
}

/// An argument as the result: itself, where it is an array of the one library that the call is
/// in, or one that the operator wrote to; else checked and put there like a Python kernel's result.
///
/// # Safety
/// `object` is one of the call's live objects; the GIL is held.
#[inline(always)]
unsafe fn hand_back(
    context: &CallContext<'_, Value>,
    kernel: &Kernel<Value>,
    object: *mut ffi::PyObject,
    objects: &[*mut ffi::PyObject],
    caller: Caller,
) -> Result<*mut ffi::PyObject> {
    // SAFETY: as for the caller.
    unsafe {
        ffi::Py_INCREF(object);
        let [only] = &context.operator().schema().returns[..] else {
            return finish_slowly(context, kernel, object, objects, caller);
        };
        let at_home = (caller == Caller::TENSOR && is_tensor(object))
            || (caller == Caller::NUMPY && is_ndarray(object))
            || classes::find(object).is_some_and(|class| class.caller == caller);
        // An array that the operator wrote to is the result, in whichever library.
        let written = || only.alias.as_ref().is_some_and(|alias| alias.write);
        if matches!(only.ty, Type::Tensor) && (at_home || written()) {
            return Ok(object);
        }
        finish_slowly(context, kernel, object, objects, caller)
    }
}

#[cold]
fn error_of(result: Result<Value>) -> Error {
    match result {
        Err(error) => error,
        Ok(value) => unreachable!("{value:?} is no error"),
    }
}

#[inline(never)]
fn hand_over(
    py: Python<'_>,
    result: Result<Value>,
    objects: &[*mut ffi::PyObject],
    caller: Caller,
) -> Result<*mut ffi::PyObject> {
    let object = match result? {
        // Straight from the value into the object: each move of a tensor is a call of memcpy.
        Value::Tensor(tensor) if caller.keeps_tensors() => wrap(py, tensor).map(Bound::into_any),
        Value::Tensor(tensor) => results::wrap_for(py, tensor, objects, caller),
        other => results::value_to_py(py, other, objects, caller),
    };
    object.map(Bound::into_ptr).map_err(from_pyerr)
}

#[inline(always)]
fn view_unless_lent(arg: &ValueRef<'_>) -> Result<()> {
    match arg {
        ValueRef::Foreign(object) if !object.lends() => object.tensor().map(|_| ()),
        _ => Ok(()),
    }
}

#[inline(never)]
fn without_gil(
    py: Python<'_>,
    context: &CallContext<'_, Value>,
    kernel: &Kernel<Value>,
    args: &[ValueRef<'_>],
    caller: Caller,
) -> Result<Value> {
    // The views are made while the GIL is held: they read Python's objects. Lendable arrays are
    // read by the kernel itself, as its own library's kernels do.
    if !classes::library(caller).is_some_and(|library| library.reads_without_gil()) {
        for arg in args {
            match arg {
                ValueRef::Refs(items) => items.iter().try_for_each(view_unless_lent)?,
                arg => view_unless_lent(arg)?,
            }
        }
    }
    let run = WithoutGil(|| kernel.invoke(context, args));
    py.detach(move || run.call())
}

/// A closure that runs on this very thread, only without the GIL.
struct WithoutGil<F>(F);

// SAFETY: `Python::detach` asks for Send to keep Python's objects out; it runs the closure on the
// calling thread. The arguments in it are borrowed views, and kernels that need an object attach.
unsafe impl<F> Send for WithoutGil<F> {}

impl<R, F: FnOnce() -> R> WithoutGil<F> {
    fn call(self) -> R {
        (self.0)()
    }
}

/// Elements in a call's tensors, the measure of its work.
fn work(args: &[ValueRef<'_>]) -> usize {
    args.iter()
        .map(|arg| match arg {
            // An example is as much work as its batch.
            ValueRef::Tensor(tensor) => {
                vmap::batch_of(tensor).map_or(tensor.numel(), |batch| batch.physical.numel())
            }
            ValueRef::Foreign(object) => {
                let object = object.original().cast::<ffi::PyObject>();
                // SAFETY: a foreign argument here is a live Python object, looked at under the GIL.
                unsafe { arrays::numel(object) }
            }
            list => list.items().map(|item| work(&[item])).sum(),
        })
        .sum()
}
