//! Arithmetic and comparisons against a naive model.

mod support;

use keyfold_core::{DType, Device, ErrorKind, Scalar};
use keyfold_tensor::{Tensor, ValueRef};
use proptest::prelude::*;
use support::*;

/// Returns an operator's result for two small integers, computed in a dtype.
fn model(name: &str, dtype: DType, a: f64, b: f64) -> Option<f64> {
    let truth = |b: bool| f64::from(u8::from(b));
    Some(match (name, dtype) {
        ("sub" | "rsub", DType::Bool) => return None,
        ("add", DType::Bool) => truth(a != 0.0 || b != 0.0),
        ("add", _) => a + b,
        ("sub", _) => a - b,
        ("rsub", _) => b - a,
        ("mul", _) => a * b,
        ("div", _) => a / b,
        ("rdiv", _) => b / a,
        ("maximum", _) => a.max(b),
        ("minimum", _) => a.min(b),
        ("eq", _) => truth(a == b),
        ("ne", _) => truth(a != b),
        ("lt", _) => truth(a < b),
        ("le", _) => truth(a <= b),
        ("gt", _) => truth(a > b),
        ("ge", _) => truth(a >= b),
        (other, _) => panic!("no model of {other}"),
    })
}

/// Returns the dtype of the result of arithmetic in a dtype.
fn result_dtype(name: &str, dtype: DType) -> DType {
    match name {
        "eq" | "ne" | "lt" | "le" | "gt" | "ge" => DType::Bool,
        "div" | "rdiv" if !dtype.is_floating() => DType::F64,
        _ => dtype,
    }
}

const PAIRS: [&str; 12] =
    ["add", "sub", "mul", "div", "maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge"];

proptest! {
    #[test]
    fn pairs_broadcast_and_promote_as_the_model((a, b) in any_pair()) {
        let dtype = a.dtype().promote(b.dtype());
        let shape = keyfold_core::layout::broadcast_shapes(a.shape(), b.shape()).unwrap();
        for name in PAIRS {
            let result = on(name, &[&a, &b]);
            if model(name, dtype, 0.0, 0.0).is_none() {
                fails(result, ErrorKind::DType, &["aten::sub", "bool"]);
                continue;
            }
            let result = result.unwrap();
            assert_fresh(&result, Device::CPU);
            prop_assert_eq!(result.dtype(), result_dtype(name, dtype), "{}", name);
            prop_assert_eq!(result.shape(), &shape, "{}", name);
            let expected: Vec<f64> = indices(&shape)
                .iter()
                .map(|i| (broadcast_get(&a, i), broadcast_get(&b, i)))
                .map(|(a, b)| model(name, dtype, a, b).unwrap())
                .collect();
            assert_close(&result, &expected, 1.0);
        }
    }

    #[test]
    fn numbers_are_weak(a in any_tensor(), number in scalar()) {
        let dtype = a.dtype().promote_scalar(number);
        for name in PAIRS.into_iter().chain(["rsub", "rdiv"]) {
            let args = [ValueRef::Tensor(&a), ValueRef::from(number)];
            let result = call(&format!("{name}.Scalar"), &args);
            if model(name, dtype, 0.0, 0.0).is_none() {
                prop_assert_eq!(result.unwrap_err().kind(), ErrorKind::DType);
                continue;
            }
            let result = result.unwrap();
            prop_assert_eq!(result.dtype(), result_dtype(name, dtype), "{}", name);
            prop_assert_eq!(result.shape(), a.shape());
            let expected: Vec<f64> = values(&a)
                .into_iter()
                .map(|a| model(name, dtype, a, number.as_f64()).unwrap())
                .collect();
            assert_close(&result, &expected, 1.0);
        }
    }

    #[test]
    fn functions_of_one_argument(x in any_tensor()) {
        type Model = fn(f64) -> f64;
        let float = if x.dtype().is_floating() { x.dtype() } else { DType::F64 };
        let cases: [(&str, DType, Model); 7] = [
            ("neg", x.dtype(), |x| -x),
            ("abs", x.dtype(), f64::abs),
            ("relu", x.dtype(), |x| x.max(0.0)),
            ("exp", float, f64::exp),
            ("log", float, f64::ln),
            ("sqrt", float, f64::sqrt),
            ("logical_not", DType::Bool, |x| f64::from(u8::from(x == 0.0))),
        ];
        for (name, dtype, model) in cases {
            let result = on(name, &[&x]);
            if name == "neg" && dtype == DType::Bool {
                fails(result, ErrorKind::DType, &["aten::neg", "logical_not"]);
                continue;
            }
            let result = result.unwrap();
            assert_fresh(&result, Device::CPU);
            prop_assert_eq!((result.dtype(), result.shape()), (dtype, x.shape()), "{}", name);
            let expected: Vec<f64> = values(&x).into_iter().map(model).collect();
            assert_close(&result, &expected, 2.0);
        }
    }

    #[test]
    fn where_chooses_elements((a, b) in any_pair(), c in any::<[bool; 2]>(), number in scalar()) {
        let last = a.shape().last().copied().unwrap_or(1).max(b.shape().last().copied().unwrap_or(1));
        let condition = if last == 2 { bools(&c) } else { bools(&c[..1]) };
        let (c, n) = (ValueRef::Tensor(&condition), ValueRef::from(number));
        let (ra, rb) = (ValueRef::Tensor(&a), ValueRef::Tensor(&b));
        let number_tensor = Tensor::from_scalar(number, number.dtype()).unwrap();
        let weak = |t: &Tensor| t.dtype().promote_scalar(number);
        let cases = [
            (call("where", &[c, ra, rb]), &a, &b, a.dtype().promote(b.dtype())),
            (call("where.ScalarOther", &[c, ra, n]), &a, &number_tensor, weak(&a)),
            (call("where.ScalarSelf", &[c, n, rb]), &number_tensor, &b, weak(&b)),
            (call("where.Scalar", &[c, n, n]), &number_tensor, &number_tensor, number.dtype()),
        ];
        for (result, x, y, dtype) in cases {
            let result = result.unwrap();
            assert_fresh(&result, Device::CPU);
            prop_assert_eq!(result.dtype(), dtype);
            let expected: Vec<f64> = indices(result.shape())
                .iter()
                .map(|i| {
                    let from = if broadcast_get(&condition, i) != 0.0 { x } else { y };
                    broadcast_get(from, i)
                })
                .collect();
            assert_close(&result, &expected, 0.0);
        }
    }

    #[test]
    fn conversion_between_any_two_dtypes(x in any_tensor(), seed in 0_u64..8) {
        for dtype in DType::ALL {
            // A round trip through a dtype keeps small integers, except through bool and unsigned dtypes.
            let whole = on("abs", &[&x]).unwrap();
            let there = call("to", &[ValueRef::Tensor(&whole), ValueRef::DType(dtype)]).unwrap();
            prop_assert_eq!(there.dtype(), dtype);
            assert_fresh(&there, Device::CPU);
            let there = scramble(&there, seed);
            let back = call("to", &[ValueRef::Tensor(&there), ValueRef::DType(DType::F64)]);
            if dtype.is_complex() {
                fails(back, ErrorKind::DType, &["aten::to", "imaginary"]);
                continue;
            }
            let expected: Vec<f64> = values(&whole)
                .into_iter()
                .map(|x| if dtype == DType::Bool { x.min(1.0) } else { x })
                .collect();
            assert_close(&back.unwrap(), &expected, 0.0);
        }
    }
}

#[test]
fn conversion_of_many_elements_keeps_their_order() {
    let x = Tensor::from_vec((0..1000_i64).collect(), &[1000]).unwrap();
    let narrow = call("to", &[ValueRef::Tensor(&x), ValueRef::DType(DType::I16)]).unwrap();
    assert_eq!(narrow.to_vec::<i16>().unwrap(), (0..1000).collect::<Vec<i16>>());
}

#[test]
fn whole_numbers_wrap_around() {
    let (max, one) = (ints(&[i64::MAX, i64::MIN]), ints(&[1, -1]));
    assert_eq!(on("add", &[&max, &one]).unwrap().to_vec::<i64>().unwrap(), [i64::MIN, i64::MAX]);
    assert_eq!(on("mul", &[&max, &max]).unwrap().to_vec::<i64>().unwrap(), [1, 0]);
    let min = ints(&[i64::MIN]);
    for name in ["neg", "abs"] {
        assert_eq!(on(name, &[&min]).unwrap().to_vec::<i64>().unwrap(), [i64::MIN], "{name}");
    }
    assert_eq!(on("sum", &[&ints(&[i64::MAX, 1])]).unwrap().item().unwrap(), Scalar::Int(i64::MIN));
}

#[test]
fn nan_and_zero_follow_ieee() {
    let nan = f64::NAN;
    let (a, b) = (floats(&[nan, 1.0, nan, 0.0]), floats(&[1.0, nan, nan, -0.0]));
    for name in ["maximum", "minimum"] {
        let result = on(name, &[&a, &b]).unwrap().to_vec::<f64>().unwrap();
        assert!(result[..3].iter().all(|x| x.is_nan()), "{name}: {result:?}");
    }
    assert_eq!(values(&on("eq", &[&a, &a]).unwrap()), [0.0, 1.0, 0.0, 1.0]);
    assert_eq!(values(&on("ne", &[&a, &a]).unwrap()), [1.0, 0.0, 1.0, 0.0]);
    assert_eq!(values(&on("le", &[&a, &b]).unwrap()), [0.0, 0.0, 0.0, 1.0]);
    assert_eq!(values(&on("logical_not", &[&a]).unwrap()), [0.0, 0.0, 0.0, 1.0]);
    let relu = on("relu", &[&floats(&[nan, -0.0, -1.0, f64::INFINITY])]).unwrap();
    assert_close(&relu, &[nan, 0.0, 0.0, f64::INFINITY], 0.0);
    let zero = ints(&[0, 0, 0]);
    let result = on("div", &[&ints(&[1, 0, -1]), &zero]).unwrap();
    assert_close(&result, &[f64::INFINITY, nan, f64::NEG_INFINITY], 0.0);
}

#[test]
fn bytes_other_than_0_and_1_are_true() {
    // A bool array of another library may have such bytes.
    let bytes = Tensor::from_slice(&[0_u8, 1, 2, 255], &[4]).unwrap();
    let as_bool = |t: &Tensor| {
        let buffer = t.clone().into_buffer();
        let bytes = buffer.downcast_ref::<keyfold_tensor::HostBuffer>().unwrap().as_bytes();
        let copy = keyfold_tensor::HostBuffer::copy_of(bytes).unwrap();
        let buffer = keyfold_tensor::BufferHandle::new(std::sync::Arc::new(copy), DType::Bool);
        Tensor::from_parts(buffer.unwrap(), t.shape().clone(), t.strides().clone(), 0).unwrap()
    };
    let x = as_bool(&bytes);
    assert_eq!(on("sum", &[&x]).unwrap().item().unwrap(), Scalar::Int(3));
    assert_eq!(values(&on("eq", &[&x, &x]).unwrap()), [1.0; 4]);
    assert_eq!(values(&on("mul", &[&x, &bools(&[true; 4])]).unwrap()), [0.0, 1.0, 1.0, 1.0]);
    let picked = on("masked_select", &[&ints(&[10, 11, 12, 13]), &x]).unwrap();
    assert_eq!(picked.to_vec::<i64>().unwrap(), [11, 12, 13]);
}

#[test]
fn shapes_that_do_not_broadcast_name_operator_and_both() {
    let (a, b) = (floats(&[1.0, 2.0]), floats(&[1.0, 2.0, 3.0]));
    for name in PAIRS {
        fails(on(name, &[&a, &b]), ErrorKind::Shape, &[&format!("aten::{name}:"), "[2]", "[3]"]);
    }
    let c = bools(&[true; 4]);
    fails(on("where", &[&c, &a, &a]), ErrorKind::Shape, &["aten::where", "[4]", "[2]"]);
}

#[test]
fn every_dtype_is_taken_where_it_makes_sense() {
    for dtype in DType::ALL {
        let x = Tensor::full(&[2], Scalar::Bool(true), dtype, Device::CPU).unwrap();
        let y = on("add", &[&x, &x]).unwrap();
        assert_eq!(y.dtype(), dtype);
        let two = if dtype == DType::Bool { 1.0 } else { 2.0 };
        assert_eq!(values(&y), [two; 2], "{dtype}");
        assert_eq!(values(&on("eq", &[&x, &x]).unwrap()), [1.0; 2], "{dtype}");
        let exp = on("exp", &[&x]).unwrap();
        let floating = dtype.is_floating() || dtype.is_complex();
        assert_eq!(exp.dtype(), if floating { dtype } else { DType::F64 });
        for name in ["relu", "maximum", "lt", "remainder"] {
            let result = if name == "relu" { on(name, &[&x]) } else { on(name, &[&x, &x]) };
            if dtype.is_complex() {
                fails(result, ErrorKind::DType, &[&format!("aten::{name}"), "complex"]);
            } else if !(name == "remainder" && dtype == DType::Bool) {
                assert!(result.is_ok(), "{name} of {dtype}");
            }
        }
    }
}

#[test]
fn dtypes_that_make_no_sense_are_refused_by_name() {
    let y = floats(&[1.0, 2.0]);
    let truth = bools(&[true, false]);
    fails(on("sub", &[&truth, &truth]), ErrorKind::DType, &["aten::sub", "bool"]);
    fails(on("neg", &[&truth]), ErrorKind::DType, &["aten::neg", "bool"]);
    fails(on("bitwise_and", &[&y, &y]), ErrorKind::DType, &["aten::bitwise_and", "float64"]);
    fails(on("where", &[&y, &y, &y]), ErrorKind::DType, &["'condition'", "float64"]);
    let args = [ValueRef::Tensor(&ints(&[1])), ValueRef::UInt(u64::MAX)];
    fails(call("add.Scalar", &args), ErrorKind::Value, &["aten::add", "18446744073709551615"]);
    let unit = ValueRef::Complex(keyfold_core::Complex::new(0.0, 1.0));
    let turned = call("mul.Scalar", &[ValueRef::Tensor(&y), unit]).unwrap();
    assert_eq!(turned.dtype(), DType::C128);
}

#[test]
fn results_are_written_where_the_caller_wants_them() {
    let (x, y) = (floats(&[1.0, 2.0, 3.0]), floats(&[10.0, 20.0, 30.0]));
    let out = Tensor::zeros(&[6], DType::F32, Device::CPU).unwrap();
    let every_other = out.slice(0, None, None, 2).unwrap();
    let args = [(&x).into(), (&y).into(), (&every_other).into()];
    dispatcher().call("aten::add.out", &args).unwrap();
    assert_eq!(values(&out), [11.0, 0.0, 22.0, 0.0, 33.0, 0.0]);
    // In place, and from memory that overlaps the result.
    dispatcher()
        .call("aten::mul.Scalar_out", &[(&x).into(), ValueRef::Int(2), (&x).into()])
        .unwrap();
    assert_eq!(values(&x), [2.0, 4.0, 6.0]);
    let (head, tail) =
        (x.slice(0, None, Some(2), 1).unwrap(), x.slice(0, Some(1), None, 1).unwrap());
    dispatcher().call("aten::neg.out", &[(&head).into(), (&tail).into()]).unwrap();
    assert_eq!(values(&x), [2.0, -2.0, -4.0]);
    let whole = Tensor::zeros(&[3], DType::I64, Device::CPU).unwrap();
    let error = dispatcher().call("aten::add.out", &[(&x).into(), (&y).into(), (&whole).into()]);
    fails(error.and_then(|v| v.into_tensor()), ErrorKind::DType, &["aten::add", "int64"]);
    let error = dispatcher().call("aten::add.out", &[(&x).into(), (&y).into(), (&out).into()]);
    fails(error.and_then(|v| v.into_tensor()), ErrorKind::Shape, &["'out'", "[6]", "[3]"]);
}
