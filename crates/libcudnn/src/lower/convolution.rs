//! Convolutions and their gradients.

use keyfold_core::Result;
use keyfold_cudnn::{Convolution, DataType, OpSpec, Operation, Port};

use super::{Lowering, Ports, codes, compute};
use crate::descriptor::{Draft, Finalized};
use crate::names as n;

const FORWARD: Ports = &[
    (Port::X, n::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X),
    (Port::W, n::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W),
    (Port::Y, n::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y),
];

const DATA: Ports = &[
    (Port::Dx, n::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX),
    (Port::W, n::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W),
    (Port::Dy, n::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY),
];

const FILTER: Ports = &[
    (Port::X, n::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X),
    (Port::Dw, n::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW),
    (Port::Dy, n::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY),
];

pub(super) fn lower(
    lowering: &Lowering<'_>,
    op: &OpSpec,
    conv: &Convolution,
) -> Result<Finalized<n::Operation>> {
    let parameters = Draft::new(lowering.library, n::CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR)?
        .choice(n::CUDNN_ATTR_CONVOLUTION_COMP_TYPE, codes::dtype(compute(op)))?
        .choice(n::CUDNN_ATTR_CONVOLUTION_CONV_MODE, codes::convolution(conv.mode))?
        .int(n::CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, conv.stride.len() as i64)?
        .ints(n::CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, &conv.pre_padding)?
        .ints(n::CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, &conv.post_padding)?
        .ints(n::CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, &conv.stride)?
        .ints(n::CUDNN_ATTR_CONVOLUTION_DILATIONS, &conv.dilation)?
        .finalize()?;
    let (kind, ports, described, alpha, beta) = match op.operation {
        Operation::ConvDgrad(_) => (
            n::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
            DATA,
            n::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
            n::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
            n::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
        ),
        Operation::ConvWgrad(_) => (
            n::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
            FILTER,
            n::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
            n::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
            n::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
        ),
        _ => (
            n::CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
            FORWARD,
            n::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
            n::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
            n::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
        ),
    };
    let draft = lowering.begin(op, kind, ports)?.descriptor(described, &parameters)?;
    // In double precision the factors are doubles, which the attributes take as well.
    let draft = match compute(op) {
        DataType::F64 => draft.double(alpha, conv.alpha.0)?.double(beta, conv.beta.0)?,
        _ => draft.float(alpha, conv.alpha.0 as f32)?.float(beta, conv.beta.0 as f32)?,
    };
    Ok(draft.finalize()?)
}
