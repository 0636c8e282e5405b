//! The object of an operator, and its arguments as CPython passes them.

use std::sync::Arc;
#[cfg(not(feature = "abi3"))]
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use keyfold_core::Result;
use keyfold_dispatch::Operator;
use keyfold_dispatch::schema::Type;
use keyfold_tensor::Value;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple, PyWeakrefMethods, PyWeakrefReference};
use smallvec::SmallVec;

use crate::call::params::Params;

/// The function that CPython calls operators by, which is noted at import: it runs kernels, and kernels
/// make these objects.
#[cfg(not(feature = "abi3"))]
pub(crate) static OPERATOR_CALL: OnceLock<ffi::vectorcallfunc> = OnceLock::new();

#[cfg(not(feature = "abi3"))]
fn not_ready() -> PyErr {
    pyo3::exceptions::PyRuntimeError::new_err("keyfold isn't imported whole")
}

/// One overload of an operator: callable, and open to inspection.
#[pyclass(name = "Operator", module = "keyfold", frozen, weakref)]
pub(crate) struct PyOperator {
    /// Where CPython looks for the function that calls the object (`tp_vectorcall_offset`).
    #[cfg(not(feature = "abi3"))]
    pub(crate) vectorcall: ffi::vectorcallfunc,
    pub(crate) operator: Arc<Operator<Value>>,
    pub(crate) params: Params,
    /// Whether the schema returns exactly one Tensor: the common case of the call path.
    pub(crate) returns_tensor: bool,
}

/// The Python object of an operator: always the same one while somebody holds it.
pub(crate) fn object_of<'py>(
    py: Python<'py>,
    operator: &Operator<Value>,
) -> PyResult<Bound<'py, PyOperator>> {
    let known = operator.host(|slot| {
        let reference = slot?.downcast_ref::<Py<PyWeakrefReference>>()?;
        reference.bind(py).upgrade()?.cast_into::<PyOperator>().ok()
    });
    if let Some(object) = known {
        return Ok(object);
    }
    let object = Bound::new(py, PyOperator::new(py, operator.share())?)?;
    let reference = PyWeakrefReference::new(&object)?.unbind();
    operator.set_host(Box::new(reference));
    Ok(object)
}

impl PyOperator {
    fn new(py: Python<'_>, operator: Arc<Operator<Value>>) -> PyResult<Self> {
        let params = Params::new(py, operator.schema())?;
        let returns_tensor = matches!(
            &operator.schema().returns[..],
            [only] if only.ty == Type::Tensor
        );
        Ok(PyOperator {
            #[cfg(not(feature = "abi3"))]
            vectorcall: *OPERATOR_CALL.get().ok_or_else(not_ready)?,
            operator,
            params,
            returns_tensor,
        })
    }

    /// Whether the arguments bind and have the right types.
    ///
    /// # Errors
    /// Why they don't.
    ///
    /// # Safety
    /// As for `invoke::call`.
    pub(crate) unsafe fn accepts(
        &self,
        args: *const *mut ffi::PyObject,
        nargs: usize,
        keywords: *mut ffi::PyObject,
    ) -> Result<()> {
        let mut slots = SmallVec::<[*mut ffi::PyObject; 12]>::new();
        slots.resize(self.params.all.len(), std::ptr::null_mut());
        // SAFETY: as for the caller.
        unsafe {
            let names = if keywords.is_null() { 0 } else { ffi::PyTuple_Size(keywords) as usize };
            let all = if nargs + names == 0 {
                &[]
            } else {
                std::slice::from_raw_parts(args, nargs + names)
            };
            self.params.bind(&self.operator, all, keywords, &mut slots)?;
            self.params.inspect(&self.operator, &slots)?;
        }
        Ok(())
    }
}

/// Shows a tuple and a dict of arguments as C passes them: one array, and the keywords' names.
pub(crate) fn with_c_arguments<R>(
    args: &Bound<'_, PyTuple>,
    kwargs: Option<&Bound<'_, PyDict>>,
    f: impl FnOnce(&[*mut ffi::PyObject], usize, *mut ffi::PyObject) -> PyResult<R>,
) -> PyResult<R> {
    let mut held: Vec<Bound<'_, PyAny>> = args.iter().collect();
    let nargs = held.len();
    let mut names = Vec::new();
    for (name, value) in kwargs.into_iter().flatten() {
        names.push(name);
        held.push(value);
    }
    let names = if names.is_empty() { None } else { Some(PyTuple::new(args.py(), names)?) };
    let all: Vec<_> = held.iter().map(Bound::as_ptr).collect();
    f(&all, nargs, names.as_ref().map_or(std::ptr::null_mut(), Bound::as_ptr))
}

static OPERATOR_TYPE: AtomicPtr<ffi::PyTypeObject> = AtomicPtr::new(std::ptr::null_mut());

/// Notes the type object that the call path compares with. Called once, at import.
pub(crate) fn init(py: Python<'_>) {
    OPERATOR_TYPE.store(py.get_type::<PyOperator>().as_ptr().cast(), Ordering::Release);
}

/// Whether the object is an operator.
///
/// # Safety
/// `object` is a live object.
#[inline(always)]
pub(crate) unsafe fn is_operator(object: *mut ffi::PyObject) -> bool {
    // SAFETY: as for the caller.
    let kind = unsafe { ffi::Py_TYPE(object) };
    kind == OPERATOR_TYPE.load(Ordering::Relaxed)
}
