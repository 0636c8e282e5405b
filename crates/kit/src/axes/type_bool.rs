//! Booleans as types, and equality of axes as such a boolean.
//!
//! Rust can't compare two types for equality among types. So every axis carries a number, written as a
//! list of digit types; two such lists are compared digit by digit up to the first that differs, and the
//! result is a type, [`True`] or [`False`]. This lets coordinates be looked up by their axis without
//! position parameters in the bounds of an author's kernel.
//!
//! Numbers of the axes in this crate begin with 0 and are short; those of an author's axes begin with 1,
//! followed by the 32-bit hash of their path. If two axes of one table had the same hash, the program
//! would fail to compile.
//!
//! The choices ([`TypeBool::PickValue`] and so on) take the parameters of their second branch, not the
//! branch itself, so the compiler evaluates a branch only if it is chosen. A kernel over 5 axes at 200
//! points makes some 10,000 such choices.

use super::axis::Axis;
use super::coords::Coords;
use super::type_list::ValueList;

/// A boolean among types.
pub trait TypeBool: 'static {
    /// The boolean as a value.
    const VALUE: bool;
    /// `Self` and the equality of the numbers `A` and `B`.
    type AndSame<A: AxisId, B: AxisId>: TypeBool;
    /// `T` if true, else `E`.
    type Pick<T, E>;
    /// `V` if true, else the value of axis `A` in `C`.
    type PickValue<V, C: Coords, A: Axis>;
    /// `T` if true, else `E`, for coordinates.
    type PickCoords<T: Coords, E: Coords>: Coords;
    /// `T` if true, else `E`, for lists of values.
    type PickValues<T: ValueList, E: ValueList>: ValueList;
}

/// True.
#[derive(Debug)]
pub struct True;

/// False.
#[derive(Debug)]
pub struct False;

impl TypeBool for True {
    const VALUE: bool = true;
    type AndSame<A: AxisId, B: AxisId> = A::Same<B>;
    type Pick<T, E> = T;
    type PickValue<V, C: Coords, A: Axis> = V;
    type PickCoords<T: Coords, E: Coords> = T;
    type PickValues<T: ValueList, E: ValueList> = T;
}

impl TypeBool for False {
    const VALUE: bool = false;
    type AndSame<A: AxisId, B: AxisId> = False;
    type Pick<T, E> = E;
    type PickValue<V, C: Coords, A: Axis> = C::Get<A>;
    type PickCoords<T: Coords, E: Coords> = E;
    type PickValues<T: ValueList, E: ValueList> = E;
}

/// A digit of an axis's number, from 0 to 3.
pub trait Digit: 'static {
    /// Whether the digit is 0.
    type Is0: TypeBool;
    /// Whether the digit is 1.
    type Is1: TypeBool;
    /// Whether the digit is 2.
    type Is2: TypeBool;
    /// Whether the digit is 3.
    type Is3: TypeBool;
    /// Whether the other digit is equal.
    type Same<D: Digit>: TypeBool;
}

/// A digit known by its value.
#[derive(Debug)]
pub struct DigitOf<const N: u32>;

impl Digit for DigitOf<0> {
    type Is0 = True;
    type Is1 = False;
    type Is2 = False;
    type Is3 = False;
    type Same<D: Digit> = D::Is0;
}

impl Digit for DigitOf<1> {
    type Is0 = False;
    type Is1 = True;
    type Is2 = False;
    type Is3 = False;
    type Same<D: Digit> = D::Is1;
}

impl Digit for DigitOf<2> {
    type Is0 = False;
    type Is1 = False;
    type Is2 = True;
    type Is3 = False;
    type Same<D: Digit> = D::Is2;
}

impl Digit for DigitOf<3> {
    type Is0 = False;
    type Is1 = False;
    type Is2 = False;
    type Is3 = True;
    type Same<D: Digit> = D::Is3;
}

/// The number of an axis, as a list of digits.
pub trait AxisId: 'static {
    /// The first digit.
    type Head: Digit;
    /// The other digits.
    type Tail: AxisId;
    /// Whether the other number is equal.
    type Same<O: AxisId>: TypeBool;
}

/// A digit and the digits after it.
#[derive(Debug)]
pub struct Digits<D, R>(std::marker::PhantomData<fn() -> (D, R)>);

/// The empty list of digits.
#[derive(Debug)]
pub struct NoDigits;

impl<D: Digit, R: AxisId> AxisId for Digits<D, R> {
    type Head = D;
    type Tail = R;
    type Same<O: AxisId> = <D::Same<O::Head> as TypeBool>::AndSame<R, O::Tail>;
}

impl AxisId for NoDigits {
    type Head = DigitOf<0>;
    type Tail = NoDigits;
    // Numbers whose digits agree so far have the same length.
    type Same<O: AxisId> = True;
}

/// The hash of an axis's path: 32-bit FNV-1a.
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

/// The number of an author's axis as a type, from a text that is unique to the axis: its path.
///
/// This is a macro because only a constant expression written out can become a type.
#[macro_export]
macro_rules! axis_id {
    ($path:expr) => {
        $crate::axes::type_bool::Digits<
            $crate::axes::type_bool::DigitOf<1>,
            $crate::axis_id!(@ $path; 0 2 4 6 8 10 12 14 16 18 20 22 24 26 28 30),
        >
    };
    (@ $path:expr; $shift:literal $($rest:literal)*) => {
        $crate::axes::type_bool::Digits<
            $crate::axes::type_bool::DigitOf<{ ($crate::axes::type_bool::hash($path) >> $shift) & 3 }>,
            $crate::axis_id!(@ $path; $($rest)*),
        >
    };
    (@ $path:expr;) => { $crate::axes::type_bool::NoDigits };
}

/// The number of an axis of this crate; `N` and `M` are its digits.
pub type OwnId<const N: u32, const M: u32> =
    Digits<DigitOf<0>, Digits<DigitOf<N>, Digits<DigitOf<M>, NoDigits>>>;
