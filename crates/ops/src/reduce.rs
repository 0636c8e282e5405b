//! Reductions along dimensions, and softmax, each with an overload that writes into a tensor of the
//! caller's.
//!
//! `dim=None` reduces all dimensions; an empty list reduces none, as in NumPy.

use keyfold_backend::{GpuBackend, Launch, ReduceOp, ReduceParams, RowOp, RowParams};
use keyfold_core::{DType, DTypeKind, ErrorKind, Result, Shape, layout};
use keyfold_dispatch::Kernel;
use keyfold_tensor::{IntList, Overlap, SameAs, Tensor, overlap};

use crate::elementwise::check_out;
use crate::map;
use crate::op::{Op, Registrar};
use crate::promote::floating;

/// The dtypes that have an order.
const ORDERED: [DType; 13] = [
    DType::Bool,
    DType::U8,
    DType::U16,
    DType::U32,
    DType::U64,
    DType::I8,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::F16,
    DType::BF16,
    DType::F32,
    DType::F64,
];

/// Refuses complex numbers.
fn check_ordered(op: &Op, dtype: DType) -> Result<()> {
    if dtype.is_complex() { Err(op.unsupported("self", dtype, &ORDERED)) } else { Ok(()) }
}

/// Which dimensions are reduced, and the shape of the result.
struct Plan {
    params: ReduceParams,
    /// The result's shape: without the reduced dimensions, or with them at size 1.
    shape: Shape,
}

impl Plan {
    /// Of these dimensions, negative ones counted from the back; `None` is all of them.
    ///
    /// # Errors
    /// [`ErrorKind::Index`] for a dimension that isn't there, [`ErrorKind::Value`] for one named
    /// twice.
    fn new(
        op: &Op,
        which: ReduceOp,
        shape: &[usize],
        dims: Option<&[i64]>,
        keepdim: bool,
    ) -> Result<Self> {
        let all = u64::MAX.checked_shr(64 - shape.len() as u32).unwrap_or(0);
        let mut reduced = if dims.is_none() { all } else { 0 };
        for &dim in dims.unwrap_or_default() {
            let axis = op.at(layout::normalize_axis(dim, shape.len()))?;
            if reduced >> axis & 1 == 1 {
                let message = format!("dim {dim} is named twice in {:?}", dims.unwrap_or_default());
                return Err(op.error(ErrorKind::Value, message));
            }
            reduced |= 1 << axis;
        }
        let stays = if keepdim { shape.len() } else { shape.len() - reduced.count_ones() as usize };
        let mut result = Shape::filled(1, stays)?;
        let mut at = 0;
        for (d, &size) in shape.iter().enumerate() {
            let kept = reduced >> d & 1 == 0;
            if kept {
                result[at] = size;
            }
            at += usize::from(keepdim || kept);
        }
        let params = ReduceParams { op: which, keepdim: keepdim.into(), dims: reduced };
        Ok(Plan { params, shape: result })
    }

    /// Refuses lanes without elements, if there are any, for a reduction that has no value there.
    fn check_nonempty(&self, op: &Op, shape: &[usize]) -> Result<()> {
        let mut reduced = shape.iter().enumerate().filter(|(d, _)| self.params.dims >> d & 1 == 1);
        if reduced.all(|(_, size)| *size > 0) || self.shape.contains(&0) {
            return Ok(());
        }
        let message =
            format!("shape {shape:?} leaves nothing to choose from; no value stands for that");
        Err(op.error(ErrorKind::Value, message))
    }
}

/// Where a result goes.
trait Target: Copy {
    /// What the kernel returns.
    type Result;

    /// Has a kernel write the result, of that shape and dtype, unless on Meta. `select` chooses it.
    fn write<'o, P: 'o>(
        self,
        op: &'o Op,
        x: &Tensor,
        form: (&[usize], DType),
        select: impl FnOnce(&'o Op) -> Result<&'o dyn Launch<P>>,
        params: &P,
    ) -> Result<Self::Result>;
}

/// A new tensor.
#[derive(Clone, Copy)]
struct Fresh;

impl Target for Fresh {
    type Result = Tensor;

    #[inline]
    fn write<'o, P: 'o>(
        self,
        op: &'o Op,
        x: &Tensor,
        (shape, dtype): (&[usize], DType),
        select: impl FnOnce(&'o Op) -> Result<&'o dyn Launch<P>>,
        params: &P,
    ) -> Result<Tensor> {
        let out = op.output(op.device_of(x), shape, dtype)?;
        if !op.is_meta() {
            // SAFETY: the result was made here and nobody else has it.
            op.at(unsafe { select(op)?.launch(params, &[x], &out) })?;
        }
        Ok(out)
    }
}

/// A tensor of the caller's, and which argument it is.
#[derive(Clone, Copy)]
struct Given<'a>(&'a Tensor, usize);

impl Target for Given<'_> {
    type Result = SameAs;

    fn write<'o, P: 'o>(
        self,
        op: &'o Op,
        x: &Tensor,
        (shape, dtype): (&[usize], DType),
        select: impl FnOnce(&'o Op) -> Result<&'o dyn Launch<P>>,
        params: &P,
    ) -> Result<SameAs> {
        let Given(out, argument) = self;
        check_out(op, out, shape, dtype)?;
        if op.is_meta() {
            return Ok(SameAs(argument));
        }
        let kernel = select(op)?;
        // What is written over while it is read is read from a copy.
        let copy;
        let mut x = x;
        if op.at(overlap(out, x))? != Overlap::None {
            copy = op.at(x.copy())?;
            x = &copy;
        }
        if out.dtype() == dtype {
            // SAFETY: the schema says that the operator writes to this argument, so the caller gave
            // its memory up for the time of the call.
            op.at_out(unsafe { kernel.launch(params, &[x], out) })?;
        } else {
            let own = op.output(op.device_of(x), shape, dtype)?;
            // SAFETY: the tensor was made here and nobody else has it.
            op.at(unsafe { kernel.launch(params, &[x], &own) })?;
            // SAFETY: as above, of the argument.
            unsafe { map::write(op, &own, out) }?;
        }
        Ok(SameAs(argument))
    }
}

/// The result of a reduction of that plan and dtype.
#[inline]
fn reduced<T: Target>(
    (op, to): (&Op, T),
    x: &Tensor,
    plan: &Plan,
    dtype: DType,
) -> Result<T::Result> {
    let which = plan.params.op;
    let select =
        |op| Op::kernel(op, GpuBackend::reduce, |group| group.reduce(which, x.dtype(), dtype));
    to.write(op, x, (&plan.shape, dtype), select, &plan.params)
}

/// Sums and means.
fn sum<T: Target>(
    (op, to): (&Op, T),
    which: ReduceOp,
    x: &Tensor,
    (dims, keepdim): (Option<&[i64]>, bool),
    dtype: Option<DType>,
) -> Result<T::Result> {
    let plan = Plan::new(op, which, x.shape(), dims, keepdim)?;
    let (from, mean) = (x.dtype(), which == ReduceOp::Mean);
    let dtype = dtype.unwrap_or(match from.kind() {
        DTypeKind::Float | DTypeKind::Complex => from,
        _ if mean => DType::DEFAULT_FLOAT,
        DTypeKind::UInt => DType::U64,
        _ => DType::DEFAULT_INT,
    });
    let fits = if mean { dtype.kind() >= DTypeKind::Float } else { dtype != DType::Bool };
    if !fits {
        let what = match mean {
            false => "a sum; choose a dtype of numbers",
            true => {
                "a mean; choose one of float16, bfloat16, float32, float64, complex64, complex128"
            }
        };
        let message = format!("argument 'dtype': {dtype} can't hold {what}");
        return Err(op.error(ErrorKind::DType, message));
    }
    if from.is_complex() && !dtype.is_complex() {
        let message = format!("{from} to {dtype} would drop the imaginary parts");
        return Err(op.error(ErrorKind::DType, message));
    }
    reduced((op, to), x, &plan, dtype)
}

/// The greatest or the smallest element, or its place as int64.
fn min_max<T: Target>(
    (op, to): (&Op, T),
    which: ReduceOp,
    x: &Tensor,
    (dims, keepdim): (Option<&[i64]>, bool),
) -> Result<T::Result> {
    check_ordered(op, x.dtype())?;
    let plan = Plan::new(op, which, x.shape(), dims, keepdim)?;
    plan.check_nonempty(op, x.shape())?;
    let dtype = match which {
        ReduceOp::ArgMax | ReduceOp::ArgMin => DType::I64,
        _ => x.dtype(),
    };
    reduced((op, to), x, &plan, dtype)
}

/// Whether all elements are true, or any.
fn any_all<T: Target>(
    to: (&Op, T),
    which: ReduceOp,
    x: &Tensor,
    (dims, keepdim): (Option<&[i64]>, bool),
) -> Result<T::Result> {
    let plan = Plan::new(to.0, which, x.shape(), dims, keepdim)?;
    reduced(to, x, &plan, DType::Bool)
}

fn softmax<T: Target>((op, to): (&Op, T), which: RowOp, x: &Tensor, dim: i64) -> Result<T::Result> {
    check_ordered(op, x.dtype())?;
    let axis = op.at(layout::normalize_axis(dim, x.ndim()))?;
    let dtype = floating(x.dtype());
    let select = |op| Op::kernel(op, GpuBackend::rows, |group| group.rows(which, x.dtype(), dtype));
    to.write(op, x, (x.shape(), dtype), select, &RowParams { op: which, axis: axis as u32 })
}

/// Defines these operators in a dispatcher.
pub(crate) fn register(ops: &Registrar<'_>) -> Result<()> {
    sums(ops, "aten::sum", ReduceOp::Sum)?;
    sums(ops, "aten::mean", ReduceOp::Mean)?;
    min_maxes(ops, ["aten::max", "aten::amax", "aten::argmax"], [ReduceOp::Max, ReduceOp::ArgMax])?;
    min_maxes(ops, ["aten::min", "aten::amin", "aten::argmin"], [ReduceOp::Min, ReduceOp::ArgMin])?;
    for (name, which) in [("aten::all", ReduceOp::All), ("aten::any", ReduceOp::Any)] {
        ops.with_out(
            (name, ""),
            "Tensor self, int[1]? dim=None, bool keepdim=False",
            |op| {
                Kernel::typed(move |x: &Tensor, dim: Option<IntList>, keepdim: bool| {
                    any_all((&op, Fresh), which, x, (dim.as_deref(), keepdim))
                })
            },
            |op| {
                Kernel::typed(
                    move |x: &Tensor, dim: Option<IntList>, keepdim: bool, out: &Tensor| {
                        let to = (&op, Given(out, 3));
                        any_all(to, which, x, (dim.as_deref(), keepdim))
                    },
                )
            },
        )?;
    }
    for (name, which) in
        [("aten::softmax", RowOp::Softmax), ("aten::log_softmax", RowOp::LogSoftmax)]
    {
        ops.with_out(
            (name, ""),
            "Tensor self, int dim",
            |op| Kernel::typed(move |x: &Tensor, dim: i64| softmax((&op, Fresh), which, x, dim)),
            |op| {
                Kernel::typed(move |x: &Tensor, dim: i64, out: &Tensor| {
                    softmax((&op, Given(out, 2)), which, x, dim)
                })
            },
        )?;
    }
    Ok(())
}

fn sums(ops: &Registrar<'_>, name: &'static str, which: ReduceOp) -> Result<()> {
    ops.with_out(
        (name, ""),
        "Tensor self, *, ScalarType? dtype=None",
        |op| {
            Kernel::typed(move |x: &Tensor, dtype: Option<DType>| {
                sum((&op, Fresh), which, x, (None, false), dtype)
            })
        },
        |op| {
            Kernel::typed(move |x: &Tensor, dtype: Option<DType>, out: &Tensor| {
                sum((&op, Given(out, 2)), which, x, (None, false), dtype)
            })
        },
    )?;
    ops.with_out(
        (name, "dim"),
        "Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None",
        |op| {
            Kernel::typed(
                move |x: &Tensor, dim: Option<IntList>, keepdim: bool, dtype: Option<DType>| {
                    sum((&op, Fresh), which, x, (dim.as_deref(), keepdim), dtype)
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
                    sum((&op, Given(out, 4)), which, x, (dim.as_deref(), keepdim), dtype)
                },
            )
        },
    )
}

fn min_maxes(
    ops: &Registrar<'_>,
    [all, dim, arg]: [&'static str; 3],
    [value, place]: [ReduceOp; 2],
) -> Result<()> {
    ops.with_out(
        (all, ""),
        "Tensor self",
        |op| Kernel::typed(move |x: &Tensor| min_max((&op, Fresh), value, x, (None, false))),
        |op| {
            Kernel::typed(move |x: &Tensor, out: &Tensor| {
                min_max((&op, Given(out, 1)), value, x, (None, false))
            })
        },
    )?;
    ops.with_out(
        (dim, ""),
        "Tensor self, int[1]? dim=None, bool keepdim=False",
        |op| {
            Kernel::typed(move |x: &Tensor, dim: Option<IntList>, keepdim: bool| {
                min_max((&op, Fresh), value, x, (dim.as_deref(), keepdim))
            })
        },
        |op| {
            Kernel::typed(move |x: &Tensor, dim: Option<IntList>, keepdim: bool, out: &Tensor| {
                min_max((&op, Given(out, 3)), value, x, (dim.as_deref(), keepdim))
            })
        },
    )?;
    ops.with_out(
        (arg, ""),
        "Tensor self, int? dim=None, bool keepdim=False",
        |op| {
            Kernel::typed(move |x: &Tensor, dim: Option<i64>, keepdim: bool| {
                min_max((&op, Fresh), place, x, (dim.as_ref().map(std::slice::from_ref), keepdim))
            })
        },
        |op| {
            Kernel::typed(move |x: &Tensor, dim: Option<i64>, keepdim: bool, out: &Tensor| {
                min_max(
                    (&op, Given(out, 3)),
                    place,
                    x,
                    (dim.as_ref().map(std::slice::from_ref), keepdim),
                )
            })
        },
    )
}
