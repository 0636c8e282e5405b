//! Elements of any dtype as numbers, for devices in software, tests and short kernels.

use std::ops::{Add, Mul};

use crate::types::DType;

/// The value of an element.
///
/// ```
/// use keyfold_plugin::{DType, Number};
///
/// let mut bytes = [0; 2];
/// Number::Float(1.5).write(DType::BF16, &mut bytes);
/// assert_eq!(Number::read(DType::BF16, &bytes), Number::Float(1.5));
/// assert_eq!(Number::Int(2) + Number::Float(0.5), Number::Float(2.5));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// An integer, or a bool as 0 or 1.
    Int(i128),
    /// A float.
    Float(f64),
    /// A complex number: the real and the imaginary part.
    Complex(f64, f64),
}

/// How many bits of a half are the exponent's and the fraction's.
struct Half {
    exponent: u32,
    fraction: u32,
}

const FLOAT16: Half = Half { exponent: 5, fraction: 10 };
const BFLOAT16: Half = Half { exponent: 8, fraction: 7 };

impl Half {
    fn bias(&self) -> i32 {
        (1 << (self.exponent - 1)) - 1
    }

    /// Returns the bits of infinity, the greatest exponent.
    fn infinity(&self) -> u16 {
        ((1 << self.exponent) - 1) << self.fraction
    }

    fn widen(&self, bits: u16) -> f64 {
        let (sign, bits) = (if bits >> 15 == 1 { -1.0 } else { 1.0 }, bits & 0x7fff);
        if bits >= self.infinity() {
            return if bits == self.infinity() { sign * f64::INFINITY } else { f64::NAN };
        }
        let (exponent, fraction) = (bits >> self.fraction, bits & ((1 << self.fraction) - 1));
        let implicit = if exponent == 0 { 0 } else { 1 << self.fraction };
        let power = i32::from(exponent.max(1)) - self.bias() - self.fraction as i32;
        sign * f64::from(fraction + implicit) * f64::from(power).exp2()
    }

    /// Rounds once, to nearest, ties to even.
    fn narrow(&self, value: f64) -> u16 {
        let sign = u16::from(value.is_sign_negative()) << 15;
        if value.is_nan() {
            return sign | self.infinity() | 1 << (self.fraction - 1);
        }
        let fraction = self.fraction as i32;
        let exponent = (value.abs().to_bits() >> 52) as i32 - 1023;
        let least = exponent.max(1 - self.bias()) - fraction;
        if least + fraction > self.bias() {
            return sign | self.infinity();
        }
        let units = (value.abs() * f64::from(-least).exp2()).round_ties_even() as i32;
        // A carry out of the fraction raises the exponent.
        sign | (((least + fraction + self.bias() - 1) << fraction) + units) as u16
    }
}

/// Converts an integer so that another rounding to a half gives the nearest half: bits that don't
/// fit make the last one odd.
fn round_to_odd(value: i128) -> f64 {
    if value.unsigned_abs() < 1 << 53 {
        return value as f64;
    }
    (value >> 12 | i128::from(value & 0xfff != 0)) as f64 * 4096.0
}

/// Returns the first bytes, as many as there are in an array of that size.
fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[..N]);
    array
}

macro_rules! dtypes {
    // The dtypes whose elements are numbers of a Rust type.
    ($($dtype:ident $type:ty: $kind:ident($as:ty);)*) => {
        impl Number {
            /// Reads an element from its bytes. Any byte but 0 is a true bool.
            ///
            /// # Panics
            /// If there are fewer bytes than an element has, or the dtype is none of
            /// [`DType`]'s constants.
            pub fn read(dtype: DType, bytes: &[u8]) -> Number {
                let float = |at: usize| f64::from(f32::from_ne_bytes(array(&bytes[at..])));
                let double = |at: usize| f64::from_ne_bytes(array(&bytes[at..]));
                match dtype {
                    $(DType::$dtype => Number::$kind(<$type>::from_ne_bytes(array(bytes)) as $as),)*
                    DType::F16 => Number::Float(FLOAT16.widen(u16::from_ne_bytes(array(bytes)))),
                    DType::BF16 => Number::Float(BFLOAT16.widen(u16::from_ne_bytes(array(bytes)))),
                    DType::C64 => Number::Complex(float(0), float(4)),
                    DType::C128 => Number::Complex(double(0), double(8)),
                    DType::BOOL => Number::from(bytes[0] != 0),
                    _ => panic!("{dtype} has no numbers"),
                }
            }

            /// Writes the number as an element, converted as the primitive `cast` does: integers
            /// wrap, floats become the nearest integer towards 0 in the range, and are rounded
            /// once to narrower floats. Of a complex number, other dtypes get the real part.
            ///
            /// # Panics
            /// As [`read`](Number::read).
            pub fn write(self, dtype: DType, bytes: &mut [u8]) {
                let half = |format: &Half| match self {
                    Number::Int(value) => format.narrow(round_to_odd(value)).to_ne_bytes(),
                    _ => format.narrow(self.real()).to_ne_bytes(),
                };
                let imaginary = if let Number::Complex(_, imaginary) = self { imaginary } else { 0.0 };
                match dtype {
                    $(DType::$dtype => {
                        let element = match self {
                            Number::Int(value) => value as $type,
                            _ => self.real() as $type,
                        };
                        bytes[..size_of::<$type>()].copy_from_slice(&element.to_ne_bytes());
                    })*
                    DType::F16 => bytes[..2].copy_from_slice(&half(&FLOAT16)),
                    DType::BF16 => bytes[..2].copy_from_slice(&half(&BFLOAT16)),
                    DType::C64 => {
                        bytes[..4].copy_from_slice(&(self.real() as f32).to_ne_bytes());
                        bytes[4..8].copy_from_slice(&(imaginary as f32).to_ne_bytes());
                    }
                    DType::C128 => {
                        bytes[..8].copy_from_slice(&self.real().to_ne_bytes());
                        bytes[8..16].copy_from_slice(&imaginary.to_ne_bytes());
                    }
                    DType::BOOL => bytes[0] = u8::from(self.is_true()),
                    _ => panic!("{dtype} has no numbers"),
                }
            }
        }
    };
}

dtypes! {
    I8 i8: Int(i128); I16 i16: Int(i128); I32 i32: Int(i128); I64 i64: Int(i128);
    U8 u8: Int(i128); U16 u16: Int(i128); U32 u32: Int(i128); U64 u64: Int(i128);
    F32 f32: Float(f64); F64 f64: Float(f64);
}

impl Number {
    /// Returns the number as a float; of a complex number the real part.
    pub fn real(self) -> f64 {
        match self {
            Number::Int(value) => value as f64,
            Number::Float(value) | Number::Complex(value, _) => value,
        }
    }

    /// Returns whether it isn't zero. NaN isn't.
    pub fn is_true(self) -> bool {
        self.real() != 0.0 || matches!(self, Number::Complex(_, imaginary) if imaginary != 0.0)
    }

    /// Returns the real and the imaginary part.
    fn parts(self) -> (f64, f64) {
        match self {
            Number::Complex(real, imaginary) => (real, imaginary),
            _ => (self.real(), 0.0),
        }
    }
}

impl From<bool> for Number {
    fn from(value: bool) -> Number {
        Number::Int(value.into())
    }
}

impl Add for Number {
    type Output = Number;

    /// Returns the sum, complex or a float if one of both is. Integers wrap.
    fn add(self, other: Number) -> Number {
        match (self, other) {
            (Number::Int(a), Number::Int(b)) => Number::Int(a.wrapping_add(b)),
            (Number::Complex(..), _) | (_, Number::Complex(..)) => {
                let ((a, b), (c, d)) = (self.parts(), other.parts());
                Number::Complex(a + c, b + d)
            }
            _ => Number::Float(self.real() + other.real()),
        }
    }
}

impl Mul for Number {
    type Output = Number;

    /// Returns the product, complex or a float if one of both is. Integers wrap.
    fn mul(self, other: Number) -> Number {
        match (self, other) {
            (Number::Int(a), Number::Int(b)) => Number::Int(a.wrapping_mul(b)),
            (Number::Complex(..), _) | (_, Number::Complex(..)) => {
                let ((a, b), (c, d)) = (self.parts(), other.parts());
                Number::Complex(a * c - b * d, a * d + b * c)
            }
            _ => Number::Float(self.real() * other.real()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn converted(number: Number, dtype: DType) -> Number {
        let mut bytes = [0; 16];
        number.write(dtype, &mut bytes);
        Number::read(dtype, &bytes)
    }

    #[test]
    fn numbers_are_converted_as_by_the_primitive_cast() {
        use Number::{Complex, Float, Int};
        for (number, dtype, expected) in [
            (Int(300), DType::U8, Int(44)),
            (Int(-1), DType::U64, Int(u64::MAX.into())),
            (Float(300.5), DType::I8, Int(127)),
            (Float(f64::NAN), DType::I32, Int(0)),
            (Float(-0.5), DType::BOOL, Int(1)),
            (Float(f64::NAN), DType::BOOL, Int(1)),
            (Complex(0.0, 2.0), DType::BOOL, Int(1)),
            (Float(0.1), DType::F32, Float(f64::from(0.1_f32))),
            (Complex(0.5, 3.0), DType::F64, Float(0.5)),
            (Complex(0.5, 3.0), DType::C64, Complex(0.5, 3.0)),
            (Int(7), DType::C128, Complex(7.0, 0.0)),
            (Float(65519.0), DType::F16, Float(65504.0)),
            (Float(65520.0), DType::F16, Float(f64::INFINITY)),
            (Float(2.0_f64.powi(-25)), DType::F16, Float(0.0)),
            (Float(3.0 * 2.0_f64.powi(-25)), DType::F16, Float(2.0_f64.powi(-23))),
            (Float(1.0 + 1.0 / 256.0), DType::BF16, Float(1.0)),
            // One above the middle of two neighbours, which float64 doesn't have.
            (Int((1 << 62) + (1 << 54) + 1), DType::BF16, Int((1 << 62) + (1 << 55))),
        ] {
            let same = converted(number, dtype);
            assert_eq!(same.real(), expected.real(), "{number:?} as {dtype}");
            assert_eq!(same.parts(), expected.parts(), "{number:?} as {dtype}");
        }
        assert!(converted(Float(f64::NAN), DType::F16).real().is_nan());
    }

    #[test]
    fn every_half_is_read_and_written_as_itself() {
        for dtype in [DType::F16, DType::BF16] {
            for bits in 0..=u16::MAX {
                let number = Number::read(dtype, &bits.to_ne_bytes());
                let mut again = [0; 2];
                number.write(dtype, &mut again);
                assert!(number.real().is_nan() || again == bits.to_ne_bytes(), "{dtype} {bits:#x}");
            }
        }
    }

    #[test]
    fn sums_and_products_are_of_the_wider_kind() {
        use Number::{Complex, Float, Int};
        assert_eq!(Int(2) * Int(3) + Int(1), Int(7));
        assert_eq!(Int(2) * Float(0.5), Float(1.0));
        assert_eq!(Complex(1.0, 2.0) * Complex(3.0, 4.0), Complex(-5.0, 10.0));
        assert_eq!(Complex(1.0, 2.0) + Float(1.0), Complex(2.0, 2.0));
        assert_eq!(Int(i128::MAX) + Int(1), Int(i128::MIN));
    }
}
