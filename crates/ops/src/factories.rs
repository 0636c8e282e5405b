//! Tensors out of nothing: the device comes from the call.

use keyfold_core::{DType, Device, ErrorKind, Result, Scalar};
use keyfold_dispatch::Kernel;
use keyfold_tensor::{IntList, Tensor};

use crate::element::{Number, for_dtype};
use crate::op::{Op, Registrar};

/// The same value everywhere. Every dtype will do here.
fn filled(
    op: Op,
    size: &[i64],
    value: Scalar,
    dtype: Option<DType>,
    device: Option<Device>,
) -> Result<Tensor> {
    let dtype = dtype.unwrap_or(DType::DEFAULT_FLOAT);
    let shape = op.shape(size)?;
    op.at(Tensor::full(&shape, value, dtype, device.unwrap_or(op.device)))
}

/// How many steps it takes from `start` to `end`, `end` excluded, as NumPy counts them: in floats
/// unless all three are whole.
fn count_steps(op: Op, start: Scalar, end: Scalar, step: Scalar) -> Result<usize> {
    let refuse = |why: &str| {
        let message = format!("can't count from {start} to {end} in steps of {step}: {why}");
        op.error(ErrorKind::Value, message)
    };
    if !step.is_nonzero() {
        return Err(refuse("the step is zero"));
    }
    if let (Some(start), Some(end), Some(step)) = (start.as_i64(), end.as_i64(), step.as_i64()) {
        let (start, end, step) = (i128::from(start), i128::from(end), i128::from(step));
        let (span, step) = if step < 0 { (start - end, -step) } else { (end - start, step) };
        // At most 2^64, which the size check refuses.
        return Ok(usize::try_from((span.max(0) + step - 1) / step).unwrap_or(usize::MAX));
    }
    let steps = ((end.as_f64() - start.as_f64()) / step.as_f64()).ceil();
    if steps.is_nan() || steps.is_infinite() {
        return Err(refuse("there is no end to it"));
    }
    Ok(steps.max(0.0) as usize)
}

fn arange(
    op: Op,
    start: Scalar,
    end: Option<Scalar>,
    step: Scalar,
    dtype: Option<DType>,
    device: Option<Device>,
) -> Result<Tensor> {
    // With one number it is the end.
    let (start, end) = end.map_or((Scalar::Int(0), start), |end| (start, end));
    let numbers = [start, end, step];
    if let Some(complex) = numbers.into_iter().find(|n| matches!(n, Scalar::Complex(_))) {
        return Err(op.error(ErrorKind::DType, format!("{complex} is complex and has no order")));
    }
    let whole = numbers.iter().all(|n| n.as_i64().is_some());
    let natural = if whole { DType::DEFAULT_INT } else { DType::DEFAULT_FLOAT };
    let dtype = dtype.unwrap_or(natural);
    const COUNTED: [DType; 3] = [DType::F32, DType::F64, DType::I64];
    if !COUNTED.contains(&dtype) {
        return Err(op.unsupported("dtype", dtype, &COUNTED));
    }
    if dtype == DType::I64 && !whole {
        let message = format!(
            "can't count from {start} to {end} in steps of {step} in int64; all must be whole and \
             within its range"
        );
        return Err(op.error(ErrorKind::DType, message));
    }
    let count = count_steps(op, start, end, step)?;
    let op = Op { device: device.unwrap_or(op.device), ..op };
    // On meta too, a dtype that isn't supported is an error.
    for_dtype!(signed: op, dtype, T => {
        let mut out = op.output(&[count], dtype)?;
        if op.is_meta() {
            return Ok(out);
        }
        let items = op.at(out.as_mut_slice::<T>())?;
        match (start.as_i64(), step.as_i64()) {
            (Some(start), Some(step)) if whole => {
                for (i, item) in (0_i64..).zip(items) {
                    *item = T::from_number(start.wrapping_add(i.wrapping_mul(step)));
                }
            }
            _ => {
                // NumPy fills in steps of the first difference, rounding included.
                let first = start.as_f64();
                let delta = (first + step.as_f64()) - first;
                for (i, item) in items.iter_mut().enumerate() {
                    *item = T::from_number(first + i as f64 * delta);
                }
            }
        }
        Ok(out)
    })
}

/// Defines these operators in a dispatcher.
pub(crate) fn register(ops: &Registrar<'_>) -> Result<()> {
    /// A factory that takes only a size and has one value for all.
    fn constant(value: bool) -> impl Fn(Op) -> Kernel<keyfold_tensor::Value> {
        move |op| {
            Kernel::typed(move |size: IntList, dtype: Option<DType>, device: Option<Device>| {
                filled(op, &size, Scalar::Bool(value), dtype, device)
            })
        }
    }
    ops.view(
        "aten::empty(int[] size, *, ScalarType? dtype=None, Device? device=None) -> Tensor",
        constant(false),
    )?;
    ops.view(
        "aten::zeros(int[] size, *, ScalarType? dtype=None, Device? device=None) -> Tensor",
        constant(false),
    )?;
    ops.view(
        "aten::ones(int[] size, *, ScalarType? dtype=None, Device? device=None) -> Tensor",
        constant(true),
    )?;
    ops.view(
        "aten::full(int[] size, Scalar fill_value, *, ScalarType? dtype=None, \
         Device? device=None) -> Tensor",
        |op| {
            Kernel::typed(
                move |size: IntList,
                      value: Scalar,
                      dtype: Option<DType>,
                      device: Option<Device>| {
                    filled(op, &size, value, Some(dtype.unwrap_or(value.dtype())), device)
                },
            )
        },
    )?;
    ops.view(
        "aten::arange(Scalar start, Scalar? end=None, Scalar step=1, *, \
         ScalarType? dtype=None, Device? device=None) -> Tensor",
        |op| {
            Kernel::typed(
                move |start: Scalar,
                      end: Option<Scalar>,
                      step: Scalar,
                      dtype: Option<DType>,
                      device: Option<Device>| {
                    arange(op, start, end, step, dtype, device)
                },
            )
        },
    )
}
