//! Factories: `zeros`, `ones`, `full`, `arange`.

mod support;

use keyfold_core::{DType, Device, ErrorKind, Scalar};
use keyfold_tensor::ValueRef;
use proptest::prelude::*;
use support::*;

#[test]
fn constants_take_every_dtype_and_float64_is_the_default() {
    let size = ValueRef::Ints(&[2, 0, 3]);
    for (name, value) in [("empty", 0.0), ("zeros", 0.0), ("ones", 1.0)] {
        let default = call(name, &[size]).unwrap();
        assert_eq!((default.dtype(), &**default.shape()), (DType::F64, &[2, 0, 3][..]));
        for dtype in DType::ALL {
            let made = call(name, &[ValueRef::Ints(&[2]), ValueRef::DType(dtype)]).unwrap();
            assert_eq!((made.dtype(), values(&made)), (dtype, vec![value; 2]), "{name}");
        }
    }
}

#[test]
fn full_takes_its_dtype_from_the_value() {
    let full = |value, dtype| call("full", &[ValueRef::Ints(&[2]), value, dtype]);
    let of = |value: Scalar| full(ValueRef::from(value), ValueRef::None).unwrap();
    assert_eq!(of(Scalar::Bool(true)).to_vec::<bool>().unwrap(), [true; 2]);
    assert_eq!(of(Scalar::Int(-3)).to_vec::<i64>().unwrap(), [-3; 2]);
    assert_eq!(of(Scalar::Float(0.5)).to_vec::<f64>().unwrap(), [0.5; 2]);
    let narrow = full(ValueRef::Int(7), ValueRef::DType(DType::F32)).unwrap();
    assert_eq!(narrow.to_vec::<f32>().unwrap(), [7.0; 2]);
    let half = full(ValueRef::Float(0.5), ValueRef::DType(DType::I64));
    fails(half, ErrorKind::DType, &["aten::full", "int64", "0.5"]);
}

#[test]
fn sizes_that_cannot_be_are_shape_errors() {
    for name in ["empty", "zeros", "ones"] {
        let make = |size: &[i64]| call(name, &[ValueRef::Ints(size)]);
        fails(make(&[2, -1]), ErrorKind::Shape, &[&format!("aten::{name}"), "-1"]);
        fails(make(&[1 << 40, 1 << 40]), ErrorKind::Shape, &["aten::", "too large"]);
        fails(make(&[1; 65]), ErrorKind::Shape, &["aten::", "65"]);
    }
    fails(
        call("arange", &[ValueRef::Float(1e300)]),
        ErrorKind::Shape,
        &["aten::arange", "too large"],
    );
    let (low, high) = (ValueRef::Int(i64::MIN), ValueRef::Int(i64::MAX));
    fails(call("arange", &[low, high]), ErrorKind::Shape, &["aten::arange", "too large"]);
    // A broadcast shape is checked before the allocation.
    let x = floats(&[1.0]);
    let long = x.broadcast_to(&[1 << 40, 1]).unwrap();
    let wide = x.broadcast_to(&[1 << 40]).unwrap();
    fails(on("add", &[&long, &wide]), ErrorKind::Shape, &["aten::add", "too large"]);
    let column = wide.unsqueeze(1).unwrap();
    let row = wide.unsqueeze(0).unwrap();
    fails(on("matmul", &[&column, &row]), ErrorKind::Shape, &["aten::matmul", "too large"]);
}

#[test]
fn devices_without_a_kernel_are_refused() {
    let cuda = ValueRef::Device(Device::cuda(0));
    let result = call("zeros", &[ValueRef::Ints(&[1]), ValueRef::None, cuda]);
    fails(result, ErrorKind::MissingKernel, &["aten::zeros", "CUDA"]);
}

proptest! {
    #[test]
    fn arange_counts_whole_numbers(start in -20_i64..20, end in -20_i64..20, step in -5_i64..6) {
        let result = call("arange", &[ValueRef::Int(start), ValueRef::Int(end), ValueRef::Int(step)]);
        if step == 0 {
            fails(result, ErrorKind::Value, &["aten::arange", "step is zero"]);
            return Ok(());
        }
        let mut expected = vec![];
        let mut next = start;
        while if step > 0 { next < end } else { next > end } {
            expected.push(next);
            next += step;
        }
        prop_assert_eq!(result.unwrap().to_vec::<i64>().unwrap(), expected);
    }

    #[test]
    fn arange_counts_floats_as_numpy(start in -5.0_f64..5.0, end in -5.0_f64..5.0, step in 0.1_f64..2.0, f32_: bool) {
        let dtype = if f32_ { DType::F32 } else { DType::F64 };
        let args = [ValueRef::Float(start), ValueRef::Float(end), ValueRef::Float(step)];
        let result = call("arange", &[&args[..], &[ValueRef::DType(dtype)]].concat()).unwrap();
        let count = ((end - start) / step).ceil().max(0.0) as usize;
        let delta = (start + step) - start;
        let expected: Vec<f64> = (0..count).map(|i| start + i as f64 * delta).collect();
        prop_assert_eq!(result.dtype(), dtype);
        assert_close(&result, &expected, 1.0);
    }
}

#[test]
fn arange_with_one_number_starts_at_zero() {
    let arange = |value| call("arange", &[value]).unwrap();
    assert_eq!(arange(ValueRef::Int(3)).to_vec::<i64>().unwrap(), [0, 1, 2]);
    assert_eq!(arange(ValueRef::Float(2.5)).to_vec::<f64>().unwrap(), [0.0, 1.0, 2.0]);
    assert_eq!(arange(ValueRef::Int(-3)).numel(), 0);
}

#[test]
fn arange_refuses_what_has_no_end_or_no_dtype() {
    let number = ValueRef::Float;
    let arange = |a, b, c| call("arange", &[number(a), number(b), number(c)]);
    fails(arange(0.0, f64::INFINITY, 1.0), ErrorKind::Value, &["aten::arange", "no end"]);
    fails(arange(0.0, f64::NAN, 1.0), ErrorKind::Value, &["aten::arange", "nan"]);
    let dtype = |dtype| {
        let args = [number(0.0), number(1.5), number(0.5), ValueRef::DType(dtype)];
        call("arange", &args)
    };
    fails(dtype(DType::I64), ErrorKind::DType, &["aten::arange", "int64", "0.5"]);
    fails(dtype(DType::Bool), ErrorKind::DType, &["aten::arange", "bool"]);
    fails(dtype(DType::I8), ErrorKind::DType, &["aten::arange", "int8"]);
    let complex = ValueRef::Complex(keyfold_core::Complex::new(1.0, 1.0));
    fails(call("arange", &[complex]), ErrorKind::DType, &["aten::arange", "complex"]);
}
