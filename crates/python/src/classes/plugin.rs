//! `keyfold.load_plugin` and `keyfold.Plugin`.

use keyfold_ffi::plugin::{self, Plugin};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::classes::dispatcher::PyDispatcher;
use crate::marshal::argument::FilePath;
use crate::marshal::errors::IntoPyResult;

/// A library of kernels and devices that was loaded at run time. Made by `load_plugin`.
///
/// Its registrations stay until `close()`, also when this object is gone; as a context manager it
/// closes at the end of the block.
#[pyclass(name = "Plugin", module = "keyfold", frozen, weakref)]
pub(crate) struct PyPlugin {
    plugin: Plugin,
    dispatcher: Py<PyDispatcher>,
}

/// Loads a plugin, a Rust crate built as a `cdylib` or a library in C, and registers its operators, kernels
/// and devices: all or nothing.
///
/// Args:
///     path: the library's file.
///     dispatcher: where to register operators and kernels; the process's own without it. Devices are always
///         the process's, as those of `register_backend`.
///
/// Returns:
///     The plugin. Keep it to `close()` it; nothing is unregistered when it is dropped.
///
/// Raises:
///     keyfold.LibraryLoadError: the file isn't there, is no plugin, was built for another machine, needs
///         another version or feature of the plugin ABI, or its register function failed or panicked.
///     keyfold.RegistrationError: it registers what is there already (it was loaded before, say).
///
/// Example:
///     >>> kf.load_plugin("target/release/libmy_plugin.so")  # doctest: +SKIP
#[pyfunction]
#[pyo3(signature = (path, *, dispatcher=None))]
pub(crate) fn load_plugin(
    py: Python<'_>,
    path: FilePath,
    dispatcher: Option<Bound<'_, PyDispatcher>>,
) -> PyResult<PyPlugin> {
    let dispatcher = match dispatcher {
        Some(given) => given,
        None => py.import("keyfold._default")?.getattr("dispatcher")?.cast_into()?,
    };
    let plugin = plugin::load(&path.0, &dispatcher.get().dispatcher).py(py)?;
    Ok(PyPlugin { plugin, dispatcher: dispatcher.unbind() })
}

#[pymethods]
impl PyPlugin {
    /// The crate's name.
    #[getter]
    fn name(&self) -> &str {
        self.plugin.name()
    }

    /// The crate's version.
    #[getter]
    fn version(&self) -> &str {
        self.plugin.version()
    }

    /// The library's file, absolute.
    #[getter]
    fn path(&self) -> String {
        self.plugin.path().display().to_string()
    }

    /// The full names of the operators that it defined.
    #[getter]
    fn operators(&self) -> Vec<&str> {
        self.plugin.operators().iter().map(String::as_str).collect()
    }

    /// Its kernels: operator, key and the function's name of each.
    #[getter]
    fn kernels(&self) -> Vec<(&str, String, &str)> {
        let kernels = self.plugin.kernels().iter();
        kernels.map(|k| (k.operator.as_str(), k.key.to_string(), k.name.as_str())).collect()
    }

    /// The device types that it registered.
    #[getter]
    fn device_types(&self) -> Vec<String> {
        self.plugin.device_types().iter().map(|kind| kind.name()).collect()
    }

    /// The version of the plugin ABI that it and keyfold use, the greatest that both have: major, minor.
    #[getter]
    fn abi_version(&self) -> (u32, u32) {
        self.plugin.abi_version()
    }

    /// Whether its registrations were taken back.
    #[getter]
    fn closed(&self) -> bool {
        !self.plugin.is_open()
    }

    /// Takes its registrations back.
    ///
    /// Calls that run on other threads end as they would, and tensors on its devices stay valid and can be
    /// copied to the CPU; the library is unloaded after them. A second time it does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        for handle in self.plugin.take_handles() {
            self.dispatcher.get().handle(py, handle).remove(py)?;
        }
        // With the GIL held, as for kernels: a fork can't come between.
        self.plugin.remove_devices();
        Ok(())
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        format!("<{:?}>", self.plugin)
    }
}
