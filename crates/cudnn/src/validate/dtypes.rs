//! Proofs of dtypes: which ones each operation reads, writes and computes in.

use keyfold_core::{Error, ErrorKind, Result};

use crate::DataType::{BF16, Bool, E4M3, E5M2, F16, F32, F64, I8, I32, I64, U8};
use crate::{DataType, OpSpec, Operation, PointwiseMode, Port, ResampleMode, TensorSpec};

/// Floats that are computed in.
const WIDE: &[DataType] = &[F32, F64, F16, BF16];
const FLOATS: &[DataType] = &[F32, F64, F16, BF16, E4M3, E5M2];
/// Sums, means, scales of 8-bit floats.
const STATISTICS: &[DataType] = &[F32, F64];
const INDICES: &[DataType] = &[I32, I64];
const SMALL_INDICES: &[DataType] = &[I8, U8, I32, I64];
const TRUTH: &[DataType] = &[Bool, I8, U8, I32, I64];
/// Numbers that are multiplied and summed up.
const FACTORS: &[DataType] = &[F32, F64, F16, BF16, E4M3, E5M2, I8, U8, I32];
const NUMBERS: &[DataType] = &[F32, F64, F16, BF16, E4M3, E5M2, I8, U8, I32, I64];
const ALL: &[DataType] = &DataType::ALL;

/// Returns the dtypes that an operation takes at a port.
fn taken(operation: &Operation, port: Port, is_output: bool) -> &'static [DataType] {
    use Port::*;
    match port {
        SeqLenQ | SeqLenKv | MOverride | NOverride | KOverride | FirstTokenOffset | Seed
        | Offset => return INDICES,
        Epsilon | Momentum | AttnScale => return WIDE,
        Mean | InvVariance | RunningMean | RunningVariance | NextRunningMean
        | NextRunningVariance | Stats | Sum | SqSum => return STATISTICS,
        DescaleQ | DescaleK | DescaleV | DescaleS | ScaleS | ScaleO | AmaxS | AmaxO => {
            return STATISTICS;
        }
        Index => return SMALL_INDICES,
        _ => {}
    }
    match operation {
        Operation::Pointwise(pointwise) if !is_output => match (pointwise.mode, port) {
            (PointwiseMode::BinarySelect, T) => TRUTH,
            (
                PointwiseMode::LogicalAnd | PointwiseMode::LogicalOr | PointwiseMode::LogicalNot,
                _,
            ) => TRUTH,
            _ => ALL,
        },
        Operation::ConvFprop(_) | Operation::Matmul | Operation::GroupedMatmul => {
            if is_output {
                NUMBERS
            } else {
                FACTORS
            }
        }
        Operation::Resample(_) => FACTORS,
        Operation::Reduction(_) => NUMBERS,
        Operation::Pointwise(_)
        | Operation::Reshape
        | Operation::Transpose(_)
        | Operation::Slice(_)
        | Operation::Concatenate(_) => ALL,
        Operation::ConvDgrad(_)
        | Operation::ConvWgrad(_)
        | Operation::ResampleBackward(_)
        | Operation::Norm(_)
        | Operation::NormBackward(_)
        | Operation::Softmax
        | Operation::DiagonalBandMask(_)
        | Operation::Sdpa(_)
        | Operation::SdpaBackward(_)
        | Operation::GenStats => FLOATS,
    }
}

/// Returns the dtypes that an operation computes in.
fn computed(operation: &Operation) -> &'static [DataType] {
    match operation {
        // In bool, a comparison would compare truth values.
        Operation::Pointwise(pointwise)
            if matches!(
                pointwise.mode,
                PointwiseMode::LogicalAnd | PointwiseMode::LogicalOr | PointwiseMode::LogicalNot
            ) =>
        {
            &[F32, F64, F16, BF16, I32, I64, Bool]
        }
        Operation::Pointwise(_) | Operation::Reduction(_) => &[F32, F64, F16, BF16, I32, I64],
        Operation::ConvFprop(_) | Operation::Matmul | Operation::GroupedMatmul => {
            &[F32, F64, F16, BF16, I32]
        }
        _ => WIDE,
    }
}

fn error(message: String) -> Error {
    Error::new(ErrorKind::DType, message)
}

fn names(list: &[DataType]) -> String {
    list.iter().map(|dtype| dtype.name()).collect::<Vec<_>>().join(", ")
}

/// Proves the dtypes of an operation whose shapes are proven.
pub(super) fn check(
    op: &OpSpec,
    inputs: &[(Port, &TensorSpec)],
    outputs: &[(Port, &TensorSpec)],
) -> Result<()> {
    for (list, is_output) in [(inputs, false), (outputs, true)] {
        for (port, tensor) in list {
            let dtype = dtype_of(tensor);
            let taken = taken(&op.operation, *port, is_output);
            if !taken.contains(&dtype) {
                return Err(error(format!(
                    "its {port} (tensor {}) is {dtype}: it takes {}",
                    tensor.label(),
                    names(taken)
                )));
            }
        }
    }
    match (op.operation.computes(), op.compute) {
        (true, Some(compute)) => check_compute(op, compute, inputs)?,
        (true, None) => {
            let dtypes = names(computed(&op.operation));
            return Err(error(format!(
                "it has no compute dtype: set it, or the graph's, to one of {dtypes}"
            )));
        }
        (false, Some(compute)) => {
            return Err(error(format!(
                "its compute dtype is {compute}, but it moves elements only: leave it out"
            )));
        }
        (false, None) => {}
    }
    match &op.operation {
        Operation::Transpose(_) | Operation::Slice(_) | Operation::Concatenate(_) => {
            check_same(inputs, outputs)
        }
        Operation::Resample(resample) | Operation::ResampleBackward(resample)
            if resample.mode == ResampleMode::Maxpool =>
        {
            check_index(&resample.window, inputs.iter().chain(outputs))
        }
        Operation::Sdpa(_) => check_scales(inputs, outputs),
        _ => Ok(()),
    }
}

fn dtype_of(tensor: &TensorSpec) -> DataType {
    tensor.dtype.expect("tensors without dtype are refused first")
}

fn check_compute(op: &OpSpec, compute: DataType, inputs: &[(Port, &TensorSpec)]) -> Result<()> {
    let dtypes = computed(&op.operation);
    if !dtypes.contains(&compute) {
        let dtypes = names(dtypes);
        return Err(error(format!("its compute dtype is {compute}: it computes in {dtypes}")));
    }
    let float = inputs.iter().find(|(_, tensor)| dtype_of(tensor).is_float());
    match float {
        Some((port, tensor)) if !compute.is_float() => Err(error(format!(
            "its compute dtype is {compute}, but its {port} (tensor {}) is {}: floats are computed in \
             floats",
            tensor.label(),
            dtype_of(tensor)
        ))),
        _ => Ok(()),
    }
}

/// Proves that what is moved stays of one dtype.
fn check_same(inputs: &[(Port, &TensorSpec)], outputs: &[(Port, &TensorSpec)]) -> Result<()> {
    let (first_port, first) = inputs[0];
    let mut others = inputs.iter().chain(outputs);
    match others.find(|(_, tensor)| tensor.dtype != first.dtype) {
        None => Ok(()),
        Some((port, tensor)) => Err(error(format!(
            "its {port} (tensor {}) is {}, but its {first_port} (tensor {}) is {}: elements are moved as \
             they are, and identity converts them",
            tensor.label(),
            dtype_of(tensor),
            first.label(),
            dtype_of(first)
        ))),
    }
}

/// Proves that an index of a window is counted in its dtype.
fn check_index<'a>(
    window: &[i64],
    mut tensors: impl Iterator<Item = &'a (Port, &'a TensorSpec)>,
) -> Result<()> {
    let Some((_, index)) = tensors.find(|entry| entry.0 == Port::Index) else { return Ok(()) };
    let most: i64 = match dtype_of(index) {
        I8 => 1 << 7,
        U8 => 1 << 8,
        I32 => 1 << 31,
        _ => i64::MAX,
    };
    let elements = window.iter().try_fold(1_i64, |product, &size| product.checked_mul(size));
    if elements.is_some_and(|elements| elements <= most) {
        return Ok(());
    }
    Err(error(format!(
        "its index (tensor {}) is {}, which counts {most} elements, but the window {window:?} has more",
        index.label(),
        dtype_of(index)
    )))
}

/// Proves that scales of 8-bit floats belong to such.
fn check_scales(inputs: &[(Port, &TensorSpec)], outputs: &[(Port, &TensorSpec)]) -> Result<()> {
    let pairs = [
        (Port::DescaleQ, Port::Q),
        (Port::DescaleK, Port::K),
        (Port::DescaleV, Port::V),
        (Port::DescaleS, Port::Q),
        (Port::ScaleS, Port::Q),
        (Port::ScaleO, Port::Q),
    ];
    for (scale, of) in pairs {
        let find = |port: Port| inputs.iter().chain(outputs).find(|entry| entry.0 == port);
        let (Some(_), Some((_, tensor))) = (find(scale), find(of)) else { continue };
        if !dtype_of(tensor).is_f8() {
            return Err(error(format!(
                "{scale} is given, but its {of} (tensor {}) is {}: 8-bit floats alone are scaled",
                tensor.label(),
                dtype_of(tensor)
            )));
        }
    }
    Ok(())
}
