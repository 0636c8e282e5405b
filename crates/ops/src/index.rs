//! Elements picked by masks and by lists of positions.

use std::borrow::Cow;

use keyfold_core::{DType, ErrorKind, Result, Shape, Strides, layout};
use keyfold_dispatch::Kernel;
use keyfold_tensor::{Tensor, TensorList, Walk, for_each_offset};

use crate::element::{Number, for_dtype};
use crate::map::{broadcast, cast};
use crate::op::{Op, Registrar};
use crate::promote::{check_argument, check_assignable, check_supported, computed, rounded};
use crate::write::assign;

/// One index per dimension of the indexed tensor, bools turned into positions; `None` takes all.
fn per_dimension<'a>(
    op: Op,
    x: &Tensor,
    indices: impl Iterator<Item = Result<Option<&'a Tensor>>>,
) -> Result<Vec<Option<Cow<'a, Tensor>>>> {
    let mut all = Vec::with_capacity(x.ndim());
    for index in indices {
        let Some(index) = op.at(index)? else {
            all.push(None);
            continue;
        };
        match index.dtype() {
            DType::I64 => all.push(Some(Cow::Borrowed(index))),
            DType::Bool => {
                let place = all.len();
                let shape = x.shape().get(place..place + index.ndim());
                if shape != Some(&**index.shape()) || index.ndim() == 0 {
                    let message = format!(
                        "a mask of shape {:?} doesn't fit dimension {place} and those behind it of \
                         shape {:?}",
                        index.shape(),
                        x.shape()
                    );
                    return Err(op.error(ErrorKind::Index, message));
                }
                if op.is_meta() {
                    let message = "the result's shape depends on the mask's values, which a tensor \
                                   on meta doesn't have; use aten::where, or a tensor on cpu";
                    return Err(op.error(ErrorKind::NotSupported, message));
                }
                all.extend(positions(op, index)?.into_iter().map(|p| Some(Cow::Owned(p))));
            }
            other => return Err(op.unsupported("indices", other, &[DType::I64, DType::Bool])),
        }
    }
    if all.len() > x.ndim() {
        let message = format!(
            "{} indices are too many for shape {:?}, which has {} dimensions",
            all.len(),
            x.shape(),
            x.ndim()
        );
        return Err(op.error(ErrorKind::Index, message));
    }
    all.resize(x.ndim(), None);
    Ok(all)
}

/// Where a mask is true: for each of its dimensions, the positions along it.
fn positions(op: Op, mask: &Tensor) -> Result<Vec<Tensor>> {
    let (data, origin) = op.at(mask.as_strided_slice::<u8>())?;
    let mut places = vec![Vec::new(); mask.ndim()];
    let mut flat = 0;
    op.at(for_each_offset(mask.shape(), [mask.strides()], |[at]| {
        if data[origin.wrapping_add_signed(at)] != 0 {
            let mut rest = flat;
            for (places, &size) in places.iter_mut().zip(mask.shape()).rev() {
                places.push((rest % size) as i64);
                rest /= size;
            }
        }
        flat += 1;
    }))?;
    let count = places.first().map_or(0, Vec::len);
    places.into_iter().map(|p| op.at(Tensor::from_vec(p, &[count]))).collect()
}

/// Where the elements of an indexed tensor are. In the order of the result they are those at
/// `before + picked + after`, for each offset of the dimensions before the indexed ones, each pick,
/// and each offset of the dimensions after them.
struct Plan {
    before: (Shape, Strides),
    picked: Vec<isize>,
    after: (Shape, Strides),
    /// The result's shape.
    shape: Shape,
}

impl Plan {
    /// Of a tensor of that shape. Dimensions indexed by several tensors become one group, where the
    /// first of them was if they are neighbours, else in front, as in NumPy.
    fn new(
        op: Op,
        shape: &[usize],
        strides: &[isize],
        indices: &[Option<Cow<'_, Tensor>>],
    ) -> Result<Plan> {
        let indexed: Vec<usize> = (0..shape.len()).filter(|&d| indices[d].is_some()).collect();
        let first = indexed.first().copied().unwrap_or(0);
        let neighbours = indexed.iter().enumerate().all(|(i, &d)| d == first + i);
        let shapes: Vec<&[usize]> = indices.iter().flatten().map(|t| &**t.shape()).collect();
        let group = broadcast(op, &shapes)?;
        let (mut before, mut after) = ((vec![], vec![]), (vec![], vec![]));
        for d in (0..shape.len()).filter(|d| indices[*d].is_none()) {
            let (sizes, steps) = if neighbours && d < first { &mut before } else { &mut after };
            sizes.push(shape[d]);
            steps.push(strides[d]);
        }
        let result = [&before.0, &*group, &after.0].concat();
        let result = op.at(Shape::try_from(result))?;
        let mut picked = Vec::new();
        if !op.is_meta() {
            let count = op.at(layout::numel(&group, size_of::<isize>()))?;
            // A view may have more elements than there is memory for, which mustn't end the process.
            picked.try_reserve_exact(count).map_err(|_| {
                op.error(ErrorKind::Memory, format!("can't hold the places of {count} elements"))
            })?;
            picked.resize(count, 0);
            for &d in &indexed {
                if let Some(index) = &indices[d] {
                    add_offsets(op, index, &group, d, shape[d], strides[d], &mut picked)?;
                }
            }
        }
        let dims = |(sizes, steps): (Vec<usize>, Vec<isize>)| {
            Ok((Shape::try_from(sizes)?, Strides::try_from(steps)?))
        };
        Ok(Plan { before: op.at(dims(before))?, picked, after: op.at(dims(after))?, shape: result })
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

/// Adds what one index contributes to the offset of each pick.
fn add_offsets(
    op: Op,
    index: &Tensor,
    group: &[usize],
    dim: usize,
    size: usize,
    stride: isize,
    picked: &mut [isize],
) -> Result<()> {
    let index = op.at(index.broadcast_to(group))?;
    let (data, origin) = op.at(index.as_strided_slice::<i64>())?;
    let (mut picked, mut wrong) = (picked.iter_mut(), None);
    op.at(for_each_offset(group, [index.strides()], |[at]| {
        let given = data[origin.wrapping_add_signed(at)];
        let place = if given < 0 { given.saturating_add(size as i64) } else { given };
        match picked.next() {
            Some(slot) if (0..size as i64).contains(&place) => *slot += place as isize * stride,
            _ => wrong = wrong.or(Some(given)),
        }
    }))?;
    let Some(wrong) = wrong else { return Ok(()) };
    let message = format!("index {wrong} is out of range for dimension {dim} of size {size}");
    Err(op.error(ErrorKind::Index, message))
}

fn index<'a>(
    op: Op,
    x: &Tensor,
    indices: impl Iterator<Item = Result<Option<&'a Tensor>>>,
) -> Result<Tensor> {
    check_supported(op, x.dtype())?;
    let indices = per_dimension(op, x, indices)?;
    let plan = Plan::new(op, x.shape(), x.strides(), &indices)?;
    let mut out = op.output(&plan.shape, x.dtype())?;
    if op.is_meta() {
        return Ok(out);
    }
    for_dtype!(stored: op, x.dtype(), T => {
        let (data, origin) = op.at(x.as_strided_slice::<T>())?;
        let mut items = op.at(out.as_mut_slice::<T>())?.iter_mut();
        op.at(plan.for_each(|at| {
            if let Some(item) = items.next() {
                *item = data[origin.wrapping_add_signed(at)];
            }
        }))?;
    });
    Ok(out)
}

/// A copy of `x` with `values`, broadcast, at the picked places. Of a place picked twice the last
/// value stays; with `accumulate` they all add up with what was there.
fn put(
    op: Op,
    x: &Tensor,
    indices: TensorList<'_>,
    values: &Tensor,
    accumulate: bool,
) -> Result<Tensor> {
    let given = (0..indices.len()).map(|i| indices.get_optional(i));
    check_supported(op, x.dtype())?;
    check_assignable(op, values.dtype(), x.dtype())?;
    let indices = per_dimension(op, x, given)?;
    put_planned(op, x, &indices, values, accumulate)
}

/// As [`put`], of one index per dimension.
fn put_planned(
    op: Op,
    x: &Tensor,
    indices: &[Option<Cow<'_, Tensor>>],
    values: &Tensor,
    accumulate: bool,
) -> Result<Tensor> {
    // Sums of halves are rounded once, at the end.
    let dtype = if accumulate { computed(x.dtype()) } else { x.dtype() };
    let mut copy = cast(op, x, dtype)?;
    let plan = Plan::new(op, copy.shape(), copy.strides(), indices)?;
    let values = op.at(values.broadcast_to(&plan.shape))?;
    if op.is_meta() {
        return rounded(op, copy, x.dtype());
    }
    let values = cast(op, &values, dtype)?;
    if accumulate {
        for_dtype!(all: op, dtype, T => {
            type Stored = <T as Number>::Stored;
            let mut values = op.at(values.as_slice::<Stored>())?.iter();
            let data = op.at(copy.as_mut_slice::<Stored>())?;
            op.at(plan.for_each(|at| {
                if let Some(value) = values.next() {
                    let item = &mut data[at as usize];
                    *item = T::load(*item).add(T::load(*value)).store();
                }
            }))?;
        });
        return rounded(op, copy, x.dtype());
    }
    for_dtype!(stored: op, dtype, T => {
        let mut values = op.at(values.as_slice::<T>())?.iter();
        let data = op.at(copy.as_mut_slice::<T>())?;
        op.at(plan.for_each(|at| {
            if let Some(value) = values.next() {
                data[at as usize] = *value;
            }
        }))?;
    });
    Ok(copy)
}

/// As [`put`], into the memory of `x`. A copy is changed and written back: the places may overlap in
/// ways that safe code can't see.
fn put_in_place(
    op: Op,
    x: &Tensor,
    indices: TensorList<'_>,
    values: &Tensor,
    accumulate: bool,
) -> Result<Tensor> {
    let copy = put(op, x, indices, values, accumulate)?;
    if op.is_meta() { Ok(x.clone()) } else { assign(op, x, &copy) }
}

/// A copy of `x` with row `i` of `source` along a dimension added to row `index[i]`.
fn index_add(op: Op, x: &Tensor, dim: i64, index_: &Tensor, source: &Tensor) -> Result<Tensor> {
    check_supported(op, x.dtype())?;
    check_argument(op, "source", source.dtype())?;
    check_assignable(op, source.dtype(), x.dtype())?;
    let axis = op.at(layout::normalize_axis(dim, x.ndim()))?;
    check_positions(op, index_)?;
    let mut wanted = x.shape().clone();
    wanted[axis] = index_.numel();
    if *source.shape() != wanted {
        let message = format!(
            "argument 'source' has shape {:?}, but {} positions along dimension {axis} of shape \
             {:?} need {wanted:?}",
            source.shape(),
            index_.numel(),
            x.shape()
        );
        return Err(op.error(ErrorKind::Shape, message));
    }
    let mut indices = vec![None; x.ndim()];
    indices[axis] = Some(Cow::Borrowed(index_));
    put_planned(op, x, &indices, source, true)
}

/// Refuses what isn't a list of positions.
fn check_positions(op: Op, index_: &Tensor) -> Result<()> {
    if index_.dtype() == DType::I64 && index_.ndim() == 1 {
        return Ok(());
    }
    let (shape, dtype) = (index_.shape(), index_.dtype());
    let message = format!("argument 'index' must be int64 with 1 dimension, not {dtype} {shape:?}");
    Err(op.error(ErrorKind::Index, message))
}

fn index_select(op: Op, x: &Tensor, dim: i64, index_: &Tensor) -> Result<Tensor> {
    let axis = op.at(layout::normalize_axis(dim, x.ndim()))?;
    check_positions(op, index_)?;
    let all = std::iter::repeat_n(None, axis).chain([Some(index_)]);
    index(op, x, all.map(Ok))
}

/// The elements, broadcast with the mask, where it is true.
fn masked_select(op: Op, x: &Tensor, mask: &Tensor) -> Result<Tensor> {
    if mask.dtype() != DType::Bool {
        let message = format!("argument 'mask' must be bool, not {}", mask.dtype());
        return Err(op.error(ErrorKind::DType, message));
    }
    let shape = broadcast(op, &[x.shape(), mask.shape()])?;
    let x = op.at(x.broadcast_to(&shape))?;
    let mask = op.at(mask.broadcast_to(&shape))?;
    // A 0-dim mask has no dimension to index.
    if shape.is_empty() {
        let (x, mask) = (op.at(x.unsqueeze(0))?, op.at(mask.unsqueeze(0))?);
        return index(op, &x, std::iter::once(Ok(Some(&mask))));
    }
    index(op, &x, std::iter::once(Ok(Some(&mask))))
}

/// Defines these operators in a dispatcher.
pub(crate) fn register(ops: &Registrar<'_>) -> Result<()> {
    ops.op("aten::index.Tensor(Tensor self, Tensor?[] indices) -> Tensor", |op| {
        Kernel::typed(move |x: &Tensor, indices: TensorList<'_>| {
            index(op, x, (0..indices.len()).map(|i| indices.get_optional(i)))
        })
    })?;
    ops.op(
        "aten::index_put(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False) \
         -> Tensor",
        |op| {
            Kernel::typed(move |x: &Tensor, at: TensorList<'_>, values: &Tensor, add: bool| {
                put(op, x, at, values, add)
            })
        },
    )?;
    ops.op(
        "aten::index_put_(Tensor(a!) self, Tensor?[] indices, Tensor values, \
         bool accumulate=False) -> Tensor(a!)",
        |op| {
            Kernel::typed(move |x: &Tensor, at: TensorList<'_>, values: &Tensor, add: bool| {
                put_in_place(op, x, at, values, add)
            })
        },
    )?;
    ops.op("aten::index_add(Tensor self, int dim, Tensor index, Tensor source) -> Tensor", |op| {
        Kernel::typed(move |x: &Tensor, dim: i64, index: &Tensor, source: &Tensor| {
            index_add(op, x, dim, index, source)
        })
    })?;
    ops.op("aten::index_select(Tensor self, int dim, Tensor index) -> Tensor", |op| {
        Kernel::typed(move |x: &Tensor, dim: i64, index: &Tensor| index_select(op, x, dim, index))
    })?;
    ops.cpu_only("aten::masked_select(Tensor self, Tensor mask) -> Tensor", |op| {
        Kernel::typed(move |x: &Tensor, mask: &Tensor| masked_select(op, x, mask))
    })
}
