//! Edge cases of reductions: NaN, infinities, overflow, and the ends of blocks.

mod reduce_support;
mod support;

use std::sync::Arc;

use keyfold_core::{Complex, DType, ErrorKind, Scalar, Shape, Strides};
use keyfold_kit::isa::set_level;
use keyfold_tensor::{BufferHandle, HostBuffer, Tensor, ValueRef};
use reduce_support::*;
use support::*;

#[test]
fn nan_and_infinities_go_through_wherever_they_are() {
    let state = alone();
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    for level in levels() {
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
                    // The same along columns.
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
            // The finite elements come after whole blocks of infinite ones.
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
    // With `dtype=` each element is converted first.
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
    // An accumulator of float16 would stop at 2048.
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
    // An input that is also `out` is read from a copy.
    let args = [ValueRef::Tensor(&x), ValueRef::Int(1), ValueRef::Tensor(&x)];
    let expected = bits_of(&call("softmax", &args[..2]).unwrap());
    assert_eq!(bits_of(&call("softmax.out", &args).unwrap()), expected);
}

#[test]
fn lanes_of_every_length_are_reduced_whole_and_once() {
    let state = alone();
    // Lengths around vectors, groups of lanes, blocks and parts.
    let short = (1..70).map(|len| (len, 19));
    let long = [127, 128, 255, 257, 1000, 1023, 1024, 1025, 1039, 1040, 4095, 16_385, 65_537];
    for (len, rows) in short.chain(long.map(|len| (len, 3))) {
        // Integers, whose sums are exact, and the same extremes more than once.
        let items: Vec<f64> = (0..rows * len).map(|i| (i * 37 % 101) as f64 - 50.0).collect();
        let lanes = || items.chunks_exact(len);
        let sums: Vec<f64> = lanes().map(|lane| lane.iter().sum()).collect();
        let best: Vec<f64> =
            lanes().map(|lane| lane.iter().copied().fold(-50.0, f64::max)).collect();
        let place = |(lane, best): (&[f64], &f64)| lane.iter().position(|x| x == best).unwrap();
        let places: Vec<f64> = lanes().zip(&best).map(|pair| place(pair) as f64).collect();
        for dtype in [DType::I8, DType::I32, DType::F16, DType::F32, DType::F64] {
            let x = tensor_of(&items, &[rows, len], dtype);
            for level in levels() {
                set_level(level);
                let dim = [ValueRef::Tensor(&x), ValueRef::Ints(&[1])];
                let exact = dtype != DType::F16 || sums.iter().all(|sum| sum.abs() <= 2048.0);
                if exact {
                    assert_eq!(values_of(&call("sum.dim", &dim).unwrap()), sums, "{dtype} {len}");
                }
                assert_eq!(values_of(&call("amax", &dim).unwrap()), best, "{dtype} {len}");
                let dim = [ValueRef::Tensor(&x), ValueRef::Int(1)];
                assert_eq!(values_of(&call("argmax", &dim).unwrap()), places, "{dtype} {len}");
            }
        }
    }
    drop(state);
}

#[test]
fn elements_that_are_apart_are_those_that_are_meant() {
    let state = alone();
    let items: Vec<f64> = (0..30_000).map(|i| f64::from(i * 37 % 101) - 50.0).collect();
    for dtype in [DType::I8, DType::F16, DType::F32, DType::F64] {
        let x = tensor_of(&items, &[3, 10_000], dtype);
        for step in [2, 3, 4, 5, 70] {
            for flipped in [false, true] {
                let mut some = x.slice(1, Some(1), None, step).unwrap();
                if flipped {
                    some = some.flip(&[1]).unwrap();
                }
                let dense = some.copy().unwrap();
                for level in levels() {
                    set_level(level);
                    for (name, dim) in [
                        ("amin", ValueRef::Ints(&[1])),
                        ("argmin", ValueRef::Int(1)),
                        ("argmin", ValueRef::None),
                    ] {
                        let [a, b] = [&some, &dense]
                            .map(|x| values_of(&call(name, &[ValueRef::Tensor(x), dim]).unwrap()));
                        assert_eq!(a, b, "{name} of {dtype} every {step}, flipped: {flipped}");
                    }
                    let sums = [&some, &dense].map(|x| values_of(&on("sum", &[x]).unwrap()));
                    assert_eq!(sums[0], sums[1], "{dtype} every {step}");
                }
            }
        }
    }
    drop(state);
}

#[test]
fn equal_rows_have_equal_sums_in_matrices_of_any_height() {
    let _alone = alone();
    for level in levels() {
        set_level(level);
        for width in 1..=70_usize {
            let row: Vec<f64> = (0..width).map(|i| ((i * 37 + 11) % 89) as f64 / 7.0).collect();
            let rows = tensor_of(&row.repeat(17), &[17, width], DType::F32);
            let sums = |count: i64| {
                let x = rows.slice(0, Some(0), Some(count), 1).unwrap();
                bits_of(&call("sum.dim", &[ValueRef::Tensor(&x), ValueRef::Ints(&[1])]).unwrap())
            };
            let expected = sums(1)[0];
            // Up to 16 rows are summed together; 17 rows are a group of 16, and one row alone.
            for count in (2..=9).chain([17]) {
                let sums = sums(count);
                assert_eq!(sums, vec![expected; count as usize], "{count} x {width}");
            }
        }
    }
}
