//! Other shapes of the same elements, copies, parts: gradients go back where the elements came from.

use keyfold_core::{Device, Error, ErrorKind, Result, layout};
use keyfold_dispatch::{HostLock, Kernel};
use keyfold_tensor::Tensor;

use super::super::derivative::{Backward, Gradients};
use super::{NOTHING, Rules, blank, first};
use crate::{HOST_LOCK_FROM, aten};

/// The elements as they are, in a dtype of their own at most.
fn same(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    first(call, grad)
}

/// The elements in their order, under another shape.
fn reshaped(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    first(call, &aten::reshape(grad, &aten::sizes(&call.shape(0)))?)
}

fn transpose(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let (a, b) = (call.int(1).unwrap_or(0), call.int(2).unwrap_or(0));
    first(call, &aten::transpose(grad, a, b)?)
}

fn permute(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let mut inverse = vec![0; grad.ndim()];
    for (to, from) in call.ints(1).unwrap_or_default().into_iter().enumerate() {
        inverse[layout::normalize_axis(from, grad.ndim())?] = to as i64;
    }
    first(call, &aten::permute(grad, &inverse)?)
}

fn flip(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    first(call, &aten::flip(grad, &call.ints(1).unwrap_or_default())?)
}

fn select(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let (dim, index) = (call.int(1).unwrap_or(0), call.int(2).unwrap_or(0));
    first(call, &aten::select_scatter(&blank(call, 0, grad)?, grad, dim, index)?)
}

fn slice(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let (dim, step) = (call.int(1).unwrap_or(0), call.int(4).unwrap_or(1));
    let (start, end) = (call.value(2), call.value(3));
    first(call, &aten::slice_scatter(&blank(call, 0, grad)?, grad, dim, start, end, step)?)
}

/// Back to the device that the elements came from. Nothing goes back from meta, which has no data.
fn to_device(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let device = call.form(0).device;
    if grad.device() == device {
        return first(call, grad);
    }
    if grad.device() == Device::META {
        return Err(Error::new(
            ErrorKind::Gradient,
            format!(
                "aten::to: a gradient on meta has no data to bring back to {device}; on meta, run \
                 the function forward only"
            ),
        ));
    }
    first(call, &aten::to_device(grad, device)?)
}

/// Cuts the graph: the call goes below, and nothing is recorded.
fn cut() -> Kernel<keyfold_tensor::Value> {
    let kernel = Kernel::boxed(|context, args| context.call_below(args));
    kernel.named("detach").with_host_lock(HostLock::ReleaseFrom(HOST_LOCK_FROM))
}

pub(super) fn register(rules: &Rules<'_>) -> Result<()> {
    for name in ["aten::contiguous", "aten::clone", "aten::alias", "aten::to", "aten::expand"] {
        rules.add(name, NOTHING, same)?;
    }
    for name in ["aten::reshape", "aten::unsqueeze", "aten::squeeze", "aten::squeeze.dim"] {
        rules.add(name, NOTHING, reshaped)?;
    }
    rules.add("aten::to.device", NOTHING, to_device)?;
    rules.add("aten::transpose", NOTHING, transpose)?;
    rules.add("aten::permute", NOTHING, permute)?;
    rules.add("aten::flip", NOTHING, flip)?;
    rules.add("aten::select.int", NOTHING, select)?;
    rules.add("aten::slice.Tensor", NOTHING, slice)?;
    rules.kernel("aten::detach", cut())
}
