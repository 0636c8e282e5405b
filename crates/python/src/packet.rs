//! `keyfold.ops.ns.name`: all overloads of a name.

use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use keyfold_core::{Error, ErrorKind, did_you_mean};
use keyfold_dispatch::{DispatchKeySet, Dispatcher, Operator};
use keyfold_tensor::Value;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};

use crate::argument::{Text, wrong_type};
use crate::call::{self, Computed, Given};
use crate::errors::{IntoPyResult, for_caller, to_pyerr};
use crate::operator::{self, PyOperator};
use crate::refusal;

/// All overloads of an operator: calling it tries them in the order of their definition.
#[pyclass(name = "OperatorPacket", module = "keyfold", frozen, weakref)]
pub(crate) struct PyPacket {
    #[cfg(not(feature = "abi3"))]
    pub(crate) vectorcall: ffi::vectorcallfunc,
    dispatcher: Dispatcher<Value>,
    name: String,
    /// The overload where there is one alone, and the generation that this was true in. The
    /// object is one of `overloads`; both change under the GIL only.
    sole: AtomicPtr<ffi::PyObject>,
    sole_at: AtomicU64,
    overloads: Mutex<Overloads>,
}

/// The overloads as of a generation of the dispatcher's operators.
struct Overloads {
    generation: u64,
    operators: Vec<Py<PyOperator>>,
}

impl PyPacket {
    pub(crate) fn new(
        py: Python<'_>,
        dispatcher: &Dispatcher<Value>,
        name: &str,
    ) -> PyResult<Self> {
        let packet = PyPacket {
            #[cfg(not(feature = "abi3"))]
            vectorcall: crate::vectorcall::packet_call,
            dispatcher: dispatcher.clone(),
            name: name.to_owned(),
            sole: AtomicPtr::new(std::ptr::null_mut()),
            sole_at: AtomicU64::new(u64::MAX),
            overloads: Mutex::new(Overloads { generation: u64::MAX, operators: Vec::new() }),
        };
        packet.current(py)?;
        Ok(packet)
    }

    /// The overloads that exist now.
    fn current(&self, py: Python<'_>) -> PyResult<Vec<Py<PyOperator>>> {
        let generation = self.dispatcher.generation();
        {
            let known = self.overloads.lock().unwrap_or_else(PoisonError::into_inner);
            if known.generation == generation {
                return Ok(known.operators.iter().map(|o| o.clone_ref(py)).collect());
            }
        }
        let mut operators = Vec::new();
        for operator in self.dispatcher.overloads(&self.name) {
            operators.push(operator::object_of(py, &operator)?.unbind());
        }
        let copy = operators.iter().map(|o| o.clone_ref(py)).collect();
        let sole = match &operators[..] {
            [only] => only.as_ptr(),
            _ => std::ptr::null_mut(),
        };
        self.sole.store(sole, Ordering::Relaxed);
        self.sole_at.store(generation, Ordering::Release);
        let old = {
            let mut known = self.overloads.lock().unwrap_or_else(PoisonError::into_inner);
            known.generation = generation;
            std::mem::replace(&mut known.operators, operators)
        };
        drop(old);
        Ok(copy)
    }

    fn removed(&self, py: Python<'_>) -> PyErr {
        let message = format!("{} was removed; define it again and fetch it anew", self.name);
        to_pyerr(py, keyfold_core::Error::new(keyfold_core::ErrorKind::OperatorRemoved, message))
    }

    /// The only overload, or the default one.
    fn sole(&self, py: Python<'_>) -> PyResult<Py<PyOperator>> {
        let all = self.current(py)?;
        let default = all.iter().find(|o| o.get().operator.schema().name.overload.is_empty());
        match (default, &all[..]) {
            (Some(default), _) => Ok(default.clone_ref(py)),
            (None, [only]) => Ok(only.clone_ref(py)),
            (None, []) => Err(self.removed(py)),
            (None, many) => {
                let names: Vec<_> = many.iter().map(|o| o.get().operator.name()).collect();
                let message = format!(
                    "{} has several overloads and no default one; say which: {}",
                    self.name,
                    names.join(", ")
                );
                Err(to_pyerr(py, Error::new(ErrorKind::UnknownOperator, message)))
            }
        }
    }

    /// Calls the first overload that takes the arguments.
    ///
    /// # Safety
    /// As for [`call::call`].
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
                let result = call::call(operator, args, nargs, keywords, &Computed);
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
    fn single(&self) -> Option<*mut ffi::PyObject> {
        if self.sole_at.load(Ordering::Acquire) != self.dispatcher.generation() {
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
            return Err(self.removed(py));
        }
        let mut tried = Vec::new();
        for operator in &all {
            let object = operator.get();
            // SAFETY: as for the caller.
            match unsafe { object.accepts(args, nargs, keywords) } {
                Ok(()) => {
                    // SAFETY: as for the caller.
                    let result = unsafe { call::call(object, args, nargs, keywords, &Computed) };
                    if result.is_null() {
                        return Err(PyErr::fetch(py));
                    }
                    return Ok(result);
                }
                // An array that can't be taken is no better for another overload.
                Err(error) if is_about_an_array(&error) => return Err(for_caller(py, error)),
                Err(error) => tried.push((operator.bind(py), error)),
            }
        }
        // SAFETY: null or a live tuple of the keywords' names, by the contract.
        let names = unsafe { Bound::from_borrowed_ptr_or_opt(py, keywords) };
        let names = names.and_then(|names| names.extract::<Vec<String>>().ok()).unwrap_or_default();
        Err(for_caller(py, refusal::no_overload(&self.name, tried, &names)))
    }
}

/// Whether the error is what an array raised, or why it is refused, and not that it doesn't fit.
fn is_about_an_array(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Foreign
            | ErrorKind::DType
            | ErrorKind::Device
            | ErrorKind::Exchange
            | ErrorKind::Gradient
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
        &self.name
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
            return self.sole(py)?.bind(py).getattr(name);
        }
        if all.is_empty() {
            return Err(self.removed(py));
        }
        let method = did_you_mean(name, attributes);
        if !method.is_empty() {
            let message = format!("{} has no attribute '{name}'{method}", self.name);
            return Err(to_pyerr(py, Error::new(ErrorKind::UnknownOperator, message)));
        }
        // The dispatcher words the error, with the overloads.
        let full = format!("{}.{name}", self.name);
        Err(match self.dispatcher.operator(&full) {
            Err(error) if !name.starts_with("__") => to_pyerr(py, error),
            _ => {
                let message = format!("{} has no overload {name:?}", self.name);
                to_pyerr(py, Error::new(ErrorKind::UnknownOperator, message))
            }
        })
    }

    fn __dir__(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let mut names = self.overloads(py)?;
        names.extend(["name", "overloads", "schema", "kernels", "table"].map(String::from));
        Ok(names)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("<OperatorPacket {} ({})>", self.name, self.overloads(py)?.join(", ")))
    }
}

/// The operator of a name. Where there is none, installed packages that offer its namespace are loaded
/// first; an isolated dispatcher has nothing of theirs.
fn named(
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
        return Ok(packet.get().sole(py)?.into_bound(py));
    }
    // What `custom_op` makes.
    if let Ok(held) = given.getattr("operator")
        && let Ok(operator) = held.cast_into::<PyOperator>()
    {
        return Ok(operator);
    }
    if given.is_instance_of::<PyString>() {
        let name = given.extract::<Text>()?;
        return operator::object_of(py, &*named(py, dispatcher, &name)?);
    }
    Err(wrong_type(format!(
        "an operator is given as its object or its name \"ns::name\", not {}",
        crate::foreign::describe_object(given)
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
            let mut all = Vec::new();
            for operator in dispatcher.overloads(&name) {
                all.push(operator::object_of(py, &operator)?.unbind());
            }
            all
        }
        _ => Vec::new(),
    };
    let mut tried = Vec::new();
    for operator in &candidates {
        let fits = operator::with_c_arguments(args, kwargs, |all, nargs, names| {
            // SAFETY: live objects held by the tuple and dict; attached.
            Ok(unsafe { operator.get().accepts(all.as_ptr(), nargs, names) })
        })?;
        match fits {
            Ok(()) => return Ok(operator.bind(py).clone()),
            Err(error) if is_about_an_array(&error) => return Err(for_caller(py, error)),
            Err(error) => tried.push((operator.bind(py), error)),
        }
    }
    match &candidates[..] {
        // The only overload words the error where it is called.
        [] | [_] => operator_from(dispatcher, given),
        [first, ..] => {
            let keywords: Vec<String> = match kwargs {
                Some(kwargs) => kwargs.keys().extract()?,
                None => Vec::new(),
            };
            let name = first.get().operator.schema().name.qualified();
            Err(for_caller(py, refusal::no_overload(&name, tried, &keywords)))
        }
    }
}

/// Whether a kernel of an isolated dispatcher ever ran: before that, names mean the process's own.
static ISOLATED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The dispatcher of the innermost running Python kernel, if it is an isolated one.
    /// Without a destructor: kernels that run while a thread ends put back what was there before
    /// them, which is none.
    static CURRENT: RefCell<ManuallyDrop<Option<Dispatcher<Value>>>> =
        const { RefCell::new(ManuallyDrop::new(None)) };
}

/// Names mean another dispatcher's operators until this is dropped.
pub(crate) struct DispatcherGuard(Option<Dispatcher<Value>>);

impl Drop for DispatcherGuard {
    fn drop(&mut self) {
        drop(set_current(self.0.take()));
    }
}

/// Makes names mean the operators of this operator's dispatcher, so that a redispatch by name
/// inside a kernel stays in it.
#[inline(always)]
pub(crate) fn enter_dispatcher(operator: &Operator<Value>) -> Option<DispatcherGuard> {
    let isolated = operator.is_isolated();
    (isolated || ISOLATED.load(Ordering::Relaxed)).then(|| enter_slowly(operator, isolated))
}

#[cold]
fn enter_slowly(operator: &Operator<Value>, isolated: bool) -> DispatcherGuard {
    ISOLATED.store(true, Ordering::Relaxed);
    let now = if isolated { operator.dispatcher() } else { None };
    DispatcherGuard(set_current(now))
}

fn set_current(now: Option<Dispatcher<Value>>) -> Option<Dispatcher<Value>> {
    CURRENT.with_borrow_mut(|current| std::mem::replace(&mut **current, now))
}

/// The dispatcher in which a name is looked up.
fn dispatcher_of_names() -> Dispatcher<Value> {
    CURRENT
        .with_borrow(|current| (**current).clone())
        .unwrap_or_else(|| keyfold::dispatcher().clone())
}

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
    if ISOLATED.load(Ordering::Relaxed)
        && let Some(isolated) = CURRENT.with_borrow(|current| Option::clone(current))
    {
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
/// As for [`call::call`].
pub(crate) unsafe fn redispatch_c(
    py: Python<'_>,
    op: &Bound<'_, PyAny>,
    keyset: DispatchKeySet,
    args: *const *mut ffi::PyObject,
    nargs: usize,
    keywords: *mut ffi::PyObject,
) -> PyResult<*mut ffi::PyObject> {
    let given = Given(keyset);
    let known = match op.cast::<PyString>() {
        Ok(name) => by_name(py, name)?,
        Err(_) => match op.cast::<PyPacket>() {
            Ok(packet) => packet.get().single().map(|only| {
                // SAFETY: the packet's own operator object, alive while the packet is.
                unsafe { Bound::from_borrowed_ptr(py, only).cast_into_unchecked::<PyOperator>() }
            }),
            Err(_) => Some(operator_from(&dispatcher_of_names(), op)?),
        },
    };
    if let Some(operator) = known {
        // SAFETY: as for the caller.
        return Ok(unsafe { call::call(operator.get(), args, nargs, keywords, &given) });
    }
    let candidates = match op.cast::<PyPacket>() {
        Ok(packet) => packet.get().current(py)?,
        Err(_) => {
            let name = op.extract::<String>()?;
            let mut all = Vec::new();
            for operator in dispatcher_of_names().overloads(&name) {
                all.push(operator::object_of(py, &operator)?.unbind());
            }
            all
        }
    };
    for operator in &candidates {
        // SAFETY: as for the caller.
        unsafe {
            if operator.get().accepts(args, nargs, keywords).is_ok() {
                return Ok(call::call(operator.get(), args, nargs, keywords, &given));
            }
        }
    }
    let operator = operator_from(&dispatcher_of_names(), op)?;
    // SAFETY: as for the caller. The call words the error.
    Ok(unsafe { call::call(operator.get(), args, nargs, keywords, &given) })
}
