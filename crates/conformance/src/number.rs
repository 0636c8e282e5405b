//! Numbers of the reference: integers of any width, float64, complex128.

use keyfold_core::{Complex, DType, DTypeKind, Element, Scalar, bf16, f16};

/// A number of any dtype.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// A bool (0 or 1) or an integer.
    Whole(i128),
    /// A real float.
    Float(f64),
    /// A complex number.
    Complex(Complex<f64>),
}

impl Number {
    /// Returns the number of a scalar.
    pub fn of(scalar: Scalar) -> Number {
        match scalar {
            Scalar::Bool(b) => Number::Whole(b.into()),
            Scalar::Int(i) => Number::Whole(i.into()),
            Scalar::UInt(u) => Number::Whole(u.into()),
            Scalar::Float(x) => Number::Float(x),
            Scalar::Complex(c) => Number::Complex(c),
        }
    }

    /// Returns the number as a scalar.
    pub fn scalar(self) -> Scalar {
        match self {
            Number::Whole(w) => Scalar::from_wide(w).unwrap_or(Scalar::Int(0)),
            Number::Float(x) => Scalar::Float(x),
            Number::Complex(c) => Scalar::Complex(c),
        }
    }

    /// Returns the number truncated to an integer; NaN is 0.
    pub fn whole(self) -> i128 {
        match self {
            Number::Whole(w) => w,
            Number::Float(x) => x as i128,
            Number::Complex(c) => c.re as i128,
        }
    }

    /// Returns the number as a real float.
    pub fn float(self) -> f64 {
        match self {
            Number::Whole(w) => w as f64,
            Number::Float(x) => x,
            Number::Complex(c) => c.re,
        }
    }

    /// Returns the number as a complex one.
    pub fn complex(self) -> Complex<f64> {
        match self {
            Number::Complex(c) => c,
            other => Complex::new(other.float(), 0.0),
        }
    }

    /// Returns whether it differs from zero, as NaN does.
    pub fn truth(self) -> bool {
        match self {
            Number::Whole(w) => w != 0,
            Number::Float(x) => x != 0.0,
            Number::Complex(c) => c.re != 0.0 || c.im != 0.0,
        }
    }

    /// Returns whether a part of it is NaN.
    pub fn is_nan(self) -> bool {
        match self {
            Number::Whole(_) => false,
            Number::Float(x) => x.is_nan(),
            Number::Complex(c) => c.re.is_nan() || c.im.is_nan(),
        }
    }

    /// Returns the absolute value or the modulus.
    pub fn magnitude(self) -> f64 {
        match self {
            Number::Complex(c) => c.re.hypot(c.im),
            other => other.float().abs(),
        }
    }

    /// Converts to a dtype: rounds to its precision, wraps integers, saturates floats.
    pub fn cast(self, to: DType) -> Number {
        match to.kind() {
            DTypeKind::Bool => Number::Whole(self.truth().into()),
            DTypeKind::UInt | DTypeKind::Int => match (self, to.int_range()) {
                (Number::Whole(w), _) => wrap(w, to),
                (other, Some((low, high))) => Number::Whole(other.whole().clamp(low, high)),
                (other, None) => other,
            },
            // An integer is rounded once, not by way of float64.
            _ => match (self, to) {
                (Number::Whole(w), DType::F32) => Number::Float((w as f32).into()),
                (Number::Whole(w), DType::C64) => {
                    Number::Complex(Complex::new((w as f32).into(), 0.0))
                }
                (number, _) => decode(to, &encode(number, to)),
            },
        }
    }

    /// Replaces a float beyond a dtype's range by an infinity, and keeps its precision.
    pub fn limited(self, dtype: DType) -> Number {
        let limit = |x: f64| {
            if x.abs() > max_of(dtype) * (1.0 + unit(dtype)) {
                f64::INFINITY.copysign(x)
            } else {
                x
            }
        };
        match self {
            Number::Float(x) => Number::Float(limit(x)),
            Number::Complex(c) => Number::Complex(Complex::new(limit(c.re), limit(c.im))),
            whole => whole,
        }
    }
}

/// Wraps an integer to a dtype's range.
pub fn wrap(value: i128, dtype: DType) -> Number {
    Number::Whole(match dtype.int_range() {
        Some((low, high)) => value.wrapping_sub(low).rem_euclid(high - low + 1) + low,
        None => i128::from(value != 0),
    })
}

/// Returns the greatest relative error of rounding to a dtype's real precision, half a unit in the
/// last place; 0 for integers.
pub fn unit(dtype: DType) -> f64 {
    match dtype.real() {
        DType::F16 => 2f64.powi(-11),
        DType::BF16 => 2f64.powi(-8),
        DType::F32 => 2f64.powi(-24),
        DType::F64 => 2f64.powi(-53),
        _ => 0.0,
    }
}

/// Returns the greatest finite number of a dtype.
pub fn max_of(dtype: DType) -> f64 {
    match dtype.real() {
        DType::F16 => 65504.0,
        DType::BF16 => bf16::MAX.to_f64(),
        DType::F32 => f32::MAX.into(),
        DType::F64 => f64::MAX,
        other => other.int_range().map_or(1.0, |(_, high)| high as f64),
    }
}

/// Returns the smallest normal number of a dtype.
pub fn tiny(dtype: DType) -> f64 {
    match dtype.real() {
        DType::F16 => 2f64.powi(-14),
        DType::BF16 | DType::F32 => f32::MIN_POSITIVE.into(),
        DType::F64 => f64::MIN_POSITIVE,
        _ => 0.0,
    }
}

/// Returns the bytes of a number as an element of a dtype.
pub fn encode(number: Number, dtype: DType) -> Vec<u8> {
    fn of<T: Element, const N: usize>(number: Number, bytes: fn(T) -> [u8; N]) -> Vec<u8> {
        // Wide integers wrap before the conversion.
        let scalar = match (number, T::DTYPE.int_range()) {
            (Number::Whole(w), Some(_)) => wrap(w, T::DTYPE).scalar(),
            (number, _) => number.scalar(),
        };
        bytes(T::from_scalar(scalar)).to_vec()
    }
    match dtype {
        DType::Bool => vec![number.truth().into()],
        DType::U8 => of(number, u8::to_ne_bytes),
        DType::U16 => of(number, u16::to_ne_bytes),
        DType::U32 => of(number, u32::to_ne_bytes),
        DType::U64 => of(number, u64::to_ne_bytes),
        DType::I8 => of(number, i8::to_ne_bytes),
        DType::I16 => of(number, i16::to_ne_bytes),
        DType::I32 => of(number, i32::to_ne_bytes),
        DType::I64 => of(number, i64::to_ne_bytes),
        DType::F16 => of(number, f16::to_ne_bytes),
        DType::BF16 => of(number, bf16::to_ne_bytes),
        DType::F32 => of(number, f32::to_ne_bytes),
        DType::F64 => of(number, f64::to_ne_bytes),
        DType::C64 | DType::C128 => {
            let c = number.complex();
            let part = |x| encode(Number::Float(x), dtype.real());
            [part(c.re), part(c.im)].concat()
        }
    }
}

/// Returns the number that an element's bytes are.
pub fn decode(dtype: DType, bytes: &[u8]) -> Number {
    fn of<T: Element, const N: usize>(bytes: &[u8], element: fn([u8; N]) -> T) -> Number {
        let mut raw = [0; N];
        raw.copy_from_slice(&bytes[..N]);
        Number::of(element(raw).to_scalar())
    }
    match dtype {
        DType::Bool => Number::Whole(bytes[0].into()),
        DType::U8 => of(bytes, u8::from_ne_bytes),
        DType::U16 => of(bytes, u16::from_ne_bytes),
        DType::U32 => of(bytes, u32::from_ne_bytes),
        DType::U64 => of(bytes, u64::from_ne_bytes),
        DType::I8 => of(bytes, i8::from_ne_bytes),
        DType::I16 => of(bytes, i16::from_ne_bytes),
        DType::I32 => of(bytes, i32::from_ne_bytes),
        DType::I64 => of(bytes, i64::from_ne_bytes),
        DType::F16 => of(bytes, f16::from_ne_bytes),
        DType::BF16 => of(bytes, bf16::from_ne_bytes),
        DType::F32 => of(bytes, f32::from_ne_bytes),
        DType::F64 => of(bytes, f64::from_ne_bytes),
        DType::C64 | DType::C128 => {
            let (re, im) = bytes.split_at(dtype.size() / 2);
            let part = |bytes| decode(dtype.real(), bytes).float();
            Number::Complex(Complex::new(part(re), part(im)))
        }
    }
}
