//! A naive interpreter of lowered steps, one element at a time, to compare kernels with.

use keyfold_core::{Complex, DType, DTypeKind, Scalar, bf16, f16};
use keyfold_expr::{Binary, Lowered, StepId, StepOp, Unary};

/// A value of a step; integers are in range of the step's dtype.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value {
    Bool(bool),
    Whole(i128),
    Single(f32),
    Double(f64),
    /// For both widths; the narrow one is rounded after every step.
    Complex(Complex<f64>),
}

/// The elements and numbers that steps read.
pub(crate) trait Data {
    fn input(&self, input: u32) -> Value;
    fn param(&self, index: u32) -> Scalar;
    fn offset(&self) -> i64;
    fn coordinate(&self, dim: u32) -> i64;
    /// Returns `None` for an index out of range.
    fn at(&self, input: u32, indices: &[i64]) -> Option<Value>;
}

/// Returns an integer wrapped to a dtype.
pub(crate) fn wrap(value: i128, dtype: DType) -> i128 {
    let bits = 8 * dtype.size() as u32;
    let low = value & ((1 << bits) - 1);
    if dtype.kind() == DTypeKind::Int && low >> (bits - 1) != 0 { low - (1 << bits) } else { low }
}

/// Converts a number to a value of a dtype, rounded or wrapped.
pub(crate) fn number(number: Scalar, dtype: DType) -> Value {
    match (dtype, dtype.kind()) {
        (_, DTypeKind::Bool) => Value::Bool(number.is_nonzero()),
        (DType::F16, _) => Value::Single(number.to::<f16>().to_f32()),
        (DType::BF16, _) => Value::Single(number.to::<bf16>().to_f32()),
        (DType::F32, _) => Value::Single(number.to()),
        (DType::F64, _) => Value::Double(number.to()),
        (_, DTypeKind::Complex) => narrow(number.as_complex(), dtype),
        (DType::U64, _) => Value::Whole(number.to::<u64>().into()),
        _ => Value::Whole(wrap(number.to::<i64>().into(), dtype)),
    }
}

fn narrow(value: Complex<f64>, dtype: DType) -> Value {
    match dtype {
        DType::C64 => {
            Value::Complex(Complex::new(f64::from(value.re as f32), f64::from(value.im as f32)))
        }
        _ => Value::Complex(value),
    }
}

/// Returns an element of a tensor.
pub(crate) fn load(bytes: &[u8], dtype: DType) -> Value {
    let single = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().expect("4 bytes"));
    let double = |bytes: &[u8]| f64::from_le_bytes(bytes.try_into().expect("8 bytes"));
    let half = |bytes: &[u8]| bytes.try_into().expect("2 bytes");
    match dtype {
        DType::Bool => Value::Bool(bytes[0] != 0),
        DType::F16 => Value::Single(f16::from_le_bytes(half(bytes)).to_f32()),
        DType::BF16 => Value::Single(bf16::from_le_bytes(half(bytes)).to_f32()),
        DType::F32 => Value::Single(single(bytes)),
        DType::F64 => Value::Double(double(bytes)),
        DType::C64 => {
            Value::Complex(Complex::new(single(&bytes[..4]).into(), single(&bytes[4..]).into()))
        }
        DType::C128 => Value::Complex(Complex::new(double(&bytes[..8]), double(&bytes[8..]))),
        _ => {
            let mut wide = [0; 16];
            wide[..bytes.len()].copy_from_slice(bytes);
            Value::Whole(wrap(i128::from_le_bytes(wide), dtype))
        }
    }
}

/// Returns the result as an element that was stored and loaded, and the fault word.
pub(crate) fn evaluate(lowered: &Lowered, data: &impl Data) -> (Value, u32) {
    let mut values: Vec<Value> = Vec::with_capacity(lowered.steps().len());
    let mut fault = 0;
    for step in lowered.steps() {
        let of = |id: &StepId| values[id.index()];
        let from = |id: &StepId| lowered.steps()[id.index()].dtype;
        let value = match &step.op {
            StepOp::Constant(constant) => number(*constant, step.dtype),
            StepOp::Input(input) => data.input(*input),
            StepOp::Param { index, to } => number(data.param(*index), *to),
            StepOp::Index => Value::Whole(data.offset().into()),
            StepOp::Coordinate(dim) => Value::Whole(data.coordinate(*dim).into()),
            StepOp::At { input, indices } => {
                let indices: Vec<i64> = indices.iter().map(|id| index(of(id))).collect();
                data.at(*input, &indices).unwrap_or_else(|| {
                    fault = fault.max(input + 2);
                    number(Scalar::Int(0), lowered.inputs()[*input as usize])
                })
            }
            StepOp::Unary(op, a) => unary(*op, of(a), from(a)),
            StepOp::Binary(op, a, b) => binary(*op, of(a), of(b), from(a), &mut fault),
            StepOp::Where(c, a, b) => {
                if of(c) == Value::Bool(true) {
                    of(a)
                } else {
                    of(b)
                }
            }
            StepOp::Cast(a) => cast(of(a), step.dtype),
            StepOp::Round(to, a) => round(of(a), *to),
        };
        values.push(value);
    }
    let last = values.pop().expect("a step");
    match lowered.result() {
        half @ (DType::F16 | DType::BF16) => (round(last, half), fault),
        _ => (last, fault),
    }
}

fn index(value: Value) -> i64 {
    match value {
        Value::Whole(value) => value as i64,
        other => panic!("an index that is {other:?}"),
    }
}

fn round(value: Value, to: DType) -> Value {
    let value = match value {
        Value::Single(value) => f64::from(value),
        Value::Double(value) => value,
        other => panic!("{other:?} is rounded to a half"),
    };
    number(Scalar::Float(value), to)
}

fn cast(value: Value, to: DType) -> Value {
    let kind = to.kind();
    match (value, kind) {
        (Value::Bool(b), DTypeKind::Bool) => Value::Bool(b),
        (Value::Bool(b), _) => number(Scalar::Bool(b), to),
        (Value::Whole(v), DTypeKind::Bool) => Value::Bool(v != 0),
        (Value::Whole(v), DTypeKind::UInt | DTypeKind::Int) => Value::Whole(wrap(v, to)),
        (Value::Whole(v), _) if to == DType::F32 => Value::Single(v as f32),
        (Value::Whole(v), DTypeKind::Float) => Value::Double(v as f64),
        (Value::Whole(v), _) if to == DType::C64 => {
            Value::Complex(Complex::new((v as f32).into(), 0.0))
        }
        (Value::Whole(v), _) => Value::Complex(Complex::new(v as f64, 0.0)),
        (Value::Single(v), _) => cast(Value::Double(v.into()), to),
        (Value::Double(v), DTypeKind::UInt | DTypeKind::Int) => {
            let (low, high) = (wrap(1 << (8 * to.size() - 1), to), 8 * to.size() as u32);
            let (low, high) = if low < 0 { (low, -low - 1) } else { (0, (1 << high) - 1) };
            Value::Whole((v as i128).clamp(low, high))
        }
        (Value::Double(v), _) => number(Scalar::Float(v), to),
        (Value::Complex(v), DTypeKind::Bool) => Value::Bool(v.re != 0.0 || v.im != 0.0),
        (Value::Complex(v), _) => narrow(v, to),
    }
}

// The C library's functions that Rust's standard library lacks.
unsafe extern "C" {
    safe fn erf(x: f64) -> f64;
    safe fn erfc(x: f64) -> f64;
}

/// Returns the logistic function; `exp` of a negative number can't overflow.
fn sigmoid(x: f64) -> f64 {
    let power = (-x.abs()).exp();
    if x < 0.0 { power / (1.0 + power) } else { 1.0 / (1.0 + power) }
}

fn double(op: Unary, a: f64) -> f64 {
    match op {
        Unary::Neg => -a,
        Unary::Abs => a.abs(),
        Unary::Sign if a > 0.0 => 1.0,
        Unary::Sign if a < 0.0 => -1.0,
        Unary::Sign => a.abs(),
        Unary::Exp => a.exp(),
        Unary::Expm1 => a.exp_m1(),
        Unary::Log => a.ln(),
        Unary::Log2 => a.log2(),
        Unary::Log10 => a.log10(),
        Unary::Log1p => a.ln_1p(),
        Unary::Sqrt => a.sqrt(),
        Unary::Rsqrt => 1.0 / a.sqrt(),
        Unary::Sin => a.sin(),
        Unary::Cos => a.cos(),
        Unary::Tanh => a.tanh(),
        Unary::Sigmoid => sigmoid(a),
        Unary::Erf => erf(a),
        Unary::Erfc => erfc(a),
        Unary::Floor => a.floor(),
        Unary::Ceil => a.ceil(),
        Unary::Round => a.round_ties_even(),
        Unary::Trunc => a.trunc(),
        Unary::Not | Unary::IsNan | Unary::IsFinite | Unary::Conj | Unary::Real | Unary::Imag => {
            panic!("{op:?} of a float")
        }
    }
}

/// Rounds a real number to a complex dtype's precision.
fn part(value: f64, complex: DType) -> Value {
    match complex {
        DType::C64 => Value::Single(value as f32),
        _ => Value::Double(value),
    }
}

fn unary(op: Unary, a: Value, from: DType) -> Value {
    match (op, a) {
        (Unary::IsNan, Value::Complex(a)) => Value::Bool(a.is_nan()),
        (Unary::IsFinite, Value::Complex(a)) => Value::Bool(a.is_finite()),
        (Unary::IsNan, Value::Single(a)) => Value::Bool(a.is_nan()),
        (Unary::IsNan, Value::Double(a)) => Value::Bool(a.is_nan()),
        (Unary::IsFinite, Value::Single(a)) => Value::Bool(a.is_finite()),
        (Unary::IsFinite, Value::Double(a)) => Value::Bool(a.is_finite()),
        (Unary::Not, Value::Bool(a)) => Value::Bool(!a),
        (Unary::Real, Value::Complex(a)) => part(a.re, from),
        (Unary::Imag, Value::Complex(a)) => part(a.im, from),
        (_, Value::Whole(a)) => Value::Whole(wrap(
            match op {
                Unary::Neg => -a,
                Unary::Not => !a,
                Unary::Abs => a.abs(),
                Unary::Sign => a.signum(),
                _ => panic!("{op:?} of a whole number"),
            },
            from,
        )),
        (_, Value::Single(a)) => Value::Single(double(op, a.into()) as f32),
        (_, Value::Double(a)) => Value::Double(double(op, a)),
        (Unary::Abs, Value::Complex(a)) => part(a.norm(), from),
        (_, Value::Complex(a)) => narrow(
            match op {
                Unary::Neg => -a,
                Unary::Conj => a.conj(),
                Unary::Sign if a == Complex::default() => a,
                Unary::Sign => a / a.norm(),
                Unary::Exp => a.exp(),
                Unary::Log => a.ln(),
                Unary::Sqrt => a.sqrt(),
                Unary::Rsqrt => a.sqrt().inv(),
                Unary::Sin => a.sin(),
                Unary::Cos => a.cos(),
                Unary::Tanh => a.tanh(),
                _ => panic!("{op:?} of a complex number"),
            },
            from,
        ),
        (_, Value::Bool(_)) => panic!("{op:?} of a bool"),
    }
}

fn compare<T: PartialOrd>(op: Binary, a: T, b: T) -> Option<Value> {
    Some(Value::Bool(match op {
        Binary::Eq => a == b,
        Binary::Ne => a != b,
        Binary::Lt => a < b,
        Binary::Le => a <= b,
        Binary::Gt => a > b,
        Binary::Ge => a >= b,
        _ => return None,
    }))
}

/// Operations that round once stay right if rounded again from a format of more than twice the
/// digits, such as float64 for float32.
fn floats(op: Binary, a: f64, b: f64) -> f64 {
    match op {
        Binary::Add => a + b,
        Binary::Sub => a - b,
        Binary::Mul => a * b,
        Binary::Div => a / b,
        Binary::Pow => a.powf(b),
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
        _ => panic!("{op:?} of floats"),
    }
}

macro_rules! divisions {
    // A macro, since the standard library has no trait for floats.
    ($($name:ident $float:ident;)*) => {$(
        fn $name(op: Binary, a: $float, b: $float) -> $float {
            let rest = a % b;
            let turned = rest != 0.0 && (rest < 0.0) != (b < 0.0);
            if op == Binary::Mod {
                let whole = (0.0 as $float).copysign(b);
                return if rest == 0.0 { whole } else if turned { rest + b } else { rest };
            }
            if b == 0.0 {
                return a / b;
            }
            let quotient = (a - rest) / b - if turned { 1.0 } else { 0.0 };
            let floor = quotient.floor();
            match quotient == 0.0 {
                true => (0.0 as $float).copysign(a / b),
                false if quotient - floor > 0.5 => floor + 1.0,
                false => floor,
            }
        }
    )*};
}

divisions! {
    divide_single f32;
    divide_double f64;
}

fn whole(op: Binary, a: i128, b: i128, dtype: DType, fault: &mut u32) -> i128 {
    let bits = 8 * dtype.size() as i128;
    let value = match op {
        Binary::Add => a + b,
        Binary::Sub => a - b,
        Binary::Mul => a.wrapping_mul(b),
        Binary::FloorDiv if b == 0 => 0,
        Binary::FloorDiv => a.div_euclid(b) - i128::from(b < 0 && a.rem_euclid(b) != 0),
        Binary::Mod if b == 0 => 0,
        Binary::Mod => match a.rem_euclid(b) {
            rest if rest != 0 && b < 0 => rest + b,
            rest => rest,
        },
        Binary::Pow if b < 0 => {
            *fault = (*fault).max(1);
            0
        }
        Binary::Pow => {
            let (mut power, mut square, mut left) = (1, a, b);
            while left > 0 {
                if left & 1 == 1 {
                    power = wrap(i128::wrapping_mul(power, square), dtype);
                }
                square = wrap(square.wrapping_mul(square), dtype);
                left >>= 1;
            }
            power
        }
        Binary::Min => a.min(b),
        Binary::Max => a.max(b),
        Binary::And => a & b,
        Binary::Or => a | b,
        Binary::Xor => a ^ b,
        Binary::Shl if !(0..bits).contains(&b) => 0,
        Binary::Shl => a.wrapping_mul(1 << b),
        Binary::Shr if !(0..bits).contains(&b) => {
            if a < 0 {
                -1
            } else {
                0
            }
        }
        Binary::Shr => a >> b,
        _ => panic!("{op:?} of whole numbers"),
    };
    wrap(value, dtype)
}

fn binary(op: Binary, a: Value, b: Value, from: DType, fault: &mut u32) -> Value {
    let divides = matches!(op, Binary::FloorDiv | Binary::Mod);
    match (a, b) {
        (Value::Bool(a), Value::Bool(b)) => compare(op, a, b).unwrap_or_else(|| {
            Value::Bool(match op {
                Binary::Add | Binary::Or | Binary::Max => a || b,
                Binary::Mul | Binary::And | Binary::Min => a && b,
                Binary::Xor => a != b,
                _ => panic!("{op:?} of bools"),
            })
        }),
        (Value::Whole(a), Value::Whole(b)) => {
            compare(op, a, b).unwrap_or_else(|| Value::Whole(whole(op, a, b, from, fault)))
        }
        (Value::Single(a), Value::Single(b)) if divides => Value::Single(divide_single(op, a, b)),
        (Value::Double(a), Value::Double(b)) if divides => Value::Double(divide_double(op, a, b)),
        (Value::Single(a), Value::Single(b)) => compare(op, a, b)
            .unwrap_or_else(|| Value::Single(floats(op, a.into(), b.into()) as f32)),
        (Value::Double(a), Value::Double(b)) => {
            compare(op, a, b).unwrap_or_else(|| Value::Double(floats(op, a, b)))
        }
        (Value::Complex(a), Value::Complex(b)) => match op {
            Binary::Eq => Value::Bool(a == b),
            Binary::Ne => Value::Bool(a != b),
            Binary::Add => narrow(a + b, from),
            Binary::Sub => narrow(a - b, from),
            Binary::Mul => narrow(a * b, from),
            Binary::Div => narrow(a / b, from),
            Binary::Pow => narrow(a.powc(b), from),
            _ => panic!("{op:?} of complex numbers"),
        },
        _ => panic!("{op:?} of {a:?} and {b:?}"),
    }
}
