//! Writing into tensors that exist: what `x[...] = y` comes to.

use keyfold_core::{Device, ErrorKind, Result, Scalar};
use keyfold_dispatch::Kernel;
use keyfold_tensor::Tensor;

use crate::map::{converted, write};
use crate::op::{Op, Registrar};
use crate::promote::check_assignable;

/// Writes `source`, converted and broadcast, into the memory of `target`.
///
/// # Errors
/// [`keyfold_core::ErrorKind::DType`] where the kind of the elements would get lost, and as
/// [`Tensor::copy_from`].
pub(crate) fn assign(op: &Op, target: &Tensor, source: &Tensor) -> Result<Tensor> {
    check_assignable(op, source.dtype(), target.dtype())?;
    if op.is_meta() {
        if target.device() != Device::META {
            let message = format!(
                "argument 'src' is on meta and has no elements for argument 'self' on {}",
                target.device()
            );
            return Err(op.error(ErrorKind::Device, message));
        }
        op.at(source.broadcast_to(target.shape()))?;
        return Ok(target.clone());
    }
    if source.device() != target.device() {
        return across(op, target, source);
    }
    // SAFETY: the schema says that the operator writes to this argument, so the caller, in
    // whichever language, gave its memory up for the time of the call; no slice of it is alive here.
    unsafe { write(op, source, target) }?;
    Ok(target.clone())
}

/// As [`assign`], from one device to another: elements are converted on the device of the two that the
/// operator runs on.
#[cold]
fn across(op: &Op, target: &Tensor, source: &Tensor) -> Result<Tensor> {
    let home = target.device();
    if op.kind() == home.kind() {
        let source = op.at(source.to_device(home))?;
        // SAFETY: as in `assign`.
        unsafe { write(op, &source, target) }?;
    } else {
        let source = op.at(converted(op, source, target.dtype())?.to_device(home))?;
        // SAFETY: as in `assign`.
        op.at(unsafe { target.copy_from(&source) })?;
    }
    Ok(target.clone())
}

/// Writes `source`, converted and broadcast, into a view of a result that is being built: what joins
/// and scatters do. Does nothing on meta.
pub(crate) fn place(op: &Op, part: &Tensor, source: &Tensor) -> Result<()> {
    if op.is_meta() {
        return Ok(());
    }
    // SAFETY: the memory belongs to a result that the kernel made and nobody has seen yet; no slice
    // of it is alive here.
    unsafe { write(op, source, part) }
}

pub(crate) fn fill(op: &Op, target: &Tensor, value: Scalar) -> Result<Tensor> {
    assign(op, target, &op.at(Tensor::full(&[], value, target.dtype(), target.device()))?)
}

/// Defines these operators in a dispatcher.
pub(crate) fn register(ops: &Registrar<'_>) -> Result<()> {
    ops.across_devices("aten::copy_(Tensor(a!) self, Tensor src) -> Tensor(a!)", |op| {
        Kernel::typed(move |x: &Tensor, source: &Tensor| assign(&op, x, source))
    })?;
    ops.op("aten::fill_.Scalar(Tensor(a!) self, Scalar value) -> Tensor(a!)", |op| {
        Kernel::typed(move |x: &Tensor, value: Scalar| fill(&op, x, value))
    })
}
