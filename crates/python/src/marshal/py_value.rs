//! A Python object as a value that native code keeps.

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::sync::{Arc, OnceLock};

use keyfold_core::Result;
use keyfold_dispatch::Tag;
use keyfold_tensor::{ForeignObject, Tensor, Value};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::marshal::arrays;
use crate::marshal::attach::{attach, is_attached, reattach};
use crate::marshal::describe::describe;
use crate::marshal::tensor::{OF_AN_OBJECT, is_tensor, tensor_of};

/// A Python object that native code keeps: a result on its way to the caller, a saved argument.
pub(crate) struct PyValue {
    object: ManuallyDrop<Py<PyAny>>,
    tag: Tag,
    /// In a box: most objects on their way are never viewed, and all of them are moved.
    view: OnceLock<Box<Tensor>>,
}

impl PyValue {
    /// The object as a value.
    ///
    /// # Safety
    /// `object` is alive.
    pub(crate) unsafe fn value(object: *mut ffi::PyObject, tag: Tag) -> Value {
        let object = reattach(|py| {
            // SAFETY: as for the caller.
            unsafe { Bound::from_borrowed_ptr(py, object) }.unbind()
        });
        Value::Foreign(Arc::new(PyValue {
            object: ManuallyDrop::new(object),
            tag,
            view: OnceLock::new(),
        }))
    }

    /// The object as a value, with the keys that it counts with; none where it is no array.
    ///
    /// # Errors
    /// As [`arrays::look`].
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> Result<Value> {
        let tag = arrays::look(object)?.map_or(Tag::NONE, |(tag, _)| tag);
        // SAFETY: a bound object is alive.
        Ok(unsafe { PyValue::value(object.as_ptr(), tag) })
    }
}

impl Drop for PyValue {
    fn drop(&mut self) {
        // SAFETY: the reference is this value's, and isn't used any more. Calls from Python hold the
        // GIL without PyO3 knowing, which would put the reference aside for later: giving it back
        // at once is several times cheaper.
        unsafe {
            let object = ManuallyDrop::take(&mut self.object);
            if is_attached() {
                ffi::Py_DECREF(object.into_ptr());
            }
        }
    }
}

impl ForeignObject for PyValue {
    fn tag(&self) -> Tag {
        self.tag
    }

    fn is_tensor(&self) -> bool {
        true
    }

    fn tensor(&self) -> Result<&Tensor> {
        let object = self.object.as_ptr();
        // SAFETY: a live object, whose type is checked first; a tensor object never changes, and
        // `self` keeps it.
        if let Some(own) = unsafe { is_tensor(object).then(|| tensor_of(object)) } {
            return Ok(own);
        }
        if let Some(view) = self.view.get() {
            return Ok(view);
        }
        let view = attach(|py| arrays::view(self.object.bind(py)))?;
        Ok(self.view.get_or_init(|| Box::new(view.with_token(OF_AN_OBJECT))))
    }

    fn is_of_registered_class(&self) -> bool {
        attach(|py| arrays::is_registered(self.object.bind(py))).unwrap_or(false)
    }

    fn describe(&self) -> String {
        describe(self.object.as_ptr())
    }

    fn to_owned_value(&self) -> Result<Value> {
        // SAFETY: `self` holds a reference; attached.
        attach(|_py| Ok(unsafe { PyValue::value(self.object.as_ptr(), self.tag) }))
    }

    fn original(&self) -> *mut c_void {
        self.object.as_ptr().cast()
    }
}
