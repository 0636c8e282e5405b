//! The methods of `keyfold.Tensor` that the operators' rows name: `x.exp()`, `x.sum(0)`.
//!
//! The arguments of a method follow from the operator's: a reduction takes an axis or several and `keepdims`, by
//! NumPy's names and by PyTorch's, and `out`, which NumPy's functions pass.

use keyfold_core::ErrorKind;
use keyfold_dispatch::schema::Type;
use keyfold_ops::{Naming, Public, Row, rows};
use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyString, PyTuple};
use smallvec::SmallVec;

use crate::call::invoke::{self, Computed};
use crate::call::operator::with_c_arguments;
#[cfg(not(feature = "abi3"))]
use crate::call::panics::guarded;
#[cfg(not(feature = "abi3"))]
use crate::call::vectorcall::{Vectorcall, vectorcall};
use crate::classes::aten::Aten;
use crate::classes::tensor::methods::{axes, unexpected};
#[cfg(not(feature = "abi3"))]
use crate::classes::vectorcall::enable_method;
use crate::marshal::describe::describe_object;
use crate::marshal::errors::error;
use crate::marshal::tensor::{PyTensor, is_tensor};

/// The parameters of a method behind the tensor.
#[derive(Clone, Copy)]
enum Takes {
    Nothing,
    /// An axis, the last one by default.
    Axis,
    /// An axis to reduce or, where it takes `several`, a tuple of them; all without one.
    Reduced {
        several: bool,
        has_dtype: bool,
    },
}

// A method that calls an operator. A docstring of the class would stand in the way of each object's own.
#[pyclass(name = "TensorMethod", module = "keyfold", frozen)]
pub(crate) struct PyMethod {
    /// Where CPython looks for the function that calls the object (`tp_vectorcall_offset`).
    #[cfg(not(feature = "abi3"))]
    vectorcall: ffi::vectorcallfunc,
    public: &'static Public,
    takes: Takes,
    fresh: Aten,
    /// The overload that writes into a tensor of the caller's.
    out: Option<Aten>,
    /// The overload that reduces all elements.
    whole: Option<Aten>,
}

/// The arguments of a call behind the tensor, null where they aren't given.
struct MethodArguments {
    axis: *mut ffi::PyObject,
    keepdims: *mut ffi::PyObject,
    dtype: *mut ffi::PyObject,
    out: *mut ffi::PyObject,
}

/// Whether an argument is null or None.
fn lacks(object: *mut ffi::PyObject) -> bool {
    // SAFETY: the address of a constant.
    object.is_null() || object == unsafe { ffi::Py_None() }
}

/// Calls an operator with arguments by position, and then those that `names` has.
///
/// # Safety
/// The arguments are live objects.
#[inline(never)]
unsafe fn call<'py>(
    py: Python<'py>,
    operator: &Aten,
    args: &[*mut ffi::PyObject],
    names: Option<&Bound<'py, PyTuple>>,
) -> PyResult<Bound<'py, PyAny>> {
    let operator = operator.object(py)?.get();
    let by_name = names.map_or(0, |names| names.len());
    let names = names.map_or(std::ptr::null_mut(), Bound::as_ptr);
    // SAFETY: live objects, by the contract, a value for each name; attached. It is a new reference, or
    // null with an exception set.
    unsafe {
        let result = invoke::call(operator, args.as_ptr(), args.len() - by_name, names, &Computed);
        Bound::from_owned_ptr_or_err(py, result)
    }
}

impl PyMethod {
    /// The method that a row names, if it names one.
    fn of(row: &'static Row) -> Option<Self> {
        let Naming::Named(public) = row.naming() else { return None };
        if !public.is_method {
            return None;
        }
        let (schema, overload) = (row.schema(), &*row.schema().name.overload);
        let takes = match &schema.arguments[1..] {
            [] => Takes::Nothing,
            [dim] if dim.ty == Type::Int => Takes::Axis,
            [dim, keepdim, ..] if (&*dim.name, &*keepdim.name) == ("dim", "keepdim") => {
                let several = *dim.ty.without_optional() != Type::Int;
                Takes::Reduced { several, has_dtype: schema.arguments.len() > 3 }
            }
            _ => return None,
        };
        Some(PyMethod {
            #[cfg(not(feature = "abi3"))]
            vectorcall: vectorcall::<Self>,
            public,
            takes,
            fresh: Aten::named(schema.name.to_string()),
            out: row.out_schema().map(|schema| Aten::named(schema.name.to_string())),
            whole: (overload == "dim").then(|| Aten::named(schema.name.qualified())),
        })
    }

    #[cold]
    fn error(&self, py: Python<'_>, message: &str) -> PyErr {
        error(py, ErrorKind::Binding, format!("Tensor.{}() {message}", self.public.name))
    }

    /// Calls the operator with a C array of arguments, the tensor first.
    ///
    /// # Safety
    /// As for [`invoke::call`].
    unsafe fn call_c<'py>(
        &self,
        py: Python<'py>,
        args: *const *mut ffi::PyObject,
        nargs: usize,
        keywords: *mut ffi::PyObject,
    ) -> PyResult<Bound<'py, PyAny>> {
        // SAFETY: as many live objects as that, by the contract.
        if nargs == 0 || !unsafe { is_tensor(*args) } {
            // SAFETY: as above.
            return Err(unsafe { self.not_a_tensor(py, args, nargs) });
        }
        // SAFETY: as above.
        unsafe {
            if keywords.is_null() && nargs == 1 {
                match (self.takes, &self.whole) {
                    (Takes::Nothing, _) => return call(py, &self.fresh, &[*args], None),
                    (_, Some(whole)) => return call(py, whole, &[*args], None),
                    _ => {}
                }
            }
            let given = self.given(py, args, nargs, keywords)?;
            match self.takes {
                Takes::Axis if given.axis.is_null() => {
                    let last = (-1_i64).into_pyobject(py)?;
                    call(py, &self.fresh, &[*args, last.as_ptr()], None)
                }
                Takes::Axis => call(py, &self.fresh, &[*args, given.axis], None),
                // `given` has refused any argument, so there was none, which was answered above.
                Takes::Nothing => unreachable!("a method without arguments was given some"),
                Takes::Reduced { several, .. } => self.reduce(py, *args, given, several),
            }
        }
    }

    /// # Safety
    /// Live objects.
    unsafe fn reduce<'py>(
        &self,
        py: Python<'py>,
        tensor: *mut ffi::PyObject,
        given: MethodArguments,
        several: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        // SAFETY: live objects, by the contract.
        let object = |at: *mut ffi::PyObject| unsafe { Bound::from_borrowed_ptr(py, at) };
        let axis = (!lacks(given.axis)).then(|| object(given.axis));
        let axis = if several { axes(axis.as_ref())? } else { axis };
        let keeps = !lacks(given.keepdims) && self.kept(&object(given.keepdims))?;
        // SAFETY: the address of a constant.
        let none = unsafe { ffi::Py_None() };
        let reduces_all = axis.is_none() && !keeps && lacks(given.out);
        let (operator, mut args) = match &self.whole {
            Some(whole) if reduces_all => (whole, SmallVec::<[_; 5]>::from_slice(&[tensor])),
            _ => {
                let axis = axis.as_ref().map_or(none, Bound::as_ptr);
                let args = [tensor, axis, PyBool::new(py, keeps).as_ptr()];
                (&self.fresh, SmallVec::from_slice(&args))
            }
        };
        if lacks(given.dtype) && lacks(given.out) {
            // SAFETY: live objects, by the contract, and those that were made here.
            return unsafe { call(py, operator, &args, None) };
        }
        let mut names = SmallVec::<[_; 2]>::new();
        for (name, value) in [("dtype", given.dtype), ("out", given.out)] {
            if !lacks(value) {
                names.push(name);
                args.push(value);
            }
        }
        let names = PyTuple::new(py, &names)?;
        match &self.out {
            Some(out) if !lacks(given.out) => {
                // SAFETY: as above.
                unsafe { call(py, out, &args, Some(&names)) }?;
                // The caller's own object, whichever library's.
                Ok(object(given.out))
            }
            // SAFETY: as above.
            _ => unsafe { call(py, operator, &args, Some(&names)) },
        }
    }

    /// The arguments behind the tensor.
    ///
    /// # Safety
    /// As for [`invoke::call`].
    unsafe fn given(
        &self,
        py: Python<'_>,
        args: *const *mut ffi::PyObject,
        nargs: usize,
        keywords: *mut ffi::PyObject,
    ) -> PyResult<MethodArguments> {
        let null = std::ptr::null_mut();
        let mut given = MethodArguments { axis: null, keepdims: null, dtype: null, out: null };
        // SAFETY: null or a tuple of strings, by the contract.
        let names = unsafe { Bound::from_borrowed_ptr_or_opt(py, keywords) };
        if let Takes::Nothing = self.takes {
            let message = match names {
                None => format!("takes no arguments ({} given)", nargs - 1),
                Some(_) => "takes no keyword arguments".to_owned(),
            };
            return Err(self.error(py, &message));
        }
        if nargs > 2 {
            let message =
                format!("takes from 0 to 1 positional arguments but {} were given", nargs - 1);
            return Err(self.error(py, &message));
        }
        if nargs == 2 {
            // SAFETY: as many live objects as that.
            given.axis = unsafe { *args.add(1) };
        }
        let (is_reduction, has_dtype) = match self.takes {
            Takes::Reduced { has_dtype, .. } => (true, has_dtype),
            _ => (false, false),
        };
        let names = names.map(|names| names.cast_into::<PyTuple>()).transpose()?;
        for (at, name) in names.iter().flatten().enumerate() {
            // SAFETY: a value for each name stands behind those by position.
            let value = unsafe { *args.add(nargs + at) };
            let name = name.cast_into::<PyString>()?;
            let (slot, alike) = match name.to_str()? {
                "axis" if nargs == 2 => {
                    return Err(self.error(py, "got multiple values for argument 'axis'"));
                }
                "axis" | "dim" => (&mut given.axis, ("axis", "dim")),
                "keepdims" | "keepdim" if is_reduction => {
                    (&mut given.keepdims, ("keepdims", "keepdim"))
                }
                "dtype" if has_dtype => (&mut given.dtype, ("", "")),
                "out" if is_reduction => (&mut given.out, ("", "")),
                other => return Err(unexpected(py, self.public.name, other)),
            };
            if lacks(*slot) {
                *slot = value;
            } else if !lacks(value) {
                let message =
                    format!("got both '{}' and '{}', which mean the same", alike.0, alike.1);
                return Err(self.error(py, &message));
            }
        }
        Ok(given)
    }

    /// Whether the reduced dimensions stay. 0 and 1 are taken, too.
    fn kept(&self, given: &Bound<'_, PyAny>) -> PyResult<bool> {
        if let Ok(keeps) = given.extract::<bool>() {
            return Ok(keeps);
        }
        if let Ok(number @ (0 | 1)) = given.extract::<i64>() {
            return Ok(number == 1);
        }
        let shown = describe_object(given);
        let message = format!("argument 'keepdims' must be True or False, not {shown}");
        Err(self.error(given.py(), &message))
    }

    /// The error for a call on something else, in Python's words for its own methods.
    ///
    /// # Safety
    /// As many live objects as that.
    #[cold]
    unsafe fn not_a_tensor(
        &self,
        py: Python<'_>,
        args: *const *mut ffi::PyObject,
        nargs: usize,
    ) -> PyErr {
        let name = self.public.name;
        let message = match nargs {
            0 => format!("unbound method Tensor.{name}() needs an argument"),
            _ => {
                // SAFETY: as for the caller.
                let given = unsafe { Borrowed::from_ptr(py, *args) };
                let given = describe_object(&given);
                format!("descriptor '{name}' of 'keyfold.Tensor' doesn't apply to {given}")
            }
        };
        PyTypeError::new_err(message)
    }
}

#[pymethods]
impl PyMethod {
    #[pyo3(signature = (*args, **kwargs))]
    fn __call__<'py>(
        &self,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        with_c_arguments(args, kwargs, |all, nargs, names| {
            // SAFETY: live objects held by the tuple and dict; attached.
            unsafe { self.call_c(args.py(), all.as_ptr(), nargs, names) }
        })
    }

    /// The method of a tensor. CPython calls `x.exp()` without it.
    fn __get__<'py>(
        slf: Bound<'py, Self>,
        instance: &Bound<'py, PyAny>,
        _owner: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        match instance.is_none() {
            true => Ok(slf.into_any()),
            false => slf.py().import("types")?.call_method1("MethodType", (&slf, instance)),
        }
    }

    #[getter(__name__)]
    fn name(&self) -> &'static str {
        self.public.name
    }

    #[getter(__qualname__)]
    fn qualified_name(&self) -> String {
        format!("Tensor.{}", self.public.name)
    }

    #[getter(__doc__)]
    fn doc(&self) -> &'static str {
        self.public.doc
    }

    #[getter(__text_signature__)]
    fn text_signature(&self) -> &'static str {
        match self.takes {
            Takes::Nothing => "($self)",
            Takes::Axis => "($self, axis=-1, *, dim=-1)",
            Takes::Reduced { has_dtype: false, .. } => {
                "($self, axis=None, *, keepdims=False, out=None, dim=None, keepdim=False)"
            }
            Takes::Reduced { has_dtype: true, .. } => {
                "($self, axis=None, *, keepdims=False, dtype=None, out=None, dim=None, keepdim=False)"
            }
        }
    }

    /// `getattr(keyfold.Tensor, name)`.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let getattr = py.import("builtins")?.getattr("getattr")?;
        (getattr, (py.get_type::<PyTensor>(), self.public.name)).into_pyobject(py)
    }

    fn __repr__(&self) -> String {
        format!("<method '{}' of 'keyfold.Tensor' objects>", self.public.name)
    }
}

/// Puts the methods on the class. Called once, at import.
pub(crate) fn init(py: Python<'_>) -> PyResult<()> {
    let class = py.get_type::<PyTensor>();
    for method in rows().iter().filter_map(PyMethod::of) {
        let method = Bound::new(py, method)?;
        // SAFETY: the offset is the field's; the module isn't importable yet, so no other thread has the
        // type. `__get__` makes a method of the function and the object, as the flag says.
        #[cfg(not(feature = "abi3"))]
        unsafe {
            enable_method(&method, std::mem::offset_of!(PyMethod, vectorcall));
        }
        class.setattr(method.get().public.name, &method)?;
    }
    Ok(())
}

#[cfg(not(feature = "abi3"))]
impl Vectorcall for PyMethod {
    #[inline(always)]
    unsafe fn call_c_array(
        &self,
        args: *const *mut ffi::PyObject,
        nargs: usize,
        keywords: *mut ffi::PyObject,
    ) -> *mut ffi::PyObject {
        guarded(self.public.name, |py| {
            // SAFETY: as for the caller.
            unsafe { self.call_c(py, args, nargs, keywords).map(Bound::into_ptr) }
        })
    }
}
