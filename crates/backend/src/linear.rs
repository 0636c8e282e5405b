//! Matrix products with an epilogue.

use keyfold_core::Scalar;

use crate::{Activation, Group, Groups, Kernels, Operation, Params};

/// A number that a kernel multiplies by, in every form that a dtype may need.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct LinearFactor {
    /// The real part, for floats and complex numbers.
    pub re: f64,
    /// The imaginary part, for complex numbers.
    pub im: f64,
    /// The integer, for integers, whose products wrap, and for bools.
    pub integer: i64,
}

impl LinearFactor {
    /// The factor 1.
    pub const ONE: LinearFactor = LinearFactor { re: 1.0, im: 0.0, integer: 1 };

    /// Converts a number; the integer of a float is the one towards zero.
    pub fn new(number: Scalar) -> LinearFactor {
        let z = number.as_complex();
        let integer = match number {
            Scalar::Bool(on) => i64::from(on),
            Scalar::Int(integer) => integer,
            Scalar::UInt(integer) => integer as i64,
            Scalar::Float(_) | Scalar::Complex(_) => z.re as i64,
        };
        LinearFactor { re: z.re, im: z.im, integer }
    }

    /// Whether it is 1, also as an integer.
    pub fn is_one(&self) -> bool {
        *self == LinearFactor::ONE
    }
}

/// The parameters of the group `linear`.
///
/// | name | inputs | outputs | result |
/// | --- | --- | --- | --- |
/// | `matmul` | `a`, `b`, `addend` if [`has_addend`](LinearParams::has_addend) | `out` | `activation(alpha a b + beta addend)` |
///
/// All have one dtype. `a` is `[..., m, k]` and `b` is `[..., k, n]`, both of any strides; leading dimensions
/// broadcast. `addend` broadcasts to the results, `[..., m, n]`, of which `out` is contiguous and stores one
/// after another, for any shape of its own. All sizes are positive. Integers wrap. Halves are multiplied,
/// scaled, added and activated in float32, and rounded once. Only floats have activations.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct LinearParams {
    /// The kernel's operation.
    pub op: &'static Operation,
    /// Whether there is an addend.
    pub has_addend: bool,
    /// The function of the sum.
    pub activation: Activation,
    /// The factor of the product.
    pub alpha: LinearFactor,
    /// The factor of the addend.
    pub beta: LinearFactor,
}

impl Params for LinearParams {
    const GROUP: Group = Group::Linear;

    fn group<'a>(groups: &Groups<'a>) -> Option<&'a dyn Kernels<Self>> {
        groups.linear
    }

    fn operation(&self) -> &'static Operation {
        self.op
    }

    fn fields(&self) -> Vec<(&'static str, crate::Field)> {
        vec![
            ("has_addend", self.has_addend.into()),
            ("activation", self.activation.name().into()),
            ("alpha", self.alpha.re.into()),
            ("alpha_imag", self.alpha.im.into()),
            ("alpha_integer", self.alpha.integer.into()),
            ("beta", self.beta.re.into()),
            ("beta_imag", self.beta.im.into()),
            ("beta_integer", self.beta.integer.into()),
        ]
    }
}
