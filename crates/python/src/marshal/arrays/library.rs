//! The interface to array libraries: one implementation of [`ArrayLibrary`] each, and a line in
//! `classes::LIBRARIES`.

use std::mem::MaybeUninit;
use std::sync::atomic::AtomicBool;

use keyfold_core::Result;
use keyfold_dispatch::Tag;
use keyfold_tensor::Tensor;
use keyfold_tensor::dlpack::{DLTensor, ExchangeApi};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyType;

/// The table of DLPack's C exchange API that an object's class has.
pub(crate) type Api = Option<&'static ExchangeApi>;

/// A library whose arrays operators take and return.
///
/// The objects that methods get are of a class that the library owns.
pub(crate) trait ArrayLibrary: Sync {
    /// Whether a class is the library's class of arrays; `module` is the outermost module that it says
    /// it is of, `name` its qualified name. Classes that derive from it are the library's, too.
    ///
    /// # Errors
    /// A class of the library's whose objects can't be taken, with the reason.
    fn owns(&self, class: &Bound<'_, PyType>, module: &str, name: &str) -> Result<bool>;

    /// The keys and the device of an array.
    ///
    /// # Errors
    /// A dtype or device that keyfold lacks, with what to do; what the library raises.
    fn look(&self, object: &Bound<'_, PyAny>, api: Api) -> Result<Tag>;

    /// A view of an array, which keeps its memory. `written` says that a kernel will write it.
    ///
    /// # Errors
    /// An array that can't be viewed, with a remedy; the library's own errors.
    fn view(&self, object: &Bound<'_, PyAny>, api: Api, written: bool) -> Result<Tensor>;

    /// An array over a tensor's memory; `like` finds an array of the library among the call's.
    ///
    /// # Errors
    /// The library's own errors.
    fn give<'py>(
        &self,
        py: Python<'py>,
        tensor: Tensor,
        like: &dyn Fn() -> Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>>;

    /// Whether it has arrays without memory. Other libraries' results on meta are keyfold's tensors.
    fn has_meta(&self) -> bool {
        false
    }

    /// Whether its arrays are read and made by DLPack alone, which runs code of the library's.
    fn is_dlpack(&self) -> bool {
        false
    }

    /// Whether its arrays may be read without the GIL, whatever else runs meanwhile.
    fn reads_without_gil(&self) -> bool {
        false
    }

    /// [`ArrayLibrary::look`] without a call into Python; `None` where it takes one.
    ///
    /// # Safety
    /// `object` is a live array of the library's, and the GIL is held.
    unsafe fn look_fast(&self, _object: *mut ffi::PyObject) -> Option<Tag> {
        None
    }

    /// [`ArrayLibrary::look_fast`] of an array whose dtype was looked at already.
    ///
    /// # Safety
    /// As [`ArrayLibrary::look_fast`].
    unsafe fn look_again(&self, object: *mut ffi::PyObject) -> Option<Tag> {
        // SAFETY: as for the caller.
        unsafe { self.look_fast(object) }
    }

    /// How many elements an array has, if that is quickly known; 0 otherwise.
    ///
    /// # Safety
    /// As [`ArrayLibrary::look_fast`].
    unsafe fn numel(&self, _object: *mut ffi::PyObject) -> usize {
        0
    }

    /// Writes a view into `slot` without the GIL, for as long as somebody else holds the array; `None`
    /// where the library has to be asked. The array isn't one that is written.
    ///
    /// # Safety
    /// `object` is a live array of the library's that nobody changes now, and the view is dropped before
    /// it is.
    unsafe fn write_fast(
        &self,
        _slot: &mut MaybeUninit<Tensor>,
        _object: *mut ffi::PyObject,
    ) -> Option<Result<()>> {
        None
    }

    /// Writes a view into `slot`, for as long as somebody else holds the array.
    ///
    /// # Errors
    /// As [`ArrayLibrary::view`]; then the slot stays unfilled.
    ///
    /// # Safety
    /// As [`ArrayLibrary::write_fast`].
    unsafe fn write_view(
        &self,
        slot: &mut MaybeUninit<Tensor>,
        object: &Bound<'_, PyAny>,
        api: Api,
        written: bool,
    ) -> Result<()> {
        slot.write(self.view(object, api, written)?);
        Ok(())
    }

    /// An array's memory as the library itself describes it, without a view and without the GIL; `None`
    /// where a view is needed. `free` keeps what was found out with the GIL.
    ///
    /// # Safety
    /// As [`ArrayLibrary::write_fast`]; what is described is good as long as the array isn't changed.
    unsafe fn lend(&self, _object: *mut ffi::PyObject, _free: &AtomicBool) -> Option<DLTensor> {
        None
    }
}

/// Whether a loaded module has exactly this class under its name, and the class is an extension's or
/// derived from one. A name alone proves nothing where objects are read where they lie, and a plain Python
/// class has none of the fields that would be read.
pub(crate) fn is_loaded(class: &Bound<'_, PyType>, module: &str) -> bool {
    let there = || -> PyResult<bool> {
        let modules = class.py().import("sys")?.getattr("modules")?;
        let found = modules.get_item(module)?.getattr(class.qualname()?)?;
        let plain = class.py().get_type::<PyAny>().getattr("__basicsize__")?.extract::<usize>()?;
        let size = class.getattr("__basicsize__")?.extract::<usize>()?;
        Ok(found.is(class) && size >= plain + size_of::<usize>())
    };
    there().unwrap_or(false)
}
