//! Loads and stores of blocks: elements of any dtype and spacing are converted to dense blocks of the
//! type that a reduction computes in, and its results to elements of the result's dtype.

use std::any::TypeId;
use std::mem::MaybeUninit;

use keyfold_kit::interpreter::access::prefetch;
use keyfold_kit::isa::{self, Isa, Work};

use super::accumulators::PREFETCH_BYTES;
use super::convert::{Convert, Converted, To};
use super::gather::gather;

/// The spacing of a block: rows at a distance, of elements at a distance.
#[derive(Clone, Copy)]
pub(crate) struct Block {
    pub(crate) rows: usize,
    pub(crate) row_step: isize,
    pub(crate) len: usize,
    pub(crate) step: isize,
    /// The distance in bytes from the block to the memory to prefetch.
    pub(crate) ahead: isize,
}

impl Block {
    /// A block in a traversal that continues behind it in memory.
    pub(crate) fn along(rows: usize, row_step: isize, len: usize, step: isize) -> Self {
        let ahead = if step < 0 { -PREFETCH_BYTES } else { PREFETCH_BYTES };
        Block { rows, row_step, len, step, ahead }
    }
}

/// Loads a block: converts its elements and writes them densely to the second pointer.
///
/// # Safety
/// The block's elements are readable, each row's elements are contiguous, and the destination has room
/// for all.
pub(crate) type Fill<A> = unsafe fn(*const u8, Block, *mut A);

/// Stores results: converts as many as the second argument says, and writes them at a step.
///
/// # Safety
/// The results can be read, and their destinations written.
pub(crate) type Store<A> = unsafe fn(*const A, usize, *mut u8, isize);

struct FillBlock<C: Convert> {
    from: *const C::From,
    block: Block,
    to: *mut C::To,
}

impl<C: Convert> Work for FillBlock<C> {
    type Output = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        let FillBlock { mut from, block, mut to } = self;
        let Block { mut rows, row_step, mut len, ahead, .. } = block;
        if len as isize == row_step {
            (rows, len) = (1, rows * len);
        }
        for _ in 0..rows {
            // SAFETY: the contract of `Fill`; pointers are advanced only to the end of the block.
            unsafe {
                let mut at = 0;
                while len - at >= CHUNK {
                    let from = from.add(at);
                    for line in (0..CHUNK * size_of::<C::From>()).step_by(64) {
                        prefetch(from.cast::<u8>().wrapping_offset(ahead + line as isize));
                    }
                    convert_run::<C>(from, CHUNK, to.add(at));
                    at += CHUNK;
                }
                convert_run::<C>(from.add(at), len - at, to.add(at));
            }
            from = from.wrapping_offset(row_step);
            to = to.wrapping_add(len);
        }
    }
}

/// Elements that are converted between two prefetches.
const CHUNK: usize = 64;

/// # Safety
/// The contract of [`Fill`].
#[inline(always)]
unsafe fn convert_run<C: Convert>(from: *const C::From, len: usize, to: *mut C::To) {
    for i in 0..len {
        // SAFETY: the caller's promise.
        unsafe { to.add(i).write(C::one(from.add(i).read())) };
    }
}

/// The [`Fill`] of a conversion.
pub(crate) unsafe fn fill<C: Convert>(from: *const u8, block: Block, to: *mut C::To) {
    isa::dispatch(FillBlock::<C> { from: from.cast(), block, to });
}

struct StoreResults<S, D> {
    from: *const S,
    len: usize,
    to: *mut D,
    step: isize,
}

impl<S: To<D> + Copy, D> Work for StoreResults<S, D> {
    type Output = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        let StoreResults { from, len, to, step } = self;
        // SAFETY: the contract of `Store`.
        unsafe {
            if step == 1 {
                for i in 0..len {
                    to.add(i).write(from.add(i).read().convert());
                }
            } else {
                for i in 0..len {
                    to.offset(i as isize * step).write(from.add(i).read().convert());
                }
            }
        }
    }
}

/// The [`Store`] of a conversion.
pub(crate) unsafe fn store<S: To<D> + Copy, D>(
    from: *const S,
    len: usize,
    to: *mut u8,
    step: isize,
) {
    isa::dispatch(StoreResults::<S, D> { from, len, to: to.cast(), step });
}

/// The elements of a tensor, as numbers of type `A`.
#[derive(Clone, Copy)]
pub(crate) struct Input<A> {
    /// The address of the first element.
    pub(crate) base: *const u8,
    /// Bytes per element as stored.
    pub(crate) size: usize,
    pub(crate) fill: Fill<A>,
    /// Whether elements are stored as type `A`, so that they can be read in place.
    pub(crate) direct: bool,
}

// SAFETY: it is only read through, and the tensor outlives the reduction.
unsafe impl<A> Sync for Input<A> {}

impl<A: Copy + 'static> Input<A> {
    /// The input of elements of type `S`.
    pub(crate) fn plain<S: To<A> + Copy + 'static>(base: *const u8) -> Self {
        let direct = TypeId::of::<S>() == TypeId::of::<A>();
        Input { base, size: size_of::<S>(), fill: fill::<Converted<S, A>>, direct }
    }

    /// The address of an element.
    #[inline]
    pub(crate) fn at(&self, offset: isize) -> *const u8 {
        self.base.wrapping_offset(offset * self.size as isize)
    }

    /// Loads a block's elements.
    ///
    /// # Safety
    /// The elements from that offset on are readable, and the destination has room for them.
    #[inline]
    pub(crate) unsafe fn fill(&self, offset: isize, block: Block, to: *mut A) {
        let from = self.at(offset);
        // SAFETY: the caller's promise.
        unsafe {
            if block.step == 1 {
                (self.fill)(from, block, to);
            } else if self.direct {
                gather(self.size, from, block, to.cast());
            } else {
                self.fill_strided(from, block, to);
            }
        }
    }

    /// Loads elements that aren't contiguous: gathers them first, then converts them.
    ///
    /// # Safety
    /// As for [`Input::fill`].
    unsafe fn fill_strided(&self, from: *const u8, block: Block, mut to: *mut A) {
        const STAGE_BYTES: usize = 4096;
        let mut stage = [MaybeUninit::<u128>::uninit(); STAGE_BYTES / size_of::<u128>()];
        let stage = stage.as_mut_ptr().cast::<u8>();
        let most = STAGE_BYTES / self.size;
        let Block { rows, row_step, len, step, ahead } = block;
        // Several rows at a time, or parts of a row.
        let (at_once, part) = ((most / len.max(1)).max(1), len.min(most));
        for row in (0..rows).step_by(at_once) {
            let rows = at_once.min(rows - row);
            for start in (0..len).step_by(part.max(1)) {
                let len = part.min(len - start);
                let part_block = Block { rows, row_step, len, step, ahead };
                let offset = row as isize * row_step + start as isize * step;
                let dense = Block::along(1, 0, rows * len, 1);
                // SAFETY: the caller's promise; at most as many elements as the stage holds are copied
                // there.
                unsafe {
                    gather(
                        self.size,
                        from.wrapping_offset(offset * self.size as isize),
                        part_block,
                        stage,
                    );
                    (self.fill)(stage, dense, to);
                }
                to = to.wrapping_add(rows * len);
            }
        }
    }
}

/// Divides results by a number.
pub(crate) type Divide<A> = fn(&mut [A], f64);

/// The destination of results.
#[derive(Clone, Copy)]
pub(crate) struct Sink<A> {
    pub(crate) base: *mut u8,
    /// Bytes per element as stored.
    pub(crate) size: usize,
    pub(crate) store: Store<A>,
    /// The division by this number, for means.
    pub(crate) divide: Option<(Divide<A>, f64)>,
}

// SAFETY: threads write to different elements of a tensor that outlives the reduction.
unsafe impl<A> Sync for Sink<A> {}

impl<A> Sink<A> {
    /// A destination of elements of type `D`.
    pub(crate) fn of<D>(base: *mut u8) -> Self
    where
        A: To<D> + Copy,
    {
        Sink { base, size: size_of::<D>(), store: store::<A, D>, divide: None }
    }

    /// The address of an element.
    #[inline]
    pub(crate) fn at(&self, offset: isize) -> *mut u8 {
        self.base.wrapping_offset(offset * self.size as isize)
    }

    /// Writes results, a step apart.
    ///
    /// # Safety
    /// The destination has room for the results at that offset, and no other thread writes there.
    #[inline]
    pub(crate) unsafe fn put(&self, results: &mut [A], offset: isize, step: isize) {
        if let Some((divide, by)) = self.divide {
            divide(results, by);
        }
        // SAFETY: the caller's promise.
        unsafe { (self.store)(results.as_ptr(), results.len(), self.at(offset), step) }
    }
}
