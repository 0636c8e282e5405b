//! Multithreaded reductions against naive models, on every instruction level and with several numbers of
//! threads.

mod reduce_support;
mod support;

use keyfold_core::{Complex, DType};
use keyfold_kit::isa::set_level;
use keyfold_kit::pool::set_num_threads;
use keyfold_tensor::{Tensor, ValueRef};
use reduce_support::*;
use support::*;

/// Makes pseudorandom numbers from 0 to 1.
fn noise(count: usize) -> Vec<f64> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f64 / (1_u64 << 24) as f64
    };
    (0..count).map(|_| next()).collect()
}

/// Makes layouts that reach every branch of the kernels, all large enough for several threads.
fn large(dtype: DType) -> Vec<(&'static str, Tensor)> {
    let items = noise(140_000);
    let scale = if dtype.is_floating() || dtype.is_complex() { 1.0 } else { 100.0 };
    let items: Vec<f64> = items.iter().map(|x| x * scale).collect();
    let of = |shape: &[usize]| {
        let count: usize = shape.iter().product();
        tensor_of(&items[..count], shape, dtype)
    };
    vec![
        ("one long lane", of(&[140_000])),
        ("every other", of(&[140_000]).slice(0, None, None, 2).unwrap()),
        ("backwards", of(&[140_000]).flip(&[0]).unwrap()),
        ("square", of(&[370, 375])),
        ("square, transposed", of(&[370, 375]).transpose(0, 1).unwrap()),
        ("short rows", of(&[45_000, 3])),
        ("short rows, transposed", of(&[45_000, 3]).transpose(0, 1).unwrap()),
        ("long rows", of(&[2, 68_000])),
        ("in the middle", of(&[50, 66, 40])),
        ("short in the middle", of(&[4500, 5, 6])),
        ("permuted", of(&[50, 66, 40]).permute(&[2, 0, 1]).unwrap()),
        ("sliced", of(&[140, 1000]).slice(1, Some(3), Some(990), 2).unwrap()),
        ("repeated", of(&[1, 800]).broadcast_to(&[170, 800]).unwrap()),
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

/// The real parts of the elements, in row-major order.
fn real_items(x: &Tensor) -> Vec<f64> {
    match x.dtype().is_complex() {
        true => {
            let wide = [ValueRef::Tensor(x), ValueRef::DType(DType::C128)];
            let items = call("to", &wide).unwrap().to_vec::<Complex<f64>>().unwrap();
            items.iter().map(|c| c.re).collect()
        }
        false => {
            let wide = [ValueRef::Tensor(x), ValueRef::DType(DType::F64)];
            call("to", &wide).unwrap().to_vec::<f64>().unwrap()
        }
    }
}

/// Computes the model of a large reduction along one axis, or all.
fn model(name: &str, items: &[f64], shape: &[usize], axis: Option<usize>) -> Vec<f64> {
    let (len, inner) = match axis {
        None => (items.len(), 1),
        Some(d) => (shape[d], shape[d + 1..].iter().product()),
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
            let items = real_items(&x);
            let axes = (0..x.ndim()).map(Some).chain([None]);
            for axis in axes {
                for name in ["sum.dim", "amax", "amin", "argmax", "argmin", "any", "all"] {
                    // Where real parts are zero, imaginary parts aren't.
                    if dtype.is_complex() && name != "sum.dim" {
                        continue;
                    }
                    let place = [axis.unwrap_or(0) as i64];
                    let dim = match (axis, name.starts_with("arg")) {
                        (None, _) => ValueRef::None,
                        (Some(d), true) => ValueRef::Int(d as i64),
                        (Some(_), false) => ValueRef::Ints(&place),
                    };
                    let expected = model(name, &items, x.shape(), axis);
                    let mut first: Option<Vec<u64>> = None;
                    for level in levels() {
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

#[test]
fn no_result_depends_on_the_number_of_threads() {
    let state = alone();
    for dtype in [DType::F16, DType::F32, DType::C64, DType::I16] {
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
                    if dtype.is_complex() && !name.ends_with(".dim") {
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

/// Neumaier's sum, whose error doesn't grow with the number of terms.
fn compensated_sum(terms: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut lost) = (0.0_f64, 0.0);
    for term in terms {
        let next = sum + term;
        lost += if sum.abs() >= term.abs() { (sum - next) + term } else { (term - next) + sum };
        sum = next;
    }
    sum + lost
}

#[test]
fn large_softmax_follows_the_model_on_every_level() {
    let state = alone();
    for (dtype, epsilon) in
        [(DType::F16, 2e-3), (DType::F32, 1e-6), (DType::F64, 1e-13), (DType::I16, 1e-13)]
    {
        for (what, x) in large(dtype) {
            for axis in 0..x.ndim() {
                let items = values_of(&x.contiguous().unwrap());
                let (len, inner) =
                    (x.shape()[axis], x.shape()[axis + 1..].iter().product::<usize>());
                for level in levels() {
                    set_level(level);
                    for (name, log) in [("softmax", false), ("log_softmax", true)] {
                        let args = [ValueRef::Tensor(&x), ValueRef::Int(axis as i64)];
                        let got = values_of(&call(name, &args).unwrap());
                        for (block, got) in items.chunks(len * inner).zip(got.chunks(len * inner)) {
                            // Only some of the lanes, to limit the test's time.
                            for at in (0..inner).step_by(1 + inner / 8) {
                                let lane = || block[at..].iter().step_by(inner).copied();
                                let best = lane().fold(f64::NEG_INFINITY, f64::max);
                                let sum = compensated_sum(lane().map(|x| (x - best).exp()));
                                for (x, got) in lane().zip(got[at..].iter().step_by(inner)) {
                                    let (share, absolute) = match (log, dtype) {
                                        (true, _) => (x - best - sum.ln(), 16.0 * epsilon),
                                        // The distance of the smallest float16 numbers.
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
