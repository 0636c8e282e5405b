//! Dtypes and devices, as DLPack's codes.

use std::fmt;

use crate::abi::{DEVICE_META, DEVICE_USER, DLDataType, DLDevice};

/// An element type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DType(pub(crate) DLDataType);

macro_rules! dtypes {
    // A constant and its name for each: code, bits.
    ($($name:ident, $text:literal, $code:literal, $bits:literal;)*) => {
        impl DType {
            $(#[doc = concat!("`", $text, "`.")]
            pub const $name: DType = DType(DLDataType { code: $code, bits: $bits, lanes: 1 });)*
        }

        impl fmt::Display for DType {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match (self.0.code, self.0.bits) {
                    $(($code, $bits) => f.write_str($text),)*
                    (code, bits) => write!(f, "dtype of code {code} and {bits} bits"),
                }
            }
        }
    };
}

dtypes! {
    I8, "int8", 0, 8; I16, "int16", 0, 16; I32, "int32", 0, 32; I64, "int64", 0, 64;
    U8, "uint8", 1, 8; U16, "uint16", 1, 16; U32, "uint32", 1, 32; U64, "uint64", 1, 64;
    F16, "float16", 2, 16; F32, "float32", 2, 32; F64, "float64", 2, 64;
    BF16, "bfloat16", 4, 16; C64, "complex64", 5, 64; C128, "complex128", 5, 128;
    BOOL, "bool", 6, 8;
}

impl DType {
    /// Returns the size of an element in bytes.
    pub const fn size(self) -> usize {
        (self.0.bits as usize).div_ceil(8)
    }

    /// Returns whether elements are floats, halves included.
    pub const fn is_floating(self) -> bool {
        self.0.code == Self::F16.0.code || self.0.code == Self::BF16.0.code
    }

    /// Returns whether elements are complex numbers.
    pub const fn is_complex(self) -> bool {
        self.0.code == Self::C64.0.code
    }
}

/// A device: its type and index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Device(pub(crate) DLDevice);

impl Device {
    /// The CPU.
    pub const CPU: Device = Device(DLDevice { device_type: 1, device_id: 0 });
    /// The device without memory, for tensors with shape and dtype only.
    pub const META: Device = Device(DLDevice { device_type: DEVICE_META, device_id: 0 });

    /// Returns the NVIDIA GPU of that index.
    pub const fn cuda(index: i32) -> Self {
        Device(DLDevice { device_type: 2, device_id: index })
    }

    /// Returns whether the host can read its memory.
    pub const fn is_cpu(self) -> bool {
        self.0.device_type == 1
    }

    /// Returns the index among devices of its type.
    pub const fn index(self) -> i32 {
        if self.0.device_type == DEVICE_USER { self.0.device_id & 0xff } else { self.0.device_id }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.device_type {
            1 => f.write_str("cpu"),
            2 => write!(f, "cuda:{}", self.0.device_id),
            DEVICE_META => f.write_str("meta"),
            DEVICE_USER => {
                write!(f, "user device type {}, index {}", self.0.device_id >> 8, self.index())
            }
            other => write!(f, "device type {other}, index {}", self.0.device_id),
        }
    }
}
