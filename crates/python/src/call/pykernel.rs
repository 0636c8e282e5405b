//! Kernels written in Python.
//!
//! Their unboxed convention is "the caller's own objects": from a Python call to
//! a Python kernel nothing is converted. The boxed form serves native layers
//! above them: it finds the caller's objects again.

use std::any::TypeId;
use std::sync::Arc;

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::{CallContext, Kernel};
use keyfold_tensor::{Value, ValueRef};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use smallvec::SmallVec;

use crate::call::params::Params;
use crate::call::signature::{Style, provenance_of, signature_of};
use crate::call::{current, operator, results, returned};
use crate::marshal::argument::wrong_type;
use crate::marshal::attach::{attach, reattach};
use crate::marshal::describe::describe_object;
use crate::marshal::errors::{add_note, error, from_pyerr};
use crate::marshal::keys::keyset_object;

/// The signature of the unboxed convention; no value of it exists.
enum ObjectsConvention {}

fn convention() -> TypeId {
    TypeId::of::<ObjectsConvention>()
}

/// An address that marks kernels of this convention; nothing is ever called there.
static ENTRY: u8 = 0;

#[inline(always)]
fn entry() -> *const () {
    (&raw const ENTRY).cast()
}

/// A Python function as a kernel.
pub(crate) struct PyKernel {
    pub(crate) function: Py<PyAny>,
    style: Style,
    /// Whether it is exactly a function in the Python language, which can be called without the
    /// checks that `PyObject_Vectorcall` makes for objects of any kind.
    #[cfg(not(feature = "abi3"))]
    is_function: bool,
}

/// Makes a kernel of a Python function. `place` overrides where it is said to come from.
pub(crate) fn make(function: &Bound<'_, PyAny>, style: Style) -> PyResult<Kernel<Value>> {
    if !function.is_callable() {
        return Err(wrong_type(format!(
            "a kernel must be callable, not {}",
            describe_object(function)
        )));
    }
    let signature = signature_of(function, style);
    if let Some(problem) = signature.as_ref().and_then(|s| s.fallback_problem(style)) {
        return Err(error(function.py(), ErrorKind::Registration, problem));
    }
    let shared = Arc::new(PyKernel {
        function: function.clone().unbind(),
        style,
        // SAFETY: a type check of a live object.
        #[cfg(not(feature = "abi3"))]
        is_function: unsafe { ffi::PyFunction_Check(function.as_ptr()) != 0 },
    });
    let data = Arc::as_ptr(&shared).cast();
    let boxed = Arc::clone(&shared);
    let kernel = Kernel::boxed(move |context, args| boxed.call_boxed(context, args))
        .with_provenance(provenance_of(function))
        .with_payload(shared);
    let kernel = match signature {
        Some(signature) if style != Style::Fallback => {
            kernel.with_check(move |schema| signature.check(schema))
        }
        _ => kernel,
    };
    // SAFETY: nobody transmutes the entry (it isn't a function): `find` reads the data alone,
    // which is the `PyKernel` that the payload keeps alive.
    Ok(unsafe { kernel.with_unboxed(convention(), entry(), data) })
}

/// The Python kernel behind a kernel, if it is one.
#[inline(always)]
pub(crate) fn find(kernel: &Kernel<Value>) -> Option<&PyKernel> {
    let data = kernel.unboxed_at(entry())?;
    // SAFETY: kernels with this convention are made in `make`, with such data.
    Some(unsafe { &*data.cast::<PyKernel>() })
}

impl PyKernel {
    /// Calls the function with bound objects and gives what it returns, unchecked: a new reference.
    ///
    /// # Safety
    /// `objects` are live, one per parameter; the GIL is held.
    #[inline(always)]
    pub(crate) unsafe fn call_objects(
        &self,
        context: &CallContext<'_, Value>,
        params: &Params,
        objects: &[*mut ffi::PyObject],
    ) -> Result<*mut ffi::PyObject> {
        if current::has_isolated() {
            // SAFETY: as for the caller.
            return unsafe { self.call_in_dispatcher(context, params, objects) };
        }
        // SAFETY: as for the caller.
        unsafe { self.call_function(context, params, objects) }
    }

    /// As [`PyKernel::call_objects`], where there are isolated dispatchers: names mean the operators of
    /// this operator's dispatcher, so that a redispatch by name inside the kernel stays in it.
    ///
    /// # Safety
    /// As for `call_objects`.
    #[cold]
    #[inline(never)]
    unsafe fn call_in_dispatcher(
        &self,
        context: &CallContext<'_, Value>,
        params: &Params,
        objects: &[*mut ffi::PyObject],
    ) -> Result<*mut ffi::PyObject> {
        let _inside = current::enter_dispatcher(context.operator());
        // SAFETY: as for the caller.
        unsafe { self.call_function(context, params, objects) }
    }

    /// # Safety
    /// As for `call_objects`.
    #[inline(always)]
    unsafe fn call_function(
        &self,
        context: &CallContext<'_, Value>,
        params: &Params,
        objects: &[*mut ffi::PyObject],
    ) -> Result<*mut ffi::PyObject> {
        let names = params.keyword_names.as_ref().map_or(std::ptr::null_mut(), |n| n.as_ptr());
        // SAFETY: as for the caller.
        let result = unsafe {
            match self.style {
                Style::Plain => self.invoke(objects, params.positional, names),
                _ => self.call_layer(context, params, objects, names)?,
            }
        };
        if result.is_null() { Err(raised()) } else { Ok(result) }
    }

    /// # Safety
    /// As for `call_objects`.
    #[inline]
    unsafe fn call_layer(
        &self,
        context: &CallContext<'_, Value>,
        params: &Params,
        objects: &[*mut ffi::PyObject],
        names: *mut ffi::PyObject,
    ) -> Result<*mut ffi::PyObject> {
        // SAFETY: the GIL is held, by the contract.
        let py = unsafe { Python::assume_attached() };
        let keyset = keyset_object(py, context.keyset()).map_err(from_pyerr)?;
        if self.style == Style::Fallback {
            // SAFETY: as for the caller.
            return unsafe { self.call_fallback(context, params, objects, keyset.as_any()) };
        }
        // SAFETY: live objects; the key set is held until after the call.
        Ok(unsafe {
            with_first(keyset.as_ptr(), objects, |all| {
                self.invoke(all, params.positional + 1, names)
            })
        })
    }

    /// # Safety
    /// As for `call_objects`.
    unsafe fn call_fallback(
        &self,
        context: &CallContext<'_, Value>,
        params: &Params,
        objects: &[*mut ffi::PyObject],
        keyset: &Bound<'_, PyAny>,
    ) -> Result<*mut ffi::PyObject> {
        let call = |py: Python<'_>| -> PyResult<*mut ffi::PyObject> {
            let operator = operator::object_of(py, context.operator())?;
            // SAFETY: live objects, by the contract.
            let bound = |o: &*mut ffi::PyObject| unsafe { Bound::from_borrowed_ptr(py, *o) };
            let args = PyTuple::new(py, objects[..params.positional].iter().map(bound))?;
            let kwargs = PyDict::new(py);
            for (param, object) in params.all.iter().zip(objects).skip(params.positional) {
                kwargs.set_item(&param.name, bound(object))?;
            }
            let function = self.function.bind(py);
            Ok(function.call1((operator, keyset, args, kwargs))?.into_ptr())
        };
        reattach(|py| {
            call(py).map_err(|error| {
                add_note(py, &error);
                from_pyerr(error)
            })
        })
    }

    /// The boxed form: called from native code, with or without the GIL.
    fn call_boxed(&self, context: &CallContext<'_, Value>, args: &[ValueRef<'_>]) -> Result<Value> {
        attach(|py| {
            let operator = operator::object_of(py, context.operator()).map_err(from_pyerr)?;
            let params = &operator.get().params;
            let held = args
                .iter()
                .map(|arg| results::ref_to_py(py, *arg))
                .collect::<PyResult<SmallVec<[_; 6]>>>()
                .map_err(from_pyerr)?;
            let mut objects: SmallVec<[_; 6]> = held.iter().map(Bound::as_ptr).collect();
            // SAFETY: `held` keeps the objects alive; attached.
            let _adapted = match unsafe { params.adapts(&objects) } {
                // SAFETY: as above.
                true => unsafe { params.adapt(&mut objects) }?,
                false => Vec::new(),
            };
            // SAFETY: `held` and the adapted objects live until after the call; attached.
            let result = unsafe { self.call_objects(context, params, &objects) }?;
            // SAFETY: a new reference.
            let result = unsafe { Bound::from_owned_ptr(py, result) };
            returned::value_of_result(context, &result)
        })
    }
}

/// The exception that a kernel raised, noted, as an error.
#[cold]
fn raised() -> Error {
    reattach(|py| {
        let error = PyErr::fetch(py);
        add_note(py, &error);
        from_pyerr(error)
    })
}

/// Calls `f` with `first` put before the others.
unsafe fn with_first<R>(
    first: *mut ffi::PyObject,
    rest: &[*mut ffi::PyObject],
    f: impl FnOnce(&[*mut ffi::PyObject]) -> R,
) -> R {
    if let [a, b] = *rest {
        // The usual operator; a copy of unknown length would be a call of memcpy.
        return f(&[first, a, b]);
    }
    let all: SmallVec<[*mut ffi::PyObject; 9]> =
        std::iter::once(first).chain(rest.iter().copied()).collect();
    f(&all)
}

impl PyKernel {
    /// Calls the function: `positional` arguments by position, the rest by these names.
    ///
    /// # Safety
    /// Live objects; `names` a tuple of as many strings as there are further objects, or null if
    /// there are none; the GIL is held.
    #[cfg(not(feature = "abi3"))]
    #[inline(always)]
    unsafe fn invoke(
        &self,
        objects: &[*mut ffi::PyObject],
        positional: usize,
        names: *mut ffi::PyObject,
    ) -> *mut ffi::PyObject {
        let function = self.function.as_ptr();
        // SAFETY: as for the caller. A Python function's result and exception always agree, so
        // its vectorcall needs no check after it.
        unsafe {
            let function_object = function.cast::<ffi::PyFunctionObject>();
            match self.is_function.then(|| (*function_object).vectorcall).flatten() {
                Some(call) => call(function, objects.as_ptr(), positional, names),
                None => ffi::PyObject_Vectorcall(function, objects.as_ptr(), positional, names),
            }
        }
    }

    /// As above, for the stable ABI.
    ///
    /// # Safety
    /// As above.
    #[cfg(feature = "abi3")]
    unsafe fn invoke(
        &self,
        objects: &[*mut ffi::PyObject],
        positional: usize,
        names: *mut ffi::PyObject,
    ) -> *mut ffi::PyObject {
        // SAFETY: as for the caller.
        unsafe { invoke_stable(self.function.as_ptr(), objects, positional, names) }
    }
}

/// Calls a function through a tuple and a dict: the stable ABI of 3.11 has no vectorcall.
///
/// # Safety
/// As above.
#[cfg(feature = "abi3")]
unsafe fn invoke_stable(
    function: *mut ffi::PyObject,
    objects: &[*mut ffi::PyObject],
    positional: usize,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    let call = |py: Python<'_>| -> PyResult<*mut ffi::PyObject> {
        // SAFETY: as for the caller.
        let bound = |o: &*mut ffi::PyObject| unsafe { Bound::from_borrowed_ptr(py, *o) };
        let args = PyTuple::new(py, objects[..positional].iter().map(bound))?;
        let kwargs = PyDict::new(py);
        for (i, object) in objects[positional..].iter().enumerate() {
            // SAFETY: as for the caller: `names` has one string per further object.
            let name = unsafe {
                Bound::from_borrowed_ptr(py, ffi::PyTuple_GetItem(names, i as ffi::Py_ssize_t))
            };
            kwargs.set_item(name, bound(object))?;
        }
        // SAFETY: a live callable.
        let function = unsafe { Bound::from_borrowed_ptr(py, function) };
        Ok(function.call(args, Some(&kwargs))?.into_ptr())
    };
    reattach(|py| match call(py) {
        Ok(result) => result,
        Err(error) => {
            error.restore(py);
            std::ptr::null_mut()
        }
    })
}
