//! As much of NumPy's C API as is called here. Layouts and places in the table of functions are those
//! of every NumPy 2 (`numpy/_core/code_generators/numpy_api.py`). The crate `numpy` has all of it, and
//! is built with ndarray and its products of matrices: 20 s of the 780 s of a release build.

use std::ffi::{c_char, c_int, c_uint, c_void};

use pyo3::exceptions::PyImportError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyCapsule;

/// `PyArrayObject`: what every ndarray starts with.
#[repr(C)]
pub(super) struct Array {
    object: ffi::PyObject,
    pub(super) data: *mut c_void,
    pub(super) nd: c_int,
    pub(super) dimensions: *mut isize,
    /// In bytes.
    pub(super) strides: *mut isize,
    pub(super) base: *mut ffi::PyObject,
    pub(super) descriptor: *mut Descriptor,
    pub(super) flags: c_int,
}

/// `PyArray_Descr`: what every dtype starts with.
#[repr(C)]
pub(super) struct Descriptor {
    object: ffi::PyObject,
    scalars: *mut ffi::PyTypeObject,
    letters: [c_char; 2],
    pub(super) byte_order: c_char,
    former_flags: c_char,
    pub(super) number: c_int,
}

/// `NPY_ARRAY_WRITEABLE`.
pub(super) const WRITEABLE: c_int = 0x400;
/// `NPY_UBYTE`.
pub(super) const UBYTE: c_int = 2;
/// `NPY_VERSION`: the version of the layouts above.
const ABI: c_uint = 0x0200_0000;

type DescrFromType = unsafe extern "C" fn(c_int) -> *mut Descriptor;
type NewFromDescr = unsafe extern "C" fn(
    class: *mut ffi::PyTypeObject,
    descriptor: *mut Descriptor,
    nd: c_int,
    dimensions: *const isize,
    strides: *const isize,
    data: *mut c_void,
    flags: c_int,
    object: *mut ffi::PyObject,
) -> *mut ffi::PyObject;
type SetBaseObject = unsafe extern "C" fn(*mut ffi::PyObject, *mut ffi::PyObject) -> c_int;

/// The entries of NumPy's table.
#[derive(Clone, Copy)]
pub(super) struct Api {
    pub(super) array_type: *mut ffi::PyTypeObject,
    pub(super) descr_from_type: DescrFromType,
    /// Takes the descriptor's reference.
    pub(super) new_from_descr: NewFromDescr,
    /// Takes the second reference.
    pub(super) set_base_object: SetBaseObject,
}

// SAFETY: pointers to a static type and to functions.
unsafe impl Send for Api {}
// SAFETY: as above.
unsafe impl Sync for Api {}

/// NumPy's table, which is there after `import keyfold`.
///
/// # Errors
/// There is no NumPy, or not one of version 2.
pub(super) fn api(py: Python<'_>) -> PyResult<&'static Api> {
    static API: PyOnceLock<Api> = PyOnceLock::new();
    API.get_or_try_init(py, || {
        let capsule = py.import("numpy._core.multiarray")?.getattr("_ARRAY_API")?;
        let table = capsule.cast_into::<PyCapsule>()?.pointer_checked(None)?.cast::<*mut c_void>();
        // SAFETY: NumPy's table is static and has these entries, of these types, at these places.
        unsafe {
            let entry = |place: usize| table.add(place).as_ptr();
            let abi = entry(0).cast::<unsafe extern "C" fn() -> c_uint>().read()();
            if abi != ABI {
                let message =
                    format!("NumPy's C ABI is {abi:#x}, and keyfold's {ABI:#x}, NumPy 2's");
                return Err(PyImportError::new_err(message));
            }
            Ok(Api {
                array_type: entry(2).read().cast(),
                descr_from_type: entry(45).cast::<DescrFromType>().read(),
                new_from_descr: entry(94).cast::<NewFromDescr>().read(),
                set_base_object: entry(282).cast::<SetBaseObject>().read(),
            })
        }
    })
}
