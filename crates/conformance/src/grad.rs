//! Mode `grad`: the gradients of every operator on the device, against central differences of the
//! naive model.

use keyfold_core::{DType, Result};
use keyfold_dispatch::Value as _;
use keyfold_layers::autograd::{self, Options};
use keyfold_ops::{Gradient, Row, Rule};
use keyfold_tensor::device::random;
use keyfold_tensor::{Tensor, Value, ValueRef, dispatcher};

use crate::array::{Arg, Array, Layout};
use crate::block::Block;
use crate::case::{Case, Change, Plan, Way, hash};
use crate::checks::Checks;
use crate::elements::{Generator, Values};
use crate::model::{self, Expected, Given};
use crate::number::{Number, unit};
use crate::report::Symptom;
use crate::run::{Fault, Outcome, Target, elements, flatten, index_of};

/// The step of central differences of float64.
const STEP: f64 = 1e-5;
/// How far a gradient may be from the reference, in units of rounding of the tensor's greatest
/// gradient: a backward expression has several rounded steps.
const UNITS: f64 = 16.0;
/// The magnitude below which the greatest gradient counts as this one, since terms may cancel.
const LEAST_SIZE: f64 = 0.05;
/// The variants of shapes, dimensions and numbers.
const VARIANTS: usize = 3;

/// The operator that rounds its factors: a step function, which has no slope to compare with.
const ROUNDS: &str = "keyfold::matmul_mixed";

/// Returns whether an operator passes gradients to tensors that it doesn't write to, and has a slope.
fn has_gradient(row: &Row) -> bool {
    let writes = |alias: &keyfold_dispatch::schema::Alias| alias.write;
    let arguments = &row.schema().arguments;
    !matches!(row.layers().derivative, Rule::Refused(_) | Rule::Given(Gradient::Detach))
        && !arguments.iter().any(|argument| argument.alias.as_ref().is_some_and(writes))
        && row.schema().name.to_string() != ROUNDS
}

/// Runs the cases of one family of operators.
pub(crate) fn check(checks: &mut Checks<'_>, rows: &[&'static Row]) {
    let (target, options) = (checks.target, checks.options);
    for row in rows.iter().copied().filter(|row| has_gradient(row)) {
        let name = row.schema().name.to_string();
        for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
            let case = Case { row, dtype, number: 0, seed: options.seed };
            if options.dtype.is_some_and(|only| only != dtype) || !case.is_taken() {
                continue;
            }
            let operation = format!("{name}/{dtype}");
            let first = hash(&operation) as usize % VARIANTS;
            for number in 0..VARIANTS {
                let wanted =
                    options.case.map_or(options.fraction > 0.3 || number == first, |case| {
                        case % VARIANTS == number
                    });
                if wanted {
                    let id = number.to_string();
                    checks.outcome(&operation, &id, &mut || one(target, &case, number));
                }
            }
        }
    }
}

/// Compares the gradients of one call.
fn one(target: &Target, case: &Case, number: usize) -> Result<Outcome, Fault> {
    let change = Change {
        shape: Some([vec![2, 3], vec![4], vec![2, 2, 3]][number].clone()),
        layout: Some([Layout::Contiguous, Layout::Sliced, Layout::Transposed][number]),
        values: Some(Values::Smooth),
        way: Some(Way::Fresh),
        choice: number,
    };
    let plan = case.plan(target.device, &change)?;
    // A model has no slope where its results aren't unique.
    let is_known = |plan: &Plan| plan.expected.iter().all(|expected| !expected.any);
    let is_floating = |plan: &Plan| plan.expected.iter().any(is_differentiable);
    let Some(plan) = plan.filter(|plan| is_known(plan) && is_floating(plan)) else {
        return Ok(Outcome::NothingRan);
    };
    let mut weights: Vec<Option<Array>> = plan.expected.iter().map(weights).collect();
    let got = match gradients(target, case.row, &plan, &mut weights) {
        Ok(got) => got,
        Err(error) => return Ok(Outcome::of_error(error, &*target.backend)),
    };
    if weights.iter().all(Option::is_none) && !got.is_empty() {
        let message = "no result requires grad, although the operator's tensors do";
        return Err(Fault::new(Symptom::WrongValue, message));
    }
    let wanted = differences(case, &plan, &weights)?;
    for (at, (got, (shape, wanted))) in got.iter().zip(&wanted).enumerate() {
        let known = wanted.iter().filter(|item| !item.is_nan());
        let size = known.fold(LEAST_SIZE, |most: f64, item| most.max(item.abs()));
        let allowed = size * (UNITS * unit(case.dtype) + 1e-6);
        let is_wrong = |i: &usize| {
            let got = got.get(*i).map_or(f64::NAN, |number| number.float());
            // NaN stands for a place without a derivative.
            !wanted[*i].is_nan() && (got.is_nan() || (got - wanted[*i]).abs() > allowed)
        };
        if let Some(place) = (0..wanted.len()).find(is_wrong) {
            let message = format!(
                "the gradient of tensor {at} at {:?} is {:?}; central differences give {:.6} \
                 within {allowed:.1e}",
                index_of(place, shape),
                got.get(place).map(|number| number.float()),
                wanted[place],
            );
            return Err(Fault::new(Symptom::WrongValue, message));
        }
    }
    Ok(Outcome::Passed)
}

fn is_differentiable(result: &Expected) -> bool {
    !result.absent && result.array.dtype.is_floating()
}

/// Returns the gradients of a result, distinct numbers of both signs; `None` of integers.
fn weights(result: &Expected) -> Option<Array> {
    let mut random = Generator::new(5);
    let item = |_: &[usize]| Number::Float(random.below(9) as f64 / 4.0 - 1.0);
    let array = &result.array;
    is_differentiable(result).then(|| Array::from_fn(array.dtype, &array.shape, item))
}

/// Returns whether a tensor of a call has a gradient.
fn is_variable(array: &Array, plan_dtype: DType) -> bool {
    array.dtype == plan_dtype && array.dtype.is_floating()
}

fn dtype_of(plan: &Plan) -> DType {
    let floating = |array: &&Array| array.dtype.is_floating();
    let operands = plan.args.iter().flat_map(Arg::operands).map(|operand| &operand.array);
    operands.clone().find(floating).map_or(DType::F64, |array| array.dtype)
}

/// Returns the gradients that the device computes, one list for each tensor. Weights of results that
/// don't require grad, such as the statistics of a norm, become `None`.
fn gradients(
    target: &Target,
    row: &Row,
    plan: &Plan,
    weights: &mut [Option<Array>],
) -> Result<Vec<Vec<Number>>> {
    let dtype = dtype_of(plan);
    let (mut leaves, mut values) = (Vec::new(), Vec::new());
    let place = |array: &Array, layout: Layout| -> Result<Tensor> {
        Ok(Block::place(&*target.memory, target.device, array, layout, (0, true))?.tensor)
    };
    for arg in &plan.args {
        let mut tensors = Vec::new();
        for operand in arg.operands() {
            let tensor = place(&operand.array, operand.layout)?;
            if is_variable(&operand.array, dtype) {
                autograd::set_requires_grad(&tensor, true)?;
                leaves.push(tensor.clone());
            }
            tensors.push(tensor);
        }
        let mut tensors = tensors.into_iter();
        let mut next = || tensors.next().map_or(Value::None, Value::Tensor);
        values.push(match arg {
            Arg::Plain(value) => value.clone(),
            Arg::Tensor(_) => next(),
            Arg::Tensors(all) => Value::List(
                all.iter().map(|one| one.as_ref().map_or(Value::None, |_| next())).collect(),
            ),
        });
    }
    let args: Vec<ValueRef<'_>> = values.iter().map(Value::as_ref).collect();
    let before = random::state(target.device)?;
    random::set_state(plan.state)?;
    let result = dispatcher().call(&row.schema().name.to_string(), &args);
    random::set_state(before)?;
    let mut flat = Vec::new();
    flatten(result?, &mut flat)?;
    let (mut results, mut given) = (Vec::new(), Vec::new());
    for (result, weights) in flat.into_iter().zip(weights) {
        match (&*weights, result) {
            (Some(array), Some(result)) if autograd::requires_grad(&result) => {
                given.push(Some(place(array, Layout::Contiguous)?));
                results.push(result);
            }
            _ => *weights = None,
        }
    }
    let made = match results.is_empty() {
        true => vec![None; leaves.len()],
        false => autograd::grad(&results, &leaves, &given, Options::default(), &|| Ok(()))?,
    };
    let zeros = |leaf: &Tensor| vec![Number::Float(0.0); leaf.numel()];
    let each = made.iter().zip(&leaves);
    each.map(|(grad, leaf)| grad.as_ref().map_or_else(|| Ok(zeros(leaf)), elements)).collect()
}

/// A tensor's shape, and a number for each of its elements.
type Differences = (Vec<usize>, Vec<f64>);

/// Returns the central differences of the weighted sum of the model's results, for each tensor; NaN
/// where there is no derivative.
fn differences(case: &Case, plan: &Plan, weights: &[Option<Array>]) -> Result<Vec<Differences>> {
    let dtype = dtype_of(plan);
    // In float64, so that a step isn't rounded away.
    let mut args = plan.args.clone();
    for operand in args.iter_mut().flat_map(Arg::operands_mut) {
        if is_variable(&operand.array, dtype) {
            operand.array.dtype = DType::F64;
        }
    }
    for arg in &mut args {
        if let Arg::Plain(Value::DType(given)) = arg
            && given.is_floating()
        {
            *given = DType::F64;
        }
    }
    let loss = |args: &[Arg]| -> Result<f64> {
        let results = model::expected(case.row, &Given::new(args, plan.state))?;
        let weighted = results.iter().zip(weights).filter_map(|(result, weights)| {
            let items = result.array.items.iter().zip(&weights.as_ref()?.items);
            Some(items.map(|(item, weight)| item.float() * weight.float()).sum::<f64>())
        });
        Ok(weighted.sum())
    };
    let count = args.iter().map(|arg| arg.operands().len()).sum();
    let mut all = Vec::new();
    for at in 0..count {
        let array = |args: &mut [Arg], place: usize, by: f64| {
            let operand = args.iter_mut().flat_map(Arg::operands_mut).nth(at);
            if let Some(Number::Float(x)) = operand.map(|operand| &mut operand.array.items[place]) {
                *x += by;
            }
        };
        let own = args.iter().flat_map(Arg::operands).nth(at).map(|operand| operand.array.clone());
        let Some(own) = own.filter(|own| own.dtype == DType::F64) else { continue };
        let mut found = Vec::with_capacity(own.items.len());
        for place in 0..own.items.len() {
            let mut slope = |step: f64| -> Result<f64> {
                let mut moved = [0.0; 2];
                for (moved, by) in moved.iter_mut().zip([step, -step]) {
                    array(&mut args, place, by);
                    *moved = loss(&args)?;
                    array(&mut args, place, -by);
                }
                Ok((moved[0] - moved[1]) / (2.0 * step))
            };
            let (wide, narrow) = (slope(STEP)?, slope(STEP / 8.0)?);
            // At a jump or an edge there is no derivative.
            let is_smooth = (wide - narrow).abs() <= 1e-3 * (1.0 + narrow.abs());
            found.push(if is_smooth { wide } else { f64::NAN });
        }
        all.push((own.shape, found));
    }
    Ok(all)
}
