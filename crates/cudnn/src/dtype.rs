//! The element types of graphs: those of tensors, and cuDNN's 8-bit floats.

use std::fmt;
use std::str::FromStr;

use keyfold_core::{DType, Error, ErrorKind, Result, did_you_mean};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The type of a graph tensor's elements, which cuDNN has more of than [`DType`].
///
/// It prints as its short name (`f32`), and parses from that and from NumPy's (`float32`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DataType {
    /// `float32`.
    F32,
    /// `float64`.
    F64,
    /// `float16`.
    F16,
    /// `bfloat16`.
    BF16,
    /// `int8`.
    I8,
    /// `uint8`.
    U8,
    /// `int32`.
    I32,
    /// `int64`.
    I64,
    /// `bool`, one byte.
    Bool,
    /// `float8_e4m3fn`: 4 bits of exponent, 3 of mantissa, no infinity.
    E4M3,
    /// `float8_e5m2`: 5 bits of exponent, 2 of mantissa.
    E5M2,
}

use DataType::{BF16, Bool, E4M3, E5M2, F16, F32, F64, I8, I32, I64, U8};

/// Each with its short name, NumPy's, and the dtype of a tensor that holds it; 8-bit floats are held as bytes.
const TABLE: [(DataType, &str, &str, DType); 11] = [
    (F32, "f32", "float32", DType::F32),
    (F64, "f64", "float64", DType::F64),
    (F16, "f16", "float16", DType::F16),
    (BF16, "bf16", "bfloat16", DType::BF16),
    (I8, "i8", "int8", DType::I8),
    (U8, "u8", "uint8", DType::U8),
    (I32, "i32", "int32", DType::I32),
    (I64, "i64", "int64", DType::I64),
    (Bool, "bool", "bool", DType::Bool),
    (E4M3, "e4m3", "float8_e4m3fn", DType::U8),
    (E5M2, "e5m2", "float8_e5m2", DType::U8),
];

impl DataType {
    /// All of them, in declaration order.
    pub const ALL: [DataType; 11] = [F32, F64, F16, BF16, I8, U8, I32, I64, Bool, E4M3, E5M2];

    /// Returns the short name.
    pub const fn name(self) -> &'static str {
        TABLE[self as usize].1
    }

    /// Returns NumPy's name, or ml_dtypes' for the 8-bit floats.
    pub const fn numpy_name(self) -> &'static str {
        TABLE[self as usize].2
    }

    /// Returns the dtype of tensors that hold such elements: bytes for the 8-bit floats.
    pub const fn storage(self) -> DType {
        TABLE[self as usize].3
    }

    /// Returns the size of an element in bytes.
    pub const fn size(self) -> usize {
        self.storage().size()
    }

    /// Returns whether this is one of the 8-bit floats.
    pub const fn is_f8(self) -> bool {
        matches!(self, E4M3 | E5M2)
    }

    /// Returns whether this is a float of any width.
    pub const fn is_float(self) -> bool {
        matches!(self, F32 | F64 | F16 | BF16 | E4M3 | E5M2)
    }

    /// Returns the type with the elements of a dtype.
    ///
    /// # Errors
    /// [`ErrorKind::DType`] for a dtype that graphs lack.
    pub fn of(dtype: DType) -> Result<DataType> {
        let same = TABLE.iter().find(|row| row.3 == dtype && !row.0.is_f8());
        same.map(|row| row.0).ok_or_else(|| {
            let has = TABLE.map(|row| row.1).join(", ");
            Error::new(
                ErrorKind::DType,
                format!("graphs have no tensors of {dtype}: they have {has}"),
            )
        })
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for DataType {
    type Err = Error;

    fn from_str(text: &str) -> Result<DataType> {
        let named = TABLE.iter().find(|row| row.1 == text || row.2 == text);
        named.map(|row| row.0).ok_or_else(|| {
            let hint = did_you_mean(text, TABLE.iter().flat_map(|row| [row.1, row.2]));
            let names = TABLE.map(|row| row.2).join(", ");
            Error::new(
                ErrorKind::DType,
                format!("graphs have no dtype {text:?}{hint}: they have {names}"),
            )
        })
    }
}

impl Serialize for DataType {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.numpy_name())
    }
}

impl<'de> Deserialize<'de> for DataType {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dtype_tags_have_names() {
        for (index, dtype) in DataType::ALL.into_iter().enumerate() {
            assert_eq!(dtype as usize, index);
            assert_eq!(dtype, TABLE[index].0);
            assert_eq!(dtype.to_string().parse::<DataType>().unwrap(), dtype);
            assert_eq!(dtype.numpy_name().parse::<DataType>().unwrap(), dtype);
        }
        assert_eq!(DataType::F32.to_string(), "f32");
        assert_eq!(DataType::E4M3.size(), 1);
    }

    #[test]
    fn names_of_no_dtype_are_refused_with_the_nearest() {
        let error = "float3".parse::<DataType>().unwrap_err();
        assert!(error.message().contains("float32"), "{error}");
    }
}
