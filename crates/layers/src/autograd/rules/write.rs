//! Writing over a tensor: what it held before has no part in the result any more.

use keyfold_core::Result;
use keyfold_tensor::Tensor;

use super::super::derivative::{Backward, Gradients};
use super::{NOTHING, Rules, when_needed, zeros};

fn copy(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    Ok(vec![overwritten(call)?, when_needed(call, 1, || Ok(grad.clone()))?])
}

fn fill(call: &Backward<'_>, _: &Tensor) -> Result<Gradients> {
    Ok(vec![overwritten(call)?])
}

/// The gradient of what was there before.
fn overwritten(call: &Backward<'_>) -> Result<Option<Tensor>> {
    call.needs(0).then(|| zeros(&call.form(0))).transpose()
}

pub(super) fn register(rules: &Rules<'_>) -> Result<()> {
    rules.add("aten::copy_", NOTHING, copy)?;
    rules.add("aten::fill_.Scalar", NOTHING, fill)
}
