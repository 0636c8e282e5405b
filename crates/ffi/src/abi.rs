//! The structs and numbers of the ABI, after the description in TVM FFI's `c_api.h`.

use std::ffi::{c_int, c_void};

use keyfold_core::Result;
use keyfold_tensor::dlpack::{self, DLDataType, DLDevice, DLTensor};

/// Nothing.
pub const NONE: i32 = 0;
/// A whole number.
pub const INT: i32 = 1;
/// True or false.
pub const BOOL: i32 = 2;
/// A float.
pub const FLOAT: i32 = 3;
/// A pointer that says nothing of what it points to.
pub const OPAQUE_PTR: i32 = 4;
/// A dtype.
pub const DTYPE: i32 = 5;
/// A device.
pub const DEVICE: i32 = 6;
/// A borrowed `DLTensor*`.
pub const DL_TENSOR: i32 = 7;
/// Borrowed text, ended by a zero byte; in arguments only.
pub const RAW_STR: i32 = 8;
/// Text of up to seven bytes, in place.
pub const SMALL_STR: i32 = 11;
/// From here on: objects with a reference count.
pub const OBJECTS: i32 = 64;
/// An object: text.
pub const STR: i32 = 65;
/// An object: an error.
pub const ERROR: i32 = 67;
/// An object: a function.
pub const FUNCTION: i32 = 68;
/// An object: a list of whole numbers.
pub const SHAPE: i32 = 69;
/// An object: a tensor with its owner.
pub const TENSOR: i32 = 70;
/// An object: a list that doesn't change.
pub const ARRAY: i32 = 71;
/// An object: a list that may change.
pub const LIST: i32 = 75;

/// One argument or result: what it is, and eight bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Any {
    /// What the payload is: one of the numbers of this module.
    pub type_index: i32,
    /// The length of a small text; else 0.
    pub small_len: u32,
    /// The number, the bytes or the address.
    pub payload: u64,
}

impl Any {
    /// Nothing, as callers prepare a result.
    pub const NONE: Any = Any::new(NONE, 0);

    /// A value of that kind.
    #[inline]
    pub const fn new(type_index: i32, payload: u64) -> Any {
        Any { type_index, small_len: 0, payload }
    }

    /// An address.
    #[inline]
    pub fn pointer<T>(type_index: i32, address: *const T) -> Any {
        Any::new(type_index, address.expose_provenance() as u64)
    }

    /// The payload as an address.
    #[inline]
    pub fn address<T>(&self) -> *mut T {
        std::ptr::with_exposed_provenance_mut(self.payload as usize)
    }

    /// A whole number.
    #[inline]
    pub fn int(number: i64) -> Any {
        Any::new(INT, number as u64)
    }

    /// A float.
    #[inline]
    pub fn float(number: f64) -> Any {
        Any::new(FLOAT, number.to_bits())
    }

    /// True or false.
    #[inline]
    pub fn bool(flag: bool) -> Any {
        Any::new(BOOL, u64::from(flag))
    }

    /// A dtype.
    pub fn dtype(dtype: keyfold_core::DType) -> Any {
        let DLDataType { code, bits, lanes } = dlpack::dtype_to_dl(dtype);
        Any::new(DTYPE, u64::from(code) | u64::from(bits) << 8 | u64::from(lanes) << 16)
    }

    /// A device.
    ///
    /// # Errors
    /// For a device without a number in DLPack.
    pub fn device(device: keyfold_core::Device) -> Result<Any> {
        let DLDevice { device_type, device_id } = dlpack::device_to_dl(device)?;
        Ok(Any::new(DEVICE, u64::from(device_type as u32) | (device_id as u64) << 32))
    }

    /// The payload as a dtype's code, whatever it says.
    pub fn as_dtype(&self) -> DLDataType {
        let word = self.payload;
        DLDataType { code: word as u8, bits: (word >> 8) as u8, lanes: (word >> 16) as u16 }
    }

    /// The payload as a device's code, whatever it says.
    pub fn as_device(&self) -> DLDevice {
        let word = self.payload;
        DLDevice { device_type: word as i32, device_id: (word >> 32) as i32 }
    }

    /// Whether it is an object with a reference count.
    #[inline]
    pub fn is_object(&self) -> bool {
        self.type_index >= OBJECTS
    }
}

/// The function type of the ABI. `result` is None when it is called; 0 means success, -1 that the
/// library holds the error.
pub type SafeCall = unsafe extern "C" fn(
    handle: *mut c_void,
    args: *const Any,
    count: i32,
    result: *mut Any,
) -> c_int;

/// Every object begins with this.
#[repr(C)]
#[derive(Debug)]
pub struct Header {
    /// Strong references in the lower half, weak ones in the upper.
    pub references: u64,
    /// What the object is.
    pub type_index: i32,
    padding: u32,
    deleter: Option<unsafe extern "C" fn(*mut c_void, c_int)>,
}

/// Bytes and their number: text, and the cell of a text object.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ByteArray {
    /// The first byte.
    pub data: *const u8,
    /// How many.
    pub size: usize,
}

impl ByteArray {
    /// Borrowed text.
    pub fn of(text: &str) -> ByteArray {
        ByteArray { data: text.as_ptr(), size: text.len() }
    }

    /// The bytes.
    ///
    /// # Safety
    /// It was made by TVM FFI's library, or by [`ByteArray::of`], and what it points to lives for
    /// `'a`.
    pub unsafe fn bytes<'a>(&self) -> &'a [u8] {
        if self.data.is_null() || self.size == 0 || isize::try_from(self.size).is_err() {
            return &[];
        }
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(self.data, self.size) }
    }
}

/// The cell of a list of whole numbers.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ShapeCell {
    /// The first number.
    pub data: *const i64,
    /// How many.
    pub size: usize,
}

/// The cell of a list, as far as all versions of the ABI agree.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SeqCell {
    /// The first item.
    pub data: *const Any,
    /// How many.
    pub size: i64,
    /// Room for how many.
    pub capacity: i64,
}

/// The cell of a function.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FunctionCell {
    /// The function; its first argument is the object's address.
    pub safe_call: Option<SafeCall>,
}

/// The cell of an error, as far as it is read here.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ErrorCell {
    /// Its kind: `ValueError`, say.
    pub kind: ByteArray,
    /// What it says.
    pub message: ByteArray,
    /// Where it was raised, innermost first.
    pub backtrace: ByteArray,
}

/// The address of an object's cell, which follows the header.
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
    // Shapes and strides are handed over where they lie: see `pass`.
    assert!(size_of::<usize>() == size_of::<i64>(), "64-bit targets only");
};
