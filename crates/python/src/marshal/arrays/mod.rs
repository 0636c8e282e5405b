//! Which objects count as tensors, which keys they bring, and whose library they are of.
//!
//! keyfold's own tensors and NumPy's arrays are told by their exact type. Next come the classes of
//! `register_array_type`, whose register holds its types, so that a type's address stands for it
//! without being used again; then torch's, JAX's, CuPy's, and any class with `__dlpack__` (`classes`).
//! Each library's arrays have one file, which implements `library::ArrayLibrary`.

pub(crate) mod caller;
pub(crate) mod classes;
pub(crate) mod dlpack;
mod jax;
mod library;
mod numpy_api;
pub(crate) mod numpy_array;
pub(crate) mod owners;
mod protocol;
pub(crate) mod registered;
mod torch;
mod tvm;

use keyfold_core::{Device, Error, ErrorKind, Result};
use keyfold_dispatch::{DispatchKey, DispatchKeySet, Tag};
use keyfold_tensor::Tensor;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyType;

use self::caller::Caller;
use self::classes::ArrayClass;
use self::numpy_array::is_ndarray;
pub(crate) use self::protocol::library_name;
use crate::marshal::argument::wrong_type;
use crate::marshal::errors::{IntoPyResult, from_pyerr};
use crate::marshal::keys::keyset_from;
use crate::marshal::tensor::{PyTensor, is_tensor, tensor_of};

/// The tag and library of what the call path knows by its type; `None` otherwise.
///
/// # Safety
/// `object` is a live object, and the GIL is held.
#[inline(always)]
pub(crate) unsafe fn look_fast(object: *mut ffi::PyObject) -> Option<(Tag, Caller)> {
    // SAFETY: as for the caller; each reader follows its type check.
    unsafe {
        if is_tensor(object) {
            return Some((tensor_of(object).tag(), Caller::TENSOR));
        }
        if is_ndarray(object) {
            let zero_dim = numpy_array::look(object)?;
            return Some((Tag::new(CPU, Device::CPU, zero_dim), Caller::NUMPY));
        }
        classes::look_fast(object)
    }
}

const CPU: DispatchKeySet = DispatchKeySet::EMPTY.insert(DispatchKey::CPU);

/// The tag and library of any object that counts as a tensor; `None` for any other.
///
/// # Errors
/// An array that is refused, with the reason; what a class's key function raises.
#[cold]
pub(crate) fn look(object: &Bound<'_, PyAny>) -> Result<Option<(Tag, Caller)>> {
    // SAFETY: a bound object is alive and the GIL held.
    if let Some(found) = unsafe { look_fast(object.as_ptr()) } {
        return Ok(Some(found));
    }
    // A class that is known here is no registered one, nor one of NumPy's.
    // SAFETY: as above.
    if unsafe { classes::find(object.as_ptr()) }.is_some() {
        return classes::look(object);
    }
    if let Some(entry) = registered::find(object) {
        let keys = match &entry.keys {
            registered::Keys::Fixed(keys) => *keys,
            registered::Keys::Function(function) => function
                .bind(object.py())
                .call1((object,))
                .and_then(|keys| keyset_from(&keys))
                .map_err(from_pyerr)?,
        };
        if keys.is_empty() {
            return Err(Error::new(
                ErrorKind::EmptyKeySet,
                format!("the key function of {} gave an empty set", class_name(object)),
            ));
        }
        let device = keys.backend().and_then(DispatchKey::device_type);
        return Ok(Some(match device {
            Some(kind) => (Tag::new(keys, Device::new(kind, 0), false), Caller::OTHER),
            None => (Tag::keys_only(keys), Caller::OTHER),
        }));
    }
    if let Ok(tensor) = object.cast::<PyTensor>() {
        return Ok(Some((tensor.get().tensor.tag(), Caller::TENSOR)));
    }
    if numpy_array::is_array(object) {
        return subclass(object).map(Some);
    }
    if is_numpy_scalar(object) {
        let array = numpy_array::as_array(object)?;
        // SAFETY: `as_array` gives an ndarray, held here.
        return match unsafe { numpy_array::look(array.as_ptr()) } {
            Some(zero_dim) => Ok(Some((Tag::new(CPU, Device::CPU, zero_dim), Caller::NUMPY))),
            None => Err(numpy_array::refusal(&array)),
        };
    }
    classes::look(object)
}

/// The class of another library's array; `None` for NumPy's and for what is no array.
///
/// # Errors
/// A class whose objects can't be taken, with the reason.
pub(crate) fn class_of(object: &Bound<'_, PyAny>) -> Result<Option<ArrayClass>> {
    if numpy_array::is_array(object) {
        return Ok(None);
    }
    // The class of an object that a user registered keeps counting as that: it isn't remembered.
    match registered::find(object) {
        Some(_) => classes::of_registered(&object.get_type()),
        None => classes::known(object),
    }
}

/// Whether an object counts as a tensor by `register_array_type` alone.
pub(crate) fn is_registered(object: &Bound<'_, PyAny>) -> Result<bool> {
    Ok(look(object)?.is_some_and(|(_, library)| library == Caller::OTHER))
}

/// An ndarray that the fast look didn't take: of a subclass, or of a dtype that isn't ours.
fn subclass(array: &Bound<'_, PyAny>) -> Result<(Tag, Caller)> {
    for base in array.get_type().mro().iter() {
        let name = base.cast::<PyType>().ok().and_then(|t| t.qualname().ok());
        let name = name.map(|n| n.to_string()).unwrap_or_default();
        let hint = match name.as_str() {
            "MaskedArray" => "its mask would be lost; pass x.filled(...) or x.data",
            "matrix" => "its operators differ from an array's; pass np.asarray(x)",
            _ => continue,
        };
        return Err(Error::new(
            ErrorKind::Binding,
            format!("a numpy.{name} isn't taken as an array: {hint}"),
        ));
    }
    // SAFETY: an ndarray (the caller checked), alive while bound.
    match unsafe { numpy_array::look(array.as_ptr()) } {
        Some(zero_dim) => Ok((Tag::new(CPU, Device::CPU, zero_dim), Caller::NUMPY)),
        None => Err(numpy_array::refusal(array)),
    }
}

/// Whether the object is a NumPy scalar such as `numpy.float64(1)`: 0-dim data.
pub(crate) fn is_numpy_scalar(object: &Bound<'_, PyAny>) -> bool {
    let bases = object.get_type().mro();
    // Between the class itself, since `numpy.generic` has no instances of its own, and `object`: a
    // Python number has nothing there.
    bases.iter().take(bases.len().saturating_sub(1)).skip(1).any(|base| {
        base.cast::<PyType>().is_ok_and(|base| {
            base.qualname().is_ok_and(|n| n == "generic")
                && base.module().is_ok_and(|m| m == "numpy")
        })
    })
}

/// The keys of an object that counts as a tensor.
pub(crate) fn keys_of(object: &Bound<'_, PyAny>) -> PyResult<DispatchKeySet> {
    match look(object).py(object.py())? {
        Some((tag, _)) => Ok(tag.keys()),
        None => Err(wrong_type(format!(
            "{} is no tensor and no array that keyfold knows",
            object.get_type().name()?
        ))),
    }
}

/// A tensor view of any object that counts as a tensor, which keeps the object's memory. `written`
/// says that a kernel will write it.
pub(crate) fn view_for(object: &Bound<'_, PyAny>, written: bool) -> Result<Tensor> {
    if let Ok(tensor) = object.cast::<PyTensor>() {
        return Ok(tensor.get().tensor.clone());
    }
    if numpy_array::is_array(object) {
        return numpy_array::view(object);
    }
    if is_numpy_scalar(object) {
        if written {
            return Err(Error::new(
                ErrorKind::ReadOnly,
                format!(
                    "a numpy.{} can't be written to; give an array without dimensions, np.array(x)",
                    class_name(object)
                ),
            ));
        }
        return numpy_array::view(&numpy_array::as_array(object)?);
    }
    match class_of(object)? {
        Some(class) => class.library.view(object, class.api, written),
        None => Err(Error::new(
            ErrorKind::Binding,
            format!(
                "a {} can't be viewed as a tensor, as a native kernel needs it: it has no __dlpack__",
                class_name(object)
            ),
        )),
    }
}

/// As [`view_for`], to be read.
pub(crate) fn view(object: &Bound<'_, PyAny>) -> Result<Tensor> {
    view_for(object, false)
}

/// The tag of an array of a call whose arrays are all of that one library, and were looked at.
///
/// # Safety
/// As [`look_fast`]; `library` is what the looks found.
#[inline(always)]
pub(crate) unsafe fn look_again(
    object: *mut ffi::PyObject,
    library: Caller,
) -> Option<(Tag, Caller)> {
    // SAFETY: as for the caller; the looks found arrays of that library's alone.
    unsafe {
        match classes::library(library) {
            Some(listed) => Some((listed.look_again(object)?, library)),
            None => look_fast(object),
        }
    }
}

/// Elements of an array, where that is quickly known; 0 otherwise.
///
/// # Safety
/// `object` is a live object, and the GIL is held.
pub(crate) unsafe fn numel(object: *mut ffi::PyObject) -> usize {
    // SAFETY: as for the caller; each reader follows its type check.
    unsafe {
        if is_ndarray(object) {
            return numpy_array::numel(object);
        }
        classes::find(object).map_or(0, |class| class.library.numel(object))
    }
}

fn class_name(object: &Bound<'_, PyAny>) -> String {
    object.get_type().qualname().map_or_else(|_| "?".to_owned(), |name| name.to_string())
}
