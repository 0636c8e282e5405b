//! A Python object as an argument or a result of native code: its keys, a lazy view, and itself.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::Tag;
use keyfold_tensor::dlpack::DLTensor;
use keyfold_tensor::{ForeignObject, Tensor, Value};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::arrays::library::Caller;
use crate::arrays::{self, numpy_array, torch, tvm};
use crate::attach::{attach, reattach, try_attach};
use crate::params::Param;

/// What the token of a tensor says that is the view of a caller's object.
pub(crate) const OF_AN_OBJECT: usize = 1;

const EMPTY: u8 = 0;
const FILLING: u8 = 1;
const FILLED: u8 = 2;

/// A caller's argument, for the time of one call.
pub(crate) struct Argument {
    object: *mut ffi::PyObject,
    tag: Tag,
    library: Caller,
    /// Whether a torch tensor was found to have no part in gradients.
    free: AtomicBool,
    param: *const Param,
    /// Whether `view` is filled: `EMPTY`, `FILLING` by one thread, or `FILLED`, which stays so.
    state: AtomicU8,
    view: UnsafeCell<MaybeUninit<Tensor>>,
}

// SAFETY: the object is only read, under the GIL or through the view, and of the parameter only what
// never changes.
unsafe impl Send for Argument {}
// SAFETY: as above; the view is filled by the one thread that set `FILLING`, and read after `FILLED`.
unsafe impl Sync for Argument {}

impl Argument {
    /// # Safety
    /// `object` and `param` are alive as long as the argument.
    #[inline(always)]
    pub(crate) unsafe fn new(
        object: *mut ffi::PyObject,
        (tag, library): (Tag, Caller),
        param: &Param,
    ) -> Self {
        let view = UnsafeCell::new(MaybeUninit::uninit());
        Argument {
            object,
            tag,
            library,
            free: AtomicBool::new(false),
            param,
            state: AtomicU8::new(EMPTY),
            view,
        }
    }

    /// Whether a view of it may run code in Python.
    pub(crate) fn runs_python(&self) -> bool {
        let theirs = Caller::DLPACK.with(Caller::CUPY).with(Caller::OTHER);
        self.library.has(theirs)
    }

    fn param(&self) -> &Param {
        // SAFETY: alive by the contract of `new`.
        unsafe { &*self.param }
    }

    #[inline(never)]
    fn make_view(&self) -> Result<()> {
        while let Err(state) = self.begin() {
            if state == FILLED {
                return Ok(());
            }
            // Another thread of a kernel is at it.
            std::thread::yield_now();
        }
        // SAFETY: this thread alone set `FILLING`, so nobody has a reference to what is inside;
        // nothing below comes back here.
        let filled = self.fill(unsafe { &mut *self.view.get() });
        self.state.store(if filled.is_ok() { FILLED } else { EMPTY }, Ordering::Release);
        filled
    }

    #[inline(always)]
    fn begin(&self) -> std::result::Result<u8, u8> {
        self.state.compare_exchange(EMPTY, FILLING, Ordering::Acquire, Ordering::Acquire)
    }

    /// Fills the slot, on success.
    #[inline(always)]
    fn fill(&self, slot: &mut MaybeUninit<Tensor>) -> Result<()> {
        // SAFETY: alive by the contract of `new`; an exact ndarray's fields change only under
        // the GIL by its owner, who is in this call.
        if unsafe { arrays::is_ndarray(self.object) } {
            // SAFETY: as above; the slot is filled on success.
            unsafe {
                numpy_array::write_view(slot, self.object)?;
                slot.assume_init_mut().set_token(OF_AN_OBJECT);
            }
            return Ok(());
        }
        // What is written has to be noted with its library.
        if self.library.is_quick() && !self.param().written {
            // SAFETY: as above; the library says what it is.
            let written = unsafe {
                match self.library {
                    Caller::TORCH => torch::write_plain(slot, self.object),
                    _ => tvm::write_view(slot, self.object),
                }
            };
            if let Some(written) = written {
                written?;
                // SAFETY: filled, as that succeeded.
                unsafe { slot.assume_init_mut().set_token(OF_AN_OBJECT) };
                return Ok(());
            }
        }
        attach(|py| {
            // SAFETY: as above, and attached; the slot is filled on success.
            unsafe { self.view_other(py, slot) }
                .map_err(|error| crate::errors::at(py, error, &self.param().place))
        })
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
            let object = Bound::from_borrowed_ptr(py, self.object);
            match self.library {
                Caller::TORCH => torch::write_view(slot, &object, written)?,
                _ => {
                    slot.write(arrays::view_for(&object, written)?);
                }
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
        if *self.state.get_mut() == FILLED {
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
        if self.state.load(Ordering::Acquire) != FILLED {
            self.make_view().map_err(|error| error.at(&self.param().place))?;
        }
        // SAFETY: filled, and never written again while `self` lives.
        Ok(unsafe { (*self.view.get()).assume_init_ref() })
    }

    #[inline]
    fn lend(&self) -> Option<DLTensor> {
        if !self.library.is_quick() || self.param().written {
            return None;
        }
        // SAFETY: alive by the contract of `new`, and of the library that was told by its class.
        unsafe {
            match self.library {
                Caller::TORCH => torch::lend(self.object, &self.free),
                _ => tvm::lend(self.object),
            }
        }
    }

    fn is_of_registered_class(&self) -> bool {
        self.library == Caller::OTHER
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
        let object = reattach(|py| {
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
            if crate::attach::is_attached() {
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
        let view = attach(|py| arrays::view(self.object.bind(py)))?;
        Ok(self.view.get_or_init(|| Box::new(view.with_token(OF_AN_OBJECT))))
    }

    fn is_of_registered_class(&self) -> bool {
        attach(|py| arrays::kind::is_registered(self.object.bind(py))).unwrap_or(false)
    }

    fn describe(&self) -> String {
        describe(self.object.as_ptr())
    }

    fn to_owned_value(&self) -> Result<Value> {
        // SAFETY: `self` holds a reference; attached.
        attach(|_py| Ok(unsafe { Object::value(self.object.as_ptr(), self.tag) }))
    }

    fn original(&self) -> *mut c_void {
        self.object.as_ptr().cast()
    }
}

/// An object for an error message: `numpy.ndarray float64[2, 3]`, `str 'abc'`.
fn describe(object: *mut ffi::PyObject) -> String {
    let described = try_attach(|py| {
        // SAFETY: callers hold the object.
        let object = unsafe { Bound::from_borrowed_ptr(py, object) };
        describe_object(&object)
    });
    described.unwrap_or_else(|| "an object of an interpreter that has ended".to_owned())
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
