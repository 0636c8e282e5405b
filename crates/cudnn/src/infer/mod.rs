//! Inference of shapes: the dimensions, strides and dtype of what an operation writes.

mod attention;
mod elements;
mod movement;
mod norm;
mod space;

use keyfold_core::{Error, ErrorKind, Result};

use crate::{DataType, Layout, Operation, Port, TensorSpec};

/// An output as its operation's inputs and attributes determine it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Inferred {
    /// Its dimensions; a proposal where [`is_free`] says so.
    pub dims: Vec<i64>,
    /// Its strides: packed, in the order of the main input's.
    pub strides: Vec<i64>,
    /// Its dtype, where the operation leaves no choice.
    pub dtype: Option<DataType>,
}

/// The tensors that an operation reads.
#[derive(Clone, Copy)]
pub(crate) struct Inputs<'a>(pub &'a [(Port, &'a TensorSpec)]);

impl<'a> Inputs<'a> {
    /// Returns the tensor at a port, if there is one.
    fn find(self, port: Port) -> Option<&'a TensorSpec> {
        self.0.iter().find(|entry| entry.0 == port).map(|entry| entry.1)
    }

    /// Returns the tensor at a port that the operation must read.
    fn get(self, port: Port) -> Result<&'a TensorSpec> {
        self.find(port).ok_or_else(|| {
            Error::new(ErrorKind::Value, format!("it reads no tensor at its port {port}"))
        })
    }
}

/// Returns an output for each wanted port: what the operation writes, of its inputs and attributes.
///
/// # Errors
/// [`ErrorKind::Shape`], [`ErrorKind::Value`], [`ErrorKind::Index`]: inputs or attributes that don't fit.
/// The message names port, tensor and numbers; the caller names the operation.
pub(crate) fn outputs(
    operation: &Operation,
    inputs: &[(Port, &TensorSpec)],
    wanted: &[Port],
) -> Result<Vec<(Port, Inferred)>> {
    let inputs = Inputs(inputs);
    for (port, tensor) in inputs.0 {
        check_sizes(*port, tensor)?;
    }
    let all = match operation {
        Operation::ConvFprop(conv) => space::conv_fprop(conv, inputs),
        Operation::ConvDgrad(conv) => space::conv_dgrad(conv, inputs),
        Operation::ConvWgrad(conv) => space::conv_wgrad(conv, inputs),
        Operation::Resample(resample) => space::resample(resample, inputs),
        Operation::ResampleBackward(resample) => space::resample_backward(resample, inputs),
        Operation::Pointwise(pointwise) => elements::pointwise(pointwise, inputs),
        Operation::Matmul => elements::matmul(inputs),
        Operation::GroupedMatmul => elements::grouped_matmul(inputs),
        Operation::Reduction(_) => elements::reduction(inputs),
        Operation::GenStats => elements::gen_stats(inputs),
        Operation::Softmax => attention::softmax(inputs),
        Operation::DiagonalBandMask(mask) => attention::diagonal_band_mask(mask, inputs),
        Operation::Sdpa(attention) => attention::sdpa(attention, inputs),
        Operation::SdpaBackward(attention) => attention::sdpa_backward(attention, inputs),
        Operation::Norm(norm) => norm::forward(norm, inputs),
        Operation::NormBackward(norm) => norm::backward(norm, inputs),
        Operation::Reshape => movement::reshape(inputs),
        Operation::Transpose(transpose) => movement::transpose(transpose, inputs),
        Operation::Slice(slice) => movement::slice(slice, inputs),
        Operation::Concatenate(concatenate) => movement::concatenate(concatenate, inputs),
    }?;
    let pick = |port: &Port| {
        let found = all.iter().find(|entry| entry.0 == *port);
        let (_, inferred) = found.ok_or_else(|| {
            let has = all.iter().map(|entry| entry.0.to_string()).collect::<Vec<_>>().join(", ");
            let message = format!("it has no output {port}: with its attributes it has {has}");
            Error::new(ErrorKind::Value, message)
        })?;
        Ok((*port, inferred.clone()))
    };
    wanted.iter().map(pick).collect()
}

/// Returns whether an output's dimensions aren't determined by the inputs: [`outputs`] proposes some, and
/// [`accepts`] says whether others are right.
pub(crate) fn is_free(operation: &Operation, port: Port) -> bool {
    matches!(
        (operation, port),
        (Operation::ConvDgrad(_) | Operation::ResampleBackward(_), Port::Dx)
            | (Operation::ConvWgrad(_), Port::Dw)
            | (Operation::Reduction(_) | Operation::Reshape, Port::Y)
    )
}

/// Proves the dimensions of an output that is free.
///
/// # Errors
/// [`ErrorKind::Shape`] where the operation can't write them.
pub(crate) fn accepts(
    operation: &Operation,
    inputs: &[(Port, &TensorSpec)],
    output: &TensorSpec,
) -> Result<()> {
    let inputs = Inputs(inputs);
    match operation {
        Operation::ConvDgrad(conv) => space::accepts_dgrad(conv, inputs, output),
        Operation::ConvWgrad(conv) => space::accepts_wgrad(conv, inputs, output),
        Operation::ResampleBackward(resample) => space::accepts_pool(resample, inputs, output),
        Operation::Reduction(_) => elements::accepts_reduction(inputs, output),
        Operation::Reshape => movement::accepts_reshape(inputs, output),
        _ => Ok(()),
    }
}

/// Returns an output packed in the order of another tensor's strides.
fn like(dims: &[i64], tensor: &TensorSpec) -> Result<Inferred> {
    Ok(Inferred { strides: strides_like(dims, tensor)?, dims: dims.to_vec(), dtype: None })
}

/// Returns such an output of a dtype.
fn typed(dims: &[i64], tensor: &TensorSpec, dtype: DataType) -> Result<Inferred> {
    Ok(Inferred { dtype: Some(dtype), ..like(dims, tensor)? })
}

/// Returns the dtype of statistics: float32, and float64 where the input is.
fn statistics(x: &TensorSpec) -> DataType {
    if x.dtype == Some(DataType::F64) { DataType::F64 } else { DataType::F32 }
}

/// Returns packed strides in the order of a tensor's: channels last stay last. Dimensions of size 1
/// and of stride 0 say nothing of the order, and stand where row-major order has them.
pub(crate) fn strides_like(dims: &[i64], tensor: &TensorSpec) -> Result<Vec<i64>> {
    let packed = Layout::Packed.strides(dims)?;
    let same_rank = tensor.rank() == dims.len() && tensor.strides.len() == dims.len();
    if !same_rank || Layout::Packed.strides(&tensor.dims)? == tensor.strides {
        return Ok(packed);
    }
    if dims.len() >= 3 && Layout::ChannelsLast.strides(&tensor.dims)? == tensor.strides {
        return Layout::ChannelsLast.strides(dims);
    }
    // From the innermost dimension outwards; the last of several with one stride is the inner one.
    let decides = |axis: usize| tensor.dims[axis] != 1 && tensor.strides[axis] != 0;
    let mut sorted: Vec<usize> = (0..dims.len()).filter(|&axis| decides(axis)).collect();
    sorted.sort_by_key(|&axis| (tensor.strides[axis], usize::MAX - axis));
    let mut sorted = sorted.into_iter();
    let mut strides = vec![0; dims.len()];
    let mut stride = 1_i64;
    for axis in (0..dims.len()).rev() {
        let axis = if decides(axis) { sorted.next().unwrap_or(axis) } else { axis };
        strides[axis] = stride;
        // Packing in row-major order has shown that the product doesn't overflow.
        stride *= dims[axis].max(1);
    }
    Ok(strides)
}

/// Returns the strides of a tensor that gets other dimensions: packed in the order that it has, and
/// 0 where it is broadcast.
pub(crate) fn resized_strides(dims: &[i64], tensor: &TensorSpec) -> Result<Vec<i64>> {
    let broadcast: Vec<usize> = match tensor.strides.len() == dims.len() {
        true => (0..dims.len()).filter(|&axis| tensor.strides[axis] == 0).collect(),
        false => Vec::new(),
    };
    // Overflow is that of the whole tensor, as without broadcasting.
    Layout::Packed.strides(dims)?;
    let mut stored = dims.to_vec();
    broadcast.iter().for_each(|&axis| stored[axis] = 1);
    let mut strides = strides_like(&stored, tensor)?;
    broadcast.iter().for_each(|&axis| strides[axis] = 0);
    Ok(strides)
}

fn shape_error(message: String) -> Error {
    Error::new(ErrorKind::Shape, message)
}

fn value_error(message: String) -> Error {
    Error::new(ErrorKind::Value, message)
}

/// Returns how errors call a tensor at a port.
fn show(port: Port, tensor: &TensorSpec) -> String {
    format!("{port} (tensor {}, {:?})", tensor.label(), tensor.dims)
}

/// Proves that a tensor has positive sizes whose product is a number.
pub(crate) fn check_sizes(port: Port, tensor: &TensorSpec) -> Result<()> {
    if let Some(axis) = tensor.dims.iter().position(|&size| size < 1) {
        return Err(shape_error(format!(
            "dimension {axis} of {} is {}: sizes are 1 or more",
            show(port, tensor),
            tensor.dims[axis]
        )));
    }
    match tensor.numel() {
        Some(_) => Ok(()),
        None => Err(shape_error(format!(
            "the number of elements of {} overflows 64 bits",
            show(port, tensor)
        ))),
    }
}

/// Proves that a tensor has one element.
fn check_one(port: Port, tensor: &TensorSpec) -> Result<()> {
    if tensor.numel() == Some(1) {
        return Ok(());
    }
    Err(shape_error(format!("{} is one number: all its sizes must be 1", show(port, tensor))))
}

/// Proves that optional tensors have one element each.
fn check_ones(inputs: Inputs<'_>, ports: &[Port]) -> Result<()> {
    for &port in ports {
        if let Some(tensor) = inputs.find(port) {
            check_one(port, tensor)?;
        }
    }
    Ok(())
}

/// Proves that a tensor has dimensions.
fn check_dims(port: Port, tensor: &TensorSpec, want: &[i64], why: &str) -> Result<()> {
    if tensor.dims == want {
        return Ok(());
    }
    Err(shape_error(format!("{} must be {want:?}, {why}", show(port, tensor))))
}

/// Proves that a tensor has so many dimensions.
fn check_rank(
    port: Port,
    tensor: &TensorSpec,
    ranks: std::ops::RangeInclusive<usize>,
) -> Result<()> {
    if ranks.contains(&tensor.rank()) {
        return Ok(());
    }
    let (least, most) = (ranks.start(), ranks.end());
    let want = if least == most { least.to_string() } else { format!("{least} to {most}") };
    let rank = tensor.rank();
    Err(shape_error(format!("{} has {rank} dimensions: it needs {want}", show(port, tensor))))
}

/// Proves that a list of attributes has a number for each of so many dimensions.
fn check_list(name: &str, length: usize, want: usize, of: &str) -> Result<()> {
    if length == want {
        return Ok(());
    }
    Err(value_error(format!("{name} has {length} numbers: it needs {want}, one for each {of}")))
}
