//! Reductions along dimensions.
//!
//! `dim=None` reduces all dimensions; an empty list reduces none, as in NumPy.

use keyfold_core::{DType, Result};
use keyfold_dispatch::Kernel;
use keyfold_tensor::{IntList, Tensor};

use crate::element::{Float, Number, for_dtype};
use crate::lanes::{Lane, Reduction};
use crate::op::{Op, Registrar};
use crate::promote::{Operand, check_supported, computed, floating, rounded, summed};
use crate::sum::pairwise;

/// Writes `f` of each lane.
fn fill<T: Number, R: Number>(
    out: &mut Tensor,
    x: &Tensor,
    reduction: &Reduction,
    f: impl Fn(Lane<'_, T>) -> R,
) -> Result<()> {
    let mut items = out.as_mut_slice::<R::Stored>()?.iter_mut();
    reduction.lanes::<T>(x, |lane| {
        if let Some(item) = items.next() {
            *item = f(lane).store();
        }
    })
}

fn sum(
    op: Op,
    x: &Tensor,
    dims: Option<&[i64]>,
    keepdim: bool,
    dtype: Option<DType>,
) -> Result<Tensor> {
    check_supported(op, x.dtype())?;
    let dtype = dtype.unwrap_or(summed(x.dtype()));
    let reduction = Reduction::new(op, x.shape(), dims, keepdim)?;
    for_dtype!(signed: op, computed(dtype), T => {
        let mut out = op.output(&reduction.shape, computed(dtype))?;
        if !op.is_meta() {
            let x = Operand::from(x).to_tensor(op, dtype)?;
            op.at(fill(&mut out, &x, &reduction, pairwise::<T>))?;
        }
        rounded(op, out, dtype)
    })
}

fn mean(
    op: Op,
    x: &Tensor,
    dims: Option<&[i64]>,
    keepdim: bool,
    dtype: Option<DType>,
) -> Result<Tensor> {
    check_supported(op, x.dtype())?;
    let dtype = dtype.unwrap_or(floating(x.dtype()));
    let reduction = Reduction::new(op, x.shape(), dims, keepdim)?;
    for_dtype!(float: op, computed(dtype), T => {
        let mut out = op.output(&reduction.shape, computed(dtype))?;
        if !op.is_meta() {
            let x = Operand::from(x).to_tensor(op, dtype)?;
            // Without elements this is 0 / 0, NaN, as in NumPy.
            let count = T::from_number(reduction.len() as f64);
            op.at(fill(&mut out, &x, &reduction, |lane| pairwise::<T>(lane).div(count)))?;
        }
        rounded(op, out, dtype)
    })
}

/// Which of two elements a reduction keeps.
trait Pick: 'static {
    fn pick<T: Number>(a: T, b: T) -> T;
    /// Whether `b` takes the place of `a`, the best so far.
    fn is_better<T: Number>(a: T, b: T) -> bool;
}

struct Greatest;
impl Pick for Greatest {
    #[inline]
    fn pick<T: Number>(a: T, b: T) -> T {
        a.maximum(b)
    }
    #[inline]
    fn is_better<T: Number>(a: T, b: T) -> bool {
        a.lt(b)
    }
}

struct Smallest;
impl Pick for Smallest {
    #[inline]
    fn pick<T: Number>(a: T, b: T) -> T {
        a.minimum(b)
    }
    #[inline]
    fn is_better<T: Number>(a: T, b: T) -> bool {
        b.lt(a)
    }
}

fn extreme<P: Pick>(op: Op, x: &Tensor, dims: Option<&[i64]>, keepdim: bool) -> Result<Tensor> {
    check_supported(op, x.dtype())?;
    let reduction = Reduction::new(op, x.shape(), dims, keepdim)?;
    reduction.check_nonempty(op, x.shape())?;
    let dtype = x.dtype();
    let mut out = op.output(&reduction.shape, computed(dtype))?;
    if op.is_meta() {
        return rounded(op, out, dtype);
    }
    let x = Operand::from(x).to_tensor(op, dtype)?;
    for_dtype!(all: op, x.dtype(), T => {
        let best = |lane: Lane<'_, T>| {
            let mut best = None;
            lane.for_each(|x| best = Some(best.map_or(x, |best| P::pick(best, x))));
            best.unwrap_or(T::ZERO)
        };
        op.at(fill(&mut out, &x, &reduction, best))?;
    });
    rounded(op, out, dtype)
}

/// The place of the extreme element along one dimension, or in row-major order of all; the first
/// of several, and the first NaN if there is one.
fn arg_extreme<P: Pick>(op: Op, x: &Tensor, dim: Option<i64>, keepdim: bool) -> Result<Tensor> {
    check_supported(op, x.dtype())?;
    let dims = dim.as_ref().map(std::slice::from_ref);
    let reduction = Reduction::new(op, x.shape(), dims, keepdim)?;
    reduction.check_nonempty(op, x.shape())?;
    let mut out = op.output(&reduction.shape, DType::I64)?;
    if op.is_meta() {
        return Ok(out);
    }
    let x = Operand::from(x).to_tensor(op, x.dtype())?;
    for_dtype!(all: op, x.dtype(), T => {
        let place = |lane: Lane<'_, T>| {
            let (mut place, mut best, mut index) = (0_i64, None, 0_i64);
            lane.for_each(|x| {
                let better = match best {
                    None => true,
                    Some(best) => P::is_better(best, x) || x.is_nan() && !best.is_nan(),
                };
                if better {
                    (place, best) = (index, Some(x));
                }
                index += 1;
            });
            place
        };
        op.at(fill(&mut out, &x, &reduction, place))?;
    });
    Ok(out)
}

/// Whether all elements of a lane, or any, are as `wanted`: true for "any", false for "all".
fn quantify(
    op: Op,
    x: &Tensor,
    dims: Option<&[i64]>,
    keepdim: bool,
    wanted: bool,
) -> Result<Tensor> {
    check_supported(op, x.dtype())?;
    let reduction = Reduction::new(op, x.shape(), dims, keepdim)?;
    let mut out = op.output(&reduction.shape, DType::Bool)?;
    if op.is_meta() {
        return Ok(out);
    }
    let x = Operand::from(x).to_tensor(op, x.dtype())?;
    for_dtype!(all: op, x.dtype(), T => {
        let found = |lane: Lane<'_, T>| {
            let mut found = false;
            lane.for_each(|x| found |= x.is_nonzero() == wanted);
            found == wanted
        };
        op.at(fill(&mut out, &x, &reduction, found))?;
    });
    Ok(out)
}

/// Defines these operators in a dispatcher.
pub(crate) fn register(ops: &Registrar<'_>) -> Result<()> {
    ops.op("aten::sum(Tensor self, *, ScalarType? dtype=None) -> Tensor", |op| {
        Kernel::typed(move |x: &Tensor, dtype: Option<DType>| sum(op, x, None, false, dtype))
    })?;
    ops.op(
        "aten::sum.dim(Tensor self, int[]? dim, bool keepdim=False, *, \
         ScalarType? dtype=None) -> Tensor",
        |op| {
            Kernel::typed(
                move |x: &Tensor, dim: Option<IntList>, keepdim: bool, dtype: Option<DType>| {
                    sum(op, x, dim.as_deref(), keepdim, dtype)
                },
            )
        },
    )?;
    ops.op("aten::mean(Tensor self, *, ScalarType? dtype=None) -> Tensor", |op| {
        Kernel::typed(move |x: &Tensor, dtype: Option<DType>| mean(op, x, None, false, dtype))
    })?;
    ops.op(
        "aten::mean.dim(Tensor self, int[]? dim, bool keepdim=False, *, \
         ScalarType? dtype=None) -> Tensor",
        |op| {
            Kernel::typed(
                move |x: &Tensor, dim: Option<IntList>, keepdim: bool, dtype: Option<DType>| {
                    mean(op, x, dim.as_deref(), keepdim, dtype)
                },
            )
        },
    )?;
    ops.op("aten::max(Tensor self) -> Tensor", |op| {
        Kernel::typed(move |x: &Tensor| extreme::<Greatest>(op, x, None, false))
    })?;
    ops.op("aten::min(Tensor self) -> Tensor", |op| {
        Kernel::typed(move |x: &Tensor| extreme::<Smallest>(op, x, None, false))
    })?;
    along(
        ops,
        "aten::amax(Tensor self, int[]? dim=None, bool keepdim=False) -> Tensor",
        extreme::<Greatest>,
    )?;
    along(
        ops,
        "aten::amin(Tensor self, int[]? dim=None, bool keepdim=False) -> Tensor",
        extreme::<Smallest>,
    )?;
    along(
        ops,
        "aten::all(Tensor self, int[]? dim=None, bool keepdim=False) -> Tensor",
        |op, x, dims, keepdim| quantify(op, x, dims, keepdim, false),
    )?;
    along(
        ops,
        "aten::any(Tensor self, int[]? dim=None, bool keepdim=False) -> Tensor",
        |op, x, dims, keepdim| quantify(op, x, dims, keepdim, true),
    )?;
    ops.op("aten::argmax(Tensor self, int? dim=None, bool keepdim=False) -> Tensor", |op| {
        Kernel::typed(move |x: &Tensor, dim: Option<i64>, keepdim: bool| {
            arg_extreme::<Greatest>(op, x, dim, keepdim)
        })
    })?;
    ops.op("aten::argmin(Tensor self, int? dim=None, bool keepdim=False) -> Tensor", |op| {
        Kernel::typed(move |x: &Tensor, dim: Option<i64>, keepdim: bool| {
            arg_extreme::<Smallest>(op, x, dim, keepdim)
        })
    })
}

/// A reduction that takes nothing but dimensions and whether they stay, at size 1.
type Along = fn(Op, &Tensor, Option<&[i64]>, bool) -> Result<Tensor>;

/// Registers one.
fn along(ops: &Registrar<'_>, schema: &'static str, kernel: Along) -> Result<()> {
    ops.op(schema, |op| {
        Kernel::typed(move |x: &Tensor, dim: Option<IntList>, keepdim: bool| {
            kernel(op, x, dim.as_deref(), keepdim)
        })
    })
}
