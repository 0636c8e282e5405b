//! The attributes of operations that aren't pointwise.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Float;

use super::PointwiseMode;

/// Whether a convolution's kernel is read forwards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConvolutionMode {
    /// Forwards, as networks do.
    #[default]
    CrossCorrelation,
    /// Backwards in each dimension of space, as in signal processing.
    Convolution,
}

/// The attributes of convolutions: a number for each dimension of space in each list.
///
/// The number of groups is that of the input's channels over the filter's. The result is
/// `alpha` times the convolution, plus `beta` times what the output held before.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Convolution {
    /// Zeros before the input.
    pub pre_padding: Vec<i64>,
    /// Zeros behind the input.
    pub post_padding: Vec<i64>,
    /// The distance of what neighbours in the output see.
    pub stride: Vec<i64>,
    /// The distance of what neighbours in the filter see.
    pub dilation: Vec<i64>,
    /// Whether the filter is read forwards.
    #[serde(default)]
    pub mode: ConvolutionMode,
    /// The factor of the result.
    #[serde(default = "one")]
    pub alpha: Float,
    /// The factor of what the output held before.
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

/// A positive number or 0 as a fraction; in JSON an integer, or two in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "Ratio", into = "Ratio")]
pub struct Fraction {
    /// The numerator.
    pub numerator: i64,
    /// The denominator.
    pub denominator: i64,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
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

/// What a window's elements become.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResampleMode {
    /// The greatest one, and its index in the window where that is asked for.
    Maxpool,
    /// Their mean, padding counted.
    AvgpoolIncludePadding,
    /// Their mean, padding left out.
    AvgpoolExcludePadding,
    /// Interpolated between neighbours.
    Bilinear,
    /// The nearest one.
    Nearest,
}

/// What is behind the edges of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PaddingMode {
    /// Zeros.
    Zero,
    /// What is less than all numbers.
    NegInf,
    /// The element at the edge.
    EdgeValue,
}

/// The attributes of pooling: a number for each dimension of space in each list.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resample {
    /// What a window's elements become.
    pub mode: ResampleMode,
    /// What is behind the edges.
    pub padding_mode: PaddingMode,
    /// The sizes of a window.
    pub window: Vec<i64>,
    /// The distances of windows.
    pub stride: Vec<Fraction>,
    /// Elements before the input.
    pub pre_padding: Vec<Fraction>,
    /// Elements behind the input.
    pub post_padding: Vec<Fraction>,
}

/// The elements that are normalized together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(clippy::enum_variant_names, reason = "the names of cuDNN")]
pub enum NormMode {
    /// Those of a channel.
    BatchNorm,
    /// Those of the dimensions in which `scale` isn't 1.
    LayerNorm,
    /// Those of an image's channel.
    InstanceNorm,
    /// Those of an image's group of channels.
    GroupNorm,
    /// As layer norm, divided by the root of the mean square.
    RmsNorm,
    /// As layer norm, with a scale and bias for each example.
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

/// Where a normalization's statistics come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormPhase {
    /// Computed and used; batch norm is given them.
    Inference,
    /// Computed, used and returned.
    #[default]
    Training,
    /// As training, by kernels that keep a channel's elements on the chip.
    PersistentTraining,
}

/// The attributes of normalizations and their gradients.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Norm {
    /// The elements that are normalized together.
    pub mode: NormMode,
    /// Where the statistics come from; a gradient's is that of its forward.
    #[serde(default)]
    pub phase: NormPhase,
    /// The number of groups of channels; needed for group norm alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<i64>,
}

impl Norm {
    /// Makes the attributes of a normalization in training.
    pub fn new(mode: NormMode) -> Norm {
        Norm { mode, phase: NormPhase::Training, groups: None }
    }
}

/// What a reduction makes of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReductionMode {
    /// Their sum.
    Add,
    /// Their product.
    Mul,
    /// The product of those that aren't 0.
    MulNoZeros,
    /// The least one.
    Min,
    /// The greatest one.
    Max,
    /// The greatest absolute value.
    Amax,
    /// Their mean.
    Avg,
    /// The sum of absolute values.
    Norm1,
    /// The root of the sum of squares.
    Norm2,
}

/// The attributes of a reduction.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reduction {
    /// What becomes of the elements.
    pub mode: ReductionMode,
}

/// The attributes of a transpose.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Transpose {
    /// The input's dimension for each of the output's.
    pub permutation: Vec<i64>,
}

/// The attributes of a slice: a number for each dimension in each list.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slice {
    /// The first index.
    pub start: Vec<i64>,
    /// The index behind the last one.
    pub limit: Vec<i64>,
    /// The distance of indices, 1 or more.
    pub stride: Vec<i64>,
}

/// The attributes of a concatenation.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Concatenate {
    /// The dimension along which the inputs follow each other.
    pub axis: i64,
    /// The input whose memory is part of the output's already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_place_index: Option<i64>,
}

/// The attributes of a band mask.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiagonalBandMask {
    /// The comparison of an element's row with its column where the element stays: `cmp_ge` is causal.
    pub comparison: PointwiseMode,
}

/// Which corner of the scores the diagonal of a mask goes through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Alignment {
    /// The first query and the first key.
    #[default]
    TopLeft,
    /// The last query and the last key.
    BottomRight,
}

/// The attributes of attention.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attention {
    /// How many keys a query sees behind the diagonal; `None` for all. 0 is causal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub right_bound: Option<i64>,
    /// How many keys, less one, a query sees up to the diagonal; `None` for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_bound: Option<i64>,
    /// Where the diagonal is.
    #[serde(default)]
    pub alignment: Alignment,
    /// The probability that a weight is dropped; `None` without dropout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropout: Option<Float>,
}
