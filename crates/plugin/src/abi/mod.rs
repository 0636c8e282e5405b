//! The binary interface between host and plugin: C layouts, no behaviour.
//!
//! The host reads the exported static [`Descriptor`], and [`Requirements`] if the plugin exports
//! them, and compares versions before it runs any code of the plugin. Then it calls `register` with
//! its [`HostTable`]. Kernels follow TVM FFI's calling convention ([`SafeCall`]); their handle is a
//! [`CallFrame`]. Devices are in [`device`].
//!
//! # Versions
//! A change of the major version breaks the layout. A minor version appends to structs whose first
//! field is their size, and to the kinds of values, and gives each addition a feature bit. Host and
//! plugin use the greatest minor version that both have: a plugin names the lowest that it can work
//! with and the highest that it was written for, and each side accesses no field beyond the other's
//! size.
//!
//! - 1.0: definitions, kernels, calls
//! - 1.1: [`Requirements`], [`HostTable1`], [`device`]
//! - 1.2: groups with several outputs, [`FEATURE_GROUPS`]: their bits in [`device::GROUPS`],
//!   [`device::Fields`] as their parameters, all dtypes of outputs in [`device::Operation`]
//!
//! # Ownership
//! - Text is UTF-8 without a terminator, borrowed for the call that passes it.
//! - A plugin owns each `*mut HostError` or `*mut HostValue` that it gets from a function. It
//!   releases it once through the table, or passes it to a function that takes ownership. Any
//!   thread may do that.
//! - A `DLTensor` pointer from the host lives as long as the call (an argument) or the value it
//!   belongs to. Functions that take such a pointer accept only the host's.
//! - The table lives as long as the process.

pub mod device;

use std::ffi::{c_int, c_void};

use self::device::DeviceSpec;

/// The first eight bytes of a descriptor.
pub const MAGIC: u64 = u64::from_le_bytes(*b"keyfold\x01");
/// The major version; a change breaks the layout.
pub const ABI_MAJOR: u32 = 1;
/// The minor version, raised by additions.
pub const ABI_MINOR: u32 = 2;
/// The exported static's name, zero-terminated.
pub const SYMBOL: &[u8] = b"keyfold_plugin\0";
/// The name of the exported [`Requirements`], zero-terminated.
pub const REQUIREMENTS_SYMBOL: &[u8] = b"keyfold_plugin_requirements\0";

/// Feature bit: [`HostTable1::device`] and the module [`device`].
pub const FEATURE_DEVICES: u64 = 1;
/// Feature bit: devices that compile whole expressions from CUDA C, [`device::DEVICE_CUDA_C`].
pub const FEATURE_CUDA_C: u64 = 2;
/// Feature bit: devices that compile whole expressions from OpenCL C, [`device::DEVICE_OPENCL_C`].
pub const FEATURE_OPENCL_C: u64 = 4;
/// Feature bit: the groups of [`device::GROUPS_OF_FIELDS`], whose operations may have several
/// outputs. Since 1.2.
pub const FEATURE_GROUPS: u64 = 8;
/// The features of this version, with their names.
pub const FEATURES: [(u64, &str); 4] = [
    (FEATURE_DEVICES, "devices"),
    (FEATURE_CUDA_C, "expressions as CUDA C"),
    (FEATURE_OPENCL_C, "expressions as OpenCL C"),
    (FEATURE_GROUPS, "groups with several outputs"),
];

/// An opaque error of the host.
#[repr(C)]
#[derive(Debug)]
pub struct HostError([u8; 0]);
/// An opaque value of the host.
#[repr(C)]
#[derive(Debug)]
pub struct HostValue([u8; 0]);
/// The opaque collector of a plugin's registrations.
#[repr(C)]
#[derive(Debug)]
pub struct HostRegistrar([u8; 0]);

/// Borrowed text.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Text {
    /// UTF-8; unspecified if `len` is 0. The host checks a plugin's text.
    pub data: *const u8,
    /// The length in bytes.
    pub len: usize,
}

impl Text {
    /// Borrows text, which must outlive the result.
    pub const fn new(text: &str) -> Self {
        Text { data: text.as_ptr(), len: text.len() }
    }

    /// Returns the text.
    ///
    /// # Safety
    /// `data` points to `len` bytes of UTF-8, unchanged for `'a`.
    pub unsafe fn get<'a>(self) -> &'a str {
        if self.len == 0 {
            return "";
        }
        // SAFETY: the contract.
        unsafe { std::str::from_utf8_unchecked(std::slice::from_raw_parts(self.data, self.len)) }
    }
}

/// The static that a plugin exports under [`SYMBOL`].
#[repr(C)]
#[derive(Debug)]
pub struct Descriptor {
    /// [`MAGIC`].
    pub magic: u64,
    /// The plugin's [`ABI_MAJOR`].
    pub abi_major: u32,
    /// The lowest minor version that the plugin works with: [`Requirements::minor_min`].
    pub abi_minor: u32,
    /// The plugin's name.
    pub name: Text,
    /// The plugin's own version.
    pub version: Text,
    /// Registers the plugin's definitions and kernels. Returns null, or an error made through the
    /// table. Never null.
    pub register: Option<Register>,
}

/// The type of [`Descriptor::register`].
pub type Register = unsafe extern "C" fn(*const HostTable, *mut HostRegistrar) -> *mut HostError;

impl Descriptor {
    /// Returns a descriptor for a plugin with these requirements.
    pub const fn new(
        name: &'static str,
        version: &'static str,
        requirements: &Requirements,
        register: Register,
    ) -> Self {
        Descriptor {
            magic: MAGIC,
            abi_major: ABI_MAJOR,
            abi_minor: requirements.minor_min,
            name: Text::new(name),
            version: Text::new(version),
            register: Some(register),
        }
    }
}

// SAFETY: read only; its text is static.
unsafe impl Sync for Descriptor {}

/// The static that a plugin exports under [`REQUIREMENTS_SYMBOL`]. Without it, a plugin needs its
/// descriptor's minor version, and no feature. Since 1.1; hosts of 1.0 don't read it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Requirements {
    /// The size of this struct, in bytes.
    pub size: u32,
    /// The lowest minor version that the plugin works with, equal to [`Descriptor::abi_minor`].
    pub minor_min: u32,
    /// The minor version that the plugin was written for.
    pub minor_max: u32,
    /// Always 0.
    pub reserved: u32,
    /// The `FEATURE_` bits without which the plugin can't work.
    pub features: u64,
}

impl Requirements {
    /// Returns the requirements of a plugin that works with this minor version and later ones, and
    /// needs these features.
    pub const fn new(minor_min: u32, features: u64) -> Self {
        let (size, minor_max) = (size_of::<Requirements>() as u32, ABI_MINOR);
        Requirements { size, minor_min, minor_max, reserved: 0, features }
    }
}

/// [`Any`]: no value.
pub const NONE: i32 = 0;
/// [`Any`]: an `i64`.
pub const INT: i32 = 1;
/// [`Any`]: 0 or 1.
pub const BOOL: i32 = 2;
/// [`Any`]: an `f64`.
pub const FLOAT: i32 = 3;
/// [`Any`]: a pointer to a value of the host that can only be passed on.
pub const OPAQUE: i32 = 4;
/// [`Any`]: a [`DLDataType`].
pub const DTYPE: i32 = 5;
/// [`Any`]: a [`DLDevice`].
pub const DEVICE: i32 = 6;
/// [`Any`]: a `DLTensor *`.
pub const TENSOR: i32 = 7;
/// [`Any`]: a `const char *` to zero-terminated UTF-8.
pub const TEXT: i32 = 8;
/// [`Any`]: a pointer to an [`IntSlice`]. TVM FFI doesn't define it and uses numbers up to 63 for
/// plain values.
pub const INTS: i32 = 48;

/// One argument or result, 16 bytes as TVM FFI's.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Any {
    /// The type of the payload: one of the constants above.
    pub type_index: i32,
    /// Always 0.
    pub zero_padding: u32,
    /// A number, its bits, or a pointer.
    pub payload: u64,
}

impl Any {
    /// Returns a value of that kind.
    pub const fn new(type_index: i32, payload: u64) -> Self {
        Any { type_index, zero_padding: 0, payload }
    }
}

/// Borrowed integers.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct IntSlice {
    /// The integers; unspecified if `len` is 0.
    pub data: *const i64,
    /// The number of integers.
    pub len: usize,
}

/// DLPack's device. A user's device type is [`DEVICE_USER`]; types from [`DEVICE_EXTENDED`] on are
/// the host's.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DLDevice {
    /// 1 for the CPU, 2 for CUDA, [`DEVICE_USER`], or from [`DEVICE_EXTENDED`] on.
    pub device_type: i32,
    /// The device's index; for [`DEVICE_USER`] the type's number times 256, plus the index.
    pub device_id: i32,
}

/// DLPack's `kDLExtDev`: a device type that a backend registered.
pub const DEVICE_USER: i32 = 12;

/// The offset of the host's device types that DLPack has no number for.
pub const DEVICE_EXTENDED: i32 = 0x4b00;
/// Meta: tensors with a shape and no memory.
pub const DEVICE_META: i32 = DEVICE_EXTENDED + 14;

/// DLPack's dtype.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DLDataType {
    /// 0 int, 1 uint, 2 float, 4 bfloat, 5 complex, 6 bool.
    pub code: u8,
    /// The bits of one element.
    pub bits: u8,
    /// Always 1.
    pub lanes: u16,
}

/// DLPack's tensor.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DLTensor {
    /// The memory; `byte_offset` counts from here. Null for a tensor without elements.
    pub data: *mut c_void,
    /// The device of the memory.
    pub device: DLDevice,
    /// The number of dimensions.
    pub ndim: i32,
    /// The element type.
    pub dtype: DLDataType,
    /// `ndim` sizes.
    pub shape: *mut i64,
    /// `ndim` strides in elements; never null.
    pub strides: *mut i64,
    /// The offset of the first element from `data`, in bytes.
    pub byte_offset: u64,
}

/// TVM FFI's calling convention: 0 for success.
pub type SafeCall = unsafe extern "C" fn(*mut c_void, *const Any, i32, *mut Any) -> c_int;

/// [`CallFrame::flags`]: the kernel may write to the argument.
pub const FLAG_WRITABLE: u8 = 1;

/// The handle of a plugin kernel: one call. Valid until the kernel returns.
#[repr(C)]
#[derive(Debug)]
pub struct CallFrame {
    /// The size of this struct, in bytes.
    pub size: u32,
    /// The number of the schema's arguments; the values after them are outputs to fill.
    pub inputs: i32,
    /// The host's functions.
    pub host: *const HostTable,
    /// [`KernelSpec::data`].
    pub data: *mut c_void,
    /// The key set of the call.
    pub keyset: u64,
    /// The chosen key, as a set of one key.
    pub key: u64,
    /// `FLAG_` bits, one byte per argument.
    pub flags: *const u8,
    /// The operator's full name.
    pub operator: Text,
}

/// [`KernelSpec::returns`]: fills the outputs, or the operator returns nothing.
pub const RETURNS_NOTHING: i32 = 0;
/// [`KernelSpec::returns`]: an [`INT`] in `result`.
pub const RETURNS_INT: i32 = 1;
/// [`KernelSpec::returns`]: a [`BOOL`] in `result`.
pub const RETURNS_BOOL: i32 = 2;
/// [`KernelSpec::returns`]: a [`FLOAT`] in `result`.
pub const RETURNS_FLOAT: i32 = 3;
/// [`KernelSpec::returns`]: values passed to [`HostTable::give`].
pub const RETURNS_VALUES: i32 = 4;

/// A kernel to register.
#[repr(C)]
#[derive(Debug)]
pub struct KernelSpec {
    /// The size of this struct, in bytes.
    pub size: u32,
    /// One of the `RETURNS_` numbers.
    pub returns: i32,
    /// The operator's full name.
    pub operator: Text,
    /// The key's name.
    pub key: Text,
    /// The kernel's name, for explanations.
    pub name: Text,
    /// The kernel, never null. Called from any thread, several at a time.
    pub function: Option<SafeCall>,
    /// The plugin's data, passed in the [`CallFrame`].
    pub data: *mut c_void,
    /// Called once with `data` after the last call, also if the registration is refused.
    pub drop: Option<unsafe extern "C" fn(*mut c_void)>,
}

/// The host's functions as of 1.0. Those that return `*mut HostError` return null for success.
#[repr(C)]
#[derive(Debug)]
pub struct HostTable {
    /// The size of this struct, in bytes.
    pub size: u32,
    /// The host's [`ABI_MAJOR`].
    pub abi_major: u32,
    /// The host's [`ABI_MINOR`].
    pub abi_minor: u32,
    /// Always 0.
    pub reserved: u32,

    /// Stages a definition.
    pub define: unsafe extern "C" fn(*mut HostRegistrar, Text) -> *mut HostError,
    /// Stages a kernel and takes ownership of its data.
    pub kernel: unsafe extern "C" fn(*mut HostRegistrar, *const KernelSpec) -> *mut HostError,
    /// Stages a fallthrough: operator, key.
    pub fallthrough: unsafe extern "C" fn(*mut HostRegistrar, Text, Text) -> *mut HostError,

    /// Calls an operator of the same dispatcher by name.
    pub call: unsafe extern "C" fn(
        *const CallFrame,
        Text,
        *const Any,
        i32,
        *mut *mut HostValue,
    ) -> *mut HostError,
    /// As `call`, with an explicit key set. An empty name means the running operator; null
    /// arguments mean its own.
    pub redispatch: unsafe extern "C" fn(
        *const CallFrame,
        Text,
        u64,
        *const Any,
        i32,
        *mut *mut HostValue,
    ) -> *mut HostError,
    /// Returns a new row-major tensor without initialising it: shape and its length, dtype, device.
    pub empty: unsafe extern "C" fn(
        *const i64,
        i32,
        DLDataType,
        DLDevice,
        *mut *mut HostValue,
    ) -> *mut HostError,
    /// Parses a key's name into a set of keys.
    pub keys: unsafe extern "C" fn(Text, *mut u64) -> *mut HostError,
    /// Adds a result of the call and takes ownership of it. Several make a tuple, in order.
    pub give: unsafe extern "C" fn(*const CallFrame, *mut HostValue),
    /// Sets the error of the call, before the kernel returns nonzero; takes ownership of it.
    pub fail: unsafe extern "C" fn(*const CallFrame, *mut HostError),

    /// Borrows the value.
    pub value_get: unsafe extern "C" fn(*const HostValue) -> Any,
    /// Returns the number of results or items; -1 for a value that is neither tuple nor list.
    pub value_len: unsafe extern "C" fn(*const HostValue) -> i64,
    /// Returns one of them as a value of its own; null beyond the end.
    pub value_item: unsafe extern "C" fn(*const HostValue, i64) -> *mut HostValue,
    /// Releases a value.
    pub value_release: unsafe extern "C" fn(*mut HostValue),

    /// Creates an error of a kind (the name of one of the host's kinds) and a message.
    pub error_new: unsafe extern "C" fn(Text, Text) -> *mut HostError,
    /// Returns the kind's name, which is static.
    pub error_kind: unsafe extern "C" fn(*const HostError) -> Text,
    /// Returns the message, borrowed from the error.
    pub error_message: unsafe extern "C" fn(*const HostError) -> Text,
    /// Releases an error.
    pub error_release: unsafe extern "C" fn(*mut HostError),
}

/// The host's functions as of 1.1: the table of a host whose [`HostTable::abi_minor`] is at least 1.
#[repr(C)]
#[derive(Debug)]
pub struct HostTable1 {
    /// The functions of 1.0. Its size is that of the whole table.
    pub base: HostTable,
    /// The host's `FEATURE_` bits.
    pub features: u64,
    /// Stages a device and takes ownership of its data, also if it fails.
    pub device: unsafe extern "C" fn(*mut HostRegistrar, *const DeviceSpec) -> *mut HostError,
    /// Creates the error of a false element of the primitive `check`, of that fault code. Its
    /// message begins with the operator, unless that is empty.
    pub fault: unsafe extern "C" fn(u32, Text) -> *mut HostError,
    /// Marks an error as that of an operation that was queued by an earlier call. Its message
    /// should begin with that call's operator. Takes ownership of the error and returns it.
    pub late: unsafe extern "C" fn(*mut HostError) -> *mut HostError,
    /// Returns the number of the thread's current stream on a device, for kernels that are
    /// registered at the device's key; 0 for an unknown device.
    pub stream: unsafe extern "C" fn(DLDevice) -> u32,
}

impl HostTable1 {
    /// Returns the table of 1.1 that begins with this one, if the host has it.
    ///
    /// # Safety
    /// `table` is the host's, alive as long as the process.
    pub(crate) unsafe fn of(table: *const HostTable) -> Option<&'static HostTable1> {
        // SAFETY: the contract.
        let base = unsafe { &*table };
        let has_1 = base.abi_minor >= 1 && base.size as usize >= size_of::<HostTable1>();
        // SAFETY: a table of that size.
        has_1.then(|| unsafe { &*table.cast::<HostTable1>() })
    }
}

const _: () = assert!(size_of::<Any>() == 16 && size_of::<DLDataType>() == 4);
const _: () = assert!(size_of::<usize>() != 8 || size_of::<DLTensor>() == 48);
const _: () = assert!(size_of::<usize>() != 8 || std::mem::offset_of!(HostTable, define) == 16);
