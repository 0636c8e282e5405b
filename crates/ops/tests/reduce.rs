//! Reductions and softmax against naive models.

mod support;

use keyfold_core::{DType, Device, ErrorKind, Scalar};
use keyfold_tensor::{Tensor, ValueRef};
use proptest::prelude::*;
use support::*;

/// Returns the lanes of a tensor along some dimensions, in row-major order of the other dimensions.
fn lanes(x: &Tensor, reduced: &[bool]) -> Vec<Vec<f64>> {
    let mut all: Vec<(Vec<usize>, Vec<f64>)> = Vec::new();
    let kept: Vec<usize> = (0..x.ndim()).filter(|d| !reduced[*d]).collect();
    let kept_shape: Vec<usize> = kept.iter().map(|d| x.shape()[*d]).collect();
    for place in indices(&kept_shape) {
        all.push((place, vec![]));
    }
    for index in indices(x.shape()) {
        let place: Vec<usize> = kept.iter().map(|d| index[*d]).collect();
        let lane = all.iter_mut().find(|(p, _)| *p == place).unwrap();
        lane.1.push(x.get_scalar(&index).unwrap().as_f64());
    }
    all.into_iter().map(|(_, lane)| lane).collect()
}

fn summed(dtype: DType) -> DType {
    if dtype == DType::Bool { DType::I64 } else { dtype }
}

fn floating(dtype: DType) -> DType {
    if dtype.is_floating() { dtype } else { DType::F64 }
}

proptest! {
    #[test]
    fn reductions_follow_the_model(x in any_tensor(), mask in 0_u8..8, all: bool, keepdim: bool) {
        let reduced: Vec<bool> = (0..x.ndim()).map(|d| all || mask >> d & 1 == 1).collect();
        // Every second dimension is negative.
        let dims: Vec<i64> = (0..x.ndim() as i64)
            .filter(|d| reduced[*d as usize])
            .map(|d| if d % 2 == 1 { d - x.ndim() as i64 } else { d })
            .collect();
        let dim = if all { ValueRef::None } else { ValueRef::Ints(&dims) };
        let lanes = lanes(&x, &reduced);
        let sum = |lane: &[f64]| lane.iter().sum::<f64>();
        let truth = |b: bool| f64::from(u8::from(b));
        type Model<'a> = &'a dyn Fn(&[f64]) -> f64;
        let cases: [(&str, DType, Model<'_>); 6] = [
            ("sum.dim", summed(x.dtype()), &sum),
            ("mean.dim", floating(x.dtype()), &|l| sum(l) / l.len() as f64),
            ("amax", x.dtype(), &|l| l.iter().copied().fold(f64::NEG_INFINITY, f64::max)),
            ("amin", x.dtype(), &|l| l.iter().copied().fold(f64::INFINITY, f64::min)),
            ("all", DType::Bool, &|l| truth(l.iter().all(|x| *x != 0.0))),
            ("any", DType::Bool, &|l| truth(l.iter().any(|x| *x != 0.0))),
        ];
        for (name, dtype, model) in cases {
            let args = [ValueRef::Tensor(&x), dim, ValueRef::Bool(keepdim)];
            let result = call(name, &args);
            if name.starts_with("am") && lanes.iter().any(Vec::is_empty) {
                fails(result, ErrorKind::Value, &["aten::am", "nothing to choose from"]);
                continue;
            }
            let result = result.unwrap();
            assert_fresh(&result, Device::CPU);
            prop_assert_eq!(result.dtype(), dtype, "{}", name);
            let expected: Vec<f64> = lanes.iter().map(|lane| model(lane)).collect();
            let shape: Vec<usize> = (0..x.ndim())
                .filter(|d| keepdim || !reduced[*d])
                .map(|d| if reduced[d] { 1 } else { x.shape()[d] })
                .collect();
            prop_assert_eq!(&**result.shape(), &shape[..], "{}", name);
            assert_close(&result, &expected, 4.0);
        }
    }

    #[test]
    fn the_short_forms_reduce_everything(x in any_tensor()) {
        let whole = [ValueRef::Tensor(&x), ValueRef::None];
        for (short, long) in [("sum", "sum.dim"), ("mean", "mean.dim"), ("max", "amax"), ("min", "amin")] {
            match (on(short, &[&x]), call(long, &whole)) {
                (Ok(a), Ok(b)) => assert_close(&a, &values(&b), 0.0),
                (a, b) => prop_assert_eq!(a.unwrap_err().kind(), b.unwrap_err().kind()),
            }
        }
    }

    #[test]
    fn argmax_is_the_first_of_the_greatest(x in any_tensor(), dim in proptest::option::of(-3_i64..3), keepdim: bool) {
        let axis = dim.map(|d| if d < 0 { d + x.ndim() as i64 } else { d });
        let inside = axis.is_none_or(|d| (0..x.ndim() as i64).contains(&d));
        let given = dim.map_or(ValueRef::None, ValueRef::Int);
        for (name, sign) in [("argmax", 1.0), ("argmin", -1.0)] {
            let result = call(name, &[ValueRef::Tensor(&x), given, ValueRef::Bool(keepdim)]);
            if !inside {
                prop_assert_eq!(result.unwrap_err().kind(), ErrorKind::Index);
                continue;
            }
            let reduced: Vec<bool> =
                (0..x.ndim() as i64).map(|d| axis.is_none_or(|axis| axis == d)).collect();
            let lanes = lanes(&x, &reduced);
            if lanes.iter().any(Vec::is_empty) {
                fails(result, ErrorKind::Value, &["nothing to choose from"]);
                continue;
            }
            let expected: Vec<f64> = lanes
                .iter()
                .map(|lane| {
                    let best = lane.iter().map(|x| x * sign).fold(f64::NEG_INFINITY, f64::max);
                    lane.iter().position(|x| x * sign == best).unwrap() as f64
                })
                .collect();
            let result = result.unwrap();
            prop_assert_eq!(result.dtype(), DType::I64);
            prop_assert_eq!(result.ndim(), if keepdim { x.ndim() } else { x.ndim() - reduced.iter().filter(|r| **r).count() });
            assert_close(&result, &expected, 0.0);
        }
    }

    #[test]
    fn softmax_follows_the_model(x in any_tensor(), dim in -3_i64..3) {
        let result = call("softmax", &[ValueRef::Tensor(&x), ValueRef::Int(dim)]);
        let axis = if dim < 0 { dim + x.ndim() as i64 } else { dim };
        if !(0..x.ndim() as i64).contains(&axis) {
            fails(result, ErrorKind::Index, &["aten::softmax", &dim.to_string()]);
            return Ok(());
        }
        let result = result.unwrap();
        assert_fresh(&result, Device::CPU);
        prop_assert_eq!((result.dtype(), result.shape()), (floating(x.dtype()), x.shape()));
        let axis = axis as usize;
        let get = |index: &[usize]| x.get_scalar(index).unwrap().as_f64();
        let expected: Vec<f64> = indices(x.shape())
            .iter()
            .map(|index| {
                let sum: f64 = (0..x.shape()[axis])
                    .map(|i| {
                        let mut other = index.clone();
                        other[axis] = i;
                        (get(&other) - get(index)).exp()
                    })
                    .sum();
                1.0 / sum
            })
            .collect();
        assert_close(&result, &expected, 8.0);
    }

    #[test]
    fn sums_of_many_floats_are_accurate(
        items in proptest::collection::vec(-1e3_f32..1e3, 1..5000), step in 1_i64..4, reverse: bool,
    ) {
        let len = items.len();
        let mut x = Tensor::from_vec(items, &[len]).unwrap();
        x = x.slice(0, None, None, if reverse { -step } else { step }).unwrap();
        let exact: f64 = values(&x).iter().sum();
        let size: f64 = values(&x).iter().map(|x| x.abs()).sum();
        let sum = values(&on("sum", &[&x]).unwrap())[0];
        // Blocks of 1024 in 64 ways, then a tree: at most 16 + 6 + log2(5000 / 1024) roundings deep,
        // whatever the layout. In practice it is far less.
        let depth = 25.0;
        prop_assert!((sum - exact).abs() <= depth * f64::from(f32::EPSILON) / 2.0 * size);
    }
}

#[test]
fn nan_goes_through() {
    let nan = f64::NAN;
    let x = Tensor::from_slice(&[1.0, nan, 3.0, 2.0, 5.0, 4.0], &[2, 3]).unwrap();
    for name in ["amax", "amin", "sum.dim", "mean.dim"] {
        let rows = call(name, &[ValueRef::Tensor(&x), ValueRef::Ints(&[1])]).unwrap();
        let rows = values(&rows);
        assert!(rows[0].is_nan() && !rows[1].is_nan(), "{name}: {rows:?}");
    }
    for name in ["argmax", "argmin"] {
        assert_eq!(on(name, &[&x]).unwrap().item().unwrap(), Scalar::Int(1), "{name}");
    }
    assert_eq!(on("all", &[&x]).unwrap().item().unwrap(), Scalar::Bool(true));
}

#[test]
fn softmax_is_stable() {
    let x = floats(&[1e300, -1e300, 1e300, 710.0]);
    let result = call("softmax", &[ValueRef::Tensor(&x), ValueRef::Int(0)]).unwrap();
    assert_close(&result, &[0.5, 0.0, 0.5, 0.0], 0.0);
    let x = floats(&[f64::NEG_INFINITY, 0.0]);
    let result = call("softmax", &[ValueRef::Tensor(&x), ValueRef::Int(0)]).unwrap();
    assert_close(&result, &[0.0, 1.0], 0.0);
}

#[test]
fn sums_of_nothing_and_of_signed_zeros() {
    let none = floats(&[]);
    assert_eq!(on("sum", &[&none]).unwrap().to_vec::<f64>().unwrap()[0].to_bits(), 0);
    assert!(values(&on("mean", &[&none]).unwrap())[0].is_nan());
    let zeros = floats(&[-0.0; 9]);
    let every_other = zeros.slice(0, None, None, 2).unwrap();
    for x in [zeros, every_other] {
        let sum = on("sum", &[&x]).unwrap().to_vec::<f64>().unwrap()[0];
        assert!(sum == 0.0 && sum.is_sign_negative());
    }
    assert_eq!(on("all", &[&none]).unwrap().item().unwrap(), Scalar::Bool(true));
    assert_eq!(on("any", &[&none]).unwrap().item().unwrap(), Scalar::Bool(false));
}

#[test]
fn dimensions_that_are_wrong_are_named() {
    let x = Tensor::zeros(&[2, 3], DType::F64, Device::CPU).unwrap();
    let sum = |dims: &[i64]| call("sum.dim", &[ValueRef::Tensor(&x), ValueRef::Ints(dims)]);
    fails(sum(&[2]), ErrorKind::Index, &["aten::sum", "axis 2"]);
    fails(sum(&[1, -1]), ErrorKind::Value, &["aten::sum", "-1", "twice"]);
    assert_eq!(**sum(&[]).unwrap().shape(), [2, 3]);
}

#[test]
fn the_dtype_of_a_sum_can_be_chosen() {
    let x = ints(&[i64::MAX, i64::MAX]);
    let dtype = |d| [ValueRef::Tensor(&x), ValueRef::DType(d)];
    let sum = call("sum", &dtype(DType::F64)).unwrap();
    assert_close(&sum, &[2.0 * i64::MAX as f64], 0.0);
    assert_eq!(call("mean", &dtype(DType::F32)).unwrap().dtype(), DType::F32);
    fails(call("sum", &dtype(DType::Bool)), ErrorKind::DType, &["aten::sum", "bool"]);
    fails(call("mean", &dtype(DType::I64)), ErrorKind::DType, &["aten::mean", "int64"]);
}

#[test]
fn pairwise_summation_beats_plain_addition() {
    let tenth = Tensor::from_slice(&[0.1_f32], &[1]).unwrap();
    let many = tenth.broadcast_to(&[1 << 22]).unwrap();
    let exact = f64::from(0.1_f32) * f64::from(1 << 22);
    // Sequential addition in float32 deviates by more than 3 percent.
    for x in [many.copy().unwrap(), many] {
        let sum = values(&on("sum", &[&x]).unwrap())[0];
        assert!((sum / exact - 1.0).abs() < 1e-6, "{sum} is not {exact}");
    }
}
