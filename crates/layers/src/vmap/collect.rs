//! Collects the results of all examples into one.

use keyfold_core::{DType, Device, Error, ErrorKind, Result};
use keyfold_dispatch::Value as _;
use keyfold_tensor::{Tensor, Value};

use super::batch::Batch;
use super::fallback::wrap_front;
use crate::aten::{self, Aten};

/// Returns the index of a result among several as text: nothing, or `[1]`.
fn place_name(place: &[usize]) -> String {
    place.iter().map(|i| format!("[{i}]")).collect()
}

#[cold]
fn differ(batch: &Batch<'_, '_>, place: &[usize], example: usize, what: &str) -> Error {
    Error::new(
        ErrorKind::Return,
        format!(
            "{}: under vmap, result{} {what} in example {example} of {} and in example 0; it must \
             be the same in all",
            batch.operator().name(),
            place_name(place),
            batch.size
        ),
    )
}

/// Combines the results of the examples, at least one: tensors are stacked and wrapped.
///
/// # Errors
/// [`ErrorKind::Return`] if the results of examples differ in shape or kind, or if values other
/// than tensors differ.
pub(super) fn collect(batch: &Batch<'_, '_>, results: Vec<Value>) -> Result<Value> {
    merge(batch, results, &mut Vec::new())
}

fn merge(batch: &Batch<'_, '_>, results: Vec<Value>, place: &mut Vec<usize>) -> Result<Value> {
    let Some(first) = results.first() else { return Ok(Value::None) };
    match first {
        Value::Foreign(object) if object.is_of_registered_class() => Err(Error::new(
            ErrorKind::Return,
            format!(
                "{}: under vmap, result{} is {}, an object of a class registered by \
                 register_array_type, of which keyfold can't make a batch; let the kernel return a \
                 tensor, or register a rule (register_vmap)",
                batch.operator().name(),
                place_name(place),
                object.describe()
            ),
        )),
        Value::Tensor(_) | Value::Foreign(_) if first.as_ref().tensor().is_ok() => {
            stack(batch, results, place)
        }
        Value::List(items) | Value::Tuple(items) => {
            let count = items.len();
            let tuple = matches!(first, Value::Tuple(_));
            let mut columns: Vec<Vec<Value>> = (0..count).map(|_| Vec::new()).collect();
            for (example, result) in results.into_iter().enumerate() {
                let items = match result {
                    Value::List(items) | Value::Tuple(items) if items.len() == count => items,
                    _ => return Err(differ(batch, place, example, "has different lengths")),
                };
                columns.iter_mut().zip(items).for_each(|(column, item)| column.push(item));
            }
            let mut merged = Vec::with_capacity(count);
            for (i, column) in columns.into_iter().enumerate() {
                place.push(i);
                merged.push(merge(batch, column, place)?);
                place.pop();
            }
            Ok(if tuple { Value::Tuple(merged) } else { Value::List(merged) })
        }
        _ => {
            let same = Value::describe(first.as_ref());
            for (example, result) in results.iter().enumerate().skip(1) {
                let here = Value::describe(result.as_ref());
                if here != same {
                    let what = format!("isn't a tensor, and differs ({here} and {same})");
                    return Err(differ(batch, place, example, &what));
                }
            }
            results.into_iter().next().map_or(Ok(Value::None), Ok)
        }
    }
}

fn stack(batch: &Batch<'_, '_>, results: Vec<Value>, place: &[usize]) -> Result<Value> {
    let mut tensors: Vec<Tensor> = Vec::with_capacity(results.len());
    for (example, result) in results.into_iter().enumerate() {
        if result.as_ref().tensor().is_err() {
            let what = format!("is a tensor and isn't ({})", Value::describe(result.as_ref()));
            return Err(differ(batch, place, example, &what));
        }
        let tensor = result.into_tensor()?;
        if let Some(first) = tensors.first() {
            if first.shape() != tensor.shape() {
                let what =
                    format!("has different shapes ({:?} and {:?})", tensor.shape(), first.shape());
                return Err(differ(batch, place, example, &what));
            }
            if first.dtype() != tensor.dtype() {
                let what =
                    format!("has different dtypes ({} and {})", tensor.dtype(), first.dtype());
                return Err(differ(batch, place, example, &what));
            }
        }
        tensors.push(tensor);
    }
    wrap_front(aten::stack(&tensors, 0)?, batch.level)
}

/// Returns the results of an empty batch, with the Meta kernel's shapes for one example.
pub(super) fn from_meta(result: &Value, device: Device, level: usize) -> Result<Value> {
    let each = |items: &[Value]| -> Result<Vec<Value>> {
        items.iter().map(|item| from_meta(item, device, level)).collect()
    };
    match result {
        Value::List(items) => each(items).map(Value::List),
        Value::Tuple(items) => each(items).map(Value::Tuple),
        other => match other.as_ref().tensor() {
            Ok(tensor) => {
                let mut shape = vec![0];
                shape.extend(tensor.shape().iter().map(|n| *n as i64));
                wrap_front(zeros(&shape, tensor.dtype(), device)?, level)
            }
            Err(_) => Ok(other.clone()),
        },
    }
}

fn zeros(shape: &[i64], dtype: DType, device: Device) -> Result<Tensor> {
    static ZEROS: Aten = Aten::new("aten::zeros");
    ZEROS.call(&[shape.into(), dtype.into(), device.into()])
}
