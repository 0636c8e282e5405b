//! Products of halves, accumulated in float32: a part of the result at a time, whose operands are converted
//! block by block.

use std::cell::Cell;

use keyfold_core::{DType, Result, bf16, f16};
use keyfold_kit::half::{self, Half};
use keyfold_tensor::Tensor;

use super::bf16::{self as pairs, Packed};
use super::matrix::{Matrix, Operands, Sizes};
use super::parts::{Costs, Part};
use super::product::{Product, Rows, gemm};
use super::{Finish, Results};
use crate::bits::Bits;
use crate::convert::{convert, converted};

/// A half, and the product of blocks of it that the processor has instructions for.
pub(super) trait Factor: Half + Bits {
    /// Whether the processor has such instructions, and they pay for a part.
    fn has_product(_: Sizes) -> bool {
        false
    }

    /// Writes or adds the product of blocks. Returns whether it did.
    ///
    /// # Safety
    /// [`Factor::has_product`] is true; the blocks have these sizes; `out` has m rows of n elements, which
    /// no other code accesses.
    unsafe fn product(
        _: Sizes,
        _: &Matrix<'_, Self>,
        _: &Matrix<'_, Self>,
        _: (Rows<f32>, bool),
        _: &mut Packed,
    ) -> bool {
        false
    }
}

impl Factor for f16 {}

impl Factor for bf16 {
    fn has_product(sizes: Sizes) -> bool {
        pairs::takes(sizes)
    }

    unsafe fn product(
        sizes: Sizes,
        a: &Matrix<'_, Self>,
        b: &Matrix<'_, Self>,
        out: (Rows<f32>, bool),
        packed: &mut Packed,
    ) -> bool {
        // SAFETY: the caller's promise.
        unsafe { pairs::product(sizes, a, b, out, packed) }
    }
}

/// The most elements of a part, whose sums are 512 KiB.
const PART: usize = 1 << 17;

/// The most elements of a block: 256 KiB in float32, so that one of each operand fits in the L2 cache.
const BLOCK: usize = 1 << 16;

/// The most rows or columns of a part.
const SIDE: usize = 1024;

/// The most elements of small matrices.
const SMALL: usize = 1024;

/// The bounds of the inner sizes of blocks.
const DEPTHS: (usize, usize) = (64, 8192);

/// The inner size of blocks for the processor's own products: half the bytes of float32.
const PAIRED_DEPTH: usize = 512;

/// Elements that are gathered at a time where neither rows nor columns are dense.
const GATHERED: usize = 64;

/// Computes one product for each index of the batch, into halves or float32.
pub(super) fn multiply<H: Factor>(
    a: &Tensor,
    b: &Tensor,
    out: &Tensor,
    finish: Option<&Finish<'_, f32>>,
) -> Result<()> {
    let costs = Costs { nanoseconds: f32::NANOSECONDS, part: PART, side: SIDE };
    let run = |part: Part<'_, H>, rows: Rows<f32>, scratch: &mut Scratch| {
        accumulate(&part, rows, scratch);
        if let Some(finish) = finish {
            finish(part.place, part.sizes, rows);
        }
    };
    let operands = Operands::<H>::new(a, b)?;
    let Sizes { m, k, n } = operands.sizes;
    if operands.batch.iter().product::<usize>() > 1 && (m * k).max(k * n).max(m * n) <= SMALL {
        // Conversions of many small matrices cost more than one of all.
        let (a, b) = (converted(a, DType::F32)?, converted(b, DType::F32)?);
        if out.dtype() == DType::F32 {
            return super::multiply::<f32>(&a, &b, out, finish);
        }
        let wide = Tensor::empty(out.shape(), DType::F32, out.device())?;
        super::multiply::<f32>(&a, &b, &wide, finish)?;
        return convert(&wide, out);
    }
    if out.dtype() == DType::F32 {
        let to = Results::<f32>::new(out, operands.sizes)?;
        return operands.for_parts(&costs, |part| {
            let rows = to.rows(part.place);
            with_scratch(|scratch| run(part, rows, scratch));
        });
    }
    let to = Results::<H>::new(out, operands.sizes)?;
    operands.for_parts(&costs, |part| {
        let Sizes { m, n, .. } = part.sizes;
        let rows = to.rows(part.place);
        with_scratch(|scratch| {
            let mut sums = std::mem::take(&mut scratch.sums);
            sums.resize((m * n).max(sums.len()), 0.0);
            run(part, Rows { to: sums.as_mut_ptr(), step: n }, scratch);
            // Rows without gaps are one long row.
            let len = if rows.step == n { m * n } else { n };
            for (i, sums) in sums[..m * n].chunks_exact(len).enumerate() {
                // SAFETY: the output is contiguous, and no other code accesses the part.
                half::narrow(sums, unsafe { rows.row(i, len) });
            }
            scratch.sums = sums;
        });
    })
}

/// Memory that a thread keeps for its next product.
#[derive(Default)]
struct Scratch {
    a: Vec<f32>,
    b: Vec<f32>,
    sums: Vec<f32>,
    packed: Packed,
}

fn with_scratch(f: impl FnOnce(&mut Scratch)) {
    thread_local! {
        static KEPT: Cell<Option<Box<Scratch>>> = const { Cell::new(None) };
    }
    let mut scratch = KEPT.take().unwrap_or_default();
    f(&mut scratch);
    KEPT.set(Some(scratch));
}

/// Writes the product of a part.
fn accumulate<H: Factor>(part: &Part<'_, H>, out: Rows<f32>, scratch: &mut Scratch) {
    let Sizes { m, k, n } = part.sizes;
    let has_product = H::has_product(part.sizes);
    let depth = match has_product {
        true => PAIRED_DEPTH,
        false => (BLOCK / m.max(n)).clamp(DEPTHS.0, DEPTHS.1),
    };
    for top in (0..k).step_by(depth) {
        let sizes = Sizes { m, k: depth.min(k - top), n };
        let (a, b) = (part.a.from(0, top), part.b.from(top, 0));
        // SAFETY: the blocks have these sizes; no other code accesses the part of the result.
        let done = has_product
            && unsafe { H::product(sizes, &a, &b, (out, top > 0), &mut scratch.packed) };
        if done {
            continue;
        }
        let a = widened(&a, (m, sizes.k), &mut scratch.a);
        let b = widened(&b, (sizes.k, n), &mut scratch.b);
        // SAFETY: the blocks have these sizes; no other code accesses the part of the result.
        unsafe {
            gemm(
                sizes,
                (a.ptr(), a.row_step, a.column_step),
                (b.ptr(), b.row_step, b.column_step),
                (out.to, out.step as isize, 1),
                (top > 0, 1.0),
            );
        }
    }
}

/// Converts a block to a dense one of the same order in memory.
fn widened<'s, H: Factor>(
    from: &Matrix<'_, H>,
    (rows, columns): (usize, usize),
    to: &'s mut Vec<f32>,
) -> Matrix<'s, f32> {
    to.resize((rows * columns).max(to.len()), 0.0);
    let to = &mut to[..rows * columns];
    let by_row = from.column_step == 1 && (from.row_step != 1 || columns >= rows);
    if !by_row && from.row_step == 1 {
        widen_rows(&from.transposed(), rows, to);
        return Matrix::of_rows(to, rows).transposed();
    }
    if by_row {
        widen_rows(from, columns, to);
        return Matrix::of_rows(to, columns);
    }
    let mut gathered = [H::narrow(0.0); GATHERED];
    for (i, to) in to.chunks_exact_mut(columns).enumerate() {
        for (chunk, to) in to.chunks_mut(GATHERED).enumerate() {
            let gathered = &mut gathered[..to.len()];
            for (j, gathered) in gathered.iter_mut().enumerate() {
                *gathered = from.get(i, chunk * GATHERED + j);
            }
            half::widen(gathered, to);
        }
    }
    Matrix::of_rows(to, columns)
}

/// Converts the dense rows of a matrix.
fn widen_rows<H: Factor>(from: &Matrix<'_, H>, columns: usize, to: &mut [f32]) {
    if from.row_step == columns as isize {
        return half::widen(from.row(0, 0, to.len()), to);
    }
    for (i, to) in to.chunks_exact_mut(columns).enumerate() {
        half::widen(from.row(i, 0, columns), to);
    }
}
