//! The methods that a layer calls for every call that it passes on, as plain C functions: `redispatch`, and
//! taking keys from a set. PyO3's own methods pack a tuple and a dict when there is `*args`.

use std::cell::UnsafeCell;
#[cfg(not(feature = "abi3"))]
use std::sync::atomic::{AtomicPtr, Ordering};

use keyfold_dispatch::DispatchKeySet;
use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::call::invoke::{self, Redispatch};
use crate::call::operator::{self, PyOperator};
use crate::call::panics::guarded;
use crate::classes::redispatch;
use crate::marshal::argument::wrong_type;
use crate::marshal::describe::describe_object;
use crate::marshal::keys::{self, PyKeySet, keyset_from, keyset_object, removed_from};

/// Method definitions in the form that CPython keeps a pointer to.
struct Methods(UnsafeCell<[ffi::PyMethodDef; 4]>);

// SAFETY: CPython reads the table and never writes it; we neither.
unsafe impl Sync for Methods {}

static METHODS: Methods = Methods(UnsafeCell::new([
    ffi::PyMethodDef {
        ml_name: c"redispatch".as_ptr(),
        ml_meth: ffi::PyMethodDefPointer { PyCFunctionFastWithKeywords: redispatch },
        ml_flags: ffi::METH_FASTCALL | ffi::METH_KEYWORDS,
        ml_doc: c"redispatch(op, keyset, /, *args, **kwargs)\n--\n\n\
            Call an operator with this key set, taken as given.\n\n\
            Args:\n    op: the operator, or its name.\n    keyset: the key set.\n    \
            args: the operator's arguments.\n    kwargs: the operator's keyword arguments."
            .as_ptr(),
    },
    ffi::PyMethodDef {
        ml_name: c"redispatch".as_ptr(),
        ml_meth: ffi::PyMethodDefPointer { PyCFunctionFastWithKeywords: operator_redispatch },
        ml_flags: ffi::METH_FASTCALL | ffi::METH_KEYWORDS,
        ml_doc: c"redispatch($self, keyset, /, *args, **kwargs)\n--\n\n\
            Call the operator with this key set, taken as given."
            .as_ptr(),
    },
    ffi::PyMethodDef {
        ml_name: c"add".as_ptr(),
        ml_meth: ffi::PyMethodDefPointer { PyCFunctionFast: set_add },
        ml_flags: ffi::METH_FASTCALL,
        ml_doc: c"add($self, /, *keys)\n--\n\nThe set with these keys in it.".as_ptr(),
    },
    ffi::PyMethodDef {
        ml_name: c"remove".as_ptr(),
        ml_meth: ffi::PyMethodDefPointer { PyCFunctionFast: set_remove },
        ml_flags: ffi::METH_FASTCALL,
        ml_doc: c"remove($self, /, *keys)\n--\n\nThe set without these keys; of \"AutogradCPU\" the backend stays."
            .as_ptr(),
    },
]));

/// A set out of an argument: one load for a `DispatchKeySet`.
///
/// # Safety
/// `object` is a live object, and the GIL is held.
#[inline(always)]
unsafe fn set_from(py: Python<'_>, object: *mut ffi::PyObject) -> PyResult<DispatchKeySet> {
    // SAFETY: as for the caller.
    unsafe {
        match keys::exact_set(object) {
            Some(set) => Ok(set),
            None => keyset_from(&Borrowed::from_ptr(py, object)),
        }
    }
}

/// The key set of a redispatch.
///
/// # Safety
/// As for `set_from`.
#[inline(always)]
unsafe fn given_set(py: Python<'_>, object: *mut ffi::PyObject) -> PyResult<DispatchKeySet> {
    // SAFETY: as for the caller.
    unsafe { set_from(py, object).map_err(|error| no_set(py, object, error)) }
}

/// The error for something else where a redispatch takes its key set: the operator's first argument.
///
/// # Safety
/// As for `set_from`.
#[cold]
unsafe fn no_set(py: Python<'_>, object: *mut ffi::PyObject, error: PyErr) -> PyErr {
    if !error.is_instance_of::<PyTypeError>(py) {
        return error;
    }
    // SAFETY: as for the caller.
    let given = unsafe { Bound::from_borrowed_ptr(py, object) };
    let given = describe_object(&given);
    wrong_type(format!(
        "redispatch() takes the key set before the operator's arguments, such as \
         keyset.remove(\"Profiler\"), not {given}"
    ))
}

/// # Safety
/// CPython's contract for `METH_FASTCALL | METH_KEYWORDS`.
unsafe extern "C" fn redispatch(
    _module: *mut ffi::PyObject,
    args: *const *mut ffi::PyObject,
    nargs: ffi::Py_ssize_t,
    keywords: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guarded("redispatch", |py| {
        if nargs < 2 {
            return Err(wrong_type(format!(
                "redispatch() takes an operator, a key set and the operator's arguments, but \
                 {nargs} were given by position"
            )));
        }
        // SAFETY: at least two live objects, then the operator's arguments.
        unsafe {
            let (op, set) = (*args, given_set(py, *args.add(1))?);
            let (rest, count) = (args.add(2), nargs as usize - 2);
            if operator::is_operator(op) {
                let operator = Borrowed::from_ptr(py, op).cast_unchecked::<PyOperator>();
                return Ok(invoke::call(operator.get(), rest, count, keywords, &Redispatch(set)));
            }
            let op = Borrowed::from_ptr(py, op);
            redispatch::redispatch(py, &op, set, rest, count, keywords)
        }
    })
}

/// # Safety
/// CPython's contract for `METH_FASTCALL | METH_KEYWORDS`, as a method of [`PyOperator`].
unsafe extern "C" fn operator_redispatch(
    this: *mut ffi::PyObject,
    args: *const *mut ffi::PyObject,
    nargs: ffi::Py_ssize_t,
    keywords: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guarded("redispatch", |py| {
        if nargs < 1 {
            return Err(wrong_type(
                "redispatch() missing 1 required positional argument: 'keyset'",
            ));
        }
        // SAFETY: the descriptor checked the type of `this`; at least one live object.
        unsafe {
            let operator = Borrowed::from_ptr(py, this).cast_unchecked::<PyOperator>();
            let set = given_set(py, *args)?;
            let (rest, count) = (args.add(1), nargs as usize - 1);
            Ok(invoke::call(operator.get(), rest, count, keywords, &Redispatch(set)))
        }
    })
}

/// The union of arguments as a set.
///
/// # Safety
/// `nargs` live objects; the GIL is held.
#[inline(always)]
unsafe fn union(
    py: Python<'_>,
    args: *const *mut ffi::PyObject,
    nargs: ffi::Py_ssize_t,
) -> PyResult<DispatchKeySet> {
    let mut set = DispatchKeySet::EMPTY;
    for at in 0..nargs {
        // SAFETY: as for the caller.
        set |= unsafe { set_from(py, *args.offset(at))? };
    }
    Ok(set)
}

/// # Safety
/// CPython's contract for `METH_FASTCALL`, as a method of [`PyKeySet`].
unsafe extern "C" fn set_add(
    this: *mut ffi::PyObject,
    args: *mut *mut ffi::PyObject,
    nargs: ffi::Py_ssize_t,
) -> *mut ffi::PyObject {
    guarded("add", |py| {
        // SAFETY: the descriptor checked the type of `this`; the arguments are live.
        let set = unsafe { set_from(py, this)? | union(py, args, nargs)? };
        Ok(keyset_object(py, set)?.into_ptr())
    })
}

/// # Safety
/// CPython's contract for `METH_FASTCALL`, as a method of [`PyKeySet`].
unsafe extern "C" fn set_remove(
    this: *mut ffi::PyObject,
    args: *mut *mut ffi::PyObject,
    nargs: ffi::Py_ssize_t,
) -> *mut ffi::PyObject {
    guarded("remove", |py| {
        // SAFETY: the descriptor checked the type of `this`; the arguments are live.
        let mut set = unsafe { set_from(py, this)? };
        for at in 0..nargs {
            // SAFETY: as above.
            let (object, exact) = unsafe {
                let object = Borrowed::from_ptr(py, *args.offset(at));
                (object, keys::exact_set(object.as_ptr()))
            };
            set = set - exact.map_or_else(|| removed_from(&object), Ok)?;
        }
        Ok(keyset_object(py, set)?.into_ptr())
    })
}

/// `|`, `&` and `-` as PyO3 made them, for operands that aren't two sets.
#[cfg(not(feature = "abi3"))]
struct Slots {
    or: AtomicPtr<()>,
    and: AtomicPtr<()>,
    subtract: AtomicPtr<()>,
}

#[cfg(not(feature = "abi3"))]
static GENERAL: Slots = Slots {
    or: AtomicPtr::new(std::ptr::null_mut()),
    and: AtomicPtr::new(std::ptr::null_mut()),
    subtract: AtomicPtr::new(std::ptr::null_mut()),
};

/// An operation of two exact sets, or whatever the general slot makes of the operands.
///
/// # Safety
/// CPython's contract for a binary slot; `general` holds the class's former slot.
#[cfg(not(feature = "abi3"))]
#[inline(always)]
unsafe fn combine(
    a: *mut ffi::PyObject,
    b: *mut ffi::PyObject,
    general: &AtomicPtr<()>,
    operation: fn(DispatchKeySet, DispatchKeySet) -> DispatchKeySet,
) -> *mut ffi::PyObject {
    // SAFETY: live objects under the GIL, by the contract.
    unsafe {
        if let (Some(a), Some(b)) = (keys::exact_set(a), keys::exact_set(b)) {
            return guarded("DispatchKeySet", |py| {
                Ok(keyset_object(py, operation(a, b))?.into_ptr())
            });
        }
        let general = general.load(Ordering::Relaxed);
        std::mem::transmute::<*mut (), ffi::binaryfunc>(general)(a, b)
    }
}

/// # Safety
/// CPython's contract for a binary slot.
#[cfg(not(feature = "abi3"))]
unsafe extern "C" fn set_or(a: *mut ffi::PyObject, b: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: as for the caller.
    unsafe { combine(a, b, &GENERAL.or, DispatchKeySet::union) }
}

/// # Safety
/// CPython's contract for a binary slot.
#[cfg(not(feature = "abi3"))]
unsafe extern "C" fn set_and(a: *mut ffi::PyObject, b: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: as for the caller.
    unsafe { combine(a, b, &GENERAL.and, DispatchKeySet::intersection) }
}

/// # Safety
/// CPython's contract for a binary slot.
#[cfg(not(feature = "abi3"))]
unsafe extern "C" fn set_subtract(
    a: *mut ffi::PyObject,
    b: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: as for the caller.
    unsafe { combine(a, b, &GENERAL.subtract, DispatchKeySet::difference) }
}

/// Puts the fast operations in front of the class's own.
#[cfg(not(feature = "abi3"))]
fn init_slots(class: &Bound<'_, PyAny>) {
    let class: *mut ffi::PyTypeObject = class.as_ptr().cast();
    // SAFETY: a heap type of ours, which no other thread has yet; PyO3 filled these slots.
    unsafe {
        let Some(number) = (*class).tp_as_number.as_mut() else { return };
        let fast: [(&mut Option<ffi::binaryfunc>, &AtomicPtr<()>, ffi::binaryfunc); 3] = [
            (&mut number.nb_or, &GENERAL.or, set_or),
            (&mut number.nb_and, &GENERAL.and, set_and),
            (&mut number.nb_subtract, &GENERAL.subtract, set_subtract),
        ];
        for (slot, general, function) in fast {
            if let Some(former) = *slot {
                general.store(former as *mut (), Ordering::Relaxed);
                *slot = Some(function);
            }
        }
        ffi::PyType_Modified(class);
    }
}

/// Puts the functions into the module and the methods on their classes.
pub(crate) fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let methods: *mut ffi::PyMethodDef = METHODS.0.get().cast();
    // SAFETY: static definitions; CPython keeps pointers to them and to the classes.
    let method = |at: usize, class: &Bound<'_, PyAny>| unsafe {
        let descriptor = ffi::PyDescr_NewMethod(class.as_ptr().cast(), methods.add(at));
        Bound::from_owned_ptr_or_err(py, descriptor)
    };
    let name = module.name()?;
    // SAFETY: as above; the module outlives the function object.
    let function = unsafe {
        let function = ffi::PyCFunction_NewEx(methods, module.as_ptr(), name.as_ptr());
        Bound::from_owned_ptr_or_err(py, function)?
    };
    module.add("redispatch", function)?;
    let class = py.get_type::<PyOperator>().into_any();
    class.setattr("redispatch", method(1, &class)?)?;
    let class = py.get_type::<PyKeySet>().into_any();
    class.setattr("add", method(2, &class)?)?;
    class.setattr("remove", method(3, &class)?)?;
    #[cfg(not(feature = "abi3"))]
    init_slots(&class);
    Ok(())
}
