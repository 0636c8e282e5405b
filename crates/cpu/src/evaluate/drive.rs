//! One worker's part of an evaluation: blocks of operands through the program.

use std::ops::Range;

use keyfold_core::Result;
use keyfold_expr::eval::memory::{Value, count};
use keyfold_expr::eval::{Frame, Program, Table};
use smallvec::SmallVec;

use super::plan::{Cursor, Plan, Way};
use super::scratch;
use super::stream;

/// An evaluation, the same for all workers.
pub(super) struct Job<'a> {
    pub(super) program: &'a Program,
    pub(super) plan: Plan<'a>,
    pub(super) values: &'a [Value],
    pub(super) tables: &'a [Table<'a>],
    /// Whether an input is exactly the output: then blocks are computed aside.
    pub(super) in_place: bool,
    /// Whether the output goes past the caches.
    pub(super) streamed: bool,
}

// SAFETY: what the pointers inside point to is read by all and written by nobody but the workers,
// each at indices of its own.
unsafe impl Sync for Job<'_> {}

/// A worker's view of the job: pointers into its scratch.
pub(super) struct Worker<'a, 'j> {
    pub(super) job: &'a Job<'j>,
    pub(super) slots: &'a mut [*mut u8],
    /// Where each slot's own register is.
    home: *mut u8,
    register: usize,
    /// Behind the registers: room for gathers, then for tiles.
    pub(super) room: *mut u8,
    /// Whether results may be written where they belong, without a block in between.
    direct: bool,
    /// What a register of a repeated element was last filled with: address and length.
    repeated: SmallVec<[(isize, usize); 4]>,
}

/// Addresses are kept as numbers, since what is counted is walked along with them.
#[inline]
pub(super) fn pointer(at: isize) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(at as usize)
}

impl Job<'_> {
    /// Into how many units the work is divided, and how many elements a unit has.
    #[inline]
    pub(super) fn units(&self) -> (usize, usize) {
        let (plan, block) = (&self.plan, self.program.block());
        match plan.way {
            Way::Flat => (plan.total.div_ceil(block), block),
            Way::Rows => {
                let (chunks, len) = self.chunks();
                (plan.total / plan.inner() * chunks, len)
            }
            Way::Spans => (plan.total / plan.inner(), plan.inner()),
            Way::Tiles => self.tiles(),
        }
    }

    /// How many blocks a row has, and how long they are.
    fn chunks(&self) -> (usize, usize) {
        let inner = self.plan.inner();
        let chunks = inner.div_ceil(self.program.block());
        let len = inner.div_ceil(chunks).next_multiple_of(16).min(self.program.block());
        (inner.div_ceil(len), len)
    }

    /// Computes the units with these numbers.
    #[inline]
    pub(super) fn run(&self, units: Range<usize>) -> Result<()> {
        let program = self.program;
        let count = program.slots();
        let register = program.register_bytes();
        let room = if program.gathers() { 2 * register } else { 0 } + self.tile_bytes();
        // One more for halves on their way past the caches.
        scratch::with((count + 1) * register + room, |home, slots| {
            slots.clear();
            slots.extend((0..count).map(|slot| home.wrapping_add(slot * register)));
            let longest = self.plan.total.min(program.block());
            // SAFETY: kept values have registers of their own, with room for a block.
            unsafe { program.fill(slots, self.values, longest) };
            let mut worker = Worker {
                job: self,
                slots,
                home,
                register,
                room: home.wrapping_add((count + 1) * register),
                direct: program.writes_result() && !self.in_place && !self.streamed,
                repeated: SmallVec::new(),
            };
            if self.plan.way == Way::Flat {
                return worker.flat(units);
            }
            worker.repeated.resize(self.plan.operands.len(), (0, 0));
            match self.plan.way {
                Way::Tiles => worker.tiles(units),
                Way::Spans => worker.spans(units),
                _ => worker.rows(units),
            }
        })
    }
}

impl Worker<'_, '_> {
    #[inline]
    pub(super) fn home(&self, slot: usize) -> *mut u8 {
        self.home.wrapping_add(slot * self.register)
    }

    /// Everything is contiguous.
    #[inline]
    fn flat(&mut self, units: Range<usize>) -> Result<()> {
        let (program, plan) = (self.job.program, &self.job.plan);
        let (block, out) = (program.block(), program.output());
        let (start, end) = (units.start * block, plan.total.min(units.end * block));
        for at in (start..end).step_by(block) {
            let len = block.min(end - at);
            for (slot, operand) in plan.operands[..out].iter().enumerate() {
                let from = operand.base + at as isize * operand.size;
                self.load(slot, from, operand.size, len);
            }
            let operand = &plan.operands[out];
            self.compute(operand.base + at as isize * operand.size, operand.size, len)?;
        }
        Ok(())
    }

    /// Long rows: every block lies within one.
    fn rows(&mut self, units: Range<usize>) -> Result<()> {
        let plan = &self.job.plan;
        let (chunks, longest) = self.job.chunks();
        let steps = plan.row(plan.dims.len() - 1);
        let mut cursor = Cursor::new(plan, 1, units.start / chunks);
        let mut chunk = units.start % chunks;
        for _ in units {
            let col = chunk * longest;
            self.row(&cursor.at, steps, col, longest.min(plan.inner() - col))?;
            chunk += 1;
            if chunk == chunks {
                chunk = 0;
                cursor.next(plan);
            }
        }
        Ok(())
    }

    /// One block of a row that begins at `at`.
    fn row(&mut self, at: &[isize], steps: &[isize], col: usize, len: usize) -> Result<()> {
        let out = self.job.program.output();
        for slot in 0..out {
            self.load(slot, at[slot] + col as isize * steps[slot], steps[slot], len);
        }
        self.compute(at[out] + col as isize * steps[out], steps[out], len)
    }

    /// Brings elements of an operand into the slot: by pointing at them, where that will do.
    #[inline]
    pub(super) fn load(&mut self, slot: usize, at: isize, step: isize, len: usize) {
        let operand = &self.job.plan.operands[slot];
        let home = self.home(slot);
        let Some(access) = operand.access else {
            self.slots[slot] = home;
            // SAFETY: the register has room for a block.
            unsafe { count(home, at as i64, step as i64, len) };
            return;
        };
        if access.direct && step == operand.size {
            self.slots[slot] = pointer(at);
            return;
        }
        if !operand.walked {
            return;
        }
        self.slots[slot] = home;
        if step == 0 {
            if self.repeated[slot].0 == at && self.repeated[slot].1 >= len {
                return;
            }
            self.repeated[slot] = (at, len);
        }
        // SAFETY: the plan's addresses are those of elements of the input, and the register has room
        // for a block.
        unsafe { (access.load)(home, pointer(at), step / operand.size, len) };
    }

    /// Runs the program on what is loaded and stores the result.
    #[inline]
    pub(super) fn compute(&mut self, at: isize, step: isize, len: usize) -> Result<()> {
        let program = self.job.program;
        let slot = program.output();
        let operand = &self.job.plan.operands[slot];
        let dense = step == operand.size;
        if self.direct && dense {
            self.slots[slot] = pointer(at);
            return self.execute(len);
        }
        self.slots[slot] = self.home(slot);
        self.execute(len)?;
        let mut result = self.slots[program.result_slot()].cast_const();
        let Some(access) = operand.access else { return Ok(()) };
        // SAFETY: the result's block is computed, and the output has room for it at that stride;
        // behind the last slot's register there is another.
        unsafe {
            if !(self.job.streamed && dense) {
                (access.store)(pointer(at), step / operand.size, result, len);
                return Ok(());
            }
            if access.computed != access.size {
                let rounded = self.home(self.slots.len());
                (access.store)(rounded, 1, result, len);
                result = rounded;
            }
            stream::copy(pointer(at), result, len * access.size);
        }
        Ok(())
    }

    #[inline]
    pub(super) fn execute(&mut self, len: usize) -> Result<()> {
        let frame = Frame {
            slots: self.slots,
            values: self.job.values,
            tables: self.job.tables,
            places: self.room.cast(),
            gathered: self.room.wrapping_add(self.register),
        };
        // SAFETY: every slot points to its register, or to a block of its operand; in place the
        // output has a register of its own.
        unsafe { self.job.program.run(&frame, len) }.map_err(Into::into)
    }
}
