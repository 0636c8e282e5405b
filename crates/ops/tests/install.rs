//! Registration of the rows and of users' expressions, and the kernels' names and source locations.

mod support;

use std::sync::Arc;

use keyfold_backend::GpuBackend;
use keyfold_core::{DType, Device, DeviceType, ErrorKind};
use keyfold_cpu::HostBackend;
use keyfold_dispatch::{DispatchKey, Dispatcher, HostLock, Override};
use keyfold_ops::pointwise::implement;
use keyfold_ops::{Row, Rule};
use keyfold_tensor::{Tensor, Value, ValueRef};
use support::*;

#[test]
fn registering_again_changes_nothing() {
    let dispatcher = Dispatcher::<Value>::new();
    keyfold_ops::register(&dispatcher).unwrap();
    let count = dispatcher.kernel_count();
    keyfold_ops::register(&dispatcher).unwrap();
    assert_eq!(dispatcher.kernel_count(), count);
}

#[test]
fn kernels_have_names_and_places() {
    let add = dispatcher().operator("aten::add.Scalar").unwrap();
    let cpu = add.kernel_at(DispatchKey::CPU.into()).unwrap();
    assert_eq!(cpu.provenance().name, "add_scalar_cpu");
    assert!(cpu.provenance().file.ends_with("pointwise/binary.rs"));
    assert!(matches!(cpu.host_lock(), HostLock::ReleaseFrom(n) if n > 1));
}

#[test]
fn a_kernel_called_directly_stays_on_its_device() {
    let x = Tensor::zeros(&[3], DType::F64, Device::CPU).unwrap();
    let args = [ValueRef::Tensor(&x)];
    let direct = |key| dispatcher().call_direct("aten::exp", key, &args, None);
    assert_eq!(direct(DispatchKey::Meta).unwrap().into_tensor().unwrap().device(), Device::META);
    let meta = to_meta(&x);
    let args = [ValueRef::Tensor(&meta)];
    let direct = dispatcher().call_direct("aten::exp", DispatchKey::CPU, &args, None);
    fails(direct.and_then(Value::into_tensor), ErrorKind::NotSupported, &["aten::exp", "meta"]);
}

#[test]
fn an_expression_of_a_users_makes_a_row() {
    let dispatcher = Dispatcher::<Value>::new();
    let name = "user::scaled";
    dispatcher.define("user::scaled(float beta, Tensor x) -> Tensor").unwrap();
    let made = implement(&dispatcher, name, "beta * log1p(exp(x))", Override::Error, None).unwrap();
    let layers = made.row.layers();
    assert!(matches!(layers.derivative, Rule::Derived) && matches!(layers.batching, Rule::Derived));
    assert_eq!(made.row.expression().unwrap().expr(), made.expression.expr());

    let cpu: Arc<dyn GpuBackend> = Arc::new(HostBackend);
    keyfold_ops::register(&dispatcher).unwrap();
    let installed = keyfold_ops::install(&dispatcher, DeviceType::CPU, &cpu).unwrap();
    let kernel_at = |key: DispatchKey| dispatcher.operator(name).unwrap().kernel_at(key.into());
    let cpu = kernel_at(DispatchKey::CPU).unwrap();
    assert_eq!(cpu.provenance().name, "scaled_cpu");
    assert!(cpu.provenance().file.ends_with("tests/install.rs"));
    let meta = kernel_at(DispatchKey::Meta).unwrap();
    assert_eq!(meta.payload().unwrap().downcast_ref::<Row>().unwrap().schema(), made.row.schema());

    let x = Tensor::from_slice(&[0.0, 1.0], &[2]).unwrap();
    let args = [ValueRef::Float(2.0), ValueRef::Tensor(&x)];
    let result = dispatcher.call(name, &args).unwrap().into_tensor().unwrap();
    let wanted = [0.0f64, 1.0].map(|x| 2.0 * x.exp().ln_1p());
    assert_close(&result, &wanted, 2.0);
    let inferred = made.row.infer(&args).unwrap().pop().flatten().unwrap();
    assert_eq!((&inferred.shape, inferred.dtype), (result.shape(), DType::F64));

    drop(installed);
    for handle in &made.handles {
        handle.remove();
    }
    let keys = [DispatchKey::CPU, DispatchKey::Meta, DispatchKey::Autograd, DispatchKey::Vmap];
    assert!(keys.into_iter().all(|key| kernel_at(key).is_none()));
}
