//! Batching rules of cells: the examples' batches become one.

use keyfold_core::Result;
use keyfold_layers::vmap::Batch;
use keyfold_tensor::{Tensor, Value, ValueRef};

use crate::arg_values::is_true;
use crate::aten;

/// Returns a matrix of the rows of all examples; `None` if an example isn't a matrix.
fn folded(batch: &Batch<'_, '_>, place: usize) -> Result<Option<Tensor>> {
    let operand = batch.operand(place)?;
    if operand.rank() != 2 {
        return Ok(None);
    }
    let all = operand.batched(batch.size)?;
    let [examples, rows, columns] = [0, 1, 2].map(|dim| all.shape()[dim]);
    aten::reshape(&all, &aten::sizes(&[examples * rows, columns])).map(Some)
}

/// Returns a result with the rows of all examples as one matrix for each.
fn unfolded(batch: &Batch<'_, '_>, result: &Tensor) -> Result<Tensor> {
    let [rows, columns] = [0, 1].map(|dim| result.shape()[dim]);
    let rows = rows / batch.size.max(1);
    aten::reshape(result, &aten::sizes(&[batch.size, rows, columns]))
}

/// Wraps results.
fn wrapped(batch: &Batch<'_, '_>, results: Vec<Tensor>) -> Result<Option<Value>> {
    let one = |result: Tensor| batch.wrap(Value::Tensor(result), 0);
    Ok(Some(Value::Tuple(results.into_iter().map(one).collect::<Result<_>>()?)))
}

/// Calls the operator below, and returns its results for each example. Those without rows stay as they are.
fn call(batch: &Batch<'_, '_>, args: &[ValueRef<'_>]) -> Result<Vec<Tensor>> {
    let Value::Tuple(results) = batch.call(args)? else { return Ok(Vec::new()) };
    let one = |result: Value| {
        let result = result.into_tensor()?;
        if result.ndim() == 2 { unfolded(batch, &result) } else { Ok(result) }
    };
    results.into_iter().map(one).collect()
}

pub(super) fn cell(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    let tensors = [folded(batch, 0)?, folded(batch, 1)?, folded(batch, 2)?];
    let [Some(mut input), Some(mut hidden), Some(state)] = tensors else { return Ok(None) };
    let mut biases = [ValueRef::None, ValueRef::None];
    let given = [3, 4].map(|place| batch.args.get(place).is_some_and(|arg| arg.tensor().is_ok()));
    match given {
        [true, true] => {
            let (of_input, of_hidden) = (batch.operand(3)?, batch.operand(4)?);
            let columns = input.shape()[1];
            let fits = of_input.rank() == 1
                && of_hidden.rank() == 1
                && [of_input.size_at(0), of_hidden.size_at(0)] == [columns; 2];
            if !fits {
                return Ok(None);
            }
            if of_input.dim.is_none() && of_hidden.dim.is_none() {
                biases = [batch.args[3], batch.args[4]];
            } else {
                // The examples' own biases are added to their gates.
                for (gates, bias) in [(&mut input, of_input), (&mut hidden, of_hidden)] {
                    let bias = aten::unsqueeze(&bias.batched(batch.size)?, 1)?;
                    let sum = aten::add(&unfolded(batch, gates)?, &bias)?;
                    *gates = aten::reshape(&sum, &aten::sizes(gates.shape()))?;
                }
            }
        }
        [false, false] => {}
        _ => return Ok(None),
    }
    let [input_bias, hidden_bias] = biases;
    let args = [(&input).into(), (&hidden).into(), (&state).into(), input_bias, hidden_bias];
    wrapped(batch, call(batch, &args)?)
}

/// Adds up the rows of each example's gates, if there are biases; else the gradients are empty.
fn of_bias(batch: &Batch<'_, '_>, gates: &Tensor, biased: bool) -> Result<Tensor> {
    match biased {
        true => aten::sum(gates, &[1], false),
        false => aten::full(&[batch.size, 0], 0.0, gates.dtype(), gates.device()),
    }
}

pub(super) fn gru_backward(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    let (Some(grad), Some(workspace)) = (folded(batch, 0)?, folded(batch, 1)?) else {
        return Ok(None);
    };
    let mut found = call(batch, &[(&grad).into(), (&workspace).into(), false.into()])?;
    for place in [0, 1].into_iter().take(found.len().saturating_sub(3)) {
        found[3 + place] = of_bias(batch, &found[place], is_true(batch.args[2]))?;
    }
    wrapped(batch, found)
}

pub(super) fn lstm_backward(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    let mut tensors: [Option<Tensor>; 5] = [const { None }; 5];
    for (place, tensor) in tensors.iter_mut().enumerate() {
        if batch.args[place].tensor().is_ok() {
            *tensor = folded(batch, place)?;
            if tensor.is_none() {
                return Ok(None);
            }
        }
    }
    let args = tensors.iter().map(|one| one.as_ref().map_or(ValueRef::None, ValueRef::Tensor));
    let args: Vec<ValueRef<'_>> = args.chain([false.into()]).collect();
    let mut found = call(batch, &args)?;
    if found.len() == 3 {
        found[2] = of_bias(batch, &found[0], is_true(batch.args[5]))?;
    }
    wrapped(batch, found)
}
