//! Unit tests of the plugin's side, over a small host defined here.

use std::ffi::c_void;
use std::ptr::null_mut;

use crate::abi::{self, Any, CallFrame, DLDataType, DLDevice, DLTensor, HostTable, Text};
use crate::error::Error;
use crate::register::{Return, short_name};
use crate::tensor::{Peers, TensorMut, TensorView};
use crate::{Args, Bool, DType, Device, ErrorKind, KeySet};

/// Memory with a shape, as a host describes it.
struct Array {
    dl: DLTensor,
    _shape: Vec<i64>,
    _strides: Vec<i64>,
}

impl Array {
    fn new<T>(data: *mut T, dtype: DType, shape: &[i64], strides: &[i64]) -> Self {
        let (mut shape, mut strides) = (shape.to_vec(), strides.to_vec());
        let dl = DLTensor {
            data: data.cast(),
            device: DLDevice { device_type: 1, device_id: 0 },
            ndim: shape.len() as i32,
            dtype: dtype.0,
            shape: shape.as_mut_ptr(),
            strides: strides.as_mut_ptr(),
            byte_offset: 0,
        };
        Array { dl, _shape: shape, _strides: strides }
    }

    fn view(&self) -> TensorView<'_> {
        TensorView::new(&self.dl, 0, Peers::NONE)
    }

    fn output(&self) -> TensorMut<'_> {
        TensorMut::new(&self.dl, 0, Peers::NONE)
    }

    fn any(&self) -> Any {
        Any::new(abi::TENSOR, std::ptr::from_ref(&self.dl) as u64)
    }
}

fn frame(inputs: usize, flags: &[u8]) -> CallFrame {
    CallFrame {
        size: size_of::<CallFrame>() as u32,
        inputs: inputs as i32,
        host: std::ptr::null(),
        data: null_mut(),
        keyset: 0,
        key: 0,
        flags: flags.as_ptr(),
        operator: Text::new("test::op"),
    }
}

/// Returns the arguments of a call with these values.
fn args<'a>(frame: &'a CallFrame, values: &'a [Any]) -> Args<'a> {
    // SAFETY: the values live as long as the result, with a flag for each.
    unsafe { Args::new(frame, values.as_ptr(), values.len() as i32) }
}

#[test]
fn elements_come_in_row_major_order_for_any_strides() {
    let mut data: Vec<f64> = (0..6).map(f64::from).collect();
    let at = data.as_mut_ptr();
    let read = |array: Array| array.view().elements::<f64>().unwrap().collect::<Vec<_>>();
    assert_eq!(read(Array::new(at, DType::F64, &[2, 3], &[3, 1])), [0., 1., 2., 3., 4., 5.]);
    assert_eq!(read(Array::new(at, DType::F64, &[3, 2], &[1, 3])), [0., 3., 1., 4., 2., 5.]);
    assert_eq!(read(Array::new(at, DType::F64, &[2, 2], &[0, 2])), [0., 2., 0., 2.]);
    let last = at.wrapping_add(5);
    assert_eq!(read(Array::new(last, DType::F64, &[6], &[-1])), [5., 4., 3., 2., 1., 0.]);
    assert_eq!(read(Array::new(at, DType::F64, &[2, 2, 1], &[3, 2, 7])), [0., 2., 3., 5.]);
    assert_eq!(read(Array::new(at, DType::F64, &[], &[])), [0.]);
    assert_eq!(read(Array::new(null_mut::<f64>(), DType::F64, &[2, 0], &[0, 1])), [0.; 0]);
}

#[test]
fn fill_writes_in_row_major_order_and_counts() {
    let mut data = vec![0_f32; 6];
    let array = Array::new(data.as_mut_ptr(), DType::F32, &[3, 2], &[1, 3]);
    array.output().fill((0..6).map(|v| v as f32)).unwrap();
    let few = array.output().fill([1_f32]).unwrap_err();
    assert_eq!(few.message(), "1 values for a tensor of 6 elements");
    array.output().fill([9_f32; 7]).unwrap_err();
    array.output().fill((0..6).map(|v| v as f32)).unwrap();
    assert_eq!(data, [0., 2., 4., 1., 3., 5.]);
}

#[test]
fn another_dtype_or_device_is_refused() {
    let mut data = [1_u8, 0, 7];
    let mut array = Array::new(data.as_mut_ptr(), DType::BOOL, &[3], &[1]);
    let error = array.view().elements::<f32>().unwrap_err();
    assert_eq!(error.message(), "a bool tensor can't be read or written as float32");
    assert_eq!(error.kind_name(), "DType");
    assert_eq!(array.view().elements::<bool>().unwrap().collect::<Vec<_>>(), [true, false, true]);
    assert_eq!(array.view().as_slice::<Bool>().unwrap()[2], Bool(7));
    array.dl.device = Device::cuda(1).0;
    let error = array.view().elements::<bool>().unwrap_err();
    assert!(error.message().contains("cuda:1"), "{error}");
}

#[test]
fn slices_need_order_and_alignment() {
    let mut data: Vec<f64> = (0..6).map(f64::from).collect();
    let at = data.as_mut_ptr();
    let row_major = Array::new(at, DType::F64, &[2, 1, 3], &[3, 77, 1]);
    assert_eq!(row_major.view().as_slice::<f64>().unwrap(), [0., 1., 2., 3., 4., 5.]);
    let column_major = Array::new(at, DType::F64, &[3, 2], &[1, 3]);
    let error = column_major.view().as_slice::<f64>().unwrap_err();
    assert!(error.message().contains("[1, 3]"), "{error}");
    let odd = Array::new(at.wrapping_byte_add(1), DType::F64, &[2], &[1]);
    assert!(odd.view().as_slice::<f64>().unwrap_err().message().contains("aligned"));
    assert_eq!(odd.view().elements::<f64>().unwrap().len(), 2);
    let empty = Array::new(null_mut::<f64>(), DType::F64, &[0], &[1]);
    assert_eq!(empty.view().as_slice::<f64>().unwrap(), [0.; 0]);
    assert_eq!(empty.output().as_mut_slice::<f64>().unwrap(), [0.; 0]);
}

#[test]
fn memory_that_two_arguments_share_is_no_slice() {
    let mut data = vec![1_f64; 8];
    let at = data.as_mut_ptr();
    let low = Array::new(at, DType::F64, &[4], &[1]);
    let high = Array::new(at.wrapping_add(4), DType::F64, &[4], &[1]);
    let middle = Array::new(at.wrapping_add(7), DType::F64, &[6], &[-1]);
    // Two inputs, one output.
    let flags = [0, 0, abi::FLAG_WRITABLE];
    let apart = [low.any(), low.any(), high.any()];
    let call = frame(2, &flags);
    let given = args(&call, &apart);
    assert_eq!(given.tensor(0).unwrap().as_slice::<f64>().unwrap().len(), 4);
    assert_eq!(given.output(0).unwrap().as_mut_slice::<f64>().unwrap().len(), 4);
    let shared = [low.any(), middle.any(), high.any()];
    let given = args(&call, &shared);
    given.tensor(0).unwrap().as_slice::<f64>().unwrap();
    let error = given.output(0).unwrap().as_mut_slice::<f64>().unwrap_err();
    assert!(error.message().contains("arguments 2 and 1 share memory"), "{error}");
    // Access element by element is allowed, also if the input is the output.
    let same = [low.any(), high.any(), low.any()];
    let given = args(&call, &same);
    given.tensor(0).unwrap().as_slice::<f64>().unwrap_err();
    let values = given.tensor(0).unwrap().elements::<f64>().unwrap();
    given.output(0).unwrap().fill(values.map(|v| v + 1.0)).unwrap();
    assert_eq!(data, [2., 2., 2., 2., 1., 1., 1., 1.]);
}

#[test]
fn written_tensors_are_given_once() {
    let mut data = [0_f64; 2];
    let array = Array::new(data.as_mut_ptr(), DType::F64, &[2], &[1]);
    let (flags, values) = ([abi::FLAG_WRITABLE, 0], [array.any(), Any::new(abi::INT, 3)]);
    let call = frame(2, &flags);
    let given = args(&call, &values);
    assert!(given.tensor(0).unwrap_err().message().contains("written()"));
    given.written(0).unwrap();
    assert!(given.written(0).unwrap_err().message().contains("before"));
    assert!(given.written(1).unwrap_err().message().contains("is an int, not a tensor"));
    assert!(given.output(0).unwrap_err().message().contains("output 0 of 0"));
    let call = frame(2, &[0, 0]);
    assert!(args(&call, &values).written(0).unwrap_err().message().contains("Tensor(a!)"));
}

#[test]
fn arguments_of_every_kind() {
    let ints = [4_i64, 5];
    let list = abi::IntSlice { data: ints.as_ptr(), len: 2 };
    let no_list = abi::IntSlice { data: std::ptr::null(), len: 0 };
    let dtype = Any::new(abi::DTYPE, 2 | 32 << 8 | 1 << 16);
    let values = [
        Any::new(abi::INT, -7_i64 as u64),
        Any::new(abi::FLOAT, 2.5_f64.to_bits()),
        Any::new(abi::BOOL, 1),
        Any::new(abi::TEXT, c"grün".as_ptr() as u64),
        Any::new(abi::NONE, 0),
        dtype,
        Any::new(abi::DEVICE, 2 | 1 << 32),
        Any::new(abi::INTS, std::ptr::from_ref(&list) as u64),
        Any::new(abi::INTS, std::ptr::from_ref(&no_list) as u64),
    ];
    let flags = [0; 9];
    let call = frame(values.len(), &flags);
    let given = args(&call, &values);
    assert_eq!((given.len(), given.outputs(), given.is_empty()), (9, 0, false));
    assert_eq!((given.int(0).unwrap(), given.float(0).unwrap()), (-7, -7.0));
    assert_eq!(given.optional_float(1).unwrap(), Some(2.5));
    assert!(given.bool(2).unwrap());
    assert_eq!(given.str(3).unwrap(), "grün");
    assert_eq!(given.dtype(5).unwrap(), DType::F32);
    assert_eq!(given.device(6).unwrap(), Device::cuda(1));
    assert_eq!(given.ints(7).unwrap(), [4, 5]);
    assert_eq!(given.ints(8).unwrap(), [0; 0]);
    assert!(given.is_none(4).unwrap());
    assert!(given.optional_int(4).unwrap().is_none());
    assert!(given.optional_bool(4).unwrap().is_none());
    assert!(given.optional_str(4).unwrap().is_none());
    assert!(given.optional_tensor(4).unwrap().is_none());
    let wrong = given.int(1).unwrap_err();
    assert_eq!(wrong.message(), "argument 1 is a float, not an int");
    assert_eq!(wrong.kind_name(), "Binding");
    assert_eq!(given.tensor(9).unwrap_err().message(), "argument 9 of 9 was asked for");
}

#[test]
fn key_sets_are_sets() {
    let (low, high) = (KeySet::from_bits(1), KeySet::from_bits(1 << 49));
    let both = low.union(high);
    assert!(both.contains(low) && both.contains(high) && both.contains(KeySet::EMPTY));
    assert_eq!(both.without(high), low);
    assert!(low.without(both).is_empty() && !low.contains(both));
}

#[test]
fn names_of_functions() {
    assert_eq!(short_name("my_crate::kernels::softplus"), "softplus");
    assert_eq!(short_name("my_crate::twice<f64>"), "twice");
    assert_eq!(short_name("my_crate::register::{{closure}}"), "closure in register");
}

#[test]
fn dtypes_and_devices_print_their_names() {
    assert_eq!(DType::BF16.to_string(), "bfloat16");
    let odd = DType(DLDataType { code: 2, bits: 8, lanes: 1 });
    assert_eq!(odd.to_string(), "dtype of code 2 and 8 bits");
    let names = [Device::CPU, Device::cuda(3), Device::META].map(|d| d.to_string());
    assert_eq!(names, ["cpu", "cuda:3", "meta"]);
}

#[test]
fn panics_become_errors_of_their_own_kind() {
    let text = |panic: Box<dyn std::any::Any + Send>| {
        let error = Error::panicked(panic);
        assert_eq!(error.kind_name(), "KernelPanic");
        error.message().to_owned()
    };
    assert_eq!(text(Box::new("plain")), "panicked: plain");
    assert_eq!(text(Box::new("made".to_owned())), "panicked: made");
    assert_eq!(text(Box::new(7)), "panicked: no message");
    assert_eq!(format!("{:?}", Error::new(ErrorKind::Index, "x")), "Index: x");
}

#[test]
fn what_kernels_return_has_a_code_of_its_own() {
    let codes = [<()>::CODE, i64::CODE, bool::CODE, f64::CODE, crate::OwnedTensor::CODE];
    assert_eq!(codes, [0, 1, 2, 3, 4]);
}

#[cfg(target_pointer_width = "64")]
#[test]
fn the_layouts_are_the_documented_ones() {
    assert_eq!((size_of::<abi::Descriptor>(), size_of::<CallFrame>()), (56, 64));
    assert_eq!(std::mem::offset_of!(abi::Descriptor, abi_major), 8);
    assert_eq!(size_of::<HostTable>(), 16 + 17 * size_of::<*const c_void>());
}
