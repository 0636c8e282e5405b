//! Walking the tiles of a plan.

use keyfold_core::Result;
use smallvec::smallvec;

use super::copy::copy_block;
use super::plan::{Plan, Stream};
use super::share::share;
use crate::evaluate::stream;
use crate::pool::Schedule;
use crate::view::{Few, FlatDims, Layout, Strided};

/// A row of elements for the body's loop.
///
/// Each input and the output are valid for `len` elements of their types, one behind the other; the
/// inputs are initialised and valid values; the output overlaps no input, and nobody else uses it.
pub(super) struct Row<'a> {
    pub(super) inputs: &'a [*const u8],
    pub(super) out: *mut u8,
    pub(super) len: usize,
    /// The index of the first element.
    pub(super) index: &'a [usize],
    /// The axis of the index that the row runs along, and how far each element moves.
    pub(super) axis: usize,
    pub(super) step: isize,
}

/// Calls `row` for all elements of the plan.
///
/// # Errors
/// As [`share`].
pub(super) fn run(
    operator: &str,
    schedule: Schedule,
    plan: &Plan,
    row: &(dyn Fn(&Row<'_>) + Sync),
) -> Result<()> {
    share(operator, schedule, plan.tiles, |tiles| {
        let mut worker = Worker::new(plan);
        for tile in tiles {
            worker.tile(tile, row);
        }
        if plan.streamed {
            stream::fence();
        }
    })
}

/// A cache line, for blocks that begin at one.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// What one thread needs to walk tiles.
struct Worker<'a> {
    plan: &'a Plan,
    /// Where the tile begins and how long it is, along each dimension.
    starts: Few<usize>,
    lens: Few<usize>,
    /// A block for each view that needs one.
    blocks: Few<Vec<Line>>,
    /// The steps in a block, along the dimensions of a tile.
    compact: Few<isize>,
    /// The first row of each view in this tile, and the step to the next.
    rows: Few<(*mut u8, isize)>,
    inputs: Few<*const u8>,
    index: Few<usize>,
}

impl<'a> Worker<'a> {
    fn new(plan: &'a Plan) -> Self {
        let dims = plan.sizes.len();
        let block = |stream: &Stream| {
            let bytes = if stream.direct { 0 } else { plan.block_bytes(stream) };
            Vec::with_capacity(bytes.div_ceil(size_of::<Line>()))
        };
        Worker {
            plan,
            starts: smallvec![0; dims],
            lens: smallvec![0; dims],
            blocks: plan.streams.iter().map(block).collect(),
            compact: smallvec![0; dims - plan.first],
            rows: smallvec![(std::ptr::null_mut(), 0); plan.streams.len()],
            inputs: smallvec![std::ptr::null(); plan.streams.len() - 1],
            index: plan.origin.clone(),
        }
    }

    fn tile(&mut self, tile: usize, row: &(dyn Fn(&Row<'_>) + Sync)) {
        let plan = self.plan;
        self.find(tile);
        for n in 0..plan.streams.len() {
            self.rows[n] = self.bring(n);
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
            // Beyond the last row nobody looks.
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
        self.give_back();
    }

    fn move_index(&mut self, axis: usize, by: isize) {
        if let Some(index) = self.index.get_mut(axis) {
            *index = index.wrapping_add_signed(by);
        }
    }

    /// Where a tile is: a division per dimension and tile, not per element.
    fn find(&mut self, tile: usize) {
        let plan = self.plan;
        let mut rest = tile;
        for d in (0..plan.sizes.len()).rev() {
            let (size, chunk) = (plan.sizes[d], plan.chunks[d]);
            let along = size.div_ceil(chunk);
            let start = rest % along * chunk;
            rest /= along;
            (self.starts[d], self.lens[d]) = (start, chunk.min(size - start));
        }
        let mut step = 1;
        for (compact, len) in self.compact.iter_mut().zip(&self.lens[plan.first..]).rev() {
            *compact = step;
            step *= *len as isize;
        }
    }

    /// A view's first element of the tile.
    fn start(&self, stream: &Stream) -> *mut u8 {
        let steps = stream.steps.iter().zip(&self.starts);
        stream.base.wrapping_offset(steps.map(|(step, start)| step * *start as isize).sum())
    }

    /// The first row of a view, and the step to the next; inputs are gathered where need be.
    fn bring(&mut self, n: usize) -> (*mut u8, isize) {
        let plan = self.plan;
        let stream = &plan.streams[n];
        let second = plan.sizes.len().checked_sub(2).filter(|d| *d >= plan.first);
        if stream.direct {
            return (self.start(stream), second.map_or(0, |d| stream.steps[d]));
        }
        let block = self.blocks[n].as_mut_ptr().cast::<u8>();
        if n > 0 {
            let lens = &self.lens[plan.first..];
            let count: usize = lens.iter().product();
            let compact: Few<isize> =
                self.compact.iter().map(|step| step * stream.size as isize).collect();
            // SAFETY: the tile is inside the walk and so inside the view; the block has room for a
            // tile.
            unsafe {
                match &stream.by_index {
                    Some(dims) => gather_by_index(stream, dims, self.starts[0], count, block),
                    None => copy_block(
                        stream.size,
                        (block, &compact),
                        (self.start(stream), &stream.steps[plan.first..]),
                        lens,
                    ),
                }
            }
            if stream.is_bool {
                // SAFETY: the bytes were just written.
                let bytes = unsafe { std::slice::from_raw_parts_mut(block, count) };
                bytes.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
            }
        }
        let step = second.map_or(0, |d| self.compact[d - plan.first]);
        (block, step * stream.size as isize)
    }

    /// Scatters the block of an output that isn't written in place.
    fn give_back(&mut self) {
        let plan = self.plan;
        let stream = &plan.streams[0];
        if stream.direct {
            return;
        }
        let block = self.blocks[0].as_ptr().cast::<u8>();
        if plan.streamed {
            let (row, step) = self.rows[0];
            let second = plan.sizes.len().checked_sub(2).filter(|d| *d >= plan.first);
            let (rows, apart) = second.map_or((1, 0), |d| (self.lens[d], stream.steps[d]));
            let bytes = self.lens[plan.sizes.len() - 1] * stream.size;
            for r in 0..rows as isize {
                let to = self.start(stream).wrapping_offset(r * apart);
                // SAFETY: a row of the tile, without gaps, inside the view and of this thread alone;
                // its block was written.
                unsafe {
                    stream::copy(to, row.wrapping_offset(r * step), bytes, std::iter::empty());
                }
            }
            return;
        }
        let lens = &self.lens[plan.first..];
        let compact: Few<isize> =
            self.compact.iter().map(|step| step * stream.size as isize).collect();
        // SAFETY: the tile is inside the walk and so inside the view; all rows of the block were
        // written; no other thread has this tile.
        unsafe {
            match &stream.by_index {
                Some(dims) => scatter_by_index(stream, dims, self.starts[0], lens[0], block),
                None => copy_block(
                    stream.size,
                    (self.start(stream), &stream.steps[plan.first..]),
                    (block, &compact),
                    lens,
                ),
            }
        }
    }
}

/// The address of an element by its linear index.
fn by_index(stream: &Stream, dims: &FlatDims, index: usize) -> *mut u8 {
    let place = Strided::flat_offset(dims, index);
    stream.base.wrapping_offset(place * stream.size as isize)
}

/// # Safety
/// The linear indices `start..start + count` are inside, and the block has room for them.
unsafe fn gather_by_index(
    stream: &Stream,
    dims: &FlatDims,
    start: usize,
    count: usize,
    block: *mut u8,
) {
    for k in 0..count {
        let from = by_index(stream, dims, start + k);
        // SAFETY: the caller's promise.
        unsafe { block.add(k * stream.size).copy_from_nonoverlapping(from, stream.size) };
    }
}

/// # Safety
/// As [`gather_by_index`], to write.
unsafe fn scatter_by_index(
    stream: &Stream,
    dims: &FlatDims,
    start: usize,
    count: usize,
    block: *const u8,
) {
    for k in 0..count {
        let to = by_index(stream, dims, start + k);
        // SAFETY: the caller's promise.
        unsafe { to.copy_from_nonoverlapping(block.add(k * stream.size), stream.size) };
    }
}
