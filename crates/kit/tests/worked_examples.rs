//! The worked examples over dtypes, layouts and placements.

// Each example has a `main`, which the tests don't use.
#[allow(dead_code)]
#[path = "../examples/morton.rs"]
mod morton;
#[allow(dead_code)]
#[path = "../examples/per_channel.rs"]
mod per_channel;
#[allow(dead_code)]
#[path = "../examples/relu_by_hand.rs"]
mod relu_by_hand;
#[allow(dead_code)]
#[path = "../examples/softplus.rs"]
mod softplus;

use keyfold_core::{Element, ErrorKind, Scalar, bf16, f16};
use keyfold_kit::axes::{Contiguous, Coords, Of, Origin, Strided, Uniform};
use keyfold_kit::for_each::Compute;
use keyfold_kit::math::Real;
use keyfold_tensor::Tensor;

/// The memory layouts of a tensor; the last two are for reading only.
const LAYOUTS: [&str; 7] =
    ["contiguous", "transposed", "sliced", "flipped", "scalar", "broadcast", "empty"];

/// A tensor of small numbers that is the only owner of its memory.
fn tensor<T: Element>(layout: &str, shape: &[usize; 4]) -> Tensor {
    let number = |i: usize| T::from_scalar(Scalar::Float((i * 37 % 97) as f64 / 8.0 - 6.0));
    let numbers = |shape: &[usize]| {
        let items: Vec<T> = (0..shape.iter().product()).map(number).collect();
        Tensor::from_vec(items, shape).unwrap()
    };
    let [n, c, h, w] = *shape;
    match layout {
        "transposed" => numbers(&[w, h, c, n]).permute(&[3, 2, 1, 0]).unwrap(),
        "sliced" => {
            let every = |t: Tensor, axis| t.slice(axis, Some(1), None, 2).unwrap();
            every(every(numbers(&[n, 2 * c + 1, h, 2 * w + 1]), 1), 3)
        }
        "flipped" => numbers(shape).flip(&[0, 3]).unwrap(),
        "scalar" => numbers(&[]),
        "broadcast" => numbers(&[c, 1, w]).broadcast_to(shape).unwrap(),
        "empty" => numbers(&[n, 0, h, w]),
        _ => numbers(shape),
    }
}

fn zeros_like<T: Element>(x: &Tensor) -> Tensor {
    Tensor::from_vec(vec![T::default(); x.numel()], x.shape()).unwrap()
}

/// The elements as float64.
fn floats<T: Compute>(x: &Tensor) -> Vec<f64> {
    x.to_vec::<T>().unwrap().into_iter().map(|x| x.widen().to_f64()).collect()
}

fn assert_near<T: Compute>(got: &[f64], expected: &[f64], rounding: f64, what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (got, expected) in got.iter().zip(expected) {
        let expected = T::narrow(T::Real::from_f64(*expected)).widen().to_f64();
        let near = (got - expected).abs() <= rounding * expected.abs();
        assert!(near || *got == expected, "{what}: {got} for {expected}");
    }
}

/// Three units in the last place.
fn rounding(digits: i32) -> f64 {
    3.0 * 2.0_f64.powi(-digits)
}

fn check_softplus<T: Compute>(digits: i32) {
    for layout in LAYOUTS {
        let x = tensor::<T>(layout, &[3, 5, 7, 11]);
        let expected: Vec<f64> = floats::<T>(&x).into_iter().map(|x| x.exp().ln_1p()).collect();
        let mut out = zeros_like::<T>(&x);
        softplus::softplus(&mut out, Some(&x)).unwrap();
        let what = format!("{} {layout}", T::DTYPE);
        assert_near::<T>(&floats::<T>(&out), &expected, rounding(digits), &what);
        if layout == "broadcast" {
            let mut x = x;
            let error = softplus::softplus(&mut x, None).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Value, "{error}");
            continue;
        }
        let mut x = x;
        softplus::softplus(&mut x, None).unwrap();
        assert_near::<T>(&floats::<T>(&x), &expected, rounding(digits), &what);
    }
}

#[test]
fn softplus_for_every_float_layout_and_placement() {
    check_softplus::<f32>(23);
    check_softplus::<f64>(52);
    check_softplus::<f16>(10);
    check_softplus::<bf16>(7);
    let mut whole = Tensor::from_vec(vec![1_i32], &[1]).unwrap();
    let error = softplus::softplus(&mut whole, None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::MissingKernel);
}

#[test]
fn softplus_of_special_values() {
    let special = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, 1e300, -1e300];
    let mut x = Tensor::from_slice(&special, &[7]).unwrap();
    softplus::softplus(&mut x, None).unwrap();
    let got = x.to_vec::<f64>().unwrap();
    assert!(got[0].is_nan());
    let ln_2 = std::f64::consts::LN_2;
    assert_eq!(got[1..], [f64::INFINITY, 0.0, ln_2, ln_2, 1e300, 0.0]);
}

fn check_relu<T: Compute>(by_hand: bool) {
    for layout in LAYOUTS {
        let x = tensor::<T>(layout, &[2, 3, 5, 7]);
        let expected: Vec<f64> = floats::<T>(&x).into_iter().map(|x| x.max(0.0)).collect();
        let mut after = zeros_like::<T>(&x);
        relu_by_hand::with_map::<T>(&mut after, Some(&x)).unwrap();
        assert_eq!(floats::<T>(&after), expected, "{} {layout}", T::DTYPE);
        if by_hand {
            let mut before = zeros_like::<T>(&x);
            relu_by_hand::by_hand(&mut before, Some(&x)).unwrap();
            assert_eq!(floats::<T>(&before), expected, "{} {layout} by hand", T::DTYPE);
            relu_by_hand::by_hand(&mut before, None).unwrap();
            assert_eq!(floats::<T>(&before), expected, "{} {layout} by hand", T::DTYPE);
        }
        let mut x = x;
        if layout != "broadcast" {
            relu_by_hand::with_map::<T>(&mut x, None).unwrap();
            assert_eq!(floats::<T>(&x), expected, "{} {layout} in place", T::DTYPE);
        }
    }
}

#[test]
fn relu_by_hand_and_with_map_agree() {
    check_relu::<f32>(true);
    check_relu::<f64>(true);
    check_relu::<f16>(false);
    check_relu::<bf16>(false);
}

#[test]
fn relu_by_hand_refuses_other_dtypes_and_strided_outputs() {
    let mut half = Tensor::from_vec(vec![f16::ZERO], &[1]).unwrap();
    assert_eq!(relu_by_hand::by_hand(&mut half, None).unwrap_err().kind(), ErrorKind::DType);
    let x = tensor::<f32>("contiguous", &[1, 2, 3, 4]);
    let mut out = Tensor::from_vec(vec![0.0_f32; 24], &[24]).unwrap();
    assert_eq!(relu_by_hand::by_hand(&mut out, Some(&x)).unwrap_err().kind(), ErrorKind::Shape);
}

/// The bits of a point, interleaved one by one.
fn naive_code(point: &[u64], bits: usize) -> u64 {
    let axes = point.len();
    let mut code = 0;
    for (d, x) in point.iter().enumerate() {
        for bit in (0..bits).filter(|bit| bit * axes + d < 64) {
            code |= (x >> bit & 1) << (bit * axes + d);
        }
    }
    code
}

fn check_morton<T: Element + Into<u64>>(axes: usize) {
    const POINTS: usize = 1000;
    let value = |n: usize, d: usize| {
        T::from_scalar(Scalar::Int(((n * 7919 + d * 104_729) ^ (n << 9)) as i64))
    };
    let bits = (64 / axes).min(8 * size_of::<T>());
    let expected: Vec<u64> = (0..POINTS)
        .map(|n| naive_code(&(0..axes).map(|d| value(n, d).into()).collect::<Vec<_>>(), bits))
        .collect();

    let items = (0..POINTS * axes).map(|i| value(i / axes, i % axes)).collect();
    let x = Tensor::from_vec(items, &[POINTS, axes]).unwrap();
    let mut out = Tensor::from_vec(vec![0_u64; POINTS], &[POINTS]).unwrap();
    morton::morton::<_, T>(Origin.with(Contiguous), &mut out, &x).unwrap();
    assert_eq!(out.to_vec::<u64>().unwrap(), expected, "{} x {axes}", T::DTYPE);

    // One array per coordinate, and an output with every second element, reversed.
    let items = (0..POINTS * axes).map(|i| value(i % POINTS, i / POINTS)).collect();
    let x = Tensor::from_vec(items, &[axes, POINTS]).unwrap().transpose(0, 1).unwrap();
    let mut out = {
        let room = Tensor::from_vec(vec![0_u64; 2 * POINTS], &[2 * POINTS]).unwrap();
        room.slice(0, None, None, 2).unwrap().flip(&[0]).unwrap()
    };
    morton::morton::<_, T>(Origin.with(Strided).with(Uniform), &mut out, &x).unwrap();
    assert_eq!(out.to_vec::<u64>().unwrap(), expected, "{} x {axes} strided", T::DTYPE);
}

#[test]
fn morton_codes_for_every_unsigned_type_and_number_of_axes() {
    for axes in [1, 2, 3, 5] {
        check_morton::<u8>(axes);
        check_morton::<u16>(axes);
        check_morton::<u32>(axes);
        check_morton::<u64>(axes);
    }
    let points = Tensor::from_vec(vec![0_u8; 6], &[3, 2]).unwrap();
    let mut codes = Tensor::from_vec(vec![0_u64; 2], &[2]).unwrap();
    let error = morton::morton::<_, u8>(Origin.with(Contiguous), &mut codes, &points).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Shape);
}

fn check_per_channel<T: Compute>() {
    let channels = 5;
    for layout in LAYOUTS.into_iter().filter(|layout| *layout != "scalar") {
        let x = tensor::<T>(layout, &[3, channels, 4, 40]);
        let factors: Vec<f64> = (0..channels).map(|c| c as f64 * 0.5 - 1.0).collect();
        let scale = factors.iter().map(|f| T::from_scalar(Scalar::Float(*f))).collect();
        let scale = Tensor::from_vec::<T>(scale, &[channels]).unwrap();
        let channel = |i: usize| i / 160 % channels;
        let expected: Vec<f64> =
            floats::<T>(&x).iter().enumerate().map(|(i, x)| x * factors[channel(i)]).collect();
        let what = format!("{} {layout}", T::DTYPE);
        let coords = Origin.with(Of::<T>::new()).with(Strided);

        let mut out = zeros_like::<T>(&x);
        per_channel::per_channel(coords, &mut out, Some(&x), &scale).unwrap();
        assert_near::<T>(&floats::<T>(&out), &expected, 0.0, &what);
        if layout == "contiguous" {
            let mut out = zeros_like::<T>(&x);
            let coords = coords.with(Contiguous).with(Uniform);
            per_channel::per_channel(coords, &mut out, Some(&x), &scale).unwrap();
            assert_near::<T>(&floats::<T>(&out), &expected, 0.0, &what);
        }
        if layout != "broadcast" {
            let mut x = x;
            per_channel::per_channel(coords, &mut x, None, &scale).unwrap();
            assert_near::<T>(&floats::<T>(&x), &expected, 0.0, &what);
        }
    }
}

#[test]
fn per_channel_scale_for_every_float_layout_and_placement() {
    check_per_channel::<f32>();
    check_per_channel::<f64>();
    check_per_channel::<f16>();
    check_per_channel::<bf16>();
}

#[test]
fn too_few_factors_and_other_ranks_are_errors() {
    let coords = Origin.with(Of::<f32>::new()).with(Contiguous);
    let mut x = tensor::<f32>("contiguous", &[1, 3, 2, 2]);
    let scale = Tensor::from_vec(vec![1.0_f32; 2], &[2]).unwrap();
    let error = per_channel::per_channel(coords, &mut x, None, &scale).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::KernelPanic);
    assert!(error.message().contains("index [2] is out of range"), "{error}");
    let error = per_channel::per_channel(coords, &mut x.reshape(&[12]).unwrap(), None, &scale);
    assert!(error.is_err());
    let error = per_channel::per_channel(coords, &mut x, None, &scale.unsqueeze(0).unwrap());
    let error = error.unwrap_err();
    assert!(error.message().contains("2 dimensions, and not 1"), "{error}");
}
