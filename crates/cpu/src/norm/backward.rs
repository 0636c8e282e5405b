//! The gradients of normalizations, lane by lane: of the elements, and sums for those of weights and biases.

use std::ops::Range;

use keyfold_core::Result;
use keyfold_kit::isa::{self, Isa, Work};

use super::forward::TASK;
use super::layout::{Block, Layout};
use super::loops::{
    Factors, gradient, gradient_each, gradient_sums, gradient_sums_each, normalize,
    weighted_gradient_sums,
};
use super::memory::{BLOCK, Float, Source, Target};
use super::short_lanes::are_short;
use super::short_rows::{FLUSH, LONGEST, ShortRows};
use crate::reduce::parallel::{DisjointSlice, for_parts};

/// The most parts of lanes whose gradients of weights are added up apart.
const MOST_PARTS: usize = 16;

/// The gradient of a normalization of the lanes of a tensor.
pub(super) struct Backward<'a, A> {
    pub(super) layout: Layout,
    pub(super) grad: Source<A>,
    pub(super) x: Source<A>,
    /// The destination of the elements' gradients, if they are wanted.
    pub(super) dx: Option<Target<A>>,
    /// The weights: always there if each element has one.
    pub(super) weight: Option<&'a [A]>,
    /// The mean and the reciprocal deviation of each lane.
    pub(super) statistics: &'a [(A, A)],
    /// Whether the mean was subtracted.
    pub(super) centered: bool,
    /// Whether the statistics are constants, not functions of the elements.
    pub(super) constant: bool,
}

/// The gradients of all weights and biases.
pub(super) type WeightGradients = (Vec<f64>, Vec<f64>);

/// The sums of a block: of the gradients, and of their products with the distances from the mean.
type Sums = (f64, f64);

/// Computes the sums of blocks of a lane with one weight per segment.
struct BlockSums<'f, 'a, A>(&'f Backward<'a, A>, usize, Range<usize>, &'f DisjointSlice<'f, Sums>);

impl<A: Float> Work for BlockSums<'_, '_, A> {
    type Output = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        let BlockSums(backward, lane, blocks, sums) = self;
        let mut buffers = [backward.grad.buffer(), backward.x.buffer()];
        let [of_grad, of_x] = &mut buffers;
        let (mean, _) = backward.statistics[lane];
        let all = backward.layout.blocks();
        for (number, block) in blocks.clone().zip(backward.layout.blocks_of(lane, blocks)) {
            // SAFETY: the layout's blocks lie inside the tensors; each block is one thread's.
            unsafe {
                let g = backward.grad.read(block.start, block.len, of_grad);
                let x = backward.x.read(block.start, block.len, of_x);
                let (sum, product) = gradient_sums::<I, A>(g, x, mean);
                sums.write(lane * all + number, (sum.to_f64(), product.to_f64()));
            }
        }
    }
}

/// Writes the gradients of blocks of a lane.
struct BlockGradients<'f, 'a, A>(&'f Backward<'a, A>, usize, Range<usize>, Factors<A>);

impl<A: Float> Work for BlockGradients<'_, '_, A> {
    type Output = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        let BlockGradients(backward, lane, blocks, factors) = self;
        backward.write::<I>(lane, blocks, factors, &mut backward.buffers());
    }
}

/// Computes the gradients of rows with one weight per element. The weights follow, the rows, and the sums for the
/// gradients of weights and biases, which are empty if these aren't wanted.
struct Rows<'f, 'a, A>(&'f Backward<'a, A>, &'a [A], Range<usize>, [&'f mut [f64]; 2]);

impl<A: Float> Work for Rows<'_, '_, A> {
    type Output = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        let Rows(backward, weights, lanes, [all_dw, all_db]) = self;
        let layout = &backward.layout;
        let (wanted, blocks) = (!all_dw.is_empty(), layout.blocks());
        let mut buffers = backward.buffers();
        let (mut dw, mut db) = (vec![A::ZERO; all_dw.len()], vec![A::ZERO; all_db.len()]);
        for (count, lane) in lanes.clone().enumerate() {
            let (mean, rstd) = backward.statistics[lane];
            let first = layout.weight_at(lane, 0);
            let (mut sum, mut product) = (0.0, 0.0);
            let [of_grad, of_x, _] = &mut buffers;
            for block in layout.blocks_of(lane, 0..blocks) {
                // SAFETY: the layout's blocks lie inside the tensors.
                let (g, x) = unsafe {
                    (
                        backward.grad.read(block.start, block.len, of_grad),
                        backward.x.read(block.start, block.len, of_x),
                    )
                };
                let range = first + block.in_lane..first + block.in_lane + block.len;
                let w = &weights[range.clone()];
                let part = match wanted {
                    false => weighted_gradient_sums::<I, A>((g, x, w), mean),
                    true => gradient_sums_each::<I, A>(
                        (g, x, w),
                        (mean, rstd),
                        (&mut dw[range.clone()], &mut db[range]),
                    ),
                };
                sum += part.0.to_f64();
                product += part.1.to_f64();
            }
            if backward.dx.is_some() {
                let factors = backward.factors(rstd, (sum, product));
                backward.write::<I>(lane, 0..blocks, factors, &mut buffers);
            }
            if wanted && ((count + 1) % (FLUSH * layout.groups) == 0 || lane + 1 == lanes.end) {
                for (all, part) in [(&mut *all_dw, &mut dw), (&mut *all_db, &mut db)] {
                    for (all, part) in all.iter_mut().zip(part) {
                        *all += part.to_f64();
                        *part = A::ZERO;
                    }
                }
            }
        }
    }
}

impl<A: Float> Backward<'_, A> {
    /// Makes the buffers for conversions of gradients, elements and results.
    pub(super) fn buffers(&self) -> [Vec<A>; 3] {
        let of_results = self.dx.map_or_else(Vec::new, |dx| dx.buffer());
        [self.grad.buffer(), self.x.buffer(), of_results]
    }

    #[inline(always)]
    pub(super) fn factors(&self, rstd: A, sums: Sums) -> Factors<A> {
        match self.constant {
            true => Factors::of_constants(rstd.to_f64()),
            false => {
                let count = self.layout.lane_len() as f64;
                Factors::new(rstd.to_f64(), count, sums, self.centered)
            }
        }
    }

    #[inline(always)]
    fn write<I: Isa>(
        &self,
        lane: usize,
        blocks: Range<usize>,
        factors: Factors<A>,
        [of_grad, of_x, to]: &mut [Vec<A>; 3],
    ) {
        let Some(dx) = self.dx else { return };
        let (mean, _) = self.statistics[lane];
        for block in self.layout.blocks_of(lane, blocks) {
            let Block { start, len, in_lane, segment } = block;
            let at = self.layout.weight_at(lane, segment);
            // SAFETY: the layout's blocks lie inside the tensors, and this thread alone computes the block.
            let (g, to_dx) =
                unsafe { (self.grad.read(start, len, of_grad), dx.begin(start, len, to)) };
            if self.constant {
                let w = self.weight.map_or(A::ONE, |w| w[at]);
                normalize::<I, A>(g, to_dx, (A::ZERO, factors.of_grad), (w, A::ZERO));
            } else {
                // SAFETY: as above.
                let x = unsafe { self.x.read(start, len, of_x) };
                match self.weight {
                    None => gradient::<I, A>((g, x), to_dx, (mean, A::ONE), factors),
                    Some(w) if self.layout.per_element => {
                        let w = &w[at + in_lane..at + in_lane + len];
                        gradient_each::<I, A>((g, x, w), to_dx, mean, factors);
                    }
                    Some(w) => gradient::<I, A>((g, x), to_dx, (mean, w[at]), factors),
                }
            }
            // SAFETY: as above.
            unsafe { dx.end(start, len, to) };
        }
    }

    /// Computes the gradients; those of weights and biases are zeros if they aren't `wanted`.
    ///
    /// # Errors
    /// Those of the thread pool.
    pub(super) fn run(&self, wanted: bool) -> Result<WeightGradients> {
        match self.layout.per_element {
            true => self.run_rows(wanted),
            false => self.run_segments(wanted),
        }
    }

    fn rows(&self, lanes: Range<usize>, dw: &mut [f64], db: &mut [f64]) {
        let weights = self.weight.unwrap_or_default();
        match are_short(self.layout.len) && self.layout.len <= LONGEST {
            true => isa::dispatch(ShortRows(self, weights, lanes, [dw, db])),
            false => isa::dispatch(Rows(self, weights, lanes, [dw, db])),
        }
    }

    fn run_rows(&self, wanted: bool) -> Result<WeightGradients> {
        let Layout { lanes, .. } = self.layout;
        let elements = self.layout.elements();
        if !wanted {
            let grain = (TASK / self.layout.lane_len().max(1)).max(1);
            for_parts(lanes, grain, elements, |lanes| {
                self.rows(lanes, &mut [], &mut []);
                Ok(())
            })?;
            return Ok(Default::default());
        }
        // The parts depend only on sizes, so that the sums don't depend on the number of threads.
        let weights = self.layout.weights();
        let parts = (elements / (8 * weights).max(TASK)).clamp(1, MOST_PARTS);
        let part = lanes.div_ceil(parts);
        let mut sums = vec![0.0; 2 * parts * weights];
        let shared = DisjointSlice::new(&mut sums);
        for_parts(parts, 1, elements, |tasks| {
            for task in tasks {
                let (start, end) = (lanes.min(task * part), lanes.min((task + 1) * part));
                // SAFETY: each task has a range of its own.
                let own = unsafe { shared.part(2 * task * weights..2 * (task + 1) * weights) };
                let (dw, db) = own.split_at_mut(weights);
                self.rows(start..end, dw, db);
            }
            Ok(())
        })?;
        let (first, others) = sums.split_at_mut(2 * weights);
        for part in others.chunks_exact(2 * weights) {
            first.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
        }
        Ok((first[..weights].to_vec(), first[weights..].to_vec()))
    }

    fn run_segments(&self, wanted: bool) -> Result<WeightGradients> {
        let Layout { lanes, .. } = self.layout;
        let (blocks, elements) = (self.layout.blocks(), self.layout.elements());
        let mut sums = vec![(0.0, 0.0); lanes * blocks];
        let shared = DisjointSlice::new(&mut sums);
        let needs_sums = wanted || !self.constant;
        let grain = (TASK / self.layout.lane_len().max(1)).max(1);
        let is_split = grain == 1 && lanes < 8 && blocks > 1;
        let part = if is_split { (TASK / self.layout.len.min(BLOCK)).max(1) } else { blocks };
        let parts = blocks.div_ceil(part);
        if needs_sums {
            for_parts(lanes * parts, grain, elements, |tasks| {
                for task in tasks {
                    let (lane, start) = (task / parts, task % parts * part);
                    let range = start..blocks.min(start + part);
                    isa::dispatch(BlockSums(self, lane, range, &shared));
                    if !is_split {
                        // The lane is in the cache, so its gradients follow at once.
                        // SAFETY: this task alone computes the lane.
                        let own = unsafe { shared.part(lane * blocks..(lane + 1) * blocks) };
                        let factors = self.lane_factors(lane, own);
                        isa::dispatch(BlockGradients(self, lane, 0..blocks, factors));
                    }
                }
                Ok(())
            })?;
        }
        if is_split || !needs_sums {
            for_parts(lanes * parts, grain, elements, |tasks| {
                for task in tasks {
                    let (lane, start) = (task / parts, task % parts * part);
                    let range = start..blocks.min(start + part);
                    let factors =
                        self.lane_factors(lane, &sums[lane * blocks..(lane + 1) * blocks]);
                    isa::dispatch(BlockGradients(self, lane, range, factors));
                }
                Ok(())
            })?;
        }
        let weights = if wanted { self.layout.weights() } else { 0 };
        let (mut dw, mut db) = (vec![0.0; weights], vec![0.0; weights]);
        if wanted {
            for lane in 0..lanes {
                let rstd = self.statistics[lane].1.to_f64();
                let own = &sums[lane * blocks..(lane + 1) * blocks];
                for (block, (sum, product)) in self.layout.blocks_of(lane, 0..blocks).zip(own) {
                    let at = self.layout.weight_at(lane, block.segment);
                    dw[at] += product * rstd;
                    db[at] += sum;
                }
            }
        }
        Ok((dw, db))
    }

    /// The factors of a lane from the sums of its blocks.
    fn lane_factors(&self, lane: usize, sums: &[Sums]) -> Factors<A> {
        let (mut sum, mut product) = (0.0, 0.0);
        for (block, own) in self.layout.blocks_of(lane, 0..sums.len()).zip(sums) {
            let at = self.layout.weight_at(lane, block.segment);
            let w = self.weight.map_or(1.0, |w| w[at].to_f64());
            sum += w * own.0;
            product += w * own.1;
        }
        self.factors(self.statistics[lane].1, (sum, product))
    }
}
