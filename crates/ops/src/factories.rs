//! Tensors out of nothing: the device comes from the call.

use keyfold_core::{DType, Device, Error, ErrorKind, Result, Scalar};
use keyfold_dispatch::Kernel;
use keyfold_layers::autocast::Category;
use keyfold_tensor::{IntList, Tensor};

use crate::elementwise::{Pointwise, Size, parse};
use crate::gradient::TAKES_NO_TENSOR;
use crate::op::Op;
use crate::row::{Layers, Row, Rule};

/// The same value everywhere. Every dtype will do here.
fn filled(
    op: &Op,
    size: &[i64],
    value: Scalar,
    dtype: Option<DType>,
    device: Option<Device>,
) -> Result<Tensor> {
    let dtype = dtype.unwrap_or(DType::DEFAULT_FLOAT);
    let shape = op.shape(size)?;
    op.at(Tensor::full(&shape, value, dtype, op.device(device)))
}

/// A whole number, of whichever size.
fn whole(number: Scalar) -> Option<i128> {
    match number {
        Scalar::UInt(number) => Some(number.into()),
        other => other.as_i64().map(i128::from),
    }
}

/// What `arange` counts through.
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

    /// The three numbers, where all are whole.
    fn whole(self) -> Option<[i128; 3]> {
        Some([whole(self.start)?, whole(self.end)?, whole(self.step)?])
    }

    /// How many steps it takes, `end` excluded, as NumPy counts them: in floats unless all three
    /// numbers are whole.
    fn count(self, op: &Op) -> Result<usize> {
        if !self.step.is_nonzero() {
            return Err(self.error(op, ErrorKind::Value, ": the step is zero"));
        }
        if let Some([start, end, step]) = self.whole() {
            let (span, step) = if step < 0 { (start - end, -step) } else { (end - start, step) };
            // At most 2^65, which the size check refuses.
            return Ok(usize::try_from((span.max(0) + step - 1) / step).unwrap_or(usize::MAX));
        }
        let (start, end) = (self.start.as_f64(), self.end.as_f64());
        let steps = ((end - start) / self.step.as_f64()).ceil();
        if steps.is_nan() || steps.is_infinite() {
            return Err(self.error(op, ErrorKind::Value, ": there is no end to it"));
        }
        Ok(steps.max(0.0) as usize)
    }

    /// The dtype of the numbers: the one that is asked for, if it can hold them.
    fn dtype(self, op: &Op, asked: Option<DType>, count: usize) -> Result<DType> {
        let Range { start, end, step } = self;
        if let Some(complex) =
            [start, end, step].into_iter().find(|n| matches!(n, Scalar::Complex(_)))
        {
            return Err(
                op.error(ErrorKind::DType, format!("{complex} is complex and has no order"))
            );
        }
        let whole = self.whole();
        let natural = if whole.is_some() { DType::DEFAULT_INT } else { DType::DEFAULT_FLOAT };
        let dtype = asked.unwrap_or(natural);
        let Some([start, _, step]) = whole else {
            if dtype.is_integral() || dtype == DType::Bool {
                let why = format!(" in {dtype}; all must be whole");
                return Err(self.error(op, ErrorKind::DType, &why));
            }
            return Ok(dtype);
        };
        // The ends are its least and its greatest number.
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
            let hint = match asked {
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

fn arange(
    row: &Pointwise,
    start: Scalar,
    end: Option<Scalar>,
    step: Scalar,
    dtype: Option<DType>,
    device: Option<Device>,
) -> Result<Tensor> {
    let op = row.op();
    // With one number it is the end.
    let (start, end) = end.map_or((Scalar::Int(0), start), |end| (start, end));
    let range = Range { start, end, step };
    // A complex number has no order to count in, which is said first.
    range.dtype(op, dtype, 0)?;
    let count = range.count(op)?;
    let dtype = range.dtype(op, dtype, count)?;
    let params = match range.whole() {
        // Whole numbers are counted in int64; uint64 beyond wraps around to what it holds.
        Some([start, _, step]) if dtype.is_integral() => {
            [Scalar::Int(start as i64), Scalar::Int(step as i64)]
        }
        Some([start, end, step]) if [start, end].map(i64::try_from).iter().all(Result::is_ok) => {
            [Scalar::Int(start as i64), Scalar::Int(step as i64)]
        }
        // NumPy fills in steps of the first difference, rounding included.
        _ => {
            let first = start.as_f64();
            [Scalar::Float(first), Scalar::Float((first + step.as_f64()) - first)]
        }
    };
    let size = Size::Given(&[count]);
    row.compute_on(&[], &params, Some(dtype), (op.device(device), size))
}

/// The rows of factories.
pub(crate) fn rows() -> Result<Vec<Row>> {
    /// A factory that takes only a size and has one value for all.
    fn constant(value: bool) -> impl Fn(Op) -> Kernel<keyfold_tensor::Value> {
        move |op| {
            Kernel::typed(move |size: IntList, dtype: Option<DType>, device: Option<Device>| {
                filled(&op, &size, Scalar::Bool(value), dtype, device)
            })
        }
    }
    let layers = Layers {
        derivative: TAKES_NO_TENSOR,
        batching: Rule::Refused("takes no tensor"),
        autocast: Category::Leave,
    };
    let counting = parse("start + index * step", &[], &["start", "step"])?;
    Ok(vec![
        Row::light(
            "aten::empty(int[] size, *, ScalarType? dtype=None, Device? device=None) -> Tensor",
            constant(false),
            layers,
        )?,
        Row::light(
            "aten::zeros(int[] size, *, ScalarType? dtype=None, Device? device=None) -> Tensor",
            constant(false),
            layers,
        )?,
        Row::light(
            "aten::ones(int[] size, *, ScalarType? dtype=None, Device? device=None) -> Tensor",
            constant(true),
            layers,
        )?,
        Row::light(
            "aten::full(int[] size, Scalar fill_value, *, ScalarType? dtype=None, \
             Device? device=None) -> Tensor",
            |op| {
                Kernel::typed(
                    move |size: IntList,
                          value: Scalar,
                          dtype: Option<DType>,
                          device: Option<Device>| {
                        filled(&op, &size, value, Some(dtype.unwrap_or(value.dtype())), device)
                    },
                )
            },
            layers,
        )?,
        Row::light(
            "aten::arange(Scalar start, Scalar? end=None, Scalar step=1, *, \
             ScalarType? dtype=None, Device? device=None) -> Tensor",
            move |op| {
                let row = Pointwise::new(op, counting.clone());
                Kernel::typed(
                    move |start: Scalar,
                          end: Option<Scalar>,
                          step: Scalar,
                          dtype: Option<DType>,
                          device: Option<Device>| {
                        arange(&row, start, end, step, dtype, device)
                    },
                )
            },
            layers,
        )?,
    ])
}
