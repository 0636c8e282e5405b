//! Exchange of tensors with other libraries through DLPack, without a copy.
//!
//! Exporting returns a struct that shares the tensor's memory until its deleter is called.
//! Importing checks a struct and takes ownership of it; after an error the caller still owns it.
//! Python's capsules around these structs are made by the binding.

mod abi;
mod exchange;
mod export;
mod extension;
mod import;

pub use abi::{
    DL_BFLOAT, DL_BOOL, DL_COMPLEX, DL_CPU, DL_CUDA, DL_CUDA_HOST, DL_CUDA_MANAGED, DL_EXT_DEV,
    DL_FLOAT, DL_INT, DL_ROCM_HOST, DL_UINT, DLDataType, DLDevice, DLManagedTensor,
    DLManagedTensorVersioned, DLPACK_FLAG_IS_COPIED, DLPACK_FLAG_READ_ONLY, DLPACK_MAJOR_VERSION,
    DLPACK_MINOR_VERSION, DLPackVersion, DLTensor,
};
pub use exchange::{EXCHANGE_API_NAME, ExchangeApi, ExchangeHeader, SetError};
pub use export::{Described, device_to_dl, dtype_to_dl, to_dlpack, to_dlpack_versioned};
pub use extension::{exported_device, extension_number, foreign_address};
pub use import::{
    device_from_dl, dtype_from_dl, first_element, from_dlpack, from_dlpack_versioned,
    view_dl_tensor,
};

#[cfg(test)]
mod tests;
