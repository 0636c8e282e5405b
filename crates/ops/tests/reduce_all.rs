//! Every reduction, for every dtype, layout and choice of dimensions, against naive models; and what
//! must not change a result: threads, and instructions.

mod support;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use keyfold_core::{Complex, DType, ErrorKind, Scalar, Shape, Strides};
use keyfold_cpu::isa::{Level, level, set_level};
use keyfold_cpu::pool::{num_threads, set_num_threads};
use keyfold_tensor::{BufferHandle, HostBuffer, Tensor, ValueRef};
use proptest::prelude::*;
use support::*;

/// Who changes the process's threads or level is alone meanwhile, and puts them back.
struct Alone {
    _lock: MutexGuard<'static, ()>,
    threads: usize,
    level: Level,
}

fn alone() -> Alone {
    static LOCK: Mutex<()> = Mutex::new(());
    let lock = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    Alone { _lock: lock, threads: num_threads().unwrap(), level: level() }
}

impl Drop for Alone {
    fn drop(&mut self) {
        set_num_threads(self.threads).unwrap();
        set_level(self.level);
    }
}

fn is_complex(dtype: DType) -> bool {
    dtype.is_complex()
}

/// Numbers that every dtype holds: small, and not negative where it has no sign.
fn any_number(dtype: DType) -> impl Strategy<Value = f64> {
    let low = if matches!(dtype, DType::Bool | DType::U8 | DType::U16 | DType::U32 | DType::U64) {
        0
    } else {
        -9
    };
    (low..10_i32).prop_map(f64::from)
}

fn tensor_of(items: &[f64], shape: &[usize], dtype: DType) -> Tensor {
    let x = match dtype.is_complex() {
        true => {
            let items = items.iter().map(|x| Complex::new(*x, 1.0 - x)).collect();
            Tensor::from_vec::<Complex<f64>>(items, shape).unwrap()
        }
        false => Tensor::from_vec(items.to_vec(), shape).unwrap(),
    };
    call("to", &[ValueRef::Tensor(&x), ValueRef::DType(dtype)]).unwrap()
}

/// A tensor of any dtype, layout and up to four dimensions, some of them broadcast.
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

/// The lanes of a tensor along some dimensions, in row-major order of what stays.
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

/// The dtype of a sum and of a mean.
fn totals(dtype: DType) -> (DType, DType) {
    match dtype {
        DType::Bool | DType::I8 | DType::I16 | DType::I32 | DType::I64 => (DType::I64, DType::F64),
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => (DType::U64, DType::F64),
        other => (other, other),
    }
}

/// Writes into something that lies otherwise, and asserts that what comes is the same.
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
            ("mean.dim", mean, &|l| match (l.len(), is_complex(x.dtype())) {
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
            if name.starts_with("am") && is_complex(x.dtype()) {
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
            if is_complex(x.dtype()) {
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
            if is_complex(x.dtype()) {
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

/// Numbers without a pattern from 0 to 1.
fn noise(count: usize) -> Vec<f64> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f64 / (1_u64 << 24) as f64
    };
    (0..count).map(|_| next()).collect()
}

/// Layouts that take every way through the kernels, all above what is shared out among threads.
fn large(dtype: DType) -> Vec<(&'static str, Tensor)> {
    let items = noise(200_000);
    let scale = if dtype.is_floating() || is_complex(dtype) { 1.0 } else { 100.0 };
    let items: Vec<f64> = items.iter().map(|x| x * scale).collect();
    let of = |shape: &[usize]| {
        let count: usize = shape.iter().product();
        tensor_of(&items[..count], shape, dtype)
    };
    vec![
        ("one long lane", of(&[200_000])),
        ("every other", of(&[200_000]).slice(0, None, None, 2).unwrap()),
        ("backwards", of(&[200_000]).flip(&[0]).unwrap()),
        ("square", of(&[430, 450])),
        ("square, transposed", of(&[430, 450]).transpose(0, 1).unwrap()),
        ("short rows", of(&[60_000, 3])),
        ("short rows, transposed", of(&[60_000, 3]).transpose(0, 1).unwrap()),
        ("long rows", of(&[2, 100_000])),
        ("in the middle", of(&[50, 99, 40])),
        ("short in the middle", of(&[6000, 5, 6])),
        ("permuted", of(&[50, 99, 40]).permute(&[2, 0, 1]).unwrap()),
        ("sliced", of(&[200, 1000]).slice(1, Some(3), Some(990), 3).unwrap()),
        ("repeated", of(&[1, 800]).broadcast_to(&[200, 800]).unwrap()),
    ]
}

const LARGE: [DType; 8] = [
    DType::Bool,
    DType::U8,
    DType::I16,
    DType::I64,
    DType::F16,
    DType::F32,
    DType::F64,
    DType::C64,
];

/// The model of a large reduction along one axis, or all.
fn model(name: &str, x: &Tensor, axis: Option<usize>) -> Vec<f64> {
    let items: Vec<f64> = match is_complex(x.dtype()) {
        true => {
            let wide = [ValueRef::Tensor(x), ValueRef::DType(DType::C128)];
            let items = call("to", &wide).unwrap().to_vec::<Complex<f64>>().unwrap();
            items.iter().map(|c| c.re).collect()
        }
        false => {
            let wide = [ValueRef::Tensor(x), ValueRef::DType(DType::F64)];
            call("to", &wide).unwrap().to_vec::<f64>().unwrap()
        }
    };
    let (len, inner) = match axis {
        None => (items.len(), 1),
        Some(d) => (x.shape()[d], x.shape()[d + 1..].iter().product()),
    };
    let mut results = Vec::new();
    for block in items.chunks(len * inner) {
        for at in 0..inner {
            let lane = || block[at..].iter().step_by(inner).copied();
            let best = lane().fold(f64::NEG_INFINITY, f64::max);
            let least = lane().fold(f64::INFINITY, f64::min);
            results.push(match name {
                "sum.dim" => lane().sum(),
                "amax" => best,
                "amin" => least,
                "argmax" => lane().position(|x| x == best).unwrap() as f64,
                "argmin" => lane().position(|x| x == least).unwrap() as f64,
                "any" => f64::from(u8::from(lane().any(|x| x != 0.0))),
                _ => f64::from(u8::from(lane().all(|x| x != 0.0))),
            });
        }
    }
    results
}

#[test]
fn large_reductions_follow_the_model_on_every_level() {
    let state = alone();
    for dtype in LARGE {
        for (what, x) in large(dtype) {
            let axes = (0..x.ndim()).map(Some).chain([None]);
            for axis in axes {
                for name in ["sum.dim", "amax", "amin", "argmax", "argmin", "any", "all"] {
                    // The imaginary parts aren't zero where the real ones are.
                    if is_complex(dtype) && name != "sum.dim" {
                        continue;
                    }
                    let place = [axis.unwrap_or(0) as i64];
                    let dim = match (axis, name.starts_with("arg")) {
                        (None, _) => ValueRef::None,
                        (Some(d), true) => ValueRef::Int(d as i64),
                        (Some(_), false) => ValueRef::Ints(&place),
                    };
                    let expected = model(name, &x, axis);
                    let mut first: Option<Vec<u64>> = None;
                    for level in Level::ALL.into_iter().filter(|level| level.is_available()) {
                        set_level(level);
                        let result = call(name, &[ValueRef::Tensor(&x), dim]).unwrap();
                        let got: Vec<f64> = values_of(&result);
                        let epsilon = match result.dtype() {
                            DType::F16 => 2.0_f64.powi(-10),
                            DType::F32 | DType::C64 => 4e-6,
                            _ => 1e-12,
                        };
                        for (got, expected) in got.iter().zip(&expected) {
                            let near = (got - expected).abs() <= epsilon * expected.abs()
                                || *got == f64::INFINITY && *expected > 65504.0;
                            assert!(
                                near,
                                "{name} of {dtype}, {what}, {axis:?}: {got} is not {expected}"
                            );
                        }
                        let bits: Vec<u64> = got.iter().map(|x| x.to_bits()).collect();
                        let first = first.get_or_insert_with(|| bits.clone());
                        assert_eq!(*first, bits, "{name} of {dtype}, {what} with {}", level.name());
                    }
                }
            }
        }
    }
    drop(state);
}

/// The real parts of a contiguous tensor's elements.
fn values_of(x: &Tensor) -> Vec<f64> {
    let wide = [ValueRef::Tensor(x), ValueRef::DType(DType::C128)];
    let items = call("to", &wide).unwrap().to_vec::<Complex<f64>>().unwrap();
    items.iter().map(|c| c.re).collect()
}

/// The bits of a tensor's elements.
fn bits_of(x: &Tensor) -> Vec<(u64, u64)> {
    let wide = [ValueRef::Tensor(x), ValueRef::DType(DType::C128)];
    let items = call("to", &wide).unwrap().to_vec::<Complex<f64>>().unwrap();
    items.iter().map(|c| (c.re.to_bits(), c.im.to_bits())).collect()
}

#[test]
fn no_result_depends_on_the_number_of_threads() {
    let state = alone();
    for dtype in [DType::F16, DType::F32, DType::F64, DType::C64, DType::I16] {
        for (what, x) in large(dtype) {
            for axis in (0..x.ndim()).map(|d| Some(d as i64)).chain([None]) {
                for name in ["sum.dim", "mean.dim", "amax", "argmin", "softmax", "log_softmax"] {
                    let list = [axis.unwrap_or(0)];
                    let dim = match (axis, name) {
                        (None, "softmax" | "log_softmax") => continue,
                        (None, _) => ValueRef::None,
                        (Some(d), "argmin" | "softmax" | "log_softmax") => ValueRef::Int(d),
                        _ => ValueRef::Ints(&list),
                    };
                    if is_complex(dtype) && !name.ends_with(".dim") {
                        continue;
                    }
                    let results = [1, 2, 3].map(|threads| {
                        set_num_threads(threads).unwrap();
                        bits_of(&call(name, &[ValueRef::Tensor(&x), dim]).unwrap())
                    });
                    assert!(results[0] == results[1], "{name} of {dtype}, {what}, {axis:?}");
                    assert!(results[0] == results[2], "{name} of {dtype}, {what}, {axis:?}");
                }
            }
        }
    }
    drop(state);
}

#[test]
fn large_softmax_follows_the_model_on_every_level() {
    let state = alone();
    // In float64 it is the model, which adds one after the other, that errs.
    for (dtype, epsilon) in
        [(DType::F16, 2e-3), (DType::F32, 1e-6), (DType::F64, 1e-13), (DType::I16, 1e-13)]
    {
        for (what, x) in large(dtype) {
            for axis in 0..x.ndim() {
                let items = values_of(&x.contiguous().unwrap());
                let (len, inner) =
                    (x.shape()[axis], x.shape()[axis + 1..].iter().product::<usize>());
                for level in Level::ALL.into_iter().filter(|level| level.is_available()) {
                    set_level(level);
                    for (name, log) in [("softmax", false), ("log_softmax", true)] {
                        let args = [ValueRef::Tensor(&x), ValueRef::Int(axis as i64)];
                        let got = values_of(&call(name, &args).unwrap());
                        for (block, got) in items.chunks(len * inner).zip(got.chunks(len * inner)) {
                            // Some of the lanes, so that this ends.
                            for at in (0..inner).step_by(1 + inner / 8) {
                                let lane = || block[at..].iter().step_by(inner).copied();
                                let best = lane().fold(f64::NEG_INFINITY, f64::max);
                                let sum: f64 = lane().map(|x| (x - best).exp()).sum();
                                for (x, got) in lane().zip(got[at..].iter().step_by(inner)) {
                                    let (share, absolute) = match (log, dtype) {
                                        (true, _) => (x - best - sum.ln(), 16.0 * epsilon),
                                        // The smallest halves are that far apart.
                                        (_, DType::F16) => ((x - best).exp() / sum, 6e-8),
                                        _ => ((x - best).exp() / sum, 0.0),
                                    };
                                    let near = 2.0 * epsilon * share.abs() + absolute;
                                    assert!(
                                        (got - share).abs() <= near,
                                        "{name} of {dtype}, {what}, {axis}: {got} is not {share}"
                                    );
                                }
                            }
                        }
                    }
                }
            }
        }
    }
    drop(state);
}

#[test]
fn nan_and_infinities_go_through_wherever_they_are() {
    let state = alone();
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    for level in Level::ALL.into_iter().filter(|level| level.is_available()) {
        set_level(level);
        for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
            for count in [1, 2, 15, 33, 300, 5000, 70_000, 200_000] {
                for at in [0, count / 3, count - 1] {
                    let mut items = vec![1.0; count];
                    items[at] = nan;
                    let x = tensor_of(&items, &[count], dtype);
                    for name in ["sum", "mean", "max", "min"] {
                        let result = values_of(&on(name, &[&x]).unwrap())[0];
                        assert!(result.is_nan(), "{name} of {count} {dtype} with NaN at {at}");
                    }
                    for name in ["argmax", "argmin"] {
                        let place = values_of(&on(name, &[&x]).unwrap())[0];
                        assert_eq!(place, at as f64, "{name} of {count} {dtype}");
                    }
                    let args = [ValueRef::Tensor(&x), ValueRef::Int(0)];
                    let soft = values_of(&call("softmax", &args).unwrap());
                    assert!(soft.iter().all(|x| x.is_nan()), "{count} {dtype} {at}");
                    // As columns, too.
                    let columns = x.unsqueeze(1).unwrap().broadcast_to(&[count, 2]).unwrap();
                    let columns = columns.copy().unwrap();
                    let args = [ValueRef::Tensor(&columns), ValueRef::Int(0)];
                    assert_eq!(values_of(&call("argmin", &args).unwrap()), [at as f64; 2]);
                    let soft = values_of(&call("softmax", &args).unwrap());
                    assert!(soft.iter().all(|x| x.is_nan()), "{count} {dtype} {at}");
                    items[at] = -inf;
                    let x = tensor_of(&items, &[count], dtype);
                    assert_eq!(values_of(&on("min", &[&x]).unwrap()), [-inf]);
                    assert_eq!(values_of(&on("argmin", &[&x]).unwrap()), [at as f64]);
                    let all_lowest = tensor_of(&vec![-inf; count], &[count], dtype);
                    assert_eq!(values_of(&on("max", &[&all_lowest]).unwrap()), [-inf]);
                    assert_eq!(values_of(&on("argmax", &[&all_lowest]).unwrap()), [0.0]);
                }
            }
        }
    }
    drop(state);
}

#[test]
fn negative_infinities_are_shares_of_nothing() {
    let inf = f64::INFINITY;
    for count in [3, 100, 40_000] {
        for columns in [false, true] {
            // The finite ones come late, after whole blocks without any.
            let mut items = vec![-inf; count];
            items[count - 1] = 2.0;
            items[count - 2] = 2.0;
            let mut x = tensor_of(&items, &[count], DType::F32);
            if columns {
                x = x.unsqueeze(1).unwrap().broadcast_to(&[count, 3]).unwrap().copy().unwrap();
            }
            let args = [ValueRef::Tensor(&x), ValueRef::Int(0)];
            let soft = values_of(&call("softmax", &args).unwrap());
            let rows = if columns { 3 } else { 1 };
            assert!(soft[..rows * (count - 2)].iter().all(|x| *x == 0.0), "{count}");
            assert!(soft[rows * (count - 2)..].iter().all(|x| *x == 0.5), "{count}");
            let log = values_of(&call("log_softmax", &args).unwrap());
            assert!(log[..rows * (count - 2)].iter().all(|x| *x == -inf), "{count}");
        }
    }
}

#[test]
fn whole_numbers_wrap_around_and_narrow_ones_are_added_in_64_bits() {
    let x = tensor_of(&[200.0; 1000], &[1000], DType::U8);
    assert_eq!(on("sum", &[&x]).unwrap().item().unwrap(), Scalar::Int(200_000));
    let x = tensor_of(&[-100.0; 1000], &[1000], DType::I8);
    assert_eq!(on("sum", &[&x]).unwrap().item().unwrap(), Scalar::Int(-100_000));
    let x = Tensor::from_slice(&[i64::MAX, 1], &[2]).unwrap();
    assert_eq!(on("sum", &[&x]).unwrap().item().unwrap(), Scalar::Int(i64::MIN));
    let x = Tensor::from_slice(&[u64::MAX, 3], &[2]).unwrap();
    assert_eq!(on("sum", &[&x]).unwrap().item().unwrap(), Scalar::Int(2));
    // In a dtype of one's choice: as if each element were converted first.
    let chosen = |x: &Tensor, dtype| {
        let sum = call("sum", &[ValueRef::Tensor(x), ValueRef::DType(dtype)]).unwrap();
        assert_eq!(sum.dtype(), dtype);
        sum.item().unwrap()
    };
    let x = tensor_of(&[200.0; 3], &[3], DType::U8);
    assert_eq!(chosen(&x, DType::U8), Scalar::Int(600 % 256));
    assert_eq!(chosen(&x, DType::I8), Scalar::Int(3 * -56 + 256));
    let x = tensor_of(&[300.0, 1.9], &[2], DType::F32);
    assert_eq!(chosen(&x, DType::U8), Scalar::Int(0));
    assert_eq!(chosen(&x, DType::I16), Scalar::Int(301));
    assert_eq!(chosen(&x, DType::C128), Scalar::Complex(Complex::new(301.899_999_976_158_14, 0.0)));
}

#[test]
fn halves_are_added_in_float32_and_rounded_once() {
    // In float16 itself the sum would stop growing at 2048.
    let x = tensor_of(&vec![1.0; 5000], &[5000], DType::F16);
    assert_eq!(values_of(&on("sum", &[&x]).unwrap()), [5000.0]);
    let x = tensor_of(&vec![1.0; 100_000], &[100_000], DType::BF16);
    assert_eq!(values_of(&on("mean", &[&x]).unwrap()), [1.0]);
}

#[test]
fn bools_with_odd_bytes_count_as_true() {
    let bytes = Tensor::from_vec(vec![2_u8, 0, 255, 1], &[4]).unwrap();
    let memory = bytes.into_buffer().into_inner::<HostBuffer>().unwrap();
    let buffer = BufferHandle::new(Arc::new(memory), DType::Bool).unwrap();
    let x = Tensor::from_parts(buffer, Shape::from([4]), Strides::from([1]), 0).unwrap();
    assert_eq!(on("sum", &[&x]).unwrap().item().unwrap(), Scalar::Int(3));
    assert_eq!(on("max", &[&x]).unwrap().item().unwrap(), Scalar::Bool(true));
    assert_eq!(on("min", &[&x]).unwrap().item().unwrap(), Scalar::Bool(false));
    assert_eq!(on("argmax", &[&x]).unwrap().item().unwrap(), Scalar::Int(0));
    assert_eq!(on("all", &[&x]).unwrap().item().unwrap(), Scalar::Bool(false));
}

#[test]
fn results_that_do_not_fit_their_place_are_refused() {
    let x = tensor_of(&[1.0, 2.0, 3.0, 4.0], &[2, 2], DType::F32);
    let out = |shape: &[usize], dtype| {
        let out = tensor_of(&vec![0.0; shape.iter().product()], shape, dtype);
        let dims = [ValueRef::Tensor(&x), ValueRef::Ints(&[0]), ValueRef::Bool(false)];
        let args = [dims[0], dims[1], dims[2], ValueRef::None, ValueRef::Tensor(&out)];
        call("sum.dim_out", &args)
    };
    fails(out(&[3], DType::F32), ErrorKind::Shape, &["aten::sum", "'out'", "[3]", "[2]"]);
    fails(out(&[2], DType::I64), ErrorKind::DType, &["aten::sum", "float32", "int64"]);
    assert_eq!(values_of(&out(&[2], DType::F64).unwrap()), [4.0, 6.0]);
    // Into the input itself: read from a copy.
    let args = [ValueRef::Tensor(&x), ValueRef::Int(1), ValueRef::Tensor(&x)];
    let expected = bits_of(&call("softmax", &args[..2]).unwrap());
    assert_eq!(bits_of(&call("softmax.out", &args).unwrap()), expected);
}
