//! Going back: gradients from the results to the leaves, node by node.
//!
//! An edge always leads to a node with a lower number, so the highest node that has a gradient has
//! all of it: a heap gives the order, without counting who is still to come, and without recursion.

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

/// How to go back.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Keep what nodes saved, for another time.
    pub retain_graph: bool,
    /// Record what the derivatives compute, for gradients of gradients.
    pub create_graph: bool,
}

/// Where gradients are wanted.
pub(super) enum Targets<'t> {
    /// At the leaves, added to what they have.
    Leaves,
    /// At these places, given back.
    Places(&'t [Edge]),
}

/// Asked between nodes whether to go on.
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
    /// The nodes that lead to a target; `None`: all do.
    needed: Option<FxHashSet<u64>>,
    ready: BinaryHeap<Ready>,
    /// Gradients of a node's results so far, by the node's number.
    pending: FxHashMap<u64, Grads>,
    captured: Vec<Option<Tensor>>,
}

/// Carries gradients back. Gives those at the wanted places, if places were asked for.
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
        Targets::Places(places) => Some(leading_to(&roots, places)),
    };
    let wanted = match &targets {
        Targets::Leaves => 0,
        Targets::Places(places) => places.len(),
    };
    let mut run = Run {
        options,
        targets,
        needed,
        ready: BinaryHeap::new(),
        pending: FxHashMap::default(),
        captured: vec![None; wanted],
    };
    // What is recorded now is what the derivatives compute, never twice, and never lowered.
    let mut off = DispatchKeySet::from([DispatchKey::Autocast]);
    let mut on = DispatchKeySet::EMPTY;
    let inside_jvp = level::is_open();
    if options.create_graph || inside_jvp {
        on = on.insert(DispatchKey::Autograd);
    } else {
        off = off.insert(DispatchKey::Autograd);
    }
    // Gradients have tangents, too: inside a jvp the layer stays on where the graph is off.
    let _recording = inside_jvp.then(|| level::recording(options.create_graph));
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

/// The numbers of the nodes between the roots and the places, both included.
fn leading_to(roots: &[(Edge, Tensor)], places: &[Edge]) -> FxHashSet<u64> {
    let lowest = places.iter().map(|edge| edge.node.sequence()).min().unwrap_or(u64::MAX);
    let mut needed: FxHashSet<u64> = places.iter().map(|edge| edge.node.sequence()).collect();
    let mut seen = FxHashMap::default();
    let mut rest: Vec<&Arc<Node>> = roots.iter().map(|(edge, _)| &edge.node).collect();
    while let Some(node) = rest.pop() {
        // What is older than the oldest target can't lead to one.
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
    /// Adds a gradient to what a node's result has.
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
        let slot = &mut grads[edge.place as usize];
        *slot = Some(match slot.take() {
            None => grad,
            Some(before) => aten::add(&before, &grad)?,
        });
        Ok(())
    }

    fn visit(&mut self, node: &Arc<Node>) -> Result<()> {
        let mut grads = self.pending.remove(&node.sequence()).unwrap_or_default();
        for (place, slot) in grads.iter_mut().enumerate() {
            if let Some(grad) = slot.take() {
                let grad = node.hooked(place as u32, grad)?;
                node.show(place as u32, &grad);
                *slot = Some(grad);
            }
        }
        if let Targets::Places(places) = &self.targets {
            for (edge, captured) in places.iter().zip(&mut self.captured) {
                if edge.node.sequence() == node.sequence() {
                    captured.clone_from(&grads[edge.place as usize]);
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
        let results = checked(node, call, results)?;
        for (edge, grad) in call.edges.iter().zip(results) {
            if let (Some(edge), Some(grad)) = (edge, grad) {
                self.add(edge, grad)?;
            }
        }
        Ok(())
    }
}

/// Adds a gradient to a leaf's.
fn accumulate(leaf: &Node, grad: Tensor, keeps_graph: bool) -> Result<()> {
    leaf.update_grad(|before| {
        let mut sum = match before {
            Some(before) => aten::add(&before, &grad)?,
            None => grad,
        };
        if keeps_graph || has_tangent(&sum) {
            return Ok(sum);
        }
        // Memory of its own: the same gradient may have gone elsewhere, too, and people change the
        // gradients that they find in place.
        sum.attach(None);
        sum.set_requires_grad(false)?;
        // By the operator, so that a trace sees it.
        let own = if sum.is_contiguous() && sum.owns_memory() { sum } else { aten::clone(&sum)? };
        Ok(own.into_whole())
    })
}

/// The gradients of a derivative, if they are what they must be.
fn checked(node: &Node, call: &Call, grads: Gradients) -> Result<Gradients> {
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
        let wanted = &edge.node.outputs()[edge.place as usize];
        // Of a real operand of a complex result the real part counts.
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
