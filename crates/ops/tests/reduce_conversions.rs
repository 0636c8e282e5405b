//! Reductions that convert elements on the fly, compared with reductions of converted elements.

mod reduce_support;
mod support;

use keyfold_core::DType;
use keyfold_kit::pool::set_num_threads;
use keyfold_tensor::{Tensor, ValueRef};
use reduce_support::*;
use support::*;

fn to(x: &Tensor, dtype: DType) -> Tensor {
    call("to", &[ValueRef::Tensor(x), ValueRef::DType(dtype)]).unwrap()
}

/// Makes the same numbers in two dtypes, in layouts that reach every branch of the kernels.
fn layouts(stored: DType, wide: DType) -> Vec<(&'static str, [Tensor; 2])> {
    let (scale, middle) = if stored.is_floating() { (0.37, 63.0) } else { (1.0, 0.0) };
    let number = |i: u64| ((i * 7919 % 127) as f64 - middle) * scale;
    let items: Vec<f64> = (0..140_000).map(number).collect();
    let of = |shape: &[usize], view: fn(&Tensor) -> Tensor| {
        let count: usize = shape.iter().product();
        let x = tensor_of(&items[..count], shape, stored);
        [view(&x), view(&to(&x, wide))]
    };
    let whole = |x: &Tensor| x.clone();
    vec![
        ("long", of(&[140_000], whole)),
        ("every third", of(&[140_000], |x| x.slice(0, None, None, 3).unwrap())),
        ("backwards", of(&[5000], |x| x.flip(&[0]).unwrap())),
        ("short", of(&[2000, 15], whole)),
        ("sixteen", of(&[1000, 16], whole)),
        ("square", of(&[173, 179], whole)),
        ("every other row", of(&[300, 173], |x| x.slice(0, None, None, 2).unwrap())),
        ("every other column", of(&[173, 300], |x| x.slice(1, None, None, 2).unwrap())),
        ("transposed", of(&[173, 300], |x| x.transpose(0, 1).unwrap())),
        ("narrow", of(&[3000, 3], whole)),
        ("in the middle", of(&[20, 33, 31], whole)),
    ]
}

/// Returns `None` for all dimensions, and each dimension.
fn dims_of(x: &Tensor) -> impl Iterator<Item = Option<i64>> {
    (0..x.ndim() as i64).map(Some).chain([None])
}

fn reduced(name: &str, x: &Tensor, dim: Option<i64>) -> Tensor {
    let list = [dim.unwrap_or(0)];
    let one = name.starts_with("arg") || name.ends_with("softmax");
    let dim = match dim {
        None => ValueRef::None,
        Some(dim) if one => ValueRef::Int(dim),
        Some(_) => ValueRef::Ints(&list),
    };
    call(name, &[ValueRef::Tensor(x), dim]).unwrap()
}

#[test]
fn halves_are_reduced_as_float32_and_rounded_once() {
    let state = alone();
    for half in [DType::F16, DType::BF16] {
        for (what, [x, wide]) in layouts(half, DType::F32) {
            for dim in dims_of(&x) {
                for name in ["sum.dim", "mean.dim", "amax", "amin", "argmax", "argmin", "all"] {
                    let got = reduced(name, &x, dim);
                    let expected = to(&reduced(name, &wide, dim), got.dtype());
                    assert!(
                        bits_of(&got) == bits_of(&expected),
                        "{name} of {half}, {what}, {dim:?}"
                    );
                }
                for name in ["softmax", "log_softmax"].into_iter().filter(|_| dim.is_some()) {
                    let got = reduced(name, &x, dim);
                    let expected = to(&reduced(name, &wide, dim), half);
                    assert!(
                        bits_of(&got) == bits_of(&expected),
                        "{name} of {half}, {what}, {dim:?}"
                    );
                }
            }
        }
    }
    drop(state);
}

#[test]
fn narrow_whole_numbers_add_up_as_wide_ones_do() {
    let state = alone();
    for (narrow, wide) in [
        (DType::I8, DType::I64),
        (DType::I16, DType::I64),
        (DType::I32, DType::I64),
        (DType::U8, DType::U64),
        (DType::U16, DType::U64),
        (DType::U32, DType::U64),
    ] {
        for (what, [x, same]) in layouts(narrow, wide) {
            for dim in dims_of(&x) {
                let (got, expected) = (reduced("sum.dim", &x, dim), reduced("sum.dim", &same, dim));
                assert_eq!(bits_of(&got), bits_of(&expected), "{narrow}, {what}, {dim:?}");
            }
        }
    }
    drop(state);
}

#[test]
fn sums_of_the_least_and_greatest_narrow_numbers_are_whole() {
    for (dtype, number) in [
        (DType::I8, -128.0),
        (DType::I16, -32768.0),
        (DType::U8, 255.0),
        (DType::U16, 65535.0),
        (DType::U32, 4_294_967_295.0),
    ] {
        // One part of a lane, and more.
        for shape in [[65_536, 1], [70_000, 2], [2, 70_000], [65_536, 2]] {
            let count = shape[0] * shape[1];
            let x = tensor_of(&vec![number; count], &shape, dtype);
            for (dim, len) in [(None, count), (Some(0), shape[0]), (Some(1), shape[1])] {
                let got = values_of(&reduced("sum.dim", &x, dim));
                assert!(got.iter().all(|x| *x == number * len as f64), "{dtype}, {shape:?}");
            }
        }
    }
}

#[test]
fn the_first_bool_that_decides_is_found_wherever_it_is() {
    let state = alone();
    for len in [1, 15, 16, 100, 1024, 5000, 300_000] {
        for place in [0, 1, len / 3, len / 2, len - 1] {
            let place = place.min(len - 1);
            // One decisive element, and many after it.
            for behind in [1, 3] {
                let number = |i: usize| {
                    f64::from(u8::from(i >= place && (i - place).is_multiple_of(behind)))
                };
                let only = |i: usize| f64::from(u8::from(i == place));
                for threads in [1, 2] {
                    set_num_threads(threads).unwrap();
                    for items in [(0..len).map(number).collect(), (0..len).map(only).collect()] {
                        let items: Vec<f64> = items;
                        let x = tensor_of(&items, &[len], DType::Bool);
                        assert_eq!(values_of(&reduced("argmax", &x, None)), [place as f64]);
                        assert_eq!(values_of(&reduced("any", &x, None)), [1.0]);
                        assert_eq!(values_of(&reduced("amax", &x, None)), [1.0]);
                        let turned: Vec<f64> = items.iter().map(|x| 1.0 - x).collect();
                        let x = tensor_of(&turned, &[len], DType::Bool);
                        assert_eq!(values_of(&reduced("argmin", &x, None)), [place as f64]);
                        assert_eq!(values_of(&reduced("all", &x, None)), [0.0]);
                        assert_eq!(values_of(&reduced("amin", &x, None)), [0.0]);
                    }
                }
            }
        }
    }
    drop(state);
}
