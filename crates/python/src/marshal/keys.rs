//! Dispatch keys and key sets as Python objects.
//!
//! A key is one object for ever, so keys compare by identity as well; the class
//! that users see, `keyfold.DispatchKey`, is a Python subclass with a metaclass
//! that makes it iterable.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use keyfold_dispatch::{DispatchKey, DispatchKeySet, RegistrationKey};
use pyo3::basic::CompareOp;
use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyString, PyTuple, PyType};

use crate::marshal::argument::{Text, wrong_type};
use crate::marshal::describe::describe_object;
use crate::marshal::errors::IntoPyResult;

/// The base of `keyfold.DispatchKey`.
#[pyclass(name = "DispatchKeyBase", module = "keyfold._core", subclass, frozen)]
pub(crate) struct PyKey(DispatchKey);

/// `keyfold.DispatchKey`, set once at import.
static KEY_CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
/// The one object of each key.
static KEYS: [PyOnceLock<Py<PyAny>>; 64] = [const { PyOnceLock::new() }; 64];

#[pymethods]
impl PyKey {
    #[new]
    fn new(name: &Bound<'_, PyAny>) -> PyResult<Self> {
        key_from(name).map(PyKey)
    }

    /// The key's name.
    #[getter]
    fn name(&self) -> String {
        self.0.name()
    }

    /// The key's rank: higher wins. Comparable within one process, not a stable number.
    #[getter]
    fn priority(&self) -> u8 {
        self.0.priority()
    }

    /// Whether the key stands for a backend.
    #[getter]
    fn is_backend(&self) -> bool {
        self.0.is_backend()
    }

    /// Whether calls skip the key where it has no kernel.
    #[getter]
    fn skippable(&self) -> bool {
        self.0.is_skippable()
    }

    fn __str__(&self) -> String {
        self.0.name()
    }

    fn __repr__(&self) -> String {
        format!("DispatchKey.{}", self.0)
    }

    fn __hash__(&self) -> u64 {
        hash(self.0)
    }

    fn __richcmp__(&self, other: &Bound<'_, PyAny>, op: CompareOp) -> PyResult<Py<PyAny>> {
        let py = other.py();
        let Ok(other) = other.cast::<PyKey>() else { return Ok(py.NotImplemented()) };
        let result = op.matches(self.0.cmp(&other.get().0));
        Ok(result.into_pyobject(py)?.to_owned().into_any().unbind())
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyType>, (String,))> {
        Ok((key_class(py)?, (self.0.name(),)))
    }
}

fn hash(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

fn key_class(py: Python<'_>) -> PyResult<Bound<'_, PyType>> {
    match KEY_CLASS.get(py) {
        Some(class) => Ok(class.bind(py).clone()),
        None => Err(PyRuntimeError::new_err("keyfold isn't imported whole")),
    }
}

/// Tells the engine which class keys have. Called once, when keyfold is imported.
#[pyfunction]
pub(crate) fn _set_key_class(py: Python<'_>, class: Bound<'_, PyType>) -> PyResult<()> {
    KEY_CLASS
        .set(py, class.unbind())
        .map_err(|_| PyRuntimeError::new_err("the key class is set already"))
}

/// The one object of a key, by name, or the key itself.
#[pyfunction]
pub(crate) fn _key(key: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
    key_object(key.py(), key_from(key)?)
}

/// Every key of this process, lowest priority first.
#[pyfunction]
pub(crate) fn _keys(py: Python<'_>) -> PyResult<Vec<Py<PyAny>>> {
    DispatchKey::registered().into_iter().map(|key| key_object(py, key)).collect()
}

/// The one object of a key.
pub(crate) fn key_object(py: Python<'_>, key: DispatchKey) -> PyResult<Py<PyAny>> {
    let cell = &KEYS[usize::from(key.priority())];
    let object = cell.get_or_try_init(py, || {
        let class = key_class(py)?;
        // Not through the metaclass, whose call would come back here.
        let type_call = py.get_type::<PyType>().getattr("__call__")?;
        Ok::<_, PyErr>(type_call.call1((class, key.name()))?.unbind())
    })?;
    Ok(object.clone_ref(py))
}

/// A key from a `DispatchKey` or its name.
pub(crate) fn key_from(given: &Bound<'_, PyAny>) -> PyResult<DispatchKey> {
    if let Ok(key) = given.cast::<PyKey>() {
        return Ok(key.get().0);
    }
    match given.cast::<PyString>() {
        Ok(name) => name.to_string_lossy().parse::<DispatchKey>().py(given.py()),
        Err(_) => Err(not_a_key(given)),
    }
}

/// The key that a kernel is registered at, from a `DispatchKey` or a name, aliases included.
pub(crate) fn registration_key_from(given: &Bound<'_, PyAny>) -> PyResult<RegistrationKey> {
    if let Ok(key) = given.cast::<PyKey>() {
        return Ok(key.get().0.into());
    }
    match given.cast::<PyString>() {
        Ok(name) => name.to_string_lossy().parse::<RegistrationKey>().py(given.py()),
        Err(_) => Err(not_a_key(given)),
    }
}

fn not_a_key(given: &Bound<'_, PyAny>) -> PyErr {
    wrong_type(format!(
        "a dispatch key is given as a DispatchKey or its name, such as \"CPU\", not {}",
        describe_object(given)
    ))
}

/// An immutable set of dispatch keys.
///
/// `DispatchKeySet("CPU", "Autograd")` takes keys, names, and other sets. It iterates from the
/// highest priority, compares and hashes by content, and combines with `|`, `&` and `-`. A narrowed
/// name such as `"AutogradCPU"` stands for both keys; where it is taken away (by `-`, `remove`,
/// `exclude_keys`) the backend stays, as in PyTorch.
#[pyclass(name = "DispatchKeySet", module = "keyfold", frozen)]
pub(crate) struct PyKeySet(DispatchKeySet);

/// Sets made recently, so that layers get the set of a call without an allocation.
/// Each slot owns a reference. Only used under the GIL.
static RECENT: [AtomicPtr<ffi::PyObject>; 64] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; 64];

/// The object for a set.
#[inline]
pub(crate) fn keyset_object<'py>(
    py: Python<'py>,
    set: DispatchKeySet,
) -> PyResult<Bound<'py, PyKeySet>> {
    let slot = &RECENT[(set.bits().wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 58) as usize];
    let recent = slot.load(Ordering::Acquire);
    // SAFETY: a non-null slot holds a reference to a key set object, replaced only under the GIL,
    // which the token proves is held.
    if let Some(object) = unsafe { Bound::from_borrowed_ptr_or_opt(py, recent) } {
        // SAFETY: only `PyKeySet` objects are put there, below.
        let object = unsafe { object.cast_into_unchecked::<PyKeySet>() };
        if object.get().0 == set {
            return Ok(object);
        }
    }
    let object = Bound::new(py, PyKeySet(set))?;
    let old = slot.swap(object.clone().into_ptr(), Ordering::AcqRel);
    // SAFETY: the slot owned this reference and gave it up with the swap.
    drop(unsafe { Bound::from_owned_ptr_or_opt(py, old) });
    Ok(object)
}

/// A set from a set, a key, or a name.
#[inline]
pub(crate) fn keyset_from(given: &Bound<'_, PyAny>) -> PyResult<DispatchKeySet> {
    if let Ok(set) = given.cast_exact::<PyKeySet>() {
        return Ok(set.get().0);
    }
    if let Ok(name) = given.cast_exact::<PyString>() {
        return named_set(name);
    }
    if let Ok(key) = given.cast::<PyKey>() {
        return Ok(key.get().0.into());
    }
    match given.cast::<PyString>() {
        Ok(name) => DispatchKeySet::parse(&name.to_string_lossy()).py(given.py()),
        Err(_) => Err(not_a_key(given)),
    }
}

/// Sets that names stand for, by the address of the name's object: a literal in a layer's source
/// is one object. Each slot owns its object, so an address stands for one name while it is there.
/// Only used under the GIL.
static NAMED: [(AtomicPtr<ffi::PyObject>, AtomicU64); 64] =
    [const { (AtomicPtr::new(std::ptr::null_mut()), AtomicU64::new(0)) }; 64];

/// The set of a name, remembered: a name never comes to mean another key.
#[inline]
fn named_set(name: &Bound<'_, PyString>) -> PyResult<DispatchKeySet> {
    let (object, bits) = &NAMED[(name.as_ptr() as usize >> 4) % NAMED.len()];
    if object.load(Ordering::Acquire) == name.as_ptr() {
        return Ok(DispatchKeySet::from_bits(bits.load(Ordering::Relaxed)));
    }
    let set = DispatchKeySet::parse(&name.to_string_lossy()).py(name.py())?;
    bits.store(set.bits(), Ordering::Relaxed);
    let old = object.swap(name.clone().into_ptr(), Ordering::AcqRel);
    // SAFETY: the slot owned this reference and gave it up with the swap; the GIL is held.
    drop(unsafe { Bound::from_owned_ptr_or_opt(name.py(), old) });
    Ok(set)
}

/// The keys that a set loses: as [`keyset_from`], but of a narrowed name (`AutogradCPU`) the
/// functionality alone.
#[inline]
pub(crate) fn removed_from(given: &Bound<'_, PyAny>) -> PyResult<DispatchKeySet> {
    let set = keyset_from(given)?;
    if (set & DispatchKeySet::BACKENDS).is_empty() {
        return Ok(set);
    }
    Ok(without_backend(given, set))
}

#[cold]
fn without_backend(given: &Bound<'_, PyAny>, set: DispatchKeySet) -> DispatchKeySet {
    // A name stands for one key, or for a functionality with its backend.
    let functionality = set - DispatchKeySet::BACKENDS;
    let is_narrowed = given.is_instance_of::<PyString>() && !functionality.is_empty();
    if is_narrowed { functionality } else { set }
}

/// The union of what [`removed_from`] gives.
pub(crate) fn removed_from_all(given: &Bound<'_, PyTuple>) -> PyResult<DispatchKeySet> {
    given.iter().try_fold(DispatchKeySet::EMPTY, |set, item| Ok(set | removed_from(&item)?))
}

/// The union of sets, keys and names.
pub(crate) fn keyset_from_all(given: &Bound<'_, PyTuple>) -> PyResult<DispatchKeySet> {
    given.iter().try_fold(DispatchKeySet::EMPTY, |set, item| Ok(set | keyset_from(&item)?))
}

#[pymethods]
impl PyKeySet {
    #[new]
    #[pyo3(signature = (*keys))]
    fn new(keys: &Bound<'_, PyTuple>) -> PyResult<Self> {
        keyset_from_all(keys).map(PyKeySet)
    }

    /// Every key of this process, the user's included.
    #[staticmethod]
    fn all(py: Python<'_>) -> PyResult<Bound<'_, PyKeySet>> {
        keyset_object(py, DispatchKeySet::all())
    }

    /// The key of highest priority; None for the empty set.
    fn highest(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        self.0.highest().map(|key| key_object(py, key)).transpose()
    }

    // `add` and `remove` are in `classes::method_defs`.

    fn __or__<'py>(&self, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyKeySet>> {
        keyset_object(other.py(), self.0 | keyset_from(other)?)
    }

    fn __and__<'py>(&self, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyKeySet>> {
        keyset_object(other.py(), self.0 & keyset_from(other)?)
    }

    fn __sub__<'py>(&self, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyKeySet>> {
        keyset_object(other.py(), self.0 - removed_from(other)?)
    }

    fn __contains__(&self, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let wanted = keyset_from(key)?;
        Ok((self.0 & wanted) == wanted)
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let keys = self.0.iter().map(|key| key_object(py, key)).collect::<PyResult<Vec<_>>>()?;
        Ok(PyTuple::new(py, keys)?.try_iter()?.into_any())
    }

    fn __richcmp__(&self, other: &Bound<'_, PyAny>, op: CompareOp) -> PyResult<Py<PyAny>> {
        let py = other.py();
        let Ok(other) = other.cast::<PyKeySet>() else { return Ok(py.NotImplemented()) };
        let (a, b) = (self.0, other.get().0);
        let result = match op {
            CompareOp::Eq => a == b,
            CompareOp::Ne => a != b,
            // As Python's own sets order: by inclusion.
            CompareOp::Le => (a - b).is_empty(),
            CompareOp::Lt => (a - b).is_empty() && a != b,
            CompareOp::Ge => (b - a).is_empty(),
            CompareOp::Gt => (b - a).is_empty() && a != b,
        };
        Ok(result.into_pyobject(py)?.to_owned().into_any().unbind())
    }

    fn __hash__(&self) -> u64 {
        hash(self.0)
    }

    fn __bool__(&self) -> bool {
        !self.0.is_empty()
    }

    fn __repr__(&self) -> String {
        self.0.to_string()
    }

    fn __reduce__<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyType>, Bound<'py, PyTuple>)> {
        let names = self.0.iter().map(DispatchKey::name);
        Ok((py.get_type::<PyKeySet>(), PyTuple::new(py, names.collect::<Vec<_>>())?))
    }
}

/// Registers a functionality key between two built-in ones.
///
/// Args:
///     name: the key's name, an identifier.
///     above: the key right below it in priority, built in or registered.
///     skippable: whether calls skip it where it has no kernel (a mode). Otherwise it says what
///         the data is, and a call without a kernel for it is an error.
///
/// Returns:
///     The key. Asking again with the same name and position returns the same one.
///
/// Raises:
///     keyfold.UnknownKey: the name is taken elsewhere, or no place is left there.
#[pyfunction]
#[pyo3(signature = (name, *, above, skippable=false))]
pub(crate) fn register_key(
    py: Python<'_>,
    name: Text,
    above: &Bound<'_, PyAny>,
    skippable: bool,
) -> PyResult<Py<PyAny>> {
    let above = key_from(above)?;
    key_object(py, keyfold_dispatch::register_key(&name, above, skippable).py(py)?)
}

/// The set in an object that is exactly a `DispatchKeySet`.
///
/// # Safety
/// `object` is a live object, and the GIL is held.
#[inline(always)]
pub(crate) unsafe fn exact_set(object: *mut ffi::PyObject) -> Option<DispatchKeySet> {
    // SAFETY: as for the caller; the content is read after the type check.
    unsafe {
        if ffi::Py_TYPE(object) != KEYSET_TYPE.load(Ordering::Relaxed) {
            return None;
        }
        let object = Borrowed::from_ptr(Python::assume_attached(), object);
        Some(object.cast_unchecked::<PyKeySet>().get().0)
    }
}

static KEYSET_TYPE: AtomicPtr<ffi::PyTypeObject> = AtomicPtr::new(std::ptr::null_mut());

/// Notes the type object that the call path compares with. Called once, at import.
pub(crate) fn init(py: Python<'_>) {
    KEYSET_TYPE.store(py.get_type::<PyKeySet>().as_ptr().cast(), Ordering::Release);
}
