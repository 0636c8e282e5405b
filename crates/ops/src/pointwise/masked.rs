//! Elements replaced where a mask is true: by a number, by a tensor's elements, or by zero.

use keyfold_core::{DType, ErrorKind, Result, Scalar};
use keyfold_layers::autocast::Category;
use keyfold_layers::autograd::{Backward, Forward, Gradients, Saves};
use keyfold_tensor::Tensor;

use super::expression::Expression;
use super::{Pointwise, Size};
use crate::aten;
use crate::infer::{Call, CallPlan, Run};
use crate::jvp::pushforward;
use crate::naming::{Naming, named};
use crate::op::Op;
use crate::promote::check_assignable;
use crate::row::{Gradient, Layers, Row, Rule, Tangent};
use crate::vjp::{formula, if_needed};

fn check_mask(op: &Op, mask: &Tensor) -> Result<()> {
    if mask.dtype() == DType::Bool {
        return Ok(());
    }
    let given = mask.dtype();
    let message = format!("argument 'mask' must be bool, not {given}; compare it first");
    Err(op.error(ErrorKind::DType, message))
}

#[inline(always)]
fn fill_number<'t>(
    call: Call<'_, Pointwise>,
    (x, mask, value): (&'t Tensor, &'t Tensor, Scalar),
) -> Result<CallPlan<impl Run>> {
    check_mask(&call, mask)?;
    call.at_argument("value", value.check(x.dtype()))?;
    let place = (call.device_of(x), Size::Unknown);
    Pointwise::plan_on(call.state, [mask, x], [value], Some(x.dtype()), place)
}

#[inline(always)]
fn fill_tensor<'t>(
    call: Call<'_, Pointwise>,
    (x, mask, value): (&'t Tensor, &'t Tensor, &'t Tensor),
) -> Result<CallPlan<impl Run>> {
    check_mask(&call, mask)?;
    check_assignable(&call, value.dtype(), x.dtype())?;
    let place = (call.device_of(x), Size::Unknown);
    Pointwise::plan_on(call.state, [mask, value, x], [], Some(x.dtype()), place)
}

#[inline(always)]
fn zero<'t>(
    call: Call<'_, Pointwise>,
    (x, mask): (&'t Tensor, &'t Tensor),
) -> Result<CallPlan<impl Run>> {
    check_mask(&call, mask)?;
    call.state.plan([mask, x], [], Size::Unknown)
}

/// The gradients of the first argument, and of a tensor of values.
fn gradients(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let mask = call.tensor(1)?;
    let mut grads = vec![None; call.slots()];
    grads[0] = if_needed(call, 0, || aten::masked_zero(grad, &mask))?;
    if grads.len() > 2 {
        grads[2] = if_needed(call, 2, || aten::where_scalar_other(&mask, grad, 0))?;
    }
    Ok(grads)
}

fn tangent(call: &Forward<'_, '_>) -> Result<Option<Tensor>> {
    let mask = call.tensor(1)?;
    let shape = aten::sizes(call.result()?.shape());
    let own = call.tangent(0).map(|own| aten::masked_zero(own, mask)).transpose()?;
    let values = if call.args().len() > 2 { call.tangent(2) } else { None };
    let sum = match (own, values) {
        (own, None) => own,
        (Some(own), Some(values)) => Some(aten::where_(mask, values, &own)?),
        (None, Some(values)) => Some(aten::where_scalar_other(mask, values, 0)?),
    };
    sum.map(|sum| aten::expand(&sum, &shape)).transpose()
}

/// Returns the rows of masked fills.
pub(super) fn rows() -> Result<Vec<Row>> {
    const READS_MASK: &[Saves] = &[Saves::arguments(&[1])];
    let derivative: Rule<Gradient> = formula(READS_MASK, gradients);
    let tangent: Rule<Tangent> = pushforward(tangent);
    let layers = Layers { derivative, tangent, batching: Rule::Derived, autocast: Category::Leave };
    Ok(vec![
        Row::pointwise::<(&Tensor, &Tensor, Scalar), _, _>(
            ("aten::masked_fill", "Scalar"),
            "Tensor self, Tensor mask, Scalar value",
            Expression::parse("where(mask, value, self)", &["mask", "self"], &["value"])?,
            |row| row,
            fill_number,
            layers,
            named(
                "masked_fill",
                "Tensor x, Tensor mask, Scalar value",
                "Return the elements, and `value` where the mask is true. Not in the \
                 standard.\n\nRaises:\n    DTypeError: the mask isn't bool, or the array's dtype \
                 can't hold the value.",
            ),
        )?,
        Row::pointwise::<(&Tensor, &Tensor, &Tensor), _, _>(
            ("aten::masked_fill", "Tensor"),
            "Tensor self, Tensor mask, Tensor value",
            Expression::parse("where(mask, value, self)", &["mask", "value", "self"], &[])?,
            |row| row,
            fill_tensor,
            layers,
            Naming::Unnamed("`keyfold.where` chooses between the elements of arrays"),
        )?,
        Row::pointwise::<(&Tensor, &Tensor), _, _>(
            ("keyfold::masked_zero", ""),
            "Tensor self, Tensor mask",
            Expression::parse("where(mask, False, self)", &["mask", "self"], &[])?,
            |row| row,
            zero,
            layers,
            named(
                "masked_zero",
                "Tensor x, Tensor mask",
                "Return the elements, and 0 where the mask is true. Not in the standard.\n\n\
                 Raises:\n    DTypeError: the mask isn't bool.",
            ),
        )?,
    ])
}
