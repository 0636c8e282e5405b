//! Checks of errors: a call that must fail tells so in time, in its own name, and leaves the device
//! usable.

use keyfold_core::{DType, Error, ErrorKind, Result};
use keyfold_dispatch::Value as _;
use keyfold_tensor::{Tensor, Value, ValueRef, dispatcher};

use crate::array::{Array, Layout};
use crate::block::Block;
use crate::checks::Checks;
use crate::number::Number;
use crate::report::{Symptom, Verdict};
use crate::run::{Fault, Target, elements, refusal};

/// A call that fails: the operator, and its arguments, of a 3 by 4 tensor and positions out of
/// range.
struct Mistake {
    operator: &'static str,
    arguments: fn(&Tensor, &Tensor) -> Vec<Value>,
}

/// Returns tensors as an argument.
fn list(tensors: &[&Tensor]) -> Value {
    Value::List(tensors.iter().map(|tensor| Value::Tensor((*tensor).clone())).collect())
}

const MISTAKES: [Mistake; 6] = [
    Mistake {
        operator: "aten::index_select",
        arguments: |x, at| vec![Value::Tensor(x.clone()), Value::Int(0), Value::Tensor(at.clone())],
    },
    Mistake {
        operator: "aten::index.Tensor",
        arguments: |x, at| vec![Value::Tensor(x.clone()), list(&[at])],
    },
    Mistake {
        operator: "aten::index_put",
        arguments: |x, at| {
            vec![Value::Tensor(x.clone()), list(&[at]), Value::Tensor(x.clone()), Value::Bool(true)]
        },
    },
    Mistake {
        operator: "aten::index_add",
        arguments: |x, at| {
            let (x, at) = (Value::Tensor(x.clone()), Value::Tensor(at.clone()));
            vec![x.clone(), Value::Int(0), at, x]
        },
    },
    Mistake {
        operator: "aten::gather",
        arguments: |x, at| {
            let at = at.unsqueeze(1).map_or(Value::None, Value::Tensor);
            vec![Value::Tensor(x.clone()), Value::Int(0), at]
        },
    },
    Mistake {
        operator: "aten::scatter_add",
        arguments: |x, at| {
            let at = at.unsqueeze(1).map_or(Value::None, Value::Tensor);
            let x = Value::Tensor(x.clone());
            vec![x.clone(), Value::Int(0), at, x]
        },
    },
];

/// Runs all checks of the group.
pub(crate) fn check(checks: &mut Checks<'_>) {
    let target = checks.target;
    for mistake in &MISTAKES {
        for dtype in [DType::F32, DType::I64] {
            let reported =
                |kinds: &'static str, f: fn(&Target, &Mistake, DType) -> Result<(), Fault>| {
                    (kinds, f)
                };
            for (kind, f) in
                [reported("in its own name", told), reported("not at the next call", blames_nobody)]
            {
                let case = format!("{dtype} {kind}");
                checks.verdict(mistake.operator, &case, &mut || match f(target, mistake, dtype) {
                    Ok(()) => Ok(Verdict::Passed),
                    Err(fault) if fault.symptom == Symptom::Unclaimed => {
                        Err((Verdict::Lacking, Some(fault)))
                    }
                    Err(fault) => Err((Verdict::Failed, Some(fault))),
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

/// Calls the operator with a position out of range; returns the error of the call or of the next
/// synchronization.
fn failure(target: &Target, mistake: &Mistake, dtype: DType) -> Result<Option<Error>, Fault> {
    let x = tensor(target, dtype, &[3, 4], &(0..12).collect::<Vec<_>>())?;
    let at = tensor(target, DType::I64, &[3], &[0, 7, 1])?;
    target.memory.synchronize(target.device)?;
    let values = (mistake.arguments)(&x, &at);
    let args: Vec<ValueRef<'_>> = values.iter().map(Value::as_ref).collect();
    match dispatcher().call(mistake.operator, &args) {
        Ok(_) => Ok(target.memory.synchronize(target.device).err()),
        Err(error) => match refusal(&error, &*target.backend) {
            // The verdict is then that the operation is lacking.
            Some(reason) => Err(Fault::new(Symptom::Unclaimed, reason)),
            None => Ok(Some(error)),
        },
    }
}

/// The error is told by the call or the next synchronization, with its kind, and names the operator.
fn told(target: &Target, mistake: &Mistake, dtype: DType) -> Result<(), Fault> {
    let late = |message: String| Err(Fault::new(Symptom::LateError, message));
    let operator = mistake.operator.split('.').next().unwrap_or_default();
    match failure(target, mistake, dtype)? {
        None => late(format!(
            "position 7 of 3 is no error, neither of {operator} nor of the next synchronization"
        )),
        Some(error) if error.kind() != ErrorKind::Index => {
            let message = format!(
                "position 7 of 3 is an error of kind {}, not Index: {}",
                error.kind().name(),
                error.message()
            );
            Err(Fault::new(Symptom::WrongError, message))
        }
        Some(error) if !error.message().contains(operator) => {
            late(format!("the error doesn't name {operator}: {}", error.message()))
        }
        Some(_) => Ok(()),
    }
}

/// Once the error was told, later calls on other tensors are right.
fn blames_nobody(target: &Target, mistake: &Mistake, dtype: DType) -> Result<(), Fault> {
    failure(target, mistake, dtype)?;
    let x = tensor(target, dtype, &[2], &[3, 5])?;
    let added = dispatcher()
        .call("aten::add", &[ValueRef::Tensor(&x), ValueRef::Tensor(&x)])
        .and_then(|sum| elements(&sum.into_tensor()?));
    let message = match added {
        Ok(sum) if sum.iter().map(|item| item.whole()).eq([6, 10]) => return Ok(()),
        Err(error) if error.kind() == ErrorKind::NotSupported => return Ok(()),
        Ok(sum) => format!("aten::add gave {sum:?} after an error of {}", mistake.operator),
        Err(error) => {
            format!("the error of {} is told at aten::add: {}", mistake.operator, error.message())
        }
    };
    Err(Fault::new(Symptom::LateError, message))
}
