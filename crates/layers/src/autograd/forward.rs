//! Forward mode: calls with an argument that has a tangent.
//!
//! A call removes the innermost level's tangents from the arguments and redispatches the operator, which
//! computes the results with the tangents of the outer levels and their nodes. Then the operator's rule
//! computes the innermost tangents by calling operators, so the outer levels differentiate the rule, too,
//! and the tape records it. Nodes save tensors with their tangents, so that gradients have tangents.

use std::cell::Cell;
use std::sync::Arc;

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::schema::Schema;
use keyfold_dispatch::{
    CallContext, DispatchKey, DispatchKeySet, LocalKeys, Value as _, outside_layers,
};
use keyfold_tensor::{Tensor, Value, ValueRef};

use super::dual::{add_tangent, copy_attachment, dual_of, has_tangent, tangent_at, without_level};
use super::level::{Level, any_level_opened};
use super::node::{TensorMeta, edge_of};
use super::tangent::{Forward, Pushforward, Tangents, is_differentiable, registered};
use crate::aten;
use crate::pipeline::{run_waiting, shares_held_by_pipelines};
use crate::tracer::shares_held_by_traces;

type Context<'c> = CallContext<'c, Value>;

/// The layers that see the calls of a rule: Autograd, for the outer levels, and the Profiler.
const OPEN: DispatchKeySet =
    DispatchKeySet::EMPTY.insert(DispatchKey::Autograd).insert(DispatchKey::Profiler);

/// Returns the tensor in a value if it may have a tangent: a keyfold tensor, also one that is an object of a
/// binding. Arrays of other libraries have no tangents.
pub(super) fn tensor_of(value: ValueRef<'_>) -> Option<&Tensor> {
    match value {
        ValueRef::Tensor(tensor) => Some(tensor),
        ValueRef::Foreign(object)
            if object.is_tensor() && object.tag().keys().contains(DispatchKey::Autograd) =>
        {
            object.tensor().ok()
        }
        _ => None,
    }
}

/// Calls `visit` with every tensor of the arguments, including items of lists.
fn each_tensor<'a>(
    args: &[ValueRef<'a>],
    visit: &mut impl FnMut(&'a Tensor) -> Result<()>,
) -> Result<()> {
    for arg in args {
        let each = arg.items().chain((arg.list_len().is_none()).then_some(*arg));
        each.filter_map(tensor_of).try_for_each(&mut *visit)?;
    }
    Ok(())
}

/// Returns the innermost level for which an argument has a tangent.
///
/// # Errors
/// [`ErrorKind::Gradient`] for a tangent of a level that has ended, and for a tensor that was written after
/// its tangent was computed.
pub(super) fn innermost(
    context: &Context<'_>,
    args: &[ValueRef<'_>],
) -> Result<Option<Arc<Level>>> {
    if !any_level_opened() {
        return Ok(None);
    }
    let mut found: Option<Arc<Level>> = None;
    each_tensor(args, &mut |tensor| {
        let Some(dual) = dual_of(tensor) else { return Ok(()) };
        dual.check(tensor)?;
        if let Some(level) = dual.innermost()
            && found.as_ref().is_none_or(|other| other.number() < level.number())
        {
            found = Some(Arc::clone(level));
        }
        Ok(())
    })
    .map_err(|error: Error| error.at(context.operator().name()))?;
    Ok(found)
}

/// Returns whether an argument has a tangent of a level that is open.
pub(crate) fn have_tangents(args: &[ValueRef<'_>]) -> bool {
    if !any_level_opened() {
        return false;
    }
    let mut found = false;
    let visited = each_tensor(args, &mut |tensor| {
        found |= has_tangent(tensor);
        Ok(())
    });
    visited.is_ok() && found
}

/// An argument without the tangents of a level and of the levels inside it.
#[expect(clippy::large_enum_variant, reason = "one per argument, for the time of a call")]
enum LoweredArg<'a> {
    Same(ValueRef<'a>),
    Tensor(Tensor),
    List(Vec<Value>),
}

impl LoweredArg<'_> {
    fn as_ref(&self) -> ValueRef<'_> {
        match self {
            LoweredArg::Same(value) => *value,
            LoweredArg::Tensor(tensor) => ValueRef::Tensor(tensor),
            LoweredArg::List(items) => ValueRef::List(items),
        }
    }
}

fn has_tangent_at(value: ValueRef<'_>, level: &Level) -> bool {
    tensor_of(value).is_some_and(|tensor| tangent_at(tensor, level).is_some())
}

/// Separates an argument from its tangents of a level.
fn split_tangents<'a>(value: ValueRef<'a>, level: &Level) -> Result<(LoweredArg<'a>, Tangents)> {
    if let Some(tensor) = tensor_of(value) {
        return Ok(match tangent_at(tensor, level) {
            Some(tangent) => {
                (LoweredArg::Tensor(without_level(tensor, level)?), Tangents::One(tangent))
            }
            None => (LoweredArg::Same(value), Tangents::None),
        });
    }
    if !value.items().any(|item| has_tangent_at(item, level)) {
        return Ok((LoweredArg::Same(value), Tangents::None));
    }
    let (mut lowered, mut tangents) = (Vec::new(), Vec::new());
    for item in value.items() {
        let tensor = tensor_of(item);
        let tangent = tensor.and_then(|tensor| tangent_at(tensor, level));
        lowered.push(match tensor.filter(|_| tangent.is_some()) {
            Some(tensor) => Value::Tensor(without_level(tensor, level)?),
            None => Value::from_ref(item)?,
        });
        tangents.push(tangent);
    }
    Ok((LoweredArg::List(lowered), Tangents::Each(tangents)))
}

/// Runs a call whose innermost tangents are those of `level`. `own` is the rule in the operator's row, which
/// a registered rule replaces.
pub(super) fn run(
    context: &Context<'_>,
    args: &[ValueRef<'_>],
    level: &Arc<Level>,
    own: Option<&Arc<dyn Pushforward>>,
) -> Result<Value> {
    let operator = context.operator();
    let registered = registered(operator);
    let rule = registered.as_ref().or(own);
    let (lowered, tangents): (Vec<_>, Vec<_>) = {
        let parts =
            args.iter().map(|arg| split_tangents(*arg, level)).collect::<Result<Vec<_>>>()?;
        parts.into_iter().unzip()
    };
    let written = operator
        .schema()
        .arguments
        .iter()
        .position(|argument| argument.alias.as_ref().is_some_and(|alias| alias.write));
    if let Some(at) = written {
        let refuse = || level.stopped_by(writes_without_rule(operator.schema(), at));
        let rule = rule.ok_or_else(refuse)?;
        return write(context, args, (lowered, &tangents), level, (at, &**rule));
    }
    let lower: Vec<ValueRef<'_>> = lowered.iter().map(LoweredArg::as_ref).collect();
    let mut result = redispatch(context, &lower)?;
    let results = result_tensors(&mut result).map_err(|error| error.at(operator.name()))?;
    if !results.iter().any(is_differentiable) {
        return Ok(result);
    }
    let rule = rule.ok_or_else(|| level.stopped_by(no_rule(operator.name())))?;
    let call = Forward::new(operator, &lower, &tangents, &results);
    let found = outside_layers(OPEN, || rule.apply(&call))?;
    let found = match_results(operator.name(), &results, found)?;
    save_tangents(&results, args, &found, level)?;
    let mut found = found.into_iter();
    attach(&mut result, &mut found, level)?;
    Ok(result)
}

/// Calls the operator with the arguments of the next outer level, at this layer again. A Tracer that left
/// recording to inner calls sees the call first.
fn redispatch(context: &Context<'_>, args: &[ValueRef<'_>]) -> Result<Value> {
    outside_layers(DispatchKey::Autograd.into(), || {
        let local = LocalKeys::current();
        let tracer = local.included() & DispatchKey::Tracer.into();
        context.redispatch((context.keyset() | tracer) - local.excluded(), args)
    })
}

/// Collects the tensors of a result. Foreign tensors are replaced by views of them.
fn result_tensors(result: &mut Value) -> Result<Vec<Tensor>> {
    let mut found = Vec::new();
    collect(result, &mut found)?;
    Ok(found)
}

fn collect(value: &mut Value, found: &mut Vec<Tensor>) -> Result<()> {
    match value {
        Value::Foreign(object) if object.is_tensor() && object.tensor().is_ok() => {
            let tensor = std::mem::replace(value, Value::None).into_tensor()?;
            *value = Value::Tensor(tensor);
            collect(value, found)
        }
        Value::Tensor(tensor) => {
            found.push(tensor.clone());
            Ok(())
        }
        Value::List(items) | Value::Tuple(items) => {
            items.iter_mut().try_for_each(|item| collect(item, found))
        }
        Value::Foreign(object) if object.is_tensor() => Err(Error::new(
            ErrorKind::Gradient,
            format!(
                "an argument has a tangent, and the result is {}, an object that can't have one; let \
                 the kernel return a tensor, or cut tangents off with detach()",
                object.describe()
            ),
        )),
        _ => Ok(()),
    }
}

/// Adds the tangents to the tensors of a result. In place, since a `Value` is large to move.
fn attach(
    value: &mut Value,
    tangents: &mut impl Iterator<Item = Option<Tensor>>,
    level: &Arc<Level>,
) -> Result<()> {
    match value {
        Value::Tensor(tensor) => {
            if let Some(Some(tangent)) = tangents.next() {
                // A new token: the result is another tensor for a trace, even if it is an unchanged argument.
                tensor.set_token(0);
                add_tangent(tensor, level, tangent)?;
            }
            Ok(())
        }
        Value::List(items) | Value::Tuple(items) => {
            items.iter_mut().try_for_each(|item| attach(item, tangents, level))
        }
        _ => Ok(()),
    }
}

/// Converts each tangent to the shape and dtype of its result.
fn match_results(
    name: &str,
    results: &[Tensor],
    found: Vec<Option<Tensor>>,
) -> Result<Vec<Option<Tensor>>> {
    if found.len() != results.len() {
        return Err(wrong_tangent(
            name,
            format!(
                "gave {} tangents; the operator has {} results, and each needs one (None for zero)",
                found.len(),
                results.len()
            ),
        ));
    }
    let each = results.iter().zip(found).enumerate();
    each.map(|(i, (result, tangent))| match tangent {
        Some(tangent) if is_differentiable(result) => {
            match_meta(&TensorMeta::of(result), tangent).map(Some).map_err(|given| {
                given.unwrap_or_else(|given| {
                    wrong_tangent(
                        name,
                        format!(
                            "gave a tangent of {given} for result {i}, which is {}",
                            TensorMeta::of(result)
                        ),
                    )
                })
            })
        }
        _ => Ok(None),
    })
    .collect()
}

/// Broadcasts and converts a tangent to the shape and dtype in `meta`.
///
/// # Errors
/// `Err(TensorMeta)` of a tangent that doesn't broadcast to `meta`, or `Ok(Error)` of a conversion.
fn match_meta(
    meta: &TensorMeta,
    tangent: Tensor,
) -> std::result::Result<Tensor, std::result::Result<Error, TensorMeta>> {
    let given = TensorMeta::of(&tangent);
    if given == *meta {
        return Ok(tangent);
    }
    let fits = keyfold_core::layout::broadcast_shapes(&given.shape, &meta.shape);
    let fits = fits.is_ok_and(|shape| shape == meta.shape) && given.device == meta.device;
    if !fits || !is_differentiable(&tangent) {
        return Err(Err(given));
    }
    let convert = || {
        // A real result has a real tangent.
        let tangent = match given.dtype.is_complex() && !meta.dtype.is_complex() {
            true => aten::real(&tangent)?,
            false => tangent,
        };
        let tangent = match tangent.dtype() == meta.dtype {
            true => tangent,
            false => aten::to(&tangent, meta.dtype)?,
        };
        match tangent.shape() == &meta.shape {
            true => Ok(tangent),
            false => aten::expand(&tangent, &aten::sizes(&meta.shape)),
        }
    };
    outside_layers(DispatchKey::Autograd.into(), convert).map_err(Ok)
}

/// Adds the tangents of this level to the tensors that the call's node saved.
fn save_tangents(
    results: &[Tensor],
    args: &[ValueRef<'_>],
    found: &[Option<Tensor>],
    level: &Arc<Level>,
) -> Result<()> {
    for result in results {
        if let Some(edge) = edge_of(result)? {
            edge.node.add_tangents(args, found, level);
            break;
        }
    }
    Ok(())
}

thread_local! {
    /// The identity of the buffer that [`write`] writes at the outer levels; 0 for none.
    static LOWERED_TARGET: Cell<usize> = const { Cell::new(0) };
}

/// Marks the buffer of a write's target as checked while the outer levels run the write.
struct LoweredTarget {
    previous: usize,
}

impl LoweredTarget {
    fn mark(target: &Tensor) -> LoweredTarget {
        LoweredTarget { previous: LOWERED_TARGET.replace(target.buffer().identity()) }
    }
}

impl Drop for LoweredTarget {
    fn drop(&mut self) {
        LOWERED_TARGET.set(self.previous);
    }
}

/// Returns whether a write to a tensor without a tangent and without a node would change the elements of
/// another tensor that has neither. The innermost level decides it for all levels: at the outer ones the
/// target and its lowered copies share the memory, and the target has a tangent that detects the write.
///
/// # Errors
/// An interrupt.
pub(super) fn shares_memory_with_others(target: &Tensor) -> Result<bool> {
    let buffer = target.buffer();
    let mut has_run = false;
    loop {
        let shares = buffer.shares();
        if shares == 1 || LOWERED_TARGET.get() == buffer.identity() {
            return Ok(false);
        }
        let held = shares_held_by_traces(target) + shares_held_by_pipelines(target);
        if shares <= 1 + held {
            return Ok(false);
        }
        // Another thread may have run waiting calls since, so that the counts differ. Graphs of waiting calls'
        // arguments may have references, which aren't counted: running the calls drops them.
        if buffer.shares() == shares && (has_run || !run_waiting()?) {
            return Ok(true);
        }
        has_run = true;
    }
}

/// Runs an operator that writes to an argument. Refuses targets whose memory another tensor shares that has
/// no tangent, since that tensor's elements would change without a tangent.
fn write(
    context: &Context<'_>,
    args: &[ValueRef<'_>],
    (mut lowered, tangents): (Vec<LoweredArg<'_>>, &[Tangents]),
    level: &Arc<Level>,
    (at, rule): (usize, &dyn Pushforward),
) -> Result<Value> {
    let schema = context.operator().schema();
    let refuse = |why: &str| {
        let name = &schema.arguments[at].name;
        Error::new(ErrorKind::Gradient, format!("{}: argument '{name}' {why}", schema.name))
    };
    let ValueRef::Tensor(target) = args[at] else {
        return Err(refuse(
            "is an array of another library, which can't have a tangent; write to a \
             keyfold.Tensor (keyfold.asarray(x))",
        ));
    };
    if target.is_view() {
        return Err(refuse(
            "is a view of another tensor, whose tangent wouldn't follow the write; build the whole \
             with keyfold.where or concat, or write to a copy (clone())",
        ));
    }
    if dual_of(target).is_none() && shares_memory_with_others(target)? {
        return Err(refuse(
            "has no tangent and shares its memory with other tensors, whose tangents wouldn't follow \
             the write; write before the views are taken, or to a copy (clone())",
        ));
    }
    let found = {
        let lower: Vec<ValueRef<'_>> = lowered.iter().map(LoweredArg::as_ref).collect();
        let call = Forward::new(context.operator(), &lower, tangents, &[]);
        let found = outside_layers(OPEN, || rule.apply(&call))?;
        let tangent = match_results(&schema.name.to_string(), std::slice::from_ref(target), found)?;
        tangent.into_iter().next().flatten()
    };
    // The call writes through a tensor of the next level, and attaches a node to that.
    if let LoweredArg::Same(_) = lowered[at] {
        lowered[at] = LoweredArg::Tensor(without_level(target, level)?);
    }
    let before = target.version();
    let lower: Vec<ValueRef<'_>> = lowered.iter().map(LoweredArg::as_ref).collect();
    {
        let _checked = LoweredTarget::mark(target);
        redispatch(context, &lower)?;
    }
    if target.version() == before {
        target.note_write();
    }
    if let LoweredArg::Tensor(written) = &lowered[at] {
        save_tangents(std::slice::from_ref(written), args, std::slice::from_ref(&found), level)?;
        copy_attachment(target, written)?;
    }
    if let Some(tangent) = found {
        add_tangent(target, level, tangent)?;
    }
    Ok(Value::Argument(at))
}

#[cold]
fn wrong_tangent(name: &str, message: String) -> Error {
    Error::new(ErrorKind::Gradient, format!("the tangent rule of {name} {message}"))
}

#[cold]
fn no_rule(name: &str) -> Error {
    Error::new(
        ErrorKind::Gradient,
        format!(
            "{name} has no rule for tangents, so jvp can't go through it; register one (in Python: \
             keyfold.register_jvp(\"{name}\", jvp), in Rust: \
             keyfold::layers::autograd::register_tangent), or cut tangents off with detach()"
        ),
    )
}

#[cold]
fn writes_without_rule(schema: &Schema, at: usize) -> Error {
    Error::new(
        ErrorKind::Gradient,
        format!(
            "{}: writes to argument '{}' and has no rule for tangents, so the tangent of what is \
             written would be lost; compute a new tensor (without out=), or call it on detached \
             tensors",
            schema.name, schema.arguments[at].name
        ),
    )
}
