//! Mode `perf`: the time of each operator, of one element and of many, beside a copy on the device.
//!
//! Nothing fails for being slow: the times are for a person to read.

use std::time::{Duration, Instant};

use keyfold_core::{DType, Device, Result};
use keyfold_dispatch::Value as _;
use keyfold_ops::Row;
use keyfold_tensor::device::{Content, StreamId};
use keyfold_tensor::{Value, ValueRef, dispatcher};

use crate::array::{Arg, Layout};
use crate::case::Case;
use crate::checks::Checks;
use crate::elements::{Generator, Values};
use crate::memory::whole;
use crate::report::Timing;
use crate::run::{Outcome, Target};
use crate::sample::Sampler;

/// The sizes of the tensors: the overhead of a call, and the speed of a kernel.
const SMALL: [usize; 2] = [1, 1];
const LARGE: [usize; 2] = [256, 1024];
/// A measurement repeats calls for this long, three times, and takes the fastest.
const LEAST: Duration = Duration::from_millis(2);

/// Times the operators of one family.
pub(crate) fn check(checks: &mut Checks<'_>, rows: &[&'static Row]) {
    let target = checks.target;
    for row in rows {
        // Of the operators of integers the time for those.
        let dtypes = checks.options.dtype.map_or(vec![DType::F32, DType::I32], |only| vec![only]);
        let is_taken = |dtype: &DType| Case { row, dtype: *dtype, number: 0, seed: 0 }.is_taken();
        let Some(dtype) = dtypes.into_iter().find(is_taken) else { continue };
        let operation = format!("{}/{dtype}", row.schema().name);
        let mut timing = None;
        checks.outcome(&operation, "time", &mut || match time(target, row, dtype) {
            Ok(found) => {
                timing = found;
                Ok(if timing.is_some() { Outcome::Passed } else { Outcome::NothingRan })
            }
            Err(error) => Ok(Outcome::of_error(error, &*target.backend)),
        });
        checks.report.times.extend(timing);
    }
}

/// Times a row; `None` if it takes no such arguments.
fn time(target: &Target, row: &Row, dtype: DType) -> Result<Option<Timing>> {
    let (Some((small, _)), Some((large, bytes))) =
        (call(target, row, dtype, &SMALL)?, call(target, row, dtype, &LARGE)?)
    else {
        return Ok(None);
    };
    // A factory has no tensor among its arguments, and writes one.
    let written = LARGE.iter().product::<usize>() * dtype.size();
    let copy = copy(target, if bytes == 0 { written } else { bytes })?;
    let operator = row.schema().name.to_string();
    Ok(Some(Timing { operator, dtype: dtype.to_string(), small, large, copies: large / copy }))
}

/// Returns an argument with its tensors on a device.
fn on_device(value: &Value, device: Device) -> Result<Value> {
    Ok(match value {
        Value::Tensor(tensor) => Value::Tensor(tensor.to_device(device)?),
        Value::List(items) => {
            Value::List(items.iter().map(|item| on_device(item, device)).collect::<Result<_>>()?)
        }
        other => other.clone(),
    })
}

/// Returns the microseconds of a call, and the bytes of its tensors.
fn call(target: &Target, row: &Row, dtype: DType, shape: &[usize]) -> Result<Option<(f64, usize)>> {
    let mut sampler = Sampler {
        dtype,
        shape: shape.to_vec(),
        layout: Layout::Contiguous,
        values: Values::Smooth,
        choice: 0,
        device: target.device,
        random: Generator::new(0),
        sums: false,
        copies: false,
    };
    let Some(args) = sampler.arguments(row) else { return Ok(None) };
    let values = args.iter().map(|arg| on_device(&arg.to_value()?, target.device));
    let values = values.collect::<Result<Vec<_>>>()?;
    let given: Vec<ValueRef<'_>> = values.iter().map(Value::as_ref).collect();
    let operator = row.schema().name.to_string();
    let bytes = args
        .iter()
        .flat_map(Arg::operands)
        .map(|operand| operand.array.items.len() * operand.array.dtype.size());
    let bytes = bytes.sum();
    let took = fastest(target, &mut || dispatcher().call(&operator, &given).map(drop))?;
    Ok(Some((took, bytes)))
}

/// Returns the microseconds of a copy of that many bytes.
fn copy(target: &Target, bytes: usize) -> Result<f64> {
    let memory = &*target.memory;
    let from = memory.allocate(target.device, bytes, Content::Zeros)?;
    let to = memory.allocate(target.device, bytes, Content::Zeros)?;
    let shape = [bytes];
    let (from, to) = (whole(&*from, &shape)?, whole(&*to, &shape)?);
    // SAFETY: nothing else refers to the two buffers.
    fastest(target, &mut || unsafe { memory.copy_strided(&from, &to, StreamId::DEFAULT) })
}

/// Returns the microseconds of one run of many.
fn fastest(target: &Target, run: &mut dyn FnMut() -> Result<()>) -> Result<f64> {
    let synchronize = || target.memory.synchronize(target.device);
    let mut count = 1_u32;
    let mut best = f64::INFINITY;
    let mut times = 0;
    run()?;
    synchronize()?;
    while times < 3 {
        let start = Instant::now();
        for _ in 0..count {
            run()?;
        }
        synchronize()?;
        let took = start.elapsed();
        if took < LEAST && count < 1 << 16 {
            count *= 2;
            continue;
        }
        best = best.min(took.as_secs_f64() * 1e6 / f64::from(count));
        times += 1;
    }
    Ok(best)
}
