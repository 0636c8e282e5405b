//! Native kernels for keyfold's own tests and benchmarks, where Python has to call something
//! written in Rust: a no-op, one that makes a result, one that panics, two layers.

use keyfold_core::Result;
use keyfold_dispatch::{HostLock, Kernel, RegistrationKey, Value as _};
use keyfold_tensor::{SameAs, Tensor, Value, ValueRef};
use pyo3::prelude::*;

use crate::marshal::errors::IntoPyResult;
use crate::marshal::keys::registration_key_from;

fn identity(_x: ValueRef<'_>, _y: ValueRef<'_>) -> Result<SameAs> {
    Ok(SameAs(0))
}

fn clone(x: &Tensor, _y: &Tensor) -> Result<Tensor> {
    Ok(x.clone())
}

fn fresh(x: &Tensor, _y: &Tensor) -> Result<Tensor> {
    x.copy()
}

fn panics(_x: &Tensor, _y: &Tensor) -> Result<Tensor> {
    panic!("this kernel always panics")
}

/// `identity` returns its argument as it is, `clone` a share of it made from views, `fresh` a copy.
///
/// Defines `keyfold_testing::{identity, clone, fresh, identity_nogil, panics}(Tensor x, Tensor y) -> Tensor`
/// in the process's dispatcher, with native CPU kernels.
#[pyfunction]
pub(crate) fn _register_testing_kernels(py: Python<'_>) -> PyResult<()> {
    let kernels: [(&str, Kernel<Value>); 5] = [
        ("identity", Kernel::typed(identity)),
        ("clone", Kernel::typed(clone)),
        ("fresh", Kernel::typed(fresh)),
        ("identity_nogil", Kernel::typed(identity).with_host_lock(HostLock::ReleaseFrom(0))),
        ("panics", Kernel::typed(panics)),
    ];
    let dispatcher = keyfold::dispatcher();
    for (name, kernel) in kernels {
        let name = format!("keyfold_testing::{name}");
        if dispatcher.operator(&name).is_ok() {
            continue;
        }
        dispatcher.define(&format!("{name}(Tensor x, Tensor y) -> Tensor")).py(py)?;
        let key: RegistrationKey = keyfold_dispatch::DispatchKey::CPU.into();
        dispatcher.register(&name, key, kernel).py(py)?;
    }
    Ok(())
}

/// Registers a native fallback at a key of the process's dispatcher that passes calls on below
/// itself: as they are, or with every tensor replaced by a copy.
#[pyfunction]
pub(crate) fn _register_testing_layer(
    key: &Bound<'_, PyAny>,
    replace: bool,
) -> PyResult<crate::classes::handle::PyHandle> {
    let layer = Kernel::<Value>::boxed(move |context, args| {
        if !replace {
            return context.call_below(args);
        }
        let mut copies = Vec::new();
        for arg in args {
            copies.push(match arg {
                ValueRef::Tensor(_) | ValueRef::Foreign(_) => Value::Tensor(arg.tensor()?.copy()?),
                other => Value::from_ref(*other)?,
            });
        }
        let args: Vec<_> = copies.iter().map(|value| value.as_ref()).collect();
        context.call_below(&args)
    });
    let layer = layer.named(if replace { "replacing_layer" } else { "passing_layer" });
    let key_value = registration_key_from(key)?;
    // Over the layer that is there already, if the key is one of the built-in ones.
    let mode = keyfold_dispatch::Override::Shadow;
    let handle = keyfold::dispatcher().fallback(key_value, layer, mode).py(key.py())?;
    Ok(crate::classes::handle::PyHandle::new(handle, None))
}
