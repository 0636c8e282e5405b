//! NumPy arrays: read through NumPy's own C API, viewed as tensors without a copy or an allocation.

use std::cmp::Reverse;
use std::ffi::{c_int, c_long, c_void};
use std::mem::MaybeUninit;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

use keyfold_core::{DType, Device, DeviceType, Error, ErrorKind, Result, Shape, Strides, layout};
use keyfold_tensor::{ExternalOps, Tensor};
use pyo3::ffi;
use pyo3::prelude::*;
use smallvec::SmallVec;

use crate::marshal::arrays::numpy_api::{self, Array, api};
use crate::marshal::arrays::owners;
use crate::marshal::attach::reattach;
use crate::marshal::errors::{IntoPyResult, error, from_pyerr};
use crate::marshal::tensor::{PyTensor, wrap};

/// Our dtypes by NumPy's numbers (`NPY_TYPES`).
static DTYPES: [Option<DType>; 24] = {
    let (long, ulong) = match size_of::<c_long>() {
        8 => (DType::I64, DType::U64),
        _ => (DType::I32, DType::U32),
    };
    let mut table = [None; 24];
    table[0] = Some(DType::Bool);
    table[1] = Some(DType::I8);
    table[numpy_api::UBYTE as usize] = Some(DType::U8);
    table[3] = Some(DType::I16);
    table[4] = Some(DType::U16);
    table[5] = Some(DType::I32);
    table[6] = Some(DType::U32);
    table[7] = Some(long);
    table[8] = Some(ulong);
    table[9] = Some(DType::I64);
    table[10] = Some(DType::U64);
    table[11] = Some(DType::F32);
    table[12] = Some(DType::F64);
    table[14] = Some(DType::C64);
    table[15] = Some(DType::C128);
    table[23] = Some(DType::F16);
    table
};

/// NumPy's number for a dtype.
fn number_of(dtype: DType) -> Option<c_int> {
    (0..DTYPES.len()).find(|n| DTYPES[*n] == Some(dtype)).map(|n| n as c_int)
}

/// Whether NumPy has a dtype.
pub(crate) fn has(dtype: DType) -> bool {
    number_of(dtype).is_some()
}

/// The fields of an array.
///
/// # Safety
/// `array` is a live `numpy.ndarray` (or of a subclass), and the GIL is held while they are used.
#[inline(always)]
unsafe fn fields<'a>(array: *mut ffi::PyObject) -> &'a Array {
    // SAFETY: every ndarray starts with this struct; NumPy promises its layout to extensions.
    unsafe { &*array.cast::<Array>() }
}

/// The array's dtype, if it is one of ours in native byte order.
///
/// # Safety
/// As for [`fields`].
#[inline(always)]
unsafe fn dtype_of(array: *mut ffi::PyObject) -> Option<DType> {
    // SAFETY: as for the caller; the descriptor is never null.
    let descriptor = unsafe { &*fields(array).descriptor };
    let swapped = if cfg!(target_endian = "little") { b'>' } else { b'<' };
    if descriptor.byte_order as u8 == swapped {
        return None;
    }
    *DTYPES.get(descriptor.number as usize)?
}

/// Whether an array is one that operators take: its dtype, and whether it is 0-dim.
///
/// # Safety
/// As for [`fields`].
#[inline(always)]
pub(crate) unsafe fn look(array: *mut ffi::PyObject) -> Option<bool> {
    // SAFETY: as for the caller.
    unsafe { dtype_of(array).map(|_| fields(array).nd == 0) }
}

/// Elements of an array.
///
/// # Safety
/// As for [`fields`].
pub(crate) unsafe fn numel(array: *mut ffi::PyObject) -> usize {
    // SAFETY: as for the caller.
    let fields = unsafe { fields(array) };
    let shape = slice(fields.dimensions, fields.nd);
    shape.iter().map(|n| *n as usize).product()
}

fn slice<'a, T>(first: *const T, len: c_int) -> &'a [T] {
    if len <= 0 || first.is_null() {
        return &[];
    }
    // SAFETY: NumPy keeps `nd` numbers there for as long as the array isn't reshaped in place,
    // which needs the GIL that the callers hold.
    unsafe { std::slice::from_raw_parts(first, len as usize) }
}

/// Why an array can't be taken, in words: its dtype isn't ours, or its byte order is foreign.
pub(crate) fn refusal(array: &Bound<'_, PyAny>) -> Error {
    let describe = || -> PyResult<(String, bool)> {
        let dtype = array.getattr("dtype")?;
        Ok((dtype.str()?.to_string(), dtype.getattr("isnative")?.extract()?))
    };
    let (dtype, native) = describe().unwrap_or_else(|_| ("?".to_owned(), true));
    let hint = if native {
        "convert it to one of bool, int8 to int64, uint8 to uint64, float16 to float64, complex64, \
         complex128"
    } else {
        "its byte order isn't this machine's: convert it with x.astype(x.dtype.newbyteorder('='))"
    };
    Error::new(ErrorKind::DType, format!("a NumPy array of dtype {dtype} isn't supported; {hint}"))
}

/// Writes a view of an array into `slot`, for as long as somebody else holds the array; clones of
/// it may live on. In place, since a tensor is large and moving it costs more than making it.
///
/// # Errors
/// An unsupported dtype, a foreign byte order, strides that aren't whole elements, misalignment;
/// then the slot stays unfilled.
///
/// # Safety
/// As for [`fields`]; and the view is dropped before the array's last reference.
#[inline]
pub(crate) unsafe fn write_view(
    slot: &mut MaybeUninit<Tensor>,
    array: *mut ffi::PyObject,
) -> Result<()> {
    // SAFETY: as for the caller.
    let (fields, dtype) = unsafe { (fields(array), dtype_of(array)) };
    let Some(dtype) = dtype else { return Err(refuse(array)) };
    let read_only = fields.flags & numpy_api::WRITEABLE == 0;
    // SAFETY: the array owns or keeps the memory that its shape and strides reach, initialised
    // as NumPy has it, for as long as it lives; the caller keeps it alive while the view lives,
    // and clones retain it.
    unsafe {
        Tensor::write_external_bytes(
            slot,
            owners::borrowed(array, &HELD),
            fields.data.cast(),
            slice(fields.dimensions, fields.nd),
            slice(fields.strides, fields.nd),
            dtype,
            Device::CPU,
            read_only,
        )
    }
}

#[cold]
fn refuse(array: *mut ffi::PyObject) -> Error {
    reattach(|py| {
        // SAFETY: the caller of `borrow_view` holds the array.
        refusal(&unsafe { Bound::from_borrowed_ptr(py, array) })
    })
}

/// The array that owns an array's memory, as far as NumPy's arrays hold each other.
///
/// # Safety
/// `array` is a live ndarray, and the GIL is held.
pub(crate) unsafe fn memory_owner(array: *mut ffi::PyObject) -> *mut ffi::PyObject {
    let mut owner = array;
    // SAFETY: an array keeps its base, so that each is alive; others than arrays end the chain.
    unsafe {
        loop {
            let base = fields(owner).base;
            if base.is_null() || ffi::PyObject_TypeCheck(base, array_type()) == 0 {
                return owner;
            }
            owner = base;
        }
    }
}

/// How tensors hold arrays, on any thread.
static HELD: ExternalOps =
    ExternalOps { retain: retain_array, release: release_array, adopt: None };

/// Holds an array and makes a weak reference to the array that owns the memory: NumPy's `resize`
/// refuses to move the memory of such an array, even with `refcheck=False`.
unsafe fn retain_array(array: *mut c_void) {
    // SAFETY: attached, and the array is alive: the caller holds a reference.
    owners::attached(|| unsafe {
        ffi::Py_INCREF(array.cast());
        if ffi::PyWeakref_NewRef(memory_owner(array.cast()), null_mut()).is_null() {
            // Without memory for it the array is held as any object is.
            ffi::PyErr_Clear();
        }
    });
}

unsafe fn release_array(array: *mut c_void) {
    // SAFETY: attached, and the owner gives both references up. The weak one without a callback is
    // one object, which asking again finds.
    owners::attached(|| unsafe {
        let weak = ffi::PyWeakref_NewRef(memory_owner(array.cast()), null_mut());
        match weak.is_null() {
            true => ffi::PyErr_Clear(),
            false => {
                // Two: the one just asked for, and the one of `retain_array` if there was memory.
                if ffi::Py_REFCNT(weak) > 1 {
                    ffi::Py_DECREF(weak);
                }
                ffi::Py_DECREF(weak);
            }
        }
        ffi::Py_DECREF(array.cast());
    });
}

/// A view that owns a reference to the array.
#[expect(clippy::redundant_clone, reason = "the clone takes the reference that the view lacks")]
pub(crate) fn view(array: &Bound<'_, PyAny>) -> Result<Tensor> {
    let mut slot = MaybeUninit::uninit();
    // SAFETY: `array` holds a reference until after the clone, which takes its own; on success
    // the slot is filled.
    let borrowed = unsafe {
        write_view(&mut slot, array.as_ptr())?;
        slot.assume_init()
    };
    Ok(borrowed.clone())
}

/// A NumPy array over a tensor's memory, which keeps the tensor.
///
/// An array holds the address of its elements, so memory that another library may move is copied, in
/// the order in which it lies.
///
/// # Errors
/// A tensor of another device (nothing is copied silently), and dtypes that NumPy lacks.
pub(crate) fn from_tensor(object: Bound<'_, PyTensor>) -> PyResult<Bound<'_, PyAny>> {
    let (py, tensor) = (object.py(), &object.get().tensor);
    if tensor.device().kind() != DeviceType::CPU {
        let device = tensor.device();
        let message = match device.kind() {
            DeviceType::META => "a tensor on meta has no data for a NumPy array".to_owned(),
            _ => format!(
                "a tensor on {device} can't become a NumPy array, which is in the host's memory; \
                 copy it there with .cpu()"
            ),
        };
        return Err(error(py, ErrorKind::Device, message));
    }
    let dtype = tensor.dtype();
    let Some(number) = number_of(dtype) else {
        let message = format!(
            "NumPy has no dtype for {dtype}, and a result for NumPy arrays is one: give tensors \
             (keyfold.asarray(x)) to get a tensor, convert a tensor to float32 first (astype), or \
             use dtype=\"float16\" in autocast"
        );
        return Err(error(py, ErrorKind::DType, message));
    };
    let itemsize = dtype.size() as isize;
    type Numbers = SmallVec<[isize; 8]>;
    let sizes: Numbers = tensor.shape().iter().map(|n| *n as isize).collect();
    let strides: Numbers = tensor.strides().iter().map(|n| n * itemsize).collect();
    if tensor.moves() {
        // Here and not by NumPy, which lets other threads run, and move the memory, while it copies.
        return into_numpy(py, copy_in_order(tensor).py(py)?);
    }
    let data = tensor.exchange_ptr().py(py)?;
    // SAFETY: shape and strides stay inside the tensor's memory by its invariant.
    unsafe { new_array(object, data, number, &sizes, &strides) }
}

/// A copy whose dimensions lie in memory in the order of the tensor's own.
fn copy_in_order(tensor: &Tensor) -> Result<Tensor> {
    let mut order: Vec<i64> = (0..tensor.ndim() as i64).collect();
    order.sort_by_key(|axis| Reverse(tensor.strides()[*axis as usize].unsigned_abs()));
    let mut back = order.clone();
    for (at, axis) in order.iter().enumerate() {
        back[*axis as usize] = at as i64;
    }
    Ok(tensor.permute(&order)?.copy()?.permute(&back)?.into_whole())
}

/// An array over the memory of a tensor on the CPU, of sizes and strides in bytes, which keeps the
/// tensor.
///
/// # Safety
/// Every element that sizes and strides reach from `data` on is inside the tensor's memory.
unsafe fn new_array<'py>(
    object: Bound<'py, PyTensor>,
    data: *mut u8,
    number: c_int,
    sizes: &[isize],
    strides: &[isize],
) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    // NumPy would allocate memory where there is no address, for an array without elements.
    let data = if data.is_null() { NonNull::<u128>::dangling().as_ptr().cast() } else { data };
    let flags = if object.get().tensor.is_writable() { numpy_api::WRITEABLE } else { 0 };
    let api = api(py)?;
    // SAFETY: NumPy's C API as documented: the new array borrows `data`, which the tensor, set as
    // its base below, keeps alive; the caller vouches for its extent. Both references that are taken
    // are given up here.
    unsafe {
        let descriptor = (api.descr_from_type)(number);
        let nd = sizes.len() as c_int;
        let (sizes, strides, data) = (sizes.as_ptr(), strides.as_ptr(), data.cast());
        let class = api.array_type;
        let array =
            (api.new_from_descr)(class, descriptor, nd, sizes, strides, data, flags, null_mut());
        let array = Bound::from_owned_ptr_or_err(py, array)?;
        if (api.set_base_object)(array.as_ptr(), object.into_ptr()) < 0 {
            return Err(PyErr::fetch(py));
        }
        Ok(array)
    }
}

/// The memory of a contiguous tensor on the CPU, which nobody moves, as an array of bytes that keeps
/// the tensor.
pub(crate) fn bytes_of<'py>(object: &Bound<'py, PyTensor>) -> PyResult<Bound<'py, PyAny>> {
    let tensor = &object.get().tensor;
    let data = tensor.exchange_ptr().py(object.py())?;
    let sizes = [tensor.nbytes() as isize];
    // SAFETY: a contiguous tensor has that many bytes from its first element on.
    unsafe { new_array(object.clone(), data, numpy_api::UBYTE, &sizes, &[1]) }
}

/// The bytes of an array as a tensor of another dtype, which keeps the array.
///
/// # Errors
/// [`ErrorKind::Shape`] when there aren't as many bytes as the shape needs, [`ErrorKind::Value`]
/// when they aren't aligned.
#[expect(clippy::redundant_clone, reason = "the clone takes the reference that the view lacks")]
pub(crate) fn reinterpret(bytes: &Bound<'_, PyAny>, dtype: DType, shape: Shape) -> Result<Tensor> {
    let flat = view(bytes)?;
    let needed = layout::numel(&shape, dtype.size())? * dtype.size();
    if flat.dtype() != DType::U8 || !flat.is_contiguous() || flat.numel() != needed {
        let message =
            format!("{} bytes don't make {dtype}{shape:?}: {needed} would", flat.nbytes());
        return Err(Error::new(ErrorKind::Shape, message));
    }
    let strides: Strides = layout::contiguous_strides(&shape);
    let (first, read_only) = (flat.raw_data_ptr()?, !flat.is_writable());
    // SAFETY: the array keeps that many bytes, initialised, as was just checked; every pattern of
    // bits is a value of every dtype (bools are read as bytes). The tensor is cloned, with a
    // reference of its own to the array, while `bytes` still holds one.
    unsafe {
        let owner = owners::borrowed(bytes.as_ptr(), &HELD);
        let borrowed =
            Tensor::from_external(owner, first, shape, strides, dtype, Device::CPU, read_only)?;
        Ok(borrowed.clone())
    }
}

static TYPE: AtomicPtr<ffi::PyTypeObject> = AtomicPtr::new(null_mut());

/// Loads NumPy's API, and notes the type object that the call path compares with. Called once, at
/// import.
///
/// # Errors
/// There is no NumPy, or not one of version 2.
pub(crate) fn init(py: Python<'_>) -> PyResult<()> {
    TYPE.store(api(py)?.array_type, Ordering::Release);
    Ok(())
}

/// Whether a class is exactly `numpy.ndarray`.
#[inline(always)]
pub(crate) fn is_class(class: *mut ffi::PyTypeObject) -> bool {
    class == array_type()
}

/// Whether the object is exactly a `numpy.ndarray`.
///
/// # Safety
/// `object` is a live object.
#[inline(always)]
pub(crate) unsafe fn is_ndarray(object: *mut ffi::PyObject) -> bool {
    // SAFETY: as for the caller.
    is_class(unsafe { ffi::Py_TYPE(object) })
}

/// Whether the object is a `numpy.ndarray`, of a subclass included.
pub(crate) fn is_array(object: &Bound<'_, PyAny>) -> bool {
    // SAFETY: a type check of a live object under the GIL.
    unsafe { ffi::PyObject_TypeCheck(object.as_ptr(), array_type()) != 0 }
}

/// Whether the object is a `numpy.ndarray` itself, of no subclass.
pub(crate) fn is_exact(object: &Bound<'_, PyAny>) -> bool {
    // SAFETY: a type check of a live object under the GIL.
    unsafe { ffi::Py_TYPE(object.as_ptr()) == array_type() }
}

/// The type object of `numpy.ndarray`.
#[inline(always)]
fn array_type() -> *mut ffi::PyTypeObject {
    TYPE.load(Ordering::Relaxed)
}

/// A NumPy scalar, or anything else that `numpy.asarray` takes, as an array.
pub(crate) fn as_array<'py>(object: &Bound<'py, PyAny>) -> Result<Bound<'py, PyAny>> {
    let py = object.py();
    py.import("numpy")
        .and_then(|numpy| numpy.call_method1("asarray", (object,)))
        .map_err(from_pyerr)
}

/// A tensor as a NumPy array over the same memory, which the array keeps alive, or a copy as of
/// [`from_tensor`].
pub(crate) fn into_numpy(py: Python<'_>, tensor: Tensor) -> PyResult<Bound<'_, PyAny>> {
    from_tensor(wrap(py, tensor)?)
}

/// A NumPy array over the memory of a tensor object, which it keeps alive. A copy, of memory that
/// another library may move, is read-only: what is written to it would be lost in silence.
pub(crate) fn numpy_view<'py>(slf: &Bound<'py, PyTensor>) -> PyResult<Bound<'py, PyAny>> {
    let tensor = &slf.get().tensor;
    let array = from_tensor(slf.clone())?;
    tensor.lend().py(slf.py())?;
    if tensor.moves() {
        array.getattr("flags")?.setattr("writeable", false)?;
    }
    Ok(array)
}
