//! Uniform values: numbers that are the same for all elements.

use keyfold_core::{Complex, DType, Scalar};

/// One number, as the bytes of an element; aligned for every dtype.
#[derive(Clone, Copy, Default, Debug)]
#[repr(C, align(16))]
pub struct Value(pub(crate) [u8; 16]);

impl Value {
    /// The number as an element of a dtype that isn't a half, converted as by `Scalar::to`.
    pub fn new(number: Scalar, dtype: DType) -> Value {
        let mut value = Value::default();
        let bytes = &mut value.0;
        match dtype {
            DType::Bool => bytes[0] = u8::from(number.is_nonzero()),
            DType::U8 => bytes[..1].copy_from_slice(&number.to::<u8>().to_ne_bytes()),
            DType::U16 => bytes[..2].copy_from_slice(&number.to::<u16>().to_ne_bytes()),
            DType::U32 => bytes[..4].copy_from_slice(&number.to::<u32>().to_ne_bytes()),
            DType::U64 => bytes[..8].copy_from_slice(&number.to::<u64>().to_ne_bytes()),
            DType::I8 => bytes[..1].copy_from_slice(&number.to::<i8>().to_ne_bytes()),
            DType::I16 => bytes[..2].copy_from_slice(&number.to::<i16>().to_ne_bytes()),
            DType::I32 => bytes[..4].copy_from_slice(&number.to::<i32>().to_ne_bytes()),
            DType::I64 => bytes[..8].copy_from_slice(&number.to::<i64>().to_ne_bytes()),
            DType::F16 | DType::BF16 | DType::F32 => {
                bytes[..4].copy_from_slice(&number.to::<f32>().to_ne_bytes());
            }
            DType::F64 => bytes[..8].copy_from_slice(&number.as_f64().to_ne_bytes()),
            DType::C64 => {
                let number = number.to::<Complex<f32>>();
                bytes[..4].copy_from_slice(&number.re.to_ne_bytes());
                bytes[4..8].copy_from_slice(&number.im.to_ne_bytes());
            }
            DType::C128 => {
                let number = number.as_complex();
                bytes[..8].copy_from_slice(&number.re.to_ne_bytes());
                bytes[8..].copy_from_slice(&number.im.to_ne_bytes());
            }
        }
        value
    }
}
