//! Vector-Jacobian products of indexing: gathering and scatter-adding are adjoint.

use keyfold_core::{DType, Result};
use keyfold_layers::autograd::{Backward, Gradients, TensorMeta};
use keyfold_tensor::{Tensor, ValueRef};

use crate::aten;
use crate::vjp::{first_only, if_needed, zeros_like_operand, zeros_of};

pub(crate) fn index(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    first_only(
        call,
        &aten::index_put(&zeros_like_operand(call, 0, grad)?, &call.tensors(1)?, grad, true)?,
    )
}

/// Returns a mask of the values that `index_put` left in the result: of several values written to one element
/// the last one remains, and only that one has a gradient.
fn stayed(call: &Backward<'_>, indices: &[Option<Tensor>], picked: &Tensor) -> Result<Tensor> {
    let numbers = aten::arange(picked.numel() as i64, picked.device())?;
    let numbers = aten::reshape(&numbers, &aten::sizes(picked.shape()))?;
    let places = zeros_of(&TensorMeta { dtype: DType::I64, ..call.meta(0) })?;
    let places = aten::index_put(&places, indices, &numbers, false)?;
    aten::eq(&aten::index(&places, indices)?, &numbers)
}

pub(crate) fn index_put(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let (indices, adds) = (call.tensors(1)?, call.flag(3));
    let mut grads = vec![None; call.slots()];
    grads[0] = if_needed(call, 0, || {
        if adds {
            return Ok(grad.clone());
        }
        let nothing = aten::full(&[], 0.0, grad.dtype(), grad.device())?;
        aten::index_put(grad, &indices, &nothing, false)
    })?;
    grads[call.slot_of(2)] = if_needed(call, 2, || {
        let picked = aten::index(grad, &indices)?;
        // A mask selects no element twice.
        let masks = indices.iter().flatten().all(|index| index.dtype() == DType::Bool);
        if adds || masks {
            return Ok(picked);
        }
        aten::where_scalar_other(&stayed(call, &indices, &picked)?, &picked, 0)
    })?;
    Ok(grads)
}

pub(crate) fn index_add(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let dim = call.int(1).unwrap_or(0);
    Ok(vec![
        if_needed(call, 0, || Ok(grad.clone()))?,
        None,
        if_needed(call, 3, || aten::index_select(grad, dim, &call.tensor(2)?))?,
    ])
}

pub(crate) fn index_select(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let dim = call.int(1).unwrap_or(0);
    first_only(
        call,
        &aten::index_add(&zeros_like_operand(call, 0, grad)?, dim, &call.tensor(2)?, grad)?,
    )
}

/// The tensor and the mask broadcast with each other.
pub(crate) fn masked_select(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let (form, mask) = (call.meta(0), call.tensor(1)?);
    let shape = keyfold_core::layout::broadcast_shapes(&form.shape, mask.shape())?;
    // As an index a mask needs a dimension.
    let whole = if shape.is_empty() { keyfold_core::Shape::new(&[1])? } else { shape };
    let mask = aten::expand(&mask, &aten::sizes(&whole))?;
    let blank = zeros_of(&TensorMeta { shape: whole, dtype: grad.dtype(), device: form.device })?;
    first_only(call, &aten::index_put(&blank, &[Some(mask)], grad, false)?)
}

pub(crate) fn gather(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let dim = call.int(1).unwrap_or(0);
    first_only(
        call,
        &aten::scatter_add(&zeros_like_operand(call, 0, grad)?, dim, &call.tensor(2)?, grad)?,
    )
}

/// Pads `x` with zeros at the end of each dimension: the gradients of the source elements that a smaller
/// index doesn't reach.
fn padded(x: Tensor, shape: &[usize]) -> Result<Tensor> {
    let mut x = x;
    for (dim, &size) in shape.iter().enumerate() {
        let given = x.shape()[dim];
        if given == size {
            continue;
        }
        let mut whole = x.shape().clone();
        whole[dim] = size;
        let blank = zeros_of(&TensorMeta { shape: whole, dtype: x.dtype(), device: x.device() })?;
        let (start, end) = (ValueRef::Int(0), ValueRef::Int(given as i64));
        x = aten::slice_scatter(&blank, &x, dim as i64, start, end, 1)?;
    }
    Ok(x)
}

pub(crate) fn scatter_add(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let dim = call.int(1).unwrap_or(0);
    Ok(vec![
        if_needed(call, 0, || Ok(grad.clone()))?,
        None,
        if_needed(call, 3, || padded(aten::gather(grad, dim, &call.tensor(2)?)?, &call.shape(3)))?,
    ])
}
