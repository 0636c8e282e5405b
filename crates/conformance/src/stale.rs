//! Checks of caches: each operator is called again with other numbers, dimensions and sizes.

use keyfold_core::DType;
use keyfold_ops::{Row, rows};

use crate::case::{Case, Change, Plan, Way};
use crate::checks::Checks;
use crate::elements::Values;
use crate::report::Symptom;
use crate::run::{CallResult, Fault, Outcome, Target, compare, execute};

/// Runs all checks of the group.
pub(crate) fn check(checks: &mut Checks<'_>, seed: u64) {
    let target = checks.target;
    for row in rows() {
        let known =
            [DType::F32, DType::I64, DType::Bool].map(|dtype| Case { row, dtype, number: 0, seed });
        let Some(case) = known.into_iter().find(Case::is_taken) else { continue };
        let operation = row.schema().name.to_string();
        let change = |choice: usize, shape: &[usize]| Change {
            shape: Some(shape.to_vec()),
            values: Some(Values::Smooth),
            way: Some(Way::Fresh),
            choice,
            ..Change::default()
        };
        // Six in turn have each dimension with and without `keepdim`.
        let chains: [(&str, Vec<Change>); 2] = [
            ("numbers and dimensions", (0..6).map(|choice| change(choice, &[5, 5])).collect()),
            ("sizes", vec![change(0, &[3, 8]), change(0, &[8, 3])]),
        ];
        for (kind, changes) in chains {
            checks.outcome(&operation, kind, &mut || chain(target, row, &case, &changes));
        }
    }
}

/// Calls an operator with one set of arguments after the other, and with the first again.
fn chain(target: &Target, row: &Row, case: &Case, changes: &[Change]) -> Result<Outcome, Fault> {
    let mut known: Vec<(Plan, Vec<CallResult>)> = Vec::new();
    for change in changes.iter().chain(changes.first()) {
        let Some(plan) = case.plan(target.device, change)? else { continue };
        let done = match execute(target, row, &plan, 0) {
            Ok(done) => done?,
            Err(error) => return Ok(Outcome::of_error(error, &*target.backend)),
        };
        if let Some(fault) = compare(row, &plan, &done) {
            return Err(explained(fault, (&plan, &done), &known));
        }
        known.push((plan, done));
    }
    Ok(if known.is_empty() { Outcome::NothingRan } else { Outcome::Passed })
}

/// Returns a fault as that of a stale cache if the result is an earlier call's.
fn explained(
    fault: Fault,
    (plan, done): (&Plan, &[CallResult]),
    known: &[(Plan, Vec<CallResult>)],
) -> Fault {
    let is_same = |other: &[CallResult]| {
        other.len() == done.len() && other.iter().zip(done).all(|(a, b)| a.got == b.got)
    };
    let Some((with, _)) = known.iter().find(|(_, other)| is_same(other)) else {
        return fault;
    };
    let message = format!(
        "A call with {:?} returned the result of an earlier call with {:?}. {}",
        plain(plan),
        plain(with),
        fault.message
    );
    Fault { symptom: Symptom::StaleCache, message, ..fault }
}

/// Returns the arguments that aren't tensors.
fn plain(plan: &Plan) -> Vec<String> {
    let plain = plan.args.iter().filter_map(|arg| match arg {
        crate::array::Arg::Plain(value) => Some(format!("{value:?}")),
        _ => None,
    });
    plain.collect()
}
