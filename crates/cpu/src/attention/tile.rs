//! A tile of scores, stored by columns: one line for each key, with the scores of all queries of the tile.
//!
//! So neither keys nor values have to be transposed to be multiplied, and the greatest score and the sum of a
//! query are computed lane by lane.

use keyfold_kit::isa::{Isa, Work};
use keyfold_kit::math::Real;
use keyfold_kit::math::function::Exp;
use keyfold_kit::math::slices::map_at;

use super::matrices::{Lines, Matrices, Rows};
use super::product::COLUMNS;
use crate::reduce::blocks::Input;

/// Queries of a tile.
pub(super) const QUERIES: usize = 64;
/// Keys of a tile: with 64 queries, the scores fill the first level of the cache.
pub(super) const KEYS: usize = 128;

/// The mask: numbers that are added to scores, or flags of the scores that count.
pub(super) struct Mask<T> {
    pub(super) of: Matrices<Input<T>>,
    /// Whether a score counts where the mask is 1; else the mask is added.
    pub(super) chooses: bool,
}

/// The place of a tile among all scores.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) batch: usize,
    pub(super) query: usize,
    pub(super) queries: usize,
    pub(super) key: usize,
    pub(super) keys: usize,
    /// Scores in a line: at least one for each query, and a multiple of [`COLUMNS`].
    pub(super) width: usize,
}

impl<T: Real> Mask<T> {
    /// Applies the mask to a tile.
    ///
    /// # Safety
    /// The tile lies inside the mask, whose memory can be read.
    pub(super) unsafe fn apply(&self, at: Place, scores: &mut [T], stage: &mut Lines<T>) {
        let own = Matrices { starts: vec![self.key_offset(at)], columns: at.keys, ..self.shape() };
        let lines = scores.chunks_exact_mut(at.width);
        if self.of.steps.0 == 0 {
            // SAFETY: the caller's promise.
            let row = unsafe { own.rows(0, 0, 1, at.keys, stage) };
            for (k, line) in lines.enumerate() {
                // SAFETY: a row has an element for each key.
                let x = unsafe { row.first.add(k).read() };
                for score in &mut line[..at.queries] {
                    *score = self.masked(*score, x);
                }
            }
            return;
        }
        // SAFETY: the caller's promise.
        let rows = unsafe { own.rows(0, at.query, at.queries, at.keys, stage) };
        for (k, line) in lines.enumerate() {
            for (q, score) in line[..at.queries].iter_mut().enumerate() {
                // SAFETY: there is a row for each query, with an element for each key.
                let x = unsafe { rows.first.offset(q as isize * rows.step).add(k).read() };
                *score = self.masked(*score, x);
            }
        }
    }

    fn masked(&self, score: T, x: T) -> T {
        if !self.chooses {
            score + x
        } else if x == T::ZERO {
            T::NEG_INFINITY
        } else {
            score
        }
    }

    fn key_offset(&self, at: Place) -> isize {
        self.of.starts[at.batch] + at.key as isize * self.of.steps.1
    }

    fn shape(&self) -> Matrices<Input<T>> {
        Matrices { starts: Vec::new(), memory: self.of.memory, ..self.of }
    }
}

/// Leaves out the keys behind each query.
pub(super) fn leave_out_later<T: Real>(at: Place, scores: &mut [T]) {
    for (k, line) in scores.chunks_exact_mut(at.width).enumerate() {
        let first = (at.key + k).saturating_sub(at.query).min(at.queries);
        line[..first].fill(T::NEG_INFINITY);
    }
}

/// Writes rows as columns, times a factor: `to[k * width + i] = rows[i][k] * factor`, and 0 for rows that
/// aren't there.
pub(super) struct Transpose<'a, T> {
    pub(super) rows: Rows<T>,
    pub(super) count: usize,
    pub(super) columns: usize,
    pub(super) factor: T,
    pub(super) width: usize,
    pub(super) to: &'a mut [T],
}

impl<T: Real> Work for Transpose<'_, T> {
    type Output = ();
    const AVX512: bool = false;

    #[inline(always)]
    fn run<I: Isa>(self) {
        let Transpose { rows, count, columns, factor, width, to } = self;
        assert!(to.len() >= columns * width && count <= width);
        for (k, line) in to.chunks_exact_mut(width).take(columns).enumerate() {
            for (i, x) in line[..count].iter_mut().enumerate() {
                // SAFETY: there are as many rows, with an element for each line.
                *x = unsafe { rows.first.offset(i as isize * rows.step).add(k).read() } * factor;
            }
            line[count..].fill(T::ZERO);
        }
    }
}

/// For each query of a tile the greatest score, and the sum of the exponentials of the scores less the
/// greatest one (M. Milakov and N. Gimelshein, "Online normalizer calculation for softmax", 2018).
#[derive(Clone)]
pub(super) struct Totals<T> {
    pub(super) greatest: [T; QUERIES],
    pub(super) sum: [T; QUERIES],
    /// The factors of the sums and results so far, after a greater score was found.
    pub(super) correction: [T; QUERIES],
}

impl<T: Real> Totals<T> {
    pub(super) fn new() -> Self {
        Totals {
            greatest: [T::NEG_INFINITY; QUERIES],
            sum: [T::ZERO; QUERIES],
            correction: [T::ONE; QUERIES],
        }
    }
}

/// Takes the scores of a tile into the totals, and writes their exponentials less the greatest score.
pub(super) struct Exponentials<'a, T> {
    pub(super) width: usize,
    pub(super) scores: &'a mut [T],
    pub(super) powers: &'a mut [T],
    pub(super) totals: &'a mut Totals<T>,
}

impl<T: Real> Work for Exponentials<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        let Exponentials { width, scores, powers, totals } = self;
        let mut before = [T::ZERO; QUERIES];
        for start in (0..width).step_by(COLUMNS) {
            let mut greatest = lanes(&totals.greatest, start);
            for line in scores.chunks_exact(width) {
                for (best, x) in greatest.iter_mut().zip(lanes(line, start)) {
                    *best = if x > *best { x } else { *best };
                }
            }
            // Where no score counts, all are -inf, and so is their difference from 0.
            let base = greatest.map(|x| if x == T::NEG_INFINITY { T::ZERO } else { x });
            for line in scores.chunks_exact_mut(width) {
                for (x, base) in line[start..start + COLUMNS].iter_mut().zip(base) {
                    *x = *x - base;
                }
            }
            let (before, known) = (&mut before[start..], &mut totals.greatest[start..]);
            for (i, (base, greatest)) in base.into_iter().zip(greatest).enumerate() {
                before[i] = known[i] - base;
                known[i] = greatest;
            }
        }
        map_at::<Exp, T, I>(&before[..width], &mut totals.correction[..width]);
        map_at::<Exp, T, I>(scores, powers);
        for start in (0..width).step_by(COLUMNS) {
            let mut sum = [T::ZERO; COLUMNS];
            for line in powers.chunks_exact(width) {
                for (sum, x) in sum.iter_mut().zip(lanes(line, start)) {
                    *sum = *sum + x;
                }
            }
            for (i, sum) in sum.into_iter().enumerate() {
                let total = &mut totals.sum[start + i];
                *total = total.mul_add::<I>(totals.correction[start + i], sum);
            }
        }
    }
}

#[inline(always)]
fn lanes<T: Copy>(line: &[T], start: usize) -> [T; COLUMNS] {
    *line[start..].first_chunk().expect("lines have a multiple of as many scores")
}
