//! From an expression and the dtypes of its inputs to steps that each have one dtype.
//!
//! Plain numbers, parameters and indices are weak, as Python's numbers are: they take the dtype of
//! what they meet where that can hold their kind, else the default dtype of their kind comes in.
//! Dtypes mix as [`DType::promote`] says. Half floats are computed in float32 and rounded once, at
//! the end. [`Lowered::new`] lists which dtypes each function takes.

mod lowering;
mod signature;
mod signs;
mod source_names;
mod step;
mod type_rules;
mod types;

#[cfg(test)]
mod tests;

use keyfold_core::{DType, DTypeKind, Error, ErrorKind, Result};

use crate::graph::{Expr, Id};
use lowering::{Lowering, Typed, lower};
use source_names::source_name;
use step::keep_needed;
use types::Type;

pub use signature::Signature;
pub use step::{Step, StepId, StepOp};
pub use type_rules::undefined;
pub use types::computed;

/// An expression for inputs of certain dtypes, as steps of one dtype each: what the evaluator and
/// the CUDA emitter work from. Equal steps are there once; operands come first, the result last.
#[derive(Clone, PartialEq, Debug)]
pub struct Lowered {
    steps: Vec<Step>,
    signature: Signature,
}

impl Lowered {
    /// The steps of an expression for inputs of these dtypes, and parameters of these kinds (bool,
    /// whole, float, complex). The result has dtype `out`, or the one that follows:
    ///
    /// - arithmetic: the operands' common dtype; of bools `+` is "or" and `*` is "and", while `-`,
    ///   `//`, `%` and `**` are refused;
    /// - `/` and the functions of floats: floating, float64 for whole numbers and bools;
    /// - comparisons, `isnan`, `isfinite`: bool; signed whole numbers compare with uint64 exactly; `where`: the common dtype of its two branches;
    /// - rounding to whole numbers keeps the dtype.
    ///
    /// # Errors
    /// [`ErrorKind::DType`] for dtypes that a function doesn't take, or a cast that would drop
    /// imaginary parts; [`ErrorKind::Value`] for a whole number that a dtype can't hold, or a
    /// negative exponent of whole numbers; [`ErrorKind::Binding`] for the wrong number of inputs or
    /// parameters.
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
                to.cast(Typed { step, ty: Type::Strong(root.ty.dtype()) }, result)?
            }
            Type::Strong(_) => to.cast(root, result)?,
        };
        let steps = keep_needed(to.steps, step);
        let numbers = steps.iter().filter_map(|step| match step.op {
            StepOp::Param { index, to } => Some((index, to)),
            _ => None,
        });
        let signature = Signature {
            inputs: inputs.to_vec(),
            ranks: simple.inputs().iter().map(|input| input.rank).collect(),
            names: simple.inputs().iter().map(|input| input.name.clone()).collect(),
            params: numbers.collect(),
            result,
        };
        Ok(Lowered { steps, signature })
    }

    /// What a caller has to know: dtypes, ranks, names.
    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// The steps; the last one is the result, to be stored as [`Lowered::result`].
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The dtypes of the inputs.
    pub fn inputs(&self) -> &[DType] {
        self.signature.inputs()
    }

    /// Each input's rank if it is read at computed indices, `None` if element by element.
    pub fn ranks(&self) -> &[Option<u32>] {
        self.signature.ranks()
    }

    /// The inputs' names, for messages.
    pub fn names(&self) -> &[String] {
        self.signature.names()
    }

    /// The dtype of the result's elements. The last step is of this dtype, or of float32 if this is
    /// a half: then storing rounds.
    pub fn result(&self) -> DType {
        self.signature.result
    }
}

/// Adds the steps of all nodes; an error comes with the place of the node that it is about.
fn lower_all(
    to: &mut Lowering,
    expr: &Expr,
    inputs: &[DType],
    params: &[DTypeKind],
) -> std::result::Result<Vec<Typed>, (usize, Error)> {
    let mut values = Vec::with_capacity(expr.nodes().len());
    for (at, node) in expr.nodes().iter().enumerate() {
        let value = lower(to, node, &values, inputs, params).map_err(|error| (at, error))?;
        values.push(value);
    }
    Ok(values)
}

/// The same error under the name of the function in the source text, where the failing node is a part of a
/// derived function. It is found in the expression before simplification, which may remove other parts of
/// that function.
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
