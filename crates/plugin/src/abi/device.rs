//! Devices: their memory and operations as tables of functions. Since 1.1, [`FEATURE_DEVICES`].
//!
//! A plugin passes a [`DeviceSpec`] to [`HostTable1::device`]. The host registers a device type of
//! that name, with a dispatch key, and calls the spec's functions ("slots") from any thread, several
//! at a time, also after the plugin was closed, as long as a buffer or an event of it exists.
//!
//! # Handles
//! The memory of a buffer is an opaque handle, a pointer that isn't null and that only the plugin
//! dereferences. Slots get parts of buffers and tensors as [`DLTensor`]s: `data` is the handle,
//! `byte_offset` the distance of the element at index zero from the buffer's start, `device` the
//! [`DEVICE_USER`] device, strides are given always and may be zero or negative. The elements of a
//! part are unsigned integers of the element's size. The host has checked that every element lies
//! inside the buffer, that the buffer is this device type's, and that shapes and dtypes fit the
//! slot's contract. A `DLTensor` is valid for the call; a handle until [`DeviceSpec::release`].
//!
//! # Order
//! Each device has streams. Operations on one stream run in the order of the calls; operations on
//! different streams in any order, unless [`DeviceSpec::wait`] orders them. With
//! [`DEVICE_ASYNCHRONOUS`] an operation may run after its slot has returned. The memory that a
//! queued operation uses must stay allocated until it has run, also if its handle was released
//! meanwhile. A slot that fails queues no operation.
//!
//! # Errors
//! Slots return null for success, or an error made by [`HostTable::error_new`] or
//! [`HostTable1::fault`]. The error of a queued operation is returned by the next slot that waits
//! for it (`download`, `synchronize`), marked by [`HostTable1::late`].
//!
//! # Slots that are null
//! `allocate`, `release`, `upload`, `download`, `copy`, `fill` and `synchronize` are required;
//! `support` and `execute` too if [`DeviceSpec::groups`] isn't 0; the five slots of events too if
//! the device is asynchronous or has several streams; `compile`, `program_release` and `launch` too
//! with [`DEVICE_CUDA_C`] or [`DEVICE_OPENCL_C`], of which a device has one. The host refuses a spec without them. Events
//! of other devices are the host's, and have the times of its clock. Of the others, `count_true` is
//! `NotSupported` if it is null; the rest document what the host does then.
//!
//! [`HostTable1::device`]: super::HostTable1::device
//! [`HostTable1::fault`]: super::HostTable1::fault
//! [`HostTable1::late`]: super::HostTable1::late
//! [`HostTable::error_new`]: super::HostTable::error_new
//! [`DEVICE_USER`]: super::DEVICE_USER
//! [`FEATURE_DEVICES`]: super::FEATURE_DEVICES

use std::ffi::c_void;

use super::{DLDataType, DLTensor, HostError, Text};

/// [`DeviceSpec::flags`]: operations may run after their slots have returned.
pub const DEVICE_ASYNCHRONOUS: u32 = 1;

/// [`DeviceSpec::flags`]: instead of primitives, the device compiles whole expressions from CUDA C.
/// It needs [`FEATURE_CUDA_C`](super::FEATURE_CUDA_C).
pub const DEVICE_CUDA_C: u32 = 2;
/// [`DeviceSpec::flags`]: as [`DEVICE_CUDA_C`], from OpenCL C. Buffers are arguments without offset,
/// which is another parameter. It needs [`FEATURE_OPENCL_C`](super::FEATURE_OPENCL_C).
pub const DEVICE_OPENCL_C: u32 = 4;

/// [`DeviceSpec::groups`]: the 24 primitives that every expression is composed of.
pub const GROUP_POINTWISE: u64 = 1;
/// [`DeviceSpec::groups`]: reductions along dimensions.
pub const GROUP_REDUCE: u64 = 2;
/// [`DeviceSpec::groups`]: operations on lanes that keep the shape.
pub const GROUP_ROWS: u64 = 4;
/// [`DeviceSpec::groups`]: matrix products.
pub const GROUP_LINALG: u64 = 8;
/// [`DeviceSpec::groups`]: indexing.
pub const GROUP_INDEX: u64 = 16;
/// [`DeviceSpec::groups`]: random numbers.
pub const GROUP_RANDOM: u64 = 32;
/// Group `scan`.
pub const GROUP_SCAN: u64 = 64;
/// [`DeviceSpec::groups`]: normalizations. It and those below are of 1.2,
/// [`FEATURE_GROUPS`](super::FEATURE_GROUPS): their parameters are [`Fields`], and their operations
/// may have several outputs.
pub const GROUP_NORM: u64 = 128;
/// [`DeviceSpec::groups`]: matrix products with an epilogue.
pub const GROUP_LINEAR: u64 = 256;
/// [`DeviceSpec::groups`]: convolutions.
pub const GROUP_CONVOLUTION: u64 = 512;
/// [`DeviceSpec::groups`]: pooling over windows.
pub const GROUP_POOL: u64 = 1024;
/// [`DeviceSpec::groups`]: scaled-dot-product attention.
pub const GROUP_ATTENTION: u64 = 2048;
/// [`DeviceSpec::groups`]: cells of recurrent networks.
pub const GROUP_RECURRENT: u64 = 4096;
/// [`DeviceSpec::groups`]: steps of optimizers, in place.
pub const GROUP_OPTIM: u64 = 8192;
/// [`DeviceSpec::groups`]: decompositions of matrices, and linear systems.
pub const GROUP_DECOMPOSITION: u64 = 16384;
/// [`DeviceSpec::groups`]: dropout.
pub const GROUP_DROPOUT: u64 = 32768;
/// The groups whose parameters are [`Fields`].
pub const GROUPS_OF_FIELDS: u64 = 2 * GROUP_DROPOUT - GROUP_NORM;
/// The groups of this version, with the names that [`Operation::group`] has.
pub const GROUPS: [(u64, &str); 16] = [
    (GROUP_POINTWISE, "pointwise"),
    (GROUP_REDUCE, "reduce"),
    (GROUP_ROWS, "rows"),
    (GROUP_LINALG, "linalg"),
    (GROUP_INDEX, "index"),
    (GROUP_RANDOM, "random"),
    (GROUP_SCAN, "scan"),
    (GROUP_NORM, "norm"),
    (GROUP_LINEAR, "linear"),
    (GROUP_CONVOLUTION, "convolution"),
    (GROUP_POOL, "pool"),
    (GROUP_ATTENTION, "attention"),
    (GROUP_RECURRENT, "recurrent"),
    (GROUP_OPTIM, "optim"),
    (GROUP_DECOMPOSITION, "decomposition"),
    (GROUP_DROPOUT, "dropout"),
];

/// [`DeviceSpec::allocate`]: any initialised bytes.
pub const CONTENT_ARBITRARY: u32 = 0;
/// [`DeviceSpec::allocate`]: zeros.
pub const CONTENT_ZEROS: u32 = 1;
/// [`DeviceSpec::set_limit`]: the device's own default.
pub const LIMIT_DEFAULT: u64 = u64::MAX;

/// A device type to register. Every slot gets `data` first.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DeviceSpec {
    /// The size of this struct, in bytes.
    pub size: u32,
    /// `DEVICE_` bits.
    pub flags: u32,
    /// The name of the device type, an identifier: `npu`.
    pub name: Text,
    /// The plugin's data.
    pub data: *mut c_void,
    /// Called once with `data` after the last call of a slot, also if the registration is refused.
    pub drop: Option<unsafe extern "C" fn(*mut c_void)>,
    /// The number of devices, from 1 to 256.
    pub device_count: u32,
    /// The number of each device's streams, at least 1. Stream 0 is the default.
    pub stream_count: u32,
    /// `GROUP_` bits of the groups of which the device has operations.
    pub groups: u64,

    /// Allocates memory on a device, aligned for every dtype, usable at once on any stream: device,
    /// bytes (at least 1), `CONTENT_` number, handle to set. Kind `Memory` if there is none left.
    pub allocate: Option<
        unsafe extern "C" fn(*mut c_void, u32, u64, u32, *mut *mut c_void) -> *mut HostError,
    >,
    /// Releases a handle. The memory is freed once queued operations that use it have run.
    pub release: Option<unsafe extern "C" fn(*mut c_void, *mut c_void)>,
    /// Copies host bytes to a contiguous part, on a stream: bytes, target, stream. The bytes aren't
    /// used after the return.
    pub upload: Option<
        unsafe extern "C" fn(*mut c_void, *const c_void, *const DLTensor, u32) -> *mut HostError,
    >,
    /// As `upload`, through pinned memory. If it is null, `upload` is used.
    pub upload_pinned: Option<
        unsafe extern "C" fn(*mut c_void, *const c_void, *const DLTensor, u32) -> *mut HostError,
    >,
    /// Copies a contiguous part to the host: source, bytes, stream. Waits for the stream's earlier
    /// operations and returns after the copy.
    pub download: Option<
        unsafe extern "C" fn(*mut c_void, *const DLTensor, *mut c_void, u32) -> *mut HostError,
    >,
    /// Copies between parts of equal shape and element size that share no bytes, possibly on two
    /// devices: source, target, stream of the target's device.
    pub copy: Option<
        unsafe extern "C" fn(*mut c_void, *const DLTensor, *const DLTensor, u32) -> *mut HostError,
    >,
    /// Fills a part with one element: target, the element's bytes, stream.
    pub fill: Option<
        unsafe extern "C" fn(*mut c_void, *const DLTensor, *const c_void, u32) -> *mut HostError,
    >,
    /// Waits for all operations on a device.
    pub synchronize: Option<unsafe extern "C" fn(*mut c_void, u32) -> *mut HostError>,

    /// Records an event, which completes after the stream's earlier operations: device, stream,
    /// event to set, a pointer that isn't null.
    pub record:
        Option<unsafe extern "C" fn(*mut c_void, u32, u32, *mut *mut c_void) -> *mut HostError>,
    /// Releases an event.
    pub event_release: Option<unsafe extern "C" fn(*mut c_void, *mut c_void)>,
    /// Makes later operations on a stream wait for an event, possibly another device's: device,
    /// stream, event. The host doesn't wait.
    pub wait: Option<unsafe extern "C" fn(*mut c_void, u32, u32, *mut c_void) -> *mut HostError>,
    /// Sets the number to 1 if the event has completed, to 0 if not.
    pub is_done: Option<unsafe extern "C" fn(*mut c_void, *mut c_void, *mut u32) -> *mut HostError>,
    /// Waits for two events and sets the nanoseconds from the first to the second.
    pub elapsed: Option<
        unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_void, *mut i64) -> *mut HostError,
    >,

    /// Corrects a device's statistics, which the host has filled with its own counts. If it is
    /// null, those are used.
    pub statistics:
        Option<unsafe extern "C" fn(*mut c_void, u32, *mut DeviceStatistics) -> *mut HostError>,
    /// Sets the limit in bytes of a device's free memory kept for later allocations, and frees the
    /// excess; [`LIMIT_DEFAULT`] for its default. If it is null, the device keeps none, and is
    /// within every limit.
    pub set_limit: Option<unsafe extern "C" fn(*mut c_void, u32, u64) -> *mut HostError>,

    /// Returns null if [`execute`](Self::execute) runs the operation, else an error whose message
    /// is the reason why it doesn't. The answer depends on the operation only.
    pub support: Option<unsafe extern "C" fn(*mut c_void, *const Operation) -> *mut HostError>,
    /// Runs an operation, or queues it on the stream.
    pub execute: Option<unsafe extern "C" fn(*mut c_void, *const Execution) -> *mut HostError>,
    /// Counts the true elements of a bool tensor: mask, stream, number to set. Waits for the
    /// stream's earlier operations. Called before `positions` of the group index.
    pub count_true:
        Option<unsafe extern "C" fn(*mut c_void, *const DLTensor, u32, *mut u64) -> *mut HostError>,

    /// Compiles the kernel of an expression, which the host keeps: source, program to set, a pointer
    /// that isn't null. Before, `support` was asked for `expression` of the group pointwise: its
    /// inputs are all dtypes in which elements are read or computed. The error of a text that
    /// doesn't compile should have the compiler's messages.
    pub compile: Option<
        unsafe extern "C" fn(*mut c_void, *const Source, *mut *mut c_void) -> *mut HostError,
    >,
    /// Releases a program. Queued launches of it still run.
    pub program_release: Option<unsafe extern "C" fn(*mut c_void, *mut c_void)>,
    /// Runs a program, or queues it on the stream.
    pub launch: Option<unsafe extern "C" fn(*mut c_void, *const Launch) -> *mut HostError>,
}

/// The kernel of an expression as text.
#[repr(C)]
#[derive(Debug)]
pub struct Source {
    /// The size of this struct, in bytes.
    pub size: u32,
    /// The number of the kernel's parameters.
    pub parameters: u32,
    /// The index of the device that it is compiled for.
    pub device: u32,
    /// Always 0.
    pub reserved: u32,
    /// The kernel's name, which has C linkage.
    pub name: Text,
    /// The self-contained text.
    pub text: Text,
    /// The parameters' types in the text, in order.
    pub types: *const Text,
}

/// [`Argument::kind`]: bytes, passed by value.
pub const ARGUMENT_BYTES: u32 = 0;
/// [`Argument::kind`]: a pointer into a buffer of the device.
pub const ARGUMENT_BUFFER: u32 = 1;

/// The value of a kernel's parameter.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Argument {
    /// One of the `ARGUMENT_` numbers.
    pub kind: u32,
    /// The number of bytes; 0 for a buffer.
    pub size: u32,
    /// The bytes, or the buffer's handle.
    pub value: *const c_void,
    /// The distance of the pointer from the buffer's start, in bytes.
    pub offset: u64,
}

/// A call of [`DeviceSpec::launch`]. The kernel computes all elements with any grid.
#[repr(C)]
#[derive(Debug)]
pub struct Launch {
    /// The size of this struct, in bytes.
    pub size: u32,
    /// The number of arguments.
    pub arguments: u32,
    /// The index of the device.
    pub device: u32,
    /// The stream of the device.
    pub stream: u32,
    /// The program of [`DeviceSpec::compile`].
    pub program: *mut c_void,
    /// As [`Execution::operator`].
    pub operator: Text,
    /// A value for each parameter.
    pub values: *const Argument,
    /// The number of elements.
    pub elements: u64,
}

/// A question to [`DeviceSpec::support`]. Groups and names are those of the host's documentation;
/// later hosts may have more, so an unknown one must be refused.
#[repr(C)]
#[derive(Debug)]
pub struct Operation {
    /// The size of this struct, in bytes.
    pub size: u32,
    /// The number of input dtypes.
    pub inputs: u32,
    /// The group's name.
    pub group: Text,
    /// The operation's name in its group: `sum`.
    pub name: Text,
    /// The dtypes of the inputs.
    pub input_dtypes: *const DLDataType,
    /// The dtype of the first output.
    pub output: DLDataType,
    /// Always 0.
    pub reserved: u32,
    /// The dtypes of all outputs. Since 1.2, as the next; operations of earlier hosts have one.
    pub output_dtypes: *const DLDataType,
    /// The number of outputs.
    pub outputs: u32,
    /// Always 0.
    pub reserved2: u32,
}

/// A call of [`DeviceSpec::execute`].
#[repr(C)]
#[derive(Debug)]
pub struct Execution {
    /// The size of this struct, in bytes.
    pub size: u32,
    /// The number of input tensors.
    pub inputs: u32,
    /// The number of output tensors: 1, except for `positions` and the groups of 1.2.
    pub outputs: u32,
    /// The stream of the outputs' device.
    pub stream: u32,
    /// As [`Operation::group`].
    pub group: Text,
    /// As [`Operation::name`].
    pub name: Text,
    /// The operator that is called, for late errors; empty if the device isn't asynchronous.
    pub operator: Text,
    /// The group's parameters: a struct of this module, [`Fields`] for those of 1.2; null for the
    /// group linalg.
    pub params: *const c_void,
    /// The inputs, and after them the outputs. All are on one device.
    pub tensors: *const DLTensor,
}

/// Parameters of the group pointwise.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PointwiseParams {
    /// The size of this struct, in bytes.
    pub size: u32,
    /// The fault code of the primitive `check`, for [`HostTable1::fault`]; else 0.
    ///
    /// [`HostTable1::fault`]: super::HostTable1::fault
    pub fault: u32,
}

/// Parameters of the group reduce.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ReduceParams {
    /// The size of this struct, in bytes.
    pub size: u32,
    /// 1 if the output keeps the reduced dimensions with size 1, 0 if they are removed.
    pub keepdim: u32,
    /// Bit `d` is set if dimension `d` of the input is reduced.
    pub dims: u64,
}

/// Parameters of the group rows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RowParams {
    /// The size of this struct, in bytes.
    pub size: u32,
    /// The dimension of the lanes.
    pub axis: u32,
}

/// Parameters of the group scan.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ScanParams {
    /// The size of this struct, in bytes.
    pub size: u32,
    /// The dimension of the lanes.
    pub axis: u32,
}

/// Parameters of the group index.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct IndexParams {
    /// The size of this struct, in bytes.
    pub size: u32,
    /// The index of the positions' first dimension in the output of `take` or in the values of
    /// `put` and `put_add`.
    pub at: u32,
    /// Bit `d` is set if dimension `d` has positions.
    pub dims: u64,
}

/// Parameters of the group random: a part of a Philox4x32-10 stream.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RandomParams {
    /// The size of this struct, in bytes.
    pub size: u32,
    /// Always 0.
    pub reserved: u32,
    /// The seed, which selects the stream.
    pub seed: u64,
    /// The first block. Block `offset + i` makes elements `4 i` to `4 i + 3`, for float64 elements
    /// `2 i` and `2 i + 1`.
    pub offset: u64,
}

/// [`Field::kind`]: a whole number; 1 or 0 of a flag.
pub const FIELD_INT: u32 = 0;
/// [`Field::kind`]: a whole number without a sign, whose 64 bits [`Field::int`] has.
pub const FIELD_BITS: u32 = 1;
/// [`Field::kind`]: any other number.
pub const FIELD_FLOAT: u32 = 2;
/// [`Field::kind`]: whole numbers.
pub const FIELD_INTS: u32 = 3;
/// [`Field::kind`]: a name.
pub const FIELD_TEXT: u32 = 4;

/// A parameter of an operation.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its name.
    pub name: Text,
    /// One of the `FIELD_` numbers.
    pub kind: u32,
    /// The number of `ints`.
    pub count: u32,
    /// The value of [`FIELD_INT`] and [`FIELD_BITS`].
    pub int: i64,
    /// The value of [`FIELD_FLOAT`].
    pub float: f64,
    /// The values of [`FIELD_INTS`].
    pub ints: *const i64,
    /// The value of [`FIELD_TEXT`].
    pub text: Text,
}

/// Parameters of the groups of 1.2, under the names of the host's documentation. Later hosts may
/// have more of them, and in another order; an operation that a device offered keeps its meaning
/// where it ignores those that it doesn't know.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Fields {
    /// The size of this struct, in bytes.
    pub size: u32,
    /// The number of parameters.
    pub count: u32,
    /// The parameters.
    pub fields: *const Field,
}

/// Statistics of a device's memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceStatistics {
    /// The size of this struct, in bytes.
    pub size: u32,
    /// Always 0.
    pub reserved: u32,
    /// Bytes used by buffers.
    pub in_use: u64,
    /// Free bytes kept for later allocations.
    pub cached: u64,
    /// The peak of `in_use` plus `cached`.
    pub peak: u64,
    /// The number of allocations.
    pub allocations: u64,
    /// The limit of `cached`.
    pub limit: u64,
}
