//! Normalizations and their gradients: by an operator where there is one, else all modes by one set
//! of expressions.

use keyfold_core::{DType, Result, Scalar};
use keyfold_tensor::{Tensor, ValueRef};

use super::calls::{Calls, sizes};
use super::node::{Node, Results};
use crate::{Norm, NormMode, NormPhase, Port};

/// Tensors as a mode sees them: group norm splits the channels.
struct View {
    /// The sizes of `x`.
    x: Vec<i64>,
    /// The sizes of `scale`.
    scale: Vec<i64>,
    /// The dimensions that are normalized together.
    axes: Vec<i64>,
}

impl View {
    fn new(norm: &Norm, x: &Tensor, scale: &Tensor) -> View {
        let (mut x, mut scale) = (sizes(x), sizes(scale));
        if norm.mode == NormMode::GroupNorm {
            let groups = norm.groups.unwrap_or(1);
            let each = x[1] / groups;
            for list in [&mut x, &mut scale] {
                list[1] = groups;
                list.insert(2, each);
            }
        }
        let rank = x.len();
        let axes: Vec<usize> = match norm.mode {
            NormMode::BatchNorm => (0..rank).filter(|&axis| axis != 1).collect(),
            NormMode::InstanceNorm | NormMode::GroupNorm => (2..rank).collect(),
            NormMode::LayerNorm | NormMode::RmsNorm => {
                (0..rank).filter(|&axis| scale[axis] != 1).collect()
            }
            NormMode::AdaLayerNorm => (1..rank).filter(|&axis| scale[axis] != 1).collect(),
        };
        View { x, scale, axes: axes.into_iter().map(|axis| axis as i64).collect() }
    }

    /// Returns how many elements are normalized together.
    fn count(&self) -> f64 {
        self.axes.iter().map(|&axis| self.x[axis as usize] as f64).product()
    }

    /// Returns a statistic with sizes of 1 in the normalized dimensions.
    fn statistic(&self, calls: &Calls, statistic: &Tensor) -> Result<Tensor> {
        let size = |axis: usize| if self.axes.contains(&(axis as i64)) { 1 } else { self.x[axis] };
        calls.reshape(statistic, &(0..self.x.len()).map(size).collect::<Vec<_>>())
    }

    fn scale(&self, calls: &Calls, scale: &Tensor) -> Result<Tensor> {
        calls.reshape(scale, &self.scale)
    }
}

/// The operator that computes a normalization.
enum Form {
    /// Batch norm.
    Channels,
    /// Group norm, of which instance norm is one with a channel in each of so many groups.
    Groups(i64),
    /// Layer norm and RMS norm over the dimensions from one on.
    Last(usize),
    /// None: expressions compute it.
    Composite,
}

impl Form {
    fn new(norm: &Norm, view: &View, scale: &Tensor) -> Form {
        let rank = scale.ndim();
        match norm.mode {
            // The operator refuses channels of one element, which have no unbiased variance.
            NormMode::BatchNorm if norm.phase == NormPhase::Inference || view.count() < 2.0 => {
                Form::Composite
            }
            NormMode::BatchNorm => Form::Channels,
            NormMode::InstanceNorm | NormMode::GroupNorm => Form::Groups(view.x[1]),
            NormMode::AdaLayerNorm => Form::Composite,
            NormMode::LayerNorm | NormMode::RmsNorm => {
                let first = rank - view.axes.len();
                match view.axes.first() {
                    Some(&axis) if axis as usize == first => Form::Last(first),
                    _ => Form::Composite,
                }
            }
        }
    }
}

/// Returns the sizes that group norm takes: examples, channels, elements of a channel.
fn group_sizes(x: &Tensor) -> [i64; 3] {
    let shape = sizes(x);
    [shape[0], shape[1], shape[2..].iter().product()]
}

fn optional(tensor: Option<&Tensor>) -> ValueRef<'_> {
    tensor.map_or(ValueRef::None, ValueRef::Tensor)
}

/// Calls the operator of a normalization, if there is one.
fn operator(
    node: &Node<'_>,
    norm: &Norm,
    form: &Form,
    (x, scale, bias): (&Tensor, &Tensor, Option<&Tensor>),
) -> Result<Option<Results>> {
    let calls = node.calls();
    let epsilon = node.number(Port::Epsilon)?.unwrap_or(0.0).into();
    let flat = |x: &Tensor| calls.reshape(x, &[-1]);
    let (ports, results): (&[Port], _) = match form {
        Form::Composite => return Ok(None),
        Form::Channels => {
            let (scale, bias) = (flat(scale)?, bias.map(flat).transpose()?);
            let affine = [x.into(), (&scale).into(), optional(bias.as_ref())];
            let (mean, variance) =
                (node.find(Port::RunningMean)?, node.find(Port::RunningVariance)?);
            let (Some(mean), Some(variance)) = (&mean, &variance) else {
                let args = affine.into_iter().chain([true.into(), 0.0.into(), epsilon]);
                let args: Vec<ValueRef<'_>> = args.collect();
                let name = "aten::_native_batch_norm_legit.no_stats";
                let results = calls.several(name, &args)?;
                return Ok(Some(zipped(&[Port::Y, Port::Mean, Port::InvVariance], results)));
            };
            let (mean, variance) = (flat(mean)?, flat(variance)?);
            let momentum = node.number(Port::Momentum)?.unwrap_or(0.0).into();
            let rest = [(&mean).into(), (&variance).into(), true.into(), momentum, epsilon];
            let args: Vec<ValueRef<'_>> = affine.into_iter().chain(rest).collect();
            let ports: &[Port] = &[
                Port::Y,
                Port::Mean,
                Port::InvVariance,
                Port::NextRunningMean,
                Port::NextRunningVariance,
            ];
            (ports, calls.several("aten::_native_batch_norm_legit_functional", &args)?)
        }
        Form::Groups(groups) => {
            let (scale, bias) = (flat(scale)?, bias.map(flat).transpose()?);
            let [n, c, len] = group_sizes(x);
            let args = [
                x.into(),
                (&scale).into(),
                optional(bias.as_ref()),
                n.into(),
                c.into(),
                len.into(),
                (*groups).into(),
                epsilon,
            ];
            let ports: &[Port] = &[Port::Y, Port::Mean, Port::InvVariance];
            (ports, calls.several("aten::native_group_norm", &args)?)
        }
        Form::Last(first) => {
            let shape = &sizes(x)[*first..];
            let last = |x: &Tensor| calls.reshape(x, shape);
            let (scale, bias) = (last(scale)?, bias.map(last).transpose()?);
            if norm.mode == NormMode::RmsNorm {
                let args = [x.into(), shape.into(), (&scale).into(), epsilon];
                let mut results = zipped(
                    &[Port::Y, Port::InvVariance],
                    calls.several("aten::_fused_rms_norm", &args)?,
                );
                if let (Some(bias), Some(first)) = (&bias, results.first_mut()) {
                    first.1 = calls.map("y, bias: y + bias", &[&first.1, bias], &[])?;
                }
                return Ok(Some(results));
            }
            let args = [x.into(), shape.into(), (&scale).into(), optional(bias.as_ref()), epsilon];
            let ports: &[Port] = &[Port::Y, Port::Mean, Port::InvVariance];
            (ports, calls.several("aten::native_layer_norm", &args)?)
        }
    };
    Ok(Some(zipped(ports, results)))
}

fn zipped(ports: &[Port], results: Vec<Option<Tensor>>) -> Results {
    let pairs = ports.iter().copied().zip(results);
    pairs.filter_map(|(port, result)| Some((port, result?))).collect()
}

/// Calls the operator of a normalization's gradients, if there is one.
fn gradients(
    node: &Node<'_>,
    norm: &Norm,
    form: &Form,
    (x, dy, scale): (&Tensor, &Tensor, &Tensor),
) -> Result<Option<Results>> {
    let calls = node.calls();
    // Statistics of halves are float32.
    let wide = if node.dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let inv = node.read_as(Port::InvVariance, wide)?;
    let mean = node.find_as(Port::Mean, wide)?;
    let all = [ValueRef::Bool(true); 3];
    let flat = |x: &Tensor| calls.reshape(x, &[-1]);
    let (ports, results): (&[Port], _) = match (form, mean) {
        (Form::Channels, Some(mean)) => {
            let (scale, mean, inv) = (flat(scale)?, flat(&mean)?, flat(&inv)?);
            let args = [
                dy.into(),
                x.into(),
                (&scale).into(),
                ValueRef::None,
                ValueRef::None,
                (&mean).into(),
                (&inv).into(),
                true.into(),
                0.0.into(),
                ValueRef::Refs(&all),
            ];
            let ports: &[Port] = &[Port::Dx, Port::Dscale, Port::Dbias];
            (ports, calls.several("aten::native_batch_norm_backward", &args)?)
        }
        (Form::Groups(groups), Some(mean)) => {
            let [n, c, len] = group_sizes(x);
            let statistic = |x: &Tensor| calls.reshape(x, &[n, *groups]);
            let (scale, mean, inv) = (flat(scale)?, statistic(&mean)?, statistic(&inv)?);
            let args = [
                dy.into(),
                x.into(),
                (&mean).into(),
                (&inv).into(),
                (&scale).into(),
                n.into(),
                c.into(),
                len.into(),
                (*groups).into(),
                ValueRef::Refs(&all),
            ];
            let ports: &[Port] = &[Port::Dx, Port::Dscale, Port::Dbias];
            (ports, calls.several("aten::native_group_norm_backward", &args)?)
        }
        (Form::Last(first), Some(mean)) if norm.mode == NormMode::LayerNorm => {
            let shape = &sizes(x)[*first..];
            let scale = calls.reshape(scale, shape)?;
            let args = [
                dy.into(),
                x.into(),
                shape.into(),
                (&mean).into(),
                (&inv).into(),
                (&scale).into(),
                // The bias isn't read: its gradient is of its shape.
                (&scale).into(),
                ValueRef::Refs(&all),
            ];
            let ports: &[Port] = &[Port::Dx, Port::Dscale, Port::Dbias];
            (ports, calls.several("aten::native_layer_norm_backward", &args)?)
        }
        (Form::Last(first), None) => {
            let shape = &sizes(x)[*first..];
            let weight = calls.reshape(scale, shape)?;
            let mask = ValueRef::Refs(&all[..2]);
            let args = [dy.into(), x.into(), shape.into(), (&inv).into(), (&weight).into(), mask];
            let results = calls.several("aten::_fused_rms_norm_backward", &args)?;
            let mut results = zipped(&[Port::Dx, Port::Dscale], results);
            if node.wants(Port::Dbias) {
                results.push((Port::Dbias, calls.sum_to(dy, &sizes(scale))?));
            }
            return Ok(Some(results));
        }
        _ => return Ok(None),
    };
    Ok(Some(zipped(ports, results)))
}

const SCALED: &str = "x, mean, inv, scale: (x - mean) * inv * scale";
const SCALED_WITH_BIAS: &str = "x, mean, inv, scale, bias: (x - mean) * inv * scale + bias";

pub(super) fn forward(node: &Node<'_>, norm: &Norm) -> Result<Results> {
    let calls = node.calls();
    let (x, scale) = (node.read(Port::X)?, node.read(Port::Scale)?);
    let view = View::new(norm, &x, &scale);
    let given = node.find(Port::Bias)?;
    let form = Form::new(norm, &view, &scale);
    if let Some(results) = operator(node, norm, &form, (&x, &scale, given.as_ref()))? {
        return Ok(results);
    }
    let (x, scale) = (calls.reshape(&x, &view.x)?, view.scale(calls, &scale)?);
    let bias = given.map(|bias| view.scale(calls, &bias)).transpose()?;
    let mut results = Vec::new();
    let (mean, inv) = if norm.mode == NormMode::BatchNorm && norm.phase == NormPhase::Inference {
        (node.read(Port::Mean)?, node.read(Port::InvVariance)?)
    } else {
        let epsilon = Scalar::Float(node.number(Port::Epsilon)?.unwrap_or(0.0));
        let centred = norm.mode != NormMode::RmsNorm;
        let mean = match centred {
            true => calls.reduce("mean", &x, &view.axes)?,
            false => calls.full(&vec![1; view.x.len()], 0.0, node.dtype)?,
        };
        let squares = calls.map("x, m: (x - m) * (x - m)", &[&x, &mean], &[])?;
        let variance = calls.reduce("mean", &squares, &view.axes)?;
        let inv = calls.map("v; epsilon: rsqrt(v + epsilon)", &[&variance], &[epsilon])?;
        if centred && node.wants(Port::Mean) {
            results.push((Port::Mean, mean.clone()));
        }
        if node.wants(Port::InvVariance) {
            results.push((Port::InvVariance, inv.clone()));
        }
        let momentum = node.number(Port::Momentum)?.map(Scalar::Float);
        let count = view.count();
        let unbiased = Scalar::Float(count / (count - 1.0).max(1.0));
        for (next, old, new, factor) in [
            (Port::NextRunningMean, Port::RunningMean, &mean, Scalar::Float(1.0)),
            (Port::NextRunningVariance, Port::RunningVariance, &variance, unbiased),
        ] {
            if let (true, Some(momentum), Some(old)) = (node.wants(next), momentum, node.find(old)?)
            {
                let text = "old, new; m, f: (1.0 - m) * old + m * (f * new)";
                results.push((next, calls.map(text, &[&old, new], &[momentum, factor])?));
            }
        }
        (mean, inv)
    };
    let y = match &bias {
        Some(bias) => calls.map(SCALED_WITH_BIAS, &[&x, &mean, &inv, &scale, bias], &[])?,
        None => calls.map(SCALED, &[&x, &mean, &inv, &scale], &[])?,
    };
    results.push((Port::Y, y));
    Ok(results)
}

pub(super) fn backward(node: &Node<'_>, norm: &Norm) -> Result<Results> {
    let calls = node.calls();
    let (x, dy, scale) = (node.read(Port::X)?, node.read(Port::Dy)?, node.read(Port::Scale)?);
    let view = View::new(norm, &x, &scale);
    let form = Form::new(norm, &view, &scale);
    if let Some(results) = gradients(node, norm, &form, (&x, &dy, &scale))? {
        return Ok(results);
    }
    let (x, dy) = (calls.reshape(&x, &view.x)?, calls.reshape(&dy, &view.x)?);
    let scale = view.scale(calls, &scale)?;
    let inv = view.statistic(calls, &node.read(Port::InvVariance)?)?;
    let mean = match node.find(Port::Mean)? {
        Some(mean) => view.statistic(calls, &mean)?,
        None => calls.full(&vec![1; view.x.len()], 0.0, node.dtype)?,
    };
    let normal = calls.map("x, mean, inv: (x - mean) * inv", &[&x, &mean, &inv], &[])?;
    let scaled = calls.map("dy, scale: dy * scale", &[&dy, &scale], &[])?;
    let along = calls.map("g, n: g * n", &[&scaled, &normal], &[])?;
    let along = calls.reduce("mean", &along, &view.axes)?;
    let level = match norm.mode {
        NormMode::RmsNorm => calls.full(&vec![1; view.x.len()], 0.0, node.dtype)?,
        _ => calls.reduce("mean", &scaled, &view.axes)?,
    };
    let text = "g, n, inv, level, along: inv * (g - level - n * along)";
    let dx = calls.map(text, &[&scaled, &normal, &inv, &level, &along], &[])?;
    let product = calls.map("dy, n: dy * n", &[&dy, &normal], &[])?;
    let mut results = vec![(Port::Dx, dx), (Port::Dscale, calls.sum_to(&product, &view.scale)?)];
    if node.wants(Port::Dbias) {
        results.push((Port::Dbias, calls.sum_to(&dy, &view.scale)?));
    }
    Ok(results)
}
