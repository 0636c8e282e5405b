//! DLPack with devices that the standard doesn't define.

use std::ptr::NonNull;
use std::sync::Arc;

use keyfold_core::{DType, Device, ErrorKind, Scalar};
use keyfold_tensor::dlpack::{
    DL_EXT_DEV, DLManagedTensorVersioned, device_from_dl, device_to_dl, exported_device,
    extension_number, from_dlpack, from_dlpack_versioned, to_dlpack, to_dlpack_versioned,
};
use keyfold_tensor::{BufferHandle, DeviceBuffer, Tensor};

use crate::Toy;

/// Memory with a device address, which the host can't use.
#[derive(Debug)]
struct Addressed(Device);

const START: usize = 0x7000_0000;

// SAFETY: nothing changes, and there is no host address.
unsafe impl DeviceBuffer for Addressed {
    fn device(&self) -> Device {
        self.0
    }

    fn byte_len(&self) -> usize {
        64
    }

    fn host_ptr(&self) -> Option<NonNull<u8>> {
        None
    }

    fn locate(&self) -> keyfold_core::Result<*mut u8> {
        Ok(std::ptr::without_provenance_mut(START))
    }
}

fn taken(managed: NonNull<DLManagedTensorVersioned>) -> Tensor {
    // SAFETY: a new export, consumed once.
    unsafe { from_dlpack_versioned(managed.as_ptr()) }.unwrap()
}

#[test]
fn a_device_is_a_number_and_an_index() {
    let toy = Toy::new();
    let device = toy.device(1);
    let number = extension_number(device.kind()).unwrap();
    let code = exported_device(device).unwrap();
    assert_eq!((code.device_type, code.device_id), (DL_EXT_DEV, 256 * i32::from(number) + 1));
    assert_eq!(device_from_dl(code).unwrap(), device);
    assert_eq!(exported_device(Device::cuda(1)).unwrap(), device_to_dl(Device::cuda(1)).unwrap());
    assert_eq!(extension_number(Device::CPU.kind()), None);
    toy.refuses(device_to_dl(device), ErrorKind::Device, &["toy:1", ".cpu()"]);
    toy.refuses(exported_device(Device::META), ErrorKind::Exchange, &["meta"]);
}

#[test]
fn memory_comes_back_with_its_buffer() {
    let toy = Toy::new();
    let x = Tensor::full(&[2, 3], Scalar::Int(4), DType::I64, toy.device(0)).unwrap();
    let live = toy.memory.live();
    let view = x.transpose(0, 1).unwrap();
    let managed = to_dlpack_versioned(&view, false).unwrap();
    let back = taken(managed);
    assert!(back.buffer().shares_with(x.buffer()));
    assert_eq!((back.shape(), back.strides()), (view.shape(), view.strides()));
    let old = to_dlpack(&back).unwrap();
    drop((x, view, back));
    // SAFETY: a new export, consumed once.
    let last = unsafe { from_dlpack(old.as_ptr()) }.unwrap();
    assert_eq!(last.to_vec::<i64>().unwrap(), [4; 6]);
    assert_eq!(toy.memory.live(), live);
    drop(last);
    toy.memory.drain().unwrap();
    assert_eq!(toy.memory.live(), live - 1);
}

#[test]
fn an_address_of_the_device_is_given_and_may_be_counted_from() {
    let toy = Toy::new();
    let handle = BufferHandle::new(Arc::new(Addressed(toy.device(0))), DType::I64).unwrap();
    let x = Tensor::from_parts(handle, [4].into(), [1].into(), 2).unwrap();
    let mut managed = to_dlpack_versioned(&x, false).unwrap();
    // SAFETY: a new export.
    let given = unsafe { &mut managed.as_mut().dl_tensor };
    assert_eq!((given.data.addr(), given.byte_offset), (START, 16));
    // As a library does that adds the offset to the address.
    given.data = given.data.wrapping_byte_add(24);
    given.byte_offset = 0;
    let back = taken(managed);
    assert_eq!((back.offset(), back.shape()[0]), (3, 4));
    assert!(back.buffer().shares_with(x.buffer()));

    let mut managed = to_dlpack_versioned(&x, false).unwrap();
    // SAFETY: a new export, which the caller still owns after a refusal.
    unsafe {
        managed.as_mut().dl_tensor.data = std::ptr::without_provenance_mut(START + 64);
        let refused = from_dlpack_versioned(managed.as_ptr());
        toy.refuses(refused, ErrorKind::Exchange, &["toy:0", "0x70000040", "no memory"]);
        managed.as_mut().dl_tensor.data = std::ptr::without_provenance_mut(START);
    }
    drop(taken(managed));
}

#[test]
fn a_removed_memory_takes_nothing_back() {
    let toy = Toy::new();
    let x = Tensor::full(&[2], Scalar::Int(4), DType::I64, toy.device(0)).unwrap();
    let managed = to_dlpack_versioned(&x, false).unwrap();
    let memory = toy.registration.remove().unwrap();
    // SAFETY: a new export, which the caller still owns after a refusal.
    let refused = unsafe { from_dlpack_versioned(managed.as_ptr()) };
    toy.refuses(refused, ErrorKind::Device, &["no memory for toy:0"]);
    let again = keyfold_tensor::device::register(toy.device(0).kind(), memory).unwrap();
    assert_eq!(taken(managed).to_vec::<i64>().unwrap(), [4, 4]);
    again.remove();
}
