//! [`implement`] makes the row of a user's operator from an expression and registers it, with a handle for each
//! kernel.

use std::sync::Arc;

use keyfold_core::Result;
use keyfold_dispatch::{DispatchKey, Dispatcher, Handle, Override, Provenance};
use keyfold_tensor::Value;

use super::Expression;
use super::definition::Definition;
use crate::op::{Runner, Target};
use crate::row::Row;

/// The result of [`implement`].
pub struct Implemented {
    /// The operator's row. The kernel for Meta has it as its payload.
    pub row: Arc<Row>,
    /// The expression that the row computes.
    pub expression: Arc<Expression>,
    /// The handles of the registered kernels.
    pub handles: Vec<Handle<Value>>,
}

/// Implements a defined operator by an expression of its arguments: registers kernels for Meta and for each
/// backend, the symbolic derivative, and the batching rule. A backend that is registered later gets its
/// kernel then.
///
/// Each `Tensor` argument is an input, which the expression reads pointwise, or at indices in brackets. Each
/// number is a parameter. A written argument takes the result: `Tensor(a!) out` if the expression doesn't read
/// it, `Tensor(a!) self` if it does. An argument `int[]? shape=None` is the result's shape, if no input is read
/// pointwise.
///
/// An operator that writes to an argument gets no derivative and no batching rule; the fallbacks of the layers
/// handle it. `provenance` is the source location of the registration. If one registration fails, those before
/// it are removed.
///
/// # Errors
/// [`keyfold_core::ErrorKind::Registration`] for arguments that no expression can have, and for results other
/// than one tensor; as [`keyfold_expr::Expr::parse_with`]; and those of registration.
#[track_caller]
pub fn implement(
    dispatcher: &Dispatcher<Value>,
    operator: &str,
    text: &str,
    mode: Override,
    provenance: Option<&Provenance>,
) -> Result<Implemented> {
    let operator = dispatcher.operator(operator)?;
    let definition = Definition::new(operator.schema(), text)?;
    let expression = definition.expression.clone();
    let row = Arc::new(definition.row(operator.schema()));
    let mut kernels = Vec::new();
    for (kind, backend) in keyfold_backend::backends() {
        let (key, runner) =
            (DispatchKey::from_device_type(kind), Arc::new(Runner::new(kind, backend)));
        kernels.extend(row.backend_kernels(&runner).into_iter().map(|(_, kernel)| (key, kernel)));
    }
    for (_, kernel) in row.kernels(&Target::Meta) {
        kernels.push((DispatchKey::Meta, kernel.with_payload(row.clone())));
    }
    kernels.extend(row.layer_kernels()?);
    let mut handles: Vec<Handle<Value>> = Vec::new();
    for (key, kernel) in kernels {
        let name = match key {
            DispatchKey::Autograd => format!("the derivative of {}", expression.expr()),
            DispatchKey::Vmap => format!("the batching rule of {}", expression.expr()),
            _ => kernel.provenance().name.clone(),
        };
        let kernel = match provenance {
            Some(provenance) => kernel.with_provenance(Provenance { name, ..provenance.clone() }),
            None => kernel.named(name),
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
    Ok(Implemented { row, expression, handles })
}
