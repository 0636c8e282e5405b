//! The usual case: everything is contiguous and of one shape.
//!
//! It is apart from the walks over strides so that calls for few elements cost little: no plan is
//! made, and nothing is allocated.

use std::ops::Range;

use keyfold_core::Result;
use keyfold_tensor::Tensor;
use smallvec::SmallVec;

use super::drive::write;
use super::scratch;
use super::write_combining::WriteCombiner;
use super::{AHEAD, Job};
use crate::eval::memory::count;
use crate::eval::{Frame, Program};

/// How many bytes ahead of a block the inputs are asked for; 0 for those that aren't read where they are.
fn inputs_ahead(program: &Program, block: usize) -> SmallVec<[isize; 8]> {
    let inputs = program.accesses()[..program.inputs().len()].iter().enumerate();
    let ahead = inputs.map(|(slot, access)| match access.direct && program.reads(slot) {
        true => (AHEAD * block * access.size) as isize,
        false => 0,
    });
    ahead.collect()
}

impl Job<'_> {
    /// How many blocks there are.
    #[inline]
    pub(super) fn flat_units(&self, out: &Tensor) -> usize {
        let (total, block) = (out.numel(), self.block());
        if total <= block { 1 } else { (total + self.lead(out.pinned_ptr())).div_ceil(block) }
    }

    /// Computes the blocks with these numbers.
    #[inline]
    pub(super) fn flat(&self, inputs: &[&Tensor], out: &Tensor, units: Range<usize>) -> Result<()> {
        let program = self.program;
        let (total, block, register) = (out.numel(), self.block(), program.register_bytes());
        let (slots, output) = (program.slots(), program.output());
        let gathers = if program.gathers() { 2 * register } else { 0 };
        scratch::with(slots * register + WriteCombiner::bytes(register) + gathers, |home, list| {
            list.clear();
            list.extend((0..slots).map(|slot| home.wrapping_add(slot * register)));
            // SAFETY: kept values have registers of their own, with room for a block.
            unsafe { program.fill(list, self.values, total.min(block)) };
            let behind = home.wrapping_add(slots * register);
            let mut combiner = WriteCombiner::new(behind, register);
            let gathered = behind.wrapping_add(WriteCombiner::bytes(register));
            let result_direct = self.writes_directly();
            // The first block is shorter, so that all others begin at a line of the cache.
            let lead = if total <= block { 0 } else { self.lead(out.pinned_ptr()) };
            let end = total.min((units.end * block).saturating_sub(lead));
            let mut at = (units.start * block).saturating_sub(lead);
            let ahead: SmallVec<[isize; 8]> = match self.streamed {
                true => inputs_ahead(program, block),
                false => SmallVec::new(),
            };
            while at < end {
                let len = (block - if at == 0 { lead } else { 0 }).min(end - at);
                for (slot, (input, access)) in inputs.iter().zip(program.accesses()).enumerate() {
                    let from = input.pinned_ptr().wrapping_add(at * access.size);
                    if access.direct {
                        list[slot] = from;
                    } else if program.reads(slot) {
                        // SAFETY: the input is contiguous and as long as the output; a register has
                        // room for a block.
                        unsafe { (access.load)(list[slot], from, 1, len) };
                    }
                }
                for slot in &list[inputs.len()..output] {
                    // SAFETY: a register has room for a block.
                    unsafe { count(*slot, at as i64, 1, len) };
                }
                let access = &program.accesses()[inputs.len()];
                let target = out.pinned_ptr().wrapping_add(at * access.size);
                if result_direct {
                    list[output] = target;
                }
                let mut frame = Frame {
                    slots: list,
                    values: self.values,
                    tables: self.tables,
                    places: gathered.cast(),
                    gathered: gathered.wrapping_add(register),
                };
                // SAFETY: every slot points to its register, or to a block of its operand; in place
                // the output has a register of its own. The output has room for the block.
                unsafe {
                    if self.combines_writes(len) {
                        self.run_combined(&mut frame, &mut combiner, target, len, &ahead)?;
                    } else {
                        combiner.flush();
                        if !result_direct {
                            frame.slots[output] = home.wrapping_add(output * register);
                        }
                        program.run(&frame, len).map_err(|fault| program.error(fault))?;
                        if !result_direct {
                            write(self, list, target, 1, len, behind, &ahead);
                        }
                    }
                }
                at += len;
            }
            combiner.flush();
            Ok(())
        })
    }
}
