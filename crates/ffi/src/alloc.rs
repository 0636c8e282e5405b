//! The allocator of tensor objects that foreign kernels create, which TVM FFI takes from its
//! environment.
//!
//! `ffi::Tensor::FromEnvAlloc` calls the thread's allocator. PyTorch sets one while it calls a
//! kernel. On threads without one keyfold sets its own, so that a kernel can return a new tensor.

use std::cell::Cell;
use std::ffi::{CString, c_char, c_int, c_void};
use std::panic::catch_unwind;
use std::ptr::{NonNull, null_mut};

use keyfold_core::{Error, ErrorKind, MAX_DIMS, Result, Shape};
use keyfold_tensor::Tensor;
use keyfold_tensor::dlpack::{self, DLManagedTensorVersioned, DLTensor};

use crate::error::kind_for;
use crate::runtime::Runtime;

type SetError = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char);

/// The type of DLPack's allocators.
pub(crate) type Allocator = unsafe extern "C" fn(
    *mut DLTensor,
    *mut *mut DLManagedTensorVersioned,
    *mut c_void,
    Option<SetError>,
) -> c_int;

pub(crate) type GetAllocator = unsafe extern "C" fn() -> Option<Allocator>;
pub(crate) type SetAllocator =
    unsafe extern "C" fn(Allocator, c_int, *mut Option<Allocator>) -> c_int;

thread_local! {
    static INSTALLED: Cell<bool> = const { Cell::new(false) };
}

/// Sets this thread's allocator if it has none; checked once per thread.
#[inline]
pub(crate) fn install(runtime: &Runtime) {
    if !INSTALLED.get() {
        INSTALLED.set(true);
        install_if_none(runtime);
    }
}

#[cold]
fn install_if_none(runtime: &Runtime) {
    let Some((get, set)) = runtime.allocator else { return };
    // SAFETY: the library's functions; they set this thread's allocator only, and `allocate` is
    // never unloaded.
    unsafe {
        if get().is_none() {
            set(allocate, 0, null_mut());
        }
    }
}

/// Allocates a tensor like the prototype.
unsafe extern "C" fn allocate(
    prototype: *mut DLTensor,
    out: *mut *mut DLManagedTensorVersioned,
    context: *mut c_void,
    set_error: Option<SetError>,
) -> c_int {
    // SAFETY: DLPack's contract: the prototype's dtype, device, ndim and shape are set.
    let made = catch_unwind(|| unsafe { allocate_like(&*prototype) });
    let error = match made {
        Ok(Ok(managed)) => {
            // SAFETY: `out` points to a writable pointer.
            unsafe { out.write(managed.as_ptr()) };
            return 0;
        }
        Ok(Err(error)) => error,
        Err(_) => Error::new(ErrorKind::KernelPanic, "keyfold's allocator panicked"),
    };
    let text = |text: &str| CString::new(text).unwrap_or_default();
    let (kind, message) = (text(kind_for(&error)), text(error.message()));
    if let Some(set_error) = set_error {
        // SAFETY: DLPack's contract; both texts are copied.
        unsafe { set_error(context, kind.as_ptr(), message.as_ptr()) };
    }
    -1
}

/// # Safety
/// `shape` points to `ndim` sizes.
unsafe fn allocate_like(prototype: &DLTensor) -> Result<NonNull<DLManagedTensorVersioned>> {
    let refused = |what: &str| Error::new(ErrorKind::Shape, format!("a tensor of {what}"));
    let ndim = usize::try_from(prototype.ndim)
        .ok()
        .filter(|ndim| *ndim <= MAX_DIMS && (*ndim == 0 || !prototype.shape.is_null()))
        .ok_or_else(|| refused(&format!("{} dimensions", prototype.ndim)))?;
    let mut shape = Shape::filled(0, ndim)?;
    for (at, size) in shape.iter_mut().enumerate() {
        // SAFETY: the caller's contract; `at` is below `ndim`.
        let given = unsafe { prototype.shape.add(at).read() };
        *size = usize::try_from(given).map_err(|_| refused(&format!("size {given}")))?;
    }
    let dtype = dlpack::dtype_from_dl(prototype.dtype)?;
    let device = dlpack::device_from_dl(prototype.device)?;
    dlpack::to_dlpack_versioned(&Tensor::empty(&shape, dtype, device)?, false)
}
