//! Normalizations as graphs.
//!
//! Layer norm and RMS norm are those of `[rows, width, 1, 1]`, batch norm that of images, and group
//! norm is instance norm of `[examples, groups, elements, 1]`: libcudnn plans these, but not its
//! own group norm. Since instance norm has a weight for each group there, the weights of channels
//! are graphs of their own.

use keyfold_backend::{NormParams, Operation};
use keyfold_core::{DType, Result};

use super::convolution::channels;
use super::draft::{Draft, Operand, Sketch, product};
use super::key::Key;
use super::{GraphGroup, all_floats};
use crate::{
    Norm, NormMode, Operation as Node, Pointwise, PointwiseMode, Port, Reduction, ReductionMode,
    Uid,
};

impl GraphGroup for NormParams {
    fn write(&self, key: &mut Key) {
        let &NormParams { op: _, eps, momentum, dims, groups, axis, tensors } = self;
        key.words([eps.to_bits(), momentum.to_bits()]);
        key.words([dims, groups, axis, tensors].map(u64::from));
    }

    fn refusal(op: &Operation, inputs: &[DType], outputs: &[DType]) -> Option<String> {
        match op.name() {
            "softmax_backward" | "log_softmax_backward" => Some(
                "cuDNN's graphs have no gradient of softmax but inside of attention's".to_string(),
            ),
            "layer_norm"
            | "layer_norm_backward"
            | "rms_norm"
            | "rms_norm_backward"
            | "group_norm"
            | "group_norm_backward"
            | "batch_norm"
            | "batch_norm_backward"
            | "batch_norm_inference"
            | "batch_norm_inference_backward" => all_floats(inputs.iter().chain(outputs)),
            other => Some(format!("it has no operation named '{other}'")),
        }
    }

    fn draft(&self, draft: &mut Draft<'_>) -> Result<()> {
        let first = Inputs::new(self);
        if draft.has_empty_input() {
            // Sums over no lanes; no other output has elements then.
            let wanted = first.outputs.iter().flatten();
            wanted.for_each(|&output| draft.fill(output, 0.0));
            return Ok(());
        }
        match self.op.name() {
            "layer_norm" | "rms_norm" | "batch_norm" => forward(self, draft),
            "layer_norm_backward" | "rms_norm_backward" | "batch_norm_backward" => {
                backward(self, draft)
            }
            "group_norm" => group_forward(self, draft),
            "group_norm_backward" => group_backward(self, draft),
            "batch_norm_inference" => inference(self, draft),
            _ => inference_backward(self, draft),
        }
    }
}

/// The places of the optional inputs, and of the optional outputs of a gradient.
struct Inputs {
    weight: Option<usize>,
    bias: Option<usize>,
    /// The old mean; the old variance follows.
    running: Option<usize>,
    /// `dx`, `dweight`, `dbias`.
    outputs: [Option<usize>; 3],
}

impl Inputs {
    fn new(params: &NormParams) -> Inputs {
        let mut next = match params.op.name() {
            "layer_norm" | "rms_norm" | "group_norm" | "batch_norm" => 1,
            "rms_norm_backward" | "batch_norm_inference" => 3,
            _ => 4,
        };
        let place = |next: &mut usize, tensor: u32| {
            let there = params.has(tensor);
            *next += usize::from(there);
            there.then(|| *next - 1)
        };
        let weight = place(&mut next, NormParams::WEIGHT);
        let bias = place(&mut next, NormParams::BIAS);
        let running = place(&mut next, NormParams::RUNNING);
        let wanted = [NormParams::GRAD_INPUT, NormParams::GRAD_WEIGHT, NormParams::GRAD_BIAS];
        let mut output = 0;
        let outputs = wanted.map(|tensor| place(&mut output, tensor));
        Inputs { weight, bias, running, outputs }
    }
}

/// The dimensions of a normalization as cuDNN takes it.
struct Shapes {
    x: Vec<i64>,
    /// Of weight and bias.
    affine: Vec<i64>,
    statistics: Vec<i64>,
    mode: NormMode,
}

fn shapes(params: &NormParams, sizes: &[i64]) -> Shapes {
    let name = params.op.name();
    if name.starts_with("batch_norm") {
        let x = image(sizes);
        let statistics = channels(&x);
        return Shapes { affine: statistics.clone(), x, statistics, mode: NormMode::BatchNorm };
    }
    let (rows, width) = sizes.split_at(sizes.len() - params.dims as usize);
    let (rows, width) = (product(rows), product(width));
    let mode = match name.starts_with("rms") {
        true => NormMode::RmsNorm,
        false => NormMode::LayerNorm,
    };
    let (x, affine) = (vec![rows, width, 1, 1], vec![1, width, 1, 1]);
    Shapes { x, affine, statistics: vec![rows, 1, 1, 1], mode }
}

/// Returns the sizes of images, with two or three dimensions of space.
fn image(sizes: &[i64]) -> Vec<i64> {
    match sizes.len() {
        ..=3 => super::convolution::image(sizes),
        4 | 5 => sizes.to_vec(),
        _ => vec![sizes[0], sizes[1], product(&sizes[2..]), 1],
    }
}

/// Returns weight or bias: the input, or one number for all in its place.
fn affine(
    draft: &mut Draft<'_>,
    input: Option<usize>,
    like: Option<usize>,
    dims: &[i64],
    number: f64,
) -> Result<Operand> {
    match (input, like) {
        (Some(input), _) => draft.input(input, dims),
        // Both have one dtype.
        (None, Some(like)) => draft.filled(draft.dtype(like)?, dims, number),
        (None, None) => draft.filled(draft.compute, dims, number),
    }
}

fn forward(params: &NormParams, draft: &mut Draft<'_>) -> Result<()> {
    let places = Inputs::new(params);
    let Shapes { x: dims, affine: of_affine, statistics, mode } = shapes(params, &draft.sizes(0));
    let is_rms = mode == NormMode::RmsNorm;
    let x = draft.input(0, &dims)?;
    let scale = affine(draft, places.weight, places.bias, &of_affine, 1.0)?;
    let bias = match is_rms {
        true => None,
        false => Some(affine(draft, places.bias, places.weight, &of_affine, 0.0)?),
    };
    let old = places.running.map(|first| -> Result<_> {
        Ok([draft.wide_input(first, &statistics)?, draft.wide_input(first + 1, &statistics)?])
    });
    let old = old.transpose()?;
    let y = draft.output(0, &dims)?;
    let outputs = [Port::Mean, Port::InvVariance, Port::NextRunningMean, Port::NextRunningVariance];
    let count = if old.is_some() { 4 } else { 2 };
    let mut results = Vec::new();
    for (at, port) in outputs[usize::from(is_rms)..count].iter().enumerate() {
        results.push((*port, draft.wide_output(at + 1, &statistics)?));
    }
    let mut sketch = draft.sketch(params.op.name());
    let rank = dims.len();
    let mut inputs =
        vec![(Port::X, sketch.bind("x", &x)), (Port::Scale, sketch.bind("scale", &scale))];
    inputs.extend(bias.map(|bias| (Port::Bias, sketch.bind("bias", &bias))));
    inputs.push((Port::Epsilon, sketch.number(params.eps, rank)));
    if let Some([mean, variance]) = &old {
        inputs.push((Port::Momentum, sketch.number(params.momentum, rank)));
        inputs.push((Port::RunningMean, sketch.bind("running_mean", mean)));
        inputs.push((Port::RunningVariance, sketch.bind("running_variance", variance)));
    }
    let mut outputs = vec![(Port::Y, sketch.bind("y", &y))];
    outputs.extend(results.iter().map(|(port, to)| (*port, sketch.bind(&port.to_string(), to))));
    sketch.operation(Node::Norm(Norm::new(mode)), &inputs, &outputs);
    draft.add(sketch);
    Ok(())
}

fn backward(params: &NormParams, draft: &mut Draft<'_>) -> Result<()> {
    let places = Inputs::new(params);
    let Shapes { x: dims, affine: of_affine, statistics, mode } = shapes(params, &draft.sizes(1));
    let [dx, dscale, dbias] = places.outputs;
    let (dy, x) = (draft.input(0, &dims)?, draft.input(1, &dims)?);
    let like = dscale.or(dbias).map(|output| draft.dtype_of_output(output)).transpose()?;
    let scale = match places.weight {
        Some(weight) => draft.input(weight, &of_affine)?,
        None => draft.filled(like.unwrap_or(draft.compute), &of_affine, 1.0)?,
    };
    let names: &[Port] = match mode {
        NormMode::RmsNorm => &[Port::InvVariance],
        _ => &[Port::Mean, Port::InvVariance],
    };
    let mut given = Vec::new();
    for (at, port) in names.iter().enumerate() {
        given.push((*port, draft.wide_input(at + 2, &statistics)?));
    }
    let dx = output_or_scratch(draft, dx, &x, &dims)?;
    let dscale = output_or_scratch(draft, dscale, &scale, &of_affine)?;
    let dbias = match mode {
        NormMode::RmsNorm => None,
        _ => Some(output_or_scratch(draft, dbias, &scale, &of_affine)?),
    };
    let mut sketch = draft.sketch(params.op.name());
    let mut inputs = vec![
        (Port::X, sketch.bind("x", &x)),
        (Port::Dy, sketch.bind("dy", &dy)),
        (Port::Scale, sketch.bind("scale", &scale)),
    ];
    inputs.extend(given.iter().map(|(port, from)| (*port, sketch.bind(&port.to_string(), from))));
    let mut outputs =
        vec![(Port::Dx, sketch.bind("dx", &dx)), (Port::Dscale, sketch.bind("dscale", &dscale))];
    outputs.extend(dbias.map(|dbias| (Port::Dbias, sketch.bind("dbias", &dbias))));
    sketch.operation(Node::NormBackward(Norm::new(mode)), &inputs, &outputs);
    draft.add(sketch);
    Ok(())
}

/// Returns an output, or for one that isn't wanted memory that nobody reads.
fn output_or_scratch(
    draft: &mut Draft<'_>,
    output: Option<usize>,
    like: &Operand,
    dims: &[i64],
) -> Result<Operand> {
    match output {
        Some(output) => draft.output(output, dims),
        None => draft.scratch(like.dtype, dims),
    }
}

/// The dimensions of a group norm.
struct Groups {
    /// `[examples, groups, elements, 1]`, as instance norm takes it.
    x: Vec<i64>,
    statistics: Vec<i64>,
    /// `[1, groups, 1, 1]`
    of_groups: Vec<i64>,
    /// `[examples, channels, elements]`
    by_channel: Vec<i64>,
    /// `[1, channels, 1]`
    of_channels: Vec<i64>,
}

impl Groups {
    fn new(params: &NormParams, sizes: &[i64]) -> Groups {
        let (n, c, groups) = (sizes[0], sizes[1], i64::from(params.groups));
        let places = product(&sizes[2..]);
        Groups {
            x: vec![n, groups, c / groups * places, 1],
            statistics: vec![n, groups, 1, 1],
            of_groups: vec![1, groups, 1, 1],
            by_channel: vec![n, c, places],
            of_channels: vec![1, c, 1],
        }
    }
}

fn instance_norm() -> Norm {
    Norm::new(NormMode::InstanceNorm)
}

fn group_forward(params: &NormParams, draft: &mut Draft<'_>) -> Result<()> {
    let places = Inputs::new(params);
    let dims = Groups::new(params, &draft.sizes(0));
    let x = draft.input(0, &dims.x)?;
    let ones = draft.filled(draft.compute, &dims.of_groups, 1.0)?;
    let zeros = draft.filled(draft.compute, &dims.of_groups, 0.0)?;
    let has_affine = places.weight.is_some() || places.bias.is_some();
    let y = match has_affine {
        true => draft.scratch(draft.compute, &dims.x)?,
        false => draft.output(0, &dims.x)?,
    };
    let mean = draft.wide_output(1, &dims.statistics)?;
    let rstd = draft.wide_output(2, &dims.statistics)?;
    let mut sketch = draft.sketch("group_norm");
    let inputs = [
        (Port::X, sketch.bind("x", &x)),
        (Port::Scale, sketch.bind("ones", &ones)),
        (Port::Bias, sketch.bind("zeros", &zeros)),
        (Port::Epsilon, sketch.number(params.eps, 4)),
    ];
    let outputs = [
        (Port::Y, sketch.bind("y", &y)),
        (Port::Mean, sketch.bind("mean", &mean)),
        (Port::InvVariance, sketch.bind("inv_variance", &rstd)),
    ];
    sketch.operation(Node::Norm(instance_norm()), &inputs, &outputs);
    draft.add(sketch);
    if !has_affine {
        return Ok(());
    }
    let normalized = y.packed_as(&dims.by_channel)?;
    let result = draft.output(0, &dims.by_channel)?;
    let weight = places.weight.map(|input| draft.input(input, &dims.of_channels)).transpose()?;
    let bias = places.bias.map(|input| draft.input(input, &dims.of_channels)).transpose()?;
    let mut sketch = draft.sketch("weights of group_norm");
    let (x, y) = (sketch.bind("x", &normalized), sketch.bind("y", &result));
    let weight = weight.map(|weight| (mul(), Some(sketch.bind("scale", &weight))));
    let bias = bias.map(|bias| (add(), Some(sketch.bind("bias", &bias))));
    sketch.chain(x, weight.into_iter().chain(bias).collect(), y);
    draft.add(sketch);
    Ok(())
}

fn group_backward(params: &NormParams, draft: &mut Draft<'_>) -> Result<()> {
    let places = Inputs::new(params);
    let sizes = draft.sizes(1);
    let dims = Groups::new(params, &sizes);
    let mean = draft.wide_input(2, &dims.statistics)?;
    let rstd = draft.wide_input(3, &dims.statistics)?;
    let [dx, dweight, dbias] = places.outputs;
    if let Some(dx) = dx {
        let dy = match places.weight {
            None => draft.input(0, &dims.x)?,
            Some(weight) => {
                let grad = draft.input(0, &dims.by_channel)?;
                let weight = draft.input(weight, &dims.of_channels)?;
                let weighted = draft.scratch(draft.compute, &dims.by_channel)?;
                let mut sketch = draft.sketch("weights of group_norm_backward");
                let (x, b) = (sketch.bind("dy", &grad), sketch.bind("scale", &weight));
                let y = sketch.bind("y", &weighted);
                sketch.pointwise(mul(), &[x, b], y);
                draft.add(sketch);
                weighted.packed_as(&dims.x)?
            }
        };
        let x = draft.input(1, &dims.x)?;
        let ones = draft.filled(draft.compute, &dims.of_groups, 1.0)?;
        let dx = draft.output(dx, &dims.x)?;
        let dscale = draft.scratch(draft.compute, &dims.of_groups)?;
        let dbias = draft.scratch(draft.compute, &dims.of_groups)?;
        let mut sketch = draft.sketch("group_norm_backward");
        let inputs = [
            (Port::X, sketch.bind("x", &x)),
            (Port::Dy, sketch.bind("dy", &dy)),
            (Port::Scale, sketch.bind("ones", &ones)),
            (Port::Mean, sketch.bind("mean", &mean)),
            (Port::InvVariance, sketch.bind("inv_variance", &rstd)),
        ];
        let outputs = [
            (Port::Dx, sketch.bind("dx", &dx)),
            (Port::Dscale, sketch.bind("dscale", &dscale)),
            (Port::Dbias, sketch.bind("dbias", &dbias)),
        ];
        sketch.operation(Node::NormBackward(instance_norm()), &inputs, &outputs);
        draft.add(sketch);
    }
    // Channels of a group are apart, so that statistics broadcast along them.
    let (groups, within) = (dims.of_groups[1], sizes[1] / dims.of_groups[1]);
    let apart = [sizes[0], groups, within, dims.by_channel[2]];
    let sums = [1, groups, within, 1];
    weight_gradient(draft, dweight, (&apart, &sums), [&mean, &rstd])?;
    bias_gradient(draft, dbias, (&dims.by_channel, &dims.of_channels))
}

/// The sums of `grad (x - mean) rstd`, where they are wanted.
fn weight_gradient(
    draft: &mut Draft<'_>,
    output: Option<usize>,
    (dims, sums): (&[i64], &[i64]),
    [mean, rstd]: [&Operand; 2],
) -> Result<()> {
    let Some(output) = output else { return Ok(()) };
    let (grad, x) = (draft.input(0, dims)?, draft.input(1, dims)?);
    let dw = draft.wide_output(output, sums)?;
    let mut sketch = draft.sketch("gradient of a norm's weight");
    let (dy, x) = (sketch.bind("dy", &grad), sketch.bind("x", &x));
    let (mean, rstd) = (sketch.bind("mean", mean), sketch.bind("inv_variance", rstd));
    let terms = sketch.between(x);
    sketch.chain(x, vec![(sub(), Some(mean)), (mul(), Some(rstd)), (mul(), Some(dy))], terms);
    let dw = sketch.bind("dw", &dw);
    sum(&mut sketch, terms, dw);
    draft.add(sketch);
    Ok(())
}

/// The sums of `grad`, where they are wanted.
fn bias_gradient(
    draft: &mut Draft<'_>,
    output: Option<usize>,
    (dims, sums): (&[i64], &[i64]),
) -> Result<()> {
    let Some(output) = output else { return Ok(()) };
    let (grad, db) = (draft.input(0, dims)?, draft.wide_output(output, sums)?);
    let mut sketch = draft.sketch("gradient of a norm's bias");
    let (dy, db) = (sketch.bind("dy", &grad), sketch.bind("db", &db));
    sum(&mut sketch, dy, db);
    draft.add(sketch);
    Ok(())
}

/// `1 / sqrt(variance + eps)`, as a tensor with memory or a virtual one.
fn deviation(sketch: &mut Sketch, variance: &Operand, eps: f64, to: Option<&Operand>) -> Uid {
    let rank = variance.dims.len();
    let variance = sketch.bind("variance", variance);
    let eps = sketch.number(eps, rank);
    let rstd = match to {
        Some(to) => sketch.bind("inv_variance", to),
        None => sketch.between(variance),
    };
    let chain = vec![(add(), Some(eps)), (Pointwise::new(PointwiseMode::Rsqrt), None)];
    sketch.chain(variance, chain, rstd);
    rstd
}

/// Batch norm by given statistics, as pointwise operations: libcudnn has no other plan for it.
fn inference(params: &NormParams, draft: &mut Draft<'_>) -> Result<()> {
    let places = Inputs::new(params);
    let dims = image(&draft.sizes(0));
    let of_channels = channels(&dims);
    let x = draft.input(0, &dims)?;
    let mut small = |input: usize| draft.input(input, &of_channels);
    let (mean, variance) = (small(1)?, small(2)?);
    let weight = places.weight.map(&mut small).transpose()?;
    let bias = places.bias.map(&mut small).transpose()?;
    let y = draft.output(0, &dims)?;
    let mut sketch = draft.sketch("batch_norm_inference");
    let rstd = deviation(&mut sketch, &variance, params.eps, None);
    let (x, mean) = (sketch.bind("x", &x), sketch.bind("mean", &mean));
    let mut chain = vec![(sub(), Some(mean)), (mul(), Some(rstd))];
    chain.extend(weight.map(|weight| (mul(), Some(sketch.bind("scale", &weight)))));
    chain.extend(bias.map(|bias| (add(), Some(sketch.bind("bias", &bias)))));
    let y = sketch.bind("y", &y);
    sketch.chain(x, chain, y);
    draft.add(sketch);
    Ok(())
}

fn inference_backward(params: &NormParams, draft: &mut Draft<'_>) -> Result<()> {
    let places = Inputs::new(params);
    let dims = image(&draft.sizes(1));
    let of_channels = channels(&dims);
    let [dx, dweight, dbias] = places.outputs;
    let variance = draft.input(3, &of_channels)?;
    if let Some(dx) = dx {
        let grad = draft.input(0, &dims)?;
        let weight = places.weight.map(|weight| draft.input(weight, &of_channels)).transpose()?;
        let dx = draft.output(dx, &dims)?;
        let mut sketch = draft.sketch("batch_norm_inference_backward");
        let rstd = deviation(&mut sketch, &variance, params.eps, None);
        let (dy, dx) = (sketch.bind("dy", &grad), sketch.bind("dx", &dx));
        let weight = weight.map(|weight| (mul(), Some(sketch.bind("scale", &weight))));
        sketch.chain(dy, [(mul(), Some(rstd))].into_iter().chain(weight).collect(), dx);
        draft.add(sketch);
    }
    if dweight.is_some() {
        let mean = draft.input(2, &of_channels)?;
        let rstd = draft.scratch(draft.compute, &of_channels)?;
        let mut sketch = draft.sketch("deviations of batch_norm_inference_backward");
        deviation(&mut sketch, &variance, params.eps, Some(&rstd));
        draft.add(sketch);
        weight_gradient(draft, dweight, (&dims, &of_channels), [&mean, &rstd])?;
    }
    bias_gradient(draft, dbias, (&dims, &of_channels))
}

fn add() -> Pointwise {
    Pointwise::new(PointwiseMode::Add)
}

fn sub() -> Pointwise {
    Pointwise::new(PointwiseMode::Sub)
}

fn mul() -> Pointwise {
    Pointwise::new(PointwiseMode::Mul)
}

/// Adds a reduction to sums.
fn sum(sketch: &mut Sketch, x: Uid, y: Uid) {
    let reduction = Node::Reduction(Reduction { mode: ReductionMode::Add });
    sketch.operation(reduction, &[(Port::X, x)], &[(Port::Y, y)]);
}
