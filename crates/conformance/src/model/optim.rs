//! Steps of optimizers, element by element in float64.

use keyfold_core::DType;

use super::{Expected, Given, accumulator};
use crate::array::Array;
use crate::number::{Number, unit};

pub(super) fn expected(name: &str, given: &Given<'_>) -> Option<Vec<Expected>> {
    Some(match name {
        "keyfold::adam_step_" => adam(given),
        "keyfold::sgd_step_" => sgd(given),
        _ => return None,
    })
}

/// The written tensors of a step, and the unit of its rounding errors.
struct Step<'a> {
    param: &'a Array,
    grad: &'a Array,
    state: Vec<&'a Array>,
    unit: f64,
}

impl<'a> Step<'a> {
    fn new(given: &Given<'a>, state: &[usize]) -> Step<'a> {
        let (param, grad) = (given.array(0), given.array(1));
        let state = state.iter().filter_map(|at| given.optional(*at)).collect();
        Step { param, grad, state, unit: unit(accumulator(param.dtype)) }
    }

    /// Returns the results of a function of an element of the parameters, of the gradient, and of each
    /// buffer. It returns the new elements in that order, without the gradient, and their errors.
    fn each<const N: usize>(
        &self,
        mut update: impl FnMut(f64, f64, &[f64]) -> [(f64, f64); N],
    ) -> Vec<Expected> {
        let written: Vec<&Array> = [self.param].into_iter().chain(self.state.clone()).collect();
        let mut results: Vec<Expected> =
            written.iter().map(|array| Expected::empty(array.dtype, &array.shape)).collect();
        for (i, (param, grad)) in self.param.items.iter().zip(&self.grad.items).enumerate() {
            let state: Vec<f64> = self.state.iter().map(|array| array.items[i].float()).collect();
            let updated = update(param.float(), grad.float(), &state);
            for (result, (value, error)) in results.iter_mut().zip(updated) {
                // A relative error of a number below the normal ones is less than the distance to the next.
                result.push(Number::Float(value), error + 4.0 * f64::from_bits(1));
            }
        }
        results
    }
}

/// Rounds a coefficient to the dtype of the computation.
fn rounded(x: f64, dtype: DType) -> f64 {
    if dtype == DType::F64 { x } else { f64::from(x as f32) }
}

fn adam(given: &Given<'_>) -> Vec<Expected> {
    let step = Step::new(given, &[2, 3, 4]);
    let number = given.int(5).unwrap_or(1) as i32;
    let (lr, beta1, beta2) = (given.float(6), given.float(7), given.float(8));
    let (eps, decay) = (given.float(9), given.float(10));
    let (decoupled, sign) = (given.flag(11), if given.flag(12) { -1.0 } else { 1.0 });
    let eps = rounded(eps, accumulator(step.param.dtype));
    let rate = lr / (1.0 - beta1.powi(number));
    step.each(|p, g, state| {
        let added = if decoupled || decay == 0.0 { 0.0 } else { decay * p };
        let p = if decoupled { p * (1.0 - lr * decay) } else { p };
        let g = sign * g + added;
        let wrong_g = step.unit * (g.abs() + 2.0 * added.abs());
        let first = beta1 * state[0] + (1.0 - beta1) * g;
        let wrong_first = 8.0 * step.unit * (state[0].abs() + g.abs()) + wrong_g;
        let second = beta2 * state[1] + (1.0 - beta2) * g * g;
        let wrong_second = 8.0 * step.unit * second.abs() + 2.0 * g.abs() * wrong_g;
        let greatest = match state.get(2) {
            Some(before) if before.is_nan() || *before > second => *before,
            _ => second,
        };
        let root = (greatest / (1.0 - beta2.powi(number))).sqrt() + eps;
        let change = rate * first / root;
        // The error of the root is half of that of the moment, relative to it.
        let wrong = change.abs() * (wrong_second / greatest.max(1e-300) + 16.0 * step.unit)
            + rate * wrong_first / root;
        let wrong = wrong + 4.0 * step.unit * p.abs();
        let changed = [(p - change, wrong), (first, wrong_first)];
        [changed[0], changed[1], (second, wrong_second), (greatest, wrong_second)]
    })
}

fn sgd(given: &Given<'_>) -> Vec<Expected> {
    let step = Step::new(given, &[2]);
    let begins = given.int(3) == Some(1);
    let (lr, momentum, dampening) = (given.float(4), given.float(5), given.float(6));
    let (decay, nesterov) = (given.float(7), given.flag(8));
    let sign = if given.flag(9) { -1.0 } else { 1.0 };
    step.each(|p, g, state| {
        let added = if decay == 0.0 { 0.0 } else { decay * p };
        let g = sign * g + added;
        let size = g.abs() + 2.0 * added.abs() + state.first().copied().unwrap_or(0.0).abs();
        let buffer = match state.first() {
            Some(before) if !begins => momentum * before + (1.0 - dampening) * g,
            _ => g,
        };
        let direction = match (state.is_empty(), nesterov) {
            (true, _) => g,
            (false, true) => g + momentum * buffer,
            (false, false) => buffer,
        };
        let wrong = 8.0 * step.unit * size;
        let wrong_p = 4.0 * step.unit * p.abs() + lr * (2.0 * wrong + 4.0 * step.unit * size);
        [(p - lr * direction, wrong_p), (buffer, wrong)]
    })
}
