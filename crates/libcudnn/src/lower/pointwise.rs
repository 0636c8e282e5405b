//! Pointwise operations.

use keyfold_core::Result;
use keyfold_cudnn::{OpSpec, Pointwise, PointwiseMode, Port};

use super::{Lowering, Ports, codes, compute};
use crate::descriptor::{Draft, Finalized};
use crate::names as n;

const PORTS: Ports = &[
    (Port::X, n::CUDNN_ATTR_OPERATION_POINTWISE_XDESC),
    (Port::B, n::CUDNN_ATTR_OPERATION_POINTWISE_BDESC),
    (Port::T, n::CUDNN_ATTR_OPERATION_POINTWISE_TDESC),
    (Port::Y, n::CUDNN_ATTR_OPERATION_POINTWISE_YDESC),
    (Port::Dy, n::CUDNN_ATTR_OPERATION_POINTWISE_DYDESC),
    (Port::Dx, n::CUDNN_ATTR_OPERATION_POINTWISE_DXDESC),
];

pub(super) fn lower(
    lowering: &Lowering<'_>,
    op: &OpSpec,
    pointwise: &Pointwise,
) -> Result<Finalized<n::Operation>> {
    use PointwiseMode as M;
    let mode = pointwise.mode;
    let mut parameters = Draft::new(lowering.library, n::CUDNN_BACKEND_POINTWISE_DESCRIPTOR)?
        .choice(n::CUDNN_ATTR_POINTWISE_MODE, codes::pointwise(mode))?
        .choice(n::CUDNN_ATTR_POINTWISE_MATH_PREC, codes::dtype(compute(op)))?;
    // Those that have cuDNN's default are left to it: some engines refuse any value.
    let default = Pointwise::new(mode);
    for (attribute, value, default) in [
        (
            n::CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP,
            pointwise.relu_lower_clip,
            default.relu_lower_clip,
        ),
        (
            n::CUDNN_ATTR_POINTWISE_RELU_UPPER_CLIP,
            pointwise.relu_upper_clip,
            default.relu_upper_clip,
        ),
        (
            n::CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP_SLOPE,
            pointwise.relu_lower_clip_slope,
            default.relu_lower_clip_slope,
        ),
        (n::CUDNN_ATTR_POINTWISE_ELU_ALPHA, pointwise.elu_alpha, default.elu_alpha),
        (n::CUDNN_ATTR_POINTWISE_SOFTPLUS_BETA, pointwise.softplus_beta, default.softplus_beta),
        (n::CUDNN_ATTR_POINTWISE_SWISH_BETA, pointwise.swish_beta, default.swish_beta),
    ] {
        if value != default {
            parameters = parameters.double(attribute, value.0)?;
        }
    }
    if let (M::GenIndex, Some(axis)) = (mode, pointwise.axis) {
        parameters = parameters.int(n::CUDNN_ATTR_POINTWISE_AXIS, axis)?;
    }
    let parameters = parameters.finalize()?;
    let mut draft = lowering
        .begin(op, n::CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, PORTS)?
        .descriptor(n::CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, &parameters)?;
    for (attribute, value) in [
        (n::CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1, pointwise.alpha1.0),
        (n::CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2, pointwise.alpha2.0),
    ] {
        if value != 1.0 {
            draft = draft.float(attribute, value as f32)?;
        }
    }
    Ok(draft.finalize()?)
}
