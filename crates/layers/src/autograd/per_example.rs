//! Gradients inside `vmap`, one per example.
//!
//! Inside `vmap` a tensor is one example, and the tape records the physical tensors, which contain all
//! examples. Examples are independent, so the gradient of the sum over all examples with respect to a
//! physical tensor contains the gradient of each example. Therefore [`variable`] adds a batch dimension for
//! every open level, even to a tensor that is the same for all examples: without that dimension the
//! gradients of the examples would be summed.

use std::sync::Arc;

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_tensor::Tensor;
use rustc_hash::FxHashSet;

use super::engine::{Interrupt, Options};
use super::{alias_with_graph, edge_of, has_tangent, level, set_requires_grad};
use crate::{aten, vmap};

/// Returns the physical tensor, and the level and dimension of each batch, innermost first.
fn unwrap_batches(tensor: &Tensor) -> (Tensor, Vec<(usize, usize)>) {
    let (mut tensor, mut batches) = (tensor.clone(), Vec::new());
    while let Some((physical, level, dim)) = vmap::physical(&tensor) {
        batches.push((level, dim));
        tensor = physical;
    }
    (tensor, batches)
}

fn wrap_batches(physical: Tensor, batches: &[(usize, usize)]) -> Result<Tensor> {
    batches.iter().rev().try_fold(physical, |tensor, (level, dim)| vmap::wrap(tensor, *dim, *level))
}

/// Returns a tensor to differentiate with respect to: the same elements with a new node, whose operand is
/// the node of `x` if it has one.
///
/// # Errors
/// [`ErrorKind::DType`] when the dtype is neither floating nor complex.
pub fn variable(x: &Tensor) -> Result<Tensor> {
    let mut batched = x.clone();
    for level in 1..=vmap::current_level() {
        batched = vmap::batched_at(&batched, level)?;
    }
    let (physical, batches) = unwrap_batches(&batched);
    let variable = if edge_of(&physical)?.is_some() {
        aten::alias(&physical)?
    } else if has_tangent(&physical) {
        let variable = alias_with_graph(&physical)?;
        set_requires_grad(&variable, true)?;
        variable
    } else {
        let variable = physical.detach();
        set_requires_grad(&variable, true)?;
        variable
    };
    wrap_batches(variable, &batches)
}

/// As [`grad`](super::grad), also for examples of batches.
///
/// # Errors
/// As [`grad`](super::grad), and [`ErrorKind::Gradient`] for an input without a batch dimension that an
/// output has: its gradients would be summed over the examples.
pub fn grad(
    outputs: &[Tensor],
    inputs: &[Tensor],
    grads: &[Option<Tensor>],
    options: Options,
    interrupt: Interrupt<'_>,
) -> Result<Vec<Option<Tensor>>> {
    // If only initial gradients are examples, Vmap batches the calls of the derivatives.
    if outputs.iter().chain(inputs).all(|tensor| vmap::physical(tensor).is_none()) {
        return super::grad(outputs, inputs, grads, options, interrupt);
    }
    let levels = |batches: &[(usize, usize)]| -> Vec<usize> {
        let mut levels: Vec<usize> = batches.iter().map(|(level, _)| *level).collect();
        levels.sort_unstable();
        levels
    };
    let unwrapped_inputs: Vec<_> = inputs.iter().map(unwrap_batches).collect();
    let mut roots = Vec::new();
    for (i, output) in outputs.iter().enumerate() {
        // One number per example, with the initial gradient 1: an output with an initial gradient becomes
        // the sum of their product.
        let number = match grads.get(i).and_then(Option::as_ref) {
            Some(seed) => {
                // An outer `jvp` may have turned recording off by `no_grad`.
                let _recording = level::recording(true);
                aten::sum_all(&aten::mul(output, seed)?)?
            }
            None if output.numel() == 1 => output.clone(),
            None => {
                return Err(Error::new(
                    ErrorKind::Gradient,
                    format!(
                        "output {i} has shape {:?} and needs an initial gradient of that shape; give \
                         grad_outputs, or sum() first",
                        output.shape()
                    ),
                ));
            }
        };
        let (physical, batches) = unwrap_batches(&number);
        let own = levels(&batches);
        for (k, (_, input)) in unwrapped_inputs.iter().enumerate() {
            let theirs = levels(input);
            if let Some(level) = own.iter().find(|level| !theirs.contains(level)) {
                return Err(Error::new(
                    ErrorKind::Gradient,
                    format!(
                        "output {i} is an example of the vmap batch at level {level} and input {k} is \
                         the same for all examples, so their gradients would add up; use \
                         keyfold.grad(f)(x) inside vmap, which makes its inputs part of the batch"
                    ),
                ));
            }
        }
        // An output without a node depends on no input.
        if edge_of(&physical)?.is_some() {
            roots.push(physical);
        }
    }
    if roots.is_empty() {
        return Ok(vec![None; inputs.len()]);
    }
    let seeds: Vec<Option<Tensor>> = roots
        .iter()
        .map(|root| aten::full(root.shape(), 1.0, root.dtype(), root.device()).map(Some))
        .collect::<Result<_>>()?;
    let physical: Vec<Tensor> = unwrapped_inputs.iter().map(|(t, _)| t.clone()).collect();
    let found = super::grad(&roots, &physical, &seeds, options, interrupt)?;
    found
        .into_iter()
        .zip(&unwrapped_inputs)
        .map(|(grad, (_, batches))| grad.map(|grad| wrap_batches(grad, batches)).transpose())
        .collect()
}

/// Returns whether a path in the graph leads from a tensor to a leaf past these variables: the tensor is then
/// part of an outer computation's graph, too.
///
/// # Errors
/// As [`edge_of`].
pub fn leads_outside(output: &Tensor, variables: &[Tensor]) -> Result<bool> {
    let mut seen = FxHashSet::default();
    for variable in variables {
        if let Some(edge) = edge_of(&unwrap_batches(variable).0)? {
            seen.insert(edge.node.sequence());
        }
    }
    let Some(edge) = edge_of(&unwrap_batches(output).0)? else { return Ok(false) };
    let mut rest = vec![edge.node];
    while let Some(node) = rest.pop() {
        if !seen.insert(node.sequence()) {
            continue;
        }
        if node.is_leaf() {
            return Ok(true);
        }
        rest.extend(node.edges().iter().flatten().map(|edge| Arc::clone(&edge.node)));
    }
    Ok(false)
}
