//! Activation functions with parameters, and the derivatives of activation functions as operators: one pass
//! each, where a composition of other operators would take several.

use keyfold_core::{DType, DTypeKind, ErrorKind, Result, Scalar};
use keyfold_layers::autocast::Category;
use keyfold_layers::autograd::{Backward, Forward, Gradients};
use keyfold_tensor::Tensor;

use super::expression::Expression;
use super::unary::{Refusal, accept_all, check, refuse_complex};
use super::{Pointwise, Size};
use crate::aten;
use crate::infer::{Call, CallPlan, Run};
use crate::jvp::pushforward;
use crate::naming::{Naming, named};
use crate::row::{Layers, Row, Rule};
use crate::vjp::{READS_FIRST, first_only, formula};

/// The rules of an operator that follow from its expression.
const DERIVED: Layers = Layers {
    derivative: Rule::Derived,
    tangent: Rule::Derived,
    batching: Rule::Derived,
    autocast: Category::Leave,
};

/// The state of an operator's kernels: its expression, and the dtypes that it refuses.
type State = (Pointwise, Refusal);

/// The gradient of the result, and the function's operand or its result. Both broadcast.
#[inline(always)]
fn backward<'t>(
    call: Call<'_, State>,
    (grad, x): (&'t Tensor, &'t Tensor),
) -> Result<CallPlan<impl Run>> {
    let (row, refusal) = call.state;
    check(&call, *refusal, "grad_output", grad.dtype())?;
    check(&call, *refusal, "self", x.dtype())?;
    row.plan([grad, x], [], Size::Unknown)
}

/// As [`backward`], with a number.
#[inline(always)]
fn backward_scalar<'t>(
    call: Call<'_, State>,
    (grad, x, number): (&'t Tensor, &'t Tensor, Scalar),
) -> Result<CallPlan<impl Run>> {
    let (row, refusal) = call.state;
    check(&call, *refusal, "grad_output", grad.dtype())?;
    check(&call, *refusal, "self", x.dtype())?;
    row.plan([grad, x], [number], Size::Unknown)
}

/// The row of a derivative as an operator: `operand` names its second argument.
fn backward_row(
    name: &'static str,
    operand: &'static str,
    text: &str,
    refusal: Refusal,
) -> Result<Row> {
    Row::pointwise::<(&Tensor, &Tensor), _, _>(
        (name, ""),
        &format!("Tensor grad_output, Tensor {operand}"),
        Expression::parse(text, &["grad_output", operand], &[])?,
        move |row| (row, refusal),
        backward,
        DERIVED,
        Naming::Unnamed("the derivative of its function calls it"),
    )
}

/// One tensor and one number.
#[inline(always)]
fn one_number(call: Call<'_, State>, (x, a): (&Tensor, Scalar)) -> Result<CallPlan<impl Run>> {
    let (row, refusal) = call.state;
    check(&call, *refusal, "self", x.dtype())?;
    row.plan([x], [a], Size::Unknown)
}

/// One tensor and two numbers.
#[inline(always)]
fn two_numbers(
    call: Call<'_, State>,
    (x, a, b): (&Tensor, Scalar, Scalar),
) -> Result<CallPlan<impl Run>> {
    let (row, refusal) = call.state;
    check(&call, *refusal, "self", x.dtype())?;
    row.plan([x], [a, b], Size::Unknown)
}

/// One tensor and three numbers.
#[inline(always)]
fn three_numbers(
    call: Call<'_, State>,
    (x, a, b, c): (&Tensor, Scalar, Scalar, Scalar),
) -> Result<CallPlan<impl Run>> {
    let (row, refusal) = call.state;
    check(&call, *refusal, "self", x.dtype())?;
    row.plan([x], [a, b, c], Size::Unknown)
}

/// Returns the bound that limits no number of a dtype.
fn no_bound(dtype: DType, float: bool, upper: bool) -> Scalar {
    if float {
        return Scalar::Float(if upper { f64::INFINITY } else { f64::NEG_INFINITY });
    }
    let bits = 8 * dtype.size() as u32;
    match (dtype.kind(), upper) {
        (DTypeKind::Bool, _) => Scalar::Bool(upper),
        (DTypeKind::UInt, false) => Scalar::Int(0),
        (DTypeKind::UInt, true) => (u64::MAX >> (64 - bits)).into(),
        (_, false) => Scalar::Int(i64::MIN >> (64 - bits)),
        (_, true) => Scalar::Int(i64::MAX >> (64 - bits)),
    }
}

/// `clamp`, whose absent bounds limit nothing.
#[inline(always)]
fn clamp(
    call: Call<'_, State>,
    (x, min, max): (&Tensor, Option<Scalar>, Option<Scalar>),
) -> Result<CallPlan<impl Run>> {
    let (row, refusal) = call.state;
    check(&call, *refusal, "self", x.dtype())?;
    for (name, bound) in [("min", min), ("max", max)] {
        if let Some(Scalar::Complex(_)) = bound {
            let message =
                format!("argument '{name}' is complex, and complex numbers have no order");
            return Err(call.error(ErrorKind::DType, message));
        }
    }
    if min.is_none() && max.is_none() {
        let message = "arguments 'min' and 'max' are both None; give at least one of them";
        return Err(call.error(ErrorKind::Value, message));
    }
    let is_float = |bound: Option<Scalar>| matches!(bound, Some(Scalar::Float(_)));
    let float = x.dtype().is_floating() || is_float(min) || is_float(max);
    let low = min.unwrap_or_else(|| no_bound(x.dtype(), float, false));
    let high = max.unwrap_or_else(|| no_bound(x.dtype(), float, true));
    row.plan([x], [low, high], Size::Unknown)
}

/// Returns where the elements are outside of `min` to `max`.
fn outside(x: &Tensor, min: Option<Scalar>, max: Option<Scalar>) -> Result<Tensor> {
    let below = min.map(|min| aten::lt_scalar(x, min)).transpose()?;
    let above = max.map(|max| aten::gt_scalar(x, max)).transpose()?;
    match (below, above) {
        (Some(below), Some(above)) => aten::add(&below, &above),
        (Some(one), None) | (None, Some(one)) => Ok(one),
        (None, None) => aten::ne(x, x),
    }
}

/// The gradient passes within the bounds, which belong to the range, as in PyTorch.
fn clamp_gradients(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let (min, max) = (call.value(1).scalar(), call.value(2).scalar());
    first_only(call, &aten::masked_zero(grad, &outside(&call.tensor(0)?, min, max)?)?)
}

fn clamp_tangent(call: &Forward<'_, '_>) -> Result<Option<Tensor>> {
    let Some(tangent) = call.tangent(0) else { return Ok(None) };
    let (min, max) = (call.args()[1].scalar(), call.args()[2].scalar());
    aten::masked_zero(tangent, &outside(call.tensor(0)?, min, max)?).map(Some)
}

/// Returns the rows of activation functions with parameters, and of derivatives.
pub(super) fn rows() -> Result<Vec<Row>> {
    let with_parameters = [
        Row::pointwise::<(&Tensor, Option<Scalar>, Option<Scalar>), _, _>(
            ("aten::clamp", ""),
            "Tensor self, Scalar? min=None, Scalar? max=None",
            Expression::parse("clamp(self, min, max)", &["self"], &["min", "max"])?,
            |row| (row, refuse_complex as Refusal),
            clamp,
            Layers {
                derivative: formula(READS_FIRST, clamp_gradients),
                tangent: pushforward(clamp_tangent),
                ..DERIVED
            },
            Naming::PartOf("clip"),
        )?,
        Row::pointwise::<(&Tensor, Scalar, Scalar), _, _>(
            ("aten::hardtanh", ""),
            "Tensor self, Scalar min_val=-1, Scalar max_val=1",
            Expression::parse(
                "where(self < min_val, min_val, where(self > max_val, max_val, self))",
                &["self"],
                &["min_val", "max_val"],
            )?,
            |row| (row, refuse_complex as Refusal),
            two_numbers,
            DERIVED,
            named(
                "hardtanh",
                "Tensor x, Scalar min_val=-1, Scalar max_val=1",
                "Return the elements, limited to the range from `min_val` to `max_val`. Not in \
                 the standard.",
            ),
        )?,
        Row::pointwise::<(&Tensor, Scalar), _, _>(
            ("aten::leaky_relu", ""),
            "Tensor self, Scalar negative_slope=0.01",
            Expression::parse(
                "where(self > False, self, negative_slope * self)",
                &["self"],
                &["negative_slope"],
            )?,
            |row| (row, refuse_complex as Refusal),
            one_number,
            DERIVED,
            named(
                "leaky_relu",
                "Tensor x, Scalar negative_slope=0.01",
                "Return each element, multiplied by `negative_slope` where it is negative. Not in \
                 the standard.\n\nA. Maas and others, \"Rectifier nonlinearities improve neural \
                 network acoustic models\", 2013.",
            ),
        )?,
        Row::pointwise::<(&Tensor, Scalar, Scalar, Scalar), _, _>(
            ("aten::elu", ""),
            "Tensor self, Scalar alpha=1, Scalar scale=1, Scalar input_scale=1",
            // The exponential takes 0 in place of positive elements, since it would overflow, and an
            // infinity that isn't selected would make NaN of the gradient.
            Expression::parse(
                "where(self > False, scale * self, \
                 scale * (alpha * expm1(input_scale * where(self > False, False, self))))",
                &["self"],
                &["alpha", "scale", "input_scale"],
            )?,
            |row| (row, refuse_complex as Refusal),
            three_numbers,
            DERIVED,
            named(
                "elu",
                "Tensor x, Scalar alpha=1",
                "Return each element, or `alpha * (exp(x) - 1)` where it is negative. Not in the \
                 standard.\n\nD. Clevert and others, \"Fast and accurate deep network learning by \
                 exponential linear units\", 2015.",
            ),
        )?,
        Row::pointwise::<(&Tensor, &Tensor, Scalar), _, _>(
            ("aten::threshold_backward", ""),
            "Tensor grad_output, Tensor self, Scalar threshold",
            Expression::parse(
                "where(self <= threshold, False, grad_output)",
                &["grad_output", "self"],
                &["threshold"],
            )?,
            |row| (row, refuse_complex as Refusal),
            backward_scalar,
            DERIVED,
            Naming::Unnamed("the derivative of `keyfold.relu` calls it"),
        )?,
    ];
    let backwards = [
        backward_row(
            "aten::sigmoid_backward",
            "output",
            "grad_output * conj(output * (1 - output))",
            accept_all,
        ),
        backward_row(
            "aten::tanh_backward",
            "output",
            "grad_output * conj(1 - output * output)",
            accept_all,
        ),
        // The operand is bounded where its product with a slope of 0 would be NaN for an infinity.
        backward_row(
            "aten::gelu_backward",
            "self",
            "near = min(max(self, -60.0), 60.0); \
             grad_output * (0.5 * erfc(-0.7071067811865476 * self) \
             + 0.3989422804014327 * near * exp(-0.5 * near * near))",
            refuse_complex,
        ),
        backward_row(
            "aten::gelu_tanh_backward",
            "self",
            "near = min(max(self, -24.0), 24.0); square = near * near; \
             gate = sigmoid(1.5957691216057308 * (near * (1 + 0.044715 * square))); \
             grad_output * (gate \
             + near * (1.5957691216057308 * (1 + 0.134145 * square)) * (gate * (1 - gate)))",
            refuse_complex,
        ),
        backward_row(
            "aten::gelu_sigmoid_backward",
            "self",
            "near = min(max(self, -600.0), 600.0); gate = sigmoid(1.702 * near); \
             grad_output * (gate + 1.702 * near * (gate * (1 - gate)))",
            refuse_complex,
        ),
    ];
    with_parameters.into_iter().map(Ok).chain(backwards).collect()
}
