//! Elements at positions along several dimensions.

use keyfold_backend::IndexParams;
use keyfold_core::{Error, ErrorKind, Result, Shape, Strides, layout};
use keyfold_tensor::{Tensor, Walk, for_each_offset};
use smallvec::SmallVec;

use crate::bits::{self, Bits};
use crate::element::Number;

/// Sizes of dimensions, and the steps along them.
type Sizes = (SmallVec<[usize; 6]>, SmallVec<[isize; 6]>);

/// Where the elements of an indexed tensor are. In the order of the result they are those at
/// `before + picked + after`, for each offset of the dimensions before the indexed ones, each pick,
/// and each offset of the dimensions after them.
struct Plan {
    before: (Shape, Strides),
    picked: Vec<isize>,
    after: (Shape, Strides),
}

impl Plan {
    /// Of a tensor with those positions, which have one shape.
    ///
    /// # Errors
    /// [`ErrorKind::Index`] for a position out of range.
    fn new(x: &Tensor, params: &IndexParams, positions: &[&Tensor]) -> Result<Plan> {
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
        // A view may have more elements than there is memory for, which mustn't end the process.
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
        Ok(Plan { before: dims(before)?, picked, after: dims(after)? })
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

/// Adds what the positions along one dimension contribute to the offset of each pick.
fn add_offsets(
    index: &Tensor,
    dim: usize,
    size: usize,
    stride: isize,
    picked: &mut [isize],
) -> Result<()> {
    let (data, origin) = index.as_strided_slice::<i64>()?;
    let (mut picked, mut wrong) = (picked.iter_mut(), None);
    for_each_offset(index.shape(), [index.strides()], |[at]| {
        let given = data[origin.wrapping_add_signed(at)];
        let place = if given < 0 { given.saturating_add(size as i64) } else { given };
        match picked.next() {
            Some(slot) if (0..size as i64).contains(&place) => *slot += place as isize * stride,
            _ => wrong = wrong.or(Some(given)),
        }
    })?;
    let Some(wrong) = wrong else { return Ok(()) };
    Err(super::out_of_range(wrong, dim, size))
}

pub(super) fn take<B: Bits>(params: &IndexParams, inputs: &[&Tensor], out: &Tensor) -> Result<()> {
    let x = inputs[0];
    let plan = Plan::new(x, params, &inputs[1..])?;
    let (data, origin) = bits::strided::<B>(x)?;
    super::write::<B>(out, |items| {
        let mut items = items.iter_mut();
        plan.for_each(|at| {
            if let Some(item) = items.next() {
                *item = data[origin.wrapping_add_signed(at)];
            }
        })
    })
}

/// The values that are put, which are contiguous.
///
/// # Errors
/// When they aren't, or their memory can't be reached.
fn values<B: Bits>(values: &Tensor) -> Result<&[B]> {
    match values.is_contiguous() {
        true => Ok(bits::strided::<B>(values)?.0),
        false => {
            let message = format!("the values of shape {:?} aren't contiguous", values.shape());
            Err(Error::new(ErrorKind::Value, message))
        }
    }
}

pub(super) fn put<B: Bits>(params: &IndexParams, inputs: &[&Tensor], out: &Tensor) -> Result<()> {
    let plan = Plan::new(out, params, &inputs[1..])?;
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
    let plan = Plan::new(out, params, &inputs[1..])?;
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
