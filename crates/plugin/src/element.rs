//! Rust types of elements.

use crate::types::DType;

/// A Rust type that elements are read and written as.
///
/// # Safety
/// `Raw` has the size of an element of [`DTYPE`](Element::DTYPE), and any bits are one.
pub unsafe trait Element: Copy + 'static {
    /// The dtype whose elements it is.
    const DTYPE: DType;
    /// What stands in memory.
    type Raw: Copy;

    /// From memory.
    fn read(raw: Self::Raw) -> Self;
    /// Into memory.
    fn write(self) -> Self::Raw;
}

/// Elements that stand in memory as they are, so that there can be slices of them.
///
/// # Safety
/// Any bits are a value.
pub unsafe trait Plain: Element<Raw = Self> {}

macro_rules! plain {
    // The same two impls for each number type.
    ($($type:ty => $dtype:ident),*) => {$(
        // SAFETY: a number of that size, for which any bits are a value.
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

// SAFETY: one byte, read as "not zero": an array may hold other bits than 0 and 1.
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

/// One byte of a `bool` tensor, for slices: any byte but 0 is true.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bool(pub u8);

impl Bool {
    /// The truth value.
    pub const fn get(self) -> bool {
        self.0 != 0
    }
}

// SAFETY: one byte, of any bits.
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
