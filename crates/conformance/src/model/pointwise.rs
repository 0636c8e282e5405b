//! Expressions, one element and one step at a time, with a bound of the error that a device may
//! make: a running error analysis.

use keyfold_core::{Complex, DType, Error, ErrorKind, Result, Scalar};
use keyfold_expr::{Binary, Lowered, StepId, StepOp, Unary};

use super::{Expected, functions};
use crate::array::{Array, for_each_index};
use crate::number::{Number, max_of, unit, wrap};

/// A value, and the greatest error that a device may have made so far.
#[derive(Clone, Copy)]
struct Estimate {
    value: Number,
    error: f64,
}

impl Estimate {
    fn exact(value: Number) -> Estimate {
        Estimate { value, error: 0.0 }
    }

    /// Replaces a number beyond a dtype's range by an infinity. It is exact, unless a number within
    /// the error bound is in the range.
    fn limited(self, dtype: DType) -> Estimate {
        let value = self.value.limited(dtype);
        let is_exact = value.magnitude().is_infinite()
            && self.error < f64::INFINITY
            && self.value.magnitude() - self.error > max_of(dtype);
        Estimate { value, error: if is_exact { 0.0 } else { self.error } }
    }
}

/// Returns the greatest error of a function in units of rounding (half units in the last place):
/// those that OpenCL allows.
fn units_of(op: Unary) -> f64 {
    match op {
        Unary::Sqrt => 6.0,
        Unary::Erf | Unary::Erfc => 32.0,
        _ => 10.0,
    }
}

/// Returns whether a function of real numbers has no rounding error.
fn is_exact(op: Unary) -> bool {
    use Unary::{Abs, Ceil, Conj, Floor, Imag, Neg, Not, Real, Round, Sign, Trunc};
    matches!(op, Neg | Not | Abs | Sign | Conj | Real | Imag | Floor | Ceil | Round | Trunc)
}

/// Returns an error, 0 for one that isn't defined: at an infinity or NaN.
fn defined(error: f64) -> f64 {
    if error.is_nan() { 0.0 } else { error }
}

/// Returns the product of an error bound and a magnitude, which doesn't underflow to an exact result;
/// an infinity is exact.
fn scaled(bound: f64, size: f64) -> f64 {
    let smallest = if bound > 0.0 && size > 0.0 { f64::from_bits(1) } else { 0.0 };
    if size.is_finite() { (bound * size).max(smallest) } else { 0.0 }
}

/// Returns whether the sign of an exact zero is defined for a step's result.
fn defines_zeros(op: &StepOp) -> bool {
    use Unary::{Abs, Ceil, Floor, Neg, Sqrt, Trunc};
    match op {
        StepOp::Unary(op, _) => matches!(op, Neg | Abs | Sqrt | Floor | Ceil | Trunc),
        StepOp::Binary(op, ..) => {
            matches!(op, Binary::Add | Binary::Sub | Binary::Mul | Binary::Div)
        }
        _ => true,
    }
}

fn unary(op: Unary, x: Estimate, dtype: DType) -> Estimate {
    let u = unit(dtype);
    match (op, x.value) {
        (Unary::IsNan, value) => Estimate::exact(Number::Whole(value.is_nan().into())),
        (Unary::IsFinite, Number::Whole(_)) => Estimate::exact(Number::Whole(1)),
        (Unary::IsFinite, value) => {
            let c = value.complex();
            Estimate::exact(Number::Whole((c.re.is_finite() && c.im.is_finite()).into()))
        }
        (_, Number::Whole(w)) => Estimate::exact(match op {
            Unary::Neg => wrap(-w, dtype),
            Unary::Not if dtype == DType::Bool => Number::Whole(1 - w),
            Unary::Not => wrap(!w, dtype),
            Unary::Abs => wrap(w.abs(), dtype),
            Unary::Sign => Number::Whole(w.signum()),
            Unary::Imag => Number::Whole(0),
            _ => Number::Whole(w),
        }),
        (Unary::Imag, Number::Float(_)) => Estimate::exact(Number::Float(0.0)),
        (_, Number::Float(v)) => {
            let value = functions::real(op, v);
            let mut error = if is_exact(op) { 0.0 } else { scaled(units_of(op) * u, value.abs()) };
            if x.error > 0.0 {
                let reached = [v - x.error, v + x.error].map(|x| functions::real(op, x) - value);
                error += defined(reached[0].abs()).max(defined(reached[1].abs()));
            }
            Estimate { value: Number::Float(value), error: defined(error) }
        }
        (Unary::Abs, Number::Complex(c)) => {
            let value = c.re.hypot(c.im);
            Estimate { value: Number::Float(value), error: scaled(8.0 * u, value) + x.error }
        }
        (Unary::Real | Unary::Imag, Number::Complex(c)) => {
            let part = if op == Unary::Real { c.re } else { c.im };
            Estimate { value: Number::Float(part), error: x.error }
        }
        (_, Number::Complex(c)) => {
            let value = functions::complex(op, c);
            let error = if is_exact(op) && op != Unary::Sign { 0.0 } else { 64.0 * u };
            // The functions of a complex number are sums of products of parts.
            let size = value.norm().max(if op == Unary::Log { 1.0 } else { 0.0 });
            Estimate { value: Number::Complex(value), error: scaled(error, size) + x.error }
        }
    }
}

fn compare(op: Binary, a: Number, b: Number) -> Option<bool> {
    let order = match (a, b) {
        (Number::Whole(a), Number::Whole(b)) => Some(a.cmp(&b)),
        (Number::Complex(_), _) | (_, Number::Complex(_)) => {
            (a.complex() == b.complex()).then_some(std::cmp::Ordering::Equal)
        }
        _ => a.float().partial_cmp(&b.float()),
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

fn binary(op: Binary, a: Estimate, b: Estimate, dtype: DType) -> Option<Estimate> {
    if let Some(holds) = compare(op, a.value, b.value) {
        return Some(Estimate::exact(Number::Whole(holds.into())));
    }
    let u = unit(dtype);
    Some(match (a.value, b.value) {
        (Number::Whole(a), Number::Whole(b)) => {
            let bits = if dtype == DType::Bool { 1 } else { dtype.size() as i128 * 8 };
            Estimate::exact(wrap(functions::whole_binary(op, a, b, bits)?, dtype))
        }
        (Number::Float(x), Number::Float(y)) => {
            let value = functions::real_binary(op, x, y);
            let size = value.abs();
            let error = match op {
                Binary::Add | Binary::Sub => a.error + b.error + scaled(u, size),
                Binary::Mul => {
                    scaled(b.error, x.abs()) + scaled(a.error, y.abs()) + scaled(u, size)
                }
                Binary::Div if b.error > 0.0 && y.abs() <= b.error => f64::INFINITY,
                // OpenCL allows 2.5 units in the last place.
                Binary::Div => (a.error + scaled(b.error, size)) / y.abs() + scaled(5.0 * u, size),
                Binary::Min | Binary::Max => a.error.max(b.error),
                Binary::Mod => scaled(2.0 * u, y.abs()) + a.error,
                Binary::Pow => {
                    let ends = [(-1.0, -1.0), (-1.0, 1.0), (1.0, -1.0), (1.0, 1.0)];
                    let reached = ends.map(|(s, t)| {
                        let moved = (x + s * a.error).powf(y + t * b.error) - value;
                        defined(moved.abs())
                    });
                    reached.into_iter().fold(0.0, f64::max) + scaled(32.0 * u, size)
                }
                _ => scaled(u, size),
            };
            Estimate { value: Number::Float(value), error: defined(error) }
        }
        (x, y) => {
            let (x, y) = (x.complex(), y.complex());
            let value = functions::complex_binary(op, x, y);
            let size = value.norm();
            let error = match op {
                Binary::Add | Binary::Sub => a.error + b.error + u * size,
                Binary::Mul => x.norm() * b.error + y.norm() * a.error + 4.0 * u * size,
                Binary::Div => 16.0 * u * size,
                _ => 64.0 * u * size * (1.0 + (y * x.ln()).norm()),
            };
            Estimate { value: Number::Complex(value), error: defined(error) }
        }
    })
}

/// The inputs of an expression at one element.
struct Element<'a> {
    inputs: &'a [&'a Array],
    params: &'a [Scalar],
    shape: &'a [usize],
    index: &'a [usize],
}

impl Element<'_> {
    /// Returns the estimate of one step; `None` where the element is at fault.
    fn step(
        &self,
        op: &StepOp,
        dtype: DType,
        lowered: &Lowered,
        known: &[Estimate],
    ) -> Option<Estimate> {
        let of = |id: &StepId| known[id.index()];
        let operand = |id: &StepId| lowered.steps()[id.index()].dtype;
        Some(match op {
            StepOp::Constant(number) => Estimate::exact(Number::of(*number).cast(dtype)),
            StepOp::Input(input) => {
                Estimate::exact(self.inputs[*input as usize].broadcast_at(self.index))
            }
            StepOp::Param { index, to } => {
                let number = Number::of(self.params[*index as usize]);
                Estimate::exact(number.cast(*to).cast(dtype))
            }
            StepOp::Index => {
                let along = self.index.iter().zip(self.shape);
                let place = along.fold(0, |at, (i, n)| at * *n as i128 + *i as i128);
                Estimate::exact(Number::Whole(place))
            }
            StepOp::Coordinate(dim) => {
                let at = self.index.len().checked_sub(*dim as usize + 1);
                Estimate::exact(Number::Whole(at.map_or(0, |at| self.index[at] as i128)))
            }
            StepOp::At { input, indices } => {
                let table = self.inputs[*input as usize];
                let own: Option<Vec<usize>> = indices
                    .iter()
                    .zip(&table.shape)
                    .map(|(id, size)| {
                        let (i, size) = (of(id).value.whole(), *size as i128);
                        let i = if i < 0 { i + size } else { i };
                        (0..size).contains(&i).then_some(i as usize)
                    })
                    .collect();
                Estimate::exact(table.at(&own?))
            }
            StepOp::Unary(op, a) => unary(*op, of(a), operand(a)),
            StepOp::Binary(op, a, b) => binary(*op, of(a), of(b), operand(a))?,
            StepOp::Where(c, a, b) => of(if of(c).value.truth() { a } else { b }),
            StepOp::Cast(a) => {
                let Estimate { value, error } = of(a);
                match (value, dtype.is_floating() || dtype.is_complex()) {
                    (Number::Whole(_), _) | (_, false) => Estimate::exact(value.cast(dtype)),
                    (_, true) if dtype.is_complex() => {
                        Estimate { value: Number::Complex(value.complex()), error }
                    }
                    (_, true) => Estimate { value: Number::Float(value.float()), error },
                }
            }
            StepOp::Round(to, a) => {
                let Estimate { value, error } = of(a);
                let more = if error > 0.0 { 2.0 * unit(*to) * value.magnitude() } else { 0.0 };
                Estimate { value: value.cast(*to), error: error + more }
            }
        })
    }
}

/// Evaluates an expression for each element of a shape.
///
/// # Errors
/// [`ErrorKind::Value`] where an element is at fault, as a negative power of integers.
pub(super) fn evaluate(
    lowered: &Lowered,
    inputs: &[&Array],
    params: &[Scalar],
    shape: &[usize],
) -> Result<Expected> {
    let mut expected = Expected::empty(lowered.result(), shape);
    expected.signed_zeros = lowered.steps().iter().all(|step| defines_zeros(&step.op));
    let mut failed = false;
    for_each_index(shape, |index| {
        let element = Element { inputs, params, shape, index };
        let mut known: Vec<Estimate> = Vec::with_capacity(lowered.steps().len());
        for step in lowered.steps() {
            let Some(estimate) = element.step(&step.op, step.dtype, lowered, &known) else {
                failed = true;
                return;
            };
            known.push(estimate.limited(step.dtype));
        }
        let Some(last) = known.last() else { return };
        // A cast narrows: values of the result's dtype are stored.
        let value = match last.value {
            Number::Float(_) if lowered.result().is_complex() => {
                Number::Complex(Complex::new(last.value.float(), 0.0))
            }
            value => value,
        };
        expected.array.items.push(value);
        expected.errors.push(last.error);
    });
    match failed {
        false => Ok(expected),
        true => Err(Error::new(ErrorKind::Value, "an element of the sample is at fault")),
    }
}
