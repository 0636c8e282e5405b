//! Random numbers: the stream of the CPU, and the operators that draw from it.

mod support;

use keyfold_core::{DType, Device, ErrorKind};
use keyfold_tensor::device::random::{self, State};
use keyfold_tensor::{Tensor, Value, ValueRef};
use std::sync::{Mutex, MutexGuard, PoisonError};
use support::*;

/// Locks the stream, for tests that depend on its position.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn seed(seed: u64) {
    random::manual_seed(seed).unwrap();
}

fn state() -> State {
    random::state(Device::CPU).unwrap()
}

fn draw(name: &str, count: i64, dtype: DType) -> Tensor {
    call(name, &[ValueRef::Ints(&[count]), ValueRef::DType(dtype)]).unwrap()
}

fn dropout(x: &Tensor, p: f64, train: bool) -> keyfold_core::Result<Tensor> {
    call("dropout", &[ValueRef::Tensor(x), ValueRef::Float(p), ValueRef::Bool(train)])
}

const FLOATS: [DType; 4] = [DType::F64, DType::F32, DType::F16, DType::BF16];

#[test]
fn the_same_seed_or_state_gives_the_same_numbers() {
    let _turn = alone();
    for dtype in FLOATS {
        for name in ["rand", "randn"] {
            seed(42);
            let first = values(&draw(name, 7, dtype));
            let kept = state();
            let blocks = if dtype == DType::F64 { 4 } else { 2 };
            assert_eq!(
                kept,
                State { device: Device::CPU, seed: 42, offset: blocks },
                "{name} {dtype}"
            );
            let second = values(&draw(name, 7, dtype));
            assert_ne!(first, second);
            random::set_state(kept).unwrap();
            assert_eq!(values(&draw(name, 7, dtype)), second);
            seed(42);
            assert_eq!(values(&draw(name, 7, dtype)), first);
            seed(43);
            assert_ne!(values(&draw(name, 7, dtype)), first);
        }
    }
}

#[test]
fn the_first_numbers_are_those_of_philox() {
    let _turn = alone();
    seed(0);
    // The known answer of Random123 for key and counter 0.
    let words = [0x6627_e8d5_u32, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8].map(f64::from);
    let high = |word: f64, bits: i32| (word / 2.0_f64.powi(32 - bits)).floor() / 2.0_f64.powi(bits);
    for (dtype, bits) in [(DType::F32, 24), (DType::F16, 11), (DType::BF16, 8)] {
        seed(0);
        assert_eq!(values(&draw("rand", 4, dtype)), words.map(|w| high(w, bits)), "{dtype}");
    }
    seed(0);
    let wide = values(&draw("rand", 2, DType::F64));
    assert!((wide[0] - words[1] / 2.0_f64.powi(32)).abs() < 2.0_f64.powi(-31));
    assert!((wide[1] - words[3] / 2.0_f64.powi(32)).abs() < 2.0_f64.powi(-31));
}

#[test]
fn moments_are_those_of_the_distributions() {
    let _turn = alone();
    let count = 100_000;
    for dtype in FLOATS {
        // float16 and bfloat16 have few values: means deviate by up to half a unit in the last place.
        let coarse = match dtype {
            DType::BF16 => 1.0 / 256.0,
            DType::F16 => 1.0 / 2048.0,
            _ => 0.0,
        };
        seed(1);
        let uniform = values(&draw("rand", count, dtype));
        assert!(uniform.iter().all(|x| (0.0..1.0).contains(x)));
        let moment = |items: &[f64], k: i32| {
            items.iter().map(|x| x.powi(k)).sum::<f64>() / items.len() as f64
        };
        // Each mean is within 5 standard deviations.
        let near = |got: f64, wanted: f64, variance: f64, extra: f64| {
            assert!(
                (got - wanted).abs() < 5.0 * (variance / count as f64).sqrt() + extra,
                "{got} is not {wanted} for {dtype}"
            );
        };
        near(moment(&uniform, 1), 0.5, 1.0 / 12.0, coarse);
        near(moment(&uniform, 2), 1.0 / 3.0, 4.0 / 45.0, coarse);
        let normal = values(&draw("randn", count, dtype));
        for (k, wanted, variance) in [(1, 0.0, 1.0), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0)]
        {
            near(moment(&normal, k), wanted, variance, coarse);
        }
        assert!(normal.iter().any(|x| *x > 3.5) && normal.iter().any(|x| *x < -3.5));
        let neighbours = normal.windows(2).map(|w| w[0] * w[1]).sum::<f64>() / count as f64;
        near(neighbours, 0.0, 1.0, coarse);
    }
}

#[test]
fn dropout_keeps_the_expectation() {
    let _turn = alone();
    seed(3);
    for dtype in FLOATS {
        let x = Tensor::full(&[100, 200], 3.0.into(), dtype, Device::CPU).unwrap();
        let result = dropout(&x, 0.25, true).unwrap();
        assert_eq!((result.dtype(), result.shape()), (dtype, x.shape()));
        let kept = values(&result).into_iter().filter(|v| *v != 0.0).collect::<Vec<_>>();
        assert!(kept.iter().all(|v| (v - 4.0).abs() < 0.02), "{dtype}");
        assert!((kept.len() as f64 - 15_000.0).abs() < 5.0 * (20_000.0 * 0.1875_f64).sqrt());
    }
}

#[test]
fn dropout_at_its_ends() {
    let _turn = alone();
    let x = floats(&[1.0, f64::INFINITY, f64::NAN]);
    let before = state();
    for same in [dropout(&x, 0.5, false), dropout(&x, 0.0, true)] {
        let same = same.unwrap();
        assert!(same.touches(&x) && same.shape() == x.shape());
    }
    assert_eq!(values(&dropout(&x, 1.0, true).unwrap()), [0.0; 3]);
    assert_eq!(state(), before, "nothing was drawn");
    for p in [-0.1, 1.5, f64::NAN] {
        fails(dropout(&x, p, true), ErrorKind::Value, &["aten::dropout", "'p'", &p.to_string()]);
        assert!(dropout(&x, p, false).is_err());
    }
    fails(dropout(&ints(&[1]), 0.5, true), ErrorKind::DType, &["aten::dropout", "int64"]);
    let meta = dropout(&to_meta(&x), 0.5, true).unwrap();
    assert_eq!((meta.device(), meta.shape()), (Device::META, x.shape()));
    assert_eq!(state(), before, "meta draws nothing");
}

#[test]
fn only_floats_can_be_drawn() {
    for dtype in DType::ALL.into_iter().filter(|d| !d.is_floating()) {
        for name in ["rand", "randn"] {
            let result = call(name, &[ValueRef::Ints(&[2]), ValueRef::DType(dtype)]);
            let parts = [&format!("aten::{name}"), "'dtype'", dtype.name(), "float32"];
            fails(result, ErrorKind::DType, &parts);
        }
    }
}

#[test]
fn threads_get_numbers_of_their_own() {
    let _turn = alone();
    seed(9);
    let draws: Vec<Vec<f64>> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..4).map(|_| scope.spawn(|| values(&draw("rand", 1000, DType::F64)))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    let mut all: Vec<u64> = draws.concat().into_iter().map(f64::to_bits).collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!((all.len(), state().offset), (4000, 2000));
}

/// The known words of Random123 for key and counter 0.
const WORDS: [u32; 4] = [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8];

/// Returns the two results of dropout.
fn both(name: &str, args: &[ValueRef<'_>]) -> (Tensor, Tensor) {
    let Value::Tuple(results) = dispatcher().call(name, args).unwrap() else {
        panic!("{name} has two results")
    };
    let [result, mask] = <[Value; 2]>::try_from(results).unwrap();
    (result.into_tensor().unwrap(), mask.into_tensor().unwrap())
}

fn native(x: &Tensor, p: f64, train: Option<bool>) -> (Tensor, Tensor) {
    let train = train.map_or(ValueRef::None, ValueRef::Bool);
    both("aten::native_dropout", &[ValueRef::Tensor(x), ValueRef::Float(p), train])
}

fn by_threshold(
    x: &Tensor,
    threshold: i64,
    scale: f64,
    seed: i64,
    offset: i64,
) -> (Tensor, Tensor) {
    let (threshold, scale) = (ValueRef::Int(threshold), ValueRef::Float(scale));
    let state = [ValueRef::Int(seed), ValueRef::Int(offset)];
    let args = [ValueRef::Tensor(x), threshold, scale, state[0], state[1]];
    both("keyfold::dropout_threshold", &args)
}

#[test]
fn dropout_by_a_threshold_compares_the_known_words() {
    for dtype in FLOATS {
        let x = Tensor::full(&[4], 3.0.into(), dtype, Device::CPU).unwrap();
        for threshold in [0, 1 << 31, i64::from(WORDS[2]), i64::from(WORDS[2]) + 1, 1 << 32] {
            let (result, mask) = by_threshold(&x, threshold, 0.5, 0, 0);
            let kept = WORDS.map(|word| i64::from(word) >= threshold);
            assert_eq!((result.dtype(), mask.dtype()), (dtype, DType::Bool));
            assert_eq!(values(&result), kept.map(|kept| if kept { 1.5 } else { 0.0 }));
            assert_eq!(mask.to_vec::<bool>().unwrap(), kept);
        }
    }
}

#[test]
fn every_part_of_a_tensor_has_the_words_of_its_place() {
    // Several blocks of a kernel and tasks of a thread, with a tail; strided as contiguous.
    let count = 40_003;
    let items: Vec<f64> = (0..count).map(|i| i as f64 + 1.0).collect();
    let x = floats(&items);
    let (all, mask) = by_threshold(&x, 1 << 31, 1.0, 77, 5);
    let masks = mask.to_vec::<bool>().unwrap();
    let wanted: Vec<f64> =
        items.iter().zip(&masks).map(|(x, kept)| if *kept { *x } else { 0.0 }).collect();
    assert_eq!(values(&all), wanted);
    let kept = masks.iter().filter(|kept| **kept).count() as f64;
    assert!((kept - f64::from(count) / 2.0).abs() < 5.0 * (f64::from(count) / 4.0).sqrt());
    let tail = x.slice(0, Some(4000), None, 1).unwrap();
    let (part, _) = by_threshold(&tail, 1 << 31, 1.0, 77, 5 + 1000);
    assert_eq!(values(&part), wanted[4000..]);
    let reversed = x.flip(&[0]).unwrap();
    assert_eq!(by_threshold(&reversed, 1 << 31, 1.0, 77, 5).1.to_vec::<bool>().unwrap(), masks);
    let empty = Tensor::zeros(&[3, 0], DType::F32, Device::CPU).unwrap();
    assert_eq!(**by_threshold(&empty, 1, 1.0, 0, 0).1.shape(), [3, 0]);
}

#[test]
fn the_state_advances_by_a_block_for_each_four_elements_and_gives_the_mask_again() {
    let _turn = alone();
    for (count, blocks) in [(0, 0), (1, 1), (4, 1), (5, 2), (1001, 251)] {
        seed(11);
        random::take(Device::CPU, 3).unwrap();
        let before = state();
        let x = Tensor::full(&[count], 2.0.into(), DType::F32, Device::CPU).unwrap();
        let (result, mask) = native(&x, 0.5, Some(true));
        assert_eq!(state(), State { offset: before.offset + blocks, ..before });
        random::set_state(before).unwrap();
        let (again, same) = native(&x, 0.5, None);
        assert_eq!((values(&again), values(&same)), (values(&result), values(&mask)));
        // The explicit state gives it without the device's.
        let offset = before.offset as i64;
        let (explicit, _) = by_threshold(&x, 1 << 31, 2.0, 11, offset);
        assert_eq!(values(&explicit), values(&result));
        random::set_state(before).unwrap();
        assert_eq!(values(&dropout(&x, 0.5, true).unwrap()), values(&result));
    }
}

#[test]
fn the_mask_is_that_of_a_comparison_with_uniform_numbers() {
    let _turn = alone();
    let x = Tensor::full(&[5000], 1.0.into(), DType::F32, Device::CPU).unwrap();
    for p in [0.1, 0.25, 0.3, 0.999_999, 1e-9] {
        seed(5);
        let (_, mask) = native(&x, p, None);
        seed(5);
        let drawn = values(&draw("rand", 5000, DType::F32));
        let kept: Vec<bool> = drawn.iter().map(|u| *u >= f64::from(p as f32)).collect();
        assert_eq!(mask.to_vec::<bool>().unwrap(), kept, "{p}");
    }
}

#[test]
fn native_dropout_at_its_ends() {
    let _turn = alone();
    let x = floats(&[1.0, f64::INFINITY, f64::NAN, -0.0]);
    let before = state();
    let (same, mask) = native(&x, 0.5, Some(false));
    assert!(values(&same)[2].is_nan() && values(&same)[1] == f64::INFINITY && !same.touches(&x));
    assert_eq!((mask.to_vec::<bool>().unwrap(), state()), (vec![true; 4], before));
    let (none, mask) = native(&x, 1.0, None);
    assert_eq!((values(&none), mask.to_vec::<bool>().unwrap()), (vec![0.0; 4], vec![false; 4]));
    for p in [-0.1, 1.5, f64::NAN] {
        let args = [ValueRef::Tensor(&x), ValueRef::Float(p), ValueRef::None];
        let given = p.to_string();
        fails(
            call("native_dropout", &args),
            ErrorKind::Value,
            &["aten::native_dropout", "'p'", &given],
        );
    }
    let whole = ints(&[1]);
    let args = [ValueRef::Tensor(&whole), ValueRef::Float(0.5), ValueRef::None];
    fails(call("native_dropout", &args), ErrorKind::DType, &["'input'", "int64", "float32"]);
    let (meta, mask) = native(&to_meta(&x), 0.5, None);
    assert_eq!((meta.device(), mask.dtype()), (Device::META, DType::Bool));
    for (args, part) in [
        ([-1, 0], "'threshold' is -1"),
        ([(1 << 32) + 1, 0], "'threshold' is 4294967297"),
        ([1, -2], "'offset' is -2"),
    ] {
        let (threshold, offset) = (ValueRef::Int(args[0]), ValueRef::Int(args[1]));
        let args =
            [ValueRef::Tensor(&x), threshold, ValueRef::Float(1.0), ValueRef::Int(0), offset];
        let result = dispatcher().call("keyfold::dropout_threshold", &args);
        fails(result.and_then(Value::into_tensor), ErrorKind::Value, &[part]);
    }
}

#[test]
fn the_backward_of_dropout_masks_and_scales() {
    for dtype in FLOATS {
        let grad = Tensor::full(&[2, 3], 3.0.into(), dtype, Device::CPU).unwrap();
        let mask = bools(&[true, false, true]);
        let args = [ValueRef::Tensor(&grad), ValueRef::Tensor(&mask), ValueRef::Float(2.0)];
        let result = call("native_dropout_backward", &args).unwrap();
        assert_eq!(result.dtype(), dtype);
        assert_eq!(values(&result), [6.0, 0.0, 6.0, 6.0, 0.0, 6.0]);
    }
    let (grad, mask) = (floats(&[f64::INFINITY]), bools(&[false]));
    let args = [ValueRef::Tensor(&grad), ValueRef::Tensor(&mask), ValueRef::Float(2.0)];
    assert_eq!(values(&call("native_dropout_backward", &args).unwrap()), [0.0]);
    let args = [ValueRef::Tensor(&grad), ValueRef::Tensor(&grad), ValueRef::Float(2.0)];
    fails(call("native_dropout_backward", &args), ErrorKind::DType, &["'mask'", "float64", "bool"]);
}
