//! torch's tensors read where they lie.
//!
//! torch's own functions for this (DLPack's C exchange API, `is_neg`, `requires_grad`) take 40 to 90
//! ns each, and the API neither tells of the conjugate and negative bits nor of `requires_grad`. The
//! fields that answer all of it lie side by side in one struct (`c10/core/TensorImpl.h`, whose sizes
//! torch itself asserts). Their places are *checked* before they are used: when the first tensor is
//! seen, sample tensors of every kind are read and compared with what torch says of them
//! (`keyfold/_torch_samples.py`). If one answer differs, nothing is read here, and torch's functions
//! are asked instead.
//!
//! A tensor is taken only if its key set equals, bit by bit, that of the plain samples: dense, on
//! the CPU, not conjugated, not negated, not wrapped by a transform. Whatever else there is goes the
//! general way.

use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicPtr, AtomicU8, AtomicU32, Ordering};

use keyfold_core::DType;
use pyo3::ffi;
use pyo3::prelude::*;

/// `THPVariable.cdata`: behind what every Python object begins with.
const IMPLEMENTATION: usize = size_of::<ffi::PyObject>();
/// `TensorImpl.storage_`
const STORAGE: usize = 16;
/// `TensorImpl.autograd_meta_`
const AUTOGRAD: usize = 24;
/// `TensorImpl.version_counter_`, which tensors over the same memory share
const COUNTER: usize = 40;
/// `TensorImpl.pyobj_slot_`: the Python object itself
const OBJECT: usize = 48;
/// `TensorImpl.sizes_and_strides_`: the count, then both inline or a pointer to both.
const NDIM: usize = 56;
const SIZES: usize = 64;
const INLINE: usize = 5;
/// `TensorImpl.storage_offset_`, in elements
const OFFSET: usize = 144;
/// `TensorImpl.numel_`
const NUMEL: usize = 152;
/// `TensorImpl.data_type_`: torch's number of the dtype
const DTYPE: usize = 160;
/// `TensorImpl.key_set_`
const KEYS: usize = 168;
/// `StorageImpl.data_ptr_`
const DATA: usize = 16;
/// `StorageImpl.size_bytes_`
const BYTES: usize = 48;
/// `StorageImpl.has_mutable_data_ptr_check_`: memory that is shared until it is written, or that
/// must not be read.
const CHECKED: usize = 59;

/// `VersionCounter.version_`
const VERSION: usize = 16;

/// torch's numbers of dtypes are below this.
const DTYPES: usize = 64;

/// The checked layout, and the values that only the samples tell.
pub(crate) struct Layout {
    plain: u64,
    dtypes: [Option<DType>; DTYPES],
    /// Whether the counts of writes were found as well.
    has_versions: bool,
}

/// A storage of torch's, whose memory can be moved while tensors share it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Storage(NonNull<u8>);

impl Storage {
    /// Where its memory is now, and how many bytes there are; `None` where torch must be asked. It
    /// can be read without the GIL, as torch's own kernels read it.
    ///
    /// # Safety
    /// The storage is alive.
    pub(crate) unsafe fn extent(self) -> Option<(*mut u8, usize)> {
        let base = self.0.as_ptr();
        // SAFETY: the fields are inside the live struct, aligned, and were checked with the layout.
        // They are read as atomics, since another thread may move the memory meanwhile.
        unsafe {
            if AtomicU8::from_ptr(base.add(CHECKED)).load(Ordering::Relaxed) != 0 {
                return None;
            }
            let first =
                AtomicPtr::from_ptr(base.add(DATA).cast::<*mut u8>()).load(Ordering::Relaxed);
            let bytes = AtomicI64::from_ptr(base.add(BYTES).cast()).load(Ordering::Relaxed);
            Some((first, usize::try_from(bytes).ok()?))
        }
    }
}

/// A dense tensor on the CPU.
pub(crate) struct Dense<'a> {
    pub(crate) dtype: DType,
    pub(crate) data: *mut u8,
    pub(crate) sizes: &'a [i64],
    pub(crate) strides: &'a [i64],
    /// Whether it may have a place in torch's graph: then torch is to be asked.
    pub(crate) has_autograd: bool,
}

impl Dense<'_> {
    /// How many bytes there are from the first element to the end of the last.
    pub(crate) fn span(&self) -> Option<usize> {
        let steps = self.sizes.iter().zip(self.strides);
        let last =
            steps.fold(0_i64, |last, (n, stride)| last.wrapping_add((n - 1).wrapping_mul(*stride)));
        usize::try_from(last).ok()?.checked_add(1)?.checked_mul(self.dtype.size())
    }
}

static LAYOUT: OnceLock<Option<Layout>> = OnceLock::new();

/// The layout, if it was checked and found right.
#[inline(always)]
pub(crate) fn layout() -> Option<&'static Layout> {
    LAYOUT.get()?.as_ref()
}

/// # Safety
/// `at` is inside the live struct that begins at `base`.
#[inline(always)]
unsafe fn word(base: *const u8, at: usize) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { base.add(at).cast::<u64>().read_unaligned() }
}

/// # Safety
/// As [`word`].
#[inline(always)]
unsafe fn pointer(base: *const u8, at: usize) -> *const u8 {
    // SAFETY: the caller's promise.
    unsafe { base.add(at).cast::<*const u8>().read_unaligned() }
}

/// # Safety
/// `object` is a live torch tensor.
#[inline(always)]
unsafe fn implementation(object: *mut ffi::PyObject) -> *const u8 {
    // SAFETY: every torch tensor object has that field there (`torch/csrc/autograd/python_variable.h`).
    unsafe { pointer(object.cast::<u8>().cast_const(), IMPLEMENTATION) }
}

impl Layout {
    /// dtype and number of dimensions of a plain tensor; `None` for any other.
    ///
    /// # Safety
    /// `object` is a live torch tensor, and the GIL is held.
    #[inline(always)]
    pub(crate) unsafe fn plain(&self, object: *mut ffi::PyObject) -> Option<(DType, usize)> {
        // SAFETY: the layout was checked against torch's answers.
        unsafe {
            let tensor = implementation(object);
            if tensor.is_null() || word(tensor, KEYS) != self.plain {
                return None;
            }
            let number = word(tensor, DTYPE) as u16;
            let dtype = (*self.dtypes.get(usize::from(number))?)?;
            Some((dtype, word(tensor, NDIM) as usize))
        }
    }

    /// Everything of a plain tensor; `None` for any other, and for memory that isn't simply there.
    ///
    /// # Safety
    /// As [`Layout::plain`]; the slices are good while the GIL is held and nothing of torch runs.
    #[inline(always)]
    pub(crate) unsafe fn dense<'a>(&self, object: *mut ffi::PyObject) -> Option<Dense<'a>> {
        // SAFETY: as above; the storage belongs to the tensor, and both slices lie inside it or in
        // its own memory.
        unsafe {
            let (dtype, ndim) = self.plain(object)?;
            let tensor = implementation(object);
            let storage = pointer(tensor, STORAGE);
            if ndim > keyfold_core::MAX_DIMS || storage.is_null() || *storage.add(CHECKED) != 0 {
                return None;
            }
            let (sizes, strides) = shape(tensor, ndim);
            let size = dtype.size() as i64;
            let first = word(tensor, OFFSET) as i64;
            // A storage can be made smaller under its tensors; torch looks when it computes.
            let mut last = first;
            for (n, stride) in sizes.iter().zip(strides) {
                last = last.checked_add((n - 1).checked_mul(*stride)?)?;
            }
            let end = last.checked_add(1)?.checked_mul(size)?;
            if word(tensor, NUMEL) != 0 && end > word(storage, BYTES) as i64 {
                return None;
            }
            let offset = first.wrapping_mul(size) as usize;
            let data = pointer(storage, DATA).wrapping_add(offset).cast_mut();
            let has_autograd = !pointer(tensor, AUTOGRAD).is_null();
            Some(Dense { dtype, data, sizes, strides, has_autograd })
        }
    }

    /// The storage of a plain tensor; `None` for any other.
    ///
    /// # Safety
    /// As [`Layout::plain`]. The result is good while the tensor has that storage.
    pub(crate) unsafe fn storage(&self, object: *mut ffi::PyObject) -> Option<Storage> {
        // SAFETY: as above.
        unsafe {
            self.plain(object)?;
            NonNull::new(pointer(implementation(object), STORAGE).cast_mut()).map(Storage)
        }
    }

    /// torch's own count of the writes to a plain tensor's memory, which belongs to the tensor; `None`
    /// for tensors without one, and where it wasn't found.
    ///
    /// # Safety
    /// As [`Layout::plain`].
    pub(crate) unsafe fn version(&self, object: *mut ffi::PyObject) -> Option<NonNull<AtomicU32>> {
        // SAFETY: as above; the counter's place was checked with the layout.
        unsafe {
            self.plain(object).filter(|_| self.has_versions)?;
            version_at(implementation(object))
        }
    }

    /// How many elements a plain tensor has.
    ///
    /// # Safety
    /// As [`Layout::plain`].
    pub(crate) unsafe fn numel(&self, object: *mut ffi::PyObject) -> Option<usize> {
        // SAFETY: as above.
        unsafe { self.plain(object).map(|_| word(implementation(object), NUMEL) as usize) }
    }
}

/// # Safety
/// `tensor` is the live struct of a tensor of that many dimensions.
#[inline(always)]
unsafe fn shape<'a>(tensor: *const u8, ndim: usize) -> (&'a [i64], &'a [i64]) {
    // SAFETY: up to five of each lie in the struct, more of them where its pointer says.
    unsafe {
        let inline = ndim <= INLINE;
        let first = if inline { tensor.add(SIZES) } else { pointer(tensor, SIZES) }.cast::<i64>();
        let second = first.add(if inline { INLINE } else { ndim });
        (std::slice::from_raw_parts(first, ndim), std::slice::from_raw_parts(second, ndim))
    }
}

/// # Safety
/// `tensor` is the live struct of a tensor.
unsafe fn version_at(tensor: *const u8) -> Option<NonNull<AtomicU32>> {
    // SAFETY: the caller's promise; the field is null or points to a counter.
    unsafe {
        let counter = pointer(tensor, COUNTER);
        let usable = !counter.is_null() && counter.addr().is_multiple_of(8);
        usable.then(|| NonNull::new(counter.add(VERSION).cast_mut().cast()))?
    }
}

/// A tensor of which torch's answers are known.
struct Sample<'py> {
    tensor: Bound<'py, PyAny>,
    kind: String,
    data: usize,
    bytes: u64,
    sizes: Vec<i64>,
    strides: Vec<i64>,
    dtype: String,
    version: u32,
}

/// How often the samples are tried: the first sight may be inside a mode of torch's that changes
/// what is made there.
const TRIES: u32 = 8;
static TRIED: AtomicU32 = AtomicU32::new(0);

/// Checks the layout, unless that was done. Called where a tensor is seen the slow way.
#[cold]
pub(crate) fn calibrate(py: Python<'_>) {
    if LAYOUT.get().is_some() || TRIED.fetch_add(1, Ordering::Relaxed) >= TRIES {
        return;
    }
    // An exception of the samples (an old torch, a mode) doesn't concern the call that runs now.
    if let Ok(Some(layout)) = read_samples(py) {
        let _ = LAYOUT.set(Some(layout));
    }
}

fn read_samples(py: Python<'_>) -> PyResult<Option<Layout>> {
    if cfg!(not(all(target_pointer_width = "64", target_endian = "little"))) {
        return Ok(None);
    }
    let given = py.import("keyfold._torch_samples")?.call_method0("samples")?;
    let mut samples = Vec::new();
    for item in given.try_iter()? {
        let (tensor, kind, data, bytes, sizes, strides, dtype, version) = item?.extract()?;
        samples.push(Sample { tensor, kind, data, bytes, sizes, strides, dtype, version });
    }
    // SAFETY: live tensors; each look goes no further than what the looks before it confirmed.
    Ok(unsafe { check(&samples) })
}

/// # Safety
/// The samples' tensors are torch's.
unsafe fn check(samples: &[Sample<'_>]) -> Option<Layout> {
    let plain = samples.iter().filter(|sample| sample.kind != "other");
    let first = implementation_of(samples.first()?)?;
    // SAFETY: a tensor's struct has at least these 176 bytes in every version with this header.
    let keys = unsafe { word(first, KEYS) };
    let mut layout = Layout { plain: keys, dtypes: [None; DTYPES], has_versions: false };
    for sample in samples {
        let tensor = implementation_of(sample)?;
        let dtype = sample.dtype.parse::<DType>().ok();
        // SAFETY: as above; only numbers inside the struct are looked at here.
        unsafe {
            let is_plain = word(tensor, KEYS) == layout.plain;
            if is_plain != (sample.kind != "other") {
                return None;
            }
            let count: i64 = sample.sizes.iter().product();
            if is_plain
                && (word(tensor, NUMEL) != count as u64
                    || word(tensor, NDIM) != sample.sizes.len() as u64)
            {
                return None;
            }
            let number = usize::from(word(tensor, DTYPE) as u16);
            if is_plain {
                let place = layout.dtypes.get_mut(number)?;
                if place.is_some_and(|known| Some(known) != dtype) {
                    return None;
                }
                *place = dtype;
            }
        }
    }
    for sample in plain {
        let tensor = implementation_of(sample)?;
        // SAFETY: the numbers of all samples were right, so the pointers between them are what the
        // header says; each is read through only after the one before it was right.
        unsafe {
            let (sizes, strides) = shape(tensor, sample.sizes.len());
            if sizes != sample.sizes || strides != sample.strides {
                return None;
            }
            let storage = pointer(tensor, STORAGE);
            if storage.is_null()
                || (*storage.add(CHECKED) != 0) != (sample.kind == "lazy")
                || word(storage, BYTES) != sample.bytes
            {
                return None;
            }
            let has_autograd = !pointer(tensor, AUTOGRAD).is_null();
            let (is_plain, has_grad) = (sample.kind == "plain", sample.kind == "grad");
            if (is_plain && has_autograd) || (has_grad && !has_autograd) {
                return None;
            }
            if sample.kind == "lazy" {
                continue;
            }
            let dense = layout.dense(sample.tensor.as_ptr())?;
            let empty = sizes.contains(&0);
            if !empty && dense.data.addr() != sample.data {
                return None;
            }
        }
    }
    // SAFETY: as above.
    layout.has_versions = unsafe { samples.iter().all(|sample| has_version(sample)) };
    // The samples must have told the kinds apart that matter.
    let has = |kind: &str| samples.iter().any(|sample| sample.kind == kind);
    ["plain", "grad", "lazy", "other"].iter().all(|kind| has(kind)).then_some(layout)
}

/// Whether the count of a sample's writes is where it is expected. The field before `sizes` must hold
/// the object itself, so that the fields around it are those of the header.
///
/// # Safety
/// The sample's struct was found right.
unsafe fn has_version(sample: &Sample<'_>) -> bool {
    let Some(tensor) = implementation_of(sample) else { return false };
    // SAFETY: as for the caller.
    unsafe {
        word(tensor, OBJECT) == sample.tensor.as_ptr() as u64
            && version_at(tensor)
                .is_some_and(|count| count.as_ref().load(Ordering::Relaxed) == sample.version)
    }
}

fn implementation_of(sample: &Sample<'_>) -> Option<*const u8> {
    // SAFETY: a live tensor of torch's.
    let tensor = unsafe { implementation(sample.tensor.as_ptr()) };
    (!tensor.is_null() && tensor.addr().is_multiple_of(8)).then_some(tensor)
}
