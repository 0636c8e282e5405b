//! Matrix products.

use std::sync::LazyLock;

use keyfold_backend::{Launch, Linalg, Offer};
use keyfold_core::{Complex, DType, Result, layout};
use keyfold_kit::axes::{Body, DispatchTable, Dtype, HALVES, HasDtype, plain};
use keyfold_tensor::{Tensor, for_each_offset};

use crate::HostBackend;
use crate::bits;
use crate::convert::{convert, converted};
use crate::element::{HasNumber, Number};
use crate::kernel::{BOOL_AND_INTEGERS, HostKernel, NATIVE_FLOATS, offer};

/// The panel of the right matrix that stays in the cache while all rows of the left one are multiplied
/// with it, in products by loops: 128 KiB of integers.
const PANEL_ROWS: usize = 64;
const PANEL_COLUMNS: usize = 256;
/// The most multiplications for which loops are faster than the preparation of a large product (about
/// 200 ns), as in a batch of many small products.
const MAX_SMALL_PRODUCT: usize = 128;

/// A matrix within a strided slice; every element that its size and strides address is inside.
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

/// The sizes of a product: `m x k` times `k x n`.
#[derive(Clone, Copy)]
struct Sizes {
    m: usize,
    k: usize,
    n: usize,
}

/// Element types with a matrix product.
trait Product: Number {
    /// Writes `a b` into a contiguous matrix.
    fn product(sizes: Sizes, a: &Matrix<'_, Self>, b: &Matrix<'_, Self>, out: &mut [Self::Stored]);
}

/// The product by loops in memory order, without preparation.
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
    // The same call for both floats; the gemm crate selects the machine's widest vectors at run time.
    ($($type:ty),*) => {$(
        impl Product for $type {
            fn product(
                Sizes { m, k, n }: Sizes,
                a: &Matrix<'_, Self>,
                b: &Matrix<'_, Self>,
                out: &mut [Self],
            ) {
                assert_eq!(out.len(), m * n, "one element for each row and column");
                if m * k * n <= MAX_SMALL_PRODUCT {
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

macro_rules! loop_product {
    // A macro, since a blanket implementation would cover the floats, too.
    ($($type:ty),*) => {$(
        impl Product for $type {
            fn product(
                sizes: Sizes,
                a: &Matrix<'_, Self>,
                b: &Matrix<'_, Self>,
                out: &mut [Self::Stored],
            ) {
                blocked_product(sizes, a, b, out);
            }
        }
    )*};
}

loop_product!(bool, u8, u16, u32, u64);

macro_rules! complex_product {
    // Four float products per complex product, so that the float code is reused.
    ($($float:ty),*) => {$(
        impl Product for Complex<$float> {
            fn product(
                Sizes { m, k, n }: Sizes,
                a: &Matrix<'_, Self>,
                b: &Matrix<'_, Self>,
                out: &mut [Self],
            ) {
                assert_eq!(out.len(), m * n, "one element for each row and column");
                if m * k * n <= MAX_SMALL_PRODUCT {
                    return small_product(Sizes { m, k, n }, a, b, out);
                }
                let to = out.as_mut_ptr().cast::<$float>();
                let one_thread = gemm::Parallelism::None;
                // `re re - im im` and `re im + im re`: each part is the sum of two float products.
                for (part, of_a, of_b, factor) in
                    [(0, 0, 0, 1.0), (0, 1, 1, -1.0), (1, 0, 1, 1.0), (1, 1, 0, 1.0)]
                {
                    // SAFETY: the matrices lie inside their slices (see `Matrix`), and the result is
                    // contiguous, of the asserted size, and borrowed exclusively; a complex number is
                    // its two parts, real one first, so twice the steps lead from part to part.
                    unsafe {
                        let from_a = a.data.as_ptr().add(a.start).cast::<$float>().add(of_a);
                        let from_b = b.data.as_ptr().add(b.start).cast::<$float>().add(of_b);
                        gemm::gemm(
                            m, n, k,
                            to.add(part), 2, 2 * n as isize, of_a != 0,
                            from_a, 2 * a.column_step, 2 * a.row_step,
                            from_b, 2 * b.column_step, 2 * b.row_step,
                            if of_a == 0 { 0.0 } else { 1.0 }, factor, false, false, false, one_thread,
                        );
                    }
                }
            }
        }
    )*};
}

complex_product!(f32, f64);

/// The product by loops, panel by panel of `b`; each panel is copied to make its rows dense.
fn blocked_product<T: Number>(
    Sizes { m, k, n }: Sizes,
    a: &Matrix<'_, T>,
    b: &Matrix<'_, T>,
    out: &mut [T::Stored],
) {
    out.fill(T::ZERO.store());
    let mut block = Vec::with_capacity(PANEL_ROWS * PANEL_COLUMNS.min(n));
    for (left, top) in
        (0..n).step_by(PANEL_COLUMNS).flat_map(|l| (0..k).step_by(PANEL_ROWS).map(move |t| (l, t)))
    {
        let (columns, rows) = (left..n.min(left + PANEL_COLUMNS), top..k.min(top + PANEL_ROWS));
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

/// Computes one product for each index of the batch.
fn multiply<T: Product>(a: &Tensor, b: &Tensor, out: &Tensor) -> Result<()> {
    let outer = |t: &Tensor| t.ndim() - 2;
    let (outer_a, outer_b) = (outer(a), outer(b));
    let sizes =
        Sizes { m: a.shape()[outer_a], k: a.shape()[outer_a + 1], n: b.shape()[outer_b + 1] };
    let batch = layout::broadcast_shapes(&a.shape()[..outer_a], &b.shape()[..outer_b])?;
    let steps = |t: &Tensor, outer: usize| {
        layout::broadcast_strides(&t.shape()[..outer], &t.strides()[..outer], &batch)
    };
    let (batch_a, batch_b) = (steps(a, outer_a)?, steps(b, outer_b)?);
    let (data_a, origin_a) = bits::strided_slice::<T::Stored>(a)?;
    let (data_b, origin_b) = bits::strided_slice::<T::Stored>(b)?;
    let matrix = |data, origin: usize, at: isize, t: &Tensor, outer: usize| Matrix::<T> {
        data,
        start: origin.wrapping_add_signed(at),
        row_step: t.strides()[outer],
        column_step: t.strides()[outer + 1],
    };
    let to = bits::ptr_for_writing::<T::Stored>(out)?;
    // SAFETY: the output is contiguous, with elements of that size, and no other code accesses it
    // (`Launch::launch`).
    let elements = unsafe { std::slice::from_raw_parts_mut(to, out.numel()) };
    let mut results = elements.chunks_exact_mut(sizes.m * sizes.n);
    for_each_offset(&batch, [&batch_a, &batch_b], |[at_a, at_b]| {
        if let Some(out) = results.next() {
            let a = matrix(data_a, origin_a, at_a, a, outer_a);
            let b = matrix(data_b, origin_b, at_b, b, outer_b);
            T::product(sizes, &a, &b, out);
        }
    })
}

/// Products computed in the dtype itself.
struct Exact;

impl<C: HasDtype<Element: HasNumber<Number: Product>>> Body<C, HostKernel<()>> for Exact {
    fn instance(&self, _: C) -> HostKernel<()> {
        HostKernel::new(|(), inputs, out| {
            multiply::<<C::Element as HasNumber>::Number>(inputs[0], inputs[1], out)
        })
    }
}

/// The product of halves, computed in float32 and rounded once.
fn half_product(_: &(), inputs: &[&Tensor], out: &Tensor) -> Result<()> {
    let (a, b) = (converted(inputs[0], DType::F32)?, converted(inputs[1], DType::F32)?);
    let wide = Tensor::empty(out.shape(), DType::F32, out.device())?;
    multiply::<f32>(&a, &b, &wide)?;
    convert(&wide, out)
}

static KERNELS: LazyLock<DispatchTable<(Dtype,), HostKernel<()>>> = LazyLock::new(|| {
    DispatchTable::builder("matmul")
        .cover((BOOL_AND_INTEGERS,), Exact)
        .cover((NATIVE_FLOATS,), Exact)
        .cover((HALVES,), plain("of_halves", HostKernel::new(half_product)))
        .build()
        .expect("each dtype is covered once")
});

impl Linalg for HostBackend {
    fn matmul(&self, input: DType, output: DType) -> Offer<&dyn Launch<()>> {
        if input != output {
            return Offer::No(format!("its products of {input} are {input}, not {output}").into());
        }
        offer(&KERNELS, (input,))
    }
}
