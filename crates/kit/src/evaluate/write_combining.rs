//! Write combining: results wait in a block until the next one is computed, and are then written by
//! non-temporal stores of whole lines.
//!
//! Blocks needn't begin or end at a line: rows of 1,000 numbers don't. So the waiting results have the same
//! distance from the beginning of a line as their place in the output. A block that continues the one
//! before gets the bytes of that one's last line, which is incomplete, and completes it.

use keyfold_core::Result;

use super::{Job, stream};
use crate::eval::Frame;
use crate::eval::streaming::{CHUNK, LINE, PendingStores};

/// Two blocks for results: one is stored to the output while the other is computed.
pub(super) struct WriteCombiner {
    blocks: [*mut u8; 2],
    /// The block that is computed next.
    next: usize,
    pending: Pending,
}

/// Results that are computed and not yet written; they begin at a line.
#[derive(Clone, Copy)]
struct Pending {
    to: *mut u8,
    from: *const u8,
    bytes: usize,
}

/// A place for a block of results.
struct Place {
    at: *mut u8,
    /// Bytes before it that are stored with it: the incomplete last line of the block before.
    carried: usize,
}

impl WriteCombiner {
    /// The bytes of memory that it needs, for blocks of so many bytes (whole lines).
    pub(super) const fn bytes(block: usize) -> usize {
        2 * (block + LINE)
    }

    /// In this memory, which begins at a line.
    pub(super) fn new(memory: *mut u8, block: usize) -> WriteCombiner {
        let pending = Pending { to: std::ptr::null_mut(), from: std::ptr::null(), bytes: 0 };
        WriteCombiner { blocks: [memory, memory.wrapping_add(block + LINE)], next: 0, pending }
    }

    /// Writes the pending results: at the end, and before other results go to the output directly.
    #[inline]
    pub(super) fn flush(&mut self) {
        let Pending { to, from, bytes } = self.pending;
        if bytes > 0 {
            self.pending.bytes = 0;
            // SAFETY: the pending bytes are results, and their place in the output is this worker's.
            unsafe { stream::copy(to, from, bytes, std::iter::empty()) };
        }
    }

    /// Where to compute the results for a target, and the stores to make meanwhile: `per_chunk` lines after
    /// each of so many chunks. Pending lines beyond those are written now.
    #[inline]
    fn next_block(
        &mut self,
        target: *mut u8,
        chunks: usize,
        per_chunk: usize,
    ) -> (Place, PendingStores) {
        let block = self.blocks[self.next];
        let mut place = Place { at: block.wrapping_add(target.addr() % LINE), carried: 0 };
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
            stream::copy(to, from, now, std::iter::empty());
            (to, from) = (to.add(now), from.add(now));
        }
        (place, PendingStores { to, from, lines: later, per_chunk })
    }

    /// Makes the results at a place the pending ones. Bytes before their first whole line are written now.
    ///
    /// # Safety
    /// The place has so many bytes of results, and so has the target, which is this worker's.
    #[inline]
    unsafe fn push(&mut self, place: &Place, target: *mut u8, bytes: usize) {
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
        self.streamed
            && self.program.has_streaming_kernel()
            && len * self.program.result().size() >= stream::SHORTEST
    }

    /// Computes a block, while the pending one is stored and the inputs are prefetched `ahead` bytes further
    /// on.
    ///
    /// # Safety
    /// As [`Program::run`](crate::eval::Program::run); the target has room for the block and is
    /// this worker's, and so are the combiner's blocks.
    #[inline]
    pub(super) unsafe fn run_combined(
        &self,
        frame: &mut Frame<'_>,
        combiner: &mut WriteCombiner,
        target: *mut u8,
        len: usize,
        ahead: &[isize],
    ) -> Result<()> {
        let program = self.program;
        if program.streams_result()
            && target.addr().is_multiple_of(LINE)
            && len.is_multiple_of(CHUNK)
        {
            combiner.flush();
            frame.slots[program.output()] = target;
            // SAFETY: the caller's promise.
            return unsafe { program.run_streaming(frame, len, ahead, PendingStores::NONE, true) }
                .map_err(|fault| program.error(fault));
        }
        let access = &program.accesses()[program.inputs().len()];
        let (place, pending) = combiner.next_block(target, len / CHUNK, access.size);
        let as_stored = program.writes_result();
        if as_stored {
            frame.slots[program.output()] = place.at;
        }
        // SAFETY: the caller's promise.
        unsafe {
            program
                .run_streaming(frame, len, ahead, pending, false)
                .map_err(|fault| program.error(fault))?;
            if !as_stored {
                (access.store)(place.at, 1, frame.slots[program.result_slot()], len);
            }
            combiner.push(&place, target, len * access.size);
        }
        Ok(())
    }
}
