//! Gradients inside vmap: each example has its own.
//!
//! A batched tensor stands for one example; the graph is that of the physical tensors, which have all
//! of them. Examples don't meet, so the gradient of the sum over examples, taken with respect to a
//! tensor that has a batch dimension itself, is the gradient of each example. What makes that true is
//! that a variable is given a batch dimension at every level that is open, even if its values are
//! the same in all examples: without one, gradients of different examples would add up.

use std::sync::Arc;

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_tensor::Tensor;
use rustc_hash::FxHashSet;

use super::engine::{Interrupt, Options};
use super::{alias_of, edge_of, has_tangent, level, set_requires_grad};
use crate::{aten, vmap};

/// A tensor without the batches that it is an example of, and those, innermost first.
fn unwrapped(tensor: &Tensor) -> (Tensor, Vec<(usize, usize)>) {
    let (mut tensor, mut batches) = (tensor.clone(), Vec::new());
    while let Some((physical, level, dim)) = vmap::physical(&tensor) {
        batches.push((level, dim));
        tensor = physical;
    }
    (tensor, batches)
}

fn wrapped(physical: Tensor, batches: &[(usize, usize)]) -> Result<Tensor> {
    batches.iter().rev().try_fold(physical, |tensor, (level, dim)| vmap::wrap(tensor, *dim, *level))
}

/// A tensor to differentiate with respect to: the same elements with a place of their own in the
/// graph, behind that of `x` if it has one.
///
/// # Errors
/// [`ErrorKind::DType`] when the dtype is neither floating nor complex.
pub fn variable(x: &Tensor) -> Result<Tensor> {
    let mut batched = x.clone();
    for level in 1..=vmap::current_level() {
        batched = vmap::batched_at(&batched, level)?;
    }
    let (physical, batches) = unwrapped(&batched);
    let variable = if edge_of(&physical)?.is_some() {
        aten::alias(&physical)?
    } else if has_tangent(&physical) {
        let variable = alias_of(&physical)?;
        set_requires_grad(&variable, true)?;
        variable
    } else {
        let variable = physical.detach();
        set_requires_grad(&variable, true)?;
        variable
    };
    wrapped(variable, &batches)
}

/// As [`grad`](super::grad), also for examples of batches.
///
/// # Errors
/// As [`grad`](super::grad), and [`ErrorKind::Gradient`] for an input that has no batch dimension
/// where an output has one: its gradients would add up over the examples.
pub fn grad(
    outputs: &[Tensor],
    inputs: &[Tensor],
    grads: &[Option<Tensor>],
    options: Options,
    interrupt: Interrupt<'_>,
) -> Result<Vec<Option<Tensor>>> {
    // Seeds alone may be examples: what is computed back from them is their batch's.
    if outputs.iter().chain(inputs).all(|tensor| vmap::physical(tensor).is_none()) {
        return super::grad(outputs, inputs, grads, options, interrupt);
    }
    let levels = |batches: &[(usize, usize)]| -> Vec<usize> {
        let mut levels: Vec<usize> = batches.iter().map(|(level, _)| *level).collect();
        levels.sort_unstable();
        levels
    };
    let unwrapped_inputs: Vec<_> = inputs.iter().map(unwrapped).collect();
    let mut roots = Vec::new();
    for (i, output) in outputs.iter().enumerate() {
        // One number per example, whose gradient to begin with is 1: with a seed, the product that
        // the seed stands for.
        let number = match grads.get(i).and_then(Option::as_ref) {
            Some(seed) => {
                // A `jvp` outside of this may have turned recording off, by `no_grad`.
                let _recording = level::recording(true);
                aten::sum_all(&aten::mul(output, seed)?)?
            }
            None if output.numel() == 1 => output.clone(),
            None => {
                return Err(Error::new(
                    ErrorKind::Gradient,
                    format!(
                        "output {i} has shape {:?} and needs the gradient of that shape to begin \
                         with; give grad_outputs, or sum() first",
                        output.shape()
                    ),
                ));
            }
        };
        let (physical, batches) = unwrapped(&number);
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
        // One that isn't attached depends on no example.
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
        .map(|(grad, (_, batches))| grad.map(|grad| wrapped(grad, batches)).transpose())
        .collect()
}

/// Whether the graph of a tensor leads to leaves other than through these variables: then what is
/// computed from it is part of somebody else's graph, too.
///
/// # Errors
/// As [`edge_of`].
pub fn leads_outside(output: &Tensor, variables: &[Tensor]) -> Result<bool> {
    let mut seen = FxHashSet::default();
    for variable in variables {
        if let Some(edge) = edge_of(&unwrapped(variable).0)? {
            seen.insert(edge.node.sequence());
        }
    }
    let Some(edge) = edge_of(&unwrapped(output).0)? else { return Ok(false) };
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
