//! A builder of expressions in Rust.

mod methods;
mod operators;

use std::cell::RefCell;
use std::fmt;

use keyfold_core::DType;

use crate::derived_functions;
use crate::graph::{Expr, Graph, Id, Input, Literal, Node};
use crate::parse::refuse_name;

/// Builds an expression from terms, to which Rust's arithmetic applies.
///
/// ```
/// use keyfold_expr::Builder;
///
/// let b = Builder::new();
/// let x = b.input("x");
/// let expr = b.finish((x.exp() + 1.0).log());
/// assert_eq!(expr.to_string(), "log(exp(x) + 1.0)");
/// ```
///
/// Equal terms are one node, so that nothing is computed twice. Inputs and parameters are numbered
/// in the order of their first use.
#[derive(Default)]
pub struct Builder {
    parts: RefCell<BuilderState>,
}

#[derive(Default)]
struct BuilderState {
    graph: Graph,
    inputs: Vec<Input>,
    params: Vec<String>,
}

/// A value under construction, of a [`Builder`]. It has the size of a reference.
#[derive(Clone, Copy)]
pub struct Term<'b> {
    builder: &'b Builder,
    id: Id,
}

/// An input that is read at computed indices.
#[derive(Clone, Copy)]
pub struct Ranked<'b> {
    builder: &'b Builder,
    input: u32,
    rank: u32,
}

/// An operand of a term: another term, or a number.
#[derive(Clone, Copy)]
pub enum TermOperand<'b> {
    /// A term.
    Term(Term<'b>),
    /// A plain number, which takes the dtype of the other operand.
    Number(Literal),
}

impl<'b> From<Term<'b>> for TermOperand<'b> {
    fn from(term: Term<'b>) -> Self {
        TermOperand::Term(term)
    }
}

impl From<f64> for TermOperand<'_> {
    fn from(value: f64) -> Self {
        TermOperand::Number(Literal::Float(value.to_bits()))
    }
}

impl From<i64> for TermOperand<'_> {
    fn from(value: i64) -> Self {
        TermOperand::Number(Literal::Int(value))
    }
}

impl From<i32> for TermOperand<'_> {
    fn from(value: i32) -> Self {
        TermOperand::Number(Literal::Int(value.into()))
    }
}

impl From<bool> for TermOperand<'_> {
    fn from(value: bool) -> Self {
        TermOperand::Number(Literal::Bool(value))
    }
}

impl Builder {
    /// Returns an empty builder.
    pub fn new() -> Builder {
        Builder::default()
    }

    /// Returns an input that is read element by element and broadcasts. The same name returns the
    /// same input.
    ///
    /// # Panics
    /// If the name isn't valid in an expression, or is a parameter's or a ranked input's.
    pub fn input(&self, name: &str) -> Term<'_> {
        let input = self.declare(name, None);
        self.add(Node::Input(input))
    }

    /// Returns an input that is read at `rank` computed indices.
    ///
    /// # Panics
    /// As [`Builder::input`], or if the name's input has another rank.
    pub fn ranked(&self, name: &str, rank: u32) -> Ranked<'_> {
        let input = self.declare(name, Some(rank));
        Ranked { builder: self, input, rank }
    }

    /// Returns a parameter: a number passed with each call, weak as a literal.
    ///
    /// # Panics
    /// If the name isn't valid in an expression, or is an input's.
    pub fn param(&self, name: &str) -> Term<'_> {
        let mut parts = self.parts.borrow_mut();
        let known = parts.params.iter().position(|param| param == name);
        let number = known.unwrap_or_else(|| {
            check_name(name);
            let taken = parts.inputs.iter().any(|input| input.name == name);
            assert!(!taken, "'{name}' is an input already");
            parts.params.push(name.to_owned());
            parts.params.len() - 1
        });
        drop(parts);
        self.add(Node::Param(number as u32))
    }

    /// Returns a number.
    pub fn number<'b>(&'b self, value: impl Into<TermOperand<'b>>) -> Term<'b> {
        self.term(value)
    }

    /// Returns the element's index in the result, in row-major order.
    pub fn index(&self) -> Term<'_> {
        self.add(Node::Index)
    }

    /// Returns the element's index along a dimension of the result, counted from the last.
    pub fn coordinate(&self, dimension: u32) -> Term<'_> {
        self.add(Node::Coordinate(dimension))
    }

    /// Returns the second operand where the first is true, else the third.
    pub fn where_<'b>(
        &'b self,
        condition: impl Into<TermOperand<'b>>,
        a: impl Into<TermOperand<'b>>,
        b: impl Into<TermOperand<'b>>,
    ) -> Term<'b> {
        let (condition, a, b) = (self.term(condition), self.term(a), self.term(b));
        self.add(Node::Where(condition.id, a.id, b.id))
    }

    /// Returns the expression of a term. The builder can make further ones.
    ///
    /// # Panics
    /// If the term is another builder's.
    pub fn finish<'b>(&'b self, value: impl Into<TermOperand<'b>>) -> Expr {
        let root = self.term(value).id;
        let parts = self.parts.borrow();
        Expr::new(&parts.graph, root, parts.inputs.clone(), parts.params.clone())
    }

    fn declare(&self, name: &str, rank: Option<u32>) -> u32 {
        let mut parts = self.parts.borrow_mut();
        if let Some(known) = parts.inputs.iter().position(|input| input.name == name) {
            let known_rank = parts.inputs[known].rank;
            assert!(known_rank == rank, "'{name}' is an input of rank {known_rank:?} already");
            return known as u32;
        }
        check_name(name);
        assert!(!parts.params.iter().any(|param| param == name), "'{name}' is a parameter already");
        parts.inputs.push(Input { name: name.to_owned(), rank });
        parts.inputs.len() as u32 - 1
    }

    fn add(&self, node: Node) -> Term<'_> {
        Term { builder: self, id: self.parts.borrow_mut().graph.add(node) }
    }

    /// Returns the term of an operand.
    fn term<'b>(&'b self, operand: impl Into<TermOperand<'b>>) -> Term<'b> {
        match operand.into() {
            TermOperand::Term(term) => {
                let own = std::ptr::eq(term.builder, self);
                assert!(own, "a term of another builder: terms of one expression have one builder");
                term
            }
            TermOperand::Number(Literal::Float(bits)) => {
                let id = derived_functions::float(
                    &mut self.parts.borrow_mut().graph,
                    f64::from_bits(bits),
                );
                Term { builder: self, id }
            }
            TermOperand::Number(literal) => self.add(Node::Literal(literal)),
        }
    }
}

fn check_name(name: &str) {
    if let Some(why) = refuse_name(name) {
        panic!("{why}");
    }
}

impl<'b> Ranked<'b> {
    /// Returns the element at these indices, one per dimension; negative ones count from the end.
    ///
    /// # Panics
    /// If the number of indices isn't the rank.
    pub fn at(self, indices: &[Term<'b>]) -> Term<'b> {
        let rank = self.rank as usize;
        assert!(indices.len() == rank, "{} indices for an input of rank {rank}", indices.len());
        let indices = indices.iter().map(|index| self.builder.term(*index).id).collect();
        self.builder.add(Node::At { input: self.input, indices })
    }
}

impl<'b> Term<'b> {
    /// Converts to a dtype.
    #[must_use]
    pub fn cast(self, dtype: DType) -> Term<'b> {
        self.builder.add(Node::Cast(dtype, self.id))
    }

    /// Applies a function of the graph.
    fn with(self, make: impl FnOnce(&mut Graph, Id) -> Id) -> Term<'b> {
        let id = make(&mut self.builder.parts.borrow_mut().graph, self.id);
        Term { builder: self.builder, id }
    }

    /// As [`Term::with`], for two operands.
    fn with_two(
        self,
        other: impl Into<TermOperand<'b>>,
        make: impl FnOnce(&mut Graph, Id, Id) -> Id,
    ) -> Term<'b> {
        let other = self.builder.term(other).id;
        self.with(|g, id| make(g, id, other))
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = self.parts.borrow();
        write!(f, "Builder({} nodes)", parts.graph.nodes().len())
    }
}

impl fmt::Debug for Term<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Term({})", self.builder.finish(*self))
    }
}

impl fmt::Debug for Ranked<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.builder.parts.borrow().inputs[self.input as usize].name;
        write!(f, "Ranked({name}, {})", self.rank)
    }
}

impl fmt::Debug for TermOperand<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TermOperand::Term(term) => term.fmt(f),
            TermOperand::Number(literal) => literal.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests;
