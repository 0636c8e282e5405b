//! Elements at positions along one dimension, one position for each element.

use keyfold_backend::IndexParams;
use keyfold_core::{Result, Strides};
use keyfold_tensor::{Tensor, for_each_offset};

use crate::bits::{self, Bits};
use crate::element::Number;

/// Where positions along one dimension lead.
struct Along {
    axis: usize,
    size: usize,
    stride: isize,
    /// The first position that isn't there.
    wrong: Option<i64>,
}

impl Along {
    fn new(x: &Tensor, params: &IndexParams) -> Self {
        let axis = params.dims.trailing_zeros() as usize;
        Along { axis, size: x.shape()[axis], stride: x.strides()[axis], wrong: None }
    }

    /// The steps of the other dimensions.
    fn others(&self, x: &Tensor) -> Strides {
        let mut strides = x.strides().clone();
        strides[self.axis] = 0;
        strides
    }

    /// The step from the dimension's start to a position; `None`, kept in mind, if it isn't there.
    #[inline]
    fn step(&mut self, given: i64) -> Option<isize> {
        let place = if given < 0 { given.saturating_add(self.size as i64) } else { given };
        if (0..self.size as i64).contains(&place) {
            return Some(place as isize * self.stride);
        }
        self.wrong = self.wrong.or(Some(given));
        None
    }

    fn finish(self) -> Result<()> {
        match self.wrong {
            None => Ok(()),
            Some(wrong) => Err(super::out_of_range(wrong, self.axis, self.size)),
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
    let mut along = Along::new(x, params);
    let strides = along.others(x);
    let (data, origin) = bits::strided::<B>(x)?;
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
    let mut along = Along::new(out, params);
    let strides = along.others(out);
    let (values, origin) = bits::strided::<T::Stored>(source)?;
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
