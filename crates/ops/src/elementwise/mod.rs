//! Operators that work element by element: each is one expression.
//!
//! The expression says everything: the CPU kernel evaluates it, for every dtype and layout; the Meta
//! kernel asks it for the result's dtype; the overload `out` writes what it gives into a tensor of
//! the caller's.

mod arithmetic;
mod define;
mod functions;
mod operator;

use std::sync::Arc;

use keyfold_core::{DType, ErrorKind, Result, Scalar, Shape, layout};
use keyfold_cpu::evaluate::{Compiled, Overlap, broadcast_shape, evaluate, overlap};
use keyfold_expr::eval::{Program, Value};
use keyfold_expr::{Expr, Names};
use keyfold_tensor::Tensor;
use smallvec::SmallVec;

use crate::op::{Op, Registrar};
use crate::promote::check_assignable;

pub use define::{Definition, Kernels, kernels, out_schema};
pub use functions::FUNCTIONS;
pub use operator::{ELEMENTWISE, Text, from_text, text, to_text};

/// An expression of inputs and parameters of these names, ready to be computed.
///
/// # Errors
/// As [`Expr::parse_with`].
pub(crate) fn compile(text: &str, inputs: &[&str], params: &[&str]) -> Result<Arc<Compiled>> {
    let names = inputs.iter().fold(Names::new(), |names, name| names.input(*name));
    let names = params.iter().fold(names, |names, name| names.param(*name));
    Ok(Arc::new(Compiled::new(Expr::parse_with(text, &names)?)))
}

/// The dtypes of tensors.
fn dtypes(tensors: &[&Tensor]) -> SmallVec<[DType; 4]> {
    tensors.iter().map(|tensor| tensor.dtype()).collect()
}

/// The shape of the result.
fn shape(op: Op, program: &Program, inputs: &[&Tensor]) -> Result<Shape> {
    let shapes: SmallVec<[&[usize]; 4]> = inputs.iter().map(|input| &input.shape()[..]).collect();
    op.at(broadcast_shape(program, &shapes))
}

/// Refuses numbers that the dtypes that they become part of can't hold: what Meta has to find out, as
/// evaluating does.
fn check_params(op: Op, program: &Program, params: &[Scalar]) -> Result<()> {
    if program.constants().is_some() {
        return Ok(());
    }
    op.at(program.prepare(params, &mut SmallVec::<[Value; 8]>::new()))
}

/// A fresh tensor with the expression's value.
pub(crate) fn compute(
    op: Op,
    expression: &Compiled,
    inputs: &[&Tensor],
    params: &[Scalar],
) -> Result<Tensor> {
    let program = op.at(expression.program(&dtypes(inputs), params, None))?;
    let out = op.output(&shape(op, &program, inputs)?, program.result())?;
    if op.is_meta() {
        check_params(op, &program, params)?;
    } else {
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
    check_out(op, out, &shape(op, &own, inputs)?, own.result())?;
    if op.is_meta() {
        return check_params(op, &own, params);
    }
    let program = match own.result() == out.dtype() {
        true => own,
        false => op.at(expression.program(&dtypes, params, Some(out.dtype())))?,
    };
    // An input that is written over while it is read is read from a copy.
    let mut copies: SmallVec<[(usize, Tensor); 1]> = SmallVec::new();
    for (at, input) in inputs.iter().enumerate() {
        let ranked = program.ranks()[at].is_some();
        let meets = op.at(overlap(out, input))?;
        if meets == Overlap::Partial || ranked && meets == Overlap::Exact {
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
