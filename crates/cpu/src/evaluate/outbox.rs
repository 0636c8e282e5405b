//! Results on their way past the caches: a block waits until the next one is computed.

use keyfold_core::Result;
use keyfold_expr::eval::Frame;
use keyfold_expr::eval::beside::{CHUNK, LINE, Past};

use super::{Job, stream};

/// Two blocks for results: one is written past the caches while the other is computed.
pub(super) struct Outbox {
    blocks: [*mut u8; 2],
    turn: usize,
    past: Past,
    /// Elements of what waits.
    len: usize,
}

impl Outbox {
    /// With these blocks of memory.
    pub(super) fn new(blocks: [*mut u8; 2]) -> Outbox {
        Outbox { blocks, turn: 0, past: Past::NONE, len: 0 }
    }

    /// What waits, if it is as long as the next block; anything else is written now.
    #[inline]
    fn take(&mut self, len: usize) -> Past {
        if self.len != len {
            self.flush();
        }
        self.len = 0;
        std::mem::replace(&mut self.past, Past::NONE)
    }

    /// Writes what waits: at the end, and before anything else uses its blocks.
    #[inline]
    pub(super) fn flush(&mut self) {
        if self.len == 0 {
            return;
        }
        let Past { to, from, size } = std::mem::replace(&mut self.past, Past::NONE);
        // SAFETY: what waits is a block of results, and its place in the output is this worker's.
        unsafe { stream::copy(to, from, self.len * size, std::iter::empty()) };
        self.len = 0;
    }
}

impl Job<'_> {
    /// Whether a block of results for this place goes through the outbox.
    #[inline]
    pub(super) fn goes_past(&self, target: *mut u8, len: usize) -> bool {
        self.streamed
            && self.program.works_beside()
            && target.addr().is_multiple_of(LINE)
            && len.is_multiple_of(CHUNK)
    }

    /// Computes a block, while the one before is written past the caches and the inputs are asked for
    /// what is `ahead`.
    ///
    /// # Safety
    /// As [`Program::run`](keyfold_expr::eval::Program::run); the target has room for the block and is
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
        if program.streams() {
            frame.slots[program.output()] = target;
            // SAFETY: the caller's promise.
            return unsafe { program.run_beside(frame, len, ahead, Past::NONE) }
                .map_err(|fault| program.error(fault));
        }
        let past = outbox.take(len);
        let block = outbox.blocks[outbox.turn];
        let access = &program.accesses()[program.inputs().len()];
        let as_stored = program.writes_result();
        if as_stored {
            frame.slots[program.output()] = block;
        }
        // SAFETY: the caller's promise.
        unsafe {
            program.run_beside(frame, len, ahead, past).map_err(|fault| program.error(fault))?;
            if !as_stored {
                (access.store)(block, 1, frame.slots[program.result_slot()], len);
            }
        }
        outbox.past = Past { to: target, from: block, size: access.size };
        outbox.len = len;
        outbox.turn ^= 1;
        Ok(())
    }
}
