//! The operators of Rust on terms, with numbers on either side.

use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Not, Rem, Shl, Shr, Sub};

use super::{Operand, Term};
use crate::derived_functions;
use crate::graph::{Binary, Unary};

/// A number on the left of an operator: a trait that is implemented for each type of number, since
/// one implementation for all of them isn't allowed outside their crate.
macro_rules! number_left {
    ($trait:ident, $method:ident: $($number:ty)*) => {$(
        impl<'b> $trait<Term<'b>> for $number {
            type Output = Term<'b>;

            fn $method(self, other: Term<'b>) -> Term<'b> {
                $trait::$method(other.builder.term(self), other)
            }
        }
    )*};
}

/// An operator of Rust and the operation that it is.
macro_rules! operator {
    ($($trait:ident $method:ident $op:ident;)*) => {$(
        impl<'b, O: Into<Operand<'b>>> $trait<O> for Term<'b> {
            type Output = Term<'b>;

            fn $method(self, other: O) -> Term<'b> {
                self.with_two(other, |g, a, b| derived_functions::binary(g, Binary::$op, a, b))
            }
        }
        number_left!($trait, $method: f64 i64 i32 bool);
    )*};
}

operator! {
    Add add Add;
    Sub sub Sub;
    Mul mul Mul;
    Div div Div;
    Rem rem Mod;
    BitAnd bitand And;
    BitOr bitor Or;
    BitXor bitxor Xor;
    Shl shl Shl;
    Shr shr Shr;
}

impl<'b> Neg for Term<'b> {
    type Output = Term<'b>;

    fn neg(self) -> Term<'b> {
        self.with(|g, x| derived_functions::unary(g, Unary::Neg, x))
    }
}

impl<'b> Not for Term<'b> {
    type Output = Term<'b>;

    /// Not of a bool, all bits of a whole number turned over.
    fn not(self) -> Term<'b> {
        self.with(|g, x| derived_functions::unary(g, Unary::Not, x))
    }
}
