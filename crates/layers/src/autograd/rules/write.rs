//! Writing over a tensor: what it held before has no part in the result any more.

use keyfold_core::Result;
use keyfold_tensor::Tensor;

use super::super::derivative::{Backward, Gradients};
use super::{NOTHING, Rules, when_needed};

fn copy(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    Ok(vec![None, when_needed(call, 1, || Ok(grad.clone()))?])
}

fn fill(_: &Backward<'_>, _: &Tensor) -> Result<Gradients> {
    Ok(vec![None])
}

pub(super) fn register(rules: &Rules<'_>) -> Result<()> {
    rules.add("aten::copy_", NOTHING, copy)?;
    rules.add("aten::fill_.Scalar", NOTHING, fill)
}
