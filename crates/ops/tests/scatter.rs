//! `gather`, `scatter_add`, `index_add` and `index_put` against naive models.

mod support;

use keyfold_core::{DType, Device, ErrorKind};
use keyfold_tensor::{Tensor, ValueRef};
use proptest::prelude::*;
use support::*;

fn t(tensor: &Tensor) -> ValueRef<'_> {
    ValueRef::Tensor(tensor)
}

/// Adds numbers of a dtype; "or" for bools.
fn add(dtype: DType, a: f64, b: f64) -> f64 {
    if dtype == DType::Bool { f64::from(u8::from(a + b != 0.0)) } else { a + b }
}

/// Returns the position of an index in row-major order.
fn flat(shape: &[usize], index: &[usize]) -> usize {
    shape.iter().zip(index).fold(0, |place, (size, i)| place * size + i)
}

prop_compose! {
    /// A tensor of 3 x 4 x 2, a dimension, and an index of at most that size into it.
    fn case()(dtype in dtype(), seed in 0_u64..8, axis in 0_usize..3)
        (x in small(vec![3, 4, 2], dtype), source in small(vec![3, 4, 2], dtype),
         sizes in (1_usize..=3, 1_usize..=4, 1_usize..=2),
         raw in proptest::collection::vec(0_i64..100, 24), axis in Just(axis), seed in Just(seed))
        -> (Tensor, Tensor, Tensor, usize)
    {
        let shape = [sizes.0, sizes.1, sizes.2];
        let size = [3, 4, 2][axis];
        // From -size to size - 1.
        let places = raw[..shape.iter().product()].iter().map(|r| r % (2 * size) - size).collect();
        let index = Tensor::from_vec(places, &shape).unwrap();
        (scramble(&x, seed), scramble(&index, seed / 2), scramble(&source, seed / 3), axis)
    }
}

proptest! {
    #[test]
    fn gather_and_scatter_add_follow_their_models((x, index, source, axis) in case()) {
        let dim = ValueRef::Int(axis as i64 - 3);
        let picked = call("gather", &[t(&x), dim, t(&index)]).unwrap();
        let added = call("scatter_add", &[t(&x), dim, t(&index), t(&source)]).unwrap();
        assert_fresh(&picked, Device::CPU);
        assert_fresh(&added, Device::CPU);
        prop_assert_eq!((picked.dtype(), added.dtype()), (x.dtype(), x.dtype()));
        let (mut expected, mut sums) = (vec![], values(&x));
        for at in indices(index.shape()) {
            let mut place = at.clone();
            let along = index.get::<i64>(&at).unwrap();
            let size = x.shape()[axis] as i64;
            place[axis] = (if along < 0 { along + size } else { along }) as usize;
            expected.push(x.get_scalar(&place).unwrap().as_f64());
            let sum = &mut sums[flat(x.shape(), &place)];
            *sum = add(x.dtype(), *sum, source.get_scalar(&at).unwrap().as_f64());
        }
        prop_assert_eq!(&**picked.shape(), &**index.shape());
        assert_close(&picked, &expected, 0.0);
        assert_close(&added, &sums, 1.0);
    }

    #[test]
    fn index_add_adds_rows((x, _, source, axis) in case(), raw in proptest::collection::vec(0_i64..100, 2)) {
        let size = x.shape()[axis] as i64;
        let places: Vec<i64> = raw.iter().map(|r| r % (2 * size) - size).collect();
        let source = source.slice(axis as i64, None, Some(2), 1).unwrap();
        let index = ints(&places);
        let args = [t(&x), ValueRef::Int(axis as i64), t(&index), t(&source)];
        let result = call("index_add", &args).unwrap();
        assert_fresh(&result, Device::CPU);
        let mut sums = values(&x);
        for at in indices(source.shape()) {
            let mut place = at.clone();
            place[axis] = places[at[axis]].rem_euclid(size) as usize;
            let sum = &mut sums[flat(x.shape(), &place)];
            *sum = add(x.dtype(), *sum, source.get_scalar(&at).unwrap().as_f64());
        }
        assert_close(&result, &sums, 1.0);
    }
}

#[test]
fn index_put_leaves_the_tensor_and_accumulates_repeated_places() {
    let (x, places) = (floats(&[10.0, 20.0, 30.0]), ints(&[2, 0, 2]));
    let list = [t(&places)];
    let (list, new) = (ValueRef::Refs(&list), floats(&[1.0, 2.0, 3.0]));
    let put = |name: &str, add: bool| call(name, &[t(&x), list, t(&new), ValueRef::Bool(add)]);
    assert_eq!(values(&put("index_put", false).unwrap()), [2.0, 20.0, 3.0]);
    assert_eq!(values(&put("index_put", true).unwrap()), [12.0, 20.0, 34.0]);
    assert_eq!(values(&x), [10.0, 20.0, 30.0]);
    let same = put("index_put_", true).unwrap();
    assert!(same.touches(&x));
    assert_eq!(values(&x), [12.0, 20.0, 34.0]);
    // A mask, and a number that broadcasts.
    let mask = bools(&[true, false, true]);
    let (list, one) = ([t(&mask)], ints(&[1]));
    let args = [t(&x), ValueRef::Refs(&list), t(&one), ValueRef::Bool(true)];
    assert_eq!(values(&call("index_put", &args).unwrap()), [13.0, 20.0, 35.0]);
}

#[test]
fn sums_of_halves_are_rounded_once() {
    // In float16 2048 + 1 is 2048, but 2048 plus a thousand is not.
    let half =
        |n: usize, value: f64| Tensor::full(&[n], value.into(), DType::F16, Device::CPU).unwrap();
    let (x, ones) = (half(1, 2048.0), half(1000, 1.0));
    let places = Tensor::zeros(&[1000], DType::I64, Device::CPU).unwrap();
    let list = [t(&places)];
    let results = [
        call("index_put", &[t(&x), ValueRef::Refs(&list), t(&ones), ValueRef::Bool(true)]),
        call("index_add", &[t(&x), ValueRef::Int(0), t(&places), t(&ones)]),
        call("scatter_add", &[t(&x), ValueRef::Int(0), t(&places), t(&ones)]),
    ];
    for result in results {
        let result = result.unwrap();
        assert_eq!((result.dtype(), values(&result)), (DType::F16, vec![3048.0]));
    }
}

#[test]
fn what_does_not_fit_is_named() {
    let (x, places) = (floats(&[1.0, 2.0]), ints(&[0, 2]));
    let zero = ValueRef::Int(0);
    let out = ["index 2", "dimension 0", "size 2"];
    let gather = |x: &Tensor, index: &Tensor| call("gather", &[t(x), zero, t(index)]);
    let scatter = |index: &Tensor, s: &Tensor| call("scatter_add", &[t(&x), zero, t(index), t(s)]);
    let add = |index: &Tensor, s: &Tensor| call("index_add", &[t(&x), zero, t(index), t(s)]);
    fails(gather(&x, &places), ErrorKind::Index, &out);
    fails(scatter(&places, &x), ErrorKind::Index, &out);
    fails(add(&places, &x), ErrorKind::Index, &out);
    fails(gather(&x, &x), ErrorKind::DType, &["aten::gather", "'index'", "float64"]);
    let column = ints(&[0]).reshape(&[1, 1]).unwrap();
    fails(gather(&x, &column), ErrorKind::Shape, &["aten::gather", "[1, 1]", "[2]"]);
    let three = ints(&[0, 0, 0]);
    fails(scatter(&three, &x), ErrorKind::Shape, &["aten::scatter_add", "'src'", "[3]", "[2]"]);
    fails(add(&three, &x), ErrorKind::Shape, &["aten::index_add", "'source'", "[2]", "[3]"]);
    fails(add(&column, &x), ErrorKind::Index, &["aten::index_add", "1 dimension", "[1, 1]"]);
    let whole = ints(&[0, 0]);
    let args = [t(&whole), zero, t(&whole), t(&x)];
    fails(call("scatter_add", &args), ErrorKind::DType, &["aten::scatter_add", "int64"]);
    fails(call("index_add", &args), ErrorKind::DType, &["aten::index_add", "int64"]);
    let empty = Tensor::zeros(&[0], DType::F64, Device::CPU).unwrap();
    fails(gather(&empty, &whole), ErrorKind::Index, &["size 0"]);
}
