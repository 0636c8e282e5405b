//! Whether two axes are the same one, decided by the compiler.
//!
//! Rust has no "are these two types equal" among types. So every axis carries a number, the hash of
//! its path, written as a list of 32 bit types; two such lists are compared bit by bit, and the
//! answer is a type, [`True`] or [`False`]. This is what lets coordinates be looked up by their axis
//! without position parameters in the bounds of an author's kernel. Should two axes of one table ever
//! have the same hash, the program doesn't compile.

use super::coords::Coords;
use super::list::ValueList;

/// A yes or no among types.
pub trait Truth: 'static {
    /// The answer as a value.
    const VALUE: bool;
    /// Yes if both are.
    type And<B: Truth>: Truth;
    /// `T` for yes, `E` for no.
    type Pick<T, E>;
    /// [`Pick`](Self::Pick) among coordinates.
    type PickCoords<T: Coords, E: Coords>: Coords;
    /// [`Pick`](Self::Pick) among lists of values.
    type PickValues<T: ValueList, E: ValueList>: ValueList;
}

/// Yes.
#[derive(Debug)]
pub struct True;

/// No.
#[derive(Debug)]
pub struct False;

impl Truth for True {
    const VALUE: bool = true;
    type And<B: Truth> = B;
    type Pick<T, E> = T;
    type PickCoords<T: Coords, E: Coords> = T;
    type PickValues<T: ValueList, E: ValueList> = T;
}

impl Truth for False {
    const VALUE: bool = false;
    type And<B: Truth> = False;
    type Pick<T, E> = E;
    type PickCoords<T: Coords, E: Coords> = E;
    type PickValues<T: ValueList, E: ValueList> = E;
}

/// One bit of an axis's number.
pub trait Bit: 'static {
    /// Whether the bit is one.
    type IsOne: Truth;
    /// Whether the bit is zero.
    type IsZero: Truth;
    /// Whether the other bit is the same.
    type Same<B: Bit>: Truth;
}

/// A bit known by its value.
#[derive(Debug)]
pub struct BitOf<const ONE: bool>;

impl Bit for BitOf<true> {
    type IsOne = True;
    type IsZero = False;
    type Same<B: Bit> = B::IsOne;
}

impl Bit for BitOf<false> {
    type IsOne = False;
    type IsZero = True;
    type Same<B: Bit> = B::IsZero;
}

/// The number of an axis, as a list of bits.
pub trait AxisId: 'static {
    /// The first bit.
    type Head: Bit;
    /// The others.
    type Tail: AxisId;
    /// Whether the other number is the same.
    type Same<O: AxisId>: Truth;
}

/// A bit and the bits after it.
#[derive(Debug)]
pub struct Bits<B, R>(std::marker::PhantomData<fn() -> (B, R)>);

/// No more bits.
#[derive(Debug)]
pub struct NoBits;

impl<B: Bit, R: AxisId> AxisId for Bits<B, R> {
    type Head = B;
    type Tail = R;
    type Same<O: AxisId> = <B::Same<O::Head> as Truth>::And<R::Same<O::Tail>>;
}

impl AxisId for NoBits {
    type Head = BitOf<false>;
    type Tail = NoBits;
    // All numbers have the same length.
    type Same<O: AxisId> = True;
}

/// The number of an axis of that path: 32-bit FNV-1a.
pub const fn hash(path: &str) -> u32 {
    let bytes = path.as_bytes();
    let mut hash = 0x811c_9dc5_u32;
    let mut i = 0;
    while i < bytes.len() {
        hash = (hash ^ bytes[i] as u32).wrapping_mul(0x0100_0193);
        i += 1;
    }
    hash
}

/// The number of an axis as a type, from a text that no other axis has: its path.
///
/// A macro, since only a constant expression written out can become a type.
#[macro_export]
macro_rules! axis_id {
    ($path:expr) => {
        $crate::axis_id!(@ $path; 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15
            16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31)
    };
    (@ $path:expr; $bit:literal $($rest:literal)*) => {
        $crate::axes::truth::Bits<
            $crate::axes::truth::BitOf<{ ($crate::axes::truth::hash($path) >> $bit) & 1 == 1 }>,
            $crate::axis_id!(@ $path; $($rest)*),
        >
    };
    (@ $path:expr;) => { $crate::axes::truth::NoBits };
}
