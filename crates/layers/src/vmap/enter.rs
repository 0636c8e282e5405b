//! The operators that enter and leave a batch, so that layers above see them, such as the tracer.

use keyfold_core::{Error, ErrorKind, Result, layout};
use keyfold_dispatch::{
    DispatchKey, Dispatcher, Kernel, Override, RegistrationKey, Value as _, outside_layers,
};
use keyfold_tensor::{Tensor, Value, ValueRef};

use super::batched::{batch_of, wrap};
use crate::aten::{self, Aten};

static ENTER: Aten = Aten::new("keyfold::_vmap_enter");
static EXIT: Aten = Aten::new("keyfold::_vmap_exit");

/// Calls `keyfold::_vmap_enter`, which wraps `x` with batch dimension `dim`.
///
/// # Errors
/// [`ErrorKind::Index`] if `x` has no such dimension.
pub fn enter(x: &Tensor, dim: i64, level: usize) -> Result<Tensor> {
    ENTER.call(&[x.into(), dim.into(), (level as i64).into()])
}

/// Calls `keyfold::_vmap_exit`, which returns the batch of `size` examples that `x` represents at
/// that level, along dimension `dim`. A tensor that doesn't depend on the batch is repeated.
///
/// # Errors
/// [`ErrorKind::Index`] if the result has no such dimension, [`ErrorKind::Value`] for an example of
/// an inner `vmap`.
pub fn exit(x: &Tensor, level: usize, dim: i64, size: usize) -> Result<Tensor> {
    EXIT.call(&[x.into(), (level as i64).into(), dim.into(), (size as i64).into()])
}

/// Returns a view with one dimension moved.
pub fn move_dim(x: &Tensor, from: usize, to: usize) -> Result<Tensor> {
    if from == to {
        return Ok(x.clone());
    }
    let mut dims: Vec<i64> = (0..x.ndim() as i64).collect();
    let moved = dims.remove(from);
    dims.insert(to, moved);
    aten::permute(x, &dims)
}

/// Returns a view repeated along a new first dimension.
pub(crate) fn repeat(x: &Tensor, size: usize) -> Result<Tensor> {
    let mut sizes = vec![size as i64];
    sizes.extend(x.shape().iter().map(|n| *n as i64));
    aten::expand(x, &sizes)
}

/// Returns a nonnegative integer argument.
fn nonnegative_int(value: ValueRef<'_>, name: &str) -> Result<usize> {
    match value {
        ValueRef::Int(n) if n >= 0 => Ok(n as usize),
        other => Err(Error::new(
            ErrorKind::Value,
            format!("argument '{name}' must be an integer from 0, not {}", Value::describe(other)),
        )),
    }
}

fn int(value: ValueRef<'_>) -> i64 {
    // The schema declares an int, so other values don't occur.
    if let ValueRef::Int(n) = value { n } else { 0 }
}

fn run_enter(args: &[ValueRef<'_>]) -> Result<Tensor> {
    let [x, dim, level] = args else { return Err(wrong_count("_vmap_enter")) };
    let x = Value::from_ref(*x)?.into_tensor()?;
    let dim = layout::normalize_axis(int(*dim), x.ndim()).map_err(|_| {
        Error::new(
            ErrorKind::Index,
            format!("keyfold::_vmap_enter: shape {:?} has no axis {}", x.shape(), int(*dim)),
        )
    })?;
    // Viewed, since the caller's tensor shares its node in the gradient graph, which a write to an
    // example would change for the examples alone.
    let x = if x.requires_grad() { x.into_view() } else { x };
    wrap(x, dim, nonnegative_int(*level, "level")?)
}

fn run_exit(args: &[ValueRef<'_>]) -> Result<Tensor> {
    let [x, level, dim, size] = args else { return Err(wrong_count("_vmap_exit")) };
    let (level, size) = (nonnegative_int(*level, "level")?, nonnegative_int(*size, "size")?);
    let x = Value::from_ref(*x)?.into_tensor()?;
    let (batch, from) = match batch_of(&x) {
        Some(batched) if batched.level == level => {
            batched.check_open()?;
            (batched.leave()?, batched.dim)
        }
        Some(batched) if batched.level > level => {
            return Err(Error::new(
                ErrorKind::Value,
                format!(
                    "keyfold::_vmap_exit: the result belongs to a vmap of level {}, inside the one \
                     of level {level} that ends; it has to be returned from that one first",
                    batched.level
                ),
            ));
        }
        // Copied, since the caller may write to a result.
        _ => (aten::clone(&repeat(&x, size)?)?, 0),
    };
    let to = layout::normalize_axis(int(*dim), batch.ndim()).map_err(|_| {
        Error::new(
            ErrorKind::Index,
            format!(
                "keyfold::_vmap_exit: a result of shape {:?} with the batch in it has {} axes; there \
                 is no axis {} to put the batch at",
                x.shape(),
                batch.ndim(),
                int(*dim)
            ),
        )
    })?;
    move_dim(&batch, from, to)
}

#[cold]
fn wrong_count(name: &str) -> Error {
    Error::new(ErrorKind::Binding, format!("keyfold::{name} was given too few arguments"))
}

pub(super) fn register(dispatcher: &Dispatcher<Value>) -> Result<()> {
    type Run = fn(&[ValueRef<'_>]) -> Result<Tensor>;
    let operators: [(&str, &str, Run); 2] = [
        (
            "keyfold::_vmap_enter",
            "keyfold::_vmap_enter(Tensor x, int dim, int level) -> Tensor",
            run_enter,
        ),
        (
            "keyfold::_vmap_exit",
            "keyfold::_vmap_exit(Tensor x, int level, int dim, int size) -> Tensor",
            run_exit,
        ),
    ];
    for (name, schema, run) in operators {
        dispatcher.define(schema)?;
        let short = name.trim_start_matches("keyfold::");
        let kernel = |place: &str| {
            Kernel::boxed(move |_, args| {
                // Its arguments may be batched at lower levels.
                outside_layers(DispatchKey::Vmap.into(), || run(args)).map(Value::Tensor)
            })
            .named(format!("{short}_{place}"))
        };
        let everywhere = RegistrationKey::CompositeExplicitAutograd;
        dispatcher.implement(name, everywhere, kernel("composite"), Override::Error)?;
        dispatcher.implement(name, DispatchKey::Vmap, kernel("vmap"), Override::Error)?;
        for key in [DispatchKey::Autograd, DispatchKey::Autocast, DispatchKey::Profiler] {
            dispatcher.implement(name, key, Kernel::fallthrough(), Override::Error)?;
        }
    }
    Ok(())
}
