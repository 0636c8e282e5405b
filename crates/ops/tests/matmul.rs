//! Matrix products against a naive model.

mod support;

use keyfold_core::{DType, Device, ErrorKind, layout};
use keyfold_tensor::{Tensor, ValueRef};
use proptest::prelude::*;
use support::*;

/// Returns the shape and values of the product of tensors of two dimensions or more.
fn naive(a: &Tensor, b: &Tensor, bool_: bool) -> (Vec<usize>, Vec<f64>) {
    let (rank_a, rank_b) = (a.ndim(), b.ndim());
    let (m, k, n) = (a.shape()[rank_a - 2], a.shape()[rank_a - 1], b.shape()[rank_b - 1]);
    let batch =
        layout::broadcast_shapes(&a.shape()[..rank_a - 2], &b.shape()[..rank_b - 2]).unwrap();
    let shape = [&*batch, &[m, n]].concat();
    let wide_a = a.broadcast_to(&[&*batch, &[m, k]].concat()).unwrap();
    let wide_b = b.broadcast_to(&[&*batch, &[k, n]].concat()).unwrap();
    let get = |t: &Tensor, batch: &[usize], i: usize, j: usize| {
        t.get_scalar(&[batch, &[i, j]].concat()).unwrap().as_f64()
    };
    let items = indices(&shape)
        .iter()
        .map(|index| {
            let (batch, place) = index.split_at(index.len() - 2);
            let sum: f64 = (0..k)
                .map(|l| get(&wide_a, batch, place[0], l) * get(&wide_b, batch, l, place[1]))
                .sum();
            if bool_ { sum.min(1.0) } else { sum }
        })
        .collect();
    (shape, items)
}

fn matrices() -> impl Strategy<Value = (Tensor, Tensor)> {
    let size = || prop_oneof![4 => 0_usize..6, 1 => 60_usize..70];
    let batch = (0_usize..3, 1_usize..3, any::<[bool; 2]>());
    (size(), size(), size(), batch, dtype(), dtype(), 0_u64..8, 0_u64..8).prop_flat_map(
        |(m, k, n, (b0, b1, ones), da, db, sa, sb)| {
            // Batches of up to two dimensions; one operand may lack the first.
            let first = [if ones[0] { 1 } else { b0 }, b1, m, k];
            let second = [if ones[1] { 1 } else { b0 }, b1, k, n];
            let a = first[if m + k + n > 100 { 2 } else { 0 }..].to_vec();
            let b = second[if ones[1] { 2 } else { 0 }..].to_vec();
            (
                small(a, da).prop_map(move |t| scramble(&t, sa)),
                small(b, db).prop_map(move |t| scramble(&t, sb)),
            )
        },
    )
}

proptest! {
    #[test]
    fn products_follow_the_model((a, b) in matrices()) {
        let result = on("matmul", &[&a, &b]).unwrap();
        let dtype = a.dtype().promote(b.dtype());
        let (shape, expected) = naive(&a, &b, dtype == DType::Bool);
        assert_fresh(&result, Device::CPU);
        prop_assert_eq!((result.dtype(), &**result.shape()), (dtype, &shape[..]));
        // Small integers: exact in whatever order they are added, then rounded once, which the
        // halves do.
        assert_close(&result, &expected, 0.5);
    }

    #[test]
    fn broadcast_and_reversed_matrices_are_read_right(a in small(vec![3, 4], DType::F64), b in small(vec![4], DType::F64)) {
        let columns = b.unsqueeze(1).unwrap().broadcast_to(&[4, 5]).unwrap().flip(&[0]).unwrap();
        let rows = a.select(0, 1).unwrap().broadcast_to(&[6, 4]).unwrap().flip(&[1]).unwrap();
        for (a, b) in [(&a, &columns), (&rows, &columns), (&rows, &a.permute(&[1, 0]).unwrap())] {
            assert_close(&on("matmul", &[a, b]).unwrap(), &naive(a, b, false).1, 0.0);
        }
    }

}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn floats_are_as_accurate_as_the_naive_product(
        a in proptest::collection::vec(-1.0_f64..1.0, 40 * 300), b in proptest::collection::vec(-1.0_f64..1.0, 300 * 20),
    ) {
        let (a, b) = (Tensor::from_vec(a, &[40, 300]).unwrap(), Tensor::from_vec(b, &[300, 20]).unwrap());
        let product = on("matmul", &[&a, &b]).unwrap();
        for (got, expected) in values(&product).iter().zip(naive(&a, &b, false).1) {
            prop_assert!((got - expected).abs() < 300.0 * 300.0 * f64::EPSILON);
        }
    }
}

#[test]
fn vectors_count_as_rows_on_the_left_and_columns_on_the_right() {
    let (v, w) = (ints(&[1, 2, 3]), ints(&[4, 5, 6]));
    let m = Tensor::from_slice(&[1_i64, 0, 2, 0, 1, 0], &[2, 3]).unwrap();
    let dot = on("matmul", &[&v, &w]).unwrap();
    assert_eq!((dot.ndim(), dot.to_vec::<i64>().unwrap()), (0, vec![32]));
    assert_eq!(on("matmul", &[&m, &v]).unwrap().to_vec::<i64>().unwrap(), [7, 2]);
    let t = m.permute(&[1, 0]).unwrap();
    assert_eq!(on("matmul", &[&v, &t]).unwrap().to_vec::<i64>().unwrap(), [7, 2]);
    let batch = m.unsqueeze(0).unwrap().broadcast_to(&[4, 2, 3]).unwrap();
    assert_eq!(**on("matmul", &[&batch, &v]).unwrap().shape(), [4, 2]);
    assert_eq!(**on("matmul", &[&ints(&[1, 2]), &batch]).unwrap().shape(), [4, 3]);
}

#[test]
fn shapes_that_do_not_multiply_are_both_named() {
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F64, Device::CPU).unwrap();
    let error = |a: &[usize], b: &[usize], parts: &[&str]| {
        fails(on("matmul", &[&zeros(a), &zeros(b)]), ErrorKind::Shape, parts);
    };
    error(&[2, 3], &[4, 5], &["aten::matmul", "[2, 3]", "[4, 5]", "3 and 4"]);
    error(&[3], &[4], &["[3]", "[4]"]);
    error(&[], &[4], &["[]", "[4]", "aten::mul"]);
    error(&[2, 2, 3], &[3, 3, 4], &["[2, 2, 3]", "[3, 3, 4]", "batches"]);
}

#[test]
fn a_sum_of_nothing_is_zero() {
    let (a, b) = (
        Tensor::zeros(&[2, 0], DType::F32, Device::CPU),
        Tensor::zeros(&[0, 3], DType::F32, Device::CPU),
    );
    let product = on("matmul", &[&a.unwrap(), &b.unwrap()]).unwrap();
    assert_eq!((&**product.shape(), values(&product)), (&[2, 3][..], vec![0.0; 6]));
    // NaN and infinity propagate as in IEEE 754.
    let (x, y) = (floats(&[0.0, f64::INFINITY]), floats(&[f64::NAN, 1.0]));
    let product = call("matmul", &[ValueRef::Tensor(&x), ValueRef::Tensor(&y)]).unwrap();
    assert!(values(&product)[0].is_nan());
}

#[test]
fn whole_products_wrap_around() {
    let a = Tensor::from_slice(&[i64::MAX, 2], &[1, 2]).unwrap();
    let b = Tensor::from_slice(&[2_i64, 3], &[2, 1]).unwrap();
    assert_eq!(on("matmul", &[&a, &b]).unwrap().to_vec::<i64>().unwrap(), [4]);
}

#[test]
fn blocks_of_whole_products_fit_together() {
    // More rows and columns than one block has.
    let a = Tensor::from_vec((0..3 * 150_i64).map(|i| i % 7).collect(), &[3, 150]).unwrap();
    let b = Tensor::from_vec((0..150 * 600_i64).map(|i| i % 11).collect(), &[150, 600]).unwrap();
    let product = on("matmul", &[&a, &b]).unwrap();
    for index in [[0, 0], [2, 599], [1, 255], [1, 256], [2, 512]] {
        let sum: i64 = (0..150)
            .map(|l| a.get::<i64>(&[index[0], l]).unwrap() * b.get::<i64>(&[l, index[1]]).unwrap())
            .sum();
        assert_eq!(product.get::<i64>(&index).unwrap(), sum, "{index:?}");
    }
}
