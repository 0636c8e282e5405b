//! The offsets of the elements that index tuples select.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use keyfold_backend::IndexParams;
use keyfold_core::{Error, ErrorKind, Result, layout};
use keyfold_tensor::{Tensor, Walk};

use super::elements::Elements;
use super::ranges::{GRAIN, check_empty, each_place, out_of_range, place};
use crate::reduce::parallel::{DisjointSlice, for_parts};

/// Rows whose offsets are loaded at a time.
const ROWS: usize = 32;

/// The offsets of index tuples along the indexed dimensions.
pub(super) enum Picks {
    /// Those of positions along one dimension, which are adjacent in memory.
    Along { positions: Elements<i64>, count: usize, size: usize, stride: isize },
    /// Those of several dimensions, or of positions with other strides.
    Offsets(Vec<isize>),
}

impl Picks {
    /// The offsets for a tensor and the positions along its dimensions in `params`.
    ///
    /// # Errors
    /// [`ErrorKind::Index`] for a position out of range, along several dimensions. Along one they are checked as
    /// they are read.
    pub(super) fn new(x: &Tensor, params: &IndexParams, positions: &[&Tensor]) -> Result<Picks> {
        let (shape, strides) = (x.shape(), x.strides());
        let indexed = || (0..shape.len()).filter(|d| params.dims >> d & 1 == 1).zip(positions);
        for (d, positions) in indexed() {
            check_empty(positions, d, shape[d])?;
        }
        if let [one] = positions
            && one.is_contiguous()
        {
            let d = params.dims.trailing_zeros() as usize;
            let (count, size, stride) = (one.numel(), shape[d], strides[d]);
            return Ok(Picks::Along { positions: Elements::of(one)?, count, size, stride });
        }
        let count = positions.first().map_or(1, |first| first.numel());
        let count = layout::numel(&[count], size_of::<isize>())?;
        let mut offsets: Vec<isize> = Vec::new();
        // A broadcast view may have more elements than fit in memory, which must not abort the process.
        offsets.try_reserve_exact(count).map_err(|_| {
            let message = format!("can't hold the places of {count} elements");
            Error::new(ErrorKind::Memory, message)
        })?;
        offsets.resize(count, 0);
        for (d, positions) in indexed() {
            add_offsets(positions, (d, shape[d], strides[d]), &mut offsets)?;
        }
        Ok(Picks::Offsets(offsets))
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Picks::Along { count, .. } => *count,
            Picks::Offsets(offsets) => offsets.len(),
        }
    }

    /// Calls `f` with the number and the offset of each index tuple in a range, in order. Returns whether a
    /// position is out of range.
    #[inline(always)]
    pub(super) fn each(&self, range: Range<usize>, mut f: impl FnMut(usize, isize)) -> bool {
        let mut outside = false;
        match self {
            &Picks::Along { positions, count, size, stride } => {
                assert!(range.end <= count);
                // SAFETY: the positions are adjacent, and the range lies inside.
                outside = unsafe {
                    match stride {
                        1 => each_place(positions, (0, 1), range, size, f),
                        _ => each_place(positions, (0, 1), range, size, |i, at| f(i, at * stride)),
                    }
                };
            }
            Picks::Offsets(offsets) => {
                let numbered = range.clone().zip(&offsets[range]);
                numbered.for_each(|(i, offset)| f(i, *offset));
            }
        }
        outside
    }

    /// As [`Picks::each`], for rows of several elements: the offsets are loaded by code that all callers share.
    #[inline(always)]
    pub(super) fn each_row(&self, range: Range<usize>, mut f: impl FnMut(usize, isize)) -> bool {
        let (mut outside, mut offsets) = (false, [0; ROWS]);
        for start in range.clone().step_by(ROWS) {
            let rows = start..range.end.min(start + ROWS);
            outside |= self.load(rows.clone(), &mut offsets);
            rows.zip(offsets).for_each(|(i, offset)| f(i, offset));
        }
        outside
    }

    /// Loads the offsets of at most [`ROWS`] index tuples. Returns whether a position is out of range.
    #[inline(never)]
    fn load(&self, range: Range<usize>, to: &mut [isize; ROWS]) -> bool {
        let start = range.start;
        self.each(range, |i, offset| to[i - start] = offset)
    }

    /// The offset of an index tuple that may not exist, for a prefetch.
    #[inline(always)]
    pub(super) fn near(&self, i: usize) -> isize {
        let i = i.min(self.len() - 1);
        match self {
            Picks::Along { positions, size, stride, .. } => {
                // SAFETY: the positions are adjacent, and the number is one of theirs.
                let position = unsafe { positions.at(i as isize) };
                place(position, *size, &mut false) * stride
            }
            Picks::Offsets(offsets) => offsets[i],
        }
    }
}

/// Adds the offsets of one dimension's positions to `offsets`.
fn add_offsets(
    positions: &Tensor,
    (dim, size, stride): (usize, usize, isize),
    offsets: &mut [isize],
) -> Result<()> {
    let data = Elements::<i64>::of(positions)?;
    let walk = Walk::new(positions.shape(), [positions.strides()])?;
    let ([step], count) = (walk.run_steps(), offsets.len());
    let (offsets, found) = (DisjointSlice::new(offsets), AtomicBool::new(false));
    for_parts(count, GRAIN, count, |part| {
        // SAFETY: parts don't overlap.
        let mut offsets = unsafe { offsets.part(part.clone()) }.iter_mut();
        let mut outside = false;
        walk.runs_of(part, |[start], len| {
            for (i, offset) in (0..).zip(offsets.by_ref().take(len)) {
                // SAFETY: the runs are those of the positions.
                let position = unsafe { data.at(start + i * step) };
                *offset += place(position, size, &mut outside) * stride;
            }
        });
        found.fetch_or(outside, Ordering::Relaxed);
        Ok(())
    })?;
    if found.into_inner() { Err(out_of_range(positions, dim, size)) } else { Ok(()) }
}
