//! The operators, each with an overload that writes into a tensor of the caller's.

use keyfold_core::{DType, Result};
use keyfold_dispatch::Kernel;
use keyfold_kit::evaluate::{Overlap, overlap};
use keyfold_tensor::{IntList, SameAs, Tensor};

use super::extreme::End;
use super::geometry::Reduction;
use super::quantify::Quantity;
use super::sum::Total;
use super::{arg, extreme, quantify, softmax, sum};
use crate::elementwise::check_out;
use crate::map;
use crate::op::{Op, Registrar};

/// Where a result goes.
trait Target: Copy {
    /// What the kernel returns.
    type Result;

    /// Has `compute` write the result, of that shape and dtype, unless on Meta.
    fn write(
        self,
        op: Op,
        x: &Tensor,
        form: (&[usize], DType),
        compute: impl Fn(&Tensor, &Tensor) -> Result<()>,
    ) -> Result<Self::Result>;
}

/// A new tensor.
#[derive(Clone, Copy)]
struct Fresh;

impl Target for Fresh {
    type Result = Tensor;

    #[inline]
    fn write(
        self,
        op: Op,
        x: &Tensor,
        (shape, dtype): (&[usize], DType),
        compute: impl Fn(&Tensor, &Tensor) -> Result<()>,
    ) -> Result<Tensor> {
        let out = op.output(shape, dtype)?;
        if !op.is_meta() {
            op.at(compute(x, &out))?;
        }
        Ok(out)
    }
}

/// A tensor of the caller's, and which argument it is.
#[derive(Clone, Copy)]
struct Given<'a>(&'a Tensor, usize);

impl Target for Given<'_> {
    type Result = SameAs;

    fn write(
        self,
        op: Op,
        x: &Tensor,
        (shape, dtype): (&[usize], DType),
        compute: impl Fn(&Tensor, &Tensor) -> Result<()>,
    ) -> Result<SameAs> {
        let Given(out, argument) = self;
        check_out(op, out, shape, dtype)?;
        if op.is_meta() {
            return Ok(SameAs(argument));
        }
        // What is written over while it is read is read from a copy.
        let copy;
        let mut x = x;
        if op.at(overlap(out, x))? != Overlap::None {
            copy = op.at(x.copy())?;
            x = &copy;
        }
        if out.dtype() == dtype {
            op.at_out(compute(x, out))?;
        } else {
            let own = op.output(shape, dtype)?;
            op.at(compute(x, &own))?;
            // SAFETY: the schema says that the operator writes to this argument, so the caller gave
            // its memory up for the time of the call.
            unsafe { map::write(op, &own, out) }?;
        }
        Ok(SameAs(argument))
    }
}

fn total<T: Target>(
    (op, to): (Op, T),
    total: Total,
    x: &Tensor,
    (dims, keepdim): (Option<&[i64]>, bool),
    dtype: Option<DType>,
) -> Result<T::Result> {
    let (plan, dtype) = sum::plan(op, total, x, dims, keepdim, dtype)?;
    to.write(op, x, (&plan.shape, dtype), |x, out| sum::compute_into(total, &plan, x, out))
}

fn extreme<T: Target>(
    (op, to): (Op, T),
    end: End,
    x: &Tensor,
    (dims, keepdim): (Option<&[i64]>, bool),
) -> Result<T::Result> {
    let plan = extreme::plan(op, x, dims, keepdim)?;
    to.write(op, x, (&plan.shape, x.dtype()), |x, out| extreme::compute_into(end, &plan, x, out))
}

fn arg_extreme<T: Target>(
    (op, to): (Op, T),
    end: End,
    x: &Tensor,
    (dim, keepdim): (Option<i64>, bool),
) -> Result<T::Result> {
    let plan = extreme::plan(op, x, dim.as_ref().map(std::slice::from_ref), keepdim)?;
    to.write(op, x, (&plan.shape, DType::I64), |x, out| arg::compute_into(end, &plan, x, out))
}

fn quantify<T: Target>(
    (op, to): (Op, T),
    quantity: Quantity,
    x: &Tensor,
    (dims, keepdim): (Option<&[i64]>, bool),
) -> Result<T::Result> {
    let plan = Reduction::new(op, x.shape(), dims, keepdim)?;
    let form = (&plan.shape[..], DType::Bool);
    to.write(op, x, form, |x, out| quantify::compute_into(quantity, &plan, x, out))
}

fn soft<T: Target>((op, to): (Op, T), log: bool, x: &Tensor, dim: i64) -> Result<T::Result> {
    let (axis, dtype) = softmax::plan(op, x, dim)?;
    to.write(op, x, (x.shape(), dtype), |x, out| softmax::compute_into(log, axis, x, out))
}

/// Defines these operators in a dispatcher.
pub(crate) fn register(ops: &Registrar<'_>) -> Result<()> {
    totals(ops, "aten::sum", Total::Sum)?;
    totals(ops, "aten::mean", Total::Mean)?;
    extremes(ops, ["aten::max", "aten::amax", "aten::argmax"], End::Greatest)?;
    extremes(ops, ["aten::min", "aten::amin", "aten::argmin"], End::Smallest)?;
    for (name, quantity) in [("aten::all", Quantity::All), ("aten::any", Quantity::Any)] {
        ops.with_out(
            (name, ""),
            "Tensor self, int[]? dim=None, bool keepdim=False",
            |op| {
                Kernel::typed(move |x: &Tensor, dim: Option<IntList>, keepdim: bool| {
                    quantify((op, Fresh), quantity, x, (dim.as_deref(), keepdim))
                })
            },
            |op| {
                Kernel::typed(
                    move |x: &Tensor, dim: Option<IntList>, keepdim: bool, out: &Tensor| {
                        let to = (op, Given(out, 3));
                        quantify(to, quantity, x, (dim.as_deref(), keepdim))
                    },
                )
            },
        )?;
    }
    for (name, log) in [("aten::softmax", false), ("aten::log_softmax", true)] {
        ops.with_out(
            (name, ""),
            "Tensor self, int dim",
            |op| Kernel::typed(move |x: &Tensor, dim: i64| soft((op, Fresh), log, x, dim)),
            |op| {
                Kernel::typed(move |x: &Tensor, dim: i64, out: &Tensor| {
                    soft((op, Given(out, 2)), log, x, dim)
                })
            },
        )?;
    }
    Ok(())
}

fn totals(ops: &Registrar<'_>, name: &'static str, what: Total) -> Result<()> {
    ops.with_out(
        (name, ""),
        "Tensor self, *, ScalarType? dtype=None",
        |op| {
            Kernel::typed(move |x: &Tensor, dtype: Option<DType>| {
                total((op, Fresh), what, x, (None, false), dtype)
            })
        },
        |op| {
            Kernel::typed(move |x: &Tensor, dtype: Option<DType>, out: &Tensor| {
                total((op, Given(out, 2)), what, x, (None, false), dtype)
            })
        },
    )?;
    ops.with_out(
        (name, "dim"),
        "Tensor self, int[]? dim, bool keepdim=False, *, ScalarType? dtype=None",
        |op| {
            Kernel::typed(
                move |x: &Tensor, dim: Option<IntList>, keepdim: bool, dtype: Option<DType>| {
                    total((op, Fresh), what, x, (dim.as_deref(), keepdim), dtype)
                },
            )
        },
        |op| {
            Kernel::typed(
                move |x: &Tensor,
                      dim: Option<IntList>,
                      keepdim: bool,
                      dtype: Option<DType>,
                      out: &Tensor| {
                    total((op, Given(out, 4)), what, x, (dim.as_deref(), keepdim), dtype)
                },
            )
        },
    )
}

fn extremes(ops: &Registrar<'_>, [all, dim, arg]: [&'static str; 3], end: End) -> Result<()> {
    ops.with_out(
        (all, ""),
        "Tensor self",
        |op| Kernel::typed(move |x: &Tensor| extreme((op, Fresh), end, x, (None, false))),
        |op| {
            Kernel::typed(move |x: &Tensor, out: &Tensor| {
                extreme((op, Given(out, 1)), end, x, (None, false))
            })
        },
    )?;
    ops.with_out(
        (dim, ""),
        "Tensor self, int[]? dim=None, bool keepdim=False",
        |op| {
            Kernel::typed(move |x: &Tensor, dim: Option<IntList>, keepdim: bool| {
                extreme((op, Fresh), end, x, (dim.as_deref(), keepdim))
            })
        },
        |op| {
            Kernel::typed(move |x: &Tensor, dim: Option<IntList>, keepdim: bool, out: &Tensor| {
                extreme((op, Given(out, 3)), end, x, (dim.as_deref(), keepdim))
            })
        },
    )?;
    ops.with_out(
        (arg, ""),
        "Tensor self, int? dim=None, bool keepdim=False",
        |op| {
            Kernel::typed(move |x: &Tensor, dim: Option<i64>, keepdim: bool| {
                arg_extreme((op, Fresh), end, x, (dim, keepdim))
            })
        },
        |op| {
            Kernel::typed(move |x: &Tensor, dim: Option<i64>, keepdim: bool, out: &Tensor| {
                arg_extreme((op, Given(out, 3)), end, x, (dim, keepdim))
            })
        },
    )
}
