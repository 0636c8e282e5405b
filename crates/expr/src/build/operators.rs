//! Rust's operators on terms, with numbers on either side.

use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Not, Rem, Shl, Shr, Sub};

use super::{Term, TermOperand};
use crate::derived_functions;
use crate::graph::{Binary, Unary};

/// Implements an operator with a number on the left. A macro, since Rust's orphan rule forbids one
/// implementation for all number types.
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

/// Implements an operator of Rust as an operation of the language.
macro_rules! operator {
    ($($trait:ident $method:ident $op:ident;)*) => {$(
        impl<'b, O: Into<TermOperand<'b>>> $trait<O> for Term<'b> {
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

    /// Logical not for a bool, bitwise not for an integer.
    fn not(self) -> Term<'b> {
        self.with(|g, x| derived_functions::unary(g, Unary::Not, x))
    }
}
