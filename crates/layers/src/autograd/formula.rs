//! A derivative made of a plain function, which saves only the tensors that the needed gradients read.

use keyfold_core::Result;
use keyfold_tensor::{Tensor, ValueRef};

use super::derivative::{Backward, Derivative, Extra, Gradients, Saves};
use super::node::Edge;

/// The vector-Jacobian product of an operator with one result.
pub type Vjp = fn(&Backward<'_>, &Tensor) -> Result<Gradients>;

/// The vector-Jacobian product of an operator with several results, of the gradient of each; `None` for one
/// that backward doesn't reach.
pub type VjpOfSeveral = fn(&Backward<'_>, &[Option<Tensor>]) -> Result<Gradients>;

/// The derivative of an operator with one result, as a plain function.
pub struct Formula(Named<Vjp>);

/// The derivative of an operator with several results, as a plain function.
pub struct FormulaOfSeveral(Named<VjpOfSeveral>);

/// An operator's function, and for each operand the tensors that its gradient reads; the last item holds for
/// all further operands.
struct Named<F> {
    name: String,
    reads: &'static [Saves],
    vjp: F,
}

impl Formula {
    /// Makes the derivative of the operator of that name. `reads` lists for each operand the tensors that its
    /// gradient reads; the last item holds for all further operands.
    pub fn new(name: &str, reads: &'static [Saves], vjp: Vjp) -> Formula {
        Formula(Named { name: name.to_owned(), reads, vjp })
    }
}

impl FormulaOfSeveral {
    /// As [`Formula::new`].
    pub fn new(name: &str, reads: &'static [Saves], vjp: VjpOfSeveral) -> FormulaOfSeveral {
        FormulaOfSeveral(Named { name: name.to_owned(), reads, vjp })
    }
}

impl<F> Named<F> {
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

    fn saves(&self) -> Saves {
        self.saves_for(|_| true, self.reads.len())
    }

    fn saves_of_needed(&self, edges: &[Option<Edge>]) -> Saves {
        self.saves_for(|slot| edges[slot].is_some(), edges.len())
    }
}

impl Derivative for Formula {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn saves(&self) -> Saves {
        self.0.saves()
    }

    fn apply(&self, call: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Gradients> {
        match grads {
            [Some(grad)] => (self.0.vjp)(call, grad),
            _ => Ok(vec![None; call.slots()]),
        }
    }

    fn record(
        &self,
        _args: &[ValueRef<'_>],
        _results: &[&Tensor],
        edges: &[Option<Edge>],
    ) -> Result<(Option<Extra>, Saves)> {
        Ok((None, self.0.saves_of_needed(edges)))
    }
}

impl Derivative for FormulaOfSeveral {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn saves(&self) -> Saves {
        self.0.saves()
    }

    fn apply(&self, call: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Gradients> {
        match grads.iter().any(Option::is_some) {
            true => (self.0.vjp)(call, grads),
            false => Ok(vec![None; call.slots()]),
        }
    }

    fn record(
        &self,
        _args: &[ValueRef<'_>],
        _results: &[&Tensor],
        edges: &[Option<Edge>],
    ) -> Result<(Option<Extra>, Saves)> {
        Ok((None, self.0.saves_of_needed(edges)))
    }
}
