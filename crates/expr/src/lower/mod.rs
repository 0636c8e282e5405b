//! Lowering: from an expression and its inputs' dtypes to steps of one dtype each.
//!
//! Plain numbers, parameters and indices are weak, as Python's numbers: they take the other
//! operand's dtype if that can hold their kind, else their kind's default dtype is promoted with
//! it. Dtypes promote as [`DType::promote`]. Halves are computed in float32 and rounded once, at
//! the end. [`Lowered::new`] lists the dtypes that each function takes.

mod lowering;
mod mixed_signs;
mod signature;
mod source_names;
mod step;
mod type_rules;
mod types;

#[cfg(test)]
mod tests;

use keyfold_core::{DType, DTypeKind, Error, ErrorKind, Result};

use crate::graph::{Expr, Id};
use lowering::{Lowering, TypedStep, lower};
use source_names::source_name;
use types::Type;

pub use signature::Signature;
pub use step::{Step, StepId, StepOp};
pub(crate) use step::{StepTable, needed_of};
pub use type_rules::undefined;
pub use types::computed;

/// An expression for inputs of certain dtypes, as steps of one dtype each, from which the evaluator
/// and the CUDA emitter work. Steps are deduplicated, operands first, the result last.
#[derive(Clone, PartialEq, Debug)]
pub struct Lowered {
    pub(crate) steps: Vec<Step>,
    pub(crate) signature: Signature,
}

impl Lowered {
    /// Lowers an expression for inputs of these dtypes, and parameters of these kinds (bool,
    /// integer, float, complex). The result has dtype `out`, or by default:
    ///
    /// - arithmetic: the operands' common dtype; for bools `+` is "or" and `*` is "and", while `-`,
    ///   `//`, `%` and `**` are refused;
    /// - `/` and the functions of floats: floating, float64 for integers and bools;
    /// - comparisons, `isnan`, `isfinite`: bool; signed integers compare with uint64 exactly;
    ///   `where`: the common dtype of its two branches;
    /// - rounding to integers: the operand's dtype.
    ///
    /// # Errors
    /// [`ErrorKind::DType`] for dtypes that a function doesn't take, or a cast that would drop
    /// imaginary parts; [`ErrorKind::Value`] for an integer that a dtype can't hold, or a negative
    /// exponent of integers; [`ErrorKind::Binding`] for a wrong number of inputs or parameters.
    pub fn new(
        expr: &Expr,
        inputs: &[DType],
        params: &[DTypeKind],
        out: Option<DType>,
    ) -> Result<Lowered> {
        for (what, wanted, given) in [
            ("inputs", expr.inputs().len(), inputs.len()),
            ("parameters", expr.params().len(), params.len()),
        ] {
            if wanted != given {
                return Err(Error::new(
                    ErrorKind::Binding,
                    format!("the expression has {wanted} {what}, but {given} were given"),
                ));
            }
        }
        let simple = expr.simplified_for(inputs);
        let mut to = Lowering::default();
        let values = lower_all(&mut to, &simple, inputs, params)
            .map_err(|(_, error)| with_source_name(expr, inputs, params, error))?;
        let Some(&root) = values.last() else {
            return Err(Error::new(ErrorKind::Value, "the expression is empty"));
        };
        let result = out.unwrap_or(root.ty.dtype());
        let step = match root.ty {
            Type::Weak(_) => {
                let step = to.convert(root, root.ty.dtype(), false)?;
                to.cast(TypedStep { step, ty: Type::Strong(root.ty.dtype()) }, result)?
            }
            Type::Strong(_) => to.cast(root, result)?,
        };
        let steps = needed_of(to.0.steps(), &mut [step]);
        let signature = Signature {
            inputs: inputs.to_vec(),
            ranks: simple.inputs().iter().map(|input| input.rank).collect(),
            names: simple.inputs().iter().map(|input| input.name.clone()).collect(),
            params: Signature::params_of(&steps),
            result,
        };
        Ok(Lowered { steps, signature })
    }

    /// Returns the data that callers need: dtypes, ranks, names.
    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// Returns the steps; the last one is the result, to be stored as [`Lowered::result`].
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Returns the dtypes of the inputs.
    pub fn inputs(&self) -> &[DType] {
        self.signature.inputs()
    }

    /// Returns the rank of each input that is read at computed indices, `None` for elementwise
    /// inputs.
    pub fn ranks(&self) -> &[Option<u32>] {
        self.signature.ranks()
    }

    /// Returns the inputs' names, for messages.
    pub fn names(&self) -> &[String] {
        self.signature.names()
    }

    /// Returns the dtype of the result's elements. The last step has this dtype, or float32 if this
    /// is a half, and then storing rounds.
    pub fn result(&self) -> DType {
        self.signature.result
    }
}

/// Adds the steps of all nodes; an error carries the index of its node.
fn lower_all(
    to: &mut Lowering,
    expr: &Expr,
    inputs: &[DType],
    params: &[DTypeKind],
) -> std::result::Result<Vec<TypedStep>, (usize, Error)> {
    let mut values = Vec::with_capacity(expr.nodes().len());
    for (at, node) in expr.nodes().iter().enumerate() {
        let value = lower(to, node, &values, inputs, params).map_err(|error| (at, error))?;
        values.push(value);
    }
    Ok(values)
}

/// Renames an error to the function in the source text, if the failing node is a part of a derived
/// function. It is searched in the expression before simplification, which may remove other parts
/// of that function.
#[cold]
fn with_source_name(expr: &Expr, inputs: &[DType], params: &[DTypeKind], error: Error) -> Error {
    match lower_all(&mut Lowering::default(), expr, inputs, params) {
        Err((at, error)) => match source_name(expr, Id(at as u32)) {
            Some(name) => type_rules::renamed(error, name),
            None => error,
        },
        Ok(_) => error,
    }
}
