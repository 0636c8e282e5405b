//! Matrix products, batched, with NumPy's rules for vectors and broadcasting.

use keyfold_core::{ErrorKind, Result, Shape, layout};
use keyfold_dispatch::Kernel;
use keyfold_tensor::{Tensor, for_each_offset};

use crate::element::{Number, for_dtype};
use crate::op::{Op, Registrar};
use crate::promote::{Operand, common, computed, rounded};

/// The part of the right matrix that stays in cache while all rows of the left one pass, where
/// products are made by loops: 128 KiB of whole numbers.
const ROWS: usize = 64;
const COLUMNS: usize = 256;
/// Up to so many multiplications a product is faster by loops than by what prepares a large one
/// (about 200 ns): the many small ones of a batch.
const SMALL: usize = 128;

/// A matrix within a strided slice; every element that its size and strides reach is inside.
struct Matrix<'a, T: Number> {
    data: &'a [T::Stored],
    start: usize,
    row_step: isize,
    column_step: isize,
}

impl<T: Number> Matrix<'_, T> {
    fn get(&self, row: usize, column: usize) -> T {
        let offset = row as isize * self.row_step + column as isize * self.column_step;
        T::load(self.data[self.start.wrapping_add_signed(offset)])
    }
}

/// Sizes of one product: `m x k` times `k x n`.
#[derive(Clone, Copy)]
struct Sizes {
    m: usize,
    k: usize,
    n: usize,
}

/// Element types that matrices are multiplied in.
trait Product: Number {
    /// Writes `a b` into a contiguous matrix.
    fn product(sizes: Sizes, a: &Matrix<'_, Self>, b: &Matrix<'_, Self>, out: &mut [Self::Stored]);
}

/// The product by loops in the order of memory, without preparations.
fn small_product<T: Number>(
    Sizes { m, k, n }: Sizes,
    a: &Matrix<'_, T>,
    b: &Matrix<'_, T>,
    out: &mut [T::Stored],
) {
    for (i, out) in out.chunks_exact_mut(n).take(m).enumerate() {
        out.fill(T::ZERO.store());
        for l in 0..k {
            let factor = a.get(i, l);
            for (j, out) in out.iter_mut().enumerate() {
                *out = T::load(*out).add(factor.mul(b.get(l, j))).store();
            }
        }
    }
}

macro_rules! gemm_product {
    // The same call for both floats; the crate picks the machine's widest vectors at run time.
    ($($type:ty),*) => {$(
        impl Product for $type {
            fn product(
                Sizes { m, k, n }: Sizes,
                a: &Matrix<'_, Self>,
                b: &Matrix<'_, Self>,
                out: &mut [Self],
            ) {
                assert_eq!(out.len(), m * n, "one element for each row and column");
                if m * k * n <= SMALL {
                    return small_product(Sizes { m, k, n }, a, b, out);
                }
                let one_thread = gemm::Parallelism::None;
                // SAFETY: the matrices lie inside their slices (see `Matrix`), and the result is
                // contiguous, of the asserted size, and borrowed exclusively.
                unsafe {
                    let (from_a, from_b) = (a.data.as_ptr().add(a.start), b.data.as_ptr().add(b.start));
                    gemm::gemm(
                        m, n, k,
                        out.as_mut_ptr(), 1, n as isize, false,
                        from_a, a.column_step, a.row_step,
                        from_b, b.column_step, b.row_step,
                        0.0, 1.0, false, false, false, one_thread,
                    );
                }
            }
        }
    )*};
}

gemm_product!(f32, f64);

impl Product for i64 {
    fn product(sizes: Sizes, a: &Matrix<'_, i64>, b: &Matrix<'_, i64>, out: &mut [i64]) {
        plain_product(sizes, a, b, out);
    }
}

impl Product for bool {
    fn product(sizes: Sizes, a: &Matrix<'_, bool>, b: &Matrix<'_, bool>, out: &mut [u8]) {
        plain_product(sizes, a, b, out);
    }
}

/// The product by loops, block by block of `b`, each copied to where its rows are dense.
fn plain_product<T: Number>(
    Sizes { m, k, n }: Sizes,
    a: &Matrix<'_, T>,
    b: &Matrix<'_, T>,
    out: &mut [T::Stored],
) {
    out.fill(T::ZERO.store());
    let mut block = Vec::with_capacity(ROWS * COLUMNS.min(n));
    for (left, top) in
        (0..n).step_by(COLUMNS).flat_map(|l| (0..k).step_by(ROWS).map(move |t| (l, t)))
    {
        let (columns, rows) = (left..n.min(left + COLUMNS), top..k.min(top + ROWS));
        block.clear();
        for l in rows.clone() {
            block.extend(columns.clone().map(|j| b.get(l, j)));
        }
        for (i, out) in out.chunks_exact_mut(n).take(m).enumerate() {
            let out = &mut out[columns.clone()];
            for (l, row) in rows.clone().zip(block.chunks_exact(columns.len())) {
                let factor = a.get(i, l);
                for (out, x) in out.iter_mut().zip(row) {
                    *out = T::load(*out).add(factor.mul(*x)).store();
                }
            }
        }
    }
}

/// The sizes of a product and the shape that its batches broadcast to.
fn plan(op: Op, a: &Tensor, b: &Tensor, rows: &Tensor, columns: &Tensor) -> Result<(Sizes, Shape)> {
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

fn matmul(op: Op, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let dtype = common(op, a.into(), b.into())?;
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
    let (sizes, batch) = plan(op, a, b, &rows, &columns)?;
    let mut shape = batch.clone();
    if a.ndim() > 1 {
        op.at(shape.insert(shape.len(), sizes.m))?;
    }
    if b.ndim() > 1 {
        op.at(shape.insert(shape.len(), sizes.n))?;
    }
    if sizes.k == 0 {
        return op.zeros(&shape, dtype);
    }
    let mut out = op.output(&shape, computed(dtype))?;
    if op.is_meta() || out.numel() == 0 {
        return rounded(op, out, dtype);
    }
    let (rows, columns) = (Operand::from(&rows), Operand::from(&columns));
    let (rows, columns) = (rows.to_tensor(op, dtype)?, columns.to_tensor(op, dtype)?);
    for_dtype!(all: op, out.dtype(), T => {
        op.at(multiply::<T>(sizes, &batch, &rows, &columns, &mut out))?;
    });
    rounded(op, out, dtype)
}

/// One product for each index of the batch.
fn multiply<T: Product>(
    sizes: Sizes,
    batch: &[usize],
    a: &Tensor,
    b: &Tensor,
    out: &mut Tensor,
) -> Result<()> {
    let outer = |t: &Tensor| {
        let dims = t.ndim() - 2;
        layout::broadcast_strides(&t.shape()[..dims], &t.strides()[..dims], batch)
    };
    let (batch_a, batch_b) = (outer(a)?, outer(b)?);
    let (data_a, origin_a) = a.as_strided_slice::<T::Stored>()?;
    let (data_b, origin_b) = b.as_strided_slice::<T::Stored>()?;
    let matrix = |data, origin: usize, at: isize, t: &Tensor| Matrix::<T> {
        data,
        start: origin.wrapping_add_signed(at),
        row_step: t.strides()[t.ndim() - 2],
        column_step: t.strides()[t.ndim() - 1],
    };
    let mut results = out.as_mut_slice::<T::Stored>()?.chunks_exact_mut(sizes.m * sizes.n);
    for_each_offset(batch, [&batch_a, &batch_b], |[at_a, at_b]| {
        if let Some(out) = results.next() {
            let (a, b) = (matrix(data_a, origin_a, at_a, a), matrix(data_b, origin_b, at_b, b));
            T::product(sizes, &a, &b, out);
        }
    })
}

/// Defines the operator in a dispatcher.
pub(crate) fn register(ops: &Registrar<'_>) -> Result<()> {
    ops.op("aten::matmul(Tensor self, Tensor other) -> Tensor", |op| {
        Kernel::typed(move |a: &Tensor, b: &Tensor| matmul(op, a, b))
    })
}
