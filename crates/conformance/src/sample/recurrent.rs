//! Samples of cells of recurrent networks.

use keyfold_dispatch::schema::Argument;
use keyfold_tensor::Value;

use super::{Family, Sampler, plain};
use crate::array::Arg;
use crate::number::Number;

pub(super) const FAMILY: Family = Family { fit_shape, argument, fit_values, ..Family::PLAIN };

/// The features of the input of a cell with its products.
const FEATURES: usize = 3;

fn is_cell(name: &str) -> bool {
    matches!(
        name,
        "aten::_thnn_fused_gru_cell"
            | "aten::_thnn_fused_gru_cell_backward"
            | "aten::_thnn_fused_lstm_cell"
            | "aten::_thnn_fused_lstm_cell_backward_impl"
            | "aten::gru_cell"
            | "aten::lstm_cell"
    )
}

/// A batch of states: the rows, and their width.
fn fit_shape(sampler: &mut Sampler, name: &str) -> Option<()> {
    if is_cell(name) {
        sampler.at_least(2);
        let width = sampler.shape.pop()?;
        let rows = sampler.shape.iter().product::<usize>().min(70);
        sampler.shape = vec![rows, width.min(300)];
        if name == "aten::gru_cell" || name == "aten::lstm_cell" {
            sampler.shape = vec![rows, width.min(20)];
        }
    }
    Some(())
}

fn argument(sampler: &mut Sampler, name: &str, argument: &Argument, _: &[Arg]) -> Option<Arg> {
    if !is_cell(name) {
        return None;
    }
    let &[rows, width] = &sampler.shape[..] else { return None };
    let gates = if name.contains("gru") { 3 } else { 4 };
    let choice = sampler.choice;
    let shape = match &*argument.name {
        "input_gates" | "hidden_gates" => vec![rows, gates * width],
        "workspace" if name.contains("gru") => vec![rows, 5 * width],
        "workspace" => vec![rows, 4 * width],
        "input_bias" | "hidden_bias" | "b_ih" | "b_hh" if choice % 2 == 1 => {
            return plain(Value::None);
        }
        "input_bias" | "hidden_bias" | "b_ih" | "b_hh" => vec![gates * width],
        "grad_hy" if gates == 4 && choice % 3 == 1 => return plain(Value::None),
        "grad_cy" if choice % 3 == 2 => return plain(Value::None),
        "has_bias" => return plain(Value::Bool(choice.is_multiple_of(2))),
        "input" => vec![rows, FEATURES],
        "w_ih" => vec![gates * width, FEATURES],
        "w_hh" => vec![gates * width, width],
        "hx" if name == "aten::lstm_cell" => {
            let states = [sampler.tensor(&[rows, width]), sampler.tensor(&[rows, width])];
            return Some(Arg::Tensors(states.map(Some).into()));
        }
        _ => vec![rows, width],
    };
    Some(Arg::Tensor(sampler.tensor(&shape)))
}

/// Makes greater numbers small ones, so that no product of them overflows in one order and not in another.
fn fit_values(_: &Sampler, name: &str, args: &mut [Arg]) {
    if !is_cell(name) {
        return;
    }
    let fit = |item: &mut Number| {
        if let Number::Float(x) = item {
            *x = if x.is_finite() { *x % 0.5 } else { 0.25 };
        }
    };
    for arg in args {
        match arg {
            Arg::Tensor(operand) => operand.array.items.iter_mut().for_each(fit),
            Arg::Tensors(all) => {
                all.iter_mut().flatten().for_each(|one| one.array.items.iter_mut().for_each(fit));
            }
            Arg::Plain(_) => {}
        }
    }
}
