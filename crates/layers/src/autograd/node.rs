//! The graph: nodes, and the edges from results back to what they were made of.
//!
//! A node stands for one recorded call, or for a leaf: a tensor that requires grad by itself. A tensor
//! has its node attached, with its place among the node's results. Nodes hold the nodes before
//! them and nobody after them, so the graph goes with the last tensor that needs it.

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

/// What a gradient must look like: that of the tensor it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorMeta {
    /// The size of each dimension.
    pub shape: Shape,
    /// The elements' type.
    pub dtype: DType,
    /// Where the memory is.
    pub device: Device,
}

impl TensorMeta {
    /// That of a tensor.
    pub fn of(tensor: &Tensor) -> TensorMeta {
        TensorMeta { shape: tensor.shape().clone(), dtype: tensor.dtype(), device: tensor.device() }
    }
}

impl fmt::Display for TensorMeta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?} on {}", self.dtype, self.shape, self.device)
    }
}

/// From a tensor to where its gradient goes: a node, and the place among its results.
#[derive(Clone)]
pub struct Edge {
    /// The node.
    pub node: Arc<Node>,
    /// Which of its results.
    pub place: u32,
}

pub(crate) type Edges = SmallVec<[Option<Edge>; 2]>;

/// Looks at a gradient on its way, and may put another in its place.
pub type HookFn = dyn Fn(&Tensor) -> Result<Option<Tensor>> + Send + Sync;

#[derive(Clone)]
struct Hook {
    id: u64,
    place: u32,
    function: Arc<HookFn>,
}

/// A recorded call, or a leaf.
pub struct Node {
    /// Later nodes have higher numbers, so an edge always leads to a lower one.
    sequence: u64,
    outputs: SmallVec<[TensorMeta; 1]>,
    kind: Kind,
    hooks: Mutex<Vec<Hook>>,
    /// Gradients of results that somebody wants to see, by place.
    retained: Mutex<Vec<(u32, Option<Tensor>)>>,
}

enum Kind {
    Leaf {
        grad: Mutex<Option<Tensor>>,
        /// Held while a gradient is added: several threads may go back to one leaf.
        adding: Mutex<()>,
    },
    Call(Call),
}

/// What a recorded call keeps for its derivative.
pub(crate) struct Call {
    pub(crate) derivative: Arc<dyn Derivative>,
    pub(crate) edges: Edges,
    saved: Mutex<Option<Arc<SavedCall>>>,
    /// The version of the memory that the result is a view of, at the time of the call.
    view: Option<u32>,
    /// Whether operands were cast below: gradients are cast back to what each operand was.
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
    /// The node of a tensor that requires grad by itself.
    pub(crate) fn leaf(tensor: &Tensor) -> Arc<Node> {
        Arc::new(Node {
            sequence: next_number(),
            outputs: SmallVec::from_buf([TensorMeta::of(tensor)]),
            kind: Kind::Leaf { grad: Mutex::new(None), adding: Mutex::new(()) },
            hooks: Mutex::default(),
            retained: Mutex::default(),
        })
    }

    /// The node of a call.
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

    /// The operator's name; `leaf` for a leaf.
    pub fn name(&self) -> &str {
        match &self.kind {
            Kind::Leaf { .. } => "leaf",
            Kind::Call(call) => call.derivative.name(),
        }
    }

    /// Whether it stands for a tensor that requires grad by itself.
    pub fn is_leaf(&self) -> bool {
        matches!(self.kind, Kind::Leaf { .. })
    }

    /// Its number: an edge leads to a node with a lower one.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// What the gradients of its results look like.
    pub fn outputs(&self) -> &[TensorMeta] {
        &self.outputs
    }

    /// Where the gradients of its operands go; `None` for those that need none.
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

    /// The gradient that a leaf has gathered.
    pub fn grad(&self) -> Option<Tensor> {
        match &self.kind {
            Kind::Leaf { grad, .. } => locked(grad).clone(),
            Kind::Call(_) => None,
        }
    }

    /// Replaces a leaf's gradient by one made from it, with nobody else in between.
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

    /// Keeps the gradient of a result when one is computed, for [`Node::retained`].
    pub fn retain(&self, place: u32) {
        let mut retained = locked(&self.retained);
        if retained.iter().all(|(other, _)| *other != place) {
            retained.push((place, None));
        }
    }

    /// The last gradient of a result, if it is kept.
    pub fn retained(&self, place: u32) -> Option<Tensor> {
        let retained = locked(&self.retained);
        retained.iter().find(|(other, _)| *other == place)?.1.clone()
    }

    /// Shows a gradient to whoever wants it kept.
    pub(crate) fn show(&self, place: u32, grad: &Tensor) {
        if let Some((_, slot)) = locked(&self.retained).iter_mut().find(|(p, _)| *p == place) {
            *slot = Some(grad.clone());
        }
    }

    /// Runs `function` on the gradient of a result whenever one is computed. The number takes it
    /// away again.
    pub fn add_hook(&self, place: u32, function: Arc<HookFn>) -> u64 {
        let id = next_number();
        locked(&self.hooks).push(Hook { id, place, function });
        id
    }

    /// Takes a hook away; says whether it was there.
    pub fn remove_hook(&self, id: u64) -> bool {
        let removed = {
            let mut hooks = locked(&self.hooks);
            let at = hooks.iter().position(|hook| hook.id == id);
            at.map(|at| hooks.remove(at))
        };
        removed.is_some()
    }

    /// The gradient of a result after the hooks that look at it.
    ///
    /// # Errors
    /// Those of a hook, and [`ErrorKind::Gradient`] when one gives a gradient of another form.
    pub(crate) fn hooked(&self, place: u32, grad: Tensor) -> Result<Tensor> {
        let hooks: Vec<Hook> = {
            let hooks = locked(&self.hooks);
            if hooks.is_empty() {
                return Ok(grad);
            }
            hooks.iter().filter(|hook| hook.place == place).cloned().collect()
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

    /// Has the tensors that the call keeps get tangents: those of its arguments, and these of its results.
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

    /// The version of the memory that the result was made a view of.
    pub(crate) fn view_version(&self) -> Option<u32> {
        self.as_call().and_then(|call| call.view)
    }
}

impl Call {
    /// What was saved; kept for another time, or given up.
    ///
    /// # Errors
    /// [`ErrorKind::Gradient`] when it was given up before.
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

/// What a node holds that may hold nodes.
type Parts = (Edges, Option<Arc<SavedCall>>);

thread_local! {
    /// Parts of nodes that wait for being dropped, and whether somebody is at it, who frees the list
    /// in the end: it has no destructor, so that those of other thread-locals may drop graphs.
    static DROPPING: (RefCell<ManuallyDrop<Vec<Parts>>>, Cell<bool>) =
        const { (RefCell::new(ManuallyDrop::new(Vec::new())), Cell::new(false)) };
}

impl Drop for Node {
    /// Takes the graph apart without recursion: a chain of a million nodes would end the stack. Nodes
    /// are also held by what derivatives keep themselves, whose drop leads back here from anywhere: so
    /// parts wait in a list that the outermost drop works off.
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

/// Where the gradient of a tensor goes; `None` where it doesn't require grad. A tensor that requires
/// grad by itself gets its leaf here.
///
/// # Errors
/// [`ErrorKind::Gradient`] for a view whose memory was changed in place since it was made: its
/// history isn't that of its elements any more.
pub fn edge_of(tensor: &Tensor) -> Result<Option<Edge>> {
    if !tensor.requires_grad() {
        return Ok(None);
    }
    let Some((node, place)) = tensor.attached_as::<Node>() else {
        return other_edge(tensor);
    };
    checked_edge(tensor, node, place).map(Some)
}

/// A place in the graph, if it is that of the tensor's elements.
fn checked_edge(tensor: &Tensor, node: Arc<Node>, place: u32) -> Result<Edge> {
    if let Some(version) = node.view_version()
        && version != tensor.version()
    {
        return Err(Error::new(
            ErrorKind::Gradient,
            format!(
                "a view made by {} is used after the memory that it looks at was changed in place, \
                 so its gradient would be another one's; take the view again after the change",
                node.name()
            ),
        ));
    }
    Ok(Edge { node, place })
}

/// As [`edge_of`], where no node is attached.
#[cold]
fn other_edge(tensor: &Tensor) -> Result<Option<Edge>> {
    match dual_of(tensor) {
        Some(dual) => match &dual.edge {
            Some(edge) => checked_edge(tensor, Arc::clone(&edge.node), edge.place).map(Some),
            None => Ok(None),
        },
        None => first_edge(tensor).map(Some),
    }
}

/// The place of a tensor that requires grad and has none yet: a leaf's.
fn first_edge(tensor: &Tensor) -> Result<Edge> {
    let attached = tensor.attached_or(|| Attached { object: Node::leaf(tensor), place: 0 });
    let place = attached.place;
    let node = attached.downcast::<Node>().ok_or_else(|| {
        Error::new(
            ErrorKind::Gradient,
            "the tensor stands for an example of a batch and reached Autograd as it is; don't \
             exclude the key Vmap inside kf.vmap",
        )
    })?;
    Ok(Edge { node, place })
}

/// Gives a tensor its place in the graph.
pub(crate) fn attach(tensor: &Tensor, edge: &Edge) -> Result<()> {
    if dual_of(tensor).is_some() {
        return set_edge(tensor, Some(edge.clone()));
    }
    let node: Arc<dyn std::any::Any + Send + Sync> = Arc::clone(&edge.node) as _;
    tensor.attach(Some(Attached { object: node, place: edge.place }));
    tensor.set_requires_grad(true)
}
