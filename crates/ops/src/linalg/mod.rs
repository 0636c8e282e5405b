//! `matmul`: batched matrix products with NumPy's rules for vectors and broadcasting; PyTorch's products of
//! fixed ranks; products in mixed precision; and products with an addend and an activation.

mod batching;
mod fused;
mod fused_layers;
mod gradients;
mod mixed;
mod ranked;

use keyfold_backend::GpuBackend;
use keyfold_core::{DType, Error, ErrorKind, Result, Scalar, Shape, layout};
use keyfold_layers::autocast::Category;
use keyfold_layers::pipeline::Work;
use keyfold_tensor::{Tensor, ValueRef};

use crate::convert::to_dtype;
use crate::infer::{Call, CallPlan, Fill, Run};
use crate::naming::{BINARY_PARAMETERS, named};
use crate::op::Op;
use crate::row::{Batching, Layers, Row, Rule, Tangent};
use crate::vjp::{READS_OTHER, formula};

/// The sizes of one product, `m x k` by `k x n`.
#[derive(Clone, Copy)]
struct Sizes {
    m: usize,
    k: usize,
    n: usize,
}

/// Returns the sizes of a product and the shape that its batches broadcast to.
fn infer_sizes(op: &Op, a: &[usize], b: &[usize]) -> Result<(Sizes, Shape)> {
    // A vector is one row on the left and one column on the right.
    let (batch_a, [m, k]) = match a {
        [k] => (&[][..], [1, *k]),
        [batch @ .., m, k] => (batch, [*m, *k]),
        [] => return Err(no_dimension(op, a, b)),
    };
    let (batch_b, [other_k, n]) = match b {
        [k] => (&[][..], [*k, 1]),
        [batch @ .., k, n] => (batch, [*k, *n]),
        [] => return Err(no_dimension(op, a, b)),
    };
    let refuse = |why: String| {
        let message = format!("shapes {a:?} and {b:?} don't multiply: {why}");
        op.error(ErrorKind::Shape, message)
    };
    if k != other_k {
        let why = format!("the inner sizes are {k} and {other_k}, which must be equal");
        return Err(refuse(why));
    }
    let batch = layout::broadcast_shapes(batch_a, batch_b)
        .map_err(|error| refuse(format!("as batches, {}", error.message())))?;
    Ok((Sizes { m, k, n }, batch))
}

#[cold]
fn no_dimension(op: &Op, a: &[usize], b: &[usize]) -> Error {
    let message = format!(
        "shapes {a:?} and {b:?}: each operand needs a dimension; multiply by a number with aten::mul"
    );
    op.error(ErrorKind::Shape, message)
}

/// Returns the shape of a product: that of the batches, rows, and columns.
#[inline(always)]
fn infer_shape(op: &Op, a: &[usize], b: &[usize]) -> Result<(Sizes, Shape)> {
    let (sizes, mut shape) = infer_sizes(op, a, b)?;
    if a.len() > 1 {
        op.at(shape.insert(shape.len(), sizes.m))?;
    }
    if b.len() > 1 {
        op.at(shape.insert(shape.len(), sizes.n))?;
    }
    Ok((sizes, shape))
}

/// Plans a product whose factors are converted to one dtype, and whose result is of another, if the backend
/// offers that.
#[inline(always)]
fn plan<'t>(
    op: &Op,
    a: &'t Tensor,
    b: &'t Tensor,
    factors: DType,
    dtype: DType,
) -> Result<CallPlan<impl Run + use<'t>>> {
    let (sizes, shape) = infer_shape(op, a.shape(), b.shape())?;
    let run = move |op: &Op, out: &Tensor| {
        if out.numel() == 0 {
            return Ok(());
        }
        if sizes.k == 0 {
            // SAFETY: what computes a result is called with an output that is its own (`Run::run`).
            return unsafe { Fill(Scalar::Bool(false)).run(op, out) };
        }
        let kernel = op.kernel(GpuBackend::linalg, |linalg| linalg.matmul(factors, dtype))?;
        let rows = if a.ndim() == 1 { op.at(a.unsqueeze(0))? } else { a.detach() };
        let columns = if b.ndim() == 1 { op.at(b.unsqueeze(1))? } else { b.detach() };
        let (rows, columns) = (to_dtype(op, &rows, factors)?, to_dtype(op, &columns, factors)?);
        // SAFETY: as above.
        op.at(unsafe { kernel.launch(&(), &[&rows, &columns], out) })
    };
    Ok(CallPlan::new(op.device_of(a), shape, dtype, run))
}

/// Estimates the time of products whose left factor is the argument at that position.
fn product_work(args: &[ValueRef<'_>], left: usize, shape: &[usize]) -> Result<Work> {
    let left = args[left].tensor()?;
    // Of a multiplication with its addition, as the host measured it.
    let nanoseconds = match left.dtype() {
        DType::F16 | DType::BF16 | DType::F32 => 0.02,
        DType::F64 => 0.04,
        DType::C64 => 0.08,
        DType::C128 => 0.16,
        _ => 0.2,
    };
    let elements: f64 = shape.iter().map(|size| *size as f64).product();
    let inner = left.shape().last().map_or(0.0, |size| *size as f64);
    Ok(Work { nanoseconds: nanoseconds * elements * inner, divides: true })
}

#[inline(always)]
fn matmul<'t>(
    call: Call<'_, ()>,
    (a, b): (&'t Tensor, &'t Tensor),
) -> Result<CallPlan<impl Run + use<'t>>> {
    let dtype = a.dtype().promote(b.dtype());
    plan(&call, a, b, dtype, dtype)
}

/// Returns the rows of products.
pub(crate) fn rows() -> Result<Vec<Row>> {
    let row = Row::computes::<(&Tensor, &Tensor), _, _>(
        ("aten::matmul", ""),
        "Tensor self, Tensor other",
        |_| (),
        matmul,
        Layers {
            derivative: formula(READS_OTHER, gradients::matmul),
            tangent: Rule::Given(Tangent::Multilinear),
            batching: Rule::Given(Batching::Rule(batching::matmul)),
            autocast: Category::LowerPrecision,
        },
        named(
            "matmul",
            BINARY_PARAMETERS,
            "Return the matrix product over the last two dimensions; the ones before broadcast.",
        ),
    )?
    .estimated(|args, shape| product_work(args, 0, shape));
    let mut rows = vec![row, mixed::row()?];
    rows.extend(ranked::rows()?);
    rows.extend(fused::rows()?);
    Ok(rows)
}
