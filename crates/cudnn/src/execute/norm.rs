//! Normalizations and their gradients, all modes by one set of expressions.

use keyfold_core::{Result, Scalar};
use keyfold_tensor::Tensor;

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

const SCALED: &str = "x, mean, inv, scale: (x - mean) * inv * scale";
const SCALED_WITH_BIAS: &str = "x, mean, inv, scale, bias: (x - mean) * inv * scale + bias";

pub(super) fn forward(node: &Node<'_>, norm: &Norm) -> Result<Results> {
    let calls = node.calls();
    let (x, scale) = (node.read(Port::X)?, node.read(Port::Scale)?);
    let view = View::new(norm, &x, &scale);
    let (x, scale) = (calls.reshape(&x, &view.x)?, view.scale(calls, &scale)?);
    let bias = node.find(Port::Bias)?.map(|bias| view.scale(calls, &bias)).transpose()?;
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
