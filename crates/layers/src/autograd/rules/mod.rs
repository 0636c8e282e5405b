//! The derivatives of the built-in operators, by family.
//!
//! Each is written with operators, so that gradients of gradients come by themselves, and writes
//! to no gradient: it may belong to others, too. A rule says for each operand what its gradient
//! reads, and a call keeps what the gradients that are needed read, and nothing else.
//!
//! The gradient of a complex number is `dL/dRe + i dL/dIm` of the real loss L, as PyTorch's: it is
//! multiplied with conjugates of slopes ([`times`]), and a real operand's is the real part ([`shaped`]).
//!
//! What has no rule here gives whole numbers or bools (comparisons, `argmax`, ...), or takes no
//! tensor (factories), so that there is nothing to differentiate. At a kink (`abs`, `relu` and
//! `sign` at 0) the gradient is 0; of `maximum`, `max` and the like equal elements share it evenly.

mod arithmetic;
mod choice;
mod complex;
mod functions;
mod index;
mod join;
mod linear;
mod reduce;
mod shape;
mod softmax;
mod write;

use std::sync::Arc;

use keyfold_core::{Result, Scalar};
use keyfold_dispatch::{DispatchKey, Dispatcher, Kernel, Override};
use keyfold_tensor::{Tensor, Value, ValueRef};

use super::derivative::{Backward, Derivative, Extra, Gradients, Keeps};
use super::node::{Edge, Meta};
use crate::aten::{self, sum_to};

/// A derivative as a plain function.
type Function = fn(&Backward<'_>, &Tensor) -> Result<Gradients>;

/// A derivative that keeps only what the needed gradients read.
struct Selective {
    name: String,
    /// What the gradient of each operand reads; of those behind the last, what the last reads.
    reads: &'static [Keeps],
    function: Function,
}

impl Selective {
    fn keeps_for(&self, needed: impl Fn(usize) -> bool, places: usize) -> Keeps {
        let mut keeps = Keeps::NONE;
        for place in (0..places).filter(|place| needed(*place)) {
            if let Some(reads) = self.reads.get(place).or(self.reads.last()) {
                keeps.arguments |= reads.arguments;
                keeps.results |= reads.results;
            }
        }
        keeps
    }
}

impl Derivative for Selective {
    fn name(&self) -> &str {
        &self.name
    }

    fn keeps(&self) -> Keeps {
        self.keeps_for(|_| true, self.reads.len())
    }

    fn apply(&self, call: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Gradients> {
        match grads {
            [Some(grad)] => (self.function)(call, grad),
            _ => Ok(vec![None; call.places()]),
        }
    }

    fn record(
        &self,
        _args: &[ValueRef<'_>],
        _results: &[&Tensor],
        edges: &[Option<Edge>],
    ) -> Result<(Option<Extra>, Keeps)> {
        Ok((None, self.keeps_for(|place| edges[place].is_some(), edges.len())))
    }
}

/// Registers derivatives, for the operators that a dispatcher has.
struct Rules<'d>(&'d Dispatcher<Value>);

impl Rules<'_> {
    /// The rule of an operator; `reads` says for each operand what its gradient reads, the last
    /// for all behind it too.
    fn add(&self, name: &str, reads: &'static [Keeps], function: Function) -> Result<()> {
        let rule = Arc::new(Selective { name: name.to_owned(), reads, function });
        self.kernel(name, super::kernel(rule))
    }

    fn kernel(&self, name: &str, kernel: Kernel<Value>) -> Result<()> {
        if self.0.operator(name).is_err() {
            return Ok(());
        }
        self.0.implement(name, DispatchKey::Autograd, kernel, Override::Error).map(drop)
    }
}

pub(super) fn register(dispatcher: &Dispatcher<Value>) -> Result<()> {
    let rules = Rules(dispatcher);
    arithmetic::register(&rules)?;
    functions::register(&rules)?;
    complex::register(&rules)?;
    choice::register(&rules)?;
    reduce::register(&rules)?;
    softmax::register(&rules)?;
    linear::register(&rules)?;
    shape::register(&rules)?;
    index::register(&rules)?;
    join::register(&rules)?;
    write::register(&rules)
}

/// Reads nothing but forms and plain arguments.
const NOTHING: &[Keeps] = &[Keeps::NONE];
/// Reads the first argument.
const FIRST: &[Keeps] = &[Keeps::these(&[0])];
/// The gradient of each of two operands reads the other one.
const OTHER: &[Keeps] = &[Keeps::these(&[1]), Keeps::these(&[0])];
/// Reads the result.
const RESULT: &[Keeps] = &[Keeps::RESULTS];

/// A gradient in the form of an operand: its dtype, and summed over the dimensions that
/// broadcasting stretched. That of a real operand of a complex result is the real part.
pub(crate) fn shaped(form: &Meta, grad: &Tensor) -> Result<Tensor> {
    let grad = match grad.dtype().is_complex() && !form.dtype.is_complex() {
        true => &aten::real(grad)?,
        false => grad,
    };
    let grad = sum_to(grad, &form.shape)?;
    if grad.dtype() == form.dtype { Ok(grad) } else { aten::to(&grad, form.dtype) }
}

/// A gradient as the operand at a position needs it.
fn fit(call: &Backward<'_>, argument: usize, grad: &Tensor) -> Result<Option<Tensor>> {
    shaped(&call.form(argument), grad).map(Some)
}

/// As [`fit`], where the gradient of that operand is needed.
fn when_needed(
    call: &Backward<'_>,
    argument: usize,
    grad: impl FnOnce() -> Result<Tensor>,
) -> Result<Option<Tensor>> {
    if call.needs(argument) { fit(call, argument, &grad()?) } else { Ok(None) }
}

/// The gradients where only the first operand can have one.
fn first(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let mut grads = vec![None; call.places()];
    grads[0] = fit(call, 0, grad)?;
    Ok(grads)
}

/// The conjugate of what a gradient is multiplied with; of real numbers themselves.
fn conj(x: &Tensor) -> Result<Tensor> {
    if x.dtype().is_complex() { aten::conj(x) } else { Ok(x.clone()) }
}

/// The gradient of an operand from that of the result, where `slope` is the derivative.
fn times(grad: &Tensor, slope: &Tensor) -> Result<Tensor> {
    aten::mul(grad, &conj(slope)?)
}

/// As [`times`], divided by what `inverse` is.
fn over(grad: &Tensor, inverse: &Tensor) -> Result<Tensor> {
    aten::div(grad, &conj(inverse)?)
}

/// The conjugate of a number.
fn conj_scalar(number: Scalar) -> Scalar {
    match number {
        Scalar::Complex(z) => Scalar::Complex(z.conj()),
        real => real,
    }
}

/// Zeros of that form, of one element in memory.
pub(crate) fn zeros(form: &Meta) -> Result<Tensor> {
    aten::expand(&aten::full(&[], false, form.dtype, form.device)?, &aten::sizes(&form.shape))
}

/// Zeros of the shape of an operand, in the dtype of a gradient of it: to put gradients into.
fn blank(call: &Backward<'_>, argument: usize, grad: &Tensor) -> Result<Tensor> {
    let form = call.form(argument);
    zeros(&Meta { dtype: grad.dtype(), ..form })
}
