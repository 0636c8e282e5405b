//! The attributes of operations that aren't pointwise.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Float;

use super::PointwiseMode;

/// The order in which a convolution reads its filter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConvolutionMode {
    /// In the order of its elements: a cross-correlation, the convolution of neural networks.
    #[default]
    CrossCorrelation,
    /// Reversed in each dimension of space: the convolution of signal processing.
    Convolution,
}

/// The attributes of convolutions. Each list has an entry for each dimension of space.
///
/// The number of groups is the number of channels of the input divided by that of the filter. The
/// output becomes `alpha` times the convolution plus `beta` times its previous elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Convolution {
    /// The number of zeros before the input.
    pub pre_padding: Vec<i64>,
    /// The number of zeros behind the input.
    pub post_padding: Vec<i64>,
    /// The distance in the input between the windows of neighbouring outputs.
    pub stride: Vec<i64>,
    /// The distance in the input between the elements that neighbours in the filter multiply.
    pub dilation: Vec<i64>,
    /// The order in which the filter is read.
    #[serde(default)]
    pub mode: ConvolutionMode,
    /// The factor of the result.
    #[serde(default = "one")]
    pub alpha: Float,
    /// The factor of the output's previous elements.
    #[serde(default = "zero")]
    pub beta: Float,
}

fn one() -> Float {
    Float(1.0)
}

fn zero() -> Float {
    Float(0.0)
}

impl Convolution {
    /// Makes the attributes of a convolution with these dimensions of space, without padding.
    pub fn new(space: usize) -> Convolution {
        Convolution {
            pre_padding: vec![0; space],
            post_padding: vec![0; space],
            stride: vec![1; space],
            dilation: vec![1; space],
            mode: ConvolutionMode::CrossCorrelation,
            alpha: one(),
            beta: zero(),
        }
    }
}

/// A fraction of 0 or more. In JSON it is an integer, or a list of numerator and denominator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "Ratio", into = "Ratio")]
pub struct Fraction {
    /// The numerator.
    pub numerator: i64,
    /// The denominator.
    pub denominator: i64,
}

#[derive(Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "a fraction is an integer, or a numerator and a denominator in a list"
)]
enum Ratio {
    Whole(i64),
    Parts(i64, i64),
}

impl From<Ratio> for Fraction {
    fn from(ratio: Ratio) -> Fraction {
        match ratio {
            Ratio::Whole(numerator) => Fraction { numerator, denominator: 1 },
            Ratio::Parts(numerator, denominator) => Fraction { numerator, denominator },
        }
    }
}

impl From<Fraction> for Ratio {
    fn from(fraction: Fraction) -> Ratio {
        match fraction.denominator {
            1 => Ratio::Whole(fraction.numerator),
            denominator => Ratio::Parts(fraction.numerator, denominator),
        }
    }
}

impl From<i64> for Fraction {
    fn from(numerator: i64) -> Fraction {
        Fraction { numerator, denominator: 1 }
    }
}

impl fmt::Display for Fraction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.denominator {
            1 => write!(f, "{}", self.numerator),
            denominator => write!(f, "{}/{denominator}", self.numerator),
        }
    }
}

/// How a resampling computes an output from the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResampleMode {
    /// The greatest element of a window, and optionally its index in the window.
    Maxpool,
    /// The mean of a window, in which padding counts as zeros.
    AvgpoolIncludePadding,
    /// The mean of a window's elements without its padding.
    AvgpoolExcludePadding,
    /// Linear interpolation between neighbours in each dimension.
    Bilinear,
    /// The nearest element.
    Nearest,
}

/// The elements that are read outside of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PaddingMode {
    /// Zeros.
    Zero,
    /// Minus infinity, which is never a maximum.
    NegInf,
    /// The nearest element of the input.
    EdgeValue,
}

/// The attributes of pooling and interpolation. Each list has an entry for each dimension of space.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resample {
    /// How an output is computed.
    pub mode: ResampleMode,
    /// The elements that are read outside of the input.
    pub padding_mode: PaddingMode,
    /// The sizes of a window.
    pub window: Vec<i64>,
    /// The distances between windows.
    pub stride: Vec<Fraction>,
    /// The number of elements of padding before the input.
    pub pre_padding: Vec<Fraction>,
    /// The number of elements of padding behind the input.
    pub post_padding: Vec<Fraction>,
}

/// The elements that share a mean and a variance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(clippy::enum_variant_names, reason = "the names of cuDNN")]
pub enum NormMode {
    /// The elements of a channel, of all images.
    BatchNorm,
    /// The elements along the dimensions in which `scale` isn't of size 1.
    LayerNorm,
    /// The elements of one channel of one image.
    InstanceNorm,
    /// The elements of one group of channels of one image.
    GroupNorm,
    /// The elements of layer norm, divided by the root of their mean square, without a mean.
    RmsNorm,
    /// The elements of layer norm, with a scale and bias for each example.
    AdaLayerNorm,
}

impl NormMode {
    /// Returns its name in the builder.
    pub const fn name(self) -> &'static str {
        match self {
            NormMode::BatchNorm => "batchnorm",
            NormMode::LayerNorm => "layernorm",
            NormMode::InstanceNorm => "instancenorm",
            NormMode::GroupNorm => "groupnorm",
            NormMode::RmsNorm => "rmsnorm",
            NormMode::AdaLayerNorm => "adalayernorm",
        }
    }

    /// Returns the name of its gradients in the builder.
    pub const fn backward_name(self) -> &'static str {
        match self {
            NormMode::BatchNorm => "batchnorm_backward",
            NormMode::LayerNorm => "layernorm_backward",
            NormMode::InstanceNorm => "instancenorm_backward",
            NormMode::GroupNorm => "groupnorm_backward",
            NormMode::RmsNorm => "rmsnorm_backward",
            NormMode::AdaLayerNorm => "adalayernorm_backward",
        }
    }
}

/// The source of a normalization's statistics, and whether they are outputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormPhase {
    /// They are computed and aren't outputs; batch norm reads them as inputs.
    Inference,
    /// They are computed and are outputs.
    #[default]
    Training,
    /// As training; the plan may use kernels that keep a channel's elements in shared memory.
    PersistentTraining,
}

/// The attributes of normalizations and their gradients.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Norm {
    /// The elements that share statistics.
    pub mode: NormMode,
    /// The source of the statistics. A gradient has that of its forward, which is one of training.
    #[serde(default)]
    pub phase: NormPhase,
    /// The number of groups of channels: required for group norm, and refused for others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<i64>,
}

impl Norm {
    /// Makes the attributes of a normalization in training.
    pub fn new(mode: NormMode) -> Norm {
        Norm { mode, phase: NormPhase::Training, groups: None }
    }
}

/// The function that a reduction computes of the elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReductionMode {
    /// The sum.
    Add,
    /// The product.
    Mul,
    /// The product of the elements that aren't 0.
    MulNoZeros,
    /// The minimum.
    Min,
    /// The maximum.
    Max,
    /// The greatest absolute value.
    Amax,
    /// The mean.
    Avg,
    /// The sum of absolute values.
    Norm1,
    /// The square root of the sum of squares.
    Norm2,
}

/// The attributes of a reduction.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reduction {
    /// The function.
    pub mode: ReductionMode,
}

/// The attributes of a transpose.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Transpose {
    /// The input's dimension for each of the output's.
    pub permutation: Vec<i64>,
}

/// The attributes of a slice. Each list has an entry for each dimension.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slice {
    /// The first index.
    pub start: Vec<i64>,
    /// The end of the indices, exclusive.
    pub limit: Vec<i64>,
    /// The step between indices, 1 or more.
    pub stride: Vec<i64>,
}

/// The attributes of a concatenation.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Concatenate {
    /// The dimension along which the inputs are joined.
    pub axis: i64,
    /// The index of the input whose memory is a part of the output's, so that it needs no copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_place_index: Option<i64>,
}

/// The attributes of a diagonal band mask.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiagonalBandMask {
    /// An element is kept where this comparison of its row with its column holds: `cmp_ge` is a
    /// causal mask.
    pub comparison: PointwiseMode,
}

/// The corner of the scores that the diagonal of a mask goes through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Alignment {
    /// That of the first query and the first key.
    #[default]
    TopLeft,
    /// That of the last query and the last key.
    BottomRight,
}

/// The attributes of attention.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attention {
    /// The number of keys behind the diagonal that a query sees, 0 or more; `None` for all. 0 is a
    /// causal mask.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub right_bound: Option<i64>,
    /// The number of keys up to the diagonal that a query sees, the key on the diagonal included, 1
    /// or more; `None` for all. As in cuDNN, a bound of `n` hides key `j` from query `i` where
    /// `j <= i - n`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_bound: Option<i64>,
    /// The corner that the diagonal goes through.
    #[serde(default)]
    pub alignment: Alignment,
    /// The probability that a weight is dropped; `None` without dropout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropout: Option<Float>,
}
