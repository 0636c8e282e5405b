//! Loads from tensors' memory into blocks, and stores back: strides, halves, bools, tiles.

use keyfold_core::{DType, bf16, f16};

use crate::half::Half;
use crate::isa::{Isa, Work, dispatch};

/// Reads `len` elements that are `stride` elements apart into a block, in the dtype of the computation:
/// halves are widened to float32, bools become 0 or 1.
///
/// # Safety
/// `src` is valid for reading those elements of the dtype that the function was made for, initialised
/// and aligned; `dst` has room for them, aligned for the dtype of the computation. They don't overlap.
pub type Load = unsafe fn(dst: *mut u8, src: *const u8, stride: isize, len: usize);

/// Writes a block to `len` elements that are `stride` elements apart, rounded where the dtype is a
/// half.
///
/// # Safety
/// As [`Load`], with source and destination exchanged.
pub type Store = unsafe fn(dst: *mut u8, stride: isize, src: *const u8, len: usize);

/// As [`Load`] for several runs of one length: `steps` are the distances from run to run and within a
/// run, `sizes` the number of runs and their length.
///
/// # Safety
/// As [`Load`].
pub type LoadRuns = unsafe fn(dst: *mut u8, src: *const u8, steps: [isize; 2], sizes: [usize; 2]);

/// As [`Store`], for several runs.
///
/// # Safety
/// As [`Store`].
pub type StoreRuns = unsafe fn(dst: *mut u8, src: *const u8, steps: [isize; 2], sizes: [usize; 2]);

/// Copies a tile: row `r` of the result is contiguous, `cols` long, and its element `c` is
/// `src[r + c * stride]` (in elements).
///
/// # Safety
/// `src` is valid for reading those elements, `dst` for `rows * cols`, aligned; they don't overlap.
pub type Transpose =
    unsafe fn(dst: *mut u8, src: *const u8, stride: isize, rows: usize, cols: usize);

/// A conversion on the way from or to memory.
trait Convert: 'static {
    type From: Copy;
    type To: Copy;
    fn convert(from: Self::From) -> Self::To;

    /// Converts slices of equal length.
    #[inline(always)]
    fn all<I: Isa>(from: &[Self::From], to: &mut [Self::To]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = Self::convert(*from);
        }
    }
}

/// Elements of a type as they are.
struct Unconverted<T>(T);
struct NormalizedBool;
struct FromHalf<H>(H);
struct ToHalf<H>(H);

impl<T: Copy + 'static> Convert for Unconverted<T> {
    type From = T;
    type To = T;
    #[inline(always)]
    fn convert(from: T) -> T {
        from
    }
}
impl Convert for NormalizedBool {
    type From = u8;
    type To = u8;
    #[inline(always)]
    fn convert(from: u8) -> u8 {
        u8::from(from != 0)
    }
}
impl<H: Half> Convert for FromHalf<H> {
    type From = H;
    type To = f32;
    #[inline(always)]
    fn convert(from: H) -> f32 {
        from.widen()
    }
    #[inline(always)]
    fn all<I: Isa>(from: &[H], to: &mut [f32]) {
        H::widen_all::<I>(from, to);
    }
}
impl<H: Half> Convert for ToHalf<H> {
    type From = f32;
    type To = H;
    #[inline(always)]
    fn convert(from: f32) -> H {
        H::narrow(from)
    }
    #[inline(always)]
    fn all<I: Isa>(from: &[f32], to: &mut [H]) {
        H::narrow_all::<I>(from, to);
    }
}

/// A contiguous run, converted.
struct Run<C: Convert> {
    dst: *mut C::To,
    src: *const C::From,
    len: usize,
}

impl<C: Convert> Work for Run<C> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        // SAFETY: the contract of `Load` or `Store`, which the caller upholds.
        let (dst, src) = unsafe {
            (
                std::slice::from_raw_parts_mut(self.dst, self.len),
                std::slice::from_raw_parts(self.src, self.len),
            )
        };
        C::all::<I>(src, dst);
    }
}

struct Fill<'a, T>(&'a mut [T], T);

impl<T: Copy> Work for Fill<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        for dst in self.0 {
            *dst = self.1;
        }
    }
}

/// # Safety
/// As [`Load`].
unsafe fn load<C: Convert>(dst: *mut u8, src: *const u8, stride: isize, len: usize) {
    let (dst, src) = (dst.cast::<C::To>(), src.cast::<C::From>());
    match stride {
        1 => dispatch(Run::<C> { dst, src, len }),
        0 => {
            // SAFETY: the caller's promise; for `len` 0 nothing is read.
            unsafe {
                if len > 0 {
                    let value = C::convert(*src);
                    dispatch(Fill(std::slice::from_raw_parts_mut(dst, len), value));
                }
            }
        }
        _ => {
            for i in 0..len {
                // SAFETY: the caller's promise.
                unsafe { *dst.add(i) = C::convert(*src.offset(i as isize * stride)) };
            }
        }
    }
}

/// # Safety
/// As [`Store`].
unsafe fn store<C: Convert>(dst: *mut u8, stride: isize, src: *const u8, len: usize) {
    let (dst, src) = (dst.cast::<C::To>(), src.cast::<C::From>());
    if stride == 1 {
        dispatch(Run::<C> { dst, src, len });
        return;
    }
    for i in 0..len {
        // SAFETY: the caller's promise.
        unsafe { *dst.offset(i as isize * stride) = C::convert(*src.add(i)) };
    }
}

/// # Safety
/// As [`LoadRuns`].
unsafe fn load_runs<C: Convert>(
    dst: *mut u8,
    src: *const u8,
    steps: [isize; 2],
    sizes: [usize; 2],
) {
    let (dst, src) = (dst.cast::<C::To>(), src.cast::<C::From>());
    let [rows, cols] = sizes;
    for r in 0..rows {
        // SAFETY: the caller's promise.
        unsafe {
            let (dst, src) = (dst.add(r * cols), src.offset(r as isize * steps[0]));
            if steps[1] == 0 && cols > 0 {
                std::slice::from_raw_parts_mut(dst, cols).fill(C::convert(*src));
                continue;
            }
            for c in 0..cols {
                *dst.add(c) = C::convert(*src.offset(c as isize * steps[1]));
            }
        }
    }
}

/// # Safety
/// As [`StoreRuns`].
unsafe fn store_runs<C: Convert>(
    dst: *mut u8,
    src: *const u8,
    steps: [isize; 2],
    sizes: [usize; 2],
) {
    let (dst, src) = (dst.cast::<C::To>(), src.cast::<C::From>());
    let [rows, cols] = sizes;
    for r in 0..rows {
        // SAFETY: the caller's promise.
        unsafe {
            let (dst, src) = (dst.offset(r as isize * steps[0]), src.add(r * cols));
            for c in 0..cols {
                *dst.offset(c as isize * steps[1]) = C::convert(*src.add(c));
            }
        }
    }
}

/// # Safety
/// As [`Transpose`].
unsafe fn transpose<T: Copy>(
    dst: *mut u8,
    src: *const u8,
    stride: isize,
    rows: usize,
    cols: usize,
) {
    let (dst, src) = (dst.cast::<T>(), src.cast::<T>());
    // The copy goes by squares that fit in the registers, so that both reads and writes are whole
    // vectors.
    const SIDE: usize = 8;
    // Columns are far apart in memory, so the processor doesn't prefetch across them. Prefetch the later
    // columns of this tile and, at its end, of the tile below.
    const PREFETCH_COLUMNS: usize = 32;
    let (even_rows, even_cols) = (rows / SIDE * SIDE, cols / SIDE * SIDE);
    for c in (0..even_cols).step_by(SIDE) {
        for next in c + PREFETCH_COLUMNS..c + PREFETCH_COLUMNS + SIDE {
            let (below, next) = if next < cols { (0, next) } else { (rows, next - cols) };
            let column = src.wrapping_add(below).wrapping_offset(next as isize * stride);
            // One more cache line, since columns needn't begin at a line.
            for at in (0..rows * size_of::<T>() + 64).step_by(64) {
                prefetch(column.cast::<u8>().wrapping_add(at));
            }
        }
        for r in (0..even_rows).step_by(SIDE) {
            // SAFETY: the caller's promise.
            unsafe {
                let read = |i: usize| {
                    src.offset(r as isize + (c + i) as isize * stride).cast::<[T; SIDE]>()
                };
                let square: [[T; SIDE]; SIDE] = std::array::from_fn(|i| read(i).read_unaligned());
                (0..SIDE).for_each(|i| {
                    let row: [T; SIDE] = std::array::from_fn(|j| square[j][i]);
                    dst.add((r + i) * cols + c).cast::<[T; SIDE]>().write_unaligned(row);
                });
            }
        }
    }
    let one = |r: usize, c: usize| {
        // SAFETY: the caller's promise.
        unsafe { *dst.add(r * cols + c) = *src.offset(r as isize + c as isize * stride) };
    };
    for c in 0..cols {
        let from = if c < even_cols { even_rows } else { 0 };
        (from..rows).for_each(|r| one(r, c));
    }
}

/// Prefetches the cache line at an address; any pointer is allowed.
#[inline(always)]
pub fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has SSE, and prefetching an invalid address does nothing.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// The load that copies elements of `size` bytes unchanged.
pub fn raw_load(size: usize) -> Load {
    match size {
        1 => load::<Unconverted<u8>>,
        2 => load::<Unconverted<u16>>,
        4 => load::<Unconverted<u32>>,
        8 => load::<Unconverted<[u32; 2]>>,
        _ => load::<Unconverted<[u64; 2]>>,
    }
}

/// The conversions of a dtype's elements between memory and registers.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// Bytes of an element in memory.
    pub size: usize,
    /// Bytes of an element in a register.
    pub computed: usize,
    /// Whether the dtype in memory is the dtype of the computation.
    pub direct: bool,
    /// Loads one run.
    pub load: Load,
    /// Loads several runs.
    pub load_runs: LoadRuns,
    /// Stores one run.
    pub store: Store,
    /// Stores several runs.
    pub store_runs: StoreRuns,
    /// Loads a tile, unconverted.
    pub transpose: Transpose,
}

impl Access {
    /// The access of a dtype.
    pub fn new(dtype: DType) -> Access {
        match dtype {
            DType::Bool => Access::of::<NormalizedBool, Unconverted<u8>, u8>(false),
            DType::F16 => Access::of::<FromHalf<f16>, ToHalf<f16>, u16>(false),
            DType::BF16 => Access::of::<FromHalf<bf16>, ToHalf<bf16>, u16>(false),
            _ => match dtype.size() {
                1 => Access::of::<Unconverted<u8>, Unconverted<u8>, u8>(true),
                2 => Access::of::<Unconverted<u16>, Unconverted<u16>, u16>(true),
                4 => Access::of::<Unconverted<u32>, Unconverted<u32>, u32>(true),
                // Complex numbers are aligned like their parts.
                8 if dtype.is_complex() => {
                    Access::of::<Unconverted<[u32; 2]>, Unconverted<[u32; 2]>, [u32; 2]>(true)
                }
                8 => Access::of::<Unconverted<u64>, Unconverted<u64>, u64>(true),
                _ => Access::of::<Unconverted<[u64; 2]>, Unconverted<[u64; 2]>, [u64; 2]>(true),
            },
        }
    }

    fn of<L: Convert, S: Convert, T: Copy>(direct: bool) -> Access {
        Access {
            size: size_of::<T>(),
            computed: size_of::<L::To>(),
            direct,
            load: load::<L>,
            load_runs: load_runs::<L>,
            store: store::<S>,
            store_runs: store_runs::<S>,
            transpose: transpose::<T>,
        }
    }
}

/// Writes `start`, `start + step`, ... as int64.
///
/// # Safety
/// `dst` has room for `len` aligned elements.
pub unsafe fn count(dst: *mut u8, start: i64, step: i64, len: usize) {
    struct Count(*mut i64, i64, i64, usize);
    impl Work for Count {
        type Output = ();

        #[inline(always)]
        fn run<I: Isa>(self) {
            // SAFETY: the caller's promise.
            let dst = unsafe { std::slice::from_raw_parts_mut(self.0, self.3) };
            for (i, dst) in dst.iter_mut().enumerate() {
                *dst = self.1.wrapping_add((i as i64).wrapping_mul(self.2));
            }
        }
    }
    dispatch(Count(dst.cast(), start, step, len));
}
