//! Copies to another device: one kernel for the backends of all devices.

use keyfold_core::{Device, Error, Result};
use keyfold_dispatch::{Dispatcher, HostLock, Kernel, Override, RegistrationKey};
use keyfold_tensor::{Tensor, Value};

use crate::op::HOST_LOCK_FROM;

const NAME: &str = "aten::to.device";

/// Defines the operator in a dispatcher. The result is a copy, also on the device that has the tensor.
pub(crate) fn register(dispatcher: &Dispatcher<Value>) -> Result<()> {
    dispatcher.define("aten::to.device(Tensor self, Device device) -> Tensor")?;
    let kernel = Kernel::typed(|x: &Tensor, device: Device| {
        let copy = if device == x.device() { x.copy() } else { x.to_device(device) };
        copy.map_err(|error: Error| error.at("aten::to"))
    });
    let kernel = kernel.named("to_device").with_host_lock(HostLock::ReleaseFrom(HOST_LOCK_FROM));
    let everywhere = RegistrationKey::CompositeExplicitAutograd;
    dispatcher.implement(NAME, everywhere, kernel, Override::Error).map(drop)
}
