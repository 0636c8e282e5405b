//! Indices along one dimension, one for each element: gather and scatter_add.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use keyfold_backend::IndexParams;
use keyfold_core::{Result, Shape, Strides};
use keyfold_kit::pool::{Schedule, num_threads, parallel_for};
use keyfold_tensor::{Tensor, Walk};

use super::elements::{Elements, Targets};
use super::multi_index::{put_add, take};
use super::ranges::{GRAIN, check_empty, each_place, out_of_range, place};
use super::targets::{OwnTargets, SERIAL_ELEMENTS, share};
use crate::bits::Bits;
use crate::element::Number;
use crate::reduce::parallel::{DisjointSlice, for_parts};

/// The indexed dimension of a tensor.
#[derive(Clone, Copy)]
struct IndexedDim {
    axis: usize,
    size: usize,
    stride: isize,
}

impl IndexedDim {
    /// # Errors
    /// [`keyfold_core::ErrorKind::Index`] for positions along a dimension of size 0.
    fn new(x: &Tensor, params: &IndexParams, index: &Tensor) -> Result<Self> {
        let axis = params.dims.trailing_zeros() as usize;
        let dim = IndexedDim { axis, size: x.shape()[axis], stride: x.strides()[axis] };
        check_empty(index, axis, dim.size)?;
        Ok(dim)
    }

    /// The strides of the other dimensions.
    fn other_strides(self, x: &Tensor) -> Strides {
        let mut strides = x.strides().clone();
        strides[self.axis] = 0;
        strides
    }

    /// Returns the error of a position out of range, if one was found.
    fn checked(self, found: AtomicBool, index: &Tensor) -> Result<()> {
        match found.into_inner() {
            false => Ok(()),
            true => Err(out_of_range(index, self.axis, self.size)),
        }
    }
}

/// Returns the index of whole rows: one position for all elements of the dimensions but the indexed one, which
/// are those of `x`.
fn of_rows(x: &Tensor, axis: usize, index: &Tensor) -> Option<Tensor> {
    let others = || (0..index.ndim()).filter(|d| *d != axis);
    let fits = |d: usize| {
        let size = index.shape()[d];
        size == x.shape()[d] && (size == 1 || size > 1 && index.strides()[d] == 0)
    };
    if !others().all(fits) || others().all(|d| index.shape()[d] == 1) {
        return None;
    }
    others().rev().try_fold(index.detach(), |row, d| row.select(d as i64, 0).ok())
}

pub(super) fn gather<B: Bits>(
    params: &IndexParams,
    inputs: &[&Tensor],
    out: &Tensor,
) -> Result<()> {
    let [x, index] = [inputs[0], inputs[1]];
    let along = IndexedDim::new(x, params, index)?;
    if let Some(rows) = of_rows(x, along.axis, index) {
        let params = IndexParams { at: along.axis as u32, ..*params };
        return take::<B>(&params, &[x, &rows], out);
    }
    let (positions, from) = (Elements::<i64>::of(index)?, Elements::<B>::of(x)?);
    let strides = along.other_strides(x);
    let walk = Walk::new(index.shape(), [index.strides(), &strides])?;
    let steps = walk.run_steps();
    let found = AtomicBool::new(false);
    super::write::<B>(out, |items| {
        let (count, items) = (items.len(), DisjointSlice::new(items));
        for_parts(count, GRAIN, count, |part| {
            // SAFETY: parts don't overlap.
            let mut items = unsafe { items.part(part.clone()) };
            let mut outside = false;
            walk.runs_of(part, |[at, rest], len| {
                let (run, after) = std::mem::take(&mut items).split_at_mut(len);
                items = after;
                // SAFETY: the runs are those of the index, and along them the elements of `x` at any place
                // exist.
                outside |= unsafe {
                    match (steps, along.stride) {
                        ([1, 0], 1) => {
                            gather_run(along, (positions, at), (from, rest), [1, 0, 1], run)
                        }
                        ([1, 1], stride) => {
                            gather_run(along, (positions, at), (from, rest), [1, 1, stride], run)
                        }
                        ([a, b], c) => {
                            gather_run(along, (positions, at), (from, rest), [a, b, c], run)
                        }
                    }
                };
            });
            if outside {
                found.store(true, Ordering::Relaxed);
            }
            Ok(())
        })
    })?;
    along.checked(found, index)
}

/// Gathers a run of elements: the steps are those of the positions, of the other dimensions, and of the indexed
/// one. Returns whether a position is out of range.
///
/// # Safety
/// The positions of the run exist, and the elements at all places along it.
#[inline(always)]
unsafe fn gather_run<B: Bits>(
    along: IndexedDim,
    (positions, at): (Elements<i64>, isize),
    (from, rest): (Elements<B>, isize),
    [index_step, step, stride]: [isize; 3],
    run: &mut [B],
) -> bool {
    let (len, to) = (run.len(), run.as_mut_ptr());
    // SAFETY: the caller's promise; there is an element for each position.
    unsafe {
        each_place(positions, (at, index_step), 0..len, along.size, |i, place| {
            to.add(i).write(from.at(rest + i as isize * step + place * stride));
        })
    }
}

pub(super) fn scatter_add<T: Number>(
    params: &IndexParams,
    inputs: &[&Tensor],
    out: &Tensor,
) -> Result<()> {
    let [source, index] = [inputs[0], inputs[1]];
    let along = IndexedDim::new(out, params, index)?;
    if source.is_contiguous()
        && source.shape() == index.shape()
        && let Some(rows) = of_rows(out, along.axis, index)
    {
        let params = IndexParams { at: along.axis as u32, ..*params };
        return put_add::<T>(&params, &[source, &rows], out);
    }
    let found = AtomicBool::new(false);
    super::write::<T::Stored>(out, |items| {
        let bytes = size_of_val(items);
        let scatter = Scatter {
            along,
            index,
            positions: Elements::of(index)?,
            values: Elements::<T::Stored>::of(source)?,
            strides: [index.strides(), source.strides(), &along.other_strides(out)],
            items: Targets::new(items),
            found: &found,
        };
        let threads = if index.numel() < SERIAL_ELEMENTS { 1 } else { num_threads()? };
        // The dimensions but the indexed one have targets of their own, so threads share the longest of them.
        let others = (0..index.ndim()).filter(|d| *d != along.axis);
        let longest = others.max_by_key(|d| index.shape()[*d]);
        match longest.filter(|d| index.shape()[*d] >= threads) {
            _ if threads == 1 => scatter.add::<T>(None),
            None if bytes < NEAR_BYTES => scatter.add::<T>(None),
            None => parallel_for(Schedule::Uniform, 0..threads, 1, |parts| {
                parts
                    .into_iter()
                    .try_for_each(|part| scatter.add_to::<T>(share(along.size, part, threads)))
            }),
            Some(dim) => parallel_for(Schedule::Uniform, 0..threads, 1, |parts| {
                parts.into_iter().try_for_each(|part| {
                    scatter.add::<T>(Some((dim, share(index.shape()[dim], part, threads))))
                })
            }),
        }
    })?;
    along.checked(found, index)
}

/// Bytes of an output up to which one thread is as fast as several that share its elements.
const NEAR_BYTES: usize = 1 << 19;

/// A scatter of values. Strides are those of the index, of the values, and of the output's other dimensions.
struct Scatter<'a, B> {
    along: IndexedDim,
    index: &'a Tensor,
    positions: Elements<i64>,
    values: Elements<B>,
    strides: [&'a [isize]; 3],
    items: Targets<'a, B>,
    found: &'a AtomicBool,
}

impl<B: Bits> Scatter<'_, B> {
    /// Adds the values, in order, whose index along a dimension is in a range. No other thread adds those.
    fn add<T: Number<Stored = B>>(&self, part: Option<(usize, Range<usize>)>) -> Result<()> {
        let mut shape: Shape = self.index.shape().clone();
        let mut base = [0_isize; 3];
        if let Some((dim, range)) = part {
            shape[dim] = range.len();
            base = self.strides.map(|strides| strides[dim] * range.start as isize);
        }
        let walk = Walk::new(&shape, self.strides)?;
        let (len, steps) = (walk.run_len(), walk.run_steps());
        let (size, first) = (self.along.size, self.items.address(0));
        let mut outside = false;
        walk.runs(|start| {
            let [index, from, rest]: [isize; 3] = std::array::from_fn(|n| start[n] + base[n]);
            let from = (self.positions, index, self.values, from);
            // SAFETY: the runs are those of the index, the source is as large in each dimension, any place is
            // inside the output, and no other thread adds to these elements.
            outside |= unsafe {
                match (steps, self.along.stride) {
                    ([1, 1, 0], 1) => add_run::<T>(size, from, (first, rest), [1, 1, 0, 1], len),
                    ([1, 1, 1], stride) => {
                        add_run::<T>(size, from, (first, rest), [1, 1, 1, stride], len)
                    }
                    ([a, b, c], d) => add_run::<T>(size, from, (first, rest), [a, b, c, d], len),
                }
            };
        });
        self.note(outside);
        Ok(())
    }

    /// Adds the values, in order, whose place along the indexed dimension is in a range.
    fn add_to<T: Number<Stored = B>>(&self, places: Range<usize>) -> Result<()> {
        let walk = Walk::new(self.index.shape(), self.strides)?;
        let (len, steps) = (walk.run_len(), walk.run_steps());
        let mut own = OwnTargets::new(places);
        let mut outside = false;
        walk.runs(|[index, from, rest]| {
            // SAFETY: as in `add`; no other thread has these places.
            let add = |i: usize, place: isize| unsafe {
                let i = i as isize;
                let at = rest + i * steps[2] + place * self.along.stride;
                self.add_one::<T>(at, from + i * steps[1]);
            };
            for i in 0..len {
                // SAFETY: the runs are those of the index.
                let position = unsafe { self.positions.at(index + i as isize * steps[0]) };
                own.push(i, place(position, self.along.size, &mut outside), add);
            }
            own.flush(add);
        });
        self.note(outside);
        Ok(())
    }

    /// # Safety
    /// The offsets are those of an element of the output, which no other thread accesses, and of a value.
    #[inline(always)]
    unsafe fn add_one<T: Number<Stored = B>>(&self, at: isize, from: isize) {
        // SAFETY: the caller's promise.
        unsafe {
            let item = self.items.address(at);
            item.write(T::load(item.read()).add(T::load(self.values.at(from))).store());
        }
    }

    fn note(&self, outside: bool) {
        if outside {
            self.found.store(true, Ordering::Relaxed);
        }
    }
}

/// Adds a run of values: the steps are those of the positions, of the values, of the other dimensions, and of
/// the indexed one. Returns whether a position is out of range.
///
/// # Safety
/// The positions and the values of the run exist, and the elements at all places along it, which no other
/// thread accesses.
#[inline(always)]
unsafe fn add_run<T: Number>(
    size: usize,
    (positions, at, values, from): (Elements<i64>, isize, Elements<T::Stored>, isize),
    (first, rest): (*mut T::Stored, isize),
    [index_step, value_step, step, stride]: [isize; 4],
    len: usize,
) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        each_place(positions, (at, index_step), 0..len, size, |i, place| {
            let i = i as isize;
            let item = first.wrapping_offset(rest + i * step + place * stride);
            let value = values.at(from + i * value_step);
            item.write(T::load(item.read()).add(T::load(value)).store());
        })
    }
}
