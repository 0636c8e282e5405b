//! The greatest element of each window, and its place.

use std::ops::Range;

use keyfold_core::Result;
use keyfold_kit::isa::{self, Isa, Work};

use super::axis::{Axis, FEW, LANES, PlaneRows, for_groups, parts};
use super::planes::{Planes, Rows};
use crate::reduce::blocks::{Input, Sink};

/// Numbers that are compared.
pub(super) trait Ordered: Copy + PartialOrd + Send + Sync + 'static {
    /// A number that none is less than.
    const LOWEST: Self;
}

macro_rules! ordered {
    // Integers have no constant in common, and floats another one.
    ($($type:ty: $lowest:expr;)*) => {$(
        impl Ordered for $type {
            const LOWEST: Self = $lowest;
        }
    )*};
}

ordered! {
    f32: f32::NEG_INFINITY;
    f64: f64::NEG_INFINITY;
    i64: i64::MIN;
    u64: 0;
}

/// Max pooling with its results.
pub(super) struct Max<T> {
    pub(super) from: Planes<Input<T>>,
    pub(super) to: Planes<Sink<T>>,
    pub(super) indices: Planes<Sink<i64>>,
    pub(super) axes: [Axis; 3],
}

/// A thread's memory: copies of rows, and a row of results.
struct Memory<T> {
    rows: Rows<T>,
    of_window: Vec<(*const T, i32)>,
    /// For each window of a row the elements that precede its first one that isn't padding.
    first: Vec<i32>,
    best: Vec<T>,
    at: Vec<i32>,
    indices: Vec<i64>,
}

/// Rows of results of all planes: one piece of work, since a row may have but a few results.
struct Part<'a, T> {
    max: &'a Max<T>,
    rows: Range<usize>,
    memory: &'a mut Memory<T>,
}

impl<T: Ordered> Work for Part<'_, T> {
    type Output = ();
    const AVX512: bool = false;

    #[inline(always)]
    fn run<I: Isa>(self) {
        let Part { max, rows, memory } = self;
        let [depth, height, _] = max.to.sizes;
        let in_place = max.in_place();
        for (plane, row) in PlaneRows::new(rows, [depth, height]) {
            max.row(plane, row, in_place, memory);
        }
    }
}

impl<T: Ordered> Max<T> {
    pub(super) fn run(&self) -> Result<()> {
        let [depth, height, width] = &self.axes;
        let count = self.to.count * self.to.rows();
        let taps = depth.kernel * height.kernel * width.kernel;
        parts(count, self.to.width() * taps, |part| {
            let first = (0..width.out).map(|o| (width.taps(o).start * width.dilation) as i32);
            // Without padding, dense rows are read in place.
            let padded = (width.out * width.stride + width.reach()).max(self.from.width());
            let places = if self.in_place() { 0 } else { self.span() };
            let len = width.padding + padded;
            let mut memory = Memory {
                rows: Rows::new(places, len, width.padding, T::LOWEST)?,
                of_window: Vec::new(),
                first: first.collect(),
                best: vec![T::LOWEST; width.out],
                at: vec![0; width.out],
                indices: vec![0; width.out],
            };
            isa::dispatch(Part { max: self, rows: part, memory: &mut memory });
            Ok(())
        })
    }

    /// Whether rows are read where they are.
    fn in_place(&self) -> bool {
        self.axes[2].padding == 0 && !self.overhangs() && self.from.in_place
    }

    /// Whether the last window of a row reaches behind its elements.
    fn overhangs(&self) -> bool {
        let width = &self.axes[2];
        (width.out - 1) * width.stride + width.reach() >= width.size
    }

    /// The rows from the first one of a window to its last one.
    fn span(&self) -> usize {
        let [depth, height, _] = &self.axes;
        (depth.reach() * self.from.sizes[1] + height.reach() + 1).min(self.from.rows().max(1))
    }

    /// Computes a row of results.
    #[inline(always)]
    fn row(&self, plane: usize, [d, h]: [usize; 2], in_place: bool, memory: &mut Memory<T>) {
        let [depth, height, width] = &self.axes;
        let [_, rows, columns] = self.from.sizes;
        memory.of_window.clear();
        let (of_depth, of_height) = (depth.taps(d), height.taps(h));
        for i in of_depth.clone() {
            for j in of_height.clone() {
                let row = [depth.place(d, i), height.place(h, j)];
                let offset = (i * depth.dilation * rows + j * height.dilation) * columns;
                let row = match self.from.row_in_place(plane, row).filter(|_| in_place) {
                    Some(row) => row,
                    // SAFETY: the row is inside the plane, since its taps are.
                    None => unsafe { memory.rows.get(&self.from, plane, row) },
                };
                memory.of_window.push((row, offset as i32));
            }
        }
        let first =
            (of_depth.start * depth.dilation * rows + of_height.start * height.dilation) * columns;
        let start = (depth.start(d) * rows as i64 + height.start(h)) * columns as i64;
        let Memory { of_window, first: firsts, best, at, indices, .. } = memory;
        // SAFETY: the row is inside, and no other thread has it.
        unsafe {
            let windows = Windows {
                rows: of_window,
                axis: width,
                first: firsts,
                first_row: first as i32,
                best: self.to.begin_row(plane, [d, h], best),
                at,
            };
            windows.run();
            self.to.end_row(plane, [d, h], best);
            let to = self.indices.begin_row(plane, [d, h], indices);
            Indices { start, axis: width, at, indices: to }.run();
            self.indices.end_row(plane, [d, h], indices);
        }
    }
}

/// Adds the places of windows to those of their elements.
struct Indices<'a> {
    start: i64,
    axis: &'a Axis,
    at: &'a [i32],
    indices: &'a mut [i64],
}

impl Indices<'_> {
    #[inline(always)]
    fn run(self) {
        let mut place = self.start + self.axis.start(0);
        for (index, at) in self.indices.iter_mut().zip(self.at) {
            *index = place + i64::from(*at);
            place += self.axis.stride as i64;
        }
    }
}

/// The windows of a row of results: the rows of elements that they have, each padded, with the distance from
/// the windows' first element.
struct Windows<'a, T> {
    rows: &'a [(*const T, i32)],
    axis: &'a Axis,
    first: &'a [i32],
    first_row: i32,
    best: &'a mut [T],
    at: &'a mut [i32],
}

impl<T: Ordered> Windows<'_, T> {
    #[inline(always)]
    fn run(mut self) {
        match self.axis.stride {
            1 => self.all::<1>(),
            2 => self.all::<2>(),
            _ => self.all::<0>(),
        }
    }

    /// Computes all windows, as many side by side as there are. The last group may overlap the one before.
    #[inline(always)]
    fn all<const S: usize>(&mut self) {
        let count = self.best.len();
        if count < FEW {
            return self.lanes::<S, FEW, true>(0);
        }
        for_groups(count, |start, lanes| match lanes {
            LANES => self.lanes::<S, LANES, false>(start),
            _ => self.lanes::<S, FEW, false>(start),
        });
    }

    /// Computes `N` windows, a stride of `S` elements apart; 0 stands for any stride. If `LAST`, there are fewer,
    /// and the last of them takes the place of those that are missing.
    #[inline(always)]
    #[allow(clippy::eq_op, reason = "what NaN is")]
    fn lanes<const S: usize, const N: usize, const LAST: bool>(&mut self, start: usize) {
        let Axis { kernel, dilation, .. } = *self.axis;
        let stride = if S == 0 { self.axis.stride } else { S };
        let count = if LAST { self.best.len() } else { N };
        let window = |i: usize| if LAST { i.min(count - 1) } else { i };
        let mut best = [T::LOWEST; N];
        let mut at: [i32; N] = std::array::from_fn(|i| self.first[start + window(i)]);
        at.iter_mut().for_each(|at| *at += self.first_row);
        for (row, offset) in self.rows {
            for k in 0..kernel {
                let skipped = k * dilation;
                let offset = offset + skipped as i32;
                let from = row.wrapping_add(start * stride + skipped);
                for (i, (best, at)) in best.iter_mut().zip(&mut at).enumerate() {
                    // SAFETY: a row has the elements of all windows, padded or in place.
                    let x = unsafe { from.add(window(i) * stride).read() };
                    // The first NaN stays, and so does the first of equal elements.
                    let takes = (x > *best) | ((x != x) & (*best == *best));
                    *best = if takes { x } else { *best };
                    *at = if takes { offset } else { *at };
                }
            }
        }
        self.best[start..start + count].copy_from_slice(&best[..count]);
        self.at[start..start + count].copy_from_slice(&at[..count]);
    }
}
