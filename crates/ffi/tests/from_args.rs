//! Arguments from a foreign caller, without TVM FFI's library.

use std::ffi::c_void;
use std::ptr::null_mut;

use keyfold_core::{ErrorKind, Result};
use keyfold_dispatch::schema::Type;
use keyfold_ffi::from_args::{ArgValue, BorrowTracker, from_arg};
use keyfold_ffi::{Any, abi};
use keyfold_tensor::dlpack::{DL_CPU, DL_FLOAT, DLDataType, DLDevice, DLTensor};
use keyfold_tensor::{Value, ValueRef};

/// Reads a value for an argument of that type.
fn read_as<'a>(any: &'a Any, ty: &Type, tracker: &mut BorrowTracker) -> Result<ArgValue<'a>> {
    // SAFETY: the tests below pass valid pointers, or null.
    unsafe { from_arg(any, ty, None, tracker) }
}

fn told(any: &Any, ty: &Type) -> String {
    let mut tracker = BorrowTracker::default();
    read_as(any, ty, &mut tracker).map_or_else(
        |error| format!("{:?}: {error}", error.kind()),
        |read| <Value as keyfold_dispatch::Value>::describe(read.value()),
    )
}

#[test]
fn values_in_place() {
    let text = |any| told(&any, &Type::Scalar);
    assert_eq!(text(Any::NONE), "None");
    assert_eq!(text(Any::int(-3)), "int -3");
    assert_eq!(text(Any::bool(true)), "bool True");
    assert_eq!(text(Any::float(2.5)), "float 2.5");
    assert_eq!(text(Any::dtype(keyfold_core::DType::F16)), "dtype float16");
    assert_eq!(text(Any::device(keyfold_core::Device::cuda(1)).unwrap()), "device cuda:1");
}

#[test]
fn text_is_text_or_what_it_names() {
    let small = |text: &str| {
        let mut bytes = [0_u8; 8];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        Any {
            type_index: abi::SMALL_STR,
            small_len: text.len() as u32,
            payload: u64::from_ne_bytes(bytes),
        }
    };
    assert_eq!(told(&small("float32"), &Type::Str), "str 'float32'");
    assert_eq!(told(&small("float32"), &Type::ScalarType), "dtype float32");
    assert_eq!(told(&small("cpu"), &Type::Optional(Box::new(Type::Device))), "device cpu");
    let raw = Any::pointer(abi::RAW_STR, c"some longer text".as_ptr());
    assert_eq!(told(&raw, &Type::Str), "str 'some longer text'");
    assert!(told(&small("flat32"), &Type::ScalarType).contains("flat32"));
    let long = Any { small_len: 8, ..small("abc") };
    assert!(told(&long, &Type::Str).contains("a small text of 8 bytes"));
    let wild = Any { type_index: abi::SMALL_STR, small_len: 2, payload: 0xfefe };
    assert!(told(&wild, &Type::Str).contains("UTF-8"));
    assert!(told(&Any::new(abi::RAW_STR, 0), &Type::Str).contains("null"));
    let bytes = Any::pointer(abi::RAW_STR, c"\xff".as_ptr());
    assert!(told(&bytes, &Type::Str).contains("UTF-8"));
}

#[test]
fn kinds_that_arent_keyfolds_are_refused() {
    for index in [4, 9, 10, 12, 13, 63, -1] {
        let text = told(&Any::new(index, 0x1000), &Type::Int);
        assert!(text.contains(&format!("type index {index}")), "{text}");
    }
    // Refused without an access to the address.
    let text = told(&Any::new(abi::TENSOR, 0x1000), &Type::Tensor);
    assert!(text.contains("without TVM FFI's library"), "{text}");
}

fn dl(data: &mut [f64], shape: &mut [i64]) -> DLTensor {
    DLTensor {
        data: data.as_mut_ptr().cast::<c_void>(),
        device: DLDevice { device_type: DL_CPU, device_id: 0 },
        ndim: shape.len() as i32,
        dtype: DLDataType { code: DL_FLOAT, bits: 64, lanes: 1 },
        shape: shape.as_mut_ptr(),
        strides: null_mut(),
        byte_offset: 0,
    }
}

#[test]
fn a_lent_tensor_is_counted() {
    let (mut data, mut shape) = (vec![1.0, 2.0], [2]);
    let tensor = dl(&mut data, &mut shape);
    let any = Any::pointer(abi::DL_TENSOR, &raw const tensor);
    let mut tracker = BorrowTracker::default();
    let read = read_as(&any, &Type::Tensor, &mut tracker).unwrap();
    let ValueRef::Tensor(view) = read.value() else { panic!("no tensor") };
    assert_eq!(view.to_vec::<f64>().unwrap(), [1.0, 2.0]);
    assert!(tracker.contains(view));
    let kept = view.clone();
    drop(read);
    assert_eq!(tracker.outstanding(), 1);
    let copy = kept.copy().unwrap();
    assert!(!tracker.contains(&copy));
    drop(kept);
    assert_eq!(tracker.outstanding(), 0);
    assert_eq!(copy.to_vec::<f64>().unwrap(), [1.0, 2.0]);
}

#[test]
fn malformed_tensors_are_refused_with_the_reason() {
    let (mut data, mut shape) = (vec![1.0, 2.0], [2]);
    let good = dl(&mut data, &mut shape);
    let bad: &[(DLTensor, &str)] = &[
        (DLTensor { ndim: -1, ..good }, "ndim is -1"),
        (DLTensor { ndim: 65, ..good }, "ndim is 65"),
        (DLTensor { shape: null_mut(), ..good }, "shape is null"),
        (DLTensor { data: null_mut(), ..good }, "data is null"),
        (DLTensor { byte_offset: 1, ..good }, "multiple of 8"),
        (DLTensor { byte_offset: u64::MAX, ..good }, "overflows"),
        (DLTensor { byte_offset: 1 << 63, ..good }, "overflows"),
        (DLTensor { dtype: DLDataType { lanes: 4, ..good.dtype }, ..good }, "4 lanes"),
        (DLTensor { dtype: DLDataType { bits: 7, ..good.dtype }, ..good }, "7 bits"),
        (DLTensor { device: DLDevice { device_type: 99, ..good.device }, ..good }, "type 99"),
    ];
    for (tensor, reason) in bad {
        let text = told(&Any::pointer(abi::DL_TENSOR, tensor), &Type::Tensor);
        assert!(text.contains(reason), "{text} should say {reason}");
    }
    assert!(told(&Any::new(abi::DL_TENSOR, 0), &Type::Tensor).contains("null"));
    let odd = Any::new(abi::DL_TENSOR, (&raw const good).addr() as u64 + 1);
    let mut tracker = BorrowTracker::default();
    let error = read_as(&odd, &Type::Tensor, &mut tracker).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exchange);
    assert_eq!(tracker.outstanding(), 0);
}
