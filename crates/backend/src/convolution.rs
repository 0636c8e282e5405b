//! Convolutions and their gradients.

use crate::{Activation, Group, Groups, Kernels, Operation, Params};

/// The parameters of the group `convolution`. The sizes are those of the tensors.
///
/// Tensors have one to three dimensions of space behind images and channels, and all are of one floating
/// dtype; halves are added up in float32 and rounded once. Inputs have any strides, outputs are contiguous.
/// Below, `o` are the channels of a convolution's output, `c` those of its input:
///
/// | name | inputs | output | result |
/// | --- | --- | --- | --- |
/// | `convolution` | `[n, c, size...]`, `[o, c / groups, kernel...]`, if `has_bias` `[o]` | `[n, o, size...]` | `activation(sum + bias)` |
/// | `transposed` | `[n, o, size...]`, `[o, c / groups, kernel...]`, if `has_bias` `[c]` | `[n, c, size...]` | its transpose: the gradient of its input; with a bias, a transposed convolution |
/// | `weight_gradient` | `[n, c, size...]`, gradient `[n, o, size...]` | `[o, c / groups, kernel...]` | the gradient of its weight |
/// | `bias_gradient` | gradient `[n, o, size...]` | `[o]` | the sums over images and places |
///
/// Place `p` of a convolution's output sees through place `k` of the kernel the input at
/// `p * stride - padding + k * dilation`, and 0 where that is outside; channels are divided into groups
/// in order. The zeros behind the input follow from the sizes. Sizes may be 0.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct ConvolutionParams {
    /// The kernel's operation.
    pub op: &'static Operation,
    /// Dimensions of space, from 1 to 3; the lists below have as many numbers.
    pub rank: u32,
    /// The function of each element of a convolution's output.
    pub activation: Activation,
    /// Whether there is a bias.
    pub has_bias: bool,
    /// Groups of channels.
    pub groups: u64,
    /// The distance of what neighbours in the output see.
    pub stride: [u64; 3],
    /// Zeros before the input.
    pub padding: [u64; 3],
    /// The distance of what neighbours in the kernel see.
    pub dilation: [u64; 3],
}

impl Params for ConvolutionParams {
    const GROUP: Group = Group::Convolution;

    fn group<'a>(groups: &Groups<'a>) -> Option<&'a dyn Kernels<Self>> {
        groups.convolution
    }

    fn operation(&self) -> &'static Operation {
        self.op
    }

    fn fields(&self) -> Vec<(&'static str, crate::Field)> {
        let all = |numbers: [u64; 3]| numbers.map(|number| number as i64).into();
        vec![
            ("rank", self.rank.into()),
            ("activation", self.activation.name().into()),
            ("has_bias", self.has_bias.into()),
            ("groups", (self.groups as i64).into()),
            ("stride", all(self.stride)),
            ("padding", all(self.padding)),
            ("dilation", all(self.dilation)),
        ]
    }
}
