//! Softmax and its logarithm along one dimension, stable: the greatest element of each lane is subtracted first.

use keyfold_core::{Result, layout};
use keyfold_dispatch::Kernel;
use keyfold_tensor::Tensor;

use crate::element::{Float, Number, for_dtype};
use crate::map::cast;
use crate::op::{Op, Registrar};
use crate::promote::{check_supported, computed, floating, rounded};

/// What is made of a lane, once its greatest element is subtracted.
trait Finish: 'static {
    /// What is kept of an element, given it and its exponential.
    fn keep<T: Float>(x: T, exp: T) -> T;
    /// The result, given what was kept and the sum of the exponentials.
    fn finish<T: Float>(kept: T, sum: T) -> T;
}

/// `exp(x) / sum`.
struct Share;
impl Finish for Share {
    #[inline]
    fn keep<T: Float>(_: T, exp: T) -> T {
        exp
    }
    #[inline]
    fn finish<T: Float>(kept: T, sum: T) -> T {
        kept.div(sum)
    }
}

/// `x - ln(sum)`, and not the logarithm of the share, which may have underflowed to 0.
struct LogShare;
impl Finish for LogShare {
    #[inline]
    fn keep<T: Float>(x: T, _: T) -> T {
        x
    }
    #[inline]
    fn finish<T: Float>(kept: T, sum: T) -> T {
        kept.sub(sum.ln())
    }
}

fn softmax<F: Finish>(op: Op, x: &Tensor, dim: i64) -> Result<Tensor> {
    check_supported(op, x.dtype())?;
    let dtype = floating(x.dtype());
    let axis = op.at(layout::normalize_axis(dim, x.ndim()))?;
    let mut out = cast(op, x, computed(dtype))?;
    let (len, inner) = (x.shape()[axis], x.shape()[axis + 1..].iter().product());
    if op.is_meta() || x.numel() == 0 {
        return rounded(op, out, dtype);
    }
    for_dtype!(float: op, computed(dtype), T => {
        let items = op.at(out.as_mut_slice::<T>())?;
        if inner == 1 {
            items.chunks_exact_mut(len).for_each(one_lane::<F, T>);
        } else {
            let mut scratch = vec![T::ZERO; 2 * inner];
            let (greatest, sums) = scratch.split_at_mut(inner);
            for block in items.chunks_exact_mut(len * inner) {
                many_lanes::<F, T>(block, greatest, sums);
            }
        }
    });
    rounded(op, out, dtype)
}

/// One lane whose elements are neighbours.
fn one_lane<F: Finish, T: Float>(lane: &mut [T]) {
    let greatest = lane.iter().fold(T::NEG_INFINITY, |greatest, x| greatest.maximum(*x));
    let mut sum = T::ZERO;
    for x in lane.iter_mut() {
        let less = x.sub(greatest);
        let exp = less.exp();
        sum = sum.add(exp);
        *x = F::keep(less, exp);
    }
    for x in lane.iter_mut() {
        *x = F::finish(*x, sum);
    }
}

/// Lanes side by side: element `i` of each row belongs to lane `i`. Row by row, so that
/// memory is read in order.
fn many_lanes<F: Finish, T: Float>(block: &mut [T], greatest: &mut [T], sums: &mut [T]) {
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
            let less = x.sub(*greatest);
            let exp = less.exp();
            *sum = sum.add(exp);
            *x = F::keep(less, exp);
        }
    }
    for row in block.chunks_exact_mut(inner) {
        for (x, sum) in row.iter_mut().zip(&*sums) {
            *x = F::finish(*x, *sum);
        }
    }
}

/// Defines the operators in a dispatcher.
pub(crate) fn register(ops: &Registrar<'_>) -> Result<()> {
    ops.op("aten::softmax(Tensor self, int dim) -> Tensor", |op| {
        Kernel::typed(move |x: &Tensor, dim: i64| softmax::<Share>(op, x, dim))
    })?;
    ops.op("aten::log_softmax(Tensor self, int dim) -> Tensor", |op| {
        Kernel::typed(move |x: &Tensor, dim: i64| softmax::<LogShare>(op, x, dim))
    })
}
