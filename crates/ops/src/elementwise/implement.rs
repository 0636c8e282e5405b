//! Operators made of an expression: what their layers do follows from it.
//!
//! [`implement`] gives an operator everything from one text: the kernels for CPU and Meta, the
//! derivative of any order (symbolic, [`keyfold_expr::Expr::derivative`]), and the batching rule.
//! Derivatives are calls of `keyfold::elementwise`, which takes any expression and has both itself.

use std::sync::Arc;

use keyfold_core::Result;
use keyfold_dispatch::{DispatchKey, Dispatcher, Handle, Override, Provenance};
use keyfold_layers::{autograd, vmap};
use keyfold_tensor::Value;

use super::operator::Expression;
use super::{Definition, batching, kernels, symbolic, tangent};

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
    let (definition, mut kernels) = kernels(operator.schema(), text)?;
    if definition.out().is_none() {
        let text = Arc::new(Expression::new(definition.expr().clone()));
        let arguments = (definition.inputs().to_vec(), definition.params().to_vec());
        let tangent = tangent::of_arguments(&name, text.clone(), arguments.clone());
        let derivative = symbolic::of_arguments(&name, text, arguments);
        let shown = definition.expr().to_string();
        kernels.push((
            DispatchKey::Autograd,
            autograd::kernel_with_tangent(derivative, tangent)
                .named(format!("the derivative of {shown}")),
        ));
        if definition.shape().is_none()
            && let Some(rule) = batching::rule(definition.expr())
        {
            let kernel = vmap::kernel(rule, &format!("the batching rule of {shown}"));
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
