//! [`Value`]: a node with operators, to write formulas.

use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Not, Sub};

use keyfold_core::{DType, DTypeKind};

use super::Primitive;
use super::graph::{Graph, NodeId};

/// A node of a real dtype. Operators and methods add nodes to its graph.
#[derive(Clone, Copy)]
pub(super) struct Value<'g> {
    pub(super) graph: &'g Graph,
    pub(super) id: NodeId,
    pub(super) dtype: DType,
}

/// The parameters of a format of floats.
pub(super) struct Format {
    /// The integer dtype of the same width.
    pub(super) integer: DType,
    /// The number of stored mantissa bits.
    pub(super) mantissa: i64,
    /// The exponent's bias.
    pub(super) bias: i64,
    /// The smallest normal number.
    pub(super) least_normal: f64,
    /// The greatest number.
    pub(super) greatest: f64,
    /// Up to this absolute value the exponential neither overflows nor underflows.
    pub(super) exp_limit: f64,
}

const SINGLE: Format = Format {
    integer: DType::I32,
    mantissa: 23,
    bias: 127,
    least_normal: f32::MIN_POSITIVE as f64,
    greatest: f32::MAX as f64,
    exp_limit: 80.0,
};
const DOUBLE: Format = Format {
    integer: DType::I64,
    mantissa: 52,
    bias: 1023,
    least_normal: f64::MIN_POSITIVE,
    greatest: f64::MAX,
    exp_limit: 700.0,
};

impl<'g> Value<'g> {
    fn apply(self, primitive: Primitive, operands: &[NodeId], dtype: DType) -> Value<'g> {
        self.graph.apply(primitive, operands, dtype)
    }

    fn one(self, primitive: Primitive) -> Value<'g> {
        self.apply(primitive, &[self.id], self.dtype)
    }

    fn two(self, primitive: Primitive, other: Value<'g>) -> Value<'g> {
        self.apply(primitive, &[self.id, other.id], self.dtype)
    }

    /// Returns the format of a float dtype.
    pub(super) fn format(self) -> &'static Format {
        if self.dtype == DType::F32 { &SINGLE } else { &DOUBLE }
    }

    /// Returns whether the dtype is float32.
    pub(super) fn is_single(self) -> bool {
        self.dtype == DType::F32
    }

    /// Returns a constant of this float dtype.
    pub(super) fn num(self, number: f64) -> Value<'g> {
        let bits = match self.dtype {
            DType::F32 => u64::from((number as f32).to_bits()),
            _ => number.to_bits(),
        };
        self.graph.constant(bits, self.dtype)
    }

    /// Returns a constant of this integer dtype, wrapped.
    pub(super) fn int(self, number: i64) -> Value<'g> {
        let bits = number as u64;
        let bits =
            if self.dtype.size() < 8 { bits & ((1 << (8 * self.dtype.size())) - 1) } else { bits };
        self.graph.constant(bits, self.dtype)
    }

    /// Returns a bool constant.
    pub(super) fn bool_constant(self, bool_constant: bool) -> Value<'g> {
        self.graph.constant(u64::from(bool_constant), DType::Bool)
    }

    /// Returns the float's bits as integers of its width.
    pub(super) fn bits(self) -> Value<'g> {
        self.graph.bits(self.id, self.format().integer)
    }

    /// Returns the memory as another dtype of the same size.
    pub(super) fn bits_as(self, dtype: DType) -> Value<'g> {
        self.graph.bits(self.id, dtype)
    }

    /// Converts the value.
    pub(super) fn cast(self, dtype: DType) -> Value<'g> {
        if dtype == self.dtype { self } else { self.copied_as(dtype) }
    }

    /// Converts the value, or copies it if it has the dtype.
    pub(super) fn copied_as(self, dtype: DType) -> Value<'g> {
        self.apply(Primitive::Cast, &[self.id], dtype)
    }

    /// Returns this bool, which reports a fault where it is false.
    pub(super) fn checked(self, fault: u32) -> Value<'g> {
        self.graph.apply_or_fault(Primitive::Check, &[self.id], DType::Bool, fault)
    }

    pub(super) fn abs(self) -> Value<'g> {
        self.one(Primitive::Abs)
    }

    pub(super) fn sqrt(self) -> Value<'g> {
        self.one(Primitive::Sqrt)
    }

    pub(super) fn exp(self) -> Value<'g> {
        self.one(Primitive::Exp)
    }

    pub(super) fn log(self) -> Value<'g> {
        self.one(Primitive::Log)
    }

    pub(super) fn sin(self) -> Value<'g> {
        self.one(Primitive::Sin)
    }

    pub(super) fn cos(self) -> Value<'g> {
        self.one(Primitive::Cos)
    }

    pub(super) fn floor(self) -> Value<'g> {
        self.one(Primitive::Floor)
    }

    pub(super) fn shift_left(self, by: Value<'g>) -> Value<'g> {
        self.two(Primitive::ShiftLeft, by)
    }

    pub(super) fn shift_right(self, by: Value<'g>) -> Value<'g> {
        self.two(Primitive::ShiftRight, by)
    }

    pub(super) fn equals(self, other: Value<'g>) -> Value<'g> {
        self.apply(Primitive::Equal, &[self.id, other.id], DType::Bool)
    }

    pub(super) fn not_equal(self, other: Value<'g>) -> Value<'g> {
        !self.equals(other)
    }

    pub(super) fn below(self, other: Value<'g>) -> Value<'g> {
        self.apply(Primitive::Less, &[self.id, other.id], DType::Bool)
    }

    pub(super) fn above(self, other: Value<'g>) -> Value<'g> {
        other.below(self)
    }

    /// Returns `<=`, false if either is NaN.
    pub(super) fn at_most(self, other: Value<'g>) -> Value<'g> {
        self.below(other) | self.equals(other)
    }

    /// Returns `>=`, false if either is NaN.
    pub(super) fn at_least(self, other: Value<'g>) -> Value<'g> {
        other.at_most(self)
    }

    /// Selects one of two values by this bool.
    pub(super) fn choose(self, then: Value<'g>, otherwise: Value<'g>) -> Value<'g> {
        self.apply(Primitive::Where, &[self.id, then.id, otherwise.id], then.dtype)
    }

    /// Returns the polynomial with these coefficients, lowest power first.
    pub(super) fn polynomial(self, coefficients: &[f64]) -> Value<'g> {
        let (last, rest) = coefficients.split_last().unwrap_or((&0.0, &[]));
        rest.iter().rev().fold(self.num(*last), |sum, coefficient| sum * self + *coefficient)
    }

    /// As [`Value::polynomial`], with coefficients for float32 and for float64.
    pub(super) fn polynomial_of<const N: usize>(
        self,
        single: &[f32; N],
        double: &[f64],
    ) -> Value<'g> {
        match self.is_single() {
            true => self.polynomial(&single.map(f64::from)),
            false => self.polynomial(double),
        }
    }
}

impl Neg for Value<'_> {
    type Output = Self;
    fn neg(self) -> Self {
        match self.dtype.kind() {
            DTypeKind::Float => self.one(Primitive::Neg),
            _ => self.int(0) - self,
        }
    }
}

impl Not for Value<'_> {
    type Output = Self;
    fn not(self) -> Self {
        match self.dtype {
            DType::Bool => self ^ self.bool_constant(true),
            _ => self ^ self.int(-1),
        }
    }
}

macro_rules! operators {
    // A macro, since each operator is a trait of its own.
    ($($operator:ident $method:ident $primitive:ident;)*) => {$(
        impl<'g> $operator for Value<'g> {
            type Output = Value<'g>;
            fn $method(self, other: Value<'g>) -> Value<'g> {
                self.two(Primitive::$primitive, other)
            }
        }
    )*};
    (numbers: $($operator:ident $method:ident;)*) => {$(
        impl<'g> $operator<f64> for Value<'g> {
            type Output = Value<'g>;
            fn $method(self, other: f64) -> Value<'g> {
                self.$method(self.num(other))
            }
        }
        impl<'g> $operator<Value<'g>> for f64 {
            type Output = Value<'g>;
            fn $method(self, other: Value<'g>) -> Value<'g> {
                other.num(self).$method(other)
            }
        }
    )*};
}

operators! {
    Add add Add;
    Sub sub Sub;
    Mul mul Mul;
    Div div Div;
    BitAnd bitand And;
    BitOr bitor Or;
    BitXor bitxor Xor;
}
operators! { numbers: Add add; Sub sub; Mul mul; Div div; }
