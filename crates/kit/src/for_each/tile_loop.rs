//! The traversal of a plan's tiles.

use keyfold_core::Result;
use smallvec::smallvec;

use super::copy::copy_block;
use super::measured_grain::run_with_measured_grain;
use super::plan::{LoopPlan, PlannedView};
use crate::evaluate::non_temporal;
use crate::pool::Schedule;
use crate::view::{FlatDims, Layout, ShortVec, Strided};

/// A row of elements for the body's loop.
///
/// Each input and the output are valid for `len` contiguous elements of their types; the inputs are
/// initialised and valid values; the output overlaps no input, and no other thread accesses it.
pub(super) struct Row<'a> {
    pub(super) inputs: &'a [*const u8],
    pub(super) out: *mut u8,
    pub(super) len: usize,
    /// The index of the first element.
    pub(super) index: &'a [usize],
    /// The axis of the index that the row runs along, and the index's step per element.
    pub(super) axis: usize,
    pub(super) step: isize,
}

/// Calls `row` for every row of the plan's tiles.
///
/// # Errors
/// As [`run_with_measured_grain`].
pub(super) fn run(
    operator: &str,
    schedule: Schedule,
    plan: &LoopPlan,
    row: &(dyn Fn(&Row<'_>) + Sync),
) -> Result<()> {
    run_with_measured_grain(operator, schedule, plan.tiles, |tiles| {
        let mut worker = Worker::new(plan);
        for tile in tiles {
            worker.tile(tile, row);
        }
        if plan.non_temporal {
            non_temporal::fence();
        }
    })
}

/// A cache line, as the unit of aligned blocks.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// The state of one thread that traverses tiles.
struct Worker<'a> {
    plan: &'a LoopPlan,
    /// The first index and the length of the tile, along each dimension.
    starts: ShortVec<usize>,
    lens: ShortVec<usize>,
    /// A block for each view that is gathered or scattered.
    blocks: ShortVec<Vec<Line>>,
    /// The steps in a block along the dimensions of a tile, in elements.
    block_steps: ShortVec<isize>,
    /// For each view, the address of the tile's first row, and the step to the next row.
    rows: ShortVec<(*mut u8, isize)>,
    inputs: ShortVec<*const u8>,
    index: ShortVec<usize>,
}

impl<'a> Worker<'a> {
    fn new(plan: &'a LoopPlan) -> Self {
        let dims = plan.sizes.len();
        let block = |view: &PlannedView| {
            let bytes = if view.direct { 0 } else { plan.block_bytes(view) };
            Vec::with_capacity(bytes.div_ceil(size_of::<Line>()))
        };
        Worker {
            plan,
            starts: smallvec![0; dims],
            lens: smallvec![0; dims],
            blocks: plan.views.iter().map(block).collect(),
            block_steps: smallvec![0; dims - plan.first],
            rows: smallvec![(std::ptr::null_mut(), 0); plan.views.len()],
            inputs: smallvec![std::ptr::null(); plan.views.len() - 1],
            index: plan.origin.clone(),
        }
    }

    fn tile(&mut self, tile: usize, row: &(dyn Fn(&Row<'_>) + Sync)) {
        let plan = self.plan;
        self.locate_tile(tile);
        for n in 0..plan.views.len() {
            self.rows[n] = self.gather_rows(n);
        }
        let last = plan.sizes.len() - 1;
        let (rows, len) = match plan.packed {
            true => (1, self.lens[plan.first..].iter().product()),
            false if plan.first == last => (1, self.lens[last]),
            false => (self.lens[last - 1], self.lens[last]),
        };
        self.index.copy_from_slice(&plan.origin);
        for (d, &(axis, step)) in plan.index.iter().enumerate() {
            self.move_index(axis, step * self.starts[d] as isize);
        }
        let (axis, step) = plan.index[last];
        for r in 0..rows {
            // The address after the last row is computed, but never used.
            let at = |&(first, step): &(*mut u8, isize)| first.wrapping_offset(r as isize * step);
            for (input, row) in self.inputs.iter_mut().zip(&self.rows[1..]) {
                *input = at(row);
            }
            let out = at(&self.rows[0]);
            row(&Row { inputs: &self.inputs, out, len, index: &self.index, axis, step });
            if rows > 1 {
                let (axis, step) = plan.index[last - 1];
                self.move_index(axis, step);
            }
        }
        self.scatter_output();
    }

    fn move_index(&mut self, axis: usize, by: isize) {
        if let Some(index) = self.index.get_mut(axis) {
            *index = index.wrapping_add_signed(by);
        }
    }

    /// Finds a tile's first index and length: one division per dimension and tile, none per element.
    fn locate_tile(&mut self, tile: usize) {
        let plan = self.plan;
        let mut rest = tile;
        for d in (0..plan.sizes.len()).rev() {
            let (size, chunk) = (plan.sizes[d], plan.tile_sizes[d]);
            let along = size.div_ceil(chunk);
            let start = rest % along * chunk;
            rest /= along;
            (self.starts[d], self.lens[d]) = (start, chunk.min(size - start));
        }
        let mut step = 1;
        for (block_steps, len) in self.block_steps.iter_mut().zip(&self.lens[plan.first..]).rev() {
            *block_steps = step;
            step *= *len as isize;
        }
    }

    /// The address of a view's first element in the tile.
    fn start(&self, view: &PlannedView) -> *mut u8 {
        let steps = view.steps.iter().zip(&self.starts);
        view.base.wrapping_offset(steps.map(|(step, start)| step * *start as isize).sum())
    }

    /// Returns the address of a view's first row and the step to the next; gathers an input whose rows
    /// aren't contiguous.
    fn gather_rows(&mut self, n: usize) -> (*mut u8, isize) {
        let plan = self.plan;
        let view = &plan.views[n];
        let second = plan.sizes.len().checked_sub(2).filter(|d| *d >= plan.first);
        if view.direct {
            return (self.start(view), second.map_or(0, |d| view.steps[d]));
        }
        let block = self.blocks[n].as_mut_ptr().cast::<u8>();
        if n > 0 {
            let lens = &self.lens[plan.first..];
            let count: usize = lens.iter().product();
            let block_steps: ShortVec<isize> =
                self.block_steps.iter().map(|step| step * view.size as isize).collect();
            // SAFETY: the tile is inside the traversal and so inside the view; the block has room for a
            // tile.
            unsafe {
                match &view.by_index {
                    Some(dims) => gather_by_index(view, dims, self.starts[0], count, block),
                    None => copy_block(
                        view.size,
                        (block, &block_steps),
                        (self.start(view), &view.steps[plan.first..]),
                        lens,
                    ),
                }
            }
            if view.is_bool {
                // SAFETY: the bytes were just written.
                let bytes = unsafe { std::slice::from_raw_parts_mut(block, count) };
                bytes.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
            }
        }
        let step = second.map_or(0, |d| self.block_steps[d - plan.first]);
        (block, step * view.size as isize)
    }

    /// Scatters the block of an output that isn't written directly.
    fn scatter_output(&mut self) {
        let plan = self.plan;
        let view = &plan.views[0];
        if view.direct {
            return;
        }
        let block = self.blocks[0].as_ptr().cast::<u8>();
        if plan.non_temporal {
            let (row, step) = self.rows[0];
            let second = plan.sizes.len().checked_sub(2).filter(|d| *d >= plan.first);
            let (rows, apart) = second.map_or((1, 0), |d| (self.lens[d], view.steps[d]));
            let bytes = self.lens[plan.sizes.len() - 1] * view.size;
            for r in 0..rows as isize {
                let to = self.start(view).wrapping_offset(r * apart);
                // SAFETY: the destination is a contiguous row of the tile, inside the view and of this
                // thread alone; its block was written.
                unsafe {
                    non_temporal::copy(
                        to,
                        row.wrapping_offset(r * step),
                        bytes,
                        std::iter::empty(),
                    );
                }
            }
            return;
        }
        let lens = &self.lens[plan.first..];
        let block_steps: ShortVec<isize> =
            self.block_steps.iter().map(|step| step * view.size as isize).collect();
        // SAFETY: the tile is inside the traversal and so inside the view; all rows of the block were
        // written; no other thread has this tile.
        unsafe {
            match &view.by_index {
                Some(dims) => scatter_by_index(view, dims, self.starts[0], lens[0], block),
                None => copy_block(
                    view.size,
                    (self.start(view), &view.steps[plan.first..]),
                    (block, &block_steps),
                    lens,
                ),
            }
        }
    }
}

/// The address of an element by its linear index.
fn by_index(view: &PlannedView, dims: &FlatDims, index: usize) -> *mut u8 {
    let place = Strided::flat_offset(dims, index);
    view.base.wrapping_offset(place * view.size as isize)
}

/// # Safety
/// The linear indices `start..start + count` are inside the view, and the block has room for them.
unsafe fn gather_by_index(
    view: &PlannedView,
    dims: &FlatDims,
    start: usize,
    count: usize,
    block: *mut u8,
) {
    for k in 0..count {
        let from = by_index(view, dims, start + k);
        // SAFETY: the caller's promise.
        unsafe { block.add(k * view.size).copy_from_nonoverlapping(from, view.size) };
    }
}

/// # Safety
/// As [`gather_by_index`], for writing.
unsafe fn scatter_by_index(
    view: &PlannedView,
    dims: &FlatDims,
    start: usize,
    count: usize,
    block: *const u8,
) {
    for k in 0..count {
        let to = by_index(view, dims, start + k);
        // SAFETY: the caller's promise.
        unsafe { to.copy_from_nonoverlapping(block.add(k * view.size), view.size) };
    }
}
