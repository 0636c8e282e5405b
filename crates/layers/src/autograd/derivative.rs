//! The derivative of an operator (a vector-Jacobian product), and the recorded call that it reads.

use std::sync::Arc;

use keyfold_core::{DType, Device, Error, ErrorKind, Result, Scalar, Shape};
use keyfold_dispatch::Value as _;
use keyfold_tensor::{Tensor, ValueRef};
use smallvec::SmallVec;

use super::node::{Call, Edge, Node, TensorMeta};
use super::saved::Saved;
use crate::aten;

/// The tensors of a call that a derivative reads, and that a node therefore saves. Shape, dtype and
/// device of every tensor, and arguments that aren't tensors, are always saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saves {
    /// One bit per argument; the first argument is the lowest bit.
    pub arguments: u64,
    /// Whether the results are saved.
    pub results: bool,
}

impl Saves {
    /// No tensor.
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

    /// Adds the results.
    pub const fn and_results(self) -> Saves {
        Saves { results: true, ..self }
    }

    /// Returns whether the argument at a position is saved.
    pub fn reads(self, position: usize) -> bool {
        position < 64 && self.arguments >> position & 1 == 1
    }
}

/// The gradients of the tensor arguments, one per slot: a slot is a `Tensor` or `Tensor?` argument or an
/// item of a `Tensor[]`, in order. `None` is a gradient of zero.
pub type Gradients = Vec<Option<Tensor>>;

/// The reverse-mode rule of an operator.
pub trait Derivative: Send + Sync {
    /// Returns the operator's name, for messages.
    fn name(&self) -> &str;

    /// Returns the tensors that it reads.
    fn saves(&self) -> Saves;

    /// Computes the gradients of the operands from the gradients of the results (the vector-Jacobian
    /// product). `None` among `grads` is the gradient of a result that nothing depends on.
    ///
    /// # Errors
    /// Those of the operators that it calls; [`ErrorKind::Gradient`] where there is no derivative.
    fn apply(&self, call: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Gradients>;

    /// Chooses the saved tensors of one call, when the call is recorded. A derivative with own state returns
    /// it here and finds it in [`Backward::extra`].
    ///
    /// # Errors
    /// Those of making the state.
    fn record(
        &self,
        _args: &[ValueRef<'_>],
        _results: &[&Tensor],
        _edges: &[Option<Edge>],
    ) -> Result<(Option<Extra>, Saves)> {
        Ok((None, self.saves()))
    }
}

/// The own state of a derivative in a node.
pub type Extra = Arc<dyn std::any::Any + Send + Sync>;

/// The derivative of an operator that has none: an error that names the operator, raised by backward.
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

/// A recorded call, which a derivative reads during backward.
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

    /// Returns the number of gradients to return: one per slot.
    pub fn slots(&self) -> usize {
        self.call.edges.len()
    }

    /// Returns whether the gradient of a slot is needed.
    pub fn needs_slot(&self, slot: usize) -> bool {
        self.call.edges.get(slot).is_some_and(Option::is_some)
    }

    /// Returns whether the gradient of the argument at a position is needed; of a list, that of its first item.
    pub fn needs(&self, argument: usize) -> bool {
        self.needs_slot(self.slot_of(argument))
    }

    /// Returns the first slot of the argument at a position.
    pub fn slot_of(&self, argument: usize) -> usize {
        self.saved[..argument].iter().map(Saved::slots).sum()
    }

    /// Returns the number of slots of the argument at a position.
    pub fn slot_count(&self, argument: usize) -> usize {
        self.saved[argument].slots()
    }

    /// Returns the derivative's own state.
    pub fn extra(&self) -> Option<&Extra> {
        self.extra
    }

    fn edge(&self, slot: usize) -> Option<&Edge> {
        self.call.edges.get(slot).and_then(Option::as_ref)
    }

    /// Returns the saved tensor of the argument at a position.
    ///
    /// # Errors
    /// [`ErrorKind::Gradient`] when it was written in place since, or isn't among the saved tensors.
    pub fn tensor(&self, argument: usize) -> Result<Tensor> {
        let edge = self.edge(self.slot_of(argument));
        self.saved[argument].unpack(self.node.name(), &format!("argument {argument}"), edge)
    }

    /// Returns the saved tensor of an optional argument.
    ///
    /// # Errors
    /// As [`tensor`](Self::tensor).
    pub fn optional(&self, argument: usize) -> Result<Option<Tensor>> {
        match self.saved[argument] {
            Saved::NoTensor => Ok(None),
            _ => self.tensor(argument).map(Some),
        }
    }

    /// Returns the saved tensors of a list argument; `None` for absent items.
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

    /// Returns the shape, dtype and device of each tensor of a list argument.
    pub fn metas(&self, argument: usize) -> Vec<Option<TensorMeta>> {
        let first = self.slot_of(argument);
        match &self.saved[argument] {
            Saved::List(items) => {
                items.iter().enumerate().map(|(i, s)| s.meta(self.edge(first + i))).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Returns the shape, dtype and device of the tensor argument at a position.
    ///
    /// # Panics
    /// If the argument is no tensor, which means that the derivative was written for another schema.
    pub fn meta(&self, argument: usize) -> TensorMeta {
        let meta = self.saved[argument].meta(self.edge(self.slot_of(argument)));
        meta.unwrap_or_else(|| panic!("{}: argument {argument} is no tensor", self.node.name()))
    }

    /// Returns the shape of a tensor argument.
    pub fn shape(&self, argument: usize) -> Shape {
        self.meta(argument).shape
    }

    /// Returns the dtype of a tensor argument.
    pub fn dtype(&self, argument: usize) -> DType {
        self.meta(argument).dtype
    }

    /// Returns the device of a tensor argument.
    pub fn device(&self, argument: usize) -> Device {
        self.meta(argument).device
    }

    /// Returns an argument that isn't a tensor.
    pub fn value(&self, argument: usize) -> ValueRef<'_> {
        match &self.saved[argument] {
            Saved::Value(value) => (**value).as_ref(),
            Saved::Number(number) => (*number).into(),
            _ => ValueRef::None,
        }
    }

    /// Returns an `int` argument; `None` where it is absent.
    pub fn int(&self, argument: usize) -> Option<i64> {
        match self.value(argument) {
            ValueRef::Int(i) => Some(i),
            _ => None,
        }
    }

    /// Returns a `bool` argument.
    pub fn flag(&self, argument: usize) -> bool {
        matches!(self.value(argument), ValueRef::Bool(true))
    }

    /// Returns a number argument; 0 where it is absent.
    pub fn scalar(&self, argument: usize) -> Scalar {
        self.value(argument).scalar().unwrap_or(Scalar::Int(0))
    }

    /// Returns an `int[]` argument; `None` where it is absent.
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

    /// Returns the saved result at a position, attached to this node.
    ///
    /// # Errors
    /// As [`tensor`](Self::tensor).
    pub fn result(&self, position: usize) -> Result<Tensor> {
        let edge = Edge { node: Arc::clone(self.node), output: position as u32 };
        let saved = self.results.get(position).unwrap_or(&Saved::NoTensor);
        // A mask or indices have no gradient, and are attached to nothing.
        let edge = self.is_differentiable(position).then_some(&edge);
        saved.unpack(self.node.name(), &format!("result {position}"), edge)
    }

    /// Returns whether the result at a position is floating or complex, and so can have a gradient.
    pub fn is_differentiable(&self, position: usize) -> bool {
        let dtype = self.node.outputs()[position].dtype;
        dtype.is_floating() || dtype.is_complex()
    }

    /// Returns the shape, dtype and device of the result at a position.
    pub fn result_meta(&self, position: usize) -> TensorMeta {
        self.node.outputs()[position].clone()
    }

    /// Makes a gradient of zeros for the result at a position.
    ///
    /// # Errors
    /// [`ErrorKind::Memory`].
    pub fn zeros(&self, position: usize) -> Result<Tensor> {
        let meta = &self.node.outputs()[position];
        aten::full(&meta.shape, 0.0, meta.dtype, meta.device)
    }
}

/// The saved arguments and results of a call.
pub(crate) struct SavedCall {
    pub(crate) arguments: SmallVec<[Saved; 2]>,
    /// Empty where the derivative reads no result.
    pub(crate) results: SmallVec<[Saved; 1]>,
    pub(crate) extra: Option<Extra>,
}
