//! Elements picked by masks and by lists of positions.

mod batching;
mod gather;
mod gradients;

use std::borrow::Cow;

use keyfold_backend::{GpuBackend, IndexOp, IndexParams};
use keyfold_core::{DType, ErrorKind, Result, Shape, layout};
use keyfold_dispatch::{Kernel, Tags};
use keyfold_layers::autocast::Category;
use keyfold_layers::autograd::Keeps;
use keyfold_layers::vmap;
use keyfold_tensor::{Tensor, TensorList};
use smallvec::SmallVec;

use crate::gradient::given;
use crate::map::{broadcast, cast};
use crate::op::Op;
use crate::positions::{as_int64, check_whole};
use crate::promote::{check_assignable, computed, rounded};
use crate::row::{Batching, Layers, Row, Rule};
use crate::write::assign;

/// One index per dimension of the indexed tensor, bools turned into positions; `None` takes all.
fn per_dimension<'a>(
    op: &Op,
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
            dtype if dtype.is_integral() => all.push(Some(as_int64(op, index)?)),
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
                let found = op.kernel(GpuBackend::index, |group| group.positions())?;
                let found = op.at(found.positions(index))?;
                all.extend(found.into_iter().map(|p| Some(Cow::Owned(p))));
            }
            other => {
                let message = format!(
                    "argument 'indices' must be masks, or positions of an integer dtype, not {other}"
                );
                return Err(op.error(ErrorKind::DType, message));
            }
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

/// An indexed tensor: its positions, and the shape of the result.
struct Picked<'a> {
    params: IndexParams,
    /// One for each indexed dimension, of one shape.
    positions: SmallVec<[Cow<'a, Tensor>; 1]>,
    shape: Shape,
}

impl<'a> Picked<'a> {
    /// Of a tensor of that shape. Dimensions indexed by several tensors become one group, where the
    /// first of them was if they are neighbours, else in front, as in NumPy.
    fn new(
        op: &Op,
        which: IndexOp,
        shape: &[usize],
        indices: Vec<Option<Cow<'a, Tensor>>>,
    ) -> Result<Self> {
        let indexed: SmallVec<[usize; 6]> =
            (0..shape.len()).filter(|&d| indices[d].is_some()).collect();
        let first = indexed.first().copied().unwrap_or(0);
        let neighbours = indexed.iter().enumerate().all(|(i, &d)| d == first + i);
        let group = {
            let shapes = indices.iter().flatten().map(|positions| &**positions.shape());
            broadcast(op, &shapes.collect::<SmallVec<[&[usize]; 4]>>())?
        };
        let at = if neighbours { first } else { 0 };
        let mut result: SmallVec<[usize; 6]> =
            (0..shape.len()).filter(|&d| indices[d].is_none()).map(|d| shape[d]).collect();
        result.insert_from_slice(at, &group);
        let positions = indices.into_iter().flatten().map(|index| match *index.shape() == group {
            true => Ok(index),
            false => op.at(index.broadcast_to(&group)).map(Cow::Owned),
        });
        let dims = indexed.iter().fold(0, |dims, d| dims | 1 << d);
        Ok(Picked {
            params: IndexParams { op: which, at: at as u32, dims },
            positions: positions.collect::<Result<_>>()?,
            shape: op.at(Shape::new(&result))?,
        })
    }

    /// Launches an operation on the first input and the positions.
    fn launch(&self, op: &Op, first: &Tensor, out: &Tensor) -> Result<()> {
        let kernel =
            op.kernel(GpuBackend::index, |index| index.index(self.params.op, out.dtype()))?;
        let positions = self.positions.iter().map(|positions| &**positions);
        let inputs: SmallVec<[&Tensor; 4]> = std::iter::once(first).chain(positions).collect();
        // SAFETY: results were made by their kernels and nobody else has them.
        op.at(unsafe { kernel.launch(&self.params, &inputs, out) })
    }
}

fn index<'a>(
    op: &Op,
    x: &Tensor,
    indices: impl Iterator<Item = Result<Option<&'a Tensor>>>,
) -> Result<Tensor> {
    let indices = per_dimension(op, x, indices)?;
    let picked = Picked::new(op, IndexOp::Take, x.shape(), indices)?;
    let out = op.output(op.device_of(x), &picked.shape, x.dtype())?;
    if !op.is_meta() {
        picked.launch(op, x, &out)?;
    }
    Ok(out)
}

/// A copy of `x` with `values`, broadcast, at the picked places. Of a place picked twice the last
/// value stays; with `accumulate` they all add up with what was there.
fn put(
    op: &Op,
    x: &Tensor,
    indices: TensorList<'_>,
    values: &Tensor,
    accumulate: bool,
) -> Result<Tensor> {
    let given = (0..indices.len()).map(|i| indices.get_optional(i));
    check_assignable(op, values.dtype(), x.dtype())?;
    let indices = per_dimension(op, x, given)?;
    put_planned(op, x, indices, values, accumulate)
}

/// As [`put`], of one index per dimension.
fn put_planned(
    op: &Op,
    x: &Tensor,
    indices: Vec<Option<Cow<'_, Tensor>>>,
    values: &Tensor,
    accumulate: bool,
) -> Result<Tensor> {
    // Sums of halves are rounded once, at the end.
    let dtype = if accumulate { computed(x.dtype()) } else { x.dtype() };
    let copy = cast(op, x, dtype)?;
    let which = if accumulate { IndexOp::PutAdd } else { IndexOp::Put };
    let picked = Picked::new(op, which, copy.shape(), indices)?;
    let values = op.at(values.broadcast_to(&picked.shape))?;
    if !op.is_meta() {
        let values = cast(op, &values, dtype)?;
        picked.launch(op, &values, &copy)?;
    }
    rounded(op, copy, x.dtype())
}

/// As [`put`], into the memory of `x`. A copy is changed and written back: the places may overlap in
/// ways that safe code can't see.
fn put_in_place(
    op: &Op,
    x: &Tensor,
    indices: TensorList<'_>,
    values: &Tensor,
    accumulate: bool,
) -> Result<Tensor> {
    let copy = put(op, x, indices, values, accumulate)?;
    if op.is_meta() { Ok(x.clone()) } else { assign(op, x, &copy) }
}

/// A copy of `x` with row `i` of `source` along a dimension added to row `index[i]`.
fn index_add(op: &Op, x: &Tensor, dim: i64, index_: &Tensor, source: &Tensor) -> Result<Tensor> {
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
    indices[axis] = Some(as_int64(op, index_)?);
    put_planned(op, x, indices, source, true)
}

/// Refuses what isn't a list of positions.
fn check_positions(op: &Op, index_: &Tensor) -> Result<()> {
    check_whole(op, index_)?;
    if index_.ndim() == 1 {
        return Ok(());
    }
    let message = format!("argument 'index' must have 1 dimension, not shape {:?}", index_.shape());
    Err(op.error(ErrorKind::Index, message))
}

fn index_select(op: &Op, x: &Tensor, dim: i64, index_: &Tensor) -> Result<Tensor> {
    let axis = op.at(layout::normalize_axis(dim, x.ndim()))?;
    check_positions(op, index_)?;
    let all = std::iter::repeat_n(None, axis).chain([Some(index_)]);
    index(op, x, all.map(Ok))
}

/// The elements, broadcast with the mask, where it is true.
fn masked_select(op: &Op, x: &Tensor, mask: &Tensor) -> Result<Tensor> {
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

/// Gradients that read the list of indices.
const INDICES: &[Keeps] = &[Keeps::these(&[1])];
/// Gradients that read the index along a dimension.
const INDEX: &[Keeps] = &[Keeps::these(&[2])];
/// As [`INDEX`], where the gradient of `self` reads nothing.
const INDEX_OF_SOURCE: &[Keeps] = &[Keeps::NONE, Keeps::NONE, Keeps::these(&[2])];

/// A batching rule that was written for an operator.
fn batched(rule: vmap::Rule) -> Rule<Batching> {
    Rule::Given(Batching::Rule(rule))
}

/// The rows of picking and putting.
pub(crate) fn rows() -> Result<Vec<Row>> {
    const NO_RULE: Rule<Batching> = Rule::Refused(
        "examples may have indices of different kinds, and each writes to its own elements",
    );
    let mut rows = vec![
        Row::computes(
            "aten::index.Tensor(Tensor self, Tensor?[] indices) -> Tensor",
            |op| {
                Kernel::typed(move |x: &Tensor, indices: TensorList<'_>| {
                    index(&op, x, (0..indices.len()).map(|i| indices.get_optional(i)))
                })
            },
            Layers {
                derivative: given(INDICES, gradients::index),
                batching: batched(batching::index),
                autocast: Category::Leave,
            },
        )?,
        Row::computes(
            "aten::index_put(Tensor self, Tensor?[] indices, Tensor values, \
             bool accumulate=False) -> Tensor",
            |op| {
                Kernel::typed(move |x: &Tensor, at: TensorList<'_>, values: &Tensor, add: bool| {
                    put(&op, x, at, values, add)
                })
            },
            Layers {
                derivative: given(INDICES, gradients::index_put),
                batching: NO_RULE,
                autocast: Category::Widest,
            },
        )?,
        Row::computes(
            "aten::index_put_(Tensor(a!) self, Tensor?[] indices, Tensor values, \
             bool accumulate=False) -> Tensor(a!)",
            |op| {
                Kernel::typed(move |x: &Tensor, at: TensorList<'_>, values: &Tensor, add: bool| {
                    put_in_place(&op, x, at, values, add)
                })
            },
            Layers {
                derivative: given(INDICES, gradients::index_put),
                batching: NO_RULE,
                autocast: Category::Leave,
            },
        )?,
        Row::computes(
            "aten::index_add(Tensor self, int dim, Tensor index, Tensor source) -> Tensor",
            |op| {
                Kernel::typed(move |x: &Tensor, dim: i64, index: &Tensor, source: &Tensor| {
                    index_add(&op, x, dim, index, source)
                })
            },
            Layers {
                derivative: given(INDEX_OF_SOURCE, gradients::index_add),
                batching: batched(batching::index_add),
                autocast: Category::FullPrecision,
            },
        )?,
        Row::computes(
            "aten::index_select(Tensor self, int dim, Tensor index) -> Tensor",
            |op| {
                Kernel::typed(move |x: &Tensor, dim: i64, index: &Tensor| {
                    index_select(&op, x, dim, index)
                })
            },
            Layers {
                derivative: given(INDEX, gradients::index_select),
                batching: batched(batching::index_select),
                autocast: Category::Leave,
            },
        )?,
        Row::computes(
            "aten::masked_select(Tensor self, Tensor mask) -> Tensor",
            |op| Kernel::typed(move |x: &Tensor, mask: &Tensor| masked_select(&op, x, mask)),
            Layers {
                derivative: given(INDICES, gradients::masked_select),
                batching: Rule::Refused("examples' results may differ in size"),
                autocast: Category::Leave,
            },
        )?
        .tagged(Tags::DATA_DEPENDENT_SHAPE),
    ];
    rows.extend(gather::rows()?);
    Ok(rows)
}
