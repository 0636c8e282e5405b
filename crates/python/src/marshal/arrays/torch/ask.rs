//! Queries and changes of torch's tensors that run no code of the user's.

use keyfold_core::Result;
use pyo3::prelude::*;

use crate::marshal::errors::from_pyerr;

/// Runs `f` without `__torch_function__` of subclasses: what is asked of a tensor while others are
/// viewed mustn't run code of the user's.
pub(super) fn undisturbed<R>(py: Python<'_>, f: impl FnOnce() -> Result<R>) -> Result<R> {
    let guard = || py.import("torch")?.getattr("_C")?.call_method0("DisableTorchFunctionSubclass");
    let guard = guard().map_err(from_pyerr)?;
    guard.call_method0("__enter__").map_err(from_pyerr)?;
    let result = f();
    let none = py.None();
    guard.call_method1("__exit__", (&none, &none, &none)).map_err(from_pyerr)?;
    result
}

/// Says to torch that a tensor is written in place, as its own operators do: a saved tensor that
/// was changed since is an error in its backward.
pub(super) fn note_write(object: &Bound<'_, PyAny>) -> Result<()> {
    let py = object.py();
    let note = || -> PyResult<()> {
        // Tensors of inference mode have no count.
        if !object.call_method0("is_inference")?.extract::<bool>()? {
            py.import("torch.autograd.graph")?.call_method1("increment_version", (object,))?;
        }
        Ok(())
    };
    note().map_err(from_pyerr)
}

/// Another tensor over the same memory, which `set_` of the first leaves alone; and memory that
/// `resize_` refuses to free, as torch itself has it once `numpy()` shared it.
pub(super) fn lent<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    let alias = object.call_method0("detach")?;
    if alias.getattr("is_cpu")?.extract::<bool>()? {
        let torch = py.import("torch")?;
        let is = |name: &str| Ok::<_, PyErr>(alias.getattr("dtype")?.is(&torch.getattr(name)?));
        // NumPy has no bfloat16; the bits do.
        let shared = match is("bfloat16")? {
            true => alias.call_method1("view", (torch.getattr("int16")?,))?,
            false => alias.clone(),
        };
        // A torch without NumPy, or a tensor without memory, which says so later.
        let _ = shared.call_method0("numpy");
    }
    Ok(alias)
}
