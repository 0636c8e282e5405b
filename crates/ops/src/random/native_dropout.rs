//! Dropout by one pass over memory, with the mask as its second result, and its backward.

use std::sync::Arc;

use keyfold_backend::{DropoutParams, Operation};
use keyfold_core::{DType, ErrorKind, Result, Scalar};
use keyfold_dispatch::Tags;
use keyfold_layers::autocast::Category;
use keyfold_layers::autograd::{Backward, Forward, Gradients, Pushforward, Saves};
use keyfold_tensor::device::random::take;
use keyfold_tensor::{Tensor, ValueRef};

use crate::aten;
use crate::infer::{Call, CallPlan, Run, RunSeveral, SeveralPlan};
use crate::naming::{Naming, named};
use crate::op::Op;
use crate::pointwise::{Expression, Pointwise, Size};
use crate::row::{Gradient, Layers, Row, Rule, Tangent};
use crate::vjp::fit_operand;

const DROPOUT: &Operation = &const { Operation::new("dropout") };

/// The dtypes of tensors whose elements are dropped.
const FLOATS: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];

/// The number of values of a random word.
const WORDS: i64 = 1 << 32;

/// Checks a probability.
///
/// # Errors
/// [`ErrorKind::Value`] unless it is from 0 to 1.
fn check_probability(op: &Op, p: f64) -> Result<()> {
    if (0.0..=1.0).contains(&p) {
        return Ok(());
    }
    let message = format!("argument 'p' is a probability, from 0 to 1, and not {p}");
    Err(op.error(ErrorKind::Value, message))
}

/// Returns the least word that keeps an element. The words' upper 24 bits are compared with the probability as a
/// float32, as `aten::rand` and a comparison would, so that the mask is the same on devices that lack dropout.
fn threshold(p: f64) -> u64 {
    const UPPER: f64 = (1 << 24) as f64;
    ((f64::from(p as f32) * UPPER).ceil() as u64) << 8
}

/// Returns the factor of elements that are kept.
fn scale(p: f64) -> f64 {
    if p < 1.0 { 1.0 / (1.0 - p) } else { 0.0 }
}

/// Plans dropout by the parameters that `choose` returns when the call computes.
fn plan<'t, F: FnOnce(&Op) -> Result<DropoutParams>>(
    op: &Op,
    (name, x): (&str, &'t Tensor),
    choose: F,
) -> Result<SeveralPlan<impl RunSeveral + use<'t, F>>> {
    if !FLOATS.contains(&x.dtype()) {
        return Err(op.unsupported(name, x.dtype(), &FLOATS));
    }
    let (device, dtype) = (op.device_of(x), x.dtype());
    let form = |dtype| (device, x.shape().clone(), dtype);
    let run = move |op: &Op, outs: &[&Tensor]| {
        let kernel = op.group_kernel(&PLAIN, &[dtype], &[dtype, DType::Bool])?;
        let params = choose(op)?;
        // SAFETY: nothing else uses the results' memory (`RunSeveral`).
        op.at(unsafe { kernel.execute(&params, &[x], outs) })
    };
    Ok(SeveralPlan::new([form(dtype), form(DType::Bool)], run))
}

/// Keeps all elements.
const PLAIN: DropoutParams =
    DropoutParams { op: DROPOUT, threshold: 0, scale: 1.0, seed: 0, offset: 0 };

fn native_dropout(
    call: Call<'_, ()>,
    (x, p, train): (&Tensor, f64, Option<bool>),
) -> Result<SeveralPlan<impl RunSeveral>> {
    check_probability(&call, p)?;
    plan(&call, ("input", x), move |op: &Op| {
        if train == Some(false) {
            return Ok(PLAIN);
        }
        // An element has a word, and a block four of them.
        let begin = op.at(take(x.device(), x.numel().div_ceil(4) as u64))?;
        let (seed, offset) = (begin.seed, begin.offset);
        Ok(DropoutParams { op: DROPOUT, threshold: threshold(p), scale: scale(p), seed, offset })
    })
}

fn dropout_threshold(
    call: Call<'_, ()>,
    (x, threshold, scale, seed, offset): (&Tensor, i64, f64, i64, i64),
) -> Result<SeveralPlan<impl RunSeveral>> {
    if !(0..=WORDS).contains(&threshold) {
        let message = format!(
            "argument 'threshold' is {threshold}; it is compared with random words, and has to be from \
             0, which drops nothing, to 2**32, which drops all"
        );
        return Err(call.error(ErrorKind::Value, message));
    }
    if !scale.is_finite() {
        let message = format!("argument 'scale' is {scale}; it has to be a finite number");
        return Err(call.error(ErrorKind::Value, message));
    }
    let Ok(offset) = u64::try_from(offset) else {
        let message = format!(
            "argument 'offset' is {offset}; it is the number of blocks before the first one, and has to \
             be at least 0"
        );
        return Err(call.error(ErrorKind::Value, message));
    };
    let (threshold, seed) = (threshold as u64, seed as u64);
    plan(&call, ("self", x), move |_: &Op| {
        Ok(DropoutParams { op: DROPOUT, threshold, scale, seed, offset })
    })
}

fn backward<'t>(
    call: Call<'_, Pointwise>,
    (grad, mask, scale): (&'t Tensor, &'t Tensor, f64),
) -> Result<CallPlan<impl Run>> {
    if mask.dtype() != DType::Bool {
        let message = format!(
            "argument 'mask' is {}; it has to be bool, as the second result of native_dropout is",
            mask.dtype()
        );
        return Err(call.error(ErrorKind::DType, message));
    }
    if !FLOATS.contains(&grad.dtype()) {
        return Err(call.unsupported("grad_output", grad.dtype(), &FLOATS));
    }
    call.state.plan([grad, mask], [Scalar::Float(scale)], Size::Unknown)
}

/// Returns the factor of a call's kept elements from its arguments.
fn scale_of(argument: ValueRef<'_>, train: ValueRef<'_>) -> f64 {
    match train {
        ValueRef::Bool(false) => 1.0,
        _ => scale(argument.scalar().map_or(f64::NAN, Scalar::as_f64)),
    }
}

/// The gradients read the mask, which is a result.
const READS_MASK: &[Saves] = &[Saves::RESULTS];

/// The first operand's gradient is the result's where the mask is true, scaled.
fn gradients(call: &Backward<'_>, grads: &[Option<Tensor>], scale: f64) -> Result<Gradients> {
    let mut gradients = vec![None; call.slots()];
    if let Some(Some(grad)) = grads.first() {
        let grad = aten::native_dropout_backward(grad, &call.result(1)?, scale)?;
        gradients[0] = fit_operand(call, 0, &grad)?;
    }
    Ok(gradients)
}

fn native_dropout_gradients(call: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Gradients> {
    gradients(call, grads, scale_of(call.value(1), call.value(2)))
}

fn threshold_gradients(call: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Gradients> {
    gradients(call, grads, call.scalar(2).as_f64())
}

/// The tangent of the result is the operand's where the mask is true, scaled. The mask has none.
struct Masked(fn(&Forward<'_, '_>) -> f64);

impl Pushforward for Masked {
    fn apply(&self, call: &Forward<'_, '_>) -> Result<Vec<Option<Tensor>>> {
        let (Some(tangent), [_, mask]) = (call.tangent(0), call.results()) else {
            return Ok(vec![None, None]);
        };
        let tangent = aten::native_dropout_backward(tangent, mask, (self.0)(call))?;
        Ok(vec![Some(tangent), None])
    }
}

/// Returns the rows.
pub(super) fn rows() -> Result<Vec<Row>> {
    let native = Row::computes_several::<(&Tensor, f64, Option<bool>), _, _>(
        "aten::native_dropout(Tensor input, float p, bool? train) -> (Tensor, Tensor)",
        |_| (),
        native_dropout,
        Layers {
            derivative: Rule::Given(Gradient::Several(READS_MASK, native_dropout_gradients)),
            tangent: Rule::Given(Tangent::Other(|| {
                Arc::new(Masked(|call| scale_of(call.args()[1], call.args()[2])))
            })),
            batching: Rule::Refused("the loop, in which each example draws its own numbers"),
            autocast: Category::Leave,
        },
        Naming::Unnamed("`dropout` calls it"),
    )?;
    let threshold = Row::computes_several::<(&Tensor, i64, f64, i64, i64), _, _>(
        "keyfold::dropout_threshold(Tensor self, int threshold, float scale, int seed, int offset=0) \
         -> (Tensor, Tensor)",
        |_| (),
        dropout_threshold,
        Layers {
            derivative: Rule::Given(Gradient::Several(READS_MASK, threshold_gradients)),
            tangent: Rule::Given(Tangent::Other(|| {
                Arc::new(Masked(|call| call.args()[2].scalar().map_or(f64::NAN, Scalar::as_f64)))
            })),
            batching: Rule::Refused("the loop, since all examples have the words of one state"),
            autocast: Category::Leave,
        },
        named(
            "dropout_threshold",
            "Tensor x, int threshold, float scale, int seed, int offset=0",
            "Return the array of floats with elements replaced by 0, and the mask. Not in the \
             standard.\n\nThe elements `4 i` to `4 i + 3`, in row-major order, have the four words of \
             block `offset + i` of\nthe stream of `seed`, which is Philox4x32-10's. An element is 0 \
             where its word is below\n`threshold`, which is the probability times `2**32`, and \
             multiplied by `scale` elsewhere. The mask\nis true where elements are kept. \
             `keyfold.random.get_state()` has a device's seed and offset;\n`dropout` draws from \
             that.\n\nRaises:\n    InvalidValue: the threshold isn't from 0 to 2**32, the scale isn't \
             finite, or the offset is\n        negative.",
        ),
    )?;
    let text = "where(mask, grad_output * scale, 0)";
    let backward = Row::pointwise::<(&Tensor, &Tensor, f64), _, _>(
        ("aten::native_dropout_backward", ""),
        "Tensor grad_output, Tensor mask, float scale",
        Expression::parse(text, &["grad_output", "mask"], &["scale"])?,
        |row| row,
        backward,
        Layers {
            derivative: Rule::Derived,
            tangent: Rule::Derived,
            batching: Rule::Derived,
            autocast: Category::Leave,
        },
        Naming::Unnamed("the derivative of `dropout` calls it"),
    )?;
    Ok(vec![native.tagged(Tags::NONDETERMINISTIC_SEEDED), threshold, backward])
}
