//! Classes that users registered: `keyfold.register_array_type`.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use keyfold_dispatch::DispatchKeySet;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::marshal::argument::{wrong_type, wrong_value};
use crate::marshal::arrays::{classes, numpy_array};
use crate::marshal::keys::keyset_from;
use crate::marshal::tensor;

/// Where a registered class's keys come from.
pub(crate) enum Keys {
    Fixed(DispatchKeySet),
    Function(Py<PyAny>),
}

pub(crate) struct Registered {
    class: Py<PyType>,
    pub(crate) keys: Keys,
    /// Makes an instance out of a `keyfold.Tensor`.
    pub(crate) wrap: Option<Py<PyAny>>,
}

/// Registered classes by the address of their type object, which the entry keeps alive.
static REGISTERED: RwLock<Option<HashMap<usize, Arc<Registered>>>> = RwLock::new(None);

/// Finds the registration of an object's class, or of the nearest base class that has one.
pub(crate) fn find(object: &Bound<'_, PyAny>) -> Option<Arc<Registered>> {
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
    if tensor::is_class(pointer) || numpy_array::is_class(pointer) {
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
    classes::forget_all();
    Ok(())
}

/// The registered classes' names.
pub(crate) fn names(py: Python<'_>) -> Vec<String> {
    let table = REGISTERED.read().unwrap_or_else(PoisonError::into_inner);
    let classes = table.iter().flat_map(HashMap::values);
    let names = classes.map(|entry| entry.class.bind(py).fully_qualified_name());
    names.flatten().map(|name| name.to_string()).collect()
}
