//! Functions of one tensor and powers against a naive model in float64.

mod support;

use keyfold_core::{DType, Device, ErrorKind, Scalar};
use keyfold_tensor::{Tensor, ValueRef};
use proptest::prelude::*;
use support::*;

fn pow(a: &Tensor, b: ValueRef<'_>) -> keyfold_core::Result<Tensor> {
    let name = if matches!(b, ValueRef::Tensor(_)) { "pow" } else { "pow.Scalar" };
    call(name, &[ValueRef::Tensor(a), b])
}

proptest! {
    #[test]
    fn functions_follow_the_model(x in any_tensor()) {
        type Model = fn(f64) -> f64;
        let float = if x.dtype().is_floating() { x.dtype() } else { DType::F64 };
        let cases: [(&str, DType, Model); 7] = [
            ("tanh", float, f64::tanh),
            ("sigmoid", float, |x| 1.0 / (1.0 + (-x).exp())),
            ("sin", float, f64::sin),
            ("cos", float, f64::cos),
            ("log1p", float, f64::ln_1p),
            ("expm1", float, f64::exp_m1),
            ("sign", x.dtype(), |x| if x == 0.0 { 0.0 } else { x.signum() }),
        ];
        for (name, dtype, model) in cases {
            let result = on(name, &[&x]).unwrap();
            assert_fresh(&result, Device::CPU);
            prop_assert_eq!((result.dtype(), result.shape()), (dtype, x.shape()), "{}", name);
            let expected: Vec<f64> = values(&x).into_iter().map(model).collect();
            assert_close(&result, &expected, 4.0);
        }
    }

    #[test]
    fn powers_follow_the_model((a, b) in any_pair()) {
        let dtype = a.dtype().promote(b.dtype());
        let b = on("abs", &[&b]).unwrap();
        let result = pow(&a, ValueRef::Tensor(&b));
        if dtype == DType::Bool {
            fails(result, ErrorKind::DType, &["aten::pow", "bools"]);
            return Ok(());
        }
        let result = result.unwrap();
        assert_fresh(&result, Device::CPU);
        prop_assert_eq!(result.dtype(), dtype);
        // Up to 8^8, which exceeds float16.
        let top = if dtype == DType::F16 { 65_519.0 } else { f64::INFINITY };
        let expected: Vec<f64> = indices(result.shape())
            .iter()
            .map(|i| broadcast_get(&a, i).powf(broadcast_get(&b, i)))
            .map(|x| if x.abs() > top { x.signum() * f64::INFINITY } else { x })
            .collect();
        assert_close(&result, &expected, 2.0);
    }

    #[test]
    fn numbers_on_either_side_are_weak(a in any_tensor(), number in 0_i64..4) {
        let dtype = a.dtype().promote_scalar(Scalar::Int(number));
        let square = pow(&a, ValueRef::Int(number)).unwrap();
        let base = on("abs", &[&a]).unwrap();
        let args = [ValueRef::Tensor(&base), ValueRef::Int(number)];
        let power = call("rpow.Scalar", &args).unwrap();
        prop_assert_eq!((square.dtype(), power.dtype()), (dtype, dtype));
        let of = |f: &dyn Fn(f64) -> f64, t: &Tensor| values(t).into_iter().map(f).collect::<Vec<_>>();
        let whole = number as f64;
        assert_close(&square, &of(&|x| x.powf(whole), &a), 2.0);
        assert_close(&power, &of(&|x| whole.powf(x), &base), 2.0);
    }

    #[test]
    fn log_softmax_is_the_logarithm(x in any_tensor(), dim in 0_i64..3) {
        if dim >= x.ndim() as i64 {
            return Ok(());
        }
        let wide = call("to", &[ValueRef::Tensor(&x), ValueRef::DType(DType::F64)]).unwrap();
        let soft = call("softmax", &[ValueRef::Tensor(&wide), ValueRef::Int(dim)]).unwrap();
        let result = call("log_softmax", &[ValueRef::Tensor(&x), ValueRef::Int(dim)]).unwrap();
        assert_fresh(&result, Device::CPU);
        let expected: Vec<f64> = values(&soft).into_iter().map(f64::ln).collect();
        assert_close(&result, &expected, 8.0);
    }
}

#[test]
fn the_ends_of_the_range_stay_finite() {
    let far = floats(&[-1000.0, 1000.0, -40.0, f64::NEG_INFINITY, f64::NAN]);
    let sigmoid = values(&on("sigmoid", &[&far]).unwrap());
    assert_eq!((sigmoid[0], sigmoid[1], sigmoid[3]), (0.0, 1.0, 0.0));
    assert!((sigmoid[2] / (-40.0_f64).exp() - 1.0).abs() < 1e-15 && sigmoid[4].is_nan());
    let lane = floats(&[1000.0, 0.0, 1000.0]);
    let log = call("log_softmax", &[ValueRef::Tensor(&lane), ValueRef::Int(0)]).unwrap();
    assert_close(&log, &[-(2.0_f64.ln()), -1000.0 - 2.0_f64.ln(), -(2.0_f64.ln())], 1.0);
    let tiny = floats(&[1e-20]);
    for name in ["log1p", "expm1"] {
        assert_eq!(values(&on(name, &[&tiny]).unwrap()), [1e-20], "{name}");
    }
    let sign = values(&on("sign", &[&floats(&[f64::NAN, -0.0, f64::INFINITY])]).unwrap());
    assert!(sign[0].is_nan() && sign[1..] == [0.0, 1.0]);
}

#[test]
fn whole_powers_wrap_around_and_refuse_fractions() {
    let x = ints(&[3, -2, 0]);
    let power = |n: i64| pow(&x, ValueRef::Int(n)).unwrap().to_vec::<i64>().unwrap();
    assert_eq!(power(0), [1, 1, 1]);
    assert_eq!(power(2), [9, 4, 0]);
    assert_eq!(power(64), [3_i64.wrapping_pow(64), 0, 0]);
    fails(
        pow(&x, ValueRef::Int(-1)),
        ErrorKind::Value,
        &["aten::pow", "'exponent'", "-1", "int64"],
    );
    let exponents = ints(&[1, -5, 2]);
    fails(pow(&x, ValueRef::Tensor(&exponents)), ErrorKind::Value, &["'exponent'", "-5"]);
    let args = [ValueRef::Tensor(&exponents), ValueRef::Int(2)];
    fails(call("rpow.Scalar", &args), ErrorKind::Value, &["aten::rpow", "'self'", "-5"]);
    let half = pow(&x, ValueRef::Float(-1.0)).unwrap();
    assert_close(&half, &[1.0 / 3.0, -0.5, f64::INFINITY], 1.0);
    let other = Tensor::zeros(&[3], DType::I32, Device::CPU).unwrap();
    assert_eq!(pow(&x, ValueRef::Tensor(&other)).unwrap().to_vec::<i64>().unwrap(), [1; 3]);
}
