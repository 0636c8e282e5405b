//! Reductions along the dimensions that are innermost in memory: lane by lane.
//!
//! Lanes are divided among threads. A long lane is divided into parts of [`PART`] elements, which depend
//! only on its length, and the parts' results are joined pairwise in order. So no result depends on the
//! number of threads.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use keyfold_core::Result;

use super::blocks::{Block, Input, Sink};
use super::cascade::Cascade;
use super::geometry::{Geometry, runs, steps};
pub(crate) use super::group::BLOCK;
use super::group::PARTIALS;
use super::kernels::LaneKernels;
use super::lanes::MAX_BLOCKS;
use super::parallel::{DisjointSlice, for_parts};

/// A reduction of lanes.
pub(crate) struct Rows<'a, S, R> {
    pub(crate) geometry: &'a Geometry,
    pub(crate) input: Input<S>,
    pub(crate) loops: &'a LaneKernels<S, R>,
    pub(crate) sink: Sink<R>,
}

/// The most elements of a lane that one thread reduces.
pub(crate) const PART: usize = MAX_BLOCKS * BLOCK;

/// Results that are buffered before they are written.
const RESULTS: usize = 128;

impl<S: Copy + 'static, R: Copy + Send + Sync> Rows<'_, S, R> {
    /// Reduces every lane; none is empty.
    ///
    /// # Errors
    /// Those of [`for_parts`](crate::reduce::parallel::for_parts).
    pub(crate) fn reduce(&self) -> Result<()> {
        let (lanes, len) = (self.geometry.lanes(), self.geometry.len());
        if len > PART {
            return self.reduce_in_parts(lanes, len);
        }
        for_parts(lanes, (PART / len).max(1), lanes * len, |some| {
            self.whole_lanes(some, len);
            Ok(())
        })
    }

    fn reduce_in_parts(&self, lanes: usize, len: usize) -> Result<()> {
        let parts = len.div_ceil(PART);
        let mut partial = vec![self.loops.empty; lanes * parts];
        let shared = DisjointSlice::new(&mut partial);
        // The first part of a single lane with an absorbing result, which later parts can't change.
        let last = AtomicUsize::new(usize::MAX);
        for_parts(lanes * parts, 1, lanes * len, |tasks| {
            let mut stage = new_stage();
            for task in tasks {
                if task > last.load(Ordering::Relaxed) {
                    break;
                }
                let (lane, start) = (task / parts, task % parts * PART);
                let mut x = 0;
                runs(&self.geometry.kept, lane..lane + 1, 1, |run| x = run.x);
                let mut result = self.part_of_lane(x, start..len.min(start + PART), &mut stage);
                if lanes == 1 && (self.loops.is_absorbing)(&result) {
                    last.fetch_min(task, Ordering::Relaxed);
                }
                (self.loops.add_offset)(&mut result, start);
                // SAFETY: each task writes to its own element.
                unsafe { shared.write(task, result) };
            }
            Ok(())
        })?;
        self.join(&partial);
        Ok(())
    }

    /// Reduces the one lane, of at most [`PART`] elements, as a part of a longer one.
    pub(crate) fn one_part(&self) -> R {
        self.part_of_lane(0, 0..self.geometry.len(), &mut new_stage())
    }

    /// Joins the results of each lane's parts in order, and writes the lanes' results.
    pub(crate) fn join(&self, partial: &[R]) {
        let (lanes, len) = (self.geometry.lanes(), self.geometry.len());
        let mut partial = partial.chunks_exact(len.div_ceil(PART));
        runs(&self.geometry.kept, 0..lanes, 1, |run| {
            let step = steps(&self.geometry.kept).0.out;
            for (i, partial) in (0..run.len as isize).zip(&mut partial) {
                let mut all = Cascade::new(self.loops.empty, self.loops.join);
                partial.iter().for_each(|p| all.push(*p));
                let result = all.finish().unwrap_or(self.loops.empty);
                // SAFETY: the traversal of the result stays inside it.
                unsafe { self.sink.put(&mut [result], run.out + i * step, 1) };
            }
        });
    }

    /// Reduces lanes one after another.
    fn whole_lanes(&self, some: Range<usize>, len: usize) {
        let (kept, _) = steps(&self.geometry.kept);
        let (inner, _) = steps(&self.geometry.reduced);
        let simple = self.geometry.reduced.len() == 1;
        let in_place = simple && self.input.direct() && inner.x == 1;
        let mut results = [self.loops.empty; RESULTS];
        let mut stage = new_stage();
        runs(&self.geometry.kept, some, 1, |run| {
            let mut done = 0;
            while done < run.len {
                let x = run.x + done as isize * kept.x;
                let mut count = RESULTS.min(run.len - done);
                if in_place {
                    let from = self.input.at(x).cast();
                    // SAFETY: the traversal stays inside the tensor, whose elements are of this type.
                    unsafe { (self.loops.lanes)(from, kept.x, len, &mut results[..count]) };
                } else if simple && len <= BLOCK / 2 {
                    count = count.min(BLOCK / len);
                    let block = Block::along(count, kept.x, len, inner.x);
                    // SAFETY: the traversal stays inside the tensor, and the block's elements fit.
                    unsafe { self.reduce_staged(x, block, len, &mut results[..count], &mut stage) };
                } else {
                    count = 1;
                    results[0] = self.part_of_lane(x, 0..len, &mut stage);
                }
                let out = run.out + done as isize * kept.out;
                // SAFETY: the traversal of the result stays inside it, and each lane has an element of
                // its own.
                unsafe { self.sink.put(&mut results[..count], out, kept.out) };
                done += count;
            }
        });
    }

    /// Reduces a range of the elements of the lane that begins at `x`.
    fn part_of_lane(&self, x: isize, range: Range<usize>, stage: &mut Stage<S>) -> R {
        let (inner, around) = steps(&self.geometry.reduced);
        let direct = self.input.direct() && inner.x == 1;
        let LaneKernels { empty, join, add_offset, is_absorbing, has_absorbing, .. } = *self.loops;
        let mut all = Cascade::new(empty, join);
        let (mut place, mut decided) = (0, None);
        let in_rows = direct && inner.size >= GATHER_BELOW;
        let at_once = if in_rows { PARTIALS * inner.size.min(BLOCK) } else { BLOCK };
        runs(&self.geometry.reduced, range, at_once, |run| {
            if in_rows && run.rows > 1 && run.len <= BLOCK && decided.is_none() {
                let mut found = [empty; PARTIALS];
                let found = &mut found[..run.rows];
                let from = self.input.at(x + run.x).cast();
                // SAFETY: the traversal stays inside the tensor, whose elements are of this type.
                unsafe { (self.loops.lanes)(from, around.x, run.len, found) };
                for found in found {
                    add_offset(found, place);
                    all.push(*found);
                    place += run.len;
                    decided = decided.or(is_absorbing(found).then_some(*found));
                }
                return;
            }
            // Short rows are gathered into blocks; long rows are cut into blocks.
            let gather = run.rows > 1 && !in_rows;
            let (rows, len) = if gather { (1, run.rows * run.len) } else { (run.rows, run.len) };
            let most = if direct { PART } else { BLOCK };
            for row in 0..rows as isize {
                let mut done = 0;
                while done < len && decided.is_none() {
                    // The first few elements often decide.
                    let most = if has_absorbing && place + done == 0 { FIRST_BLOCK } else { most };
                    let count = if gather { len } else { most.min(len - done) };
                    let at = x + run.x + row * around.x + done as isize * inner.x;
                    let mut found = [empty];
                    // SAFETY: the traversal stays inside the tensor, and the stage has room: several
                    // rows are at most a block.
                    unsafe {
                        if direct && !gather {
                            (self.loops.lanes)(self.input.at(at).cast(), 0, count, &mut found);
                        } else {
                            let rows = if gather { run.rows } else { 1 };
                            let len = count / rows;
                            let block = Block::along(rows, around.x, len, inner.x);
                            self.reduce_staged(at, block, count, &mut found, stage);
                        }
                    }
                    let [mut found] = found;
                    add_offset(&mut found, place + done);
                    all.push(found);
                    done += count;
                    decided = is_absorbing(&found).then_some(found);
                }
                place += len;
            }
        });
        decided.or(all.finish()).unwrap_or(empty)
    }

    /// Reduces lanes of `len` elements each, which are gathered first.
    ///
    /// # Safety
    /// The block is inside the tensor, has at most [`BLOCK`] elements, and these are the lanes'
    /// elements.
    unsafe fn reduce_staged(
        &self,
        x: isize,
        block: Block,
        len: usize,
        results: &mut [R],
        stage: &mut Stage<S>,
    ) {
        debug_assert!(block.rows * block.len <= BLOCK && len * results.len() <= BLOCK);
        // SAFETY: the caller's promise.
        unsafe {
            self.input.fill(x, block, stage.as_mut_ptr().cast());
            (self.loops.lanes)(stage.as_ptr().cast(), len as isize, len, results);
        }
    }
}

/// Staging memory for a block of elements.
type Stage<S> = [MaybeUninit<S>; BLOCK];

fn new_stage<S: Copy>() -> Stage<S> {
    [MaybeUninit::uninit(); BLOCK]
}

/// The length of a lane's first block if its elements may decide.
const FIRST_BLOCK: usize = 64;

/// Rows shorter than this are gathered.
const GATHER_BELOW: usize = 128;
