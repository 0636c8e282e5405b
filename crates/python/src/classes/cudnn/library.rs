//! libcudnn for `keyfold.cudnn`: its planners, which are kept, card profiles, and the helper process.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use keyfold::cudnn::locks::lock;
use keyfold::cudnn::{Planner, Progress};
use keyfold::libcudnn::helper::client::{Helpers, Launch};
use keyfold::libcudnn::store::Store;
use keyfold::libcudnn::{CardPlanner, Library, Profile, RemotePlanner, find, helper};
use keyfold_core::{Error, ErrorKind, Result};
use pyo3::prelude::*;

/// How libcudnn plans.
#[derive(Clone, Debug, PartialEq, Eq, Hash, FromPyObject)]
pub(crate) struct LibraryOptions {
    /// The profile of a card that needn't be here, as JSON.
    #[pyo3(item)]
    pub(crate) card: Option<String>,
    /// The number of a card that is here.
    #[pyo3(item)]
    pub(crate) ordinal: u8,
    /// The folders of Python's packages.
    #[pyo3(item)]
    packages: Vec<PathBuf>,
    /// The helper's program and arguments.
    #[pyo3(item)]
    helper: Vec<OsString>,
    /// How many helpers may run, and how long one may say nothing, in milliseconds.
    #[pyo3(item)]
    processes: usize,
    #[pyo3(item)]
    patience: u64,
    /// The folder of plans, and the most that it may hold, in bytes.
    #[pyo3(item)]
    folder: Option<PathBuf>,
    #[pyo3(item)]
    folder_limit: u64,
}

/// Planners, helpers and libraries by their options: equal options share one.
type Kept<T> = LazyLock<Mutex<HashMap<LibraryOptions, Arc<T>>>>;

fn kept<T: ?Sized>(
    all: &Mutex<HashMap<LibraryOptions, Arc<T>>>,
    options: &LibraryOptions,
    make: impl FnOnce() -> Result<Arc<T>>,
) -> Result<Arc<T>> {
    if let Some(found) = lock(all).get(options) {
        return Ok(found.clone());
    }
    // Without the lock: a planner may take seconds to be made, and another thread makes another one meanwhile.
    let made = make()?;
    let mut all = lock(all);
    Ok(all.entry(options.clone()).or_insert(made).clone())
}

impl LibraryOptions {
    /// Returns the options without those that cards and folders differ in.
    fn shared(&self) -> LibraryOptions {
        LibraryOptions { card: None, ordinal: 0, folder: None, folder_limit: 0, ..self.clone() }
    }

    /// Returns the helpers, which all cards and folders share.
    pub(crate) fn helpers(&self) -> Result<Arc<Helpers>> {
        static ALL: Kept<Helpers> = LazyLock::new(Mutex::default);
        kept(&ALL, &self.shared(), || {
            let found = find::library(&self.packages)?;
            let Some((program, arguments)) = self.helper.split_first() else {
                let message =
                    "this Python has no program (sys.executable) that a helper process could run";
                return Err(Error::new(ErrorKind::Library, message));
            };
            Ok(Arc::new(Helpers::new(Launch {
                program: PathBuf::from(program),
                arguments: arguments.to_vec(),
                library: found.path,
                folders: found.folders,
                processes: self.processes,
                patience: Duration::from_millis(self.patience),
            })))
        })
    }

    fn store(&self) -> Option<Store> {
        self.folder.as_ref().map(|folder| Store::new(folder, self.folder_limit))
    }

    /// Returns libcudnn in this process.
    pub(crate) fn library(&self) -> Result<Arc<Library>> {
        static ALL: Kept<Library> = LazyLock::new(Mutex::default);
        kept(&ALL, &self.shared(), || Library::load_found(&find::library(&self.packages)?))
    }

    /// Returns what plans.
    pub(crate) fn planner(&self, progress: Progress<'_>) -> Result<Arc<dyn Planner>> {
        static ALL: Kept<dyn Planner> = LazyLock::new(Mutex::default);
        kept(&ALL, self, || match &self.card {
            Some(profile) => {
                let profile = Profile::from_json(profile)?;
                Ok(Arc::new(RemotePlanner::new(self.helpers()?, profile, self.store(), progress)?))
            }
            None => Ok(Arc::new(CardPlanner::new(|| self.library(), self.ordinal, self.store())?)),
        })
    }
}

/// Serves the process that started this one as the helper that plans with libcudnn.
#[pyfunction]
pub(crate) fn _cudnn_helper(py: Python<'_>, library: PathBuf) -> i32 {
    py.detach(|| helper::server::serve(&library))
}

/// The libraries that there are: path, origin, and why it isn't used.
#[pyfunction]
pub(crate) fn _cudnn_libraries(
    packages: Vec<PathBuf>,
) -> Vec<(PathBuf, &'static str, Option<String>)> {
    let all = find::candidates(&packages).into_iter();
    all.map(|found| (found.path, found.origin, found.refusal)).collect()
}
