//! Transposed inputs: tiles are read along one dimension and written along another.

use std::ops::Range;

use keyfold_core::Result;
use smallvec::SmallVec;

use super::Job;
use super::plan::{Cursor, Traversal, TraversalPlan};
use super::worker::{Worker, pointer};

/// Bytes of a tile along the dimension in which the transposed input is contiguous: two cache lines,
/// which processors fetch together.
const TILE_BYTES: usize = 128;
/// Elements of a tile along the innermost dimension, in which the output is contiguous. Measured with
/// `A + A.T` at 4096 x 4096, float32, one thread, CPU time: 128 bytes x 64 elements take 59 ms, x 128 43
/// ms, x 256 31 ms, x 512 28 ms; 64 bytes x 512 elements take 29 ms, 256 bytes x 512 elements 29 ms.
const TILE_COLUMNS: usize = 512;

/// Bytes of an input's tile, rounded up so that the next tile is aligned for any dtype.
fn buffer_bytes(plan: &TraversalPlan<'_>, slot: usize, elements: usize) -> usize {
    (elements * plan.operands[slot].size as usize).next_multiple_of(64)
}

impl Job<'_> {
    /// Whether an input is contiguous along the dimension before the innermost.
    fn is_transposed(&self, plan: &TraversalPlan<'_>, slot: usize) -> bool {
        let last = plan.dims().len() - 1;
        let operand = &plan.operands[slot];
        operand.advances
            && operand.access.is_some()
            && plan.row(last)[slot].abs() > operand.size
            && plan.row(last - 1)[slot] == operand.size
            && plan.row(last)[slot] % operand.size == 0
    }

    /// The size of a tile: rows and columns.
    fn tile(&self, plan: &TraversalPlan<'_>) -> (usize, usize) {
        let smallest = (0..self.program.inputs().len())
            .filter(|slot| self.is_transposed(plan, *slot))
            .map(|slot| plan.operands[slot].size as usize)
            .min();
        let rows = TILE_BYTES / smallest.unwrap_or(8);
        (
            rows.min(plan.dims()[plan.dims().len() - 2]),
            TILE_COLUMNS.min(self.program.block()).min(plan.inner()),
        )
    }

    /// The number of tiles, and the elements of a tile.
    pub(super) fn tiles(&self, plan: &TraversalPlan<'_>) -> (usize, usize) {
        let (rows, cols) = self.tile(plan);
        let (height, width) = (plan.dims()[plan.dims().len() - 2], plan.inner());
        let planes = plan.total / (height * width);
        let across = (width + self.row_misalignment(plan, cols)).div_ceil(cols);
        (planes * height.div_ceil(rows) * across, rows * cols)
    }

    /// Bytes of all transposed inputs' tiles.
    pub(super) fn tile_bytes(&self, plan: &TraversalPlan<'_>) -> usize {
        if plan.traversal != Traversal::Tiles {
            return 0;
        }
        let transposed =
            (0..self.program.inputs().len()).filter(|slot| self.is_transposed(plan, *slot));
        let (rows, cols) = self.tile(plan);
        transposed.map(|slot| buffer_bytes(plan, slot, rows * cols)).sum()
    }
}

impl Worker<'_, '_> {
    /// Computes tiles, in order along the dimension before the innermost.
    pub(super) fn tiles(&mut self, tiles: Range<usize>) -> Result<()> {
        let (program, plan) = (self.job.program, self.plan);
        let (last, out) = (plan.dims().len() - 1, program.output());
        let (height, width) = (plan.dims()[last - 1], plan.dims()[last]);
        let (rows, cols) = self.job.tile(plan);
        let misalignment = self.job.row_misalignment(plan, cols);
        let (down, across) = (height.div_ceil(rows), (width + misalignment).div_ceil(cols));
        let (outer, steps) = (plan.row(last - 1), plan.row(last));
        let gathers = if program.gathers() { 2 * program.register_bytes() } else { 0 };
        let mut workspace = self.workspace.wrapping_add(gathers);
        let mut transposed: SmallVec<[Option<*mut u8>; 8]> = SmallVec::new();
        for slot in 0..out {
            transposed.push(self.job.is_transposed(plan, slot).then_some(workspace));
            if transposed[slot].is_some() {
                workspace = workspace.wrapping_add(buffer_bytes(plan, slot, rows * cols));
            }
        }
        for (slot, buffer) in transposed.iter().enumerate() {
            self.prefetch_distance[slot] = if buffer.is_some() { 0 } else { outer[slot] };
        }
        let mut plane = tiles.start / (down * across);
        let mut cursor = Cursor::new(plan, 2, plane);
        for tile in tiles {
            if tile / (down * across) != plane {
                plane += 1;
                cursor.next(plan);
            }
            let (row, first) = (tile % down * rows, tile / down % across * cols);
            let col = first.saturating_sub(misalignment);
            let (rows, cols) =
                (rows.min(height - row), (first + cols - misalignment).min(width) - col);
            let at = |slot: usize, r: usize| {
                cursor.at[slot] + (row + r) as isize * outer[slot] + col as isize * steps[slot]
            };
            for (slot, buffer) in transposed.iter().enumerate() {
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
                for (slot, buffer) in transposed.iter().enumerate() {
                    let size = plan.operands[slot].size;
                    match buffer {
                        Some(buffer) => {
                            let from = buffer.wrapping_add(r * cols * size as usize);
                            self.load(slot, from.expose_provenance() as isize, size, cols);
                        }
                        None => self.load(slot, at(slot, r), steps[slot], cols),
                    }
                }
                self.compute(|slot| (at(slot, r), steps[slot]), cols)?;
            }
        }
        Ok(())
    }
}
