//! A derivative as a plain function that keeps only what the needed gradients read.

use keyfold_core::Result;
use keyfold_tensor::{Tensor, ValueRef};

use super::derivative::{Backward, Derivative, Extra, Gradients, Saves};
use super::node::Edge;

/// The vector-Jacobian product of an operator with one result.
pub type Vjp = fn(&Backward<'_>, &Tensor) -> Result<Gradients>;

/// A derivative as a plain function, of an operator with one result.
pub struct Formula {
    name: String,
    reads: &'static [Saves],
    product: Vjp,
}

impl Formula {
    /// The derivative of the operator of that name. `reads` says for each operand what its gradient
    /// reads; its last item is that of all operands behind it, too.
    pub fn new(name: &str, reads: &'static [Saves], product: Vjp) -> Formula {
        Formula { name: name.to_owned(), reads, product }
    }

    fn saves_for(&self, needed: impl Fn(usize) -> bool, places: usize) -> Saves {
        let mut keeps = Saves::NONE;
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

    fn saves(&self) -> Saves {
        self.saves_for(|_| true, self.reads.len())
    }

    fn apply(&self, call: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Gradients> {
        match grads {
            [Some(grad)] => (self.product)(call, grad),
            _ => Ok(vec![None; call.slots()]),
        }
    }

    fn record(
        &self,
        _args: &[ValueRef<'_>],
        _results: &[&Tensor],
        edges: &[Option<Edge>],
    ) -> Result<(Option<Extra>, Saves)> {
        Ok((None, self.saves_for(|place| edges[place].is_some(), edges.len())))
    }
}
