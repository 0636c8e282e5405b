//! Short rows: a block is formed of several.

use std::ops::Range;

use keyfold_core::Result;
use smallvec::SmallVec;

use super::PREFETCH_BLOCKS;
use super::plan::{Cursor, TraversalPlan};
use super::worker::{Worker, pointer};
use crate::interpreter::access::count;

/// Rows `from..from + rows` of the two innermost dimensions; a cursor has the position in the outer
/// dimensions.
struct Piece {
    from: usize,
    rows: usize,
    /// The number of the block's rows before this piece.
    done: usize,
}

/// A walk over rows in pieces that lie within one plane of the two innermost dimensions.
struct Planes<'a, 'p> {
    plan: &'a TraversalPlan<'p>,
    cursor: Cursor,
    from: usize,
}

impl<'a, 'p> Planes<'a, 'p> {
    fn new(plan: &'a TraversalPlan<'p>, row: usize) -> Planes<'a, 'p> {
        let height = plan.dims()[plan.dims().len() - 2];
        Planes { plan, cursor: Cursor::new(plan, 2, row / height), from: row % height }
    }

    /// Calls `f` for the pieces of the next rows.
    fn next(&mut self, rows: usize, mut f: impl FnMut(&Cursor, Piece)) {
        let height = self.plan.dims()[self.plan.dims().len() - 2];
        let mut done = 0;
        while done < rows {
            let piece =
                Piece { from: self.from, rows: (height - self.from).min(rows - done), done };
            done += piece.rows;
            self.from += piece.rows;
            f(&self.cursor, piece);
            if self.from == height {
                self.from = 0;
                self.cursor.next(self.plan);
            }
        }
    }
}

impl Worker<'_, '_> {
    /// Computes blocks of several short rows each. Operands that are dense over all dimensions are read
    /// in place, the others are loaded into registers; those that are the same in every row are loaded
    /// once.
    pub(super) fn short_rows(&mut self, rows: Range<usize>) -> Result<()> {
        let (program, plan) = (self.job.program, self.plan);
        let (inner, out, last) = (plan.inner(), program.output(), plan.dims().len() - 1);
        let (steps, outer) = (plan.row(last), plan.row(last - 1));
        let block = (self.job.block() / inner).max(1).min(rows.len());
        let mut loaded: SmallVec<[usize; 8]> = SmallVec::new();
        for (slot, step) in steps.iter().enumerate().take(out) {
            self.slots[slot] = self.own_register(slot);
            if !plan.operands[slot].advances || plan.is_dense(slot) {
                continue;
            }
            if plan.is_equal_in_rows(slot) {
                self.load_part(slot, 0, plan.operands[slot].base, [0, *step], [block, inner]);
            } else {
                loaded.push(slot);
            }
        }
        let outs = out..plan.operands.len();
        let dense: SmallVec<[usize; 8]> = (0..outs.end)
            .filter(|slot| plan.operands[*slot].advances && plan.is_dense(*slot))
            .collect();
        let outs_dense = outs.clone().all(|slot| dense.contains(&slot));
        for &slot in &dense {
            self.prefetch_distance[slot] =
                plan.operands[slot].size * (PREFETCH_BLOCKS * block * inner) as isize;
        }
        let mut planes = Planes::new(plan, rows.start);
        let mut written = (!outs_dense).then(|| Planes::new(plan, rows.start));
        for at in rows.clone().step_by(block) {
            let count = block.min(rows.end - at);
            let len = count * inner;
            let first = (at * inner) as isize;
            for &slot in dense.iter().filter(|slot| **slot < out) {
                let operand = &plan.operands[slot];
                self.load(slot, operand.base + first * operand.size, operand.size, len);
            }
            planes.next(count, |cursor, piece| {
                for &slot in &loaded {
                    let from = cursor.at[slot] + piece.from as isize * outer[slot];
                    let to = piece.done * inner;
                    self.load_part(slot, to, from, [outer[slot], steps[slot]], [piece.rows, inner]);
                }
            });
            let Some(written) = &mut written else {
                let place = |slot: usize| {
                    let operand = &plan.operands[slot];
                    (operand.base + first * operand.size, operand.size)
                };
                self.compute(place, len)?;
                continue;
            };
            for slot in outs.clone() {
                self.slots[slot] = self.own_register(slot);
            }
            self.execute(len)?;
            written.next(count, |cursor, piece| {
                for slot in outs.clone() {
                    let operand = &plan.operands[slot];
                    let Some(access) = operand.access else { continue };
                    let result = self.slots[program.result_slot(slot - out)];
                    let to = pointer(cursor.at[slot] + piece.from as isize * outer[slot]);
                    let from = result.wrapping_add(piece.done * inner * access.computed);
                    let steps = [outer[slot] / operand.size, steps[slot] / operand.size];
                    // SAFETY: the result's block is computed; the plan's addresses are the output's.
                    unsafe { (access.store_runs)(to, from, steps, [piece.rows, inner]) };
                }
            });
        }
        Ok(())
    }

    /// Loads runs into the slot's register, after its first `done` elements.
    fn load_part(
        &mut self,
        slot: usize,
        done: usize,
        from: isize,
        steps: [isize; 2],
        sizes: [usize; 2],
    ) {
        let operand = &self.plan.operands[slot];
        match operand.access {
            Some(access) => {
                let to = self.own_register(slot).wrapping_add(done * access.computed);
                let steps = steps.map(|step| step / operand.size);
                // SAFETY: the plan's addresses are those of elements of the input, and a block's
                // rows fit in its register.
                unsafe { (access.load_runs)(to, pointer(from), steps, sizes) };
            }
            None => {
                let mut to = self.own_register(slot).wrapping_add(done * 8);
                for row in 0..sizes[0] {
                    let first = from + row as isize * steps[0];
                    // SAFETY: as above.
                    unsafe { count(to, first as i64, steps[1] as i64, sizes[1]) };
                    to = to.wrapping_add(sizes[1] * 8);
                }
            }
        }
    }
}
