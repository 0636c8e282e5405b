//! The checks of the arguments of cells.

use keyfold_core::{DType, Error, ErrorKind, Result};
use keyfold_tensor::Tensor;

use crate::op::Op;

const FLOATS: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];

/// The sizes of a cell.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub(super) batch: usize,
    pub(super) width: usize,
}

/// The arguments of a cell.
pub(super) struct Gates<'a> {
    /// The number of gates, side by side in a row.
    pub(super) count: usize,
    pub(super) input: &'a Tensor,
    pub(super) hidden: &'a Tensor,
    pub(super) state: &'a Tensor,
    pub(super) biases: (Option<&'a Tensor>, Option<&'a Tensor>),
}

impl Gates<'_> {
    /// Checks shapes and dtypes, and returns the sizes.
    pub(super) fn check(&self, op: &Op) -> Result<Sizes> {
        let Gates { count, input, hidden, state, biases } = self;
        let [batch, columns] = matrix(op, "input_gates", input)?;
        if columns % count != 0 {
            let message = format!(
                "argument 'input_gates' has rows of {columns}, which aren't {count} gates of one \
                 width; make them {count} times as long as the state's"
            );
            return Err(op.error(ErrorKind::Shape, message));
        }
        let width = columns / count;
        let name = if *count == 3 { "hx" } else { "cx" };
        expect(op, ("hidden_gates", hidden), &[batch, columns], input)?;
        expect(op, (name, state), &[batch, width], input)?;
        match biases {
            (Some(of_input), Some(of_hidden)) => {
                expect(op, ("input_bias", of_input), &[columns], input)?;
                expect(op, ("hidden_bias", of_hidden), &[columns], input)?;
            }
            (None, None) => {}
            (given, _) => {
                let (has, lacks) = match given {
                    Some(_) => ("input_bias", "hidden_bias"),
                    None => ("hidden_bias", "input_bias"),
                };
                return Err(single_bias(op, has, lacks));
            }
        }
        Ok(Sizes { batch, width })
    }
}

/// Returns the error of a cell with one bias.
pub(super) fn single_bias(op: &Op, has: &str, lacks: &str) -> Error {
    let message = format!(
        "argument '{lacks}' is missing, but '{has}' is given; a cell takes both biases, or none"
    );
    op.error(ErrorKind::Value, message)
}

/// Refuses other dtypes than floats.
pub(super) fn check_float(op: &Op, name: &str, x: &Tensor) -> Result<()> {
    match FLOATS.contains(&x.dtype()) {
        true => Ok(()),
        false => Err(op.unsupported(name, x.dtype(), &FLOATS)),
    }
}

/// Refuses other dtypes than floats, and returns the sizes of a matrix.
fn matrix(op: &Op, name: &str, x: &Tensor) -> Result<[usize; 2]> {
    check_float(op, name, x)?;
    let [rows, columns] = **x.shape() else {
        let message = format!(
            "argument '{name}' has shape {:?}, but a batch has 2 dimensions: one row for each state",
            x.shape()
        );
        return Err(op.error(ErrorKind::Shape, message));
    };
    Ok([rows, columns])
}

/// Refuses a tensor of another shape, or of another dtype than a float.
fn expect(op: &Op, (name, x): (&str, &Tensor), shape: &[usize], gates: &Tensor) -> Result<()> {
    check_float(op, name, x)?;
    if **x.shape() != *shape {
        let message = format!(
            "argument '{name}' has shape {:?}, where gates of shape {:?} need {shape:?}",
            x.shape(),
            gates.shape()
        );
        return Err(op.error(ErrorKind::Shape, message));
    }
    Ok(())
}

/// Checks a tensor of a state's shape against a workspace of so many widths; returns the batch and the width.
pub(super) fn check_grad(
    op: &Op,
    (name, x): (&str, &Tensor),
    (workspace_name, workspace, count): (&str, &Tensor, usize),
) -> Result<(usize, usize)> {
    let [batch, width] = matrix(op, name, x)?;
    let [rows, columns] = matrix(op, workspace_name, workspace)?;
    if (rows, columns) != (batch, count * width) {
        let message = format!(
            "argument '{name}' has shape {:?}, which a workspace of shape {:?} doesn't fit: it needs \
             {:?}",
            x.shape(),
            workspace.shape(),
            [batch, count * width]
        );
        return Err(op.error(ErrorKind::Shape, message));
    }
    if workspace.dtype() != x.dtype() {
        let message = format!(
            "argument '{name}' is {}, but the workspace is {}; they come from one cell",
            x.dtype(),
            workspace.dtype()
        );
        return Err(op.error(ErrorKind::DType, message));
    }
    Ok((batch, width))
}
