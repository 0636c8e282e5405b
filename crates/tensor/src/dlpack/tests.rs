use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use keyfold_core::{DType, Device, ErrorKind, Result, Scalar, Shape, layout};

use super::*;
use crate::buffer::{BufferHandle, DeviceBuffer, ExternalOps, ExternalOwner};
use crate::tensor::Tensor;

/// A producer: data, shape and strides on the heap, and a count of deletions.
struct Producer {
    data: Vec<f64>,
    shape: Vec<i64>,
    strides: Vec<i64>,
    deleted: AtomicUsize,
}

unsafe extern "C" fn count_deletion(managed: *mut DLManagedTensorVersioned) {
    // SAFETY: every struct of this test has its Producer as the context.
    let producer = unsafe { &*(*managed).manager_ctx.cast::<Producer>() };
    producer.deleted.fetch_add(1, Ordering::SeqCst);
}

impl Producer {
    fn new(shape: &[i64], strides: &[i64]) -> Box<Producer> {
        let data = (0..12).map(f64::from).collect();
        let (shape, strides) = (shape.to_vec(), strides.to_vec());
        Box::new(Producer { data, shape, strides, deleted: AtomicUsize::new(0) })
    }

    fn managed(&mut self) -> DLManagedTensorVersioned {
        DLManagedTensorVersioned {
            version: DLPackVersion { major: 1, minor: 3 },
            manager_ctx: (&raw mut *self).cast(),
            deleter: Some(count_deletion),
            flags: 0,
            dl_tensor: DLTensor {
                data: self.data.as_mut_ptr().cast(),
                device: DLDevice { device_type: DL_CPU, device_id: 0 },
                ndim: self.shape.len() as i32,
                dtype: dtype_to_dl(DType::F64),
                shape: self.shape.as_mut_ptr(),
                strides: self.strides.as_mut_ptr(),
                byte_offset: 0,
            },
        }
    }

    fn deleted(&self) -> usize {
        self.deleted.load(Ordering::SeqCst)
    }
}

#[test]
fn an_import_shares_memory_and_deletes_once_on_the_last_drop() {
    let mut producer = Producer::new(&[2, 3], &[-3, 2]);
    let mut managed = producer.managed();
    managed.dl_tensor.byte_offset = 6 * 8;
    // SAFETY: the producer and the struct outlive the tensors, and the view is inside its data.
    let tensor = unsafe { from_dlpack_versioned(&mut managed) }.unwrap();
    assert_eq!(tensor.to_vec::<f64>().unwrap(), [6.0, 8.0, 10.0, 3.0, 5.0, 7.0]);
    assert_eq!(tensor.raw_data_ptr().unwrap().cast::<f64>(), producer.data[6..].as_mut_ptr());
    assert!(tensor.is_writable() && tensor.strides() == &[-3, 2]);
    let row = tensor.select(0, 1).unwrap();
    let copy = tensor.buffer().clone_buffer().unwrap();
    drop(tensor);
    assert_eq!(producer.deleted(), 0);
    std::thread::spawn(move || drop(row)).join().unwrap();
    assert_eq!(producer.deleted(), 1);
    assert_eq!(copy.len(), 8);
}

#[test]
fn flags_null_strides_and_a_missing_deleter_are_understood() {
    let mut producer = Producer::new(&[2, 3], &[]);
    let mut managed = producer.managed();
    managed.flags = DLPACK_FLAG_READ_ONLY;
    managed.dl_tensor.strides = null_mut();
    managed.deleter = None;
    // SAFETY: the producer and the struct outlive the tensor.
    let mut tensor = unsafe { from_dlpack_versioned(&mut managed) }.unwrap();
    assert_eq!(tensor.strides(), &[3, 1]);
    assert_eq!(tensor.as_slice::<f64>().unwrap(), &producer.data[..6]);
    assert_eq!(tensor.data_mut_ptr::<f64>().unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!(tensor.as_mut_slice::<f64>().unwrap_err().kind(), ErrorKind::ReadOnly);
    drop(tensor);
    assert_eq!(producer.deleted(), 0);
}

#[test]
fn an_imported_tensor_never_gives_a_mutable_slice() {
    let mut producer = Producer::new(&[2], &[1]);
    let mut managed = producer.managed();
    // SAFETY: the producer and the struct outlive the tensor.
    let mut tensor = unsafe { from_dlpack_versioned(&mut managed) }.unwrap();
    assert!(tensor.data_mut_ptr::<f64>().is_ok());
    assert_eq!(tensor.as_mut_slice::<f64>().unwrap_err().kind(), ErrorKind::ReadOnly);
}

#[test]
fn every_malformed_struct_is_refused_and_stays_the_callers() {
    type Spoil = fn(&mut DLManagedTensorVersioned);
    let cases: [(Spoil, ErrorKind, &str); 22] = [
        (|m| m.version.major = 2, ErrorKind::Exchange, "version 2.3"),
        (|m| m.version.major = 0, ErrorKind::Exchange, "version 0.3"),
        (|m| m.dl_tensor.data = null_mut(), ErrorKind::Exchange, "data is null"),
        (|m| m.dl_tensor.ndim = -1, ErrorKind::Exchange, "ndim is -1"),
        (|m| m.dl_tensor.ndim = 65, ErrorKind::Exchange, "ndim is 65"),
        (|m| m.dl_tensor.shape = null_mut(), ErrorKind::Exchange, "shape is null"),
        (|m| set(m.dl_tensor.shape, -2), ErrorKind::Exchange, "dimension 0 is -2"),
        (|m| set(m.dl_tensor.shape, i64::MAX), ErrorKind::Exchange, "too large"),
        (|m| set(m.dl_tensor.strides, i64::MAX / 2), ErrorKind::Exchange, "address space"),
        (|m| set(m.dl_tensor.strides, i64::MIN), ErrorKind::Exchange, "address space"),
        (|m| m.dl_tensor.byte_offset = 4, ErrorKind::Exchange, "multiple of 8"),
        (|m| m.dl_tensor.byte_offset = u64::MAX, ErrorKind::Exchange, "overflows"),
        (|m| m.dl_tensor.byte_offset = 1 << 63, ErrorKind::Exchange, "overflows"),
        (|m| m.dl_tensor.byte_offset = 1 << 60, ErrorKind::Exchange, "overflows"),
        (|m| m.dl_tensor.dtype.lanes = 4, ErrorKind::DType, "4 lanes"),
        (|m| m.dl_tensor.dtype.lanes = 0, ErrorKind::DType, "0 lanes"),
        (|m| m.dl_tensor.dtype.bits = 80, ErrorKind::DType, "80 bits"),
        (|m| m.dl_tensor.dtype.code = 3, ErrorKind::DType, "code 3"),
        (|m| m.dl_tensor.dtype.code = 200, ErrorKind::DType, "code 200"),
        (|m| m.dl_tensor.device.device_type = 8, ErrorKind::Device, "type 8"),
        (|m| m.dl_tensor.device.device_type = -1, ErrorKind::Device, "type -1"),
        (
            |m| m.dl_tensor.device = DLDevice { device_type: DL_CUDA, device_id: 256 },
            ErrorKind::Device,
            "256",
        ),
    ];
    for (spoil, kind, word) in cases {
        let mut producer = Producer::new(&[2, 3], &[3, 1]);
        let mut managed = producer.managed();
        spoil(&mut managed);
        // SAFETY: only fields that the import checks are invalid.
        let error = unsafe { from_dlpack_versioned(&mut managed) }.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.message().contains(word), "{error} should say {word:?}");
        assert_eq!(producer.deleted(), 0, "{error}");
    }
    // SAFETY: null is allowed, and refused.
    let (new, old) = unsafe { (from_dlpack_versioned(null_mut()), from_dlpack(null_mut())) };
    assert_eq!(new.unwrap_err().kind(), ErrorKind::Exchange);
    assert_eq!(old.unwrap_err().kind(), ErrorKind::Exchange);
}

fn set(numbers: *mut i64, value: i64) {
    // SAFETY: a producer's shape and strides have an element here.
    unsafe { *numbers = value };
}

#[test]
fn zero_size_tensors_may_have_null_data_and_any_strides() {
    let mut producer = Producer::new(&[0, 3], &[i64::MAX, -7]);
    let mut managed = producer.managed();
    managed.dl_tensor.data = null_mut();
    // SAFETY: the producer and the struct outlive the tensor.
    let tensor = unsafe { from_dlpack_versioned(&mut managed) }.unwrap();
    assert_eq!((tensor.numel(), tensor.to_vec::<f64>().unwrap().len()), (0, 0));
    assert!(tensor.is_contiguous() && tensor.as_slice::<f64>().unwrap().is_empty());
    drop(tensor);
    assert_eq!(producer.deleted(), 1);
}

#[test]
fn memory_on_cuda_is_described_and_never_read() {
    let mut producer = Producer::new(&[2, 3], &[3, 1]);
    let mut managed = producer.managed();
    managed.dl_tensor.device = DLDevice { device_type: DL_CUDA, device_id: 1 };
    // SAFETY: the producer and the struct outlive the tensor.
    let tensor = unsafe { from_dlpack_versioned(&mut managed) }.unwrap();
    assert_eq!(tensor.device(), Device::cuda(1));
    assert_eq!(tensor.keys().to_string(), "DispatchKeySet(CUDA)");
    assert_eq!(tensor.raw_data_ptr().unwrap().cast::<f64>(), producer.data.as_mut_ptr());
    assert_eq!(tensor.as_slice::<f64>().unwrap_err().kind(), ErrorKind::Device);
    assert_eq!(tensor.copy().unwrap_err().kind(), ErrorKind::Device);
    let back = to_dlpack_versioned(&tensor, false).unwrap();
    // SAFETY: the export is alive until its deleter is called, which is right here.
    unsafe {
        assert_eq!(back.as_ref().dl_tensor.device, managed.dl_tensor.device);
        (back.as_ref().deleter.unwrap())(back.as_ptr());
    }
}

#[test]
fn exports_round_trip_for_every_dtype_and_layout() {
    for dtype in DType::ALL {
        let whole = Tensor::full(&[3, 4], Scalar::Bool(true), dtype, Device::CPU).unwrap();
        let view = whole.slice(1, None, None, -2).unwrap().transpose(0, 1).unwrap();
        for tensor in [&whole, &view] {
            let managed = to_dlpack_versioned(tensor, true).unwrap();
            // SAFETY: a new export, consumed once.
            let back = unsafe {
                assert_eq!(managed.as_ref().flags, DLPACK_FLAG_IS_COPIED);
                from_dlpack_versioned(managed.as_ptr()).unwrap()
            };
            assert_eq!((back.dtype(), back.shape()), (dtype, tensor.shape()));
            assert_eq!(back.strides(), tensor.strides());
            assert_eq!(back.raw_data_ptr().unwrap(), tensor.raw_data_ptr().unwrap());
            let old = to_dlpack(tensor).unwrap();
            // SAFETY: as above.
            let back = unsafe { from_dlpack(old.as_ptr()) }.unwrap();
            assert_eq!(back.get_scalar(&[0, 0]).unwrap(), tensor.get_scalar(&[0, 0]).unwrap());
        }
    }
}

#[test]
fn an_export_keeps_the_memory_until_it_is_deleted() {
    let mut tensor = Tensor::from_vec(vec![1_i64, 2], &[2]).unwrap();
    let managed = to_dlpack_versioned(&tensor, false).unwrap();
    assert!(tensor.as_mut_slice::<i64>().is_err());
    // SAFETY: the export is alive until its deleter is called.
    unsafe {
        let deleter = managed.as_ref().deleter.unwrap();
        let data = managed.as_ref().dl_tensor.data.cast::<i64>();
        assert_eq!(data.add(1).read(), 2);
        deleter(managed.as_ptr());
    }
    assert_eq!(tensor.as_mut_slice::<i64>().unwrap(), [1, 2]);
}

#[test]
fn exports_refuse_what_they_cannot_express() {
    let tensor = Tensor::zeros(&[2], DType::F32, Device::CPU).unwrap();
    let read_only = tensor.clone().into_read_only();
    assert_eq!(to_dlpack(&read_only).unwrap_err().kind(), ErrorKind::Exchange);
    let managed = to_dlpack_versioned(&read_only, false).unwrap();
    // SAFETY: a new export, consumed once.
    let back = unsafe {
        assert_eq!(managed.as_ref().flags, DLPACK_FLAG_READ_ONLY);
        from_dlpack_versioned(managed.as_ptr()).unwrap()
    };
    assert!(!back.is_writable());
    tensor.set_requires_grad(true).unwrap();
    let error = to_dlpack_versioned(&tensor, false).unwrap_err();
    assert!(error.message().contains("detach"), "{error}");
    let meta = Tensor::meta(&[2], DType::F32).unwrap();
    assert_eq!(to_dlpack_versioned(&meta, false).unwrap_err().kind(), ErrorKind::Exchange);
    let npu = keyfold_core::DeviceType::register("dlpack_test_npu").unwrap();
    assert_eq!(device_to_dl(Device::new(npu, 0)).unwrap_err().kind(), ErrorKind::Device);
    let empty = Tensor::zeros(&[0], DType::F32, Device::CPU).unwrap();
    assert!(Described::new(&empty).unwrap().dl_tensor().data.is_null());
}

#[test]
fn a_described_tensor_can_be_viewed_with_another_owner() {
    unsafe fn nothing(_: *mut c_void) {}
    static OPS: ExternalOps = ExternalOps { retain: nothing, release: nothing, adopt: None };
    let tensor = Tensor::from_vec((0..6_i32).collect(), &[2, 3]).unwrap();
    let flipped = tensor.flip(&[0, 1]).unwrap();
    let mut described = Described::new(&flipped).unwrap();
    // SAFETY: the tensor outlives the view, and the ops do nothing.
    let view = unsafe {
        let owner = ExternalOwner::borrowed(NonNull::from(&tensor).cast(), &OPS);
        view_dl_tensor(&described.dl_tensor(), owner, true).unwrap()
    };
    assert_eq!(view.to_vec::<i32>().unwrap(), [5, 4, 3, 2, 1, 0]);
    assert!(!view.is_writable() && view.buffer().is_borrowed());
    assert_eq!(view.offset(), 5);
}

/// Three numbers at one of two addresses, the second of which they move to.
#[derive(Debug)]
struct Moving {
    places: [[f64; 3]; 2],
    now: AtomicPtr<u8>,
    device: Device,
}

impl Moving {
    fn tensor(device: Device) -> (Arc<Moving>, Tensor) {
        let places = [[1.0, 2.0, 3.0], [7.0, 8.0, 9.0]];
        let memory = Arc::new(Moving { places, now: AtomicPtr::new(null_mut()), device });
        memory.move_to(0);
        let buffer = BufferHandle::new(Arc::<Moving>::clone(&memory), DType::F64).unwrap();
        let shape = Shape::new(&[3]).unwrap();
        let strides = layout::contiguous_strides(&shape);
        let tensor = Tensor::from_parts(buffer, shape, strides, 0).unwrap();
        (memory, tensor)
    }

    fn move_to(&self, place: usize) {
        self.now.store(self.places[place].as_ptr().cast_mut().cast(), Ordering::SeqCst);
    }
}

// SAFETY: either address is in the value itself, and never written.
unsafe impl DeviceBuffer for Moving {
    fn device(&self) -> Device {
        self.device
    }

    fn byte_len(&self) -> usize {
        24
    }

    fn host_ptr(&self) -> Option<NonNull<u8>> {
        None
    }

    fn locate(&self) -> Result<*mut u8> {
        Ok(self.now.load(Ordering::SeqCst))
    }

    fn moves(&self) -> bool {
        true
    }
}

#[test]
fn an_export_of_memory_that_moves_is_a_copy() {
    let (memory, tensor) = Moving::tensor(Device::CPU);
    assert!(tensor.moves());
    let managed = to_dlpack_versioned(&tensor, false).unwrap();
    memory.move_to(1);
    // SAFETY: a new export, consumed once.
    let back = unsafe {
        assert_eq!(managed.as_ref().flags, DLPACK_FLAG_IS_COPIED);
        from_dlpack_versioned(managed.as_ptr()).unwrap()
    };
    assert_eq!(back.to_vec::<f64>().unwrap(), [1.0, 2.0, 3.0]);
    assert_eq!(tensor.to_vec::<f64>().unwrap(), [7.0, 8.0, 9.0]);
    let lasting = tensor.into_lasting().unwrap();
    assert!(!lasting.moves());
    memory.move_to(0);
    assert_eq!(lasting.to_vec::<f64>().unwrap(), [7.0, 8.0, 9.0]);
    let own = Tensor::zeros(&[2], DType::F64, Device::CPU).unwrap();
    let address = own.raw_data_ptr().unwrap();
    assert_eq!(own.into_lasting().unwrap().raw_data_ptr().unwrap(), address);
}

#[test]
fn memory_that_moves_where_the_host_cant_copy_isnt_handed_on() {
    let (_, tensor) = Moving::tensor(Device::cuda(0));
    let error = to_dlpack_versioned(&tensor, false).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exchange);
    assert!(error.message().contains("cuda:0"), "{error}");
}
