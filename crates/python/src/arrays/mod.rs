//! Which objects count as tensors, which keys they bring, and whose library they are of.
//!
//! keyfold's own tensors and NumPy's arrays are told by their exact type. Next come the classes of
//! `register_array_type`, whose register holds its types, so that a type's address stands for it
//! without being used again; then torch's, JAX's, CuPy's, and any class with `__dlpack__` (`types`).

pub(crate) mod dlpack;
pub(crate) mod jax;
pub(crate) mod kind;
pub(crate) mod library;
pub(crate) mod numpy_array;
pub(crate) mod owners;
pub(crate) mod protocol;
pub(crate) mod torch;
pub(crate) mod tvm;
pub(crate) mod types;

use std::collections::HashMap;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use keyfold_core::{Device, Error, ErrorKind, Result};
use keyfold_dispatch::{DispatchKey, DispatchKeySet, Tag};
use keyfold_layers::tracer;
use keyfold_tensor::{Tensor, Value};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyType;

pub(crate) use self::library::Caller;
use self::types::Way;
use crate::argument::{wrong_type, wrong_value};
use crate::errors::{IntoPyResult, from_pyerr};
use crate::foreign::Object;
use crate::guards;
use crate::keys::keyset_from;
use crate::tensor::PyTensor;

static TENSOR_TYPE: AtomicPtr<ffi::PyTypeObject> = AtomicPtr::new(std::ptr::null_mut());
static ARRAY_TYPE: AtomicPtr<ffi::PyTypeObject> = AtomicPtr::new(std::ptr::null_mut());

/// Notes the type objects that the call path compares with. Called once, at import.
pub(crate) fn init(py: Python<'_>) {
    TENSOR_TYPE.store(py.get_type::<PyTensor>().as_ptr().cast(), Ordering::Release);
    ARRAY_TYPE.store(numpy_array::array_type(py), Ordering::Release);
}

/// Whether the object is exactly a `keyfold.Tensor`.
///
/// # Safety
/// `object` is a live object.
#[inline(always)]
pub(crate) unsafe fn is_tensor(object: *mut ffi::PyObject) -> bool {
    // SAFETY: as for the caller.
    let kind = unsafe { ffi::Py_TYPE(object) };
    kind == TENSOR_TYPE.load(Ordering::Relaxed)
}

/// Whether the object is exactly a `numpy.ndarray`.
///
/// # Safety
/// `object` is a live object.
#[inline(always)]
pub(crate) unsafe fn is_ndarray(object: *mut ffi::PyObject) -> bool {
    // SAFETY: as for the caller.
    let kind = unsafe { ffi::Py_TYPE(object) };
    kind == ARRAY_TYPE.load(Ordering::Relaxed)
}

/// The tensor inside a `keyfold.Tensor`.
///
/// # Safety
/// `object` is exactly a `keyfold.Tensor`, alive for `'a`.
#[inline(always)]
pub(crate) unsafe fn tensor_of<'a>(object: *mut ffi::PyObject) -> &'a Tensor {
    // SAFETY: the type was checked by the caller; the class is frozen, so a shared reference to
    // its content needs no borrow flag, and it lives as long as the object.
    unsafe {
        let py = Python::assume_attached();
        let object = Borrowed::from_ptr(py, object);
        let tensor: &Tensor = &object.cast_unchecked::<PyTensor>().get().tensor;
        &*std::ptr::from_ref(tensor)
    }
}

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
        types::look_fast(object)
    }
}

const CPU: DispatchKeySet = DispatchKeySet::EMPTY.insert(DispatchKey::CPU);

/// Where a registered class's keys come from.
enum Keys {
    Fixed(DispatchKeySet),
    Function(Py<PyAny>),
}

struct Registered {
    class: Py<PyType>,
    keys: Keys,
    wrap: Option<Py<PyAny>>,
}

/// Registered classes by the address of their type object, which the entry keeps alive.
static REGISTERED: RwLock<Option<HashMap<usize, Arc<Registered>>>> = RwLock::new(None);

fn registered(object: &Bound<'_, PyAny>) -> Option<Arc<Registered>> {
    let table = REGISTERED.read().unwrap_or_else(PoisonError::into_inner);
    let table = table.as_ref()?;
    if let Some(found) = table.get(&(object.get_type_ptr() as usize)) {
        return Some(Arc::clone(found));
    }
    // A subclass: the nearest registered class in its order of inheritance.
    object.get_type().mro().iter().find_map(|base| table.get(&(base.as_ptr() as usize)).cloned())
}

/// Makes the instances of a class count as tensors.
///
/// Args:
///     type: the class. Instances of its subclasses count as well.
///     keys: their dispatch keys (a set, a key or a name), or a function from an instance to them.
///     wrap: makes an instance out of a `keyfold.Tensor`, for the results of native kernels;
///         without it such results stay keyfold's tensors.
///
/// Raises:
///     TypeError: `type` is no class, or a class that has its keys built in.
#[pyfunction]
#[pyo3(signature = (r#type, keys, *, wrap=None))]
pub(crate) fn register_array_type(
    r#type: Bound<'_, PyType>,
    keys: &Bound<'_, PyAny>,
    wrap: Option<Py<PyAny>>,
) -> PyResult<()> {
    let class = r#type;
    let pointer: *mut ffi::PyTypeObject = class.as_ptr().cast();
    if pointer == TENSOR_TYPE.load(Ordering::Relaxed)
        || pointer == ARRAY_TYPE.load(Ordering::Relaxed)
    {
        return Err(wrong_type(format!("the keys of {class} are built in")));
    }
    let keys = match keyset_from(keys) {
        Ok(set) if set.is_empty() => {
            return Err(wrong_value(format!("{class} needs at least one dispatch key")));
        }
        Ok(set) => Keys::Fixed(set),
        Err(_) if keys.is_callable() => Keys::Function(keys.clone().unbind()),
        Err(error) => return Err(error),
    };
    let entry = Arc::new(Registered { class: class.unbind(), keys, wrap });
    let old = {
        let mut table = REGISTERED.write().unwrap_or_else(PoisonError::into_inner);
        table.get_or_insert_default().insert(pointer as usize, entry)
    };
    // Outside the lock: the old function's destructor may run anything.
    drop(old);
    types::forget_all();
    Ok(())
}

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
    if unsafe { types::find(object.as_ptr()) }.is_some() {
        return types::look(object);
    }
    if let Some(entry) = registered(object) {
        let keys = match &entry.keys {
            Keys::Fixed(keys) => *keys,
            Keys::Function(function) => function
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
    types::look(object)
}

/// How another library's array is read; `None` for NumPy's and for what is no array.
///
/// # Errors
/// A class whose objects can't be taken, with the reason.
pub(crate) fn way(object: &Bound<'_, PyAny>) -> Result<Option<Way>> {
    if numpy_array::is_array(object) {
        return Ok(None);
    }
    // The class of an object that a user registered keeps counting as that: it isn't remembered.
    match registered(object) {
        Some(_) => types::way_of(&object.get_type()),
        None => Ok(types::known(object)?.map(|known| known.way)),
    }
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
    match way(object)? {
        Some(Way::Torch) => torch::view(object, written),
        Some(Way::Tvm) => tvm::view(object),
        Some(Way::Jax) => jax::view(object),
        Some(Way::Exchange(api)) => protocol::view_exchange(object, api),
        Some(Way::Protocol) => protocol::view(object),
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
    // SAFETY: as for the caller.
    let tag = unsafe {
        match library {
            Caller::TORCH => torch::look_fast(object),
            Caller::TVM => tvm::look_again(object),
            _ => return look_fast(object),
        }
    };
    Some((tag?, library))
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
        match types::find(object).map(|known| known.way) {
            Some(Way::Torch) => torch::numel(object),
            _ => 0,
        }
    }
}

fn class_name(object: &Bound<'_, PyAny>) -> String {
    object.get_type().qualname().map_or_else(|_| "?".to_owned(), |name| name.to_string())
}

/// A result of a native kernel for an argument of a registered class: by what it was registered with,
/// or in the library that the class is of, or keyfold's own.
pub(crate) fn give_like<'py>(
    like: &Bound<'py, PyAny>,
    tensor: Tensor,
) -> PyResult<Bound<'py, PyAny>> {
    let py = like.py();
    if let Some(wrap) = registered(like).as_ref().and_then(|entry| entry.wrap.as_ref()) {
        let made = wrap.bind(py).call1((crate::tensor::wrap(py, tensor.clone())?,))?;
        if tracer::is_recording() {
            let (like, object) = (value_of(like).py(py)?, value_of(&made).py(py)?);
            guards::in_context(py, || tracer::note_wrapped(&tensor, &like, &object))?.py(py)?;
        }
        return Ok(made);
    }
    match types::way_of(&like.get_type()).py(py)? {
        Some(Way::Torch) => torch::give(py, tensor),
        Some(Way::Tvm) => tvm::give(py, tensor),
        Some(Way::Jax) => jax::give(py, tensor),
        _ => Ok(crate::tensor::wrap(py, tensor)?.into_any()),
    }
}

/// Whether results of native kernels for these arguments go through a registered class's own `wrap`.
pub(crate) fn class_wraps(py: Python<'_>, objects: &[*mut ffi::PyObject]) -> bool {
    let like = library::first_of(py, objects, |library| library == Caller::OTHER);
    like.is_some_and(|like| registered(&like).is_some_and(|entry| entry.wrap.is_some()))
}

/// An object as a value that keeps it.
///
/// # Errors
/// As [`look`].
pub(crate) fn value_of(object: &Bound<'_, PyAny>) -> Result<Value> {
    let tag = look(object)?.map_or(Tag::NONE, |(tag, _)| tag);
    // SAFETY: a bound object is alive.
    Ok(unsafe { Object::value(object.as_ptr(), tag) })
}

/// The registered classes' names, for error messages.
pub(crate) fn known_names(py: Python<'_>) -> Vec<String> {
    let table = REGISTERED.read().unwrap_or_else(PoisonError::into_inner);
    let mut names = vec!["keyfold.Tensor".to_owned(), "numpy.ndarray".to_owned()];
    for entry in table.iter().flat_map(HashMap::values) {
        names.extend(entry.class.bind(py).fully_qualified_name().map(|n| n.to_string()));
    }
    names
}
