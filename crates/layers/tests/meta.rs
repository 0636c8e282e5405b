//! Meta: results without data, and the errors of operators that don't support it.

use keyfold_core::{Device, ErrorKind};
use keyfold_dispatch::{DispatchKey, Operator};
use keyfold_layers::meta::{infer, like};
use keyfold_tensor::{Tensor, Value, ValueRef};

use keyfold_core::DType;
use keyfold_dispatch::{Dispatcher, Kernel, Override};

fn operator(name: &str) -> std::sync::Arc<Operator<Value>> {
    keyfold::dispatcher().operator(name).unwrap()
}

#[test]
fn a_like_has_the_same_form_and_no_memory() {
    let x = Tensor::from_slice(&[0.0_f32; 24], &[2, 3, 4]).unwrap();
    let views = [
        x.clone(),
        x.transpose(0, 2).unwrap(),
        x.flip(&[0, 1]).unwrap(),
        x.slice(1, Some(1), None, 2).unwrap(),
        x.slice(0, Some(2), None, 1).unwrap(),
        x.select(0, 1).unwrap().broadcast_to(&[5, 3, 4]).unwrap(),
        Tensor::from_slice(&[1_i64], &[]).unwrap(),
    ];
    for view in views {
        let like = like(&view).unwrap();
        assert_eq!(like.shape(), view.shape());
        assert_eq!(like.strides(), view.strides());
        assert_eq!((like.dtype(), like.device()), (view.dtype(), Device::META));
    }
}

#[test]
fn results_have_form_and_no_data() {
    let x = Tensor::from_slice(&[1.0_f32; 6], &[2, 3]).unwrap();
    let y = Tensor::from_slice(&[1.0_f64; 6], &[3, 2]).unwrap();
    let result = infer(&operator("aten::matmul"), &[(&x).into(), (&y).into()]).unwrap();
    let result = result.into_tensor().unwrap();
    assert_eq!((&**result.shape(), result.dtype()), (&[2, 2][..], DType::F64));
    assert_eq!(result.device(), Device::META);
    let list = ValueRef::Tensors(std::slice::from_ref(&x));
    let result = infer(&operator("aten::stack"), &[list]).unwrap().into_tensor().unwrap();
    assert_eq!(&**result.shape(), [1, 2, 3]);
}

#[test]
fn factories_and_devices_go_to_meta() {
    let sizes = [1_i64 << 40, 3];
    let result = infer(&operator("aten::zeros"), &[(&sizes[..]).into()]).unwrap();
    assert_eq!(result.into_tensor().unwrap().device(), Device::META);
    let args = [(&sizes[..]).into(), DType::F32.into(), Device::CPU.into()];
    let result = infer(&operator("aten::zeros"), &args).unwrap().into_tensor().unwrap();
    assert_eq!((result.device(), result.dtype()), (Device::META, DType::F32));
}

#[test]
fn a_missing_rule_says_how_to_add_one() {
    let d = Dispatcher::<Value>::new();
    d.define("f(Tensor x) -> Tensor").unwrap();
    let f = d.operator("f").unwrap();
    let x = Tensor::from_slice(&[1.0_f32], &[1]).unwrap();
    let error = infer(&f, &[(&x).into()]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::MissingKernel);
    assert!(error.message().contains("register_fake(\"f\")"), "{error}");
}

#[test]
fn a_rule_that_returns_data_is_refused() {
    let d = Dispatcher::<Value>::new();
    d.define("f(Tensor x) -> Tensor").unwrap();
    let real = Kernel::typed(|_x: &Tensor| Tensor::from_slice(&[1.0_f32], &[1]));
    d.implement("f", DispatchKey::Meta, real, Override::Error).unwrap();
    let x = Tensor::from_slice(&[1.0_f32], &[1]).unwrap();
    let error = infer(&d.operator("f").unwrap(), &[(&x).into()]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Return);
    assert!(error.message().contains("float32[1] on cpu"), "{error}");
}
