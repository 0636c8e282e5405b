//! From Python into native kernels, and results of Python kernels back into native code.

mod listed;

use std::any::Any;
use std::mem::MaybeUninit;

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::schema::Type;
use keyfold_dispatch::{CallContext, HostLock, Kernel, Tag};
use keyfold_layers::vmap;
use keyfold_tensor::{Value, ValueRef};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use smallvec::SmallVec;

use crate::arrays::types;
use crate::arrays::{self, Caller};
use crate::attach::attach;
use crate::convert;
use crate::errors::from_pyerr;
use crate::foreign::{Argument, Object, describe_object};
use crate::params::{Kind, Param, Params};
use crate::results;

pub(crate) use listed::{LISTED, call_listed};

/// Where the value of an argument is kept while native code borrows it.
enum Place<'a> {
    Ready(ValueRef<'a>),
    Foreign(usize),
    Owned(usize),
}

impl<'a> Place<'a> {
    #[inline(always)]
    fn value(&self, foreign: &'a [Argument], owned: &'a [Value]) -> ValueRef<'a> {
        match self {
            Place::Ready(value) => *value,
            Place::Foreign(at) => ValueRef::Foreign(&foreign[*at]),
            Place::Owned(at) => keyfold_dispatch::Value::as_ref(&owned[*at]),
        }
    }
}

/// Arguments that a call keeps on the stack; more of them, or others than tensors and plain
/// numbers, take the general way.
const INLINE: usize = 6;

/// The caller's arrays of one call, on the stack, at addresses that don't change.
struct Arena<const N: usize> {
    arguments: [MaybeUninit<Argument>; N],
    used: usize,
}

impl<const N: usize> Arena<N> {
    #[inline(always)]
    fn new() -> Self {
        Arena { arguments: [const { MaybeUninit::uninit() }; N], used: 0 }
    }
}

impl<const N: usize> Drop for Arena<N> {
    #[inline]
    fn drop(&mut self) {
        for argument in &mut self.arguments[..self.used] {
            // SAFETY: the first `used` places are filled.
            unsafe { argument.assume_init_drop() };
        }
    }
}

/// Calls a native kernel with bound objects and gives its result as a new reference.
///
/// # Safety
/// `objects` are live, one per parameter, and fit their types; the GIL is held.
#[inline]
pub(crate) unsafe fn call(
    context: &CallContext<'_, Value>,
    kernel: &Kernel<Value>,
    params: &Params,
    objects: &[*mut ffi::PyObject],
    caller: Caller,
) -> Result<*mut ffi::PyObject> {
    let mut arena = Arena::<INLINE>::new();
    let mut args = [const { MaybeUninit::<ValueRef<'_>>::uninit() }; INLINE];
    if objects.len() > INLINE {
        // SAFETY: as for the caller.
        return unsafe { call_generally(context, kernel, params, objects, caller) };
    }
    debug_assert_eq!(params.all.len(), objects.len());
    let arguments = &raw mut arena.arguments;
    for (at, (param, object)) in params.all.iter().zip(objects).enumerate() {
        // SAFETY: as for the caller; each reader follows its type check. Filled places of the
        // arena are read only until the arena is dropped, after the call.
        let arg = unsafe {
            let object = *object;
            let tensor = matches!(param.kind, Kind::Tensor | Kind::OptionalTensor);
            if tensor && arrays::is_tensor(object) {
                ValueRef::Tensor(arrays::tensor_of(object))
            } else if object == ffi::Py_None() {
                ValueRef::None
            } else if tensor && let Some(found) = arrays::look_again(object, caller) {
                let place = (&raw mut (*arguments)[arena.used]).cast::<Argument>();
                place.write(Argument::new(object, found, param));
                arena.used += 1;
                ValueRef::Foreign(&*place)
            } else if param.kind == Kind::Plain && ffi::PyFloat_CheckExact(object) != 0 {
                ValueRef::Float(ffi::PyFloat_AsDouble(object))
            } else {
                return call_generally(context, kernel, params, objects, caller);
            }
        };
        args[at].write(arg);
    }
    // SAFETY: there are as many parameters as objects, so the loop has written that many; the rest
    // as for the caller.
    unsafe {
        let args = std::slice::from_raw_parts(args.as_ptr().cast(), objects.len());
        run(context, kernel, args, objects, objects, caller)
    }
}

/// The way for any arguments: what isn't at hand is converted and kept aside.
///
/// # Safety
/// As for [`call`].
#[inline(never)]
unsafe fn call_generally(
    context: &CallContext<'_, Value>,
    kernel: &Kernel<Value>,
    params: &Params,
    objects: &[*mut ffi::PyObject],
    caller: Caller,
) -> Result<*mut ffi::PyObject> {
    let mut foreign: SmallVec<[Argument; 4]> = SmallVec::new();
    let mut owned: Vec<Value> = Vec::new();
    let mut places: SmallVec<[Place<'_>; 8]> = SmallVec::new();
    for (param, object) in params.all.iter().zip(objects) {
        // SAFETY: as for the caller.
        places.push(unsafe { place(param, *object, &mut foreign, &mut owned) }?);
    }
    // Viewing an array of somebody's class runs code of theirs, which may take away memory that was
    // only borrowed: such are viewed before the others.
    if foreign.len() > 1 && context.key().is_backend() {
        for argument in foreign.iter().filter(|argument| argument.runs_python()) {
            keyfold_tensor::ForeignObject::tensor(argument)?;
        }
    }
    if context.key().is_backend() {
        for (param, place) in params.all.iter().zip(&places) {
            if let (Kind::Tensors, Place::Owned(at)) = (param.kind, place) {
                view_items(&owned[*at], param)?;
            }
        }
    }
    let args: SmallVec<[ValueRef<'_>; 8]> =
        places.iter().map(|place| place.value(&foreign, &owned)).collect();
    // SAFETY: as for the caller.
    unsafe { run(context, kernel, &args, objects, objects, caller) }
}

/// Views the arrays of a list while it is known whose argument they are.
fn view_items(list: &Value, param: &Param) -> Result<()> {
    let Value::List(items) = list else { return Ok(()) };
    for item in items {
        if let Value::Foreign(object) = item
            && let Err(error) = object.tensor()
        {
            return attach(|py| Err(crate::errors::at(py, error, &param.place)));
        }
    }
    Ok(())
}

/// Runs the kernel, without the GIL if it wants so, and hands its result on. `numbered` are the
/// objects by argument, null where an argument is no object or can't be a result; `objects` all
/// arrays of the call.
///
/// # Safety
/// As for [`call`].
#[inline(always)]
unsafe fn run(
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
        let frame = results::Frame::new(objects, caller);
        let _known = frame.enter();
        let _watch = PanicWatch { context, kernel };
        if releases {
            without_gil(py, context, kernel, args, caller)
        } else {
            kernel.invoke(context, args)
        }
    };
    let value = match &result {
        Ok(value) => value,
        Err(_) => return Err(error_of(result)),
    };
    if let Value::Argument(number) = value {
        let object = numbered.get(*number).copied().filter(|object| !object.is_null());
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
        return unsafe {
            crate::call::finish_slowly(context, kernel, object.into_ptr(), objects, caller)
        };
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
/// in; else checked and put there like a Python kernel's result.
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
        let one_tensor = matches!(
            &context.operator().schema().returns[..],
            [only] if only.ty == Type::Tensor
        );
        let at_home = (caller == Caller::TENSOR && arrays::is_tensor(object))
            || (caller == Caller::NUMPY && arrays::is_ndarray(object))
            || (caller.is_quick()
                && types::find(object).is_some_and(|known| known.library == caller));
        if one_tensor && at_home {
            return Ok(object);
        }
        crate::call::finish_slowly(context, kernel, object, objects, caller)
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
    // The views are made while the GIL is held: they read Python's objects. What can be lent is
    // read by the kernel itself, as its own library's kernels do.
    if caller != Caller::TVM {
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

/// Notes which kernel panicked, for the error that the call path makes of a panic.
struct PanicWatch<'c, 'k> {
    context: &'c CallContext<'k, Value>,
    kernel: &'c Kernel<Value>,
}

impl Drop for PanicWatch<'_, '_> {
    #[inline]
    fn drop(&mut self) {
        if std::thread::panicking() {
            note_panic(self.context, self.kernel);
        }
    }
}

thread_local! {
    /// Without a destructor, so that calls work while a thread ends: `panic_error` takes it out.
    static PANICKED: std::cell::RefCell<std::mem::ManuallyDrop<Option<String>>> =
        const { std::cell::RefCell::new(std::mem::ManuallyDrop::new(None)) };
}

#[cold]
fn note_panic(context: &CallContext<'_, Value>, kernel: &Kernel<Value>) {
    let place = format!(
        "{}: the kernel {} at {}",
        context.operator().name(),
        kernel.provenance(),
        context.key()
    );
    PANICKED.with_borrow_mut(|noted| {
        // The innermost kernel notes first.
        noted.get_or_insert(place);
    });
}

/// The error for a panic that the call path caught.
#[cold]
pub(crate) fn panic_error(operator: &str, panic: &(dyn Any + Send)) -> Error {
    let noted = PANICKED.with_borrow_mut(|noted| noted.take());
    let place = noted.unwrap_or_else(|| operator.to_owned());
    Error::new(ErrorKind::KernelPanic, format!("{place} panicked: {}", panic_text(panic)))
}

/// Shows bound objects to `f` as borrowed values: for explanations and error messages.
///
/// # Errors
/// A conversion that fails.
pub(crate) fn with_values<R>(
    _py: Python<'_>,
    params: &Params,
    objects: &[*mut ffi::PyObject],
    f: impl FnOnce(&[ValueRef<'_>]) -> R,
) -> Result<R> {
    let (mut foreign, mut owned) = (SmallVec::new(), Vec::new());
    let mut places = Vec::new();
    for (param, object) in params.all.iter().zip(objects) {
        // SAFETY: the callers hold the objects, and `_py` proves that the GIL is held.
        places.push(unsafe { place(param, *object, &mut foreign, &mut owned) }?);
    }
    let args: Vec<_> = places.iter().map(|place| place.value(&foreign, &owned)).collect();
    Ok(f(&args))
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

/// What a panic said.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> &str {
    if let Some(text) = panic.downcast_ref::<&str>() {
        return text;
    }
    panic.downcast_ref::<String>().map_or("no message", String::as_str)
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

/// Borrows an object as a value, or notes where its converted value is kept.
///
/// # Safety
/// `object` is live for as long as the place is used; the GIL is held.
#[inline(always)]
unsafe fn place<'a>(
    param: &Param,
    object: *mut ffi::PyObject,
    foreign: &mut SmallVec<[Argument; 4]>,
    owned: &mut Vec<Value>,
) -> Result<Place<'a>> {
    // SAFETY: as for the caller; each reader follows its type check.
    unsafe {
        match param.kind {
            Kind::Tensor | Kind::OptionalTensor => {
                if arrays::is_tensor(object) {
                    return Ok(Place::Ready(ValueRef::Tensor(arrays::tensor_of(object))));
                }
                if object == ffi::Py_None() {
                    return Ok(Place::Ready(ValueRef::None));
                }
                let found = match arrays::look_fast(object) {
                    Some(found) => found,
                    None => {
                        let bound = Bound::from_borrowed_ptr(Python::assume_attached(), object);
                        arrays::look(&bound)?.unwrap_or((Tag::NONE, Caller::NONE))
                    }
                };
                foreign.push(Argument::new(object, found, param));
                Ok(Place::Foreign(foreign.len() - 1))
            }
            Kind::Plain if object == ffi::Py_None() => Ok(Place::Ready(ValueRef::None)),
            Kind::Plain if ffi::PyFloat_CheckExact(object) != 0 => {
                Ok(Place::Ready(ValueRef::Float(ffi::PyFloat_AsDouble(object))))
            }
            _ => {
                #[expect(clippy::disallowed_methods, reason = "the GIL is held, by the contract")]
                let value = Python::attach_unchecked(|py| {
                    let bound = Bound::from_borrowed_ptr(py, object);
                    convert::value_from(&bound, &param.ty)
                });
                let value = value.map_err(|error| error.at(&param.place))?;
                owned.push(value.unwrap_or(Value::None));
                Ok(Place::Owned(owned.len() - 1))
            }
        }
    }
}

/// What a Python kernel returned, as a value, checked against the schema.
pub(crate) fn value_of_result(
    context: &CallContext<'_, Value>,
    result: &Bound<'_, PyAny>,
) -> Result<Value> {
    let returns = &context.operator().schema().returns;
    let wrong = || context.operator().wrong_return(context.kernel(), &describe_object(result));
    match &returns[..] {
        [] if result.is_none() => Ok(Value::None),
        [] => Err(wrong()),
        [one] => item_value(result, &one.ty)?.ok_or_else(wrong),
        many => {
            let items = sequence(result, many.len()).ok_or_else(wrong)?;
            let mut values = Vec::with_capacity(many.len());
            for (item, promised) in items.iter().zip(many) {
                values.push(item_value(item, &promised.ty)?.ok_or_else(wrong)?);
            }
            Ok(Value::Tuple(values))
        }
    }
}

/// Whether a returned object fits a promised type.
///
/// # Errors
/// An array that is refused, with the reason.
pub(crate) fn item_fits(item: &Bound<'_, PyAny>, ty: &Type) -> Result<bool> {
    match ty {
        Type::Tensor => Ok(arrays::look(item)?.is_some()),
        Type::Optional(inner) => Ok(item.is_none() || item_fits(item, inner)?),
        _ => Ok(convert::value_from(item, ty)?.is_some()),
    }
}

fn item_value(item: &Bound<'_, PyAny>, ty: &Type) -> Result<Option<Value>> {
    if *ty == Type::Tensor {
        return Ok(arrays::look(item)?.map(|(tag, _)| {
            // SAFETY: a bound object is alive.
            unsafe { Object::value(item.as_ptr(), tag) }
        }));
    }
    convert::value_from(item, ty)
}

/// The items of a tuple or list of that length.
pub(crate) fn sequence<'py>(
    object: &Bound<'py, PyAny>,
    length: usize,
) -> Option<Vec<Bound<'py, PyAny>>> {
    if !object.is_instance_of::<PyTuple>() && !object.is_instance_of::<PyList>() {
        return None;
    }
    let items: Vec<_> = object.try_iter().ok()?.collect::<PyResult<_>>().ok()?;
    (items.len() == length).then_some(items)
}
