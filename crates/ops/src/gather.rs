//! Elements picked, and added, by an index of the result's own shape: one position along a dimension
//! for each element.

use keyfold_core::{DType, ErrorKind, Result, Strides, layout};
use keyfold_dispatch::Kernel;
use keyfold_tensor::{Tensor, for_each_offset};

use crate::element::{Number, for_dtype};
use crate::map::cast;
use crate::op::{Op, Registrar};
use crate::promote::{check_argument, check_assignable, check_supported, computed, rounded};

/// The dimension, after checks that the index is of whole numbers, has as many dimensions as each of
/// the others, and fits into `x` (but along that dimension) and `source`.
fn check(op: Op, x: &Tensor, dim: i64, index: &Tensor, source: Option<&Tensor>) -> Result<usize> {
    check_supported(op, x.dtype())?;
    if index.dtype() != DType::I64 {
        let message = format!("argument 'index' must be int64, not {}", index.dtype());
        return Err(op.error(ErrorKind::DType, message));
    }
    let axis = op.at(layout::normalize_axis(dim, x.ndim()))?;
    let others = [("self", Some(x), Some(axis)), ("src", source, None)];
    for (name, other, free) in others {
        let Some(other) = other else { continue };
        let fits = other.ndim() == index.ndim()
            && (0..index.ndim()).all(|d| Some(d) == free || index.shape()[d] <= other.shape()[d]);
        if !fits {
            let but =
                if free.is_some() { format!(" but along dimension {axis}") } else { String::new() };
            let message = format!(
                "an index of shape {:?} doesn't fit argument '{name}' of shape {:?}; it needs as \
                 many dimensions, none of them longer{but}",
                index.shape(),
                other.shape()
            );
            return Err(op.error(ErrorKind::Shape, message));
        }
    }
    Ok(axis)
}

/// Where positions along one dimension lead.
struct Along {
    axis: usize,
    size: usize,
    stride: isize,
    /// The first position that isn't there.
    wrong: Option<i64>,
}

impl Along {
    fn new(x: &Tensor, axis: usize) -> Self {
        Along { axis, size: x.shape()[axis], stride: x.strides()[axis], wrong: None }
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

    fn finish(self, op: Op) -> Result<()> {
        let Some(wrong) = self.wrong else { return Ok(()) };
        let Along { axis, size, .. } = self;
        let message = format!("index {wrong} is out of range for dimension {axis} of size {size}");
        Err(op.error(ErrorKind::Index, message))
    }
}

/// The steps, but none along the dimension where positions say where to go.
fn without(strides: &Strides, axis: usize) -> Strides {
    let mut strides = strides.clone();
    strides[axis] = 0;
    strides
}

fn gather(op: Op, x: &Tensor, dim: i64, index: &Tensor) -> Result<Tensor> {
    let axis = check(op, x, dim, index, None)?;
    let mut out = op.output(index.shape(), x.dtype())?;
    if op.is_meta() {
        return Ok(out);
    }
    let (positions, first) = op.at(index.as_strided_slice::<i64>())?;
    let (mut along, strides) = (Along::new(x, axis), without(x.strides(), axis));
    for_dtype!(stored: op, x.dtype(), T => {
        let (data, origin) = op.at(x.as_strided_slice::<T>())?;
        let mut items = op.at(out.as_mut_slice::<T>())?.iter_mut();
        op.at(for_each_offset(index.shape(), [index.strides(), &strides], |[at, rest]| {
            let Some(item) = items.next() else { return };
            if let Some(step) = along.step(positions[first.wrapping_add_signed(at)]) {
                *item = data[origin.wrapping_add_signed(rest + step)];
            }
        }))?;
    });
    along.finish(op)?;
    Ok(out)
}

fn scatter_add(op: Op, x: &Tensor, dim: i64, index: &Tensor, source: &Tensor) -> Result<Tensor> {
    check_argument(op, "src", source.dtype())?;
    let axis = check(op, x, dim, index, Some(source))?;
    check_assignable(op, source.dtype(), x.dtype())?;
    // Sums of halves are rounded once, at the end.
    let dtype = computed(x.dtype());
    let mut copy = cast(op, x, dtype)?;
    if op.is_meta() {
        return rounded(op, copy, x.dtype());
    }
    let source = cast(op, source, dtype)?;
    let (positions, first) = op.at(index.as_strided_slice::<i64>())?;
    let (mut along, strides) = (Along::new(&copy, axis), without(copy.strides(), axis));
    for_dtype!(all: op, dtype, T => {
        type Stored = <T as Number>::Stored;
        let values = op.at(source.as_slice::<Stored>())?;
        let data = op.at(copy.as_mut_slice::<Stored>())?;
        let all: [&[isize]; 3] = [index.strides(), source.strides(), &strides];
        op.at(for_each_offset(index.shape(), all, |[at, from, rest]| {
            if let Some(step) = along.step(positions[first.wrapping_add_signed(at)]) {
                let item = &mut data[(rest + step) as usize];
                *item = T::load(*item).add(T::load(values[from as usize])).store();
            }
        }))?;
    });
    along.finish(op)?;
    rounded(op, copy, x.dtype())
}

/// Defines these operators in a dispatcher.
pub(crate) fn register(ops: &Registrar<'_>) -> Result<()> {
    ops.op("aten::gather(Tensor self, int dim, Tensor index) -> Tensor", |op| {
        Kernel::typed(move |x: &Tensor, dim: i64, index: &Tensor| gather(op, x, dim, index))
    })?;
    ops.op("aten::scatter_add(Tensor self, int dim, Tensor index, Tensor src) -> Tensor", |op| {
        Kernel::typed(move |x: &Tensor, dim: i64, index: &Tensor, source: &Tensor| {
            scatter_add(op, x, dim, index, source)
        })
    })
}
