//! Reshapes, transposes, slices, concatenations.

use keyfold_core::Result;
use keyfold_cudnn::{Concatenate, OpSpec, Port, Slice, Transpose};

use super::{Lowering, Ports};
use crate::descriptor::{Draft, Finalized};
use crate::names as n;

const RESHAPE: Ports = &[
    (Port::X, n::CUDNN_ATTR_OPERATION_RESHAPE_XDESC),
    (Port::Y, n::CUDNN_ATTR_OPERATION_RESHAPE_YDESC),
];

const TRANSPOSE: Ports = &[(Port::X, n::TRANSPOSE_X), (Port::Y, n::TRANSPOSE_Y)];

const SLICE: Ports = &[(Port::X, n::SLICE_X), (Port::Y, n::SLICE_Y)];

pub(super) fn reshape(lowering: &Lowering<'_>, op: &OpSpec) -> Result<Finalized<n::Operation>> {
    Ok(lowering.begin(op, n::CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, RESHAPE)?.finalize()?)
}

pub(super) fn transpose(
    lowering: &Lowering<'_>,
    op: &OpSpec,
    transpose: &Transpose,
) -> Result<Finalized<n::Operation>> {
    // A result without memory whose strides are the input's is the same elements, which engines take as a reshape.
    if let (Some(x), Some(y)) = (op.input(Port::X), op.output(Port::Y)) {
        let (from, to) = (lowering.graph.tensor(x), lowering.graph.tensor(y));
        let strides = transpose
            .permutation
            .iter()
            .filter_map(|&axis| from.strides.get(usize::try_from(axis).ok()?));
        if to.is_virtual && strides.eq(to.strides.iter()) {
            return reshape(lowering, op);
        }
    }
    Ok(lowering
        .begin(op, n::OPERATION_TRANSPOSE, TRANSPOSE)?
        .ints(n::TRANSPOSE_PERMUTATION, &transpose.permutation)?
        .finalize()?)
}

pub(super) fn slice(
    lowering: &Lowering<'_>,
    op: &OpSpec,
    slice: &Slice,
) -> Result<Finalized<n::Operation>> {
    Ok(lowering
        .begin(op, n::OPERATION_SLICE, SLICE)?
        .ints(n::SLICE_START, &slice.start)?
        .ints(n::SLICE_LIMIT, &slice.limit)?
        .ints(n::SLICE_STRIDES, &slice.stride)?
        .finalize()?)
}

pub(super) fn concatenate(
    lowering: &Lowering<'_>,
    op: &OpSpec,
    concatenate: &Concatenate,
) -> Result<Finalized<n::Operation>> {
    let inputs: Vec<_> = op.inputs.iter().map(|input| lowering.tensor(input.1)).collect();
    let mut draft = Draft::new(lowering.library, n::CUDNN_BACKEND_OPERATION_CONCAT_DESCRIPTOR)?
        .int(n::CUDNN_ATTR_OPERATION_CONCAT_AXIS, concatenate.axis)?
        .descriptors(n::CUDNN_ATTR_OPERATION_CONCAT_INPUT_DESCS, &inputs)?;
    for (_, uid) in &op.outputs {
        draft =
            draft.descriptor(n::CUDNN_ATTR_OPERATION_CONCAT_OUTPUT_DESC, lowering.tensor(*uid))?;
    }
    if let Some(index) = concatenate.in_place_index {
        draft = draft.int(n::CUDNN_ATTR_OPERATION_CONCAT_INPLACE_INDEX, index)?;
    }
    Ok(draft.finalize()?)
}
