//! Cards that libcudnn plans for: their profiles, the ranking of engines, the helpers that rank.

use keyfold::libcudnn::{CardPlanner, Profile};
use keyfold_core::{Error, ErrorKind};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::classes::cudnn::graph::PyCudnnGraph;
use crate::classes::cudnn::library::LibraryOptions;
use crate::classes::cudnn::plan::{Options, build_with};
use crate::marshal::errors::IntoPyResult;

/// The version of the cuDNN that helpers load, how many were started, and the processes of idle ones.
#[pyfunction]
pub(crate) fn _cudnn_helpers(
    py: Python<'_>,
    options: LibraryOptions,
) -> PyResult<(String, u64, Vec<u32>)> {
    build_with(py, None, |progress| {
        let helpers = options.helpers()?;
        let version = helpers.version(progress)?;
        let (started, idle) = helpers.processes();
        Ok((version, started, idle))
    })
}

/// The names of the card profiles that come with keyfold.
#[pyfunction]
pub(crate) fn _cudnn_cards() -> Vec<&'static str> {
    Profile::names().collect()
}

/// A card profile: that of a name, or of a text.
#[pyfunction]
#[pyo3(signature = (name=None, text=None))]
pub(crate) fn _cudnn_card<'py>(
    py: Python<'py>,
    name: Option<&str>,
    text: Option<&str>,
) -> PyResult<Bound<'py, PyDict>> {
    let profile = match (name, text) {
        (_, Some(text)) => Profile::from_json(text).py(py)?,
        (name, None) => Profile::named(name.unwrap_or_default()).py(py)?,
    };
    about(py, &profile)
}

/// The profile of a card that is here.
#[pyfunction]
pub(crate) fn _cudnn_capture<'py>(
    py: Python<'py>,
    options: LibraryOptions,
) -> PyResult<Bound<'py, PyDict>> {
    let profile = build_with(py, None, |_| {
        let planner = CardPlanner::new(|| options.library(), options.ordinal, None)?;
        Ok(planner.properties().clone())
    })?;
    about(py, &profile)
}

fn about<'py>(py: Python<'py>, profile: &Profile) -> PyResult<Bound<'py, PyDict>> {
    let data = PyDict::new(py);
    data.set_item("name", &profile.name)?;
    data.set_item("source", &profile.source)?;
    data.set_item("fingerprint", profile.fingerprint())?;
    data.set_item("json", profile.to_json())?;
    Ok(data)
}

/// Ranks the engines of a graph for a card that isn't here, as JSON: at most `limit` for each part.
#[pyfunction]
pub(crate) fn _cudnn_rank(
    py: Python<'_>,
    graph: &PyCudnnGraph,
    options: Options,
    limit: usize,
    compile: bool,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let spec = graph.spec();
    build_with(py, progress, |progress| {
        let policy = options.policy()?;
        let chosen = options
            .libcudnn
            .as_ref()
            .and_then(|libcudnn| Some((libcudnn, libcudnn.card.as_ref()?)));
        let Some((libcudnn, profile)) = chosen else {
            let message = "engines are ranked for the card of a profile: give its name or its file";
            return Err(Error::new(ErrorKind::Value, message));
        };
        let profile = Profile::from_json(profile)?;
        let valid = spec.clone().validate()?;
        let helpers = libcudnn.helpers()?;
        let engines = helpers.rank(valid.spec(), &profile, &policy, (limit, compile), progress)?;
        let lines: Vec<String> = engines.iter().map(|engine| engine.to_json()).collect();
        Ok(format!("[{}]", lines.join(",")))
    })
}
