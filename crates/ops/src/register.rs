//! Registration of the rows in a dispatcher, and of their kernels for a backend.

use std::sync::Arc;

use keyfold_backend::GpuBackend;
use keyfold_core::{DeviceType, Result};
use keyfold_dispatch::{DispatchKey, Dispatcher, Handle, Override};
use keyfold_tensor::Value;

use crate::op::Runner;
use crate::row::Row;
use crate::rows;

/// Defines the operators in a dispatcher, with their kernels for Meta and for the layers. A second call
/// changes nothing.
///
/// # Errors
/// [`keyfold_core::ErrorKind::Registration`] when one of the names, or one of the keys of an
/// operator, is taken by something else; what was registered before that stays.
pub fn register(dispatcher: &Dispatcher<Value>) -> Result<()> {
    rows().iter().try_for_each(|row| row.define(dispatcher))
}

/// Registers the operators' kernels for a backend, at its key in a dispatcher that has the operators.
/// An operator that has a kernel there already keeps it.
///
/// # Errors
/// [`keyfold_core::ErrorKind::UnknownOperator`] for a dispatcher without the operators.
pub fn install(
    dispatcher: &Dispatcher<Value>,
    kind: DeviceType,
    backend: &Arc<dyn GpuBackend>,
) -> Result<Installed> {
    // On an error this is dropped, which removes the kernels that were registered before.
    let mut installed = Installed(Vec::new());
    let (key, runner) =
        (DispatchKey::from_device_type(kind), Arc::new(Runner::new(kind, backend.clone())));
    for row in rows() {
        for (schema, kernel) in row.backend_kernels(&runner) {
            let name = schema.name.to_string();
            if !dispatcher.has_kernel(&name, key) {
                installed.0.push(dispatcher.implement(&name, key, kernel, Override::Error)?);
            }
        }
    }
    // Those operators in the dispatcher that users made of an expression: the kernel for Meta has the row.
    for operator in dispatcher.operators() {
        let Some(meta) = operator.kernel_at(DispatchKey::Meta.into()) else { continue };
        let row = meta.payload().and_then(|any| any.downcast_ref::<Row>());
        let Some(row) = row.filter(|_| !operator.has_kernel(key.into())) else { continue };
        for (_, kernel) in row.backend_kernels(&runner) {
            installed.0.push(dispatcher.register_with(&operator, key, kernel, Override::Error)?);
        }
    }
    Ok(installed)
}

/// The registered kernels of a backend in a dispatcher. Dropping this removes them.
#[must_use]
pub struct Installed(Vec<Handle<Value>>);

impl Installed {
    /// Keeps the kernels registered for the life of the dispatcher.
    pub fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        for handle in self.0.drain(..) {
            handle.remove();
        }
    }
}
