//! The windows along a dimension.

use std::ops::Range;

use keyfold_core::Result;
use keyfold_kit::math::Real;
use keyfold_kit::pool::{Schedule, grain_for, num_threads, parallel_for};

/// Results that are computed side by side.
pub(super) const LANES: usize = 16;
/// Results that are computed side by side where there are fewer than [`LANES`].
pub(super) const FEW: usize = 4;

/// Calls `f` with the first one of each group of results, and their number: [`LANES`], [`FEW`], or 1 for each of
/// fewer. The last group may overlap the one before.
#[inline(always)]
pub(super) fn for_groups(count: usize, mut f: impl FnMut(usize, usize)) {
    let lanes = match count {
        LANES.. => LANES,
        FEW.. => FEW,
        _ => 1,
    };
    let mut start = 0;
    while start < count {
        f(start.min(count - lanes), lanes);
        start += lanes;
    }
}

/// A pooled dimension: its sizes before and after, and its windows.
#[derive(Clone, Copy)]
pub(super) struct Axis {
    pub(super) size: usize,
    pub(super) out: usize,
    pub(super) kernel: usize,
    pub(super) stride: usize,
    pub(super) padding: usize,
    pub(super) dilation: usize,
}

impl Axis {
    /// The first place of a window, which is negative in the padding.
    pub(super) fn start(&self, window: usize) -> i64 {
        (window * self.stride) as i64 - self.padding as i64
    }

    /// The places of a window that aren't padding, counted in steps of the dilation.
    pub(super) fn taps(&self, window: usize) -> Range<usize> {
        let start = self.start(window);
        let before = if start < 0 { start.unsigned_abs() as usize } else { 0 };
        let left = self.size as i64 - start;
        let end = if left > 0 { (left as usize).div_ceil(self.dilation) } else { 0 };
        let end = end.min(self.kernel);
        before.div_ceil(self.dilation).min(end)..end
    }

    /// The place of a tap that isn't padding.
    pub(super) fn place(&self, window: usize, tap: usize) -> usize {
        window * self.stride + tap * self.dilation - self.padding
    }

    /// The distance from a window's first place to its last one.
    pub(super) fn reach(&self) -> usize {
        (self.kernel - 1) * self.dilation
    }

    /// The elements of each window without dilation, and how many count; with padding where that counts.
    pub(super) fn ranges<T: Real>(&self, counts_padding: bool) -> Ranges<T> {
        let range = |o| {
            let taps = self.taps(o);
            let first = self.start(o).max(0) as usize;
            first..first + taps.len()
        };
        let of: Vec<Range<usize>> = (0..self.out).map(range).collect();
        let count = |o: usize| {
            // Padding counts, but not what lies behind it.
            let end = (self.start(o) + self.kernel as i64).min((self.size + self.padding) as i64);
            (end - self.start(o)) as f64
        };
        let counts = (0..self.out).map(|o| match counts_padding {
            true => T::from_f64(count(o)),
            false => T::from_f64(of[o].len() as f64),
        });
        Ranges { counts: counts.collect(), of }
    }
}

/// The elements of each window along a dimension, and the number by which their sum is divided.
pub(super) struct Ranges<T> {
    of: Vec<Range<usize>>,
    pub(super) counts: Vec<T>,
}

impl<T: Real> Ranges<T> {
    /// Divides `size` elements evenly: windows may overlap by an element where it isn't a multiple.
    pub(super) fn even(size: usize, out: usize) -> Self {
        let of: Vec<Range<usize>> =
            (0..out).map(|o| o * size / out..((o + 1) * size).div_ceil(out)).collect();
        let counts = of.iter().map(|range| T::from_f64(range.len() as f64)).collect();
        Ranges { of, counts }
    }

    pub(super) fn of(&self, window: usize) -> Range<usize> {
        self.of[window].clone()
    }

    /// The elements of the longest window.
    pub(super) fn longest(&self) -> usize {
        self.of.iter().map(Range::len).max().unwrap_or(0).max(1)
    }
}

/// Calls `f` with parts of `0..count`, on several threads if that pays; `steps` are those of each index.
pub(super) fn parts(
    count: usize,
    steps: usize,
    f: impl Fn(Range<usize>) -> Result<()> + Sync,
) -> Result<()> {
    // A step takes about a quarter of a nanosecond; parts begin with memory of their own.
    let least = grain_for(0.25 * steps.max(1) as f64);
    let grain = least.max(count / (num_threads()? * 8));
    parallel_for(Schedule::Adaptive, 0..count, grain.max(1), f)
}

/// Rows of planes one after another: the number of each one's plane, and its place there.
pub(super) struct PlaneRows {
    /// The rows of a plane.
    sizes: [usize; 2],
    plane: usize,
    row: [usize; 2],
    left: usize,
}

impl PlaneRows {
    pub(super) fn new(rows: Range<usize>, sizes: [usize; 2]) -> Self {
        let [depth, height] = sizes;
        let (plane, row) = (rows.start / (depth * height), rows.start % (depth * height));
        PlaneRows { sizes, plane, row: [row / height, row % height], left: rows.len() }
    }
}

impl Iterator for PlaneRows {
    type Item = (usize, [usize; 2]);

    /// Counts, since divisions would take as long as a short row does.
    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let ([depth, height], (plane, [d, h])) = (self.sizes, (self.plane, self.row));
        (self.plane, self.row) = match (d + 1 == depth, h + 1 == height) {
            (_, false) => (plane, [d, h + 1]),
            (false, true) => (plane, [d + 1, 0]),
            (true, true) => (plane + 1, [0, 0]),
        };
        Some((plane, [d, h]))
    }
}
