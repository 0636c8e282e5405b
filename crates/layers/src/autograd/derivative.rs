//! Derivatives: what an operator's rule is, and what it sees of the call when it runs.

use std::sync::Arc;

use keyfold_core::{DType, Device, Error, ErrorKind, Result, Scalar, Shape};
use keyfold_dispatch::Value as _;
use keyfold_tensor::{Tensor, ValueRef};
use smallvec::SmallVec;

use super::node::{Call, Edge, Node, TensorMeta};
use super::saved::Saved;
use crate::aten;

/// Which tensors of a call a derivative reads. What it doesn't read isn't kept in memory; forms
/// (shape, dtype, device) and plain arguments always are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saves {
    /// One bit per argument, the first the lowest.
    pub arguments: u64,
    /// Whether it reads the results.
    pub results: bool,
}

impl Saves {
    /// Nothing but forms and plain arguments.
    pub const NONE: Saves = Saves { arguments: 0, results: false };
    /// All tensors among the arguments.
    pub const ARGUMENTS: Saves = Saves { arguments: u64::MAX, results: false };
    /// The results.
    pub const RESULTS: Saves = Saves { arguments: 0, results: true };
    /// All tensors.
    pub const ALL: Saves = Saves { arguments: u64::MAX, results: true };

    /// The arguments at these positions.
    pub const fn arguments(positions: &[u32]) -> Saves {
        let (mut arguments, mut i) = (0, 0);
        while i < positions.len() {
            arguments |= 1 << positions[i];
            i += 1;
        }
        Saves { arguments, results: false }
    }

    /// Those, and the results.
    pub const fn and_results(self) -> Saves {
        Saves { results: true, ..self }
    }

    /// Whether the argument at a position is read.
    pub fn reads(self, position: usize) -> bool {
        position < 64 && self.arguments >> position & 1 == 1
    }
}

/// Gradients of the tensor arguments: one per `Tensor` and `Tensor?` argument and one per item of a
/// `Tensor[]`, in order; `None` where there is none (zero).
pub type Gradients = Vec<Option<Tensor>>;

/// How gradients go back through an operator.
pub trait Derivative: Send + Sync {
    /// The operator's name, for messages.
    fn name(&self) -> &str;

    /// What it reads.
    fn saves(&self) -> Saves;

    /// The gradients of the operands from those of the results (the vector-Jacobian product).
    /// `None` among `grads` is a result that nothing depends on.
    ///
    /// # Errors
    /// Whatever goes wrong; [`ErrorKind::Gradient`] where there is no derivative.
    fn apply(&self, call: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Gradients>;

    /// Called with the arguments and results when a call is recorded, for a derivative that keeps
    /// things of its own, or finds out only then what it reads. What it gives is at hand in
    /// [`Backward::extra`].
    ///
    /// # Errors
    /// Whatever goes wrong.
    fn record(
        &self,
        _args: &[ValueRef<'_>],
        _results: &[&Tensor],
        _edges: &[Option<Edge>],
    ) -> Result<(Option<Extra>, Saves)> {
        Ok((None, self.saves()))
    }
}

/// Things of a derivative's own that go with a node.
pub type Extra = Arc<dyn std::any::Any + Send + Sync>;

/// What an operator without a derivative has: it works forward, and says so when asked back.
pub(crate) struct NoDerivative(pub(crate) String);

impl Derivative for NoDerivative {
    fn name(&self) -> &str {
        &self.0
    }

    fn saves(&self) -> Saves {
        Saves::NONE
    }

    fn apply(&self, _: &Backward<'_>, _: &[Option<Tensor>]) -> Result<Gradients> {
        let name = &self.0;
        Err(Error::new(
            ErrorKind::Gradient,
            format!(
                "{name} has no derivative, so no gradient can go back through it; register one (in \
                 Python: keyfold.register_autograd(\"{name}\", backward), in Rust: \
                 keyfold::layers::autograd::register_derivative), or cut the graph with detach()"
            ),
        ))
    }
}

/// A recorded call, as its derivative sees it.
pub struct Backward<'n> {
    node: &'n Arc<Node>,
    call: &'n Call,
    saved: &'n [Saved],
    results: &'n [Saved],
    extra: Option<&'n Extra>,
}

impl<'n> Backward<'n> {
    pub(crate) fn new(node: &'n Arc<Node>, call: &'n Call, saved: &'n SavedCall) -> Self {
        let SavedCall { arguments, results, extra } = saved;
        Backward { node, call, saved: arguments, results, extra: extra.as_ref() }
    }

    /// How many gradients are asked for: one per tensor argument.
    pub fn slots(&self) -> usize {
        self.call.edges.len()
    }

    /// Whether the gradient at a place is needed by anybody.
    pub fn needs_slot(&self, place: usize) -> bool {
        self.call.edges.get(place).is_some_and(Option::is_some)
    }

    /// Whether the gradient of the (first tensor of the) argument at a position is needed.
    pub fn needs(&self, argument: usize) -> bool {
        self.needs_slot(self.slot_of(argument))
    }

    /// The first place for gradients of the argument at a position.
    pub fn slot_of(&self, argument: usize) -> usize {
        self.saved[..argument].iter().map(Saved::slots).sum()
    }

    /// How many gradients the argument at a position has.
    pub fn slot_count(&self, argument: usize) -> usize {
        self.saved[argument].slots()
    }

    /// What the derivative kept itself.
    pub fn extra(&self) -> Option<&Extra> {
        self.extra
    }

    fn edge(&self, place: usize) -> Option<&Edge> {
        self.call.edges.get(place).and_then(Option::as_ref)
    }

    /// The tensor that was the argument at a position.
    ///
    /// # Errors
    /// [`ErrorKind::Gradient`] when it was changed in place since, or isn't among what the
    /// derivative keeps.
    pub fn tensor(&self, argument: usize) -> Result<Tensor> {
        let edge = self.edge(self.slot_of(argument));
        self.saved[argument].unpack(self.node.name(), &format!("argument {argument}"), edge)
    }

    /// As [`tensor`](Self::tensor), for an optional argument.
    ///
    /// # Errors
    /// As [`tensor`](Self::tensor).
    pub fn optional(&self, argument: usize) -> Result<Option<Tensor>> {
        match self.saved[argument] {
            Saved::NoTensor => Ok(None),
            _ => self.tensor(argument).map(Some),
        }
    }

    /// The tensors of a list argument; `None` for absent ones.
    ///
    /// # Errors
    /// As [`tensor`](Self::tensor).
    pub fn tensors(&self, argument: usize) -> Result<Vec<Option<Tensor>>> {
        let first = self.slot_of(argument);
        let Saved::List(items) = &self.saved[argument] else { return Ok(Vec::new()) };
        let what = |i: usize| format!("item {i} of argument {argument}");
        items
            .iter()
            .enumerate()
            .map(|(i, item)| match item {
                Saved::NoTensor => Ok(None),
                item => item.unpack(self.node.name(), &what(i), self.edge(first + i)).map(Some),
            })
            .collect()
    }

    /// The forms of the tensors of a list argument.
    pub fn forms(&self, argument: usize) -> Vec<Option<TensorMeta>> {
        let first = self.slot_of(argument);
        match &self.saved[argument] {
            Saved::List(items) => {
                items.iter().enumerate().map(|(i, s)| s.form(self.edge(first + i))).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The form of the tensor that was the argument at a position.
    ///
    /// # Panics
    /// If the argument is no tensor: a derivative for another schema.
    pub fn form(&self, argument: usize) -> TensorMeta {
        let form = self.saved[argument].form(self.edge(self.slot_of(argument)));
        form.unwrap_or_else(|| panic!("{}: argument {argument} is no tensor", self.node.name()))
    }

    /// The shape of a tensor argument.
    pub fn shape(&self, argument: usize) -> Shape {
        self.form(argument).shape
    }

    /// The dtype of a tensor argument.
    pub fn dtype(&self, argument: usize) -> DType {
        self.form(argument).dtype
    }

    /// The device of a tensor argument.
    pub fn device(&self, argument: usize) -> Device {
        self.form(argument).device
    }

    /// A plain argument.
    pub fn value(&self, argument: usize) -> ValueRef<'_> {
        match &self.saved[argument] {
            Saved::Value(value) => (**value).as_ref(),
            Saved::Number(number) => (*number).into(),
            _ => ValueRef::None,
        }
    }

    /// An `int` argument; `None` where it is absent.
    pub fn int(&self, argument: usize) -> Option<i64> {
        match self.value(argument) {
            ValueRef::Int(i) => Some(i),
            _ => None,
        }
    }

    /// A `bool` argument.
    pub fn flag(&self, argument: usize) -> bool {
        matches!(self.value(argument), ValueRef::Bool(true))
    }

    /// A number argument; 0 where it is absent.
    pub fn scalar(&self, argument: usize) -> Scalar {
        self.value(argument).scalar().unwrap_or(Scalar::Int(0))
    }

    /// An `int[]` argument; `None` where it is absent.
    pub fn ints(&self, argument: usize) -> Option<Vec<i64>> {
        match self.value(argument) {
            ValueRef::Int(i) => Some(vec![i]),
            ValueRef::None => None,
            list => Some(
                list.items()
                    .map(|item| match item {
                        ValueRef::Int(i) => i,
                        _ => 0,
                    })
                    .collect(),
            ),
        }
    }

    /// The result at a position, attached to this very node.
    ///
    /// # Errors
    /// As [`tensor`](Self::tensor).
    pub fn result(&self, position: usize) -> Result<Tensor> {
        let edge = Edge { node: Arc::clone(self.node), place: position as u32 };
        let saved = self.results.get(position).unwrap_or(&Saved::NoTensor);
        saved.unpack(self.node.name(), &format!("result {position}"), Some(&edge))
    }

    /// Whether the result at a position can have a gradient: not if it is of whole numbers.
    pub fn is_differentiable(&self, position: usize) -> bool {
        let dtype = self.node.outputs()[position].dtype;
        dtype.is_floating() || dtype.is_complex()
    }

    /// A gradient of zeros for the result at a position.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn zeros(&self, position: usize) -> Result<Tensor> {
        let meta = &self.node.outputs()[position];
        aten::full(&meta.shape, 0.0, meta.dtype, meta.device)
    }
}

/// What a node keeps of a call.
pub(crate) struct SavedCall {
    pub(crate) arguments: SmallVec<[Saved; 2]>,
    /// Empty where the derivative doesn't read them.
    pub(crate) results: SmallVec<[Saved; 1]>,
    pub(crate) extra: Option<Extra>,
}
