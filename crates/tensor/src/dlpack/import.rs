//! Importing tensors. A producer's struct is checked as far as that is possible without accessing
//! the memory.

use std::ptr::NonNull;
use std::sync::Arc;

use keyfold_core::{DType, Device, Error, ErrorKind, MAX_DIMS, Result, Shape, Strides, layout};

use super::abi::{
    DL_CPU, DL_CUDA, DL_CUDA_HOST, DL_CUDA_MANAGED, DL_EXT_DEV, DL_ROCM_HOST, DLDataType, DLDevice,
    DLManagedTensor, DLManagedTensorVersioned, DLPACK_FLAG_READ_ONLY, DLPACK_MAJOR_VERSION,
    DLTensor,
};
use super::export::dtype_to_dl;
use super::extension::{extension_device, tensor_of};
use crate::buffer::{BufferHandle, DeviceBuffer, ExternalOwner};
use crate::tensor::{Span, Tensor};

#[cold]
fn malformed(what: &str) -> Error {
    Error::new(ErrorKind::Exchange, format!("malformed DLPack tensor: {what}"))
}

/// Returns the dtype of a code.
///
/// # Errors
/// [`ErrorKind::DType`] for vectors and for types that keyfold lacks.
#[inline]
pub fn dtype_from_dl(dtype: DLDataType) -> Result<DType> {
    match known_dtype(dtype) {
        Some(known) => Ok(known),
        None => Err(unknown_dtype(dtype)),
    }
}

/// Dtypes by type code and by the base-2 logarithm of the size in bytes.
const KNOWN: [[Option<DType>; 8]; 8] = {
    let mut known = [[None; 8]; 8];
    let mut i = 0;
    while i < DType::ALL.len() {
        let DLDataType { code, bits, .. } = dtype_to_dl(DType::ALL[i]);
        known[code as usize][bits.trailing_zeros() as usize - 3] = Some(DType::ALL[i]);
        i += 1;
    }
    known
};

#[inline]
fn known_dtype(dtype: DLDataType) -> Option<DType> {
    let DLDataType { code, bits, lanes } = dtype;
    if lanes != 1 || bits < 8 || !bits.is_power_of_two() {
        return None;
    }
    *KNOWN.get(usize::from(code))?.get(bits.trailing_zeros() as usize - 3)?
}

#[cold]
fn unknown_dtype(dtype: DLDataType) -> Error {
    let DLDataType { code, bits, lanes } = dtype;
    if lanes != 1 {
        return Error::new(
            ErrorKind::DType,
            format!("DLPack elements of {lanes} lanes aren't supported; use plain elements"),
        );
    }
    let names: Vec<_> = DType::ALL.iter().map(|d| d.name()).collect();
    Error::new(
        ErrorKind::DType,
        format!(
            "the DLPack dtype with code {code} and {bits} bits isn't supported; supported are {}",
            names.join(", ")
        ),
    )
}

/// Returns the device of a code; pinned host memory is the host's. For devices that the standard
/// doesn't define see [`exported_device`](super::exported_device).
///
/// # Errors
/// [`ErrorKind::Device`] for a type that keyfold lacks, an ordinal out of range or an unknown number.
pub fn device_from_dl(device: DLDevice) -> Result<Device> {
    match device.device_type {
        DL_CPU | DL_CUDA_HOST | DL_ROCM_HOST => Ok(Device::CPU),
        DL_CUDA | DL_CUDA_MANAGED => match u8::try_from(device.device_id) {
            Ok(index) => Ok(Device::cuda(index)),
            Err(_) => Err(Error::new(
                ErrorKind::Device,
                format!("CUDA device {} of a DLPack tensor isn't 0 to 255", device.device_id),
            )),
        },
        DL_EXT_DEV => extension_device(device.device_id),
        other => Err(Error::new(
            ErrorKind::Device,
            format!("DLPack device type {other} isn't supported; copy the tensor to cpu or cuda"),
        )),
    }
}

/// An upper bound of memory sizes in bytes, above any processor's address space.
const LARGEST: u64 = 1 << 57;

/// Returns the address of the first element; `None` if `byte_offset` exceeds any memory.
#[inline]
pub fn first_element(tensor: &DLTensor) -> Option<*mut u8> {
    let data = tensor.data.cast::<u8>();
    let offset =
        usize::try_from(tensor.byte_offset).ok().filter(|_| tensor.byte_offset < LARGEST)?;
    data.addr().checked_add(offset)?;
    Some(data.wrapping_add(offset))
}

/// The checked content of a [`DLTensor`].
struct Checked {
    dtype: DType,
    device: Device,
    shape: Shape,
    strides: Strides,
    first: *mut u8,
    span: Span,
}

/// Returns whether a tensor is on a device that the standard doesn't define.
#[inline]
fn is_extension(given: &DLTensor) -> bool {
    given.device.device_type == DL_EXT_DEV
}

impl Checked {
    /// Returns the tensor on an extension device, which shares the exported buffer.
    ///
    /// # Errors
    /// As [`tensor_of`].
    #[cold]
    fn extension(self, given: &DLTensor, read_only: bool) -> Result<Tensor> {
        let tensor = tensor_of(given, (self.dtype, self.device), (self.shape, self.strides))?;
        Ok(if read_only { tensor.into_read_only() } else { tensor })
    }
}

/// Checks a struct without accessing the memory that it describes.
///
/// # Safety
/// `shape` and `strides` are null or point to `ndim` numbers, if `ndim` is positive.
unsafe fn check(tensor: &DLTensor) -> Result<Checked> {
    let ndim = usize::try_from(tensor.ndim)
        .ok()
        .filter(|n| *n <= MAX_DIMS)
        .ok_or_else(|| malformed(&format!("ndim is {}, not 0 to {MAX_DIMS}", tensor.ndim)))?;
    let dtype = dtype_from_dl(tensor.dtype)?;
    let device = device_from_dl(tensor.device)?;
    if ndim > 0 && tensor.shape.is_null() {
        return Err(malformed("shape is null"));
    }
    let mut shape = Shape::filled(0, ndim)?;
    for (i, size) in shape.iter_mut().enumerate() {
        // SAFETY: `i` is below `ndim`, and the shape isn't null.
        let given = unsafe { tensor.shape.add(i).read() };
        *size = usize::try_from(given)
            .map_err(|_| malformed(&format!("the size of dimension {i} is {given}")))?;
    }
    layout::numel(&shape, dtype.size()).map_err(|e| malformed(e.message()))?;
    let mut strides = layout::contiguous_strides(&shape);
    if !tensor.strides.is_null() {
        for (i, stride) in strides.iter_mut().enumerate() {
            // SAFETY: `i` is below `ndim`, and the strides aren't null.
            let given = unsafe { tensor.strides.add(i).read() };
            *stride = isize::try_from(given)
                .map_err(|_| malformed(&format!("the stride of dimension {i} is {given}")))?;
        }
    }
    let empty = shape.contains(&0);
    if tensor.data.is_null() && !empty {
        return Err(malformed(&format!("data is null, but shape {shape:?} has elements")));
    }
    let first = first_element(tensor)
        .ok_or_else(|| malformed(&format!("byte_offset {} overflows", tensor.byte_offset)))?;
    if !empty && !first.addr().is_multiple_of(dtype.align()) {
        return Err(malformed(&format!(
            "its elements begin at address {:#x}, which isn't a multiple of {} as {dtype} needs",
            first.addr(),
            dtype.align()
        )));
    }
    let span =
        Span::of(first, dtype, &shape, &strides).map_err(|error| malformed(error.message()))?;
    Ok(Checked { dtype, device, shape, strides, first, span })
}

/// The struct that a buffer releases when dropped.
#[derive(Debug)]
enum ManagedStruct {
    Old(NonNull<DLManagedTensor>),
    Versioned(NonNull<DLManagedTensorVersioned>),
}

/// Another library's memory, imported through DLPack.
#[derive(Debug)]
struct DlpackBuffer {
    _owner: ManagedStruct,
    device: Device,
    low: NonNull<u8>,
    bytes: usize,
    read_only: bool,
}

// SAFETY: a consumer may call the deleter on any thread, and the memory is shared by the exchange.
unsafe impl Send for DlpackBuffer {}
// SAFETY: shared access only reads addresses.
unsafe impl Sync for DlpackBuffer {}

impl Drop for ManagedStruct {
    fn drop(&mut self) {
        // SAFETY: the importer took ownership of the struct, with the duty to delete it once.
        unsafe {
            match *self {
                ManagedStruct::Old(managed) => {
                    if let Some(delete) = managed.as_ref().deleter {
                        delete(managed.as_ptr());
                    }
                }
                ManagedStruct::Versioned(managed) => {
                    if let Some(delete) = managed.as_ref().deleter {
                        delete(managed.as_ptr());
                    }
                }
            }
        }
    }
}

// SAFETY: the fields never change; the producer keeps the memory valid until its deleter is called,
// on drop. It isn't exclusive, since the producer may share it.
unsafe impl DeviceBuffer for DlpackBuffer {
    fn device(&self) -> Device {
        self.device
    }

    fn byte_len(&self) -> usize {
        self.bytes
    }

    fn host_ptr(&self) -> Option<NonNull<u8>> {
        (self.device == Device::CPU).then_some(self.low)
    }

    fn locate(&self) -> Result<*mut u8> {
        Ok(self.low.as_ptr())
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }
}

fn take(checked: Checked, owner: ManagedStruct, read_only: bool) -> Tensor {
    let Checked { dtype, device, shape, strides, span, .. } = checked;
    let bytes = span.len * dtype.size();
    let buffer = DlpackBuffer { _owner: owner, device, low: span.low, bytes, read_only };
    // Nothing fails from here on, so the buffer's drop can't run before the tensor's.
    let handle = BufferHandle::aligned(Arc::new(buffer), dtype);
    let numel = shape.iter().product();
    Tensor::assume_inside(handle, shape, strides, span.offset, numel)
}

/// Takes ownership of a versioned managed struct without a copy. Its deleter is called once, when
/// the last tensor on that memory is dropped, on any thread.
///
/// # Errors
/// [`ErrorKind::Exchange`] for another major version and for malformed structs (null pointers,
/// sizes below 0, overflow, misalignment), [`ErrorKind::DType`], [`ErrorKind::Device`]. After an
/// error the caller still owns the struct, and calls its deleter, whose position all versions
/// share.
///
/// # Safety
/// `managed` is null or points to a DLPack producer's struct that wasn't consumed.
pub unsafe fn from_dlpack_versioned(managed: *mut DLManagedTensorVersioned) -> Result<Tensor> {
    let managed = NonNull::new(managed).ok_or_else(|| malformed("the pointer is null"))?;
    // SAFETY: the caller's contract; every version has this field here.
    let version = unsafe { (&raw const (*managed.as_ptr()).version).read() };
    if version.major != DLPACK_MAJOR_VERSION {
        return Err(Error::new(
            ErrorKind::Exchange,
            format!(
                "DLPack version {}.{} isn't supported; ask the producer for version \
                 {DLPACK_MAJOR_VERSION}",
                version.major, version.minor
            ),
        ));
    }
    // SAFETY: the caller's contract, and the version has this layout.
    let (given, flags) = unsafe { (&managed.as_ref().dl_tensor, managed.as_ref().flags) };
    // SAFETY: as above.
    let checked = unsafe { check(given)? };
    let read_only = flags & DLPACK_FLAG_READ_ONLY != 0;
    if is_extension(given) {
        let tensor = checked.extension(given, read_only)?;
        drop(ManagedStruct::Versioned(managed));
        return Ok(tensor);
    }
    Ok(take(checked, ManagedStruct::Versioned(managed), read_only))
}

/// Takes ownership of an unversioned managed struct; otherwise as [`from_dlpack_versioned`].
///
/// # Errors
/// As [`from_dlpack_versioned`].
///
/// # Safety
/// As [`from_dlpack_versioned`].
pub unsafe fn from_dlpack(managed: *mut DLManagedTensor) -> Result<Tensor> {
    let managed = NonNull::new(managed).ok_or_else(|| malformed("the pointer is null"))?;
    // SAFETY: the caller's contract.
    let given = unsafe { &managed.as_ref().dl_tensor };
    // SAFETY: as above.
    let checked = unsafe { check(given)? };
    if is_extension(given) {
        let tensor = checked.extension(given, false)?;
        drop(ManagedStruct::Old(managed));
        return Ok(tensor);
    }
    Ok(take(checked, ManagedStruct::Old(managed), false))
}

/// Returns a view of an array that an object owns, described by a plain [`DLTensor`].
///
/// # Errors
/// As [`from_dlpack_versioned`]; the owner is dropped.
///
/// # Safety
/// The struct is a DLPack producer's description of memory that the owner's object keeps alive, and
/// that may be written unless `read_only`. A borrowed owner's object outlives the tensor.
pub unsafe fn view_dl_tensor(
    tensor: &DLTensor,
    owner: ExternalOwner,
    read_only: bool,
) -> Result<Tensor> {
    // SAFETY: the caller's contract.
    let checked = unsafe { check(tensor)? };
    if is_extension(tensor) {
        return checked.extension(tensor, read_only);
    }
    let Checked { dtype, device, shape, strides, first, .. } = checked;
    // SAFETY: the caller's contract.
    unsafe { Tensor::from_external(owner, first, shape, strides, dtype, device, read_only) }
}
