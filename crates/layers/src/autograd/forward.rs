//! Forward mode: a call with a tensor that has a tangent.
//!
//! The innermost level's tangents are taken off the arguments and the operator is called again, which
//! computes the results with the tangents of the other levels and their place in the graph. Then the rule
//! computes the level's tangents with operators. So each level is differentiated by those around it, and
//! the graph records both; nodes keep tensors with their tangents, so that gradients have tangents, too.

use std::sync::Arc;

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::schema::Schema;
use keyfold_dispatch::{
    CallContext, DispatchKey, DispatchKeySet, LocalKeys, Value as _, outside_layers,
};
use keyfold_tensor::{Tensor, Value, ValueRef};

use super::dual::{add_tangent, dual_of, has_tangent, take_over, tangent_at, without};
use super::level::{Level, were_opened};
use super::node::{TensorMeta, edge_of};
use super::tangent::{Forward, Pushforward, Tangents, is_differentiable, registered};
use crate::aten;
use crate::tracer::kept_shares;

type Context<'c> = CallContext<'c, Value>;

/// The layers that see what a rule calls: levels around this one, and the Profiler, as parts of the call.
const OPEN: DispatchKeySet =
    DispatchKeySet::EMPTY.insert(DispatchKey::Autograd).insert(DispatchKey::Profiler);

/// The tensor in a value that may have a tangent: a keyfold tensor, also as an object of a binding. Arrays
/// of other libraries have none.
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

/// Looks at every tensor of the arguments, those in lists too.
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

/// The innermost level that an argument has a tangent of.
///
/// # Errors
/// [`ErrorKind::Gradient`] for a tangent of a level that has ended, or of elements that were written since.
pub(super) fn innermost(
    context: &Context<'_>,
    args: &[ValueRef<'_>],
) -> Result<Option<Arc<Level>>> {
    if !were_opened() {
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

/// Whether any of the tensors has a tangent of a `jvp` that runs.
pub(crate) fn have_tangents(args: &[ValueRef<'_>]) -> bool {
    if !were_opened() {
        return false;
    }
    let mut found = false;
    let looked = each_tensor(args, &mut |tensor| {
        found |= has_tangent(tensor);
        Ok(())
    });
    looked.is_ok() && found
}

/// An argument without the tangents of a level.
#[expect(clippy::large_enum_variant, reason = "one per argument, for the time of a call")]
enum Lowered<'a> {
    Same(ValueRef<'a>),
    Tensor(Tensor),
    List(Vec<Value>),
}

impl Lowered<'_> {
    fn as_ref(&self) -> ValueRef<'_> {
        match self {
            Lowered::Same(value) => *value,
            Lowered::Tensor(tensor) => ValueRef::Tensor(tensor),
            Lowered::List(items) => ValueRef::List(items),
        }
    }
}

fn has_tangent_at(value: ValueRef<'_>, level: &Level) -> bool {
    tensor_of(value).is_some_and(|tensor| tangent_at(tensor, level).is_some())
}

/// An argument without the tangents of a level, and these.
fn split<'a>(value: ValueRef<'a>, level: &Level) -> Result<(Lowered<'a>, Tangents)> {
    if let Some(tensor) = tensor_of(value) {
        return Ok(match tangent_at(tensor, level) {
            Some(tangent) => (Lowered::Tensor(without(tensor, level)?), Tangents::One(tangent)),
            None => (Lowered::Same(value), Tangents::None),
        });
    }
    if !value.items().any(|item| has_tangent_at(item, level)) {
        return Ok((Lowered::Same(value), Tangents::None));
    }
    let (mut lowered, mut tangents) = (Vec::new(), Vec::new());
    for item in value.items() {
        let tensor = tensor_of(item);
        let tangent = tensor.and_then(|tensor| tangent_at(tensor, level));
        lowered.push(match tensor.filter(|_| tangent.is_some()) {
            Some(tensor) => Value::Tensor(without(tensor, level)?),
            None => Value::from_ref(item)?,
        });
        tangents.push(tangent);
    }
    Ok((Lowered::List(lowered), Tangents::Each(tangents)))
}

/// Serves a call whose arguments have tangents of `level` and of none inside it. `own` is the
/// operator's rule, if it has one.
pub(super) fn run(
    context: &Context<'_>,
    args: &[ValueRef<'_>],
    level: &Arc<Level>,
    own: Option<&Arc<dyn Pushforward>>,
) -> Result<Value> {
    let operator = context.operator();
    let given = registered(operator);
    let rule = given.as_ref().or(own);
    let (lowered, tangents): (Vec<_>, Vec<_>) = {
        let parts = args.iter().map(|arg| split(*arg, level)).collect::<Result<Vec<_>>>()?;
        parts.into_iter().unzip()
    };
    let written = operator
        .schema()
        .arguments
        .iter()
        .position(|argument| argument.alias.as_ref().is_some_and(|alias| alias.write));
    if let Some(at) = written {
        let rule = rule.ok_or_else(|| writes_without_rule(operator.schema(), at))?;
        return write(context, args, (lowered, &tangents), level, (at, &**rule));
    }
    let lower: Vec<ValueRef<'_>> = lowered.iter().map(Lowered::as_ref).collect();
    let mut result = call(context, &lower)?;
    let results = own_tensors(&mut result).map_err(|error| error.at(operator.name()))?;
    if !results.iter().any(is_differentiable) {
        return Ok(result);
    }
    let rule = rule.ok_or_else(|| no_rule(operator.name()))?;
    let call = Forward::new(operator, &lower, &tangents, &results);
    let found = outside_layers(OPEN, || rule.apply(&call))?;
    let found = fitted(operator.name(), &results, found)?;
    note_saved(&results, args, &found, level)?;
    let mut found = found.into_iter();
    attach(&mut result, &mut found, level)?;
    Ok(result)
}

/// Calls the operator with the arguments of the next level: at this layer again, and first at Tracer,
/// where that left recording to the calls below.
fn call(context: &Context<'_>, args: &[ValueRef<'_>]) -> Result<Value> {
    outside_layers(DispatchKey::Autograd.into(), || {
        let local = LocalKeys::current();
        let tracer = local.included() & DispatchKey::Tracer.into();
        context.redispatch((context.keyset() | tracer) - local.excluded(), args)
    })
}

/// The tensors of a result, foreign ones as views of them from here on.
fn own_tensors(result: &mut Value) -> Result<Vec<Tensor>> {
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

/// Gives the tensors of a result their tangents. In place: values are large.
fn attach(
    value: &mut Value,
    tangents: &mut impl Iterator<Item = Option<Tensor>>,
    level: &Arc<Level>,
) -> Result<()> {
    match value {
        Value::Tensor(tensor) => {
            if let Some(Some(tangent)) = tangents.next() {
                // A tensor of its own, also where it is an argument as it was.
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

/// Tangents in the form of their results.
fn fitted(
    name: &str,
    results: &[Tensor],
    found: Vec<Option<Tensor>>,
) -> Result<Vec<Option<Tensor>>> {
    if found.len() != results.len() {
        return Err(misfit(
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
            fit(&TensorMeta::of(result), tangent).map(Some).map_err(|given| {
                given.unwrap_or_else(|given| {
                    misfit(
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

/// A tangent of that form: repeated where broadcasting would, and of its dtype.
///
/// # Errors
/// The form of a tangent that doesn't fit, or the error of a conversion.
fn fit(
    form: &TensorMeta,
    tangent: Tensor,
) -> std::result::Result<Tensor, std::result::Result<Error, TensorMeta>> {
    let given = TensorMeta::of(&tangent);
    if given == *form {
        return Ok(tangent);
    }
    let fits = keyfold_core::layout::broadcast_shapes(&given.shape, &form.shape);
    let fits = fits.is_ok_and(|shape| shape == form.shape) && given.device == form.device;
    if !fits || !is_differentiable(&tangent) {
        return Err(Err(given));
    }
    let convert = || {
        // Of a real result the real part changes.
        let tangent = match given.dtype.is_complex() && !form.dtype.is_complex() {
            true => aten::real(&tangent)?,
            false => tangent,
        };
        let tangent = match tangent.dtype() == form.dtype {
            true => tangent,
            false => aten::to(&tangent, form.dtype)?,
        };
        match tangent.shape() == &form.shape {
            true => Ok(tangent),
            false => aten::expand(&tangent, &aten::sizes(&form.shape)),
        }
    };
    outside_layers(DispatchKey::Autograd.into(), convert).map_err(Ok)
}

/// Has the node of the call keep what it keeps with the tangents of this level.
fn note_saved(
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

/// Runs an operator that writes to an argument, where no other tensor sees the write without a tangent.
fn write(
    context: &Context<'_>,
    args: &[ValueRef<'_>],
    (mut lowered, tangents): (Vec<Lowered<'_>>, &[Tangents]),
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
    let shares = target.buffer().shares();
    if dual_of(target).is_none() && shares > 1 && shares > 1 + kept_shares(target) {
        return Err(refuse(
            "has no tangent and shares its memory with other tensors, whose tangents wouldn't follow \
             the write; write before the views are taken, or to a copy (clone())",
        ));
    }
    let found = {
        let lower: Vec<ValueRef<'_>> = lowered.iter().map(Lowered::as_ref).collect();
        let call = Forward::new(context.operator(), &lower, tangents, &[]);
        let found = outside_layers(OPEN, || rule.apply(&call))?;
        let tangent = fitted(&schema.name.to_string(), std::slice::from_ref(target), found)?;
        tangent.into_iter().next().flatten()
    };
    // Written through a tensor of the next level, which is given its place in the graph by the call.
    if let Lowered::Same(_) = lowered[at] {
        lowered[at] = Lowered::Tensor(without(target, level)?);
    }
    let before = target.version();
    let lower: Vec<ValueRef<'_>> = lowered.iter().map(Lowered::as_ref).collect();
    call(context, &lower)?;
    if target.version() == before {
        target.note_write();
    }
    if let Lowered::Tensor(written) = &lowered[at] {
        note_saved(std::slice::from_ref(written), args, std::slice::from_ref(&found), level)?;
        take_over(target, written)?;
    }
    if let Some(tangent) = found {
        add_tangent(target, level, tangent)?;
    }
    Ok(Value::Argument(at))
}

#[cold]
fn misfit(name: &str, message: String) -> Error {
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
