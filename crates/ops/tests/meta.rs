//! Kernels for Meta return the shape, dtype and strides of the CPU's kernels, or the same error.

mod support;

use keyfold_core::{DType, Device, ErrorKind};
use keyfold_dispatch::{DispatchKey, RegistrationKey};
use keyfold_tensor::{Tensor, ValueRef};
use proptest::prelude::*;
use support::*;

/// Runs a call on tensors of the CPU and on meta, and compares.
fn compare(name: &str, tensors: &[&Tensor], rest: &[ValueRef<'_>]) {
    let metas: Vec<Tensor> = tensors.iter().map(|t| to_meta(t)).collect();
    let real: Vec<ValueRef<'_>> =
        tensors.iter().map(|t| ValueRef::Tensor(t)).chain(rest.iter().copied()).collect();
    let meta: Vec<ValueRef<'_>> =
        metas.iter().map(ValueRef::Tensor).chain(rest.iter().copied()).collect();
    match (call(name, &real), call(name, &meta)) {
        (Ok(real), Ok(meta)) => {
            assert_eq!(meta.device(), Device::META, "{name}");
            assert_eq!(real.device(), Device::CPU, "{name}");
            let facts = |t: &Tensor| (t.dtype(), t.shape().clone(), t.strides().clone());
            assert_eq!(facts(&real), facts(&meta), "{name} of {tensors:?} {rest:?}");
            assert!(!meta.requires_grad(), "{name}");
        }
        (Err(real), Err(meta)) => {
            assert_eq!((real.kind(), real.message()), (meta.kind(), meta.message()), "{name}");
        }
        (real, meta) => panic!("{name} of {tensors:?} {rest:?}: {real:?}, but on meta {meta:?}"),
    }
}

proptest! {
    #[test]
    fn operators_of_one_tensor(x in any_tensor(), dim in -3_i64..4, keepdim: bool, size in -1_i64..4) {
        let (none, dims) = (ValueRef::None, [dim, 0]);
        for name in ["neg", "abs", "relu", "exp", "log", "sqrt", "logical_not", "sum", "mean", "max",
            "tanh", "sigmoid", "sin", "cos", "sign", "log1p", "expm1", "detach", "alias", "min", "clone", "contiguous", "squeeze", "argmax", "argmin", "amax", "all"] {
            compare(name, &[&x], &[]);
        }
        let (int, keep) = (ValueRef::Int(dim), ValueRef::Bool(keepdim));
        for name in ["sum.dim", "mean.dim", "amax", "amin", "all", "any"] {
            compare(name, &[&x], &[none, keep]);
            compare(name, &[&x], &[ValueRef::Ints(&dims[..1]), keep]);
            compare(name, &[&x], &[ValueRef::Ints(&dims), keep]);
        }
        compare("argmax", &[&x], &[int, keep]);
        compare("argmin", &[&x], &[none, keep]);
        compare("softmax", &[&x], &[int]);
        compare("log_softmax", &[&x], &[int]);
        for name in ["unsqueeze", "squeeze.dim"] {
            compare(name, &[&x], &[int]);
        }
        compare("transpose", &[&x], &[int, ValueRef::Int(0)]);
        compare("permute", &[&x], &[ValueRef::Ints(&dims)]);
        compare("flip", &[&x], &[ValueRef::Ints(&dims)]);
        compare("select", &[&x], &[int, ValueRef::Int(size)]);
        let slice = [int, ValueRef::Int(size), none, ValueRef::Int(if keepdim { 2 } else { -1 })];
        compare("slice", &[&x], &slice);
        compare("reshape", &[&x], &[ValueRef::Ints(&[-1])]);
        compare("reshape", &[&x], &[ValueRef::Ints(&[size, -1])]);
        compare("expand", &[&x], &[ValueRef::Ints(&[3, -1, -1, size])]);
        for dtype in DType::ALL {
            compare("to", &[&x], &[ValueRef::DType(dtype)]);
            compare("sum", &[&x], &[ValueRef::DType(dtype)]);
            compare("mean", &[&x], &[ValueRef::DType(dtype)]);
        }
        compare("fill_", &[&x], &[ValueRef::Bool(true)]);
    }

    #[test]
    fn operators_of_two_tensors((a, b) in any_pair(), number in scalar()) {
        for name in ["add", "sub", "mul", "div", "maximum", "minimum", "eq", "ne", "lt", "le", "gt",
            "ge"] {
            compare(name, &[&a, &b], &[]);
            compare(&format!("{name}.Scalar"), &[&a], &[ValueRef::from(number)]);
        }
        // Negative powers of integers are excluded, since their error depends on elements.
        let exponent = on("abs", &[&b]).unwrap();
        compare("pow", &[&a, &exponent], &[]);
        compare("pow.Scalar", &[&a], &[ValueRef::from(number)]);
        compare("rpow", &[&exponent], &[ValueRef::from(number)]);
        for name in ["rsub", "rdiv"] {
            compare(name, &[&a], &[ValueRef::from(number)]);
        }
        compare("matmul", &[&a, &b], &[]);
        compare("copy_", &[&a, &b], &[]);
        let condition = on("gt", &[&a, &b]).unwrap();
        compare("where", &[&condition, &a, &b], &[]);
        compare("where.ScalarOther", &[&condition, &a], &[ValueRef::from(number)]);
    }

    #[test]
    fn products_of_any_shapes(a in any_tensor(), b in any_tensor()) {
        compare("matmul", &[&a, &b], &[]);
        let dim = [ValueRef::Int(0)];
        let index = on("argmax", &[&floats(&[1.0])]).unwrap();
        let index = index.reshape(&[1]).unwrap();
        let (real, meta) = ([ValueRef::Tensor(&a), dim[0], ValueRef::Tensor(&index)], to_meta(&a));
        let meta_index = to_meta(&index);
        let meta = [ValueRef::Tensor(&meta), dim[0], ValueRef::Tensor(&meta_index)];
        if a.ndim() > 0 && a.shape()[0] > 0 {
            let (real, meta) = (call("index_select", &real).unwrap(), call("index_select", &meta).unwrap());
            prop_assert_eq!((real.shape(), real.strides()), (meta.shape(), meta.strides()));
        }
    }
}

/// As [`compare`], for an operator whose first argument is a list of tensors.
fn compare_lists(name: &str, tensors: &[&Tensor], rest: &[ValueRef<'_>]) {
    let metas: Vec<Tensor> = tensors.iter().map(|t| to_meta(t)).collect();
    let real: Vec<ValueRef<'_>> = tensors.iter().map(|t| ValueRef::Tensor(t)).collect();
    let real = call(name, &[&[ValueRef::Refs(&real)], rest].concat());
    match (real, call(name, &[&[ValueRef::Tensors(&metas)], rest].concat())) {
        (Ok(real), Ok(meta)) => {
            assert_fresh(&real, Device::CPU);
            assert_fresh(&meta, Device::META);
            assert_eq!((real.dtype(), real.shape()), (meta.dtype(), meta.shape()), "{name}");
        }
        (Err(real), Err(meta)) => assert_eq!(real.message(), meta.message(), "{name}"),
        (real, meta) => panic!("{name} of {tensors:?}: {real:?}, but on meta {meta:?}"),
    }
}

proptest! {
    #[test]
    fn joins_and_scatters(x in any_tensor(), y in any_tensor(), dim in -3_i64..4, place in -1_i64..3) {
        let (dim, place) = (ValueRef::Int(dim), ValueRef::Int(place));
        for list in [&[][..], &[&x], &[&x, &y], &[&x, &x, &x]] {
            compare_lists("cat", list, &[dim]);
            compare_lists("stack", list, &[dim]);
        }
        compare("select_scatter", &[&x, &y], &[dim, place]);
        compare("slice_scatter", &[&x, &y], &[dim, place]);
        compare("slice_scatter", &[&x, &x], &[dim]);
        let index = call("zeros", &[ValueRef::Ints(&[1, 1]), ValueRef::DType(DType::I64)]).unwrap();
        let (real, meta) = (ValueRef::Tensor(&index), to_meta(&index));
        let meta = ValueRef::Tensor(&meta);
        if x.numel() > 0 && y.numel() > 0 {
            let (x_meta, y_meta) = (to_meta(&x), to_meta(&y));
            let (rx, ry) = (ValueRef::Tensor(&x), ValueRef::Tensor(&y));
            let (mx, my) = (ValueRef::Tensor(&x_meta), ValueRef::Tensor(&y_meta));
            let pairs = [
                (call("gather", &[rx, dim, real]), call("gather", &[mx, dim, meta])),
                (
                    call("scatter_add", &[rx, dim, real, ry]),
                    call("scatter_add", &[mx, dim, meta, my]),
                ),
                (call("index_add", &[rx, dim, real, ry]), call("index_add", &[mx, dim, meta, my])),
            ];
            for (real, meta) in pairs {
                match (real, meta) {
                    (Ok(real), Ok(meta)) => {
                        prop_assert_eq!((real.dtype(), real.shape()), (meta.dtype(), meta.shape()));
                        assert_fresh(&meta, Device::META);
                    }
                    (Err(real), Err(meta)) => prop_assert_eq!(real.message(), meta.message()),
                    (real, meta) => panic!("{real:?}, but on meta {meta:?}"),
                }
            }
        }
    }
}

#[test]
fn factories_make_the_same_on_meta() {
    let (f32_, meta) = (ValueRef::DType(DType::F32), ValueRef::Device(Device::META));
    let (none, size) = (ValueRef::None, ValueRef::Ints(&[2, 3]));
    let seven = ValueRef::Int(7);
    let cases: [(&str, Vec<ValueRef<'_>>); 7] = [
        ("empty", vec![size]),
        ("zeros", vec![size]),
        ("ones", vec![size]),
        ("rand", vec![size]),
        ("randn", vec![size]),
        ("full", vec![size, seven]),
        ("arange", vec![seven, none, ValueRef::Float(0.5)]),
    ];
    for (name, args) in cases {
        for dtype in [none, f32_] {
            let real = call(name, &[&args[..], &[dtype]].concat()).unwrap();
            let empty = call(name, &[&args[..], &[dtype, meta]].concat()).unwrap();
            assert_fresh(&real, Device::CPU);
            assert_fresh(&empty, Device::META);
            assert_eq!((real.dtype(), real.shape()), (empty.dtype(), empty.shape()), "{name}");
        }
    }
}

#[test]
fn a_number_of_no_dimensions_may_come_from_the_cpu() {
    let x = Tensor::meta(&[3], DType::F32).unwrap();
    let one = Tensor::from_scalar(1.0.into(), DType::F64).unwrap();
    let sum = on("add", &[&x, &one]).unwrap();
    assert_eq!((sum.device(), sum.dtype()), (Device::META, DType::F64));
    let two = floats(&[1.0]);
    fails(on("add", &[&x, &two]), ErrorKind::Device, &["aten::add", "meta", "cpu"]);
}

#[test]
fn what_depends_on_data_says_so() {
    let (x, mask) = (Tensor::meta(&[3], DType::F32), Tensor::meta(&[3], DType::Bool));
    let (x, mask) = (x.unwrap(), mask.unwrap());
    fails(on("masked_select", &[&x, &mask]), ErrorKind::MissingKernel, &["aten::masked_select"]);
    let list = [ValueRef::Tensor(&mask)];
    let args = [ValueRef::Tensor(&x), ValueRef::Refs(&list)];
    fails(call("index.Tensor", &args), ErrorKind::NotSupported, &["aten::index", "meta"]);
}

#[test]
fn every_operator_has_both_kernels() {
    for operator in dispatcher().operators() {
        if operator.name() == "aten::dropout" {
            // A composite operator.
            assert!(operator.has_kernel(RegistrationKey::CompositeImplicitAutograd));
            continue;
        }
        assert!(operator.has_kernel(DispatchKey::CPU.into()), "{operator:?}");
        let data_dependent = operator.name().starts_with("aten::masked_select");
        assert_eq!(operator.has_kernel(DispatchKey::Meta.into()), !data_dependent, "{operator:?}");
    }
}
