//! Factories: `empty`, `zeros`, `ones`, `full`, `arange`. The device is an argument of the call.

use keyfold_core::{DType, Device, Error, ErrorKind, Result, Scalar};
use keyfold_dispatch::HostLock;
use keyfold_layers::autocast::Category;
use keyfold_tensor::IntList;

use crate::infer::{Call, CallPlan, Fill, Run};
use crate::naming::Naming;
use crate::op::Op;
use crate::pointwise::{Pointwise, Size, parse};
use crate::row::{Layers, Row, Rule};
use crate::vjp::NO_TENSOR_ARGUMENT;

/// Plans a result of that size with one value everywhere. Every dtype is supported.
fn filled<S>(
    call: Call<'_, S>,
    size: &[i64],
    value: Scalar,
    requested: Option<DType>,
    device: Option<Device>,
    default: DType,
) -> Result<CallPlan<Fill>> {
    let (dtype, device) = call.factory_options(requested, device, default)?;
    call.at(value.check(dtype))?;
    Ok(CallPlan::new(device, call.shape(size)?, dtype, Fill(value)))
}

/// The size, and the requested dtype and device.
type FactoryArgs = (IntList, Option<DType>, Option<Device>);

#[inline(always)]
fn constant(
    call: Call<'_, bool>,
    (size, dtype, device): FactoryArgs,
) -> Result<CallPlan<impl Run + use<>>> {
    filled(call, &size, Scalar::Bool(*call.state), dtype, device, DType::DEFAULT_FLOAT)
}

#[inline(always)]
fn full(
    call: Call<'_, ()>,
    (size, value, dtype, device): (IntList, Scalar, Option<DType>, Option<Device>),
) -> Result<CallPlan<impl Run + use<>>> {
    filled(call, &size, value, dtype, device, value.dtype())
}

/// Returns the number as an integer, if it is one.
fn as_integer(number: Scalar) -> Option<i128> {
    match number {
        Scalar::UInt(number) => Some(number.into()),
        other => other.as_i64().map(i128::from),
    }
}

/// The range of `arange`.
#[derive(Clone, Copy)]
struct Range {
    start: Scalar,
    end: Scalar,
    step: Scalar,
}

impl Range {
    fn error(self, op: &Op, kind: ErrorKind, why: &str) -> Error {
        let Range { start, end, step } = self;
        op.error(kind, format!("can't count from {start} to {end} in steps of {step}{why}"))
    }

    /// Returns the three numbers, if all are integers.
    fn integers(self) -> Option<[i128; 3]> {
        Some([as_integer(self.start)?, as_integer(self.end)?, as_integer(self.step)?])
    }

    /// Returns the number of elements, without `end`. As in NumPy it is computed in floats unless all three
    /// numbers are integers.
    fn count(self, op: &Op) -> Result<usize> {
        if !self.step.is_nonzero() {
            return Err(self.error(op, ErrorKind::Value, ": the step is zero"));
        }
        if let Some([start, end, step]) = self.integers() {
            let (span, step) = if step < 0 { (start - end, -step) } else { (end - start, step) };
            // The count is at most 2^65; the check of sizes refuses counts beyond usize.
            return Ok(usize::try_from((span.max(0) + step - 1) / step).unwrap_or(usize::MAX));
        }
        let (start, end) = (self.start.as_f64(), self.end.as_f64());
        let steps = ((end - start) / self.step.as_f64()).ceil();
        if steps.is_nan() || steps.is_infinite() {
            return Err(self.error(op, ErrorKind::Value, ": there is no end to it"));
        }
        Ok(steps.max(0.0) as usize)
    }

    /// Returns the requested dtype if it can hold the numbers, or the default dtype.
    fn dtype(self, op: &Op, requested: Option<DType>, count: usize) -> Result<DType> {
        let Range { start, end, step } = self;
        if let Some(complex) =
            [start, end, step].into_iter().find(|n| matches!(n, Scalar::Complex(_)))
        {
            return Err(
                op.error(ErrorKind::DType, format!("{complex} is complex and has no order"))
            );
        }
        let whole = self.integers();
        let default = if whole.is_some() { DType::DEFAULT_INT } else { DType::DEFAULT_FLOAT };
        let dtype = requested.unwrap_or(default);
        let Some([start, _, step]) = whole else {
            if dtype.is_integral() || dtype == DType::Bool {
                let why = format!(" in {dtype}; all must be whole");
                return Err(self.error(op, ErrorKind::DType, &why));
            }
            return Ok(dtype);
        };
        // The first and the last number are the extremes.
        let last = start + (count.saturating_sub(1)) as i128 * step;
        for number in [start, last].into_iter().take(count) {
            let (low, high) = match dtype {
                DType::Bool => (0, 1),
                _ => dtype.int_range().unwrap_or((i128::MIN, i128::MAX)),
            };
            if (low..=high).contains(&number) {
                continue;
            }
            let Range { start, end, step } = self;
            let hint = match requested {
                Some(_) => "",
                None => "; give a dtype that holds it, such as \"uint64\" or \"float64\"",
            };
            let message = format!(
                "counting from {start} to {end} in steps of {step} comes to {number}, which is out \
                 of range for dtype {dtype}, which holds {low} to {high}{hint}"
            );
            return Err(op.error(ErrorKind::Value, message));
        }
        Ok(dtype)
    }
}

/// Start, end, step, dtype and device.
type ArangeArgs = (Scalar, Option<Scalar>, Scalar, Option<DType>, Option<Device>);

#[inline(always)]
fn arange(
    call: Call<'_, Pointwise>,
    (start, end, step, requested, device): ArangeArgs,
) -> Result<CallPlan<impl Run>> {
    // A single number is the end.
    let (start, end) = end.map_or((Scalar::Int(0), start), |end| (start, end));
    let range = Range { start, end, step };
    let default =
        if range.integers().is_some() { DType::DEFAULT_INT } else { DType::DEFAULT_FLOAT };
    let (dtype, device) = call.factory_options(requested, device, default)?;
    // Without a requested dtype it is the default one or that of `out`.
    let requested = (requested.is_some() || dtype != default).then_some(dtype);
    // The error for complex numbers comes before that of the count.
    range.dtype(&call, requested, 0)?;
    let count = range.count(&call)?;
    let dtype = range.dtype(&call, requested, count)?;
    let params = match range.integers() {
        // Integers are computed in int64; the sums wrap around to the right values of uint64.
        Some([start, _, step]) if dtype.is_integral() => {
            [Scalar::Int(start as i64), Scalar::Int(step as i64)]
        }
        Some([start, end, step]) if [start, end].map(i64::try_from).iter().all(Result::is_ok) => {
            [Scalar::Int(start as i64), Scalar::Int(step as i64)]
        }
        // NumPy fills in steps of the first difference, which is rounded.
        _ => {
            let first = start.as_f64();
            [Scalar::Float(first), Scalar::Float((first + step.as_f64()) - first)]
        }
    };
    let size = Size::Explicit(&[count]);
    Pointwise::plan_on(call.state, [], params, Some(dtype), (device, size))
}

/// Returns the rows of the factories.
pub(crate) fn rows() -> Result<Vec<Row>> {
    const MADE: &str = "int[] size, *, ScalarType? dtype=None, Device? device=None";
    let layers = Layers {
        derivative: NO_TENSOR_ARGUMENT,
        tangent: Rule::Refused("no argument is a tensor"),
        batching: Rule::Refused("no argument is a tensor"),
        autocast: Category::Leave,
    };
    let made = |name, function, value| {
        Row::computes::<FactoryArgs, _, _>(
            (name, ""),
            MADE,
            move |_| value,
            constant,
            layers,
            Naming::PartOf(function),
        )
    };
    let counting = parse("start + index * step", &[], &["start", "step"])?;
    let rows = vec![
        made("aten::empty", "empty", false)?,
        made("aten::zeros", "zeros", false)?,
        made("aten::ones", "ones", true)?,
        Row::computes::<(IntList, Scalar, Option<DType>, Option<Device>), _, _>(
            ("aten::full", ""),
            "int[] size, Scalar fill_value, *, ScalarType? dtype=None, Device? device=None",
            |_| (),
            full,
            layers,
            Naming::PartOf("full"),
        )?,
        Row::computes::<ArangeArgs, _, _>(
            ("aten::arange", ""),
            "Scalar start, Scalar? end=None, Scalar step=1, *, ScalarType? dtype=None, \
             Device? device=None",
            move |op| Pointwise::new(op.clone(), counting.clone()),
            arange,
            layers,
            Naming::PartOf("arange"),
        )?,
    ];
    Ok(rows.into_iter().map(|row| row.with_host_lock(HostLock::Keep)).collect())
}
