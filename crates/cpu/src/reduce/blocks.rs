//! Loads and stores of blocks: elements of any dtype and spacing are converted to dense blocks of the
//! type that a reduction computes in, and its results to elements of the result's dtype.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use keyfold_core::Element;
use keyfold_kit::interpreter::access::prefetch;
use keyfold_kit::interpreter::conversion::Conversion;
use keyfold_kit::isa::{self, Isa, Work};

use super::accumulators::PREFETCH_BYTES;
use super::convert::To;
use super::gather::gather;
use super::kernels::{Erased, erase};

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

/// Stores results: converts as many as the second argument says, and writes them at a step.
///
/// # Safety
/// The results can be read, and their destinations written.
pub(crate) type Store<A> = unsafe fn(*const A, usize, *mut u8, isize);

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
pub(crate) struct Input<A> {
    /// The address of the first element.
    pub(crate) base: *const u8,
    /// Bytes per element as stored.
    pub(crate) size: usize,
    /// The conversion of elements that aren't stored as type `A`; others can be read in place.
    conversion: Option<Conversion>,
    number: PhantomData<A>,
}

impl<A> Clone for Input<A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A> Copy for Input<A> {}

// SAFETY: it is only read through, and the tensor outlives the reduction.
unsafe impl<A> Sync for Input<A> {}

impl<A> Input<A> {
    /// The input of elements that are stored as type `A`.
    pub(crate) fn plain(base: *const u8) -> Self {
        Input { base, size: size_of::<A>(), conversion: None, number: PhantomData }
    }

    /// The input of elements of type `E`, which are converted unless that is `A`.
    pub(crate) fn converted<E: Element>(base: *const u8) -> Self
    where
        A: Element,
    {
        let differs = E::DTYPE != A::DTYPE;
        let conversion = differs.then(|| Conversion::between(E::DTYPE, A::DTYPE).expect(COVERED));
        Input { base, size: size_of::<E>(), conversion, number: PhantomData }
    }

    /// As [`Input::converted`], by way of type `B`, at whose limits a float saturates.
    pub(crate) fn saturated<E: Element, B: Element>(base: *const u8) -> Self
    where
        A: Element,
    {
        let conversion = Conversion::by_way_of(B::DTYPE, E::DTYPE, A::DTYPE).expect(COVERED);
        Input { base, size: size_of::<E>(), conversion: Some(conversion), number: PhantomData }
    }

    /// Returns the input of the numbers' bits.
    pub(crate) fn erased(self) -> Input<A::Bits>
    where
        A: Erased,
    {
        let Input { base, size, conversion, .. } = self;
        Input { base, size, conversion, number: PhantomData }
    }

    /// Whether elements are stored as type `A`, so that they can be read in place.
    #[inline]
    pub(crate) fn direct(&self) -> bool {
        self.conversion.is_none()
    }

    /// The address of an element.
    #[inline]
    pub(crate) fn at(&self, offset: isize) -> *const u8 {
        self.base.wrapping_offset(offset * self.size as isize)
    }

    /// Loads a block's elements, densely.
    ///
    /// # Safety
    /// The elements from that offset on are readable, and the destination has room for them.
    #[inline]
    pub(crate) unsafe fn fill(&self, offset: isize, block: Block, to: *mut A) {
        let (from, to) = (self.at(offset), to.cast());
        // SAFETY: the caller's promise.
        unsafe {
            match &self.conversion {
                None => gather(self.size, from, block, to),
                Some(conversion) => {
                    convert(conversion, (from, self.size), block, (to, size_of::<A>()));
                }
            }
        }
    }
}

/// The tables of kernels have no pair of dtypes without a conversion.
const COVERED: &str = "the dtypes of kernels convert to those that they compute in";

/// Elements that are converted between two prefetches.
const CHUNK: usize = 1024;

/// Rows shorter than this are gathered before they are converted.
const GATHER_BELOW: usize = 64;

/// Converts a block's elements, of these sizes.
///
/// # Safety
/// As for [`Input::fill`].
unsafe fn convert(
    conversion: &Conversion,
    (from, from_size): (*const u8, usize),
    block: Block,
    (to, to_size): (*mut u8, usize),
) {
    const STAGE_BYTES: usize = 4096;
    let Block { mut rows, row_step, mut len, step, ahead } = block;
    if step == 1 && len as isize == row_step {
        (rows, len) = (1, rows * len);
    }
    if step == 1 && (rows == 1 || len >= GATHER_BELOW) {
        for row in 0..rows {
            let from = from.wrapping_offset(row as isize * row_step * from_size as isize);
            for start in (0..len).step_by(CHUNK) {
                let count = CHUNK.min(len - start);
                let from = from.wrapping_add(start * from_size);
                for line in (0..count * from_size).step_by(64) {
                    prefetch(from.wrapping_offset(ahead + line as isize));
                }
                // SAFETY: the caller's promise.
                unsafe { conversion.run(from, count, to.add((row * len + start) * to_size)) };
            }
        }
        return;
    }
    let mut stage = [MaybeUninit::<u128>::uninit(); STAGE_BYTES / size_of::<u128>()];
    let stage = stage.as_mut_ptr().cast::<u8>();
    let most = STAGE_BYTES / from_size;
    // Several rows at a time, or parts of a row.
    let (at_once, part) = ((most / len.max(1)).max(1), len.min(most));
    for row in (0..rows).step_by(at_once) {
        let rows = at_once.min(rows - row);
        for start in (0..len).step_by(part.max(1)) {
            let len = part.min(len - start);
            let offset = row as isize * row_step + start as isize * step;
            let from = from.wrapping_offset(offset * from_size as isize);
            let done = row * block.len + start;
            // SAFETY: the caller's promise; at most as many elements as the stage holds are copied there.
            unsafe {
                gather(from_size, from, Block { rows, row_step, len, step, ahead }, stage);
                conversion.run(stage, rows * len, to.add(done * to_size));
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

    /// Returns the destination of the results' bits.
    pub(crate) fn erased(self) -> Sink<A::Bits>
    where
        A: Erased,
    {
        let Sink { base, size, store, divide } = self;
        // SAFETY: the types differ by `Erased` behind pointers.
        let divide = divide.map(|(divide, by)| (unsafe { erase(divide) }, by));
        // SAFETY: likewise.
        Sink { base, size, store: unsafe { erase(store) }, divide }
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
