//! One worker's part of an evaluation: blocks of operands through the program.

use std::ops::Range;

use keyfold_core::Result;
use smallvec::SmallVec;

use super::plan::{Cursor, Plan, Way};
use super::scratch;
use super::stream;
use super::write_combining::WriteCombiner;
use super::{AHEAD, Job};
use crate::eval::Frame;
use crate::eval::memory::count;
use crate::eval::streaming::CHUNK;

/// A worker's view of the job: pointers into its scratch.
pub(super) struct Worker<'a, 'j> {
    pub(super) job: &'a Job<'j>,
    pub(super) plan: &'a Plan<'j>,
    pub(super) slots: &'a mut [*mut u8],
    /// Where each slot's own register is.
    home: *mut u8,
    register: usize,
    /// Behind the registers and the combiner's blocks: room for gathers, then for tiles.
    pub(super) room: *mut u8,
    /// Whether results may be written where they belong, without a block in between.
    direct: bool,
    /// How many bytes behind an operand's block the next one begins; 0 where that isn't known.
    pub(super) ahead: SmallVec<[isize; 4]>,
    combiner: WriteCombiner,
    /// What a register of a repeated element was last filled with: address and length.
    repeated: SmallVec<[(isize, usize); 4]>,
}

/// Addresses are kept as numbers, since what is counted is walked along with them.
#[inline]
pub(super) fn pointer(at: isize) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(at as usize)
}

impl<'j> Job<'j> {
    /// Into how many units the work is divided, and how many elements a unit has.
    #[inline]
    pub(super) fn units(&self, plan: &Plan<'_>) -> (usize, usize) {
        match plan.way {
            Way::Rows => {
                let (chunks, len, _) = self.chunks(plan);
                (plan.total / plan.inner() * chunks, len)
            }
            Way::Spans => (plan.total / plan.inner(), plan.inner()),
            Way::Tiles => self.tiles(plan),
        }
    }

    /// How many blocks a row has, how long they are, and by how much the first one is shorter.
    fn chunks(&self, plan: &Plan<'_>) -> (usize, usize, usize) {
        let inner = plan.inner();
        let chunks = inner.div_ceil(self.block());
        let len = inner.div_ceil(chunks).next_multiple_of(CHUNK).min(self.block());
        let (lead, without) = (self.row_lead(plan, len), inner.div_ceil(len));
        // A piece of a few elements more would cost more than the others gain.
        if (inner + lead).div_ceil(len) > without {
            (without, len, 0)
        } else {
            (without, len, lead)
        }
    }

    /// By how much the first piece of a row is shorter than `len`, so that the others begin at lines of
    /// the cache, where rows have several pieces and all lie alike.
    pub(super) fn row_lead(&self, plan: &Plan<'_>, len: usize) -> usize {
        let (out, last) = (self.program.output(), plan.dims().len() - 1);
        let even = (0..last).all(|dim| plan.row(dim)[out] % stream::LINE as isize == 0)
            && plan.row(last)[out] == plan.operands[out].size
            && len < plan.inner();
        if even { self.lead(pointer(plan.operands[out].base)) } else { 0 }
    }

    /// Computes the units with these numbers.
    pub(super) fn run(&self, plan: &Plan<'j>, units: Range<usize>) -> Result<()> {
        let program = self.program;
        let count = program.slots();
        let register = program.register_bytes();
        let room = if program.gathers() { 2 * register } else { 0 } + self.tile_bytes(plan);
        let behind = count * register;
        scratch::with(behind + WriteCombiner::bytes(register) + room, |home, slots| {
            slots.clear();
            slots.extend((0..count).map(|slot| home.wrapping_add(slot * register)));
            let longest = plan.total.min(program.block());
            // SAFETY: kept values have registers of their own, with room for a block.
            unsafe { program.fill(slots, self.values, longest) };
            let mut worker = Worker {
                job: self,
                plan,
                slots,
                home,
                register,
                room: home.wrapping_add(behind + WriteCombiner::bytes(register)),
                direct: self.writes_directly(),
                ahead: SmallVec::from_elem(0, plan.operands.len()),
                combiner: WriteCombiner::new(home.wrapping_add(behind), register),
                repeated: SmallVec::from_elem((0, 0), plan.operands.len()),
            };
            match plan.way {
                Way::Tiles => worker.tiles(units)?,
                Way::Spans => worker.spans(units)?,
                _ => worker.rows(units)?,
            }
            worker.combiner.flush();
            Ok(())
        })
    }
}

impl Worker<'_, '_> {
    #[inline]
    pub(super) fn home(&self, slot: usize) -> *mut u8 {
        self.home.wrapping_add(slot * self.register)
    }

    /// Long rows: every block lies within one.
    fn rows(&mut self, units: Range<usize>) -> Result<()> {
        let plan = self.plan;
        let (chunks, longest, lead) = self.job.chunks(plan);
        let steps = plan.row(plan.dims().len() - 1);
        let mut cursor = Cursor::new(plan, 1, units.start / chunks);
        let mut chunk = units.start % chunks;
        for (slot, operand) in plan.operands.iter().enumerate() {
            self.ahead[slot] = if steps[slot] == operand.size { operand.size } else { 0 };
            self.ahead[slot] *= (AHEAD * longest) as isize;
        }
        for _ in units {
            let col = (chunk * longest).saturating_sub(lead);
            let end = plan.inner().min((chunk + 1) * longest - lead);
            self.row(&cursor.at, steps, col, end - col)?;
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
        let operand = self.plan.operands[slot];
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
        let operand = self.plan.operands[slot];
        let dense = step == operand.size;
        if self.direct && dense {
            self.slots[slot] = pointer(at);
            return self.execute(len);
        }
        if dense && self.job.combines_writes(len) {
            let (job, target) = (self.job, pointer(at));
            let mut frame = Frame {
                slots: self.slots,
                values: job.values,
                tables: job.tables,
                places: self.room.cast(),
                gathered: self.room.wrapping_add(self.register),
            };
            // SAFETY: as in `execute`; the plan's addresses are the output's.
            return unsafe {
                let ahead = &self.ahead[..program.inputs().len()];
                job.run_combined(&mut frame, &mut self.combiner, target, len, ahead)
            };
        }
        self.combiner.flush();
        self.slots[slot] = self.home(slot);
        self.execute(len)?;
        let (step, behind) = (step / operand.size, self.home(self.slots.len()));
        // SAFETY: the result's block is computed, and the output has room for it at that stride.
        unsafe { write(self.job, self.slots, pointer(at), step, len, behind, &self.ahead) };
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
        unsafe { self.job.program.run(&frame, len) }.map_err(|fault| self.job.program.error(fault))
    }
}

/// Writes the block of results to the output, at a stride in elements.
///
/// # Safety
/// The slots are those of a block that has been run; the output has room for it at that stride;
/// `behind` is a register that isn't used otherwise. `ahead` says how far it is from an input's block
/// to its next.
#[inline]
pub(super) unsafe fn write(
    job: &Job<'_>,
    slots: &[*mut u8],
    target: *mut u8,
    step: isize,
    len: usize,
    behind: *mut u8,
    ahead: &[isize],
) {
    let program = job.program;
    let accesses = program.accesses();
    let (access, inputs) = (&accesses[accesses.len() - 1], &accesses[..accesses.len() - 1]);
    let mut result = slots[program.result_slot()].cast_const();
    // SAFETY: the caller's promise.
    unsafe {
        if !job.streamed || step != 1 || len * access.size < stream::SHORTEST {
            (access.store)(target, step, result, len);
            return;
        }
        if access.computed != access.size {
            (access.store)(behind, 1, result, len);
            result = behind;
        }
        let next = inputs
            .iter()
            .zip(ahead)
            .zip(slots)
            .filter(|((input, ahead), _)| input.direct && **ahead != 0);
        let next = next.map(|((input, ahead), slot)| {
            (slot.wrapping_offset(*ahead).cast_const(), stream::LINE * input.size / access.size)
        });
        stream::copy(target, result, len * access.size, next);
    }
}
