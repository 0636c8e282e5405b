//! Attention without a matrix of all scores: tile by tile, with sums that are corrected where a greater score
//! turns up (T. Dao et al., "FlashAttention", 2022).

use keyfold_core::Result;
use keyfold_kit::isa::{self, Isa, Work};
use keyfold_kit::math::Real;
use keyfold_kit::pool::{Schedule, num_threads, parallel_for};

use super::matrices::{Lines, Matrices};
use super::product::{COLUMNS, Product};
use super::tile::{Exponentials, KEYS, Mask, Place, QUERIES, Totals, Transpose, leave_out_later};
use crate::reduce::blocks::{Input, Sink};

/// The operands that the forward and the backward computation read.
pub(super) struct Operands<T> {
    pub(super) query: Matrices<Input<T>>,
    pub(super) key: Matrices<Input<T>>,
    pub(super) value: Matrices<Input<T>>,
    pub(super) mask: Option<Mask<T>>,
    pub(super) causal: bool,
    pub(super) scale: T,
}

impl<T: Real> Operands<T> {
    /// The number of keys that count for the queries before `end`.
    pub(super) fn keys_until(&self, end: usize) -> usize {
        if self.causal { self.key.rows.min(end) } else { self.key.rows }
    }

    /// Applies the masks to a tile of scores.
    ///
    /// # Safety
    /// The tile lies inside, and the operands' memory can be read.
    pub(super) unsafe fn mask(&self, at: Place, scores: &mut [T], stage: &mut Lines<T>) {
        if let Some(mask) = &self.mask {
            // SAFETY: the caller's promise.
            unsafe { mask.apply(at, scores, stage) };
        }
        if self.causal && at.key + at.keys > at.query + 1 {
            leave_out_later(at, scores);
        }
    }
}

/// An attention with its results.
pub(super) struct Forward<T> {
    pub(super) from: Operands<T>,
    pub(super) out: Matrices<Sink<T>>,
    /// The logarithm of the sum of the exponentials of each query's scores, as a column.
    pub(super) logsumexp: Matrices<Sink<T>>,
}

/// Memory for the tiles of a thread.
struct Tiles<T> {
    queries: Lines<T>,
    turned: Lines<T>,
    keys: Lines<T>,
    values: Lines<T>,
    mask: Lines<T>,
    scores: Lines<T>,
    powers: Lines<T>,
    results: Lines<T>,
}

impl<T: Real> Forward<T> {
    /// Computes all results, on all threads.
    pub(super) fn run(&self) -> Result<()> {
        let tiles = self.from.query.rows.div_ceil(QUERIES);
        let count = self.from.query.starts.len() * tiles;
        let grain = (count / (num_threads()? * 8)).max(1);
        parallel_for(Schedule::Adaptive, 0..count, grain, |part| {
            let mut memory = Tiles {
                queries: Lines::new(0),
                turned: Lines::new(self.from.query.columns * QUERIES),
                keys: Lines::new(0),
                values: Lines::new(0),
                mask: Lines::new(0),
                scores: Lines::new(KEYS * QUERIES),
                powers: Lines::new(KEYS * QUERIES),
                results: Lines::new(QUERIES * self.width()),
            };
            for at in part {
                self.tile(at / tiles, at % tiles * QUERIES, &mut memory);
            }
            Ok(())
        })
    }

    /// The padded number of a value's elements.
    fn width(&self) -> usize {
        self.from.value.columns.next_multiple_of(COLUMNS)
    }

    /// Computes the results of the queries from `first` on, at most [`QUERIES`].
    fn tile(&self, batch: usize, first: usize, memory: &mut Tiles<T>) {
        let Operands { query, key, value, scale, .. } = &self.from;
        let queries = QUERIES.min(query.rows - first);
        let width = queries.next_multiple_of(COLUMNS);
        let (depth, of_values) = (query.columns, self.width());
        // SAFETY: the queries are inside.
        let rows = unsafe { query.rows(batch, first, queries, depth, &mut memory.queries) };
        let turned = memory.turned.room(depth * width);
        let (count, factor) = (queries, *scale);
        isa::dispatch(Transpose { rows, count, columns: depth, factor, width, to: turned });
        let turned: *const T = turned.as_ptr();
        let mut totals = Totals::new();
        let results = memory.results.room(queries * of_values);
        results.fill(T::ZERO);
        let end = self.from.keys_until(first + queries);
        for start in (0..end).step_by(KEYS) {
            let keys = KEYS.min(end - start);
            let at = Place { batch, query: first, queries, key: start, keys, width };
            let scores = memory.scores.room(keys * width);
            let powers = memory.powers.room(keys * width);
            // SAFETY: the keys and values are inside; the tiles have room for a line for each key.
            unsafe {
                let rows = key.rows(batch, start, keys, depth, &mut memory.keys);
                isa::dispatch(Product {
                    a: rows.first,
                    a_steps: (rows.step, 1),
                    b: turned,
                    b_row: width as isize,
                    c: scores.as_mut_ptr(),
                    c_row: width as isize,
                    rows: keys,
                    columns: width,
                    depth,
                    adds: false,
                });
                self.from.mask(at, scores, &mut memory.mask);
                isa::dispatch(Exponentials { width, scores, powers, totals: &mut totals });
                if start > 0 {
                    let factors = &totals.correction[..queries];
                    isa::dispatch(ScaleRows { rows: results, width: of_values, factors });
                }
                let rows = value.rows(batch, start, keys, of_values, &mut memory.values);
                isa::dispatch(Product {
                    a: powers.as_ptr(),
                    a_steps: (1, width as isize),
                    b: rows.first,
                    b_row: rows.step,
                    c: results.as_mut_ptr(),
                    c_row: of_values as isize,
                    rows: queries,
                    columns: of_values,
                    depth: keys,
                    adds: true,
                });
            }
        }
        self.finish(batch, first, queries, &totals, results);
    }

    /// Divides the results by the sums, and writes them. The result of a query for which no key counts is 0.
    fn finish(
        &self,
        batch: usize,
        first: usize,
        queries: usize,
        totals: &Totals<T>,
        results: &mut [T],
    ) {
        let width = self.width();
        let inverse = totals.sum.map(|x| if x == T::ZERO { T::ZERO } else { T::ONE / x });
        isa::dispatch(ScaleRows { rows: results, width, factors: &inverse[..queries] });
        let mut logarithms = [T::ZERO; QUERIES];
        for (i, logarithm) in logarithms.iter_mut().enumerate().take(queries) {
            let sum = totals.sum[i];
            *logarithm = match sum == T::ZERO {
                true => T::NEG_INFINITY,
                false => totals.greatest[i] + T::from_f64(sum.to_f64().ln()),
            };
        }
        // SAFETY: the queries are inside, and no other tile has them.
        unsafe {
            self.out.put(batch, first, width, results);
            self.logsumexp.put(batch, first, 1, &mut logarithms[..queries]);
        }
    }
}

/// Multiplies each row by a factor.
pub(super) struct ScaleRows<'a, T> {
    pub(super) rows: &'a mut [T],
    pub(super) width: usize,
    pub(super) factors: &'a [T],
}

impl<T: Real> Work for ScaleRows<'_, T> {
    type Output = ();
    const AVX512: bool = false;

    #[inline(always)]
    fn run<I: Isa>(self) {
        for (row, factor) in self.rows.chunks_exact_mut(self.width.max(1)).zip(self.factors) {
            for x in row {
                *x = *x * *factor;
            }
        }
    }
}
