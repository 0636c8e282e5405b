//! Calls of an expression: of the operator `keyfold::elementwise`, without making lists of Python's
//! where the arguments are arrays of classes that are known and plain numbers.

use keyfold_core::ErrorKind;
use keyfold_dispatch::Tag;
use keyfold_expr::Expr;
use keyfold_ops::pointwise::{ELEMENTWISE, to_text};
use keyfold_tensor::ValueRef;
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList, PyString};
use smallvec::SmallVec;

use super::object::PyExpression;
use crate::call::invoke::{self, Choose, Computed};
use crate::call::operator::PyOperator;
#[cfg(not(feature = "abi3"))]
use crate::call::panics::guarded;
use crate::call::pykernel;
#[cfg(not(feature = "abi3"))]
use crate::call::vectorcall::{Vectorcall, vectorcall};
use crate::call::{context, native};
use crate::marshal::arrays;
use crate::marshal::arrays::caller::Caller;
#[cfg(not(feature = "abi3"))]
use crate::marshal::errors::IntoPyResult;

/// The operators that calls go to, once they were looked up.
static FRESH: PyOnceLock<Py<PyOperator>> = PyOnceLock::new();
static INTO: PyOnceLock<Py<PyOperator>> = PyOnceLock::new();

fn operator<'py>(py: Python<'py>, into: bool) -> PyResult<&'py Bound<'py, PyOperator>> {
    let known = if into { &INTO } else { &FRESH };
    let operator = known.get_or_try_init(py, || {
        let name = if into { format!("{ELEMENTWISE}.out") } else { ELEMENTWISE.to_owned() };
        let default = py.import("keyfold._default")?.getattr("dispatcher")?;
        let operator = default.call_method1("get_op", (name,))?;
        Ok::<_, PyErr>(operator.cast_into::<PyOperator>()?.unbind())
    })?;
    Ok(operator.bind(py))
}

/// A call's arguments, borrowed from the caller.
struct CallArguments<'a> {
    /// The inputs, and `out` behind them if it is given.
    arrays: SmallVec<[*mut ffi::PyObject; 8]>,
    numbers: SmallVec<[*mut ffi::PyObject; 4]>,
    has_out: bool,
    shape: Option<Borrowed<'a, 'a, PyAny>>,
}

impl PyExpression {
    pub(super) fn new(py: Python<'_>, expr: Expr) -> Self {
        let intern = |name: &String| PyString::intern(py, name).unbind();
        PyExpression {
            #[cfg(not(feature = "abi3"))]
            vectorcall: vectorcall::<Self>,
            text: to_text(&expr),
            params: expr.params().iter().map(intern).collect(),
            expr,
        }
    }

    /// Of a text without declarations.
    #[cfg(not(feature = "abi3"))]
    pub(crate) fn parse(py: Python<'_>, text: &str) -> PyResult<Self> {
        Ok(PyExpression::new(py, Expr::parse(text).py(py)?))
    }

    /// Calls it with a C array of arguments: positional ones, then those that `keywords` names.
    ///
    /// # Safety
    /// `args` has as many live objects as `nargs` plus the names; `keywords` is null or a tuple of
    /// strings.
    pub(crate) unsafe fn call_c(
        &self,
        py: Python<'_>,
        args: *const *mut ffi::PyObject,
        nargs: usize,
        keywords: *mut ffi::PyObject,
    ) -> PyResult<*mut ffi::PyObject> {
        // SAFETY: as for the caller.
        let given = unsafe { self.bind(py, args, nargs, keywords) }?;
        // SAFETY: the caller's objects are alive during the call.
        if let Some(result) = unsafe { self.call_quickly(py, &given) }? {
            return Ok(result);
        }
        self.call_generally(py, &given).map(Bound::into_ptr)
    }

    unsafe fn bind<'a>(
        &self,
        py: Python<'a>,
        args: *const *mut ffi::PyObject,
        nargs: usize,
        keywords: *mut ffi::PyObject,
    ) -> PyResult<CallArguments<'a>> {
        if nargs != self.expr.inputs().len() {
            return Err(self.wrong_count(py, nargs));
        }
        let names = match keywords.is_null() {
            true => 0,
            // SAFETY: a tuple, by the contract.
            false => unsafe { ffi::PyTuple_Size(keywords) as usize },
        };
        let all: &[*mut ffi::PyObject] = match nargs + names {
            0 => &[],
            // SAFETY: as many objects as that, by the contract.
            count => unsafe { std::slice::from_raw_parts(args, count) },
        };
        let mut given = CallArguments {
            arrays: SmallVec::from_slice(&all[..nargs]),
            numbers: SmallVec::from_elem(std::ptr::null_mut(), self.params.len()),
            has_out: false,
            shape: None,
        };
        for (at, value) in all[nargs..].iter().enumerate() {
            // SAFETY: the tuple has a name for each keyword argument; both outlive the call.
            let (name, object) = unsafe {
                let name = ffi::PyTuple_GetItem(keywords, at as ffi::Py_ssize_t);
                (Borrowed::from_ptr(py, name), Borrowed::from_ptr(py, *value))
            };
            if is(&name, intern!(py, "out")) {
                if !object.is_none() {
                    given.arrays.push(*value);
                    given.has_out = true;
                }
            } else if is(&name, intern!(py, "shape")) {
                given.shape = (!object.is_none()).then_some(object);
            } else if let Some(place) = self.params.iter().position(|p| is(&name, p.bind(py))) {
                given.numbers[place] = *value;
            } else {
                return Err(self.unknown_number(py, &name.to_string()));
            }
        }
        for (place, value) in given.numbers.iter().enumerate() {
            let name = &self.expr.params()[place];
            if value.is_null() {
                let message = format!("parameter '{name}' isn't given; pass {name}=");
                return Err(self.error(py, ErrorKind::Binding, &message));
            }
            // SAFETY: the caller's object, alive.
            let value = unsafe { Borrowed::from_ptr(py, *value) };
            if plain_number(&value).is_none() {
                self.check_number(py, name, &value)?;
            }
        }
        Ok(given)
    }

    /// The call where every argument is at hand as native code wants it; nothing where one isn't.
    ///
    /// # Safety
    /// The objects are alive.
    unsafe fn call_quickly(
        &self,
        py: Python<'_>,
        given: &CallArguments<'_>,
    ) -> PyResult<Option<*mut ffi::PyObject>> {
        if given.shape.is_some() || given.arrays.len() > native::LISTED {
            return Ok(None);
        }
        let (mut tag, mut caller) = (Tag::NONE, Caller::NONE);
        for array in &given.arrays {
            // SAFETY: alive, by the contract.
            let Some((own, library)) = (unsafe { arrays::look_fast(*array) }) else {
                return Ok(None);
            };
            (tag, caller) = (tag.merge(own), caller.with(library));
        }
        let mut numbers = SmallVec::<[ValueRef<'_>; 4]>::new();
        for number in &given.numbers {
            // SAFETY: alive, by the contract.
            let number = unsafe { Borrowed::from_ptr(py, *number) };
            let Some(number) = plain_number(&number) else { return Ok(None) };
            numbers.push(number);
        }
        if given.arrays.is_empty() || caller.may_clash() || tag.is_mixed() {
            return Ok(None);
        }
        let operator = operator(py, given.has_out)?.get();
        let mut is_python = false;
        let result = invoke::outcome(operator, &Computed, || {
            Computed.choose(operator, tag, |context, kernel| {
                if pykernel::find(kernel).is_some() {
                    is_python = true;
                    // SAFETY: the GIL is held; None stands for a result that nobody sees.
                    return Ok(unsafe { ffi::Py_NewRef(ffi::Py_None()) });
                }
                let values = (&numbers[..], &self.text[..]);
                let params = &operator.params;
                // SAFETY: the objects are alive and known, as many as fit; the GIL is held.
                let run = || unsafe {
                    let how = (given.has_out, caller);
                    native::call_listed(context, kernel, params, &given.arrays, values, how)
                };
                if context::in_use() { invoke::in_context(run) } else { run() }
            })
        });
        if is_python {
            return Ok(None);
        }
        if result.is_null() {
            return Err(PyErr::fetch(py));
        }
        Ok(Some(result))
    }

    /// The call of any arguments.
    fn call_generally<'py>(
        &self,
        py: Python<'py>,
        given: &CallArguments<'_>,
    ) -> PyResult<Bound<'py, PyAny>> {
        // SAFETY: the caller's objects, alive.
        let object = |object: &*mut ffi::PyObject| unsafe { Bound::from_borrowed_ptr(py, *object) };
        let inputs = given.arrays.len() - usize::from(given.has_out);
        let arrays = PyList::new(py, given.arrays[..inputs].iter().map(object))?;
        let numbers = PyList::new(py, given.numbers.iter().map(object))?;
        let keywords = PyDict::new(py);
        keywords.set_item(intern!(py, "expression"), &self.text)?;
        if let Some(shape) = given.shape {
            keywords.set_item(intern!(py, "shape"), self.sizes(py, &shape)?)?;
        }
        if given.has_out {
            keywords.set_item(intern!(py, "out"), object(&given.arrays[inputs]))?;
        }
        operator(py, given.has_out)?.call((arrays, numbers), Some(&keywords))
    }
}

/// Whether a keyword is this name: by identity, as most are interned, then by content.
fn is(keyword: &Bound<'_, PyAny>, name: &Bound<'_, pyo3::types::PyString>) -> bool {
    keyword.is(name) || keyword.eq(name).unwrap_or(false)
}

/// The number, if it is one of Python's own that int64, float64 or a bool holds.
#[inline]
fn plain_number(object: &Bound<'_, PyAny>) -> Option<ValueRef<'static>> {
    // SAFETY: a bound object is alive and the GIL held; each reader follows its type check.
    unsafe {
        let pointer = object.as_ptr();
        if ffi::PyFloat_CheckExact(pointer) != 0 {
            return Some(ValueRef::Float(ffi::PyFloat_AsDouble(pointer)));
        }
        if ffi::PyLong_CheckExact(pointer) != 0 {
            let mut overflow = 0;
            let number = ffi::PyLong_AsLongLongAndOverflow(pointer, &raw mut overflow);
            return (overflow == 0).then_some(ValueRef::Int(number));
        }
        if ffi::PyBool_Check(pointer) != 0 {
            return Some(ValueRef::Bool(pointer == ffi::Py_True()));
        }
    }
    None
}

#[cfg(not(feature = "abi3"))]
impl Vectorcall for PyExpression {
    #[inline(always)]
    unsafe fn call_c_array(
        &self,
        args: *const *mut ffi::PyObject,
        nargs: usize,
        keywords: *mut ffi::PyObject,
    ) -> *mut ffi::PyObject {
        // SAFETY: as for the caller.
        guarded("Expression", |py| unsafe { self.call_c(py, args, nargs, keywords) })
    }
}
