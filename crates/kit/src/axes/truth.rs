//! Whether two axes are the same one, decided by the compiler.
//!
//! Rust has no "are these two types equal" among types. So every axis carries a number, written as a
//! list of digit types; two such lists are compared digit by digit up to the first that differs, and
//! the answer is a type, [`True`] or [`False`]. This is what lets coordinates be looked up by their
//! axis without position parameters in the bounds of an author's kernel.
//!
//! Numbers of the axes made here begin with 0 and are short; those of an author's axes begin with 1,
//! followed by the 32-bit hash of their path. Should two axes of one table ever have the same hash,
//! the program doesn't compile.
//!
//! What isn't needed isn't worked out: a choice takes what its two sides are made of, not the sides.
//! A kernel over 5 axes at 200 points asks this compiler some 10,000 such questions.

use super::axis::Axis;
use super::coords::Coords;
use super::list::ValueList;

/// A yes or no among types.
pub trait Truth: 'static {
    /// The answer as a value.
    const VALUE: bool;
    /// Whether this is so and `A` and `B` are the same number.
    type AndSame<A: AxisId, B: AxisId>: Truth;
    /// `T` for yes, `E` for no.
    type Pick<T, E>;
    /// `V` for yes, the value of axis `A` in `C` for no.
    type PickValue<V, C: Coords, A: Axis>;
    /// `T` for yes, `E` for no: coordinates.
    type PickCoords<T: Coords, E: Coords>: Coords;
    /// `T` for yes, `E` for no: lists of values.
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
    type AndSame<A: AxisId, B: AxisId> = A::Same<B>;
    type Pick<T, E> = T;
    type PickValue<V, C: Coords, A: Axis> = V;
    type PickCoords<T: Coords, E: Coords> = T;
    type PickValues<T: ValueList, E: ValueList> = T;
}

impl Truth for False {
    const VALUE: bool = false;
    type AndSame<A: AxisId, B: AxisId> = False;
    type Pick<T, E> = E;
    type PickValue<V, C: Coords, A: Axis> = C::Get<A>;
    type PickCoords<T: Coords, E: Coords> = E;
    type PickValues<T: ValueList, E: ValueList> = E;
}

/// A digit of an axis's number, from 0 to 3.
pub trait Digit: 'static {
    /// Whether it is 0.
    type Is0: Truth;
    /// Whether it is 1.
    type Is1: Truth;
    /// Whether it is 2.
    type Is2: Truth;
    /// Whether it is 3.
    type Is3: Truth;
    /// Whether the other digit is the same.
    type Same<D: Digit>: Truth;
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
    /// The others.
    type Tail: AxisId;
    /// Whether the other number is the same.
    type Same<O: AxisId>: Truth;
}

/// A digit and the digits after it.
#[derive(Debug)]
pub struct Digits<D, R>(std::marker::PhantomData<fn() -> (D, R)>);

/// No more digits.
#[derive(Debug)]
pub struct NoDigits;

impl<D: Digit, R: AxisId> AxisId for Digits<D, R> {
    type Head = D;
    type Tail = R;
    type Same<O: AxisId> = <D::Same<O::Head> as Truth>::AndSame<R, O::Tail>;
}

impl AxisId for NoDigits {
    type Head = DigitOf<0>;
    type Tail = NoDigits;
    // Numbers that agree so far have the same length.
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

/// The number of an author's axis as a type, from a text that no other axis has: its path.
///
/// A macro, since only a constant expression written out can become a type.
#[macro_export]
macro_rules! axis_id {
    ($path:expr) => {
        $crate::axes::truth::Digits<
            $crate::axes::truth::DigitOf<1>,
            $crate::axis_id!(@ $path; 0 2 4 6 8 10 12 14 16 18 20 22 24 26 28 30),
        >
    };
    (@ $path:expr; $shift:literal $($rest:literal)*) => {
        $crate::axes::truth::Digits<
            $crate::axes::truth::DigitOf<{ ($crate::axes::truth::hash($path) >> $shift) & 3 }>,
            $crate::axis_id!(@ $path; $($rest)*),
        >
    };
    (@ $path:expr;) => { $crate::axes::truth::NoDigits };
}

/// The number of an axis made in this crate; `N` and `M` are its own.
pub type OwnId<const N: u32, const M: u32> =
    Digits<DigitOf<0>, Digits<DigitOf<N>, Digits<DigitOf<M>, NoDigits>>>;
