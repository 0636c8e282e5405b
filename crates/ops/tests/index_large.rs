//! Indexing of tensors that several threads share, against plain loops; and outputs after an error.

mod support;

use keyfold_core::{DType, ErrorKind};
use keyfold_kit::pool::set_num_threads;
use keyfold_tensor::{Tensor, ValueRef};
use support::*;

fn t(tensor: &Tensor) -> ValueRef<'_> {
    ValueRef::Tensor(tensor)
}

/// Numbers whose sums depend on their order.
fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7919) % 1009) as f32 / 37.0 - 11.3).collect()
}

/// Positions in a dimension of that size, negative ones among them.
fn positions(count: usize, size: usize) -> Vec<i64> {
    let item = |i: usize| ((i * 6151 + i / 7) % (2 * size)) as i64 - size as i64;
    (0..count).map(item).collect()
}

fn place(position: i64, size: usize) -> usize {
    position.rem_euclid(size as i64) as usize
}

/// Checks what `f` returns with one, two and three threads.
fn with_threads(expected: &[f32], f: impl Fn() -> Tensor) {
    for threads in [1, 2, 3] {
        set_num_threads(threads).unwrap();
        let found = f().contiguous().unwrap();
        assert_eq!(found.as_slice::<f32>().unwrap(), expected, "{threads} threads");
    }
}

#[test]
fn rows_are_taken_and_added_in_order() {
    for (rows, width, count) in [(50, 40, 1000), (300_000, 1, 90_000), (20, 600, 100)] {
        let (data, at) = (numbers(rows * width), positions(count, rows));
        let x = Tensor::from_vec(data.clone(), &[rows, width]).unwrap();
        let index = ints(&at);
        let narrow = call("to", &[t(&index), DType::I32.into()]).unwrap();
        let row = |at: &i64| place(*at, rows) * width;
        let taken: Vec<f32> = at.iter().flat_map(|at| data[row(at)..][..width].to_vec()).collect();
        let dim = ValueRef::Int;
        for index in [&index, &narrow] {
            let select = || call("index_select", &[t(&x), dim(0), t(index)]).unwrap();
            with_threads(&taken, select);
        }
        // Rows whose elements aren't adjacent.
        let turned = x.transpose(0, 1).unwrap();
        with_threads(&taken, || {
            let taken = call("index_select", &[t(&turned), dim(1), t(&index)]).unwrap();
            taken.transpose(0, 1).unwrap()
        });
        let more = numbers(count * width + 3).split_off(3);
        let mut sums = data.clone();
        for (at, values) in at.iter().zip(more.chunks(width)) {
            sums[row(at)..][..width].iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
        }
        let values = Tensor::from_vec(more, &[count, width]).unwrap();
        let add = || call("index_add", &[t(&x), dim(0), t(&index), t(&values)]).unwrap();
        with_threads(&sums, add);
        let wide = index.reshape(&[-1, 1]).unwrap().broadcast_to(&[count, width]).unwrap();
        with_threads(&taken, || call("gather", &[t(&x), dim(0), t(&wide)]).unwrap());
        with_threads(&sums, || {
            call("scatter_add", &[t(&x), dim(0), t(&wide), t(&values)]).unwrap()
        });
    }
}

#[test]
fn elements_are_gathered_and_added_along_each_dimension() {
    let shape = [300, 400];
    let x = Tensor::from_vec(numbers(120_000), &shape).unwrap();
    let more = numbers(120_007).split_off(7);
    let source = Tensor::from_vec(more.clone(), &shape).unwrap();
    for axis in [0, 1] {
        let at = positions(120_000, shape[axis]);
        let index = Tensor::from_vec(at.clone(), &shape).unwrap();
        let data = x.as_slice::<f32>().unwrap();
        let (mut gathered, mut sums) = (Vec::new(), data.to_vec());
        for (i, position) in at.iter().enumerate() {
            let mut own = [i / 400, i % 400];
            own[axis] = place(*position, shape[axis]);
            gathered.push(data[own[0] * 400 + own[1]]);
            sums[own[0] * 400 + own[1]] += more[i];
        }
        let dim = ValueRef::Int(axis as i64);
        with_threads(&gathered, || call("gather", &[t(&x), dim, t(&index)]).unwrap());
        let add = || call("scatter_add", &[t(&x), dim, t(&index), t(&source)]).unwrap();
        with_threads(&sums, add);
    }
    // One dimension, of which threads share the targets.
    let flat = x.reshape(&[-1]).unwrap();
    let at = positions(120_000, 120_000);
    let mut sums = numbers(120_000);
    at.iter().zip(&more).for_each(|(at, value)| sums[place(*at, 120_000)] += value);
    let (index, source) = (ints(&at), source.reshape(&[-1]).unwrap());
    let args = [t(&flat), ValueRef::Int(0), t(&index), t(&source)];
    with_threads(&sums, || call("scatter_add", &args).unwrap());
    with_threads(&sums, || call("index_add", &args).unwrap());
}

#[test]
fn an_index_out_of_range_is_named_with_its_place_and_nothing_is_written() {
    let x = Tensor::from_vec(numbers(12), &[4, 3]).unwrap();
    let out = Tensor::from_vec(vec![7.0_f32; 6], &[2, 3]).unwrap();
    let index = Tensor::from_vec(vec![0_i64, 1, 2, 3, -5, 1], &[2, 3]).unwrap();
    let words = ["index -5 is out of range for dimension 0 of size 4", "at [1, 1]"];
    let zero = ValueRef::Int(0);
    fails(call("gather", &[t(&x), zero, t(&index)]), ErrorKind::Index, &words);
    let gather = call("gather.out", &[t(&x), zero, t(&index), t(&out)]);
    fails(gather, ErrorKind::Index, &words);
    let rows = ints(&[1, 4]);
    let words = ["index 4 is out of range for dimension 0 of size 4", "at [1]"];
    fails(call("index_select", &[t(&x), zero, t(&rows)]), ErrorKind::Index, &words);
    fails(call("index_select.out", &[t(&x), zero, t(&rows), t(&out)]), ErrorKind::Index, &words);
    fails(
        call(
            "embedding.out",
            &[t(&x), t(&rows), ValueRef::Int(-1), false.into(), false.into(), t(&out)],
        ),
        ErrorKind::Index,
        &words,
    );
    let source = Tensor::from_vec(numbers(6), &[2, 3]).unwrap();
    let own = Tensor::from_vec(vec![7.0_f32; 12], &[4, 3]).unwrap();
    let add = call("index_add.out", &[t(&x), zero, t(&rows), t(&source), t(&own)]);
    fails(add, ErrorKind::Index, &words);
    let scatter = call("scatter_add.out", &[t(&x), zero, t(&index), t(&source), t(&own)]);
    fails(scatter, ErrorKind::Index, &["index -5", "[1, 1]"]);
    assert!(values(&out).iter().chain(&values(&own)).all(|item| *item == 7.0));
    // No position is inside an empty dimension.
    let empty = Tensor::from_vec(Vec::<f32>::new(), &[0, 3]).unwrap();
    let none = call("index_select", &[t(&empty), zero, t(&ints(&[0]))]);
    fails(none, ErrorKind::Index, &["index 0 is out of range for dimension 0 of size 0"]);
    let nothing = call("index_select", &[t(&empty), zero, t(&ints(&[]))]).unwrap();
    assert_eq!(**nothing.shape(), [0, 3]);
}
