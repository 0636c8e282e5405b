//! A derivative made of a plain function, which saves only the tensors that the needed gradients read.

use keyfold_core::Result;
use keyfold_tensor::{Tensor, ValueRef};

use super::derivative::{Backward, Derivative, Extra, Gradients, Saves};
use super::node::Edge;

/// The vector-Jacobian product of an operator with one result.
pub type Vjp = fn(&Backward<'_>, &Tensor) -> Result<Gradients>;

/// The derivative of an operator with one result, as a plain function.
pub struct Formula {
    name: String,
    reads: &'static [Saves],
    vjp: Vjp,
}

impl Formula {
    /// Makes the derivative of the operator of that name. `reads` lists for each operand the tensors that its
    /// gradient reads; the last item holds for all further operands.
    pub fn new(name: &str, reads: &'static [Saves], vjp: Vjp) -> Formula {
        Formula { name: name.to_owned(), reads, vjp }
    }

    fn saves_for(&self, needed: impl Fn(usize) -> bool, slots: usize) -> Saves {
        let mut saves = Saves::NONE;
        for slot in (0..slots).filter(|slot| needed(*slot)) {
            if let Some(reads) = self.reads.get(slot).or(self.reads.last()) {
                saves.arguments |= reads.arguments;
                saves.results |= reads.results;
            }
        }
        saves
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
            [Some(grad)] => (self.vjp)(call, grad),
            _ => Ok(vec![None; call.slots()]),
        }
    }

    fn record(
        &self,
        _args: &[ValueRef<'_>],
        _results: &[&Tensor],
        edges: &[Option<Edge>],
    ) -> Result<(Option<Extra>, Saves)> {
        Ok((None, self.saves_for(|slot| edges[slot].is_some(), edges.len())))
    }
}
