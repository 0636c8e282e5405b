//! The functions of OpenCL 1.2 that the backend calls, found in the loader at run time.

use std::ffi::{c_char, c_int, c_void};

use libloading::Library;

pub type Handle = *mut c_void;
pub type Status = i32;

pub const SUCCESS: Status = 0;
pub const DEVICE_NOT_FOUND: Status = -1;
pub const PLATFORM_NOT_FOUND: Status = -1001;
/// NVIDIA's status of a kernel that touched memory that isn't its own.
pub const NVIDIA_ILLEGAL_ACCESS: Status = -9999;

pub const DEVICE_TYPE_ALL: u64 = 0xFFFF_FFFF;
pub const DEVICE_TYPE_CPU: u64 = 1 << 1;
pub const CONTEXT_PLATFORM: isize = 0x1084;
pub const QUEUE_PROFILING: u64 = 1 << 1;
pub const MEM_READ_WRITE: u64 = 1;
pub const BLOCKING: u32 = 1;

pub const PLATFORM_NAME: u32 = 0x0902;
pub const DEVICE_TYPE: u32 = 0x1000;
pub const DEVICE_MAX_COMPUTE_UNITS: u32 = 0x1002;
pub const DEVICE_MAX_WORK_GROUP_SIZE: u32 = 0x1004;
pub const DEVICE_MAX_MEM_ALLOC_SIZE: u32 = 0x1010;
pub const DEVICE_GLOBAL_MEM_SIZE: u32 = 0x101f;
pub const DEVICE_SINGLE_FP_CONFIG: u32 = 0x101B;
pub const DEVICE_ENDIAN_LITTLE: u32 = 0x1026;
pub const DEVICE_AVAILABLE: u32 = 0x1027;
pub const DEVICE_COMPILER_AVAILABLE: u32 = 0x1028;
pub const DEVICE_NATIVE_VECTOR_WIDTH_FLOAT: u32 = 0x103A;
pub const DEVICE_NAME: u32 = 0x102B;
pub const DRIVER_VERSION: u32 = 0x102D;
pub const DEVICE_PROFILE: u32 = 0x102E;
pub const DEVICE_VERSION: u32 = 0x102F;
pub const DEVICE_EXTENSIONS: u32 = 0x1030;
pub const FP_CORRECTLY_ROUNDED_DIVIDE_SQRT: u64 = 1 << 7;

pub const PROGRAM_BINARY_SIZES: u32 = 0x1165;
pub const PROGRAM_BINARIES: u32 = 0x1166;
pub const PROGRAM_BUILD_LOG: u32 = 0x1183;
pub const EVENT_COMMAND_EXECUTION_STATUS: u32 = 0x11D3;
pub const PROFILING_COMMAND_END: u32 = 0x1283;

/// A function that is told of a context's errors; always null here.
pub type Notify = *const c_void;

macro_rules! functions {
    ($($name:ident($($argument:ty),* $(,)?) -> $output:ty;)*) => {
        /// The functions.
        #[allow(non_snake_case)]
        pub struct Api {
            $(pub $name: unsafe extern "C" fn($($argument),*) -> $output,)*
        }

        impl Api {
            /// Finds the functions in a loader, which stays loaded: drivers have threads.
            ///
            /// # Errors
            /// The name of a missing one.
            pub fn new(library: Library) -> Result<Api, String> {
                let library: &'static Library = Box::leak(Box::new(library));
                Ok(Api {
                    $($name: {
                        let name = concat!(stringify!($name), "\0");
                        // SAFETY: the signatures are those of the specification.
                        match unsafe { library.get(name.as_bytes()) } {
                            Ok(function) => *function,
                            Err(_) => return Err(stringify!($name).to_owned()),
                        }
                    },)*
                })
            }
        }
    };
}

functions! {
    clGetPlatformIDs(u32, *mut Handle, *mut u32) -> Status;
    clGetPlatformInfo(Handle, u32, usize, *mut c_void, *mut usize) -> Status;
    clGetDeviceIDs(Handle, u64, u32, *mut Handle, *mut u32) -> Status;
    clGetDeviceInfo(Handle, u32, usize, *mut c_void, *mut usize) -> Status;
    clCreateContext(*const isize, u32, *const Handle, Notify, *mut c_void, *mut Status) -> Handle;
    clCreateCommandQueue(Handle, Handle, u64, *mut Status) -> Handle;
    clFinish(Handle) -> Status;
    clFlush(Handle) -> Status;
    clCreateBuffer(Handle, u64, usize, *mut c_void, *mut Status) -> Handle;
    clReleaseMemObject(Handle) -> Status;
    clEnqueueWriteBuffer(
        Handle, Handle, u32, usize, usize, *const c_void, u32, *const Handle, *mut Handle,
    ) -> Status;
    clEnqueueReadBuffer(
        Handle, Handle, u32, usize, usize, *mut c_void, u32, *const Handle, *mut Handle,
    ) -> Status;
    clEnqueueCopyBuffer(
        Handle, Handle, Handle, usize, usize, usize, u32, *const Handle, *mut Handle,
    ) -> Status;
    clEnqueueCopyBufferRect(
        Handle, Handle, Handle, *const usize, *const usize, *const usize,
        usize, usize, usize, usize, u32, *const Handle, *mut Handle,
    ) -> Status;
    clEnqueueFillBuffer(
        Handle, Handle, *const c_void, usize, usize, usize, u32, *const Handle, *mut Handle,
    ) -> Status;
    clCreateProgramWithSource(
        Handle, u32, *const *const c_char, *const usize, *mut Status,
    ) -> Handle;
    clCreateProgramWithBinary(
        Handle, u32, *const Handle, *const usize, *const *const u8, *mut Status, *mut Status,
    ) -> Handle;
    clBuildProgram(Handle, u32, *const Handle, *const c_char, Notify, *mut c_void) -> Status;
    clGetProgramInfo(Handle, u32, usize, *mut c_void, *mut usize) -> Status;
    clGetProgramBuildInfo(Handle, Handle, u32, usize, *mut c_void, *mut usize) -> Status;
    clReleaseProgram(Handle) -> Status;
    clCreateKernel(Handle, *const c_char, *mut Status) -> Handle;
    clReleaseKernel(Handle) -> Status;
    clSetKernelArg(Handle, u32, usize, *const c_void) -> Status;
    clEnqueueNDRangeKernel(
        Handle, Handle, u32, *const usize, *const usize, *const usize,
        u32, *const Handle, *mut Handle,
    ) -> Status;
    clEnqueueMarkerWithWaitList(Handle, u32, *const Handle, *mut Handle) -> Status;
    clEnqueueBarrierWithWaitList(Handle, u32, *const Handle, *mut Handle) -> Status;
    clWaitForEvents(u32, *const Handle) -> Status;
    clGetEventInfo(Handle, u32, usize, *mut c_void, *mut usize) -> Status;
    clGetEventProfilingInfo(Handle, u32, usize, *mut c_void, *mut usize) -> Status;
    clReleaseEvent(Handle) -> Status;
}

/// Returns a status by its name in the specification.
pub fn status_name(status: c_int) -> String {
    let name = match status {
        -2 => "CL_DEVICE_NOT_AVAILABLE",
        -3 => "CL_COMPILER_NOT_AVAILABLE",
        -4 => "CL_MEM_OBJECT_ALLOCATION_FAILURE",
        -5 => "CL_OUT_OF_RESOURCES",
        -6 => "CL_OUT_OF_HOST_MEMORY",
        -7 => "CL_PROFILING_INFO_NOT_AVAILABLE",
        -8 => "CL_MEM_COPY_OVERLAP",
        -11 => "CL_BUILD_PROGRAM_FAILURE",
        -13 => "CL_MISALIGNED_SUB_BUFFER_OFFSET",
        -14 => "CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST",
        -15 => "CL_COMPILE_PROGRAM_FAILURE",
        -30 => "CL_INVALID_VALUE",
        -33 => "CL_INVALID_DEVICE",
        -34 => "CL_INVALID_CONTEXT",
        -36 => "CL_INVALID_COMMAND_QUEUE",
        -38 => "CL_INVALID_MEM_OBJECT",
        -42 => "CL_INVALID_BINARY",
        -43 => "CL_INVALID_BUILD_OPTIONS",
        -45 => "CL_INVALID_PROGRAM_EXECUTABLE",
        -46 => "CL_INVALID_KERNEL_NAME",
        -48 => "CL_INVALID_KERNEL",
        -51 => "CL_INVALID_ARG_SIZE",
        -52 => "CL_INVALID_KERNEL_ARGS",
        -54 => "CL_INVALID_WORK_GROUP_SIZE",
        -55 => "CL_INVALID_WORK_ITEM_SIZE",
        -59 => "CL_INVALID_OPERATION",
        -61 => "CL_INVALID_BUFFER_SIZE",
        NVIDIA_ILLEGAL_ACCESS => "illegal access to memory",
        _ => return format!("OpenCL error {status}"),
    };
    format!("{name} ({status})")
}
