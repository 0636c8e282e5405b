//! Bound objects as the borrowed values that native kernels take.

use std::mem::MaybeUninit;

use keyfold_core::Result;
use keyfold_dispatch::Tag;
use keyfold_tensor::{Value, ValueRef};
use pyo3::ffi;
use pyo3::prelude::*;
use smallvec::SmallVec;

use crate::call::borrowed::Argument;
use crate::call::params::{Kind, Param, Params};
use crate::marshal::arrays::{self, caller::Caller};
use crate::marshal::tensor::{is_tensor, tensor_of};
use crate::marshal::values;

/// The caller's arrays of one call, on the stack, at addresses that don't change.
pub(super) struct Arena<const N: usize> {
    pub(super) arguments: [MaybeUninit<Argument>; N],
    pub(super) used: usize,
}

impl<const N: usize> Arena<N> {
    #[inline(always)]
    pub(super) fn new() -> Self {
        Arena { arguments: [const { MaybeUninit::uninit() }; N], used: 0 }
    }
}

impl<const N: usize> Drop for Arena<N> {
    #[inline]
    fn drop(&mut self) {
        for argument in &mut self.arguments[..self.used] {
            // SAFETY: the first `used` places are filled.
            unsafe { argument.assume_init_drop() };
        }
    }
}

/// Where the value of an argument is kept while native code borrows it.
pub(super) enum Borrowed<'a> {
    Ready(ValueRef<'a>),
    Foreign(usize),
    Owned(usize),
}

impl<'a> Borrowed<'a> {
    #[inline(always)]
    pub(super) fn value(&self, foreign: &'a [Argument], owned: &'a [Value]) -> ValueRef<'a> {
        match self {
            Borrowed::Ready(value) => *value,
            Borrowed::Foreign(at) => ValueRef::Foreign(&foreign[*at]),
            Borrowed::Owned(at) => keyfold_dispatch::Value::as_ref(&owned[*at]),
        }
    }
}

/// The value of a number or bool of Python's own that the parameter takes as it is.
///
/// # Safety
/// `object` is live; the GIL is held.
#[inline(always)]
pub(super) unsafe fn number<'a>(param: &Param, object: *mut ffi::PyObject) -> Option<ValueRef<'a>> {
    // SAFETY: as for the caller; each reader follows its type check.
    unsafe {
        match param.kind {
            Kind::Number if ffi::PyLong_CheckExact(object) != 0 => {
                let mut overflow = 0;
                let number = ffi::PyLong_AsLongLongAndOverflow(object, &raw mut overflow);
                (overflow == 0).then_some(ValueRef::Int(number))
            }
            Kind::Number | Kind::Plain if ffi::PyFloat_CheckExact(object) != 0 => {
                Some(ValueRef::Float(ffi::PyFloat_AsDouble(object)))
            }
            Kind::Flag if ffi::PyBool_Check(object) != 0 => {
                Some(ValueRef::Bool(object == ffi::Py_True()))
            }
            _ => None,
        }
    }
}

/// Borrows an object as a value, or notes where its converted value is kept.
///
/// # Safety
/// `object` is live for as long as the place is used.
#[inline(always)]
pub(super) unsafe fn borrow<'a>(
    py: Python<'_>,
    param: &Param,
    object: *mut ffi::PyObject,
    foreign: &mut SmallVec<[Argument; 4]>,
    owned: &mut Vec<Value>,
) -> Result<Borrowed<'a>> {
    // SAFETY: as for the caller; each reader follows its type check.
    let bound = unsafe {
        let tensor = matches!(param.kind, Kind::Tensor | Kind::OptionalTensor);
        if tensor && is_tensor(object) {
            return Ok(Borrowed::Ready(ValueRef::Tensor(tensor_of(object))));
        }
        if object == ffi::Py_None() {
            return Ok(Borrowed::Ready(ValueRef::None));
        }
        if let Some(number) = number(param, object) {
            return Ok(Borrowed::Ready(number));
        }
        let bound = Bound::from_borrowed_ptr(py, object);
        if tensor {
            let found = match arrays::look_fast(object) {
                Some(found) => found,
                None => arrays::look(&bound)?.unwrap_or((Tag::NONE, Caller::NONE)),
            };
            foreign.push(Argument::new(object, found, param));
            return Ok(Borrowed::Foreign(foreign.len() - 1));
        }
        bound
    };
    let value = values::value_from(&bound, &param.ty).map_err(|error| error.at(&param.place))?;
    owned.push(value.unwrap_or(Value::None));
    Ok(Borrowed::Owned(owned.len() - 1))
}

/// Shows bound objects to `f` as borrowed values: for explanations and error messages.
///
/// # Errors
/// A conversion that fails.
pub(crate) fn with_values<R>(
    py: Python<'_>,
    params: &Params,
    objects: &[*mut ffi::PyObject],
    f: impl FnOnce(&[ValueRef<'_>]) -> R,
) -> Result<R> {
    let (mut foreign, mut owned) = (SmallVec::new(), Vec::new());
    let mut places = Vec::new();
    for (param, object) in params.all.iter().zip(objects) {
        // SAFETY: the callers hold the objects.
        places.push(unsafe { borrow(py, param, *object, &mut foreign, &mut owned) }?);
    }
    let args: Vec<_> = places.iter().map(|place| place.value(&foreign, &owned)).collect();
    Ok(f(&args))
}
