//! Vector-Jacobian products of `cat`, `stack` and the scatters of views.

use keyfold_core::{Result, layout};
use keyfold_layers::autograd::{Backward, Gradients, TensorMeta};
use keyfold_tensor::{Tensor, ValueRef};

use crate::aten;
use crate::vjp::{if_needed, match_meta, zeros_of};

/// Returns the gradients of the tensors of a list, each a part of the result's gradient.
fn parts(
    call: &Backward<'_>,
    mut part: impl FnMut(usize, &TensorMeta) -> Result<Tensor>,
) -> Result<Gradients> {
    let forms = call.metas(0).into_iter().enumerate();
    forms
        .map(|(i, form)| match form {
            Some(form) if call.needs_slot(i) => match_meta(&form, &part(i, &form)?).map(Some),
            _ => Ok(None),
        })
        .collect()
}

pub(crate) fn cat(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let axis = layout::normalize_axis(call.int(1).unwrap_or(0), grad.ndim())?;
    let mut ends = Vec::new();
    let mut end = 0;
    for form in call.metas(0).into_iter().flatten() {
        end += form.shape[axis] as i64;
        ends.push(end);
    }
    parts(call, |i, form| {
        let start = ends[i] - form.shape[axis] as i64;
        aten::slice(grad, axis as i64, ValueRef::Int(start), ValueRef::Int(ends[i]), 1)
    })
}

pub(crate) fn stack(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let axis = layout::normalize_axis(call.int(1).unwrap_or(0), grad.ndim())?;
    parts(call, |i, _| aten::select(grad, axis as i64, i as i64))
}

/// Makes zeros of an operand's shape and device, in the dtype of the gradient.
fn nothing(call: &Backward<'_>, argument: usize, grad: &Tensor) -> Result<Tensor> {
    zeros_of(&TensorMeta { dtype: grad.dtype(), ..call.meta(argument) })
}

pub(crate) fn select_scatter(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let (dim, index) = (call.int(2).unwrap_or(0), call.int(3).unwrap_or(0));
    Ok(vec![
        if_needed(call, 0, || aten::select_scatter(grad, &nothing(call, 1, grad)?, dim, index))?,
        if_needed(call, 1, || aten::select(grad, dim, index))?,
    ])
}

pub(crate) fn slice_scatter(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let (dim, step) = (call.int(2).unwrap_or(0), call.int(5).unwrap_or(1));
    let (start, end) = (call.value(3), call.value(4));
    Ok(vec![
        if_needed(call, 0, || {
            aten::slice_scatter(grad, &nothing(call, 1, grad)?, dim, start, end, step)
        })?,
        if_needed(call, 1, || aten::slice(grad, dim, start, end, step))?,
    ])
}
