//! Average pooling over windows, and over windows that divide the elements evenly.

use keyfold_backend::{Operation, PoolParams};
use keyfold_core::{ErrorKind, Result};
use keyfold_layers::autocast::Category;
use keyfold_layers::autograd::Vjp;
use keyfold_tensor::{IntList, Tensor};

use super::derivatives::{self, batched, batched_backward};
use super::{Pooled, Windows, check_float, check_gradient, each, windows};
use crate::infer::{Call, CallPlan, Run};
use crate::jvp::LINEAR;
use crate::naming::{Naming, named};
use crate::op::Op;
use crate::row::{Batching, Layers, Row, Rule};
use crate::vjp::{READS_NOTHING, formula};

/// The windows of a call, whether padding counts, and the divisor.
type Given<'a> = (&'a IntList, &'a IntList, &'a IntList, bool, bool, Option<i64>);

/// Checks the windows of a call, and returns the parameters and the sizes of its result.
fn averages(
    op: &Op,
    which: &'static Operation,
    pooled: &Pooled<'_>,
    (kernel, stride, padding, ceil_mode, count_include_pad, divisor): Given<'_>,
) -> Result<(PoolParams, Vec<usize>)> {
    if divisor == Some(0) {
        let message = "argument 'divisor_override' is 0; give another number, or None for the \
                       number of a window's elements";
        return Err(op.error(ErrorKind::Value, message));
    }
    let given = Windows { kernel, stride, padding, dilation: None, ceil_mode };
    let (params, sizes) = windows(op, which, pooled, &given)?;
    let count_include_pad = count_include_pad.into();
    Ok((PoolParams { count_include_pad, divisor: divisor.unwrap_or(0), ..params }, sizes))
}

/// Plans a result from one input.
fn planned<'x>(
    op: &Op,
    params: PoolParams,
    input: &'x Tensor,
    shape: keyfold_core::Shape,
) -> CallPlan<impl Run + use<'x>> {
    let run = move |op: &Op, out: &Tensor| {
        // SAFETY: what computes a result is called with an output that is its own (`Run::run`).
        unsafe { op.execute(&params, &[input], &[out]) }
    };
    CallPlan::new(op.device_of(input), shape, input.dtype(), run)
}

type Args = (&'static Tensor, IntList, IntList, IntList, bool, bool, Option<i64>);

fn forward<'a>(
    call: Call<'_, usize>,
    (x, kernel, stride, padding, ceil_mode, counts, divisor): (
        &'a Tensor,
        IntList,
        IntList,
        IntList,
        bool,
        bool,
        Option<i64>,
    ),
) -> Result<CallPlan<impl Run + use<'a>>> {
    check_float(&call, "self", x.dtype())?;
    let pooled = Pooled::new(&call, "self", x, *call.state)?;
    let given = (&kernel, &stride, &padding, ceil_mode, counts, divisor);
    let (params, sizes) = averages(&call, &const { Operation::new("average") }, &pooled, given)?;
    Ok(planned(&call, params, x, pooled.with(&call, &sizes)?))
}

type BackwardArgs =
    (&'static Tensor, &'static Tensor, IntList, IntList, IntList, bool, bool, Option<i64>);

fn backward<'a>(
    call: Call<'_, usize>,
    (grad, x, kernel, stride, padding, ceil_mode, counts, divisor): (
        &'a Tensor,
        &'a Tensor,
        IntList,
        IntList,
        IntList,
        bool,
        bool,
        Option<i64>,
    ),
) -> Result<CallPlan<impl Run + use<'a>>> {
    let pooled = Pooled::new(&call, "self", x, *call.state)?;
    let given = (&kernel, &stride, &padding, ceil_mode, counts, divisor);
    let operation = &const { Operation::new("average_backward") };
    let (params, sizes) = averages(&call, operation, &pooled, given)?;
    check_gradient(&call, grad, &pooled.with(&call, &sizes)?)?;
    Ok(planned(&call, params, grad, x.shape().clone()))
}

/// The parameters of windows that divide the elements evenly.
fn adaptive_params(op: &'static Operation, dims: usize) -> PoolParams {
    let (dims, ones) = (dims as u32, [1; 3]);
    PoolParams {
        op,
        dims,
        count_include_pad: 0,
        kernel: ones,
        stride: ones,
        padding: [0; 3],
        dilation: ones,
        divisor: 0,
    }
}

/// Refuses dimensions without elements, which have no mean.
fn check_elements(op: &Op, pooled: &Pooled<'_>, outs: &[usize]) -> Result<()> {
    if pooled.sizes.contains(&0) && !outs.contains(&0) {
        let message = format!(
            "argument 'self': pooled dimensions of sizes {:?} leave windows without an element",
            pooled.sizes
        );
        return Err(op.error(ErrorKind::Shape, message));
    }
    Ok(())
}

pub(super) fn adaptive<'a>(
    call: Call<'_, usize>,
    (x, output_size): (&'a Tensor, IntList),
) -> Result<CallPlan<impl Run + use<'a>>> {
    check_float(&call, "self", x.dtype())?;
    let pooled = Pooled::new(&call, "self", x, *call.state)?;
    let sizes = each(&call, "output_size", &output_size, pooled.dims, 0)?;
    let sizes: Vec<usize> = sizes[..pooled.dims].iter().map(|size| *size as usize).collect();
    check_elements(&call, &pooled, &sizes)?;
    let overflows = |(size, out): (&usize, &usize)| size.checked_mul(out + 1).is_none();
    if pooled.sizes.iter().zip(&sizes).any(overflows) {
        let message = format!(
            "argument 'output_size' is {sizes:?}; with pooled sizes {:?} the places of windows \
             overflow",
            pooled.sizes
        );
        return Err(call.error(ErrorKind::Shape, message));
    }
    let params = adaptive_params(&const { Operation::new("adaptive_average") }, pooled.dims);
    Ok(planned(&call, params, x, pooled.with(&call, &sizes)?))
}

fn adaptive_backward<'a>(
    call: Call<'_, usize>,
    (grad, x): (&'a Tensor, &'a Tensor),
) -> Result<CallPlan<impl Run + use<'a>>> {
    let pooled = Pooled::new(&call, "self", x, *call.state)?;
    let of_grad = Pooled::new(&call, "grad_output", grad, *call.state)?;
    check_gradient(&call, grad, &pooled.with(&call, of_grad.sizes)?)?;
    check_elements(&call, &pooled, of_grad.sizes)?;
    let operation = &const { Operation::new("adaptive_average_backward") };
    Ok(planned(&call, adaptive_params(operation, pooled.dims), grad, x.shape().clone()))
}

/// The docstring of average pooling.
pub(super) const DOC: &str = "Return the mean of each window. Not in the standard.\n\nThe last dimensions are pooled, and one \
     or two others are in front of them: channels, or batches of channels.\n`kernel_size`, `stride` \
     (by default the kernel's size) and `padding` are in elements, one number for all pooled\n\
     dimensions or one for each. Padding, at most half of a window, is 0, and counts unless \
     `count_include_pad` is\nFalse; `divisor_override` replaces the count. With `ceil_mode` the last \
     window may reach behind the padding, which\nnever counts.\n\nRaises:\n    ShapeError: a wrong \
     number of dimensions, or a window larger than the padded input.\n    InvalidValue: windows \
     without an element, or numbers out of range.";

/// The docstring of adaptive average pooling.
pub(super) const ADAPTIVE_DOC: &str = "Return the means of windows that divide the elements evenly. Not in the standard.\n\nThe last \
     dimensions are pooled to `output_size`, one number for all or one for each, and one or two \
     others are in\nfront of them: channels, or batches of channels. Window `i` of `n` has the \
     elements from `floor(i * size / n)` to\n`ceil((i + 1) * size / n)`, exclusive; with `n` 1 that \
     is the mean of all.\n\nRaises:\n    ShapeError: a wrong number of dimensions, or dimensions \
     without elements.\n    InvalidValue: a negative size.";

fn layers(vjp: Vjp, backward: bool) -> Layers {
    Layers {
        derivative: formula(READS_NOTHING, vjp),
        tangent: LINEAR,
        batching: Rule::Given(Batching::Rule(if backward { batched_backward } else { batched })),
        autocast: Category::Leave,
    }
}

/// The names of one number of dimensions: those of the operators, and of the functions.
struct Names {
    operators: [&'static str; 4],
    functions: [&'static str; 2],
    parameters: [&'static str; 2],
}

fn rows_of<const D: usize>(names: Names) -> Result<Vec<Row>> {
    let [average, of_average, adapted, of_adapted] = names.operators;
    let windows = |stride: &str, padding: &str, more: [&str; 3]| {
        let [ceil_mode, counts, divisor] = more;
        format!(
            "Tensor self, int[{D}] kernel_size, int[{D}] stride{stride}, int[{D}] \
             padding{padding}, bool ceil_mode{ceil_mode}, bool count_include_pad{counts}, int? \
             divisor_override{divisor}"
        )
    };
    Ok(vec![
        Row::computes::<Args, _, _>(
            (average, ""),
            &windows("=[]", "=0", ["=False", "=True", "=None"]),
            |_| D,
            forward,
            layers(derivatives::average::<D>, false),
            named(names.functions[0], names.parameters[0], DOC),
        )?,
        Row::computes::<BackwardArgs, _, _>(
            (of_average, ""),
            &format!("Tensor grad_output, {}", windows("", "", [""; 3])),
            |_| D,
            backward,
            layers(derivatives::average_backward::<D>, true),
            Naming::Unnamed("gradients of `keyfold.avg_pool2d` and its like call it"),
        )?,
        Row::computes::<(&Tensor, IntList), _, _>(
            (adapted, ""),
            &format!("Tensor self, int[{D}] output_size"),
            |_| D,
            adaptive,
            layers(derivatives::adaptive::<D>, false),
            named(names.functions[1], names.parameters[1], ADAPTIVE_DOC),
        )?,
        Row::computes::<(&Tensor, &Tensor), _, _>(
            (of_adapted, ""),
            "Tensor grad_output, Tensor self",
            |_| D,
            adaptive_backward,
            layers(derivatives::adaptive_backward::<D>, true),
            Naming::Unnamed("gradients of `keyfold.adaptive_avg_pool2d` and its like call it"),
        )?,
    ])
}

pub(super) fn rows() -> Result<Vec<Row>> {
    let mut rows = rows_of::<2>(Names {
        operators: [
            "aten::avg_pool2d",
            "aten::avg_pool2d_backward",
            "aten::adaptive_avg_pool2d",
            "aten::_adaptive_avg_pool2d_backward",
        ],
        functions: ["avg_pool2d", "adaptive_avg_pool2d"],
        parameters: [
            "Tensor x, int[2] kernel_size, int[2]? stride=None, int[2] padding=0, bool \
             ceil_mode=False, bool count_include_pad=True, int? divisor_override=None",
            "Tensor x, int[2] output_size",
        ],
    })?;
    rows.extend(rows_of::<3>(Names {
        operators: [
            "aten::avg_pool3d",
            "aten::avg_pool3d_backward",
            "aten::adaptive_avg_pool3d",
            "aten::_adaptive_avg_pool3d_backward",
        ],
        functions: ["avg_pool3d", "adaptive_avg_pool3d"],
        parameters: [
            "Tensor x, int[3] kernel_size, int[3]? stride=None, int[3] padding=0, bool \
             ceil_mode=False, bool count_include_pad=True, int? divisor_override=None",
            "Tensor x, int[3] output_size",
        ],
    })?);
    Ok(rows)
}
