//! The usual case: all operands are contiguous and of one shape.
//!
//! It is separate from the strided traversals so that calls for few elements cost little: it makes no
//! plan and allocates nothing.

use std::ops::Range;

use keyfold_core::Result;
use keyfold_tensor::Tensor;
use smallvec::SmallVec;

use super::scratch;
use super::worker::write;
use super::write_combining::WriteCombiner;
use super::{Job, PREFETCH_BLOCKS};
use crate::interpreter::access::count;
use crate::interpreter::{Frame, Program};

/// The prefetch distance of each input in bytes; 0 for inputs that are copied to a register.
fn inputs_ahead(program: &Program, block: usize) -> SmallVec<[isize; 8]> {
    let inputs = program.accesses()[..program.inputs().len()].iter().enumerate();
    let prefetch_distance =
        inputs.map(|(slot, access)| match access.direct && program.reads(slot) {
            true => (PREFETCH_BLOCKS * block * access.size) as isize,
            false => 0,
        });
    prefetch_distance.collect()
}

impl Job<'_> {
    /// The number of blocks.
    #[inline]
    pub(super) fn contiguous_units(&self, inputs: &[&Tensor], out: &Tensor) -> usize {
        let (total, block) = (out.numel(), self.block());
        if total <= block { 1 } else { (total + self.shortening(inputs, out)).div_ceil(block) }
    }

    /// The number of elements by which the first block is shorter, so that others begin at a cache line
    /// of the output or, if lines aren't written as a whole, of the inputs: a chain reads those often.
    #[inline(never)]
    fn shortening(&self, inputs: &[&Tensor], out: &Tensor) -> usize {
        let own = self.misalignment(out.pinned_ptr());
        if self.non_temporal {
            return own;
        }
        let accesses = self.program.accesses();
        let direct = inputs.iter().zip(accesses).enumerate().filter(|(slot, (_, access))| {
            access.direct && access.size == accesses[inputs.len()].size && self.program.reads(*slot)
        });
        let mut of_input = direct.map(|(_, (input, _))| self.misalignment(input.pinned_ptr()));
        match of_input.next() {
            // Arrays of one library often begin at the same place of a line, but not at its beginning.
            Some(first) if of_input.all(|other| other == first) => first,
            _ => own,
        }
    }

    /// The outputs after the first one, with the numbers of their results.
    fn further(&self) -> impl Iterator<Item = (usize, &Tensor)> {
        self.more.iter().enumerate().map(|(at, out)| (at + 1, *out))
    }

    /// Computes the blocks with these numbers.
    #[inline]
    pub(super) fn flat(&self, inputs: &[&Tensor], out: &Tensor, units: Range<usize>) -> Result<()> {
        let program = self.program;
        let (total, block, register) = (out.numel(), self.block(), program.register_bytes());
        let (slots, output) = (program.slots(), program.output());
        let gathers = if program.gathers() { 2 * register } else { 0 };
        scratch::with(
            slots * register + WriteCombiner::bytes(register) + gathers,
            |own_register, list| {
                list.clear();
                list.extend((0..slots).map(|slot| own_register.wrapping_add(slot * register)));
                // SAFETY: kept values have registers of their own, with room for a block.
                unsafe { program.fill(list, self.values, total.min(block)) };
                let behind = own_register.wrapping_add(slots * register);
                let mut combiner = WriteCombiner::new(behind, register);
                let gathered = behind.wrapping_add(WriteCombiner::bytes(register));
                let result_direct = self.writes_directly(0);
                let misalignment = if total <= block { 0 } else { self.shortening(inputs, out) };
                // Blocks are for registers in memory: a chain needs none, and each block costs it as much as an
                // operation or two.
                let is_whole = total > block && result_direct && program.is_one_chain();
                let end = total.min((units.end * block).saturating_sub(misalignment));
                let mut at = (units.start * block).saturating_sub(misalignment);
                let prefetch_distance: SmallVec<[isize; 8]> = match self.non_temporal {
                    true => inputs_ahead(program, block),
                    false => SmallVec::new(),
                };
                while at < end {
                    let len = match is_whole {
                        true => end - at,
                        false => (block - if at == 0 { misalignment } else { 0 }).min(end - at),
                    };
                    for (slot, (input, access)) in inputs.iter().zip(program.accesses()).enumerate()
                    {
                        let from = input.pinned_ptr().wrapping_add(at * access.size);
                        if access.direct {
                            list[slot] = from;
                        } else if program.reads(slot) {
                            // SAFETY: the input is contiguous and as long as the output; a register has room
                            // for a block.
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
                    for (further, out) in self.further() {
                        if self.writes_directly(further) {
                            let size = out.dtype().size();
                            list[output + further] = out.pinned_ptr().wrapping_add(at * size);
                        }
                    }
                    let mut frame = Frame {
                        slots: list,
                        values: self.values,
                        tables: self.tables,
                        gather_offsets: gathered.cast(),
                        gathered: gathered.wrapping_add(register),
                    };
                    // SAFETY: every slot points to its register, or to a block of its operand; if the output
                    // is an input, its slot points to a register. The output has room for the block.
                    unsafe {
                        if self.combines_writes(len) {
                            self.run_combined(
                                &mut frame,
                                &mut combiner,
                                target,
                                len,
                                &prefetch_distance,
                            )?;
                        } else {
                            combiner.flush();
                            if !result_direct {
                                frame.slots[output] = own_register.wrapping_add(output * register);
                            }
                            program.run(&frame, len).map_err(|fault| program.error(fault))?;
                            if !result_direct {
                                write(self, list, target, 1, len, behind, &prefetch_distance);
                            }
                        }
                    }
                    for (further, out) in self.further() {
                        let target = out.pinned_ptr().wrapping_add(at * out.dtype().size());
                        // SAFETY: the block is computed, and the output has room for it.
                        unsafe { self.write_further(list, further, target, 1, len) };
                    }
                    at += len;
                }
                combiner.flush();
                Ok(())
            },
        )
    }
}
