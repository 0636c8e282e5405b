//! Cells of recurrent networks, from the products of their gates on, and composites with the products.

mod batching;
mod cells;
mod checks;
mod gradients;
mod tangents;

use keyfold_backend::{GpuBackend, Operation, RecurrentParams, ReduceParams};
use keyfold_core::{DType, Device, Result, Shape};
use keyfold_layers::autocast::Category;
use keyfold_layers::autograd::{Pushforward, Saves};
use keyfold_tensor::Tensor;
use smallvec::SmallVec;

use self::checks::{Gates, check_grad};
use crate::convert::to_dtype;
use crate::cow::TensorCow;
use crate::infer::{Call, RunSeveral, SeveralPlan};
use crate::naming::Naming;
use crate::op::Op;
use crate::row::{Batching, Gradient, Layers, Row, Rule, Tangent};

const GRU: &Operation = &Operation::new("gru_cell");
const GRU_BACKWARD: &Operation = &Operation::new("gru_cell_backward");
const LSTM: &Operation = &Operation::new("lstm_cell");
const LSTM_BACKWARD: &Operation = &Operation::new("lstm_cell_backward");

/// The arguments of a cell: the input gates, the hidden gates, the state, and both biases.
type CellArgs<'a> = (&'a Tensor, &'a Tensor, &'a Tensor, Option<&'a Tensor>, Option<&'a Tensor>);

/// Plans a cell of `gates` gates, with results of these widths, in widths of the state.
fn cell<'a>(
    call: Call<'_, ()>,
    (op, gates): (&'static Operation, usize),
    args: CellArgs<'a>,
    widths: &[usize],
) -> Result<SeveralPlan<impl RunSeveral + use<'a>>> {
    let (input, hidden, state, input_bias, hidden_bias) = args;
    let biases = (input_bias, hidden_bias);
    let sizes = Gates { count: gates, input, hidden, state, biases }.check(&call)?;
    let all = [input, hidden, state].into_iter().chain(input_bias).chain(hidden_bias);
    let all: SmallVec<[&Tensor; 5]> = all.collect();
    let dtype = all.iter().fold(input.dtype(), |dtype, x| dtype.promote(x.dtype()));
    let form = |times: &usize| -> Result<(Device, Shape, DType)> {
        let shape = call.at(Shape::new(&[sizes.batch, times * sizes.width]))?;
        Ok((call.device_of(input), shape, dtype))
    };
    let forms = widths.iter().map(form).collect::<Result<SmallVec<[_; 3]>>>()?;
    let run = move |on: &Op, outs: &[&Tensor]| {
        let converted = all.iter().map(|x| to_dtype(on, x, dtype));
        let converted = converted.collect::<Result<SmallVec<[TensorCow<'_>; 5]>>>()?;
        let inputs: SmallVec<[&Tensor; 5]> = converted.iter().map(|x| &**x).collect();
        let params = RecurrentParams { op, biased: input_bias.is_some(), grads: [false; 2] };
        // SAFETY: nothing else uses the results' memory (`RunSeveral`).
        unsafe { on.execute(&params, &inputs, outs) }
    };
    Ok(SeveralPlan::new(forms, run))
}

fn gru<'a>(
    call: Call<'_, ()>,
    args: CellArgs<'a>,
) -> Result<SeveralPlan<impl RunSeveral + use<'a>>> {
    cell(call, (GRU, 3), args, &[1, 5])
}

fn lstm<'a>(
    call: Call<'_, ()>,
    args: CellArgs<'a>,
) -> Result<SeveralPlan<impl RunSeveral + use<'a>>> {
    cell(call, (LSTM, 4), args, &[1, 1, 4])
}

/// Adds up the rows of a matrix.
fn sum_of_rows(op: &Op, x: &Tensor, out: &Tensor) -> Result<()> {
    const SUM: &Operation = &Operation::new("sum");
    let kernel = op.kernel(GpuBackend::reduce, |group| group.reduce(SUM, x.dtype(), x.dtype()))?;
    let params = ReduceParams { op: SUM, keepdim: false.into(), dims: 1 };
    // SAFETY: the result was allocated for this call.
    op.at(unsafe { kernel.launch(&params, &[x], out) })
}

/// The gradients of the input gates, the hidden gates, the state, and with `biased` of both biases.
fn gru_backward<'a>(
    call: Call<'_, ()>,
    (grad, workspace, biased): (&'a Tensor, &'a Tensor, bool),
) -> Result<SeveralPlan<impl RunSeveral + use<'a>>> {
    let (batch, width) = check_grad(&call, ("grad_hy", grad), ("workspace", workspace, 5))?;
    let form = |sizes: &[usize]| -> Result<(Device, Shape, DType)> {
        Ok((call.device_of(grad), call.at(Shape::new(sizes))?, grad.dtype()))
    };
    let gates = form(&[batch, 3 * width])?;
    // Without biases their gradients are empty.
    let bias = form(&[if biased { 3 * width } else { 0 }])?;
    let forms = [gates.clone(), gates, form(&[batch, width])?, bias.clone(), bias];
    let run = move |op: &Op, outs: &[&Tensor]| {
        let params = RecurrentParams { op: GRU_BACKWARD, biased, grads: [true, false] };
        // SAFETY: nothing else uses the results' memory (`RunSeveral`).
        unsafe { op.execute(&params, &[grad, workspace], &outs[..3]) }?;
        if biased {
            sum_of_rows(op, outs[0], outs[3])?;
            sum_of_rows(op, outs[1], outs[4])?;
        }
        Ok(())
    };
    // A backend may lack the sum.
    Ok(SeveralPlan::new(forms, run).whole())
}

/// The arguments of [`lstm_backward`]: the gradients of the new state and of the new cell state, the cell
/// state, the new one, the workspace, and whether the cell has biases.
type LstmBackwardArgs<'a> =
    (Option<&'a Tensor>, Option<&'a Tensor>, &'a Tensor, &'a Tensor, &'a Tensor, bool);

/// The gradients of the gates, which are those of the input gates and of the hidden gates, of the cell state,
/// and with `biased` of the bias, which are those of both.
fn lstm_backward<'a>(
    call: Call<'_, ()>,
    (grad, grad_cell, cell, next_cell, workspace, biased): LstmBackwardArgs<'a>,
) -> Result<SeveralPlan<impl RunSeveral + use<'a>>> {
    let gates = ("workspace", workspace, 4);
    let (batch, width) = check_grad(&call, ("cx", cell), gates)?;
    check_grad(&call, ("cy", next_cell), gates)?;
    for (name, grad) in [("grad_hy", grad), ("grad_cy", grad_cell)] {
        if let Some(grad) = grad {
            check_grad(&call, (name, grad), gates)?;
        }
    }
    let form = |sizes: &[usize]| -> Result<(Device, Shape, DType)> {
        Ok((call.device_of(cell), call.at(Shape::new(sizes))?, cell.dtype()))
    };
    // Without biases their gradient is empty.
    let bias = form(&[if biased { 4 * width } else { 0 }])?;
    let forms = [form(&[batch, 4 * width])?, form(&[batch, width])?, bias];
    let run = move |op: &Op, outs: &[&Tensor]| {
        let grads = [grad.is_some(), grad_cell.is_some()];
        let params = RecurrentParams { op: LSTM_BACKWARD, biased, grads };
        let given = grad.into_iter().chain(grad_cell).chain([cell, next_cell, workspace]);
        let inputs: SmallVec<[&Tensor; 5]> = given.collect();
        // SAFETY: nothing else uses the results' memory (`RunSeveral`).
        unsafe { op.execute(&params, &inputs, &outs[..2]) }?;
        if biased { sum_of_rows(op, outs[0], outs[2]) } else { Ok(()) }
    };
    Ok(SeveralPlan::new(forms, run).whole())
}

/// The rules of the operators that compute gradients.
const fn backward_layers(batching: keyfold_layers::vmap::Rule) -> Layers {
    const DIFFERENTIABLE: &str =
        "gradients that are differentiated are computed by the operators of the cell's derivative";
    Layers {
        derivative: Rule::Refused(DIFFERENTIABLE),
        tangent: Rule::Refused(DIFFERENTIABLE),
        batching: Rule::Given(Batching::Rule(batching)),
        autocast: Category::Leave,
    }
}

/// Returns the rows of recurrent cells.
pub(crate) fn rows() -> Result<Vec<Row>> {
    const READS_ALL: &[Saves] = &[Saves::ALL];
    let forward = |vjp, tangent: fn() -> std::sync::Arc<dyn Pushforward>, batching| Layers {
        derivative: Rule::Given(Gradient::Several(READS_ALL, vjp)),
        tangent: Rule::Given(Tangent::Other(tangent)),
        batching: Rule::Given(Batching::Rule(batching)),
        autocast: Category::LowerPrecision,
    };
    let mut rows = vec![
        Row::computes_several::<CellArgs<'_>, _, _>(
            "aten::_thnn_fused_gru_cell(Tensor input_gates, Tensor hidden_gates, Tensor hx, \
             Tensor? input_bias=None, Tensor? hidden_bias=None) -> (Tensor, Tensor)",
            |_| (),
            gru,
            forward(gradients::gru, tangents::gru, batching::cell),
            Naming::Unnamed("`keyfold.gru_cell` calls it"),
        )?,
        Row::computes_several::<(&Tensor, &Tensor, bool), _, _>(
            "aten::_thnn_fused_gru_cell_backward(Tensor grad_hy, Tensor workspace, bool has_bias) \
             -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
            |_| (),
            gru_backward,
            backward_layers(batching::gru_backward),
            Naming::Unnamed("the derivative of `aten::_thnn_fused_gru_cell` calls it"),
        )?,
        Row::computes_several::<CellArgs<'_>, _, _>(
            "aten::_thnn_fused_lstm_cell(Tensor input_gates, Tensor hidden_gates, Tensor cx, \
             Tensor? input_bias=None, Tensor? hidden_bias=None) -> (Tensor, Tensor, Tensor)",
            |_| (),
            lstm,
            forward(gradients::lstm, tangents::lstm, batching::cell),
            Naming::Unnamed("`keyfold.lstm_cell` calls it"),
        )?,
        Row::computes_several::<LstmBackwardArgs<'_>, _, _>(
            "aten::_thnn_fused_lstm_cell_backward_impl(Tensor? grad_hy, Tensor? grad_cy, Tensor cx, \
             Tensor cy, Tensor workspace, bool has_bias) -> (Tensor, Tensor, Tensor)",
            |_| (),
            lstm_backward,
            backward_layers(batching::lstm_backward),
            Naming::Unnamed("the derivative of `aten::_thnn_fused_lstm_cell` calls it"),
        )?,
    ];
    rows.extend(cells::rows()?);
    Ok(rows)
}
