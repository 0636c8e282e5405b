//! Indexing by masks and by integer indices.

mod batching;
mod bounds;
mod cache;
mod embedding;
mod gather;
mod gradients;

use keyfold_backend::{GpuBackend, IndexParams, Operation};
use keyfold_core::{DType, ErrorKind, Result, Shape, layout};
use keyfold_layers::autocast::Category;
use keyfold_layers::autograd::{Saves, TensorMeta};
use keyfold_layers::vmap;
use keyfold_tensor::{Tensor, TensorList};
use smallvec::{SmallVec, smallvec};

use bounds::Indexed;

use crate::convert::{broadcast_shape, cast, to_dtype};
use crate::cow::TensorCow;
use crate::in_place::write_part;
use crate::index_dtype::{as_int64, check_integer};
use crate::infer::{Call, CallPlan, Run};
use crate::jvp::{self, LINEAR, pushforward};
use crate::naming::Naming;
use crate::op::Op;
use crate::promote::{check_assignable, computed};
use crate::row::{Batching, Layers, Row, Rule};
use crate::vjp::formula;

/// One index per dimension of the indexed tensor; `None` selects the whole dimension.
type Indices<'a> = SmallVec<[Option<TensorCow<'a>>; 4]>;

/// Returns one index per dimension of the indexed tensor, with masks converted to positions.
fn per_dimension<'a>(
    op: &Op,
    x: &Tensor,
    indices: impl Iterator<Item = Result<Option<&'a Tensor>>>,
) -> Result<Indices<'a>> {
    let mut all = Indices::new();
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
                all.extend(nonzero(op, index)?);
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

/// Returns the positions of a mask's true elements, one index for each of its dimensions.
fn nonzero<'a>(op: &Op, mask: &Tensor) -> Result<Indices<'a>> {
    if op.is_meta() {
        let message = "the result's shape depends on the mask's values, which a tensor on meta doesn't \
                       have; use aten::where, or a tensor on cpu";
        return Err(op.error(ErrorKind::NotSupported, message));
    }
    let found = op.kernel(GpuBackend::index, |group| group.positions())?;
    let found = op.at(found.positions(mask))?;
    Ok(found.into_iter().map(|positions| Some(positions.into())).collect())
}

/// The selected elements of an indexed tensor.
struct Selection<'a> {
    params: IndexParams,
    /// One index for each indexed dimension, broadcast to one shape.
    positions: SmallVec<[TensorCow<'a>; 4]>,
    /// The shape of the indexed tensor.
    shape: Shape,
}

impl<'a> Selection<'a> {
    /// Returns the selection from a tensor of that shape, and the result's shape. The indexed dimensions become
    /// one group of dimensions: at the first indexed one if they are adjacent, else at the front, as in NumPy.
    fn new(
        op: &Op,
        which: &'static Operation,
        shape: &Shape,
        indices: Indices<'a>,
    ) -> Result<(Self, Shape)> {
        let indexed: SmallVec<[usize; 6]> =
            (0..shape.len()).filter(|&d| indices[d].is_some()).collect();
        let first = indexed.first().copied().unwrap_or(0);
        let adjacent = indexed.iter().enumerate().all(|(i, &d)| d == first + i);
        let group = {
            let shapes = indices.iter().flatten().map(|positions| &positions.shape()[..]);
            broadcast_shape(op, &shapes.collect::<SmallVec<[&[usize]; 4]>>())?
        };
        let at = if adjacent { first } else { 0 };
        let mut result: SmallVec<[usize; 6]> =
            (0..shape.len()).filter(|&d| indices[d].is_none()).map(|d| shape[d]).collect();
        result.insert_from_slice(at, &group);
        let positions = indices.into_iter().flatten().map(|index| match *index.shape() == group {
            true => Ok(index),
            false => op.at(index.broadcast_to(&group)).map(TensorCow::from),
        });
        let dims = indexed.iter().fold(0, |dims, d| dims | 1 << d);
        let params = IndexParams { op: which, at: at as u32, dims };
        let positions = positions.collect::<Result<_>>()?;
        let picked = Selection { params, positions, shape: shape.clone() };
        Ok((picked, op.at(Shape::new(&result))?))
    }

    /// Returns the selection from a tensor of that shape by positions along one dimension.
    fn along(
        which: &'static Operation,
        shape: &Shape,
        axis: usize,
        positions: TensorCow<'a>,
    ) -> Selection<'a> {
        let params = IndexParams { op: which, at: 0, dims: 1 << axis };
        Selection { params, positions: smallvec![positions], shape: shape.clone() }
    }

    /// Launches an index operation on an input and the positions.
    fn launch(&self, op: &Op, first: &Tensor, out: &Tensor) -> Result<()> {
        let kernel =
            op.kernel(GpuBackend::index, |index| index.index(self.params.op, out.dtype()))?;
        let positions = self.positions.iter().map(|positions| &**positions);
        let inputs: SmallVec<[&Tensor; 4]> = std::iter::once(first).chain(positions).collect();
        // SAFETY: what computes a result is called with an output that is its own (`Run::run`).
        op.at(unsafe { kernel.launch(&self.params, &inputs, out) })
    }
}

const TAKE: &Operation = &Operation::new("take");
const PUT: &Operation = &Operation::new("put");
const PUT_ADD: &Operation = &Operation::new("put_add");

/// Plans the selection of elements of `x` by one index per dimension.
fn plan_take<'x>(
    op: &Op,
    x: TensorCow<'x>,
    indices: Indices<'x>,
) -> Result<CallPlan<impl Run + use<'x>>> {
    let (picked, shape) = Selection::new(op, TAKE, x.shape(), indices)?;
    let (device, dtype) = (op.device_of(&x), x.dtype());
    let run = move |picked: &Selection<'x>, op: &Op, out: &Tensor| picked.launch(op, &x, out);
    Ok(CallPlan::new(device, shape, dtype, Indexed { picked, run }))
}

#[inline(always)]
fn index<'t>(
    call: Call<'_, ()>,
    (x, indices): (&'t Tensor, TensorList<'t>),
) -> Result<CallPlan<impl Run>> {
    let given = (0..indices.len()).map(|i| indices.get_optional(i));
    let indices = per_dimension(&call, x, given)?;
    plan_take(&call, TensorCow::Borrowed(x), indices)
}

/// Plans a copy of `x` with `values`, broadcast, written to the elements that one index per dimension selects.
/// An element that is selected twice gets the last value; with `accumulate` all values are added to it.
fn plan_put<'x>(
    op: &Op,
    x: &'x Tensor,
    indices: Indices<'x>,
    values: &'x Tensor,
    accumulate: bool,
) -> Result<CallPlan<impl Run + use<'x>>> {
    // Sums of float16 and bfloat16 are rounded once, at the end.
    let dtype = if accumulate { computed(x.dtype()) } else { x.dtype() };
    let which = if accumulate { PUT_ADD } else { PUT };
    let (picked, shape) = Selection::new(op, which, x.shape(), indices)?;
    op.at(layout::broadcast_strides(values.shape(), values.strides(), &shape))?;
    let run = move |picked: &Selection<'x>, op: &Op, out: &Tensor| {
        let values = op.at(values.broadcast_to(&shape))?;
        let values = contiguous(op, &values, dtype)?;
        copy_and_modify(op, x, dtype, out, |copy| picked.launch(op, &values, copy))
    };
    Ok(CallPlan::new(op.device_of(x), x.shape().clone(), x.dtype(), Indexed { picked, run }))
}

/// Returns contiguous elements of a dtype; borrows those that are.
fn contiguous<'a>(op: &Op, x: &'a Tensor, dtype: DType) -> Result<TensorCow<'a>> {
    match x.is_contiguous() {
        true => to_dtype(op, x, dtype),
        false => cast(op, x, dtype).map(TensorCow::from),
    }
}

/// Copies `x` into `out` after `change` has modified the copy, in the dtype `dtype`.
fn copy_and_modify(
    op: &Op,
    x: &Tensor,
    dtype: DType,
    out: &Tensor,
    change: impl FnOnce(&Tensor) -> Result<()>,
) -> Result<()> {
    if dtype == out.dtype() {
        write_part(op, out, x)?;
        return change(out);
    }
    let copy = cast(op, x, dtype)?;
    change(&copy)?;
    write_part(op, out, &copy)
}

/// The arguments of [`index_put`]: the tensor, the indices, the values, and whether they accumulate.
type IndexPutArgs<'a> = (&'a Tensor, TensorList<'a>, &'a Tensor, bool);

#[inline(always)]
fn index_put(
    call: Call<'_, ()>,
    (x, indices, values, accumulate): IndexPutArgs<'_>,
) -> Result<CallPlan<impl Run>> {
    let given = (0..indices.len()).map(|i| indices.get_optional(i));
    check_assignable(&call, values.dtype(), x.dtype())?;
    let indices = per_dimension(&call, x, given)?;
    plan_put(&call, x, indices, values, accumulate)
}

/// As [`index_put`], into the memory of `x`. A modified copy is written back, since `x`, the indices and the
/// values may share memory.
fn index_put_(call: Call<'_, ()>, args: IndexPutArgs<'_>) -> Result<CallPlan<impl Run>> {
    let CallPlan { form, run } = index_put(call, args)?;
    let TensorMeta { device, shape, dtype } = form;
    let own = TensorMeta { device, shape: shape.clone(), dtype };
    let run = move |op: &Op, x: &Tensor| write_part(op, x, &run.fresh(op, &own)?);
    Ok(CallPlan::new(device, shape, dtype, run))
}

/// Copies `x` and adds row `i` of `source` along a dimension to row `index[i]`.
#[inline(always)]
fn index_add<'t>(
    call: Call<'_, ()>,
    (x, dim, index, source): (&'t Tensor, i64, &'t Tensor, &'t Tensor),
) -> Result<CallPlan<impl Run>> {
    check_assignable(&call, source.dtype(), x.dtype())?;
    let axis = call.at(layout::normalize_axis(dim, x.ndim()))?;
    check_positions(&call, index)?;
    let mut wanted = x.shape().clone();
    wanted[axis] = index.numel();
    if *source.shape() != wanted {
        let message = format!(
            "argument 'source' has shape {:?}, but {} positions along dimension {axis} of shape \
             {:?} need {wanted:?}",
            source.shape(),
            index.numel(),
            x.shape()
        );
        return Err(call.error(ErrorKind::Shape, message));
    }
    let mut indices: Indices<'_> = smallvec![None; x.ndim()];
    indices[axis] = Some(as_int64(&call, index)?);
    plan_put(&call, x, indices, source, true)
}

/// Refuses an index that isn't one-dimensional or isn't of integers.
fn check_positions(op: &Op, index: &Tensor) -> Result<()> {
    check_integer(op, index)?;
    if index.ndim() == 1 {
        return Ok(());
    }
    let message = format!("argument 'index' must have 1 dimension, not shape {:?}", index.shape());
    Err(op.error(ErrorKind::Index, message))
}

#[inline(always)]
fn index_select<'t>(
    call: Call<'_, ()>,
    (x, dim, index): (&'t Tensor, i64, &'t Tensor),
) -> Result<CallPlan<impl Run>> {
    let axis = call.at(layout::normalize_axis(dim, x.ndim()))?;
    check_positions(&call, index)?;
    let mut indices: Indices<'_> = smallvec![None; x.ndim()];
    indices[axis] = Some(as_int64(&call, index)?);
    plan_take(&call, TensorCow::Borrowed(x), indices)
}

/// Selects the elements, broadcast with the mask, where it is true.
#[inline(always)]
fn masked_select(
    call: Call<'_, ()>,
    (x, mask): (&Tensor, &Tensor),
) -> Result<CallPlan<impl Run + use<>>> {
    if mask.dtype() != DType::Bool {
        let message = format!("argument 'mask' must be bool, not {}", mask.dtype());
        return Err(call.error(ErrorKind::DType, message));
    }
    let mut shape = broadcast_shape(&call, &[x.shape(), mask.shape()])?;
    // A 0-dim mask gets a dimension, since an index needs one.
    if shape.is_empty() {
        call.at(shape.insert(0, 1))?;
    }
    let x = call.at(x.broadcast_to(&shape))?;
    let mask = call.at(mask.broadcast_to(&shape))?;
    plan_take(&call, x.into(), nonzero(&call, &mask)?)
}

/// The gradients read the indices, the second argument.
const READS_INDICES: &[Saves] = &[Saves::arguments(&[1])];
/// The gradients read the index along a dimension.
const READS_INDEX: &[Saves] = &[Saves::arguments(&[2])];
/// The gradient of the source reads the index, and the gradient of `self` reads nothing.
const SOURCE_READS_INDEX: &[Saves] = &[Saves::NONE, Saves::NONE, Saves::arguments(&[2])];

/// Makes the batching of an operator with a hand-written rule.
fn batched(rule: vmap::Rule) -> Rule<Batching> {
    Rule::Given(Batching::Rule(rule))
}

/// Returns the rows of indexing.
pub(crate) fn rows() -> Result<Vec<Row>> {
    const NO_RULE: Rule<Batching> = Rule::Refused(
        "examples may have indices of different kinds, and each writes to its own elements",
    );
    use Category::{FullPrecision, Leave, Widest};
    let with = |tangent, derivative, batching, autocast| Layers {
        derivative,
        tangent,
        batching,
        autocast,
    };
    let layers = |derivative, batching, autocast| with(LINEAR, derivative, batching, autocast);
    let mut rows = vec![
        Row::computes::<(&Tensor, TensorList<'_>), _, _>(
            ("aten::index", "Tensor"),
            "Tensor self, Tensor?[] indices",
            |_| (),
            index,
            layers(formula(READS_INDICES, gradients::index), batched(batching::index), Leave),
            Naming::Unnamed("`x[...]` calls it"),
        )?,
        Row::computes::<IndexPutArgs<'_>, _, _>(
            ("aten::index_put", ""),
            "Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False",
            |_| (),
            index_put,
            layers(formula(READS_INDICES, gradients::index_put), NO_RULE, Widest),
            Naming::Unnamed("`x[...] = y` calls it"),
        )?,
        Row::writes::<IndexPutArgs<'_>, _>(
            "aten::index_put_(Tensor(a!) self, Tensor?[] indices, Tensor values, \
             bool accumulate=False) -> Tensor(a!)",
            index_put_,
            with(
                pushforward(jvp::index_put_),
                formula(READS_INDICES, gradients::index_put),
                NO_RULE,
                Leave,
            ),
            Naming::Unnamed("`x[...] = y` calls it"),
        )?,
        Row::computes::<(&Tensor, i64, &Tensor, &Tensor), _, _>(
            ("aten::index_add", ""),
            "Tensor self, int dim, Tensor index, Tensor source",
            |_| (),
            index_add,
            layers(
                formula(SOURCE_READS_INDEX, gradients::index_add),
                batched(batching::index_add),
                FullPrecision,
            ),
            Naming::Unnamed("the array API has none"),
        )?,
        Row::computes::<(&Tensor, i64, &Tensor), _, _>(
            ("aten::index_select", ""),
            "Tensor self, int dim, Tensor index",
            |_| (),
            index_select,
            layers(
                formula(READS_INDEX, gradients::index_select),
                batched(batching::index_select),
                Leave,
            ),
            Naming::PartOf("take"),
        )?,
        Row::computes::<(&Tensor, &Tensor), _, _>(
            ("aten::masked_select", ""),
            "Tensor self, Tensor mask",
            |_| (),
            masked_select,
            layers(
                formula(READS_INDICES, gradients::masked_select),
                Rule::Refused("examples' results may differ in size"),
                Leave,
            ),
            Naming::Unnamed("`x[mask]` calls `aten::index.Tensor`"),
        )?
        .data_dependent(),
    ];
    rows.extend(gather::rows()?);
    rows.extend(embedding::rows()?);
    rows.extend(cache::rows()?);
    Ok(rows)
}
