//! Recording: the kernels at the key Autograd.

use std::sync::Arc;

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::schema::{Argument, Schema, Type};
use keyfold_dispatch::{CallContext, DispatchKey, HostLock, Kernel, Value as _};
use keyfold_tensor::{ForeignObject, Tensor, Value, ValueRef};
use smallvec::SmallVec;

use super::derivative::{Derivative, NoDerivative, SavedCall};
use super::forward::{self, shares_memory_with_others};
use super::level;
use super::node::{Edge, Edges, Node, TensorMeta, attach, edge_of};
use super::saved::Saved;
use super::tangent::Pushforward;
use crate::HOST_LOCK_FROM;

type Context<'c> = CallContext<'c, Value>;

/// Makes the kernel of an operator with a derivative and perhaps a rule of forward mode.
pub(super) fn kernel(
    derivative: Arc<dyn Derivative>,
    tangent: Option<Arc<dyn Pushforward>>,
) -> Kernel<Value> {
    let label = format!("derivative of {}", derivative.name());
    let kernel = Kernel::boxed(move |context, args| {
        if !any_requires_grad(args) {
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

/// Makes the fallback for operators without a derivative: they run forward, and backward is an error that
/// names the operator.
pub(super) fn fallback() -> Kernel<Value> {
    let kernel = Kernel::boxed(|context, args| {
        if !any_requires_grad(args) {
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
                    "{name} writes to an argument and has no derivative, so the result's dependence on \
                     tensors that require grad would be lost; register a derivative, or call it \
                     under no_grad()"
                ),
            ));
        }
        let derivative: Arc<dyn Derivative> = Arc::new(NoDerivative(name.to_string()));
        record(context, args, &derivative)
    });
    kernel.named("no derivative").with_host_lock(HostLock::ReleaseFrom(HOST_LOCK_FROM))
}

/// Calls the operator below and attaches a node to its results.
fn record(
    context: &Context<'_>,
    args: &[ValueRef<'_>],
    derivative: &Arc<dyn Derivative>,
) -> Result<Value> {
    let edges = edges_of(context, args)?;
    let written = written_argument(context.operator().schema())?;
    // The result is changed in place, since moving a `Value` costs more than most of this function.
    let mut result = match written {
        None => context.call_below(args),
        Some(at) => write(context, args, at),
    };
    if let Ok(value) = &mut result
        && let Some(node) = make_node(context, args, value, edges, derivative, written)?
    {
        attach_node(context, args, value, &node, written)?;
    }
    result
}

/// Returns whether an argument requires grad or has a tangent.
fn any_requires_grad(args: &[ValueRef<'_>]) -> bool {
    args.iter().any(|arg| match arg {
        ValueRef::Tensor(tensor) => tensor.requires_grad(),
        other => Value::tag(*other).keys().contains(DispatchKey::Autograd),
    })
}

/// Returns the edges of the operands, one per slot.
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
        (ValueRef::Foreign(object), Type::Tensor) if any_requires_grad(&[arg]) => {
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

/// Returns the position of the argument that an operator writes to, if any.
///
/// # Errors
/// [`ErrorKind::Gradient`] unless that argument is the operator's only result: the graph can record no
/// other writes.
fn written_argument(schema: &Schema) -> Result<Option<usize>> {
    let is_written = |argument: &Argument| argument.alias.as_ref().is_some_and(|alias| alias.write);
    let Some(at) = schema.arguments.iter().position(is_written) else { return Ok(None) };
    let others = schema.arguments[at + 1..].iter().any(is_written);
    let returned = matches!(
        &schema.returns[..],
        [only] if only.alias.as_ref().is_some_and(|alias| alias.write)
    );
    if others || !returned {
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

/// Runs an operator that writes in place, and refuses targets whose gradient would become wrong.
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
            "is a leaf that requires grad, and its gradient is with respect to the present elements; \
             write under no_grad(), or to a copy (clone())",
        ));
    }
    if !target.requires_grad() && shares_memory_with_others(target)? {
        return Err(refuse(
            "doesn't require grad and shares its memory with other tensors, whose gradients would \
             ignore the write; write before the views are taken, or to a copy (clone())",
        ));
    }
    let before = target.version();
    let result = context.call_below(args)?;
    if target.version() == before {
        target.note_write();
    }
    Ok(result)
}

/// The tensors of a result; foreign tensors as views of them.
struct Results<'r> {
    tensors: SmallVec<[&'r Tensor; 1]>,
    differentiable: bool,
    /// A foreign object that can't be viewed as a tensor, and so can't have a node.
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

    /// Returns the write count of the memory that a result shares with an argument, if one does.
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

/// Makes the node of a call; `None` where no result can have a gradient.
fn make_node(
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
    let (extra, saves) = derivative.record(args, &results.tensors, &edges)?;
    let schema = context.operator().schema();
    let mut arguments = SmallVec::with_capacity(args.len());
    let mut remaining = &edges[..];
    for (i, (arg, argument)) in args.iter().zip(&schema.arguments).enumerate() {
        // A written argument has other elements now than the operator read.
        let read = saves.reads(i) && written != Some(i);
        arguments.push(Saved::argument(*arg, &argument.ty, read, &mut remaining)?);
    }
    let mut saved_results = SmallVec::new();
    if saves.results {
        saved_results
            .extend(results.tensors.iter().map(|tensor| Saved::tensor(tensor, true, false)));
    }
    let saved = SavedCall { arguments, results: saved_results, extra };
    let (outputs, view) = (results.metas(), results.view(schema, written));
    let casts = context.keyset().contains(DispatchKey::Autocast);
    Ok(Some(Node::call(Arc::clone(derivative), edges, saved, outputs, view, casts)))
}

/// Attaches the node to the results, or to the argument that was written.
fn attach_node(
    context: &Context<'_>,
    args: &[ValueRef<'_>],
    result: &mut Value,
    node: &Arc<Node>,
    written: Option<usize>,
) -> Result<()> {
    if let Some(at) = written {
        *result = Value::Argument(at);
        return attach(args[at].tensor()?, &Edge { node: Arc::clone(node), output: 0 });
    }
    attach_results(result, shares_memory(context.operator().schema()), node, &mut 0)
}

/// Attaches the node to each floating or complex result. In place, since a `Value` is large to move.
fn attach_results(value: &mut Value, shares: bool, node: &Arc<Node>, next: &mut u32) -> Result<()> {
    match value {
        Value::Foreign(object) if object.is_tensor() => {
            let tensor = std::mem::replace(value, Value::None).into_tensor()?;
            *value = Value::Tensor(tensor);
            attach_results(value, shares, node, next)
        }
        Value::Tensor(tensor) => {
            // A new token: the result is another tensor for a trace, even if it is an unchanged argument,
            // since the argument has its own node.
            tensor.set_token(0);
            if !shares {
                tensor.set_whole();
            }
            let at = std::mem::replace(next, *next + 1);
            if is_differentiable(tensor) {
                attach(tensor, &Edge { node: Arc::clone(node), output: at })?;
            }
            Ok(())
        }
        Value::List(items) | Value::Tuple(items) => {
            items.iter_mut().try_for_each(|item| attach_results(item, shares, node, next))
        }
        _ => Ok(()),
    }
}
