//! Softmax along one dimension, stable: the greatest element of each lane is subtracted first.

use keyfold_core::{Result, layout};
use keyfold_dispatch::Kernel;
use keyfold_tensor::Tensor;

use crate::element::{Float, Number, for_dtype};
use crate::map::cast;
use crate::op::{Op, Registrar};
use crate::promote::{check_supported, floating};

fn softmax(op: Op, x: &Tensor, dim: i64) -> Result<Tensor> {
    check_supported(op, x.dtype())?;
    let dtype = floating(x.dtype());
    let axis = op.at(layout::normalize_axis(dim, x.ndim()))?;
    let mut out = if op.is_meta() { op.output(x.shape(), dtype)? } else { cast(op, x, dtype)? };
    let (len, inner) = (x.shape()[axis], x.shape()[axis + 1..].iter().product());
    if op.is_meta() || x.numel() == 0 {
        return Ok(out);
    }
    for_dtype!(float: op, dtype, T => {
        let items = op.at(out.as_mut_slice::<T>())?;
        if inner == 1 {
            items.chunks_exact_mut(len).for_each(one_lane);
        } else {
            let mut scratch = vec![T::ZERO; 2 * inner];
            let (greatest, sums) = scratch.split_at_mut(inner);
            for block in items.chunks_exact_mut(len * inner) {
                many_lanes(block, greatest, sums);
            }
        }
    });
    Ok(out)
}

/// Softmax of a lane whose elements are neighbours.
fn one_lane<T: Float>(lane: &mut [T]) {
    let greatest = lane.iter().fold(T::NEG_INFINITY, |greatest, x| greatest.maximum(*x));
    let mut sum = T::ZERO;
    for x in lane.iter_mut() {
        *x = x.sub(greatest).exp();
        sum = sum.add(*x);
    }
    for x in lane.iter_mut() {
        *x = x.div(sum);
    }
}

/// Softmax of lanes side by side: element `i` of each row belongs to lane `i`. Row by row, so that
/// memory is read in order.
fn many_lanes<T: Float>(block: &mut [T], greatest: &mut [T], sums: &mut [T]) {
    let inner = sums.len();
    greatest.fill(T::NEG_INFINITY);
    sums.fill(T::ZERO);
    for row in block.chunks_exact(inner) {
        for (greatest, x) in greatest.iter_mut().zip(row) {
            *greatest = greatest.maximum(*x);
        }
    }
    for row in block.chunks_exact_mut(inner) {
        for ((x, greatest), sum) in row.iter_mut().zip(&*greatest).zip(&mut *sums) {
            *x = x.sub(*greatest).exp();
            *sum = sum.add(*x);
        }
    }
    for row in block.chunks_exact_mut(inner) {
        for (x, sum) in row.iter_mut().zip(&*sums) {
            *x = x.div(*sum);
        }
    }
}

/// Defines the operator in a dispatcher.
pub(crate) fn register(ops: &Registrar<'_>) -> Result<()> {
    ops.op("aten::softmax(Tensor self, int dim) -> Tensor", |op| {
        Kernel::typed(move |x: &Tensor, dim: i64| softmax(op, x, dim))
    })
}
