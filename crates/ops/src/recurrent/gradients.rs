//! Vector-Jacobian products of cells: by one kernel, and by operators where the gradients are themselves
//! differentiated, or where the workspace has a gradient.

use keyfold_core::Result;
use keyfold_layers::autograd::{self, Backward, Gradients, TensorMeta, added, has_tangent};
use keyfold_tensor::{Tensor, Value, ValueRef};

use crate::aten::{self, Aten};
use crate::vjp::{fit_operand, zeros_of};

/// Returns the gate at a place of a row of gates.
pub(super) fn gate(gates: &Tensor, place: usize, width: usize) -> Result<Tensor> {
    let (start, end) = ((place * width) as i64, ((place + 1) * width) as i64);
    aten::slice(gates, -1, ValueRef::Int(start), ValueRef::Int(end), 1)
}

/// Returns `x (1 - x)`, the derivative of the logistic function where its value is `x`.
pub(super) fn sigmoid_slope(x: &Tensor) -> Result<Tensor> {
    aten::mul(x, &aten::rsub_scalar(x, 1)?)
}

/// Returns `1 - x^2`, the derivative of `tanh` where its value is `x`.
pub(super) fn tanh_slope(x: &Tensor) -> Result<Tensor> {
    aten::rsub_scalar(&aten::mul(x, x)?, 1)
}

/// Makes zeros of the form of a tensor.
pub(super) fn zeros_like(x: &Tensor) -> Result<Tensor> {
    zeros_of(&TensorMeta { shape: x.shape().clone(), dtype: x.dtype(), device: x.device() })
}

/// Adds a bias to gates.
fn with_bias(gates: &Tensor, bias: Option<Tensor>) -> Result<Tensor> {
    match bias {
        Some(bias) => aten::add(gates, &bias),
        None => Ok(gates.clone()),
    }
}

/// Returns whether a kernel can compute the gradients: nothing differentiates them.
fn is_plain(grads: &[Option<Tensor>], saved: &Tensor) -> bool {
    let mut all = grads.iter().flatten().chain([saved]);
    !autograd::is_enabled() && !all.any(has_tangent)
}

/// Returns the results of an operator with several.
fn tensors(result: Value) -> Result<Vec<Tensor>> {
    let Value::Tuple(items) = result else { return Ok(Vec::new()) };
    items.into_iter().map(Value::into_tensor).collect()
}

/// Returns the gradients of both biases: those of the gates, added up over the batch.
fn of_biases(call: &Backward<'_>, gates: [&Tensor; 2]) -> Result<[Option<Tensor>; 2]> {
    let of = |place: usize| match call.needs(3 + place) {
        true => aten::sum(gates[place], &[0], false).map(Some),
        false => Ok(None),
    };
    Ok([of(0)?, of(1)?])
}

/// Keeps the gradients that are needed, of all five operands, in their dtypes.
fn needed(call: &Backward<'_>, all: &[Option<Tensor>]) -> Result<Gradients> {
    let mut grads = vec![None; call.slots()];
    for (argument, grad) in all.iter().enumerate() {
        if let Some(grad) = grad.as_ref().filter(|_| call.needs(argument)) {
            grads[call.slot_of(argument)] = fit_operand(call, argument, grad)?;
        }
    }
    Ok(grads)
}

pub(super) fn gru(call: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Gradients> {
    static BACKWARD: Aten = Aten::new("aten::_thnn_fused_gru_cell_backward");
    let workspace = call.result(1)?;
    let biased = call.optional(3)?.is_some();
    if let ([Some(grad), None], true) = (grads, is_plain(grads, &workspace)) {
        let needs_bias = biased && (call.needs(3) || call.needs(4));
        let args = [grad.into(), (&workspace).into(), needs_bias.into()];
        let found = tensors(BACKWARD.operator()?.call(&args)?)?;
        return needed(call, &found.into_iter().map(Some).collect::<Vec<_>>());
    }
    let state = call.tensor(2)?;
    let width = state.shape()[1];
    let input = with_bias(&call.tensor(0)?, call.optional(3)?)?;
    let hidden = with_bias(&call.tensor(1)?, call.optional(4)?)?;
    let both = aten::add(&input, &hidden)?;
    let (r, z) = (aten::sigmoid(&gate(&both, 0, width)?)?, aten::sigmoid(&gate(&both, 1, width)?)?);
    let hn = gate(&hidden, 2, width)?;
    let n = aten::tanh(&aten::add(&gate(&input, 2, width)?, &aten::mul(&r, &hn)?)?)?;
    let of_workspace =
        |place: usize| grads[1].as_ref().map(|grad| gate(grad, place, width)).transpose();
    let grad = grads[0].as_ref().map_or_else(|| zeros_like(&n), |grad| Ok(grad.clone()))?;
    let total = |own: Tensor, place: usize| -> Result<Tensor> {
        Ok(added(Some(own.clone()), of_workspace(place)?)?.unwrap_or(own))
    };
    let dn = total(aten::mul(&grad, &aten::rsub_scalar(&z, 1)?)?, 2)?;
    let dz = total(aten::mul(&grad, &aten::sub(&state, &n)?)?, 1)?;
    let dh = total(aten::mul(&grad, &z)?, 3)?;
    let dn = aten::mul(&dn, &tanh_slope(&n)?)?;
    let dr = total(aten::mul(&dn, &hn)?, 0)?;
    let dhn = total(aten::mul(&dn, &r)?, 4)?;
    let dr = aten::mul(&dr, &sigmoid_slope(&r)?)?;
    let dz = aten::mul(&dz, &sigmoid_slope(&z)?)?;
    let of_input = aten::cat(&[dr.clone(), dz.clone(), dn], -1)?;
    let of_hidden = aten::cat(&[dr, dz, dhn], -1)?;
    let [input_bias, hidden_bias] = of_biases(call, [&of_input, &of_hidden])?;
    needed(call, &[Some(of_input), Some(of_hidden), Some(dh), input_bias, hidden_bias])
}

pub(super) fn lstm(call: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Gradients> {
    static BACKWARD: Aten = Aten::new("aten::_thnn_fused_lstm_cell_backward_impl");
    let (cell, workspace) = (call.tensor(2)?, call.result(2)?);
    let biased = call.optional(3)?.is_some();
    if grads[2].is_none() && is_plain(grads, &workspace) {
        let next_cell = call.result(1)?;
        let cell = match cell.dtype() == workspace.dtype() {
            true => cell,
            false => aten::to(&cell, workspace.dtype())?,
        };
        let grad = |place: usize| grads[place].as_ref().map_or(ValueRef::None, ValueRef::Tensor);
        let needs_bias = biased && (call.needs(3) || call.needs(4));
        let saved = [(&cell).into(), (&next_cell).into(), (&workspace).into(), needs_bias.into()];
        let args: Vec<ValueRef<'_>> = [grad(0), grad(1)].into_iter().chain(saved).collect();
        let found = tensors(BACKWARD.operator()?.call(&args)?)?;
        let [gates, of_cell, bias] = [0, 1, 2].map(|place| found.get(place).cloned());
        return needed(call, &[gates.clone(), gates, of_cell, bias.clone(), bias]);
    }
    let width = cell.shape()[1];
    let input = with_bias(&call.tensor(0)?, call.optional(3)?)?;
    let both = aten::add(&input, &with_bias(&call.tensor(1)?, call.optional(4)?)?)?;
    let i = aten::sigmoid(&gate(&both, 0, width)?)?;
    let f = aten::sigmoid(&gate(&both, 1, width)?)?;
    let g = aten::tanh(&gate(&both, 2, width)?)?;
    let o = aten::sigmoid(&gate(&both, 3, width)?)?;
    let t = aten::tanh(&aten::add(&aten::mul(&f, &cell)?, &aten::mul(&i, &g)?)?)?;
    let grad = grads[0].as_ref().map_or_else(|| zeros_like(&t), |grad| Ok(grad.clone()))?;
    let total = |own: Tensor, other: Option<Tensor>| -> Result<Tensor> {
        Ok(added(Some(own.clone()), other)?.unwrap_or(own))
    };
    let of_workspace =
        |place: usize| grads[2].as_ref().map(|grad| gate(grad, place, width)).transpose();
    let dc = aten::mul(&aten::mul(&grad, &o)?, &tanh_slope(&t)?)?;
    let dc = total(dc, grads[1].clone())?;
    let di = total(aten::mul(&dc, &g)?, of_workspace(0)?)?;
    let df = total(aten::mul(&dc, &cell)?, of_workspace(1)?)?;
    let dg = total(aten::mul(&dc, &i)?, of_workspace(2)?)?;
    let d_o = total(aten::mul(&grad, &t)?, of_workspace(3)?)?;
    let parts = [
        aten::mul(&di, &sigmoid_slope(&i)?)?,
        aten::mul(&df, &sigmoid_slope(&f)?)?,
        aten::mul(&dg, &tanh_slope(&g)?)?,
        aten::mul(&d_o, &sigmoid_slope(&o)?)?,
    ];
    let gates = aten::cat(&parts, -1)?;
    let [input_bias, hidden_bias] = of_biases(call, [&gates, &gates])?;
    let of_cell = aten::mul(&dc, &f)?;
    needed(call, &[Some(gates.clone()), Some(gates), Some(of_cell), input_bias, hidden_bias])
}
