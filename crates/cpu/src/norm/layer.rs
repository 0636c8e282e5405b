//! Layer norm and RMS norm: lanes of the last dimensions.

use keyfold_backend::NormParams;
use keyfold_core::Result;
use keyfold_tensor::Tensor;

use super::backward::Backward;
use super::forward::Forward;
use super::layout::Layout;
use super::{Computed, Optional, affine, dense, dense_as, vector, write_weight_gradients};

/// The lanes of the last `params.dims` dimensions.
fn layout(params: &NormParams, x: &Tensor) -> Layout {
    let outer = x.ndim() - params.dims as usize;
    let (lanes, len) = x.shape().split_at(outer);
    Layout::rows(lanes.iter().product(), len.iter().product(), 1)
}

/// Normalizes the lanes; the statistics are their means, where these are subtracted, and their reciprocal
/// deviations.
fn normalize<A: Computed>(
    params: &NormParams,
    inputs: &[&Tensor],
    y: &Tensor,
    (means, deviations): (Option<&Tensor>, &Tensor),
) -> Result<()> {
    let x = dense(inputs[0])?;
    let layout = layout(params, &x);
    let mut optional = Optional(&inputs[1..]);
    let weight = optional.next(params.has(NormParams::WEIGHT));
    let affine = affine::<A>(weight, optional.next(params.has(NormParams::BIAS)))?;
    if layout.elements() == 0 {
        return Ok(());
    }
    let affine = affine.as_ref().map(|(w, b)| (&w[..], &b[..]));
    let (x, y, centered) = (A::source(&x)?, A::target(y)?, means.is_some());
    let statistics = (means.map(A::target).transpose()?, A::target(deviations)?);
    Forward { layout, x, y, affine, eps: params.eps, centered }.run_into(statistics)
}

/// `layer_norm`
pub(super) fn forward<A: Computed>(
    params: &NormParams,
    inputs: &[&Tensor],
    outputs: &[&Tensor],
) -> Result<()> {
    normalize::<A>(params, inputs, outputs[0], (Some(outputs[1]), outputs[2]))
}

/// `rms_norm`
pub(super) fn rms_forward<A: Computed>(
    params: &NormParams,
    inputs: &[&Tensor],
    outputs: &[&Tensor],
) -> Result<()> {
    normalize::<A>(params, inputs, outputs[0], (None, outputs[1]))
}

/// Computes the wanted gradients.
fn gradients<A: Computed>(
    params: &NormParams,
    inputs: [&Tensor; 2],
    statistics: &[(A, A)],
    weight: Option<&Tensor>,
    outputs: &[&Tensor],
    centered: bool,
) -> Result<()> {
    let x = dense(inputs[1])?;
    let grad = dense_as::<A>(inputs[0], &x)?;
    let layout = layout(params, &x);
    let wanted = params.has(NormParams::GRAD_WEIGHT) || params.has(NormParams::GRAD_BIAS);
    let weight = weight.map_or_else(|| Ok(vec![A::ONE; layout.len]), vector::<A>)?;
    let mut outputs = Optional(outputs);
    let dx = outputs.next(params.has(NormParams::GRAD_INPUT));
    let gradients = match layout.elements() {
        0 => (vec![0.0; layout.len], vec![0.0; layout.len]),
        _ => {
            let backward = Backward {
                layout,
                grad: A::source(&grad)?,
                x: A::source(&x)?,
                dx: dx.map(A::target).transpose()?,
                weight: Some(&weight),
                statistics,
                centered,
                constant: false,
            };
            backward.run(wanted)?
        }
    };
    write_weight_gradients::<A>(params, outputs, gradients)
}

/// `layer_norm_backward`
pub(super) fn backward<A: Computed>(
    params: &NormParams,
    inputs: &[&Tensor],
    outputs: &[&Tensor],
) -> Result<()> {
    let (means, deviations) = (vector::<A>(inputs[2])?, vector::<A>(inputs[3])?);
    let statistics: Vec<(A, A)> = means.into_iter().zip(deviations).collect();
    let weight = Optional(&inputs[4..]).next(params.has(NormParams::WEIGHT));
    gradients(params, [inputs[0], inputs[1]], &statistics, weight, outputs, true)
}

/// `rms_norm_backward`
pub(super) fn rms_backward<A: Computed>(
    params: &NormParams,
    inputs: &[&Tensor],
    outputs: &[&Tensor],
) -> Result<()> {
    let deviations = vector::<A>(inputs[2])?;
    let statistics: Vec<(A, A)> = deviations.into_iter().map(|own| (A::ZERO, own)).collect();
    let weight = Optional(&inputs[3..]).next(params.has(NormParams::WEIGHT));
    gradients(params, [inputs[0], inputs[1]], &statistics, weight, outputs, false)
}
