//! Exporting tensors.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr::{NonNull, null_mut};

use keyfold_core::{DType, Device, DeviceType, Dims, Error, ErrorKind, Result};

use super::abi::{
    DL_BFLOAT, DL_BOOL, DL_COMPLEX, DL_CPU, DL_CUDA, DL_FLOAT, DL_INT, DL_UINT, DLDataType,
    DLDevice, DLManagedTensor, DLManagedTensorVersioned, DLPACK_FLAG_IS_COPIED,
    DLPACK_FLAG_READ_ONLY, DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION, DLPackVersion, DLTensor,
};
use super::extension::{Address, exported_device, extension_number};
use crate::tensor::Tensor;

/// Returns the standard's code of a dtype.
#[inline]
pub const fn dtype_to_dl(dtype: DType) -> DLDataType {
    CODES[dtype as usize]
}

/// The codes of all dtypes, in order, for a fast look-up in calls of foreign code.
const CODES: [DLDataType; DType::ALL.len()] = {
    let mut codes = [code_of(DType::Bool); DType::ALL.len()];
    let mut i = 0;
    while i < codes.len() {
        codes[DType::ALL[i] as usize] = code_of(DType::ALL[i]);
        i += 1;
    }
    codes
};

const fn code_of(dtype: DType) -> DLDataType {
    use keyfold_core::DTypeKind::{Bool, Complex, Float, Int, UInt};
    let code = match (dtype, dtype.kind()) {
        (DType::BF16, _) => DL_BFLOAT,
        (_, Bool) => DL_BOOL,
        (_, UInt) => DL_UINT,
        (_, Int) => DL_INT,
        (_, Float) => DL_FLOAT,
        (_, Complex) => DL_COMPLEX,
    };
    DLDataType { code, bits: (8 * dtype.size()) as u8, lanes: 1 }
}

/// Returns the standard's code of a device whose memory foreign code can address.
///
/// # Errors
/// [`ErrorKind::Exchange`] for meta, which has no memory, [`ErrorKind::Device`] for a device type
/// that the standard doesn't define: see [`exported_device`].
pub fn device_to_dl(device: Device) -> Result<DLDevice> {
    let device_type = match device.kind() {
        DeviceType::CPU => DL_CPU,
        DeviceType::CUDA => DL_CUDA,
        DeviceType::META => {
            return Err(Error::new(
                ErrorKind::Exchange,
                "a meta tensor has no memory that DLPack could share".to_owned(),
            ));
        }
        _ => {
            return Err(Error::new(
                ErrorKind::Device,
                format!(
                    "foreign code has no address of memory on {device}; copy the tensor to the host \
                     with .cpu()"
                ),
            ));
        }
    };
    Ok(DLDevice { device_type, device_id: device.index().into() })
}

/// A tensor's `DLTensor`, to pass it to foreign code for the duration of a call. It allocates
/// nothing up to six dimensions.
pub struct Described<'a> {
    data: *mut c_void,
    byte_offset: u64,
    /// For memory on a device that the standard doesn't define.
    _address: Option<Address>,
    device: DLDevice,
    dtype: DLDataType,
    shape: Dims<i64>,
    strides: Dims<i64>,
    tensor: PhantomData<&'a Tensor>,
}

impl<'a> Described<'a> {
    /// Describes a tensor.
    ///
    /// # Errors
    /// As [`exported_device`] and [`Tensor::exchange_ptr`].
    pub fn new(tensor: &'a Tensor) -> Result<Self> {
        let mut shape = Dims::filled(0_i64, tensor.ndim())?;
        let mut strides = shape.clone();
        for (i, (&size, &stride)) in tensor.shape().iter().zip(tensor.strides()).enumerate() {
            (shape[i], strides[i]) = (size as i64, stride as i64);
        }
        let device = exported_device(tensor.device())?;
        // The standard requires null for tensors without elements.
        let extension = extension_number(tensor.device().kind()).filter(|_| tensor.numel() > 0);
        let address = extension.map(|_| Address::of(tensor)).transpose()?;
        let (data, byte_offset) = match &address {
            Some(address) => (address.start(), (tensor.offset() * tensor.dtype().size()) as u64),
            None => (tensor.exchange_ptr()?.cast(), 0),
        };
        Ok(Described {
            data,
            byte_offset,
            _address: address,
            device,
            dtype: dtype_to_dl(tensor.dtype()),
            shape,
            strides,
            tensor: PhantomData,
        })
    }

    /// Returns the struct to pass. It points into `self` and is valid until `self` moves.
    pub fn dl_tensor(&mut self) -> DLTensor {
        DLTensor {
            data: self.data,
            device: self.device,
            ndim: self.shape.len() as i32,
            dtype: self.dtype,
            shape: self.shape.as_mut_ptr(),
            strides: self.strides.as_mut_ptr(),
            byte_offset: self.byte_offset,
        }
    }
}

/// The allocation of an exported struct: the struct first, then the data it points to.
struct ExportedTensor<M> {
    managed: M,
    described: Described<'static>,
    /// Keeps the memory alive.
    _tensor: Tensor,
}

/// Either managed struct, for exporting.
trait Managed: Sized {
    fn blank(flags: u64) -> Self;
    fn complete(&mut self, tensor: DLTensor, context: *mut c_void);
}

impl Managed for DLManagedTensor {
    fn blank(_: u64) -> Self {
        DLManagedTensor { dl_tensor: NO_TENSOR, manager_ctx: null_mut(), deleter: Some(delete_old) }
    }

    fn complete(&mut self, tensor: DLTensor, context: *mut c_void) {
        (self.dl_tensor, self.manager_ctx) = (tensor, context);
    }
}

impl Managed for DLManagedTensorVersioned {
    fn blank(flags: u64) -> Self {
        DLManagedTensorVersioned {
            version: DLPackVersion { major: DLPACK_MAJOR_VERSION, minor: DLPACK_MINOR_VERSION },
            manager_ctx: null_mut(),
            deleter: Some(delete_versioned),
            flags,
            dl_tensor: NO_TENSOR,
        }
    }

    fn complete(&mut self, tensor: DLTensor, context: *mut c_void) {
        (self.dl_tensor, self.manager_ctx) = (tensor, context);
    }
}

const NO_TENSOR: DLTensor = DLTensor {
    data: null_mut(),
    device: DLDevice { device_type: DL_CPU, device_id: 0 },
    ndim: 0,
    dtype: DLDataType { code: DL_UINT, bits: 8, lanes: 1 },
    shape: null_mut(),
    strides: null_mut(),
    byte_offset: 0,
};

unsafe extern "C" fn delete_old(managed: *mut DLManagedTensor) {
    // SAFETY: `export` made the struct and its context; the standard requires that it is deleted
    // once.
    drop(unsafe {
        Box::from_raw((*managed).manager_ctx.cast::<ExportedTensor<DLManagedTensor>>())
    });
}

unsafe extern "C" fn delete_versioned(managed: *mut DLManagedTensorVersioned) {
    // SAFETY: as above.
    drop(unsafe {
        Box::from_raw((*managed).manager_ctx.cast::<ExportedTensor<DLManagedTensorVersioned>>())
    });
}

fn export<M: Managed>(tensor: &Tensor, flags: u64) -> Result<NonNull<M>> {
    if tensor.requires_grad() {
        return Err(Error::new(
            ErrorKind::Exchange,
            "a tensor that requires grad, or that has a tangent (inside jvp), can't be exported, since \
             gradients and tangents wouldn't follow it; export tensor.detach()"
                .to_owned(),
        ));
    }
    let tensor = tensor.clone().into_lasting()?;
    let Described { data, byte_offset, _address, device, dtype, shape, strides, .. } =
        Described::new(&tensor)?;
    tensor.lend()?;
    let described = Described {
        data,
        byte_offset,
        _address,
        device,
        dtype,
        shape,
        strides,
        tensor: PhantomData,
    };
    let boxed = Box::new(ExportedTensor { managed: M::blank(flags), described, _tensor: tensor });
    let raw = Box::into_raw(boxed);
    // SAFETY: the box is owned here until the deleter runs, so its fields can be borrowed one by
    // one; from here on it doesn't move, and the pointers into it stay valid.
    unsafe {
        let dl_tensor = (*raw).described.dl_tensor();
        (*raw).managed.complete(dl_tensor, raw.cast());
        Ok(NonNull::new_unchecked(&raw mut (*raw).managed))
    }
}

/// Returns the tensor as a versioned managed struct, which shares its memory until its deleter is
/// called. Memory that another library may move ([`Tensor::moves`]) is copied, since the struct
/// stores its address. `copied`: the tensor is a copy made for the consumer.
///
/// # Errors
/// [`ErrorKind::Exchange`] if the tensor requires grad or is on meta, and as
/// [`Tensor::into_lasting`].
pub fn to_dlpack_versioned(
    tensor: &Tensor,
    copied: bool,
) -> Result<NonNull<DLManagedTensorVersioned>> {
    let read_only = if tensor.is_writable() { 0 } else { DLPACK_FLAG_READ_ONLY };
    let copied = if copied || tensor.moves() { DLPACK_FLAG_IS_COPIED } else { 0 };
    export(tensor, read_only | copied)
}

/// Returns the tensor as an unversioned managed struct.
///
/// # Errors
/// As [`to_dlpack_versioned`], and [`ErrorKind::Exchange`] for read-only memory, which this form
/// can't express.
pub fn to_dlpack(tensor: &Tensor) -> Result<NonNull<DLManagedTensor>> {
    if !tensor.is_writable() {
        return Err(Error::new(
            ErrorKind::Exchange,
            "read-only memory can only be exported by DLPack 1.0 or later; ask for it with \
             max_version=(1, 0), or export a copy"
                .to_owned(),
        ));
    }
    export(tensor, 0)
}
