//! Normalization lane by lane: one pass over memory if a lane stays in the cache, and two otherwise.

use std::ops::Range;

use keyfold_core::Result;
use keyfold_kit::isa::{self, Isa, Work};

use super::layout::{Block, Layout};
use super::loops::{Moments, normalize, normalize_each};
use super::memory::{BLOCK, Float, Source, Target};
use super::short_lanes::{Chunk, PARTIALS, PerLane, Terms, are_short, chunk, groups, sums};
use crate::reduce::parallel::{DisjointSlice, for_parts};

/// Elements per task of one thread, approximately.
pub(super) const TASK: usize = 1 << 15;

/// Lanes from which each is computed by one thread.
const MANY_LANES: usize = 8;

/// A normalization of the lanes of a tensor.
pub(super) struct Forward<'a, A> {
    pub(super) layout: Layout,
    pub(super) x: Source<A>,
    pub(super) y: Target<A>,
    /// Weights and biases; both or none.
    pub(super) affine: Option<(&'a [A], &'a [A])>,
    pub(super) eps: f64,
    /// Whether the mean is subtracted.
    pub(super) centered: bool,
}

/// Computes the moments of blocks of a lane.
struct LaneMoments<'f, 'a, A>(&'f Forward<'a, A>, usize, Range<usize>);

impl<A: Float> Work for LaneMoments<'_, '_, A> {
    type Output = Moments;
    #[inline(always)]
    fn run<I: Isa>(self) -> Moments {
        self.0.moments::<I>(self.1, self.2, &mut self.0.x.buffer())
    }
}

/// Normalizes blocks of a lane with given statistics.
struct LaneResults<'f, 'a, A>(&'f Forward<'a, A>, usize, Range<usize>, (A, A));

impl<A: Float> Work for LaneResults<'_, '_, A> {
    type Output = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        let mut buffers = [self.0.x.buffer(), self.0.y.buffer()];
        self.0.write::<I>(self.1, self.2, self.3, &mut buffers);
    }
}

/// Normalizes whole lanes, and stores their moments.
struct WholeLanes<'f, 'a, A>(&'f Forward<'a, A>, Range<usize>, &'f DisjointSlice<'f, Moments>);

impl<A: Float> Work for WholeLanes<'_, '_, A> {
    type Output = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        let WholeLanes(forward, lanes, all) = self;
        let mut buffers = [forward.x.buffer(), forward.y.buffer()];
        let blocks = forward.layout.blocks();
        for lane in lanes {
            let moments = forward.moments::<I>(lane, 0..blocks, &mut buffers[0]);
            // SAFETY: each lane is one thread's.
            unsafe { all.write(lane, moments) };
            forward.write::<I>(lane, 0..blocks, forward.statistics(moments), &mut buffers);
        }
    }
}

/// Where the means and the reciprocal deviations of lanes are written; the means may not be wanted.
pub(super) type Statistics<A> = (Option<Target<A>>, Target<A>);

/// Normalizes lanes that are computed in groups, and writes their statistics.
struct ShortLanes<'f, 'a, A>(&'f Forward<'a, A>, Range<usize>, Statistics<A>);

impl<A: Float> Work for ShortLanes<'_, '_, A> {
    type Output = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        let ShortLanes(forward, lanes, (to_means, to_deviations)) = self;
        let (len, share) = (forward.layout.len, 1.0 / forward.layout.len as f64);
        let (mut of_x, mut to) = (forward.x.buffer(), forward.y.buffer());
        let mut of_statistics = to_deviations.buffer();
        for group in groups(lanes, len) {
            let (start, count) = (group.start * len, group.len() * len);
            // SAFETY: the lanes lie inside the tensors, and this thread alone computes them.
            let (x, y) = unsafe {
                (forward.x.read(start, count, &mut of_x), forward.y.begin(start, count, &mut to))
            };
            let mut means = [A::ZERO; PARTIALS];
            if forward.centered {
                let [sums] = sums::<I, A, 1>(group.len(), len, Elements { x, len });
                means = sums.map(|sum| A::from_f64(sum.to_f64() * share));
            }
            let squares = SquaredDistances { x, len, means: &means };
            let [squares] = sums::<I, A, 1>(group.len(), len, squares);
            let deviation = |own: A| 1.0 / (own.to_f64() * share + forward.eps).sqrt();
            let deviations = squares.map(|own| A::from_f64(deviation(own)));
            let rows = x.chunks_exact(len).zip(y.chunks_exact_mut(len));
            for ((lane, (x, y)), own) in
                group.clone().zip(rows).zip(means.into_iter().zip(deviations))
            {
                match forward.affine {
                    None => normalize::<I, A>(x, y, own, (A::ONE, A::ZERO)),
                    Some((w, b)) => {
                        let first = forward.layout.weight_at(lane, 0);
                        let (w, b) = (&w[first..first + len], &b[first..first + len]);
                        normalize_each::<I, A>(x, y, own, (w, b));
                    }
                }
            }
            // SAFETY: as above; each lane has one mean and one deviation.
            unsafe {
                forward.y.end(start, count, &to);
                let (start, count) = (group.start, group.len());
                for (target, own) in [(to_means, means), (Some(to_deviations), deviations)] {
                    let Some(target) = target else { continue };
                    let to = target.begin(start, count, &mut of_statistics);
                    to.copy_from_slice(&own[..count]);
                    target.end(start, count, &of_statistics);
                }
            }
        }
    }
}

/// The elements of lanes.
struct Elements<'a, A> {
    x: &'a [A],
    len: usize,
}

impl<A: Float> Terms<A, 1> for Elements<'_, A> {
    #[inline(always)]
    fn add<I: Isa>(&self, lane: usize, at: usize, [mut sums]: [Chunk<A>; 1]) -> [Chunk<A>; 1] {
        let x = chunk(self.x, lane * self.len + at);
        for i in 0..PARTIALS {
            sums[i] = sums[i] + x[i];
        }
        [sums]
    }
}

/// The squared distances of lanes' elements from their means.
struct SquaredDistances<'a, A> {
    x: &'a [A],
    len: usize,
    means: &'a PerLane<A>,
}

impl<A: Float> Terms<A, 1> for SquaredDistances<'_, A> {
    #[inline(always)]
    fn add<I: Isa>(&self, lane: usize, at: usize, [mut sums]: [Chunk<A>; 1]) -> [Chunk<A>; 1] {
        let (x, mean) = (chunk(self.x, lane * self.len + at), self.means[lane]);
        for i in 0..PARTIALS {
            let distance = x[i] - mean;
            sums[i] = distance.mul_add::<I>(distance, sums[i]);
        }
        [sums]
    }
}

impl<A: Float> Forward<'_, A> {
    /// Normalizes all lanes, and writes their statistics, which are dense.
    ///
    /// # Errors
    /// Those of the thread pool.
    pub(super) fn run_into(&self, statistics: Statistics<A>) -> Result<()> {
        let Layout { lanes, len, per_element, .. } = self.layout;
        if per_element && are_short(len) {
            return for_parts(lanes, (TASK / len).max(1), lanes * len, |lanes| {
                isa::dispatch(ShortLanes(self, lanes, statistics));
                Ok(())
            });
        }
        let moments = self.run()?;
        let mut buffer = statistics.1.buffer();
        for first in (0..lanes).step_by(BLOCK) {
            let some = &moments[first..lanes.min(first + BLOCK)];
            for (target, is_mean) in [(statistics.0, true), (Some(statistics.1), false)] {
                let Some(target) = target else { continue };
                // SAFETY: each lane has one mean and one deviation.
                unsafe {
                    let to = target.begin(first, some.len(), &mut buffer);
                    for (to, own) in to.iter_mut().zip(some) {
                        let (mean, deviation) = self.statistics(*own);
                        *to = if is_mean { mean } else { deviation };
                    }
                    target.end(first, some.len(), &buffer);
                }
            }
        }
        Ok(())
    }

    /// The mean and the reciprocal deviation of a lane's moments.
    #[inline(always)]
    fn statistics(&self, moments: Moments) -> (A, A) {
        (A::from_f64(moments.mean), A::from_f64(moments.reciprocal_deviation(self.eps)))
    }

    #[inline(always)]
    fn moments<I: Isa>(&self, lane: usize, blocks: Range<usize>, buffer: &mut [A]) -> Moments {
        let mut all = Moments::default();
        for block in self.layout.blocks_of(lane, blocks) {
            // SAFETY: the layout's blocks lie inside the tensor.
            let x = unsafe { self.x.read(block.start, block.len, buffer) };
            all = all.join_as(Moments::of_block::<I, A>(x, self.centered), self.centered);
        }
        all
    }

    #[inline(always)]
    fn write<I: Isa>(
        &self,
        lane: usize,
        blocks: Range<usize>,
        statistics: (A, A),
        [from, to]: &mut [Vec<A>; 2],
    ) {
        for block in self.layout.blocks_of(lane, blocks) {
            let Block { start, len, in_lane, segment } = block;
            let at = self.layout.weight_at(lane, segment);
            // SAFETY: the layout's blocks lie inside the tensors, and this thread alone computes the block.
            let (x, y) = unsafe { (self.x.read(start, len, from), self.y.begin(start, len, to)) };
            match self.affine {
                None => normalize::<I, A>(x, y, statistics, (A::ONE, A::ZERO)),
                Some((w, b)) if self.layout.per_element => {
                    let range = at + in_lane..at + in_lane + len;
                    normalize_each::<I, A>(x, y, statistics, (&w[range.clone()], &b[range]));
                }
                Some((w, b)) => normalize::<I, A>(x, y, statistics, (w[at], b[at])),
            }
            // SAFETY: as above.
            unsafe { self.y.end(start, len, to) };
        }
    }

    /// Normalizes all lanes, and returns their moments.
    ///
    /// # Errors
    /// Those of the thread pool.
    pub(super) fn run(&self) -> Result<Vec<Moments>> {
        let Layout { lanes, .. } = self.layout;
        let (blocks, elements) = (self.layout.blocks(), self.layout.elements());
        let mut all = vec![Moments::default(); lanes];
        if lanes >= MANY_LANES || blocks < 2 * TASK / BLOCK {
            let grain = (TASK / self.layout.lane_len().max(1)).max(1);
            let shared = DisjointSlice::new(&mut all);
            for_parts(lanes, grain, elements, |lanes| {
                isa::dispatch(WholeLanes(self, lanes, &shared));
                Ok(())
            })?;
            return Ok(all);
        }
        // A few long lanes, each computed by several threads.
        let (part, parts) = (TASK / BLOCK, blocks.div_ceil(TASK / BLOCK));
        let range = |task: usize| {
            let start = task % parts * part;
            (task / parts, start..blocks.min(start + part))
        };
        let mut partial = vec![Moments::default(); lanes * parts];
        let shared = DisjointSlice::new(&mut partial);
        for_parts(lanes * parts, 1, elements, |tasks| {
            for task in tasks {
                let (lane, blocks) = range(task);
                // SAFETY: each task writes its own element.
                unsafe { shared.write(task, isa::dispatch(LaneMoments(self, lane, blocks))) };
            }
            Ok(())
        })?;
        for (all, partial) in all.iter_mut().zip(partial.chunks_exact(parts)) {
            let join = |all: Moments, own: &Moments| all.join_as(*own, self.centered);
            *all = partial.iter().fold(Moments::default(), join);
        }
        let statistics: Vec<(A, A)> = all.iter().map(|own| self.statistics(*own)).collect();
        for_parts(lanes * parts, 1, elements, |tasks| {
            for task in tasks {
                let (lane, blocks) = range(task);
                isa::dispatch(LaneResults(self, lane, blocks, statistics[lane]));
            }
            Ok(())
        })?;
        Ok(all)
    }

    /// Normalizes all lanes with given statistics: their means and reciprocal deviations.
    ///
    /// # Errors
    /// Those of the thread pool.
    pub(super) fn run_with(&self, statistics: &[(A, A)]) -> Result<()> {
        let Layout { lanes, .. } = self.layout;
        let blocks = self.layout.blocks();
        let part = (TASK / self.layout.len.clamp(1, BLOCK)).max(1);
        let parts = blocks.div_ceil(part);
        for_parts(lanes * parts, 1, self.layout.elements(), |tasks| {
            for task in tasks {
                let (lane, start) = (task / parts, task % parts * part);
                let blocks = start..blocks.min(start + part);
                isa::dispatch(LaneResults(self, lane, blocks, statistics[lane]));
            }
            Ok(())
        })
    }
}
