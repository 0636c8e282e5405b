//! Views of the parts of a tensor along a dimension: `split`, `chunk`, `tensor_split`, `unbind`; and copies of
//! the parts into given outputs.

use std::ops::Range;

use keyfold_core::{ErrorKind, Result, layout};
use keyfold_layers::autocast::Category;
use keyfold_layers::autograd::{Backward, Gradients, VjpOfSeveral};
use keyfold_layers::vmap::{self, Batch};
use keyfold_tensor::{IntList, Overlap, Tensor, TensorList, Value, overlap};

use crate::arg_values::{batched_dim, int};
use crate::aten;
use crate::convert::write_converted;
use crate::jvp::LINEAR;
use crate::naming::Naming;
use crate::op::Op;
use crate::pointwise::check_written;
use crate::row::{Batching, Gradient, Layers, Row, Rule};
use crate::vjp::{READS_NOTHING, first_only, zeros_of};

/// The parts of a dimension, which cover it in order.
struct Parts {
    axis: usize,
    ends: Vec<usize>,
}

/// Returns memory for so many items, one for each part.
///
/// # Errors
/// [`ErrorKind::Memory`]: a broadcast view may have more parts than memory has room for.
fn room<T>(op: &Op, count: usize) -> Result<Vec<T>> {
    let mut items = Vec::new();
    items.try_reserve_exact(count).map_err(|_| {
        op.error(ErrorKind::Memory, format!("can't hold {count} parts in memory; make fewer"))
    })?;
    Ok(items)
}

impl Parts {
    /// Parts of one size; the last one is smaller where that doesn't divide the dimension.
    fn of_size(op: &Op, x: &Tensor, size: i64, dim: i64) -> Result<Parts> {
        let axis = op.at(layout::normalize_axis(dim, x.ndim()))?;
        let whole = x.shape()[axis];
        let step = match usize::try_from(size) {
            Ok(0) if whole == 0 => 1,
            Ok(step) if step > 0 => step,
            _ => {
                let message = format!("argument 'split_size' is {size}; give 1 or more");
                return Err(op.error(ErrorKind::Value, message));
            }
        };
        let count = whole.div_ceil(step).max(1);
        let mut ends = room(op, count)?;
        ends.extend((1..=count).map(|i| i.saturating_mul(step).min(whole)));
        Ok(Parts { axis, ends })
    }

    /// Parts of these sizes, which add up to the dimension's.
    fn of_sizes(op: &Op, x: &Tensor, sizes: &[i64], dim: i64) -> Result<Parts> {
        let axis = op.at(layout::normalize_axis(dim, x.ndim()))?;
        let whole = x.shape()[axis];
        let (mut ends, mut end) = (Vec::with_capacity(sizes.len()), Some(0_usize));
        for size in sizes {
            end =
                end.zip(usize::try_from(*size).ok()).and_then(|(end, size)| end.checked_add(size));
            ends.extend(end);
        }
        if end != Some(whole) {
            let message = format!(
                "argument 'split_sizes' is {sizes:?}, but the sizes have to be 0 or more and add up to {whole}, \
                 the size of dimension {axis}"
            );
            return Err(op.error(ErrorKind::Shape, message));
        }
        Ok(Parts { axis, ends })
    }

    /// So many parts whose sizes differ by 1 at most, the larger ones in front.
    fn of_count(op: &Op, x: &Tensor, count: i64, dim: i64) -> Result<Parts> {
        let axis = op.at(layout::normalize_axis(dim, x.ndim()))?;
        let Some(parts) = usize::try_from(count).ok().filter(|count| *count > 0) else {
            let message = format!("argument 'sections' is {count}; give 1 or more");
            return Err(op.error(ErrorKind::Value, message));
        };
        let (each, larger) = (x.shape()[axis] / parts, x.shape()[axis] % parts);
        let mut ends = room(op, parts)?;
        ends.extend((1..=parts).map(|i| i * each + i.min(larger)));
        Ok(Parts { axis, ends })
    }

    /// Parts that begin and end at these places; those behind the end are cut off there.
    fn at_places(op: &Op, x: &Tensor, places: &[i64], dim: i64) -> Result<Parts> {
        let axis = op.at(layout::normalize_axis(dim, x.ndim()))?;
        let whole = x.shape()[axis];
        let from_front = |place: &i64| match place {
            0.. => (*place as u64).min(whole as u64) as usize,
            _ => (whole as i64).saturating_add(*place).max(0) as usize,
        };
        let mut ends: Vec<usize> = places.iter().map(from_front).collect();
        if !ends.is_sorted() {
            let message = format!(
                "argument 'indices' is {places:?}, which must ascend in dimension {axis} of size {whole}"
            );
            return Err(op.error(ErrorKind::Value, message));
        }
        ends.push(whole);
        Ok(Parts { axis, ends })
    }

    fn ranges(&self) -> impl ExactSizeIterator<Item = Range<usize>> {
        let start = |i: usize| i.checked_sub(1).map_or(0, |before| self.ends[before]);
        (0..self.ends.len()).map(move |i| start(i)..self.ends[i])
    }

    fn views(&self, op: &Op, x: &Tensor) -> Result<Vec<Tensor>> {
        let mut views = room(op, self.ends.len())?;
        for range in self.ranges() {
            let (start, end) = (Some(range.start as i64), Some(range.end as i64));
            views.push(op.at(x.slice(self.axis as i64, start, end, 1))?);
        }
        Ok(views)
    }

    /// Copies the parts into outputs, after a check of all of them.
    fn write(&self, op: &Op, x: &Tensor, out: TensorList<'_>) -> Result<()> {
        let outs = op.at(out.iter().collect::<Result<Vec<_>>>())?;
        let meets =
            |a: &Tensor, b: &Tensor| -> Result<bool> { Ok(op.at(overlap(a, b))? != Overlap::None) };
        // An output that shares memory with the tensor would change the parts behind its own.
        let mut copy = None;
        let shared = |any, out: &&Tensor| -> Result<bool> { Ok(any || meets(out, x)?) };
        if outs.len() > 1 && outs.iter().try_fold(false, shared)? {
            let own = op.output(x.device(), x.shape(), x.dtype())?;
            // SAFETY: the copy was allocated here.
            unsafe { write_converted(op, x, &own) }?;
            copy = Some(own);
        }
        let x = copy.as_ref().unwrap_or(x);
        let views = self.views(op, x)?;
        if outs.len() != views.len() {
            let message = format!(
                "argument 'out' has {} tensors for {} parts; give one for each",
                outs.len(),
                views.len()
            );
            return Err(op.error(ErrorKind::Shape, message));
        }
        for (i, (view, out)) in views.iter().zip(&outs).enumerate() {
            check_written(op, &format!("out[{i}]"), out, view.shape(), view.dtype())?;
            for (j, other) in outs[..i].iter().enumerate() {
                if meets(out, other)? {
                    let message = format!(
                        "arguments 'out[{j}]' and 'out[{i}]' share memory; give each its own"
                    );
                    return Err(op.error(ErrorKind::Value, message));
                }
            }
        }
        for (view, out) in views.iter().zip(&outs) {
            // SAFETY: the schema says that the operator writes to these arguments, so the caller gave their
            // memory up for the time of the call.
            unsafe { write_converted(op, view, out) }?;
        }
        Ok(())
    }
}

fn chunk(op: &Op, (x, count, dim): (&Tensor, i64, i64)) -> Result<Vec<Tensor>> {
    let axis = op.at(layout::normalize_axis(dim, x.ndim()))?;
    if count < 1 {
        let message = format!("argument 'chunks' is {count}; give 1 or more");
        return Err(op.error(ErrorKind::Value, message));
    }
    let whole = x.shape()[axis];
    let each = whole.div_ceil(usize::try_from(count).unwrap_or(usize::MAX)).max(1);
    // An empty dimension has as many empty chunks as were asked for.
    if whole == 0 {
        return Parts::of_count(op, x, count, dim)?.views(op, x);
    }
    Parts::of_size(op, x, each as i64, dim)?.views(op, x)
}

fn unbind(op: &Op, (x, dim): (&Tensor, i64)) -> Result<Vec<Tensor>> {
    let axis = op.at(layout::normalize_axis(dim, x.ndim()))?;
    let mut parts = room(op, x.shape()[axis])?;
    for i in 0..x.shape()[axis] {
        parts.push(op.at(x.select(axis as i64, i as i64))?);
    }
    Ok(parts)
}

/// Fills in zeros for gradients of parts that backward doesn't reach, which have the size that is left.
fn known_parts(call: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Vec<Tensor>> {
    let fill = |(i, grad): (usize, &Option<Tensor>)| match grad {
        Some(grad) => Ok(grad.clone()),
        None => zeros_of(&call.result_meta(i)),
    };
    grads.iter().enumerate().map(fill).collect()
}

/// The gradient of parts along the dimension in argument 2.
fn parts_gradients(call: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Gradients> {
    first_only(call, &aten::cat(&known_parts(call, grads)?, call.int(2).unwrap_or(0))?)
}

/// The gradient of the parts of size 1 along the dimension in argument 1.
fn unbind_gradients(call: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Gradients> {
    first_only(call, &aten::stack(&known_parts(call, grads)?, call.int(1).unwrap_or(0))?)
}

/// Calls the operator for all examples, with the dimension at a position among the arguments moved.
fn batched(batch: &Batch<'_, '_>, at: usize) -> Result<Option<Value>> {
    let operand = batch.operand(0)?.in_front()?;
    let dim = int(batch.args[at]).and_then(|dim| batched_dim(dim, operand.rank()));
    let Some(dim) = dim else { return Ok(None) };
    let mut args = batch.args.to_vec();
    (args[0], args[at]) = ((&operand.tensor).into(), dim.into());
    let Value::List(parts) = batch.call(&args)? else { return Ok(None) };
    let wrapped = parts.into_iter().map(|part| batch.wrap(part, 0));
    Ok(Some(Value::List(wrapped.collect::<Result<_>>()?)))
}

fn parts_batched(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    batched(batch, 2)
}

fn unbind_batched(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    batched(batch, 1)
}

/// Returns the rows of operators that split a tensor.
pub(super) fn rows() -> Result<Vec<Row>> {
    fn layers(vjp: VjpOfSeveral, batching: vmap::Rule) -> Layers {
        let derivative = Rule::Given(Gradient::Several(READS_NOTHING, vjp));
        let batching = Rule::Given(Batching::Rule(batching));
        Layers { derivative, tangent: LINEAR, batching, autocast: Category::Leave }
    }
    let of_parts = || layers(parts_gradients, parts_batched);
    const NO_RULE: &str = "it writes to its outputs";
    let writes = Layers {
        derivative: Rule::Refused(NO_RULE),
        tangent: Rule::Refused(NO_RULE),
        batching: Rule::Refused(NO_RULE),
        autocast: Category::Leave,
    };
    Ok(vec![
        Row::views::<(&Tensor, i64, i64)>(
            "aten::split.Tensor(Tensor(a -> *) self, int split_size, int dim=0) -> Tensor(a)[]",
            |op, (x, size, dim)| Parts::of_size(op, x, size, dim)?.views(op, x),
            of_parts(),
            Naming::Unnamed("`keyfold.split` follows NumPy"),
        )?,
        Row::views::<(&Tensor, IntList, i64)>(
            "aten::split_with_sizes(Tensor(a -> *) self, int[] split_sizes, int dim=0) -> Tensor(a)[]",
            |op, (x, sizes, dim)| Parts::of_sizes(op, x, &sizes, dim)?.views(op, x),
            of_parts(),
            Naming::Unnamed("`keyfold.split` follows NumPy"),
        )?,
        Row::views::<(&Tensor, i64, i64)>(
            "aten::chunk(Tensor(a -> *) self, int chunks, int dim=0) -> Tensor(a)[]",
            chunk,
            of_parts(),
            Naming::PartOf("chunk"),
        )?,
        Row::views::<(&Tensor, i64, i64)>(
            "aten::tensor_split.sections(Tensor(a -> *) self, int sections, int dim=0) -> Tensor(a)[]",
            |op, (x, count, dim)| Parts::of_count(op, x, count, dim)?.views(op, x),
            of_parts(),
            Naming::PartOf("array_split"),
        )?,
        Row::views::<(&Tensor, IntList, i64)>(
            "aten::tensor_split.indices(Tensor(a -> *) self, int[] indices, int dim=0) -> Tensor(a)[]",
            |op, (x, places, dim)| Parts::at_places(op, x, &places, dim)?.views(op, x),
            of_parts(),
            Naming::PartOf("array_split"),
        )?,
        Row::views::<(&Tensor, i64)>(
            "aten::unbind.int(Tensor(a -> *) self, int dim=0) -> Tensor(a)[]",
            unbind,
            layers(unbind_gradients, unbind_batched),
            Naming::PartOf("unstack"),
        )?,
        Row::writes_list::<(&Tensor, i64, i64, TensorList<'_>)>(
            "aten::split_copy.Tensor_out(Tensor self, int split_size, int dim=0, *, Tensor(a!)[] out) -> ()",
            |op, (x, size, dim, out)| Parts::of_size(op, x, size, dim)?.write(op, x, out),
            writes,
            Naming::Unnamed("the array API has none"),
        )?,
        Row::writes_list::<(&Tensor, IntList, i64, TensorList<'_>)>(
            "aten::split_with_sizes_copy.out(Tensor self, int[] split_sizes, int dim=0, *, \
             Tensor(a!)[] out) -> ()",
            |op, (x, sizes, dim, out)| Parts::of_sizes(op, x, &sizes, dim)?.write(op, x, out),
            writes,
            Naming::Unnamed("the array API has none"),
        )?,
    ])
}
