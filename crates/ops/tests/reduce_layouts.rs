//! Every reduction, for every dtype, layout and choice of dimensions, against naive models.

mod reduce_support;
mod support;

use keyfold_core::{Complex, DType, ErrorKind};
use keyfold_tensor::{Tensor, ValueRef};
use proptest::prelude::*;
use reduce_support::*;
use support::*;

/// Small numbers that the dtype holds; not negative for unsigned dtypes.
fn any_number(dtype: DType) -> impl Strategy<Value = f64> {
    let low = if matches!(dtype, DType::Bool | DType::U8 | DType::U16 | DType::U32 | DType::U64) {
        0
    } else {
        -9
    };
    (low..10_i32).prop_map(f64::from)
}

/// A tensor of any dtype and layout, of up to four dimensions, some of them broadcast.
fn anything() -> impl Strategy<Value = Tensor> {
    let dtype = proptest::sample::select(&DType::ALL[..]);
    (proptest::collection::vec(0_usize..6, 0..5), dtype, 0_u64..8, any::<u8>()).prop_flat_map(
        |(shape, dtype, seed, repeated)| {
            let small: Vec<usize> = shape
                .iter()
                .enumerate()
                .map(|(d, n)| if repeated >> d & 0b1_0001 == 0b1_0001 { (*n).min(1) } else { *n })
                .collect();
            let count: usize = small.iter().product();
            proptest::collection::vec(any_number(dtype), count..=count).prop_map(move |items| {
                let x = scramble(&tensor_of(&items, &small, dtype), seed);
                x.broadcast_to(&shape).unwrap_or(x)
            })
        },
    )
}

/// Returns the lanes of a tensor along some dimensions, in row-major order of the other dimensions.
fn lanes(x: &Tensor, reduced: &[bool]) -> Vec<Vec<Complex<f64>>> {
    let kept: Vec<usize> = (0..x.ndim()).filter(|d| !reduced[*d]).collect();
    let shape: Vec<usize> = kept.iter().map(|d| x.shape()[*d]).collect();
    let mut all: Vec<Vec<Complex<f64>>> = vec![vec![]; shape.iter().product()];
    for index in indices(x.shape()) {
        let place = kept.iter().fold(0, |at, d| at * x.shape()[*d] + index[*d]);
        all[place].push(x.get_scalar(&index).unwrap().as_complex());
    }
    all
}

#[track_caller]
fn assert_is(result: &Tensor, expected: &[Complex<f64>], what: &str) {
    let epsilon = match result.dtype() {
        DType::BF16 => 2.0_f64.powi(-7),
        DType::F16 => 2.0_f64.powi(-10),
        DType::F32 | DType::C64 => f64::from(f32::EPSILON),
        _ => f64::EPSILON,
    };
    let got: Vec<Complex<f64>> = indices(result.shape())
        .iter()
        .map(|i| result.get_scalar(i).unwrap().as_complex())
        .collect();
    assert_eq!(got.len(), expected.len(), "{what}");
    for (got, expected) in got.iter().zip(expected) {
        for (got, expected) in [(got.re, expected.re), (got.im, expected.im)] {
            let same = got == expected
                || got.is_nan() && expected.is_nan()
                || (got - expected).abs() <= 2.0 * epsilon * expected.abs();
            assert!(same, "{what}: {got} is not {expected}");
        }
    }
}

/// Returns the dtypes of a sum and of a mean.
fn totals(dtype: DType) -> (DType, DType) {
    match dtype {
        DType::Bool | DType::I8 | DType::I16 | DType::I32 | DType::I64 => (DType::I64, DType::F64),
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => (DType::U64, DType::F64),
        other => (other, other),
    }
}

/// Calls the overload `out` with another layout and asserts an equal result.
fn assert_out(name: &str, args: &[ValueRef<'_>], result: &Tensor, seed: u64) {
    let out =
        scramble(&tensor_of(&vec![7.0; result.numel()], result.shape(), result.dtype()), seed);
    let args: Vec<_> = args.iter().copied().chain([ValueRef::Tensor(&out)]).collect();
    let given = call(name, &args).unwrap();
    for index in indices(result.shape()) {
        let (a, b) = (given.get_scalar(&index).unwrap(), result.get_scalar(&index).unwrap());
        let (a, b) = (a.as_complex(), b.as_complex());
        let bits = |x: Complex<f64>| (x.re.to_bits(), x.im.to_bits());
        assert_eq!(bits(a), bits(b), "{name} at {index:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn every_dtype_and_layout_reduces_as_the_model_does(
        x in anything(), mask in 0_u8..16, all: bool, keepdim: bool, seed in 0_u64..8,
    ) {
        let reduced: Vec<bool> = (0..x.ndim()).map(|d| all || mask >> d & 1 == 1).collect();
        let dims: Vec<i64> =
            (0..x.ndim() as i64).filter(|d| reduced[*d as usize]).collect();
        let dim = if all { ValueRef::None } else { ValueRef::Ints(&dims) };
        let lanes = lanes(&x, &reduced);
        let shape: Vec<usize> = (0..x.ndim())
            .filter(|d| keepdim || !reduced[*d])
            .map(|d| if reduced[d] { 1 } else { x.shape()[d] })
            .collect();
        let (sum, mean) = totals(x.dtype());
        type Model<'a> = &'a dyn Fn(&[Complex<f64>]) -> Complex<f64>;
        let real = |x: f64| Complex::new(x, 0.0);
        let truth = |b: bool| real(f64::from(u8::from(b)));
        let zero = real(0.0);
        let best = |l: &[Complex<f64>], f: fn(f64, f64) -> f64| real(l.iter().map(|x| x.re).reduce(f).unwrap_or(0.0));
        let cases: [(&str, DType, Model<'_>); 6] = [
            ("sum.dim", sum, &|l| l.iter().sum()),
            ("mean.dim", mean, &|l| match (l.len(), x.dtype().is_complex()) {
                (0, false) => real(f64::NAN),
                (n, _) => l.iter().sum::<Complex<f64>>() / n as f64,
            }),
            ("all", DType::Bool, &|l| truth(l.iter().all(|x| *x != zero))),
            ("any", DType::Bool, &|l| truth(l.iter().any(|x| *x != zero))),
            ("amax", x.dtype(), &|l| best(l, f64::max)),
            ("amin", x.dtype(), &|l| best(l, f64::min)),
        ];
        for (name, dtype, model) in cases {
            let args = [ValueRef::Tensor(&x), dim, ValueRef::Bool(keepdim)];
            let result = call(name, &args);
            if name.starts_with("am") && x.dtype().is_complex() {
                fails(result, ErrorKind::DType, &["aten::am", "complex", "float64"]);
                continue;
            }
            if name.starts_with("am") && lanes.iter().any(Vec::is_empty) {
                fails(result, ErrorKind::Value, &["aten::am", "nothing to choose from"]);
                continue;
            }
            let result = result.unwrap();
            prop_assert_eq!(result.dtype(), dtype, "{}", name);
            prop_assert_eq!(&**result.shape(), &shape[..], "{}", name);
            let expected: Vec<_> = lanes.iter().map(|lane| model(lane)).collect();
            assert_is(&result, &expected, name);
            let meta = call(name, &[ValueRef::Tensor(&to_meta(&x)), dim, ValueRef::Bool(keepdim)]);
            let meta = meta.unwrap();
            prop_assert_eq!((meta.dtype(), meta.shape()), (dtype, result.shape()));
            match name {
                "sum.dim" | "mean.dim" => {
                    let args = [args[0], args[1], args[2], ValueRef::None];
                    assert_out(&format!("{name}_out"), &args, &result, seed);
                }
                _ => assert_out(&format!("{name}.out"), &args, &result, seed),
            }
        }
    }

    #[test]
    fn places_are_those_of_the_first_best(
        x in anything(), axis in proptest::option::of(0_usize..4), keepdim: bool, seed in 0_u64..8,
    ) {
        prop_assume!(axis.is_none_or(|d| d < x.ndim()));
        let reduced: Vec<bool> = (0..x.ndim()).map(|d| axis.is_none_or(|a| a == d)).collect();
        let lanes = lanes(&x, &reduced);
        let given = axis.map_or(ValueRef::None, |d| ValueRef::Int(d as i64));
        for (name, sign) in [("argmax", 1.0), ("argmin", -1.0)] {
            let args = [ValueRef::Tensor(&x), given, ValueRef::Bool(keepdim)];
            let result = call(name, &args);
            if x.dtype().is_complex() {
                fails(result, ErrorKind::DType, &[name, "complex"]);
                continue;
            }
            if lanes.iter().any(Vec::is_empty) {
                fails(result, ErrorKind::Value, &["nothing to choose from"]);
                continue;
            }
            let expected: Vec<_> = lanes
                .iter()
                .map(|lane| {
                    let best = lane.iter().map(|x| x.re * sign).fold(f64::NEG_INFINITY, f64::max);
                    let place = lane.iter().position(|x| x.re * sign == best).unwrap();
                    Complex::new(place as f64, 0.0)
                })
                .collect();
            let result = result.unwrap();
            prop_assert_eq!(result.dtype(), DType::I64);
            assert_is(&result, &expected, name);
            assert_out(&format!("{name}.out"), &args, &result, seed);
        }
    }

    #[test]
    fn softmax_of_every_dtype_and_layout(x in anything(), axis in 0_usize..4, seed in 0_u64..8) {
        prop_assume!(axis < x.ndim());
        for (name, log) in [("softmax", false), ("log_softmax", true)] {
            let args = [ValueRef::Tensor(&x), ValueRef::Int(axis as i64)];
            let result = call(name, &args);
            if x.dtype().is_complex() {
                fails(result, ErrorKind::DType, &[name, "complex"]);
                continue;
            }
            let result = result.unwrap();
            let dtype = if x.dtype().is_floating() { x.dtype() } else { DType::F64 };
            prop_assert_eq!((result.dtype(), result.shape()), (dtype, x.shape()));
            let get = |index: &[usize]| x.get_scalar(index).unwrap().as_f64();
            let expected: Vec<f64> = indices(x.shape())
                .iter()
                .map(|index| {
                    let lane = (0..x.shape()[axis]).map(|i| {
                        let mut other = index.clone();
                        other[axis] = i;
                        get(&other)
                    });
                    let best = lane.clone().fold(f64::NEG_INFINITY, f64::max);
                    let sum: f64 = lane.map(|x| (x - best).exp()).sum();
                    let less = get(index) - best;
                    if log { less - sum.ln() } else { less.exp() / sum }
                })
                .collect();
            assert_close(&result, &expected, 8.0);
            assert_out(&format!("{name}.out"), &args, &result, seed);
        }
    }
}
