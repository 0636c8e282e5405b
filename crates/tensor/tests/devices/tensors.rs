use keyfold_backend::delayed::Call;
use keyfold_core::{Complex, DType, Device, ErrorKind, Scalar};
use keyfold_tensor::Tensor;

use crate::{Toy, bytes, refused};

#[test]
fn every_dtype_is_made_filled_and_read_on_a_device() {
    let toy = Toy::new();
    let device = toy.device(1);
    for dtype in DType::ALL {
        let value = Scalar::Bool(true);
        let full = Tensor::full(&[2, 3], value, dtype, device).unwrap();
        let host = Tensor::full(&[2, 3], value, dtype, Device::CPU).unwrap();
        assert_eq!((full.device(), full.dtype(), full.shape()), (device, dtype, host.shape()));
        assert_eq!(full.keys().len(), 1);
        assert_eq!(bytes(&full).unwrap(), bytes(&host).unwrap(), "{dtype}");
        assert_eq!(full.get_scalar(&[1, 2]).unwrap().as_complex(), Complex::new(1.0, 0.0));
        let zeros = Tensor::zeros(&[5], dtype, device).unwrap();
        assert_eq!(bytes(&zeros).unwrap(), vec![0; 5 * dtype.size()]);
        let empty = Tensor::empty(&[5], dtype, device).unwrap();
        assert_eq!((empty.device(), empty.numel()), (device, 5));
        if dtype == DType::Bool {
            assert_eq!(empty.to_vec::<bool>().unwrap(), [false; 5]);
        }
    }
    let value = Scalar::Complex(Complex::new(1.5, -2.0));
    let one = Tensor::full(&[], value, DType::C64, device).unwrap();
    assert_eq!(one.item().unwrap(), value);
    let full = Tensor::full(&[1], Scalar::Int(300), DType::U8, device);
    toy.refuses(full, ErrorKind::Value, &["300"]);
    toy.refuses(Tensor::zeros(&[1 << 40, 1 << 40], DType::U8, device), ErrorKind::Shape, &[""]);
}

#[test]
fn host_functions_do_not_read_a_devices_memory_by_address() {
    let toy = Toy::new();
    let t = Tensor::full(&[2], Scalar::Int(4), DType::I64, toy.device(0)).unwrap();
    let words = ["a tensor on toy:0", "copy it to the host with .cpu()"];
    toy.refuses(t.data_ptr::<i64>(), ErrorKind::Device, &words);
    toy.refuses(t.data_mut_ptr::<i64>(), ErrorKind::Device, &words);
    toy.refuses(t.as_slice::<i64>(), ErrorKind::Device, &words);
    toy.refuses(t.as_strided_slice::<i64>(), ErrorKind::Device, &words);
    toy.refuses(t.get::<i64>(&[0]), ErrorKind::Device, &words);
    toy.refuses(t.clone().as_mut_slice::<i64>(), ErrorKind::Device, &words);
    assert!(!t.is_pinned() && t.pinned().unwrap().is_none());
    assert_eq!((t.address(), t.raw_data_ptr().unwrap().addr()), (0, 0));
    toy.refuses(t.exchange_ptr(), ErrorKind::Device, &["toy:0", "no address"]);
    toy.refuses(t.get_scalar(&[2]), ErrorKind::Index, &["[2]"]);
    assert_eq!(toy.memory.counts().of(Call::Download), 0);
    // Functions that return a copy download it.
    assert_eq!(t.get_scalar(&[1]).unwrap(), Scalar::Int(4));
    assert_eq!(t.to_vec::<i64>().unwrap(), [4, 4]);
    toy.refuses(t.to_vec::<f32>(), ErrorKind::DType, &["int64"]);
}

#[test]
fn results_stay_on_the_device_of_their_operands() {
    let toy = Toy::new();
    let x = Tensor::from_slice(&[1_i64, 2, 3, 4, 5, 6], &[2, 3]).unwrap();
    let there = x.to_device(toy.device(1)).unwrap();
    let asked_for = toy.memory.counts().of(Call::Upload);
    let turned = there.transpose(0, 1).unwrap().flip(&[0]).unwrap();
    for result in [
        there.copy().unwrap(),
        there.contiguous().unwrap(),
        turned.copy().unwrap(),
        turned.contiguous().unwrap(),
        turned.reshape(&[-1]).unwrap(),
        there.slice(1, Some(1), None, 1).unwrap().copy().unwrap(),
        there.to_device(toy.device(1)).unwrap(),
    ] {
        assert_eq!(result.device(), toy.device(1));
    }
    assert_eq!(toy.memory.counts().of(Call::Upload), asked_for);
    assert_eq!(toy.memory.counts().of(Call::Download), 0);
    let dense = turned.contiguous().unwrap();
    assert!(dense.is_contiguous() && !dense.touches(&there) && turned.touches(&there));
    assert_eq!(dense.to_vec::<i64>().unwrap(), [3, 6, 2, 5, 1, 4]);
    // Another index of the same type is another device.
    let moved = turned.to_device(toy.device(0)).unwrap();
    assert_eq!(moved.device(), toy.device(0));
    assert_eq!(moved.to_vec::<i64>().unwrap(), [3, 6, 2, 5, 1, 4]);
    let words = ["toy:0", "tensor on toy:1", ".to(\"toy:1\")"];
    // SAFETY: nothing else accesses the memory.
    let mixed = unsafe { dense.copy_from(&moved) };
    toy.refuses(mixed, ErrorKind::Device, &words);
}

#[test]
fn nothing_moves_between_the_host_and_a_device_unasked() {
    let toy = Toy::new();
    let host = Tensor::from_slice(&[1.0_f32, 2.0], &[2]).unwrap();
    let there = Tensor::zeros(&[2], DType::F32, toy.device(0)).unwrap();
    let meta = Tensor::meta(&[2], DType::F32).unwrap();
    // SAFETY: nothing else accesses the memory.
    unsafe {
        toy.refuses(there.copy_from(&host), ErrorKind::Device, &["on cpu", "toy:0"]);
        toy.refuses(host.copy_from(&there), ErrorKind::Device, &["toy:0", ".to(\"cpu\")"]);
        toy.refuses(there.copy_from(&meta), ErrorKind::NotSupported, &["meta has no memory"]);
        toy.refuses(meta.copy_from(&there), ErrorKind::NotSupported, &["meta has no memory"]);
    }
    assert_eq!(host.to_vec::<f32>().unwrap(), [1.0, 2.0]);
    assert_eq!(there.to_vec::<f32>().unwrap(), [0.0, 0.0]);
    assert_eq!(toy.memory.counts().of(Call::Upload), 0);
}

#[test]
fn tensors_go_between_any_two_devices_when_asked() {
    let (one, other) = (Toy::new(), Toy::new());
    let x = Tensor::from_slice(&[1_u16, 2, 3, 4, 5, 6], &[2, 3]).unwrap();
    let devices = [Device::CPU, one.device(0), one.device(1), other.device(0)];
    for from in devices {
        for to in devices {
            let source = x.to_device(from).unwrap().transpose(0, 1).unwrap();
            let target = source.to_device(to).unwrap();
            assert_eq!((target.device(), target.shape()), (to, source.shape()));
            assert_eq!(target.to_vec::<u16>().unwrap(), [1, 4, 2, 5, 3, 6], "{from} to {to}");
            // A copy is contiguous; only the tensor itself, on its own device, may not be.
            assert_eq!(target.is_contiguous(), from != to);
            let empty = source.slice(0, Some(3), None, 1).unwrap().to_device(to).unwrap();
            assert_eq!((empty.device(), empty.shape()[..].to_vec()), (to, vec![0, 2]));
            assert!(empty.to_vec::<u16>().unwrap().is_empty());
        }
        let meta = x.to_device(from).unwrap().to_device(Device::META).unwrap();
        assert_eq!(
            (meta.device(), meta.shape(), meta.dtype()),
            (Device::META, x.shape(), x.dtype())
        );
        refused(meta.to_device(from), ErrorKind::Device, &["meta has no data", "zeros()"]);
    }
}

#[test]
fn writes_on_a_device_are_counted_and_read_before_they_overlap() {
    let toy = Toy::new();
    let x =
        Tensor::from_slice(&[1_i32, 2, 3, 4, 5], &[5]).unwrap().to_device(toy.device(0)).unwrap();
    let view = x.flip(&[0]).unwrap();
    let before = view.version();
    // SAFETY: nothing else accesses the memory.
    unsafe { x.copy_from(&view) }.unwrap();
    assert_ne!(view.version(), before);
    assert_eq!(x.to_vec::<i32>().unwrap(), [5, 4, 3, 2, 1]);
    let row = x.slice(0, None, Some(1), 1).unwrap();
    let wide = x.slice(0, Some(1), None, 1).unwrap();
    // SAFETY: as above.
    unsafe { wide.copy_from(&row) }.unwrap();
    assert_eq!(x.to_vec::<i32>().unwrap(), [5; 5]);
    let repeated = row.broadcast_to(&[4]).unwrap();
    // SAFETY: as above.
    let overlapping = unsafe { repeated.copy_from(&wide) };
    toy.refuses(overlapping, ErrorKind::Value, &["same element"]);
    // SAFETY: as above.
    let read_only = unsafe { x.clone().into_read_only().copy_from(&x) };
    toy.refuses(read_only, ErrorKind::ReadOnly, &[""]);
}

#[test]
fn meta_tensors_are_copied_without_memory() {
    let t = Tensor::meta_strided(&[2, 3], &[1, 2], DType::F64).unwrap();
    let copy = t.copy().unwrap();
    assert_eq!((copy.device(), copy.is_contiguous()), (Device::META, true));
    assert!(t.buffer().clone_buffer().unwrap().host_ptr().is_null());
    refused(t.to_vec::<f64>(), ErrorKind::NotSupported, &["meta has no memory"]);
    refused(t.get_scalar(&[0, 0]), ErrorKind::NotSupported, &["meta has no memory"]);
    assert!(t.exchange_ptr().unwrap().is_null());
}
