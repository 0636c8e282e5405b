//! Matrix products, batched, with NumPy's rules for vectors and broadcasting.

mod batching;
mod gradients;

use keyfold_backend::GpuBackend;
use keyfold_core::{ErrorKind, Result, Shape, layout};
use keyfold_dispatch::Kernel;
use keyfold_layers::autocast::Category;
use keyfold_tensor::Tensor;

use crate::gradient::{OTHER, given};
use crate::map::converted;
use crate::op::Op;
use crate::row::{Batching, Layers, Row, Rule};

/// Sizes of one product: `m x k` times `k x n`.
#[derive(Clone, Copy)]
struct Sizes {
    m: usize,
    k: usize,
    n: usize,
}

/// The sizes of a product and the shape that its batches broadcast to.
fn plan(
    op: &Op,
    a: &Tensor,
    b: &Tensor,
    rows: &Tensor,
    columns: &Tensor,
) -> Result<(Sizes, Shape)> {
    let (from_a, from_b) = (rows.shape(), columns.shape());
    let (batch_a, batch_b) = (&from_a[..from_a.len() - 2], &from_b[..from_b.len() - 2]);
    let sizes = Sizes {
        m: from_a[from_a.len() - 2],
        k: from_a[from_a.len() - 1],
        n: from_b[from_b.len() - 1],
    };
    let other_k = from_b[from_b.len() - 2];
    let refuse = |why: String| {
        let message = format!("shapes {:?} and {:?} don't multiply: {why}", a.shape(), b.shape());
        op.error(ErrorKind::Shape, message)
    };
    if sizes.k != other_k {
        let why = format!("the inner sizes are {} and {other_k}, which must be equal", sizes.k);
        return Err(refuse(why));
    }
    let batch = layout::broadcast_shapes(batch_a, batch_b)
        .map_err(|error| refuse(format!("as batches, {}", error.message())))?;
    Ok((sizes, batch))
}

fn matmul(op: &Op, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let dtype = a.dtype().promote(b.dtype());
    if a.ndim() == 0 || b.ndim() == 0 {
        let (a, b) = (a.shape(), b.shape());
        let message = format!(
            "shapes {a:?} and {b:?}: each operand needs a dimension; multiply by a number with \
             aten::mul"
        );
        return Err(op.error(ErrorKind::Shape, message));
    }
    // A vector is one row on the left and one column on the right.
    let rows = if a.ndim() == 1 { op.at(a.unsqueeze(0))? } else { a.detach() };
    let columns = if b.ndim() == 1 { op.at(b.unsqueeze(1))? } else { b.detach() };
    let (sizes, mut shape) = plan(op, a, b, &rows, &columns)?;
    if a.ndim() > 1 {
        op.at(shape.insert(shape.len(), sizes.m))?;
    }
    if b.ndim() > 1 {
        op.at(shape.insert(shape.len(), sizes.n))?;
    }
    if sizes.k == 0 {
        return op.zeros(op.device_of(a), &shape, dtype);
    }
    let out = op.output(op.device_of(a), &shape, dtype)?;
    if op.is_meta() || out.numel() == 0 {
        return Ok(out);
    }
    let kernel = op.kernel(GpuBackend::linalg, |linalg| linalg.matmul(dtype, dtype))?;
    let (rows, columns) = (converted(op, &rows, dtype)?, converted(op, &columns, dtype)?);
    // SAFETY: the result was made here and nobody else has it.
    op.at(unsafe { kernel.launch(&(), &[&rows, &columns], &out) })?;
    Ok(out)
}

/// The row of matrix products.
pub(crate) fn rows() -> Result<Vec<Row>> {
    let row = Row::computes(
        "aten::matmul(Tensor self, Tensor other) -> Tensor",
        |op| Kernel::typed(move |a: &Tensor, b: &Tensor| matmul(&op, a, b)),
        Layers {
            derivative: given(OTHER, gradients::matmul),
            batching: Rule::Given(Batching::Rule(batching::matmul)),
            autocast: Category::LowerPrecision,
        },
    )?;
    Ok(vec![row])
}
