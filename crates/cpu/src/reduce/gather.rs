//! Gathers of strided elements, as plain bits: compiled once per element size instead of once per
//! conversion.

use keyfold_kit::interpreter::access::prefetch;
use keyfold_kit::isa::{self, Isa, Work};

use super::blocks::Block;

/// Copies a block's elements, of `size` bytes each, to contiguous memory.
///
/// # Safety
/// The elements are readable, and the destination has room for them.
pub(crate) unsafe fn gather(size: usize, from: *const u8, mut block: Block, to: *mut u8) {
    if block.step == 1 && block.len as isize == block.row_step {
        (block.rows, block.len) = (1, block.rows * block.len);
    }
    match size {
        1 => isa::dispatch(Gather { from, block, to }),
        2 => isa::dispatch(Gather::<u16> { from: from.cast(), block, to: to.cast() }),
        4 => isa::dispatch(Gather::<u32> { from: from.cast(), block, to: to.cast() }),
        8 => isa::dispatch(Gather::<u64> { from: from.cast(), block, to: to.cast() }),
        _ => isa::dispatch(Gather::<u128> { from: from.cast(), block, to: to.cast() }),
    }
}

struct Gather<T> {
    from: *const T,
    block: Block,
    to: *mut T,
}

impl<T: Copy> Work for Gather<T> {
    type Output = ();
    const AVX512: bool = false;
    #[inline(always)]
    fn run<I: Isa>(self) {
        let Gather { mut from, block, mut to } = self;
        for _ in 0..block.rows {
            // SAFETY: the caller of `gather` promises that the elements are readable, and fit.
            unsafe {
                // Constant steps are compiled to vector loads.
                match block.step {
                    1 => row(from, |i| i, block, to),
                    2 => row(from, |i| i * 2, block, to),
                    3 => row(from, |i| i * 3, block, to),
                    4 => row(from, |i| i * 4, block, to),
                    -1 => row(from, |i| -i, block, to),
                    step => row(from, |i| i * step, block, to),
                }
            }
            from = from.wrapping_offset(block.row_step);
            to = to.wrapping_add(block.len);
        }
    }
}

/// # Safety
/// The contract of [`gather`].
#[inline(always)]
unsafe fn row<T: Copy>(from: *const T, place: impl Fn(isize) -> isize, block: Block, to: *mut T) {
    let Block { len, ahead, .. } = block;
    let mut start = 0;
    while start < len {
        let count = CHUNK.min(len - start);
        let first = from.wrapping_offset(place(start as isize)).cast::<u8>();
        let span = place(CHUNK as isize) * size_of::<T>() as isize;
        if span.unsigned_abs() <= CHUNK * 64 {
            for line in (0..span.unsigned_abs()).step_by(64) {
                prefetch(first.wrapping_offset(ahead + span.signum() * line as isize));
            }
        }
        // SAFETY: the caller's promise.
        unsafe {
            let (from, to) = (from.offset(place(start as isize)), to.add(start));
            if count == CHUNK {
                gather_run(from, &place, CHUNK, to);
            } else {
                gather_run(from, &place, count, to);
            }
        }
        start += count;
    }
}

/// Elements that are copied between two prefetches.
const CHUNK: usize = 64;

/// # Safety
/// The contract of [`gather`].
#[inline(always)]
unsafe fn gather_run<T: Copy>(
    from: *const T,
    place: impl Fn(isize) -> isize,
    len: usize,
    to: *mut T,
) {
    for i in 0..len {
        // SAFETY: the caller's promise. Elements of this size may have a smaller alignment.
        unsafe { to.add(i).write_unaligned(from.offset(place(i as isize)).read_unaligned()) };
    }
}
