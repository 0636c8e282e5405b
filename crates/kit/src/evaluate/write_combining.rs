//! Write combining: results are held in a block until the next block is computed, and are then written
//! by non-temporal stores of whole cache lines.
//!
//! Blocks needn't begin or end at a line: rows of 1,000 numbers don't. So pending results are held at
//! the same distance from the beginning of a line as their destination has. A block that continues the
//! previous one gets the bytes of that one's incomplete last line, and completes the line.

use keyfold_core::Result;

use super::{Job, non_temporal};
use crate::interpreter::Frame;
use crate::interpreter::streaming::{CHUNK, LINE, PendingStores};

/// Two blocks for results: one is stored to the output while the other is computed.
pub(super) struct WriteCombiner {
    blocks: [*mut u8; 2],
    /// The index of the block that is computed next.
    next: usize,
    pending: Pending,
}

/// Results that are computed and not yet written; their destination begins at a line.
#[derive(Clone, Copy)]
struct Pending {
    to: *mut u8,
    from: *const u8,
    bytes: usize,
}

/// The memory that a block of results is computed into.
struct ResultBlock {
    at: *mut u8,
    /// The bytes in front of it that are stored with it: the incomplete last line of the previous block.
    carried: usize,
}

impl WriteCombiner {
    /// The bytes of memory that a combiner needs, for blocks of `block` bytes (whole lines).
    pub(super) const fn bytes(block: usize) -> usize {
        2 * (block + LINE)
    }

    /// A combiner that uses this memory, which begins at a line.
    pub(super) fn new(memory: *mut u8, block: usize) -> WriteCombiner {
        let pending = Pending { to: std::ptr::null_mut(), from: std::ptr::null(), bytes: 0 };
        WriteCombiner { blocks: [memory, memory.wrapping_add(block + LINE)], next: 0, pending }
    }

    /// Writes the pending results: at the end, and before other results are written to the output
    /// directly.
    #[inline]
    pub(super) fn flush(&mut self) {
        let Pending { to, from, bytes } = self.pending;
        if bytes > 0 {
            self.pending.bytes = 0;
            // SAFETY: the pending bytes are results, and their place in the output is this worker's.
            unsafe { non_temporal::copy(to, from, bytes, std::iter::empty()) };
        }
    }

    /// Chooses the block for the results of a target, and the stores to make meanwhile: `per_chunk`
    /// lines after each of `chunks` chunks. Pending lines beyond those are written now.
    #[inline]
    fn next_block(
        &mut self,
        target: *mut u8,
        chunks: usize,
        per_chunk: usize,
    ) -> (ResultBlock, PendingStores) {
        let block = self.blocks[self.next];
        let mut place = ResultBlock { at: block.wrapping_add(target.addr() % LINE), carried: 0 };
        self.next ^= 1;
        if self.pending.to.wrapping_add(self.pending.bytes) != target {
            self.flush();
        }
        let Pending { mut to, mut from, bytes } = self.pending;
        if bytes == 0 {
            return (place, PendingStores::NONE);
        }
        self.pending.bytes = 0;
        let lines = bytes / LINE;
        place.carried = bytes % LINE;
        let later = lines.min(chunks * per_chunk);
        let now = (lines - later) * LINE;
        // SAFETY: the pending bytes are results, and their place in the output is this worker's; their
        // incomplete last line fits before the next block, which has the target's distance from a line.
        unsafe {
            std::ptr::copy_nonoverlapping(from.add(lines * LINE), block, place.carried);
            non_temporal::copy(to, from, now, std::iter::empty());
            (to, from) = (to.add(now), from.add(now));
        }
        (place, PendingStores { to, from, lines: later, per_chunk })
    }

    /// Makes a block's results the pending ones. Bytes before their first whole line are written now.
    ///
    /// # Safety
    /// The block and the target have `bytes` bytes, and no other worker accesses the target.
    #[inline]
    unsafe fn push(&mut self, place: &ResultBlock, target: *mut u8, bytes: usize) {
        let (to, from) = (target.wrapping_sub(place.carried), place.at.wrapping_sub(place.carried));
        let bytes = bytes + place.carried;
        let head = to.align_offset(LINE).min(bytes);
        // SAFETY: the caller's promise.
        unsafe {
            std::ptr::copy_nonoverlapping(from, to, head);
            self.pending = Pending { to: to.add(head), from: from.add(head), bytes: bytes - head };
        }
    }
}

impl Job<'_> {
    /// Whether a block of results is written by the streaming loops.
    #[inline]
    pub(super) fn combines_writes(&self, len: usize) -> bool {
        self.non_temporal
            && self.program.has_streaming_kernel()
            && len * self.program.result().size() >= non_temporal::MIN_RUN_BYTES
    }

    /// Computes a block, while the pending one is stored and the inputs are prefetched at a distance of
    /// `ahead` bytes.
    ///
    /// # Safety
    /// As [`Program::run`](crate::interpreter::Program::run); the target has room for the block, and no other
    /// worker accesses it or the combiner's blocks.
    #[inline]
    pub(super) unsafe fn run_combined(
        &self,
        frame: &mut Frame<'_>,
        combiner: &mut WriteCombiner,
        target: *mut u8,
        len: usize,
        prefetch_distance: &[isize],
    ) -> Result<()> {
        let program = self.program;
        if program.streams_result()
            && target.addr().is_multiple_of(LINE)
            && len.is_multiple_of(CHUNK)
        {
            combiner.flush();
            frame.slots[program.output()] = target;
            // SAFETY: the caller's promise.
            return unsafe {
                program.run_streaming(frame, len, prefetch_distance, PendingStores::NONE, true)
            }
            .map_err(|fault| program.error(fault));
        }
        let access = &program.accesses()[program.inputs().len()];
        let (place, pending) = combiner.next_block(target, len / CHUNK, access.size);
        let as_stored = program.writes_result(0);
        if as_stored {
            frame.slots[program.output()] = place.at;
        }
        // SAFETY: the caller's promise.
        unsafe {
            program
                .run_streaming(frame, len, prefetch_distance, pending, false)
                .map_err(|fault| program.error(fault))?;
            if !as_stored {
                (access.store)(place.at, 1, frame.slots[program.result_slot(0)], len);
            }
            combiner.push(&place, target, len * access.size);
        }
        Ok(())
    }
}
