//! The call path from Python: bind, look at the arguments, select, call, finish.
//!
//! Everything here works on borrowed references, in the order of the caller's
//! arguments, and allocates nothing for a call that gives every argument by
//! position to a Python kernel.

use std::panic::{AssertUnwindSafe, catch_unwind};

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::{CallContext, DispatchKeySet, Kernel, Tag};
use keyfold_tensor::Value;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::call::finish::finish;
#[cfg(not(feature = "abi3"))]
use crate::call::operator::OPERATOR_CALL;
use crate::call::operator::{PyOperator, with_c_arguments};
use crate::call::panics::panic_error;
#[cfg(not(feature = "abi3"))]
use crate::call::vectorcall::{Vectorcall, vectorcall};
use crate::call::{context, homes, native, pykernel};
use crate::marshal::arrays::caller::Caller;
use crate::marshal::attach::reattach;
use crate::marshal::errors::{IntoPyResult, for_caller, from_pyerr};

/// Parameters that are bound without an allocation.
const INLINE: usize = 12;

/// How to choose the kernel, once the arguments are known.
pub(crate) trait Choose: Copy {
    /// Runs `call` with the kernel for a call whose arguments bring `tag`.
    fn choose<R>(
        &self,
        operator: &PyOperator,
        tag: Tag,
        call: impl FnOnce(&CallContext<'_, Value>, &Kernel<Value>) -> Result<R>,
    ) -> Result<R>;

    /// Whether the arguments' devices must agree: where the set comes from them.
    const CHECKS_DEVICES: bool;

    /// The exception for an error of the call.
    fn exception(&self, py: Python<'_>, error: Error) -> PyErr {
        for_caller(py, error)
    }
}

/// An ordinary call.
#[derive(Clone, Copy)]
pub(crate) struct Computed;

impl Choose for Computed {
    const CHECKS_DEVICES: bool = true;

    #[inline(always)]
    fn choose<R>(
        &self,
        operator: &PyOperator,
        tag: Tag,
        call: impl FnOnce(&CallContext<'_, Value>, &Kernel<Value>) -> Result<R>,
    ) -> Result<R> {
        if context::in_use() {
            return choose_in_context(operator, tag, call);
        }
        operator.operator.call_with(tag.keys(), call)
    }
}

/// The choice with the local keys of Python's context among the thread's.
#[inline(never)]
fn choose_in_context<R>(
    operator: &PyOperator,
    tag: Tag,
    call: impl FnOnce(&CallContext<'_, Value>, &Kernel<Value>) -> Result<R>,
) -> Result<R> {
    // SAFETY: calls hold the GIL.
    let py = unsafe { Python::assume_attached() };
    match context::ambient(py) {
        Ok(Some(context)) => {
            let engine = &operator.operator;
            let result = engine.call_within(tag.keys(), context.include(), context.exclude(), call);
            match &result {
                Err(error) if error.kind() == ErrorKind::EmptyKeySet => {
                    // Worded anew where the context's keys are known, if it is this call's.
                    let again = || engine.call_with(tag.keys(), |_, _| Ok(()));
                    match context.apply(|| {
                        if engine.keyset_of(tag.keys()).is_empty() { again() } else { Ok(()) }
                    }) {
                        Err(worded) => Err(worded),
                        Ok(()) => result,
                    }
                }
                _ => result,
            }
        }
        Ok(None) => operator.operator.call_with(tag.keys(), call),
        Err(error) => Err(from_pyerr(error)),
    }
}

/// A redispatch with a set taken as given.
#[derive(Clone, Copy)]
pub(crate) struct Redispatch(pub(crate) DispatchKeySet);

impl Choose for Redispatch {
    const CHECKS_DEVICES: bool = false;

    #[inline(always)]
    fn choose<R>(
        &self,
        operator: &PyOperator,
        _tag: Tag,
        call: impl FnOnce(&CallContext<'_, Value>, &Kernel<Value>) -> Result<R>,
    ) -> Result<R> {
        operator.operator.redispatch_with(self.0, call)
    }
}

/// Notes what operator objects are called by.
pub(crate) fn init() {
    #[cfg(not(feature = "abi3"))]
    let _ = OPERATOR_CALL.set(vectorcall::<PyOperator>);
}

#[cfg(not(feature = "abi3"))]
impl Vectorcall for PyOperator {
    #[inline(always)]
    unsafe fn call_c_array(
        &self,
        args: *const *mut ffi::PyObject,
        nargs: usize,
        keywords: *mut ffi::PyObject,
    ) -> *mut ffi::PyObject {
        // SAFETY: as for the caller.
        unsafe { call(self, args, nargs, keywords, &Computed) }
    }
}

/// Calls an operator with a C array of arguments: positional ones, then those that `keywords`
/// names. Gives a new reference, or null with an exception set.
///
/// # Safety
/// `args` has as many live objects as `nargs` plus the names; `keywords` is null or a tuple of
/// strings; the GIL is held.
#[inline(always)]
pub(crate) unsafe fn call<C: Choose>(
    operator: &PyOperator,
    args: *const *mut ffi::PyObject,
    nargs: usize,
    keywords: *mut ffi::PyObject,
    choose: &C,
) -> *mut ffi::PyObject {
    let request = Request { args, operator, nargs, keywords, choose: *choose };
    // SAFETY: as for the caller.
    outcome(operator, choose, || unsafe { call_inner(&request) })
}

/// Calls an operator with all its arguments in the order of its schema.
///
/// # Safety
/// As many live objects as the operator has arguments; the GIL is held.
pub(crate) unsafe fn call_in_order<C: Choose>(
    operator: &PyOperator,
    objects: &mut [*mut ffi::PyObject],
    choose: &C,
) -> *mut ffi::PyObject {
    // SAFETY: as for the caller.
    outcome(operator, choose, || unsafe {
        if operator.params.adapts(objects) {
            return adapt_and_call(operator, objects, *choose);
        }
        with_bound(operator, objects, *choose)
    })
}

/// The result of a call for CPython: a new reference, or null with an exception set, for panics too.
#[inline(always)]
pub(crate) fn outcome<C: Choose>(
    operator: &PyOperator,
    choose: &C,
    run: impl FnOnce() -> Result<*mut ffi::PyObject>,
) -> *mut ffi::PyObject {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(object)) => object,
        Ok(Err(error)) => raise(choose, error),
        Err(panic) => raise(choose, panic_error(operator.operator.name(), &*panic)),
    }
}

/// A call as CPython hands it over. Closures on the call path capture one reference to it (and to
/// [`Bound`]): several captured values would be copied, by loads that wait for fresh stores.
#[repr(C)]
struct Request<'a, C> {
    // The order keeps words apart that are read together but written one by one: a wide load of two fresh
    // stores waits.
    args: *const *mut ffi::PyObject,
    operator: &'a PyOperator,
    nargs: usize,
    keywords: *mut ffi::PyObject,
    choose: C,
}

/// A call whose arguments are in declaration order, defaults filled in, and were looked at.
#[repr(C)]
struct BoundCall<'a, C> {
    objects: &'a [*mut ffi::PyObject],
    tag: Tag,
    operator: &'a PyOperator,
    caller: Caller,
    choose: C,
}

#[cold]
#[inline(never)]
fn raise<C: Choose>(choose: &C, error: Error) -> *mut ffi::PyObject {
    reattach(|py| choose.exception(py, error).restore(py));
    std::ptr::null_mut()
}

#[inline(always)]
unsafe fn call_inner<C: Choose>(request: &Request<'_, C>) -> Result<*mut ffi::PyObject> {
    let Request { operator, args, nargs, keywords, choose } = *request;
    if keywords.is_null() && nargs == operator.params.as_given {
        // SAFETY: as many objects as that, one live object per parameter.
        return unsafe { with_bound(operator, std::slice::from_raw_parts(args, nargs), choose) };
    }
    // SAFETY: as for the caller.
    unsafe { bind_and_call(request) }
}

#[inline(never)]
unsafe fn bind_and_call<C: Choose>(request: &Request<'_, C>) -> Result<*mut ffi::PyObject> {
    let Request { operator, args, nargs, keywords, choose } = *request;
    let count = operator.params.all.len();
    let given = match keywords.is_null() {
        true => nargs,
        // SAFETY: a tuple, by the contract.
        false => nargs + unsafe { ffi::PyTuple_Size(keywords) as usize },
    };
    let args: &[*mut ffi::PyObject] = if given == 0 {
        &[]
    } else {
        // SAFETY: as many objects as that, by the contract.
        unsafe { std::slice::from_raw_parts(args, given) }
    };
    // Every argument by position; some may have to be adapted before kernels see them.
    if keywords.is_null() && nargs == count && count == operator.params.positional {
        // SAFETY: one live object per parameter.
        unsafe {
            if !operator.params.adapts(args) {
                return with_bound(operator, args, choose);
            }
        }
    }
    let mut inline = [std::ptr::null_mut(); INLINE];
    let mut heap = Vec::new();
    let slots = if count <= INLINE {
        &mut inline[..count]
    } else {
        heap.resize(count, std::ptr::null_mut());
        &mut heap[..]
    };
    // SAFETY: as for the caller; defaults live as long as the operator object, which is held.
    unsafe {
        operator.params.bind(&operator.operator, args, keywords, slots)?;
        if operator.params.adapts(slots) {
            return adapt_and_call(operator, slots, choose);
        }
        with_bound(operator, slots, choose)
    }
}

/// As [`with_bound`], after what is given was replaced by what kernels get.
#[cold]
#[inline(never)]
unsafe fn adapt_and_call<C: Choose>(
    operator: &PyOperator,
    slots: &mut [*mut ffi::PyObject],
    choose: C,
) -> Result<*mut ffi::PyObject> {
    // SAFETY: as for the caller; the new objects are held until after the call.
    unsafe {
        let _adapted = operator.params.adapt(slots)?;
        with_bound(operator, slots, choose)
    }
}

#[inline(always)]
unsafe fn with_bound<C: Choose>(
    operator: &PyOperator,
    objects: &[*mut ffi::PyObject],
    choose: C,
) -> Result<*mut ffi::PyObject> {
    // SAFETY: one live object per parameter, the GIL held, by the contract.
    let (tag, caller) = unsafe { operator.params.inspect(&operator.operator, objects) }?;
    if C::CHECKS_DEVICES && caller.may_clash() {
        homes::check(operator, objects, caller)?;
    }
    if C::CHECKS_DEVICES && tag.is_mixed() {
        check_devices(operator, objects)?;
    }
    let bound = BoundCall { operator, objects, tag, caller, choose };
    // SAFETY: as above.
    unsafe { select_and_run(&bound) }
}

#[inline(always)]
unsafe fn select_and_run<C: Choose>(bound: &BoundCall<'_, C>) -> Result<*mut ffi::PyObject> {
    bound.choose.choose(bound.operator, bound.tag, |context, kernel| {
        // SAFETY: as for the caller.
        unsafe { run(bound, context, kernel) }
    })
}

#[inline(always)]
unsafe fn run<C: Choose>(
    bound: &BoundCall<'_, C>,
    context: &CallContext<'_, Value>,
    kernel: &Kernel<Value>,
) -> Result<*mut ffi::PyObject> {
    let BoundCall { operator, objects, caller, .. } = *bound;
    // SAFETY: as for the caller.
    unsafe {
        match pykernel::find(kernel) {
            Some(python) => {
                let result = python.call_objects(context, &operator.params, objects)?;
                finish(operator.returns_tensor, context, kernel, result, objects, caller)
            }
            None if context::in_use() => {
                in_context(|| native::call(context, kernel, &operator.params, objects, caller))
            }
            None => native::call(context, kernel, &operator.params, objects, caller),
        }
    }
}

/// A native kernel, with the local keys of Python's context for the calls that it makes: a Python
/// kernel's own calls look at the context themselves.
#[inline(never)]
pub(crate) fn in_context(
    run: impl FnOnce() -> Result<*mut ffi::PyObject>,
) -> Result<*mut ffi::PyObject> {
    // SAFETY: calls hold the GIL.
    let py = unsafe { Python::assume_attached() };
    match context::ambient(py) {
        Ok(Some(context)) => context.apply(run),
        Ok(None) => run(),
        Err(error) => Err(from_pyerr(error)),
    }
}

/// The devices of bound arguments against the operator's policy.
#[cold]
fn check_devices(operator: &PyOperator, objects: &[*mut ffi::PyObject]) -> Result<()> {
    reattach(|py| {
        native::with_values(py, &operator.params, objects, |args| {
            operator.operator.check_devices(args)
        })?
    })
}

impl PyOperator {
    /// Calls the operator with Python's own arguments.
    pub(crate) fn call_with<'py>(
        &self,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
        choose: &impl Choose,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = args.py();
        with_c_arguments(args, kwargs, |all, nargs, names| {
            // SAFETY: live objects held by the tuple and dict; attached.
            let result = unsafe { call(self, all.as_ptr(), nargs, names, choose) };
            // SAFETY: a new reference, or null with an exception set.
            unsafe { Bound::from_owned_ptr_or_err(py, result) }
        })
    }

    /// Shows the arguments, bound and checked, as values.
    pub(crate) fn with_arguments<R>(
        &self,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
        look: impl FnOnce(&[keyfold_tensor::ValueRef<'_>]) -> R,
    ) -> PyResult<R> {
        let py = args.py();
        with_c_arguments(args, kwargs, |all, _, names| {
            let mut slots = vec![std::ptr::null_mut(); self.params.all.len()];
            // SAFETY: live objects held by the tuple and dict; attached; one slot each.
            unsafe {
                self.params.bind(&self.operator, all, names, &mut slots).py(py)?;
                self.params.inspect(&self.operator, &slots).py(py)?;
            }
            native::with_values(py, &self.params, &slots, look).py(py)
        })
    }
}
