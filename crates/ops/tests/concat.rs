//! `cat`, `stack`, `select_scatter` and `slice_scatter`.

mod support;

use keyfold_core::{Complex, DType, Device, ErrorKind, Result};
use keyfold_tensor::{Tensor, ValueRef};
use proptest::prelude::*;
use support::*;

fn t(tensor: &Tensor) -> ValueRef<'_> {
    ValueRef::Tensor(tensor)
}

fn join(name: &str, tensors: &[&Tensor], dim: i64) -> Result<Tensor> {
    let list: Vec<ValueRef<'_>> = tensors.iter().map(|x| t(x)).collect();
    call(name, &[ValueRef::Refs(&list), ValueRef::Int(dim)])
}

proptest! {
    #[test]
    fn cat_puts_slices_one_behind_the_other(x in any_tensor(), at in 0_usize..5, dim in -3_i64..3, dtype in dtype()) {
        if !(-(x.ndim() as i64)..x.ndim() as i64).contains(&dim) {
            let kind = if x.ndim() == 0 { ErrorKind::Shape } else { ErrorKind::Index };
            prop_assert_eq!(join("cat", &[&x], dim).unwrap_err().kind(), kind);
            return Ok(());
        }
        let axis = (if dim < 0 { dim + x.ndim() as i64 } else { dim }) as usize;
        let at = at.min(x.shape()[axis]) as i64;
        let (left, right) = (x.slice(dim, None, Some(at), 1).unwrap(), x.slice(dim, Some(at), None, 1).unwrap());
        let right = call("to", &[t(&right), ValueRef::DType(dtype)]).unwrap();
        let whole = join("cat", &[&left, &right], dim).unwrap();
        assert_fresh(&whole, Device::CPU);
        prop_assert_eq!(whole.dtype(), x.dtype().promote(dtype));
        prop_assert_eq!(whole.shape(), x.shape());
        let back = values(&whole.slice(dim, None, Some(at), 1).unwrap());
        prop_assert_eq!(back, values(&left));
        prop_assert_eq!(values(&whole.slice(dim, Some(at), None, 1).unwrap()), values(&right));
    }

    #[test]
    fn stack_and_select_are_inverse(x in any_tensor(), dim in -4_i64..4) {
        let negative = on("logical_not", &[&x]).unwrap();
        let ranks = x.ndim() as i64 + 1;
        let result = join("stack", &[&x, &negative, &x], dim);
        if !(-ranks..ranks).contains(&dim) {
            prop_assert_eq!(result.unwrap_err().kind(), ErrorKind::Index);
            return Ok(());
        }
        let result = result.unwrap();
        assert_fresh(&result, Device::CPU);
        prop_assert_eq!(result.dtype(), x.dtype());
        for (i, part) in [&x, &negative, &x].into_iter().enumerate() {
            prop_assert_eq!(values(&result.select(dim, i as i64).unwrap()), values(part));
        }
    }

    #[test]
    fn scatters_replace_the_part_that_they_name(x in any_tensor(), dim in 0_i64..3, start in -5_i64..5, step in prop_oneof![-2_i64..0, 1_i64..3]) {
        let (dim, start, step) = (ValueRef::Int(dim), ValueRef::Int(start), ValueRef::Int(step));
        let none = ValueRef::None;
        let marks = |part: &Tensor| call("full", &[ValueRef::Ints(&part.shape().iter().map(|n| *n as i64).collect::<Vec<_>>()), ValueRef::Bool(true)]).unwrap();
        let pairs = [
            ("select", "select_scatter", vec![dim, start]),
            ("slice", "slice_scatter", vec![dim, start, none, step]),
        ];
        for (pick, scatter, rest) in pairs {
            let Ok(part) = call(pick, &[&[t(&x)], &rest[..]].concat()) else {
                let failed = call(scatter, &[&[t(&x), t(&x)], &rest[..]].concat()).unwrap_err();
                prop_assert_eq!(failed.kind(), ErrorKind::Index);
                continue;
            };
            let before = values(&x);
            let result = call(scatter, &[&[t(&x), t(&marks(&part))], &rest[..]].concat()).unwrap();
            assert_fresh(&result, Device::CPU);
            prop_assert_eq!(&values(&x), &before, "the tensor itself stays");
            prop_assert_eq!(result.dtype(), x.dtype());
            let picked = call(pick, &[&[t(&result)], &rest[..]].concat()).unwrap();
            prop_assert!(values(&picked).iter().all(|v| *v == 1.0));
            // Replacing a part by itself changes nothing.
            let back = call(scatter, &[&[t(&result), t(&part)], &rest[..]].concat()).unwrap();
            prop_assert_eq!(values(&back), before);
        }
    }
}

#[test]
fn every_dtype_can_be_put_together() {
    for dtype in DType::ALL {
        let x = Tensor::full(&[2], true.into(), dtype, Device::CPU).unwrap();
        let both = join("cat", &[&x, &x], 0).unwrap();
        assert_eq!((both.dtype(), both.numel()), (dtype, 4));
    }
    let complex = Tensor::from_slice(&[Complex::new(0.0, 1.0)], &[1]).unwrap();
    let both = join("stack", &[&floats(&[2.0]), &complex], 0).unwrap();
    assert_eq!(
        both.to_vec::<Complex<f64>>().unwrap(),
        [Complex::new(2.0, 0.0), Complex::new(0.0, 1.0)]
    );
}

#[test]
fn what_does_not_fit_is_named_by_position_and_shapes() {
    let (a, b) = (floats(&[1.0, 2.0]), floats(&[1.0]).reshape(&[1, 1]).unwrap());
    for name in ["cat", "stack"] {
        let empty = call(name, &[ValueRef::Refs(&[])]);
        fails(empty, ErrorKind::Shape, &[&format!("aten::{name}"), "'tensors'", "empty"]);
        let parts = [&format!("aten::{name}"), "tensors[2]", "[1, 1]", "[2]"];
        fails(join(name, &[&a, &a, &b], 0), ErrorKind::Shape, &parts);
        fails(join(name, &[&a], 5), ErrorKind::Index, &[&format!("aten::{name}"), "5"]);
    }
    let one = a.select(0, 0).unwrap();
    fails(join("cat", &[&one], 0), ErrorKind::Shape, &["aten::cat", "aten::stack"]);
    let zero = ValueRef::Int(0);
    fails(
        call("select_scatter", &[t(&a), t(&a), zero, zero]),
        ErrorKind::Shape,
        &["aten::select_scatter", "'src'", "[2]", "[]"],
    );
    let whole = ints(&[1, 2]);
    fails(
        call("slice_scatter", &[t(&whole), t(&a)]),
        ErrorKind::DType,
        &["aten::slice_scatter", "float64", "int64"],
    );
}
