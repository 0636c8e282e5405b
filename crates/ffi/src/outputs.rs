//! The tensors that a kernel fills: the caller's, and new ones with shape and dtype of the Meta
//! kernel.

use keyfold_core::{Device, Error, ErrorKind, Result};
use keyfold_dispatch::schema::Schema;
use keyfold_dispatch::{CallContext, DispatchKey, Value as _};
use keyfold_tensor::{Tensor, Value, ValueRef};
use smallvec::SmallVec;

/// A tensor that the kernel fills, and the argument that it replaces, if any.
pub(crate) struct Output {
    pub(crate) tensor: Tensor,
    pub(crate) argument: Option<usize>,
}

/// Returns the written argument whose memory a return shares: an output that the caller passed.
pub(crate) fn written_argument(schema: &Schema, at: usize) -> Option<usize> {
    let sets = &schema.returns[at].alias.as_ref()?.sets;
    schema.arguments.iter().position(|argument| {
        argument.alias.as_ref().is_some_and(|alias| alias.write && alias.sets == *sets)
    })
}

/// Returns the outputs: the caller's, and new ones with shape and dtype of the Meta kernel.
pub(crate) fn outputs(
    context: &CallContext<'_, Value>,
    args: &[ValueRef<'_>],
) -> Result<SmallVec<[Output; 1]>> {
    let schema = context.operator().schema();
    let given = |at: usize| {
        let argument = written_argument(schema, at)?;
        (!matches!(args[argument], ValueRef::None)).then_some(argument)
    };
    let count = schema.returns.len();
    // Also if the caller passed every output: foreign code writes as many elements as Meta
    // computes.
    let operator = context.operator();
    let all_given = (0..count).all(|at| given(at).is_some());
    let known = operator.serves(DispatchKey::Meta.into());
    let shapes = if all_given && !known { Vec::new() } else { meta_outputs(context, args)? };
    let device = first_device(args);
    (0..count)
        .map(|at| match given(at) {
            Some(argument) => {
                let tensor = args[argument].tensor()?.clone();
                if let Some(promised) = shapes.get(at) {
                    let name = &schema.arguments[argument].name;
                    check_fits(operator.name(), name, &tensor, promised)?;
                }
                Ok(Output { tensor, argument: Some(argument) })
            }
            None => {
                let like = &shapes[at];
                let tensor = Tensor::empty(like.shape(), like.dtype(), device)?;
                Ok(Output { tensor, argument: written_argument(schema, at) })
            }
        })
        .collect()
}

/// Checks that the caller's output has the dtype and shape that the Meta kernel computes.
fn check_fits(operator: &str, name: &str, given: &Tensor, promised: &Tensor) -> Result<()> {
    let (kind, what, given, promised) = if given.shape() != promised.shape() {
        let shapes = (format!("{:?}", given.shape()), format!("{:?}", promised.shape()));
        (ErrorKind::Shape, "shape", shapes.0, shapes.1)
    } else if given.dtype() != promised.dtype() {
        let dtypes = (given.dtype().to_string(), promised.dtype().to_string());
        (ErrorKind::DType, "dtype", dtypes.0, dtypes.1)
    } else {
        return Ok(());
    };
    Err(Error::new(
        kind,
        format!("{operator}() argument '{name}': its {what} is {given}, and must be {promised}"),
    ))
}

fn first_device(args: &[ValueRef<'_>]) -> Device {
    args.iter().find_map(|arg| Value::tag(*arg).device()).unwrap_or(Device::CPU)
}

/// Returns the argument with its tensors on the meta device.
fn to_meta(arg: ValueRef<'_>) -> Result<Option<Value>> {
    Ok(match arg {
        ValueRef::Tensor(_) | ValueRef::Foreign(_) => {
            let tensor = arg.tensor()?;
            Some(Value::Tensor(Tensor::meta(tensor.shape(), tensor.dtype())?))
        }
        list if list.list_len().is_some() && Value::tag(list).device().is_some() => {
            let item = |item| match to_meta(item)? {
                Some(value) => Ok(value),
                None => Value::from_ref(item),
            };
            Some(Value::List(list.items().map(item).collect::<Result<_>>()?))
        }
        _ => None,
    })
}

/// Runs the operator's Meta kernel and returns its tensors.
fn meta_outputs(context: &CallContext<'_, Value>, args: &[ValueRef<'_>]) -> Result<Vec<Tensor>> {
    let operator = context.operator();
    let stand_ins = args.iter().map(|arg| to_meta(*arg)).collect::<Result<Vec<_>>>()?;
    let meta: Vec<ValueRef<'_>> = args
        .iter()
        .zip(&stand_ins)
        .map(|(arg, stand_in)| stand_in.as_ref().map_or(*arg, Value::as_ref))
        .collect();
    let keyset = DispatchKey::Meta.into();
    let result = operator.redispatch(keyset, &meta).map_err(|error| match error.kind() {
        ErrorKind::MissingKernel => Error::new(
            ErrorKind::MissingKernel,
            format!(
                "{}: its outputs can't be allocated: a native kernel that fills tensors needs a Meta \
                 kernel, which says their shape and dtype; register one at \"Meta\"",
                operator.name()
            ),
        ),
        _ => error,
    })?;
    match result {
        Value::Tuple(items) => items.into_iter().map(Value::into_tensor).collect(),
        one => Ok(vec![one.into_tensor()?]),
    }
}
