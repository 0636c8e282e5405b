//! Pooling and interpolation, with gradients.

use keyfold_core::Result;
use keyfold_cudnn::{Fraction, OpSpec, Port, Resample};

use super::{Lowering, Ports, codes, compute};
use crate::descriptor::{Draft, Finalized};
use crate::library::CudnnError;
use crate::names::{self as n, Attribute};

const FORWARD: Ports = &[
    (Port::X, n::CUDNN_ATTR_OPERATION_RESAMPLE_FWD_XDESC),
    (Port::Y, n::CUDNN_ATTR_OPERATION_RESAMPLE_FWD_YDESC),
    (Port::Index, n::CUDNN_ATTR_OPERATION_RESAMPLE_FWD_IDXDESC),
];

const BACKWARD: Ports = &[
    (Port::Dy, n::CUDNN_ATTR_OPERATION_RESAMPLE_BWD_DYDESC),
    (Port::Dx, n::CUDNN_ATTR_OPERATION_RESAMPLE_BWD_DXDESC),
    (Port::Index, n::CUDNN_ATTR_OPERATION_RESAMPLE_BWD_IDXDESC),
    (Port::X, n::CUDNN_ATTR_OPERATION_RESAMPLE_BWD_XDESC),
    (Port::Y, n::CUDNN_ATTR_OPERATION_RESAMPLE_BWD_YDESC),
];

pub(super) fn lower(
    lowering: &Lowering<'_>,
    op: &OpSpec,
    resample: &Resample,
    backward: bool,
) -> Result<Finalized<n::Operation>> {
    let propagate = cudarc::cudnn::sys::cudnnNanPropagation_t::CUDNN_PROPAGATE_NAN as i32;
    let window: Vec<Fraction> = resample.window.iter().map(|&size| size.into()).collect();
    // All of the lists are of one type.
    let lists = [&window, &resample.stride, &resample.pre_padding, &resample.post_padding];
    let whole = lists.iter().all(|list| list.iter().all(|part| part.denominator == 1));
    let set = |draft: Draft<n::Parameters>, attribute: Attribute<i64>, list: &[Fraction]| {
        let fractions = list.iter().map(|part| [part.numerator, part.denominator]);
        match whole {
            true => {
                draft.ints(attribute, &list.iter().map(|part| part.numerator).collect::<Vec<_>>())
            }
            false => draft.fractions(attribute, &fractions.collect::<Vec<_>>()),
        }
    };
    let parameters = || -> Result<Finalized<n::Parameters>, CudnnError> {
        let draft = Draft::new(lowering.library, n::CUDNN_BACKEND_RESAMPLE_DESCRIPTOR)?
            .choice(n::CUDNN_ATTR_RESAMPLE_MODE, codes::resample(resample.mode))?
            .choice(n::CUDNN_ATTR_RESAMPLE_COMP_TYPE, codes::dtype(compute(op)))?
            .choice(n::CUDNN_ATTR_RESAMPLE_NAN_PROPAGATION, propagate)?
            .choice(n::CUDNN_ATTR_RESAMPLE_PADDING_MODE, codes::padding(resample.padding_mode))?
            .int(n::CUDNN_ATTR_RESAMPLE_SPATIAL_DIMS, window.len() as i64)?;
        let draft = set(draft, n::CUDNN_ATTR_RESAMPLE_WINDOW_DIMS, &window)?;
        let draft = set(draft, n::CUDNN_ATTR_RESAMPLE_STRIDES, &resample.stride)?;
        let draft = set(draft, n::CUDNN_ATTR_RESAMPLE_PRE_PADDINGS, &resample.pre_padding)?;
        set(draft, n::CUDNN_ATTR_RESAMPLE_POST_PADDINGS, &resample.post_padding)?.finalize()
    };
    let parameters = parameters()?;
    let draft = match backward {
        false => lowering
            .begin(op, n::CUDNN_BACKEND_OPERATION_RESAMPLE_FWD_DESCRIPTOR, FORWARD)?
            .descriptor(n::CUDNN_ATTR_OPERATION_RESAMPLE_FWD_DESC, &parameters)?,
        true => lowering
            .begin(op, n::CUDNN_BACKEND_OPERATION_RESAMPLE_BWD_DESCRIPTOR, BACKWARD)?
            .descriptor(n::CUDNN_ATTR_OPERATION_RESAMPLE_BWD_DESC, &parameters)?,
    };
    Ok(draft.finalize()?)
}
