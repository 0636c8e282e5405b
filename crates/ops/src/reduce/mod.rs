//! Reductions along dimensions, and softmax.
//!
//! `dim=None` reduces all dimensions; an empty list reduces none, as in NumPy.

mod batching;
mod gradients;

use keyfold_backend::{GpuBackend, Operation, ReduceParams, RowParams};
use keyfold_core::{DType, DTypeKind, ErrorKind, Result, Shape, layout};
use keyfold_layers::autocast::Category;
use keyfold_layers::autograd::Saves;
use keyfold_layers::vmap;
use keyfold_tensor::{IntList, Tensor};

use crate::infer::{Call, CallPlan, Lanes, Run};
use crate::jvp::{self, LINEAR, pushforward};
use crate::naming::{
    LANE_PARAMETERS, Naming, POSITION_PARAMETERS, REDUCTION_PARAMETERS, SUM_PARAMETERS,
    UNARY_PARAMETERS, named, named_method,
};
use crate::op::Op;
use crate::promote::floating;
use crate::row::{Batching, Gradient, Layers, Row, Rule, Tangent};
use crate::shape::batching::one_dim;
use crate::vjp::{BOOL_RESULT, INTEGER_RESULT, READS_NOTHING, READS_RESULT, formula};

/// The ordered dtypes: all but the complex ones.
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

/// The reduced dimensions, and the shape of the result.
struct Reduction {
    params: ReduceParams,
    /// The result's shape, without the reduced dimensions or with size 1 for each.
    shape: Shape,
}

impl Reduction {
    /// Makes the reduction of these dimensions, where negative ones count from the last; `None` is all
    /// dimensions.
    ///
    /// # Errors
    /// [`ErrorKind::Index`] for a dimension that isn't there, [`ErrorKind::Value`] for one named
    /// twice.
    fn new(
        op: &Op,
        which: &'static Operation,
        shape: &[usize],
        dims: Option<&[i64]>,
        keepdim: bool,
    ) -> Result<Self> {
        let all = u64::MAX.checked_shr(64 - shape.len() as u32).unwrap_or(0);
        if dims.is_none() && !keepdim {
            let params = ReduceParams { op: which, keepdim: 0, dims: all };
            return Ok(Reduction { params, shape: Shape::empty() });
        }
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
        Ok(Reduction { params, shape: result })
    }

    /// Refuses lanes without elements, for a reduction without an identity.
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

/// A call of a reduction.
type ReduceCall<'c> = Call<'c, &'static Operation>;

/// The reduced dimensions (`None` for all), and `keepdim`.
type Dims<'a> = (Option<&'a [i64]>, bool);

/// Returns the number of dimensions before those that a computation goes along, if those are the last ones:
/// lanes side by side may be added in another order where they are more.
fn rows_before(dims: u64, ndim: usize) -> Option<usize> {
    let before = (dims.trailing_zeros() as usize).min(ndim);
    (dims.count_ones() as usize == ndim - before).then_some(before)
}

/// Plans a reduction with a result of a dtype.
#[inline]
fn reduced<'x>(
    op: &Op,
    x: &'x Tensor,
    Reduction { params, shape }: Reduction,
    dtype: DType,
) -> CallPlan<impl Run + use<'x>> {
    let run = move |op: &Op, out: &Tensor| {
        let kernel =
            op.kernel(GpuBackend::reduce, |group| group.reduce(params.op, x.dtype(), dtype))?;
        // SAFETY: what computes a result is called with an output that is its own (`Run::run`).
        op.at(unsafe { kernel.launch(&params, &[x], out) })
    };
    let rows = rows_before(params.dims, x.ndim());
    let reduces = rows.filter(|rows| *rows < x.ndim()).map(|_| params);
    let run = Lanes { rows: rows.unwrap_or(0), reduces, run };
    CallPlan::new(op.device_of(x), shape, dtype, run)
}

const MEAN: &Operation = &Operation::new("mean");

/// Infers the reduction and result dtype of sums and means.
#[inline]
fn infer_sum(
    call: ReduceCall<'_>,
    x: &Tensor,
    (dims, keepdim): Dims<'_>,
    dtype: Option<DType>,
) -> Result<(Reduction, DType)> {
    let reduction = Reduction::new(&call, call.state, x.shape(), dims, keepdim)?;
    let (from, mean) = (x.dtype(), *call.state == MEAN);
    let dtype = match (dtype, from.kind()) {
        (None, kind) if mean && kind < DTypeKind::Float => DType::DEFAULT_FLOAT,
        (None, _) => sum_dtype(from),
        (Some(dtype), _) => dtype,
    };
    let fits = if mean { dtype.kind() >= DTypeKind::Float } else { dtype != DType::Bool };
    check_sum_dtype(
        &call,
        from,
        dtype,
        fits,
        match mean {
            false => A_SUM,
            true => {
                "a mean; choose one of float16, bfloat16, float32, float64, complex64, complex128"
            }
        },
    )?;
    Ok((reduction, dtype))
}

/// The values that a dtype has to hold, and the dtypes that do.
pub(crate) const A_SUM: &str = "a sum; choose a dtype of numbers";

/// Returns the dtype of sums and products of elements of a dtype.
#[inline]
pub(crate) fn sum_dtype(from: DType) -> DType {
    match from.kind() {
        DTypeKind::Float | DTypeKind::Complex => from,
        DTypeKind::UInt => DType::U64,
        _ => DType::DEFAULT_INT,
    }
}

/// Refuses a dtype of results that doesn't fit them, or has no imaginary parts.
#[inline]
pub(crate) fn check_sum_dtype(
    op: &Op,
    from: DType,
    dtype: DType,
    fits: bool,
    what: &str,
) -> Result<()> {
    if !fits {
        let message = format!("argument 'dtype': {dtype} can't hold {what}");
        return Err(op.error(ErrorKind::DType, message));
    }
    if from.is_complex() && !dtype.is_complex() {
        let message = format!("{from} to {dtype} would drop the imaginary parts");
        return Err(op.error(ErrorKind::DType, message));
    }
    Ok(())
}

#[inline(always)]
fn sum_all(
    call: ReduceCall<'_>,
    (x, dtype): (&Tensor, Option<DType>),
) -> Result<CallPlan<impl Run>> {
    let (reduction, dtype) = infer_sum(call, x, (None, false), dtype)?;
    Ok(reduced(&call, x, reduction, dtype))
}

#[inline(always)]
fn sum_dim(
    call: ReduceCall<'_>,
    (x, dim, keepdim, dtype): (&Tensor, Option<IntList>, bool, Option<DType>),
) -> Result<CallPlan<impl Run>> {
    let (reduction, dtype) = infer_sum(call, x, (dim.as_deref(), keepdim), dtype)?;
    Ok(reduced(&call, x, reduction, dtype))
}

/// Checks the argument of extremes and of their positions, and makes the reduction.
#[inline(always)]
fn infer_min_max(
    call: &ReduceCall<'_>,
    x: &Tensor,
    (dims, keepdim): Dims<'_>,
) -> Result<Reduction> {
    check_ordered(call, x.dtype())?;
    let reduction = Reduction::new(call, call.state, x.shape(), dims, keepdim)?;
    reduction.check_nonempty(call, x.shape())?;
    Ok(reduction)
}

#[inline(always)]
fn min_max_all(call: ReduceCall<'_>, (x,): (&Tensor,)) -> Result<CallPlan<impl Run>> {
    let reduction = infer_min_max(&call, x, (None, false))?;
    Ok(reduced(&call, x, reduction, x.dtype()))
}

#[inline(always)]
fn min_max_dim(
    call: ReduceCall<'_>,
    (x, dim, keepdim): (&Tensor, Option<IntList>, bool),
) -> Result<CallPlan<impl Run>> {
    let reduction = infer_min_max(&call, x, (dim.as_deref(), keepdim))?;
    Ok(reduced(&call, x, reduction, x.dtype()))
}

#[inline(always)]
fn arg_min_max(
    call: ReduceCall<'_>,
    (x, dim, keepdim): (&Tensor, Option<i64>, bool),
) -> Result<CallPlan<impl Run>> {
    let dims = dim.as_ref().map(std::slice::from_ref);
    let reduction = infer_min_max(&call, x, (dims, keepdim))?;
    Ok(reduced(&call, x, reduction, DType::I64))
}

/// `any` and `all`.
#[inline(always)]
fn any_all(
    call: ReduceCall<'_>,
    (x, dim, keepdim): (&Tensor, Option<IntList>, bool),
) -> Result<CallPlan<impl Run>> {
    let reduction = Reduction::new(&call, call.state, x.shape(), dim.as_deref(), keepdim)?;
    Ok(reduced(&call, x, reduction, DType::Bool))
}

/// Whether any element is infinite or NaN.
#[inline(always)]
fn has_inf_nan(call: ReduceCall<'_>, (x,): (&Tensor,)) -> Result<CallPlan<impl Run>> {
    let reduction = Reduction::new(&call, call.state, x.shape(), None, false)?;
    Ok(reduced(&call, x, reduction, DType::Bool))
}

/// `softmax` and `log_softmax` of each lane along a dimension.
#[inline(always)]
fn softmax(
    call: Call<'_, &'static Operation>,
    (x, dim): (&Tensor, i64),
) -> Result<CallPlan<impl Run>> {
    check_ordered(&call, x.dtype())?;
    let axis = call.at(layout::normalize_axis(dim, x.ndim()))?;
    let dtype = floating(x.dtype());
    let params = RowParams { op: call.state, axis: axis as u32 };
    let run = move |op: &Op, out: &Tensor| {
        let kernel =
            op.kernel(GpuBackend::rows, |group| group.rows(params.op, x.dtype(), dtype))?;
        // SAFETY: what computes a result is called with an output that is its own (`Run::run`).
        op.at(unsafe { kernel.launch(&params, &[x], out) })
    };
    let rows = rows_before(1 << axis, x.ndim()).unwrap_or(0);
    let run = Lanes { rows, reduces: None, run };
    Ok(CallPlan::new(call.device_of(x), x.shape().clone(), dtype, run))
}

/// Returns the rows of reductions and of softmax.
pub(crate) fn rows() -> Result<Vec<Row>> {
    const READS_BOTH: &[Saves] = &[Saves::arguments(&[0]).and_results()];
    use Category::{FullPrecision, Leave};
    const ALONG: &str = "Tensor self, int[1]? dim=None, bool keepdim=False";
    let sum_layers = |vjp, batching| {
        reduction_layers((formula(READS_NOTHING, vjp), LINEAR), batching, FullPrecision)
    };
    let min_max_layers = |vjp, jvp, batching| {
        reduction_layers((formula(READS_BOTH, vjp), pushforward(jvp)), batching, Leave)
    };
    let sum_all_row = |name, which, layers, naming| {
        let args = "Tensor self, *, ScalarType? dtype=None";
        Row::computes::<(&Tensor, Option<DType>), _, _>(
            (name, ""),
            args,
            move |_| which,
            sum_all,
            layers,
            naming,
        )
    };
    let sum_dim_row = |name, which, layers, naming| {
        let args = "Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None";
        type Args = (&'static Tensor, Option<IntList>, bool, Option<DType>);
        Row::computes::<Args, _, _>((name, "dim"), args, move |_| which, sum_dim, layers, naming)
    };
    let min_max_row = |name, which, layers, naming| {
        Row::computes::<(&Tensor,), _, _>(
            (name, ""),
            "Tensor self",
            move |_| which,
            min_max_all,
            layers,
            naming,
        )
    };
    type Along = (&'static Tensor, Option<IntList>, bool);
    let min_max_dim_row = |name, which, layers, naming| {
        Row::computes::<Along, _, _>((name, ""), ALONG, move |_| which, min_max_dim, layers, naming)
    };
    let any_all_row = |name, which, naming| {
        let layers = reduction_layers(
            (BOOL_RESULT, Rule::Refused("the result is bool")),
            batching::reduce_dims,
            Leave,
        );
        Row::computes::<Along, _, _>((name, ""), ALONG, move |_| which, any_all, layers, naming)
    };
    let arg_row = |name, which, naming| {
        let args = "Tensor self, int? dim=None, bool keepdim=False";
        let layers = reduction_layers(NO_DERIVATIVES, batching::arg_min_max, Leave);
        type Args = (&'static Tensor, Option<i64>, bool);
        Row::computes::<Args, _, _>((name, ""), args, move |_| which, arg_min_max, layers, naming)
    };
    let softmax_row = |name, which, vjp, jvp, naming| {
        let rules = (formula(READS_RESULT, vjp), pushforward(jvp));
        let layers = reduction_layers(rules, one_dim, FullPrecision);
        let args = "Tensor self, int dim";
        Row::computes::<(&Tensor, i64), _, _>(
            (name, ""),
            args,
            move |_| which,
            softmax,
            layers,
            naming,
        )
    };
    Ok(vec![
        sum_all_row(
            "aten::sum",
            &const { Operation::new("sum") },
            sum_layers(gradients::sum, batching::sum),
            Naming::PartOf("sum"),
        )?,
        sum_dim_row(
            "aten::sum",
            &const { Operation::new("sum") },
            sum_layers(gradients::sum_dim, batching::reduce_dims),
            named_method(
                "sum",
                SUM_PARAMETERS,
                "Return the sum of all elements, or along axes. Integers and bools add up to \
                 int64.\n\nUnsigned ones add up to uint64. The result's bits don't depend on the \
                 number of threads.",
            ),
        )?,
        sum_all_row(
            "aten::mean",
            &const { Operation::new("mean") },
            sum_layers(gradients::mean, batching::mean),
            Naming::PartOf("mean"),
        )?,
        sum_dim_row(
            "aten::mean",
            &const { Operation::new("mean") },
            sum_layers(gradients::mean_dim, batching::reduce_dims),
            named_method("mean", SUM_PARAMETERS, "Return the mean of all elements, or along axes."),
        )?,
        min_max_row(
            "aten::max",
            &const { Operation::new("max") },
            min_max_layers(gradients::max, jvp::max, batching::max),
            Naming::Unnamed("`keyfold.max` calls `aten::amax`"),
        )?,
        min_max_row(
            "aten::min",
            &const { Operation::new("min") },
            min_max_layers(gradients::min, jvp::min, batching::min),
            Naming::Unnamed("`keyfold.min` calls `aten::amin`"),
        )?,
        min_max_dim_row(
            "aten::amax",
            &const { Operation::new("max") },
            min_max_layers(gradients::amax, jvp::amax, batching::reduce_dims),
            named_method(
                "max",
                REDUCTION_PARAMETERS,
                "Return the greatest element, or the greatest along axes. NaN goes through.",
            ),
        )?,
        min_max_dim_row(
            "aten::amin",
            &const { Operation::new("min") },
            min_max_layers(gradients::amin, jvp::amin, batching::reduce_dims),
            named_method(
                "min",
                REDUCTION_PARAMETERS,
                "Return the least element, or the least along axes. NaN goes through.",
            ),
        )?,
        any_all_row(
            "aten::all",
            &const { Operation::new("all") },
            named_method(
                "all",
                REDUCTION_PARAMETERS,
                "Return whether all elements, or all along axes, are true or nonzero.",
            ),
        )?,
        any_all_row(
            "aten::any",
            &const { Operation::new("any") },
            named_method(
                "any",
                REDUCTION_PARAMETERS,
                "Return whether any element, or any along axes, is true or nonzero.",
            ),
        )?,
        Row::computes::<(&Tensor,), _, _>(
            ("keyfold::has_inf_nan", ""),
            "Tensor self",
            |_| &const { Operation::new("has_inf_nan") },
            has_inf_nan,
            reduction_layers(
                (BOOL_RESULT, Rule::Refused("the result is bool")),
                batching::has_inf_nan,
                Leave,
            ),
            named(
                "has_inf_nan",
                UNARY_PARAMETERS,
                "Return whether any element is infinite or NaN, as an array of one bool on the \
                 array's device.\n\nIt reads the elements once, and ends at the first such \
                 element. Not in the standard.",
            ),
        )?,
        arg_row(
            "aten::argmax",
            &const { Operation::new("argmax") },
            named_method(
                "argmax",
                POSITION_PARAMETERS,
                "Return where the greatest element is, along an axis or in the flattened array.",
            ),
        )?,
        arg_row(
            "aten::argmin",
            &const { Operation::new("argmin") },
            named_method(
                "argmin",
                POSITION_PARAMETERS,
                "Return where the least element is, along an axis or in the flattened array.",
            ),
        )?,
        softmax_row(
            "aten::softmax",
            &const { Operation::new("softmax") },
            gradients::softmax,
            jvp::softmax,
            named_method(
                "softmax",
                LANE_PARAMETERS,
                "Return positive numbers that add up to 1 along an axis. Not in the standard.",
            ),
        )?,
        softmax_row(
            "aten::log_softmax",
            &const { Operation::new("log_softmax") },
            gradients::log_softmax,
            jvp::log_softmax,
            named(
                "log_softmax",
                LANE_PARAMETERS,
                "Return the logarithms of the softmax along an axis. Not in the standard.",
            ),
        )?,
    ])
}

/// The rules of reverse mode and of forward mode.
type Derivatives = (Rule<Gradient>, Rule<Tangent>);

/// The rules of positions, which have no derivative.
const NO_DERIVATIVES: Derivatives =
    (INTEGER_RESULT, Rule::Refused("the result is bool or integer"));

/// Makes the layers of an operator with a batching rule.
fn reduction_layers(
    (derivative, tangent): Derivatives,
    batching: vmap::Rule,
    autocast: Category,
) -> Layers {
    Layers { derivative, tangent, batching: Rule::Given(Batching::Rule(batching)), autocast }
}
