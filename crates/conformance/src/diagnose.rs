//! Finds the kind of a failure by running changed cases.

use keyfold_core::DType;

use crate::array::Layout;
use crate::case::{Case, Change, Way};
use crate::elements::Values;
use crate::model::Expected;
use crate::number::unit;
use crate::report::Symptom;
use crate::run::{CallResult, Fault, Outcome, Target, compare, execute, run};

/// Runs a changed case; `None` where the operator takes no such arguments.
fn outcome(target: &Target, case: &Case, change: &Change) -> Option<Outcome> {
    let plan = case.plan(target.device, change).ok()??;
    Some(run(target, case.row, &plan))
}

fn passes(target: &Target, case: &Case, change: &Change) -> bool {
    matches!(outcome(target, case, change), Some(Outcome::Passed))
}

/// Returns a fault with its kind, and what was found out about it.
pub(crate) fn diagnose(target: &Target, case: &Case, fault: Fault) -> Fault {
    if fault.symptom != Symptom::WrongValue && fault.symptom != Symptom::NanDropped {
        return fault;
    }
    let found = |symptom: Symptom, why: &str| Fault {
        symptom,
        message: format!("{}. {why}", fault.message),
        wrong: fault.wrong.clone(),
    };
    if let Some(unwritten) = unwritten(target, case) {
        return found(Symptom::Unwritten, &unwritten);
    }
    if fault.symptom == Symptom::NanDropped {
        return fault;
    }
    if passes(target, case, &Change::default()) {
        return found(Symptom::NotRepeatable, "The same call passed when it was repeated.");
    }
    let contiguous = Change { layout: Some(Layout::Contiguous), ..Change::default() };
    if passes(target, case, &contiguous) {
        return found(Symptom::WrongStride, "With contiguous tensors it is right.");
    }
    if let Some(narrow) = narrow_sum(target, case) {
        return found(Symptom::Accumulation, &narrow);
    }
    let multiple = |size: usize| Change { shape: Some(vec![size]), ..contiguous.clone() };
    if [64, 128].iter().all(|size| passes(target, case, &multiple(*size)))
        && [67, 77].iter().any(|size| !passes(target, case, &multiple(*size)))
    {
        return found(
            Symptom::WrongTail,
            "Of 64 and of 128 elements it is right, of 67 or 77 not.",
        );
    }
    fault
}

/// Returns a sentence if elements of `out` keep the bytes of two different patterns.
fn unwritten(target: &Target, case: &Case) -> Option<String> {
    let change = Change { way: Some(Way::Out(Layout::Contiguous)), ..Change::default() };
    let plan = case.plan(target.device, &change).ok()??;
    let done = |pattern| -> Option<Vec<CallResult>> {
        execute(target, case.row, &plan, pattern).ok()?.ok()
    };
    let (first, second) = (done(0)?, done(1)?);
    for (at, (first, second)) in first.iter().zip(&second).enumerate() {
        let kept = first.untouched.iter().zip(&second.untouched).position(|(a, b)| *a && *b);
        if let Some(kept) = kept {
            let out =
                if plan.expected.len() > 1 { format!("`out` {at}") } else { "an `out`".into() };
            return Some(format!(
                "Element {kept} of {out} keeps the bytes that it had before the call."
            ));
        }
    }
    None
}

/// Returns a sentence if the errors of a short sum fit one in the dtype of the elements.
fn narrow_sum(target: &Target, case: &Case) -> Option<String> {
    if !case.dtype.is_floating() {
        return None;
    }
    let narrow = match case.dtype {
        DType::F16 | DType::BF16 => case.dtype,
        DType::F32 => DType::BF16,
        _ => DType::F32,
    };
    for shape in [vec![90], vec![2, 300]] {
        let change = Change {
            shape: Some(shape),
            layout: Some(Layout::Contiguous),
            values: Some(Values::Smooth),
            way: Some(Way::Fresh),
            choice: 0,
        };
        let plan = case.plan(target.device, &change).ok()??;
        let wide = match case.dtype {
            DType::F16 | DType::BF16 => DType::F32,
            dtype => dtype,
        };
        // Only sums have an error that grows with their length.
        let is_sum = |expected: &Expected| {
            let first = expected.array.items.first().map(|item| item.magnitude());
            first.is_some_and(|size| expected.errors[0] / unit(wide) / size > 40.0)
        };
        let done = execute(target, case.row, &plan, 0).ok()?.ok()?;
        if !plan.expected.iter().any(is_sum) || compare(case.row, &plan, &done).is_none() {
            continue;
        }
        let factor = unit(narrow) / unit(wide);
        let fits = |(expected, done): (&Expected, &CallResult)| {
            (0..done.got.len()).all(|at| expected.accepts_within(at, done.got[at], factor))
        };
        return plan.expected.iter().zip(&done).all(fits).then(|| {
            format!("The error of positive numbers is that of a sum in {narrow} or the like.")
        });
    }
    None
}
