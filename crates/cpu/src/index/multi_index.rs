//! Indices along several dimensions, broadcast together: take, put, put_add.

use keyfold_backend::IndexParams;
use keyfold_core::{Error, ErrorKind, Result, Shape, Strides, layout};
use keyfold_tensor::{Tensor, Walk, for_each_offset};
use smallvec::SmallVec;

use crate::bits::{self, Bits};
use crate::element::Number;

/// Sizes and strides of dimensions.
type Sizes = (SmallVec<[usize; 6]>, SmallVec<[isize; 6]>);

/// The offsets of an indexed tensor's elements. In the order of the result they are `before + picked +
/// after`, for each offset of the dimensions before the indexed ones, each index tuple, and each offset
/// of the dimensions after them.
struct IndexedOffsets {
    before: (Shape, Strides),
    picked: Vec<isize>,
    after: (Shape, Strides),
}

impl IndexedOffsets {
    /// The offsets for a tensor and its index tensors, which have one shape.
    ///
    /// # Errors
    /// [`ErrorKind::Index`] for an index out of range.
    fn new(x: &Tensor, params: &IndexParams, positions: &[&Tensor]) -> Result<IndexedOffsets> {
        let (shape, strides) = (x.shape(), x.strides());
        let group = positions.first().map_or(Shape::empty(), |first| first.shape().clone());
        let (mut before, mut after) = (Sizes::default(), Sizes::default());
        for d in (0..shape.len()).filter(|d| params.dims >> d & 1 == 0) {
            let dims = if before.0.len() < params.at as usize { &mut before } else { &mut after };
            dims.0.push(shape[d]);
            dims.1.push(strides[d]);
        }
        let count = layout::numel(&group, size_of::<isize>())?;
        let mut picked: Vec<isize> = Vec::new();
        // A broadcast view may have more elements than fit in memory, which must not abort the process.
        picked.try_reserve_exact(count).map_err(|_| {
            let message = format!("can't hold the places of {count} elements");
            Error::new(ErrorKind::Memory, message)
        })?;
        picked.resize(count, 0);
        let indexed = (0..shape.len()).filter(|d| params.dims >> d & 1 == 1);
        for (d, index) in indexed.zip(positions) {
            add_offsets(index, d, shape[d], strides[d], &mut picked)?;
        }
        let dims =
            |(sizes, steps): Sizes| Ok::<_, Error>((Shape::new(&sizes)?, Strides::new(&steps)?));
        Ok(IndexedOffsets { before: dims(before)?, picked, after: dims(after)? })
    }

    /// Calls `f` with the offset of each element, in the order of the result.
    fn for_each(&self, mut f: impl FnMut(isize)) -> Result<()> {
        let after = Walk::new(&self.after.0, [&self.after.1])?;
        let (len, [step]) = (after.run_len() as isize, after.run_steps());
        for_each_offset(&self.before.0, [&self.before.1], |[before]| {
            for picked in &self.picked {
                after.runs(|[start]| {
                    (0..len).for_each(|i| f(before + picked + start + i * step));
                });
            }
        })
    }
}

/// Adds the offsets of one dimension's indices to `picked`.
fn add_offsets(
    index: &Tensor,
    dim: usize,
    size: usize,
    stride: isize,
    picked: &mut [isize],
) -> Result<()> {
    let (data, origin) = index.as_strided_slice::<i64>()?;
    let (mut picked, mut out_of_range_index) = (picked.iter_mut(), None);
    for_each_offset(index.shape(), [index.strides()], |[at]| {
        let given = data[origin.wrapping_add_signed(at)];
        let place = if given < 0 { given.saturating_add(size as i64) } else { given };
        match picked.next() {
            Some(slot) if (0..size as i64).contains(&place) => *slot += place as isize * stride,
            _ => out_of_range_index = out_of_range_index.or(Some(given)),
        }
    })?;
    let Some(out_of_range_index) = out_of_range_index else { return Ok(()) };
    Err(super::out_of_range(out_of_range_index, dim, size))
}

pub(super) fn take<B: Bits>(params: &IndexParams, inputs: &[&Tensor], out: &Tensor) -> Result<()> {
    let x = inputs[0];
    let plan = IndexedOffsets::new(x, params, &inputs[1..])?;
    let (data, origin) = bits::strided_slice::<B>(x)?;
    super::write::<B>(out, |items| {
        let mut items = items.iter_mut();
        plan.for_each(|at| {
            if let Some(item) = items.next() {
                *item = data[origin.wrapping_add_signed(at)];
            }
        })
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
    let plan = IndexedOffsets::new(out, params, &inputs[1..])?;
    let mut values = values::<B>(inputs[0])?.iter();
    super::write::<B>(out, |data| {
        plan.for_each(|at| {
            if let Some(value) = values.next() {
                data[at as usize] = *value;
            }
        })
    })
}

pub(super) fn put_add<T: Number>(
    params: &IndexParams,
    inputs: &[&Tensor],
    out: &Tensor,
) -> Result<()> {
    let plan = IndexedOffsets::new(out, params, &inputs[1..])?;
    let mut values = values::<T::Stored>(inputs[0])?.iter();
    super::write::<T::Stored>(out, |data| {
        plan.for_each(|at| {
            if let Some(value) = values.next() {
                let item = &mut data[at as usize];
                *item = T::load(*item).add(T::load(*value)).store();
            }
        })
    })
}
