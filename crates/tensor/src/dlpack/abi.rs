//! DLPack's data layout: versions 1.x and the unversioned one.
//!
//! From the standard's description at <https://dmlc.github.io/dlpack/latest/>, with its names.

use std::ffi::c_void;

/// The major version; a change breaks the layout.
pub const DLPACK_MAJOR_VERSION: u32 = 1;
/// The minor version whose codes this module writes.
pub const DLPACK_MINOR_VERSION: u32 = 0;

/// Flag: the memory must not be written.
pub const DLPACK_FLAG_READ_ONLY: u64 = 1;
/// Flag: the producer made a copy, which the consumer owns.
pub const DLPACK_FLAG_IS_COPIED: u64 = 2;

/// Device type: host memory.
pub const DL_CPU: i32 = 1;
/// Device type: memory of an NVIDIA GPU.
pub const DL_CUDA: i32 = 2;
/// Device type: host memory pinned for an NVIDIA GPU.
pub const DL_CUDA_HOST: i32 = 3;
/// Device type: host memory pinned for an AMD GPU.
pub const DL_ROCM_HOST: i32 = 11;
/// Device type: a device that the standard doesn't define.
pub const DL_EXT_DEV: i32 = 12;
/// Device type: memory that host and NVIDIA GPU share.
pub const DL_CUDA_MANAGED: i32 = 13;

/// Type code: signed integers.
pub const DL_INT: u8 = 0;
/// Type code: unsigned integers.
pub const DL_UINT: u8 = 1;
/// Type code: IEEE floats.
pub const DL_FLOAT: u8 = 2;
/// Type code: bfloat16.
pub const DL_BFLOAT: u8 = 4;
/// Type code: complex numbers; bits count both parts.
pub const DL_COMPLEX: u8 = 5;
/// Type code: booleans of one byte.
pub const DL_BOOL: u8 = 6;

/// A device: its type and ordinal.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DLDevice {
    /// One of the `DL_` device types.
    pub device_type: i32,
    /// The ordinal among devices of the type.
    pub device_id: i32,
}

/// An element type.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DLDataType {
    /// One of the `DL_` type codes.
    pub code: u8,
    /// Bits per element.
    pub bits: u8,
    /// Elements per vector; 1 for plain types.
    pub lanes: u16,
}

/// A strided array, without an owner.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DLTensor {
    /// The memory; `byte_offset` counts from here.
    pub data: *mut c_void,
    /// The device of the memory.
    pub device: DLDevice,
    /// The number of dimensions.
    pub ndim: i32,
    /// The element type.
    pub dtype: DLDataType,
    /// `ndim` sizes.
    pub shape: *mut i64,
    /// `ndim` strides in elements; null for row-major without gaps.
    pub strides: *mut i64,
    /// The offset of the first element from `data`, in bytes.
    pub byte_offset: u64,
}

/// A [`DLTensor`] with its owner, in the unversioned layout.
#[repr(C)]
#[derive(Debug)]
pub struct DLManagedTensor {
    /// The array.
    pub dl_tensor: DLTensor,
    /// The producer's context.
    pub manager_ctx: *mut c_void,
    /// Releases the array; called once, may be absent.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensor)>,
}

/// A version of the standard.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DLPackVersion {
    /// The major version; a change breaks the layout.
    pub major: u32,
    /// The minor version, raised by new codes.
    pub minor: u32,
}

/// A [`DLTensor`] with its owner and flags.
#[repr(C)]
#[derive(Debug)]
pub struct DLManagedTensorVersioned {
    /// The version of the layout.
    pub version: DLPackVersion,
    /// The producer's context.
    pub manager_ctx: *mut c_void,
    /// Releases the array; called once, may be absent.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensorVersioned)>,
    /// `DLPACK_FLAG_` bits.
    pub flags: u64,
    /// The array.
    pub dl_tensor: DLTensor,
}
