//! The rules of an operator for the layers.

use std::sync::Arc;

use keyfold_layers::autocast::Category;
use keyfold_layers::autograd::{Derivative, Jvp, Pushforward, Saves, Vjp, VjpOfSeveral};
use keyfold_layers::vmap;

/// An operator's rule for a layer. There is no default: a row without a rule for each layer doesn't compile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule<T> {
    /// The rule is hand-written for this operator.
    Given(T),
    /// The rule follows from the operator's expression, or from the operators that a composite calls.
    Derived,
    /// There is no rule for this reason, and the layer's fallback serves.
    Refused(&'static str),
}

/// A hand-written derivative.
#[derive(Clone, Copy)]
pub enum Gradient {
    /// A vector-Jacobian product, and the tensors that the gradient of each operand reads.
    Formula(&'static [Saves], Vjp),
    /// As `Formula`, of an operator with several results: a function of the gradient of each.
    Several(&'static [Saves], VjpOfSeveral),
    /// Another derivative, made from the operator's name.
    Other(fn(&str) -> Arc<dyn Derivative>),
    /// The result is detached from the graph.
    Detach,
}

/// A hand-written rule of forward mode.
#[derive(Clone, Copy)]
pub enum Tangent {
    /// The operator is linear in its floating and complex tensors together: it is called with the tangents.
    Linear,
    /// The operator is linear in each tensor: the sum of its results with one tensor replaced by its tangent.
    Multilinear,
    /// A Jacobian-vector product.
    Jvp(Jvp),
    /// Another rule.
    Other(fn() -> Arc<dyn Pushforward>),
}

/// A hand-written batching rule.
#[derive(Clone, Copy)]
pub enum Batching {
    /// One call for the whole batch.
    Rule(vmap::Rule),
    /// One draw of random numbers for the whole batch.
    Draw,
}

/// An operator's rules for the layers.
#[derive(Clone, Copy)]
pub struct Layers {
    /// The rule of reverse mode.
    pub derivative: Rule<Gradient>,
    /// The rule of forward mode.
    pub tangent: Rule<Tangent>,
    /// The rule of `vmap`.
    pub batching: Rule<Batching>,
    /// The category of autocast, which decides the dtype of its arguments.
    pub autocast: Category,
}
