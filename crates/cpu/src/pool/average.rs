//! The mean of each window: its rows are added up first, then the columns of the sums.

use std::ops::Range;

use keyfold_core::Result;
use keyfold_kit::isa::{self, Isa, Work};
use keyfold_kit::math::Real;

use super::axis::{Axis, FEW, LANES, PlaneRows, Ranges, for_groups, parts};
use super::planes::{Planes, Rows};
use crate::reduce::blocks::{Input, Sink};

/// Windows along rows that are equally far apart and of one size.
#[derive(Clone, Copy)]
pub(super) struct Regular {
    kernel: usize,
    stride: usize,
    padding: usize,
    /// The columns that the windows see, padding among them.
    columns: usize,
}

impl Regular {
    /// Returns the windows of a dimension, or `None` where padding or a stride makes them see far more
    /// columns than there are: columns take memory.
    pub(super) fn new(axis: &Axis) -> Option<Regular> {
        let &Axis { size, out, kernel, stride, padding, .. } = axis;
        let seen = out.checked_mul(stride)?.checked_add(kernel)?;
        let columns = seen.max(size.checked_add(padding)?);
        (columns / 8 <= size + 128).then_some(Regular { kernel, stride, padding, columns })
    }
}

/// Average pooling with its results.
pub(super) struct Average<T> {
    pub(super) from: Planes<Input<T>>,
    pub(super) to: Planes<Sink<T>>,
    /// The elements of each window along the three dimensions.
    pub(super) ranges: [Ranges<T>; 3],
    pub(super) regular: Option<Regular>,
    /// The divisor of all windows, where it isn't their number of elements.
    pub(super) divisor: Option<T>,
}

/// A thread's memory.
struct Memory<T> {
    rows: Rows<T>,
    of_window: Vec<*const T>,
    /// The sums of the columns, with padding.
    sums: Vec<T>,
    results: Vec<T>,
}

/// Rows of results of all planes: one piece of work, since a row may have but a few results.
struct Part<'a, T> {
    average: &'a Average<T>,
    rows: Range<usize>,
    memory: &'a mut Memory<T>,
}

impl<T: Real> Work for Part<'_, T> {
    type Output = ();
    const AVX512: bool = false;

    #[inline(always)]
    fn run<I: Isa>(self) {
        let Part { average, rows, memory } = self;
        let [depth, height, _] = average.to.sizes;
        for (plane, row) in PlaneRows::new(rows, [depth, height]) {
            average.row(plane, row, memory);
        }
    }
}

impl<T: Real> Average<T> {
    pub(super) fn run(&self) -> Result<()> {
        let [depth, height, width] = &self.ranges;
        let count = self.to.count * self.to.rows();
        let rows = depth.longest() * height.longest();
        let in_width = self.from.width();
        parts(count, in_width * rows + self.to.width() * width.longest(), |part| {
            let places = match self.from.row_in_place(0, [0, 0]) {
                Some(_) => 0,
                None => ((depth.longest() - 1) * self.from.sizes[1] + height.longest())
                    .min(self.from.rows()),
            };
            let sums = self.regular.map_or(in_width, |regular| regular.columns);
            let mut memory = Memory {
                rows: Rows::new(places, in_width, 0, T::ZERO)?,
                of_window: Vec::with_capacity(rows),
                sums: vec![T::ZERO; sums],
                results: vec![T::ZERO; self.to.width()],
            };
            isa::dispatch(Part { average: self, rows: part, memory: &mut memory });
            Ok(())
        })
    }

    /// Computes a row of results.
    #[inline(always)]
    fn row(&self, plane: usize, [d, h]: [usize; 2], memory: &mut Memory<T>) {
        let [depth, height, width] = &self.ranges;
        memory.of_window.clear();
        for i in depth.of(d) {
            for j in height.of(h) {
                memory.of_window.push(match self.from.row_in_place(plane, [i, j]) {
                    Some(row) => row,
                    // SAFETY: the row is inside.
                    None => unsafe { memory.rows.get(&self.from, plane, [i, j]) },
                });
            }
        }
        let share = self.divisor.unwrap_or(depth.counts[d] * height.counts[h]);
        let Memory { of_window, sums, results, .. } = memory;
        // SAFETY: the row is inside, and no other thread has it.
        unsafe {
            let means = Means {
                rows: of_window,
                width: self.from.width(),
                ranges: width,
                regular: self.regular,
                share,
                counts: self.divisor.is_none(),
                sums,
                results: self.to.begin_row(plane, [d, h], results),
            };
            means.run();
            self.to.end_row(plane, [d, h], results);
        }
    }
}

/// Adds up `N` columns of rows.
#[inline(always)]
fn add_rows<T: Real, const N: usize>(rows: &[*const T], start: usize, to: &mut [T]) {
    let mut sums = [T::ZERO; N];
    for row in rows {
        // SAFETY: a row has as many elements as there are sums.
        let x = unsafe { row.add(start).cast::<[T; N]>().read_unaligned() };
        for (sum, x) in sums.iter_mut().zip(x) {
            *sum = *sum + x;
        }
    }
    to[start..start + N].copy_from_slice(&sums);
}

/// The windows of a row of results.
struct Means<'a, T> {
    rows: &'a [*const T],
    width: usize,
    ranges: &'a Ranges<T>,
    regular: Option<Regular>,
    /// The divisor, or its part that the window's rows give.
    share: T,
    /// Whether the number of a window's columns is the other part.
    counts: bool,
    sums: &'a mut [T],
    results: &'a mut [T],
}

impl<T: Real> Means<'_, T> {
    #[inline(always)]
    fn run(mut self) {
        let before = self.regular.map_or(0, |regular| regular.padding);
        let own = &mut self.sums[before..before + self.width];
        for_groups(own.len(), |start, lanes| match lanes {
            LANES => add_rows::<T, LANES>(self.rows, start, own),
            FEW => add_rows::<T, FEW>(self.rows, start, own),
            _ => add_rows::<T, 1>(self.rows, start, own),
        });
        match self.regular {
            None => self.of_ranges(),
            Some(Regular { kernel, stride: 1, .. }) => self.of_windows::<1>(kernel, 1),
            Some(Regular { kernel, stride: 2, .. }) => self.of_windows::<2>(kernel, 2),
            Some(Regular { kernel, stride, .. }) => self.of_windows::<0>(kernel, stride),
        }
        for (result, count) in self.results.iter_mut().zip(&self.ranges.counts) {
            let columns = if self.counts { *count } else { T::ONE };
            *result = *result / (self.share * columns);
        }
    }

    #[inline(always)]
    fn of_ranges(&mut self) {
        for (o, result) in self.results.iter_mut().enumerate() {
            // As many sums side by side as a register has lanes.
            let (chunks, rest) = self.sums[self.ranges.of(o)].as_chunks::<8>();
            let mut sums = [T::ZERO; 8];
            for chunk in chunks {
                for (sum, x) in sums.iter_mut().zip(chunk) {
                    *sum = *sum + *x;
                }
            }
            let all = sums.into_iter().chain(rest.iter().copied());
            *result = all.fold(T::ZERO, |sum, x| sum + x);
        }
    }

    /// The sums of windows a stride of `S` elements apart; 0 stands for any stride.
    #[inline(always)]
    fn of_windows<const S: usize>(&mut self, kernel: usize, stride: usize) {
        let stride = if S == 0 { stride } else { S };
        let count = self.results.len();
        if count < FEW {
            return self.lanes::<FEW, true>(0, kernel, stride);
        }
        for_groups(count, |start, lanes| match lanes {
            LANES => self.lanes::<LANES, false>(start, kernel, stride),
            _ => self.lanes::<FEW, false>(start, kernel, stride),
        });
    }

    /// Adds up `N` windows; if `LAST`, there are fewer, and the last of them takes the place of those that are
    /// missing.
    #[inline(always)]
    fn lanes<const N: usize, const LAST: bool>(
        &mut self,
        start: usize,
        kernel: usize,
        stride: usize,
    ) {
        let count = if LAST { self.results.len() } else { N };
        let mut results = [T::ZERO; N];
        let from = &self.sums[start * stride..];
        for k in 0..kernel {
            let from = &from[k..][..(count - 1) * stride + 1];
            for (i, result) in results.iter_mut().enumerate() {
                let window = if LAST { i.min(count - 1) } else { i };
                *result = *result + from[window * stride];
            }
        }
        self.results[start..start + count].copy_from_slice(&results[..count]);
    }
}
