//! The data of a `keyfold.Expression`.

use keyfold_core::ErrorKind;
use keyfold_expr::Expr;
#[cfg(not(feature = "abi3"))]
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::marshal::errors::error;

/// A scalar expression: what one element of a result is, given elements of arrays and numbers.
///
/// Args:
///     text: the expression, such as `"where(x > 0, x, slope * x)"`.
///     inputs: the names that stand for arrays, in the order in which a call gives them. By default
///         every name that isn't a parameter, as they appear. A name with brackets behind it,
///         `table[i, j]`, is read at computed indices; others broadcast.
///     params: the names that stand for numbers; a call gives them by keyword.
///
/// Raises:
///     keyfold.ExpressionError: the text doesn't parse; a caret shows where.
#[pyclass(name = "Expression", module = "keyfold", frozen)]
pub(crate) struct PyExpression {
    /// Where CPython looks for the function that calls the object (`tp_vectorcall_offset`).
    #[cfg(not(feature = "abi3"))]
    pub(crate) vectorcall: ffi::vectorcallfunc,
    pub(super) expr: Expr,
    /// With its arguments in front, as the operator takes it.
    pub(super) text: String,
    /// The parameters' names.
    pub(super) params: Vec<Py<PyString>>,
}

impl PyExpression {
    pub(super) fn error(&self, py: Python<'_>, kind: ErrorKind, message: &str) -> PyErr {
        error(py, kind, format!("Expression '{}': {message}", self.expr))
    }
}
