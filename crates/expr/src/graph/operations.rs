//! The operations of nodes: functions of one operand and of two.

/// A function of one operand.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Unary {
    /// `-x`
    Neg,
    /// `~x`: logical not for a bool, bitwise not for an integer.
    Not,
    /// The absolute value; a real number also for a complex operand.
    Abs,
    /// -1, 0 or 1, 0.0 also for -0.0; for a complex number `x / abs(x)`, and 0 for 0; NaN for NaN.
    Sign,
    /// The complex conjugate; a real number is unchanged.
    Conj,
    /// The real part, a real number.
    Real,
    /// The imaginary part, a real number: 0 for a real operand.
    Imag,
    /// `e ** x`
    Exp,
    /// `e ** x - 1`, accurate near 0.
    Expm1,
    /// The natural logarithm.
    Log,
    /// The logarithm to base 2, exact for powers of 2.
    Log2,
    /// The logarithm to base 10, exact for the powers of 10 that floats represent.
    Log10,
    /// `log(1 + x)`, accurate near 0.
    Log1p,
    /// The square root.
    Sqrt,
    /// `1 / sqrt(x)`
    Rsqrt,
    /// The sine, of radians.
    Sin,
    /// The cosine, of radians.
    Cos,
    /// The hyperbolic tangent.
    Tanh,
    /// `1 / (1 + exp(-x))`
    Sigmoid,
    /// The error function.
    Erf,
    /// `1 - erf(x)`, accurate for large x, too.
    Erfc,
    /// The greatest integer not above x; integers are unchanged.
    Floor,
    /// The smallest integer not below x.
    Ceil,
    /// The nearest integer, ties to even.
    Round,
    /// The number rounded towards zero.
    Trunc,
    /// Whether it is NaN.
    IsNan,
    /// Whether it is neither infinite nor NaN.
    IsFinite,
}

impl Unary {
    /// All unary functions.
    pub const ALL: [Unary; 27] = [
        Unary::Neg,
        Unary::Not,
        Unary::Abs,
        Unary::Sign,
        Unary::Conj,
        Unary::Real,
        Unary::Imag,
        Unary::Exp,
        Unary::Expm1,
        Unary::Log,
        Unary::Log2,
        Unary::Log10,
        Unary::Log1p,
        Unary::Sqrt,
        Unary::Rsqrt,
        Unary::Sin,
        Unary::Cos,
        Unary::Tanh,
        Unary::Sigmoid,
        Unary::Erf,
        Unary::Erfc,
        Unary::Floor,
        Unary::Ceil,
        Unary::Round,
        Unary::Trunc,
        Unary::IsNan,
        Unary::IsFinite,
    ];

    /// Returns the name in texts and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Unary::Neg => "negative",
            Unary::Not => "~",
            Unary::Abs => "abs",
            Unary::Sign => "sign",
            Unary::Conj => "conj",
            Unary::Real => "real",
            Unary::Imag => "imag",
            Unary::Exp => "exp",
            Unary::Expm1 => "expm1",
            Unary::Log => "log",
            Unary::Log2 => "log2",
            Unary::Log10 => "log10",
            Unary::Log1p => "log1p",
            Unary::Sqrt => "sqrt",
            Unary::Rsqrt => "rsqrt",
            Unary::Sin => "sin",
            Unary::Cos => "cos",
            Unary::Tanh => "tanh",
            Unary::Sigmoid => "sigmoid",
            Unary::Erf => "erf",
            Unary::Erfc => "erfc",
            Unary::Floor => "floor",
            Unary::Ceil => "ceil",
            Unary::Round => "round",
            Unary::Trunc => "trunc",
            Unary::IsNan => "isnan",
            Unary::IsFinite => "isfinite",
        }
    }
}

/// A function of two operands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Binary {
    /// `a + b`; logical or for bools.
    Add,
    /// `a - b`
    Sub,
    /// `a * b`; logical and for bools.
    Mul,
    /// `a / b`, always floating.
    Div,
    /// `a // b`: the quotient rounded down; 0 for an integer divided by 0.
    FloorDiv,
    /// `a % b` with the sign of b, so that `a == a // b * b + a % b`; 0 for an integer modulo 0.
    Mod,
    /// `a ** b`
    Pow,
    /// The smaller; NaN if either is.
    Min,
    /// The greater; NaN if either is.
    Max,
    /// `a == b`, a bool, as the following comparisons.
    Eq,
    /// `a != b`
    Ne,
    /// `a < b`
    Lt,
    /// `a <= b`
    Le,
    /// `a > b`
    Gt,
    /// `a >= b`
    Ge,
    /// `a & b` of bools or integers.
    And,
    /// `a | b`
    Or,
    /// `a ^ b`
    Xor,
    /// `a << b` of integers; 0 if b is negative or at least the width.
    Shl,
    /// `a >> b` of integers, with sign extension.
    Shr,
}

impl Binary {
    /// All binary functions.
    pub const ALL: [Binary; 20] = [
        Binary::Add,
        Binary::Sub,
        Binary::Mul,
        Binary::Div,
        Binary::FloorDiv,
        Binary::Mod,
        Binary::Pow,
        Binary::Min,
        Binary::Max,
        Binary::Eq,
        Binary::Ne,
        Binary::Lt,
        Binary::Le,
        Binary::Gt,
        Binary::Ge,
        Binary::And,
        Binary::Or,
        Binary::Xor,
        Binary::Shl,
        Binary::Shr,
    ];

    /// Returns the sign, or the name, in texts and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Binary::Add => "+",
            Binary::Sub => "-",
            Binary::Mul => "*",
            Binary::Div => "/",
            Binary::FloorDiv => "//",
            Binary::Mod => "%",
            Binary::Pow => "**",
            Binary::Min => "minimum",
            Binary::Max => "maximum",
            Binary::Eq => "==",
            Binary::Ne => "!=",
            Binary::Lt => "<",
            Binary::Le => "<=",
            Binary::Gt => ">",
            Binary::Ge => ">=",
            Binary::And => "&",
            Binary::Or => "|",
            Binary::Xor => "^",
            Binary::Shl => "<<",
            Binary::Shr => ">>",
        }
    }
}
