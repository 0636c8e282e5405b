//! Products of bfloat16 by the processor's own instruction (AVX512_BF16), which multiplies pairs and adds them
//! up in float32: twice the multiplications of float32 code, and operands of half the size.
//!
//! The instruction takes subnormal numbers for 0, so blocks with such numbers are left to float32.

use keyfold_core::bf16;

use super::matrix::{Matrix, Sizes};
use super::product::Rows;

/// The memory of packed blocks, which a thread keeps: pairs of numbers.
#[derive(Default)]
pub(super) struct Packed {
    a: Vec<u32>,
    b: Vec<u32>,
}

/// The least rows and columns of a part for which packing pays.
const LEAST: (usize, usize) = (4, 16);

/// Whether the processor has the instruction, and it pays for a part.
pub(super) fn takes(sizes: Sizes) -> bool {
    sizes.m >= LEAST.0 && sizes.n >= LEAST.1 && sizes.k > 1 && is_available()
}

#[cfg(target_arch = "x86_64")]
fn is_available() -> bool {
    use keyfold_kit::isa::{Level, level};
    level() == Level::Avx512 && is_x86_feature_detected!("avx512bf16")
}

#[cfg(not(target_arch = "x86_64"))]
fn is_available() -> bool {
    false
}

/// Writes or adds the product of blocks. Returns whether it did: not if there are subnormal numbers.
///
/// # Safety
/// [`takes`] is true; the blocks have these sizes; `out` has m rows of n elements, which no other code
/// accesses.
#[cfg(not(target_arch = "x86_64"))]
pub(super) unsafe fn product(
    _: Sizes,
    _: &Matrix<'_, bf16>,
    _: &Matrix<'_, bf16>,
    _: (Rows<f32>, bool),
    _: &mut Packed,
) -> bool {
    false
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86_64::product;

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use std::arch::x86_64::{
        __m512, __m512bh, __m512i, _mm512_add_ps, _mm512_dpbf16_ps, _mm512_loadu_si512,
        _mm512_mask_storeu_ps, _mm512_maskz_loadu_ps, _mm512_set1_epi32, _mm512_setzero_ps,
        _mm512_setzero_si512, _mm512_shuffle_i32x4, _mm512_storeu_si512, _mm512_unpackhi_epi32,
        _mm512_unpackhi_epi64, _mm512_unpacklo_epi32, _mm512_unpacklo_epi64,
    };
    use std::mem::transmute;

    use super::{Matrix, Packed, Rows, Sizes, bf16};

    /// Rows of a tile: with 4 registers of columns, 24 sums, 4 registers of `b` and one of `a`.
    const ROWS: usize = 6;
    /// Numbers in a register of sums.
    const LANES: usize = 16;
    /// Registers of columns of a panel.
    const WIDTH: usize = 4;
    /// Pairs that are read from each of several rows at a time: a cache line.
    const LINE: usize = 16;

    /// Rows whose starts are so many bytes apart compete for the same places of the L1 cache.
    const SAME_PLACE: usize = 4096;
    /// Pairs between packed rows, so that theirs don't.
    const GAP: usize = 8;

    /// The rows of pairs of the left operand.
    struct PairRows {
        first: *const u32,
        /// Numbers from one row to the next.
        row_step: isize,
        /// Pairs from one pair of a row to the next.
        pair_step: usize,
    }

    impl PairRows {
        /// Returns the first pair of a row.
        fn row(&self, row: usize) -> *const u32 {
            match self.pair_step {
                1 => {
                    let first = self.first.cast::<u16>();
                    first.wrapping_offset(row as isize * self.row_step).cast()
                }
                _ => self.first.wrapping_add(row),
            }
        }
    }

    /// As documented for other processors above.
    ///
    /// # Safety
    /// As above.
    pub(in super::super) unsafe fn product(
        sizes: Sizes,
        a: &Matrix<'_, bf16>,
        b: &Matrix<'_, bf16>,
        out: (Rows<f32>, bool),
        packed: &mut Packed,
    ) -> bool {
        // SAFETY: the processor has the instructions (`takes`), and the caller's promise.
        unsafe { product_there(sizes, a, b, out, packed) }
    }

    /// The numbers of a block's two operands lie at these addresses.
    ///
    /// # Safety
    /// As [`product`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
    unsafe fn product_there(
        Sizes { m, k, n }: Sizes,
        a: &Matrix<'_, bf16>,
        b: &Matrix<'_, bf16>,
        (out, adds): (Rows<f32>, bool),
        packed: &mut Packed,
    ) -> bool {
        let pairs = k.div_ceil(2);
        // SAFETY: the operands have these sizes, and the packed blocks are as long as they are made here;
        // the caller's promise for the result.
        unsafe {
            let far = (a.row_step.unsigned_abs() * size_of::<u16>()).is_multiple_of(SAME_PLACE);
            let rows = if a.row_step == 1 && m > 1 {
                // Pairs of all rows, one pair after another.
                let step = m.next_multiple_of(LANES);
                grow(&mut packed.a, step * pairs);
                pack_panel((k, m), &a.transposed(), packed.a.as_mut_ptr());
                PairRows { first: packed.a.as_ptr(), row_step: 1, pair_step: step }
            } else if a.column_step == 1 && k.is_multiple_of(2) && !far {
                let first = a.ptr().cast::<u32>();
                PairRows { first, row_step: a.row_step, pair_step: 1 }
            } else {
                let step = pairs + GAP;
                grow(&mut packed.a, m * step);
                pack_rows((m, k), a, &mut packed.a, step);
                PairRows { first: packed.a.as_ptr(), row_step: 2 * step as isize, pair_step: 1 }
            };
            let panels = n.div_ceil(WIDTH * LANES);
            grow(&mut packed.b, panels * WIDTH * LANES * pairs);
            let mut tiny = false;
            if rows.pair_step > 1 {
                tiny = has_subnormal(rows.first.cast(), 2 * pairs * rows.pair_step);
            } else {
                for i in 0..m {
                    tiny |= has_subnormal(rows.row(i).cast(), 2 * pairs);
                }
            }
            let to = packed.b.as_mut_ptr();
            if b.column_step == 1 {
                pack_dense((k, n), b, to);
            }
            for panel in 0..panels {
                let left = panel * WIDTH * LANES;
                let width = (n - left).min(WIDTH * LANES);
                if b.column_step != 1 {
                    pack_panel((k, width), &b.from(0, left), to.add(left * pairs));
                }
                let numbers = 2 * pairs * width.next_multiple_of(LANES);
                tiny |= has_subnormal(to.add(left * pairs).cast(), numbers);
            }
            if tiny {
                return false;
            }
            for panel in 0..panels {
                let left = panel * WIDTH * LANES;
                let width = (n - left).min(WIDTH * LANES);
                let b = packed.b.as_ptr().add(left * pairs);
                for top in (0..m).step_by(ROWS) {
                    let height = (m - top).min(ROWS);
                    // Rows behind the last are the last once more; their sums aren't written.
                    let from: [*const u32; ROWS] =
                        std::array::from_fn(|i| rows.row(top + i.min(height - 1)));
                    let from = (from, rows.pair_step);
                    let to = Rows { to: out.at(top, left), ..out };
                    let size = (height, width);
                    match width.div_ceil(LANES) {
                        1 => tile::<1>(pairs, from, b, size, (to, adds)),
                        2 => tile::<2>(pairs, from, b, size, (to, adds)),
                        3 => tile::<3>(pairs, from, b, size, (to, adds)),
                        _ => tile::<4>(pairs, from, b, size, (to, adds)),
                    }
                }
            }
        }
        true
    }

    fn grow(memory: &mut Vec<u32>, len: usize) {
        if memory.len() < len {
            memory.resize(len, 0);
        }
    }

    /// Whether a number isn't 0 and has the least exponent.
    ///
    /// # Safety
    /// There are `len` numbers.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn has_subnormal(from: *const u16, len: usize) -> bool {
        // SAFETY: the caller's promise.
        let numbers = unsafe { std::slice::from_raw_parts(from, len) };
        // From 1 to 0x7f without the sign.
        let any = numbers
            .iter()
            .fold(0, |any, bits| any | u16::from((bits & 0x7fff).wrapping_sub(1) < 0x7f));
        any != 0
    }

    /// Copies rows of pairs, `step` apart; the last pair of an odd number has a 0.
    ///
    /// # Safety
    /// The matrix has these rows and columns; there is room.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn pack_rows(
        (m, k): (usize, usize),
        from: &Matrix<'_, bf16>,
        to: &mut [u32],
        step: usize,
    ) {
        for (i, to) in to.chunks_exact_mut(step).take(m).enumerate() {
            let to = to.as_mut_ptr().cast::<u16>();
            let row = from.ptr().wrapping_offset(i as isize * from.row_step).cast::<u16>();
            // SAFETY: the elements are inside, and there is room (the caller's promise).
            unsafe {
                if from.column_step == 1 {
                    std::ptr::copy_nonoverlapping(row, to, k);
                } else {
                    for l in 0..k {
                        to.add(l).write(row.wrapping_offset(l as isize * from.column_step).read());
                    }
                }
                if k % 2 == 1 {
                    to.add(k).write(0);
                }
            }
        }
    }

    /// Copies the columns of all panels of a matrix with dense rows, along the rows, as memory is read fastest.
    ///
    /// # Safety
    /// As [`pack_panel`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn pack_dense((k, n): (usize, usize), from: &Matrix<'_, bf16>, to: *mut u32) {
        let pairs = k.div_ceil(2);
        let row = |l: usize| from.ptr().wrapping_offset(l as isize * from.row_step).cast::<u16>();
        for pair in 0..pairs {
            for left in (0..n).step_by(WIDTH * LANES) {
                let width = (n - left).min(WIDTH * LANES);
                let stride = width.next_multiple_of(LANES);
                // SAFETY: the elements are inside, and there is room (the caller's promise).
                unsafe {
                    let to = to.add(left * pairs + pair * stride);
                    std::ptr::write_bytes(to.add(width), 0, stride - width);
                    let to = std::slice::from_raw_parts_mut(to, width);
                    let low = std::slice::from_raw_parts(row(2 * pair).add(left), width);
                    if 2 * pair + 1 < k {
                        let high = row(2 * pair + 1).add(left);
                        let high = std::slice::from_raw_parts(high, width);
                        for ((to, low), high) in to.iter_mut().zip(low).zip(high) {
                            *to = u32::from(*low) | u32::from(*high) << 16;
                        }
                    } else {
                        for (to, low) in to.iter_mut().zip(low) {
                            *to = u32::from(*low);
                        }
                    }
                }
            }
        }
    }

    /// Copies columns: for each pair of rows, the pairs of all columns, and zeros up to whole registers.
    ///
    /// # Safety
    /// As [`pack_rows`]; there is room for the columns rounded up to whole registers.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn pack_panel((k, width): (usize, usize), from: &Matrix<'_, bf16>, to: *mut u32) {
        let (start, row_step, column_step) =
            (from.ptr().cast::<u16>(), from.row_step, from.column_step);
        let (stride, pairs) = (width.next_multiple_of(LANES), k.div_ceil(2));
        let at = |l: usize, j: usize| {
            start.wrapping_offset(l as isize * row_step + j as isize * column_step)
        };
        // SAFETY: the elements are inside, and there is room (the caller's promise).
        unsafe {
            if width < stride {
                std::ptr::write_bytes(to, 0, stride * pairs);
            }
            if column_step == 1 {
                for pair in 0..k / 2 {
                    let to = std::slice::from_raw_parts_mut(to.add(pair * stride), width);
                    let low = std::slice::from_raw_parts(at(2 * pair, 0), width);
                    let high = std::slice::from_raw_parts(at(2 * pair + 1, 0), width);
                    for ((to, low), high) in to.iter_mut().zip(low).zip(high) {
                        *to = u32::from(*low) | u32::from(*high) << 16;
                    }
                }
            } else {
                for first in (0..k / 2).step_by(LINE) {
                    let whole = match row_step == 1 && first + LINE <= k / 2 {
                        true => width / LANES * LANES,
                        false => 0,
                    };
                    for j in (0..whole).step_by(LANES) {
                        let from = at(2 * first, j).cast::<u32>();
                        transpose(from, column_step, to.add(first * stride + j), stride);
                    }
                    for j in whole..width {
                        for pair in first..(first + LINE).min(k / 2) {
                            let (low, high) = (at(2 * pair, j), at(2 * pair + 1, j));
                            let both = u32::from(low.read()) | u32::from(high.read()) << 16;
                            to.add(pair * stride + j).write(both);
                        }
                    }
                }
            }
            if k % 2 == 1 {
                for j in 0..width {
                    to.add((pairs - 1) * stride + j).write(u32::from(at(k - 1, j).read()));
                }
            }
        }
    }

    /// Copies 16 columns of 16 pairs each, `column_step` numbers apart, to 16 rows that are `stride` pairs apart.
    ///
    /// # Safety
    /// The pairs can be read, and there is room.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn transpose(from: *const u32, column_step: isize, to: *mut u32, stride: usize) {
        let mut x = [_mm512_setzero_si512(); LINE];
        let mut y = x;
        for (i, x) in x.iter_mut().enumerate() {
            let column = from.cast::<u16>().wrapping_offset(i as isize * column_step);
            // SAFETY: the caller's promise.
            *x = unsafe { _mm512_loadu_si512(column.cast()) };
        }
        // Two by two, then four by four within each quarter of a register.
        for i in 0..LINE / 2 {
            y[2 * i] = _mm512_unpacklo_epi32(x[2 * i], x[2 * i + 1]);
            y[2 * i + 1] = _mm512_unpackhi_epi32(x[2 * i], x[2 * i + 1]);
        }
        for i in 0..LINE / 4 {
            x[4 * i] = _mm512_unpacklo_epi64(y[4 * i], y[4 * i + 2]);
            x[4 * i + 1] = _mm512_unpackhi_epi64(y[4 * i], y[4 * i + 2]);
            x[4 * i + 2] = _mm512_unpacklo_epi64(y[4 * i + 1], y[4 * i + 3]);
            x[4 * i + 3] = _mm512_unpackhi_epi64(y[4 * i + 1], y[4 * i + 3]);
        }
        // Quarters: the even ones and the odd ones, twice.
        for c in 0..4 {
            let (low, high) = ((x[c], x[4 + c]), (x[8 + c], x[12 + c]));
            let even_low = _mm512_shuffle_i32x4::<0x88>(low.0, low.1);
            let odd_low = _mm512_shuffle_i32x4::<0xdd>(low.0, low.1);
            let even_high = _mm512_shuffle_i32x4::<0x88>(high.0, high.1);
            let odd_high = _mm512_shuffle_i32x4::<0xdd>(high.0, high.1);
            y[c] = _mm512_shuffle_i32x4::<0x88>(even_low, even_high);
            y[4 + c] = _mm512_shuffle_i32x4::<0x88>(odd_low, odd_high);
            y[8 + c] = _mm512_shuffle_i32x4::<0xdd>(even_low, even_high);
            y[12 + c] = _mm512_shuffle_i32x4::<0xdd>(odd_low, odd_high);
        }
        for (i, y) in y.iter().enumerate() {
            // SAFETY: as above.
            unsafe { _mm512_storeu_si512(to.add(i * stride).cast(), *y) };
        }
    }

    /// Writes or adds the products of six rows and `V` registers of columns, of which `size` are wanted.
    ///
    /// # Safety
    /// Each row has that many pairs, and `b` as many for each column; the wanted part of `out` is the
    /// caller's.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
    unsafe fn tile<const V: usize>(
        pairs: usize,
        (rows, step): ([*const u32; ROWS], usize),
        b: *const u32,
        (height, width): (usize, usize),
        (out, adds): (Rows<f32>, bool),
    ) {
        let mut sums: [[__m512; V]; ROWS] = [[_mm512_setzero_ps(); V]; ROWS];
        // SAFETY: the caller's promise; a register of pairs is one of numbers.
        unsafe {
            for pair in 0..pairs {
                let mut columns = [_mm512_setzero_si512(); V];
                for (v, column) in columns.iter_mut().enumerate() {
                    *column = _mm512_loadu_si512(b.add((pair * V + v) * LANES).cast());
                }
                for i in 0..ROWS {
                    let both = rows[i].add(pair * step).read_unaligned();
                    let row = transmute::<__m512i, __m512bh>(_mm512_set1_epi32(both as i32));
                    for v in 0..V {
                        let column = transmute::<__m512i, __m512bh>(columns[v]);
                        sums[i][v] = _mm512_dpbf16_ps(sums[i][v], row, column);
                    }
                }
            }
            for (i, sums) in sums.iter().enumerate().take(height) {
                for (v, sum) in sums.iter().enumerate() {
                    let left = width - v * LANES;
                    let mask = if left >= LANES { u16::MAX } else { (1 << left) - 1 };
                    let to = out.at(i, v * LANES);
                    let before = if adds { mask } else { 0 };
                    let all = _mm512_add_ps(*sum, _mm512_maskz_loadu_ps(before, to));
                    _mm512_mask_storeu_ps(to, mask, all);
                }
            }
        }
    }
}
