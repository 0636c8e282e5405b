//! One worker's part of an evaluation: blocks of operands through the program.

use std::ops::Range;

use keyfold_core::Result;
use keyfold_expr::eval::memory::{Store, Value, count, is_direct, storer};
use keyfold_expr::eval::{Frame, Program, Table};
use smallvec::SmallVec;

use super::plan::{Cursor, Plan};
use super::scratch::{self, Scratch};
use super::stream;

/// An evaluation, the same for all workers.
pub(super) struct Job<'a> {
    pub(super) program: &'a Program,
    pub(super) plan: &'a Plan,
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

/// Rows that are shorter are put together to blocks.
const SHORT: usize = 64;

/// A worker's view of the job: pointers into its scratch.
pub(super) struct Worker<'a> {
    pub(super) job: &'a Job<'a>,
    pub(super) slots: &'a mut [*mut u8],
    /// Where each slot's own register is.
    home: *mut u8,
    register: usize,
    frame_places: *mut i64,
    frame_gathered: *mut u8,
    pub(super) tile: *mut u8,
    store: Store,
    out_direct: bool,
    /// What a register of a repeated element was last filled with: address and length.
    repeated: SmallVec<[(isize, usize); 6]>,
}

impl<'a> Job<'a> {
    /// Calls `f` with a worker whose registers are ready; `tile` is how many bytes of tiles it
    /// needs.
    pub(super) fn work<R>(
        &'a self,
        tile: usize,
        longest: usize,
        f: impl FnOnce(Worker<'_>) -> R,
    ) -> R {
        scratch::with(|scratch| {
            let Scratch { slots, .. } = scratch;
            let mut slots = std::mem::take(slots);
            let (program, count) = (self.program, self.program.slots());
            let register = program.register_bytes();
            let gathers = if program.gathers() { 2 * register } else { 0 };
            let home = scratch.memory(count * register + gathers + tile);
            slots.clear();
            slots.extend((0..count).map(|slot| home.wrapping_add(slot * register)));
            let out = &self.plan.operands[program.output()];
            // SAFETY: kept values have registers of their own, with room for a block.
            unsafe { program.fill(&slots, self.values, longest.min(program.block())) };
            let after = home.wrapping_add(count * register);
            let worker = Worker {
                job: self,
                slots: &mut slots,
                home,
                register,
                frame_places: after.cast(),
                frame_gathered: after.wrapping_add(register),
                tile: after.wrapping_add(gathers),
                store: storer(program.result()),
                out_direct: is_direct_result(program)
                    && !self.in_place
                    && !self.streamed
                    && program.result_slot() == program.output(),
                repeated: SmallVec::from_elem((0, 0), self.plan.operands.len()),
            };
            let _ = out;
            let result = f(worker);
            scratch.slots = slots;
            result
        })
    }

    /// Computes the elements with these numbers, counted along the plan's dimensions.
    pub(super) fn run(&'a self, range: Range<usize>) -> Result<()> {
        let len = range.len();
        self.work(0, len, |mut worker| {
            // A single row has nothing to put together.
            if self.plan.inner() >= SHORT || self.plan.dims.len() == 1 {
                worker.rows(range)
            } else {
                worker.spans(range)
            }
        })
    }
}

/// Whether results are stored as they are computed.
fn is_direct_result(program: &Program) -> bool {
    is_direct(program.result()) || program.result() == keyfold_core::DType::Bool
}

impl Worker<'_> {
    fn home(&self, slot: usize) -> *mut u8 {
        self.home.wrapping_add(slot * self.register)
    }

    /// Long rows: every block lies within one.
    fn rows(&mut self, range: Range<usize>) -> Result<()> {
        let plan = self.job.plan;
        let (inner, block) = (plan.inner(), self.job.program.block());
        let steps = plan.row(plan.dims.len() - 1);
        let mut cursor = Cursor::new(plan, 1, range.start / inner);
        let (mut at, mut col) = (range.start, range.start % inner);
        loop {
            let end = inner.min(col + range.end - at);
            while col < end {
                let len = block.min(end - col);
                for slot in 0..self.job.program.output() {
                    self.load(slot, cursor.at[slot] + col as isize * steps[slot], steps[slot], len);
                }
                let slot = self.job.program.output();
                self.compute(cursor.at[slot] + col as isize * steps[slot], steps[slot], len)?;
                col += len;
                at += len;
            }
            if at >= range.end {
                return Ok(());
            }
            col = 0;
            cursor.next(plan);
        }
    }

    /// Brings elements of an operand into the slot: by pointing at them, where that will do.
    #[inline]
    pub(super) fn load(&mut self, slot: usize, at: isize, step: isize, len: usize) {
        let operand = &self.job.plan.operands[slot];
        if operand.direct && step == operand.size {
            self.slots[slot] = std::ptr::with_exposed_provenance_mut(at as usize);
            return;
        }
        if !operand.walked {
            return;
        }
        let home = self.home(slot);
        self.slots[slot] = home;
        let Some(load) = operand.load else {
            // SAFETY: the register has room for a block.
            unsafe { count(home, at as i64, step as i64, len) };
            return;
        };
        if step == 0 {
            if self.repeated[slot].0 == at && self.repeated[slot].1 >= len {
                return;
            }
            self.repeated[slot] = (at, len);
        }
        let source = std::ptr::with_exposed_provenance(at as usize);
        // SAFETY: the plan's addresses are those of elements of the input, and the register has room
        // for a block.
        unsafe { load(home, source, step / operand.size, len) };
    }

    /// Runs the program on what is loaded and stores the result.
    #[inline]
    pub(super) fn compute(&mut self, at: isize, step: isize, len: usize) -> Result<()> {
        let program = self.job.program;
        let slot = program.output();
        let size = self.job.plan.operands[slot].size;
        let target = std::ptr::with_exposed_provenance_mut::<u8>(at as usize);
        let direct = self.out_direct && step == size;
        self.slots[slot] = if direct { target } else { self.home(slot) };
        self.execute(len)?;
        if direct {
            return Ok(());
        }
        let result = self.slots[program.result_slot()].cast_const();
        if self.job.streamed && step == size {
            let bytes = len * size as usize;
            // SAFETY: the result's block is computed, and the output has room for it.
            unsafe { stream::copy(target, result, bytes) };
            return Ok(());
        }
        // SAFETY: as above, at the output's stride.
        unsafe { (self.store)(target, step / size, result, len) };
        Ok(())
    }

    #[inline]
    fn execute(&mut self, len: usize) -> Result<()> {
        let frame = Frame {
            slots: self.slots,
            values: self.job.values,
            tables: self.job.tables,
            places: self.frame_places,
            gathered: self.frame_gathered,
        };
        // SAFETY: every slot points to its register, or to a block of its operand; in place the
        // output has a register of its own.
        unsafe { self.job.program.run(&frame, len) }.map_err(Into::into)
    }

    /// Short rows: a block is put together of many. Operands that are dense are used where they
    /// are.
    fn spans(&mut self, range: Range<usize>) -> Result<()> {
        let (program, plan) = (self.job.program, self.job.plan);
        let (inner, block, out) = (plan.inner(), program.block(), program.output());
        let steps = plan.row(plan.dims.len() - 1);
        let dense: SmallVec<[bool; 8]> = (0..=out).map(|slot| plan.is_dense(slot)).collect();
        let mut cursor = Cursor::new(plan, 1, range.start / inner);
        let (mut at, mut col) = (range.start, range.start % inner);
        let store = self.store;
        while at < range.end {
            let len = block.min(range.end - at);
            let start = (cursor.clone(), col);
            for slot in 0..out {
                let operand = plan.operands[slot];
                if dense[slot] {
                    self.load(slot, operand.base + at as isize * operand.size, operand.size, len);
                } else {
                    self.slots[slot] = self.home(slot);
                }
            }
            let mut done = 0;
            while done < len {
                let run = (inner - col).min(len - done);
                for slot in (0..out).filter(|slot| !dense[*slot]) {
                    let operand = &plan.operands[slot];
                    if !operand.walked {
                        continue;
                    }
                    let from = cursor.at[slot] + col as isize * steps[slot];
                    let to = self.home(slot).wrapping_add(done * operand.computed);
                    // SAFETY: as in `load`; the runs of a block fit in its register.
                    unsafe {
                        match operand.load {
                            Some(load) => {
                                let source = std::ptr::with_exposed_provenance(from as usize);
                                load(to, source, steps[slot] / operand.size, run);
                            }
                            None => count(to, from as i64, steps[slot] as i64, run),
                        }
                    }
                }
                done += run;
                col += run;
                if col == inner {
                    col = 0;
                    cursor.next(plan);
                }
            }
            let operand = &plan.operands[out];
            if dense[out] {
                self.compute(operand.base + at as isize * operand.size, operand.size, len)?;
            } else {
                self.slots[out] = self.home(out);
                self.execute(len)?;
                let result = self.slots[program.result_slot()];
                let (mut cursor, mut col) = start;
                let mut done = 0;
                while done < len {
                    let run = (inner - col).min(len - done);
                    let to = cursor.at[out] + col as isize * steps[out];
                    let to = std::ptr::with_exposed_provenance_mut(to as usize);
                    let from = result.wrapping_add(done * operand.computed);
                    // SAFETY: as in `compute`.
                    unsafe { store(to, steps[out] / operand.size, from, run) };
                    done += run;
                    col = 0;
                    cursor.next(plan);
                }
            }
            at += len;
        }
        Ok(())
    }
}
