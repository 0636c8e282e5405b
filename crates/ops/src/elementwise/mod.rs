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
use keyfold_expr::{Expr, Names, Node};
use keyfold_kit::eval::{Program, Value};
use keyfold_kit::evaluate::{Compiled, Overlap, broadcast_shape, evaluate, overlap};
use keyfold_tensor::{Tensor, ValueRef};
use smallvec::SmallVec;

use crate::op::{Op, Registrar};

pub use define::{Definition, Kernels, kernels, out_schema};
pub use functions::FUNCTIONS;
pub use operator::{ComplexText, ELEMENTWISE, OUT, Text, from_text, text, to_text};

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

/// How large the result is where that isn't the shape that the inputs broadcast to.
#[derive(Clone, Copy)]
pub(crate) enum Size<'a> {
    /// Nobody said.
    Unknown,
    /// What the caller gave as argument `shape`.
    Given(&'a [usize]),
    /// That of the tensor to write into.
    Of(&'a Tensor),
}

/// The shape of the result: what the inputs that are read element by element broadcast to. Where
/// there are none it is the caller's to say, but for results whose elements are all the same: then
/// one is enough.
fn shape(
    op: Op,
    expression: &Compiled,
    program: &Program,
    inputs: &[&Tensor],
    size: Size<'_>,
) -> Result<Shape> {
    let shapes: SmallVec<[&[usize]; 4]> = inputs.iter().map(|input| &input.shape()[..]).collect();
    let own = op.at(broadcast_shape(program, &shapes))?;
    let free = program.ranks().iter().all(Option::is_some);
    match size {
        Size::Of(out) if free => Ok(out.shape().clone()),
        Size::Given(given) if free => op.at(Shape::new(given)),
        Size::Given(given) if *given != own[..] => Err(op.error(
            ErrorKind::Shape,
            format!(
                "argument 'shape' is {given:?}, but the inputs broadcast to {own:?}, which is the \
                 result's shape; leave it away"
            ),
        )),
        Size::Unknown if free && has_places(expression.expr()) => Err(op.error(
            ErrorKind::Shape,
            "nothing says which shape the result has: no input is read element by element; give \
             shape=, which is () for one element, or out=",
        )),
        _ => Ok(own),
    }
}

/// The value of an argument that is the result's shape, None where it isn't given.
fn given_shape(op: Op, value: ValueRef<'_>) -> Result<Option<Shape>> {
    if matches!(value, ValueRef::None) {
        return Ok(None);
    }
    let sizes: SmallVec<[i64; 6]> =
        value.items().filter_map(ValueRef::scalar).filter_map(|size| size.as_i64()).collect();
    let negative = sizes.iter().find(|size| **size < 0);
    if let Some(size) = negative {
        let message = format!("argument 'shape': size {size} in {sizes:?} is negative");
        return Err(op.error(ErrorKind::Shape, message));
    }
    op.shape(&sizes).map(Some)
}

/// Whether a result depends on where its element is.
fn has_places(expr: &Expr) -> bool {
    expr.nodes().iter().any(|node| matches!(node, Node::Index | Node::Coordinate(_)))
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
    compute_sized(op, expression, inputs, params, Size::Unknown)
}

/// As [`compute`], of a size that the caller may have given.
pub(crate) fn compute_sized(
    op: Op,
    expression: &Compiled,
    inputs: &[&Tensor],
    params: &[Scalar],
    size: Size<'_>,
) -> Result<Tensor> {
    let program = op.at(expression.program(&dtypes(inputs), params, None))?;
    let out = op.output(&shape(op, expression, &program, inputs, size)?, program.result())?;
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
    compute_into_argument(op, expression, inputs, params, ("out", out), Size::Of(out))
}

/// As [`compute_into`], where the argument that takes the result may have another name.
pub(crate) fn compute_into_argument(
    op: Op,
    expression: &Compiled,
    inputs: &[&Tensor],
    params: &[Scalar],
    (name, out): (&str, &Tensor),
    size: Size<'_>,
) -> Result<()> {
    let dtypes = dtypes(inputs);
    let own = op.at(expression.program(&dtypes, params, None))?;
    let form = shape(op, expression, &own, inputs, size)?;
    check_written(op, name, out, &form, own.result())?;
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

/// Refuses a tensor to write into, argument `out`, that isn't as the result is.
pub(crate) fn check_out(op: Op, out: &Tensor, shape: &[usize], dtype: DType) -> Result<()> {
    check_written(op, "out", out, shape, dtype)
}

/// As [`check_out`], where the argument may have another name.
fn check_written(op: Op, name: &str, out: &Tensor, shape: &[usize], dtype: DType) -> Result<()> {
    if out.shape()[..] != *shape {
        return Err(op.error(
            ErrorKind::Shape,
            format!(
                "argument '{name}' has shape {:?}, but the result has {shape:?}; give a tensor of \
                 that shape",
                out.shape()
            ),
        ));
    }
    if dtype.promote(out.dtype()).kind() != out.dtype().kind() {
        return Err(op.error(
            ErrorKind::DType,
            format!(
                "argument '{name}': can't write {dtype} elements into a {} tensor without losing \
                 what they are; convert them with aten::to",
                out.dtype()
            ),
        ));
    }
    if layout::may_overlap(out.shape(), out.strides()) {
        return Err(op.error(
            ErrorKind::Value,
            format!(
                "argument '{name}' has elements that share memory (shape {:?}, strides {:?}); give \
                 one whose elements are apart",
                out.shape(),
                out.strides()
            ),
        ));
    }
    if op.is_meta() { Ok(()) } else { op.at_argument(name, out.check_writable()) }
}

/// Defines these operators in a dispatcher.
pub(crate) fn register(ops: &Registrar<'_>) -> Result<()> {
    arithmetic::register(ops)?;
    functions::register(ops)?;
    operator::register(ops)
}
