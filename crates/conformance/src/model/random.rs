//! Dropout with its mask, by the words of a Philox4x32-10 stream.

use keyfold_core::DType;

use super::factories::philox;
use super::{Expected, Given};
use crate::number::{Number, unit};

pub(super) fn expected(name: &str, given: &Given<'_>) -> Option<Vec<Expected>> {
    Some(match name {
        "aten::native_dropout" => {
            let p = if given.flag(2) { given.float(1) } else { 0.0 };
            // The upper 24 bits of a word are compared with the probability.
            let least = (f64::from(p as f32) * 2f64.powi(24)).ceil() * 256.0;
            let scale = if p < 1.0 { 1.0 / (1.0 - p) } else { 0.0 };
            dropped(given, (least, scale), (given.state.seed, given.state.offset))
        }
        "keyfold::dropout_threshold" => {
            let whole = |at: usize| given.int(at).unwrap_or(0) as u64;
            dropped(given, (whole(1) as f64, given.float(2)), (whole(3), whole(4)))
        }
        _ => return None,
    })
}

/// Keeps the elements whose word is at least `least`, scaled.
fn dropped(
    given: &Given<'_>,
    (least, scale): (f64, f64),
    (seed, offset): (u64, u64),
) -> Vec<Expected> {
    let x = given.array(0);
    let (mut result, mut mask) =
        (Expected::empty(x.dtype, &x.shape), Expected::empty(DType::Bool, &x.shape));
    for (i, item) in x.items.iter().enumerate() {
        let word = philox(seed, offset.wrapping_add(i as u64 / 4))[i % 4];
        let keeps = f64::from(word) >= least;
        let value = if keeps { item.float() * scale } else { 0.0 };
        // A product, which is rounded to the dtype, and the factor.
        result.push(Number::Float(value), 2.0 * unit(x.dtype) * value.abs());
        mask.push(Number::Whole(i128::from(keeps)).cast(DType::Bool), 0.0);
    }
    vec![result, mask]
}
