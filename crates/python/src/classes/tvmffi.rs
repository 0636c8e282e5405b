//! Operators as TVM FFI functions, and what their errors are called there.

use keyfold_core::{Error, ErrorKind};
use keyfold_ffi::export::{self, Host};
use keyfold_ffi::runtime;
use pyo3::prelude::*;
use pyo3::types::{PyAnyMethods, PyType};

use crate::call::operator::PyOperator;
use crate::marshal::attach::{self, try_attach};
use crate::marshal::errors::IntoPyResult;

/// Makes a function object of an operator and registers it as a global function.
#[pyfunction]
pub(crate) fn _tvm_ffi_export(
    py: Python<'_>,
    operator: &Bound<'_, PyOperator>,
    name: &str,
    replace: bool,
) -> PyResult<()> {
    let runtime = runtime::required().py(py)?;
    let host = Host { describe, settle, run: attach::run_called_back };
    let function = export::export(operator.get().operator.clone(), runtime, host).py(py)?;
    runtime.set_global(name, &function, replace).py(py)
}

/// Lets go of the objects whose release was put off until somebody holds the GIL.
fn settle() {
    let _ = try_attach(|_| ());
}

/// Kind and message of an error; of a Python exception, the builtin class that it is.
fn describe(error: Error) -> (String, String) {
    if error.kind() != ErrorKind::Foreign {
        return export::describe(error);
    }
    let message = error.message().to_owned();
    let raised = match error.into_source().map(|source| source.downcast::<PyErr>()) {
        Some(Ok(raised)) => try_attach(|py| {
            let value = raised.value(py);
            let text = value.str().map_or_else(|_| message.clone(), |text| text.to_string());
            (kind_of(&value.get_type()), text)
        }),
        _ => None,
    };
    raised.unwrap_or_else(|| ("RuntimeError".to_owned(), message))
}

/// The nearest builtin class, unless that is `Exception`: then the class itself.
fn kind_of(class: &Bound<'_, PyType>) -> String {
    let name = |class: &Bound<'_, PyType>| class.name().map(|name| name.to_string());
    let builtin = |class: &Bound<'_, PyType>| {
        class.module().is_ok_and(|module| module.to_string_lossy() == "builtins")
    };
    let nearest = class.mro().iter().find_map(|one| {
        let one = one.cast_into::<PyType>().ok()?;
        builtin(&one).then(|| name(&one).ok()).flatten()
    });
    match nearest {
        Some(nearest) if nearest != "Exception" && nearest != "BaseException" => nearest,
        _ => name(class).unwrap_or_else(|_| "RuntimeError".to_owned()),
    }
}
