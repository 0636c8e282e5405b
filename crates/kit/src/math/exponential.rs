//! The exponential and the logistic function of float32 on whole registers, for processors with AVX-512.
//!
//! The algorithms are the scalar ones, except that the power of two is applied by the scale instruction,
//! which rounds a subnormal result once and overflows to infinity.

use crate::math::avx512::{Avx512Function, Vectors};
use crate::math::float32::{EXP, LN2_HIGH, LN2_LOW, MAGIC, SIGMOID_SCALE};
use crate::math::function::{Exp, Sigmoid};

/// Returns n and `exp(r) - 1` with `x = n ln 2 + r`, or the same for `-x`.
#[inline(always)]
pub(super) fn parts<const NEGATED: bool, const N: usize>(
    x: Vectors<N>,
) -> (Vectors<N>, Vectors<N>) {
    let sign = if NEGATED { -1.0 } else { 1.0 };
    let magic = x.splat(MAGIC);
    let n = x.mul_add(x.splat(sign * std::f32::consts::LOG2_E), magic).minus(magic);
    // r or -r.
    let s = n.mul_sub_from(x.splat(sign * LN2_HIGH), x);
    let s = n.mul_sub_from(x.splat(sign * LN2_LOW), s);
    // The polynomial is evaluated in pairs, so that fewer steps depend on one another.
    let [a, b, c, d, e] = EXP;
    let square = s.times(s);
    let high = square.mul_add(x.splat(e), s.mul_add(x.splat(sign * d), x.splat(c)));
    let sum = square.mul_add(high, s.mul_add(x.splat(sign * b), x.splat(a)));
    (n, if NEGATED { square.mul_sub(sum, s) } else { square.mul_add(sum, s) })
}

impl Avx512Function for Exp {
    #[inline(always)]
    fn of<const N: usize>(x: Vectors<N>) -> Vectors<N> {
        let (n, part) = parts::<false, N>(x.clamp_below(-104.0).clamp_above(89.0));
        part.plus(x.splat(1.0)).scale_by_power(n)
    }
}

impl Avx512Function for Sigmoid {
    #[inline(always)]
    fn of<const N: usize>(x: Vectors<N>) -> Vectors<N> {
        let (n, part) = parts::<true, N>(x.clamp_below(-104.0).clamp_above(30.0));
        let unit = x.splat(SIGMOID_SCALE);
        let power = unit.scale_by_power(n);
        let whole = power.plus(unit);
        let lost = unit.minus(whole.minus(power));
        unit.divided_by(whole.plus(power.mul_add(part, lost)))
    }
}
