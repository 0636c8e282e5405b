//! `embedding` and its backward: rows of a table by their numbers, and sums of rows.

use keyfold_core::{DTypeKind, ErrorKind, Result, Scalar, Shape};
use keyfold_layers::autocast::Category;
use keyfold_layers::autograd::{Backward, Gradients};
use keyfold_layers::vmap::Batch;
use keyfold_tensor::{Tensor, Value};
use smallvec::smallvec;

use super::bounds::Indexed;
use super::{Indices, PUT_ADD, READS_INDICES, Selection, batched, contiguous, plan_take};
use crate::aten;
use crate::cow::TensorCow;
use crate::in_place::write_part;
use crate::index_dtype::{as_int64, check_integer_argument};
use crate::infer::{Call, CallPlan, Run};
use crate::jvp::LINEAR;
use crate::naming::Naming;
use crate::op::Op;
use crate::pointwise::{Pointwise, parse};
use crate::promote::computed;
use crate::row::{Layers, Row, Rule};
use crate::vjp::{first_only, formula};

/// Refuses what isn't implemented, and rows that a table of that many doesn't have.
fn check_options(op: &Op, rows: usize, padding: i64, scales: bool, sparse: bool) -> Result<()> {
    for (name, given, why) in [
        ("scale_grad_by_freq", scales, "gradients aren't divided by how often a row is used"),
        ("sparse", sparse, "gradients are dense"),
    ] {
        if given {
            let message = format!("argument '{name}' is true, but {why}; leave it false");
            return Err(op.error(ErrorKind::NotSupported, message));
        }
    }
    if padding < -1 || padding >= rows as i64 {
        let message = format!(
            "argument 'padding_idx' is {padding}, but the table has {rows} rows; give one of them, or -1 for \
             none"
        );
        return Err(op.error(ErrorKind::Index, message));
    }
    Ok(())
}

/// Converts numbers of rows to int64. Negative ones, which often stand for "no row", don't count from the end.
fn row_numbers<'a>(op: &Op, indices: &'a Tensor, rows: usize) -> Result<TensorCow<'a>> {
    check_integer_argument(op, "indices", indices)?;
    let numbers = as_int64(op, indices)?;
    if op.is_meta() || indices.dtype().kind() == DTypeKind::UInt {
        return Ok(numbers);
    }
    if numbers.device().kind().is_host() {
        let whole = op.at(numbers.contiguous())?;
        let all = op.at(whole.as_slice::<i64>())?;
        if all.iter().fold(0, |bits, number| bits | number) >= 0 {
            return Ok(numbers);
        }
        let place = all.iter().position(|number| *number < 0).unwrap_or_default();
        let message = format!(
            "argument 'indices': index {} is negative, at place {place} of its elements in order; rows are \
             numbered from 0 to {}",
            all[place],
            rows as i64 - 1
        );
        return Err(op.error(ErrorKind::Index, message));
    }
    // Reading a device's memory would wait for the device, so a negative number becomes the greatest int64,
    // which is out of range for every table.
    let raised = op.at(parse("where(index_ < 0, last, index_)", &["index_"], &["last"]))?;
    let numbers = Pointwise::new(op.clone(), raised).compute([&*numbers], [i64::MAX.into()])?;
    Ok(TensorCow::from(numbers))
}

type EmbeddingArgs<'a> = (&'a Tensor, &'a Tensor, i64, bool, bool);

#[inline(always)]
fn embedding<'t>(
    call: Call<'_, ()>,
    (weight, indices, padding, scales, sparse): EmbeddingArgs<'t>,
) -> Result<CallPlan<impl Run>> {
    if weight.ndim() != 2 {
        let message = format!(
            "argument 'weight' has shape {:?}, but a table of rows has 2 dimensions",
            weight.shape()
        );
        return Err(call.error(ErrorKind::Shape, message));
    }
    let rows = weight.shape()[0];
    check_options(&call, rows, padding, scales, sparse)?;
    let numbers = row_numbers(&call, indices, rows)?;
    let indices: Indices<'t> = smallvec![Some(numbers), None];
    plan_take(&call, TensorCow::Borrowed(weight), indices)
}

type BackwardArgs<'a> = (&'a Tensor, &'a Tensor, i64, i64, bool);

/// Sums the rows of a gradient by their numbers; the sum of the row `padding_idx` is 0.
#[inline(always)]
fn embedding_dense_backward<'t>(
    call: Call<'_, ()>,
    (grad, indices, rows, padding, scales): BackwardArgs<'t>,
) -> Result<CallPlan<impl Run>> {
    let Some(count) = usize::try_from(rows).ok() else {
        let message = format!("argument 'num_weights' is {rows}, which is negative");
        return Err(call.error(ErrorKind::Shape, message));
    };
    check_options(&call, count, padding, scales, false)?;
    let fits =
        grad.ndim() == indices.ndim() + 1 && **indices.shape() == grad.shape()[..indices.ndim()];
    if !fits {
        let message = format!(
            "argument 'grad_output' has shape {:?}, but the rows of indices of shape {:?} have the same \
             dimensions and one more",
            grad.shape(),
            indices.shape()
        );
        return Err(call.error(ErrorKind::Shape, message));
    }
    let numbers = row_numbers(&call, indices, count)?;
    let shape = call.at(Shape::new(&[count, grad.shape()[indices.ndim()]]))?;
    // Sums of float16 and bfloat16 are rounded once, at the end.
    let dtype = computed(grad.dtype());
    let (picked, _) = Selection::new(&call, PUT_ADD, &shape, smallvec![Some(numbers), None])?;
    let run = move |picked: &Selection<'t>, op: &Op, out: &Tensor| {
        let sum = |sums: &Tensor| {
            let zero = op.at(Tensor::full(&[], Scalar::Bool(false), dtype, sums.device()))?;
            write_part(op, sums, &zero)?;
            let values = contiguous(op, grad, dtype)?;
            picked.launch(op, &values, sums)?;
            match padding {
                -1 => Ok(()),
                row => write_part(op, &op.at(sums.select(0, row))?, &zero),
            }
        };
        if dtype == out.dtype() {
            return sum(out);
        }
        let sums = op.output(out.device(), out.shape(), dtype)?;
        sum(&sums)?;
        write_part(op, out, &sums)
    };
    Ok(CallPlan::new(call.device_of(grad), shape, grad.dtype(), Indexed { picked, run }))
}

fn embedding_gradients(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let (rows, padding) = (call.shape(0)[0] as i64, call.int(2).unwrap_or(-1));
    first_only(call, &aten::embedding_dense_backward(grad, &call.tensor(1)?, rows, padding)?)
}

fn backward_gradients(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let padding = call.int(3).unwrap_or(-1);
    let grad = match padding {
        -1 => grad.clone(),
        row => {
            let nothing = aten::full(&[grad.shape()[1]], 0.0, grad.dtype(), grad.device())?;
            aten::select_scatter(grad, &nothing, 0, row)?
        }
    };
    first_only(call, &aten::embedding(&grad, &call.tensor(1)?)?)
}

/// One table for all examples: their indices are more indices. A table for each example takes the loop.
fn embedding_batched(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    let (weight, indices) = (batch.operand(0)?, batch.operand(1)?);
    if weight.dim.is_some() {
        return Ok(None);
    }
    let indices = indices.in_front()?.tensor;
    let mut args = batch.args.to_vec();
    (args[0], args[1]) = ((&weight.tensor).into(), (&indices).into());
    batch.wrap(batch.call(&args)?, 0).map(Some)
}

/// Returns the rows of `embedding`.
pub(super) fn rows() -> Result<Vec<Row>> {
    Ok(vec![
        Row::computes::<EmbeddingArgs<'_>, _, _>(
            ("aten::embedding", ""),
            "Tensor weight, Tensor indices, int padding_idx=-1, bool scale_grad_by_freq=False, \
             bool sparse=False",
            |_| (),
            embedding,
            Layers {
                derivative: formula(READS_INDICES, embedding_gradients),
                tangent: LINEAR,
                batching: batched(embedding_batched),
                autocast: Category::Leave,
            },
            Naming::PartOf("embedding"),
        )?,
        Row::computes::<BackwardArgs<'_>, _, _>(
            ("aten::embedding_dense_backward", ""),
            "Tensor grad_output, Tensor indices, int num_weights, int padding_idx, \
             bool scale_grad_by_freq",
            |_| (),
            embedding_dense_backward,
            Layers {
                derivative: formula(READS_INDICES, backward_gradients),
                tangent: LINEAR,
                batching: Rule::Refused("each example adds up rows of its own"),
                autocast: Category::FullPrecision,
            },
            Naming::Unnamed("the derivative of `aten::embedding` calls it"),
        )?,
    ])
}
