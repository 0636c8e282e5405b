//! Convolutions as graphs.

use keyfold_backend::{Activation, ConvolutionParams, Operation};
use keyfold_core::{DType, Result};

use super::draft::{Draft, product, refused};
use super::key::Key;
use super::{GraphGroup, activation, floats_of_one_dtype, value_at_zero};
use crate::{
    Convolution, Operation as Node, Pointwise, PointwiseMode, Port, Reduction, ReductionMode, Uid,
};

impl GraphGroup for ConvolutionParams {
    fn write(&self, key: &mut Key) {
        let &ConvolutionParams {
            op: _,
            rank,
            activation,
            has_bias,
            groups,
            stride,
            padding,
            dilation,
        } = self;
        key.word(u64::from(rank) << 32 | u64::from(activation as u32) << 1 | u64::from(has_bias));
        key.word(groups);
        key.words([stride, padding, dilation].into_iter().flatten());
    }

    fn refusal(op: &Operation, inputs: &[DType], outputs: &[DType]) -> Option<String> {
        match op.name() {
            "convolution" | "transposed" | "weight_gradient" | "bias_gradient" => {
                floats_of_one_dtype(inputs.iter().chain(outputs))
            }
            other => Some(format!("it has no operation named '{other}'")),
        }
    }

    fn draft(&self, draft: &mut Draft<'_>) -> Result<()> {
        if draft.has_empty_input() {
            return of_nothing(self, draft);
        }
        match self.op.name() {
            "convolution" => sums(self, draft, false),
            "transposed" => sums(self, draft, true),
            "weight_gradient" => weight_gradient(self, draft),
            _ => bias_gradient(draft),
        }
    }
}

/// Returns the sizes of images with at least two dimensions of space: cuDNN takes a line as an
/// image of height 1.
pub(super) fn image(sizes: &[i64]) -> Vec<i64> {
    let (front, space) = sizes.split_at(2);
    let missing = 2_usize.saturating_sub(space.len());
    [front, &[1, 1][..missing], space].concat()
}

/// Returns the attributes of a convolution of `x` with `w` to `y`. The zeros behind `x` follow from
/// the sizes; they are as many as those before it where that gives the same.
fn attributes(params: &ConvolutionParams, x: &[i64], w: &[i64], y: &[i64]) -> Result<Convolution> {
    let rank = params.rank as usize;
    let space = rank.max(2);
    let mut conv = Convolution::new(space);
    for (axis, to) in (space - rank..space).enumerate() {
        let stride = params.stride[axis] as i64;
        let pre = params.padding[axis] as i64;
        let dilation = params.dilation[axis] as i64;
        let (size, windows) = (x[to + 2], y[to + 2]);
        let reach = (w[to + 2] - 1) * dilation + 1;
        let count = |post: i64| match size + pre + post - reach {
            rest if rest < 0 => 0,
            rest => rest / stride + 1,
        };
        let least = ((windows - 1) * stride + reach - size - pre).max(0);
        let post = if count(pre) == windows { pre } else { least };
        if count(post) != windows {
            return Err(refused(format!(
                "a convolution of {size} elements (kernel {}, stride {stride}, padding {pre} \
                 before, dilation {dilation}) has {} places, not {windows}, whatever the padding \
                 behind is: cuDNN has no output padding of the stride or more",
                w[to + 2],
                count(post)
            )));
        }
        (conv.pre_padding[to], conv.post_padding[to]) = (pre, post);
        (conv.stride[to], conv.dilation[to]) = (stride, dilation);
    }
    Ok(conv)
}

/// A convolution of `x` with `w`, or a transposed one of `dy` with `w`, then bias and activation.
fn sums(params: &ConvolutionParams, draft: &mut Draft<'_>, is_transposed: bool) -> Result<()> {
    let sizes = [draft.sizes(0), draft.sizes(1), draft.sizes_of_output(0)];
    let [from, w, to] = sizes.map(|sizes| image(&sizes));
    let (x, y) = if is_transposed { (&to, &from) } else { (&from, &to) };
    let conv = attributes(params, x, &w, y)?;
    let (name, node, input, output): (_, _, (_, &str), (_, &str)) = match is_transposed {
        false => ("convolution", Node::ConvFprop(conv), (Port::X, "x"), (Port::Y, "y")),
        true => {
            let node = Node::ConvDgrad(conv);
            ("transposed convolution", node, (Port::Dy, "dy"), (Port::Dx, "dx"))
        }
    };
    let (given, w) = (draft.input(0, &from)?, draft.input(1, &w)?);
    let bias = params.has_bias.then(|| draft.input(2, &channels(&to))).transpose()?;
    let mut sketch = draft.sketch(name);
    let ports = [(input.0, sketch.bind(input.1, &given)), (Port::W, sketch.bind("w", &w))];
    let bias = bias.map(|bias| sketch.bind("bias", &bias));
    let result = sketch.bind(output.1, &draft.output(0, &to)?);
    let chain = epilogue(params.activation, bias);
    let sum = if chain.is_empty() { result } else { sketch.between(result) };
    sketch.operation(node, &ports, &[(output.0, sum)]);
    sketch.chain(sum, chain, result);
    draft.add(sketch);
    Ok(())
}

fn weight_gradient(params: &ConvolutionParams, draft: &mut Draft<'_>) -> Result<()> {
    let sizes = [draft.sizes(0), draft.sizes(1), draft.sizes_of_output(0)];
    let [x, dy, dw] = sizes.map(|sizes| image(&sizes));
    let conv = attributes(params, &x, &dw, &dy)?;
    let (x, dy, dw) = (draft.input(0, &x)?, draft.input(1, &dy)?, draft.output(0, &dw)?);
    let mut sketch = draft.sketch("gradient of a convolution's weight");
    let ports = [(Port::X, sketch.bind("x", &x)), (Port::Dy, sketch.bind("dy", &dy))];
    let dw = sketch.bind("dw", &dw);
    sketch.operation(Node::ConvWgrad(conv), &ports, &[(Port::Dw, dw)]);
    draft.add(sketch);
    Ok(())
}

fn bias_gradient(draft: &mut Draft<'_>) -> Result<()> {
    let dims = image(&draft.sizes(0));
    let dy = draft.input(0, &dims)?;
    let db = draft.wide_output(0, &channels(&dims))?;
    let mut sketch = draft.sketch("gradient of a convolution's bias");
    let (dy, db) = (sketch.bind("dy", &dy), sketch.bind("db", &db));
    let reduction = Node::Reduction(Reduction { mode: ReductionMode::Add });
    sketch.operation(reduction, &[(Port::X, dy)], &[(Port::Y, db)]);
    draft.add(sketch);
    Ok(())
}

/// Returns the dimensions of a tensor with a number for each channel.
pub(super) fn channels(image: &[i64]) -> Vec<i64> {
    let mut dims = vec![1; image.len()];
    dims[1] = image[1];
    dims
}

/// Returns the pointwise operations behind a sum.
fn epilogue(function: Activation, bias: Option<Uid>) -> Vec<(Pointwise, Option<Uid>)> {
    let add = bias.map(|bias| (Pointwise::new(PointwiseMode::Add), Some(bias)));
    add.into_iter().chain(activation(function).map(|function| (function, None))).collect()
}

/// The results of sums without terms: what the activation makes of the bias, or of 0.
fn of_nothing(params: &ConvolutionParams, draft: &mut Draft<'_>) -> Result<()> {
    let is_sum = matches!(params.op.name(), "convolution" | "transposed");
    if !(is_sum && params.has_bias) {
        let number = if is_sum { value_at_zero(params.activation) } else { 0.0 };
        draft.fill(0, number);
        return Ok(());
    }
    let result = draft.sizes_of_output(0);
    let (front, places) = ([result[0], result[1]], product(&result[2..]));
    let dims = [1, front[1], 1, 1];
    let mut bias = draft.input(2, &dims)?;
    if let Some(function) = activation(params.activation) {
        let activated = draft.scratch(bias.dtype, &dims)?;
        let mut sketch = draft.sketch("activation of a bias");
        let (x, y) = (sketch.bind("bias", &bias), sketch.bind("y", &activated));
        sketch.pointwise(function, &[x], y);
        draft.add(sketch);
        bias = activated;
    }
    draft.spread(0, &[front[0], front[1], places, 1], bias)
}
