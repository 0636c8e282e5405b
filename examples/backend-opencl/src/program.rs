//! Programs: compiled at first use, kept in memory and on disk.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use keyfold_plugin::{Error, ErrorKind, Result};

use crate::api::{self, Api, Handle, status_name};
use crate::cache::Cache;
use crate::device::OPTIONS;
use crate::loader::check;

/// The name that every kernel of the backend has.
const KERNEL: &str = "run";

/// What a program computes: the name of its source, and numbers for the types and variants that it
/// was generated for.
pub type Key = (&'static str, [u8; 8]);

/// A kernel. Its arguments are a part of it, so one thread at a time sets them and queues it.
pub struct Kernel {
    api: &'static Api,
    pub handle: Handle,
    lock: Mutex<()>,
}

// SAFETY: the lock is held while arguments are set.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

impl Kernel {
    pub fn lock(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // SAFETY: the handle is this kernel's own. OpenCL keeps it until queued launches have run.
        unsafe { (self.api.clReleaseKernel)(self.handle) };
    }
}

/// The programs of a device.
pub struct Programs {
    api: &'static Api,
    context: Handle,
    device: Handle,
    options: CString,
    cache: Cache,
    kernels: RwLock<HashMap<Key, Arc<Kernel>>>,
}

// SAFETY: OpenCL's functions on contexts, devices and programs may be called from any thread.
unsafe impl Send for Programs {}
// SAFETY: as above.
unsafe impl Sync for Programs {}

impl Programs {
    /// Returns an empty set. `identity` names the device and its driver.
    pub fn new(
        api: &'static Api,
        (context, device): (Handle, Handle),
        options: &str,
        identity: &str,
    ) -> Programs {
        Programs {
            api,
            context,
            device,
            options: CString::new(options).unwrap_or_default(),
            cache: Cache::new(&format!("{identity}\n{options}")),
            kernels: RwLock::default(),
        }
    }

    /// Returns a kernel, which is compiled from `source` at first use.
    ///
    /// # Errors
    /// The compiler's, with the lines that it names.
    pub fn kernel(&self, key: Key, source: impl FnOnce() -> String) -> Result<Arc<Kernel>> {
        if let Some(known) = self.kernels.read().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return Ok(Arc::clone(known));
        }
        let made = Arc::new(self.compile(key.0, KERNEL, &source())?);
        let mut kernels = self.kernels.write().unwrap_or_else(PoisonError::into_inner);
        Ok(Arc::clone(kernels.entry(key).or_insert(made)))
    }

    /// Compiles the kernel of a name in a source. `label` names the program in errors.
    ///
    /// # Errors
    /// As [`Programs::kernel`].
    pub fn compile(&self, label: &str, name: &str, source: &str) -> Result<Kernel> {
        let program = self.program(label, source)?;
        let name = CString::new(name).unwrap_or_default();
        let mut status = 0;
        // SAFETY: a program that was built; it lives as long as its kernel.
        let handle = unsafe {
            let kernel = (self.api.clCreateKernel)(program, name.as_ptr(), &raw mut status);
            (self.api.clReleaseProgram)(program);
            kernel
        };
        check(status, &format!("making the kernel of {label}"))?;
        Ok(Kernel { api: self.api, handle, lock: Mutex::default() })
    }

    /// Returns a built program: of the cached binary if there is a usable one, else of the source.
    fn program(&self, name: &str, source: &str) -> Result<Handle> {
        if let Some(binary) = self.cache.read(source)
            && let Some(program) = self.of_binary(&binary)
        {
            return Ok(program);
        }
        let program = self.of_source(name, source)?;
        if let Some(binary) = self.binary(program) {
            self.cache.write(source, &binary);
        }
        Ok(program)
    }

    fn build(&self, program: Handle) -> api::Status {
        // SAFETY: a program of this context, and one device.
        unsafe {
            (self.api.clBuildProgram)(
                program,
                1,
                &raw const self.device,
                self.options.as_ptr(),
                std::ptr::null(),
                std::ptr::null_mut(),
            )
        }
    }

    fn of_binary(&self, binary: &[u8]) -> Option<Handle> {
        let (mut status, mut of_device) = (0, 0);
        let (size, bytes) = (binary.len(), binary.as_ptr());
        // SAFETY: one device, and one binary of that size.
        let program = unsafe {
            (self.api.clCreateProgramWithBinary)(
                self.context,
                1,
                &raw const self.device,
                &raw const size,
                &raw const bytes,
                &raw mut of_device,
                &raw mut status,
            )
        };
        if status != api::SUCCESS || program.is_null() {
            return None;
        }
        if of_device == api::SUCCESS && self.build(program) == api::SUCCESS {
            return Some(program);
        }
        // SAFETY: the program was made above.
        unsafe { (self.api.clReleaseProgram)(program) };
        None
    }

    fn of_source(&self, name: &str, source: &str) -> Result<Handle> {
        let mut status = 0;
        let (text, length) = (source.as_ptr().cast(), source.len());
        // SAFETY: one text of that length.
        let program = unsafe {
            (self.api.clCreateProgramWithSource)(
                self.context,
                1,
                &raw const text,
                &raw const length,
                &raw mut status,
            )
        };
        check(status, &format!("the program {name}"))?;
        match self.build(program) {
            api::SUCCESS => Ok(program),
            status => {
                let log = self.log(program);
                // SAFETY: the program was made above.
                unsafe { (self.api.clReleaseProgram)(program) };
                Err(build_error(name, source, &log, status))
            }
        }
    }

    fn log(&self, program: Handle) -> String {
        let mut size = 0;
        let get = self.api.clGetProgramBuildInfo;
        let (device, log) = (self.device, api::PROGRAM_BUILD_LOG);
        // SAFETY: memory of the size that was told.
        unsafe {
            get(program, device, log, 0, std::ptr::null_mut(), &raw mut size);
            let mut bytes = vec![0_u8; size];
            get(program, device, log, size, bytes.as_mut_ptr().cast(), std::ptr::null_mut());
            String::from_utf8_lossy(&bytes).trim_end_matches('\0').trim().to_owned()
        }
    }

    /// Returns the binary of a program for the device. A program has one for each device of its
    /// context, and those that it wasn't built for are empty.
    fn binary(&self, program: Handle) -> Option<Vec<u8>> {
        let mut told = 0;
        let get = self.api.clGetProgramInfo;
        // SAFETY: memory for as many sizes and binaries as are told.
        unsafe {
            let sizes = api::PROGRAM_BINARY_SIZES;
            if get(program, sizes, 0, std::ptr::null_mut(), &raw mut told) != api::SUCCESS {
                return None;
            }
            let mut lengths = vec![0_usize; told / size_of::<usize>()];
            if get(program, sizes, told, lengths.as_mut_ptr().cast(), std::ptr::null_mut())
                != api::SUCCESS
            {
                return None;
            }
            let mut binaries: Vec<Vec<u8>> =
                lengths.iter().map(|length| vec![0; *length]).collect();
            let mut places: Vec<*mut u8> = binaries.iter_mut().map(Vec::as_mut_ptr).collect();
            let size = places.len() * size_of::<*mut u8>();
            let places = places.as_mut_ptr().cast();
            if get(program, api::PROGRAM_BINARIES, size, places, std::ptr::null_mut())
                != api::SUCCESS
            {
                return None;
            }
            let mut filled = binaries.into_iter().filter(|binary| !binary.is_empty());
            filled.next().filter(|_| filled.next().is_none())
        }
    }
}

/// Returns the number of a line that a compiler's message begins with: `<file>:12:4: error`.
fn line_number(message: &str) -> Option<usize> {
    message.split(':').skip(1).find_map(|part| part.trim().parse().ok())
}

#[cold]
fn build_error(name: &str, source: &str, log: &str, status: i32) -> Error {
    let lines: Vec<&str> = source.lines().collect();
    let mut shown: Vec<usize> =
        log.lines().filter(|line| line.contains("error")).filter_map(line_number).collect();
    shown.sort_unstable();
    shown.dedup();
    let shown: Vec<String> = shown
        .iter()
        .filter_map(|at| Some(format!("  {at:4} | {}", lines.get(at.checked_sub(1)?)?)))
        .collect();
    let own = match std::env::var(OPTIONS) {
        Ok(own) if !own.is_empty() => format!(", with {OPTIONS}={own}"),
        _ => String::new(),
    };
    Error::new(
        ErrorKind::KernelFailed,
        format!(
            "the OpenCL program {name} doesn't compile: {}{own}\n{}\n{log}",
            status_name(status),
            shown.join("\n")
        ),
    )
}
