//! The gradients of attention. The scores of a tile are computed anew, and become probabilities by the
//! logarithms that the forward computation kept, so that no matrix of all scores is needed.

use keyfold_core::Result;
use keyfold_kit::isa::{self, Isa, Work};
use keyfold_kit::math::Real;
use keyfold_kit::math::function::Exp;
use keyfold_kit::math::slices::map_at;
use keyfold_kit::pool::{Schedule, parallel_for};

use super::forward::Operands;
use super::matrices::{Lines, Matrices, Rows};
use super::product::{COLUMNS, Product};
use super::tile::{KEYS, Place, QUERIES, Transpose};
use crate::reduce::blocks::{Input, Sink};

/// The gradients of the operands.
pub(super) struct Backward<T> {
    pub(super) from: Operands<T>,
    /// The gradient of the results.
    pub(super) grad: Matrices<Input<T>>,
    /// The results.
    pub(super) out: Matrices<Input<T>>,
    /// The logarithms that the forward computation kept, as a column.
    pub(super) logsumexp: Matrices<Input<T>>,
    pub(super) query: Matrices<Sink<T>>,
    pub(super) key: Matrices<Sink<T>>,
    pub(super) value: Matrices<Sink<T>>,
}

/// Memory for the tiles of a thread, and for the gradients of a batch's keys and values.
struct Tiles<T> {
    keys: Lines<T>,
    values: Lines<T>,
    queries: Lines<T>,
    grads: Lines<T>,
    results: Lines<T>,
    logarithms: Lines<T>,
    turned_queries: Lines<T>,
    turned_grads: Lines<T>,
    mask: Lines<T>,
    scores: Lines<T>,
    powers: Lines<T>,
    of_queries: Lines<T>,
    of_keys: Lines<T>,
    of_values: Lines<T>,
}

impl<T: Real> Backward<T> {
    /// Computes all gradients, a batch on each thread: the gradients of keys and values are sums over all
    /// queries of it.
    pub(super) fn run(&self) -> Result<()> {
        parallel_for(Schedule::Adaptive, 0..self.from.query.starts.len(), 1, |part| {
            let mut memory = Tiles {
                keys: Lines::new(0),
                values: Lines::new(0),
                queries: Lines::new(0),
                grads: Lines::new(0),
                results: Lines::new(0),
                logarithms: Lines::new(0),
                turned_queries: Lines::new(self.from.query.columns * QUERIES),
                turned_grads: Lines::new(self.from.value.columns * QUERIES),
                mask: Lines::new(0),
                scores: Lines::new(KEYS * QUERIES),
                powers: Lines::new(KEYS * QUERIES),
                of_queries: Lines::new(QUERIES * self.depth()),
                of_keys: Lines::new(self.from.key.rows * self.depth()),
                of_values: Lines::new(self.from.key.rows * self.width()),
            };
            for batch in part {
                self.batch(batch, &mut memory);
            }
            Ok(())
        })
    }

    /// The padded number of a query's and of a key's elements.
    fn depth(&self) -> usize {
        self.from.query.columns.next_multiple_of(COLUMNS)
    }

    /// The padded number of a value's elements.
    fn width(&self) -> usize {
        self.from.value.columns.next_multiple_of(COLUMNS)
    }

    fn batch(&self, batch: usize, memory: &mut Tiles<T>) {
        let Operands { query, key, value, .. } = &self.from;
        let (depth, width) = (self.depth(), self.width());
        // SAFETY: the keys and values are inside.
        let (keys, values) = unsafe {
            (
                key.rows(batch, 0, key.rows, depth, &mut memory.keys),
                value.rows(batch, 0, key.rows, width, &mut memory.values),
            )
        };
        memory.of_keys.room(key.rows * depth).fill(T::ZERO);
        memory.of_values.room(key.rows * width).fill(T::ZERO);
        for first in (0..query.rows).step_by(QUERIES) {
            self.queries(batch, first, (keys, values), memory);
        }
        // SAFETY: the gradients of this batch are inside, and no other thread's.
        unsafe {
            self.key.put(batch, 0, depth, memory.of_keys.room(key.rows * depth));
            self.value.put(batch, 0, width, memory.of_values.room(key.rows * width));
        }
    }

    /// Computes the gradients of the queries from `first` on, at most [`QUERIES`], and adds their part to those
    /// of the keys and values.
    fn queries(
        &self,
        batch: usize,
        first: usize,
        (keys, values): (Rows<T>, Rows<T>),
        memory: &mut Tiles<T>,
    ) {
        let Operands { query, value, scale, .. } = &self.from;
        let count = QUERIES.min(query.rows - first);
        let lanes = count.next_multiple_of(COLUMNS);
        let (depth, width) = (self.depth(), self.width());
        // SAFETY: the rows of these queries are inside.
        let (queries, grads, results, logarithms) = unsafe {
            (
                query.rows(batch, first, count, depth, &mut memory.queries),
                self.grad.rows(batch, first, count, width, &mut memory.grads),
                self.out.rows(batch, first, count, 0, &mut memory.results),
                self.logsumexp.rows(batch, first, count, 0, &mut memory.logarithms),
            )
        };
        let mut lines = QueryTotals::new();
        for i in 0..count {
            let at = i as isize;
            // SAFETY: a row is there for each query.
            unsafe {
                let x = logarithms.first.offset(at * logarithms.step).read();
                // A query for which no key counts has no probabilities.
                lines.logarithm[i] = if x == T::NEG_INFINITY { T::INFINITY } else { x };
                let (grad, result) =
                    (grads.first.offset(at * grads.step), results.first.offset(at * results.step));
                lines.dot[i] = (0..value.columns)
                    .fold(T::ZERO, |sum, k| sum + grad.add(k).read() * result.add(k).read());
            }
        }
        let (turned_queries, turned_grads) = (
            memory.turned_queries.room(query.columns * lanes),
            memory.turned_grads.room(value.columns * lanes),
        );
        isa::dispatch(Transpose {
            rows: queries,
            count,
            columns: query.columns,
            factor: *scale,
            width: lanes,
            to: turned_queries,
        });
        isa::dispatch(Transpose {
            rows: grads,
            count,
            columns: value.columns,
            factor: T::ONE,
            width: lanes,
            to: turned_grads,
        });
        let (turned_queries, turned_grads) = (turned_queries.as_ptr(), turned_grads.as_ptr());
        let of_queries = memory.of_queries.room(count * depth);
        of_queries.fill(T::ZERO);
        let of_keys = memory.of_keys.room(self.from.key.rows * depth).as_mut_ptr();
        let of_values = memory.of_values.room(self.from.key.rows * width).as_mut_ptr();
        for start in (0..self.from.keys_until(first + count)).step_by(KEYS) {
            let many = KEYS.min(self.from.key.rows - start);
            let at =
                Place { batch, query: first, queries: count, key: start, keys: many, width: lanes };
            let scores = memory.scores.room(many * lanes);
            let powers = memory.powers.room(many * lanes);
            let row = lanes as isize;
            // SAFETY: keys, values and their gradients have a row for each key of the tile, and the tiles a
            // line; the factors are padded to whole columns.
            unsafe {
                let from = |rows: Rows<T>| rows.first.offset(start as isize * rows.step);
                isa::dispatch(Product {
                    a: from(keys),
                    a_steps: (keys.step, 1),
                    b: turned_queries,
                    b_row: row,
                    c: scores.as_mut_ptr(),
                    c_row: row,
                    rows: many,
                    columns: lanes,
                    depth: query.columns,
                    adds: false,
                });
                self.from.mask(at, scores, &mut memory.mask);
                isa::dispatch(Probabilities { width: lanes, scores, powers, totals: &lines });
                isa::dispatch(Product {
                    a: powers.as_ptr(),
                    a_steps: (row, 1),
                    b: grads.first,
                    b_row: grads.step,
                    c: of_values.add(start * width),
                    c_row: width as isize,
                    rows: many,
                    columns: width,
                    depth: count,
                    adds: true,
                });
                isa::dispatch(Product {
                    a: from(values),
                    a_steps: (values.step, 1),
                    b: turned_grads,
                    b_row: row,
                    c: scores.as_mut_ptr(),
                    c_row: row,
                    rows: many,
                    columns: lanes,
                    depth: value.columns,
                    adds: false,
                });
                isa::dispatch(ScoreGradients {
                    width: lanes,
                    scores,
                    powers,
                    totals: &lines,
                    scale: *scale,
                });
                isa::dispatch(Product {
                    a: scores.as_ptr(),
                    a_steps: (row, 1),
                    b: queries.first,
                    b_row: queries.step,
                    c: of_keys.add(start * depth),
                    c_row: depth as isize,
                    rows: many,
                    columns: depth,
                    depth: count,
                    adds: true,
                });
                isa::dispatch(Product {
                    a: scores.as_ptr(),
                    a_steps: (1, row),
                    b: from(keys),
                    b_row: keys.step,
                    c: of_queries.as_mut_ptr(),
                    c_row: depth as isize,
                    rows: count,
                    columns: depth,
                    depth: many,
                    adds: true,
                });
            }
        }
        // SAFETY: the gradients of these queries are inside, and no other thread's.
        unsafe { self.query.put(batch, first, depth, of_queries) };
    }
}

/// For each query of a tile the logarithm of the sum of its exponentials, and the product of its result and
/// the result's gradient.
struct QueryTotals<T> {
    logarithm: [T; QUERIES],
    dot: [T; QUERIES],
}

impl<T: Real> QueryTotals<T> {
    /// Those of queries that aren't there: without probabilities.
    fn new() -> Self {
        QueryTotals { logarithm: [T::INFINITY; QUERIES], dot: [T::ZERO; QUERIES] }
    }
}

/// Computes the probabilities of a tile from its scores, which it changes.
struct Probabilities<'a, T> {
    width: usize,
    scores: &'a mut [T],
    powers: &'a mut [T],
    totals: &'a QueryTotals<T>,
}

impl<T: Real> Work for Probabilities<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        for line in self.scores.chunks_exact_mut(self.width) {
            for (x, logarithm) in line.iter_mut().zip(&self.totals.logarithm) {
                *x = *x - *logarithm;
            }
        }
        map_at::<Exp, T, I>(self.scores, self.powers);
    }
}

/// Computes the gradients of a tile's scores from those of its probabilities, in their place.
struct ScoreGradients<'a, T> {
    width: usize,
    scores: &'a mut [T],
    powers: &'a [T],
    totals: &'a QueryTotals<T>,
    scale: T,
}

impl<T: Real> Work for ScoreGradients<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        let lines = self.scores.chunks_exact_mut(self.width);
        for (line, powers) in lines.zip(self.powers.chunks_exact(self.width)) {
            for ((x, power), dot) in line.iter_mut().zip(powers).zip(&self.totals.dot) {
                *x = (*x - *dot) * (*power * self.scale);
            }
        }
    }
}
