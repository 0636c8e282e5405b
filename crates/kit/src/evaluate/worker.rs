//! A worker of an evaluation: runs the program over blocks of operands.

use std::ops::Range;

use keyfold_core::Result;
use smallvec::SmallVec;

use super::non_temporal;
use super::plan::{Cursor, Traversal, TraversalPlan};
use super::scratch;
use super::write_combining::WriteCombiner;
use super::{Job, PREFETCH_BLOCKS};
use crate::interpreter::Frame;
use crate::interpreter::access::count;
use crate::interpreter::streaming::CHUNK;

/// A worker's state: the job, the plan, and pointers into the worker's scratch.
pub(super) struct Worker<'a, 'j> {
    pub(super) job: &'a Job<'j>,
    pub(super) plan: &'a TraversalPlan<'j>,
    pub(super) slots: &'a mut [*mut u8],
    /// The address of the first register; slot `i` has register `i`.
    own_register: *mut u8,
    register: usize,
    /// The workspace behind the registers and the combiner's blocks: for gathers, then for tiles.
    pub(super) workspace: *mut u8,
    /// Whether the program writes the first result directly into its output.
    direct: bool,
    /// For each operand, the distance in bytes from a block to the block to prefetch; 0 if that isn't
    /// known.
    pub(super) prefetch_distance: SmallVec<[isize; 4]>,
    combiner: WriteCombiner,
    /// For each operand, the address and length of the repeated element that its register was last
    /// filled with.
    repeated: SmallVec<[(isize, usize); 4]>,
}

/// Converts an address back to a pointer. Addresses are integers so that iota operands can be
/// advanced like them.
#[inline]
pub(super) fn pointer(at: isize) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(at as usize)
}

impl<'j> Job<'j> {
    /// The number of units that the work is divided into, and the elements per unit.
    #[inline]
    pub(super) fn units(&self, plan: &TraversalPlan<'_>) -> (usize, usize) {
        match plan.traversal {
            Traversal::Rows => {
                let (chunks, len, _) = self.chunks(plan);
                (plan.total / plan.inner() * chunks, len)
            }
            Traversal::ShortRows => (plan.total / plan.inner(), plan.inner()),
            Traversal::Tiles => self.tiles(plan),
        }
    }

    /// The number of blocks per row, their length, and the number of elements by which the first one is
    /// shorter.
    fn chunks(&self, plan: &TraversalPlan<'_>) -> (usize, usize, usize) {
        let inner = plan.inner();
        let chunks = inner.div_ceil(self.block());
        let len = inner.div_ceil(chunks).next_multiple_of(CHUNK).min(self.block());
        let (misalignment, without) = (self.row_misalignment(plan, len), inner.div_ceil(len));
        // A row isn't aligned if that would add a block of a few elements.
        if (inner + misalignment).div_ceil(len) > without {
            (without, len, 0)
        } else {
            (without, len, misalignment)
        }
    }

    /// The number of elements by which the first block of a row is shorter than `len`, so that later
    /// blocks begin at cache lines. It is 0 unless rows have several blocks and are aligned alike.
    pub(super) fn row_misalignment(&self, plan: &TraversalPlan<'_>, len: usize) -> usize {
        let (out, last) = (self.program.output(), plan.dims().len() - 1);
        let even = (0..last).all(|dim| plan.row(dim)[out] % non_temporal::LINE as isize == 0)
            && plan.row(last)[out] == plan.operands[out].size
            && len < plan.inner();
        if even { self.misalignment(pointer(plan.operands[out].base)) } else { 0 }
    }

    /// Computes the units with these numbers.
    pub(super) fn run(&self, plan: &TraversalPlan<'j>, units: Range<usize>) -> Result<()> {
        let program = self.program;
        let count = program.slots();
        let register = program.register_bytes();
        let workspace = if program.gathers() { 2 * register } else { 0 } + self.tile_bytes(plan);
        let behind = count * register;
        scratch::with(behind + WriteCombiner::bytes(register) + workspace, |own_register, slots| {
            slots.clear();
            slots.extend((0..count).map(|slot| own_register.wrapping_add(slot * register)));
            let longest = plan.total.min(program.block());
            // SAFETY: kept values have registers of their own, with room for a block.
            unsafe { program.fill(slots, self.values, longest) };
            let mut worker = Worker {
                job: self,
                plan,
                slots,
                own_register,
                register,
                workspace: own_register.wrapping_add(behind + WriteCombiner::bytes(register)),
                direct: self.writes_directly(0),
                prefetch_distance: SmallVec::from_elem(0, plan.operands.len()),
                combiner: WriteCombiner::new(own_register.wrapping_add(behind), register),
                repeated: SmallVec::from_elem((0, 0), plan.operands.len()),
            };
            match plan.traversal {
                Traversal::Tiles => worker.tiles(units)?,
                Traversal::ShortRows => worker.short_rows(units)?,
                _ => worker.rows(units)?,
            }
            worker.combiner.flush();
            Ok(())
        })
    }
}

impl Worker<'_, '_> {
    #[inline]
    pub(super) fn own_register(&self, slot: usize) -> *mut u8 {
        self.own_register.wrapping_add(slot * self.register)
    }

    /// Computes blocks that each lie within one long row.
    fn rows(&mut self, units: Range<usize>) -> Result<()> {
        let plan = self.plan;
        let (chunks, longest, misalignment) = self.job.chunks(plan);
        let steps = plan.row(plan.dims().len() - 1);
        let mut cursor = Cursor::new(plan, 1, units.start / chunks);
        let mut chunk = units.start % chunks;
        for (slot, operand) in plan.operands.iter().enumerate() {
            self.prefetch_distance[slot] =
                if steps[slot] == operand.size { operand.size } else { 0 };
            self.prefetch_distance[slot] *= (PREFETCH_BLOCKS * longest) as isize;
        }
        for _ in units {
            let col = (chunk * longest).saturating_sub(misalignment);
            let end = plan.inner().min((chunk + 1) * longest - misalignment);
            self.row(&cursor.at, steps, col, end - col)?;
            chunk += 1;
            if chunk == chunks {
                chunk = 0;
                cursor.next(plan);
            }
        }
        Ok(())
    }

    /// Computes one block of a row that begins at `at`.
    fn row(&mut self, at: &[isize], steps: &[isize], col: usize, len: usize) -> Result<()> {
        let out = self.job.program.output();
        for slot in 0..out {
            self.load(slot, at[slot] + col as isize * steps[slot], steps[slot], len);
        }
        self.compute(|slot| (at[slot] + col as isize * steps[slot], steps[slot]), len)
    }

    /// Loads elements of an operand: the slot points to the operand itself where no conversion or copy
    /// is needed, else to a register.
    #[inline]
    pub(super) fn load(&mut self, slot: usize, at: isize, step: isize, len: usize) {
        let operand = self.plan.operands[slot];
        let own_register = self.own_register(slot);
        let Some(access) = operand.access else {
            self.slots[slot] = own_register;
            // SAFETY: the register has room for a block.
            unsafe { count(own_register, at as i64, step as i64, len) };
            return;
        };
        if access.direct && step == operand.size {
            self.slots[slot] = pointer(at);
            return;
        }
        if !operand.advances {
            return;
        }
        self.slots[slot] = own_register;
        if step == 0 {
            if self.repeated[slot].0 == at && self.repeated[slot].1 >= len {
                return;
            }
            self.repeated[slot] = (at, len);
        }
        // SAFETY: the plan's addresses are those of elements of the input, and the register has room
        // for a block.
        unsafe { (access.load)(own_register, pointer(at), step / operand.size, len) };
    }

    /// Runs the program on the loaded operands and stores the results. `place` is the address and the
    /// step of each output.
    #[inline]
    pub(super) fn compute(
        &mut self,
        place: impl Fn(usize) -> (isize, isize),
        len: usize,
    ) -> Result<()> {
        let (program, job) = (self.job.program, self.job);
        let slot = program.output();
        for further in 1..=job.more.len() {
            let (at, step) = place(slot + further);
            let dense = step == self.plan.operands[slot + further].size;
            self.slots[slot + further] = match dense && job.writes_directly(further) {
                true => pointer(at),
                false => self.own_register(slot + further),
            };
        }
        let (at, step) = place(slot);
        self.compute_first(at, step, len)?;
        for further in 1..=job.more.len() {
            let (at, step) = place(slot + further);
            let step = step / self.plan.operands[slot + further].size;
            // SAFETY: the result's block is computed, and the output has room for it at that stride.
            unsafe { job.write_further(self.slots, further, pointer(at), step, len) };
        }
        Ok(())
    }

    /// As [`Worker::compute`], and stores the first result.
    #[inline]
    fn compute_first(&mut self, at: isize, step: isize, len: usize) -> Result<()> {
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
                gather_offsets: self.workspace.cast(),
                gathered: self.workspace.wrapping_add(self.register),
            };
            // SAFETY: as in `execute`; the plan's addresses are the output's.
            return unsafe {
                let prefetch_distance = &self.prefetch_distance[..program.inputs().len()];
                job.run_combined(&mut frame, &mut self.combiner, target, len, prefetch_distance)
            };
        }
        self.combiner.flush();
        self.slots[slot] = self.own_register(slot);
        self.execute(len)?;
        let (step, behind) = (step / operand.size, self.own_register(self.slots.len()));
        // SAFETY: the result's block is computed, and the output has room for it at that stride.
        unsafe {
            write(self.job, self.slots, pointer(at), step, len, behind, &self.prefetch_distance);
        };
        Ok(())
    }

    #[inline]
    pub(super) fn execute(&mut self, len: usize) -> Result<()> {
        let frame = Frame {
            slots: self.slots,
            values: self.job.values,
            tables: self.job.tables,
            gather_offsets: self.workspace.cast(),
            gathered: self.workspace.wrapping_add(self.register),
        };
        // SAFETY: every slot points to its register, or to a block of its operand; if the output is an
        // input, its slot points to a register.
        unsafe { self.job.program.run(&frame, len) }.map_err(|fault| self.job.program.error(fault))
    }
}

impl Job<'_> {
    /// Writes a block of a result after the first one to its output, at a stride in elements, unless the
    /// program wrote it there.
    ///
    /// # Safety
    /// The slots are those of a block that has been run; the output has room for the block at that
    /// stride.
    pub(super) unsafe fn write_further(
        &self,
        slots: &[*mut u8],
        result: usize,
        target: *mut u8,
        step: isize,
        len: usize,
    ) {
        let program = self.program;
        let access = &program.accesses()[program.inputs().len() + result];
        let from = slots[program.result_slot(result)].cast_const();
        if from == target.cast_const() {
            return;
        }
        let bytes = len * access.size;
        // SAFETY: the caller's promise.
        unsafe {
            if self.non_temporal
                && step == 1
                && access.direct
                && bytes >= non_temporal::MIN_RUN_BYTES
            {
                non_temporal::copy(target, from, bytes, std::iter::empty());
            } else {
                (access.store)(target, step, from, len);
            }
        }
    }
}

/// Writes a block of the first results to its output, at a stride in elements.
///
/// # Safety
/// The slots are those of a block that has been run; the output has room for the block at that stride;
/// `behind` is an otherwise unused register. `ahead` are the distances from the inputs' blocks to the
/// blocks to prefetch.
#[inline]
pub(super) unsafe fn write(
    job: &Job<'_>,
    slots: &[*mut u8],
    target: *mut u8,
    step: isize,
    len: usize,
    behind: *mut u8,
    prefetch_distance: &[isize],
) {
    let program = job.program;
    let (inputs, outputs) = program.accesses().split_at(program.inputs().len());
    let access = &outputs[0];
    let mut result = slots[program.result_slot(0)].cast_const();
    // SAFETY: the caller's promise.
    unsafe {
        if !job.non_temporal || step != 1 || len * access.size < non_temporal::MIN_RUN_BYTES {
            (access.store)(target, step, result, len);
            return;
        }
        if access.computed != access.size {
            (access.store)(behind, 1, result, len);
            result = behind;
        }
        let next = inputs
            .iter()
            .zip(prefetch_distance)
            .zip(slots)
            .filter(|((input, prefetch_distance), _)| input.direct && **prefetch_distance != 0);
        let next = next.map(|((input, prefetch_distance), slot)| {
            (
                slot.wrapping_offset(*prefetch_distance).cast_const(),
                non_temporal::LINE * input.size / access.size,
            )
        });
        non_temporal::copy(target, result, len * access.size, next);
    }
}
