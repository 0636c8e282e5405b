//! Matrix products: of vectors, of matrices, of batches that broadcast.

use keyfold_core::Result;
use keyfold_layers::autograd::{Backward, Gradients, TensorMeta};
use keyfold_tensor::Tensor;

use crate::aten;
use crate::vjp::{conj_if_complex, if_needed, match_meta};

/// A vector as the matrix that it is in a product: one row on the left, one column on the right.
fn as_matrix(x: &Tensor, dim: i64) -> Result<Tensor> {
    if x.ndim() == 1 { aten::unsqueeze(x, dim) } else { Ok(x.clone()) }
}

fn transposed(x: &Tensor) -> Result<Tensor> {
    aten::transpose(x, -1, -2)
}

/// All but the last dimension as one.
fn flat(x: &Tensor) -> Result<Tensor> {
    let (last, rest) = x.shape().split_last().unwrap_or((&1, &[]));
    aten::reshape(x, &aten::sizes(&[rest.iter().product(), *last]))
}

pub(crate) fn matmul(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let (left, right) = (call.form(0), call.form(1));
    // The gradient of the product of matrices.
    let mut g = grad.clone();
    if right.shape.len() == 1 {
        g = aten::unsqueeze(&g, -1)?;
    }
    if left.shape.len() == 1 {
        g = aten::unsqueeze(&g, -2)?;
    }
    // A gradient as the matrix, then without the dimension that a vector got.
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
        let b = as_matrix(&conj_if_complex(&call.tensor(1)?)?, 1)?;
        back(&left, 0, aten::matmul(&g, &transposed(&b)?)?)
    };
    let of_right = || {
        let a = as_matrix(&conj_if_complex(&call.tensor(0)?)?, 0)?;
        let product = if right.shape.len() <= 2 && a.ndim() > 2 {
            // One matrix for the whole batch: one long product instead of a sum of many.
            aten::matmul(&transposed(&flat(&a)?)?, &flat(&g)?)?
        } else {
            aten::matmul(&transposed(&a)?, &g)?
        };
        back(&right, 1, product)
    };
    Ok(vec![if_needed(call, 0, of_left)?, if_needed(call, 1, of_right)?])
}
