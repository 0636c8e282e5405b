//! Autograd: reverse-mode and forward-mode derivatives.
//!
//! A call with a tensor that requires grad records a tape [`Node`]: the operator's derivative, the
//! saved tensors, and an edge to the node of each operand. [`backward`] and [`grad`] walk the nodes from
//! the newest to the oldest. An operator without a derivative runs forward; backward through it is an
//! error that names it. [`jvp`] computes forward-mode derivatives with dual tensors.
//!
//! Method: reverse accumulation on a tape (Griewank and Walther, "Evaluating Derivatives", 2008).
//! Derivatives call operators, so gradients of gradients come from the same graph.
//!
//! Each buffer counts its in-place writes. Backward compares the count with the one at the time of
//! saving: a saved tensor that was written since is an error, not a wrong number. In-place writes are
//! recorded for tensors that are neither leaves nor views, and refused for leaves and views.

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
pub use formula::{Formula, FormulaOfSeveral, Vjp, VjpOfSeveral};
pub(crate) use forward::have_tangents;
pub use jvp::{jvp, make_dual, unpack_dual, with_level};
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

/// Registers a derivative: a kernel at (operator, Autograd) that records calls.
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

/// Returns the kernel at Autograd of an operator with this derivative.
pub fn kernel(derivative: Arc<dyn Derivative>) -> Kernel<Value> {
    record::kernel(derivative, None)
}

/// Returns the kernel at Autograd of an operator with this derivative and this rule of forward mode.
pub fn kernel_with_tangent(
    derivative: Arc<dyn Derivative>,
    tangent: Arc<dyn Pushforward>,
) -> Kernel<Value> {
    record::kernel(derivative, Some(tangent))
}

/// Returns whether calls on this thread are recorded.
pub fn is_enabled() -> bool {
    !LocalKeys::current().excluded().contains(DispatchKey::Autograd)
}

/// Turns recording off on this thread while the guard lives.
pub fn no_grad() -> LocalGuard {
    exclude_keys(DispatchKeySet::from([DispatchKey::Autograd]))
}

/// Makes a tensor a leaf that requires grad, or one that doesn't.
///
/// Unlike [`Tensor::set_requires_grad`], this function attaches the leaf's node at once, so that clones
/// made from now on are the same leaf.
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
            (None, true) => Some(Edge { node: Node::leaf(tensor), output: 0 }),
            (_, false) => None,
        };
        return dual::set_edge(tensor, edge);
    }
    if tensor.requires_grad() != requires_grad {
        crate::pipeline::note_requires_grad(tensor);
    }
    tensor.set_requires_grad(requires_grad)?;
    edge_of(tensor).map(drop)
}

/// Returns whether backward computes a gradient of the tensor. [`Tensor::requires_grad`] is also true of
/// a tensor that has only a tangent.
pub fn requires_grad(tensor: &Tensor) -> bool {
    if let Some((physical, ..)) = vmap::physical(tensor) {
        return requires_grad(&physical);
    }
    match dual::dual_of(tensor) {
        Some(dual) => dual.edge.is_some(),
        None => tensor.requires_grad(),
    }
}

/// Returns the node of a tensor, and the tensor's index among the node's outputs.
pub fn node_of(tensor: &Tensor) -> Option<(Arc<Node>, u32)> {
    match dual::dual_of(tensor) {
        Some(dual) => dual.edge.as_ref().map(|edge| (Arc::clone(&edge.node), edge.output)),
        None => tensor.attached_as::<Node>(),
    }
}

/// Returns a view of the same elements with the same node and the same tangents.
fn alias_with_graph(tensor: &Tensor) -> Result<Tensor> {
    let alias = tensor.detach();
    dual::copy_attachment(&alias, tensor)?;
    Ok(alias)
}

/// Returns the accumulated gradient of a leaf, or the last gradient of a tensor that [`retain_grad`] was
/// called for; `None` before the first backward.
pub fn grad_of(tensor: &Tensor) -> Option<Tensor> {
    let (node, output) = node_of(tensor)?;
    if node.is_leaf() { node.grad() } else { node.retained(output) }
}

/// Keeps the gradient of a tensor that isn't a leaf, for [`grad_of`].
///
/// # Errors
/// [`ErrorKind::Gradient`] when it doesn't require grad.
pub fn retain_grad(tensor: &Tensor) -> Result<()> {
    let edge = edge_of(tensor)?.ok_or_else(|| {
        misuse("retain_grad() needs a tensor that requires grad; this one doesn't")
    })?;
    edge.node.retain(edge.output);
    Ok(())
}

fn misuse(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Gradient, message.into())
}

/// Sets the accumulated gradient of a leaf.
///
/// # Errors
/// [`ErrorKind::Gradient`] when the tensor isn't a leaf that requires grad, or the gradient has another
/// shape, dtype or device.
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

/// Returns the edges of the outputs, each with its initial gradient.
fn roots(outputs: &[Tensor], grads: &[Option<Tensor>]) -> Result<Vec<(Edge, Tensor)>> {
    if outputs.len() != grads.len() && !grads.is_empty() {
        let (outputs, grads) = (outputs.len(), grads.len());
        return Err(misuse(format!("{grads} gradients were given for {outputs} tensors")));
    }
    let mut roots = Vec::with_capacity(outputs.len());
    for (i, output) in outputs.iter().enumerate() {
        let Some(edge) = edge_of(output)? else {
            return Err(misuse(format!(
                "tensor {i} doesn't require grad, so backward can't start from it; it isn't \
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
                    "only a real number has an initial gradient, which is 1, and tensor {i} is {dtype}: \
                     take its real part, its imaginary part or its abs first, or give the initial \
                     gradient"
                )));
            }
            None if output.numel() == 1 => {
                aten::full(&wanted.shape, 1.0, wanted.dtype, wanted.device)?
            }
            None => {
                return Err(misuse(format!(
                    "backward from a tensor of shape {:?} needs an initial gradient of that shape; \
                     only a single number's is 1 by default; give it, or sum() first",
                    wanted.shape
                )));
            }
        };
        let given = TensorMeta::of(&grad);
        if given != wanted {
            return Err(misuse(format!(
                "the initial gradient is {given}, but tensor {i} is {wanted}"
            )));
        }
        roots.push((edge, grad));
    }
    Ok(roots)
}

/// Accumulates the gradients of `outputs` with respect to every leaf into the leaves.
///
/// `grads` are the initial gradients, one per output. An output of one real element needs none: its
/// initial gradient is 1.
///
/// # Errors
/// [`ErrorKind::Gradient`] for an output that doesn't require grad, or has more than one element and no
/// initial gradient; for an operator without a derivative; for a second backward through a graph that
/// wasn't retained; for a saved tensor that was written since; for a derivative that returns gradients of
/// a wrong number, shape, dtype or device.
pub fn backward(
    outputs: &[Tensor],
    grads: &[Option<Tensor>],
    options: Options,
    interrupt: Interrupt<'_>,
) -> Result<()> {
    let roots = roots(outputs, grads)?;
    engine::run(roots, engine::Targets::Leaves, options, interrupt)?;
    crate::pipeline::flush_on_backward()
}

/// Returns the gradients of `outputs` with respect to `inputs`, and accumulates nothing into leaves.
/// The gradient of an input that no output depends on is `None`.
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
    let mut edges = Vec::with_capacity(inputs.len());
    for (i, input) in inputs.iter().enumerate() {
        edges.push(edge_of(input)?.ok_or_else(|| {
            misuse(format!(
                "input {i} doesn't require grad, so nothing was recorded with respect to it; call \
                 requires_grad_() before it is used"
            ))
        })?);
    }
    let roots = roots(outputs, grads)?;
    let grads = engine::run(roots, engine::Targets::Edges(&edges), options, interrupt)?;
    crate::pipeline::flush_on_backward()?;
    Ok(grads)
}
