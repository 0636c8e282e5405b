//! Normalizations, their gradients, and the statistics of channels.

use keyfold_core::Result;
use keyfold_cudnn::{Norm, OpSpec, Port};

use super::{Lowering, Ports, codes, compute};
use crate::descriptor::Finalized;
use crate::names as n;

const FORWARD: Ports = &[
    (Port::X, n::CUDNN_ATTR_OPERATION_NORM_FWD_XDESC),
    (Port::Mean, n::CUDNN_ATTR_OPERATION_NORM_FWD_MEAN_DESC),
    (Port::InvVariance, n::CUDNN_ATTR_OPERATION_NORM_FWD_INV_VARIANCE_DESC),
    (Port::Scale, n::CUDNN_ATTR_OPERATION_NORM_FWD_SCALE_DESC),
    (Port::Bias, n::CUDNN_ATTR_OPERATION_NORM_FWD_BIAS_DESC),
    (Port::Epsilon, n::CUDNN_ATTR_OPERATION_NORM_FWD_EPSILON_DESC),
    (Port::Momentum, n::CUDNN_ATTR_OPERATION_NORM_FWD_EXP_AVG_FACTOR_DESC),
    (Port::RunningMean, n::CUDNN_ATTR_OPERATION_NORM_FWD_INPUT_RUNNING_MEAN_DESC),
    (Port::RunningVariance, n::CUDNN_ATTR_OPERATION_NORM_FWD_INPUT_RUNNING_VAR_DESC),
    (Port::NextRunningMean, n::CUDNN_ATTR_OPERATION_NORM_FWD_OUTPUT_RUNNING_MEAN_DESC),
    (Port::NextRunningVariance, n::CUDNN_ATTR_OPERATION_NORM_FWD_OUTPUT_RUNNING_VAR_DESC),
    (Port::Y, n::CUDNN_ATTR_OPERATION_NORM_FWD_YDESC),
];

const BACKWARD: Ports = &[
    (Port::X, n::CUDNN_ATTR_OPERATION_NORM_BWD_XDESC),
    (Port::Mean, n::CUDNN_ATTR_OPERATION_NORM_BWD_MEAN_DESC),
    (Port::InvVariance, n::CUDNN_ATTR_OPERATION_NORM_BWD_INV_VARIANCE_DESC),
    (Port::Dy, n::CUDNN_ATTR_OPERATION_NORM_BWD_DYDESC),
    (Port::Scale, n::CUDNN_ATTR_OPERATION_NORM_BWD_SCALE_DESC),
    (Port::Epsilon, n::CUDNN_ATTR_OPERATION_NORM_BWD_EPSILON_DESC),
    (Port::Dscale, n::CUDNN_ATTR_OPERATION_NORM_BWD_DSCALE_DESC),
    (Port::Dbias, n::CUDNN_ATTR_OPERATION_NORM_BWD_DBIAS_DESC),
    (Port::Dx, n::CUDNN_ATTR_OPERATION_NORM_BWD_DXDESC),
];

const STATISTICS: Ports = &[
    (Port::X, n::CUDNN_ATTR_OPERATION_GENSTATS_XDESC),
    (Port::Sum, n::CUDNN_ATTR_OPERATION_GENSTATS_SUMDESC),
    (Port::SqSum, n::CUDNN_ATTR_OPERATION_GENSTATS_SQSUMDESC),
];

pub(super) fn lower(
    lowering: &Lowering<'_>,
    op: &OpSpec,
    norm: &Norm,
) -> Result<Finalized<n::Operation>> {
    Ok(lowering
        .begin(op, n::CUDNN_BACKEND_OPERATION_NORM_FORWARD_DESCRIPTOR, FORWARD)?
        .choice(n::CUDNN_ATTR_OPERATION_NORM_FWD_MODE, codes::norm(norm.mode))?
        .choice(n::CUDNN_ATTR_OPERATION_NORM_FWD_PHASE, codes::phase(norm.phase))?
        .finalize()?)
}

pub(super) fn lower_backward(
    lowering: &Lowering<'_>,
    op: &OpSpec,
    norm: &Norm,
) -> Result<Finalized<n::Operation>> {
    Ok(lowering
        .begin(op, n::CUDNN_BACKEND_OPERATION_NORM_BACKWARD_DESCRIPTOR, BACKWARD)?
        .choice(n::CUDNN_ATTR_OPERATION_NORM_BWD_MODE, codes::norm(norm.mode))?
        .finalize()?)
}

pub(super) fn lower_statistics(
    lowering: &Lowering<'_>,
    op: &OpSpec,
) -> Result<Finalized<n::Operation>> {
    let sums = cudarc::cudnn::sys::cudnnGenStatsMode_t::CUDNN_GENSTATS_SUM_SQSUM as i32;
    Ok(lowering
        .begin(op, n::CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR, STATISTICS)?
        .choice(n::CUDNN_ATTR_OPERATION_GENSTATS_MODE, sums)?
        .choice(n::CUDNN_ATTR_OPERATION_GENSTATS_MATH_PREC, codes::dtype(compute(op)))?
        .finalize()?)
}
