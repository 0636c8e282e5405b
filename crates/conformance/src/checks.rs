//! The groups of checks that aren't calls of one operator, and what they report.

use std::cell::OnceCell;

use keyfold_core::Error;

use crate::report::{Finding, Report, Symptom, Verdict};
use crate::run::{Fault, Target};
use crate::suite::{Options, Tally};

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        let message = format!("{}: {}", error.kind().name(), error.message());
        Fault::new(Symptom::CallFailed, message)
    }
}

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
        self.verdict(operation, case, &mut || {
            check().map(|()| Verdict::Passed).map_err(|fault| (Verdict::Failed, Some(fault)))
        });
    }

    /// Runs one case whose verdict may be another than passed or failed; its fault is then the
    /// sentence to report.
    pub(crate) fn verdict(
        &mut self,
        operation: &str,
        case: &str,
        check: &mut dyn FnMut() -> Result<Verdict, (Verdict, Option<Fault>)>,
    ) {
        if self.only.is_some_and(|only| only != operation) {
            return;
        }
        let id = format!("{operation}/{case}");
        let (verdict, fault) = match self.abort_of(&id) {
            Some(fault) => (Verdict::Failed, Some(fault)),
            None => {
                (self.before)(&id);
                check().map_or_else(|failed| failed, |verdict| (verdict, None))
            }
        };
        self.tally.note(operation, verdict);
        let Some(fault) = fault else { return };
        let reproducer = match verdict {
            Verdict::Lacking => String::new(),
            _ => format!(
                "python -m keyfold conformance {} --group {} --only \"{operation}\"",
                self.target.device.kind(),
                self.tally.name
            ),
        };
        self.report.add(Finding {
            verdict,
            symptom: (verdict != Verdict::Lacking).then_some(fault.symptom),
            group: self.tally.name.clone(),
            operator: operation.to_owned(),
            dtype: String::new(),
            case: id,
            message: fault.message,
            reproducer,
            count: 1,
        });
    }
}
