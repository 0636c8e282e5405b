//! Operators that work element by element: each is one expression.
//!
//! The expression says everything: the CPU kernel evaluates it, for every dtype and layout; the Meta
//! kernel asks it for the result's dtype; the overload `out` writes what it gives into a tensor of
//! the caller's.

mod arithmetic;
mod define;
mod functions;
mod operator;

use keyfold_core::{DType, ErrorKind, Result, Scalar, layout};
use keyfold_cpu::evaluate::{Compiled, Program, evaluate, overlap};
use keyfold_expr::{Expr, Names};
use keyfold_tensor::Tensor;
use smallvec::SmallVec;

use crate::map::broadcast;
use crate::op::{Op, Registrar};
use crate::promote::check_assignable;

pub use define::{Definition, implement};
pub use functions::FUNCTIONS;
pub use operator::{ELEMENTWISE, Text, text};

/// An expression of inputs and parameters of these names, ready to be computed.
///
/// # Errors
/// As [`Expr::parse_with`].
pub(crate) fn compile(text: &str, inputs: &[&str], params: &[&str]) -> Result<Compiled> {
    let names = inputs.iter().fold(Names::new(), |names, name| names.input(*name));
    let names = params.iter().fold(names, |names, name| names.param(*name));
    Ok(Compiled::new(Expr::parse_with(text, &names)?))
}

/// The dtypes of tensors.
fn dtypes(tensors: &[&Tensor]) -> SmallVec<[DType; 4]> {
    tensors.iter().map(|tensor| tensor.dtype()).collect()
}

/// The shapes of the tensors that broadcast.
fn shape(op: Op, expression: &Compiled, inputs: &[&Tensor]) -> Result<keyfold_core::Shape> {
    let described = expression.expr().inputs().iter().zip(inputs);
    let shapes: SmallVec<[&[usize]; 4]> = described
        .filter(|(input, _)| input.rank.is_none())
        .map(|(_, tensor)| &tensor.shape()[..])
        .collect();
    broadcast(op, &shapes)
}

/// Refuses parameters that the dtypes that they become part of can't hold, and ranked inputs of
/// other ranks: what also Meta has to.
fn check(
    op: Op,
    expression: &Compiled,
    program: &Program,
    inputs: &[&Tensor],
    params: &[Scalar],
) -> Result<()> {
    op.at(program.check_params(params))?;
    for (input, tensor) in expression.expr().inputs().iter().zip(inputs) {
        if let Some(rank) = input.rank
            && rank as usize != tensor.ndim()
        {
            return Err(op.error(
                ErrorKind::Shape,
                format!(
                    "argument '{}' is read at {rank} indices, but has {} dimensions (shape {:?})",
                    input.name,
                    tensor.ndim(),
                    tensor.shape()
                ),
            ));
        }
    }
    Ok(())
}

/// A fresh tensor with the expression's value.
pub(crate) fn compute(
    op: Op,
    expression: &Compiled,
    inputs: &[&Tensor],
    params: &[Scalar],
) -> Result<Tensor> {
    let program = op.at(expression.program(&dtypes(inputs), params, None))?;
    check(op, expression, &program, inputs, params)?;
    let out = op.empty(&shape(op, expression, inputs)?, program.result())?;
    if !op.is_meta() {
        // SAFETY: the result was made here and nobody else has it.
        op.at(unsafe { evaluate(&program, inputs, params, &out) })?;
    }
    Ok(out)
}

/// Writes the expression's value into `out`, which has its shape and a dtype of its kind.
pub(crate) fn compute_into(
    op: Op,
    expression: &Compiled,
    inputs: &[&Tensor],
    params: &[Scalar],
    out: &Tensor,
) -> Result<()> {
    let dtypes = dtypes(inputs);
    let own = op.at(expression.program(&dtypes, params, None))?;
    check(op, expression, &own, inputs, params)?;
    check_out(op, out, &shape(op, expression, inputs)?, own.result())?;
    if op.is_meta() {
        return Ok(());
    }
    let program = match own.result() == out.dtype() {
        true => own,
        false => op.at(expression.program(&dtypes, params, Some(out.dtype())))?,
    };
    // An input that is written over while it is read is read from a copy.
    let mut copies: SmallVec<[(usize, Tensor); 1]> = SmallVec::new();
    for (at, input) in inputs.iter().enumerate() {
        let ranked = expression.expr().inputs()[at].rank.is_some();
        if overlap(out, input, ranked) {
            copies.push((at, op.at(input.copy())?));
        }
    }
    let mut inputs: SmallVec<[&Tensor; 4]> = inputs.into();
    for (at, copy) in &copies {
        inputs[*at] = copy;
    }
    // SAFETY: the schema says that the operator writes to this argument, so the caller, in whichever
    // language, gave its memory up for the time of the call.
    op.at(unsafe { evaluate(&program, &inputs, params, out) })
}

/// Refuses a tensor to write into that isn't as the result is.
pub(crate) fn check_out(op: Op, out: &Tensor, shape: &[usize], dtype: DType) -> Result<()> {
    if out.shape()[..] != *shape {
        return Err(op.error(
            ErrorKind::Shape,
            format!(
                "argument 'out' has shape {:?}, but the result has {shape:?}; give a tensor of that \
                 shape",
                out.shape()
            ),
        ));
    }
    check_assignable(op, dtype, out.dtype())?;
    if layout::may_overlap(out.shape(), out.strides()) {
        return Err(op.error(
            ErrorKind::Value,
            format!(
                "argument 'out' has elements that share memory (shape {:?}, strides {:?}); give one \
                 whose elements are apart",
                out.shape(),
                out.strides()
            ),
        ));
    }
    if op.is_meta() { Ok(()) } else { op.at_out(out.check_writable()) }
}

/// Defines these operators in a dispatcher.
pub(crate) fn register(ops: &Registrar<'_>) -> Result<()> {
    arithmetic::register(ops)?;
    functions::register(ops)?;
    operator::register(ops)
}
