//! The groups of checks that aren't calls of one operator, and their findings.

use std::cell::OnceCell;

use crate::report::{Finding, Report, Symptom, Verdict};
use crate::run::{Fault, Outcome, Target};
use crate::suite::{Options, Tally};

/// Runs checks and notes their verdicts.
pub(crate) struct Checks<'a> {
    /// The device.
    pub(crate) target: &'a Target,
    /// The device with the kernels of other operations in the place of those that it lacks.
    pub(crate) forced: OnceCell<Target>,
    /// The group's counts.
    pub(crate) tally: &'a mut Tally,
    /// The run's findings.
    pub(crate) report: &'a mut Report,
    /// Called with each case's name before it runs.
    pub(crate) before: &'a mut dyn FnMut(&str),
    /// The only operation.
    pub(crate) only: Option<&'a str>,
    /// The run's options.
    pub(crate) options: &'a Options,
}

impl Checks<'_> {
    /// Returns the fault of a case that aborted an earlier process.
    pub(crate) fn abort_of(&self, case: &str) -> Option<Fault> {
        let (_, how) = self.options.aborted.iter().find(|(known, _)| known == case)?;
        Some(Fault::new(Symptom::Aborted, how.clone()))
    }

    /// Runs one case of an operation, whose name is part of the case's.
    pub(crate) fn case(
        &mut self,
        operation: &str,
        case: &str,
        check: &mut dyn FnMut() -> Result<(), Fault>,
    ) {
        self.outcome(operation, case, &mut || check().map(|()| Outcome::Passed));
    }

    /// As [`Checks::case`], where the backend may lack the operation, or nothing may run.
    pub(crate) fn outcome(
        &mut self,
        operation: &str,
        case: &str,
        check: &mut dyn FnMut() -> Result<Outcome, Fault>,
    ) {
        if self.only.is_some_and(|only| only != operation) {
            return;
        }
        let id = format!("{operation}/{case}");
        let outcome = match self.abort_of(&id) {
            Some(fault) => Outcome::Failed(fault),
            None => {
                (self.before)(&id);
                check().unwrap_or_else(Outcome::Failed)
            }
        };
        let (verdict, symptom, message) = match outcome {
            Outcome::NothingRan => return,
            Outcome::Passed => return self.tally.note(operation, Verdict::Passed),
            Outcome::Lacking(reason) => (Verdict::Lacking, None, reason),
            Outcome::Failed(fault) => (Verdict::Failed, Some(fault.symptom), fault.message),
        };
        self.tally.note(operation, verdict);
        let kind = self.target.device.kind();
        let command = format!("python -m keyfold conformance {kind} --mode {}", self.report.mode);
        // A row's operation is its operator and a dtype, a check's is its name.
        let (operator, dtype, command) = match operation.split_once('/') {
            Some((operator, dtype)) => {
                let number = case.parse::<usize>().map(|number| format!(" --case {number}"));
                let number = number.unwrap_or_default();
                (operator, dtype, format!("{command} --only {operator} --dtype {dtype}{number}"))
            }
            None => {
                let group = &self.tally.name;
                (operation, "", format!("{command} --group {group} --only \"{operation}\""))
            }
        };
        let reproducer = if verdict == Verdict::Lacking { String::new() } else { command };
        self.report.add(Finding {
            verdict,
            symptom,
            group: self.tally.name.clone(),
            operator: operator.to_owned(),
            dtype: dtype.to_owned(),
            case: id,
            message,
            reproducer,
            count: 1,
        });
    }
}
