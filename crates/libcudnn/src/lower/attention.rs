//! Attention: as one operation, and what it consists of.

use keyfold_core::Result;
use keyfold_cudnn::{
    Alignment, Attention, DataType, DiagonalBandMask, Float, Layout, Number, OpSpec, PointwiseMode,
    Port, TensorSpec,
};

use super::{Lowering, Ports, codes, not_supported, operation_graph};
use crate::descriptor::Finalized;
use crate::names as n;

const SOFTMAX: Ports = &[
    (Port::X, n::CUDNN_ATTR_OPERATION_SOFTMAX_XDESC),
    (Port::Y, n::CUDNN_ATTR_OPERATION_SOFTMAX_YDESC),
    (Port::Stats, n::CUDNN_ATTR_OPERATION_SOFTMAX_STATS_DESC),
];

const MASK: Ports = &[
    (Port::X, n::CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_XDESC),
    (Port::B, n::CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_BDESC),
    (Port::Y, n::CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_YDESC),
];

/// Those of its ports that are tensors of the operation itself.
const FORWARD: Ports = &[
    (Port::Q, n::CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC),
    (Port::K, n::CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC),
    (Port::V, n::CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC),
    (Port::O, n::CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC),
    (Port::AttnScale, n::CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC),
    (Port::SeqLenQ, n::CUDNN_ATTR_OPERATION_SDPA_FWD_SEQ_LEN_QDESC),
    (Port::SeqLenKv, n::CUDNN_ATTR_OPERATION_SDPA_FWD_SEQ_LEN_KVDESC),
    (Port::Seed, n::CUDNN_ATTR_OPERATION_SDPA_FWD_DROPOUT_SEED_DESC),
    (Port::Offset, n::CUDNN_ATTR_OPERATION_SDPA_FWD_DROPOUT_OFFSET_DESC),
    (Port::DescaleQ, n::SDPA_DESCALE_Q),
    (Port::DescaleK, n::SDPA_DESCALE_K),
    (Port::DescaleV, n::SDPA_DESCALE_V),
    (Port::DescaleS, n::SDPA_DESCALE_S),
    (Port::ScaleS, n::SDPA_SCALE_S),
    (Port::ScaleO, n::SDPA_SCALE_O),
    (Port::AmaxS, n::SDPA_AMAX_S),
    (Port::AmaxO, n::SDPA_AMAX_O),
];

/// The scales of 8-bit attention, 1 where a graph has none.
const SCALES: [Port; 6] =
    [Port::DescaleQ, Port::DescaleK, Port::DescaleV, Port::DescaleS, Port::ScaleS, Port::ScaleO];

pub(super) fn softmax(lowering: &Lowering<'_>, op: &OpSpec) -> Result<Finalized<n::Operation>> {
    Ok(lowering.begin(op, n::CUDNN_BACKEND_OPERATION_SOFTMAX_DESCRIPTOR, SOFTMAX)?.finalize()?)
}

pub(super) fn mask(
    lowering: &Lowering<'_>,
    op: &OpSpec,
    mask: &DiagonalBandMask,
) -> Result<Finalized<n::Operation>> {
    Ok(lowering
        .begin(op, n::CUDNN_BACKEND_OPERATION_DIAGONAL_BAND_MASK_DESCRIPTOR, MASK)?
        .choice(
            n::CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_COMPARISON_MODE,
            codes::pointwise(mask.comparison),
        )?
        .finalize()?)
}

pub(super) fn forward(
    lowering: &mut Lowering<'_>,
    op: &OpSpec,
    attention: &Attention,
) -> Result<Finalized<n::Operation>> {
    let is_causal = match (attention.right_bound, attention.left_bound, attention.alignment) {
        (None, None, _) => false,
        (Some(0), None, Alignment::TopLeft) => true,
        (right, left, alignment) => {
            return Err(not_supported(&format!(
                "attention is lowered without a mask or with a causal one from the top left, not with right_bound \
                 {right:?}, left_bound {left:?} and alignment {alignment:?}"
            )));
        }
    };
    // The statistics are a tensor of the softmax within the operation.
    let mut own = op.clone();
    own.outputs.retain(|output| output.0 != Port::Stats);
    let (b, h, rows) = dims_of(lowering, op, Port::Q);
    let (.., columns) = dims_of(lowering, op, Port::K);
    let scores =
        TensorSpec::new(0, DataType::F32, &[b, h, rows, columns], Layout::Packed)?.virtualized();
    if op.input(Port::AttnScale).is_none() {
        let one = TensorSpec::number(0, DataType::F32, 4, Number::Float(1.0));
        own.inputs.push((Port::AttnScale, lowering.extra(one)?));
    }
    // 8-bit attention has all of its scales.
    if op
        .input(Port::Q)
        .is_some_and(|q| lowering.graph.tensor(q).dtype.is_some_and(DataType::is_f8))
    {
        for port in SCALES.into_iter().filter(|port| op.input(*port).is_none()) {
            let one = TensorSpec::number(0, DataType::F32, 4, Number::Float(1.0));
            own.inputs.push((port, lowering.extra(one)?));
        }
    }
    let softmax = match op.output(Port::Stats) {
        None => None,
        Some(stats) => {
            let (x, y) = (lowering.extra(scores.clone())?, lowering.extra(scores.clone())?);
            let inner = OpSpec::new(
                keyfold_cudnn::Operation::Softmax,
                &[(Port::X, x)],
                &[(Port::Y, y), (Port::Stats, stats)],
            );
            Some(self::softmax(lowering, &inner)?)
        }
    };
    let causal = match is_causal {
        false => None,
        true => {
            let (x, y) = (lowering.extra(scores.clone())?, lowering.extra(scores)?);
            let hidden = TensorSpec::number(0, DataType::F32, 4, Number::Float(f64::NEG_INFINITY));
            let hidden = lowering.extra(hidden)?;
            let band = DiagonalBandMask { comparison: PointwiseMode::CmpGe };
            let inner = OpSpec::new(
                keyfold_cudnn::Operation::DiagonalBandMask(band.clone()),
                &[(Port::X, x), (Port::B, hidden)],
                &[(Port::Y, y)],
            );
            let operation = mask(lowering, &inner, &band)?;
            Some((operation_graph(lowering.library, &[&operation])?, x, y))
        }
    };
    let mut draft =
        lowering.begin(&own, n::CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR, FORWARD)?;
    if let Some(softmax) = &softmax {
        draft = draft.descriptor(n::CUDNN_ATTR_OPERATION_SDPA_FWD_SOFTMAX_DESC, softmax)?;
    }
    if let Some((graph, x, y)) = &causal {
        draft = draft
            .descriptor(n::CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH, graph)?
            .int(n::CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_INPUT_UID, *x)?
            .int(n::CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_OUTPUT_UID, *y)?;
    }
    if let Some(Float(probability)) = attention.dropout {
        draft = draft
            .float(n::CUDNN_ATTR_OPERATION_SDPA_FWD_DROPOUT_PROBABILITY, probability as f32)?;
    }
    Ok(draft.finalize()?)
}

/// Returns the batches, heads and rows of a tensor of attention, which has 4 dimensions in a valid graph.
fn dims_of(lowering: &Lowering<'_>, op: &OpSpec, port: Port) -> (i64, i64, i64) {
    let dims = op.input(port).map(|uid| &lowering.graph.tensor(uid).dims[..]);
    match dims {
        Some(&[b, h, rows, _]) => (b, h, rows),
        _ => (1, 1, 1),
    }
}
