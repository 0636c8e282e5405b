//! Values on their way to Python: back to the very object they came from, or wrapped in the
//! caller's library.

use std::cell::Cell;

use keyfold_core::DeviceType;
use keyfold_layers::{tracer, vmap};
use keyfold_tensor::{Tensor, Value, ValueRef};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyComplex, PyList, PyTuple};

use crate::call::context;
use crate::call::homes::{first_of, home};
use crate::marshal::arrays::numpy_array::into_numpy;
use crate::marshal::arrays::{caller::Caller, classes, owners, registered};
use crate::marshal::dtype::{PyDType, PyDevice};
use crate::marshal::errors::IntoPyResult;
use crate::marshal::py_value::PyValue;
use crate::marshal::tensor::{OF_AN_OBJECT, is_tensor, tensor_of, wrap};

/// The objects that the running call into native code was given, and the call around it.
pub(crate) struct RunningCall {
    objects: *const [*mut ffi::PyObject],
    caller: Caller,
    outer: Cell<*const RunningCall>,
}

thread_local! {
    static RUNNING: Cell<*const RunningCall> = const { Cell::new(std::ptr::null()) };
}

impl RunningCall {
    #[inline(always)]
    pub(crate) fn new(objects: &[*mut ffi::PyObject], caller: Caller) -> Self {
        RunningCall {
            objects: std::ptr::from_ref(objects),
            caller,
            outer: Cell::new(std::ptr::null()),
        }
    }

    /// Makes the objects and library known to what is called until the guard is dropped.
    #[inline(always)]
    pub(crate) fn enter(&self) -> RunningCallGuard<'_> {
        RUNNING.with(|running| {
            self.outer.set(running.replace(std::ptr::from_ref(self)));
            RunningCallGuard { call: self, running: std::ptr::from_ref(running) }
        })
    }
}

/// The running call is known while this lives.
pub(crate) struct RunningCallGuard<'f> {
    call: &'f RunningCall,
    /// [`RUNNING`] of this thread: finding it takes a call.
    running: *const Cell<*const RunningCall>,
}

impl Drop for RunningCallGuard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: a pointer isn't `Send`, so this is the thread that entered; its cell has no destructor,
        // and stays for as long as the thread's code runs.
        unsafe { &*self.running }.set(self.call.outer.get());
    }
}

/// The objects and library of the running calls, innermost first.
fn running_calls() -> impl Iterator<Item = (&'static [*mut ffi::PyObject], Caller)> {
    let mut next = RUNNING.get();
    std::iter::from_fn(move || {
        // SAFETY: running calls are on this thread's stack, and each is unlinked before it ends; the
        // iterator doesn't outlive the function that uses it, which runs inside them all.
        let call = unsafe { next.as_ref() }?;
        next = call.outer.get();
        // SAFETY: the objects outlive their call.
        Some((unsafe { &*call.objects }, call.caller))
    })
}

/// The caller's object that a tensor is a view of, if it is an unchanged view of one: a borrowed
/// reference.
#[inline]
pub(crate) fn original(
    tensor: &Tensor,
    objects: &[*mut ffi::PyObject],
) -> Option<*mut ffi::PyObject> {
    if tensor.token() != OF_AN_OBJECT {
        return None;
    }
    let memory = owners::address(tensor);
    objects.iter().copied().find(|object| {
        // SAFETY: the objects of running calls are alive.
        unsafe {
            if is_tensor(*object) {
                same_view(tensor_of(*object), tensor)
            } else {
                // A view with this token of an array that is an argument is the whole argument.
                memory == Some(*object)
            }
        }
    })
}

fn same_view(a: &Tensor, b: &Tensor) -> bool {
    std::ptr::eq(a, b)
        || (a.address() == b.address()
            && same_pending(a, b)
            && a.dtype() == b.dtype()
            && a.device() == b.device()
            && a.shape() == b.shape()
            && a.strides() == b.strides()
            && a.keys() == b.keys()
            && same_batch(a, b))
}

/// Whether neither tensor's memory is or was pending (such have no address), or both have the same.
fn same_pending(a: &Tensor, b: &Tensor) -> bool {
    a.is_pinned()
        || a.buffer().pending().is_none()
        || a.buffer().identity() == b.buffer().identity()
}

/// Whether neither tensor is an example of a batch (such have no address), or both of one.
fn same_batch(a: &Tensor, b: &Tensor) -> bool {
    match (vmap::batch_of(a), vmap::batch_of(b)) {
        (None, None) => true,
        (Some(a), Some(b)) => std::sync::Arc::ptr_eq(&a, &b),
        _ => false,
    }
}

/// A tensor in the caller's library: the original object, a NumPy array, or keyfold's own.
pub(crate) fn tensor_to_py<'py>(
    py: Python<'py>,
    tensor: Tensor,
    objects: &[*mut ffi::PyObject],
    caller: Caller,
) -> PyResult<Bound<'py, PyAny>> {
    if let Some(object) = original(&tensor, objects) {
        // SAFETY: an object of a running call, alive.
        return Ok(unsafe { Bound::from_borrowed_ptr(py, object) });
    }
    wrap_for(py, tensor, objects, caller)
}

/// A new object for a tensor, in the caller's library.
pub(crate) fn wrap_for<'py>(
    py: Python<'py>,
    tensor: Tensor,
    objects: &[*mut ffi::PyObject],
    caller: Caller,
) -> PyResult<Bound<'py, PyAny>> {
    if tensor.is_pending() {
        // Another library's array can't wait for its elements.
        return Ok(wrap(py, tensor)?.into_any());
    }
    let home = if caller.keeps_tensors() { Caller::TENSOR } else { home(py, objects, caller) };
    let on_meta = tensor.device().kind() == DeviceType::META;
    if let Some(library) = classes::library(home).filter(|own| !on_meta || own.has_meta()) {
        return library.give(py, tensor, &|| first_of(py, objects, |own| own == home));
    }
    if home == Caller::OTHER
        && let Some(like) = first_of(py, objects, |own| own == home)
    {
        return give_like(&like, tensor);
    }
    if home == Caller::NUMPY && tensor.device().kind() == DeviceType::CPU {
        return into_numpy(py, tensor);
    }
    Ok(wrap(py, tensor)?.into_any())
}

/// A result of a native kernel for an argument of a registered class: by what it was registered with,
/// or in the library that the class is of, or keyfold's own.
pub(crate) fn give_like<'py>(
    like: &Bound<'py, PyAny>,
    tensor: Tensor,
) -> PyResult<Bound<'py, PyAny>> {
    let py = like.py();
    let entry = registered::find(like);
    if let Some(own) = entry.as_ref().and_then(|entry| entry.wrap.as_ref()) {
        let made = own.bind(py).call1((wrap(py, tensor.clone())?,))?;
        if tracer::is_recording() {
            let (like, object) = (PyValue::of(like).py(py)?, PyValue::of(&made).py(py)?);
            context::in_context(py, || tracer::note_wrapped(&tensor, &like, &object))?.py(py)?;
        }
        return Ok(made);
    }
    match classes::of_registered(&like.get_type()).py(py)? {
        Some(class) if !class.library.is_dlpack() => class.library.give(py, tensor, &|| None),
        _ => Ok(wrap(py, tensor)?.into_any()),
    }
}

/// Whether results of native kernels for these arguments go through a registered class's own `wrap`.
pub(crate) fn class_wraps(py: Python<'_>, objects: &[*mut ffi::PyObject]) -> bool {
    let like = first_of(py, objects, |library| library == Caller::OTHER);
    like.is_some_and(|like| registered::find(&like).is_some_and(|entry| entry.wrap.is_some()))
}

/// A borrowed value as the object that a Python kernel below a native layer gets.
pub(crate) fn ref_to_py<'py>(py: Python<'py>, value: ValueRef<'_>) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        ValueRef::Tensor(tensor) => {
            for (objects, _) in running_calls() {
                if let Some(object) = original(tensor, objects) {
                    // SAFETY: an object of a running call, alive.
                    return Ok(unsafe { Bound::from_borrowed_ptr(py, object) });
                }
            }
            // A tensor that a layer made: in the library of the call around it.
            let around = running_calls().next();
            let (objects, caller) = around.unwrap_or((&[], Caller::NONE));
            wrap_for(py, tensor.clone(), objects, caller)?
        }
        ValueRef::Foreign(object) => {
            // SAFETY: a foreign object here is a Python object that its holder keeps alive.
            unsafe { Bound::from_borrowed_ptr(py, object.original().cast()) }
        }
        ValueRef::None => py.None().into_bound(py),
        ValueRef::Bool(flag) => flag.into_pyobject(py)?.to_owned().into_any(),
        ValueRef::Int(number) => number.into_pyobject(py)?.into_any(),
        ValueRef::UInt(number) => number.into_pyobject(py)?.into_any(),
        ValueRef::Float(number) => number.into_pyobject(py)?.into_any(),
        ValueRef::Complex(c) => PyComplex::from_doubles(py, c.re, c.im).into_any(),
        ValueRef::Str(text) => text.into_pyobject(py)?.into_any(),
        ValueRef::DType(dtype) => Bound::new(py, PyDType(dtype))?.into_any(),
        ValueRef::Device(device) => Bound::new(py, PyDevice(device))?.into_any(),
        list => {
            let items: PyResult<Vec<_>> = list.items().map(|item| ref_to_py(py, item)).collect();
            PyList::new(py, items?)?.into_any()
        }
    })
}

/// The result of a native kernel, for the caller.
pub(crate) fn value_to_py<'py>(
    py: Python<'py>,
    value: Value,
    objects: &[*mut ffi::PyObject],
    caller: Caller,
) -> PyResult<Bound<'py, PyAny>> {
    use keyfold_dispatch::Value as _;
    Ok(match value {
        Value::Tensor(tensor) => tensor_to_py(py, tensor, objects, caller)?,
        Value::List(items) => {
            let items: PyResult<Vec<_>> =
                items.into_iter().map(|item| value_to_py(py, item, objects, caller)).collect();
            PyList::new(py, items?)?.into_any()
        }
        Value::Tuple(items) => {
            let items: PyResult<Vec<_>> =
                items.into_iter().map(|item| value_to_py(py, item, objects, caller)).collect();
            PyTuple::new(py, items?)?.into_any()
        }
        plain => ref_to_py(py, plain.as_ref())?,
    })
}
