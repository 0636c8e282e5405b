//! The product of two matrices on one thread, for each element type.

use keyfold_core::Complex;

use super::matrix::{Matrix, Sizes};
use crate::element::Number;

/// The panel of the right matrix that stays in the cache while all rows of the left one are multiplied
/// with it, in products by loops: 128 KiB of integers.
const PANEL_ROWS: usize = 64;
const PANEL_COLUMNS: usize = 256;
/// The most multiplications for which loops are faster than the preparation of a large product (about
/// 200 ns), as in a batch of many small products.
const MAX_SMALL_PRODUCT: usize = 128;

/// Where a product goes: rows of a matrix, each dense.
#[derive(Clone, Copy)]
pub(super) struct Rows<S> {
    pub(super) to: *mut S,
    /// The elements from one row to the next.
    pub(super) step: usize,
}

impl<S> Rows<S> {
    /// Returns the place of an element.
    pub(super) fn at(self, row: usize, column: usize) -> *mut S {
        self.to.wrapping_add(row * self.step + column)
    }

    /// Returns one row of that many elements.
    ///
    /// # Safety
    /// The elements are inside, initialised, and no other code accesses them for `'r`.
    pub(super) unsafe fn row<'r>(self, row: usize, len: usize) -> &'r mut [S] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.at(row, 0), len) }
    }
}

/// Element types with a matrix product.
pub(super) trait Product: Number {
    /// Nanoseconds of a multiplication with its addition, on one thread.
    const NANOSECONDS: f64;

    /// Writes `a b`.
    ///
    /// # Safety
    /// `out` has m rows of n elements, which no other code accesses; the matrices have the sizes.
    unsafe fn product(
        sizes: Sizes,
        a: &Matrix<'_, Self::Stored>,
        b: &Matrix<'_, Self::Stored>,
        out: Rows<Self::Stored>,
    );
}

/// The product by loops in memory order, without preparation.
///
/// # Safety
/// As [`Product::product`].
unsafe fn small_product<T: Number>(
    Sizes { m, k, n }: Sizes,
    a: &Matrix<'_, T::Stored>,
    b: &Matrix<'_, T::Stored>,
    to: Rows<T::Stored>,
) {
    for i in 0..m {
        // SAFETY: the caller's promise.
        let out = unsafe { to.row(i, n) };
        out.fill(T::ZERO.store());
        for l in 0..k {
            let factor = T::load(a.get(i, l));
            for (j, out) in out.iter_mut().enumerate() {
                *out = T::load(*out).add(factor.mul(T::load(b.get(l, j)))).store();
            }
        }
    }
}

/// A factor of a product of floats: the address of its first element, and the steps to the next row and
/// column.
type Factor<F> = (*const F, isize, isize);

/// Writes `scale a b`, or adds it, on this thread; the gemm crate selects the machine's widest vectors at
/// run time.
///
/// # Safety
/// As [`Product::product`], where elements of a row of `to` are `column_step` apart.
pub(super) unsafe fn gemm<F: Copy + From<u8> + 'static>(
    Sizes { m, k, n }: Sizes,
    (a, a_row, a_column): Factor<F>,
    (b, b_row, b_column): Factor<F>,
    (to, row_step, column_step): (*mut F, isize, isize),
    (adds, scale): (bool, F),
) {
    let one_thread = gemm::Parallelism::None;
    let kept = F::from(u8::from(adds));
    // SAFETY: the caller's promise.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            to,
            column_step,
            row_step,
            adds,
            a,
            a_column,
            a_row,
            b,
            b_column,
            b_row,
            kept,
            scale,
            false,
            false,
            false,
            one_thread,
        );
    }
}

fn is_small(Sizes { m, k, n }: Sizes) -> bool {
    m.saturating_mul(n).saturating_mul(k) <= MAX_SMALL_PRODUCT
}

macro_rules! float_product {
    // A macro, since a blanket implementation would cover the integers, too.
    ($($type:ty, $nanoseconds:literal;)*) => {$(
        impl Product for $type {
            const NANOSECONDS: f64 = $nanoseconds;

            unsafe fn product(
                sizes: Sizes,
                a: &Matrix<'_, Self>,
                b: &Matrix<'_, Self>,
                out: Rows<Self>,
            ) {
                // SAFETY: the matrices lie inside their slices (see `Matrix`), and the caller's promise.
                unsafe {
                    if is_small(sizes) {
                        return small_product::<Self>(sizes, a, b, out);
                    }
                    gemm(
                        sizes,
                        (a.ptr(), a.row_step, a.column_step),
                        (b.ptr(), b.row_step, b.column_step),
                        (out.to, out.step as isize, 1),
                        (false, 1.0),
                    );
                }
            }
        }
    )*};
}

float_product! {
    f32, 0.02;
    f64, 0.04;
}

macro_rules! loop_product {
    // As above.
    ($($type:ty, $nanoseconds:literal;)*) => {$(
        impl Product for $type {
            const NANOSECONDS: f64 = $nanoseconds;

            unsafe fn product(
                sizes: Sizes,
                a: &Matrix<'_, Self::Stored>,
                b: &Matrix<'_, Self::Stored>,
                out: Rows<Self::Stored>,
            ) {
                // SAFETY: the caller's promise.
                unsafe { blocked_product::<Self>(sizes, a, b, out) };
            }
        }
    )*};
}

loop_product! {
    bool, 0.3;
    u8, 0.1;
    u16, 0.1;
    u32, 0.2;
    u64, 0.4;
}

macro_rules! complex_product {
    // Four float products per complex product, so that the float code is reused.
    ($($float:ty, $nanoseconds:literal;)*) => {$(
        impl Product for Complex<$float> {
            const NANOSECONDS: f64 = $nanoseconds;

            unsafe fn product(
                sizes: Sizes,
                a: &Matrix<'_, Self>,
                b: &Matrix<'_, Self>,
                out: Rows<Self>,
            ) {
                if is_small(sizes) {
                    // SAFETY: the caller's promise.
                    return unsafe { small_product::<Self>(sizes, a, b, out) };
                }
                let to = out.to.cast::<$float>();
                let (from_a, from_b) = (a.ptr().cast::<$float>(), b.ptr().cast::<$float>());
                // `re re - im im` and `re im + im re`: each part is the sum of two float products.
                for (part, of_a, of_b, scale) in
                    [(0, 0, 0, 1.0), (0, 1, 1, -1.0), (1, 0, 1, 1.0), (1, 1, 0, 1.0)]
                {
                    // SAFETY: the matrices lie inside their slices, and the caller's promise; a complex
                    // number is its two parts, real one first, so twice the steps lead from part to part.
                    unsafe {
                        gemm(
                            sizes,
                            (from_a.add(of_a), 2 * a.row_step, 2 * a.column_step),
                            (from_b.add(of_b), 2 * b.row_step, 2 * b.column_step),
                            (to.add(part), 2 * out.step as isize, 2),
                            (of_a != 0, scale),
                        );
                    }
                }
            }
        }
    )*};
}

complex_product! {
    f32, 0.08;
    f64, 0.16;
}

/// The product by loops, panel by panel of `b`; each panel is copied to make its rows dense.
///
/// # Safety
/// As [`Product::product`].
unsafe fn blocked_product<T: Number>(
    Sizes { m, k, n }: Sizes,
    a: &Matrix<'_, T::Stored>,
    b: &Matrix<'_, T::Stored>,
    to: Rows<T::Stored>,
) {
    for i in 0..m {
        // SAFETY: the caller's promise.
        unsafe { to.row(i, n) }.fill(T::ZERO.store());
    }
    let mut block = Vec::with_capacity(PANEL_ROWS * PANEL_COLUMNS.min(n));
    for (left, top) in
        (0..n).step_by(PANEL_COLUMNS).flat_map(|l| (0..k).step_by(PANEL_ROWS).map(move |t| (l, t)))
    {
        let (columns, rows) = (left..n.min(left + PANEL_COLUMNS), top..k.min(top + PANEL_ROWS));
        block.clear();
        for l in rows.clone() {
            block.extend(columns.clone().map(|j| T::load(b.get(l, j))));
        }
        for i in 0..m {
            // SAFETY: the caller's promise.
            let out = &mut unsafe { to.row(i, n) }[columns.clone()];
            for (l, row) in rows.clone().zip(block.chunks_exact(columns.len())) {
                let factor = T::load(a.get(i, l));
                for (out, x) in out.iter_mut().zip(row) {
                    *out = T::load(*out).add(factor.mul(*x)).store();
                }
            }
        }
    }
}
