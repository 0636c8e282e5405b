//! A naive interpreter: one element, one step at a time.

use keyfold_core::{Complex, DType, Scalar, bf16, f16, rounded_to_odd};
use keyfold_expr::{Binary, Lowered, StepOp, Unary};
use keyfold_tensor::Tensor;

use crate::isa::{self, Isa, Work};
use crate::math::slices::map_at;
use crate::math::{Real, complex, complex_power, function as math};

/// A value of any dtype: integers (and bools) of all widths, floats, complex numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value {
    Whole(i128),
    Float(f64),
    Complex(Complex<f64>),
}
use Value::{Complex as C, Float as F, Whole as W};

impl Value {
    pub(super) fn of(number: Scalar) -> Value {
        match number {
            Scalar::Bool(b) => W(b.into()),
            Scalar::Int(i) => W(i.into()),
            Scalar::UInt(u) => W(u.into()),
            Scalar::Float(x) => F(x),
            Scalar::Complex(c) => C(c),
        }
    }

    fn whole(self) -> i128 {
        match self {
            W(w) => w,
            F(x) => x as i128,
            C(c) => c.re as i128,
        }
    }

    fn float(self) -> f64 {
        match self {
            W(w) => w as f64,
            F(x) => x,
            C(c) => c.re,
        }
    }

    fn complex(self) -> Complex<f64> {
        match self {
            C(c) => c,
            other => Complex::new(other.float(), 0.0),
        }
    }

    fn truth(self) -> bool {
        match self {
            W(w) => w != 0,
            F(x) => x != 0.0,
            C(c) => c != Complex::default(),
        }
    }

    /// Equality where NaN equals NaN, and 0 differs from -0.
    pub(super) fn same(self, other: Value) -> bool {
        let same = |a: f64, b: f64| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
        match (self, other) {
            (F(a), F(b)) => same(a, b),
            (C(a), C(b)) => same(a.re, b.re) && same(a.im, b.im),
            _ => self == other,
        }
    }
}

pub(super) fn limits(dtype: DType) -> (i128, i128) {
    let bits = dtype.size().min(8) * 8;
    match dtype {
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => {
            (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
        }
        _ => (0, (1 << bits) - 1),
    }
}

fn wrap(value: i128, dtype: DType) -> Value {
    let (low, high) = limits(dtype);
    W((value - low).rem_euclid(high - low + 1) + low)
}

/// The value as one of the dtype: wrapped, saturated or rounded.
pub(super) fn cast(value: Value, to: DType) -> Value {
    let (low, high) = limits(to);
    match to {
        DType::Bool => W(value.truth().into()),
        DType::F16 => F(f16::from_f32(rounded_to_odd(value.float())).to_f64()),
        DType::BF16 => F(bf16::from_f32(rounded_to_odd(value.float())).to_f64()),
        DType::F32 => match value {
            // Rounded once, not by way of float64.
            W(w) => F(f64::from(w as f32)),
            other => F(f64::from(other.float() as f32)),
        },
        DType::F64 => F(value.float()),
        DType::C64 => match value {
            W(w) => C(Complex::new((w as f32).into(), 0.0)),
            other => {
                let c = other.complex();
                C(Complex::new(f64::from(c.re as f32), f64::from(c.im as f32)))
            }
        },
        DType::C128 => C(value.complex()),
        _ => match value {
            W(w) => wrap(w, to),
            other => W(other.whole().clamp(low, high)),
        },
    }
}

/// An elementary function at the current instruction level.
struct Call<T>(Unary, T);
/// Computes a value by the slice function: some functions have another algorithm for slices on some
/// processors.
#[inline(always)]
fn one<F: math::Function, T: Real, I: Isa>(x: T) -> T {
    let mut values = [T::ZERO];
    map_at::<F, T, I>(&[x], &mut values);
    values[0]
}

impl<T: Real> Work for Call<T> {
    type Output = T;
    #[inline(always)]
    fn run<I: Isa>(self) -> T {
        let x = self.1;
        match self.0 {
            Unary::Exp => one::<math::Exp, T, I>(x),
            Unary::Expm1 => one::<math::Expm1, T, I>(x),
            Unary::Log => one::<math::Log, T, I>(x),
            Unary::Log2 => one::<math::Log2, T, I>(x),
            Unary::Log10 => one::<math::Log10, T, I>(x),
            Unary::Log1p => one::<math::Log1p, T, I>(x),
            Unary::Sqrt => x.sqrt(),
            Unary::Rsqrt => one::<math::Rsqrt, T, I>(x),
            Unary::Sin => one::<math::Sin, T, I>(x),
            Unary::Cos => one::<math::Cos, T, I>(x),
            Unary::Tanh => one::<math::Tanh, T, I>(x),
            Unary::Sigmoid => one::<math::Sigmoid, T, I>(x),
            Unary::Erf => one::<math::Erf, T, I>(x),
            Unary::Erfc => one::<math::Erfc, T, I>(x),
            other => panic!("{other:?} is computed otherwise"),
        }
    }
}

struct Power<T>(T, T);
impl<T: Real> Work for Power<T> {
    type Output = T;
    #[inline(always)]
    fn run<I: Isa>(self) -> T {
        self.0.pow::<I>(self.1)
    }
}

macro_rules! complex_function {
    ($op:expr, $c:expr, $t:ident) => {{
        let c = Complex::new($c.re as $t, $c.im as $t);
        let one = Complex::new(1.0 as $t, 0.0);
        let r = match $op {
            Unary::Neg => -c,
            Unary::Conj => c.conj(),
            Unary::Sign => complex::sign(c),
            Unary::Real => return F(c.re.into()),
            Unary::Imag => return F(c.im.into()),
            Unary::Exp => complex::exp(c),
            Unary::Log => complex::log(c),
            Unary::Sqrt => complex::sqrt(c),
            Unary::Rsqrt => complex::quotient(one, complex::sqrt(c)),
            Unary::Sin => complex::sin(c),
            Unary::Cos => complex::cos(c),
            Unary::Tanh => complex::tanh(c),
            Unary::Abs => return F(c.norm().into()),
            other => panic!("{other:?} isn't defined"),
        };
        C(Complex::new(r.re.into(), r.im.into()))
    }};
}

fn unary(op: Unary, x: Value, dtype: DType) -> Value {
    match (op, x) {
        (Unary::IsNan, F(x)) => return W(x.is_nan().into()),
        (Unary::IsFinite, F(x)) => return W(x.is_finite().into()),
        (Unary::IsNan, C(c)) => return W((c.re.is_nan() || c.im.is_nan()).into()),
        (Unary::IsFinite, C(c)) => return W((c.re.is_finite() && c.im.is_finite()).into()),
        _ => {}
    }
    match x {
        W(w) => match op {
            Unary::Neg => wrap(-w, dtype),
            Unary::Not if dtype == DType::Bool => W(1 - w),
            Unary::Not => wrap(!w, dtype),
            Unary::Abs => wrap(w.abs(), dtype),
            Unary::Sign => W(w.signum()),
            other => panic!("{other:?} isn't defined for whole numbers"),
        },
        F(x) => F(match op {
            Unary::Neg => -x,
            Unary::Abs => x.abs(),
            Unary::Sign if x == 0.0 || x.is_nan() => x.abs(),
            Unary::Sign => x.signum(),
            Unary::Floor => x.floor(),
            Unary::Ceil => x.ceil(),
            Unary::Round => x.round_ties_even(),
            Unary::Trunc => x.trunc(),
            op if dtype == DType::F32 => isa::dispatch(Call(op, x as f32)).into(),
            op => isa::dispatch(Call(op, x)),
        }),
        C(c) if dtype == DType::C64 => complex_function!(op, c, f32),
        C(c) => complex_function!(op, c, f64),
    }
}

fn whole(op: Binary, a: i128, b: i128, dtype: DType) -> Option<Value> {
    let bits = dtype.size() as i128 * 8;
    let is_bool = dtype == DType::Bool;
    Some(match op {
        Binary::Add if is_bool => W(a | b),
        Binary::Add => wrap(a + b, dtype),
        Binary::Sub => wrap(a - b, dtype),
        Binary::Mul => wrap(a.wrapping_mul(b), dtype),
        Binary::FloorDiv | Binary::Mod if b == 0 => W(0),
        Binary::FloorDiv => wrap((a - (a % b + b) % b) / b, dtype),
        Binary::Mod => wrap((a % b + b) % b, dtype),
        Binary::Pow if b < 0 => return None,
        Binary::Pow => {
            let mut power = W(1);
            let mut base = W(a);
            let mut left = b;
            while left > 0 {
                if left % 2 == 1 {
                    power = wrap(power.whole().wrapping_mul(base.whole()), dtype);
                }
                base = wrap(base.whole().wrapping_mul(base.whole()), dtype);
                left /= 2;
            }
            wrap(power.whole(), dtype)
        }
        Binary::Min => W(a.min(b)),
        Binary::Max => W(a.max(b)),
        Binary::And => W(a & b),
        Binary::Or => W(a | b),
        Binary::Xor => W(a ^ b),
        Binary::Shl if b < 0 || b >= bits => W(0),
        Binary::Shl => wrap(a << b, dtype),
        Binary::Shr if b < 0 || b >= bits => W(if a < 0 { -1 } else { 0 }),
        Binary::Shr => W(a >> b),
        other => panic!("{other:?} isn't defined for whole numbers"),
    })
}

fn float(op: Binary, a: f64, b: f64, dtype: DType) -> f64 {
    match op {
        Binary::Add => a + b,
        Binary::Sub => a - b,
        Binary::Mul => a * b,
        Binary::Div => a / b,
        Binary::Min if a.is_nan() || b.is_nan() => f64::NAN,
        Binary::Max if a.is_nan() || b.is_nan() => f64::NAN,
        Binary::Min => {
            if a < b {
                a
            } else {
                b
            }
        }
        Binary::Max => {
            if a > b {
                a
            } else {
                b
            }
        }
        Binary::Pow if dtype == DType::F32 => isa::dispatch(Power(a as f32, b as f32)).into(),
        Binary::Pow => isa::dispatch(Power(a, b)),
        Binary::Mod => {
            let rest = a % b;
            let rest = if dtype == DType::F32 { f64::from(a as f32 % b as f32) } else { rest };
            if rest == 0.0 {
                0.0_f64.copysign(b)
            } else if (rest < 0.0) != (b < 0.0) {
                cast(F(rest + b), dtype).float()
            } else {
                rest
            }
        }
        // The floor of the quotient; used while the quotient is small enough to be told apart from its
        // neighbours.
        Binary::FloorDiv if dtype == DType::F32 => f64::from(floor_div(a as f32, b as f32)),
        Binary::FloorDiv => floor_div(a, b),
        other => panic!("{other:?} isn't defined for floats"),
    }
}

fn floor_div<T: Real + std::ops::Rem<Output = T>>(a: T, b: T) -> T {
    use crate::isa::Baseline;
    if b == T::ZERO {
        return a / b;
    }
    let rest = a % b;
    let apart = rest != T::ZERO && (rest < T::ZERO) != (b < T::ZERO);
    let quotient = (a - rest) / b - if apart { T::ONE } else { T::ZERO };
    if quotient == T::ZERO {
        return T::ZERO.copysign(a / b);
    }
    quotient.round::<Baseline>()
}

fn compare(op: Binary, a: Value, b: Value) -> Option<bool> {
    let order = match (a, b) {
        (W(a), W(b)) => Some(a.cmp(&b)),
        (F(a), F(b)) => a.partial_cmp(&b),
        (a, b) => (a.complex() == b.complex()).then_some(std::cmp::Ordering::Equal),
    };
    Some(match op {
        Binary::Eq => order.is_some_and(|o| o.is_eq()),
        Binary::Ne => !order.is_some_and(|o| o.is_eq()),
        Binary::Lt => order.is_some_and(|o| o.is_lt()),
        Binary::Le => order.is_some_and(|o| o.is_le()),
        Binary::Gt => order.is_some_and(|o| o.is_gt()),
        Binary::Ge => order.is_some_and(|o| o.is_ge()),
        _ => return None,
    })
}

fn binary(op: Binary, a: Value, b: Value, dtype: DType) -> Option<Value> {
    if let Some(holds) = compare(op, a, b) {
        return Some(W(holds.into()));
    }
    Some(match (a, b) {
        (W(a), W(b)) => whole(op, a, b, dtype)?,
        (F(a), F(b)) => cast(F(float(op, a, b, dtype)), dtype),
        (a, b) => {
            macro_rules! complex {
                ($t:ident) => {{
                    let (a, b) = (a.complex(), b.complex());
                    let a = Complex::new(a.re as $t, a.im as $t);
                    let b = Complex::new(b.re as $t, b.im as $t);
                    let r = match op {
                        Binary::Add => a + b,
                        Binary::Sub => a - b,
                        Binary::Mul => a * b,
                        Binary::Div => complex::quotient(a, b),
                        Binary::Pow => complex_power::power(a, b),
                        other => panic!("{other:?} isn't defined for complex numbers"),
                    };
                    C(Complex::new(r.re.into(), r.im.into()))
                }};
            }
            if dtype == DType::C64 { complex!(f32) } else { complex!(f64) }
        }
    })
}

/// The result at an index of the output's shape; `None` where an element is at fault.
pub(super) fn evaluate(
    lowered: &Lowered,
    inputs: &[&Tensor],
    params: &[Scalar],
    shape: &[usize],
    index: &[usize],
) -> Option<Value> {
    let mut values: Vec<Value> = Vec::new();
    for step in lowered.steps() {
        let value = |id: &keyfold_expr::StepId| values[id.index()];
        let result = match &step.op {
            StepOp::Constant(number) => cast(Value::of(*number), step.dtype),
            StepOp::Input(input) => {
                let tensor = inputs[*input as usize];
                let skip = index.len() - tensor.ndim();
                let own: Vec<usize> = index[skip..]
                    .iter()
                    .zip(tensor.shape())
                    .map(|(i, size)| if *size == 1 { 0 } else { *i })
                    .collect();
                Value::of(tensor.get_scalar(&own).unwrap())
            }
            StepOp::Param { index, to } => {
                cast(cast(Value::of(params[*index as usize]), *to), step.dtype)
            }
            StepOp::Index => {
                W(index.iter().zip(shape).fold(0, |at, (i, n)| at * *n as i128 + *i as i128))
            }
            StepOp::Coordinate(dim) => {
                let at = index.len().checked_sub(*dim as usize + 1);
                W(at.map_or(0, |at| index[at] as i128))
            }
            StepOp::At { input, indices } => {
                let tensor = inputs[*input as usize];
                let mut own = Vec::new();
                for (id, size) in indices.iter().zip(tensor.shape()) {
                    let i = value(id).whole();
                    let i = if i < 0 { i + *size as i128 } else { i };
                    if i < 0 || i >= *size as i128 {
                        return None;
                    }
                    own.push(i as usize);
                }
                Value::of(tensor.get_scalar(&own).unwrap())
            }
            StepOp::Unary(op, a) => {
                let dtype = lowered.steps()[a.index()].dtype;
                unary(*op, value(a), dtype)
            }
            StepOp::Binary(op, a, b) => {
                let dtype = lowered.steps()[a.index()].dtype;
                binary(*op, value(a), value(b), dtype)?
            }
            StepOp::Where(c, a, b) => {
                if value(c).truth() {
                    value(a)
                } else {
                    value(b)
                }
            }
            StepOp::Cast(a) => cast(value(a), step.dtype),
            StepOp::Round(to, a) => cast(value(a), *to),
        };
        values.push(result);
    }
    values.last().map(|value| cast(*value, lowered.result()))
}
