//! Parts of a tensor along a dimension, as views and into given outputs; and `cat` into a given output.

mod support;

use keyfold_core::{DType, Device, ErrorKind, Result, Shape};
use keyfold_tensor::{Tensor, Value, ValueRef as V};
use support::*;

fn parts(name: &str, args: &[V<'_>]) -> Result<Vec<Tensor>> {
    match dispatcher().call(&format!("aten::{name}"), args)? {
        Value::List(items) => items.into_iter().map(Value::into_tensor).collect(),
        other => panic!("{other:?} is no list"),
    }
}

fn grid() -> Tensor {
    Tensor::from_vec((0..15).map(f64::from).collect(), &[5, 3]).unwrap()
}

/// Returns the sizes of the parts along the first dimension.
fn sizes(name: &str, argument: V<'_>) -> Vec<usize> {
    let x = grid();
    let all = parts(name, &[V::Tensor(&x), argument, V::Int(0)]).unwrap();
    assert!(all.iter().all(|part| part.numel() == 0 || part.touches(&x)), "{name} returns views");
    let joined: Vec<f64> = all.iter().flat_map(values).collect();
    assert_eq!(joined, values(&x), "{name} covers the tensor in order");
    all.iter().map(|part| part.shape()[0]).collect()
}

#[test]
fn parts_are_views_that_cover_the_dimension() {
    assert_eq!(sizes("split.Tensor", V::Int(2)), [2, 2, 1]);
    assert_eq!(sizes("split.Tensor", V::Int(i64::MAX)), [5]);
    assert_eq!(sizes("split_with_sizes", V::Ints(&[0, 4, 1])), [0, 4, 1]);
    assert_eq!(sizes("chunk", V::Int(3)), [2, 2, 1]);
    assert_eq!(sizes("chunk", V::Int(4)), [2, 2, 1]);
    assert_eq!(sizes("tensor_split.sections", V::Int(3)), [2, 2, 1]);
    assert_eq!(sizes("tensor_split.sections", V::Int(7)), [1, 1, 1, 1, 1, 0, 0]);
    assert_eq!(sizes("tensor_split.indices", V::Ints(&[1, -2, 9])), [1, 2, 2, 0]);
    let rows = parts("unbind", &[V::Tensor(&grid()), V::Int(-1)]).unwrap();
    assert_eq!(rows.iter().map(values).collect::<Vec<_>>()[1], [1.0, 4.0, 7.0, 10.0, 13.0]);
    let empty = Tensor::zeros(&[0, 3], DType::F32, Device::CPU).unwrap();
    let count =
        |name: &str, n: i64| parts(name, &[V::Tensor(&empty), V::Int(n), V::Int(0)]).unwrap().len();
    assert_eq!((count("split.Tensor", 0), count("chunk", 3)), (1, 3));
    assert_eq!(parts("unbind", &[V::Tensor(&empty), V::Int(0)]).unwrap().len(), 0);
}

#[test]
fn splits_that_do_not_fit_name_the_argument() {
    let x = grid();
    let split = |name: &str, argument: V<'_>| {
        parts(name, &[V::Tensor(&x), argument, V::Int(0)]).map(|_| grid())
    };
    fails(
        split("split.Tensor", V::Int(0)),
        ErrorKind::Value,
        &["aten::split", "'split_size' is 0"],
    );
    fails(split("chunk", V::Int(0)), ErrorKind::Value, &["'chunks' is 0"]);
    fails(split("tensor_split.sections", V::Int(-1)), ErrorKind::Value, &["'sections' is -1"]);
    fails(split("tensor_split.indices", V::Ints(&[3, 1])), ErrorKind::Value, &["[3, 1]", "ascend"]);
    for wrong in [&[2, 2][..], &[6, -1], &[i64::MAX, i64::MAX]] {
        let words = ["'split_sizes'", "add up to 5", "dimension 0"];
        fails(split("split_with_sizes", V::Ints(wrong)), ErrorKind::Shape, &words);
    }
    let far = parts("unbind", &[V::Tensor(&x), V::Int(2)]).map(|_| grid());
    fails(far, ErrorKind::Index, &["aten::unbind"]);
}

#[test]
fn parts_are_copied_into_given_outputs_of_any_strides() {
    let x = grid();
    let wide = Tensor::zeros(&[2, 6], DType::F64, Device::CPU).unwrap();
    let outs = [
        wide.slice(1, None, None, 2).unwrap(),
        Tensor::zeros(&[3, 2], DType::C128, Device::CPU).unwrap().transpose(0, 1).unwrap(),
        Tensor::zeros(&[1, 3], DType::F64, Device::CPU).unwrap(),
    ];
    let split = |outs: &[Tensor], size: i64| {
        let args = [V::Tensor(&x), V::Int(size), V::Int(0), V::Tensors(outs)];
        dispatcher().call("aten::split_copy.Tensor_out", &args).map(|_| grid())
    };
    split(&outs, 2).unwrap();
    let copied: Vec<f64> = outs.iter().flat_map(values).collect();
    assert_eq!(copied, values(&x));
    let sizes = [V::Tensor(&x), V::Ints(&[2, 2, 1]), V::Int(0), V::Tensors(&outs)];
    dispatcher().call("aten::split_with_sizes_copy.out", &sizes).unwrap();
    // Outputs that don't fit leave all of them as they were.
    let seven = |shape: &[usize], dtype| {
        Tensor::full(shape, keyfold_core::Scalar::Int(7), dtype, Device::CPU).unwrap()
    };
    let two = [seven(&[2, 3], DType::F64), seven(&[2, 3], DType::F64)];
    fails(split(&two, 2), ErrorKind::Shape, &["'out' has 2 tensors for 3 parts"]);
    let wrong = [two[0].clone(), two[1].clone(), seven(&[2, 3], DType::F64)];
    fails(split(&wrong, 2), ErrorKind::Shape, &["out[2]"]);
    let narrow = [two[0].clone(), two[1].clone(), seven(&[1, 3], DType::I64)];
    fails(split(&narrow, 2), ErrorKind::DType, &["out[2]"]);
    assert!(wrong.iter().all(|out| values(out).iter().all(|item| *item == 7.0)));
}

#[test]
fn cat_writes_into_outputs_of_any_strides_and_wider_dtypes() {
    let (a, b) = (grid(), grid().slice(0, Some(1), Some(3), 1).unwrap());
    let halves = call("to", &[V::Tensor(&b), DType::F16.into()]).unwrap();
    let expected = [values(&a), values(&b)].concat();
    let all = [a.clone(), halves];
    for dtype in [DType::F64, DType::C128] {
        let whole = Tensor::zeros(&[3, 14], dtype, Device::CPU).unwrap();
        let out =
            whole.transpose(0, 1).unwrap().slice(0, None, None, 2).unwrap().flip(&[0]).unwrap();
        call("cat.out", &[V::Tensors(&all), V::Int(0), V::Tensor(&out)]).unwrap();
        assert_eq!(values(&out), expected);
    }
    let narrow = Tensor::zeros(&[7, 3], DType::I64, Device::CPU).unwrap();
    let refused = call("cat.out", &[V::Tensors(&all), V::Int(0), V::Tensor(&narrow)]);
    fails(refused, ErrorKind::DType, &["'out'", "int64"]);
    // Into a part of its own input.
    let own = [b, a.slice(0, Some(0), Some(3), 1).unwrap()];
    call("cat.out", &[V::Tensors(&own), V::Int(0), V::Tensor(&a)]).unwrap();
    assert_eq!(values(&a), [&expected[3..9], &expected[0..9]].concat());
}

#[test]
fn more_parts_than_memory_holds_are_an_error() {
    let one = Tensor::from_vec(vec![1.0], &[1]).unwrap();
    let many = one.broadcast_to(&Shape::new(&[1_usize << 45]).unwrap()).unwrap();
    let calls: [(&str, &[V<'_>]); 4] = [
        ("unbind", &[V::Tensor(&many), V::Int(0)]),
        ("split.Tensor", &[V::Tensor(&many), V::Int(1), V::Int(0)]),
        ("chunk", &[V::Tensor(&many), V::Int(i64::MAX), V::Int(0)]),
        ("tensor_split.sections", &[V::Tensor(&one), V::Int(i64::MAX), V::Int(0)]),
    ];
    for (name, args) in calls {
        let error = parts(name, args).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Memory, "{error}");
        assert!(error.message().contains("parts in memory; make fewer"), "{error}");
    }
}

#[test]
fn outputs_that_share_memory_with_the_tensor_get_its_parts_and_with_each_other_are_refused() {
    let x = Tensor::from_vec(vec![0.0, 1.0, 2.0, 3.0], &[4]).unwrap();
    let new = Tensor::zeros(&[2], DType::F64, Device::CPU).unwrap();
    let split = |outs: &[Tensor]| {
        let args = [V::Tensor(&x), V::Int(2), V::Int(0), V::Tensors(outs)];
        dispatcher().call("aten::split_copy.Tensor_out", &args).map(|_| grid())
    };
    let outs = [new.clone(), new.clone()];
    fails(split(&outs), ErrorKind::Value, &["'out[0]' and 'out[1]' share memory"]);
    assert_eq!(values(&new), [0.0, 0.0]);
    split(&[x.slice(0, Some(2), None, 1).unwrap(), new.clone()]).unwrap();
    assert_eq!((values(&x), values(&new)), (vec![0.0, 1.0, 0.0, 1.0], vec![2.0, 3.0]));
}
