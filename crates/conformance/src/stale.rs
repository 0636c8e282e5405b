//! Checks of caches: each operator is called again with other numbers, dimensions and sizes.

use keyfold_core::DType;
use keyfold_ops::{Row, rows};

use crate::case::{Case, Change, Plan, Way};
use crate::checks::Checks;
use crate::elements::Values;
use crate::report::{Symptom, Verdict};
use crate::run::{Done, Fault, Target, compare, execute, refusal};

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
        let pairs = [
            ("numbers", change(0, &[5, 5]), change(1, &[5, 5])),
            ("dimensions", change(1, &[5, 5]), change(2, &[5, 5])),
            ("sizes", change(0, &[3, 8]), change(0, &[8, 3])),
        ];
        for (kind, first, second) in pairs {
            checks.verdict(&operation, kind, &mut || pair(target, row, &case, (&first, &second)));
        }
    }
}

/// Calls an operator with two sets of arguments in turn.
fn pair(
    target: &Target,
    row: &Row,
    case: &Case,
    (first, second): (&Change, &Change),
) -> Result<Verdict, (Verdict, Option<Fault>)> {
    let failed = |fault: Fault| (Verdict::Failed, Some(fault));
    let plan = |change| case.plan(target.device, change).map_err(|error| failed(error.into()));
    let (Some(first), Some(second)) = (plan(first)?, plan(second)?) else {
        return Ok(Verdict::Passed);
    };
    let done = |plan: &Plan| match execute(target, row, plan, 0) {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(fault)) => Err(failed(fault)),
        Err(error) => Err(match refusal(&error, &*target.backend) {
            Some(reason) => (Verdict::Lacking, Some(Fault::new(Symptom::Unclaimed, reason))),
            None => failed(error.into()),
        }),
    };
    let results = [(&first, done(&first)?), (&second, done(&second)?), (&first, done(&first)?)];
    for (at, (plan, result)) in results.iter().enumerate() {
        let Some(fault) = compare(plan, result) else { continue };
        let (other, before) = &results[if at == 1 { 0 } else { 1 }];
        return Err(failed(explained(fault, result, before, plan, other)));
    }
    Ok(Verdict::Passed)
}

/// Returns a fault as that of a stale cache if a result is another call's.
fn explained(fault: Fault, result: &Done, other: &Done, plan: &Plan, with: &Plan) -> Fault {
    let differ = plan.expected.array.items != with.expected.array.items;
    if !differ || result.got != other.got {
        return fault;
    }
    let message = format!(
        "A call with {:?} returned the result of a call with {:?}. {}",
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
