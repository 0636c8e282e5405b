//! Operators made of an expression: what their layers do follows from it.
//!
//! [`implement`] gives an operator everything from one text: the kernels for CPU and Meta, the
//! derivative of any order (symbolic, [`keyfold_expr::Expr::derivative`]), and the batching rule.
//! Derivatives are calls of `keyfold::elementwise`, which takes any expression and has both itself.

mod batch;
mod derivative;

use std::sync::Arc;

use keyfold_core::Result;
use keyfold_dispatch::{DispatchKey, Dispatcher, Handle, Override, Provenance};
use keyfold_ops::elementwise::{self, Definition, FUNCTIONS, Text};
use keyfold_tensor::Value;

use crate::autograd;

pub(crate) use batch::LISTED;

/// What [`implement`] registered.
pub struct Implemented {
    /// The expression, and which arguments are its inputs and parameters.
    pub definition: Arc<Definition>,
    /// The registrations, to take them back.
    pub handles: Vec<Handle<Value>>,
}

/// Registers kernels for CPU and Meta, the derivative and the batching rule of a defined operator,
/// all made of an expression of its arguments: `Tensor`s are inputs, numbers are parameters.
///
/// An operator that writes its result to an argument gets no derivative and no batching rule: what
/// the layers do with every operator that writes does for it. `provenance` says who registered.
/// Where one registration fails, those before it are taken back.
///
/// # Errors
/// As [`Definition::new`], and those of registering.
pub fn implement(
    dispatcher: &Dispatcher<Value>,
    operator: &str,
    text: &str,
    mode: Override,
    provenance: Option<&Provenance>,
) -> Result<Implemented> {
    let operator = dispatcher.operator(operator)?;
    let name = operator.name().to_string();
    let (definition, mut kernels) = elementwise::kernels(operator.schema(), text)?;
    if definition.out().is_none() {
        let text = Arc::new(Text::new(definition.expr().clone()));
        let arguments = (definition.inputs().to_vec(), definition.params().to_vec());
        let derivative = derivative::of_arguments(&name, text, arguments);
        let label = operator.schema().name.name.clone();
        kernels.push((
            DispatchKey::Autograd,
            autograd::kernel(derivative).named(format!("{label}_derivative")),
        ));
        if definition.shape().is_none()
            && let Some(rule) = batch::rule(definition.expr())
        {
            let kernel = crate::vmap::rule_of(rule, &format!("{label}_vmap"));
            kernels.push((DispatchKey::Vmap, kernel));
        }
    }
    let mut handles: Vec<Handle<Value>> = Vec::new();
    for (key, kernel) in kernels {
        let kernel = match provenance {
            Some(provenance) => {
                let name = kernel.provenance().name.clone();
                kernel.with_provenance(Provenance { name, ..provenance.clone() })
            }
            None => kernel,
        };
        match dispatcher.register_with(&operator, key, kernel, mode) {
            Ok(handle) => handles.push(handle),
            Err(error) => {
                for handle in handles.iter().rev() {
                    handle.remove();
                }
                return Err(error);
            }
        }
    }
    Ok(Implemented { definition, handles })
}

/// Registers what the built-in operators that have no rule of their own get from their expressions.
pub(crate) fn register(dispatcher: &Dispatcher<Value>) -> Result<()> {
    if dispatcher.operator(elementwise::ELEMENTWISE).is_ok() {
        let name = elementwise::ELEMENTWISE;
        let listed = derivative::of_list(name);
        autograd::register_derivative(dispatcher, name, listed, Override::Error)?;
    }
    for (name, expression) in FUNCTIONS {
        if !GIVE_NO_FLOATS.contains(&name) {
            symbolic(dispatcher, name, &format!("self: {expression}"), (vec![0], vec![]))?;
        }
    }
    for name in ["aten::remainder", "aten::floor_divide"] {
        let sign = if name == "aten::remainder" { "%" } else { "//" };
        let both = format!("self, other: self {sign} other");
        symbolic(dispatcher, name, &both, (vec![0, 1], vec![]))?;
        let number = format!("self; other: self {sign} other");
        symbolic(dispatcher, &format!("{name}.Scalar"), &number, (vec![0], vec![1]))?;
        let turned = format!("aten::r{}.Scalar", name.trim_start_matches("aten::"));
        let text = format!("self; other: other {sign} self");
        symbolic(dispatcher, &turned, &text, (vec![0], vec![1]))?;
    }
    Ok(())
}

/// Registers the derivative of an operator that is the expression of a text, unless it has one.
fn symbolic(
    dispatcher: &Dispatcher<Value>,
    name: &str,
    text: &str,
    arguments: (Vec<usize>, Vec<usize>),
) -> Result<()> {
    let Ok(operator) = dispatcher.operator(name) else { return Ok(()) };
    if !operator.has_kernel(DispatchKey::Autograd.into()) {
        let derivative = derivative::of_arguments(name, elementwise::text(text)?, arguments);
        autograd::register_derivative(dispatcher, name, derivative, Override::Error)?;
    }
    Ok(())
}

/// Functions whose results are bools or whole numbers.
const GIVE_NO_FLOATS: [&str; 4] =
    ["aten::isnan", "aten::isinf", "aten::isfinite", "aten::bitwise_not"];
