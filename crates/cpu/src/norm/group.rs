//! Group norm: the channels of each group of each example.

use keyfold_backend::NormParams;
use keyfold_core::Result;
use keyfold_tensor::Tensor;

use super::backward::Backward;
use super::forward::Forward;
use super::layout::Layout;
use super::{Computed, Optional, affine, dense, dense_as, vector, write_weight_gradients};

/// The shortest channel that is computed with one weight for all its elements. Weights of shorter ones are
/// repeated for each element, so that loops are over a whole group: once for all of [`MANY`] examples and more, and
/// for channels of fewer than [`SHORT`] elements always.
const LONG: usize = 128;
const SHORT: usize = 32;
const MANY: usize = 32;

/// The sizes of a tensor of shape `[examples, channels, ...]`.
struct Sizes {
    examples: usize,
    groups: usize,
    /// Channels of a group.
    channels: usize,
    /// Elements of a channel.
    len: usize,
}

impl Sizes {
    fn new(params: &NormParams, x: &Tensor) -> Sizes {
        let (examples, all, len) = (x.shape()[0], x.shape()[1], x.shape()[2..].iter().product());
        let groups = params.groups as usize;
        Sizes { examples, groups, channels: all / groups, len }
    }

    /// Whether channels' weights are repeated for each element.
    fn repeats(&self) -> bool {
        self.len < if self.examples < MANY { SHORT } else { LONG }
    }

    fn layout(&self) -> Layout {
        let lanes = self.examples * self.groups;
        match self.repeats() {
            true => Layout::rows(lanes, self.channels * self.len, self.groups),
            false => Layout::groups(lanes, self.groups, self.channels, self.len),
        }
    }

    /// Repeats each channel's number for its elements, if the layout has weights per element.
    fn repeated<A: Computed>(&self, items: Vec<A>) -> Vec<A> {
        match self.repeats() {
            true => items.iter().flat_map(|item| std::iter::repeat_n(*item, self.len)).collect(),
            false => items,
        }
    }

    /// Adds up the numbers of each channel's elements, as [`Sizes::repeated`] repeats them.
    fn summed(&self, items: Vec<f64>) -> Vec<f64> {
        match self.repeats() && !items.is_empty() {
            true => items.chunks_exact(self.len).map(|all| all.iter().sum()).collect(),
            false => items,
        }
    }
}

/// `group_norm`
pub(super) fn forward<A: Computed>(
    params: &NormParams,
    inputs: &[&Tensor],
    outputs: &[&Tensor],
) -> Result<()> {
    let x = dense(inputs[0])?;
    let sizes = Sizes::new(params, &x);
    let layout = sizes.layout();
    if layout.elements() == 0 {
        return Ok(());
    }
    let mut optional = Optional(&inputs[1..]);
    let weight = optional.next(params.has(NormParams::WEIGHT));
    let affine = affine::<A>(weight, optional.next(params.has(NormParams::BIAS)))?;
    let affine = affine.map(|(w, b)| (sizes.repeated(w), sizes.repeated(b)));
    let affine = affine.as_ref().map(|(w, b)| (&w[..], &b[..]));
    let (x, y) = (A::source(&x)?, A::target(outputs[0])?);
    let statistics = (Some(A::target(outputs[1])?), A::target(outputs[2])?);
    Forward { layout, x, y, affine, eps: params.eps, centered: true }.run_into(statistics)
}

/// `group_norm_backward`
pub(super) fn backward<A: Computed>(
    params: &NormParams,
    inputs: &[&Tensor],
    outputs: &[&Tensor],
) -> Result<()> {
    let x = dense(inputs[1])?;
    let grad = dense_as::<A>(inputs[0], &x)?;
    let sizes = Sizes::new(params, &x);
    let layout = sizes.layout();
    let (means, deviations) = (vector::<A>(inputs[2])?, vector::<A>(inputs[3])?);
    let statistics: Vec<(A, A)> = means.into_iter().zip(deviations).collect();
    let wanted = params.has(NormParams::GRAD_WEIGHT) || params.has(NormParams::GRAD_BIAS);
    let weight = match Optional(&inputs[4..]).next(params.has(NormParams::WEIGHT)) {
        Some(weight) => Some(sizes.repeated(vector::<A>(weight)?)),
        None => layout.per_element.then(|| vec![A::ONE; layout.weights()]),
    };
    let mut outputs = Optional(outputs);
    let dx = outputs.next(params.has(NormParams::GRAD_INPUT));
    let gradients = match layout.elements() {
        0 => {
            let zeros = vec![0.0; sizes.groups * sizes.channels];
            (zeros.clone(), zeros)
        }
        _ => {
            let backward = Backward {
                layout,
                grad: A::source(&grad)?,
                x: A::source(&x)?,
                dx: dx.map(A::target).transpose()?,
                weight: weight.as_deref(),
                statistics: &statistics,
                centered: true,
                constant: false,
            };
            let (dw, db) = backward.run(wanted)?;
            (sizes.summed(dw), sizes.summed(db))
        }
    };
    write_weight_gradients::<A>(params, outputs, gradients)
}
