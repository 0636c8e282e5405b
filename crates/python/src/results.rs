//! Values on their way to Python: back to the very object they came from, or wrapped in the
//! caller's library.

use std::cell::Cell;

use keyfold_core::DeviceType;
use keyfold_layers::vmap;
use keyfold_tensor::{Tensor, Value, ValueRef};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyComplex, PyList, PyTuple};

use crate::arrays::library::{first_of, home};
use crate::arrays::owners;
use crate::arrays::{self, Caller};
use crate::arrays::{jax, protocol, torch, tvm};
use crate::dtype::{PyDType, PyDevice};
use crate::foreign::OF_AN_OBJECT;
use crate::tensor;

/// The objects that the running call into native code was given, and the call around it.
pub(crate) struct Frame {
    objects: *const [*mut ffi::PyObject],
    caller: Caller,
    outer: Cell<*const Frame>,
}

thread_local! {
    static FRAME: Cell<*const Frame> = const { Cell::new(std::ptr::null()) };
}

impl Frame {
    #[inline(always)]
    pub(crate) fn new(objects: &[*mut ffi::PyObject], caller: Caller) -> Self {
        Frame { objects: std::ptr::from_ref(objects), caller, outer: Cell::new(std::ptr::null()) }
    }

    /// Makes the objects and library known to what is called until the guard is dropped.
    #[inline(always)]
    pub(crate) fn enter(&self) -> FrameGuard<'_> {
        self.outer.set(FRAME.replace(std::ptr::from_ref(self)));
        FrameGuard(self)
    }
}

/// A frame is known while this lives.
pub(crate) struct FrameGuard<'f>(&'f Frame);

impl Drop for FrameGuard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        FRAME.set(self.0.outer.get());
    }
}

/// The objects and library of the running calls, innermost first.
fn frames() -> impl Iterator<Item = (&'static [*mut ffi::PyObject], Caller)> {
    let mut next = FRAME.get();
    std::iter::from_fn(move || {
        // SAFETY: frames are on this thread's stack, and each is unlinked before it ends; the
        // iterator doesn't outlive the function that uses it, which runs inside them all.
        let frame = unsafe { next.as_ref() }?;
        next = frame.outer.get();
        // SAFETY: the objects outlive their frame.
        Some((unsafe { &*frame.objects }, frame.caller))
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
    let memory = owners::object(tensor);
    objects.iter().copied().find(|object| {
        // SAFETY: the objects of running calls are alive.
        unsafe {
            if arrays::is_tensor(*object) {
                same_view(arrays::tensor_of(*object), tensor)
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
            && a.dtype() == b.dtype()
            && a.device() == b.device()
            && a.shape() == b.shape()
            && a.strides() == b.strides()
            && a.keys() == b.keys()
            && same_batch(a, b))
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
    let home = if caller.keeps_tensors() { Caller::TENSOR } else { home(py, objects, caller) };
    match home {
        Caller::NUMPY if tensor.device().kind() == DeviceType::CPU => {
            tensor::into_numpy(py, tensor)
        }
        Caller::TORCH => torch::give(py, tensor),
        Caller::TVM if tensor.device().kind() != DeviceType::META => tvm::give(py, tensor),
        Caller::JAX if tensor.device().kind() != DeviceType::META => jax::give(py, tensor),
        Caller::CUPY | Caller::DLPACK if tensor.device().kind() != DeviceType::META => {
            match first_of(py, objects, |library| library == home) {
                Some(like) => protocol::give_like(&like, tensor),
                None => Ok(tensor::wrap(py, tensor)?.into_any()),
            }
        }
        Caller::OTHER => match first_of(py, objects, |library| library == Caller::OTHER) {
            Some(like) => arrays::give_like(&like, tensor),
            None => Ok(tensor::wrap(py, tensor)?.into_any()),
        },
        _ => Ok(tensor::wrap(py, tensor)?.into_any()),
    }
}

/// A borrowed value as the object that a Python kernel below a native layer gets.
pub(crate) fn ref_to_py<'py>(py: Python<'py>, value: ValueRef<'_>) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        ValueRef::Tensor(tensor) => {
            for (objects, _) in frames() {
                if let Some(object) = original(tensor, objects) {
                    // SAFETY: an object of a running call, alive.
                    return Ok(unsafe { Bound::from_borrowed_ptr(py, object) });
                }
            }
            // A tensor that a layer made: in the library of the call around it.
            let around = frames().next();
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

/// What a native kernel returned, for the caller.
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
