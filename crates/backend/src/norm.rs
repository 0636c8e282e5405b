//! Normalizations and their gradients, and the gradients of softmax.

use crate::{Group, Groups, Kernels, Operation, Params};

/// The parameters of the group `norm`.
///
/// Inputs are of any strides, outputs contiguous. All dtypes are floats: one dtype for `x`, `grad`, `y` and
/// `dx`, and that or a wider one for each of the others. Halves are computed in float32.
///
/// | name | inputs | outputs |
/// | --- | --- | --- |
/// | `layer_norm` | `x`, `weight`?, `bias`? | `y`, `mean`, `rstd` |
/// | `layer_norm_backward` | `grad`, `x`, `mean`, `rstd`, `weight`? | `dx`?, `dweight`?, `dbias`? |
/// | `rms_norm` | `x`, `weight`? | `y`, `rstd` |
/// | `rms_norm_backward` | `grad`, `x`, `rstd`, `weight`? | `dx`?, `dweight`? |
/// | `group_norm` | `x`, `weight`?, `bias`? | `y`, `mean`, `rstd` |
/// | `group_norm_backward` | `grad`, `x`, `mean`, `rstd`, `weight`? | `dx`?, `dweight`?, `dbias`? |
/// | `batch_norm` | `x`, `weight`?, `bias`?, `old_mean`?, `old_variance`? | `y`, `mean`, `rstd`, `new_mean`?, `new_variance`? |
/// | `batch_norm_backward` | `grad`, `x`, `mean`, `rstd`, `weight`? | `dx`?, `dweight`?, `dbias`? |
/// | `batch_norm_inference` | `x`, `mean`, `variance`, `weight`?, `bias`? | `y` |
/// | `batch_norm_inference_backward` | `grad`, `x`, `mean`, `variance`, `weight`? | `dx`?, `dweight`?, `dbias`? |
/// | `softmax_backward` | `grad`, `output` | `dx` |
/// | `log_softmax_backward` | `grad`, `output` | `dx` |
///
/// A lane is the elements that share a mean and a variance, which is their mean squared distance from the mean:
///
/// - `layer_norm`, `rms_norm`: those along the last [`dims`](NormParams::dims) dimensions, whose shape
///   `weight` and `bias` have. `mean` and `rstd` have one element for each lane, in any shape.
/// - `group_norm`: those of each of the [`groups`](NormParams::groups) groups of channels of each example, in
///   `x` of shape `[examples, channels, ...]`. `weight` and `bias` have one element for each channel.
/// - `batch_norm`: those of each channel, in `x` of that shape. All but `x` and `y` have one element for each
///   channel.
///
/// `y` is `(x - mean) rstd weight + bias`, where `rstd` is `1 / sqrt(variance + eps)`; RMS norm takes 0 as the
/// mean. `new_mean` is `old_mean + momentum (mean - old_mean)`, and so is `new_variance`, of the unbiased
/// variance, which is divided by the number of elements less one. Gradients are those of `grad . y`, where
/// mean and variance are functions of `x`, except in `batch_norm_inference_backward`.
///
/// `softmax_backward` is `s (grad - sum(grad s))` along [`axis`](NormParams::axis) of `output` `s`, and
/// `log_softmax_backward` is `grad - exp(l) sum(grad)` of `output` `l`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct NormParams {
    /// The kernel's operation.
    pub op: &'static Operation,
    /// The number that is added to variances.
    pub eps: f64,
    /// The share of the new statistics of a running mean and variance.
    pub momentum: f64,
    /// The number of normalized dimensions, the last ones.
    pub dims: u32,
    /// The number of groups of channels.
    pub groups: u32,
    /// The dimension of softmax.
    pub axis: u32,
    /// The optional tensors that are there: bits of [`NormParams::WEIGHT`] and so on.
    pub tensors: u32,
}

impl NormParams {
    /// The input `weight` is there.
    pub const WEIGHT: u32 = 1;
    /// The input `bias` is there.
    pub const BIAS: u32 = 2;
    /// The inputs and outputs of running statistics are there.
    pub const RUNNING: u32 = 4;
    /// The output `dx` is wanted.
    pub const GRAD_INPUT: u32 = 8;
    /// The output `dweight` is wanted.
    pub const GRAD_WEIGHT: u32 = 16;
    /// The output `dbias` is wanted.
    pub const GRAD_BIAS: u32 = 32;

    /// Makes the parameters of an operation without optional tensors.
    pub const fn new(op: &'static Operation) -> NormParams {
        NormParams { op, eps: 0.0, momentum: 0.0, dims: 0, groups: 0, axis: 0, tensors: 0 }
    }

    /// Returns whether all of these optional tensors are there.
    pub const fn has(&self, tensors: u32) -> bool {
        self.tensors & tensors == tensors
    }
}

impl Params for NormParams {
    const GROUP: Group = Group::Norm;

    fn group<'a>(groups: &Groups<'a>) -> Option<&'a dyn Kernels<Self>> {
        groups.norm
    }

    fn operation(&self) -> &'static Operation {
        self.op
    }

    fn fields(&self) -> Vec<(&'static str, crate::Field)> {
        vec![
            ("eps", self.eps.into()),
            ("momentum", self.momentum.into()),
            ("dims", self.dims.into()),
            ("groups", self.groups.into()),
            ("axis", self.axis.into()),
            ("tensors", self.tensors.into()),
        ]
    }
}
