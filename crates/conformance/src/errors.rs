//! Checks of errors: the error of a call is reported in time and in the operator's name, also if
//! others are pending, and leaves the device usable.

use keyfold_core::{DType, Error, ErrorKind, Result};
use keyfold_dispatch::Value as _;
use keyfold_tensor::device::StreamId;
use keyfold_tensor::{Tensor, Value, ValueRef, dispatcher};

use crate::array::{Array, Layout};
use crate::block::Block;
use crate::checks::Checks;
use crate::concurrent::{on_stream, other_stream};
use crate::number::Number;
use crate::report::Symptom;
use crate::run::{Fault, Outcome, Target, elements, refusal};

/// A call that fails: the operator, the kind of its error, and its arguments, of a 3 by 4 tensor and
/// of positions out of range.
struct Mistake {
    operator: &'static str,
    kind: ErrorKind,
    /// The one dtype for which the elements are a mistake, and what they are; `None` for positions.
    elements: Option<(DType, &'static str)>,
    arguments: fn(&Tensor, &Tensor) -> Vec<Value>,
}

impl Mistake {
    /// Returns the words for the mistake.
    fn what(&self, position: i128) -> String {
        self.elements.map_or_else(|| format!("{position} of 3"), |(_, what)| what.to_owned())
    }
}

/// Returns the square in front of a 3 by 4 tensor. Of the elements 0 to 11 it is neither regular nor positive
/// definite.
fn square(x: &Tensor) -> Value {
    x.slice(1, Some(0), Some(3), 1).map_or(Value::None, Value::Tensor)
}

/// Returns tensors as an argument.
fn list(tensors: &[&Tensor]) -> Value {
    Value::List(tensors.iter().map(|tensor| Value::Tensor((*tensor).clone())).collect())
}

const MISTAKES: [Mistake; 9] = [
    Mistake {
        operator: "aten::index_select",
        kind: ErrorKind::Index,
        elements: None,
        arguments: |x, at| vec![Value::Tensor(x.clone()), Value::Int(0), Value::Tensor(at.clone())],
    },
    Mistake {
        operator: "aten::index.Tensor",
        kind: ErrorKind::Index,
        elements: None,
        arguments: |x, at| vec![Value::Tensor(x.clone()), list(&[at])],
    },
    Mistake {
        operator: "aten::index_put",
        kind: ErrorKind::Index,
        elements: None,
        arguments: |x, at| {
            vec![Value::Tensor(x.clone()), list(&[at]), Value::Tensor(x.clone()), Value::Bool(true)]
        },
    },
    Mistake {
        operator: "aten::index_add",
        kind: ErrorKind::Index,
        elements: None,
        arguments: |x, at| {
            let (x, at) = (Value::Tensor(x.clone()), Value::Tensor(at.clone()));
            vec![x.clone(), Value::Int(0), at, x]
        },
    },
    Mistake {
        operator: "aten::gather",
        kind: ErrorKind::Index,
        elements: None,
        arguments: |x, at| {
            let at = at.unsqueeze(1).map_or(Value::None, Value::Tensor);
            vec![Value::Tensor(x.clone()), Value::Int(0), at]
        },
    },
    Mistake {
        operator: "aten::scatter_add",
        kind: ErrorKind::Index,
        elements: None,
        arguments: |x, at| {
            let at = at.unsqueeze(1).map_or(Value::None, Value::Tensor);
            let x = Value::Tensor(x.clone());
            vec![x.clone(), Value::Int(0), at, x]
        },
    },
    Mistake {
        operator: "aten::pow",
        kind: ErrorKind::Value,
        elements: Some((DType::I64, "a negative exponent")),
        arguments: |x, at| {
            let at = at.unsqueeze(1).map_or(Value::None, Value::Tensor);
            vec![Value::Tensor(x.clone()), at]
        },
    },
    Mistake {
        operator: "aten::linalg_cholesky",
        kind: ErrorKind::Value,
        elements: Some((DType::F32, "a matrix that isn't positive definite")),
        arguments: |x, _| vec![square(x), Value::Bool(false)],
    },
    Mistake {
        operator: "aten::linalg_solve",
        kind: ErrorKind::Value,
        elements: Some((DType::F32, "a singular matrix")),
        arguments: |x, _| vec![square(x), Value::Tensor(x.clone()), Value::Bool(true)],
    },
];

/// Positions out of the range of three rows.
const POSITIONS: [i128; 2] = [7, -4];

/// A check of one mistake with a position.
type Check = fn(&Target, &Mistake, DType, i128) -> Result<Outcome, Fault>;

const CHECKS: [(&str, Check); 5] = [
    ("in its own name", names_operator),
    ("when its result is read", fails_reads),
    ("also where two are pending", fails_both_reads),
    ("on another stream", fails_across_streams),
    ("not at the next call", spares_later_calls),
];

/// Runs all checks of the group.
pub(crate) fn check(checks: &mut Checks<'_>) {
    let target = checks.target;
    for mistake in &MISTAKES {
        for (dtype, position) in [(DType::F32, POSITIONS[0]), (DType::I64, POSITIONS[1])] {
            if mistake.elements.is_some_and(|(only, _)| only != dtype) {
                continue;
            }
            for (kind, check) in CHECKS {
                let case = format!("{dtype} {position} {kind}");
                checks.outcome(mistake.operator, &case, &mut || {
                    check(target, mistake, dtype, position)
                });
            }
        }
    }
}

fn tensor(target: &Target, dtype: DType, shape: &[usize], items: &[i128]) -> Result<Tensor> {
    let items = items.iter().map(|item| Number::Whole(*item).cast(dtype)).collect();
    let array = Array { dtype, shape: shape.to_vec(), items };
    let layout = Layout::Contiguous;
    Ok(Block::place(&*target.memory, target.device, &array, layout, (0, true))?.tensor)
}

/// The outcome of a call with a mistake.
enum Reported {
    /// The call is an error.
    AtOnce(Error),
    /// The call is queued, and has this result.
    Later(Box<Tensor>),
    /// The backend lacks the operation.
    Lacking(String),
}

/// Calls the operator with a position out of range.
fn call(target: &Target, mistake: &Mistake, dtype: DType, position: i128) -> Result<Reported> {
    let x = tensor(target, dtype, &[3, 4], &(0..12).collect::<Vec<_>>())?;
    let at = tensor(target, DType::I64, &[3], &[0, position, 1])?;
    let values = (mistake.arguments)(&x, &at);
    let args: Vec<ValueRef<'_>> = values.iter().map(Value::as_ref).collect();
    Ok(match dispatcher().call(mistake.operator, &args) {
        Ok(result) => Reported::Later(Box::new(result.into_tensor()?)),
        Err(error) => match refusal(&error, &*target.backend) {
            Some(reason) => Reported::Lacking(reason),
            None => Reported::AtOnce(error),
        },
    })
}

fn late(message: String) -> Result<Outcome, Fault> {
    Err(Fault::new(Symptom::LateError, message))
}

/// The error is reported by the call or the next synchronization, with its kind, and names the
/// operator.
fn names_operator(
    target: &Target,
    mistake: &Mistake,
    dtype: DType,
    position: i128,
) -> Result<Outcome, Fault> {
    let operator = mistake.operator.split('.').next().unwrap_or_default();
    let (wanted, what) = (mistake.kind, mistake.what(position));
    let error = match call(target, mistake, dtype, position)? {
        Reported::Lacking(reason) => return Ok(Outcome::Lacking(reason)),
        Reported::AtOnce(error) => Some(error),
        Reported::Later(_) => target.memory.synchronize(target.device).err(),
    };
    match error {
        None => late(format!(
            "{what} is no error, neither of {operator} nor of the next synchronization"
        )),
        Some(error) if error.kind() != wanted => {
            let (kind, wanted) = (error.kind().name(), wanted.name());
            let message =
                format!("{what} is an error of kind {kind}, not {wanted}: {}", error.message());
            Err(Fault::new(Symptom::WrongError, message))
        }
        Some(error) if !error.message().contains(operator) => {
            late(format!("the error doesn't name {operator}: {}", error.message()))
        }
        Some(_) => Ok(Outcome::Passed),
    }
}

/// The result of a queued call isn't read without the call's error.
fn fails_reads(
    target: &Target,
    mistake: &Mistake,
    dtype: DType,
    position: i128,
) -> Result<Outcome, Fault> {
    match call(target, mistake, dtype, position)? {
        Reported::Lacking(reason) => Ok(Outcome::Lacking(reason)),
        Reported::AtOnce(_) => Ok(Outcome::Passed),
        Reported::Later(result) => match elements(&result) {
            Ok(read) => late(format!(
                "{} is no error, neither of {} nor where its result is read: {read:?}",
                mistake.what(position),
                mistake.operator
            )),
            Err(_) => Ok(Outcome::Passed),
        },
    }
}

/// Of two queued calls with an error each has its own: the result of neither is read without one.
fn fails_both_reads(
    target: &Target,
    mistake: &Mistake,
    dtype: DType,
    position: i128,
) -> Result<Outcome, Fault> {
    let mut results = Vec::new();
    for _ in 0..2 {
        match call(target, mistake, dtype, position)? {
            Reported::Lacking(reason) => return Ok(Outcome::Lacking(reason)),
            // The error may be the first call's.
            Reported::AtOnce(_) => return spares_later_calls(target, mistake, dtype, position),
            Reported::Later(result) => results.push(*result),
        }
    }
    let reads = results.iter().map(elements);
    match reads.enumerate().find_map(|(at, read)| read.ok().map(|read| (at, read))) {
        None => Ok(Outcome::Passed),
        Some((at, read)) => {
            let which = ["first", "second"][at];
            late(format!(
                "two calls with {} were queued; the result of the {which} is read without an error: \
                 {read:?}",
                mistake.what(position)
            ))
        }
    }
}

/// The error of a call on another stream is reported where the default stream, ordered behind it,
/// reads the result.
fn fails_across_streams(
    target: &Target,
    mistake: &Mistake,
    dtype: DType,
    position: i128,
) -> Result<Outcome, Fault> {
    let (memory, device) = (&*target.memory, target.device);
    let Some(stream) = other_stream(target) else { return Ok(Outcome::NothingRan) };
    match on_stream(target, stream, || call(target, mistake, dtype, position))?? {
        Reported::Lacking(reason) => Ok(Outcome::Lacking(reason)),
        Reported::AtOnce(_) => Ok(Outcome::Passed),
        Reported::Later(result) => {
            let event = memory.record(device, stream)?;
            memory.wait(device, StreamId::DEFAULT, &event)?;
            match elements(&result) {
                Err(_) => Ok(Outcome::Passed),
                Ok(read) => {
                    // Nothing of it is left for the next case.
                    let _ = memory.synchronize(device);
                    late(format!(
                        "a call with {} on stream {} is no error where stream 0, which waits for it, \
                         reads the result: {read:?}",
                        mistake.what(position),
                        stream.number()
                    ))
                }
            }
        }
    }
}

/// Once the error is reported, later calls on other tensors are right.
fn spares_later_calls(
    target: &Target,
    mistake: &Mistake,
    dtype: DType,
    position: i128,
) -> Result<Outcome, Fault> {
    match call(target, mistake, dtype, position)? {
        Reported::Lacking(reason) => return Ok(Outcome::Lacking(reason)),
        Reported::AtOnce(_) => {}
        Reported::Later(_) => drop(target.memory.synchronize(target.device)),
    }
    let x = tensor(target, dtype, &[2], &[3, 5])?;
    let added = dispatcher()
        .call("aten::add", &[ValueRef::Tensor(&x), ValueRef::Tensor(&x)])
        .and_then(|sum| elements(&sum.into_tensor()?));
    let operator = mistake.operator;
    match added {
        Ok(sum) if sum.iter().map(|item| item.whole()).eq([6, 10]) => Ok(Outcome::Passed),
        Ok(sum) => late(format!("aten::add gave {sum:?} after an error of {operator}")),
        Err(error) => match refusal(&error, &*target.backend) {
            Some(reason) => Ok(Outcome::Lacking(reason)),
            None => late(format!("the error of {operator} is reported at aten::add: {error}")),
        },
    }
}
