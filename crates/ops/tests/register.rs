//! Registration itself, and what explanations say of these kernels.

mod support;

use keyfold_core::{DType, Device, ErrorKind};
use keyfold_dispatch::{DispatchKey, Dispatcher, HostLock};
use keyfold_tensor::{Tensor, Value};
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
    assert!(cpu.provenance().file.ends_with("elementwise/arithmetic.rs"));
    assert!(matches!(cpu.host_lock(), HostLock::ReleaseFrom(n) if n > 1));
}

#[test]
fn a_kernel_called_directly_stays_on_its_device() {
    let x = Tensor::zeros(&[3], DType::F64, Device::CPU).unwrap();
    let args = [keyfold_tensor::ValueRef::Tensor(&x)];
    let direct = |key| dispatcher().call_direct("aten::exp", key, &args, None);
    assert_eq!(direct(DispatchKey::Meta).unwrap().into_tensor().unwrap().device(), Device::META);
    let meta = to_meta(&x);
    let args = [keyfold_tensor::ValueRef::Tensor(&meta)];
    let direct = dispatcher().call_direct("aten::exp", DispatchKey::CPU, &args, None);
    fails(direct.and_then(Value::into_tensor), ErrorKind::NotSupported, &["aten::exp", "meta"]);
}
