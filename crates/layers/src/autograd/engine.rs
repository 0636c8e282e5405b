//! Backward: propagates gradients from the outputs to the leaves, node by node.
//!
//! An edge always leads to a node with a lower number. So among the nodes that have a gradient, the one
//! with the highest number has its complete gradient: a heap orders the nodes, and neither counts of
//! dependencies nor recursion are needed.

use std::collections::BinaryHeap;
use std::sync::Arc;

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::{DispatchKey, DispatchKeySet, inside_layers, outside_layers};
use keyfold_tensor::Tensor;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::{SmallVec, smallvec};

use super::derivative::{Backward, Gradients};
use super::dual::has_tangent;
use super::level;
use super::node::{Call, Edge, Node, TensorMeta};
use crate::aten;

/// The options of [`backward`](super::backward) and [`grad`](super::grad).
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Whether saved tensors are kept for another backward.
    pub retain_graph: bool,
    /// Whether the calls of derivatives are recorded, for gradients of gradients.
    pub create_graph: bool,
}

/// The destinations of gradients.
pub(super) enum Targets<'t> {
    /// All leaves, which accumulate them.
    Leaves,
    /// These edges, whose gradients are returned.
    Edges(&'t [Edge]),
}

/// A function that is called before each node and stops backward by an error.
pub type Interrupt<'i> = &'i dyn Fn() -> Result<()>;

/// A node with a gradient, ordered by number.
struct Ready(Arc<Node>);

impl PartialEq for Ready {
    fn eq(&self, other: &Self) -> bool {
        self.0.sequence() == other.0.sequence()
    }
}
impl Eq for Ready {}
impl PartialOrd for Ready {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Ready {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.sequence().cmp(&other.0.sequence())
    }
}

type Grads = SmallVec<[Option<Tensor>; 1]>;

struct Run<'t> {
    options: Options,
    targets: Targets<'t>,
    /// The numbers of the nodes that lead to a target; `None` for all nodes.
    needed: Option<FxHashSet<u64>>,
    ready: BinaryHeap<Ready>,
    /// The gradients of a node's outputs so far, by the node's number.
    pending: FxHashMap<u64, Grads>,
    captured: Vec<Option<Tensor>>,
}

/// Propagates gradients from the roots. Returns the gradients of the target edges; an empty list for leaves.
///
/// # Errors
/// Those of derivatives, hooks and `interrupt`; [`ErrorKind::Gradient`] for wrong gradients.
pub(super) fn run(
    roots: Vec<(Edge, Tensor)>,
    targets: Targets<'_>,
    options: Options,
    interrupt: Interrupt<'_>,
) -> Result<Vec<Option<Tensor>>> {
    let needed = match &targets {
        Targets::Leaves => None,
        Targets::Edges(edges) => Some(nodes_leading_to(&roots, edges)),
    };
    let wanted = match &targets {
        Targets::Leaves => 0,
        Targets::Edges(edges) => edges.len(),
    };
    let mut run = Run {
        options,
        targets,
        needed,
        ready: BinaryHeap::new(),
        pending: FxHashMap::default(),
        captured: vec![None; wanted],
    };
    // Derivatives compute in the dtypes of the forward pass, so Autocast is off.
    let mut off = DispatchKeySet::from([DispatchKey::Autocast]);
    let mut on = DispatchKeySet::EMPTY;
    let in_jvp = level::inside_jvp();
    if options.create_graph || in_jvp {
        on = on.insert(DispatchKey::Autograd);
    } else {
        off = off.insert(DispatchKey::Autograd);
    }
    // Gradients have tangents, too, so inside a jvp Autograd stays on even if nothing is recorded.
    let _recording = in_jvp.then(|| level::recording(options.create_graph));
    outside_layers(on, || {
        inside_layers(off, || {
            for (edge, grad) in roots {
                run.add(&edge, grad)?;
            }
            while let Some(Ready(node)) = run.ready.pop() {
                interrupt()?;
                run.visit(&node)?;
            }
            Ok(run.captured)
        })
    })
}

/// Returns the numbers of the nodes on paths from the roots to the edges, both ends included.
fn nodes_leading_to(roots: &[(Edge, Tensor)], edges: &[Edge]) -> FxHashSet<u64> {
    let lowest = edges.iter().map(|edge| edge.node.sequence()).min().unwrap_or(u64::MAX);
    let mut needed: FxHashSet<u64> = edges.iter().map(|edge| edge.node.sequence()).collect();
    let mut seen = FxHashMap::default();
    let mut rest: Vec<&Arc<Node>> = roots.iter().map(|(edge, _)| &edge.node).collect();
    while let Some(node) = rest.pop() {
        // A node that is older than the oldest target can't lead to a target.
        if node.sequence() >= lowest && seen.insert(node.sequence(), node).is_none() {
            rest.extend(node.edges().iter().flatten().map(|edge| &edge.node));
        }
    }
    let mut order: Vec<_> = seen.into_iter().collect();
    order.sort_unstable_by_key(|(number, _)| *number);
    for (number, node) in order {
        if node.edges().iter().flatten().any(|edge| needed.contains(&edge.node.sequence())) {
            needed.insert(number);
        }
    }
    needed
}

impl Run<'_> {
    /// Adds a gradient to that of a node's output.
    fn add(&mut self, edge: &Edge, grad: Tensor) -> Result<()> {
        let number = edge.node.sequence();
        if self.needed.as_ref().is_some_and(|needed| !needed.contains(&number)) {
            return Ok(());
        }
        let ready = &mut self.ready;
        let grads = self.pending.entry(number).or_insert_with(|| {
            ready.push(Ready(Arc::clone(&edge.node)));
            smallvec![None; edge.node.outputs().len()]
        });
        let slot = &mut grads[edge.output as usize];
        *slot = Some(match slot.take() {
            None => grad,
            Some(before) => aten::add(&before, &grad)?,
        });
        Ok(())
    }

    fn visit(&mut self, node: &Arc<Node>) -> Result<()> {
        let mut grads = self.pending.remove(&node.sequence()).unwrap_or_default();
        for (output, slot) in grads.iter_mut().enumerate() {
            if let Some(grad) = slot.take() {
                let grad = node.run_hooks(output as u32, grad)?;
                node.store_retained(output as u32, &grad);
                *slot = Some(grad);
            }
        }
        if let Targets::Edges(edges) = &self.targets {
            for (edge, captured) in edges.iter().zip(&mut self.captured) {
                if edge.node.sequence() == node.sequence() {
                    captured.clone_from(&grads[edge.output as usize]);
                }
            }
        }
        let Some(call) = node.as_call() else {
            if let (Targets::Leaves, Some(Some(grad))) = (&self.targets, grads.pop()) {
                accumulate(node, grad, self.options.create_graph)?;
            }
            return Ok(());
        };
        let leads_on = |edge: &Edge| {
            self.needed.as_ref().is_none_or(|needed| needed.contains(&edge.node.sequence()))
        };
        if !call.edges.iter().flatten().any(leads_on) {
            return Ok(());
        }
        let saved = call.saved(self.options.retain_graph)?;
        let results = call.derivative.apply(&Backward::new(node, call, &saved), &grads)?;
        let results = check_gradients(node, call, results)?;
        for (edge, grad) in call.edges.iter().zip(results) {
            if let (Some(edge), Some(grad)) = (edge, grad) {
                self.add(edge, grad)?;
            }
        }
        Ok(())
    }
}

/// Accumulates a gradient into a leaf.
fn accumulate(leaf: &Node, grad: Tensor, create_graph: bool) -> Result<()> {
    leaf.update_grad(|before| {
        let mut sum = match before {
            Some(before) => aten::add(&before, &grad)?,
            None => grad,
        };
        if create_graph || has_tangent(&sum) {
            return Ok(sum);
        }
        // A leaf's gradient gets its own memory: other nodes may use this tensor, too, and users write
        // gradients in place.
        sum.attach(None);
        sum.set_requires_grad(false)?;
        // The copy is a call of an operator, so that a trace records it.
        let is_own = sum.is_contiguous() && sum.is_writable() && sum.owns_memory();
        let own = if is_own { sum } else { aten::clone(&sum)? };
        Ok(own.into_whole())
    })
}

/// Checks the number, shape, dtype and device of a derivative's gradients.
fn check_gradients(node: &Node, call: &Call, grads: Gradients) -> Result<Gradients> {
    let wrong = |message: String| {
        Err(Error::new(ErrorKind::Gradient, format!("the derivative of {} {message}", node.name())))
    };
    let (given, wanted) = (grads.len(), call.edges.len());
    if given != wanted {
        return wrong(format!(
            "returned {given} gradients; the operator has {wanted} tensor operands, and each needs \
             one (None for zero)"
        ));
    }
    let mut checked = Gradients::with_capacity(given);
    for (i, (edge, grad)) in call.edges.iter().zip(grads).enumerate() {
        let (Some(edge), Some(grad)) = (edge, grad) else {
            checked.push(None);
            continue;
        };
        let wanted = &edge.node.outputs()[edge.output as usize];
        // The gradient of a real operand of a complex result is the real part.
        let grad = match grad.dtype().is_complex() && grad.dtype().real() == wanted.dtype {
            true => aten::real(&grad)?,
            false => grad,
        };
        let same = grad.dtype() == wanted.dtype
            && grad.device() == wanted.device
            && grad.shape() == &wanted.shape;
        if same {
            checked.push(Some(grad));
            continue;
        }
        let given = TensorMeta::of(&grad);
        let castable = call.casts && given.shape == wanted.shape && given.device == wanted.device;
        if !(castable && grad.dtype().is_floating()) {
            return wrong(format!(
                "returned a gradient of {given} for tensor operand {i}, which is {wanted}"
            ));
        }
        checked.push(Some(aten::to(&grad, wanted.dtype)?));
    }
    Ok(checked)
}
