//! Helpers of the tests of operators: calls, random tensors, and naive models.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::sync::{Arc, OnceLock};

use keyfold_backend::GpuBackend;
use keyfold_core::{DType, Device, DeviceType, ErrorKind, Result, Scalar};
use keyfold_cpu::HostBackend;
use keyfold_dispatch::Dispatcher;
use keyfold_tensor::{Tensor, Value, ValueRef};
use proptest::prelude::*;

pub(crate) const DTYPES: [DType; 6] =
    [DType::F32, DType::F64, DType::I64, DType::Bool, DType::F16, DType::BF16];

pub(crate) fn dispatcher() -> &'static Dispatcher<Value> {
    static SHARED: OnceLock<Dispatcher<Value>> = OnceLock::new();
    SHARED.get_or_init(|| {
        let dispatcher = Dispatcher::new();
        keyfold_ops::register(&dispatcher).unwrap();
        let cpu: Arc<dyn GpuBackend> = Arc::new(HostBackend);
        keyfold_ops::install(&dispatcher, DeviceType::CPU, &cpu).unwrap().keep();
        dispatcher
    })
}

/// Calls `aten::name`.
pub(crate) fn call(name: &str, args: &[ValueRef<'_>]) -> Result<Tensor> {
    dispatcher().call(&format!("aten::{name}"), args)?.into_tensor()
}

/// Calls an operator of tensors only.
pub(crate) fn on(name: &str, tensors: &[&Tensor]) -> Result<Tensor> {
    let args: Vec<ValueRef<'_>> = tensors.iter().map(|t| ValueRef::Tensor(t)).collect();
    call(name, &args)
}

/// Asserts the kind of an error, and that the message contains these parts.
#[track_caller]
pub(crate) fn fails(result: Result<Tensor>, kind: ErrorKind, parts: &[&str]) {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    for part in parts {
        assert!(error.message().contains(part), "no {part:?} in: {error}");
    }
}

pub(crate) fn floats(items: &[f64]) -> Tensor {
    Tensor::from_slice(items, &[items.len()]).unwrap()
}

pub(crate) fn ints(items: &[i64]) -> Tensor {
    Tensor::from_slice(items, &[items.len()]).unwrap()
}

pub(crate) fn bools(items: &[bool]) -> Tensor {
    Tensor::from_slice(items, &[items.len()]).unwrap()
}

/// Returns every index of a shape, in row-major order.
pub(crate) fn indices(shape: &[usize]) -> Vec<Vec<usize>> {
    let mut all = vec![vec![]];
    for &size in shape {
        all = all
            .into_iter()
            .flat_map(|index: Vec<usize>| (0..size).map(move |i| [index.as_slice(), &[i]].concat()))
            .collect();
    }
    all
}

/// Returns a tensor's elements as floats, in row-major order, read one index at a time.
pub(crate) fn values(tensor: &Tensor) -> Vec<f64> {
    indices(tensor.shape()).iter().map(|i| tensor.get_scalar(i).unwrap().as_f64()).collect()
}

/// Returns the element of a tensor that broadcasts to a result's index.
pub(crate) fn broadcast_get(tensor: &Tensor, index: &[usize]) -> f64 {
    let skipped = index.len() - tensor.ndim();
    let own: Vec<usize> =
        index[skipped..].iter().zip(&**tensor.shape()).map(|(i, n)| i % n).collect();
    tensor.get_scalar(&own).unwrap().as_f64()
}

/// Asserts equality up to a number of units in the last place of the dtype; NaN equals NaN.
#[track_caller]
pub(crate) fn assert_close(tensor: &Tensor, expected: &[f64], ulps: f64) {
    let epsilon = match tensor.dtype() {
        DType::BF16 => 2.0_f64.powi(-7),
        DType::F16 => 2.0_f64.powi(-10),
        DType::F32 => f64::from(f32::EPSILON),
        _ => f64::EPSILON,
    };
    let got = values(tensor);
    assert_eq!(got.len(), expected.len(), "{tensor:?}");
    for (got, expected) in got.iter().zip(expected) {
        let same = got == expected
            || got.is_nan() && expected.is_nan()
            || (got - expected).abs() <= ulps * epsilon * expected.abs().max(1.0);
        assert!(same, "{got} is not {expected} in {tensor:?}");
    }
}

/// Returns a tensor on meta with the same shape, strides and dtype.
pub(crate) fn to_meta(tensor: &Tensor) -> Tensor {
    use keyfold_core::layout::bounds;
    let (shape, strides) = (tensor.shape().clone(), tensor.strides().clone());
    let low: isize = shape
        .iter()
        .zip(&strides)
        .map(|(n, s)| if *n > 0 { (*n as isize - 1) * s.min(&0) } else { 0 })
        .sum();
    let offset = if tensor.numel() == 0 { 0 } else { low.unsigned_abs() };
    let len = bounds(&shape, &strides, offset).unwrap().map_or(0, |(_, last)| last + 1);
    let buffer = Tensor::meta(&[len], tensor.dtype()).unwrap().into_buffer();
    Tensor::from_parts(buffer, shape, strides, offset).unwrap()
}

/// Asserts that a result is contiguous, doesn't require grad, and is on that device.
#[track_caller]
pub(crate) fn assert_fresh(tensor: &Tensor, device: Device) {
    use keyfold_core::layout::contiguous_strides;
    assert_eq!(*tensor.strides(), contiguous_strides(tensor.shape()));
    assert_eq!((tensor.offset(), tensor.device()), (0, device));
    assert!(!tensor.requires_grad());
}

/// A contiguous tensor of integers from -8 to 8 that every dtype can hold (bool: not zero).
pub(crate) fn small(shape: Vec<usize>, dtype: DType) -> impl Strategy<Value = Tensor> {
    let count = shape.iter().product();
    proptest::collection::vec(-8_i64..9, count..=count).prop_map(move |items| {
        let whole = Tensor::from_vec(items, &shape).unwrap();
        call("to", &[ValueRef::Tensor(&whole), ValueRef::DType(dtype)]).unwrap()
    })
}

/// Returns another layout of the same tensor: with gaps, reversed or transposed.
pub(crate) fn scramble(tensor: &Tensor, seed: u64) -> Tensor {
    let mut layout: Vec<i64> = (0..tensor.ndim() as i64).collect();
    if seed & 1 == 1 {
        layout.reverse();
    }
    let mut wide: Vec<usize> = layout.iter().map(|d| tensor.shape()[*d as usize]).collect();
    let gap = seed & 2 == 2 && !wide.is_empty();
    if gap {
        let last = wide.len() - 1;
        wide[last] = wide[last] * 2 + 1;
    }
    let mut view = Tensor::zeros(&wide, tensor.dtype(), tensor.device()).unwrap();
    if gap {
        view = view.slice(-1, Some(1), None, 2).unwrap();
    }
    view = view.permute(&layout).unwrap();
    if seed & 4 == 4 {
        view = view.flip(&layout).unwrap();
    }
    // SAFETY: nothing else refers to the new memory.
    unsafe { view.copy_from(tensor).unwrap() };
    view
}

pub(crate) fn dtype() -> impl Strategy<Value = DType> {
    proptest::sample::select(&DTYPES[..])
}

/// Shapes of up to three dimensions, empty ones among them.
pub(crate) fn shape() -> impl Strategy<Value = Vec<usize>> {
    proptest::collection::vec(0_usize..5, 0..4)
}

/// A tensor of any dtype and layout.
pub(crate) fn any_tensor() -> impl Strategy<Value = Tensor> {
    (shape(), dtype(), 0_u64..8).prop_flat_map(|(shape, dtype, seed)| {
        small(shape, dtype).prop_map(move |t| scramble(&t, seed))
    })
}

/// Two tensors, of any dtypes and layouts, that broadcast.
pub(crate) fn any_pair() -> impl Strategy<Value = (Tensor, Tensor)> {
    (shape(), any::<[u8; 2]>(), dtype(), dtype(), 0_u64..8, 0_u64..8).prop_flat_map(
        |(shape, ones, a, b, seed_a, seed_b)| {
            let variant = |bits: u8| {
                // The low bits select the dimensions of size 1, the high ones the number of omitted dimensions.
                let mut shape = shape.clone();
                for (i, size) in shape.iter_mut().enumerate() {
                    if bits >> i & 1 == 1 {
                        *size = 1;
                    }
                }
                shape.split_off(usize::from(bits >> 6).min(shape.len()))
            };
            (
                small(variant(ones[0]), a).prop_map(move |t| scramble(&t, seed_a)),
                small(variant(ones[1]), b).prop_map(move |t| scramble(&t, seed_b)),
            )
        },
    )
}

pub(crate) fn scalar() -> impl Strategy<Value = Scalar> {
    prop_oneof![
        any::<bool>().prop_map(Scalar::Bool),
        (-5_i64..6).prop_map(Scalar::Int),
        (-5_i64..6).prop_map(|i| Scalar::Float(i as f64 / 2.0)),
    ]
}
