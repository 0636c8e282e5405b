//! A device: its queues, its programs, and launches of their kernels.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use keyfold_plugin::{Error, Result};

use crate::api::{self, Api, Handle};
use crate::loader::{self, Found, check, device_number, device_text};
use crate::program::{Kernel, Programs};
use crate::stream::Stream;

/// The number of a device's queues.
pub const STREAMS: usize = 4;

/// The environment variable with further options of the compiler.
pub const OPTIONS: &str = "KEYFOLD_OPENCL_OPTIONS";

/// The environment variable that says which kernels are chosen, `cpu` or `gpu`, whatever the device.
const KERNELS: &str = "KEYFOLD_OPENCL_KERNELS";

/// A device.
pub struct Device {
    pub api: &'static Api,
    pub context: Handle,
    pub id: Handle,
    pub name: String,
    pub float64: bool,
    /// The work-items of a group in kernels of one dimension; `GROUP` in their sources.
    pub group: usize,
    /// The elements of a vector in the backend's own kernels; `WIDTH` in their sources.
    pub width: usize,
    /// The work-items that share a unit of work in kernels that reduce: one on a CPU, whose
    /// work-items compute with whole vectors, else a group; `ITEMS` in their sources.
    pub items: usize,
    /// The units of work that keep the device busy.
    pub units: u64,
    /// The elements that a work-item of an expression computes: a vector, or several on a CPU.
    pub per_item: u64,
    max_allocation: u64,
    memory: u64,
    /// The bytes of all buffers. Some drivers give more than the device has, until the system ends the
    /// process.
    used: Arc<AtomicU64>,
    /// Whether the driver has told that nothing works any more.
    pub lost: AtomicBool,
    /// The queues, and one more that new memory is cleared on.
    pub streams: Vec<Stream>,
    pub programs: Programs,
}

// SAFETY: OpenCL's functions on contexts may be called from any thread.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// An argument of a kernel.
#[derive(Clone, Copy)]
pub enum Arg<'a> {
    Buffer(Handle),
    U64(u64),
    I64(i64),
    I32(i32),
    /// A struct.
    Bytes(&'a [u8]),
}

impl Device {
    /// Returns a device with its queues.
    ///
    /// # Errors
    /// The device's.
    pub fn new(api: &'static Api, found: Found) -> Result<Device> {
        let Found { id, context } = found;
        let name = device_text(api, id, api::DEVICE_NAME);
        let float64 = device_text(api, id, api::DEVICE_EXTENSIONS)
            .split_ascii_whitespace()
            .any(|extension| extension == "cl_khr_fp64");
        let is_cpu = match std::env::var(KERNELS).as_deref() {
            Ok("cpu") => true,
            Ok("gpu") => false,
            _ => device_number(api, id, api::DEVICE_TYPE) & api::DEVICE_TYPE_CPU != 0,
        };
        let largest = device_number(api, id, api::DEVICE_MAX_WORK_GROUP_SIZE) as usize;
        // A CPU's thread runs a group's work-items one after another.
        let wanted: usize = if is_cpu { 64 } else { 256 };
        let group = wanted.min(1 << largest.max(1).ilog2());
        // Vectors are the CPU's own; a GPU's work-items load 16 bytes at best.
        let native = device_number(api, id, api::DEVICE_NATIVE_VECTOR_WIDTH_FLOAT) as usize;
        let width = if is_cpu { native.next_power_of_two().clamp(4, 16) } else { 4 };
        let items = if is_cpu { 1 } else { group };
        let cores = device_number(api, id, api::DEVICE_MAX_COMPUTE_UNITS);
        let units = if is_cpu { 4 * cores * group as u64 } else { 8 * cores };
        let rounding = device_number(api, id, api::DEVICE_SINGLE_FP_CONFIG)
            & api::FP_CORRECTLY_ROUNDED_DIVIDE_SQRT
            != 0;
        let rounding = if rounding { " -cl-fp32-correctly-rounded-divide-sqrt" } else { "" };
        let own = std::env::var(OPTIONS).unwrap_or_default();
        let shapes = format!("-DGROUP={group} -DWIDTH={width} -DITEMS={items}");
        let options = format!("-cl-std=CL1.2 {shapes}{rounding} {own}");
        let driver = device_text(api, id, api::DRIVER_VERSION);
        let identity = format!("{name} {} {driver}", device_text(api, id, api::DEVICE_VERSION));
        let streams = (0..=STREAMS).map(|number| Stream::new(api, (context, id), number));
        let streams = streams.collect::<Result<Vec<Stream>>>()?;
        Ok(Device {
            api,
            context,
            id,
            float64,
            group,
            width,
            items,
            units,
            per_item: if is_cpu { 32 } else { 8 },
            max_allocation: device_number(api, id, api::DEVICE_MAX_MEM_ALLOC_SIZE),
            memory: device_number(api, id, api::DEVICE_GLOBAL_MEM_SIZE),
            used: Arc::default(),
            lost: AtomicBool::new(false),
            streams,
            programs: Programs::new(api, (context, id), &options, &identity),
            name,
        })
    }

    pub fn stream(&self, number: u32) -> &Stream {
        &self.streams[number as usize]
    }

    /// Allocates memory.
    ///
    /// # Errors
    /// [`keyfold_plugin::ErrorKind::Memory`] if there is none left.
    pub fn allocate(&self, bytes: usize) -> Result<Buffer> {
        let size = bytes as u64;
        let too_much = |text: String| Err(Error::new(keyfold_plugin::ErrorKind::Memory, text));
        if size > self.max_allocation {
            return too_much(format!(
                "{bytes} bytes are more than {} allocates at once, {}",
                self.name, self.max_allocation
            ));
        }
        let used = self.used.fetch_add(size, Ordering::Relaxed);
        // Given back where the allocation fails.
        let reserved = Reserved { used: Arc::clone(&self.used), size };
        if used.saturating_add(size) > self.memory {
            return too_much(format!(
                "{bytes} bytes are more than {} has left: {used} of {} are in use",
                self.name, self.memory
            ));
        }
        let mut status = 0;
        // SAFETY: a live context, and no memory of the host.
        let handle = unsafe {
            (self.api.clCreateBuffer)(
                self.context,
                api::MEM_READ_WRITE,
                bytes,
                std::ptr::null_mut(),
                &raw mut status,
            )
        };
        loader::check(status, &format!("allocating {bytes} bytes on {}", self.name))?;
        Ok(Buffer { api: self.api, handle, context: self.context, _reserved: reserved })
    }

    /// Queues a kernel with groups of `local` work-items.
    ///
    /// # Errors
    /// The device's.
    pub fn launch(
        &self,
        kernel: &Kernel,
        stream: &Stream,
        args: &[Arg<'_>],
        groups: [usize; 3],
        local: [usize; 3],
    ) -> Result<()> {
        let global = [0, 1, 2].map(|dim| groups[dim] * local[dim]);
        let _lock = kernel.lock();
        for (index, arg) in (0_u32..).zip(args) {
            let (size, value): (usize, *const c_void) = match arg {
                Arg::Buffer(handle) => (size_of::<Handle>(), (&raw const *handle).cast()),
                Arg::U64(number) => (8, (&raw const *number).cast()),
                Arg::I64(number) => (8, (&raw const *number).cast()),
                Arg::I32(number) => (4, (&raw const *number).cast()),
                Arg::Bytes(bytes) => (bytes.len(), bytes.as_ptr().cast()),
            };
            // SAFETY: OpenCL copies the argument, of that size; others don't set this kernel's
            // while the lock is held.
            let status = unsafe { (self.api.clSetKernelArg)(kernel.handle, index, size, value) };
            check(status, &format!("setting argument {index} of a kernel"))?;
        }
        // SAFETY: all arguments are set, and kernels stay inside the tensors that they are of.
        let status = unsafe {
            (self.api.clEnqueueNDRangeKernel)(
                stream.queue,
                kernel.handle,
                3,
                std::ptr::null(),
                global.as_ptr(),
                local.as_ptr(),
                0,
                std::ptr::null(),
                std::ptr::null_mut(),
            )
        };
        check(status, "queueing a kernel")
    }

    /// Queues a kernel of one dimension for at least that many work-items.
    ///
    /// # Errors
    /// The device's.
    pub fn launch_items(
        &self,
        kernel: &Kernel,
        stream: &Stream,
        args: &[Arg<'_>],
        items: u64,
    ) -> Result<()> {
        let groups = items.div_ceil(self.group as u64) as usize;
        self.launch(kernel, stream, args, [groups, 1, 1], [self.group, 1, 1])
    }

    /// Returns the first fault of kernels that ran before what a stream runs next.
    ///
    /// # Errors
    /// That one, or the device's.
    pub fn faults(&self, stream: &Stream) -> Result<()> {
        let after = stream.after.load(Ordering::Relaxed);
        let streams = self.streams.iter().enumerate();
        streams.filter(|(number, _)| after >> number & 1 != 0).try_for_each(|(_, s)| s.faults())
    }
}

/// The memory of a buffer. Once it is released, OpenCL frees it after the commands that use it.
pub struct Buffer {
    api: &'static Api,
    pub handle: Handle,
    pub context: Handle,
    _reserved: Reserved,
}

/// Bytes that count as used until it is dropped.
struct Reserved {
    used: Arc<AtomicU64>,
    size: u64,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.used.fetch_sub(self.size, Ordering::Relaxed);
    }
}

// SAFETY: OpenCL's functions on buffers may be called from any thread.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the handle is this buffer's own.
        unsafe { (self.api.clReleaseMemObject)(self.handle) };
    }
}
