//! Softmax and its logarithm, from the result.

use keyfold_core::Result;
use keyfold_tensor::Tensor;

use super::super::derivative::{Backward, Gradients};
use super::{RESULT, Rules, first};
use crate::aten;

/// `s (g - sum(g s))`.
fn softmax(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let s = call.result(0)?;
    let both = aten::mul(grad, &s)?;
    let total = aten::sum(&both, &[call.int(1).unwrap_or(-1)], true)?;
    first(call, &aten::sub(&both, &aten::mul(&s, &total)?)?)
}

/// `g - exp(l) sum(g)`.
fn log_softmax(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let total = aten::sum(grad, &[call.int(1).unwrap_or(-1)], true)?;
    first(call, &aten::sub(grad, &aten::mul(&aten::exp(&call.result(0)?)?, &total)?)?)
}

pub(super) fn register(rules: &Rules<'_>) -> Result<()> {
    rules.add("aten::softmax", RESULT, softmax)?;
    rules.add("aten::log_softmax", RESULT, log_softmax)
}
