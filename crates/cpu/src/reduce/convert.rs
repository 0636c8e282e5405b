//! Conversions of elements to the type that a reduction computes in, and back: one at a time, or in
//! groups for float16, for which processors have instructions.

use keyfold_core::{Complex, Element, bf16, f16};
use keyfold_kit::half::Half;
use keyfold_kit::isa::Isa;

use crate::element::HasBits;

/// A bool as stored: memory of other libraries may have bytes other than 0 and 1, which count as true.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct BoolByte(u8);

// SAFETY: it is a byte.
unsafe impl HasBits for BoolByte {
    type Bits = u8;
}

/// The types that stand for an element type in reductions.
pub(crate) trait ReductionTypes: Element + HasBits {
    /// The type of the stored bytes.
    type Stored: HasBits;
    /// The type in comparisons by order; complex numbers have none.
    type Number: HasBits;
    /// The type in tests for zero.
    type Tested: HasBits;
    /// The type of the sum of a part of a lane, which is exact for integers.
    type Part: HasBits;
    /// The type of the sum of a lane. Integers are added in 64 bits, which wraps as the narrower type
    /// would after the final conversion.
    type Sum: Element + HasBits;
}

macro_rules! reduced {
    ($($type:ty: $stored:ty, $number:ty, $tested:ty, $part:ty, $sum:ty;)*) => {$(
        impl ReductionTypes for $type {
            type Stored = $stored;
            type Number = $number;
            type Tested = $tested;
            type Part = $part;
            type Sum = $sum;
        }
    )*};
}

reduced! {
    bool: BoolByte, u8, u8, i32, i64;
    u8: u8, u8, u8, u32, u64;
    u16: u16, u16, u16, u32, u64;
    u32: u32, u32, u32, u64, u64;
    u64: u64, u64, u64, u64, u64;
    i8: i8, i8, u8, i32, i64;
    i16: i16, i16, u16, i32, i64;
    i32: i32, i32, u32, i64, i64;
    i64: i64, i64, u64, i64, i64;
    f16: f16, f32, f16, f32, f32;
    // The bits of both halves are 0 for the same elements.
    bf16: bf16, f32, f16, f32, f32;
    f32: f32, f32, f32, f32, f32;
    f64: f64, f64, f64, f64, f64;
    Complex<f32>: Complex<f32>, Complex<f32>, Complex<f32>, Complex<f32>, Complex<f32>;
    Complex<f64>: Complex<f64>, Complex<f64>, Complex<f64>, Complex<f64>, Complex<f64>;
}

/// A conversion without loss if the target can hold the value, and otherwise as by `as`.
pub(crate) trait To<A>: Sized {
    fn convert(self) -> A;

    /// Whether several elements are converted by instructions that the compiler doesn't generate from a
    /// loop.
    const IN_GROUPS: bool = false;

    /// Converts each element; the slices are of equal length.
    #[inline(always)]
    fn convert_all<I: Isa>(from: &[Self], to: &mut [A])
    where
        Self: Copy,
    {
        for (to, from) in to.iter_mut().zip(from) {
            *to = from.convert();
        }
    }
}

macro_rules! numbers {
    // Conversions are one `as` per pair of primitive types, and no trait offers `as`.
    ($($from:ty => $($to:ty),+;)*) => {$($(
        impl To<$to> for $from {
            #[inline(always)]
            fn convert(self) -> $to {
                self as $to
            }
        }
    )+)*};
}

numbers! {
    u8 => u8, u32;
    u16 => u16, u32;
    u32 => u32, u64;
    u64 => u8, u16, u32, u64;
    i8 => i8, i32;
    i16 => i16, i32;
    i32 => i32, i64;
    i64 => i8, i16, i32, i64;
    f32 => f32;
    f64 => i32, f32, f64;
}

impl To<i32> for BoolByte {
    #[inline(always)]
    fn convert(self) -> i32 {
        i32::from(self.0 != 0)
    }
}
impl To<u8> for BoolByte {
    #[inline(always)]
    fn convert(self) -> u8 {
        u8::from(self.0 != 0)
    }
}
impl To<f32> for bf16 {
    #[inline(always)]
    fn convert(self) -> f32 {
        self.widen()
    }
}
impl To<f32> for f16 {
    #[inline(always)]
    fn convert(self) -> f32 {
        self.widen()
    }
    const IN_GROUPS: bool = true;
    #[inline(always)]
    fn convert_all<I: Isa>(from: &[f16], to: &mut [f32]) {
        f16::widen_all::<I>(from, to);
    }
}
impl To<f16> for f32 {
    #[inline(always)]
    fn convert(self) -> f16 {
        f16::narrow(self)
    }
    const IN_GROUPS: bool = true;
    #[inline(always)]
    fn convert_all<I: Isa>(from: &[f32], to: &mut [f16]) {
        f16::narrow_all::<I>(from, to);
    }
}
impl To<bf16> for f32 {
    #[inline(always)]
    fn convert(self) -> bf16 {
        bf16::narrow(self)
    }
}
impl To<BoolByte> for u8 {
    #[inline(always)]
    fn convert(self) -> BoolByte {
        BoolByte(u8::from(self != 0))
    }
}
impl To<BoolByte> for u16 {
    #[inline(always)]
    fn convert(self) -> BoolByte {
        BoolByte(u8::from(self != 0))
    }
}
impl To<BoolByte> for u32 {
    #[inline(always)]
    fn convert(self) -> BoolByte {
        BoolByte(u8::from(self != 0))
    }
}
impl To<BoolByte> for u64 {
    #[inline(always)]
    fn convert(self) -> BoolByte {
        BoolByte(u8::from(self != 0))
    }
}

macro_rules! same {
    ($($type:ty),*) => {$(
        impl To<$type> for $type {
            #[inline(always)]
            fn convert(self) -> $type {
                self
            }
        }
    )*};
}
same!(f16, bf16, Complex<f32>, Complex<f64>);

/// An element's magnitude, as an integer that is 0 exactly for zeros.
pub(crate) trait NonZero: HasBits {
    type Magnitude: HasBits;
    /// The conversion; that of integers is the one of min and max, with which they share loops.
    type Loop: Convert<From = Self, To = Self::Magnitude>;
    fn magnitude(self) -> Self::Magnitude;
}

macro_rules! nonzero {
    ($($type:ty, $magnitude:ty, $loop:ty, $x:ident => $expr:expr;)*) => {$(
        impl NonZero for $type {
            type Magnitude = $magnitude;
            type Loop = $loop;
            #[inline(always)]
            fn magnitude(self) -> $magnitude {
                let $x = self;
                $expr
            }
        }
    )*};
}

nonzero! {
    u8, u8, Converted<u8, u8>, x => x;
    u16, u16, Converted<u16, u16>, x => x;
    u32, u32, Converted<u32, u32>, x => x;
    u64, u64, Converted<u64, u64>, x => x;
    // Without the sign bit, since -0.0 is zero.
    f16, u16, Magnitudes<f16>, x => x.to_bits() << 1;
    f32, u32, Magnitudes<f32>, x => x.to_bits() << 1;
    f64, u64, Magnitudes<f64>, x => x.to_bits() << 1;
    Complex<f32>, u32, Magnitudes<Complex<f32>>, x => (x.re.to_bits() | x.im.to_bits()) << 1;
    Complex<f64>, u64, Magnitudes<Complex<f64>>, x => (x.re.to_bits() | x.im.to_bits()) << 1;
}

/// A conversion of one element as a type, so that loops are compiled with the conversion inlined.
pub(crate) trait Convert: 'static {
    type From: Copy + 'static;
    type To: Copy + 'static;
    fn one(from: Self::From) -> Self::To;

    /// As [`To::IN_GROUPS`].
    const IN_GROUPS: bool = false;

    /// As [`To::convert_all`].
    #[inline(always)]
    fn all<I: Isa>(from: &[Self::From], to: &mut [Self::To]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = Self::one(*from);
        }
    }
}

pub(crate) struct Converted<S, A>(std::marker::PhantomData<(S, A)>);
impl<S: To<A> + Copy + 'static, A: Copy + 'static> Convert for Converted<S, A> {
    type From = S;
    type To = A;
    #[inline(always)]
    fn one(from: S) -> A {
        from.convert()
    }
    const IN_GROUPS: bool = S::IN_GROUPS;
    #[inline(always)]
    fn all<I: Isa>(from: &[S], to: &mut [A]) {
        S::convert_all::<I>(from, to);
    }
}

/// No conversion, for numbers that were converted in groups before.
pub(crate) struct Unconverted<A>(std::marker::PhantomData<A>);
impl<A: Copy + 'static> Convert for Unconverted<A> {
    type From = A;
    type To = A;
    #[inline(always)]
    fn one(from: A) -> A {
        from
    }
}

pub(crate) struct Magnitudes<S>(std::marker::PhantomData<S>);
impl<S: NonZero> Convert for Magnitudes<S> {
    type From = S;
    type To = S::Magnitude;
    #[inline(always)]
    fn one(from: S) -> S::Magnitude {
        from.magnitude()
    }
}
