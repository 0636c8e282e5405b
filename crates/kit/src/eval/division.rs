//! Floor division of floats, and what it leaves: as Python's.
//!
//! The exact remainder is a call of the C library that takes a number at a time. But where the quotient
//! isn't too large, its floor q is exact or one too much (it was rounded up to a whole number), and
//! `a - q b`, which is rounded once, tells: so there are no branches and no steps. What lies further
//! apart is found in a chunk, and computed again by the C library.

use super::kernel::Map2;
use crate::isa::Isa;
use crate::math::Real;

/// What floor division needs of floats.
pub(crate) trait Floating: Real {
    /// Below this absolute value the algorithm of [`Floating::floor_div`] gives the floor itself: its
    /// two roundings add up to less than a quarter.
    const QUOTIENTS: Self;
    /// Below this absolute value all whole numbers are floats.
    const REMAINDERS: Self;

    /// As Python's floats: the quotient that goes with the remainder of the divisor's sign.
    fn floor_div(self, other: Self) -> Self;
    /// The remainder with the divisor's sign.
    fn modulo(self, other: Self) -> Self;
    /// The whole number below, by the processor's instruction.
    fn below(self) -> Self;
}

macro_rules! floating {
    ($($float:ident $quotients:expr, $remainders:expr;)*) => {$(
        impl Floating for $float {
            const QUOTIENTS: Self = $quotients;
            const REMAINDERS: Self = $remainders;

            #[inline(always)]
            fn floor_div(self, other: Self) -> Self {
                if other == 0.0 {
                    return self / other;
                }
                let rest = self % other;
                let mut quotient = (self - rest) / other;
                if rest != 0.0 && (rest < 0.0) != (other < 0.0) {
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
                let rest = self % other;
                if rest == 0.0 {
                    return (0.0 as $float).copysign(other);
                }
                if (rest < 0.0) != (other < 0.0) { rest + other } else { rest }
            }
            #[inline(always)]
            fn below(self) -> Self {
                self.floor()
            }
        }
    )*};
}

floating! {
    f32 2_097_152.0, 16_777_216.0;
    f64 1_125_899_906_842_624.0, 9_007_199_254_740_992.0;
}

/// The quotient before its floor is taken, the floor, and the remainder, for quotients that aren't large.
#[inline(always)]
fn near<I: Isa, T: Floating>(a: T, b: T) -> [T; 3] {
    let quotient = a / b;
    let floor = quotient.below();
    let rest = (-floor).mul_add::<I>(b, a);
    // An infinite divisor, too, leaves all of it.
    let rest = if floor == T::ZERO { a } else { rest };
    let beyond = (rest != T::ZERO) & ((rest < T::ZERO) != (b < T::ZERO));
    let floor = if beyond { floor - T::ONE } else { floor };
    [quotient, floor, if beyond { rest + b } else { rest }]
}

/// Whether the quotient is too large for [`near`], though there is one.
#[inline(always)]
fn is_far<T: Floating>([a, b, quotient]: [T; 3], limit: T) -> bool {
    (quotient.abs() >= limit) & a.is_finite() & (b != T::ZERO)
}

/// `//`
pub(super) struct Over;
/// `%`
pub(super) struct Rest;

/// A function of two numbers that is computed by [`near`] for most of them.
trait Division<T: Copy>: Map2<T, T> {
    fn limit() -> T;
    fn near(a: T, b: T, near: [T; 3]) -> T;
}

impl<T: Floating> Division<T> for Over {
    #[inline(always)]
    fn limit() -> T {
        T::QUOTIENTS
    }
    #[inline(always)]
    fn near(_: T, b: T, [_, floor, rest]: [T; 3]) -> T {
        // Of an infinite dividend.
        if (b != T::ZERO) & rest.is_nan() { rest } else { floor }
    }
}

impl<T: Floating> Division<T> for Rest {
    #[inline(always)]
    fn limit() -> T {
        T::REMAINDERS
    }
    #[inline(always)]
    fn near(_: T, b: T, [_, _, rest]: [T; 3]) -> T {
        if rest == T::ZERO { T::ZERO.copysign(b) } else { rest }
    }
}

impl<T: Floating> Map2<T, T> for Over {
    #[inline(always)]
    fn apply<I: Isa>(a: T, b: T) -> T {
        a.floor_div(b)
    }
    #[inline(always)]
    fn all<I: Isa>(dst: &mut [T], a: &[T], b: &[T]) {
        all::<I, T, Over>(dst, a, b);
    }
}

impl<T: Floating> Map2<T, T> for Rest {
    #[inline(always)]
    fn apply<I: Isa>(a: T, b: T) -> T {
        a.modulo(b)
    }
    #[inline(always)]
    fn all<I: Isa>(dst: &mut [T], a: &[T], b: &[T]) {
        all::<I, T, Rest>(dst, a, b);
    }
}

/// Numbers that are computed before anyone looks whether all are good.
const AT_ONCE: usize = 32;

#[inline(always)]
fn all<I: Isa, T: Floating, D: Division<T>>(dst: &mut [T], a: &[T], b: &[T]) {
    if !I::FMA {
        // Products would be rounded.
        for ((dst, a), b) in dst.iter_mut().zip(a).zip(b) {
            *dst = D::apply::<I>(*a, *b);
        }
        return;
    }
    let (chunks, last) = dst.as_chunks_mut::<AT_ONCE>();
    let ((a, last_a), (b, last_b)) = (a.as_chunks::<AT_ONCE>(), b.as_chunks::<AT_ONCE>());
    for ((dst, a), b) in chunks.iter_mut().zip(a).zip(b) {
        chunk::<I, T, D>(dst, a, b);
    }
    if !last.is_empty() {
        let (mut results, mut more, mut by) =
            ([T::ZERO; AT_ONCE], [T::ZERO; AT_ONCE], [T::ONE; AT_ONCE]);
        more[..last.len()].copy_from_slice(last_a);
        by[..last.len()].copy_from_slice(last_b);
        chunk::<I, T, D>(&mut results, &more, &by);
        last.copy_from_slice(&results[..last.len()]);
    }
}

#[inline(always)]
fn chunk<I: Isa, T: Floating, D: Division<T>>(
    dst: &mut [T; AT_ONCE],
    a: &[T; AT_ONCE],
    b: &[T; AT_ONCE],
) {
    let mut any = false;
    for ((dst, a), b) in dst.iter_mut().zip(a).zip(b) {
        let near = near::<I, T>(*a, *b);
        *dst = D::near(*a, *b, near);
        any |= is_far([*a, *b, near[0]], D::limit());
    }
    if any {
        again::<I, T, D>(dst, a, b);
    }
}

#[cold]
#[inline(never)]
fn again<I: Isa, T: Floating, D: Division<T>>(
    dst: &mut [T; AT_ONCE],
    a: &[T; AT_ONCE],
    b: &[T; AT_ONCE],
) {
    for ((dst, a), b) in dst.iter_mut().zip(a).zip(b) {
        if is_far([*a, *b, *a / *b], D::limit()) {
            *dst = D::apply::<I>(*a, *b);
        }
    }
}
