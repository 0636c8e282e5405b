//! The tape: nodes, and the edges from a node to the nodes of its operands.
//!
//! A node is one recorded call, or a leaf: a tensor on which the user set `requires_grad`. A tensor has
//! its node attached, with its index among the node's outputs. A node holds the nodes of its operands
//! and none of its users, so the graph is freed with the last tensor that is attached to it.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use keyfold_core::{DType, Device, Error, ErrorKind, Result, Shape};
use keyfold_tensor::{Attached, Tensor, ValueRef};
use smallvec::SmallVec;

use super::derivative::{Derivative, SavedCall};
use super::dual::{dual_of, set_edge};
use super::level::Level;

/// The shape, dtype and device of a tensor, which its gradient and its tangents have, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorMeta {
    /// The size of each dimension.
    pub shape: Shape,
    /// The dtype.
    pub dtype: DType,
    /// The device.
    pub device: Device,
}

impl TensorMeta {
    /// Returns the shape, dtype and device of a tensor.
    pub fn of(tensor: &Tensor) -> TensorMeta {
        TensorMeta { shape: tensor.shape().clone(), dtype: tensor.dtype(), device: tensor.device() }
    }
}

impl fmt::Display for TensorMeta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?} on {}", self.dtype, self.shape, self.device)
    }
}

/// The destination of a tensor's gradient: a node, and the index of one of its outputs.
#[derive(Clone)]
pub struct Edge {
    /// The node.
    pub node: Arc<Node>,
    /// The index among the node's outputs.
    pub output: u32,
}

pub(crate) type Edges = SmallVec<[Option<Edge>; 2]>;

/// A function that sees a gradient during backward, and may return another in its place.
pub type HookFn = dyn Fn(&Tensor) -> Result<Option<Tensor>> + Send + Sync;

#[derive(Clone)]
struct Hook {
    id: u64,
    output: u32,
    function: Arc<HookFn>,
}

/// A recorded call, or a leaf.
pub struct Node {
    /// Later nodes have higher numbers, so an edge always leads to a node with a lower number.
    sequence: u64,
    outputs: SmallVec<[TensorMeta; 1]>,
    kind: Kind,
    hooks: Mutex<Vec<Hook>>,
    /// The gradients that [`Node::retain`] keeps, by output; `None` before the first backward.
    retained: Mutex<Vec<(u32, Option<Tensor>)>>,
}

enum Kind {
    Leaf {
        grad: Mutex<Option<Tensor>>,
        /// Held while a gradient is accumulated: several threads may run backward to one leaf.
        adding: Mutex<()>,
    },
    Call(Call),
}

/// A recorded call: its derivative, edges and saved tensors.
pub(crate) struct Call {
    pub(crate) derivative: Arc<dyn Derivative>,
    pub(crate) edges: Edges,
    saved: Mutex<Option<Arc<SavedCall>>>,
    /// The write count of the memory that the result is a view of, at the time of the call.
    view: Option<u32>,
    /// Whether Autocast below may have cast operands; gradients are then cast back to each operand's dtype.
    pub(crate) casts: bool,
}

fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Node {
    /// Makes the node of a leaf.
    pub(crate) fn leaf(tensor: &Tensor) -> Arc<Node> {
        Arc::new(Node {
            sequence: next_number(),
            outputs: SmallVec::from_buf([TensorMeta::of(tensor)]),
            kind: Kind::Leaf { grad: Mutex::new(None), adding: Mutex::new(()) },
            hooks: Mutex::default(),
            retained: Mutex::default(),
        })
    }

    /// Makes the node of a call.
    pub(crate) fn call(
        derivative: Arc<dyn Derivative>,
        edges: Edges,
        saved: SavedCall,
        outputs: SmallVec<[TensorMeta; 1]>,
        view: Option<u32>,
        casts: bool,
    ) -> Arc<Node> {
        let saved = Mutex::new(Some(Arc::new(saved)));
        Arc::new(Node {
            sequence: next_number(),
            outputs,
            kind: Kind::Call(Call { derivative, edges, saved, view, casts }),
            hooks: Mutex::default(),
            retained: Mutex::default(),
        })
    }

    /// Returns the operator's name; `leaf` for a leaf.
    pub fn name(&self) -> &str {
        match &self.kind {
            Kind::Leaf { .. } => "leaf",
            Kind::Call(call) => call.derivative.name(),
        }
    }

    /// Returns whether the node is a leaf.
    pub fn is_leaf(&self) -> bool {
        matches!(self.kind, Kind::Leaf { .. })
    }

    /// Returns the node's number; an edge leads to a node with a lower number.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Returns the shape, dtype and device of each output, and so of its gradient.
    pub fn outputs(&self) -> &[TensorMeta] {
        &self.outputs
    }

    /// Returns an edge for each operand's gradient; `None` for an operand that needs no gradient.
    pub fn edges(&self) -> &[Option<Edge>] {
        match &self.kind {
            Kind::Leaf { .. } => &[],
            Kind::Call(call) => &call.edges,
        }
    }

    pub(crate) fn as_call(&self) -> Option<&Call> {
        match &self.kind {
            Kind::Leaf { .. } => None,
            Kind::Call(call) => Some(call),
        }
    }

    /// Returns the accumulated gradient of a leaf.
    pub fn grad(&self) -> Option<Tensor> {
        match &self.kind {
            Kind::Leaf { grad, .. } => locked(grad).clone(),
            Kind::Call(_) => None,
        }
    }

    /// Replaces a leaf's gradient by the result of `make` on it, under a lock.
    ///
    /// # Errors
    /// Those of `make`.
    pub(crate) fn update_grad(
        &self,
        make: impl FnOnce(Option<Tensor>) -> Result<Tensor>,
    ) -> Result<()> {
        let Kind::Leaf { adding, .. } = &self.kind else { return Ok(()) };
        let _alone = locked(adding);
        let sum = make(self.grad())?;
        self.set_grad(Some(sum));
        Ok(())
    }

    /// Sets a leaf's gradient.
    pub fn set_grad(&self, value: Option<Tensor>) {
        if let Kind::Leaf { grad, .. } = &self.kind {
            let old = std::mem::replace(&mut *locked(grad), value);
            drop(old);
        }
    }

    /// Keeps the gradient of an output from the next backward on, for [`Node::retained`].
    pub fn retain(&self, output: u32) {
        let mut retained = locked(&self.retained);
        if retained.iter().all(|(other, _)| *other != output) {
            retained.push((output, None));
        }
    }

    /// Returns the last gradient of an output, if [`Node::retain`] was called for it.
    pub fn retained(&self, output: u32) -> Option<Tensor> {
        let retained = locked(&self.retained);
        retained.iter().find(|(other, _)| *other == output)?.1.clone()
    }

    /// Stores the gradient of an output that is retained.
    pub(crate) fn store_retained(&self, output: u32, grad: &Tensor) {
        if let Some((_, slot)) = locked(&self.retained).iter_mut().find(|(p, _)| *p == output) {
            *slot = Some(grad.clone());
        }
    }

    /// Adds a hook that runs on the gradient of an output whenever one is computed. Returns the hook's id
    /// for [`Node::remove_hook`].
    pub fn add_hook(&self, output: u32, function: Arc<HookFn>) -> u64 {
        let id = next_number();
        locked(&self.hooks).push(Hook { id, output, function });
        id
    }

    /// Removes a hook and returns whether it existed.
    pub fn remove_hook(&self, id: u64) -> bool {
        let removed = {
            let mut hooks = locked(&self.hooks);
            let at = hooks.iter().position(|hook| hook.id == id);
            at.map(|at| hooks.remove(at))
        };
        removed.is_some()
    }

    /// Runs the hooks of an output on its gradient and returns the gradient after the last hook.
    ///
    /// # Errors
    /// Those of a hook, and [`ErrorKind::Gradient`] when a hook returns a gradient of another shape, dtype or
    /// device.
    pub(crate) fn run_hooks(&self, output: u32, grad: Tensor) -> Result<Tensor> {
        let hooks: Vec<Hook> = {
            let hooks = locked(&self.hooks);
            if hooks.is_empty() {
                return Ok(grad);
            }
            hooks.iter().filter(|hook| hook.output == output).cloned().collect()
        };
        let mut grad = grad;
        for hook in hooks {
            if let Some(other) = (hook.function)(&grad)? {
                let (given, wanted) = (TensorMeta::of(&other), TensorMeta::of(&grad));
                if given != wanted {
                    return Err(Error::new(
                        ErrorKind::Gradient,
                        format!(
                            "a hook on a result of {} returned a gradient of {given}; the one that \
                             it was given is {wanted}",
                            self.name()
                        ),
                    ));
                }
                grad = other;
            }
        }
        Ok(grad)
    }

    /// Adds the tangents of a level to the saved tensors: the tangents of the arguments, and `results` for the
    /// results.
    pub(super) fn add_tangents(
        &self,
        args: &[ValueRef<'_>],
        results: &[Option<Tensor>],
        level: &Arc<Level>,
    ) {
        let Some(call) = self.as_call() else { return };
        let Some(saved) = locked(&call.saved).clone() else { return };
        for (saved, arg) in saved.arguments.iter().zip(args) {
            saved.add_tangents(*arg, level);
        }
        for (saved, tangent) in saved.results.iter().zip(results) {
            if let Some(tangent) = tangent {
                saved.add_tangent(tangent, level);
            }
        }
    }

    /// Returns the write count of the viewed memory at the time of the call; `None` for a result that isn't a
    /// view.
    pub(crate) fn view_version(&self) -> Option<u32> {
        self.as_call().and_then(|call| call.view)
    }
}

impl Call {
    /// Returns the saved tensors, and frees them unless `keep` is set.
    ///
    /// # Errors
    /// [`ErrorKind::Gradient`] when they were freed before.
    pub(crate) fn saved(&self, keep: bool) -> Result<Arc<SavedCall>> {
        let mut saved = locked(&self.saved);
        let taken = if keep { saved.clone() } else { saved.take() };
        taken.ok_or_else(|| {
            Error::new(
                ErrorKind::Gradient,
                format!(
                    "backward went through {} a second time, and what it had saved was freed the \
                     first time; pass retain_graph=True to the first backward",
                    self.derivative.name()
                ),
            )
        })
    }
}

/// The fields of a node that may own other nodes.
type Parts = (Edges, Option<Arc<SavedCall>>);

thread_local! {
    /// The parts of nodes that wait to be dropped, and whether a drop on this thread is emptying the list.
    /// That drop frees the list. The list has no destructor, so that destructors of other thread-locals may
    /// still drop graphs.
    static DROPPING: (RefCell<ManuallyDrop<Vec<Parts>>>, Cell<bool>) =
        const { (RefCell::new(ManuallyDrop::new(Vec::new())), Cell::new(false)) };
}

impl Drop for Node {
    /// Drops the graph without recursion, since a chain of a million nodes would overflow the stack. The own
    /// state of a derivative may own nodes, too, so dropping a node's parts may reenter this function: it
    /// then only appends to the list, which the outermost call empties.
    fn drop(&mut self) {
        let Kind::Call(call) = &mut self.kind else { return };
        let saved = call.saved.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let parts = (std::mem::take(&mut call.edges), saved);
        DROPPING.with(move |(waiting, busy)| {
            waiting.borrow_mut().push(parts);
            if busy.replace(true) {
                return;
            }
            loop {
                let next = waiting.borrow_mut().pop();
                let Some(parts) = next else { break };
                drop(parts);
            }
            drop(std::mem::take(&mut **waiting.borrow_mut()));
            busy.set(false);
        });
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({} #{})", self.name(), self.sequence)
    }
}

/// Returns the edge of a tensor; `None` where it doesn't require grad. The first call for a leaf makes
/// its node.
///
/// # Errors
/// [`ErrorKind::Gradient`] for a view whose memory was written in place since the view was made: the node
/// doesn't belong to the new elements.
pub fn edge_of(tensor: &Tensor) -> Result<Option<Edge>> {
    if !tensor.requires_grad() {
        return Ok(None);
    }
    let Some((node, output)) = tensor.attached_as::<Node>() else {
        return other_edge(tensor);
    };
    checked_edge(tensor, node, output).map(Some)
}

/// Returns an edge, unless the tensor is a view whose memory was written since.
fn checked_edge(tensor: &Tensor, node: Arc<Node>, output: u32) -> Result<Edge> {
    if let Some(version) = node.view_version()
        && version != tensor.version()
    {
        return Err(Error::new(
            ErrorKind::Gradient,
            format!(
                "a view made by {} is used after its memory was written in place, so its gradient would \
                 be wrong; take the view again after the write",
                node.name()
            ),
        ));
    }
    Ok(Edge { node, output })
}

/// As [`edge_of`], where no node is attached.
#[cold]
fn other_edge(tensor: &Tensor) -> Result<Option<Edge>> {
    match dual_of(tensor) {
        Some(dual) => match &dual.edge {
            Some(edge) => checked_edge(tensor, Arc::clone(&edge.node), edge.output).map(Some),
            None => Ok(None),
        },
        None => first_edge(tensor).map(Some),
    }
}

/// Returns the edge of a tensor that requires grad and has no node yet: it becomes a leaf.
fn first_edge(tensor: &Tensor) -> Result<Edge> {
    let attached = tensor.attached_or(|| Attached { object: Node::leaf(tensor), place: 0 });
    let output = attached.place;
    let node = attached.downcast::<Node>().ok_or_else(|| {
        Error::new(
            ErrorKind::Gradient,
            "the tensor stands for an example of a batch and reached Autograd as it is; don't \
             exclude the key Vmap inside kf.vmap",
        )
    })?;
    Ok(Edge { node, output })
}

/// Attaches a node to a tensor.
pub(crate) fn attach(tensor: &Tensor, edge: &Edge) -> Result<()> {
    if dual_of(tensor).is_some() {
        return set_edge(tensor, Some(edge.clone()));
    }
    let node: Arc<dyn std::any::Any + Send + Sync> = Arc::clone(&edge.node) as _;
    tensor.attach(Some(Attached { object: node, place: edge.output }));
    tensor.set_requires_grad(true)
}
