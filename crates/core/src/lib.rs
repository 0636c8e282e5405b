//! The vocabulary of keyfold: types that all other crates share.
//!
//! Errors, devices, dtypes, scalars, shapes and strides. No unsafe code, no tensors, no dispatch.
#![forbid(unsafe_code)]

mod caret;
mod device;
mod dtype;
mod error;
pub mod layout;
mod nearest;
mod scalar;
mod shape;

pub use caret::Failure;
pub use device::{Device, DeviceType, USER_DEVICE_TYPES};
pub use dtype::{DType, DTypeKind, Element, rounded_to_odd};
pub use error::{Error, ErrorKind, Result, SharedError};
pub use nearest::{did_you_mean, nearest};
pub use scalar::Scalar;
pub use shape::{Dims, MAX_DIMS, Shape, Strides};

// Re-exported so that users need no matching version of `half`.
pub use half::{bf16, f16};
pub use num_complex::Complex;
