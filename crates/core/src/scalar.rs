//! Plain numbers: Python's `bool`, `int`, `float` and `complex`.

use std::fmt;

use num_complex::Complex;

use crate::dtype::{DType, DTypeKind, Element};
use crate::error::{Error, ErrorKind, Result};

/// A number of any kind, without a dtype.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Scalar {
    /// True or false.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// An integer beyond the range of `i64`; smaller ones are [`Scalar::Int`].
    UInt(u64),
    /// A float.
    Float(f64),
    /// A complex number.
    Complex(Complex<f64>),
}

impl Scalar {
    /// Returns the kind of the number.
    pub const fn kind(self) -> DTypeKind {
        match self {
            Scalar::Bool(_) => DTypeKind::Bool,
            Scalar::Int(_) => DTypeKind::Int,
            Scalar::UInt(_) => DTypeKind::UInt,
            Scalar::Float(_) => DTypeKind::Float,
            Scalar::Complex(_) => DTypeKind::Complex,
        }
    }

    /// Returns the dtype of a tensor made of this number alone.
    pub const fn dtype(self) -> DType {
        match self {
            Scalar::Bool(_) => DType::Bool,
            Scalar::Int(_) => DType::I64,
            Scalar::UInt(_) => DType::U64,
            Scalar::Float(_) => DType::F64,
            Scalar::Complex(_) => DType::C128,
        }
    }

    /// Returns the number as a real float: integers beyond 2^53 are rounded, and complex numbers
    /// lose their imaginary part.
    #[inline]
    pub fn as_f64(self) -> f64 {
        match self {
            Scalar::Bool(b) => f64::from(u8::from(b)),
            Scalar::Int(i) => i as f64,
            Scalar::UInt(u) => u as f64,
            Scalar::Float(x) => x,
            Scalar::Complex(c) => c.re,
        }
    }

    /// Returns the number as a complex number.
    #[inline]
    pub fn as_complex(self) -> Complex<f64> {
        match self {
            Scalar::Complex(c) => c,
            real => Complex::new(real.as_f64(), 0.0),
        }
    }

    /// Returns the number as an `i64`, if it is a bool or an integer in range.
    #[inline]
    pub fn as_i64(self) -> Option<i64> {
        match self {
            Scalar::Bool(b) => Some(i64::from(b)),
            Scalar::Int(i) => Some(i),
            Scalar::UInt(_) | Scalar::Float(_) | Scalar::Complex(_) => None,
        }
    }

    /// Returns the number truncated to an integer, in a type that holds both `i64` and `u64`.
    #[inline]
    pub(crate) fn as_int_wrapping(self) -> i128 {
        match self {
            Scalar::Bool(b) => i128::from(b),
            Scalar::Int(i) => i128::from(i),
            Scalar::UInt(u) => i128::from(u),
            // Saturates: infinities become the bounds of the range, NaN becomes 0.
            Scalar::Float(x) => x as i128,
            Scalar::Complex(c) => c.re as i128,
        }
    }

    /// Returns an integer as a scalar, if it fits in an `i64` or a `u64`.
    pub fn from_wide(number: i128) -> Option<Scalar> {
        let positive = || u64::try_from(number).ok().map(Scalar::UInt);
        i64::try_from(number).ok().map(Scalar::Int).or_else(positive)
    }

    /// Returns whether the number differs from zero, as NaN does.
    #[inline]
    pub fn is_nonzero(self) -> bool {
        match self {
            Scalar::Bool(b) => b,
            Scalar::Int(i) => i != 0,
            Scalar::UInt(u) => u != 0,
            Scalar::Float(x) => x != 0.0,
            Scalar::Complex(c) => c.re != 0.0 || c.im != 0.0,
        }
    }

    /// Checks that a tensor of `dtype` can hold the number without losing its kind or range.
    ///
    /// Rounding a float to a narrower dtype is allowed, as in NumPy.
    ///
    /// # Errors
    /// [`ErrorKind::DType`] for a kind above the dtype's (a float for `int64`), and
    /// [`ErrorKind::Value`] for an integer out of range.
    pub fn check(self, dtype: DType) -> Result<()> {
        let fits = match self.kind() {
            DTypeKind::Bool => true,
            DTypeKind::UInt | DTypeKind::Int => dtype != DType::Bool,
            kind => dtype.kind() >= kind,
        };
        if !fits {
            return Err(Error::new(
                ErrorKind::DType,
                format!(
                    "a tensor of dtype {dtype} can't hold {self}; use dtype {} or another that can",
                    dtype.promote_scalar(self)
                ),
            ));
        }
        let Some((low, high)) = dtype.int_range() else { return Ok(()) };
        let value = self.as_int_wrapping();
        if (low..=high).contains(&value) {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Value,
            format!("{self} is out of range for dtype {dtype}, which holds {low} to {high}"),
        ))
    }

    /// Converts the number to an element of `T`, as [`Element::from_scalar`] does.
    #[inline]
    pub fn to<T: Element>(self) -> T {
        T::from_scalar(self)
    }
}

impl fmt::Display for Scalar {
    /// Formats the number as Python does: `True`, `3`, `2.0`, `(1+2j)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scalar::Bool(true) => f.write_str("True"),
            Scalar::Bool(false) => f.write_str("False"),
            Scalar::Int(i) => write!(f, "{i}"),
            Scalar::UInt(u) => write!(f, "{u}"),
            Scalar::Float(x) if x.is_nan() => f.write_str("nan"),
            Scalar::Float(x) => write!(f, "{x:?}"),
            Scalar::Complex(c) => write!(f, "({}{:+}j)", c.re, c.im),
        }
    }
}

impl From<bool> for Scalar {
    fn from(value: bool) -> Self {
        Scalar::Bool(value)
    }
}

impl From<i64> for Scalar {
    fn from(value: i64) -> Self {
        Scalar::Int(value)
    }
}

impl From<i32> for Scalar {
    fn from(value: i32) -> Self {
        Scalar::Int(value.into())
    }
}

impl From<u64> for Scalar {
    fn from(value: u64) -> Self {
        i64::try_from(value).map_or(Scalar::UInt(value), Scalar::Int)
    }
}

impl From<f64> for Scalar {
    fn from(value: f64) -> Self {
        Scalar::Float(value)
    }
}

impl From<Complex<f64>> for Scalar {
    fn from(value: Complex<f64>) -> Self {
        Scalar::Complex(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversions_follow_the_stated_rules() {
        assert_eq!(Scalar::Float(-1.9).to::<i32>(), -1);
        assert_eq!(Scalar::Int(300).to::<u8>(), 44);
        assert_eq!(Scalar::Int(-1).to::<u64>(), u64::MAX);
        assert_eq!(Scalar::from(u64::MAX).to::<u64>(), u64::MAX);
        assert_eq!(Scalar::from(7_u64), Scalar::Int(7));
        assert_eq!(Scalar::Float(f64::NAN).to::<i64>(), 0);
        assert!(Scalar::Float(f64::NAN).to::<bool>());
        assert_eq!(Scalar::Complex(Complex::new(2.5, 1.0)).to::<f32>(), 2.5);
        assert_eq!(Scalar::Bool(true).to::<Complex<f32>>(), Complex::new(1.0, 0.0));
    }

    #[test]
    fn checks_name_the_value_and_the_range() {
        let error = Scalar::Int(300).check(DType::U8).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Value);
        assert!(error.message().contains("300") && error.message().contains("0 to 255"), "{error}");
        assert_eq!(Scalar::Float(1.0).check(DType::I64).unwrap_err().kind(), ErrorKind::DType);
        assert_eq!(Scalar::Int(1).check(DType::Bool).unwrap_err().kind(), ErrorKind::DType);
        for dtype in DType::ALL {
            assert!(Scalar::Bool(true).check(dtype).is_ok(), "{dtype}");
        }
        assert!(Scalar::UInt(u64::MAX).check(DType::U64).is_ok());
        assert!(Scalar::UInt(u64::MAX).check(DType::I64).is_err());
        assert!(Scalar::Int(i64::MIN).check(DType::I64).is_ok());
        assert!(Scalar::Int(-129).check(DType::I8).is_err());
        assert!(Scalar::Float(1e300).check(DType::F16).is_ok());
        let complex = Scalar::Complex(Complex::new(1.0, -2.0));
        assert!(complex.check(DType::F64).is_err() && complex.check(DType::C64).is_ok());
    }

    #[test]
    fn prints_as_python_does() {
        let texts = [
            (Scalar::Bool(true), "True"),
            (Scalar::Float(2.0), "2.0"),
            (Scalar::Float(f64::NAN), "nan"),
            (Scalar::Complex(Complex::new(1.0, -2.0)), "(1-2j)"),
            (Scalar::UInt(u64::MAX), "18446744073709551615"),
        ];
        for (scalar, text) in texts {
            assert_eq!(scalar.to_string(), text);
        }
    }
}
