//! Matrix products and reductions.

use keyfold_core::Result;
use keyfold_cudnn::{OpSpec, Port, Reduction};

use super::{Lowering, Ports, codes, compute};
use crate::descriptor::{Draft, Finalized};
use crate::names as n;

const MATMUL: Ports = &[
    (Port::A, n::CUDNN_ATTR_OPERATION_MATMUL_ADESC),
    (Port::B, n::CUDNN_ATTR_OPERATION_MATMUL_BDESC),
    (Port::C, n::CUDNN_ATTR_OPERATION_MATMUL_CDESC),
    (Port::MOverride, n::CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC),
    (Port::NOverride, n::CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC),
    (Port::KOverride, n::CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC),
];

const GROUPED: Ports = &[
    (Port::Token, n::CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_TOKEN_DESC),
    (Port::Weight, n::CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_WEIGHT_DESC),
    (Port::FirstTokenOffset, n::CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_FIRST_TOKEN_OFFSET_DESC),
    (Port::Y, n::CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_OUTPUT_DESC),
];

const REDUCTION: Ports = &[
    (Port::X, n::CUDNN_ATTR_OPERATION_REDUCTION_XDESC),
    (Port::Y, n::CUDNN_ATTR_OPERATION_REDUCTION_YDESC),
];

pub(super) fn matmul(lowering: &Lowering<'_>, op: &OpSpec) -> Result<Finalized<n::Operation>> {
    let parameters = Draft::new(lowering.library, n::CUDNN_BACKEND_MATMUL_DESCRIPTOR)?
        .choice(n::CUDNN_ATTR_MATMUL_COMP_TYPE, codes::dtype(compute(op)))?
        .finalize()?;
    Ok(lowering
        .begin(op, n::CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, MATMUL)?
        .descriptor(n::CUDNN_ATTR_OPERATION_MATMUL_DESC, &parameters)?
        .finalize()?)
}

pub(super) fn grouped(lowering: &Lowering<'_>, op: &OpSpec) -> Result<Finalized<n::Operation>> {
    let plain =
        cudarc::cudnn::sys::cudnnMoeGroupedMatmulMode_t::CUDNN_MOE_GROUPED_MATMUL_MODE_NONE as i32;
    Ok(lowering
        .begin(op, n::CUDNN_BACKEND_OPERATION_MOE_GROUPED_MATMUL_DESCRIPTOR, GROUPED)?
        .choice(n::CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_MODE, plain)?
        .choice(n::CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_MATH_PREC, codes::dtype(compute(op)))?
        .finalize()?)
}

pub(super) fn reduction(
    lowering: &Lowering<'_>,
    op: &OpSpec,
    reduction: &Reduction,
) -> Result<Finalized<n::Operation>> {
    let parameters = Draft::new(lowering.library, n::CUDNN_BACKEND_REDUCTION_DESCRIPTOR)?
        .choice(n::CUDNN_ATTR_REDUCTION_OPERATOR, codes::reduction(reduction.mode))?
        .choice(n::CUDNN_ATTR_REDUCTION_COMP_TYPE, codes::dtype(compute(op)))?
        .finalize()?;
    Ok(lowering
        .begin(op, n::CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, REDUCTION)?
        .descriptor(n::CUDNN_ATTR_OPERATION_REDUCTION_DESC, &parameters)?
        .finalize()?)
}
