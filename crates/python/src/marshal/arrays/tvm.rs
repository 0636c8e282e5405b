//! TVM FFI's own tensors (`tvm_ffi.Tensor`) as arguments and results.
//!
//! Such an object holds the handle of an object of the library, with the `DLTensor` behind its header.
//! Where the handle lies in the Python object isn't promised: it is compared with what the object
//! says (`__chandle__`) when the first one is seen. If it isn't there, `__dlpack__` is asked.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use keyfold_core::{Device, Error, ErrorKind, Result};
use keyfold_dispatch::{DispatchKey, DispatchKeySet, Tag};
use keyfold_ffi::object::Object;
use keyfold_ffi::{abi, runtime};
use keyfold_tensor::dlpack::{
    DL_CPU, DL_EXT_DEV, DLTensor, device_from_dl, dtype_from_dl, first_element,
};
use keyfold_tensor::{DeviceBuffer, ExternalOps, Lent, Tensor, TrackedBuffer};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::marshal::arrays::dlpack;
use crate::marshal::arrays::library::{Api, ArrayLibrary, is_loaded};
use crate::marshal::arrays::owners::{self, Loan};
use crate::marshal::arrays::protocol::{self, tag_on};
use crate::marshal::attach::try_attach;
use crate::marshal::errors::{IntoPyResult, from_pyerr};
use crate::marshal::tensor::wrap;

/// Where the handle is expected: behind what every object begins with.
const HANDLE: usize = size_of::<ffi::PyObject>();

const CPU: DispatchKeySet = DispatchKeySet::EMPTY.insert(DispatchKey::CPU);

const UNSEEN: u8 = 0;
const RIGHT: u8 = 1;
const WRONG: u8 = 2;
static LAYOUT: AtomicU8 = AtomicU8::new(UNSEEN);

/// Compares the handle with what the object says, once.
#[cold]
fn calibrate(object: &Bound<'_, PyAny>) {
    let said = object.call_method0("__chandle__").and_then(|handle| handle.extract::<usize>());
    let class = object.get_type();
    let large = class.getattr("__basicsize__").and_then(|size| size.extract::<usize>());
    let fits = large.is_ok_and(|size| size >= HANDLE + size_of::<usize>());
    // SAFETY: the object is that large.
    let found = fits.then(|| unsafe { handle_at(object.as_ptr()) }.addr());
    let right = said.is_ok_and(|said| said != 0 && Some(said) == found);
    LAYOUT.store(if right { RIGHT } else { WRONG }, Ordering::Relaxed);
}

/// # Safety
/// `object` is a live object with a word at that place.
#[inline(always)]
unsafe fn handle_at(object: *mut ffi::PyObject) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { object.cast::<u8>().add(HANDLE).cast::<*mut c_void>().read() }
}

/// Reads the library's description of the object's memory.
///
/// # Safety
/// `object` is a live `tvm_ffi.Tensor`, and the GIL is held while the description is used.
#[inline(always)]
unsafe fn described<'a>(object: *mut ffi::PyObject) -> Option<&'a DLTensor> {
    if LAYOUT.load(Ordering::Relaxed) != RIGHT {
        return None;
    }
    // SAFETY: as for the caller; the place was checked. A moved-from object has a null handle.
    unsafe {
        let handle = NonNull::new(handle_at(object))?.cast::<abi::Header>();
        (handle.as_ref().type_index == abi::TENSOR).then(|| &*abi::cell(handle.as_ptr()))
    }
}

/// Returns the owner of a tensor's memory beyond the call: the library's object, not Python's.
///
/// # Safety
/// `object` is a live `tvm_ffi.Tensor`.
unsafe fn adopt(object: *mut c_void, lent: Lent) -> Option<Arc<dyn DeviceBuffer>> {
    try_attach(|py| {
        // SAFETY: as for the caller; the place of the handle was checked before a view was made.
        unsafe {
            let held = Object::shared(handle_at(object.cast()), runtime::loaded()?)?;
            let source = Bound::from_borrowed_ptr(py, object.cast()).unbind();
            let owner = owners::held(source, Loan::Kept(Box::new(held)));
            let buffer: Arc<dyn DeviceBuffer> = Arc::new(TrackedBuffer::new(owner, lent));
            Some(buffer)
        }
    })
    .flatten()
}

/// How tensors hold memory of TVM FFI's tensors, which can be moved out of their Python object.
static OPS: ExternalOps = owners::object_ops(Some(adopt));

/// `tvm_ffi.Tensor`.
pub(crate) struct Tvm;

impl ArrayLibrary for Tvm {
    fn owns(&self, class: &Bound<'_, PyType>, module: &str, name: &str) -> Result<bool> {
        Ok((module, name) == ("tvm_ffi", "Tensor") && is_loaded(class, "tvm_ffi.core"))
    }

    fn look(&self, object: &Bound<'_, PyAny>, _api: Api) -> Result<Tag> {
        if LAYOUT.load(Ordering::Relaxed) == UNSEEN {
            calibrate(object);
        }
        let is_right = LAYOUT.load(Ordering::Relaxed) == RIGHT;
        // The library would follow its null handle.
        // SAFETY: a bound object, alive, with a word at that place, as was seen.
        if is_right && unsafe { handle_at(object.as_ptr()) }.is_null() {
            let message = "this tvm_ffi.Tensor was moved from, and holds nothing any more";
            return Err(Error::new(ErrorKind::Exchange, message));
        }
        // SAFETY: a bound object, alive, under the GIL.
        match unsafe { described(object.as_ptr()) } {
            Some(tensor) => {
                dtype_from_dl(tensor.dtype)?;
                Ok(tag_on(device_from_dl(tensor.device)?, tensor.ndim == 0))
            }
            None => protocol::look(object),
        }
    }

    fn view(&self, object: &Bound<'_, PyAny>, api: Api, _written: bool) -> Result<Tensor> {
        self.look(object, api)?;
        dlpack::import(object).map_err(from_pyerr)
    }

    fn give<'py>(
        &self,
        py: Python<'py>,
        tensor: Tensor,
        _like: &dyn Fn() -> Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        // TVM FFI has no memory that mustn't be written.
        let tensor = if tensor.is_writable() { tensor } else { tensor.copy().py(py)? };
        let wrapped = wrap(py, tensor.into_lasting().py(py)?)?;
        py.import("tvm_ffi")?.call_method1("from_dlpack", (wrapped,))
    }

    fn reads_without_gil(&self) -> bool {
        true
    }

    unsafe fn look_fast(&self, object: *mut ffi::PyObject) -> Option<Tag> {
        // SAFETY: as for the caller.
        let tensor = unsafe { described(object)? };
        dtype_from_dl(tensor.dtype).ok()?;
        if tensor.device.device_type == DL_CPU {
            return Some(Tag::new(CPU, Device::CPU, tensor.ndim == 0));
        }
        Some(tag_on(device_from_dl(tensor.device).ok()?, tensor.ndim == 0))
    }

    unsafe fn look_again(&self, object: *mut ffi::PyObject) -> Option<Tag> {
        // SAFETY: as for the caller.
        let tensor = unsafe { described(object)? };
        let on_cpu = tensor.device.device_type == DL_CPU;
        on_cpu.then(|| Tag::new(CPU, Device::CPU, tensor.ndim == 0))
    }

    unsafe fn write_fast(
        &self,
        slot: &mut MaybeUninit<Tensor>,
        object: *mut ffi::PyObject,
    ) -> Option<Result<()>> {
        // SAFETY: as for the caller; the library keeps sizes, strides and memory as long as the object.
        unsafe {
            let tensor = described(object)?;
            let (dtype, device) =
                (dtype_from_dl(tensor.dtype).ok()?, device_from_dl(tensor.device).ok()?);
            let ndim = usize::try_from(tensor.ndim).ok()?;
            let strided = ndim == 0 || !(tensor.shape.is_null() || tensor.strides.is_null());
            // The address of memory on other devices leads to its buffer.
            if !strided || tensor.device.device_type == DL_EXT_DEV {
                return None;
            }
            let words = |first: *mut i64| match ndim {
                0 => &[][..],
                _ => std::slice::from_raw_parts(first.cast::<isize>().cast_const(), ndim),
            };
            let (sizes, strides) = (words(tensor.shape), words(tensor.strides));
            let first = first_element(tensor)?;
            let owner = owners::borrowed(object, &OPS);
            Some(Tensor::write_external(slot, owner, first, sizes, strides, dtype, device, false))
        }
    }

    unsafe fn lend(&self, object: *mut ffi::PyObject, _free: &AtomicBool) -> Option<DLTensor> {
        // Its dtype was looked at when its keys were.
        // SAFETY: as for the caller.
        unsafe { described(object).copied() }
    }
}
