//! The gradients of softmax, `s * (g - sum(g * s))`, and of its logarithm, `g - exp(l) * sum(g)`, with one pass
//! over memory if a lane stays in the cache.

use std::ops::Range;

use keyfold_core::Result;
use keyfold_kit::isa::{self, Isa, Work};

use super::forward::TASK;
use super::loops::{gradient_sums, sum};
use super::memory::{BLOCK, Float, Source, Target};
use super::short_lanes::{Chunk, PARTIALS, Terms, are_short, chunk, groups, sums};
use crate::reduce::parallel::for_parts;

/// Lanes of `len` elements, `inner` lanes side by side.
#[derive(Clone, Copy)]
pub(super) struct SoftmaxBackward<A> {
    pub(super) grad: Source<A>,
    /// The results of softmax or of its logarithm.
    pub(super) output: Source<A>,
    pub(super) dx: Target<A>,
    pub(super) outer: usize,
    pub(super) len: usize,
    pub(super) inner: usize,
    pub(super) log: bool,
}

/// Lanes side by side that are computed together.
const PANEL: usize = 256;

/// Elements of a lane whose products are added before the sum is added to one in float64.
const FLUSH: usize = 64;

impl<A: Float> SoftmaxBackward<A> {
    #[inline(always)]
    fn element<I: Isa>(&self, g: A, s: A, sum: A) -> A {
        match self.log {
            true => g - s.exp::<I>() * sum,
            false => s * (g - sum),
        }
    }

    /// Computes the gradients of all lanes.
    ///
    /// # Errors
    /// Those of the thread pool.
    pub(super) fn run(self) -> Result<()> {
        let elements = self.outer * self.len * self.inner;
        if self.inner == 1 {
            let grain = (TASK / self.len.max(1)).max(1);
            return for_parts(self.outer, grain, elements, |lanes| {
                match are_short(self.len) {
                    true => isa::dispatch(ShortRows(self, lanes)),
                    false => isa::dispatch(Rows(self, lanes)),
                }
                Ok(())
            });
        }
        let panels = self.inner.div_ceil(PANEL);
        let grain = (TASK / (self.len * self.inner.min(PANEL)).max(1)).max(1);
        for_parts(self.outer * panels, grain, elements, |tasks| {
            for task in tasks {
                let start = task % panels * PANEL;
                let panel = start..self.inner.min(start + PANEL);
                isa::dispatch(Columns(self, task / panels, panel));
            }
            Ok(())
        })
    }
}

/// Lanes of at most a block whose elements are dense.
struct ShortRows<A>(SoftmaxBackward<A>, Range<usize>);

impl<A: Float> Work for ShortRows<A> {
    type Output = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        let ShortRows(job, lanes) = self;
        let mut buffers = [job.grad.buffer(), job.output.buffer(), job.dx.buffer()];
        let [of_grad, of_output, to] = &mut buffers;
        for group in groups(lanes, job.len) {
            let (start, count) = (group.start * job.len, group.len() * job.len);
            // SAFETY: the lanes lie inside the tensors, and this thread alone computes them.
            let (g, s, dx) = unsafe {
                let g = job.grad.read(start, count, of_grad);
                let s = job.output.read(start, count, of_output);
                (g, s, job.dx.begin(start, count, to))
            };
            let [sums] = match job.log {
                true => sums::<I, A, 1>(group.len(), job.len, Gradients(g, job.len)),
                false => sums::<I, A, 1>(group.len(), job.len, Products(g, s, job.len)),
            };
            let lanes = g.chunks_exact(job.len).zip(s.chunks_exact(job.len));
            for ((dx, (g, s)), sum) in dx.chunks_exact_mut(job.len).zip(lanes).zip(sums) {
                for ((dx, g), s) in dx.iter_mut().zip(g).zip(s) {
                    *dx = job.element::<I>(*g, *s, sum);
                }
            }
            // SAFETY: as above.
            unsafe { job.dx.end(start, count, to) };
        }
    }
}

/// The gradients of lanes of a length.
struct Gradients<'a, A>(&'a [A], usize);

impl<A: Float> Terms<A, 1> for Gradients<'_, A> {
    #[inline(always)]
    fn add<I: Isa>(&self, lane: usize, at: usize, [mut sums]: [Chunk<A>; 1]) -> [Chunk<A>; 1] {
        let g = chunk(self.0, lane * self.1 + at);
        for i in 0..PARTIALS {
            sums[i] = sums[i] + g[i];
        }
        [sums]
    }
}

/// The products of the gradients and the results of lanes of a length.
struct Products<'a, A>(&'a [A], &'a [A], usize);

impl<A: Float> Terms<A, 1> for Products<'_, A> {
    #[inline(always)]
    fn add<I: Isa>(&self, lane: usize, at: usize, [mut sums]: [Chunk<A>; 1]) -> [Chunk<A>; 1] {
        let at = lane * self.2 + at;
        let (g, s) = (chunk(self.0, at), chunk(self.1, at));
        for i in 0..PARTIALS {
            sums[i] = g[i].mul_add::<I>(s[i], sums[i]);
        }
        [sums]
    }
}

/// Lanes whose elements are dense.
struct Rows<A>(SoftmaxBackward<A>, Range<usize>);

impl<A: Float> Work for Rows<A> {
    type Output = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        let Rows(job, lanes) = self;
        let mut buffers = [job.grad.buffer(), job.output.buffer(), job.dx.buffer()];
        let [of_grad, of_output, to] = &mut buffers;
        for lane in lanes {
            let blocks = (0..job.len).step_by(BLOCK);
            let block = |at: usize| (lane * job.len + at, BLOCK.min(job.len - at));
            let mut all = 0.0;
            for at in blocks.clone() {
                let (start, len) = block(at);
                // SAFETY: the block lies inside the tensors.
                let part = unsafe {
                    let g = job.grad.read(start, len, of_grad);
                    match job.log {
                        true => sum(g),
                        false => {
                            let s = job.output.read(start, len, of_output);
                            gradient_sums::<I, A>(g, s, A::ZERO).1
                        }
                    }
                };
                all += part.to_f64();
            }
            let all = A::from_f64(all);
            for at in blocks {
                let (start, len) = block(at);
                // SAFETY: the block lies inside the tensors, and this thread alone computes the lane.
                unsafe {
                    let g = job.grad.read(start, len, of_grad);
                    let s = job.output.read(start, len, of_output);
                    let dx = job.dx.begin(start, len, to);
                    for ((dx, g), s) in dx.iter_mut().zip(g).zip(s) {
                        *dx = job.element::<I>(*g, *s, all);
                    }
                    job.dx.end(start, len, to);
                }
            }
        }
    }
}

/// A panel of lanes side by side, of one of the outer indices.
struct Columns<A>(SoftmaxBackward<A>, usize, Range<usize>);

impl<A: Float> Work for Columns<A> {
    type Output = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        let Columns(job, outer, panel) = self;
        let mut buffers = [job.grad.buffer(), job.output.buffer(), job.dx.buffer()];
        let [of_grad, of_output, to] = &mut buffers;
        let width = panel.len();
        let start = |row: usize| (outer * job.len + row) * job.inner + panel.start;
        let (mut all, mut sums) = ([0.0; PANEL], [A::ZERO; PANEL]);
        for row in 0..job.len {
            // SAFETY: the row's panel lies inside the tensors.
            let (g, s) = unsafe {
                let g = job.grad.read(start(row), width, of_grad);
                (g, job.output.read(start(row), width, of_output))
            };
            for ((sum, g), s) in sums.iter_mut().zip(g).zip(s) {
                *sum = g.mul_add::<I>(if job.log { A::ONE } else { *s }, *sum);
            }
            if (row + 1) % FLUSH == 0 || row + 1 == job.len {
                for (all, sum) in all.iter_mut().zip(&mut sums) {
                    *all += sum.to_f64();
                    *sum = A::ZERO;
                }
            }
        }
        let all = all.map(A::from_f64);
        for row in 0..job.len {
            // SAFETY: as above, and this thread alone computes the panel.
            unsafe {
                let g = job.grad.read(start(row), width, of_grad);
                let s = job.output.read(start(row), width, of_output);
                let dx = job.dx.begin(start(row), width, to);
                for (((dx, g), s), sum) in dx.iter_mut().zip(g).zip(s).zip(&all) {
                    *dx = job.element::<I>(*g, *s, *sum);
                }
                job.dx.end(start(row), width, to);
            }
        }
    }
}
