//! Calls of `keyfold::elementwise`, whose arguments are lists, without lists of Python's.

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::{CallContext, Kernel};
use keyfold_ops::pointwise::OUT_ARGUMENT;
use keyfold_tensor::{Value, ValueRef};
use pyo3::ffi;

use super::arguments::Arena;
use super::run::run;
use crate::call::borrowed::Argument;
use crate::call::params::Params;
use crate::marshal::arrays::{self, caller::Caller};
use crate::marshal::tensor::{is_tensor, tensor_of};

/// Arrays of a call of an expression that stay on the stack.
pub(crate) const LISTED: usize = 16;

/// Calls a native kernel of `keyfold::elementwise` without making lists of Python's.
///
/// # Safety
/// `arrays` are live objects that `look_fast` knows, at most [`LISTED`], the last one `out` if there
/// is one; `params` are the operator's; the GIL is held.
#[inline]
pub(crate) unsafe fn call_listed(
    context: &CallContext<'_, Value>,
    kernel: &Kernel<Value>,
    params: &Params,
    arrays: &[*mut ffi::PyObject],
    (numbers, text): (&[ValueRef<'_>], &str),
    (has_out, caller): (bool, Caller),
) -> Result<*mut ffi::PyObject> {
    let mut arena = Arena::<LISTED>::new();
    let arguments = &raw mut arena.arguments;
    let mut values = [ValueRef::None; LISTED];
    let inputs = arrays.len() - usize::from(has_out);
    for (at, object) in arrays.iter().enumerate() {
        // SAFETY: as for the caller; each reader follows its type check. Filled places of the arena
        // are read only until the arena is dropped, after the call.
        values[at] = unsafe {
            let object = *object;
            if is_tensor(object) {
                ValueRef::Tensor(tensor_of(object))
            } else {
                let Some(found) = arrays::look_again(object, caller) else {
                    return Err(changed());
                };
                let param = if at < inputs { &params.all[0] } else { &params.all[OUT_ARGUMENT] };
                let place = (&raw mut (*arguments)[arena.used]).cast::<Argument>();
                place.write(Argument::new(object, found, param));
                arena.used += 1;
                ValueRef::Foreign(&*place)
            }
        };
    }
    let mut args = [
        ValueRef::Refs(&values[..inputs]),
        ValueRef::Refs(numbers),
        ValueRef::Str(text),
        ValueRef::None,
        ValueRef::None,
    ];
    let mut numbered = [std::ptr::null_mut(); OUT_ARGUMENT + 1];
    let count = OUT_ARGUMENT + usize::from(has_out);
    if has_out {
        args[OUT_ARGUMENT] = values[inputs];
        numbered[OUT_ARGUMENT] = arrays[inputs];
    }
    // SAFETY: as for the caller; the kernel can only give the argument back that it writes to.
    unsafe { run(context, kernel, &args[..count], &numbered[..count], arrays, caller) }
}

#[cold]
fn changed() -> Error {
    Error::new(ErrorKind::Binding, "an array became another kind of object during the call")
}
