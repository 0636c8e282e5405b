//! Random numbers inside vmap, which the caller declares as shared by examples or not.
//!
//! Operators that draw get sizes and no batched argument, so the open frames decide: different
//! numbers are drawn for the whole batch at once and wrapped. The loop over a batch calls a kernel
//! once per example, and the numbers drawn there belong to that example alone.

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::schema::{Schema, Type};
use keyfold_dispatch::{
    CallContext, DispatchKey, DispatchKeySet, HostLock, Kernel, LocalGuard, RegistrationKey, Tags,
    Value as _, include_keys_with, local_data, outside_layers,
};
use keyfold_tensor::device::random::{State, states};
use keyfold_tensor::{Value, ValueRef};

use super::enter::enter;
use super::frame::{self, Randomness};

/// The levels whose examples are processed one by one here: bit `n` for level `n`.
struct Served(u64);

impl Served {
    fn bit(level: usize) -> u64 {
        1 << level.min(63)
    }

    fn here() -> u64 {
        local_data::<Served>().map_or(0, |served| served.0)
    }
}

/// Marks calls inside as those of one example of that level, or of a rule for all of them: numbers
/// are drawn there with the requested sizes.
pub(super) fn serve(level: usize) -> LocalGuard {
    let levels = frame::open().map(|frame| frame.level()).filter(|open| *open >= level);
    let served = levels.fold(Served::here() | Served::bit(level), |all, l| all | Served::bit(l));
    include_keys_with(DispatchKeySet::EMPTY, std::sync::Arc::new(Served(served)))
}

/// Returns the random states of the CPU and of the arguments' devices, to be restored before each
/// example of that level; none, unless all examples draw the same numbers.
///
/// # Errors
/// As [`states`].
pub(super) fn repeated(level: usize, args: &[ValueRef<'_>]) -> Result<Vec<State>> {
    match frame::at(level) {
        Some(frame) if frame.randomness() == Randomness::Same => {
            states(args.iter().filter_map(|arg| Value::tag(*arg).device()))
        }
        _ => Ok(Vec::new()),
    }
}

/// Returns levels and sizes of the batches whose examples draw different numbers, outermost first.
///
/// # Errors
/// [`ErrorKind::Value`] inside a vmap without a declared treatment.
fn batches(name: &str) -> Result<Vec<(usize, usize)>> {
    let served = Served::here();
    let mut batches = Vec::new();
    for frame in frame::open() {
        match frame.randomness() {
            Randomness::Error => return Err(undecided(name)),
            Randomness::Different if served & Served::bit(frame.level()) == 0 => {
                batches.push((frame.level(), frame.size()));
            }
            Randomness::Different | Randomness::Same => {}
        }
    }
    batches.reverse();
    Ok(batches)
}

#[cold]
fn undecided(name: &str) -> Error {
    Error::new(
        ErrorKind::Value,
        format!(
            "{name} draws random numbers inside vmap, and whether the examples share them wasn't \
             said: vmap(f, randomness=\"different\") gives each example its own, \
             vmap(f, randomness=\"same\") all the same"
        ),
    )
}

/// Draws for whole batches, and wraps the result.
fn draw_batches<'a>(
    name: &str,
    args: &[ValueRef<'a>],
    call: impl FnOnce(&[ValueRef<'_>]) -> Result<Value>,
) -> Result<Value> {
    let batches = batches(name)?;
    let Some((size, rest)) = args.split_first().filter(|_| !batches.is_empty()) else {
        return call(args);
    };
    let mut sizes: Vec<i64> = batches.iter().map(|(_, size)| *size as i64).collect();
    sizes
        .extend(size.items().filter_map(|n| if let ValueRef::Int(n) = n { Some(n) } else { None }));
    let mut all: Vec<ValueRef<'_>> = vec![ValueRef::Ints(&sizes)];
    all.extend_from_slice(rest);
    let drawn = call(&all)?.into_tensor()?;
    let first = batches.iter();
    let example = first.clone().try_fold(drawn, |tensor, (level, _)| enter(&tensor, 0, *level))?;
    Ok(Value::Tensor(example))
}

/// Returns the call to record in a trace if frames are open: the one that draws for whole batches,
/// so that a replay, which has no frames, draws the same. `None` to record the call itself.
pub(crate) fn traced(
    context: &CallContext<'_, Value>,
    args: &[ValueRef<'_>],
) -> Option<Result<Value>> {
    let operator = context.operator();
    if !operator.tags().contains(Tags::NONDETERMINISTIC_SEEDED) {
        return None;
    }
    frame::innermost()?;
    let again = DispatchKeySet::from([DispatchKey::Tracer, DispatchKey::Vmap]);
    if operator.has_kernel(RegistrationKey::CompositeImplicitAutograd) {
        return Some(outside_layers(again, || context.call_below(args)));
    }
    if !fills_a_size(operator.schema()) {
        return None;
    }
    let name = operator.name();
    match batches(name) {
        Ok(batches) if batches.is_empty() => None,
        Ok(_) => Some(outside_layers(again, || {
            draw_batches(name, args, |args| {
                let _guard = serve(1);
                operator.call(args)
            })
        })),
        Err(error) => Some(Err(error)),
    }
}

/// Returns whether an operator's first argument is the size of its result.
fn fills_a_size(schema: &Schema) -> bool {
    let size = Type::List(Box::new(Type::Int), None);
    schema.arguments.first().is_some_and(|first| first.ty == size)
}

/// Returns the kernel at Vmap of an operator that fills a tensor of a given size, its first
/// argument, with random numbers: it draws for the whole batch.
pub fn draw() -> Kernel<Value> {
    let kernel = Kernel::boxed(|context: &CallContext<'_, Value>, args: &[ValueRef<'_>]| {
        draw_batches(context.operator().name(), args, |args| context.call_below(args))
    });
    kernel.with_host_lock(HostLock::ReleaseFrom(crate::HOST_LOCK_FROM))
}

/// Returns the kernel at Vmap of a composite operator, whose calls reach the layer themselves.
pub fn composite() -> Kernel<Value> {
    let kernel = Kernel::boxed(|context: &CallContext<'_, Value>, args: &[ValueRef<'_>]| {
        outside_layers(DispatchKey::Vmap.into(), || context.call_below(args))
    });
    kernel.with_host_lock(HostLock::ReleaseFrom(crate::HOST_LOCK_FROM))
}
