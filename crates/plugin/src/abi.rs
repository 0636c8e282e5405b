//! The binary interface between host and plugin: C layouts, no behaviour.
//!
//! The host reads the exported static [`Descriptor`] and compares versions before it runs anything
//! of the plugin. Then it calls `register` with its [`HostTable`]. Kernels follow TVM FFI's calling
//! convention ([`SafeCall`]); their handle is a [`CallFrame`].
//!
//! # Versions
//! Another major version is another layout: host and plugin don't fit. A minor version adds to the
//! end of [`HostTable`] and [`CallFrame`], whose first field is their size, and to the kinds of
//! values; a host takes plugins of its own minor version and of earlier ones.
//!
//! # Ownership
//! - Text is UTF-8 without an end mark, borrowed for the call that passes it.
//! - A `*mut HostError` or `*mut HostValue` that a function gives is the plugin's: released once
//!   through the table, or handed back where a function takes it over. Any thread may do that.
//! - A `DLTensor` pointer that the host gives lives as long as the call (an argument) or the value
//!   that it belongs to. Where the host takes such a pointer, it must be one that it gave.
//! - The table lives as long as the process.

use std::ffi::{c_int, c_void};

/// The first eight bytes of a descriptor.
pub const MAGIC: u64 = u64::from_le_bytes(*b"keyfold\x01");
/// Another number is another layout.
pub const ABI_MAJOR: u32 = 1;
/// Another number means additions.
pub const ABI_MINOR: u32 = 0;
/// The exported static's name, ended by a zero byte.
pub const SYMBOL: &[u8] = b"keyfold_plugin\0";

/// An error of the host's. Opaque.
#[repr(C)]
#[derive(Debug)]
pub struct HostError([u8; 0]);
/// A value of the host's. Opaque.
#[repr(C)]
#[derive(Debug)]
pub struct HostValue([u8; 0]);
/// What collects registrations while a plugin is loaded. Opaque.
#[repr(C)]
#[derive(Debug)]
pub struct HostRegistrar([u8; 0]);

/// Borrowed text.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Text {
    /// UTF-8; anything where `len` is 0.
    pub data: *const u8,
    /// Bytes.
    pub len: usize,
}

impl Text {
    /// Borrows text; the result must not outlive it.
    pub const fn new(text: &str) -> Self {
        Text { data: text.as_ptr(), len: text.len() }
    }

    /// The text.
    ///
    /// # Safety
    /// `data` points to `len` bytes of UTF-8 that stay as they are for `'a`.
    pub unsafe fn get<'a>(self) -> &'a str {
        if self.len == 0 {
            return "";
        }
        // SAFETY: by the contract.
        unsafe { std::str::from_utf8_unchecked(std::slice::from_raw_parts(self.data, self.len)) }
    }
}

/// What a plugin exports under [`SYMBOL`].
#[repr(C)]
#[derive(Debug)]
pub struct Descriptor {
    /// [`MAGIC`].
    pub magic: u64,
    /// The plugin's [`ABI_MAJOR`].
    pub abi_major: u32,
    /// The plugin's [`ABI_MINOR`].
    pub abi_minor: u32,
    /// The plugin's name.
    pub name: Text,
    /// The plugin's own version.
    pub version: Text,
    /// Registers what the plugin has. Null: done; else an error made through the table.
    pub register: unsafe extern "C" fn(*const HostTable, *mut HostRegistrar) -> *mut HostError,
}

impl Descriptor {
    /// A descriptor of this version of the ABI.
    pub const fn new(
        name: &'static str,
        version: &'static str,
        register: unsafe extern "C" fn(*const HostTable, *mut HostRegistrar) -> *mut HostError,
    ) -> Self {
        Descriptor {
            magic: MAGIC,
            abi_major: ABI_MAJOR,
            abi_minor: ABI_MINOR,
            name: Text::new(name),
            version: Text::new(version),
            register,
        }
    }
}

// SAFETY: read only; its text is static.
unsafe impl Sync for Descriptor {}

/// [`Any`]: no value.
pub const NONE: i32 = 0;
/// [`Any`]: an `i64`.
pub const INT: i32 = 1;
/// [`Any`]: 0 or 1.
pub const BOOL: i32 = 2;
/// [`Any`]: an `f64`.
pub const FLOAT: i32 = 3;
/// [`Any`]: a pointer to a value of the host's that can only be passed on.
pub const OPAQUE: i32 = 4;
/// [`Any`]: a [`DLDataType`].
pub const DTYPE: i32 = 5;
/// [`Any`]: a [`DLDevice`].
pub const DEVICE: i32 = 6;
/// [`Any`]: a `DLTensor *`.
pub const TENSOR: i32 = 7;
/// [`Any`]: a `const char *` to UTF-8 ended by a zero byte.
pub const TEXT: i32 = 8;
/// [`Any`]: a pointer to an [`IntSlice`]. Not TVM FFI's; its numbers up to 63 are plain values.
pub const INTS: i32 = 48;

/// One argument or result: TVM FFI's 16 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Any {
    /// What the payload is.
    pub type_index: i32,
    /// 0.
    pub zero_padding: u32,
    /// A number, its bits, or a pointer.
    pub payload: u64,
}

impl Any {
    /// A value of that kind.
    pub const fn new(type_index: i32, payload: u64) -> Self {
        Any { type_index, zero_padding: 0, payload }
    }
}

/// Borrowed whole numbers.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct IntSlice {
    /// The numbers; anything where `len` is 0.
    pub data: *const i64,
    /// How many.
    pub len: usize,
}

/// DLPack's device. Beside its own types: [`DEVICE_EXTENDED`] and above are the host's.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DLDevice {
    /// 1 CPU, 2 CUDA, or from [`DEVICE_EXTENDED`] on.
    pub device_type: i32,
    /// The device's index.
    pub device_id: i32,
}

/// Added to the number of a device type of the host's that DLPack doesn't know.
pub const DEVICE_EXTENDED: i32 = 0x4b00;
/// Meta: tensors with a shape and no memory.
pub const DEVICE_META: i32 = DEVICE_EXTENDED + 14;

/// DLPack's dtype.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DLDataType {
    /// 0 int, 1 uint, 2 float, 4 bfloat, 5 complex, 6 bool.
    pub code: u8,
    /// Bits of one element.
    pub bits: u8,
    /// 1.
    pub lanes: u16,
}

/// DLPack's tensor.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DLTensor {
    /// The memory, which `byte_offset` counts from; null where there are no elements.
    pub data: *mut c_void,
    /// Where it is.
    pub device: DLDevice,
    /// The number of dimensions.
    pub ndim: i32,
    /// The element type.
    pub dtype: DLDataType,
    /// `ndim` sizes.
    pub shape: *mut i64,
    /// `ndim` strides in elements. The host always gives them.
    pub strides: *mut i64,
    /// From `data` to the first element, in bytes.
    pub byte_offset: u64,
}

/// TVM FFI's calling convention: 0 for success.
pub type SafeCall = unsafe extern "C" fn(*mut c_void, *const Any, i32, *mut Any) -> c_int;

/// [`CallFrame::flags`]: the kernel may write to the argument.
pub const FLAG_WRITABLE: u8 = 1;

/// What a plugin kernel gets as its handle: one call. Valid until the kernel returns.
#[repr(C)]
#[derive(Debug)]
pub struct CallFrame {
    /// Of this struct, in bytes.
    pub size: u32,
    /// Arguments of the schema; those after them are outputs to fill.
    pub inputs: i32,
    /// The host's functions.
    pub host: *const HostTable,
    /// [`KernelSpec::data`].
    pub data: *mut c_void,
    /// The key set of the call.
    pub keyset: u64,
    /// The chosen key, as a set of one.
    pub key: u64,
    /// One byte per argument, `FLAG_` bits.
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
/// [`KernelSpec::returns`]: values given with [`HostTable::give`].
pub const RETURNS_VALUES: i32 = 4;

/// A kernel to register.
#[repr(C)]
#[derive(Debug)]
pub struct KernelSpec {
    /// Of this struct, in bytes.
    pub size: u32,
    /// One of the `RETURNS_` numbers.
    pub returns: i32,
    /// The operator's full name.
    pub operator: Text,
    /// The key's name.
    pub key: Text,
    /// The kernel's name, for explanations.
    pub name: Text,
    /// The kernel. Called from any thread, from several at a time.
    pub function: SafeCall,
    /// The plugin's own; the host passes it in the [`CallFrame`].
    pub data: *mut c_void,
    /// Called once with `data` when no call will come any more; when the registration is refused, too.
    pub drop: Option<unsafe extern "C" fn(*mut c_void)>,
}

/// The host's functions. Those that return `*mut HostError` give null for success.
#[repr(C)]
#[derive(Debug)]
pub struct HostTable {
    /// Of this struct, in bytes.
    pub size: u32,
    /// The host's [`ABI_MAJOR`].
    pub abi_major: u32,
    /// The host's [`ABI_MINOR`].
    pub abi_minor: u32,
    /// 0.
    pub reserved: u32,

    /// Stages a definition.
    pub define: unsafe extern "C" fn(*mut HostRegistrar, Text) -> *mut HostError,
    /// Stages a kernel, and takes its data over.
    pub kernel: unsafe extern "C" fn(*mut HostRegistrar, *const KernelSpec) -> *mut HostError,
    /// Stages a fallthrough: operator, key.
    pub fallthrough: unsafe extern "C" fn(*mut HostRegistrar, Text, Text) -> *mut HostError,

    /// Calls an operator of the call's dispatcher by name.
    pub call: unsafe extern "C" fn(
        *const CallFrame,
        Text,
        *const Any,
        i32,
        *mut *mut HostValue,
    ) -> *mut HostError,
    /// As `call`, with a key set taken as given. An empty name is the call's own operator; null
    /// arguments are the call's own.
    pub redispatch: unsafe extern "C" fn(
        *const CallFrame,
        Text,
        u64,
        *const Any,
        i32,
        *mut *mut HostValue,
    ) -> *mut HostError,
    /// A new tensor, row-major and not initialised: shape and its length, dtype, device.
    pub empty: unsafe extern "C" fn(
        *const i64,
        i32,
        DLDataType,
        DLDevice,
        *mut *mut HostValue,
    ) -> *mut HostError,
    /// The keys that a name stands for, as a set.
    pub keys: unsafe extern "C" fn(Text, *mut u64) -> *mut HostError,
    /// Gives a result of the call, and takes it over; several make a tuple, in order.
    pub give: unsafe extern "C" fn(*const CallFrame, *mut HostValue),
    /// Says why the call fails, before the kernel returns another number than 0; takes it over.
    pub fail: unsafe extern "C" fn(*const CallFrame, *mut HostError),

    /// The value, borrowed from it.
    pub value_get: unsafe extern "C" fn(*const HostValue) -> Any,
    /// How many results or items there are; -1 for a value that is neither tuple nor list.
    pub value_len: unsafe extern "C" fn(*const HostValue) -> i64,
    /// One of them, as a value of its own; null beyond the end.
    pub value_item: unsafe extern "C" fn(*const HostValue, i64) -> *mut HostValue,
    /// Releases a value.
    pub value_release: unsafe extern "C" fn(*mut HostValue),

    /// An error: kind (the name of one of the host's kinds), message.
    pub error_new: unsafe extern "C" fn(Text, Text) -> *mut HostError,
    /// The kind's name, borrowed for ever.
    pub error_kind: unsafe extern "C" fn(*const HostError) -> Text,
    /// The message, borrowed from it.
    pub error_message: unsafe extern "C" fn(*const HostError) -> Text,
    /// Releases an error.
    pub error_release: unsafe extern "C" fn(*mut HostError),
}

const _: () = assert!(size_of::<Any>() == 16 && size_of::<DLDataType>() == 4);
const _: () = assert!(size_of::<usize>() != 8 || size_of::<DLTensor>() == 48);
const _: () = assert!(size_of::<usize>() != 8 || std::mem::offset_of!(HostTable, define) == 16);
