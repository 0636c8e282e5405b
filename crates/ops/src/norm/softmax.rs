//! The gradients of softmax and of its logarithm as operators: one pass each.

use keyfold_backend::{NormParams, Operation};
use keyfold_core::{DType, ErrorKind, Result, layout};
use keyfold_layers::autocast::Category;
use keyfold_layers::autograd::{Backward, Forward, Gradients, Jvp, Saves, Vjp, added};
use keyfold_layers::vmap::Batch;
use keyfold_tensor::{Tensor, Value};

use super::{FLOATS, check_floating};
use crate::arg_values::{batched_dim, int};
use crate::aten;
use crate::convert::write_converted;
use crate::infer::{Call, CallPlan, Run};
use crate::jvp::pushforward;
use crate::naming::Naming;
use crate::op::Op;
use crate::row::{Batching, Layers, Row, Rule};
use crate::vjp::{formula, if_needed};

/// Checks the arguments, and plans the call of the kernel.
fn backward<'t>(
    call: Call<'_, &'static Operation>,
    (grad, output, dim, dtype): (&'t Tensor, &'t Tensor, i64, DType),
) -> Result<CallPlan<impl Run>> {
    check_floating(&call, "output", output)?;
    if grad.shape() != output.shape() || grad.dtype() != output.dtype() {
        let kind = if grad.shape() == output.shape() { ErrorKind::DType } else { ErrorKind::Shape };
        let message = format!(
            "argument 'grad_output' is {} of shape {:?}, but argument 'output' is {} of shape {:?}; \
             both have to be alike",
            grad.dtype(),
            grad.shape(),
            output.dtype(),
            output.shape()
        );
        return Err(call.error(kind, message));
    }
    if !dtype.is_floating() {
        return Err(call.unsupported("input_dtype", dtype, &FLOATS));
    }
    let axis = call.at(layout::normalize_axis(dim, output.ndim()))?;
    let params = NormParams { axis: axis as u32, ..NormParams::new(call.state) };
    let run = move |op: &Op, out: &Tensor| {
        if out.dtype() == output.dtype() {
            // SAFETY: what computes a result is called with an output that is its own (`Run::run`).
            return unsafe { op.execute(&params, &[grad, output], &[out]) };
        }
        let own = op.output(out.device(), out.shape(), output.dtype())?;
        // SAFETY: as above, and the other one was allocated here.
        unsafe {
            op.execute(&params, &[grad, output], &[&own])?;
            write_converted(op, &own, out)
        }
    };
    Ok(CallPlan::new(call.device_of(output), output.shape().clone(), dtype, run))
}

/// The sum along the call's dimension.
fn sum(x: &Tensor, dim: Option<i64>) -> Result<Tensor> {
    aten::sum(x, &[dim.unwrap_or(-1)], true)
}

/// The derivatives of `s (g - sum(g s))`.
fn softmax_gradients(call: &Backward<'_>, u: &Tensor) -> Result<Gradients> {
    let (g, s, dim) = (call.tensor(0)?, call.tensor(1)?, call.int(2));
    let of_grad = if_needed(call, 0, || {
        aten::sub(&aten::mul(&s, u)?, &aten::mul(&s, &sum(&aten::mul(&s, u)?, dim)?)?)
    })?;
    let of_output = if_needed(call, 1, || {
        let distance = aten::sub(&g, &sum(&aten::mul(&g, &s)?, dim)?)?;
        let other = aten::mul(&g, &sum(&aten::mul(u, &s)?, dim)?)?;
        aten::sub(&aten::mul(u, &distance)?, &other)
    })?;
    Ok(vec![of_grad, of_output])
}

fn softmax_tangent(call: &Forward<'_, '_>) -> Result<Option<Tensor>> {
    let (g, s, dim) = (call.tensor(0)?, call.tensor(1)?, int(call.args()[2]));
    let by_grad = match call.tangent(0) {
        Some(moved) => {
            let both = aten::mul(s, moved)?;
            Some(aten::sub(&both, &aten::mul(s, &sum(&both, dim)?)?)?)
        }
        None => None,
    };
    let by_output = match call.tangent(1) {
        Some(moved) => {
            let distance = aten::sub(g, &sum(&aten::mul(g, s)?, dim)?)?;
            let other = aten::mul(s, &sum(&aten::mul(g, moved)?, dim)?)?;
            Some(aten::sub(&aten::mul(moved, &distance)?, &other)?)
        }
        None => None,
    };
    added(by_grad, by_output)
}

/// The derivatives of `g - exp(l) sum(g)`.
fn log_softmax_gradients(call: &Backward<'_>, u: &Tensor) -> Result<Gradients> {
    let (g, l, dim) = (call.tensor(0)?, call.tensor(1)?, call.int(2));
    let both = aten::mul(u, &aten::exp(&l)?)?;
    Ok(vec![
        if_needed(call, 0, || aten::sub(u, &sum(&both, dim)?))?,
        if_needed(call, 1, || aten::neg(&aten::mul(&both, &sum(&g, dim)?)?))?,
    ])
}

fn log_softmax_tangent(call: &Forward<'_, '_>) -> Result<Option<Tensor>> {
    let (g, l, dim) = (call.tensor(0)?, call.tensor(1)?, int(call.args()[2]));
    let s = aten::exp(l)?;
    let by_grad = match call.tangent(0) {
        Some(moved) => Some(aten::sub(moved, &aten::mul(&s, &sum(moved, dim)?)?)?),
        None => None,
    };
    let by_output = match call.tangent(1) {
        Some(moved) => Some(aten::neg(&aten::mul(&aten::mul(&s, moved)?, &sum(g, dim)?)?)?),
        None => None,
    };
    added(by_grad, by_output)
}

/// One call for the batch, along the dimension behind the batch's.
fn batched(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    let (grad, output) = (batch.operand(0)?, batch.operand(1)?);
    let Some(dim) = int(batch.args[2]) else { return Ok(None) };
    let Some(dim) = batched_dim(dim, output.rank()) else { return Ok(None) };
    if grad.rank() != output.rank() {
        return Ok(None);
    }
    let (grad, output) = (grad.batched(batch.size)?, output.batched(batch.size)?);
    let args = [(&grad).into(), (&output).into(), dim.into(), batch.args[3]];
    batch.wrap(batch.call(&args)?, 0).map(Some)
}

/// Returns the rows.
pub(super) fn rows() -> Result<Vec<Row>> {
    const READS: &[Saves] = &[Saves::arguments(&[0, 1])];
    let row = |name, op: &'static Operation, vjp: Vjp, jvp: Jvp| {
        Row::computes::<(&Tensor, &Tensor, i64, DType), _, _>(
            (name, ""),
            "Tensor grad_output, Tensor output, int dim, ScalarType input_dtype",
            move |_| op,
            backward,
            Layers {
                derivative: formula(READS, vjp),
                tangent: pushforward(jvp),
                batching: Rule::Given(Batching::Rule(batched)),
                autocast: Category::Leave,
            },
            Naming::Unnamed("the derivative of its function calls it"),
        )
    };
    Ok(vec![
        row(
            "aten::_softmax_backward_data",
            &const { Operation::new("softmax_backward") },
            softmax_gradients,
            softmax_tangent,
        )?,
        row(
            "aten::_log_softmax_backward_data",
            &const { Operation::new("log_softmax_backward") },
            log_softmax_gradients,
            log_softmax_tangent,
        )?,
    ])
}
