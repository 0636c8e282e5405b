//! `aten::to.device`: copies to another device, by one kernel for all backends.

use keyfold_core::{Device, Error, Result};
use keyfold_dispatch::{Kernel, RegistrationKey};
use keyfold_layers::autocast::Category;
use keyfold_layers::vmap;
use keyfold_tensor::Tensor;

use crate::inferred::Inferred;
use crate::jvp::LINEAR;
use crate::naming::Naming;
use crate::row::{Batching, Layers, Row, Rule};
use crate::shape::gradients;
use crate::vjp::{READS_NOTHING, formula};

/// Returns the row of `aten::to.device`. The result is a copy even if the tensor is on that device.
pub(crate) fn rows() -> Result<Vec<Row>> {
    let row = Row::composite(
        "aten::to.device(Tensor self, Device device) -> Tensor",
        RegistrationKey::CompositeExplicitAutograd,
        || {
            Kernel::typed(|x: &Tensor, device: Device| {
                let copy = if device == x.device() { x.copy() } else { x.to_device(device) };
                copy.map_err(|error: Error| error.at("aten::to"))
            })
        },
        |args| {
            let x = args[0].tensor()?;
            Ok(Inferred::fresh(x.shape().clone(), x.dtype()))
        },
        Layers {
            derivative: formula(READS_NOTHING, gradients::to_device),
            tangent: LINEAR,
            batching: Rule::Given(Batching::Rule(vmap::single)),
            autocast: Category::Leave,
        },
        Naming::PartOf("astype"),
    )?;
    Ok(vec![row])
}
