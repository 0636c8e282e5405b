//! Indices along several dimensions, broadcast together: take, put, put_add.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use keyfold_backend::IndexParams;
use keyfold_core::{Error, ErrorKind, Result};
use keyfold_kit::pool::{Schedule, num_threads, parallel_for};
use keyfold_tensor::{Tensor, Walk};
use smallvec::SmallVec;

use super::elements::{Elements, Targets, prefetch};
use super::picks::Picks;
use super::ranges::out_of_range;
use super::targets::{OwnTargets, SERIAL_ELEMENTS, share};
use crate::bits::{self, Bits};
use crate::element::Number;
use crate::reduce::parallel::{DisjointSlice, for_parts};

/// Sizes and strides of dimensions.
type Sizes = (SmallVec<[usize; 6]>, SmallVec<[isize; 6]>);

/// The rows of an indexed tensor: one for each offset of the dimensions before the indexed ones and each index
/// tuple, of the elements of the dimensions after them. An element's offset is `before + picked + after`.
struct IndexedRows {
    before: Walk<1>,
    before_count: usize,
    picks: Picks,
    /// The elements between the lowest and the highest of the indexed dimensions, of a contiguous tensor.
    extent: usize,
    after: Walk<1>,
    row_len: usize,
}

impl IndexedRows {
    /// The rows of a tensor for its index tensors, which have one shape.
    ///
    /// # Errors
    /// As [`Picks::new`].
    fn new(x: &Tensor, params: &IndexParams, positions: &[&Tensor]) -> Result<IndexedRows> {
        let (shape, strides) = (x.shape(), x.strides());
        let (mut before, mut after) = (Sizes::default(), Sizes::default());
        let mut extent = 1;
        for d in 0..shape.len() {
            if params.dims >> d & 1 == 1 {
                extent += shape[d].saturating_sub(1) * strides[d].unsigned_abs();
                continue;
            }
            let dims = if before.0.len() < params.at as usize { &mut before } else { &mut after };
            dims.0.push(shape[d]);
            dims.1.push(strides[d]);
        }
        let walk = |(sizes, steps): &Sizes| Walk::new(sizes, [steps]);
        Ok(IndexedRows {
            before: walk(&before)?,
            before_count: before.0.iter().product(),
            picks: Picks::new(x, params, positions)?,
            extent,
            after: walk(&after)?,
            row_len: after.0.iter().product(),
        })
    }

    /// The number of rows.
    fn len(&self) -> usize {
        self.before_count * self.picks.len()
    }

    /// Whether a position is out of range, where no row has an element.
    fn has_outside(&self) -> bool {
        self.picks.each(0..self.picks.len(), |_, _| ())
    }

    /// Whether the elements of a row are adjacent.
    fn is_dense(&self) -> bool {
        self.row_len == 1 || self.after.run_len() == self.row_len && self.after.run_steps() == [1]
    }

    /// Calls `f` with the rows of a range in groups of one offset before the indexed dimensions: that offset,
    /// and the range of index tuples.
    fn groups(&self, rows: Range<usize>, mut f: impl FnMut(isize, Range<usize>)) {
        let (mut at, picks) = (rows.start, self.picks.len());
        if rows.is_empty() {
            return;
        }
        let ([step], mut from) = (self.before.run_steps(), rows.start % picks);
        self.before.runs_of(rows.start / picks..rows.end.div_ceil(picks), |[start], len| {
            for i in 0..len as isize {
                let to = picks.min(from + rows.end - at);
                f(start + i * step, from..to);
                at += to - from;
                from = 0;
            }
        });
    }
}

/// Returns the error of a position out of range, if one was found.
fn checked(found: AtomicBool, x: &Tensor, params: &IndexParams, inputs: &[&Tensor]) -> Result<()> {
    if !found.into_inner() {
        return Ok(());
    }
    let dim = params.dims.trailing_zeros() as usize;
    Err(out_of_range(inputs[1], dim, x.shape()[dim]))
}

/// Bytes of the rows that one thread copies at a time.
const TASK_BYTES: usize = 1 << 16;

/// Index tuples between a row that is prefetched and the row that is accessed.
const AHEAD: usize = 6;

pub(super) fn take<B: Bits>(params: &IndexParams, inputs: &[&Tensor], out: &Tensor) -> Result<()> {
    let x = inputs[0];
    let rows = IndexedRows::new(x, params, &inputs[1..])?;
    let (from, len) = (Elements::<B>::of(x)?, rows.row_len);
    let found = AtomicBool::new(false);
    super::write::<B>(out, |items| {
        let elements = items.len();
        if elements == 0 {
            found.store(rows.has_outside(), Ordering::Relaxed);
            return Ok(());
        }
        let items = DisjointSlice::new(items);
        let grain = (TASK_BYTES / (len * size_of::<B>())).max(1);
        for_parts(rows.len(), grain, elements, |part| {
            // SAFETY: parts of rows don't overlap.
            let mut items = unsafe { items.part(part.start * len..part.end * len) };
            rows.groups(part, |before, picks| {
                let (group, rest) = std::mem::take(&mut items).split_at_mut(picks.len() * len);
                items = rest;
                // SAFETY: the offsets of rows are those of elements of `x`.
                let outside = unsafe { copy_rows(&rows, from, before, picks, group) };
                if outside {
                    found.store(true, Ordering::Relaxed);
                }
            });
            Ok(())
        })
    })?;
    checked(found, x, params, inputs)
}

/// Copies rows of one offset before the indexed dimensions. Returns whether a position is out of range.
///
/// # Safety
/// The elements are those of the tensor that the rows were planned for.
#[inline]
unsafe fn copy_rows<B: Bits>(
    rows: &IndexedRows,
    from: Elements<B>,
    before: isize,
    picks: Range<usize>,
    to: &mut [B],
) -> bool {
    let (len, first) = (rows.row_len, picks.start);
    if len == 1 {
        let to = to.as_mut_ptr();
        return rows.picks.each(picks, |i, offset| {
            // SAFETY: the caller's promise, and there is one element for each index tuple.
            unsafe { to.add(i - first).write(from.at(before + offset)) };
        });
    }
    if rows.is_dense() {
        return rows.picks.each_row(picks, |i, offset| {
            prefetch(from.address(before + rows.picks.near(i + AHEAD)), len);
            let row = &mut to[(i - first) * len..][..len];
            let from = from.address(before + offset);
            // SAFETY: the caller's promise.
            unsafe { std::ptr::copy_nonoverlapping(from, row.as_mut_ptr(), len) };
        });
    }
    let (run, [step]) = (rows.after.run_len(), rows.after.run_steps());
    rows.picks.each_row(picks, |i, offset| {
        let mut runs = to[(i - first) * len..][..len].chunks_exact_mut(run);
        rows.after.runs(|[start]| {
            for (k, item) in (0..).zip(runs.next().into_iter().flatten()) {
                // SAFETY: the caller's promise.
                *item = unsafe { from.at(before + offset + start + k * step) };
            }
        });
    })
}

/// Returns the elements of the values to put, which are contiguous.
///
/// # Errors
/// If they aren't contiguous, or the host can't access their memory.
fn values<B: Bits>(values: &Tensor) -> Result<&[B]> {
    match values.is_contiguous() {
        true => Ok(bits::strided_slice::<B>(values)?.0),
        false => {
            let message = format!("the values of shape {:?} aren't contiguous", values.shape());
            Err(Error::new(ErrorKind::Value, message))
        }
    }
}

pub(super) fn put<B: Bits>(params: &IndexParams, inputs: &[&Tensor], out: &Tensor) -> Result<()> {
    put_with::<B>(params, inputs, out, |item, value| *item = value)
}

pub(super) fn put_add<T: Number>(
    params: &IndexParams,
    inputs: &[&Tensor],
    out: &Tensor,
) -> Result<()> {
    put_with::<T::Stored>(params, inputs, out, |item, value| {
        *item = T::load(*item).add(T::load(value)).store();
    })
}

/// The part of a put that one thread does.
enum Share {
    /// Some of the offsets before the indexed dimensions.
    Before(Range<usize>),
    /// Some of the columns of rows.
    Columns(Range<usize>),
    /// The rows whose offsets along the indexed dimensions are in a range.
    Targets(Range<usize>),
}

/// Bytes of a row's part for a thread from which on threads share the columns of rows.
const WIDE_BYTES: usize = 512;

/// Bytes of an output of single elements up to which one thread is as fast as several.
const NEAR_BYTES: usize = 1 << 19;

/// Stores rows of values in order. Threads share the output, not the values, so the result's bits don't depend
/// on their number.
fn put_with<B: Bits>(
    params: &IndexParams,
    inputs: &[&Tensor],
    out: &Tensor,
    store: impl Fn(&mut B, B) + Sync,
) -> Result<()> {
    let rows = IndexedRows::new(out, params, &inputs[1..])?;
    let values = values::<B>(inputs[0])?;
    let found = AtomicBool::new(false);
    super::write::<B>(out, |items| {
        if items.is_empty() {
            found.store(rows.has_outside(), Ordering::Relaxed);
            return Ok(());
        }
        let bytes = size_of_val(items);
        let put = Put { rows: &rows, values, items: Targets::new(items), store, found: &found };
        let (befores, len, threads) = (rows.before_count, rows.row_len, num_threads()?);
        let is_near = len == 1 && befores < threads && bytes < NEAR_BYTES;
        if rows.len() * len < SERIAL_ELEMENTS || threads == 1 || is_near {
            put.run(Share::Before(0..befores));
            return Ok(());
        }
        let wide = rows.is_dense() && len * size_of::<B>() >= threads * WIDE_BYTES;
        parallel_for(Schedule::Uniform, 0..threads, 1, |part| {
            for part in part {
                put.run(if befores >= threads {
                    Share::Before(share(befores, part, threads))
                } else if wide {
                    Share::Columns(share(len, part, threads))
                } else {
                    Share::Targets(share(rows.extent, part, threads))
                });
            }
            Ok(())
        })
    })?;
    checked(found, out, params, inputs)
}

/// A put of values to rows of an output.
struct Put<'a, B, S> {
    rows: &'a IndexedRows,
    values: &'a [B],
    items: Targets<'a, B>,
    store: S,
    found: &'a AtomicBool,
}

impl<B: Bits, S: Fn(&mut B, B)> Put<'_, B, S> {
    /// Does the part of one thread.
    fn run(&self, share: Share) {
        let (picks, len) = (&self.rows.picks, self.rows.row_len);
        let count = picks.len();
        let (befores, columns, targets) = match share {
            Share::Before(befores) => (befores, 0..len, None),
            Share::Columns(columns) => (0..self.rows.before_count, columns, None),
            Share::Targets(targets) => (0..self.rows.before_count, 0..len, Some(targets)),
        };
        let mut number = befores.start;
        self.rows.groups(befores.start * count..befores.end * count, |before, _| {
            let values = &self.values[number * count * len..][..count * len];
            number += 1;
            let outside = match (&targets, len) {
                (None, 1) => picks.each(0..count, |i, offset| self.one(values, i, before + offset)),
                (Some(targets), 1) => {
                    let mut own = OwnTargets::new(targets.clone());
                    let outside = picks.each(0..count, |i, offset| {
                        own.push(i, offset, |i, offset| self.one(values, i, before + offset));
                    });
                    own.flush(|i, offset| self.one(values, i, before + offset));
                    outside
                }
                _ => {
                    let all = 0..self.rows.extent;
                    let mut own = OwnTargets::new(targets.clone().unwrap_or(all));
                    let mut row = |i: usize, offset| {
                        self.row(&values[i * len..][..len], before + offset, &columns);
                    };
                    let outside = picks.each_row(0..count, |i, offset| {
                        prefetch(self.items.address(before + picks.near(i + AHEAD)), len);
                        own.push(i, offset, &mut row);
                    });
                    own.flush(row);
                    outside
                }
            };
            if outside {
                self.found.store(true, Ordering::Relaxed);
            }
        });
    }

    /// Stores a row of one element.
    #[inline(always)]
    fn one(&self, values: &[B], i: usize, offset: isize) {
        // SAFETY: the offset of a row is inside the output, and no other thread has this row.
        unsafe { (self.store)(&mut *self.items.address(offset), *values.get_unchecked(i)) };
    }

    /// Stores the columns of a row.
    #[inline]
    fn row(&self, values: &[B], offset: isize, columns: &Range<usize>) {
        let after = &self.rows.after;
        if self.rows.is_dense() {
            let offset = offset + columns.start as isize;
            // SAFETY: the row is inside the output, and no other thread has these columns of it.
            let row = unsafe { self.items.row(offset, columns.len()) };
            let values = &values[columns.clone()];
            row.iter_mut().zip(values).for_each(|(item, value)| (self.store)(item, *value));
            return;
        }
        let (run, [step]) = (after.run_len(), after.run_steps());
        let mut values = values.iter();
        after.runs(|[start]| {
            for (k, value) in (0..).zip(values.by_ref().take(run)) {
                // SAFETY: as above.
                unsafe {
                    (self.store)(&mut *self.items.address(offset + start + k * step), *value);
                };
            }
        });
    }
}
