//! A Python object as an argument or a result of native code: its keys, a lazy view, and itself.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::Tag;
use keyfold_tensor::{ForeignObject, Tensor, Value};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::params::Param;
use crate::types::{self, Way};
use crate::{arrays, numpy_array, torch};

/// What the token of a tensor says that is the view of a caller's object.
pub(crate) const OF_AN_OBJECT: usize = 1;

/// A caller's argument, for the time of one call.
pub(crate) struct Argument {
    object: *mut ffi::PyObject,
    tag: Tag,
    param: *const Param,
    /// Whether `view` is filled; it is at most once, under `filling`, and never changes after.
    viewed: AtomicBool,
    filling: Mutex<()>,
    view: UnsafeCell<MaybeUninit<Tensor>>,
}

// SAFETY: the object is only read, under the GIL or through the view, and of the parameter only what
// never changes.
unsafe impl Send for Argument {}
// SAFETY: as above; the view is filled by one thread, under the lock, and read after `viewed`.
unsafe impl Sync for Argument {}

impl Argument {
    /// # Safety
    /// `object` and `param` are alive as long as the argument.
    #[inline(always)]
    pub(crate) unsafe fn new(object: *mut ffi::PyObject, tag: Tag, param: &Param) -> Self {
        let view = UnsafeCell::new(MaybeUninit::uninit());
        let (viewed, filling) = (AtomicBool::new(false), Mutex::new(()));
        Argument { object, tag, param, viewed, filling, view }
    }

    fn param(&self) -> &Param {
        // SAFETY: alive by the contract of `new`.
        unsafe { &*self.param }
    }

    fn make_view(&self) -> Result<()> {
        let _filling = self.filling.lock().unwrap_or_else(PoisonError::into_inner);
        if self.viewed.load(Ordering::Acquire) {
            return Ok(());
        }
        // SAFETY: not filled yet, so nobody has a reference to what is inside, and the lock keeps
        // other threads out; nothing below comes back here.
        let slot = unsafe { &mut *self.view.get() };
        // SAFETY: alive by the contract of `new`; an exact ndarray's fields change only under
        // the GIL by its owner, who is in this call.
        if unsafe { arrays::is_ndarray(self.object) } {
            // SAFETY: as above; the slot is filled on success.
            unsafe {
                numpy_array::write_view(slot, self.object)?;
                slot.assume_init_mut().set_token(OF_AN_OBJECT);
            }
        } else {
            Python::attach(|py| {
                // SAFETY: as above, and attached; the slot is filled on success.
                unsafe { self.view_other(py, slot) }
                    .map_err(|error| crate::errors::at(py, error, &self.param().place))
            })?;
        }
        self.viewed.store(true, Ordering::Release);
        Ok(())
    }
}

impl Argument {
    /// Writes the view of an array that isn't NumPy's into the slot.
    ///
    /// # Safety
    /// The object is alive, and stays so longer than the view.
    unsafe fn view_other(&self, py: Python<'_>, slot: &mut MaybeUninit<Tensor>) -> Result<()> {
        let written = self.param().written;
        // SAFETY: as for the caller; the class says that it is torch's; a filled slot is read.
        unsafe {
            if let Some(Way::Torch(_)) = types::find(self.object).map(|known| known.way) {
                torch::write_view(slot, self.object, written)?;
            } else {
                let object = Bound::from_borrowed_ptr(py, self.object);
                slot.write(arrays::view_for(&object, written)?);
            }
            let view = slot.assume_init_mut();
            view.set_token(OF_AN_OBJECT);
            let (said, is) = (self.tag.device(), view.device());
            if said.is_some_and(|said| said != is && self.tag.keys().backend().is_some()) {
                slot.assume_init_drop();
                let said = said.unwrap_or_default();
                return Err(Error::new(
                    ErrorKind::Exchange,
                    format!("it says that it is on {said}, but its memory is on {is}"),
                ));
            }
        }
        Ok(())
    }
}

impl Drop for Argument {
    #[inline]
    fn drop(&mut self) {
        if *self.viewed.get_mut() {
            // SAFETY: filled.
            unsafe { self.view.get_mut().assume_init_drop() };
        }
    }
}

impl ForeignObject for Argument {
    fn tag(&self) -> Tag {
        self.tag
    }

    fn is_tensor(&self) -> bool {
        true
    }

    fn tensor(&self) -> Result<&Tensor> {
        if !self.viewed.load(Ordering::Acquire) {
            self.make_view().map_err(|error| error.at(&self.param().place))?;
        }
        // SAFETY: filled, and never written again while `self` lives.
        Ok(unsafe { (*self.view.get()).assume_init_ref() })
    }

    fn describe(&self) -> String {
        describe(self.object)
    }

    fn to_owned_value(&self) -> Result<Value> {
        // SAFETY: alive by the contract of `new`.
        Ok(unsafe { Object::value(self.object, self.tag) })
    }

    fn original(&self) -> *mut c_void {
        self.object.cast()
    }
}

/// A Python object that native code keeps: a result on its way to the caller, a saved argument.
pub(crate) struct Object {
    object: ManuallyDrop<Py<PyAny>>,
    tag: Tag,
    /// In a box: most objects on their way are never viewed, and all of them are moved.
    view: OnceLock<Box<Tensor>>,
}

impl Object {
    /// The object as a value.
    ///
    /// # Safety
    /// `object` is alive.
    pub(crate) unsafe fn value(object: *mut ffi::PyObject, tag: Tag) -> Value {
        let object = Python::attach(|py| {
            // SAFETY: as for the caller.
            unsafe { Bound::from_borrowed_ptr(py, object) }.unbind()
        });
        Value::Foreign(std::sync::Arc::new(Object {
            object: ManuallyDrop::new(object),
            tag,
            view: OnceLock::new(),
        }))
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: the reference is this value's, and isn't used any more. Calls from Python hold the
        // GIL without PyO3 knowing, which would put the reference aside for later: giving it back
        // at once is several times cheaper.
        unsafe {
            let object = ManuallyDrop::take(&mut self.object);
            if ffi::PyGILState_Check() == 1 {
                ffi::Py_DECREF(object.into_ptr());
            }
        }
    }
}

impl ForeignObject for Object {
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
        if let Some(own) = unsafe { arrays::is_tensor(object).then(|| arrays::tensor_of(object)) } {
            return Ok(own);
        }
        if let Some(view) = self.view.get() {
            return Ok(view);
        }
        let view = Python::attach(|py| arrays::view(self.object.bind(py)))?;
        Ok(self.view.get_or_init(|| Box::new(view.with_token(OF_AN_OBJECT))))
    }

    fn describe(&self) -> String {
        describe(self.object.as_ptr())
    }

    fn to_owned_value(&self) -> Result<Value> {
        // SAFETY: `self` holds a reference.
        Ok(unsafe { Object::value(self.object.as_ptr(), self.tag) })
    }

    fn original(&self) -> *mut c_void {
        self.object.as_ptr().cast()
    }
}

/// An object for an error message: `numpy.ndarray float64[2, 3]`, `str 'abc'`.
fn describe(object: *mut ffi::PyObject) -> String {
    Python::attach(|py| {
        // SAFETY: callers hold the object.
        let object = unsafe { Bound::from_borrowed_ptr(py, object) };
        describe_object(&object)
    })
}

/// An object for an error message: `numpy.ndarray float64[2, 3]`, `str 'abc'`.
pub(crate) fn describe_object(object: &Bound<'_, PyAny>) -> String {
    if object.is_none() {
        return "None".to_owned();
    }
    let kind = object.get_type();
    let name = match kind.fully_qualified_name() {
        Ok(name) => name.to_string(),
        Err(_) => "?".to_owned(),
    };
    let array = || -> PyResult<String> {
        let shape: Vec<usize> = object.getattr("shape")?.extract()?;
        Ok(format!("{name} {}{shape:?}", object.getattr("dtype")?.str()?))
    };
    if let Ok(text) = array() {
        return text;
    }
    match object.repr() {
        Ok(repr) => {
            let repr = repr.to_string();
            let short: String = repr.chars().take(60).collect();
            let more = if short.len() < repr.len() { "..." } else { "" };
            format!("{name} {short}{more}")
        }
        Err(_) => name,
    }
}
