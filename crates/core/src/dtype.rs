//! Element types: names, sizes, kinds and promotion.

use std::fmt;
use std::str::FromStr;

use half::{bf16, f16};
use num_complex::Complex;

use crate::error::{Error, ErrorKind, Result};
use crate::scalar::Scalar;

/// The type of a tensor's elements.
///
/// The dtypes of the Python array API standard and the two half-precision floats. The default float
/// is [`DType::F64`] and the default integer [`DType::I64`], as in NumPy.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// `bool`, one byte: 0 or 1.
    Bool,
    /// `uint8`.
    U8,
    /// `uint16`.
    U16,
    /// `uint32`.
    U32,
    /// `uint64`.
    U64,
    /// `int8`.
    I8,
    /// `int16`.
    I16,
    /// `int32`.
    I32,
    /// `int64`.
    I64,
    /// `float16`: IEEE half precision.
    F16,
    /// `bfloat16`: the upper half of a `float32`.
    BF16,
    /// `float32`.
    F32,
    /// `float64`.
    F64,
    /// `complex64`: two `float32`.
    C64,
    /// `complex128`: two `float64`.
    C128,
}

/// The kind of number a dtype holds, in the order of promotion.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum DTypeKind {
    /// True and false.
    Bool,
    /// Unsigned integers.
    UInt,
    /// Signed integers.
    Int,
    /// Floating point.
    Float,
    /// A real and an imaginary float.
    Complex,
}

use DType::{BF16, Bool, C64, C128, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};

/// Each dtype with its full name, its short one, and its size in bytes.
const TABLE: [(DType, &str, &str, usize); 15] = [
    (Bool, "bool", "b8", 1),
    (U8, "uint8", "u8", 1),
    (U16, "uint16", "u16", 2),
    (U32, "uint32", "u32", 4),
    (U64, "uint64", "u64", 8),
    (I8, "int8", "i8", 1),
    (I16, "int16", "i16", 2),
    (I32, "int32", "i32", 4),
    (I64, "int64", "i64", 8),
    (F16, "float16", "f16", 2),
    (BF16, "bfloat16", "bf16", 2),
    (F32, "float32", "f32", 4),
    (F64, "float64", "f64", 8),
    (C64, "complex64", "c64", 8),
    (C128, "complex128", "c128", 16),
];

// Sizes in bytes are converted to numbers of elements by shifts.
const _: () = {
    let mut at = 0;
    while at < TABLE.len() {
        assert!(TABLE[at].3.is_power_of_two(), "an element's size is a power of two");
        at += 1;
    }
};

impl DType {
    /// Every dtype, in declaration order.
    pub const ALL: [DType; 15] = {
        let mut all = [Bool; 15];
        let mut i = 0;
        while i < all.len() {
            all[i] = TABLE[i].0;
            i += 1;
        }
        all
    };
    /// The dtype of a Python `float`, and of constructors without a dtype argument.
    pub const DEFAULT_FLOAT: DType = F64;
    /// The dtype of a Python `int`.
    pub const DEFAULT_INT: DType = I64;
    /// The dtype of a Python `complex`.
    pub const DEFAULT_COMPLEX: DType = C128;

    /// Returns the size of an element in bytes.
    #[inline]
    pub const fn size(self) -> usize {
        TABLE[self as usize].3
    }

    /// Returns the alignment of an element in bytes: its size, for complex numbers the size of a
    /// part.
    #[inline]
    pub const fn align(self) -> usize {
        self.real().size()
    }

    /// Returns the name that NumPy and the array API standard use: `float32`, `complex64`.
    pub const fn name(self) -> &'static str {
        TABLE[self as usize].1
    }

    /// Returns the short name: `f32`, `c64`.
    pub const fn short_name(self) -> &'static str {
        TABLE[self as usize].2
    }

    /// Returns the kind of number it holds.
    #[inline]
    pub const fn kind(self) -> DTypeKind {
        match self {
            Bool => DTypeKind::Bool,
            U8 | U16 | U32 | U64 => DTypeKind::UInt,
            I8 | I16 | I32 | I64 => DTypeKind::Int,
            F16 | BF16 | F32 | F64 => DTypeKind::Float,
            C64 | C128 => DTypeKind::Complex,
        }
    }

    /// Returns whether it is a real floating-point type.
    #[inline]
    pub const fn is_floating(self) -> bool {
        matches!(self.kind(), DTypeKind::Float)
    }

    /// Returns whether it holds integers, signed or not; `bool` isn't one.
    #[inline]
    pub const fn is_integral(self) -> bool {
        matches!(self.kind(), DTypeKind::Int | DTypeKind::UInt)
    }

    /// Returns the smallest and the largest integer it holds; `None` for a dtype that isn't
    /// integral.
    pub fn int_range(self) -> Option<(i128, i128)> {
        let bits = 8 * self.size() as u32;
        match self.kind() {
            DTypeKind::UInt => Some((0, (1 << bits) - 1)),
            DTypeKind::Int => Some((-(1 << (bits - 1)), (1 << (bits - 1)) - 1)),
            _ => None,
        }
    }

    /// Returns whether it is a complex type.
    #[inline]
    pub const fn is_complex(self) -> bool {
        matches!(self.kind(), DTypeKind::Complex)
    }

    /// Returns the dtype of a complex number's parts; for other dtypes, the dtype itself.
    pub const fn real(self) -> DType {
        match self {
            C64 => F32,
            C128 => F64,
            other => other,
        }
    }

    /// Returns the promoted dtype of two arrays' dtypes.
    ///
    /// The table is NumPy's, which agrees with the array API standard wherever the standard defines
    /// promotion. Within a kind the wider dtype wins. Signed with unsigned gives the smallest
    /// signed dtype that holds both (`uint64` with a signed one: `float64`). Integers with floats
    /// or complex numbers give the smallest dtype of that kind that is at least as wide as the
    /// float and holds integers of that size (8 bits: any; 16 bits: `float32`; more: `float64`).
    /// `bfloat16` with `float16` gives `float32`. Promotion is commutative.
    ///
    /// ```
    /// use keyfold_core::DType;
    /// assert_eq!(DType::I32.promote(DType::F32), DType::F64);
    /// assert_eq!(DType::U8.promote(DType::I8), DType::I16);
    /// ```
    pub fn promote(self, other: DType) -> DType {
        let (low, high) = if self.kind() <= other.kind() { (self, other) } else { (other, self) };
        match (low.kind(), high.kind()) {
            (DTypeKind::Bool, _) => high,
            (DTypeKind::UInt, DTypeKind::Int) => {
                if high.size() > low.size() {
                    high
                } else {
                    match low {
                        U8 => I16,
                        U16 => I32,
                        U32 => I64,
                        _ => F64,
                    }
                }
            }
            (DTypeKind::UInt | DTypeKind::Int, DTypeKind::Float) => match low.size() {
                1 => high,
                2 => high.promote(F32),
                _ => F64,
            },
            (DTypeKind::UInt | DTypeKind::Int, DTypeKind::Complex) => {
                if low.size() > 2 {
                    C128
                } else {
                    high
                }
            }
            (DTypeKind::Float, DTypeKind::Complex) => {
                if low == F64 {
                    C128
                } else {
                    high
                }
            }
            (DTypeKind::Float, DTypeKind::Float) if low != high && low.size() == high.size() => F32,
            _ => {
                if low.size() > high.size() {
                    low
                } else {
                    high
                }
            }
        }
    }

    /// Returns the promoted dtype of an array of this dtype and a plain number.
    ///
    /// Plain numbers are weak: the array's dtype stays if it can hold the number's kind; otherwise
    /// the kind's default dtype is promoted with it (`int64`, `float64`; a complex number makes
    /// `complex64` of a float of at most 32 bits). [`Scalar::check`] checks the range of the value.
    ///
    /// ```
    /// use keyfold_core::{DType, Scalar};
    /// assert_eq!(DType::F32.promote_scalar(Scalar::Float(0.5)), DType::F32);
    /// assert_eq!(DType::I8.promote_scalar(Scalar::Float(0.5)), DType::F64);
    /// ```
    pub fn promote_scalar(self, scalar: Scalar) -> DType {
        match (scalar.kind(), self.kind()) {
            (DTypeKind::Bool, _) => self,
            (DTypeKind::UInt | DTypeKind::Int, DTypeKind::Bool) => I64,
            (DTypeKind::UInt | DTypeKind::Int, _) => self,
            (DTypeKind::Float, DTypeKind::Float | DTypeKind::Complex) => self,
            (DTypeKind::Float, _) => F64,
            (DTypeKind::Complex, DTypeKind::Complex) => self,
            (DTypeKind::Complex, DTypeKind::Float) if self != F64 => C64,
            (DTypeKind::Complex, _) => C128,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Debug for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for DType {
    type Err = Error;

    /// Parses `float32` or `f32`. The error for an unknown name suggests the nearest one.
    fn from_str(text: &str) -> Result<Self> {
        if let Some(row) = TABLE.iter().find(|row| row.1 == text || row.2 == text) {
            return Ok(row.0);
        }
        let known: Vec<_> = DType::ALL.iter().map(|d| d.name()).collect();
        let hint = match nearest(text) {
            Some(name) => format!("did you mean {name:?}? "),
            None => String::new(),
        };
        Err(Error::new(
            ErrorKind::DType,
            format!("unknown dtype {text:?}; {hint}known are {}", known.join(", ")),
        ))
    }
}

/// Returns the dtype most likely meant by an unknown name.
fn nearest(text: &str) -> Option<&'static str> {
    // Names of other libraries; an ambiguous one maps to the likelier dtype.
    const OTHER_NAMES: [(&str, &str); 13] = [
        ("float", "float64"),
        ("double", "float64"),
        ("single", "float32"),
        ("half", "float16"),
        ("int", "int64"),
        ("long", "int64"),
        ("short", "int16"),
        ("byte", "uint8"),
        ("char", "int8"),
        ("uint", "uint64"),
        ("complex", "complex128"),
        ("boolean", "bool"),
        ("bool_", "bool"),
    ];
    let lower = text.rsplit('.').next().unwrap_or(text).to_ascii_lowercase();
    if let Some((_, name)) = OTHER_NAMES.iter().find(|(other, _)| *other == lower) {
        return Some(name);
    }
    if let Some(row) = TABLE.iter().find(|row| row.1 == lower || row.2 == lower) {
        return Some(row.1);
    }
    // One letter missing, added or replaced.
    TABLE.iter().map(|row| row.1).find(|name| one_edit(name.as_bytes(), lower.as_bytes()))
}

fn one_edit(a: &[u8], b: &[u8]) -> bool {
    let (short, long) = if a.len() <= b.len() { (a, b) } else { (b, a) };
    let same = short.iter().zip(long).take_while(|(x, y)| x == y).count();
    match long.len() - short.len() {
        0 => same == short.len() || short[same + 1..] == long[same + 1..],
        1 => short[same..] == long[same + 1..],
        _ => false,
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type for the elements of one dtype. The trait is sealed, since the set of dtypes is
/// closed.
pub trait Element:
    sealed::Sealed + Copy + Default + PartialEq + fmt::Debug + Send + Sync + 'static
{
    /// The dtype of this element type.
    const DTYPE: DType;

    /// Converts a number as Rust's `as` does: floats to integers truncate and saturate, integers to
    /// narrower ones wrap, complex to real drops the imaginary part, anything but zero is true.
    /// [`Scalar::check`] finds lossy conversions beforehand.
    fn from_scalar(scalar: Scalar) -> Self;

    /// Returns the element as a [`Scalar`].
    fn to_scalar(self) -> Scalar;
}

macro_rules! element {
    // A macro, since the conversions are one `as` per primitive type and no trait offers `as`.
    ($($type:ty, $dtype:ident, $scalar:ident => $from:expr, $this:ident => $to:expr;)*) => {$(
        impl sealed::Sealed for $type {}
        impl Element for $type {
            const DTYPE: DType = $dtype;
            #[inline]
            fn from_scalar($scalar: Scalar) -> Self {
                $from
            }
            #[inline]
            fn to_scalar(self) -> Scalar {
                let $this = self;
                $to
            }
        }
    )*};
}

/// Rounds a float64 to a float32 by rounding to odd, so that rounding again to float16 or bfloat16
/// gives the nearest one. Rounding to the nearest float32 first would round twice. An inexact
/// result is the neighbour whose last bit is set (S. Boldo and G. Melquiond, "Emulation of FMA and
/// correctly rounded sums", 2008).
#[inline(always)]
pub fn rounded_to_odd(x: f64) -> f32 {
    let near = x as f32;
    let back = f64::from(near);
    let bits = near.to_bits();
    let odd = if back.abs() > x.abs() { bits.wrapping_sub(1) } else { bits.wrapping_add(1) };
    let keep = (back == x) | x.is_nan() | (bits & 1 == 1);
    f32::from_bits(if keep { bits } else { odd })
}

element! {
    bool, Bool, s => s.is_nonzero(), x => Scalar::Bool(x);
    u8, U8, s => s.as_int_wrapping() as u8, x => Scalar::Int(x.into());
    u16, U16, s => s.as_int_wrapping() as u16, x => Scalar::Int(x.into());
    u32, U32, s => s.as_int_wrapping() as u32, x => Scalar::Int(x.into());
    u64, U64, s => s.as_int_wrapping() as u64, x => Scalar::from(x);
    i8, I8, s => s.as_int_wrapping() as i8, x => Scalar::Int(x.into());
    i16, I16, s => s.as_int_wrapping() as i16, x => Scalar::Int(x.into());
    i32, I32, s => s.as_int_wrapping() as i32, x => Scalar::Int(x.into());
    i64, I64, s => s.as_int_wrapping() as i64, x => Scalar::Int(x);
    f16, F16, s => f16::from_f32(rounded_to_odd(s.as_f64())), x => Scalar::Float(x.to_f64());
    bf16, BF16, s => bf16::from_f32(rounded_to_odd(s.as_f64())), x => Scalar::Float(x.to_f64());
    f32, F32, s => s.as_f64() as f32, x => Scalar::Float(x.into());
    f64, F64, s => s.as_f64(), x => Scalar::Float(x);
    Complex<f32>, C64, s => {
        let c = s.as_complex();
        Complex::new(c.re as f32, c.im as f32)
    }, x => Scalar::Complex(Complex::new(x.re.into(), x.im.into()));
    Complex<f64>, C128, s => s.as_complex(), x => Scalar::Complex(x);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_declaration_order_and_names_round_trip() {
        for (i, dtype) in DType::ALL.into_iter().enumerate() {
            assert_eq!(dtype as usize, i);
            assert_eq!(dtype.name().parse::<DType>().unwrap(), dtype);
            assert_eq!(dtype.short_name().parse::<DType>().unwrap(), dtype);
        }
        assert_eq!(format!("{C64:?} {BF16}"), "complex64 bfloat16");
    }

    #[test]
    fn sizes_are_those_of_the_element_types() {
        fn check<T: Element>() {
            assert_eq!(T::DTYPE.size(), size_of::<T>(), "{}", T::DTYPE);
            assert_eq!(T::DTYPE.align() % align_of::<T>(), 0, "{}", T::DTYPE);
        }
        check::<bool>();
        check::<u8>();
        check::<u16>();
        check::<u32>();
        check::<u64>();
        check::<i8>();
        check::<i16>();
        check::<i32>();
        check::<i64>();
        check::<f16>();
        check::<bf16>();
        check::<f32>();
        check::<f64>();
        check::<Complex<f32>>();
        check::<Complex<f64>>();
    }

    #[test]
    fn unknown_names_offer_the_nearest() {
        let cases = [("flot32", "float32"), ("Float64", "float64"), ("torch.int8", "int8")];
        for (text, near) in cases.into_iter().chain([("double", "float64"), ("nt32", "int32")]) {
            let error = text.parse::<DType>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::DType);
            let hint = format!("did you mean {near:?}?");
            assert!(error.message().contains(&hint), "{text}: {error}");
        }
        let error = "object".parse::<DType>().unwrap_err();
        assert!(!error.message().contains("did you mean"), "{error}");
        assert!(error.message().contains("complex128"), "{error}");
        assert!("".parse::<DType>().is_err() && "💥".parse::<DType>().is_err());
    }

    #[test]
    fn promotion_is_commutative_idempotent_and_never_narrows() {
        for a in DType::ALL {
            assert_eq!(a.promote(a), a);
            for b in DType::ALL {
                let ab = a.promote(b);
                assert_eq!(ab, b.promote(a), "{a} {b}");
                assert!(ab.size() >= a.size().max(b.size()), "{a} {b} -> {ab}");
                assert!(ab.kind() >= a.kind().max(b.kind()), "{a} {b} -> {ab}");
                assert_eq!(ab.promote(a), ab, "{a} {b}");
            }
        }
    }

    #[test]
    fn promotion_follows_numpy() {
        let cases = [
            (U8, I8, I16),
            (U8, I32, I32),
            (U16, I16, I32),
            (U32, I32, I64),
            (U64, I8, F64),
            (U8, U64, U64),
            (I64, F32, F64),
            (I32, F32, F64),
            (I16, F32, F32),
            (I8, F16, F16),
            (U16, F16, F32),
            (U8, BF16, BF16),
            (I16, BF16, F32),
            (I64, BF16, F64),
            (F16, BF16, F32),
            (BF16, F32, F32),
            (F64, C64, C128),
            (F32, C64, C64),
            (I16, C64, C64),
            (I32, C64, C128),
            (C64, C128, C128),
            (Bool, Bool, Bool),
            (Bool, I8, I8),
            (Bool, C64, C64),
        ];
        for (a, b, expected) in cases {
            assert_eq!(a.promote(b), expected, "{a} with {b}");
        }
    }

    #[test]
    fn plain_numbers_are_weak() {
        let cases = [
            (Scalar::Bool(true), Bool, Bool),
            (Scalar::Bool(true), I8, I8),
            (Scalar::Int(1), Bool, I64),
            (Scalar::Int(1), U8, U8),
            (Scalar::Int(1), BF16, BF16),
            (Scalar::Float(1.0), F16, F16),
            (Scalar::Float(1.0), I8, F64),
            (Scalar::Float(1.0), C64, C64),
            (Scalar::Complex(Complex::new(0.0, 1.0)), F32, C64),
            (Scalar::Complex(Complex::new(0.0, 1.0)), F64, C128),
            (Scalar::Complex(Complex::new(0.0, 1.0)), I32, C128),
        ];
        for (scalar, dtype, expected) in cases {
            assert_eq!(dtype.promote_scalar(scalar), expected, "{dtype} with {scalar}");
        }
    }
}
