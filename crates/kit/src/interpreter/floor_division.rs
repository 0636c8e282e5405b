//! Floor division and remainder of floats, as in Python.
//!
//! The exact remainder is a scalar call of the C library. For small quotients there is a vector
//! algorithm: the floor q of the rounded quotient is exact or one too large, and the sign of `a - q b`,
//! computed by one fused multiply-add, tells which. So there are no branches and no iterations. A chunk
//! of elements that has larger quotients is found by a mask, and those elements are computed again by
//! the C library.

use super::kernel::Map2;
use crate::isa::Isa;
use crate::math::Real;

/// Floats with floor division.
pub(crate) trait FloatDivision: Real {
    /// The bound on the absolute quotient for [`FloatDivision::floor_div`]: its two roundings add up to less
    /// than a quarter, so the floor is right.
    const MAX_QUOTIENT: Self;
    /// The bound on the absolute quotient for [`FloatDivision::modulo`]: all integers below it are floats.
    const MAX_MOD_QUOTIENT: Self;

    /// Floor division as of Python's floats: the quotient that belongs to [`FloatDivision::modulo`].
    fn floor_div(self, other: Self) -> Self;
    /// The remainder, with the divisor's sign.
    fn modulo(self, other: Self) -> Self;
    /// The greatest integer not above the number, by the processor's instruction.
    fn round_down(self) -> Self;
}

macro_rules! floating {
    ($($float:ident $quotients:expr, $remainders:expr;)*) => {$(
        impl FloatDivision for $float {
            const MAX_QUOTIENT: Self = $quotients;
            const MAX_MOD_QUOTIENT: Self = $remainders;

            #[inline(always)]
            fn floor_div(self, other: Self) -> Self {
                if other == 0.0 {
                    return self / other;
                }
                let remainder = self % other;
                let mut quotient = (self - remainder) / other;
                if remainder != 0.0 && (remainder < 0.0) != (other < 0.0) {
                    quotient -= 1.0;
                }
                if quotient == 0.0 {
                    return (0.0 as $float).copysign(self / other);
                }
                let floor = quotient.floor();
                if quotient - floor > 0.5 { floor + 1.0 } else { floor }
            }
            #[inline(always)]
            fn modulo(self, other: Self) -> Self {
                let remainder = self % other;
                if remainder == 0.0 {
                    return (0.0 as $float).copysign(other);
                }
                if (remainder < 0.0) != (other < 0.0) { remainder + other } else { remainder }
            }
            #[inline(always)]
            fn round_down(self) -> Self {
                self.floor()
            }
        }
    )*};
}

floating! {
    f32 2_097_152.0, 16_777_216.0;
    f64 1_125_899_906_842_624.0, 9_007_199_254_740_992.0;
}

/// Returns the quotient before rounding, its floor, and the remainder; right for quotients below the
/// bounds.
#[inline(always)]
fn divide<I: Isa, T: FloatDivision>(a: T, b: T) -> [T; 3] {
    let quotient = a / b;
    let floor = quotient.round_down();
    let remainder = (-floor).mul_add::<I>(b, a);
    // The remainder of an infinite divisor is the dividend; the product above would be NaN.
    let remainder = if floor == T::ZERO { a } else { remainder };
    let beyond = (remainder != T::ZERO) & ((remainder < T::ZERO) != (b < T::ZERO));
    let floor = if beyond { floor - T::ONE } else { floor };
    [quotient, floor, if beyond { remainder + b } else { remainder }]
}

/// Whether a finite quotient is too large for [`divide`].
#[inline(always)]
fn is_out_of_range<T: FloatDivision>([a, b, quotient]: [T; 3], limit: T) -> bool {
    (quotient.abs() >= limit) & a.is_finite() & (b != T::ZERO)
}

/// `//`
pub(super) struct FloatFloorDiv;
/// `%`
pub(super) struct FloatMod;

/// A binary function that is computed from [`divide`] where the quotient is below `limit`.
trait Division<T: Copy>: Map2<T, T> {
    fn limit() -> T;
    fn divide(a: T, b: T, divide: [T; 3]) -> T;
}

impl<T: FloatDivision> Division<T> for FloatFloorDiv {
    #[inline(always)]
    fn limit() -> T {
        T::MAX_QUOTIENT
    }
    #[inline(always)]
    fn divide(_: T, b: T, [_, floor, remainder]: [T; 3]) -> T {
        // An infinite dividend gives NaN.
        if (b != T::ZERO) & remainder.is_nan() { remainder } else { floor }
    }
}

impl<T: FloatDivision> Division<T> for FloatMod {
    #[inline(always)]
    fn limit() -> T {
        T::MAX_MOD_QUOTIENT
    }
    #[inline(always)]
    fn divide(_: T, b: T, [_, _, remainder]: [T; 3]) -> T {
        if remainder == T::ZERO { T::ZERO.copysign(b) } else { remainder }
    }
}

impl<T: FloatDivision> Map2<T, T> for FloatFloorDiv {
    #[inline(always)]
    fn apply<I: Isa>(a: T, b: T) -> T {
        a.floor_div(b)
    }
    #[inline(always)]
    fn all<I: Isa>(dst: &mut [T], a: &[T], b: &[T]) {
        all::<I, T, FloatFloorDiv>(dst, a, b);
    }
}

impl<T: FloatDivision> Map2<T, T> for FloatMod {
    #[inline(always)]
    fn apply<I: Isa>(a: T, b: T) -> T {
        a.modulo(b)
    }
    #[inline(always)]
    fn all<I: Isa>(dst: &mut [T], a: &[T], b: &[T]) {
        all::<I, T, FloatMod>(dst, a, b);
    }
}

/// Elements per chunk: the quotients of a chunk are checked together after it is computed.
const CHUNK: usize = 32;

#[inline(always)]
fn all<I: Isa, T: FloatDivision, D: Division<T>>(dst: &mut [T], a: &[T], b: &[T]) {
    if !I::FMA {
        // The vector algorithm needs fused multiply-add: a rounded product would hide the remainder.
        for ((dst, a), b) in dst.iter_mut().zip(a).zip(b) {
            *dst = D::apply::<I>(*a, *b);
        }
        return;
    }
    let (chunks, last) = dst.as_chunks_mut::<CHUNK>();
    let ((a, last_a), (b, last_b)) = (a.as_chunks::<CHUNK>(), b.as_chunks::<CHUNK>());
    for ((dst, a), b) in chunks.iter_mut().zip(a).zip(b) {
        chunk::<I, T, D>(dst, a, b);
    }
    if !last.is_empty() {
        let (mut results, mut more, mut by) = ([T::ZERO; CHUNK], [T::ZERO; CHUNK], [T::ONE; CHUNK]);
        more[..last.len()].copy_from_slice(last_a);
        by[..last.len()].copy_from_slice(last_b);
        chunk::<I, T, D>(&mut results, &more, &by);
        last.copy_from_slice(&results[..last.len()]);
    }
}

#[inline(always)]
fn chunk<I: Isa, T: FloatDivision, D: Division<T>>(
    dst: &mut [T; CHUNK],
    a: &[T; CHUNK],
    b: &[T; CHUNK],
) {
    let mut any = false;
    for ((dst, a), b) in dst.iter_mut().zip(a).zip(b) {
        let divide = divide::<I, T>(*a, *b);
        *dst = D::divide(*a, *b, divide);
        any |= is_out_of_range([*a, *b, divide[0]], D::limit());
    }
    if any {
        recompute_out_of_range::<I, T, D>(dst, a, b);
    }
}

#[cold]
#[inline(never)]
fn recompute_out_of_range<I: Isa, T: FloatDivision, D: Division<T>>(
    dst: &mut [T; CHUNK],
    a: &[T; CHUNK],
    b: &[T; CHUNK],
) {
    for ((dst, a), b) in dst.iter_mut().zip(a).zip(b) {
        if is_out_of_range([*a, *b, *a / *b], D::limit()) {
            *dst = D::apply::<I>(*a, *b);
        }
    }
}
