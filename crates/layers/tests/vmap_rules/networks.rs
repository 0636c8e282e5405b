//! The rules of matrix products, decompositions and networks.

use std::slice::from_ref;

use keyfold::ops::aten;
use keyfold_tensor::Value;

use crate::*;

#[test]
fn norms_of_examples() {
    let weights = |n: usize| [Arg::All(numbers(&[n], 2)), Arg::All(numbers(&[n], 3))];
    for x in everywhere(&[2, 4, 5], |s| numbers(s, 1)) {
        let ([w, b], [cw, cb]) = (weights(5), weights(4));
        check("aten::layer_norm", &[x.clone(), list(&[5]), w.clone(), b]);
        check("aten::rms_norm", &[x.clone(), list(&[5]), w, float(0.1)]);
        check("aten::group_norm", &[x.clone(), int(2), cw.clone(), cb.clone()]);
        let numbers = [float(0.25), float(0.1)];
        for name in ["aten::batch_norm", "aten::native_batch_norm", "aten::instance_norm"] {
            let train = [x.clone(), cw.clone(), cb.clone(), none(), none(), bool_arg(true)];
            check(name, &[&train[..], &numbers].concat());
        }
    }
}

/// Calls with each of the tensors batched, and with all of them, at different places.
fn check_each(name: &str, shapes: &[Option<&[usize]>], rest: &[(usize, Arg)]) {
    for batched in 0..=shapes.len() {
        let tensor = |(at, shape): (usize, &Option<&[usize]>)| match shape {
            None => none(),
            Some(shape) if batched == at || batched == shapes.len() => {
                everywhere(shape, |s| positive(s, at + 1)).swap_remove(at % (shape.len() + 1))
            }
            Some(shape) => Arg::All(positive(shape, at + 1)),
        };
        if shapes.get(batched).is_some_and(Option::is_none) {
            continue;
        }
        let mut args: Vec<Arg> = shapes.iter().enumerate().map(tensor).collect();
        for (place, arg) in rest {
            args.insert(*place, arg.clone());
        }
        check(name, &args);
    }
}

#[test]
fn norms_with_their_statistics() {
    let (x, statistics, lane): (&[usize], &[usize], &[usize]) = (&[2, 4, 5], &[2, 4, 1], &[5]);
    let channels: &[usize] = &[4];
    let groups: &[usize] = &[2, 2];
    let mask =
        |bits: &[bool]| Arg::Other(Value::List(bits.iter().map(|bit| Value::Bool(*bit)).collect()));
    let masks = [[true, false, false], [true, true, true], [false, true, false]];
    for [w, b] in [[Some(lane), Some(lane)], [None, None], [Some(channels), None]] {
        let last = |at| (at, float(0.1));
        check_each("aten::native_layer_norm", &[Some(x), w, b], &[(1, list(&[5])), last(4)]);
        check_each("aten::_fused_rms_norm", &[Some(x), w], &[(1, list(&[5])), last(3)]);
        // An error: an example has fewer dimensions than a lane.
        let lanes = (1, list(&[3, 2, 4, 5]));
        check_each("aten::native_layer_norm", &[Some(x), None, None], &[lanes, last(4)]);
        for each in masks {
            let tensors = [Some(x), Some(x), Some(statistics), Some(statistics), w, b];
            let rest = [(2, list(&[5])), (7, mask(&each))];
            check_each("aten::native_layer_norm_backward", &tensors, &rest);
            let tensors = [Some(x), Some(x), Some(statistics), w];
            let rest = [(2, list(&[5])), (5, mask(&each[..2]))];
            check_each("aten::_fused_rms_norm_backward", &tensors, &rest);
        }
    }
    let momentum = [float(0.25), float(0.1)];
    let numbered = |from: usize, all: &[Arg]| -> Vec<(usize, Arg)> {
        all.iter().enumerate().map(|(i, arg)| (from + i, arg.clone())).collect()
    };
    for [w, b] in [[Some(channels), Some(channels)], [None, None], [Some(lane), None]] {
        let sizes = [int(2), int(4), int(5), int(2), float(0.1)];
        check_each("aten::native_group_norm", &[Some(x), w, b], &numbered(3, &sizes));
        let c = Some(channels);
        let last = [&[bool_arg(true)][..], &momentum].concat();
        let name = "aten::_native_batch_norm_legit.no_stats";
        check_each(name, &[Some(x), w, b], &numbered(3, &last));
        let name = "aten::_native_batch_norm_legit_functional";
        check_each(name, &[Some(x), w, b, c, c], &numbered(5, &last));
        let name = "aten::_native_batch_norm_legit_no_training";
        check_each(name, &[Some(x), w, b, c, c], &numbered(5, &momentum));
        for each in masks {
            let last = [int(2), int(4), int(5), int(2), mask(&each)];
            let tensors = [Some(x), Some(x), Some(groups), Some(groups), w];
            check_each("aten::native_group_norm_backward", &tensors, &numbered(5, &last));
            for trains in [true, false] {
                let last = [bool_arg(trains), float(0.1), mask(&each)];
                let tensors = [Some(x), Some(x), w, c, c, c, c];
                check_each("aten::native_batch_norm_backward", &tensors, &numbered(7, &last));
            }
        }
    }
}

#[test]
fn convolutions_of_examples() {
    let names = [
        ("conv1d", 1),
        ("conv1d.padding", 1),
        ("conv_transpose1d", 1),
        ("conv2d", 2),
        ("conv2d.padding", 2),
        ("conv_transpose2d.input", 2),
        ("conv3d", 3),
        ("conv3d.padding", 3),
        ("conv_transpose3d.input", 3),
    ];
    let numbered = |seed| move |shape: &[usize]| numbers(shape, seed);
    for (name, rank) in names {
        let name = format!("aten::{name}");
        let shape = |front: &[usize], size: usize| [front, &vec![size; rank]].concat();
        for front in [&[2, 2][..], &[2]] {
            let (x, w) = (shape(front, 3), shape(&[2, 2], 2));
            let (all_x, all_w) = (Arg::All(numbers(&x, 1)), Arg::All(numbers(&w, 2)));
            let bias = everywhere(&[2], numbered(3));
            for (i, x) in everywhere(&x, numbered(4)).into_iter().enumerate() {
                check(&name, &[x.clone(), all_w.clone(), bias[i % 2].clone()]);
                check(&name, &[x, everywhere(&w, numbered(5)).swap_remove(i)]);
            }
            for w in everywhere(&w, numbered(6)) {
                check(&name, &[all_x.clone(), w.clone(), Arg::All(numbers(&[2], 7))]);
                let last = [list(&[2]), list(&[1]), list(&[1]), int(1)];
                let activation = [Arg::Other(Value::Str("gelu_tanh".into()))];
                let operands = [all_x.clone(), w, bias[0].clone()];
                let all = [&operands[..], &last, &activation].concat();
                check("keyfold::convolution_activation", &all);
            }
            check(&name, &[all_x, all_w, bias[0].clone()]);
        }
    }
}

#[test]
fn gradients_of_convolutions_of_examples() {
    // Two groups, at steps of 2, of images and of one image.
    for front in [&[2][..], &[]] {
        for transposed in [false, true] {
            let (x, dy) = ([front, &[4, 5]].concat(), [front, &[4, 3]].concat());
            let (x, dy) = if transposed { (dy, x) } else { (x, dy) };
            let w = [4, 2, 3];
            let settings = [list(&[2]), list(&[1]), list(&[1]), bool_arg(transposed), list(&[0])];
            let call = |name: &str, tensors: &[Arg], last: &[Arg]| {
                let args = [tensors, &settings, &[int(2)], last].concat();
                check(&format!("aten::{name}"), &args);
            };
            let some = |seed, shape: &[usize]| Arg::All(numbers(shape, seed));
            let each =
                |seed, shape: &[usize]| everywhere(shape, |s| numbers(s, seed)).swap_remove(1);
            for (i, masked) in [[1, 1, 1], [1, 0, 0], [0, 1, 1]].into_iter().enumerate() {
                let mask = masked.map(|bit| Value::Bool(bit == 1));
                let mask = [Arg::Other(Value::List(mask.to_vec()))];
                for which in 1..8 {
                    let tensor = |bit: usize, seed: usize, shape: &[usize]| match which >> bit & 1 {
                        1 => each(seed + i, shape),
                        _ => some(seed + i, shape),
                    };
                    let three = [tensor(0, 1, &dy), tensor(1, 2, &x), tensor(2, 3, &w), none()];
                    call("convolution_backward", &three, &mask);
                    let three = [tensor(0, 2, &x), tensor(1, 3, &w), none()];
                    if which & 3 != 0 {
                        call("convolution", &three, &[]);
                    }
                }
            }
        }
    }
}

#[test]
fn products_of_fixed_ranks() {
    let pairs: [(&str, &[usize], &[usize]); 8] = [
        ("aten::mm", &[2, 4], &[4, 3]),
        ("aten::mm", &[2, 4], &[5, 3]),
        ("aten::mm", &[2, 4], &[4]),
        ("aten::bmm", &[2, 2, 4], &[2, 4, 3]),
        ("aten::bmm", &[2, 2, 4], &[1, 4, 3]),
        ("aten::mv", &[2, 4], &[4]),
        ("aten::dot", &[4], &[4]),
        ("aten::dot", &[2, 4], &[4]),
    ];
    for (name, a, b) in pairs {
        for x in everywhere(a, |s| numbers(s, 1)) {
            for y in everywhere(b, |s| numbers(s, 2)) {
                check(name, &[x.clone(), y]);
            }
            check(name, &[x, Arg::All(numbers(b, 3))]);
        }
        for y in everywhere(b, |s| numbers(s, 2)) {
            check(name, &[Arg::All(numbers(a, 3)), y]);
        }
    }
}

#[test]
fn products_with_an_addend_and_an_activation() {
    let sums: [(&str, [&[usize]; 3]); 8] = [
        ("aten::addmm", [&[2, 3], &[2, 4], &[4, 3]]),
        ("aten::addmm", [&[3], &[2, 4], &[4, 3]]),
        ("aten::addmm", [&[], &[2, 4], &[4, 3]]),
        ("aten::addmm", [&[5], &[2, 4], &[4, 3]]),
        ("aten::baddbmm", [&[2, 2, 3], &[2, 2, 4], &[2, 4, 3]]),
        ("aten::baddbmm", [&[1, 3], &[2, 2, 4], &[2, 4, 3]]),
        ("aten::baddbmm", [&[1, 2, 1], &[2, 2, 4], &[2, 4, 3]]),
        ("aten::baddbmm", [&[3], &[2, 4], &[4, 3]]),
    ];
    let layers: [[&[usize]; 3]; 6] = [
        [&[2, 4], &[3, 4], &[3]],
        [&[4], &[3, 4], &[3]],
        [&[2, 2, 4], &[3, 4], &[1]],
        [&[2, 4], &[4], &[]],
        [&[4], &[4], &[]],
        [&[2, 5], &[3, 4], &[3]],
    ];
    let layers = layers.into_iter();
    let layers = layers.flat_map(|all| [("aten::linear", all), ("linear_activation", all)]);
    for (name, shapes) in sums.into_iter().chain(layers) {
        let rest = match name {
            "aten::linear" => vec![],
            "linear_activation" => vec![Arg::Other(Value::Str("gelu_tanh".into()))],
            _ => vec![float(0.5), float(-1.5)],
        };
        let full = match name {
            "linear_activation" => "keyfold::linear_activation",
            _ => name,
        };
        // Each subset of the operands is batched, the first at each of its places.
        for subset in 1..8 {
            for first in everywhere(shapes[0], |s| numbers(s, 1)) {
                let mut args = vec![match subset & 1 {
                    1 => first,
                    _ => Arg::All(numbers(shapes[0], 1)),
                }];
                for at in [1, 2] {
                    let shape = shapes[at];
                    args.push(match subset >> at & 1 {
                        1 => everywhere(shape, |s| numbers(s, at + 1)).swap_remove(shape.len() / 2),
                        _ => Arg::All(numbers(shape, at + 1)),
                    });
                }
                check(full, &[args, rest.clone()].concat());
            }
        }
    }
    for x in everywhere(&[2, 4], |s| numbers(s, 1)) {
        let weight = || everywhere(&[3, 4], |s| numbers(s, 2)).swap_remove(1);
        check("aten::linear", &[x.clone(), weight(), none()]);
        check("aten::linear", &[x, Arg::All(numbers(&[3, 4], 2)), none()]);
    }
}

#[test]
fn products_in_mixed_precision() {
    // Sums that are exact in any order.
    let narrow = |shape: &[usize], seed| aten::to(&whole(shape, 7, seed), DType::F32).unwrap();
    let dtype = || Arg::Other(Value::DType(DType::BF16));
    for (a, b) in [(&[2, 4][..], &[4, 3][..]), (&[4], &[4]), (&[2, 2, 4], &[4])] {
        for x in everywhere(a, |s| narrow(s, 1)) {
            for y in everywhere(b, |s| narrow(s, 2)) {
                check("keyfold::matmul_mixed", &[x.clone(), y, dtype()]);
            }
            check("keyfold::matmul_mixed", &[x, Arg::All(narrow(b, 3)), dtype()]);
        }
    }
}

#[test]
fn cells_of_recurrent_networks() {
    let at = |shape: &[usize], seed: usize, dim: usize| Arg::At(numbers(shape, seed), dim);
    let all = |shape: &[usize], seed: usize| Arg::All(numbers(shape, seed));
    let none = || Arg::Other(Value::None);
    for (name, gates) in [("aten::_thnn_fused_gru_cell", 6), ("aten::_thnn_fused_lstm_cell", 8)] {
        let input = || at(&[3, 2, gates], 1, 0);
        let hidden = || all(&[2, gates], 2);
        let state = || at(&[2, 3, 2], 3, 1);
        check(name, &[input(), hidden(), state(), none(), none()]);
        let bias = || all(&[gates], 4);
        check(name, &[input(), hidden(), all(&[2, 2], 3), bias(), bias()]);
        check(name, &[hidden(), hidden(), state(), at(&[gates, 3], 5, 1), bias()]);
        check(name, &[hidden(), hidden(), all(&[2, 2], 3), bias(), at(&[3, gates], 5, 0)]);
        // Errors: a state of the wrong width, and one bias alone.
        check(name, &[input(), hidden(), at(&[2, 3, 3], 3, 1), none(), none()]);
        check(name, &[input(), hidden(), state(), bias(), none()]);
    }
    let (input, w) = (at(&[3, 2, 4], 1, 0), all(&[6, 4], 2));
    let products = [input.clone(), at(&[2, 2, 3], 3, 2), w, all(&[6, 2], 4), none(), none()];
    check("aten::gru_cell", &products);
    let states = Arg::Items(vec![at(&[3, 2, 2], 5, 0), all(&[2, 2], 6)]);
    let weights = [all(&[8, 4], 2), at(&[8, 2, 3], 4, 2), all(&[8], 7), all(&[8], 8)];
    check("aten::lstm_cell", &[&[input, states], &weights[..]].concat());
    for biased in [true, false] {
        let biased = || Arg::Other(Value::Bool(biased));
        let grad = || at(&[3, 2, 2], 1, 0);
        let name = "aten::_thnn_fused_gru_cell_backward";
        check(name, &[grad(), all(&[2, 10], 2), biased()]);
        check(name, &[all(&[2, 2], 1), at(&[2, 10, 3], 2, 2), biased()]);
        let name = "aten::_thnn_fused_lstm_cell_backward_impl";
        let workspace = || at(&[3, 2, 8], 2, 0);
        let cell = || all(&[2, 2], 4);
        check(name, &[grad(), none(), cell(), cell(), workspace(), biased()]);
        check(name, &[none(), grad(), cell(), cell(), all(&[2, 8], 2), biased()]);
        check(name, &[all(&[2, 2], 3), grad(), grad(), cell(), workspace(), biased()]);
    }
}

/// The operators of pooling over two and three dimensions.
const POOLING: [[&str; 6]; 2] = [
    [
        "aten::avg_pool2d",
        "aten::max_pool2d_with_indices",
        "aten::adaptive_avg_pool2d",
        "aten::avg_pool2d_backward",
        "aten::_adaptive_avg_pool2d_backward",
        "aten::max_pool2d_with_indices_backward",
    ],
    [
        "aten::avg_pool3d",
        "aten::max_pool3d_with_indices",
        "aten::adaptive_avg_pool3d",
        "aten::avg_pool3d_backward",
        "aten::_adaptive_avg_pool3d_backward",
        "aten::max_pool3d_with_indices_backward",
    ],
];

#[test]
fn pooling_merges_the_examples() {
    let planes: [&[usize]; 4] = [&[2, 4, 5], &[2, 3, 4, 5], &[1, 3, 4, 3], &[2, 1, 3, 4, 3]];
    for (i, shape) in planes.iter().enumerate() {
        let [average, max, adaptive, of_average, of_adaptive, of_max] = POOLING[i / 2];
        let windows = [int(2), int(1), int(1)];
        for x in everywhere(shape, |own| numbers(own, 1)) {
            check(average, &[from_ref(&x), &windows[..]].concat());
            check(max, &[from_ref(&x), &windows[..]].concat());
            check(adaptive, &[x, int(2)]);
        }
        let mut result = shape.to_vec();
        let first = result.len() - 2 - i / 2;
        result[first..].iter_mut().for_each(|size| *size += 1);
        let x = Arg::All(numbers(shape, 1));
        for grad in everywhere(&result, |own| numbers(own, 2)) {
            let averages = [bool_arg(false), bool_arg(true), none()];
            check(of_average, &[&[grad.clone(), x.clone()], &windows[..], &averages].concat());
            check(of_adaptive, &[grad.clone(), x.clone()]);
            let rest = [int(1), bool_arg(false), Arg::All(whole(&result, 12, 3))];
            check(of_max, &[&[grad, x.clone()], &windows[..], &rest].concat());
        }
    }
}

#[test]
fn decompositions_and_linear_systems() {
    let at = |shape: &[usize], seed: usize, dim: usize| Arg::At(numbers(shape, seed), dim);
    let all = |shape: &[usize], seed: usize| Arg::All(numbers(shape, seed));
    for name in ["linalg_svd", "linalg_svdvals", "linalg_qr"] {
        check(&format!("aten::{name}"), &[at(&[3, 2, 4], 1, 0)]);
        check(&format!("aten::{name}"), &[at(&[2, 3, 4, 2], 1, 1)]);
        // An error: an example is a vector.
        check(&format!("aten::{name}"), &[at(&[3, 2], 1, 0)]);
    }
    for name in ["linalg_eigh", "linalg_eigvalsh", "linalg_det", "linalg_slogdet", "linalg_inv"] {
        check(&format!("aten::{name}"), &[at(&[2, 2, 4], 1, 2)]);
        check(&format!("aten::{name}"), &[at(&[2, 2, 3, 3], 1, 1)]);
    }
    let x = numbers(&[4, 3, 3], 1);
    let gram = aten::matmul(&x, &aten::transpose(&x, 1, 2).unwrap()).unwrap();
    for name in ["linalg_cholesky", "linalg_cholesky_ex"] {
        check(&format!("aten::{name}"), &[Arg::At(gram.clone(), 0)]);
    }
    for name in ["linalg_solve", "linalg_solve_ex"] {
        let name = format!("aten::{name}");
        check(&name, &[at(&[2, 2, 2], 1, 0), at(&[2, 2, 3], 2, 0)]);
        check(&name, &[at(&[2, 2, 2], 1, 0), all(&[2, 3], 2)]);
        check(&name, &[at(&[2, 2, 2], 1, 2), all(&[2], 2)]);
        // As many examples as a matrix has rows: the shared matrix is none of vectors.
        check(&name, &[at(&[2, 2, 2], 1, 0), all(&[2, 2], 2)]);
        check(&name, &[all(&[2, 2], 1), at(&[2, 3], 2, 1)]);
        check(&name, &[all(&[3, 2, 2], 1), at(&[4, 2, 2], 2, 0)]);
        check(&name, &[at(&[4, 3, 2, 2], 1, 0), at(&[3, 4, 2], 2, 1)]);
        check(&name, &[at(&[4, 2, 2], 1, 0), at(&[4, 3], 2, 0)]);
    }
    let flags = |upper, left, unit| [upper, left, unit].map(|flag| Arg::Other(Value::Bool(flag)));
    for (upper, left, unit) in [(true, true, false), (false, true, true), (true, false, true)] {
        let [a, b, c] = flags(upper, left, unit);
        let args = [at(&[2, 3, 3], 1, 0), all(&[3, 3], 2), a.clone(), b.clone(), c.clone()];
        check("aten::linalg_solve_triangular", &args);
        let args = [all(&[2, 3, 3], 1), at(&[3, 4, 3], 2, 1), a, b, c];
        check("aten::linalg_solve_triangular", &args);
    }
}
