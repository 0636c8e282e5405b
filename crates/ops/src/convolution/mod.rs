//! Convolutions: `convolution`, its derivative `convolution_backward`, and those of one, two and three
//! dimensions that are written with it.

mod arguments;
mod batching;
mod derivatives;
mod dimensions;
mod sizes;

use keyfold_backend::{Activation, Operation};
use keyfold_core::{DType, Device, ErrorKind, Result, Shape};
use keyfold_dispatch::Arg;
use keyfold_layers::autocast::Category;
use keyfold_layers::autograd::Saves;
use keyfold_tensor::{IntList, Tensor, ValueRef};
use smallvec::SmallVec;

use self::arguments::{Given, GivenBackward, OfBackward, OfConvolution, Settings};
use crate::activation;
use crate::convert::to_dtype;
use crate::infer::{Call, CallPlan, Run, RunSeveral, SeveralPlan};
use crate::jvp::pushforward;
use crate::naming::{Naming, named};
use crate::op::Op;
use crate::row::{Batching, Gradient, Layers, Row, Rule, Tangent};
use crate::vjp::formula;

const CONVOLUTION: &Operation = &Operation::new("convolution");
const TRANSPOSED: &Operation = &Operation::new("transposed");
const WEIGHT_GRADIENT: &Operation = &Operation::new("weight_gradient");
const BIAS_GRADIENT: &Operation = &Operation::new("bias_gradient");

/// Returns the tensor with a dimension of one image in front, if it lacks that.
fn images(op: &Op, x: &Tensor, single: bool) -> Result<Tensor> {
    if single { op.at(x.unsqueeze(0)) } else { Ok(x.detach()) }
}

/// Returns the images of the dtype in which a convolution is computed.
fn operand(op: &Op, x: &Tensor, dtype: DType, single: bool) -> Result<Tensor> {
    let x = to_dtype(op, x, dtype)?;
    images(op, &x, single)
}

fn convolution<'a>(call: Call<'_, ()>, given: Given<'a>) -> Result<CallPlan<impl Run + use<'a>>> {
    plan(&call, given, Activation::None.name())
}

type Activated<'a> =
    (&'a Tensor, &'a Tensor, Option<&'a Tensor>, IntList, IntList, IntList, i64, &'a str);

fn convolution_activation<'a>(
    call: Call<'_, ()>,
    (input, weight, bias, stride, padding, dilation, groups, activation): Activated<'a>,
) -> Result<CallPlan<impl Run + use<'a>>> {
    let output_padding = IntList::unbox(ValueRef::Ints(&[0]))?;
    let settings =
        Settings { stride, padding, dilation, transposed: false, output_padding, groups };
    plan(&call, Given { input, weight, bias, settings }, activation)
}

/// Plans a convolution with the activation of a name.
fn plan<'a>(op: &Op, given: Given<'a>, activation: &str) -> Result<CallPlan<impl Run + use<'a>>> {
    let Given { input, weight, bias, settings } = given;
    let sizes = sizes::check(op.name, (input, weight, bias), &settings)?;
    let (device, shape, dtype) = (op.device_of(input), sizes.output.clone(), sizes.dtype);
    let activation = activation::parse(op, activation, dtype)?;
    let run = move |op: &Op, out: &Tensor| {
        let mut params = sizes.params(if settings.transposed { TRANSPOSED } else { CONVOLUTION });
        params.has_bias = bias.is_some();
        params.activation = activation;
        let input = operand(op, input, dtype, sizes.single)?;
        let weight = to_dtype(op, weight, dtype)?;
        let bias = match bias {
            Some(bias) => Some(to_dtype(op, bias, dtype)?),
            None => None,
        };
        let out = images(op, out, sizes.single)?;
        let bias = bias.as_deref();
        let inputs: SmallVec<[&Tensor; 3]> = [&input, &*weight].into_iter().chain(bias).collect();
        // SAFETY: what computes a result is called with an output that is its own (`Run::run`).
        unsafe { op.execute(&params, &inputs, &[&out]) }
    };
    Ok(CallPlan::new(device, shape, dtype, run))
}

fn convolution_backward<'a>(
    call: Call<'_, ()>,
    given: GivenBackward<'a>,
) -> Result<SeveralPlan<impl RunSeveral + use<'a>>> {
    let GivenBackward { gradient, input, weight, settings, wanted } = given;
    let sizes = sizes::check(call.name, (input, weight, None), &settings)?;
    if *gradient.shape() != sizes.output || !gradient.dtype().is_floating() {
        let is_shape = *gradient.shape() != sizes.output;
        let kind = if is_shape { ErrorKind::Shape } else { ErrorKind::DType };
        let message = format!(
            "argument 'grad_output' has shape {:?} and dtype {}; the convolution's result has {:?} \
             and is of floats",
            gradient.shape(),
            gradient.dtype(),
            sizes.output
        );
        return Err(call.error(kind, message));
    }
    let (device, dtype) = (call.device_of(input), sizes.dtype.promote(gradient.dtype()));
    let bias = call.at(Shape::new(&[sizes.channels]))?;
    let shapes = [input.shape().clone(), weight.shape().clone(), bias];
    let form = |(shape, wanted): (Shape, bool)| -> Option<(Device, Shape, DType)> {
        wanted.then_some((device, shape, dtype))
    };
    let forms = shapes.into_iter().zip(wanted).map(form);
    let run = move |op: &Op, outs: &[&Tensor]| {
        let input = operand(op, input, dtype, sizes.single)?;
        let gradient = operand(op, gradient, dtype, sizes.single)?;
        let weight = to_dtype(op, weight, dtype)?;
        // A transposed convolution is the gradient of a convolution whose input is its result.
        let (of_input, seen, sees) = match settings.transposed {
            true => (CONVOLUTION, &gradient, &input),
            false => (TRANSPOSED, &input, &gradient),
        };
        let mut outs = outs.iter();
        let mut run = |which: usize, op_of: &'static Operation, inputs: &[&Tensor]| {
            let Some(out) = wanted[which].then(|| outs.next()).flatten() else { return Ok(()) };
            let out = if which == 0 { images(op, out, sizes.single)? } else { out.detach() };
            // SAFETY: nothing else uses the results' memory (`RunSeveral`).
            unsafe { op.execute(&sizes.params(op_of), inputs, &[&out]) }
        };
        run(0, of_input, &[&gradient, &*weight])?;
        run(1, WEIGHT_GRADIENT, &[seen, sees])?;
        run(2, BIAS_GRADIENT, &[&gradient])
    };
    // A backend may lack the operation of a later gradient.
    Ok(SeveralPlan::of_wanted(forms, run).whole())
}

/// Returns the rows of convolutions.
pub(crate) fn rows() -> Result<Vec<Row>> {
    const READS: &[Saves] = &[Saves::arguments(&[1]), Saves::arguments(&[0]), Saves::NONE];
    const READS_ALL: &[Saves] = &[Saves::arguments(&[0, 1, 2]).and_results()];
    // The gradients of `grad_output`, `input` and `weight`.
    const BACKWARD_READS: &[Saves] =
        &[Saves::arguments(&[1, 2]), Saves::arguments(&[0]), Saves::arguments(&[0])];
    let mut rows = vec![
        Row::computes::<OfConvolution, _, _>(
            ("aten::convolution", ""),
            "Tensor input, Tensor weight, Tensor? bias, int[] stride, int[] padding, \
             int[] dilation, bool transposed, int[] output_padding, int groups",
            |_| (),
            convolution,
            Layers {
                derivative: formula(READS, derivatives::convolution),
                tangent: pushforward(derivatives::convolution_tangent),
                batching: Rule::Given(Batching::Rule(batching::convolution)),
                autocast: Category::LowerPrecision,
            },
            Naming::Unnamed("`conv1d`, `conv2d`, `conv3d` and their transposes call it"),
        )?,
        Row::computes::<Activated<'_>, _, _>(
            ("keyfold::convolution_activation", ""),
            "Tensor input, Tensor weight, Tensor? bias=None, int[1] stride=1, int[1] padding=0, \
             int[1] dilation=1, int groups=1, str activation=\"none\"",
            |_| (),
            convolution_activation,
            Layers {
                derivative: formula(READS_ALL, derivatives::convolution_activation),
                tangent: pushforward(derivatives::convolution_activation_tangent),
                batching: Rule::Given(Batching::Rule(batching::convolution_activation)),
                autocast: Category::LowerPrecision,
            },
            named(
                "convolution_activation",
                "Tensor x, Tensor weight, Tensor? bias=None, int[1] stride=1, int[1] padding=0, \
                 int[1] dilation=1, int groups=1, str activation=\"none\"",
                "Return `activation(convolution + bias)`, computed in one pass.\n\nThe convolution is \
                 `conv1d`, `conv2d` or `conv3d` by the dimensions of the weight, and\nthe activation \
                 \"none\", \"relu\", \"gelu\", \"gelu_tanh\", \"gelu_sigmoid\" (`x sigmoid(1.702 \
                 x)`),\n\"sigmoid\" or \"tanh\". `stride`, `padding` and `dilation` are one number, or \
                 one for each\ndimension; `padding` also a pair for each, before and after. The \
                 derivative computes the sum\nanew for the forms of gelu. Not in the \
                 standard.\n\nRaises:\n    ShapeError: the shapes don't fit.\n    InvalidValue: there \
                 is no such activation, or a number is out of range.\n    DTypeError: an array isn't \
                 of floats.",
            ),
        )?,
        Row::computes_several::<OfBackward, _, _>(
            "aten::convolution_backward(Tensor grad_output, Tensor input, Tensor weight, \
             int[]? bias_sizes, int[] stride, int[] padding, int[] dilation, bool transposed, \
             int[] output_padding, int groups, bool[3] output_mask) -> (Tensor?, Tensor?, Tensor?)",
            |_| (),
            convolution_backward,
            Layers {
                derivative: Rule::Given(Gradient::Several(
                    BACKWARD_READS,
                    derivatives::convolution_backward,
                )),
                tangent: Rule::Given(Tangent::Other(derivatives::convolution_backward_tangent)),
                batching: Rule::Given(Batching::Rule(batching::convolution_backward)),
                autocast: Category::LowerPrecision,
            },
            Naming::Unnamed("backward calls it"),
        )?,
    ];
    rows.extend(dimensions::rows()?);
    Ok(rows)
}
