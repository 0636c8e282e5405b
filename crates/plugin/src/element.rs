//! Rust types of elements.

use crate::types::DType;

/// A Rust type that elements are read and written as.
///
/// # Safety
/// `Raw` has the size of an element of [`DTYPE`](Element::DTYPE), and every bit pattern is valid.
pub unsafe trait Element: Copy + 'static {
    /// The dtype of this element type.
    const DTYPE: DType;
    /// The type in memory.
    type Raw: Copy;

    /// Converts from the type in memory.
    fn read(raw: Self::Raw) -> Self;
    /// Converts to the type in memory.
    fn write(self) -> Self::Raw;
}

/// Elements that are stored as themselves, so that slices of them exist.
///
/// # Safety
/// Every bit pattern is valid.
pub unsafe trait Plain: Element<Raw = Self> {}

macro_rules! plain {
    // The same two impls for each number type.
    ($($type:ty => $dtype:ident),*) => {$(
        // SAFETY: a number of that size, valid for every bit pattern.
        unsafe impl Element for $type {
            const DTYPE: DType = DType::$dtype;
            type Raw = $type;
            #[inline(always)]
            fn read(raw: $type) -> $type {
                raw
            }
            #[inline(always)]
            fn write(self) -> $type {
                self
            }
        }
        // SAFETY: as above.
        unsafe impl Plain for $type {}
    )*};
}

plain! {
    i8 => I8, i16 => I16, i32 => I32, i64 => I64, u8 => U8, u16 => U16, u32 => U32, u64 => U64,
    f32 => F32, f64 => F64
}

// SAFETY: one byte, read as "not zero", since arrays may hold bytes other than 0 and 1.
unsafe impl Element for bool {
    const DTYPE: DType = DType::BOOL;
    type Raw = u8;
    #[inline(always)]
    fn read(raw: u8) -> bool {
        raw != 0
    }
    #[inline(always)]
    fn write(self) -> u8 {
        u8::from(self)
    }
}

/// One byte of a `bool` tensor, for slices; every byte but 0 is true.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bool(pub u8);

impl Bool {
    /// Returns the truth value.
    pub const fn get(self) -> bool {
        self.0 != 0
    }
}

// SAFETY: one byte, valid for every bit pattern.
unsafe impl Element for Bool {
    const DTYPE: DType = DType::BOOL;
    type Raw = Bool;
    #[inline(always)]
    fn read(raw: Bool) -> Bool {
        raw
    }
    #[inline(always)]
    fn write(self) -> Bool {
        self
    }
}
// SAFETY: as above.
unsafe impl Plain for Bool {}
