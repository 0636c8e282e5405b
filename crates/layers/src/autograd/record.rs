//! Recording: the kernels at the key Autograd.

use std::sync::Arc;

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::schema::{Argument, Schema, Type};
use keyfold_dispatch::{CallContext, DispatchKey, HostLock, Kernel, Value as _};
use keyfold_tensor::{ForeignObject, Tensor, Value, ValueRef};
use smallvec::SmallVec;

use super::derivative::{Derivative, NoDerivative, SavedCall};
use super::forward;
use super::level;
use super::node::{Edge, Edges, Node, TensorMeta, attach, edge_of};
use super::saved::Saved;
use super::tangent::Pushforward;
use crate::HOST_LOCK_FROM;
use crate::tracer::kept_shares;

type Context<'c> = CallContext<'c, Value>;

/// The kernel of an operator with a derivative, and a rule for tangents if it has one.
pub(super) fn kernel(
    derivative: Arc<dyn Derivative>,
    tangent: Option<Arc<dyn Pushforward>>,
) -> Kernel<Value> {
    let label = format!("derivative of {}", derivative.name());
    let kernel = Kernel::boxed(move |context, args| {
        if !wants_grad(args) {
            return context.call_below(args);
        }
        if let Some(level) = forward::innermost(context, args)? {
            return forward::run(context, args, &level, tangent.as_ref());
        }
        if !level::is_recording() {
            return context.call_below(args);
        }
        record(context, args, &derivative)
    });
    kernel.named(label).with_host_lock(HostLock::ReleaseFrom(HOST_LOCK_FROM))
}

/// The fallback: every operator without a derivative works forward, and its backward is an error
/// that names it.
pub(super) fn fallback() -> Kernel<Value> {
    let kernel = Kernel::boxed(|context, args| {
        if !wants_grad(args) {
            return context.call_below(args);
        }
        if let Some(level) = forward::innermost(context, args)? {
            return forward::run(context, args, &level, None);
        }
        if !level::is_recording() {
            return context.call_below(args);
        }
        let name = context.operator().name();
        if writes(context.operator().schema()) {
            return Err(Error::new(
                ErrorKind::Gradient,
                format!(
                    "{name} writes to an argument and has no derivative, so what a tensor that \
                     requires grad has to do with the result would be lost; register a derivative, \
                     or call it under no_grad()"
                ),
            ));
        }
        let derivative: Arc<dyn Derivative> = Arc::new(NoDerivative(name.to_string()));
        record(context, args, &derivative)
    });
    kernel.named("no derivative").with_host_lock(HostLock::ReleaseFrom(HOST_LOCK_FROM))
}

/// Calls the operator below, and gives its results their places in the graph.
fn record(
    context: &Context<'_>,
    args: &[ValueRef<'_>],
    derivative: &Arc<dyn Derivative>,
) -> Result<Value> {
    let edges = edges_of(context, args)?;
    let written = written_argument(context.operator().schema())?;
    // Changed where it is: a value is large, and moving it costs more than most of the rest.
    let mut result = match written {
        None => context.call_below(args),
        Some(at) => write(context, args, at),
    };
    if let Ok(value) = &mut result
        && let Some(node) = node(context, args, value, edges, derivative, written)?
    {
        finish(context, args, value, &node, written)?;
    }
    result
}

/// Whether a gradient is wanted with respect to any argument.
fn wants_grad(args: &[ValueRef<'_>]) -> bool {
    args.iter().any(|arg| match arg {
        ValueRef::Tensor(tensor) => tensor.requires_grad(),
        other => Value::tag(*other).keys().contains(DispatchKey::Autograd),
    })
}

/// Where the gradients of the operands go: a place per tensor argument and per item of a list.
fn edges_of(context: &Context<'_>, args: &[ValueRef<'_>]) -> Result<Edges> {
    let mut edges = Edges::new();
    let schema = context.operator().schema();
    for (arg, argument) in args.iter().zip(&schema.arguments) {
        push_edges(*arg, &argument.ty, &mut edges).map_err(|error| {
            error.at(&format!("argument '{}'", argument.name)).at(&schema.name.to_string())
        })?;
    }
    Ok(edges)
}

fn push_edges(arg: ValueRef<'_>, ty: &Type, edges: &mut Edges) -> Result<()> {
    match (arg, ty.without_optional()) {
        (ValueRef::Tensor(tensor), Type::Tensor) => edges.push(edge_of(tensor)?),
        (ValueRef::Foreign(object), Type::Tensor) if wants_grad(&[arg]) => {
            edges.push(edge_of(object.tensor()?)?);
        }
        (_, Type::Tensor) => edges.push(None),
        (list, Type::List(inner, _)) if *inner.without_optional() == Type::Tensor => {
            for item in list.items() {
                push_edges(item, inner, edges)?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// The argument that an operator writes to, if it does.
///
/// # Errors
/// [`ErrorKind::Gradient`] where it isn't what the operator returns, and nothing else: then the
/// graph would not know of the write.
fn written_argument(schema: &Schema) -> Result<Option<usize>> {
    let is_written = |argument: &Argument| argument.alias.as_ref().is_some_and(|alias| alias.write);
    let Some(at) = schema.arguments.iter().position(is_written) else { return Ok(None) };
    let others = schema.arguments[at + 1..].iter().any(is_written);
    let given_back = matches!(
        &schema.returns[..],
        [only] if only.alias.as_ref().is_some_and(|alias| alias.write)
    );
    if others || !given_back {
        return Err(Error::new(
            ErrorKind::Gradient,
            format!(
                "{}: an operator that writes to an argument can be recorded if that is the only one \
                 it writes to, and its only result: Tensor(a!) x, ... -> Tensor(a!); call it under \
                 no_grad(), or on detached tensors",
                schema.name
            ),
        ));
    }
    Ok(Some(at))
}

fn writes(schema: &Schema) -> bool {
    schema.arguments.iter().any(|argument| argument.alias.as_ref().is_some_and(|a| a.write))
}

/// Runs an operator that writes in place, where that leaves the graph right.
fn write(context: &Context<'_>, args: &[ValueRef<'_>], at: usize) -> Result<Value> {
    let schema = context.operator().schema();
    let refuse = |why: &str| {
        let name = &schema.arguments[at].name;
        Error::new(ErrorKind::Gradient, format!("{}: argument '{name}' {why}", schema.name))
    };
    let ValueRef::Tensor(target) = args[at] else {
        return Err(refuse(
            "is an array of another library, which can't be part of a graph of derivatives; write \
             to a keyfold.Tensor (keyfold.asarray(x))",
        ));
    };
    if target.is_view() {
        return Err(refuse(
            "is a view of another tensor, and writing to it under Autograd isn't recorded for that \
             one; build the whole with keyfold.where or concat, or write under no_grad()",
        ));
    }
    if edge_of(target)?.is_some_and(|edge| edge.node.is_leaf()) {
        return Err(refuse(
            "is a leaf that requires grad, and writing to it would lose what its gradient is with \
             respect to; write under no_grad(), or to a copy (clone())",
        ));
    }
    if !target.requires_grad() && is_seen_by_others(target) {
        return Err(refuse(
            "doesn't require grad and shares its memory with other tensors, which would not know of \
             the gradient that is written into it; write before the views are taken, or to a copy \
             (clone())",
        ));
    }
    let before = target.version();
    let result = context.call_below(args)?;
    if target.version() == before {
        target.note_write();
    }
    Ok(result)
}

/// Whether other tensors share its memory, a recording's own aside.
fn is_seen_by_others(target: &Tensor) -> bool {
    let shares = target.buffer().shares();
    shares > 1 && shares > 1 + kept_shares(target)
}

/// The tensors among the results; foreign ones as views of them.
struct Results<'r> {
    tensors: SmallVec<[&'r Tensor; 1]>,
    differentiable: bool,
    /// An object that can't be viewed, and so can't be part of a graph.
    object: Option<&'r dyn ForeignObject>,
}

impl<'r> Results<'r> {
    fn of(result: &'r Value) -> Self {
        let mut results = Results { tensors: SmallVec::new(), differentiable: false, object: None };
        results.push(result);
        results
    }

    fn push(&mut self, value: &'r Value) {
        match value {
            Value::Tensor(tensor) => {
                self.tensors.push(tensor);
                self.differentiable |= is_differentiable(tensor);
            }
            Value::Foreign(object) if object.is_tensor() => {
                let Ok(tensor) = object.tensor() else {
                    self.object = Some(&**object);
                    return;
                };
                self.tensors.push(tensor);
                self.differentiable |= is_differentiable(tensor);
            }
            Value::List(items) | Value::Tuple(items) => items.iter().for_each(|v| self.push(v)),
            _ => {}
        }
    }

    fn metas(&self) -> SmallVec<[TensorMeta; 1]> {
        self.tensors.iter().map(|tensor| TensorMeta::of(tensor)).collect()
    }

    /// The version of the memory that a result shares with an argument, if one does.
    fn view(&self, schema: &Schema, written: Option<usize>) -> Option<u32> {
        if written.is_some() || !shares_memory(schema) {
            return None;
        }
        self.tensors.iter().find(|tensor| tensor.is_view()).map(|tensor| tensor.version())
    }
}

fn shares_memory(schema: &Schema) -> bool {
    schema.returns.iter().any(|result| result.alias.is_some())
}

fn is_differentiable(tensor: &Tensor) -> bool {
    tensor.dtype().is_floating() || tensor.dtype().is_complex()
}

/// The node of a call; `None` where no result can have a gradient.
fn node(
    context: &Context<'_>,
    args: &[ValueRef<'_>],
    result: &Value,
    edges: Edges,
    derivative: &Arc<dyn Derivative>,
    written: Option<usize>,
) -> Result<Option<Arc<Node>>> {
    let results = Results::of(result);
    if let Some(object) = results.object {
        return Err(Error::new(
            ErrorKind::Gradient,
            format!(
                "{}: an argument requires grad, and the result is {}, an object that no gradient can \
                 go back through; let the kernel return a tensor, or call it under no_grad() where \
                 no gradient shall go",
                context.operator().name(),
                object.describe()
            ),
        ));
    }
    if !results.differentiable {
        return Ok(None);
    }
    let (extra, keeps) = derivative.record(args, &results.tensors, &edges)?;
    let schema = context.operator().schema();
    let mut arguments = SmallVec::with_capacity(args.len());
    let mut places = &edges[..];
    for (i, (arg, argument)) in args.iter().zip(&schema.arguments).enumerate() {
        // What was written isn't what the operator got any more.
        let read = keeps.reads(i) && written != Some(i);
        arguments.push(Saved::argument(*arg, &argument.ty, read, &mut places)?);
    }
    let mut kept = SmallVec::new();
    if keeps.results {
        kept.extend(results.tensors.iter().map(|tensor| Saved::tensor(tensor, true, false)));
    }
    let saved = SavedCall { arguments, results: kept, extra };
    let (outputs, view) = (results.metas(), results.view(schema, written));
    let casts = context.keyset().contains(DispatchKey::Autocast);
    Ok(Some(Node::call(Arc::clone(derivative), edges, saved, outputs, view, casts)))
}

/// Gives the results their places in the graph.
fn finish(
    context: &Context<'_>,
    args: &[ValueRef<'_>],
    result: &mut Value,
    node: &Arc<Node>,
    written: Option<usize>,
) -> Result<()> {
    if let Some(at) = written {
        *result = Value::Argument(at);
        return attach(args[at].tensor()?, &Edge { node: Arc::clone(node), place: 0 });
    }
    place_in_graph(result, shares_memory(context.operator().schema()), node, &mut 0)
}

/// Gives each differentiable result its place in the graph. In place: values are large.
fn place_in_graph(
    value: &mut Value,
    shares: bool,
    node: &Arc<Node>,
    place: &mut u32,
) -> Result<()> {
    match value {
        Value::Foreign(object) if object.is_tensor() => {
            let tensor = std::mem::replace(value, Value::None).into_tensor()?;
            *value = Value::Tensor(tensor);
            place_in_graph(value, shares, node, place)
        }
        Value::Tensor(tensor) => {
            // A tensor of its own, also where it is an argument as it was: the caller's object is
            // before the operator, and the result behind it.
            tensor.set_token(0);
            if !shares {
                tensor.set_whole();
            }
            let at = std::mem::replace(place, *place + 1);
            if is_differentiable(tensor) {
                attach(tensor, &Edge { node: Arc::clone(node), place: at })?;
            }
            Ok(())
        }
        Value::List(items) | Value::Tuple(items) => {
            items.iter_mut().try_for_each(|item| place_in_graph(item, shares, node, place))
        }
        _ => Ok(()),
    }
}
