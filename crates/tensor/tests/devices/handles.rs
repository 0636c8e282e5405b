use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use keyfold_core::{DType, Device, ErrorKind, Scalar};
use keyfold_tensor::device::{Content, Memory};
use keyfold_tensor::{BufferHandle, DeviceBuffer, HostBuffer, Tensor};

use crate::{Toy, refused};

/// A backend's own object.
#[derive(Debug, PartialEq)]
struct Texture(Vec<u8>);

#[test]
fn test_gpu_buffer_handle() {
    let device = Device::cuda(1);
    let mut handle = BufferHandle::opaque(Box::new(Texture(vec![1, 2, 3, 4])), device, 4);
    assert_eq!((handle.device(), handle.dtype(), handle.len()), (device, DType::U8, 4));
    assert!(!handle.is_empty() && BufferHandle::opaque(Box::new(()), device, 0).is_empty());
    assert!(handle.host_ptr().is_null() && handle.locate().unwrap().is_null());
    assert_eq!(handle.downcast_ref::<Texture>(), Some(&Texture(vec![1, 2, 3, 4])));
    assert!(handle.downcast_ref::<HostBuffer>().is_none());
    handle.downcast_mut::<Texture>().unwrap().0[0] = 9;

    // Only the sole owner can take the object out.
    let shared = handle.clone();
    assert!(handle.downcast_mut::<Texture>().is_none());
    let handle = handle.into_inner::<Texture>().unwrap_err();
    assert_eq!(shared.downcast_ref::<Texture>(), handle.downcast_ref());
    drop(shared);
    let handle = handle.into_inner::<String>().unwrap_err();
    assert_eq!(handle.into_inner::<Texture>().unwrap(), Texture(vec![9, 2, 3, 4]));
}

#[test]
fn test_gpu_buffer_handle_debug() {
    let handle = BufferHandle::opaque(Box::new(Texture(Vec::new())), Device::cuda(1), 16);
    assert_eq!(format!("{handle:?}"), "BufferHandle(device=cuda:1, dtype=uint8, len=16)");
    let handle = handle.with_dtype(DType::F32).unwrap();
    assert_eq!(format!("{handle:?}"), "BufferHandle(device=cuda:1, dtype=float32, len=4)");
}

#[test]
fn an_opaque_handle_without_a_memory_is_not_copied() {
    let handle = BufferHandle::opaque(Box::new(Texture(vec![0; 4])), Device::cuda(0), 4);
    refused(handle.clone_buffer(), ErrorKind::Device, &["cuda:0", "can't be copied"]);
    let tensor = Tensor::from_parts(handle, [4].into(), [1].into(), 0).unwrap();
    refused(tensor.copy(), ErrorKind::Device, &["cuda:0"]);
    refused(tensor.to_vec::<u8>(), ErrorKind::Device, &["cuda:0", ".cpu()"]);
    refused(tensor.get_scalar(&[0]), ErrorKind::Device, &["cuda:0", ".cpu()"]);
    refused(tensor.exchange_ptr(), ErrorKind::Device, &["cuda:0", "no address"]);
}

#[test]
fn a_registered_memory_is_asked_for_an_opaque_handle_of_its_device() {
    let toy = Toy::new();
    let handle = BufferHandle::opaque(Box::new(Texture(vec![0; 4])), toy.device(0), 4);
    // This memory accesses only its own buffers, and says so.
    toy.refuses(handle.clone_buffer(), ErrorKind::Device, &["can't reach OpaqueBuffer"]);
    toy.memory.drain().unwrap();
    assert_eq!(toy.memory.live(), 0);
}

#[test]
fn a_buffer_knows_its_memory_and_shows_no_address() {
    let toy = Toy::new();
    let buffer = toy.memory.allocate(toy.device(1), 64, Content::Zeros).unwrap();
    assert!(buffer.host_ptr().is_none() && buffer.locate().unwrap().is_null());
    assert_eq!(buffer.memory().unwrap().device_count(), 2);
    let handle = BufferHandle::new(buffer, DType::F64).unwrap();
    assert_eq!((handle.len(), handle.device()), (8, toy.device(1)));
    let memory = format!("Borrowed(DelayedMemory({}))", toy.name);
    assert_eq!(format!("{:?}", handle.memory().unwrap()), memory);
    let host = Tensor::from_slice(&[1_u8], &[1]).unwrap();
    assert_eq!(format!("{:?}", host.buffer().memory().unwrap()), "Borrowed(HostMemory)");
}

#[test]
fn another_dtype_needs_aligned_memory() {
    let memory = Arc::new(HostBuffer::copy_of(&[1; 24]).unwrap());
    let handle = BufferHandle::new(memory as Arc<dyn DeviceBuffer>, DType::U8).unwrap();
    let wide = handle.with_dtype(DType::F64).unwrap();
    assert_eq!((wide.len(), wide.dtype()), (3, DType::F64));
    assert_eq!(wide.with_dtype(DType::C128).unwrap().len(), 1);
    let odd = HostBuffer::from_vec(vec![0_u8; 9]);
    let address = odd.host_ptr().unwrap().addr().get();
    let handle = BufferHandle::new(Arc::new(odd), DType::U8).unwrap().with_dtype(DType::F64);
    assert_eq!(handle.is_ok(), address.is_multiple_of(8));
}

/// Memory that is filled at the first access.
#[derive(Debug)]
struct Pending(OnceLock<HostBuffer>);

// SAFETY: filled memory doesn't change, and before there is no address.
unsafe impl DeviceBuffer for Pending {
    fn device(&self) -> Device {
        Device::CPU
    }

    fn byte_len(&self) -> usize {
        24
    }

    fn host_ptr(&self) -> Option<NonNull<u8>> {
        self.0.get()?.host_ptr()
    }

    fn locate(&self) -> keyfold_core::Result<*mut u8> {
        self.0.get_or_init(|| HostBuffer::from_vec(vec![1.0_f64, 2.0, 3.0])).locate()
    }
}

#[test]
fn a_pending_buffer_is_filled_by_every_reader() {
    let pending = || {
        let buffer = BufferHandle::new(Arc::new(Pending(OnceLock::new())), DType::F64).unwrap();
        let tensor = Tensor::from_parts(buffer, [3].into(), [1].into(), 0).unwrap();
        assert!(!tensor.is_pinned() && tensor.buffer().host_ptr().is_null());
        tensor
    };
    let whole = [1.0, 2.0, 3.0];
    assert_eq!(pending().to_vec::<f64>().unwrap(), whole);
    assert_eq!(pending().as_slice::<f64>().unwrap(), whole);
    assert_eq!(pending().as_strided_slice::<f64>().unwrap().0, whole);
    assert_eq!(pending().get::<f64>(&[1]).unwrap(), 2.0);
    assert_eq!(pending().get_scalar(&[2]).unwrap(), Scalar::Float(3.0));
    assert_eq!(pending().copy().unwrap().to_vec::<f64>().unwrap(), whole);
    assert_eq!(
        pending().flip(&[0]).unwrap().copy().unwrap().to_vec::<f64>().unwrap(),
        [3.0, 2.0, 1.0]
    );
    let buffer = pending().buffer().clone_buffer().unwrap();
    assert_eq!(buffer.into_inner::<HostBuffer>().unwrap().as_bytes()[..8], 1.0_f64.to_ne_bytes());
    let target = Tensor::zeros(&[3], DType::F64, Device::CPU).unwrap();
    // SAFETY: nothing else accesses the memory.
    unsafe { target.copy_from(&pending()) }.unwrap();
    assert_eq!(target.to_vec::<f64>().unwrap(), whole);
    let toy = Toy::new();
    let there = pending().to_device(toy.device(0)).unwrap();
    assert_eq!(there.to_vec::<f64>().unwrap(), whole);

    // A tensor that was made before the fill finds the memory, and is written in place.
    let early = pending();
    let address = early.exchange_ptr().unwrap();
    assert!(!address.is_null() && early.raw_data_ptr().unwrap() == address);
    assert_eq!(early.buffer().host_ptr(), address);
    assert!(early.pinned().unwrap().unwrap().is_pinned());
    // SAFETY: as above.
    unsafe { early.copy_from(&target.flip(&[0]).unwrap()) }.unwrap();
    assert_eq!(early.to_vec::<f64>().unwrap(), [3.0, 2.0, 1.0]);
}
