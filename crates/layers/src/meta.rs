//! Meta: shapes and dtypes without data.
//!
//! An operator's Meta kernel returns the results' shapes, strides and dtypes, without elements. The key has no
//! fallback: a call of an operator without a Meta kernel is an error, with the way to add one.

use keyfold_core::{Device, Error, ErrorKind, Result, Shape, Strides, layout};
use keyfold_dispatch::{DispatchKey, DispatchKeySet, Operator, Value as _};
use keyfold_tensor::{Tensor, Value, ValueRef};

/// Makes a tensor on meta with this one's shape, strides and dtype.
///
/// # Errors
/// [`ErrorKind::Shape`] if the strides reach beyond the address space.
pub fn like(tensor: &Tensor) -> Result<Tensor> {
    let (shape, strides) = (tensor.shape(), tensor.strides());
    // The buffer begins at the element with the lowest address, so that negative strides stay inside.
    let back = layout::reach(shape, strides)?.map_or(0, |(first, _)| first.unsigned_abs());
    let last = layout::bounds(shape, strides, back)?.map_or(0, |(_, last)| last + 1);
    let buffer = Tensor::meta(&[last], tensor.dtype())?.into_buffer();
    Tensor::from_parts(buffer, Shape::new(shape)?, Strides::new(strides)?, back)
}

/// Runs an operator's Meta kernel for arguments with data: tensors, arrays and devices are replaced by ones on
/// meta. Returns the results as tensors on meta.
///
/// # Errors
/// [`ErrorKind::MissingKernel`] if the operator has no Meta kernel, with the way to add one. Those of the call.
/// [`ErrorKind::Return`] if the kernel returns a tensor with data.
pub fn infer(operator: &Operator<Value>, args: &[ValueRef<'_>]) -> Result<Value> {
    infer_aliases(operator, args).map(|(result, _)| result)
}

/// The tensor among the arguments whose memory a result shares, numbered through lists, and the result's offset
/// from that tensor's first element, in elements; `None` for a result with new memory.
pub type Alias = Option<(usize, isize)>;

/// As [`infer`], with the [`Alias`] of each tensor among the results.
///
/// # Errors
/// As [`infer`].
pub fn infer_aliases(
    operator: &Operator<Value>,
    args: &[ValueRef<'_>],
) -> Result<(Value, Vec<Alias>)> {
    let metas = args.iter().map(|arg| to_meta(*arg)).collect::<Result<Vec<_>>>()?;
    let args: Vec<_> = metas.iter().map(keyfold_dispatch::Value::as_ref).collect();
    let result = operator.redispatch(DispatchKeySet::from([DispatchKey::Meta]), &args)?;
    if let Some(found) = first_real(result.as_ref()) {
        return Err(Error::new(
            ErrorKind::Return,
            format!(
                "{}: the Meta kernel returned {found}; its results must be tensors on meta, which \
                 have a shape and a dtype and no data",
                operator.name()
            ),
        ));
    }
    let given: Vec<&Tensor> = args.iter().flat_map(|arg| tensors(*arg)).collect();
    let alias = |result: &Tensor| {
        let memory = result.buffer().identity();
        let at = given.iter().position(|given| given.buffer().identity() == memory)?;
        Some((at, result.offset() as isize - given[at].offset() as isize))
    };
    let aliases = tensors(result.as_ref()).into_iter().map(alias).collect();
    Ok((result, aliases))
}

/// Returns the tensors in a value, including items of lists.
fn tensors(value: ValueRef<'_>) -> Vec<&Tensor> {
    match value.tensor() {
        Ok(tensor) => vec![tensor],
        Err(_) => value.items().flat_map(tensors).collect(),
    }
}

fn to_meta(arg: ValueRef<'_>) -> Result<Value> {
    Ok(match arg {
        ValueRef::Tensor(tensor) => Value::Tensor(like(tensor)?),
        ValueRef::Foreign(object) if object.is_tensor() => Value::Tensor(like(object.tensor()?)?),
        ValueRef::Device(_) => Value::Device(Device::META),
        list if list.list_len().is_some() => {
            Value::List(list.items().map(to_meta).collect::<Result<_>>()?)
        }
        other => Value::from_ref(other)?,
    })
}

/// Describes the first tensor with data among the results.
fn first_real(value: ValueRef<'_>) -> Option<String> {
    match value {
        ValueRef::Tensor(tensor) if tensor.device() == Device::META => None,
        ValueRef::Tensor(_) => Some(Value::describe(value)),
        ValueRef::Foreign(object) if object.is_tensor() => {
            (object.tag().device() != Some(Device::META)).then(|| object.describe())
        }
        list => list.items().find_map(first_real),
    }
}
