//! Indices along one dimension, one for each element: gather and scatter_add.

use keyfold_backend::IndexParams;
use keyfold_core::{Result, Strides};
use keyfold_tensor::{Tensor, for_each_offset};

use crate::bits::{self, Bits};
use crate::element::Number;

/// The indexed dimension of a tensor.
struct IndexedDim {
    axis: usize,
    size: usize,
    stride: isize,
    /// The first index that is out of range.
    out_of_range_index: Option<i64>,
}

impl IndexedDim {
    fn new(x: &Tensor, params: &IndexParams) -> Self {
        let axis = params.dims.trailing_zeros() as usize;
        IndexedDim {
            axis,
            size: x.shape()[axis],
            stride: x.strides()[axis],
            out_of_range_index: None,
        }
    }

    /// The strides of the other dimensions.
    fn other_strides(&self, x: &Tensor) -> Strides {
        let mut strides = x.strides().clone();
        strides[self.axis] = 0;
        strides
    }

    /// Returns the offset of an index from the dimension's start. If the index is out of range, records
    /// it and returns `None`.
    #[inline]
    fn step(&mut self, given: i64) -> Option<isize> {
        let index = if given < 0 { given.saturating_add(self.size as i64) } else { given };
        if (0..self.size as i64).contains(&index) {
            return Some(index as isize * self.stride);
        }
        self.out_of_range_index = self.out_of_range_index.or(Some(given));
        None
    }

    fn finish(self) -> Result<()> {
        match self.out_of_range_index {
            None => Ok(()),
            Some(out_of_range_index) => {
                Err(super::out_of_range(out_of_range_index, self.axis, self.size))
            }
        }
    }
}

pub(super) fn gather<B: Bits>(
    params: &IndexParams,
    inputs: &[&Tensor],
    out: &Tensor,
) -> Result<()> {
    let [x, index] = [inputs[0], inputs[1]];
    let (positions, first) = index.as_strided_slice::<i64>()?;
    let mut along = IndexedDim::new(x, params);
    let strides = along.other_strides(x);
    let (data, origin) = bits::strided_slice::<B>(x)?;
    super::write::<B>(out, |items| {
        let mut items = items.iter_mut();
        for_each_offset(index.shape(), [index.strides(), &strides], |[at, rest]| {
            let Some(item) = items.next() else { return };
            if let Some(step) = along.step(positions[first.wrapping_add_signed(at)]) {
                *item = data[origin.wrapping_add_signed(rest + step)];
            }
        })
    })?;
    along.finish()
}

pub(super) fn scatter_add<T: Number>(
    params: &IndexParams,
    inputs: &[&Tensor],
    out: &Tensor,
) -> Result<()> {
    let [source, index] = [inputs[0], inputs[1]];
    let (positions, first) = index.as_strided_slice::<i64>()?;
    let mut along = IndexedDim::new(out, params);
    let strides = along.other_strides(out);
    let (values, origin) = bits::strided_slice::<T::Stored>(source)?;
    let all: [&[isize]; 3] = [index.strides(), source.strides(), &strides];
    super::write::<T::Stored>(out, |data| {
        for_each_offset(index.shape(), all, |[at, from, rest]| {
            if let Some(step) = along.step(positions[first.wrapping_add_signed(at)]) {
                let item = &mut data[(rest + step) as usize];
                let value = values[origin.wrapping_add_signed(from)];
                *item = T::load(*item).add(T::load(value)).store();
            }
        })
    })?;
    along.finish()
}
