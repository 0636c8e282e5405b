//! Operators made of an expression: what their layers do follows from it.
//!
//! [`implement`] gives an operator everything from one text: the kernels for CPU and Meta, the
//! derivative of any order (symbolic, [`keyfold_expr::Expr::derivative`]), and the batching rule.
//! Derivatives are calls of `keyfold::elementwise`, which takes any expression and has both itself.

mod batch;
mod derivative;

use std::sync::Arc;

use keyfold_core::Result;
use keyfold_dispatch::{DispatchKey, Dispatcher, Override};
use keyfold_ops::elementwise::{self, Definition, FUNCTIONS, Text};
use keyfold_tensor::Value;

use crate::autograd;

pub(crate) use batch::LISTED;

/// Registers kernels for CPU and Meta, the derivative and the batching rule of a defined operator,
/// all made of an expression of its arguments: `Tensor`s are inputs, numbers are parameters.
///
/// An operator that writes its result to an argument gets no derivative and no batching rule: what
/// the layers do with every operator that writes does for it.
///
/// # Errors
/// As [`elementwise::implement`].
pub fn implement(
    dispatcher: &Dispatcher<Value>,
    operator: &str,
    text: &str,
) -> Result<Arc<Definition>> {
    let definition = elementwise::implement(dispatcher, operator, text)?;
    if definition.out().is_none() {
        let text = Arc::new(Text::new(definition.expr().clone()));
        let arguments = (definition.inputs().to_vec(), definition.params().to_vec());
        let derivative = derivative::of_arguments(operator, text, arguments);
        autograd::register_derivative(dispatcher, operator, derivative, Override::Error)?;
        if let Some(rule) = batch::rule(definition.expr()) {
            let kernel = crate::vmap::rule_of(rule, operator);
            dispatcher.implement(operator, DispatchKey::Vmap, kernel, Override::Error)?;
        }
    }
    Ok(definition)
}

/// Registers what the built-in operators that have no rule of their own get from their expressions.
pub(crate) fn register(dispatcher: &Dispatcher<Value>) -> Result<()> {
    let listed = derivative::of_list(elementwise::ELEMENTWISE);
    autograd::register_derivative(dispatcher, elementwise::ELEMENTWISE, listed, Override::Error)?;
    for (name, expression) in FUNCTIONS {
        let Ok(operator) = dispatcher.operator(name) else { continue };
        let text = elementwise::text(&format!("self: {expression}"))?;
        let differentiable = !GIVE_NO_FLOATS.contains(&name);
        if differentiable && !operator.has_kernel(DispatchKey::Autograd.into()) {
            let derivative = derivative::of_arguments(name, text, (vec![0], vec![]));
            autograd::register_derivative(dispatcher, name, derivative, Override::Error)?;
        }
    }
    Ok(())
}

/// Functions whose results are bools or whole numbers.
const GIVE_NO_FLOATS: [&str; 4] =
    ["aten::isnan", "aten::isinf", "aten::isfinite", "aten::bitwise_not"];
