//! Conversion of the half-precision floats, float16 and bfloat16.
//!
//! They are computed in float32 (see `promote::computed`), so that this is all that there is of
//! them: six loops instead of one of each kernel.

use half::slice::HalfFloatSliceExt;
use keyfold_core::{DType, Element, Result, bf16, f16};
use keyfold_tensor::{Tensor, Walk};

use crate::map::cast;
use crate::op::Op;

/// Whether it is one of the halves.
pub(crate) fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

/// A half-precision float.
trait Half: Element {
    fn widen(self) -> f32;
    /// Rounds to the nearest, ties to even.
    fn narrow(x: f32) -> Self;
    fn widen_all(from: &[Self], to: &mut [f32]);
    fn narrow_all(from: &[f32], to: &mut [Self]);
}

macro_rules! half {
    // Both types have these by the same names, and no trait of their crate has.
    ($($type:ty),*) => {$(
        impl Half for $type {
            fn widen(self) -> f32 {
                self.to_f32()
            }
            fn narrow(x: f32) -> Self {
                <$type>::from_f32(x)
            }
            fn widen_all(from: &[Self], to: &mut [f32]) {
                from.convert_to_f32_slice(to);
            }
            fn narrow_all(from: &[f32], to: &mut [Self]) {
                to.convert_from_f32_slice(from);
            }
        }
    )*};
}

half!(f16, bf16);

/// Writes the elements of `x`, one of the two sides being halves, into a contiguous tensor of its
/// shape. Each is rounded once.
pub(crate) fn cast_half(op: Op, x: &Tensor, out: &mut Tensor) -> Result<()> {
    use DType::{BF16, Bool, F16, F32, F64};
    match (x.dtype(), out.dtype()) {
        (F16, F32) => op.at(convert(x, out, f16::widen_all, f16::widen)),
        (BF16, F32) => op.at(convert(x, out, bf16::widen_all, bf16::widen)),
        (F32, F16) => op.at(convert(x, out, f16::narrow_all, f16::narrow)),
        (F32, BF16) => op.at(convert(x, out, bf16::narrow_all, bf16::narrow)),
        (F64, F16) => op.at(convert(x, out, each(narrow_f64::<f16>), narrow_f64::<f16>)),
        (F64, BF16) => op.at(convert(x, out, each(narrow_f64::<bf16>), narrow_f64::<bf16>)),
        // Exact: every half and every bool is a float32.
        (F16 | BF16, to) => {
            *out = cast(op, &cast(op, x, F32)?, to)?;
            Ok(())
        }
        (from, to) => {
            let between = if from == Bool { F32 } else { F64 };
            *out = cast(op, &cast(op, x, between)?, to)?;
            Ok(())
        }
    }
}

/// A float64 as a half. Going through float32 would round twice, unless its last bit remembers that
/// something was lost (rounding to odd: S. Boldo and G. Melquiond, "Emulation of FMA and
/// correctly rounded sums", 2008).
fn narrow_f64<H: Half>(x: f64) -> H {
    let near = x as f32;
    let back = f64::from(near);
    if back == x || x.is_nan() || near.to_bits() & 1 == 1 {
        return H::narrow(near);
    }
    // The other neighbour of `x` is the odd one.
    let bits = near.to_bits();
    H::narrow(f32::from_bits(if back.abs() > x.abs() { bits - 1 } else { bits + 1 }))
}

/// A function of one element as one of slices.
fn each<A: Copy, B>(f: impl Fn(A) -> B) -> impl Fn(&[A], &mut [B]) {
    move |from, to| {
        for (to, from) in to.iter_mut().zip(from) {
            *to = f(*from);
        }
    }
}

/// Converts run by run: dense ones at once, others element by element.
fn convert<A: Element, B: Element>(
    x: &Tensor,
    out: &mut Tensor,
    all: impl Fn(&[A], &mut [B]),
    one: impl Fn(A) -> B,
) -> Result<()> {
    let (data, origin) = x.as_strided_slice::<A>()?;
    let walk = Walk::new(x.shape(), [x.strides()])?;
    let (len, [step]) = (walk.run_len(), walk.run_steps());
    let mut runs = out.as_mut_slice::<B>()?.chunks_exact_mut(len.max(1));
    walk.runs(|[at]| {
        let Some(run) = runs.next() else { return };
        let start = origin.wrapping_add_signed(at);
        if step == 1 {
            return all(&data[start..start + len], run);
        }
        for (k, out) in run.iter_mut().enumerate() {
            *out = one(data[start.wrapping_add_signed(k as isize * step)]);
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The nearest half of a positive number, found among its neighbours in exact arithmetic.
    fn nearest(x: f64) -> f16 {
        let near = f16::from_f32(x as f32).to_bits();
        (near.saturating_sub(1)..=near + 1)
            .map(f16::from_bits)
            .filter(|h| h.is_finite())
            .min_by(|a, b| {
                let far = |h: &f16| (f64::from(h.to_f32()) - x).abs();
                far(a).total_cmp(&far(b)).then((a.to_bits() & 1).cmp(&(b.to_bits() & 1)))
            })
            .unwrap()
    }

    #[test]
    fn a_float64_is_rounded_once() {
        // A hair beside the middle of two halves: a float32 in between would lose the hair.
        let hair = 2.0_f64.powi(-40);
        for (middle, below, above) in [
            (1.0 + 2.0_f64.powi(-11), 1.0, 1.0 + 2.0_f64.powi(-10)),
            (1.0 + 3.0 * 2.0_f64.powi(-11), 1.0 + 2.0_f64.powi(-10), 1.0 + 2.0_f64.powi(-9)),
        ] {
            assert_eq!(f64::from(narrow_f64::<f16>(middle - hair).to_f32()), below);
            assert_eq!(f64::from(narrow_f64::<f16>(middle + hair).to_f32()), above);
        }
        let mut x = 3e-8;
        while x < 65_000.0 {
            assert_eq!(narrow_f64::<f16>(x), nearest(x), "{x}");
            assert_eq!(narrow_f64::<f16>(-x), -nearest(x), "{x}");
            x *= 1.000_37;
        }
        assert_eq!(narrow_f64::<f16>(1e300), f16::INFINITY);
        assert_eq!(narrow_f64::<bf16>(-1e300), bf16::NEG_INFINITY);
        assert_eq!(narrow_f64::<f16>(-1e-300).to_bits(), 0x8000);
        assert!(narrow_f64::<f16>(f64::NAN).is_nan());
        let above = 1.0 + 2.0_f64.powi(-8) + hair;
        assert_eq!(f64::from(narrow_f64::<bf16>(above).to_f32()), 1.0 + 2.0_f64.powi(-7));
    }
}
