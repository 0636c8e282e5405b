//! The checks of the arguments of decompositions.

use keyfold_core::{DType, Error, ErrorKind, Result, Shape, layout};
use keyfold_tensor::Tensor;

use crate::convert::to_dtype;
use crate::op::Op;

const FLOATS: [DType; 2] = [DType::F32, DType::F64];

/// The sizes of a stack of matrices.
pub(super) struct Matrices<'a> {
    pub(super) stack: &'a [usize],
    pub(super) rows: usize,
    pub(super) columns: usize,
}

/// Refuses other tensors than stacks of matrices of float32 or float64.
pub(super) fn matrices<'a>(op: &Op, name: &str, x: &'a Tensor) -> Result<Matrices<'a>> {
    if !FLOATS.contains(&x.dtype()) {
        return Err(op.unsupported(name, x.dtype(), &FLOATS));
    }
    match &**x.shape() {
        [stack @ .., rows, columns] => Ok(Matrices { stack, rows: *rows, columns: *columns }),
        _ => Err(no_matrix(op, name, x)),
    }
}

#[cold]
pub(super) fn no_matrix(op: &Op, name: &str, x: &Tensor) -> Error {
    let message = format!(
        "argument '{name}' has shape {:?}, but a matrix has 2 dimensions, and a stack of them more",
        x.shape()
    );
    op.error(ErrorKind::Shape, message)
}

/// Refuses other matrices than square ones; returns the stack's sizes and the matrices' size.
pub(super) fn square<'a>(op: &Op, name: &str, x: &'a Tensor) -> Result<(&'a [usize], usize)> {
    let Matrices { stack, rows, columns } = matrices(op, name, x)?;
    if rows != columns {
        let message = format!(
            "argument '{name}' has matrices of {rows} by {columns} (its shape is {:?}), but they must \
             be square",
            x.shape()
        );
        return Err(op.error(ErrorKind::Shape, message));
    }
    Ok((stack, rows))
}

/// Refuses the name of an algorithm.
pub(super) fn check_driver(op: &Op, driver: Option<&str>) -> Result<()> {
    let Some(driver) = driver else { return Ok(()) };
    let message =
        format!("argument 'driver' is '{driver}', but there is one algorithm; leave it None");
    Err(op.error(ErrorKind::Value, message))
}

/// Returns whether the argument `UPLO` names the upper triangle.
pub(super) fn wants_upper(op: &Op, triangle: &str) -> Result<bool> {
    match triangle {
        "L" | "l" => Ok(false),
        "U" | "u" => Ok(true),
        _ => {
            let message = format!(
                "argument 'UPLO' is '{triangle}', but it must be 'L' or 'U', for the triangle that is \
                 read"
            );
            Err(op.error(ErrorKind::Value, message))
        }
    }
}

/// Linear systems: `A X = B`, or `X A = B` where they aren't `left`.
pub(super) struct Systems<'a> {
    a: &'a Tensor,
    b: &'a Tensor,
    left: bool,
    /// The dtype of both together.
    pub(super) dtype: DType,
    /// Whether `B` is a stack of vectors.
    pub(super) vector: bool,
    /// The sizes of the stack of solutions.
    pub(super) stack: Shape,
    size: usize,
    /// The number of right sides of each system.
    sides: usize,
}

/// Returns whether the right side of systems is a stack of vectors, by PyTorch's rule: one vector, or as many as
/// there are matrices.
pub(super) fn is_vector(a: &[usize], b: &[usize]) -> bool {
    b.len() == 1 || (b.len() + 1 == a.len() && *b == a[..a.len() - 1])
}

/// Checks the operands of linear systems.
pub(super) fn systems<'a>(
    op: &Op,
    (name, a): (&str, &'a Tensor),
    b: &'a Tensor,
    (left, takes_vectors): (bool, bool),
) -> Result<Systems<'a>> {
    let (stack, size) = square(op, name, a)?;
    if !FLOATS.contains(&b.dtype()) {
        return Err(op.unsupported("B", b.dtype(), &FLOATS));
    }
    let vector = takes_vectors && is_vector(a.shape(), b.shape());
    if vector && !left {
        let message = "argument 'left' is False, but 'B' is a vector; make it a matrix of one row";
        return Err(op.error(ErrorKind::Shape, message));
    }
    let refuse = |why: String| {
        let message = format!(
            "argument 'B' of shape {:?} doesn't fit argument '{name}' of shape {:?}: {why}",
            b.shape(),
            a.shape()
        );
        op.error(ErrorKind::Shape, message)
    };
    let (stack_b, given, sides) = match (&**b.shape(), vector, left) {
        ([stack @ .., n], true, _) => (stack, *n, 1),
        ([stack @ .., n, sides], _, true) => (stack, *n, *sides),
        ([stack @ .., sides, n], _, false) => (stack, *n, *sides),
        _ => return Err(no_matrix(op, "B", b)),
    };
    if given != size {
        let what = if left { "rows" } else { "columns" };
        return Err(refuse(format!("it has {given} {what}, but the matrices have {size}")));
    }
    let stack = layout::broadcast_shapes(stack, stack_b)
        .map_err(|error| refuse(format!("as stacks, {}", error.message())))?;
    let dtype = a.dtype().promote(b.dtype());
    Ok(Systems { a, b, left, dtype, vector, stack, size, sides })
}

impl Systems<'_> {
    /// Returns the shape of the solutions.
    pub(super) fn shape(&self) -> Vec<usize> {
        let item: &[usize] = match (self.vector, self.left) {
            (true, _) => &[self.size],
            (false, true) => &[self.size, self.sides],
            (false, false) => &[self.sides, self.size],
        };
        self.stack.iter().chain(item).copied().collect()
    }

    /// Returns the matrices and the right sides as one stack, of systems from the left.
    pub(super) fn operands(&self, op: &Op) -> Result<(Tensor, Tensor)> {
        let whole = |x: &Tensor| -> Result<Tensor> {
            let item = x.shape()[x.ndim() - 2..].iter();
            let shape: Vec<usize> = self.stack.iter().chain(item).copied().collect();
            let shape = op.at(Shape::new(&shape))?;
            let all = op.at(to_dtype(op, x, self.dtype)?.broadcast_to(&shape))?;
            if self.left { Ok(all) } else { op.at(all.transpose(-1, -2)) }
        };
        let b = match self.vector {
            true => op.at(self.b.unsqueeze(-1))?,
            false => self.b.detach(),
        };
        Ok((whole(self.a)?, whole(&b)?))
    }

    /// Returns the view of the solutions' memory as a stack of systems from the left.
    pub(super) fn result(&self, op: &Op, out: &Tensor) -> Result<Tensor> {
        match (self.vector, self.left) {
            (true, _) => op.at(out.unsqueeze(-1)),
            (false, true) => Ok(out.detach()),
            (false, false) => op.at(out.transpose(-1, -2)),
        }
    }
}
