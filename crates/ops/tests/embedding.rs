//! Embedding and its backward, and caches of rows.

mod support;

use keyfold_core::{DType, Device, ErrorKind};
use keyfold_tensor::{Tensor, ValueRef as V};
use support::*;

fn t(tensor: &Tensor) -> V<'_> {
    V::Tensor(tensor)
}

fn embedding(weight: &Tensor, indices: &Tensor) -> keyfold_core::Result<Tensor> {
    call("embedding", &[t(weight), t(indices), V::Int(-1), V::Bool(false), V::Bool(false)])
}

fn backward(grad: &Tensor, at: &Tensor, rows: i64, pad: i64) -> keyfold_core::Result<Tensor> {
    call("embedding_dense_backward", &[t(grad), t(at), V::Int(rows), V::Int(pad), V::Bool(false)])
}

#[test]
fn rows_of_a_table_are_looked_up_and_their_gradients_added() {
    let weight = Tensor::from_vec((0..12).map(f64::from).collect(), &[4, 3]).unwrap();
    for dtype in [DType::I32, DType::I64, DType::U8, DType::U64] {
        let at = Tensor::from_slice(&[2_i64, 0, 2, 3, 2, 0], &[2, 3]).unwrap();
        let at = call("to", &[t(&at), dtype.into()]).unwrap();
        let rows = embedding(&weight, &at).unwrap();
        assert_eq!(
            (&**rows.shape(), &values(&rows)[..6]),
            (&[2, 3, 3][..], &[6.0, 7.0, 8.0, 0.0, 1.0, 2.0][..])
        );
        let sums = values(&backward(&rows, &at, 4, -1).unwrap());
        assert_eq!(sums, [0.0, 2.0, 4.0, 0.0, 0.0, 0.0, 18.0, 21.0, 24.0, 9.0, 10.0, 11.0]);
        let sums = values(&backward(&rows, &at, 4, 2).unwrap());
        assert_eq!(sums, [0.0, 2.0, 4.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 9.0, 10.0, 11.0]);
    }
    let none = embedding(&weight, &ints(&[])).unwrap();
    assert_eq!(**none.shape(), [0, 3]);
    assert_eq!(values(&backward(&none, &ints(&[]), 2, -1).unwrap()), [0.0; 6]);
}

#[test]
fn gradients_of_halves_are_added_in_float32() {
    let ones = Tensor::full(&[4096, 1], keyfold_core::Scalar::Float(1.0), DType::F16, Device::CPU);
    let at = Tensor::from_vec(vec![0_i64; 4096], &[4096]).unwrap();
    let sums = backward(&ones.unwrap(), &at, 1, -1).unwrap();
    // In float16 the sum of ones ends at 2048.
    assert_eq!((sums.dtype(), values(&sums)), (DType::F16, vec![4096.0]));
}

#[test]
fn calls_that_embedding_refuses_name_the_argument() {
    let weight = Tensor::from_vec(vec![0.5_f64; 6], &[2, 3]).unwrap();
    let at = ints(&[0, 1]);
    let negative = Tensor::from_slice(&[0_i64, 1, -1, 0], &[2, 2]).unwrap();
    let words = ["aten::embedding", "'indices'", "index -1", "place 2", "from 0 to 1"];
    fails(embedding(&weight, &negative), ErrorKind::Index, &words);
    fails(embedding(&weight, &weight), ErrorKind::DType, &["'indices'", "float64"]);
    fails(embedding(&at, &at), ErrorKind::Shape, &["'weight'", "[2]"]);
    let with = |padding: i64, scales: bool, sparse: bool| {
        let args = [t(&weight), t(&at), V::Int(padding), V::Bool(scales), V::Bool(sparse)];
        call("embedding", &args)
    };
    fails(with(2, false, false), ErrorKind::Index, &["'padding_idx' is 2", "2 rows"]);
    fails(with(-1, true, false), ErrorKind::NotSupported, &["'scale_grad_by_freq'"]);
    fails(with(-1, false, true), ErrorKind::NotSupported, &["'sparse'"]);
    let wrong = backward(&weight, &ints(&[0]), 2, -1);
    fails(wrong, ErrorKind::Shape, &["'grad_output'", "[2, 3]", "[1]"]);
    fails(backward(&weight, &at, -1, -1), ErrorKind::Shape, &["'num_weights' is -1"]);
    fails(backward(&weight, &ints(&[0, 7]), 2, -1), ErrorKind::Index, &["index 7", "at [1]"]);
}

fn write(cache: &Tensor, source: &Tensor, pos: i64) -> keyfold_core::Result<Tensor> {
    let args = [t(cache), t(source), V::Int(pos)];
    dispatcher().call("keyfold::slice_write_", &args)?.into_tensor()
}

fn read(cache: &Tensor, length: i64) -> keyfold_core::Result<Tensor> {
    dispatcher().call("keyfold::slice_read", &[t(cache), V::Int(length)])?.into_tensor()
}

#[test]
fn a_cache_is_written_position_by_position() {
    for dtype in [DType::F32, DType::F16, DType::I64] {
        let cache = Tensor::zeros(&[2, 4, 3], dtype, Device::CPU).unwrap();
        let row = Tensor::from_slice(&[1_i64, 2, 3, 4, 5, 6], &[2, 3]).unwrap();
        write(&cache, &row, 2).unwrap();
        // Two positions at once, of which the source is a transposed view.
        let rows = Tensor::from_vec((10..22).collect::<Vec<i64>>(), &[2, 2, 3]).unwrap();
        let turned = rows.transpose(0, 1).unwrap();
        write(&cache, &turned, 0).unwrap();
        let view = read(&cache, 3).unwrap();
        assert!(view.touches(&cache));
        let expected = [10, 11, 12, 16, 17, 18, 1, 2, 3, 13, 14, 15, 19, 20, 21, 4, 5, 6];
        assert_eq!(values(&view), expected.map(f64::from));
        assert_eq!(values(&cache.select(1, 3).unwrap()), [0.0; 6]);
    }
    // A cache that is a view with gaps.
    let whole = Tensor::zeros(&[2, 8, 3], DType::F32, Device::CPU).unwrap();
    let cache = whole.slice(1, None, None, 2).unwrap();
    write(&cache, &Tensor::from_slice(&[1_f32; 6], &[2, 3]).unwrap(), 3).unwrap();
    assert_eq!(values(&whole).iter().sum::<f64>(), 6.0);
    assert_eq!(values(&whole.select(1, 6).unwrap()), [1.0; 6]);
}

#[test]
fn writes_that_do_not_fit_a_cache_leave_it_as_it_is() {
    let cache = Tensor::zeros(&[2, 4, 3], DType::F32, Device::CPU).unwrap();
    let row = |shape: &[usize]| Tensor::zeros(shape, DType::F32, Device::CPU).unwrap();
    let words = ["slice_write_", "'pos' is 4", "4 positions", "from 0 to 3"];
    fails(write(&cache, &row(&[2, 3]), 4), ErrorKind::Index, &words);
    fails(write(&cache, &row(&[2, 3]), -1), ErrorKind::Index, &["'pos' is -1"]);
    fails(write(&cache, &row(&[2, 3]), i64::MAX), ErrorKind::Index, &["'pos' is 9"]);
    fails(write(&cache, &row(&[2, 3, 3]), 2), ErrorKind::Index, &["3 are written", "0 to 1"]);
    fails(write(&cache, &row(&[2, 5, 3]), 0), ErrorKind::Index, &["too many"]);
    for shape in [&[2, 4][..], &[1, 3], &[3], &[2, 1, 4], &[1, 2, 1, 3]] {
        let words = ["'source'", "[2, 4, 3]", "[2, 3]"];
        fails(write(&cache, &row(shape), 0), ErrorKind::Shape, &words);
    }
    let doubles = Tensor::zeros(&[2, 3], DType::C64, Device::CPU).unwrap();
    fails(write(&cache, &doubles, 0), ErrorKind::DType, &["complex64", "float32"]);
    fails(write(&row(&[3]), &row(&[]), 0), ErrorKind::Shape, &["'self'", "[3]"]);
    fails(write(&cache.into_read_only(), &row(&[2, 3]), 0), ErrorKind::ReadOnly, &["'self'"]);
    let cache = row(&[2, 4, 3]);
    fails(read(&cache, 5), ErrorKind::Index, &["'length' is 5", "4 positions"]);
    fails(read(&cache, -1), ErrorKind::Index, &["'length' is -1"]);
    assert_eq!(**read(&cache, 0).unwrap().shape(), [2, 0, 3]);
}
