//! The derivatives of the built-in operators, by family.

mod arithmetic;

use keyfold_core::Result;
use keyfold_dispatch::{DispatchKey, Dispatcher, Kernel, Override};
use keyfold_tensor::{Tensor, Value};

use super::derivative::{Backward, Gradients, Keeps, Rule};

/// Registers derivatives, for the operators that a dispatcher has.
struct Rules<'d>(&'d Dispatcher<Value>);

impl Rules<'_> {
    fn add(
        &self,
        name: &str,
        keeps: Keeps,
        function: fn(&Backward<'_>, &Tensor) -> Result<Gradients>,
    ) -> Result<()> {
        self.kernel(name, super::kernel(Rule::new(name, keeps, function)))
    }

    fn kernel(&self, name: &str, kernel: Kernel<Value>) -> Result<()> {
        if self.0.operator(name).is_err() {
            return Ok(());
        }
        self.0.implement(name, DispatchKey::Autograd, kernel, Override::Error).map(drop)
    }
}

pub(super) fn register(dispatcher: &Dispatcher<Value>) -> Result<()> {
    let rules = Rules(dispatcher);
    arithmetic::register(&rules)
}
