//! A derivative as a plain function that keeps only what the needed gradients read.

use keyfold_core::Result;
use keyfold_tensor::{Tensor, ValueRef};

use super::derivative::{Backward, Derivative, Extra, Gradients, Keeps};
use super::node::Edge;

/// The vector-Jacobian product of an operator with one result.
pub type Product = fn(&Backward<'_>, &Tensor) -> Result<Gradients>;

/// A derivative as a plain function, of an operator with one result.
pub struct Formula {
    name: String,
    reads: &'static [Keeps],
    product: Product,
}

impl Formula {
    /// The derivative of the operator of that name. `reads` says for each operand what its gradient
    /// reads; its last item is that of all operands behind it, too.
    pub fn new(name: &str, reads: &'static [Keeps], product: Product) -> Formula {
        Formula { name: name.to_owned(), reads, product }
    }

    fn keeps_for(&self, needed: impl Fn(usize) -> bool, places: usize) -> Keeps {
        let mut keeps = Keeps::NONE;
        for place in (0..places).filter(|place| needed(*place)) {
            if let Some(reads) = self.reads.get(place).or(self.reads.last()) {
                keeps.arguments |= reads.arguments;
                keeps.results |= reads.results;
            }
        }
        keeps
    }
}

impl Derivative for Formula {
    fn name(&self) -> &str {
        &self.name
    }

    fn keeps(&self) -> Keeps {
        self.keeps_for(|_| true, self.reads.len())
    }

    fn apply(&self, call: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Gradients> {
        match grads {
            [Some(grad)] => (self.product)(call, grad),
            _ => Ok(vec![None; call.places()]),
        }
    }

    fn record(
        &self,
        _args: &[ValueRef<'_>],
        _results: &[&Tensor],
        edges: &[Option<Edge>],
    ) -> Result<(Option<Extra>, Keeps)> {
        Ok((None, self.keeps_for(|place| edges[place].is_some(), edges.len())))
    }
}
