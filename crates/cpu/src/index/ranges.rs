//! Positions along a dimension: their places in memory, and the error of one that is out of range.

use std::ops::Range;

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_tensor::{Tensor, for_each_offset};

use super::elements::Elements;

/// Positions that one thread reads at a time.
pub(super) const GRAIN: usize = 1 << 14;

/// Returns the place of a position in a dimension of that size, which isn't 0; a negative position counts
/// from the end. A position out of range has the place 0 and sets `outside`.
///
/// The place is inside the dimension for every position, so memory stays safe whatever the positions are.
#[inline(always)]
pub(super) fn place(position: i64, size: usize, outside: &mut bool) -> isize {
    let size = size as i64;
    if (position as u64) < size as u64 {
        return position as isize;
    }
    let from_end = position.wrapping_add(size);
    if (from_end as u64) < size as u64 {
        return from_end as isize;
    }
    *outside = true;
    0
}

/// Positions whose range is checked at once.
const BLOCK: usize = 8;

/// Calls `f` with the number and the place of each position of a run, in order. Returns whether one is out of
/// range.
///
/// # Safety
/// The positions exist.
#[inline(always)]
pub(super) unsafe fn each_place(
    positions: Elements<i64>,
    (at, step): (isize, isize),
    numbers: Range<usize>,
    size: usize,
    mut f: impl FnMut(usize, isize),
) -> bool {
    // SAFETY: the caller's promise.
    let read = |i: usize| unsafe { positions.at(at + i as isize * step) };
    let (mut outside, last) = (false, size as i64 - 1);
    let mut i = numbers.start;
    while numbers.end - i >= BLOCK {
        let mut block: [i64; BLOCK] = std::array::from_fn(|k| read(i + k));
        // Where all are from 0 to `last`, neither they nor their distances from it have the sign bit.
        if block.iter().fold(0, |bits, position| bits | position | last.wrapping_sub(*position)) < 0
        {
            block = block.map(|position| place(position, size, &mut outside) as i64);
        }
        block.iter().enumerate().for_each(|(k, place)| f(i + k, *place as isize));
        i += BLOCK;
    }
    for i in i..numbers.end {
        f(i, place(read(i), size, &mut outside));
    }
    outside
}

/// Refuses positions for an empty dimension, which has no place for [`place`] to return.
///
/// # Errors
/// [`ErrorKind::Index`].
pub(super) fn check_empty(positions: &Tensor, dim: usize, size: usize) -> Result<()> {
    if size > 0 || positions.numel() == 0 {
        Ok(())
    } else {
        Err(out_of_range(positions, dim, size))
    }
}

/// Returns the error of the first position that is out of range for dimension `dim`, which has that size.
#[cold]
pub(super) fn out_of_range(positions: &Tensor, dim: usize, size: usize) -> Error {
    let (mut number, mut found) = (0, None);
    let walked = positions.as_strided_slice::<i64>().and_then(|(data, origin)| {
        for_each_offset(positions.shape(), [positions.strides()], |[at]| {
            let position = data[origin.wrapping_add_signed(at)];
            let mut outside = size == 0;
            place(position, size.max(1), &mut outside);
            if outside && found.is_none() {
                found = Some((number, position));
            }
            number += 1;
        })
    });
    let (number, position) = match (walked, found) {
        (Err(error), _) => return error,
        (Ok(()), found) => found.unwrap_or_default(),
    };
    let (mut at, mut rest) = (vec![0; positions.ndim()], number);
    for (at, size) in at.iter_mut().zip(positions.shape().iter()).rev() {
        (*at, rest) = (rest % size, rest / size);
    }
    let message = format!(
        "index {position} is out of range for dimension {dim} of size {size}; it is at {at:?} of the indices"
    );
    Error::new(ErrorKind::Index, message)
}
