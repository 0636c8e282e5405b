//! The structs and constants of the ABI, as TVM FFI's `c_api.h` defines them.

use std::ffi::{c_int, c_void};

use keyfold_core::Result;
use keyfold_tensor::dlpack::{self, DLDataType, DLDevice, DLTensor};

/// Type index: no value.
pub const NONE: i32 = 0;
/// Type index: an integer.
pub const INT: i32 = 1;
/// Type index: a bool.
pub const BOOL: i32 = 2;
/// Type index: a float.
pub const FLOAT: i32 = 3;
/// Type index: an untyped pointer.
pub const OPAQUE_PTR: i32 = 4;
/// Type index: a dtype.
pub const DTYPE: i32 = 5;
/// Type index: a device.
pub const DEVICE: i32 = 6;
/// Type index: a borrowed `DLTensor*`.
pub const DL_TENSOR: i32 = 7;
/// Type index: borrowed zero-terminated text; in arguments only.
pub const RAW_STR: i32 = 8;
/// Type index: text of up to seven bytes, stored inline.
pub const SMALL_STR: i32 = 11;
/// The first type index of reference-counted objects.
pub const OBJECTS: i32 = 64;
/// Type index: a string object.
pub const STR: i32 = 65;
/// Type index: an error object.
pub const ERROR: i32 = 67;
/// Type index: a function object.
pub const FUNCTION: i32 = 68;
/// Type index: an object with a list of integers.
pub const SHAPE: i32 = 69;
/// Type index: a tensor object, which owns its memory.
pub const TENSOR: i32 = 70;
/// Type index: an immutable list object.
pub const ARRAY: i32 = 71;
/// Type index: a mutable list object.
pub const LIST: i32 = 75;

/// One argument or result: a type index and eight bytes of payload.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Any {
    /// The type of the payload: one of the constants of this module.
    pub type_index: i32,
    /// The length of inline text; else 0.
    pub small_len: u32,
    /// The number, the bytes or the address.
    pub payload: u64,
}

impl Any {
    /// No value; callers initialise results with it.
    pub const NONE: Any = Any::new(NONE, 0);

    /// Returns a value of that type.
    #[inline]
    pub const fn new(type_index: i32, payload: u64) -> Any {
        Any { type_index, small_len: 0, payload }
    }

    /// Returns an address as a value.
    #[inline]
    pub fn pointer<T>(type_index: i32, address: *const T) -> Any {
        Any::new(type_index, address.expose_provenance() as u64)
    }

    /// Returns the payload as an address.
    #[inline]
    pub fn address<T>(&self) -> *mut T {
        std::ptr::with_exposed_provenance_mut(self.payload as usize)
    }

    /// Returns an integer as a value.
    #[inline]
    pub fn int(number: i64) -> Any {
        Any::new(INT, number as u64)
    }

    /// Returns a float as a value.
    #[inline]
    pub fn float(number: f64) -> Any {
        Any::new(FLOAT, number.to_bits())
    }

    /// Returns a bool as a value.
    #[inline]
    pub fn bool(flag: bool) -> Any {
        Any::new(BOOL, u64::from(flag))
    }

    /// Returns a dtype as a value.
    pub fn dtype(dtype: keyfold_core::DType) -> Any {
        let DLDataType { code, bits, lanes } = dlpack::dtype_to_dl(dtype);
        Any::new(DTYPE, u64::from(code) | u64::from(bits) << 8 | u64::from(lanes) << 16)
    }

    /// Returns a device as a value.
    ///
    /// # Errors
    /// For meta, which DLPack has no number for.
    pub fn device(device: keyfold_core::Device) -> Result<Any> {
        let DLDevice { device_type, device_id } = dlpack::exported_device(device)?;
        Ok(Any::new(DEVICE, u64::from(device_type as u32) | (device_id as u64) << 32))
    }

    /// Returns the payload as a dtype's code, unchecked.
    pub fn as_dtype(&self) -> DLDataType {
        let word = self.payload;
        DLDataType { code: word as u8, bits: (word >> 8) as u8, lanes: (word >> 16) as u16 }
    }

    /// Returns the payload as a device's code, unchecked.
    pub fn as_device(&self) -> DLDevice {
        let word = self.payload;
        DLDevice { device_type: word as i32, device_id: (word >> 32) as i32 }
    }

    /// Returns whether it is a reference-counted object.
    #[inline]
    pub fn is_object(&self) -> bool {
        self.type_index >= OBJECTS
    }
}

/// The function type of the ABI. Callers set `result` to None. A return of 0 means success, -1 that
/// the library holds the error.
pub type SafeCall = unsafe extern "C" fn(
    handle: *mut c_void,
    args: *const Any,
    count: i32,
    result: *mut Any,
) -> c_int;

/// The header that every object begins with.
#[repr(C)]
#[derive(Debug)]
pub struct Header {
    /// Strong references in the lower 32 bits, weak ones in the upper.
    pub references: u64,
    /// The type of the object.
    pub type_index: i32,
    padding: u32,
    deleter: Option<unsafe extern "C" fn(*mut c_void, c_int)>,
}

/// A pointer and a length in bytes: text, and the cell of a string object.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ByteArray {
    /// The first byte.
    pub data: *const u8,
    /// The number of bytes.
    pub size: usize,
}

impl ByteArray {
    /// Borrows text.
    pub fn of(text: &str) -> ByteArray {
        ByteArray { data: text.as_ptr(), size: text.len() }
    }

    /// Returns the bytes.
    ///
    /// # Safety
    /// It was made by TVM FFI's library or by [`ByteArray::of`], and the bytes live for `'a`.
    pub unsafe fn bytes<'a>(&self) -> &'a [u8] {
        if self.data.is_null() || self.size == 0 || isize::try_from(self.size).is_err() {
            return &[];
        }
        // SAFETY: the caller's contract.
        unsafe { std::slice::from_raw_parts(self.data, self.size) }
    }
}

/// The cell of a list of integers.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ShapeCell {
    /// The first number.
    pub data: *const i64,
    /// The number of items.
    pub size: usize,
}

/// The cell of a list: the fields that all versions of the ABI share.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SeqCell {
    /// The first item.
    pub data: *const Any,
    /// The number of items.
    pub size: i64,
    /// The capacity in items.
    pub capacity: i64,
}

/// The cell of a function.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FunctionCell {
    /// The function; its first argument is the object's address.
    pub safe_call: Option<SafeCall>,
}

/// The cell of an error: the fields that are read here.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ErrorCell {
    /// The kind, such as `ValueError`.
    pub kind: ByteArray,
    /// The message.
    pub message: ByteArray,
    /// The traceback, innermost frame first.
    pub backtrace: ByteArray,
}

/// Returns the address of an object's cell, which follows its header.
#[inline]
pub fn cell<C>(object: *const Header) -> *const C {
    object.wrapping_add(1).cast()
}

const _: () = {
    assert!(size_of::<Any>() == 16 && align_of::<Any>() == 8);
    assert!(std::mem::offset_of!(Any, payload) == 8);
    assert!(size_of::<Header>() == 24 && std::mem::offset_of!(Header, type_index) == 8);
    assert!(size_of::<ByteArray>() == 16 && size_of::<ErrorCell>() == 48);
    assert!(size_of::<DLTensor>() == 48);
    // Shapes and strides are passed without conversion: see `arg_frame`.
    assert!(size_of::<usize>() == size_of::<i64>(), "64-bit targets only");
};
