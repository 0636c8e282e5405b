//! From a proven graph to libcudnn's descriptors: one function for each operation, which sets all that it needs.

mod attention;
mod codes;
mod convolution;
mod movement;
mod norm;
mod pointwise;
mod products;
mod resample;

use std::collections::HashMap;
use std::sync::Arc;

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_cudnn::{DataType, Number, OpSpec, Operation, Port, TensorSpec, Uid, ValidGraph};
use serde::{Deserialize, Serialize};

use crate::descriptor::{Draft, Finalized};
use crate::library::{CudnnError, Library};
use crate::names::{self as n, Attribute, Kind, OperationGraph, Tensor};

/// A number by value that the graph holds, or that lowering added: a run gives its address.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Constant {
    /// The tensor's number.
    pub uid: Uid,
    /// Its dtype.
    pub dtype: DataType,
    /// Its value.
    pub value: Number,
}

/// A graph as libcudnn's.
#[derive(Debug)]
pub struct Lowered {
    /// The finalized operation graph.
    pub graph: Finalized<OperationGraph>,
    /// The numbers by value that a run gives beside the caller's tensors.
    pub constants: Vec<Constant>,
}

/// Lowers a graph.
///
/// # Errors
/// [`ErrorKind::NotSupported`] for what no descriptor of libcudnn says, and for what it refuses, with the operation.
pub fn lower(library: &Arc<Library>, graph: &ValidGraph) -> Result<Lowered> {
    // The graph is proven: what libcudnn calls a wrong parameter is one that it doesn't support.
    descriptors(library, graph).map_err(|error| match error.kind() {
        ErrorKind::Value => not_supported(error.message()),
        _ => error,
    })
}

fn descriptors(library: &Arc<Library>, graph: &ValidGraph) -> Result<Lowered> {
    let mut lowering = Lowering::new(library, graph);
    let mut operations = Vec::new();
    for op in graph.operations() {
        let lowered = lowering
            .operation(op)
            .map_err(|error| error.at(&format!("operation {:?}", op.label())))?;
        operations.push(lowered);
    }
    let operations: Vec<&Finalized<n::Operation>> = operations.iter().collect();
    let constants = lowering.constants;
    Ok(Lowered { graph: operation_graph(library, &operations)?, constants })
}

fn operation_graph(
    library: &Arc<Library>,
    operations: &[&Finalized<n::Operation>],
) -> Result<Finalized<OperationGraph>, CudnnError> {
    Draft::new(library, n::CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)?
        .descriptors(n::CUDNN_ATTR_OPERATIONGRAPH_OPS, operations)?
        .finalize()
}

/// The attribute of an operation for each of its ports.
type Ports = &'static [(Port, Attribute<Finalized<Tensor>>)];

/// A graph that is being lowered.
struct Lowering<'a> {
    library: &'a Arc<Library>,
    graph: &'a ValidGraph,
    tensors: HashMap<Uid, Finalized<Tensor>>,
    constants: Vec<Constant>,
    /// The number of the next tensor that lowering adds.
    next: Uid,
    /// The most dimensions that a tensor of the graph has.
    rank: usize,
}

/// The tensors that lowering adds to a graph have numbers from here on.
pub(crate) const ADDED: Uid = 1 << 40;

impl<'a> Lowering<'a> {
    fn new(library: &'a Arc<Library>, graph: &'a ValidGraph) -> Lowering<'a> {
        let rank = graph.spec().tensors.iter().map(|tensor| tensor.dims.len()).max().unwrap_or(0);
        let (tensors, constants) = (HashMap::new(), Vec::new());
        Lowering { library, graph, tensors, constants, next: ADDED, rank }
    }

    fn operation(&mut self, op: &OpSpec) -> Result<Finalized<n::Operation>> {
        for (_, uid) in op.inputs.iter().chain(&op.outputs) {
            self.add(*uid)?;
        }
        match &op.operation {
            Operation::ConvFprop(conv)
            | Operation::ConvDgrad(conv)
            | Operation::ConvWgrad(conv) => convolution::lower(self, op, conv),
            Operation::Pointwise(pointwise) => pointwise::lower(self, op, pointwise),
            Operation::Resample(resample) => resample::lower(self, op, resample, false),
            Operation::ResampleBackward(resample) => resample::lower(self, op, resample, true),
            Operation::Norm(norm) => norm::lower(self, op, norm),
            Operation::NormBackward(norm) => norm::lower_backward(self, op, norm),
            Operation::GenStats => norm::lower_statistics(self, op),
            Operation::Matmul => products::matmul(self, op),
            Operation::GroupedMatmul => products::grouped(self, op),
            Operation::Reduction(reduction) => products::reduction(self, op, reduction),
            Operation::Reshape => movement::reshape(self, op),
            Operation::Transpose(transpose) => movement::transpose(self, op, transpose),
            Operation::Slice(slice) => movement::slice(self, op, slice),
            Operation::Concatenate(concatenate) => movement::concatenate(self, op, concatenate),
            Operation::Softmax => attention::softmax(self, op),
            Operation::DiagonalBandMask(mask) => attention::mask(self, op, mask),
            Operation::Sdpa(attention) => attention::forward(self, op, attention),
            Operation::SdpaBackward(_) => Err(not_supported(
                "libcudnn has no engine for attention's gradients as one operation: they are planned as a graph",
            )),
        }
    }

    /// Makes the descriptor of a tensor of the graph, once.
    fn add(&mut self, uid: Uid) -> Result<()> {
        if self.tensors.contains_key(&uid) {
            return Ok(());
        }
        let spec = self.graph.tensor(uid);
        if let (Some(value), Some(dtype)) = (spec.scalar, spec.dtype) {
            self.constants.push(Constant { uid, dtype, value });
        }
        let mut spec = spec.clone();
        if spec.by_value && spec.dims.len() < self.rank {
            // cuDNN broadcasts between tensors of one rank.
            (spec.dims, spec.strides) = (vec![1; self.rank], vec![1; self.rank]);
        }
        let made = tensor(self.library, &spec)
            .map_err(|error| Error::from(error).at(&format!("tensor {}", spec.label())))?;
        self.tensors.insert(uid, made);
        Ok(())
    }

    /// Adds a tensor that the graph hasn't, and returns its number.
    fn extra(&mut self, mut spec: TensorSpec) -> Result<Uid> {
        spec.uid = self.next;
        self.next += 1;
        if let (Some(value), Some(dtype)) = (spec.scalar, spec.dtype) {
            self.constants.push(Constant { uid: spec.uid, dtype, value });
        }
        self.tensors.insert(spec.uid, tensor(self.library, &spec)?);
        Ok(spec.uid)
    }

    /// Returns a tensor that was added.
    fn tensor(&self, uid: Uid) -> &Finalized<Tensor> {
        &self.tensors[&uid]
    }

    /// Begins an operation with its tensors. Ports that the table lacks are an error, since what they say would
    /// be lost.
    fn begin(
        &self,
        op: &OpSpec,
        kind: Kind<n::Operation>,
        ports: Ports,
    ) -> Result<Draft<n::Operation>> {
        let mut draft = Draft::new(self.library, kind)?;
        for (port, uid) in op.inputs.iter().chain(&op.outputs) {
            let Some((_, attribute)) = ports.iter().find(|entry| entry.0 == *port) else {
                return Err(not_supported(&format!("libcudnn's operation has no tensor {port}")));
            };
            draft = draft.descriptor(*attribute, self.tensor(*uid))?;
        }
        Ok(draft)
    }
}

fn not_supported(message: &str) -> Error {
    Error::new(ErrorKind::NotSupported, message.to_string())
}

/// Returns the dtype that an operation computes in, which the validator has seen to.
fn compute(op: &OpSpec) -> DataType {
    op.compute.unwrap_or(DataType::F32)
}

/// Makes the descriptor of a tensor, with all of its attributes.
fn tensor(library: &Arc<Library>, spec: &TensorSpec) -> Result<Finalized<Tensor>, CudnnError> {
    let dtype = spec.dtype.unwrap_or(DataType::F32);
    let mut draft = Draft::new(library, n::CUDNN_BACKEND_TENSOR_DESCRIPTOR)?
        .int(n::CUDNN_ATTR_TENSOR_UNIQUE_ID, spec.uid)?
        .choice(n::CUDNN_ATTR_TENSOR_DATA_TYPE, codes::dtype(dtype))?
        .ints(n::CUDNN_ATTR_TENSOR_DIMENSIONS, &spec.dims)?
        .ints(n::CUDNN_ATTR_TENSOR_STRIDES, &spec.strides)?
        .int(n::CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, spec.alignment)?;
    if spec.is_virtual {
        draft = draft.flag(n::CUDNN_ATTR_TENSOR_IS_VIRTUAL, true)?;
    }
    if spec.by_value {
        draft = draft.flag(n::CUDNN_ATTR_TENSOR_IS_BY_VALUE, true)?;
    }
    draft.finalize()
}
