//! Transposed inputs: squares that are read along one dimension and written along another.

use std::ops::Range;

use keyfold_core::Result;
use smallvec::SmallVec;

use super::Job;
use super::drive::{Worker, pointer};
use super::plan::{Cursor, Plan, Way};

/// Bytes of a tile along the dimension in which the transposed input is contiguous: two lines of
/// the cache, which processors fetch together.
const HEIGHT: usize = 128;
/// Elements along the other one, in which the output is.
/// Measured with `A + A.T` at 4096 x 4096, float32, one thread, CPU time: 128 bytes x 64 elements 59 ms,
/// x 128 43, x 256 31, x 512 28; 64 bytes x 512 29, 256 x 512 29.
const WIDTH: usize = 512;

/// Bytes of an input's tile; the next one is aligned for any dtype.
fn buffer_bytes(plan: &Plan<'_>, slot: usize, elements: usize) -> usize {
    (elements * plan.operands[slot].size as usize).next_multiple_of(64)
}

impl Job<'_> {
    /// Whether an input is contiguous along the dimension before the innermost.
    fn is_turned(&self, plan: &Plan<'_>, slot: usize) -> bool {
        let last = plan.dims().len() - 1;
        let operand = &plan.operands[slot];
        operand.walked
            && operand.access.is_some()
            && plan.row(last)[slot].abs() > operand.size
            && plan.row(last - 1)[slot] == operand.size
            && plan.row(last)[slot] % operand.size == 0
    }

    /// The size of a tile: rows and columns.
    fn tile(&self, plan: &Plan<'_>) -> (usize, usize) {
        let smallest = (0..self.program.inputs().len())
            .filter(|slot| self.is_turned(plan, *slot))
            .map(|slot| plan.operands[slot].size as usize)
            .min();
        let rows = HEIGHT / smallest.unwrap_or(8);
        (
            rows.min(plan.dims()[plan.dims().len() - 2]),
            WIDTH.min(self.program.block()).min(plan.inner()),
        )
    }

    /// How many tiles there are, and how many elements they have.
    pub(super) fn tiles(&self, plan: &Plan<'_>) -> (usize, usize) {
        let (rows, cols) = self.tile(plan);
        let (height, width) = (plan.dims()[plan.dims().len() - 2], plan.inner());
        let planes = plan.total / (height * width);
        let across = (width + self.row_lead(plan, cols)).div_ceil(cols);
        (planes * height.div_ceil(rows) * across, rows * cols)
    }

    /// Bytes of all transposed inputs' tiles.
    pub(super) fn tile_bytes(&self, plan: &Plan<'_>) -> usize {
        if plan.way != Way::Tiles {
            return 0;
        }
        let turned = (0..self.program.inputs().len()).filter(|slot| self.is_turned(plan, *slot));
        let (rows, cols) = self.tile(plan);
        turned.map(|slot| buffer_bytes(plan, slot, rows * cols)).sum()
    }
}

impl Worker<'_, '_> {
    /// Tiles, one behind the other along the dimension before the innermost.
    pub(super) fn tiles(&mut self, tiles: Range<usize>) -> Result<()> {
        let (program, plan) = (self.job.program, self.plan);
        let (last, out) = (plan.dims().len() - 1, program.output());
        let (height, width) = (plan.dims()[last - 1], plan.dims()[last]);
        let (rows, cols) = self.job.tile(plan);
        let lead = self.job.row_lead(plan, cols);
        let (down, across) = (height.div_ceil(rows), (width + lead).div_ceil(cols));
        let (outer, steps) = (plan.row(last - 1), plan.row(last));
        let gathers = if program.gathers() { 2 * program.register_bytes() } else { 0 };
        let mut room = self.room.wrapping_add(gathers);
        let mut turned: SmallVec<[Option<*mut u8>; 8]> = SmallVec::new();
        for slot in 0..out {
            turned.push(self.job.is_turned(plan, slot).then_some(room));
            if turned[slot].is_some() {
                room = room.wrapping_add(buffer_bytes(plan, slot, rows * cols));
            }
        }
        for (slot, buffer) in turned.iter().enumerate() {
            self.ahead[slot] = if buffer.is_some() { 0 } else { outer[slot] };
        }
        let mut plane = tiles.start / (down * across);
        let mut cursor = Cursor::new(plan, 2, plane);
        for tile in tiles {
            if tile / (down * across) != plane {
                plane += 1;
                cursor.next(plan);
            }
            let (row, first) = (tile % down * rows, tile / down % across * cols);
            let col = first.saturating_sub(lead);
            let (rows, cols) = (rows.min(height - row), (first + cols - lead).min(width) - col);
            let at = |slot: usize, r: usize| {
                cursor.at[slot] + (row + r) as isize * outer[slot] + col as isize * steps[slot]
            };
            for (slot, buffer) in turned.iter().enumerate() {
                let operand = &plan.operands[slot];
                if let (Some(buffer), Some(access)) = (buffer, operand.access) {
                    let stride = steps[slot] / operand.size;
                    // SAFETY: the plan's addresses are the input's; the buffer has room for a tile.
                    unsafe {
                        (access.transpose)(*buffer, pointer(at(slot, 0)), stride, rows, cols);
                    };
                }
            }
            for r in 0..rows {
                for (slot, buffer) in turned.iter().enumerate() {
                    let size = plan.operands[slot].size;
                    match buffer {
                        Some(buffer) => {
                            let from = buffer.wrapping_add(r * cols * size as usize);
                            self.load(slot, from.expose_provenance() as isize, size, cols);
                        }
                        None => self.load(slot, at(slot, r), steps[slot], cols),
                    }
                }
                self.compute(at(out, r), steps[out], cols)?;
            }
        }
        Ok(())
    }
}
