//! Views, indexing, and writes in place.

mod support;

use keyfold_core::{DType, Device, ErrorKind};
use keyfold_tensor::{Tensor, ValueRef};
use proptest::prelude::*;
use support::*;

fn t(tensor: &Tensor) -> ValueRef<'_> {
    ValueRef::Tensor(tensor)
}

fn grid() -> Tensor {
    Tensor::from_vec((0..24_i64).collect(), &[2, 3, 4]).unwrap()
}

fn index(x: &Tensor, indices: &[ValueRef<'_>]) -> keyfold_core::Result<Tensor> {
    call("index.Tensor", &[t(x), ValueRef::Refs(indices)])
}

#[test]
fn views_share_memory_and_lose_grad() {
    // The calls skip the layers, since Autograd would attach nodes to the views.
    let _below = keyfold_layers::autograd::no_grad();
    let x = call("to", &[t(&grid()), ValueRef::DType(DType::F64)]).unwrap();
    x.set_requires_grad(true).unwrap();
    let (zero, one, minus) = (ValueRef::Int(0), ValueRef::Int(1), ValueRef::Int(-1));
    let views = [
        call("transpose", &[t(&x), zero, minus]).unwrap(),
        call("permute", &[t(&x), ValueRef::Ints(&[2, 0, 1])]).unwrap(),
        call("reshape", &[t(&x), ValueRef::Ints(&[6, -1])]).unwrap(),
        call("unsqueeze", &[t(&x), minus]).unwrap(),
        call("squeeze", &[t(&x)]).unwrap(),
        call("expand", &[t(&x), ValueRef::Ints(&[5, -1, 3, -1])]).unwrap(),
        call("flip", &[t(&x), ValueRef::Ints(&[0, 2])]).unwrap(),
        call("select", &[t(&x), one, minus]).unwrap(),
        call("slice", &[t(&x), one, zero, ValueRef::None, ValueRef::Int(2)]).unwrap(),
        call("contiguous", &[t(&x)]).unwrap(),
        call("detach", &[t(&x)]).unwrap(),
        call("alias", &[t(&x)]).unwrap(),
    ];
    for view in &views {
        assert!(view.touches(&x) && !view.requires_grad(), "{view:?}");
    }
    assert_eq!(**views[5].shape(), [5, 2, 3, 4]);
    assert_eq!(values(&views[7])[..4], [8.0, 9.0, 10.0, 11.0]);
    let copies = [
        call("clone", &[t(&x)]).unwrap(),
        call("to", &[t(&x), ValueRef::DType(DType::F64)]).unwrap(),
        call("contiguous", &[t(&views[0])]).unwrap(),
        call("reshape", &[t(&views[0]), ValueRef::Ints(&[-1])]).unwrap(),
    ];
    for copy in copies {
        assert!(!copy.touches(&x));
        assert_fresh(&copy, Device::CPU);
    }
}

#[test]
fn squeeze_takes_out_dimensions_of_one() {
    let x = grid().reshape(&[1, 24, 1]).unwrap();
    assert_eq!(**on("squeeze", &[&x]).unwrap().shape(), [24]);
    let one = call("squeeze.dim", &[t(&x), ValueRef::Int(-1)]).unwrap();
    assert_eq!(**one.shape(), [1, 24]);
    fails(
        call("squeeze.dim", &[t(&x), ValueRef::Int(1)]),
        ErrorKind::Value,
        &["aten::squeeze", "24"],
    );
}

#[test]
fn views_that_cannot_be_name_operator_and_reason() {
    let x = grid();
    let reshape = call("reshape", &[t(&x), ValueRef::Ints(&[5, -1])]);
    fails(reshape, ErrorKind::Shape, &["aten::reshape", "24"]);
    let expand = |size: &[i64]| call("expand", &[t(&x), ValueRef::Ints(size)]);
    fails(expand(&[2, 3, 5]), ErrorKind::Shape, &["aten::expand", "[2, 3, 4]", "[2, 3, 5]"]);
    fails(expand(&[-1, 2, 3, 4]), ErrorKind::Shape, &["aten::expand", "-1"]);
    fails(expand(&[4]), ErrorKind::Shape, &["aten::expand", "[4]"]);
    let select = call("select", &[t(&x), ValueRef::Int(0), ValueRef::Int(2)]);
    fails(select, ErrorKind::Index, &["aten::select", "index 2"]);
    let transpose = call("transpose", &[t(&x), ValueRef::Int(0), ValueRef::Int(3)]);
    fails(transpose, ErrorKind::Index, &["aten::transpose", "axis 3"]);
}

#[test]
fn lists_of_positions_pick_as_in_numpy() {
    let x = grid();
    let (rows, columns) = (ints(&[1, 0, -1]), ints(&[0, 2, 1]));
    let none = ValueRef::None;
    // x[rows, columns], with the last dimension whole.
    let picked = index(&x, &[t(&rows), t(&columns)]).unwrap();
    assert_eq!(**picked.shape(), [3, 4]);
    assert_eq!(values(&picked)[..5], [12.0, 13.0, 14.0, 15.0, 8.0]);
    assert_fresh(&picked, Device::CPU);
    // The indexed dimension of x[:, columns, :] keeps its position; those of x[rows, :, columns] move to the front.
    let middle = index(&x, &[none, t(&columns)]).unwrap();
    assert_eq!(values(&middle)[..5], [0.0, 1.0, 2.0, 3.0, 8.0]);
    let front = index(&x, &[t(&rows), none, t(&columns)]).unwrap();
    assert_eq!(**front.shape(), [3, 3]);
    assert_eq!(values(&front), [12.0, 16.0, 20.0, 2.0, 6.0, 10.0, 13.0, 17.0, 21.0]);
    // The same after a whole dimension.
    let four = x.unsqueeze(0).unwrap();
    let behind = index(&four, &[none, t(&rows), none, t(&columns)]).unwrap();
    assert_eq!((&**behind.shape(), values(&behind)), (&[3, 1, 3][..], values(&front)));
    // Indices broadcast: a column of row indices with a row of column indices.
    let column = rows.unsqueeze(1).unwrap();
    assert_eq!(**index(&x, &[t(&column), t(&columns)]).unwrap().shape(), [3, 3, 4]);
    assert_eq!(**index(&x, &[]).unwrap().shape(), [2, 3, 4]);
}

#[test]
fn masks_pick_as_in_numpy() {
    let x = grid();
    let mask = call("gt.Scalar", &[t(&x), ValueRef::Int(20)]).unwrap();
    assert_eq!(values(&index(&x, &[t(&mask)]).unwrap()), [21.0, 22.0, 23.0]);
    assert_eq!(values(&on("masked_select", &[&x, &mask]).unwrap()), [21.0, 22.0, 23.0]);
    let rows = bools(&[false, true]);
    let picked = index(&x, &[t(&rows)]).unwrap();
    assert_eq!((&**picked.shape(), values(&picked)[0]), (&[1, 3, 4][..], 12.0));
    let last = bools(&[true, false, false, true]);
    let picked = index(&x, &[ValueRef::None, ValueRef::None, t(&last)]).unwrap();
    assert_eq!(**picked.shape(), [2, 3, 2]);
    // masked_select broadcasts; a 0-dim mask selects one element or none.
    assert_eq!(on("masked_select", &[&x, &last]).unwrap().numel(), 12);
    let (one, yes) = (ints(&[7]).select(0, 0).unwrap(), bools(&[true]).select(0, 0).unwrap());
    assert_eq!(values(&on("masked_select", &[&one, &yes]).unwrap()), [7.0]);
}

#[test]
fn positions_that_are_not_there_are_named() {
    let x = grid();
    fails(index(&x, &[t(&ints(&[0, 2]))]), ErrorKind::Index, &["aten::index", "index 2", "size 2"]);
    fails(index(&x, &[t(&ints(&[-3]))]), ErrorKind::Index, &["index -3"]);
    fails(index(&x, &[t(&ints(&[i64::MIN]))]), ErrorKind::Index, &["size 2"]);
    fails(index(&x, &[t(&bools(&[true]))]), ErrorKind::Index, &["mask", "[1]", "[2, 3, 4]"]);
    fails(index(&x, &[t(&floats(&[1.0]))]), ErrorKind::DType, &["integer dtype", "float64"]);
    let (a, b) = (ints(&[0, 1]), ints(&[0, 1, 1]));
    fails(index(&x, &[t(&a), t(&b)]), ErrorKind::Shape, &["[2]", "[3]"]);
    let four = [t(&a), t(&a), t(&a), t(&a)];
    fails(index(&x, &four), ErrorKind::Index, &["4 indices", "3 dimensions"]);
    let select = call("index_select", &[t(&x), ValueRef::Int(0), t(&grid())]);
    fails(select, ErrorKind::Index, &["aten::index_select", "[2, 3, 4]"]);
}

proptest! {
    #[test]
    fn index_select_follows_the_model(x in any_tensor(), picks in proptest::collection::vec(-4_i64..4, 0..6), dim in -3_i64..3) {
        let picks = ints(&picks);
        let result = call("index_select", &[t(&x), ValueRef::Int(dim), t(&picks)]);
        let axis = if dim < 0 { dim + x.ndim() as i64 } else { dim };
        if !(0..x.ndim() as i64).contains(&axis) {
            prop_assert_eq!(result.unwrap_err().kind(), ErrorKind::Index);
            return Ok(());
        }
        let axis = axis as usize;
        let size = x.shape()[axis] as i64;
        let picks = picks.to_vec::<i64>().unwrap();
        if picks.iter().any(|p| !(-size..size).contains(p)) {
            prop_assert_eq!(result.unwrap_err().kind(), ErrorKind::Index);
            return Ok(());
        }
        let result = result.unwrap();
        let expected: Vec<f64> = indices(result.shape())
            .into_iter()
            .map(|mut index| {
                let pick = picks[index[axis]];
                index[axis] = (if pick < 0 { pick + size } else { pick }) as usize;
                x.get_scalar(&index).unwrap().as_f64()
            })
            .collect();
        prop_assert_eq!(result.shape()[axis], picks.len());
        assert_close(&result, &expected, 0.0);
    }

    #[test]
    fn index_put_is_index_backwards(x in small(vec![3, 4, 2], DType::F64), seed in 0_u64..8, a in 0_i64..3, b in 0_i64..4) {
        // The written elements can be read again, and the others are unchanged.
        let x = scramble(&x, seed);
        let before = values(&x);
        let (rows, columns) = (ints(&[a, (a + 1) % 3]), ints(&[b, b]));
        let list = [t(&rows), t(&columns)];
        let new = Tensor::from_slice(&[100_i64, 101, 102, 103], &[2, 2]).unwrap();
        let same = call("index_put_", &[t(&x), ValueRef::Refs(&list), t(&new)]).unwrap();
        prop_assert!(same.touches(&x));
        assert_close(&index(&x, &list).unwrap(), &[100.0, 101.0, 102.0, 103.0], 0.0);
        let changed = values(&x).iter().zip(&before).filter(|(a, b)| a != b).count();
        prop_assert_eq!(changed, 4);
    }
}

#[test]
fn writing_converts_within_a_kind_and_upwards_only() {
    let x = floats(&[0.0; 4]);
    let half = x.slice(0, None, None, 2).unwrap();
    let result = on("copy_", &[&half, &ints(&[7])]).unwrap();
    assert_eq!((values(&x), result.requires_grad()), (vec![7.0, 0.0, 7.0, 0.0], false));
    call("fill_", &[t(&half), ValueRef::Int(9)]).unwrap();
    assert_eq!(values(&x), [9.0, 0.0, 9.0, 0.0]);
    let whole = ints(&[0, 0]);
    fails(on("copy_", &[&whole, &half]), ErrorKind::DType, &["aten::copy_", "float64", "int64"]);
    fails(
        call("fill_", &[t(&whole), ValueRef::Float(0.5)]),
        ErrorKind::DType,
        &["aten::fill_", "0.5"],
    );
    let flags = bools(&[true, false]);
    let mask = [t(&flags)];
    let put = call("index_put_", &[t(&whole), ValueRef::Refs(&mask), t(&half)]);
    fails(put, ErrorKind::DType, &["aten::index_put_", "float64"]);
    fails(
        on("copy_", &[&half, &floats(&[1.0; 3])]),
        ErrorKind::Shape,
        &["aten::copy_", "[3]", "[2]"],
    );
}

#[test]
fn writing_respects_read_only_and_overlapping_memory() {
    let x = floats(&[1.0, 2.0]).into_read_only();
    fails(on("copy_", &[&x, &x]), ErrorKind::ReadOnly, &["aten::copy_", "read-only"]);
    let wide = floats(&[1.0]).broadcast_to(&[3]).unwrap();
    fails(
        call("fill_", &[t(&wide), ValueRef::Int(1)]),
        ErrorKind::Value,
        &["aten::fill_", "share memory"],
    );
    // A source that overlaps the target is read from a copy.
    let x = ints(&[1, 2, 3, 4]);
    let (to, from) = (x.slice(0, Some(1), None, 1).unwrap(), x.slice(0, None, Some(3), 1).unwrap());
    on("copy_", &[&to, &from]).unwrap();
    assert_eq!(x.to_vec::<i64>().unwrap(), [1, 1, 2, 3]);
}
