//! Reductions along dimensions, and softmax, each with an overload that writes into a tensor of the
//! caller's.
//!
//! `dim=None` reduces all dimensions; an empty list reduces none, as in NumPy.

mod batching;
mod gradients;

use keyfold_backend::{GpuBackend, Launch, ReduceOp, ReduceParams, RowOp, RowParams};
use keyfold_core::{DType, DTypeKind, ErrorKind, Result, Shape, layout};
use keyfold_dispatch::Kernel;
use keyfold_layers::autocast::Category;
use keyfold_layers::autograd::{Keeps, Product};
use keyfold_layers::vmap;
use keyfold_tensor::{IntList, Overlap, SameAs, Tensor, overlap};

use crate::elementwise::check_out;
use crate::gradient::{GIVES_BOOLS, GIVES_WHOLE_NUMBERS, NOTHING, RESULT, given};
use crate::map;
use crate::op::Op;
use crate::promote::floating;
use crate::row::{Batching, Gradient, Layers, Row, Rule};

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
        // An input that is written over while it is read is read from a copy.
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

/// Which dimensions are reduced, all without a list, and whether they stay with size 1.
type Dims<'a> = (Option<&'a [i64]>, bool);

/// Reductions with the same checks, whose results have a dtype that follows.
trait Computes {
    fn reduce<T: Target>(
        to: (&Op, T),
        which: ReduceOp,
        x: &Tensor,
        dims: Dims<'_>,
    ) -> Result<T::Result>;
}

/// The greatest or the smallest element, or its position as int64.
struct MinMax;

impl Computes for MinMax {
    fn reduce<T: Target>(
        (op, to): (&Op, T),
        which: ReduceOp,
        x: &Tensor,
        (dims, keepdim): Dims<'_>,
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
}

/// Whether all elements are true, or any.
struct AnyAll;

impl Computes for AnyAll {
    fn reduce<T: Target>(
        to: (&Op, T),
        which: ReduceOp,
        x: &Tensor,
        (dims, keepdim): Dims<'_>,
    ) -> Result<T::Result> {
        let plan = Plan::new(to.0, which, x.shape(), dims, keepdim)?;
        reduced(to, x, &plan, DType::Bool)
    }
}

fn softmax<T: Target>((op, to): (&Op, T), which: RowOp, x: &Tensor, dim: i64) -> Result<T::Result> {
    check_ordered(op, x.dtype())?;
    let axis = op.at(layout::normalize_axis(dim, x.ndim()))?;
    let dtype = floating(x.dtype());
    let select = |op| Op::kernel(op, GpuBackend::rows, |group| group.rows(which, x.dtype(), dtype));
    to.write(op, x, (x.shape(), dtype), select, &RowParams { op: which, axis: axis as u32 })
}

/// The rows of reductions and of softmax.
pub(crate) fn rows() -> Result<Vec<Row>> {
    const BOTH: &[Keeps] = &[Keeps::these(&[0]).and_results()];
    let chosen = |product| given(BOTH, product);
    Ok(vec![
        total("aten::sum", ReduceOp::Sum, gradients::sum, batching::sum)?,
        total_along("aten::sum", ReduceOp::Sum, gradients::sum_dim)?,
        total("aten::mean", ReduceOp::Mean, gradients::mean, batching::mean)?,
        total_along("aten::mean", ReduceOp::Mean, gradients::mean_dim)?,
        extreme("aten::max", ReduceOp::Max, chosen(gradients::max), batching::max)?,
        extreme("aten::min", ReduceOp::Min, chosen(gradients::min), batching::min)?,
        along::<MinMax>("aten::amax", ReduceOp::Max, chosen(gradients::amax))?,
        along::<MinMax>("aten::amin", ReduceOp::Min, chosen(gradients::amin))?,
        along::<AnyAll>("aten::all", ReduceOp::All, GIVES_BOOLS)?,
        along::<AnyAll>("aten::any", ReduceOp::Any, GIVES_BOOLS)?,
        position("aten::argmax", ReduceOp::ArgMax)?,
        position("aten::argmin", ReduceOp::ArgMin)?,
        lanes("aten::softmax", RowOp::Softmax, gradients::softmax)?,
        lanes("aten::log_softmax", RowOp::LogSoftmax, gradients::log_softmax)?,
    ])
}

/// The layers of an operator that has a batching rule.
fn layers(derivative: Rule<Gradient>, batching: vmap::Rule, autocast: Category) -> Layers {
    Layers { derivative, batching: Rule::Given(Batching::Rule(batching)), autocast }
}

/// A sum or a mean of all elements.
fn total(
    name: &'static str,
    which: ReduceOp,
    product: Product,
    batching: vmap::Rule,
) -> Result<Row> {
    Row::with_out(
        (name, ""),
        "Tensor self, *, ScalarType? dtype=None",
        move |op| {
            Kernel::typed(move |x: &Tensor, dtype: Option<DType>| {
                sum((&op, Fresh), which, x, (None, false), dtype)
            })
        },
        move |op| {
            Kernel::typed(move |x: &Tensor, dtype: Option<DType>, out: &Tensor| {
                sum((&op, Given(out, 2)), which, x, (None, false), dtype)
            })
        },
        layers(given(NOTHING, product), batching, Category::FullPrecision),
    )
}

/// A sum or a mean along dimensions.
fn total_along(name: &'static str, which: ReduceOp, product: Product) -> Result<Row> {
    Row::with_out(
        (name, "dim"),
        "Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None",
        move |op| {
            Kernel::typed(
                move |x: &Tensor, dim: Option<IntList>, keepdim: bool, dtype: Option<DType>| {
                    sum((&op, Fresh), which, x, (dim.as_deref(), keepdim), dtype)
                },
            )
        },
        move |op| {
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
        layers(given(NOTHING, product), batching::along, Category::FullPrecision),
    )
}

/// The greatest or the smallest of all elements.
fn extreme(
    name: &'static str,
    which: ReduceOp,
    derivative: Rule<Gradient>,
    batching: vmap::Rule,
) -> Result<Row> {
    Row::with_out(
        (name, ""),
        "Tensor self",
        move |op| {
            Kernel::typed(move |x: &Tensor| MinMax::reduce((&op, Fresh), which, x, (None, false)))
        },
        move |op| {
            Kernel::typed(move |x: &Tensor, out: &Tensor| {
                MinMax::reduce((&op, Given(out, 1)), which, x, (None, false))
            })
        },
        layers(derivative, batching, Category::Leave),
    )
}

/// A reduction along dimensions, or of all elements, whose dtype follows.
fn along<C: Computes>(
    name: &'static str,
    which: ReduceOp,
    derivative: Rule<Gradient>,
) -> Result<Row> {
    Row::with_out(
        (name, ""),
        "Tensor self, int[1]? dim=None, bool keepdim=False",
        move |op| {
            Kernel::typed(move |x: &Tensor, dim: Option<IntList>, keepdim: bool| {
                C::reduce((&op, Fresh), which, x, (dim.as_deref(), keepdim))
            })
        },
        move |op| {
            Kernel::typed(move |x: &Tensor, dim: Option<IntList>, keepdim: bool, out: &Tensor| {
                C::reduce((&op, Given(out, 3)), which, x, (dim.as_deref(), keepdim))
            })
        },
        layers(derivative, batching::along, Category::Leave),
    )
}

/// The position of the greatest or the smallest element.
fn position(name: &'static str, which: ReduceOp) -> Result<Row> {
    Row::with_out(
        (name, ""),
        "Tensor self, int? dim=None, bool keepdim=False",
        move |op| {
            Kernel::typed(move |x: &Tensor, dim: Option<i64>, keepdim: bool| {
                let dims = dim.as_ref().map(std::slice::from_ref);
                MinMax::reduce((&op, Fresh), which, x, (dims, keepdim))
            })
        },
        move |op| {
            Kernel::typed(move |x: &Tensor, dim: Option<i64>, keepdim: bool, out: &Tensor| {
                let dims = dim.as_ref().map(std::slice::from_ref);
                MinMax::reduce((&op, Given(out, 3)), which, x, (dims, keepdim))
            })
        },
        layers(GIVES_WHOLE_NUMBERS, batching::arg, Category::Leave),
    )
}

/// Softmax or its logarithm, of each lane along a dimension.
fn lanes(name: &'static str, which: RowOp, product: Product) -> Result<Row> {
    Row::with_out(
        (name, ""),
        "Tensor self, int dim",
        move |op| Kernel::typed(move |x: &Tensor, dim: i64| softmax((&op, Fresh), which, x, dim)),
        move |op| {
            Kernel::typed(move |x: &Tensor, dim: i64, out: &Tensor| {
                softmax((&op, Given(out, 2)), which, x, dim)
            })
        },
        layers(given(RESULT, product), batching::in_place_of_lanes, Category::FullPrecision),
    )
}
