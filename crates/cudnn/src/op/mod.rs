//! Operations of a graph: attributes, and which tensors they read and write.

mod attributes;
mod pointwise;
mod port;

pub use attributes::{
    Alignment, Attention, Concatenate, Convolution, ConvolutionMode, DiagonalBandMask, Fraction,
    Norm, NormMode, NormPhase, PaddingMode, Reduction, ReductionMode, Resample, ResampleMode,
    Slice, Transpose,
};
pub use pointwise::{Pointwise, PointwiseMode};
pub use port::{Count, Port, PortRule};

use keyfold_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::{DataType, Uid};

/// An operation with its attributes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// A convolution, `y` of `x` and `w`.
    ConvFprop(Convolution),
    /// The gradient of a convolution's input, `dx` of `dy` and `w`.
    ConvDgrad(Convolution),
    /// The gradient of a convolution's filter, `dw` of `x` and `dy`.
    ConvWgrad(Convolution),
    /// A function of elements, broadcast.
    Pointwise(Pointwise),
    /// Pooling over windows, or interpolation, `y` of `x`.
    Resample(Resample),
    /// The gradient of pooling, `dx` of `dy`.
    ResampleBackward(Resample),
    /// A normalization, `y` of `x`.
    Norm(Norm),
    /// The gradients of a normalization.
    NormBackward(Norm),
    /// A batched matrix product, `c` of `a` and `b`.
    Matmul,
    /// A reduction over the dimensions that are 1 in `y`.
    Reduction(Reduction),
    /// The same elements, in row-major order of dimensions, under other dimensions.
    Reshape,
    /// A permutation of the dimensions.
    Transpose(Transpose),
    /// A part of a tensor.
    Slice(Slice),
    /// Tensors one behind the other.
    Concatenate(Concatenate),
    /// Softmax along the last dimension; `stats` are the logarithms of the sums of exponentials.
    Softmax,
    /// `x` where a comparison of row and column index holds, else `b`.
    DiagonalBandMask(DiagonalBandMask),
    /// Scaled-dot-product attention.
    Sdpa(Attention),
    /// The gradients of scaled-dot-product attention.
    SdpaBackward(Attention),
    /// The sums, and the sums of squares, of each channel.
    GenStats,
    /// Products of consecutive rows with one matrix for each group of rows (a mixture of experts).
    GroupedMatmul,
}

impl Operation {
    /// Reads an operation from JSON, as graphs have it: `"matmul"`, `{"transpose": {"permutation": [1, 0]}}`.
    ///
    /// # Errors
    /// [`ErrorKind::Value`] with the place of what is wrong.
    pub fn from_json(text: &str) -> Result<Operation> {
        let wrong =
            |what: String| Error::new(ErrorKind::Value, format!("wrong attributes, {what}"));
        let json: serde_json::Value =
            serde_json::from_str(text).map_err(|error| wrong(format!("no JSON: {error}")))?;
        serde_path_to_error::deserialize(json)
            .map_err(|error| wrong(format!("at {}: {}", error.path(), error.inner())))
    }

    /// Returns its name, as in JSON and in the builder; the mode of a pointwise operation.
    pub fn name(&self) -> &'static str {
        match self {
            Operation::ConvFprop(_) => "conv_fprop",
            Operation::ConvDgrad(_) => "conv_dgrad",
            Operation::ConvWgrad(_) => "conv_wgrad",
            Operation::Pointwise(pointwise) => pointwise.mode.name(),
            Operation::Resample(_) => "resample",
            Operation::ResampleBackward(_) => "resample_backward",
            Operation::Norm(norm) => norm.mode.name(),
            Operation::NormBackward(norm) => norm.mode.backward_name(),
            Operation::Matmul => "matmul",
            Operation::Reduction(_) => "reduction",
            Operation::Reshape => "reshape",
            Operation::Transpose(_) => "transpose",
            Operation::Slice(_) => "slice",
            Operation::Concatenate(_) => "concatenate",
            Operation::Softmax => "softmax",
            Operation::DiagonalBandMask(_) => "diagonal_band_mask",
            Operation::Sdpa(_) => "sdpa",
            Operation::SdpaBackward(_) => "sdpa_backward",
            Operation::GenStats => "genstats",
            Operation::GroupedMatmul => "grouped_matmul",
        }
    }

    /// Returns whether it computes numbers, in a dtype of its own. A reshape moves them only.
    pub fn computes(&self) -> bool {
        !matches!(
            self,
            Operation::Reshape
                | Operation::Transpose(_)
                | Operation::Slice(_)
                | Operation::Concatenate(_)
        )
    }
}

/// An operation of a graph and the tensors that it reads and writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpSpec {
    /// Its name in errors and drawings; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// What it computes.
    pub operation: Operation,
    /// The dtype that it computes in; `None` for operations that move elements only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute: Option<DataType>,
    /// The tensors that it reads.
    #[serde(with = "port::json")]
    pub inputs: Vec<(Port, Uid)>,
    /// The tensors that it writes.
    #[serde(with = "port::json")]
    pub outputs: Vec<(Port, Uid)>,
}

impl OpSpec {
    /// Makes an operation that computes in float32.
    pub fn new(operation: Operation, inputs: &[(Port, Uid)], outputs: &[(Port, Uid)]) -> OpSpec {
        OpSpec {
            name: String::new(),
            compute: operation.computes().then_some(DataType::F32),
            operation,
            inputs: inputs.to_vec(),
            outputs: outputs.to_vec(),
        }
    }

    /// Returns the tensor at a port, the first one where there are several.
    pub fn input(&self, port: Port) -> Option<Uid> {
        find(&self.inputs, port)
    }

    /// Returns the tensor that it writes at a port.
    pub fn output(&self, port: Port) -> Option<Uid> {
        find(&self.outputs, port)
    }

    /// Returns the factor of the numbers that its output holds before, which a convolution adds to
    /// its result.
    pub(crate) fn beta(&self) -> f64 {
        match &self.operation {
            Operation::ConvFprop(conv)
            | Operation::ConvDgrad(conv)
            | Operation::ConvWgrad(conv) => conv.beta.0,
            _ => 0.0,
        }
    }

    /// Returns whether it reads the numbers that a tensor which it writes holds before.
    pub fn updates(&self, uid: Uid) -> bool {
        self.beta() != 0.0 && self.outputs.iter().any(|entry| entry.1 == uid)
    }

    /// Returns how errors and drawings call it: its name, or its operation.
    pub fn label(&self) -> &str {
        match self.name.as_str() {
            "" => self.operation.name(),
            name => name,
        }
    }
}

fn find(list: &[(Port, Uid)], port: Port) -> Option<Uid> {
    list.iter().find(|entry| entry.0 == port).map(|entry| entry.1)
}
