//! Operators that write in place: `copy_` and `fill_`, which `x[...] = y` calls.

use keyfold_core::{Device, ErrorKind, Result, Scalar, layout};
use keyfold_layers::autocast::Category;
use keyfold_layers::autograd::{Backward, Gradients, Jvp, Vjp};
use keyfold_layers::vmap::{self, Batch, move_dim, with_first};
use keyfold_tensor::{Tensor, Value};

use crate::aten;
use crate::convert::{to_dtype, write_converted};
use crate::infer::{Call, CallPlan, Fill, Run};
use crate::jvp::{self, pushforward};
use crate::naming::Naming;
use crate::op::Op;
use crate::promote::check_assignable;
use crate::row::{Batching, Layers, Row, Rule};
use crate::vjp::{READS_NOTHING, formula, if_needed, zeros_of};

/// Plans the write of `source`, converted and broadcast, into the memory of `target`.
///
/// # Errors
/// [`ErrorKind::DType`] where the target's dtype is of a lower kind, and as [`Tensor::copy_from`].
fn assign<'t>(
    op: &Op,
    target: &Tensor,
    source: &'t Tensor,
) -> Result<CallPlan<impl Run + use<'t>>> {
    check_assignable(op, source.dtype(), target.dtype())?;
    if source.device() == Device::META && target.device() != Device::META {
        let message = format!(
            "argument 'src' is on meta and has no elements for argument 'self' on {}",
            target.device()
        );
        return Err(op.error(ErrorKind::Device, message));
    }
    op.at(layout::broadcast_strides(source.shape(), source.strides(), target.shape()))?;
    let run = move |op: &Op, target: &Tensor| {
        if source.device() != target.device() {
            return assign_across_devices(op, target, source);
        }
        // SAFETY: the target is an argument that the operator writes to (`Run::run`).
        unsafe { write_converted(op, source, target) }
    };
    Ok(CallPlan::new(target.device(), target.shape().clone(), target.dtype(), run))
}

/// As [`assign`], from one device to another. Elements are converted on the device that the operator runs
/// on.
#[cold]
fn assign_across_devices(op: &Op, target: &Tensor, source: &Tensor) -> Result<()> {
    let home = target.device();
    if op.kind() == home.kind() {
        let source = op.at(source.to_device(home))?;
        // SAFETY: as in `assign`.
        unsafe { write_converted(op, &source, target) }
    } else {
        let source = op.at(to_dtype(op, source, target.dtype())?.to_device(home))?;
        // SAFETY: as in `assign`.
        op.at(unsafe { target.copy_from(&source) })
    }
}

/// Writes `source`, converted and broadcast, into a view of a result that is being computed, as `cat` and
/// the scatters do.
pub(crate) fn write_part(op: &Op, part: &Tensor, source: &Tensor) -> Result<()> {
    // SAFETY: the memory belongs to the output of what computes a result, which is its own (`Run::run`).
    unsafe { write_converted(op, source, part) }
}

fn copy(call: Call<'_, ()>, (x, source): (&Tensor, &Tensor)) -> Result<CallPlan<impl Run>> {
    assign(&call, x, source)
}

fn fill(call: Call<'_, ()>, (x, value): (&Tensor, Scalar)) -> Result<CallPlan<impl Run + use<>>> {
    call.at(value.check(x.dtype()))?;
    Ok(CallPlan::new(x.device(), x.shape().clone(), x.dtype(), Fill(value)))
}

/// The gradients of `copy_`.
fn copy_gradients(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    Ok(vec![zeros_if_needed(call)?, if_needed(call, 1, || Ok(grad.clone()))?])
}

/// The gradients of `fill_`.
fn fill_gradients(call: &Backward<'_>, _: &Tensor) -> Result<Gradients> {
    Ok(vec![zeros_if_needed(call)?])
}

/// Returns the gradient of the overwritten elements, which is zero; `None` if it isn't needed.
fn zeros_if_needed(call: &Backward<'_>) -> Result<Option<Tensor>> {
    call.needs(0).then(|| zeros_of(&call.meta(0))).transpose()
}

/// Writes each example of the source into the same example of the target, whose layout doesn't change.
fn copy_batched(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    let (Some(target), source) = (batch.target(0)?, batch.operand(1)?) else { return Ok(None) };
    let (dim, rank) = (target.dim, target.physical.ndim() - 1);
    if source.rank() > rank {
        return Ok(None);
    }
    let source = match source.dim {
        Some(_) => move_dim(&source.padded(rank)?.tensor, 0, dim)?,
        None if source.rank() <= rank - dim => source.tensor,
        None => {
            // The batch dimension is among the source's dimensions, so the source gets a dimension of size 1
            // there.
            let at = source.rank() - (rank - dim);
            aten::unsqueeze(&source.tensor, at as i64)?
        }
    };
    batch.call(&[(&target.physical).into(), (&source).into()])?;
    batch.written(0, &target)
}

fn fill_batched(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    let Some(target) = batch.target(0)? else { return Ok(None) };
    batch.call(&with_first(batch, &target.physical))?;
    batch.written(0, &target)
}

/// Returns the rows of the operators that write in place.
pub(crate) fn rows() -> Result<Vec<Row>> {
    fn layers(vjp: Vjp, jvp: Jvp, batching: vmap::Rule) -> Layers {
        let (derivative, tangent) = (formula(READS_NOTHING, vjp), pushforward(jvp));
        let batching = Rule::Given(Batching::Rule(batching));
        Layers { derivative, tangent, batching, autocast: Category::Leave }
    }
    let copy = Row::writes::<(&Tensor, &Tensor), _>(
        "aten::copy_(Tensor(a!) self, Tensor src) -> Tensor(a!)",
        copy,
        layers(copy_gradients, jvp::copy_, copy_batched),
        Naming::Unnamed("`x += y` calls it"),
    )?;
    let fill = Row::writes::<(&Tensor, Scalar), _>(
        "aten::fill_.Scalar(Tensor(a!) self, Scalar value) -> Tensor(a!)",
        fill,
        layers(fill_gradients, jvp::fill_, fill_batched),
        Naming::Unnamed("`Tensor.fill_` calls it"),
    )?;
    Ok(vec![copy.across_devices(), fill])
}
