//! Results on their way past the caches: a block waits until the next one is computed.
//!
//! Memory is written past the caches by whole lines, and blocks needn't begin or end at one: rows of
//! 1,000 numbers don't. So a block is put as far behind a line as the place where it belongs; if it
//! goes on where the one before ends, it takes that one's last line over, which it completes.

use keyfold_core::Result;

use super::{Job, stream};
use crate::eval::Frame;
use crate::eval::streaming::{CHUNK, LINE, Past};

/// Two blocks for results: one is written past the caches while the other is computed.
pub(super) struct Outbox {
    blocks: [*mut u8; 2],
    turn: usize,
    waiting: Waiting,
}

/// Results that are computed and not yet written; they begin at a line.
#[derive(Clone, Copy)]
struct Waiting {
    to: *mut u8,
    from: *const u8,
    bytes: usize,
}

/// A place for a block of results.
struct Place {
    at: *mut u8,
    /// Bytes before it that belong to it: the begun line of the block before.
    carried: usize,
}

impl Outbox {
    /// How much memory it takes, for blocks of so many bytes (whole lines).
    pub(super) const fn room(block: usize) -> usize {
        2 * (block + LINE)
    }

    /// In this memory, which begins at a line.
    pub(super) fn new(memory: *mut u8, block: usize) -> Outbox {
        let waiting = Waiting { to: std::ptr::null_mut(), from: std::ptr::null(), bytes: 0 };
        Outbox { blocks: [memory, memory.wrapping_add(block + LINE)], turn: 0, waiting }
    }

    /// Writes what waits: at the end, and before anything else uses its blocks.
    #[inline]
    pub(super) fn flush(&mut self) {
        let Waiting { to, from, bytes } = self.waiting;
        if bytes > 0 {
            self.waiting.bytes = 0;
            // SAFETY: what waits are results, and their place in the output is this worker's.
            unsafe { stream::copy(to, from, bytes, std::iter::empty()) };
        }
    }

    /// Where to compute the results for a target; and what was waiting, to be written meanwhile,
    /// `per_chunk` lines beside each of so many chunks: what that leaves is written now.
    #[inline]
    fn next(&mut self, target: *mut u8, chunks: usize, per_chunk: usize) -> (Place, Past) {
        let block = self.blocks[self.turn];
        let mut place = Place { at: block.wrapping_add(target.addr() % LINE), carried: 0 };
        self.turn ^= 1;
        if self.waiting.to.wrapping_add(self.waiting.bytes) != target {
            self.flush();
        }
        let Waiting { mut to, mut from, bytes } = self.waiting;
        if bytes == 0 {
            return (place, Past::NONE);
        }
        self.waiting.bytes = 0;
        let lines = bytes / LINE;
        place.carried = bytes % LINE;
        let beside = lines.min(chunks * per_chunk);
        let now = (lines - beside) * LINE;
        // SAFETY: what waits are results, and their place in the output is this worker's; the begun line
        // fits in the next block's first one, since both lie like the target.
        unsafe {
            std::ptr::copy_nonoverlapping(from.add(lines * LINE), block, place.carried);
            stream::copy(to, from, now, std::iter::empty());
            (to, from) = (to.add(now), from.add(now));
        }
        (place, Past { to, from, lines: beside, per_chunk })
    }

    /// What is computed waits from now on; the end of a line that the block doesn't begin is written.
    ///
    /// # Safety
    /// The place has so many bytes of results, and so has the target, which is this worker's.
    #[inline]
    unsafe fn put(&mut self, place: &Place, target: *mut u8, bytes: usize) {
        let (to, from) = (target.wrapping_sub(place.carried), place.at.wrapping_sub(place.carried));
        let bytes = bytes + place.carried;
        let head = to.align_offset(LINE).min(bytes);
        // SAFETY: the caller's promise.
        unsafe {
            std::ptr::copy_nonoverlapping(from, to, head);
            self.waiting = Waiting { to: to.add(head), from: from.add(head), bytes: bytes - head };
        }
    }
}

impl Job<'_> {
    /// Whether a block of results goes past the caches beside what is computed.
    #[inline]
    pub(super) fn goes_past(&self, len: usize) -> bool {
        self.streamed
            && self.program.works_beside()
            && len * self.program.result().size() >= stream::SHORTEST
    }

    /// Computes a block, while the one before is written past the caches and the inputs are asked for
    /// what is `ahead`.
    ///
    /// # Safety
    /// As [`Program::run`](crate::eval::Program::run); the target has room for the block and is
    /// this worker's, and the outbox's blocks are nobody else's.
    #[inline]
    pub(super) unsafe fn past(
        &self,
        frame: &mut Frame<'_>,
        outbox: &mut Outbox,
        target: *mut u8,
        len: usize,
        ahead: &[isize],
    ) -> Result<()> {
        let program = self.program;
        if program.streams() && target.addr().is_multiple_of(LINE) && len.is_multiple_of(CHUNK) {
            outbox.flush();
            frame.slots[program.output()] = target;
            // SAFETY: the caller's promise.
            return unsafe { program.run_beside(frame, len, ahead, Past::NONE, true) }
                .map_err(|fault| program.error(fault));
        }
        let access = &program.accesses()[program.inputs().len()];
        let (place, past) = outbox.next(target, len / CHUNK, access.size);
        let as_stored = program.writes_result();
        if as_stored {
            frame.slots[program.output()] = place.at;
        }
        // SAFETY: the caller's promise.
        unsafe {
            program
                .run_beside(frame, len, ahead, past, false)
                .map_err(|fault| program.error(fault))?;
            if !as_stored {
                (access.store)(place.at, 1, frame.slots[program.result_slot()], len);
            }
            outbox.put(&place, target, len * access.size);
        }
        Ok(())
    }
}
