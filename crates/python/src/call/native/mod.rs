//! From Python into native kernels.

mod arguments;
mod listed;
mod run;

use std::mem::MaybeUninit;

use keyfold_core::{Error, Result};
use keyfold_dispatch::{CallContext, Kernel};
use keyfold_tensor::{Value, ValueRef};
use pyo3::ffi;
use pyo3::prelude::*;
use smallvec::SmallVec;

use self::arguments::{Arena, Borrowed, borrow, number};
use self::run::run;
use crate::call::borrowed::Argument;
use crate::call::params::{Kind, Param, Params};
use crate::marshal::arrays::{self, caller::Caller};
use crate::marshal::attach::attach;
use crate::marshal::errors;
use crate::marshal::tensor::{is_tensor, tensor_of};

pub(crate) use self::arguments::with_values;
pub(crate) use self::listed::{LISTED, call_listed};

/// Arguments that a call keeps on the stack; more of them, or others than tensors and plain
/// numbers, take the general way.
const INLINE: usize = 6;

/// Calls a native kernel with bound objects and gives its result as a new reference.
///
/// # Safety
/// `objects` are live, one per parameter, and fit their types; the GIL is held.
#[inline]
pub(crate) unsafe fn call(
    context: &CallContext<'_, Value>,
    kernel: &Kernel<Value>,
    params: &Params,
    objects: &[*mut ffi::PyObject],
    caller: Caller,
) -> Result<*mut ffi::PyObject> {
    let mut arena = Arena::<INLINE>::new();
    let mut args = [const { MaybeUninit::<ValueRef<'_>>::uninit() }; INLINE];
    if objects.len() > INLINE {
        // SAFETY: as for the caller.
        return unsafe { call_generally(context, kernel, params, objects, caller) };
    }
    debug_assert_eq!(params.all.len(), objects.len());
    let arguments = &raw mut arena.arguments;
    for (at, (param, object)) in params.all.iter().zip(objects).enumerate() {
        // SAFETY: as for the caller; each reader follows its type check. Filled places of the
        // arena are read only until the arena is dropped, after the call.
        let arg = unsafe {
            let object = *object;
            let tensor = matches!(param.kind, Kind::Tensor | Kind::OptionalTensor);
            if tensor && is_tensor(object) {
                ValueRef::Tensor(tensor_of(object))
            } else if object == ffi::Py_None() {
                ValueRef::None
            } else if tensor && let Some(found) = arrays::look_again(object, caller) {
                let place = (&raw mut (*arguments)[arena.used]).cast::<Argument>();
                place.write(Argument::new(object, found, param));
                arena.used += 1;
                ValueRef::Foreign(&*place)
            } else if let Some(number) = number(param, object) {
                number
            } else {
                return call_generally(context, kernel, params, objects, caller);
            }
        };
        args[at].write(arg);
    }
    // SAFETY: there are as many parameters as objects, so the loop has written that many; the rest
    // as for the caller.
    unsafe {
        let args = std::slice::from_raw_parts(args.as_ptr().cast(), objects.len());
        run(context, kernel, args, objects, objects, caller)
    }
}

/// The way for any arguments: what isn't at hand is converted and kept aside.
///
/// # Safety
/// As for [`call`].
#[inline(never)]
unsafe fn call_generally(
    context: &CallContext<'_, Value>,
    kernel: &Kernel<Value>,
    params: &Params,
    objects: &[*mut ffi::PyObject],
    caller: Caller,
) -> Result<*mut ffi::PyObject> {
    let mut foreign: SmallVec<[Argument; 4]> = SmallVec::new();
    let mut owned: Vec<Value> = Vec::new();
    let mut places: SmallVec<[Borrowed<'_>; 8]> = SmallVec::new();
    #[expect(clippy::disallowed_methods, reason = "the GIL is held, by the contract")]
    // SAFETY: as for the caller.
    unsafe {
        Python::attach_unchecked(|py| {
            for (param, object) in params.all.iter().zip(objects) {
                places.push(borrow(py, param, *object, &mut foreign, &mut owned)?);
            }
            Ok::<(), Error>(())
        })
    }?;
    // Viewing an array of somebody's class runs code of theirs, which may take away memory that was
    // only borrowed: such are viewed before the others.
    if foreign.len() > 1 && context.key().is_backend() {
        for argument in foreign.iter().filter(|argument| argument.runs_python()) {
            keyfold_tensor::ForeignObject::tensor(argument)?;
        }
    }
    if context.key().is_backend() {
        for (param, place) in params.all.iter().zip(&places) {
            if let (Kind::Tensors, Borrowed::Owned(at)) = (param.kind, place) {
                view_items(&owned[*at], param)?;
            }
        }
    }
    let args: SmallVec<[ValueRef<'_>; 8]> =
        places.iter().map(|place| place.value(&foreign, &owned)).collect();
    // SAFETY: as for the caller.
    unsafe { run(context, kernel, &args, objects, objects, caller) }
}

/// Views the arrays of a list while it is known whose argument they are.
fn view_items(list: &Value, param: &Param) -> Result<()> {
    let Value::List(items) = list else { return Ok(()) };
    for item in items {
        if let Value::Foreign(object) = item
            && let Err(error) = object.tensor()
        {
            return attach(|py| Err(errors::at(py, error, &param.place)));
        }
    }
    Ok(())
}
