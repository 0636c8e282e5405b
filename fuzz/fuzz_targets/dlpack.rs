//! DLPack structs over real memory: importing refuses what is malformed and leaves it the caller's,
//! or gives a tensor that reads exactly the elements described; the deleter is called once, on
//! whatever thread; exporting and importing again gives the same tensor.
#![no_main]

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use keyfold_core::{DType, Element, ErrorKind};
use keyfold_fuzz::dlpack::{Model, Producer};
use keyfold_tensor::dlpack::{
    DLPACK_FLAG_READ_ONLY, DLPACK_MAJOR_VERSION, from_dlpack, from_dlpack_versioned, to_dlpack,
    to_dlpack_versioned, view_dl_tensor,
};
use keyfold_tensor::{ExternalOps, ExternalOwner, Tensor};
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    // Too short an input is none.
    let _ = run(&mut Unstructured::new(data));
});

fn run(input: &mut Unstructured<'_>) -> Result<()> {
    let producing = Producer::from_input(input)?;
    let actions: u32 = input.arbitrary().unwrap_or(0);
    let model = producing.model();
    view(&producing, model.as_ref(), actions & 1 != 0);
    let versioned = actions & 2 != 0;
    let supported = !versioned || producing.major() == DLPACK_MAJOR_VERSION;
    let read_only = versioned && producing.is_read_only();
    // SAFETY: a producer's struct that nobody consumed; memory that isn't there is never read.
    let imported = unsafe {
        if versioned {
            from_dlpack_versioned(producing.versioned())
        } else {
            from_dlpack(producing.old())
        }
    };
    match (imported, model.filter(|_| supported)) {
        (Err(error), None) => {
            let kinds = [ErrorKind::Exchange, ErrorKind::DType, ErrorKind::Device];
            assert!(kinds.contains(&error.kind()), "{error}");
            assert!(!error.message().is_empty() && error.message().len() < 4000, "{error}");
            producing.refused();
        }
        (Ok(tensor), Some(model)) => {
            assert_eq!(tensor.is_writable(), !read_only);
            check(&tensor, &model);
            assert_eq!(producing.deletions(), 0);
            round_trip(&tensor, &model, actions & 4 != 0);
            if actions & 32 != 0 {
                check_derived(&tensor, &model);
            }
            let another = tensor.clone();
            release(tensor, actions & 8 != 0);
            assert_eq!(producing.deletions(), 0);
            release(another, actions & 16 != 0);
            producing.done();
        }
        (imported, model) => panic!("{imported:?}, but the model says {model:?}"),
    }
    Ok(())
}

/// Drops a tensor, here or on another thread, and waits until it is gone.
fn release(tensor: Tensor, elsewhere: bool) {
    static WORKER: LazyLock<(SyncSender<Tensor>, std::sync::Mutex<Receiver<()>>)> =
        LazyLock::new(|| {
            let (send, receive) = sync_channel::<Tensor>(0);
            let (done, wait) = sync_channel(0);
            std::thread::spawn(move || {
                for tensor in receive {
                    drop(tensor);
                    if done.send(()).is_err() {
                        return;
                    }
                }
            });
            (send, std::sync::Mutex::new(wait))
        });
    if elsewhere {
        WORKER.0.send(tensor).unwrap();
        WORKER.1.lock().unwrap().recv().unwrap();
    }
}

/// Compares a tensor with the model, and reads every element where they are in real memory.
fn check(tensor: &Tensor, model: &Model) {
    assert_eq!((tensor.dtype(), tensor.device()), (model.dtype, model.device));
    assert_eq!(
        (&tensor.shape()[..], &tensor.strides()[..]),
        (&model.shape[..], &model.strides[..])
    );
    assert_eq!(tensor.numel(), model.shape.iter().product::<usize>());
    if let Some((low, high)) = model.span {
        assert_eq!(tensor.address(), model.first);
        assert_eq!(tensor.buffer().locate().unwrap().addr(), low);
        assert_eq!(tensor.buffer().len() * model.dtype.size(), high - low);
    }
    let Some(elements) = &model.elements else { return };
    assert_eq!(&read(tensor), elements);
    let last: Vec<usize> = model.shape.iter().map(|n| n.wrapping_sub(1)).collect();
    match tensor.get_scalar(&last) {
        Ok(_) => assert!(!elements.is_empty()),
        Err(error) => assert_eq!((error.kind(), elements.len()), (ErrorKind::Index, 0), "{error}"),
    }
}

/// Copies of the tensor and of its memory, and views of it, have the elements that they should.
fn check_derived(tensor: &Tensor, model: &Model) {
    let Some(elements) = &model.elements else { return };
    let copy = tensor.copy().unwrap();
    assert!(copy.is_contiguous() && copy.is_writable());
    assert_eq!(&read(&copy), elements);
    let duplicate = tensor.buffer().clone_buffer().unwrap();
    assert_eq!(duplicate.len(), tensor.buffer().len());
    views(tensor, model);
}

/// The elements' bytes in row-major order. Bools come as 0 or 1, so theirs are read as bytes.
fn read(tensor: &Tensor) -> Vec<u8> {
    fn bytes<T: Element, const N: usize>(tensor: &Tensor, to: impl Fn(T) -> [u8; N]) -> Vec<u8> {
        tensor.to_vec::<T>().unwrap().into_iter().flat_map(to).collect()
    }
    fn complex<T: Copy, const N: usize>(parts: [T; 2], to: impl Fn(T) -> [u8; N]) -> Vec<u8> {
        parts.into_iter().flat_map(to).collect()
    }
    match tensor.dtype() {
        DType::Bool | DType::U8 => bytes(tensor, u8::to_ne_bytes),
        DType::I8 => bytes(tensor, i8::to_ne_bytes),
        DType::U16 => bytes(tensor, u16::to_ne_bytes),
        DType::I16 => bytes(tensor, i16::to_ne_bytes),
        DType::U32 => bytes(tensor, u32::to_ne_bytes),
        DType::I32 => bytes(tensor, i32::to_ne_bytes),
        DType::U64 => bytes(tensor, u64::to_ne_bytes),
        DType::I64 => bytes(tensor, i64::to_ne_bytes),
        DType::F16 => bytes(tensor, keyfold_core::f16::to_ne_bytes),
        DType::BF16 => bytes(tensor, keyfold_core::bf16::to_ne_bytes),
        DType::F32 => bytes(tensor, f32::to_ne_bytes),
        DType::F64 => bytes(tensor, f64::to_ne_bytes),
        DType::C64 => tensor
            .to_vec::<keyfold_core::Complex<f32>>()
            .unwrap()
            .into_iter()
            .flat_map(|c| complex([c.re, c.im], f32::to_ne_bytes))
            .collect(),
        DType::C128 => tensor
            .to_vec::<keyfold_core::Complex<f64>>()
            .unwrap()
            .into_iter()
            .flat_map(|c| complex([c.re, c.im], f64::to_ne_bytes))
            .collect(),
    }
}

/// Exports the tensor, imports that, and compares.
fn round_trip(tensor: &Tensor, model: &Model, copied: bool) {
    let exported = to_dlpack_versioned(tensor, copied).unwrap();
    // SAFETY: a fresh export, consumed once.
    let back = unsafe {
        let read_only = exported.as_ref().flags & DLPACK_FLAG_READ_ONLY != 0;
        assert_eq!(read_only, !tensor.is_writable());
        from_dlpack_versioned(exported.as_ptr()).unwrap()
    };
    assert_eq!(back.is_writable(), tensor.is_writable());
    check(&back, model);
    match to_dlpack(tensor) {
        // SAFETY: as above.
        Ok(exported) => check(&unsafe { from_dlpack(exported.as_ptr()) }.unwrap(), model),
        Err(error) => assert!(!tensor.is_writable(), "{error}"),
    }
}

/// Views of the tensor read what the model's elements say.
fn views(tensor: &Tensor, model: &Model) {
    let elements = model.elements.as_deref().unwrap_or_default();
    if let [first, ..] = model.shape[..] {
        let flipped = tensor.flip(&[0]).unwrap();
        // The bytes of one row; a chunk of nothing is no chunk.
        let row = elements.len().checked_div(first);
        let turned: Vec<u8> =
            elements.chunks(row.unwrap_or(0).max(1)).rev().flatten().copied().collect();
        assert_eq!(read(&flipped), turned);
        if let Some(row) = row {
            let last = tensor.select(0, -1).unwrap();
            assert_eq!(read(&last), &elements[elements.len() - row..]);
            let rest = tensor.slice(0, Some(1), None, 1).unwrap();
            assert_eq!(read(&rest), &elements[row..]);
        }
    }
    let flat = tensor.reshape(&[-1]);
    if let Ok(flat) = flat {
        assert_eq!(read(&flat), elements);
    } else {
        assert!(elements.is_empty());
    }
}

/// A view of the array with an owner that counts, which agrees with the model too.
fn view(producing: &keyfold_fuzz::dlpack::Producing, model: Option<&Model>, owned: bool) {
    unsafe fn retain(count: *mut c_void) {
        // SAFETY: the count lives as long as the views.
        unsafe { &*count.cast::<AtomicUsize>() }.fetch_add(1, Ordering::SeqCst);
    }
    unsafe fn release(count: *mut c_void) {
        // SAFETY: as above.
        let before = unsafe { &*count.cast::<AtomicUsize>() }.fetch_sub(1, Ordering::SeqCst);
        assert!(before > 0, "released more often than retained");
    }
    static OPS: ExternalOps = ExternalOps { retain, release, adopt: None };
    let count = AtomicUsize::new(usize::from(owned));
    let object = NonNull::from(&count).cast();
    // SAFETY: the count outlives the views; memory that isn't there is never read.
    let viewed = unsafe {
        let owner = if owned {
            ExternalOwner::owned(object, &OPS)
        } else {
            ExternalOwner::borrowed(object, &OPS)
        };
        view_dl_tensor(producing.array(), owner, true)
    };
    match (viewed, model) {
        (Ok(tensor), Some(model)) => {
            assert!(!tensor.is_writable());
            check(&tensor, model);
            let clone = tensor.clone();
            drop(tensor);
            assert_eq!(count.load(Ordering::SeqCst), 1);
            drop(clone);
        }
        (Err(_), None) => {}
        (viewed, model) => panic!("{viewed:?}, but the model says {model:?}"),
    }
    assert_eq!(count.load(Ordering::SeqCst), 0);
}
