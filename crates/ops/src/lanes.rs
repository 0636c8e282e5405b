//! Walking the lanes of a tensor: for each index of the dimensions that stay, the elements along
//! the dimensions that are reduced.

use keyfold_core::{ErrorKind, Result, Shape, Strides, layout};
use keyfold_tensor::{Tensor, Walk, for_each_offset};

use crate::element::Number;
use crate::op::Op;

/// Which dimensions are reduced, and the shape of the result.
pub(crate) struct Reduction {
    reduced: Shape,
    kept: Shape,
    /// By dimension of the input, whether it is reduced.
    flags: Vec<bool>,
    /// The result's shape: with or without the reduced dimensions, at size 1.
    pub(crate) shape: Shape,
}

impl Reduction {
    /// Of these dimensions, negative ones counted from the back; `None` is all of them.
    ///
    /// # Errors
    /// [`ErrorKind::Index`] for a dimension that isn't there, [`ErrorKind::Value`] for one named
    /// twice.
    pub(crate) fn new(
        op: Op,
        shape: &[usize],
        dims: Option<&[i64]>,
        keepdim: bool,
    ) -> Result<Self> {
        let mut flags = vec![dims.is_none(); shape.len()];
        for &dim in dims.unwrap_or_default() {
            let axis = op.at(layout::normalize_axis(dim, shape.len()))?;
            if std::mem::replace(&mut flags[axis], true) {
                let message = format!("dim {dim} is named twice in {dims:?}");
                return Err(op.error(ErrorKind::Value, message));
            }
        }
        let pick = |wanted: bool| {
            let sizes = shape.iter().zip(&flags).filter(|(_, reduced)| **reduced == wanted);
            Shape::try_from(sizes.map(|(size, _)| *size).collect::<Vec<_>>())
        };
        let (reduced, kept) = (pick(true)?, pick(false)?);
        let mut result = kept.clone();
        if keepdim {
            result = Shape::new(shape)?;
            for (size, reduced) in result.iter_mut().zip(&flags) {
                *size = if *reduced { 1 } else { *size };
            }
        }
        Ok(Reduction { reduced, kept, flags, shape: result })
    }

    /// How many elements each lane has.
    pub(crate) fn len(&self) -> usize {
        self.reduced.iter().product()
    }

    /// Refuses lanes without elements, if there are any, for a reduction that has no value there.
    pub(crate) fn check_nonempty(&self, op: Op, shape: &[usize]) -> Result<()> {
        if self.len() > 0 || self.kept.contains(&0) {
            return Ok(());
        }
        let message =
            format!("shape {shape:?} leaves nothing to choose from; no value stands for that");
        Err(op.error(ErrorKind::Value, message))
    }

    /// Calls `each` with every lane, in row-major order of the result.
    pub(crate) fn lanes<T: Number>(
        &self,
        x: &Tensor,
        mut each: impl FnMut(Lane<'_, T>),
    ) -> Result<()> {
        let (data, origin) = x.as_strided_slice::<T::Stored>()?;
        let pick = |wanted: bool| {
            let strides = x.strides().iter().zip(&self.flags).filter(|(_, r)| **r == wanted);
            Strides::try_from(strides.map(|(stride, _)| *stride).collect::<Vec<_>>())
        };
        let walk = Walk::new(&self.reduced, [&pick(true)?])?;
        for_each_offset(&self.kept, [&pick(false)?], |[at]| {
            each(Lane { data, start: origin.wrapping_add_signed(at), walk: &walk });
        })
    }
}

/// The elements that make one element of the result, in row-major order.
#[derive(Clone, Copy)]
pub(crate) struct Lane<'a, T: Number> {
    data: &'a [T::Stored],
    start: usize,
    walk: &'a Walk<1>,
}

/// Evenly spaced elements of a lane.
#[derive(Clone, Copy)]
pub(crate) struct LaneRun<'a, T: Number> {
    data: &'a [T::Stored],
    step: usize,
    len: usize,
    reversed: bool,
}

impl<'a, T: Number> Lane<'a, T> {
    /// Calls `f` with each run of evenly spaced elements.
    pub(crate) fn runs(&self, mut f: impl FnMut(LaneRun<'a, T>)) {
        let (len, [step]) = (self.walk.run_len(), self.walk.run_steps());
        self.walk.runs(|[at]| {
            let first = self.start.wrapping_add_signed(at);
            let last = first.wrapping_add_signed((len as isize - 1) * step);
            let (low, high) = (first.min(last), first.max(last));
            f(LaneRun {
                data: &self.data[low..=high],
                step: step.unsigned_abs(),
                len,
                reversed: step < 0,
            });
        });
    }

    /// Calls `f` with each element.
    pub(crate) fn for_each(&self, mut f: impl FnMut(T)) {
        self.runs(|run| run.for_each(&mut f));
    }
}

impl<T: Number> LaneRun<'_, T> {
    /// The elements as they lie, if they do so without gaps and in order.
    pub(crate) fn dense(&self) -> Option<&[T::Stored]> {
        (self.step == 1 && !self.reversed).then_some(self.data)
    }

    /// Calls `f` with each element.
    pub(crate) fn for_each(&self, mut f: impl FnMut(T)) {
        match (self.step, self.reversed) {
            // A repeated element.
            (0, _) => {
                let value = T::load(self.data[0]);
                (0..self.len).for_each(|_| f(value));
            }
            (step, false) => self.data.iter().step_by(step).for_each(|x| f(T::load(*x))),
            (step, true) => self.data.iter().rev().step_by(step).for_each(|x| f(T::load(*x))),
        }
    }
}
