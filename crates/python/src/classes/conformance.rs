//! The conformance kit, as `keyfold.conformance` and the command line call it. A report travels as JSON.

use std::process::Command;

use keyfold::conformance::{CHILD, Mode, Options, Report, groups, run, run_child, run_isolated};
use keyfold_core::{DType, DeviceType};
use pyo3::prelude::*;

use crate::marshal::attach::attach;
use crate::marshal::errors::{IntoPyResult, from_pyerr};

/// Runs the kit on a type of device, each group in a process of its own if there is a command for that.
/// Returns the report.
#[pyfunction]
#[pyo3(signature = (device, mode, groups, only, dtype, case, fraction, seed, shrink, command))]
#[expect(clippy::too_many_arguments, reason = "the options of a run, one by one")]
pub(crate) fn _conformance(
    py: Python<'_>,
    device: &str,
    mode: &str,
    groups: Option<Vec<String>>,
    only: Option<String>,
    dtype: Option<&str>,
    case: Option<usize>,
    fraction: f64,
    seed: u64,
    shrink: bool,
    command: Option<Vec<String>>,
) -> PyResult<String> {
    let options = Options {
        mode: mode.parse::<Mode>().py(py)?,
        groups,
        only,
        dtype: dtype.map(str::parse::<DType>).transpose().py(py)?,
        case,
        fraction,
        seed,
        shrink,
        aborted: Vec::new(),
    };
    let report = py.detach(|| match command.as_deref() {
        Some([program, words @ ..]) => {
            let again = || {
                let mut command = Command::new(program);
                command.args(words);
                command
            };
            let mut poll = || attach(|py| py.check_signals().map_err(from_pyerr));
            run_isolated(device, &options, &again, &mut poll)
        }
        _ => run(device.parse::<DeviceType>()?, &options),
    });
    report.py(py).map(|report| report.to_json())
}

/// Returns whether a parent process asked for a group.
#[pyfunction]
pub(crate) fn _conformance_is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Runs the group that a parent process asked for; returns whether there is one.
#[pyfunction]
pub(crate) fn _conformance_child(py: Python<'_>) -> PyResult<bool> {
    py.detach(run_child).py(py)
}

/// Returns a report as text, and whether the backend conforms.
#[pyfunction]
pub(crate) fn _conformance_text(py: Python<'_>, report: &str) -> PyResult<(String, bool)> {
    Report::from_json(report).py(py).map(|report| (report.to_string(), report.conforms()))
}

/// Returns the names of the groups of a mode.
#[pyfunction]
pub(crate) fn _conformance_groups(py: Python<'_>, mode: &str) -> PyResult<Vec<&'static str>> {
    mode.parse::<Mode>().py(py).map(groups)
}
