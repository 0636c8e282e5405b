//! `keyfold.redispatch`: an operator, which may be given by its name, and a key set taken as given.

use std::sync::{Mutex, PoisonError};

use keyfold_dispatch::DispatchKeySet;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};

use crate::call::current::{dispatcher_of_names, isolated};
use crate::call::invoke::{self, Redispatch};
use crate::call::operator::{self, PyOperator};
use crate::classes::function::{self, PyFunction};
use crate::classes::packet::{PyPacket, chosen, named, objects_of, operator_from};
use crate::marshal::errors::IntoPyResult;

struct CachedName {
    name: Py<PyString>,
    generation: u64,
    operator: Py<PyOperator>,
}

const CACHED_NAMES: usize = 64;

/// Operators that were redispatched to by name, by the address of the name's object. Each entry
/// holds its objects, so an address stands for one name as long as it is there.
static NAMES: Mutex<[Option<CachedName>; CACHED_NAMES]> =
    Mutex::new([const { None }; CACHED_NAMES]);

/// The operator of a name in the process's dispatcher, by the identity of the string where it
/// was seen before: a literal in a layer's source is one object.
fn by_name<'py>(
    py: Python<'py>,
    name: &Bound<'py, PyString>,
) -> PyResult<Option<Bound<'py, PyOperator>>> {
    if let Some(isolated) = isolated() {
        let text = name.to_string_lossy();
        if isolated.overloads(&text).len() > 1 {
            return Ok(None);
        }
        return operator::object_of(py, &*isolated.operator(&text).py(py)?).map(Some);
    }
    let dispatcher = keyfold::dispatcher();
    let generation = dispatcher.generation();
    let at = (name.as_ptr() as usize >> 4) % CACHED_NAMES;
    {
        let names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cached) = &names[at]
            && cached.name.as_ptr() == name.as_ptr()
            && cached.generation == generation
        {
            return Ok(Some(cached.operator.bind(py).clone()));
        }
    }
    let text = name.to_string_lossy();
    // With several overloads the arguments decide.
    if dispatcher.overloads(&text).len() > 1 {
        return Ok(None);
    }
    let operator = operator::object_of(py, &*named(py, dispatcher, &text)?)?;
    let entry =
        CachedName { name: name.clone().unbind(), generation, operator: operator.clone().unbind() };
    let old = {
        let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
        names[at].replace(entry)
    };
    drop(old);
    Ok(Some(operator))
}

/// Redispatches with a C array of arguments. The operator is an object or a name.
///
/// # Safety
/// As for [`invoke::call`].
pub(crate) unsafe fn redispatch(
    py: Python<'_>,
    op: &Bound<'_, PyAny>,
    keyset: DispatchKeySet,
    args: *const *mut ffi::PyObject,
    nargs: usize,
    keywords: *mut ffi::PyObject,
) -> PyResult<*mut ffi::PyObject> {
    let given = Redispatch(keyset);
    let known = match op.cast::<PyString>() {
        Ok(name) => by_name(py, name)?,
        Err(_) => match op.cast::<PyPacket>() {
            Ok(packet) => packet.get().single().map(|only| {
                // SAFETY: the packet's own operator object, alive while the packet is.
                unsafe { Bound::from_borrowed_ptr(py, only).cast_into_unchecked::<PyOperator>() }
            }),
            Err(_) if op.is_instance_of::<PyFunction>() => {
                // SAFETY: as for the caller.
                return unsafe { of_function(py, op, &given, args, nargs, keywords) };
            }
            Err(_) => Some(operator_from(&dispatcher_of_names(), op)?),
        },
    };
    if let Some(operator) = known {
        // SAFETY: as for the caller.
        return Ok(unsafe { invoke::call(operator.get(), args, nargs, keywords, &given) });
    }
    let names = dispatcher_of_names();
    let candidates = match op.cast::<PyPacket>() {
        Ok(packet) => packet.get().current(py)?,
        Err(_) => objects_of(py, &names, &op.extract::<String>()?)?,
    };
    // SAFETY: as for the caller.
    let fitting = unsafe { chosen(py, "", &candidates, args, nargs, keywords) };
    let operator = match fitting {
        Ok(fitting) => fitting.bind(py).clone(),
        // The call words the error.
        Err(_) => operator_from(&names, op)?,
    };
    // SAFETY: as for the caller.
    Ok(unsafe { invoke::call(operator.get(), args, nargs, keywords, &given) })
}

/// Redispatches the operator that a function of the package calls for these arguments.
///
/// # Safety
/// As for [`invoke::call`].
#[cold]
unsafe fn of_function(
    py: Python<'_>,
    function: &Bound<'_, PyAny>,
    given: &Redispatch,
    args: *const *mut ffi::PyObject,
    nargs: usize,
    keywords: *mut ffi::PyObject,
) -> PyResult<*mut ffi::PyObject> {
    // SAFETY: as many live objects as that: those by position, then one for each name.
    let object = |at: usize| unsafe { Bound::from_borrowed_ptr(py, *args.add(at)) };
    // SAFETY: null or a live tuple of the keywords' names, by the contract.
    let names = unsafe { Bound::from_borrowed_ptr_or_opt(py, keywords) };
    let names = names.map(|names| names.cast_into::<PyTuple>()).transpose()?;
    let by_name = PyDict::new(py);
    for (at, name) in names.iter().flatten().enumerate() {
        by_name.set_item(name, object(nargs + at))?;
    }
    let args = PyTuple::new(py, (0..nargs).map(object))?;
    let (operator, args, by_name) =
        function::resolved(&dispatcher_of_names(), function, &args, Some(&by_name))?;
    Ok(operator.get().call_with(&args, by_name.as_ref(), given)?.into_ptr())
}
