//! A DLPack producer with memory of its own, whose structs say what the input wants, and a naive
//! model of what importing them gives.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use keyfold_core::{DType, Device, MAX_DIMS};
use keyfold_tensor::dlpack::{
    DL_CPU, DL_CUDA, DL_CUDA_HOST, DL_CUDA_MANAGED, DL_ROCM_HOST, DLDataType, DLDevice,
    DLManagedTensor, DLManagedTensorVersioned, DLPACK_FLAG_READ_ONLY, DLPackVersion, DLTensor,
    dtype_to_dl,
};
use libfuzzer_sys::arbitrary::{self, Arbitrary, Unstructured};

/// Bytes of memory that a producer has: enough for a few elements of the largest type.
const MEMORY: usize = 256;

/// What a number in a struct is: mostly small, so that tensors come out, and sometimes any.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Number {
    Small(u8),
    Less(u8),
    Power(u8),
    Any(i64),
}

impl Number {
    /// The number, the small ones below `end`.
    fn value(self, end: u8) -> i64 {
        match self {
            Number::Small(n) => i64::from(n % end),
            Number::Less(n) => -i64::from(n % end),
            // Powers of two and their neighbours: where sums and products overflow.
            Number::Power(n) => {
                let power = 1_i64.wrapping_shl(u32::from(n / 4));
                power.wrapping_add(i64::from(n % 4) - 1)
            }
            Number::Any(n) => n,
        }
    }
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Data {
    Start,
    /// So many bytes behind the start.
    Behind(u8),
    Null,
}

/// What the structs say, beside the dimensions.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct Plan {
    data: Data,
    byte_offset: Number,
    /// A dtype that there is, or any.
    dtype: Result<u8, (u8, u8, u16)>,
    device: Option<(i8, i16)>,
    ndim: Option<i32>,
    shape_is_null: bool,
    strides_are_null: bool,
    version: Option<(u8, u32)>,
    flags: u64,
    has_deleter: bool,
}

/// A struct to be imported, and what it points to. It frees itself when its deleter is called.
pub struct Producer {
    versioned: DLManagedTensorVersioned,
    old: DLManagedTensor,
    memory: Vec<u128>,
    shape: Vec<i64>,
    strides: Vec<i64>,
    deleted: Arc<AtomicUsize>,
}

impl Producer {
    /// A producer as the input wants it, on the heap, and the count of its deletions.
    pub fn from_input(input: &mut Unstructured<'_>) -> arbitrary::Result<Producing> {
        let plan: Plan = input.arbitrary()?;
        let dims: Vec<(Number, Number)> = match input.int_in_range(0..=31_u8)? {
            // Beyond what a tensor may have, and just not.
            31 => vec![(Number::Small(1), Number::Small(1)); input.int_in_range(60..=70)?],
            n => (0..n % 8).map(|_| input.arbitrary()).collect::<Result<_, _>>()?,
        };
        let shape: Vec<i64> = dims.iter().map(|(size, _)| size.value(5)).collect();
        let strides: Vec<i64> = dims.iter().map(|(_, stride)| stride.value(7)).collect();
        let mut memory = vec![0_u128; MEMORY / 16];
        for (i, word) in memory.iter_mut().enumerate() {
            *word = (i as u128 + 1) * 0x0102_0408_1020_4080_0103_070f_1f3f_7fff;
        }
        let deleted = Arc::new(AtomicUsize::new(0));
        let start = memory.as_mut_ptr().cast::<u8>();
        let data = match plan.data {
            Data::Start => start,
            Data::Behind(n) => start.wrapping_add(n.into()),
            Data::Null => null_mut(),
        };
        let dtype = match plan.dtype {
            Ok(n) => dtype_to_dl(DType::ALL[usize::from(n) % DType::ALL.len()]),
            Err((code, bits, lanes)) => DLDataType { code, bits, lanes },
        };
        let device = match plan.device {
            None => DLDevice { device_type: DL_CPU, device_id: 0 },
            Some((kind, id)) => DLDevice { device_type: kind.into(), device_id: id.into() },
        };
        // A number of dimensions that the arrays don't have is outside the contract, unless it is
        // one that must be refused before they are read.
        let ndim = match plan.ndim {
            Some(n) if !(0..=MAX_DIMS as i32).contains(&n) => n,
            _ => shape.len() as i32,
        };
        let (major, minor) = plan.version.unwrap_or((1, 0));
        let producer = Box::new(Producer {
            versioned: DLManagedTensorVersioned {
                version: DLPackVersion { major: major.into(), minor },
                manager_ctx: null_mut(),
                deleter: plan.has_deleter.then_some(delete_versioned),
                flags: plan.flags,
                dl_tensor: DLTensor {
                    data: data.cast(),
                    device,
                    ndim,
                    dtype,
                    shape: null_mut(),
                    strides: null_mut(),
                    byte_offset: plan.byte_offset.value(64) as u64,
                },
            },
            old: DLManagedTensor {
                dl_tensor: DLTensor {
                    data: null_mut(),
                    device,
                    ndim: 0,
                    dtype,
                    shape: null_mut(),
                    strides: null_mut(),
                    byte_offset: 0,
                },
                manager_ctx: null_mut(),
                deleter: plan.has_deleter.then_some(delete_old),
            },
            memory,
            shape,
            strides,
            deleted: Arc::clone(&deleted),
        });
        let raw = Box::into_raw(producer);
        // SAFETY: the box is ours until it is deleted, and stays where it is.
        unsafe {
            let tensor = &mut (*raw).versioned.dl_tensor;
            if !plan.shape_is_null {
                tensor.shape = (*raw).shape.as_mut_ptr();
            }
            if !plan.strides_are_null {
                tensor.strides = (*raw).strides.as_mut_ptr();
            }
            (*raw).versioned.manager_ctx = raw.cast();
            (*raw).old.manager_ctx = raw.cast();
            (*raw).old.dl_tensor = (*raw).versioned.dl_tensor;
        }
        Ok(Producing { raw, deleted, has_deleter: plan.has_deleter })
    }
}

unsafe fn delete(context: *mut c_void) {
    // SAFETY: every struct here has its boxed producer as the context, and is deleted once.
    let producer = unsafe { Box::from_raw(context.cast::<Producer>()) };
    assert_eq!(producer.deleted.fetch_add(1, Ordering::SeqCst), 0, "deleted twice");
}

unsafe extern "C" fn delete_versioned(managed: *mut DLManagedTensorVersioned) {
    // SAFETY: as `delete`.
    unsafe { delete((*managed).manager_ctx) }
}

unsafe extern "C" fn delete_old(managed: *mut DLManagedTensor) {
    // SAFETY: as `delete`.
    unsafe { delete((*managed).manager_ctx) }
}

/// A producer whose struct may or may not have been consumed.
pub struct Producing {
    raw: *mut Producer,
    deleted: Arc<AtomicUsize>,
    has_deleter: bool,
}

impl Producing {
    /// The struct with a version.
    pub fn versioned(&self) -> *mut DLManagedTensorVersioned {
        // SAFETY: the producer hasn't been deleted; no reference is made.
        unsafe { &raw mut (*self.raw).versioned }
    }

    /// The struct of before versions.
    pub fn old(&self) -> *mut DLManagedTensor {
        // SAFETY: as above.
        unsafe { &raw mut (*self.raw).old }
    }

    /// The array that both describe.
    pub fn array(&self) -> &DLTensor {
        // SAFETY: as above; only what is in the box itself is borrowed.
        unsafe { &(*self.raw).versioned.dl_tensor }
    }

    /// The major version that the struct has.
    pub fn major(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.raw).versioned.version.major }
    }

    /// Whether the struct says that its memory must not be written.
    pub fn is_read_only(&self) -> bool {
        // SAFETY: as above.
        unsafe { (*self.raw).versioned.flags & DLPACK_FLAG_READ_ONLY != 0 }
    }

    /// How often the deleter was called.
    pub fn deletions(&self) -> usize {
        self.deleted.load(Ordering::SeqCst)
    }

    /// What importing must give; `None` where it must be refused.
    pub fn model(&self) -> Option<Model> {
        // SAFETY: the producer hasn't been deleted, and nobody writes to it.
        let producer = unsafe { &*self.raw };
        Model::of(
            &producer.versioned.dl_tensor,
            &producer.shape,
            &producer.strides,
            &producer.memory,
        )
    }

    /// Ends it after the importer refused the struct, which must be as it was.
    pub fn refused(self) {
        assert_eq!(self.deletions(), 0, "a refused struct stays the caller's");
        // SAFETY: nobody else has it.
        unsafe { delete(self.raw.cast()) };
    }

    /// Ends it after the last user of an imported struct is gone.
    pub fn done(self) {
        assert_eq!(self.deletions(), usize::from(self.has_deleter));
        if !self.has_deleter {
            // SAFETY: nobody called a deleter, and nobody uses the memory any more.
            unsafe { delete(self.raw.cast()) };
        }
    }
}

/// The dtype of a code, if there is one.
pub fn dtype_of(code: DLDataType) -> Option<DType> {
    DType::ALL.into_iter().find(|dtype| dtype_to_dl(*dtype) == code)
}

/// The device of a code, if there is one.
pub fn device_of(code: DLDevice) -> Option<Device> {
    match code.device_type {
        DL_CPU | DL_CUDA_HOST | DL_ROCM_HOST => Some(Device::CPU),
        DL_CUDA | DL_CUDA_MANAGED => Some(Device::cuda(code.device_id.try_into().ok()?)),
        _ => None,
    }
}

/// A tensor as the struct describes it, computed with numbers that can't overflow.
#[derive(Debug)]
pub struct Model {
    pub dtype: DType,
    pub device: Device,
    pub shape: Vec<usize>,
    pub strides: Vec<isize>,
    /// The first element's address.
    pub first: usize,
    /// The lowest address of an element, and the one behind the highest; nothing without elements.
    pub span: Option<(usize, usize)>,
    /// The elements' bytes in row-major order, where they all lie in the producer's memory, are
    /// reachable from the host and few.
    pub elements: Option<Vec<u8>>,
}

/// The most elements that are compared one by one.
const FEW: i128 = 4096;

impl Model {
    fn of(tensor: &DLTensor, shape: &[i64], strides: &[i64], memory: &[u128]) -> Option<Model> {
        if tensor.ndim < 0 || tensor.ndim > MAX_DIMS as i32 {
            return None;
        }
        let dtype = dtype_of(tensor.dtype)?;
        let device = device_of(tensor.device)?;
        if (tensor.shape.is_null() && !shape.is_empty()) || shape.iter().any(|n| *n < 0) {
            return None;
        }
        let size = dtype.size() as i128;
        // Sizes of 0 don't hide that the others are too large.
        let mut whole = size;
        for n in shape {
            whole = whole.checked_mul(i128::from(*n).max(1))?;
            if whole > i128::from(i64::MAX) {
                return None;
            }
        }
        let row_major: Vec<i64> = (0..shape.len())
            .map(|i| shape[i + 1..].iter().map(|n| (*n).max(1)).product())
            .collect();
        let strides = if tensor.strides.is_null() { &row_major } else { strides };
        let first = i128::from(tensor.data.addr() as u64) + i128::from(tensor.byte_offset);
        // No memory reaches that far from its start.
        if tensor.byte_offset >= 1 << 57 || first > i128::from(u64::MAX) {
            return None;
        }
        let empty = shape.contains(&0);
        let mut span = None;
        if !empty {
            if tensor.data.is_null() || first % dtype.align() as i128 != 0 {
                return None;
            }
            let reach = |sign: i128| -> i128 {
                let ends = shape.iter().zip(strides);
                let far = ends.map(|(n, s)| (i128::from(*n) - 1) * i128::from(*s));
                far.filter(|far| far.signum() == sign).sum()
            };
            let (low, high) = (first + reach(-1) * size, first + (reach(1) + 1) * size);
            // The first address is nobody's, and no object is larger than half the address space.
            if low <= 0 || high > i128::from(u64::MAX) || high - low > i128::from(i64::MAX) {
                return None;
            }
            span = Some((low as usize, high as usize));
        }
        let start = memory.as_ptr().addr();
        let inside = span.is_none_or(|(low, high)| low >= start && high <= start + MEMORY);
        let count: i128 = shape.iter().map(|n| i128::from(*n)).product();
        let elements = (inside && device == Device::CPU && count <= FEW).then(|| {
            // The other sizes beside a 0 may be any.
            let mut offsets = if empty { Vec::new() } else { vec![first - start as i128] };
            for (n, stride) in shape.iter().zip(strides) {
                let step = |i: i64| i128::from(i) * i128::from(*stride) * size;
                offsets = offsets.iter().flat_map(|o| (0..*n).map(move |i| o + step(i))).collect();
            }
            let bytes: Vec<u8> = memory.iter().flat_map(|word| word.to_ne_bytes()).collect();
            let element = |offset: i128| &bytes[offset as usize..][..dtype.size()];
            offsets.into_iter().flat_map(element).copied().collect()
        });
        Some(Model {
            dtype,
            device,
            shape: shape.iter().map(|n| *n as usize).collect(),
            strides: strides.iter().map(|n| *n as isize).collect(),
            first: first as usize,
            span,
            elements,
        })
    }
}
