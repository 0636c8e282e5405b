//! The vector-Jacobian product of `matmul` and its like, for vectors, matrices and broadcast batches.

use keyfold_core::Result;
use keyfold_layers::autograd::{Backward, Gradients, TensorMeta};
use keyfold_tensor::Tensor;

use crate::aten;
use crate::vjp::{conj_if_complex, if_needed, match_meta};

/// Converts a vector to a matrix: one row on the left of a product, one column on the right.
fn as_matrix(x: &Tensor, dim: i64) -> Result<Tensor> {
    if x.ndim() == 1 { aten::unsqueeze(x, dim) } else { Ok(x.clone()) }
}

pub(super) fn transposed(x: &Tensor) -> Result<Tensor> {
    aten::transpose(x, -1, -2)
}

/// Flattens all dimensions but the last.
pub(super) fn flat(x: &Tensor) -> Result<Tensor> {
    let (last, rest) = x.shape().split_last().unwrap_or((&1, &[]));
    aten::reshape(x, &aten::sizes(&[rest.iter().product(), *last]))
}

pub(crate) fn matmul(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    of_product(call, grad, |argument| call.tensor(argument))
}

/// Returns the gradients of a product of the first two arguments, whose factors `operand` returns.
pub(super) fn of_product(
    call: &Backward<'_>,
    grad: &Tensor,
    operand: impl Fn(usize) -> Result<Tensor>,
) -> Result<Gradients> {
    let (left, right) = (call.meta(0), call.meta(1));
    // The gradient with the dimensions of a product of matrices.
    let mut g = grad.clone();
    if right.shape.len() == 1 {
        g = aten::unsqueeze(&g, -1)?;
    }
    if left.shape.len() == 1 {
        g = aten::unsqueeze(&g, -2)?;
    }
    // Reduces the gradient to the operand's matrix, and removes the dimension that a vector got.
    let back = |form: &TensorMeta, dim: usize, grad: Tensor| {
        if form.shape.len() > 1 {
            return Ok(grad);
        }
        let mut shape = form.shape.clone();
        shape.insert(dim, 1)?;
        let matrix = match_meta(&TensorMeta { shape, ..form.clone() }, &grad)?;
        aten::reshape(&matrix, &aten::sizes(&form.shape))
    };
    let of_left = || {
        let b = as_matrix(&conj_if_complex(&operand(1)?)?, 1)?;
        back(&left, 0, aten::matmul(&g, &transposed(&b)?)?)
    };
    let of_right = || {
        let a = as_matrix(&conj_if_complex(&operand(0)?)?, 0)?;
        let product = if right.shape.len() <= 2 && a.ndim() > 2 {
            // The whole batch shares one matrix: one long product is faster than a sum of many.
            aten::matmul(&transposed(&flat(&a)?)?, &flat(&g)?)?
        } else {
            aten::matmul(&transposed(&a)?, &g)?
        };
        back(&right, 1, product)
    };
    Ok(vec![if_needed(call, 0, of_left)?, if_needed(call, 1, of_right)?])
}
