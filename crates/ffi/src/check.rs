//! Checks whether the C convention can serve a schema; errors name the argument.

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::schema::{Schema, Type};

use crate::kernel::Outputs;

/// The hint for a schema with lists.
const LISTS: &str = "lists are objects of TVM FFI's library: import tvm_ffi (pip install \
                     apache-tvm-ffi), and register the function with objects=True if it takes them";

/// Refuses a schema with types that the ABI can't pass, or can't pass without objects.
pub(crate) fn check(schema: &Schema, name: &str, objects: bool, outputs: Outputs) -> Result<()> {
    let refuse = |what: String| {
        Err(Error::new(
            ErrorKind::Registration,
            format!("{}: the C kernel {name} can't serve it: {what}", schema.name),
        ))
    };
    for argument in &schema.arguments {
        match argument.ty.without_optional() {
            Type::List(inner, _) if passable(inner) && objects => {}
            Type::List(inner, _) if passable(inner) => {
                return refuse(format!(
                    "argument '{}' is {}, which the C convention can't pass: {LISTS}",
                    argument.name, argument.ty
                ));
            }
            ty if passable(ty) => {}
            _ => {
                return refuse(format!(
                    "argument '{}' is {}, which the C convention can't pass",
                    argument.name, argument.ty
                ));
            }
        }
    }
    if outputs == Outputs::Returned {
        return match schema.returns.iter().find(|r| !returnable(&r.ty)) {
            Some(r) => refuse(format!("a return of type {} can't be handed over", r.ty)),
            None => Ok(()),
        };
    }
    let tensors = schema.returns.iter().filter(|r| r.ty == Type::Tensor).count();
    let returns = &schema.returns;
    if tensors == returns.len() {
        return Ok(());
    }
    if returns.len() > 1 {
        let hint = if objects { "; with outputs=\"returned\" it returns all of them" } else { "" };
        return refuse(format!("it can fill several tensors or return one value, not both{hint}"));
    }
    match returns[0].ty {
        Type::Int | Type::Float | Type::Bool | Type::Scalar | Type::ScalarType | Type::Device => {
            Ok(())
        }
        ref ty if objects && returnable(ty) => Ok(()),
        ref ty => refuse(format!("a return of type {ty} can't be handed over")),
    }
}

/// Returns whether a value of the type can be passed by itself or in a list.
fn passable(ty: &Type) -> bool {
    let ty = ty.without_optional();
    !matches!(ty, Type::List(..) | Type::Generator | Type::Complex | Type::Any)
}

/// Returns whether a function that returns objects can return a value of the type.
fn returnable(ty: &Type) -> bool {
    match ty.without_optional() {
        Type::List(inner, _) => returnable(inner),
        ty => passable(ty),
    }
}
