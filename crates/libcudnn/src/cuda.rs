//! NVIDIA's driver, as far as a plan needs it: a card's context, and memory in the order of its default stream.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use keyfold_core::{DType, Device, Error, ErrorKind, Result, Shape};
use keyfold_tensor::{BufferHandle, DeviceBuffer, Tensor};

use crate::library::loader_says;

/// The functions that are used. Their results are integers: a later driver may return others.
struct Functions {
    init: unsafe extern "C" fn(c_uint) -> c_int,
    count: unsafe extern "C" fn(*mut c_int) -> c_int,
    get: unsafe extern "C" fn(*mut c_int, c_int) -> c_int,
    name: unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int,
    retain: unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int,
    push: unsafe extern "C" fn(*mut c_void) -> c_int,
    pop: unsafe extern "C" fn(*mut *mut c_void) -> c_int,
    allocate: unsafe extern "C" fn(*mut u64, usize, *mut c_void) -> c_int,
    free: unsafe extern "C" fn(u64, *mut c_void) -> c_int,
    fill: unsafe extern "C" fn(u64, u8, usize, *mut c_void) -> c_int,
    synchronize: unsafe extern "C" fn(*mut c_void) -> c_int,
    error: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int,
}

/// The driver, initialised.
pub(crate) struct Driver {
    functions: Functions,
    _library: libloading::Library,
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CUDA's driver")
    }
}

fn wrong(what: String) -> Error {
    Error::new(ErrorKind::Device, what)
}

/// Returns the process's driver, loaded at the first call.
///
/// # Errors
/// [`ErrorKind::Device`] where there is none, or it finds no card.
pub(crate) fn driver() -> Result<&'static Driver> {
    static DRIVER: OnceLock<Driver> = OnceLock::new();
    match DRIVER.get() {
        Some(driver) => Ok(driver),
        // Two threads may load it at once: the loader counts.
        None => Driver::load().map(|driver| DRIVER.get_or_init(|| driver)),
    }
}

impl Driver {
    fn load() -> Result<Driver> {
        const FILE: &str = "libcuda.so.1";
        // SAFETY: NVIDIA's driver has no requirements for being loaded.
        let library = unsafe { libloading::Library::new(FILE) }.map_err(|error| {
            wrong(format!("NVIDIA's driver can't be loaded: {}", loader_says(&error)))
        })?;
        // SAFETY: the types are those of cuda.h, with enums and CUdevice as C's int, and CUdeviceptr 64 bits wide.
        unsafe fn find<T: Copy>(library: &libloading::Library, name: &str) -> Result<T> {
            // SAFETY: as the caller's.
            let found = unsafe { library.get::<T>(name) };
            found
                .map(|found| *found)
                .map_err(|_| wrong(format!("NVIDIA's driver has no function {name}")))
        }
        // SAFETY: each function is found by its own name, and declared as in cuda.h.
        let functions = unsafe {
            Functions {
                init: find(&library, "cuInit")?,
                count: find(&library, "cuDeviceGetCount")?,
                get: find(&library, "cuDeviceGet")?,
                name: find(&library, "cuDeviceGetName")?,
                retain: find(&library, "cuDevicePrimaryCtxRetain")?,
                push: find(&library, "cuCtxPushCurrent_v2")?,
                pop: find(&library, "cuCtxPopCurrent_v2")?,
                allocate: find(&library, "cuMemAllocAsync")?,
                free: find(&library, "cuMemFreeAsync")?,
                fill: find(&library, "cuMemsetD8Async")?,
                synchronize: find(&library, "cuStreamSynchronize")?,
                error: find(&library, "cuGetErrorString")?,
            }
        };
        let driver = Driver { functions, _library: library };
        // SAFETY: flags are 0, as cuda.h wants them.
        driver.check(unsafe { (driver.functions.init)(0) }, "cuInit")?;
        Ok(driver)
    }

    fn check(&self, code: c_int, call: &str) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        let mut text: *const c_char = std::ptr::null();
        // SAFETY: it writes a pointer to a text that lives for ever, or none for an unknown code.
        let found = unsafe { (self.functions.error)(code, &mut text) } == 0 && !text.is_null();
        let said = match found {
            // SAFETY: it isn't null, as found above.
            true => unsafe { CStr::from_ptr(text) }.to_string_lossy(),
            false => "no text for it".into(),
        };
        let kind = if code == 2 { ErrorKind::Memory } else { ErrorKind::Device };
        Err(Error::new(kind, format!("CUDA: {call} gave {code} ({said})")))
    }

    /// Returns a card's context, which the process's CUDA runtime uses as well.
    ///
    /// # Errors
    /// [`ErrorKind::Device`] for a number that no card has.
    pub(crate) fn context(&'static self, ordinal: u8) -> Result<Context> {
        let (mut count, mut card, mut context) = (0, 0, std::ptr::null_mut());
        // SAFETY: each writes one value.
        unsafe {
            self.check((self.functions.count)(&mut count), "cuDeviceGetCount")?;
            if c_int::from(ordinal) >= count {
                let plural = if count == 1 { "is 1 card" } else { "are no such cards" };
                return Err(wrong(format!("there {plural}: cuda:{ordinal} isn't one of {count}")));
            }
            self.check((self.functions.get)(&mut card, ordinal.into()), "cuDeviceGet")?;
            self.check((self.functions.retain)(&mut context, card), "cuDevicePrimaryCtxRetain")?;
        }
        Ok(Context {
            driver: self,
            context: NonNull::new(context).ok_or_else(|| wrong("CUDA has no context".into()))?,
            ordinal,
        })
    }
}

/// The primary context of a card, which is kept until the process ends.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    driver: &'static Driver,
    context: NonNull<c_void>,
    ordinal: u8,
}

// SAFETY: a context may be used by any thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Calls a function with the context current on this thread.
    pub(crate) fn enter<T>(&self, call: impl FnOnce() -> Result<T>) -> Result<T> {
        /// Pops it also where the function panics.
        struct Entered<'a>(&'a Driver);
        impl Drop for Entered<'_> {
            fn drop(&mut self) {
                let mut popped = std::ptr::null_mut();
                // SAFETY: a context was pushed on this thread.
                unsafe { (self.0.functions.pop)(&mut popped) };
            }
        }
        // SAFETY: the context is retained.
        let pushed = unsafe { (self.driver.functions.push)(self.context.as_ptr()) };
        self.driver.check(pushed, "cuCtxPushCurrent")?;
        let _entered = Entered(self.driver);
        call()
    }

    pub(crate) fn device(&self) -> Device {
        Device::cuda(self.ordinal)
    }

    /// Returns the card's name: `NVIDIA H100 80GB HBM3`.
    pub(crate) fn name(&self) -> Result<String> {
        let mut text = [0 as c_char; 256];
        // SAFETY: it writes a text of at most that length, with a 0 behind it.
        let code = unsafe {
            (self.driver.functions.name)(
                text.as_mut_ptr(),
                text.len() as c_int,
                self.ordinal.into(),
            )
        };
        self.driver.check(code, "cuDeviceGetName")?;
        text[text.len() - 1] = 0;
        // SAFETY: it ends with 0.
        Ok(unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned())
    }

    /// Allocates memory, which the default stream's later work may use.
    ///
    /// # Errors
    /// [`ErrorKind::Memory`] where there isn't as much.
    pub(crate) fn allocate(&self, elements: usize, dtype: DType) -> Result<Tensor> {
        let bytes = elements.checked_mul(dtype.size()).ok_or_else(|| {
            Error::new(ErrorKind::Memory, format!("{elements} elements of {dtype} are too many"))
        })?;
        let mut address = 0;
        self.enter(|| {
            // SAFETY: it writes one address; the stream is the default one.
            let code = unsafe {
                (self.driver.functions.allocate)(&mut address, bytes.max(1), std::ptr::null_mut())
            };
            self.driver
                .check(code, "cuMemAllocAsync")
                .map_err(|error| error.at(&format!("{bytes} bytes on {}", self.device())))
        })?;
        let buffer = CudaBuffer { address, bytes, context: self.clone() };
        let handle = BufferHandle::new(Arc::new(buffer), dtype)?;
        let shape = Shape::new(&[elements])?;
        let strides = keyfold_core::layout::contiguous_strides(&shape);
        Tensor::from_parts(handle, shape, strides, 0)
    }

    /// Allocates memory of zeros.
    ///
    /// # Errors
    /// As [`Context::allocate`].
    pub(crate) fn zeros(&self, elements: usize, dtype: DType) -> Result<Tensor> {
        let tensor = self.allocate(elements, dtype)?;
        let address = tensor.buffer().locate()?.addr() as u64;
        self.enter(|| {
            let bytes = elements * dtype.size();
            // SAFETY: the memory was allocated with so many bytes.
            let code =
                unsafe { (self.driver.functions.fill)(address, 0, bytes, std::ptr::null_mut()) };
            self.driver.check(code, "cuMemsetD8Async")
        })?;
        Ok(tensor)
    }

    /// Waits for the default stream.
    pub(crate) fn synchronize(&self) -> Result<()> {
        self.enter(|| {
            // SAFETY: the default stream of the current context.
            let code = unsafe { (self.driver.functions.synchronize)(std::ptr::null_mut()) };
            self.driver.check(code, "cuStreamSynchronize")
        })
    }
}

/// Memory of a card, freed in the order of the default stream.
#[derive(Debug)]
struct CudaBuffer {
    address: u64,
    bytes: usize,
    context: Context,
}

// SAFETY: the address is a card's: it is no host pointer, and stays until the value is dropped.
unsafe impl DeviceBuffer for CudaBuffer {
    fn device(&self) -> Device {
        self.context.device()
    }

    fn byte_len(&self) -> usize {
        self.bytes
    }

    fn host_ptr(&self) -> Option<NonNull<u8>> {
        None
    }

    fn locate(&self) -> Result<*mut u8> {
        Ok(std::ptr::without_provenance_mut(self.address as usize))
    }
}

impl Drop for CudaBuffer {
    fn drop(&mut self) {
        // A context that is gone at the process's end took its memory along.
        let _ = self.context.enter(|| {
            // SAFETY: it was allocated, and is freed once, behind the default stream's work.
            unsafe { (self.context.driver.functions.free)(self.address, std::ptr::null_mut()) };
            Ok(())
        });
    }
}
