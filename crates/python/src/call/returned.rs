//! The returns of Python kernels, checked against the schema.

use keyfold_core::Result;
use keyfold_dispatch::CallContext;
use keyfold_dispatch::schema::Type;
use keyfold_tensor::Value;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::marshal::describe::describe_object;
use crate::marshal::py_value::PyValue;
use crate::marshal::{arrays, values};

/// Converts a Python kernel's return to a value, checked against the schema.
pub(crate) fn value_of_result(
    context: &CallContext<'_, Value>,
    result: &Bound<'_, PyAny>,
) -> Result<Value> {
    let returns = &context.operator().schema().returns;
    let wrong = || context.operator().wrong_return(context.kernel(), &describe_object(result));
    match &returns[..] {
        [] if result.is_none() => Ok(Value::None),
        [] => Err(wrong()),
        [one] => item_value(result, &one.ty)?.ok_or_else(wrong),
        many => {
            let items = sequence(result, many.len()).ok_or_else(wrong)?;
            let mut values = Vec::with_capacity(many.len());
            for (item, promised) in items.iter().zip(many) {
                values.push(item_value(item, &promised.ty)?.ok_or_else(wrong)?);
            }
            Ok(Value::Tuple(values))
        }
    }
}

/// Whether a returned object fits a promised type.
///
/// # Errors
/// An array that is refused, with the reason.
pub(crate) fn item_fits(item: &Bound<'_, PyAny>, ty: &Type) -> Result<bool> {
    match ty {
        Type::Tensor => Ok(arrays::look(item)?.is_some()),
        Type::Optional(inner) => Ok(item.is_none() || item_fits(item, inner)?),
        _ => Ok(values::value_from(item, ty)?.is_some()),
    }
}

fn item_value(item: &Bound<'_, PyAny>, ty: &Type) -> Result<Option<Value>> {
    if *ty == Type::Tensor {
        return Ok(arrays::look(item)?.map(|(tag, _)| {
            // SAFETY: a bound object is alive.
            unsafe { PyValue::value(item.as_ptr(), tag) }
        }));
    }
    values::value_from(item, ty)
}

/// The items of a tuple or list of that length.
pub(crate) fn sequence<'py>(
    object: &Bound<'py, PyAny>,
    length: usize,
) -> Option<Vec<Bound<'py, PyAny>>> {
    if !object.is_instance_of::<PyTuple>() && !object.is_instance_of::<PyList>() {
        return None;
    }
    let items: Vec<_> = object.try_iter().ok()?.collect::<PyResult<_>>().ok()?;
    (items.len() == length).then_some(items)
}
