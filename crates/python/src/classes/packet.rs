//! `keyfold.ops.ns.name`: all overloads of a name.

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use keyfold_core::{ErrorKind, Result, did_you_mean};
use keyfold_dispatch::{Dispatcher, Operator, Packet, first_that_takes};
use keyfold_tensor::Value;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};

use crate::call::invoke::{self, Computed};
use crate::call::operator::{self, PyOperator};
#[cfg(not(feature = "abi3"))]
use crate::call::panics::guarded;
#[cfg(not(feature = "abi3"))]
use crate::call::vectorcall::{Vectorcall, vectorcall};
use crate::marshal::argument::{Text, wrong_type};
use crate::marshal::describe::describe_object;
use crate::marshal::errors::{IntoPyResult, error, for_caller, to_pyerr};

/// All overloads of an operator: calling it tries them in the order of their definition.
#[pyclass(name = "OperatorPacket", module = "keyfold", frozen, weakref)]
pub(crate) struct PyPacket {
    #[cfg(not(feature = "abi3"))]
    pub(crate) vectorcall: ffi::vectorcallfunc,
    packet: Packet<Value>,
    /// The overload where there is one alone, and the generation that this was true in. The
    /// object is one of `overloads`; both change under the GIL only.
    sole: AtomicPtr<ffi::PyObject>,
    sole_at: AtomicU64,
    overloads: Mutex<Overloads>,
}

/// The overloads as of a generation of the dispatcher's operators.
struct Overloads {
    generation: u64,
    operators: Arc<[Py<PyOperator>]>,
}

impl PyPacket {
    pub(crate) fn new(
        py: Python<'_>,
        dispatcher: &Dispatcher<Value>,
        name: &str,
    ) -> PyResult<Self> {
        let packet = PyPacket {
            #[cfg(not(feature = "abi3"))]
            vectorcall: vectorcall::<Self>,
            packet: dispatcher.packet(name).py(py)?,
            sole: AtomicPtr::new(std::ptr::null_mut()),
            sole_at: AtomicU64::new(u64::MAX),
            overloads: Mutex::new(Overloads { generation: u64::MAX, operators: Arc::new([]) }),
        };
        packet.current(py)?;
        Ok(packet)
    }

    /// The overloads that exist now.
    pub(crate) fn current(&self, py: Python<'_>) -> PyResult<Arc<[Py<PyOperator>]>> {
        let dispatcher = self.packet.dispatcher();
        let generation = dispatcher.generation();
        {
            let known = self.overloads.lock().unwrap_or_else(PoisonError::into_inner);
            if known.generation == generation {
                return Ok(known.operators.clone());
            }
        }
        let operators = objects_of(py, dispatcher, self.packet.name())?;
        let sole = match &operators[..] {
            [only] => only.as_ptr(),
            _ => std::ptr::null_mut(),
        };
        self.sole.store(sole, Ordering::Relaxed);
        self.sole_at.store(generation, Ordering::Release);
        let old = {
            let mut known = self.overloads.lock().unwrap_or_else(PoisonError::into_inner);
            known.generation = generation;
            std::mem::replace(&mut known.operators, operators.clone())
        };
        drop(old);
        Ok(operators)
    }

    /// The only overload, or the default one.
    fn sole<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyOperator>> {
        operator::object_of(py, &*self.packet.sole().py(py)?)
    }

    /// Calls the first overload that takes the arguments.
    ///
    /// # Safety
    /// As for [`invoke::call`].
    pub(crate) unsafe fn call_c(
        &self,
        py: Python<'_>,
        args: *const *mut ffi::PyObject,
        nargs: usize,
        keywords: *mut ffi::PyObject,
    ) -> *mut ffi::PyObject {
        if let Some(only) = self.single() {
            // SAFETY: as for the caller. The packet's reference may be dropped by a change of the
            // operators meanwhile, so this call holds its own.
            unsafe {
                ffi::Py_INCREF(only);
                let object = Borrowed::from_ptr(py, only);
                let operator = object.cast_unchecked::<PyOperator>().get();
                let result = invoke::call(operator, args, nargs, keywords, &Computed);
                ffi::Py_DECREF(only);
                return result;
            }
        }
        // SAFETY: as for the caller.
        match unsafe { self.try_all(py, args, nargs, keywords) } {
            Ok(result) => result,
            Err(error) => {
                error.restore(py);
                std::ptr::null_mut()
            }
        }
    }

    /// The overload, if there is one alone and nothing changed since it was looked up.
    #[inline(always)]
    pub(crate) fn single(&self) -> Option<*mut ffi::PyObject> {
        if self.sole_at.load(Ordering::Acquire) != self.packet.dispatcher().generation() {
            return None;
        }
        let sole = self.sole.load(Ordering::Relaxed);
        (!sole.is_null()).then_some(sole)
    }

    unsafe fn try_all(
        &self,
        py: Python<'_>,
        args: *const *mut ffi::PyObject,
        nargs: usize,
        keywords: *mut ffi::PyObject,
    ) -> PyResult<*mut ffi::PyObject> {
        let all = self.current(py)?;
        if all.is_empty() {
            self.packet.overloads().py(py)?;
        }
        // SAFETY: as for the caller.
        let chosen = unsafe { chosen(py, self.packet.name(), &all, args, nargs, keywords) };
        let chosen = chosen.map_err(|error| for_caller(py, error))?;
        // SAFETY: as for the caller.
        let result = unsafe { invoke::call(chosen.get(), args, nargs, keywords, &Computed) };
        if result.is_null() { Err(PyErr::fetch(py)) } else { Ok(result) }
    }
}

/// The objects of a name's overloads.
pub(crate) fn objects_of(
    py: Python<'_>,
    dispatcher: &Dispatcher<Value>,
    name: &str,
) -> PyResult<Arc<[Py<PyOperator>]>> {
    let overloads = dispatcher.overloads(name);
    overloads.iter().map(|o| Ok(operator::object_of(py, o)?.unbind())).collect()
}

/// The first overload that takes the arguments of a call, as CPython passes them.
///
/// # Safety
/// As for [`invoke::call`].
pub(crate) unsafe fn chosen<'o>(
    py: Python<'_>,
    name: &str,
    overloads: &'o [Py<PyOperator>],
    args: *const *mut ffi::PyObject,
    nargs: usize,
    keywords: *mut ffi::PyObject,
) -> Result<&'o Py<PyOperator>> {
    first_that_takes(
        name,
        overloads,
        |overload| overload.get().operator.schema(),
        // SAFETY: as for the caller.
        |overload| unsafe { overload.get().accepts(args, nargs, keywords) },
        || {
            // SAFETY: null or a live tuple of the keywords' names, by the contract.
            let names = unsafe { Bound::from_borrowed_ptr_or_opt(py, keywords) };
            names.and_then(|names| names.extract().ok()).unwrap_or_default()
        },
    )
}

#[pymethods]
impl PyPacket {
    #[pyo3(signature = (*args, **kwargs))]
    fn __call__<'py>(
        &self,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = args.py();
        operator::with_c_arguments(args, kwargs, |all, nargs, names| {
            // SAFETY: live objects held by the tuple and dict; attached.
            let result = unsafe { self.call_c(py, all.as_ptr(), nargs, names) };
            // SAFETY: a new reference, or null with an exception set.
            unsafe { Bound::from_owned_ptr_or_err(py, result) }
        })
    }

    /// The name without an overload: `ns::name`.
    #[getter]
    fn name(&self) -> &str {
        self.packet.name()
    }

    /// The overloads' names, in the order of their definition.
    fn overloads(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let all = self.current(py)?;
        let name = |o: &Py<PyOperator>| match &*o.get().operator.schema().name.overload {
            "" => "default".to_owned(),
            name => name.to_owned(),
        };
        Ok(all.iter().map(name).collect())
    }

    /// The overload of that name, or an attribute of the only (or default) overload.
    fn __getattr__<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        let all = self.current(py)?;
        let wanted = if name == "default" { "" } else { name };
        let found = all.iter().find(|o| o.get().operator.schema().name.overload == wanted);
        if let Some(found) = found {
            return Ok(found.bind(py).clone().into_any());
        }
        let attributes = [
            "call_direct",
            "fallthrough",
            "has_kernel",
            "kernels",
            "redispatch",
            "removed",
            "schema",
            "shadow_stacks",
            "table",
        ];
        if attributes.contains(&name) {
            return self.sole(py)?.getattr(name);
        }
        if all.is_empty() {
            self.packet.overloads().py(py)?;
        }
        let own = self.packet.name();
        let method = did_you_mean(name, attributes);
        if !method.is_empty() {
            let message = format!("{own} has no attribute '{name}'{method}");
            return Err(error(py, ErrorKind::UnknownOperator, message));
        }
        // The dispatcher words the error, with the overloads.
        Err(match self.packet.dispatcher().operator(&format!("{own}.{name}")) {
            Err(failed) if !name.starts_with("__") => to_pyerr(py, failed),
            _ => {
                let message = format!("{own} has no overload {name:?}");
                error(py, ErrorKind::UnknownOperator, message)
            }
        })
    }

    fn __dir__(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let mut names = self.overloads(py)?;
        names.extend(["name", "overloads", "schema", "kernels", "table"].map(String::from));
        Ok(names)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("<OperatorPacket {} ({})>", self.packet.name(), self.overloads(py)?.join(", ")))
    }
}

/// The operator of a name. Where there is none, installed packages that offer its namespace are loaded
/// first; an isolated dispatcher has nothing of theirs.
pub(crate) fn named(
    py: Python<'_>,
    dispatcher: &Dispatcher<Value>,
    name: &str,
) -> PyResult<Arc<Operator<Value>>> {
    match dispatcher.operator(name) {
        Err(error)
            if error.kind() == ErrorKind::UnknownOperator && !dispatcher.takes_plain_names() =>
        {
            let provide = py.import("keyfold._entry_points")?.getattr("provide")?;
            if provide.call1((name,))?.is_truthy()? {
                dispatcher.operator(name).py(py)
            } else {
                Err(to_pyerr(py, error))
            }
        }
        found => found.py(py),
    }
}

/// The overload that a person means by an operator: an object, or a name in the dispatcher.
pub(crate) fn operator_from<'py>(
    dispatcher: &Dispatcher<Value>,
    given: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyOperator>> {
    let py = given.py();
    if let Ok(operator) = given.cast::<PyOperator>() {
        return Ok(operator.clone());
    }
    if let Ok(packet) = given.cast::<PyPacket>() {
        return packet.get().sole(py);
    }
    // An operator that `custom_op` made.
    if let Ok(held) = given.getattr("operator")
        && let Ok(operator) = held.cast_into::<PyOperator>()
    {
        return Ok(operator);
    }
    if given.is_instance_of::<PyString>() {
        let name = given.extract::<Text>()?;
        return operator::object_of(py, &*named(py, dispatcher, &name)?);
    }
    // A function of the package.
    if let Ok(held) = given.getattr("operators")
        && let Ok(operators) = held.extract::<Vec<Bound<'py, PyOperator>>>()
    {
        return only(given, operators);
    }
    Err(wrong_type(format!(
        "an operator is given as its object or its name \"ns::name\", not {}",
        describe_object(given)
    )))
}

/// The operator of a function that calls only one.
fn only<'py>(
    function: &Bound<'py, PyAny>,
    mut operators: Vec<Bound<'py, PyOperator>>,
) -> PyResult<Bound<'py, PyOperator>> {
    if operators.len() == 1 {
        return Ok(operators.remove(0));
    }
    let mut names: Vec<&str> = operators.iter().map(|each| each.get().operator.name()).collect();
    names.dedup();
    let function = function.getattr("__name__")?.extract::<Text>()?;
    Err(wrong_type(format!(
        "keyfold.{} stands for several operators, by its arguments: {}; give the name of one",
        &*function,
        names.join(", ")
    )))
}

/// The overload for these arguments: the one named, or the first of the packet that takes them.
pub(crate) fn overload_for<'py>(
    dispatcher: &Dispatcher<Value>,
    given: &Bound<'py, PyAny>,
    args: &Bound<'py, PyTuple>,
    kwargs: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyOperator>> {
    let py = given.py();
    let candidates = match (given.cast::<PyPacket>(), given.extract::<String>()) {
        (Ok(packet), _) => packet.get().current(py)?,
        (_, Ok(name))
            if dispatcher.operator(&name).is_err() || !dispatcher.overloads(&name).is_empty() =>
        {
            objects_of(py, dispatcher, &name)?
        }
        _ => Arc::new([]),
    };
    let [first, _, ..] = &candidates[..] else {
        // The only overload words the error where it is called.
        return operator_from(dispatcher, given);
    };
    let name = first.get().operator.schema().name.qualified();
    let found = operator::with_c_arguments(args, kwargs, |all, nargs, names| {
        // SAFETY: live objects held by the tuple and dict; attached.
        Ok(unsafe { chosen(py, &name, &candidates, all.as_ptr(), nargs, names) })
    })?;
    Ok(found.map_err(|error| for_caller(py, error))?.bind(py).clone())
}

#[cfg(not(feature = "abi3"))]
impl Vectorcall for PyPacket {
    #[inline(always)]
    unsafe fn call_c_array(
        &self,
        args: *const *mut ffi::PyObject,
        nargs: usize,
        keywords: *mut ffi::PyObject,
    ) -> *mut ffi::PyObject {
        // SAFETY: as for the caller.
        guarded("OperatorPacket", |py| Ok(unsafe { self.call_c(py, args, nargs, keywords) }))
    }
}
