//! Autograd: reverse-mode derivatives.
//!
//! A call with a tensor that requires grad records a [`Node`]: how gradients go back through the
//! operator, what they need for that, and where they go next. [`backward`] and [`grad`] walk the
//! nodes from the newest to the oldest. An operator without a derivative works forward; going back
//! through it is an error that names it.
//!
//! Method: reverse accumulation on a tape (Griewank and Walther, "Evaluating Derivatives", 2008).
//! Derivatives are written with operators, so gradients of gradients come from the same graph.
//!
//! Memory that is written in place counts its writes; what a node saved and somebody changed since
//! is an error, not a wrong number. Writing in place is recorded for tensors that aren't leaves and
//! aren't views of others, and refused for those.

mod checkpoint;
mod derivative;
mod dual;
mod engine;
mod formula;
mod forward;
mod jvp;
mod level;
mod node;
pub mod per_example;
mod record;
mod saved;
mod tangent;

use std::sync::Arc;

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::{
    DispatchKey, DispatchKeySet, Dispatcher, Handle, Kernel, LocalGuard, LocalKeys, Override,
    exclude_keys,
};
use keyfold_tensor::{Tensor, Value};

pub use checkpoint::{Segment, checkpoint};
pub use derivative::{Backward, Derivative, Extra, Gradients, Saves};
pub use dual::{has_tangent, without_graph};
pub use engine::{Interrupt, Options};
pub use formula::{Formula, Vjp};
pub(crate) use forward::have_tangents;
pub use jvp::{dual, inside, jvp, unpack};
pub use level::{Level, recording};
pub use node::{Edge, HookFn, Node, TensorMeta, edge_of};
pub use saved::{Saved, SavedTensor};
pub use tangent::{
    Forward, Jvp, Linear, Multilinear, Pushforward, Tangents, added, has_registered_tangent,
    is_tangent_registered, register_tangent, remove_tangent,
};

use crate::{aten, vmap};

pub(crate) fn register(dispatcher: &Dispatcher<Value>) -> Result<()> {
    dispatcher.fallback(DispatchKey::Autograd, record::fallback(), Override::Error).map(drop)
}

/// Registers a derivative: a kernel at (operator, Autograd) that records.
///
/// # Errors
/// [`ErrorKind::UnknownOperator`], and [`ErrorKind::Registration`] where there is one already.
pub fn register_derivative(
    dispatcher: &Dispatcher<Value>,
    operator: &str,
    derivative: Arc<dyn Derivative>,
    mode: Override,
) -> Result<Handle<Value>> {
    dispatcher.implement(operator, DispatchKey::Autograd, kernel(derivative), mode)
}

/// The kernel at Autograd of an operator with this derivative.
pub fn kernel(derivative: Arc<dyn Derivative>) -> Kernel<Value> {
    record::kernel(derivative, None)
}

/// The kernel at Autograd of an operator with this derivative and this rule of forward mode.
pub fn kernel_with_tangent(
    derivative: Arc<dyn Derivative>,
    tangent: Arc<dyn Pushforward>,
) -> Kernel<Value> {
    record::kernel(derivative, Some(tangent))
}

/// Whether calls on this thread are recorded.
pub fn is_enabled() -> bool {
    !LocalKeys::current().excluded().contains(DispatchKey::Autograd)
}

/// Nothing is recorded on this thread while the guard lives.
pub fn no_grad() -> LocalGuard {
    exclude_keys(DispatchKeySet::from([DispatchKey::Autograd]))
}

/// Makes a tensor a leaf that requires grad, or one that doesn't.
///
/// Unlike [`Tensor::set_requires_grad`] alone, it gives the tensor its place in the graph at once, so
/// that clones made from now on are the same leaf.
///
/// # Errors
/// [`ErrorKind::DType`] when the dtype is neither floating nor complex, [`ErrorKind::Gradient`] for
/// switching it off where the tensor was computed from others.
pub fn set_requires_grad(tensor: &Tensor, requires_grad: bool) -> Result<()> {
    if !requires_grad && edge_of(tensor)?.is_some_and(|edge| !edge.node.is_leaf()) {
        return Err(misuse(
            "requires_grad can be switched off for leaves only, and this tensor was computed from \
             others; take detach(), which gives the same elements without a history",
        ));
    }
    if let Some(dual) = dual::dual_of(tensor) {
        let edge = match (&dual.edge, requires_grad) {
            (Some(edge), true) => Some(edge.clone()),
            (None, true) => Some(Edge { node: Node::leaf(tensor), place: 0 }),
            (_, false) => None,
        };
        return dual::set_edge(tensor, edge);
    }
    tensor.set_requires_grad(requires_grad)?;
    edge_of(tensor).map(drop)
}

/// Whether gradients go back to the tensor. [`Tensor::requires_grad`] also says yes of one that has a
/// tangent alone.
pub fn requires_grad(tensor: &Tensor) -> bool {
    if let Some((physical, ..)) = vmap::physical(tensor) {
        return requires_grad(&physical);
    }
    match dual::dual_of(tensor) {
        Some(dual) => dual.edge.is_some(),
        None => tensor.requires_grad(),
    }
}

/// The node of a tensor, and the place among its results.
pub fn node_of(tensor: &Tensor) -> Option<(Arc<Node>, u32)> {
    match dual::dual_of(tensor) {
        Some(dual) => dual.edge.as_ref().map(|edge| (Arc::clone(&edge.node), edge.place)),
        None => tensor.attached_as::<Node>(),
    }
}

/// Another view of the same elements with the same place in the graph and the same tangents.
fn alias_of(tensor: &Tensor) -> Result<Tensor> {
    let alias = tensor.detach();
    dual::take_over(&alias, tensor)?;
    Ok(alias)
}

/// The gradient that a leaf has gathered, or another tensor that [`retain_grad`] was called for;
/// `None` before the first backward.
pub fn grad_of(tensor: &Tensor) -> Option<Tensor> {
    let (node, place) = node_of(tensor)?;
    if node.is_leaf() { node.grad() } else { node.retained(place) }
}

/// Has the gradient of a tensor that isn't a leaf kept, too.
///
/// # Errors
/// [`ErrorKind::Gradient`] when it doesn't require grad.
pub fn retain_grad(tensor: &Tensor) -> Result<()> {
    let edge = edge_of(tensor)?.ok_or_else(|| {
        misuse("retain_grad() needs a tensor that requires grad; this one doesn't")
    })?;
    edge.node.retain(edge.place);
    Ok(())
}

fn misuse(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Gradient, message.into())
}

/// Sets the gradient that a leaf has gathered.
///
/// # Errors
/// [`ErrorKind::Gradient`] when the tensor isn't a leaf that requires grad, or the gradient isn't
/// of its form.
pub fn set_grad(tensor: &Tensor, grad: Option<Tensor>) -> Result<()> {
    let node = match edge_of(tensor)? {
        Some(edge) if edge.node.is_leaf() => edge.node,
        _ if grad.is_none() => return Ok(()),
        _ => return Err(misuse("only a leaf that requires grad has a gradient that can be set")),
    };
    if let Some(grad) = &grad {
        let (given, wanted) = (TensorMeta::of(grad), TensorMeta::of(tensor));
        if given != wanted {
            return Err(misuse(format!("a gradient of {given} doesn't fit a tensor of {wanted}")));
        }
    }
    node.set_grad(grad);
    Ok(())
}

/// Where the gradients of some results begin.
fn roots(outputs: &[Tensor], grads: &[Option<Tensor>]) -> Result<Vec<(Edge, Tensor)>> {
    if outputs.len() != grads.len() && !grads.is_empty() {
        let (outputs, grads) = (outputs.len(), grads.len());
        return Err(misuse(format!("{grads} gradients were given for {outputs} tensors")));
    }
    let mut roots = Vec::with_capacity(outputs.len());
    for (i, output) in outputs.iter().enumerate() {
        let Some(edge) = edge_of(output)? else {
            return Err(misuse(format!(
                "tensor {i} doesn't require grad, so no gradient goes back from it; it isn't \
                 computed from a tensor with requires_grad, or that was under no_grad() or before \
                 detach()"
            )));
        };
        let wanted = TensorMeta::of(output);
        let grad = match grads.get(i).and_then(Option::as_ref) {
            Some(grad) => grad.clone(),
            None if wanted.dtype.is_complex() => {
                let dtype = wanted.dtype;
                return Err(misuse(format!(
                    "a gradient begins by itself at a real number only, and tensor {i} is {dtype}: \
                     take its real part, its imaginary part or its abs first, or give the gradient to \
                     begin with"
                )));
            }
            None if output.numel() == 1 => {
                aten::full(&wanted.shape, 1.0, wanted.dtype, wanted.device)?
            }
            None => {
                return Err(misuse(format!(
                    "backward from a tensor of shape {:?} needs the gradient of that shape to begin \
                     with: only a single number's is 1 by itself; give it, or sum() first",
                    wanted.shape
                )));
            }
        };
        let given = TensorMeta::of(&grad);
        if given != wanted {
            return Err(misuse(format!(
                "the gradient to begin with is {given}, but tensor {i} is {wanted}"
            )));
        }
        roots.push((edge, grad));
    }
    Ok(roots)
}

/// Adds the gradients of `outputs` with respect to every leaf to the leaves.
///
/// `grads` are those to begin with, one per output; a single number's is 1 by itself.
///
/// # Errors
/// [`ErrorKind::Gradient`]: an output that doesn't require grad, or has more than one element and no
/// gradient to begin with; an operator without a derivative; a second time through a graph that
/// wasn't kept; a saved tensor that was changed since; a derivative that returns something wrong.
pub fn backward(
    outputs: &[Tensor],
    grads: &[Option<Tensor>],
    options: Options,
    interrupt: Interrupt<'_>,
) -> Result<()> {
    let roots = roots(outputs, grads)?;
    engine::run(roots, engine::Targets::Leaves, options, interrupt).map(drop)
}

/// The gradients of `outputs` with respect to `inputs`; leaves keep what they have. `None` for an
/// input that no output depends on.
///
/// # Errors
/// As [`backward`], and [`ErrorKind::Gradient`] for an input that doesn't require grad.
pub fn grad(
    outputs: &[Tensor],
    inputs: &[Tensor],
    grads: &[Option<Tensor>],
    options: Options,
    interrupt: Interrupt<'_>,
) -> Result<Vec<Option<Tensor>>> {
    let mut places = Vec::with_capacity(inputs.len());
    for (i, input) in inputs.iter().enumerate() {
        places.push(edge_of(input)?.ok_or_else(|| {
            misuse(format!(
                "input {i} doesn't require grad, so nothing was recorded with respect to it; call \
                 requires_grad_() before it is used"
            ))
        })?);
    }
    let roots = roots(outputs, grads)?;
    engine::run(roots, engine::Targets::Places(&places), options, interrupt)
}
