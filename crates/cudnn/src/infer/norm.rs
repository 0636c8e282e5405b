//! Outputs of normalizations and their gradients.

use keyfold_core::Result;

use super::{
    Inferred, Inputs, check_dims, check_ones, check_rank, like, shape_error, show, statistics,
    typed, value_error,
};
use crate::{Norm, NormMode, NormPhase, Port, TensorSpec};

/// Proves the attributes and `scale`, and returns the dimensions of the statistics.
fn statistics_dims(norm: &Norm, inputs: Inputs<'_>) -> Result<Vec<i64>> {
    let (x, scale) = (inputs.get(Port::X)?, inputs.get(Port::Scale)?);
    check_rank(Port::X, x, 2..=5)?;
    check_rank(Port::Scale, scale, x.rank()..=x.rank())?;
    let mut channels = vec![1; x.rank()];
    channels[1] = x.dims[1];
    let groups = check_groups(norm, x)?;
    match norm.mode {
        NormMode::BatchNorm | NormMode::InstanceNorm | NormMode::GroupNorm => {
            check_dims(Port::Scale, scale, &channels, "a number for each channel of x")?;
            channels[1] = groups.unwrap_or(channels[1]);
            channels[0] = if norm.mode == NormMode::BatchNorm { 1 } else { x.dims[0] };
            Ok(channels)
        }
        NormMode::LayerNorm | NormMode::RmsNorm | NormMode::AdaLayerNorm => {
            let ada = norm.mode == NormMode::AdaLayerNorm;
            let fits = |(&size, &from): (&i64, &i64)| size == 1 || size == from;
            let mut dims = x.dims.clone();
            if ada && scale.dims[0] != x.dims[0] {
                return Err(shape_error(format!(
                    "{} must begin with {}, a scale for each example of {}",
                    show(Port::Scale, scale),
                    x.dims[0],
                    show(Port::X, x)
                )));
            }
            if !scale.dims.iter().zip(&x.dims).all(fits) {
                return Err(shape_error(format!(
                    "{} doesn't fit {}: each size must be that of x, where elements are normalized \
                     together, or 1",
                    show(Port::Scale, scale),
                    show(Port::X, x)
                )));
            }
            for (size, &scaled) in dims.iter_mut().zip(&scale.dims).skip(usize::from(ada)) {
                *size = if scaled == 1 { *size } else { 1 };
            }
            Ok(dims)
        }
    }
}

fn check_groups(norm: &Norm, x: &TensorSpec) -> Result<Option<i64>> {
    let channels = x.dims[1];
    match (norm.mode, norm.groups) {
        (NormMode::GroupNorm, None) => Err(value_error(format!(
            "group norm has no number of groups: give one that divides the {channels} channels of {}",
            show(Port::X, x)
        ))),
        (NormMode::GroupNorm, Some(groups)) if groups < 1 || channels % groups != 0 => {
            Err(value_error(format!(
                "{groups} groups must divide the {channels} channels of {}",
                show(Port::X, x)
            )))
        }
        (NormMode::GroupNorm, groups) => Ok(groups),
        (_, None) => Ok(None),
        (mode, Some(groups)) => Err(value_error(format!(
            "{} has no groups, got {groups}: group norm alone has",
            mode.name()
        ))),
    }
}

pub(super) fn forward(norm: &Norm, inputs: Inputs<'_>) -> Result<Vec<(Port, Inferred)>> {
    let x = inputs.get(Port::X)?;
    let dims = statistics_dims(norm, inputs)?;
    if let Some(bias) = inputs.find(Port::Bias) {
        let scale = inputs.get(Port::Scale)?;
        check_dims(Port::Bias, bias, &scale.dims, "the dimensions of scale")?;
    }
    check_ones(inputs, &[Port::Epsilon, Port::Momentum])?;
    let running = [Port::Momentum, Port::RunningMean, Port::RunningVariance];
    let missing = running.into_iter().find(|&port| inputs.find(port).is_none());
    let given = running.into_iter().find(|&port| inputs.find(port).is_some());
    if let (Some(missing), Some(given)) = (missing, given) {
        return Err(value_error(format!(
            "{given} is given without {missing}: running statistics need momentum, running_mean and \
             running_variance"
        )));
    }
    for port in [Port::Mean, Port::InvVariance, Port::RunningMean, Port::RunningVariance] {
        if let Some(tensor) = inputs.find(port) {
            check_dims(port, tensor, &dims, "a number for each channel of x")?;
        }
    }
    let mut outputs = vec![(Port::Y, like(&x.dims, x)?)];
    let statistic = typed(&dims, x, statistics(x))?;
    if norm.phase != NormPhase::Inference {
        if norm.mode != NormMode::RmsNorm {
            outputs.push((Port::Mean, statistic.clone()));
        }
        outputs.push((Port::InvVariance, statistic.clone()));
    }
    if missing.is_none() {
        outputs.push((Port::NextRunningMean, statistic.clone()));
        outputs.push((Port::NextRunningVariance, statistic));
    }
    Ok(outputs)
}

pub(super) fn backward(norm: &Norm, inputs: Inputs<'_>) -> Result<Vec<(Port, Inferred)>> {
    let (x, dy, scale) = (inputs.get(Port::X)?, inputs.get(Port::Dy)?, inputs.get(Port::Scale)?);
    let dims = statistics_dims(norm, inputs)?;
    if norm.phase == NormPhase::Inference {
        return Err(value_error(format!(
            "{} is of the phase inference: gradients are those of training, whose statistics it reads",
            norm.mode.backward_name()
        )));
    }
    check_dims(Port::Dy, dy, &x.dims, "the dimensions of x")?;
    for port in [Port::Mean, Port::InvVariance] {
        if let Some(tensor) = inputs.find(port) {
            check_dims(port, tensor, &dims, "a number for each set that is normalized together")?;
        }
    }
    check_ones(inputs, &[Port::Epsilon])?;
    let gradient = like(&scale.dims, scale)?;
    Ok(vec![
        (Port::Dx, like(&x.dims, x)?),
        (Port::Dscale, gradient.clone()),
        (Port::Dbias, gradient),
    ])
}
