//! A caller's argument for the time of one call: its keys, a lazy view, and itself.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::Tag;
use keyfold_tensor::dlpack::DLTensor;
use keyfold_tensor::{ForeignObject, Tensor, Value};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::call::params::Param;
use crate::marshal::arrays::numpy_array::{self, is_ndarray};
use crate::marshal::arrays::{self, caller::Caller, classes};
use crate::marshal::attach::attach;
use crate::marshal::describe::describe;
use crate::marshal::errors;
use crate::marshal::py_value::PyValue;
use crate::marshal::tensor::OF_AN_OBJECT;

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
        self.library == Caller::OTHER
            || classes::library(self.library).is_some_and(|library| library.is_dlpack())
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
        if unsafe { is_ndarray(self.object) } {
            // SAFETY: as above; the slot is filled on success.
            unsafe {
                numpy_array::write_view(slot, self.object)?;
                slot.assume_init_mut().set_token(OF_AN_OBJECT);
            }
            return Ok(());
        }
        // A write has to be noted with the array's library.
        if let Some(library) = classes::library(self.library)
            && !self.param().written
        {
            // SAFETY: as above; the library says what it is.
            if let Some(written) = unsafe { library.write_fast(slot, self.object) } {
                written?;
                // SAFETY: filled, as that succeeded.
                unsafe { slot.assume_init_mut().set_token(OF_AN_OBJECT) };
                return Ok(());
            }
        }
        attach(|py| {
            // SAFETY: as above, and attached; the slot is filled on success.
            unsafe { self.view_other(py, slot) }
                .map_err(|error| errors::at(py, error, &self.param().place))
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
            match (classes::library(self.library), classes::find(self.object)) {
                (Some(library), Some(class)) => {
                    library.write_view(slot, &object, class.api, written)?;
                }
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
        let library = classes::library(self.library).filter(|_| !self.param().written)?;
        // SAFETY: alive by the contract of `new`, and of the library that was told by its class.
        unsafe { library.lend(self.object, &self.free) }
    }

    fn is_of_registered_class(&self) -> bool {
        self.library == Caller::OTHER
    }

    fn describe(&self) -> String {
        describe(self.object)
    }

    fn to_owned_value(&self) -> Result<Value> {
        // SAFETY: alive by the contract of `new`.
        Ok(unsafe { PyValue::value(self.object, self.tag) })
    }

    fn original(&self) -> *mut c_void {
        self.object.cast()
    }
}
