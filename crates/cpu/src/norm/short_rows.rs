//! The gradients of rows that are computed in groups: the sums along rows first; then the gradients of elements,
//! and those of weights and biases, chunk of columns by chunk of columns, for all rows of a group.

use std::ops::Range;

use keyfold_kit::interpreter::access::prefetch;
use keyfold_kit::isa::{Isa, Work};

use super::backward::Backward;
use super::loops::{Factors, gradient_each};
use super::memory::Float;
use super::short_lanes::{Chunk, PARTIALS, PerLane, Terms, chunk, groups, last_chunk, sums};

/// The longest row that is computed in a group.
pub(super) const LONGEST: usize = 128;

/// Chunks of columns that are computed side by side: rows are then read in the order in which they lie, which the
/// processor foresees, and the sums of the chunks fit into registers.
const WIDE: usize = 4;

/// Rows whose gradients of weights are added up before the sum is added to one in float64.
pub(super) const FLUSH: usize = 64;

/// Computes the gradients of rows with one weight per element. The weights follow, the rows, and the sums for the
/// gradients of weights and biases, which are empty if these aren't wanted.
pub(super) struct ShortRows<'f, 'a, A>(
    pub(super) &'f Backward<'a, A>,
    pub(super) &'a [A],
    pub(super) Range<usize>,
    pub(super) [&'f mut [f64]; 2],
);

impl<A: Float> Work for ShortRows<'_, '_, A> {
    type Output = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        let ShortRows(backward, weights, lanes, mut all) = self;
        let (layout, len) = (&backward.layout, backward.layout.len);
        let mut buffers = backward.buffers();
        let [of_grad, of_x, to] = &mut buffers;
        let [mut dw, mut db] = [0, 1].map(|i: usize| vec![A::ZERO; all[i].len()]);
        let mut added = 0;
        for group in groups(lanes.clone(), len) {
            let (start, count) = (group.start * len, group.len() * len);
            // SAFETY: the lanes lie inside the tensors, and this thread alone computes them.
            let (g, x, dx) = unsafe {
                let g = backward.grad.read(start, count, of_grad);
                let x = backward.x.read(start, count, of_x);
                (g, x, backward.dx.map(|dx| dx.begin(start, count, to)))
            };
            let mut weights_at = [0; PARTIALS];
            let (mut means, mut deviations) = ([A::ZERO; PARTIALS], [A::ZERO; PARTIALS]);
            for (i, lane) in group.clone().enumerate() {
                weights_at[i] = layout.weight_at(lane, 0);
                (means[i], deviations[i]) = backward.statistics[lane];
            }
            let at_dx = dx.as_ref().map_or(x.as_ptr(), |dx| dx.as_ptr());
            let rows =
                Rows { g, x, to: at_dx, weights, weights_at: &weights_at, means: &means, len };
            let mut factors = [Factors::of_constants(0.0); PARTIALS];
            if dx.is_some() {
                let [sums, products] = sums::<I, A, 2>(group.len(), len, rows);
                for (i, factors) in factors.iter_mut().enumerate() {
                    let sums = (sums[i].to_f64(), products[i].to_f64());
                    *factors = backward.factors(deviations[i], sums);
                }
            }
            match dx {
                Some(dx) if all[0].is_empty() => rows.gradients::<I>(dx, &factors),
                dx => {
                    let columns = Columns { rows, deviations: &deviations, factors: &factors };
                    // Rows with the same weights are computed together.
                    let together = if layout.groups == 1 { group.len() } else { 1 };
                    let of_weights = (&mut dw[..], &mut db[..]);
                    match dx {
                        Some(dx) => columns.compute::<I, true>(together, dx, of_weights),
                        None => columns.compute::<I, false>(together, &mut [], of_weights),
                    }
                }
            }
            if let Some(dx) = backward.dx {
                // SAFETY: as above.
                unsafe { dx.end(start, count, to) };
            }
            added += group.len();
            if added >= FLUSH * layout.groups || group.end == lanes.end {
                added = 0;
                for (all, part) in all.iter_mut().zip([&mut dw, &mut db]) {
                    for (all, part) in all.iter_mut().zip(part) {
                        *all += part.to_f64();
                        *part = A::ZERO;
                    }
                }
            }
        }
    }
}

/// Some rows of gradients and elements, with their weights and means.
#[derive(Clone, Copy)]
struct Rows<'a, A> {
    g: &'a [A],
    x: &'a [A],
    /// The address of the results, which are prefetched here: they are written column by column, where the
    /// processor foresees nothing.
    to: *const A,
    weights: &'a [A],
    /// The position of each row's first weight.
    weights_at: &'a PerLane<usize>,
    means: &'a PerLane<A>,
    len: usize,
}

/// The weighted gradients, and their products with the distances from the mean.
impl<A: Float> Terms<A, 2> for Rows<'_, A> {
    #[inline(always)]
    fn add<I: Isa>(&self, row: usize, at: usize, sums: [Chunk<A>; 2]) -> [Chunk<A>; 2] {
        let (in_group, mean) = (row * self.len + at, self.means[row]);
        prefetch(self.to.wrapping_add(in_group).cast());
        let (g, x) = (chunk(self.g, in_group), chunk(self.x, in_group));
        let w = chunk(self.weights, self.weights_at[row] + at);
        let [mut sums, mut products] = sums;
        for i in 0..PARTIALS {
            let gw = g[i] * w[i];
            sums[i] = sums[i] + gw;
            products[i] = gw.mul_add::<I>(x[i] - mean, products[i]);
        }
        [sums, products]
    }
}

impl<A: Float> Rows<'_, A> {
    /// Computes the gradients of elements, row by row.
    #[inline(always)]
    fn gradients<I: Isa>(&self, dx: &mut [A], factors: &PerLane<Factors<A>>) {
        let rows = self.g.chunks_exact(self.len).zip(self.x.chunks_exact(self.len));
        for (row, (dx, (g, x))) in dx.chunks_exact_mut(self.len).zip(rows).enumerate() {
            let w = &self.weights[self.weights_at[row]..][..self.len];
            gradient_each::<I, A>((g, x, w), dx, self.means[row], factors[row]);
        }
    }
}

/// Rows with what their gradients are computed from.
struct Columns<'a, A> {
    rows: Rows<'a, A>,
    deviations: &'a PerLane<A>,
    factors: &'a PerLane<Factors<A>>,
}

impl<A: Float> Columns<'_, A> {
    /// Computes the gradients of elements if `DX`, and adds those of weights and biases, of `together` rows at
    /// a time.
    #[inline(always)]
    fn compute<I: Isa, const DX: bool>(
        &self,
        together: usize,
        dx: &mut [A],
        (dw, db): (&mut [A], &mut [A]),
    ) {
        let len = self.rows.len;
        for first in (0..self.rows.g.len() / len).step_by(together) {
            let rows = first..first + together;
            let mut results = (&mut *dx, &mut *dw, &mut *db);
            let wide = len / (WIDE * PARTIALS) * WIDE * PARTIALS;
            for at in (0..wide).step_by(WIDE * PARTIALS) {
                self.chunks::<I, DX, WIDE>(rows.clone(), (at, 0), &mut results);
            }
            for at in (wide..len / PARTIALS * PARTIALS).step_by(PARTIALS) {
                self.chunks::<I, DX, 1>(rows.clone(), (at, 0), &mut results);
            }
            if let Some(last) = last_chunk(len) {
                self.chunks::<I, DX, 1>(rows, last, &mut results);
            }
        }
    }

    /// Computes the gradients of `N` chunks of columns, the first of which were `seen` by the chunk before.
    #[inline(always)]
    fn chunks<I: Isa, const DX: bool, const N: usize>(
        &self,
        rows: Range<usize>,
        (at, seen): (usize, usize),
        (dx, dw, db): &mut (&mut [A], &mut [A], &mut [A]),
    ) {
        let weights = self.rows.weights_at[rows.start] + at;
        let w: [Chunk<A>; N] =
            std::array::from_fn(|n| chunk(self.rows.weights, weights + n * PARTIALS));
        let (mut own_dw, mut own_db) = ([[A::ZERO; PARTIALS]; N], [[A::ZERO; PARTIALS]; N]);
        for row in rows {
            let (mean, deviation) = (self.rows.means[row], self.deviations[row]);
            let Factors { of_grad, of_distance, constant } = self.factors[row];
            for n in 0..N {
                let start = row * self.rows.len + at + n * PARTIALS;
                // The rows of the next group follow; they are fetched while those of this one are in the cache.
                for from in [self.rows.g, self.rows.x] {
                    prefetch(from.as_ptr().wrapping_add(from.len() + start).cast());
                }
                let (g, x) = (chunk(self.rows.g, start), chunk(self.rows.x, start));
                let mut results = [A::ZERO; PARTIALS];
                for i in 0..PARTIALS {
                    let distance = x[i] - mean;
                    if DX {
                        let rest = of_distance.mul_add::<I>(distance, constant);
                        results[i] = of_grad.mul_add::<I>(g[i] * w[n][i], rest);
                    }
                    own_dw[n][i] = g[i].mul_add::<I>(distance * deviation, own_dw[n][i]);
                    own_db[n][i] = own_db[n][i] + g[i];
                }
                if DX {
                    dx[start..start + PARTIALS].copy_from_slice(&results);
                }
            }
        }
        for (all, own) in [(&mut **dw, own_dw), (&mut **db, own_db)] {
            let all = all[weights..weights + N * PARTIALS].iter_mut().zip(own.as_flattened());
            for (i, (all, own)) in all.enumerate() {
                *all = if i < seen { *all } else { *all + *own };
            }
        }
    }
}
