//! The arguments of an expression's call from Python, and the errors for wrong ones.

use keyfold_core::{Error, ErrorKind};
use keyfold_dispatch::schema::Type;
use keyfold_expr::{Expr, Names};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyString, PyTuple};

use super::object::PyExpression;
use crate::classes::array_kind::_is_array;
use crate::marshal::describe::describe_object;
use crate::marshal::errors::{IntoPyResult, to_pyerr};
use crate::marshal::values::value_from;

fn error(py: Python<'_>, kind: ErrorKind, message: &str) -> PyErr {
    to_pyerr(py, Error::new(kind, format!("Expression: {message}")))
}

/// The text of an argument.
pub(super) fn text(place: &str, given: &Bound<'_, PyAny>, example: &str) -> PyResult<String> {
    let py = given.py();
    let Ok(text) = given.cast::<PyString>() else {
        let given = describe_object(given);
        let message = format!("{place} has to be a str, such as {example}, not {given}");
        return Err(error(py, ErrorKind::Binding, &message));
    };
    match text.to_str() {
        Ok(text) => Ok(text.to_owned()),
        Err(_) => {
            let shown = text.to_string_lossy();
            let message = format!(
                "{place} has half of a surrogate pair, which is no character ('{shown}'); decode the \
                 bytes that it came from"
            );
            Err(error(py, ErrorKind::Value, &message))
        }
    }
}

/// The names that argument `place` lists.
pub(super) fn names(place: &str, given: Option<&Bound<'_, PyAny>>) -> PyResult<Vec<String>> {
    let Some(given) = given else { return Ok(Vec::new()) };
    let py = given.py();
    let wrong = || {
        let shown = describe_object(given);
        let message = format!(
            "argument '{place}' has to be a sequence of names, such as [\"x\", \"y\"], not {shown}"
        );
        error(py, ErrorKind::Binding, &message)
    };
    // A str is a sequence of its letters, which nobody means.
    if given.is_instance_of::<PyString>() {
        return Err(wrong());
    }
    let mut names = Vec::new();
    for (at, name) in given.try_iter().map_err(|_| wrong())?.enumerate() {
        names.push(text(&format!("argument '{place}': item {at}"), &name?, "\"x\"")?);
    }
    Ok(names)
}

/// The expression of a text whose names stand for these.
pub(super) fn parse(
    py: Python<'_>,
    text: &str,
    inputs: Option<Vec<String>>,
    params: Vec<String>,
) -> PyResult<Expr> {
    let with = |names: Names| {
        let names = params.iter().fold(names, |names, name| names.param(name));
        Expr::parse_with(text, &names)
    };
    let expr = match inputs {
        None if params.is_empty() => Expr::parse(text).py(py)?,
        None => {
            // Names in order of appearance, less the parameters.
            let free = Expr::parse(text).py(py)?;
            let found = free.inputs().iter().filter(|input| !params.contains(&input.name));
            with(found.fold(Names::new(), |names, input| names.tensor(&input.name))).py(py)?
        }
        Some(inputs) => with(inputs.into_iter().fold(Names::new(), Names::tensor)).py(py)?,
    };
    for (name, what) in [("out", "the result"), ("shape", "the result's shape")] {
        if expr.params().iter().any(|param| param == name) {
            let message = format!(
                "'{text}': a parameter can't be called '{name}', which a call takes for {what}"
            );
            return Err(error(py, ErrorKind::Value, &message));
        }
    }
    Ok(expr)
}

impl PyExpression {
    #[cold]
    pub(super) fn wrong_count(&self, py: Python<'_>, given: usize) -> PyErr {
        let names: Vec<_> = self.expr.inputs().iter().map(|i| i.name.as_str()).collect();
        let message = match &names[..] {
            [] => format!("it takes no arrays, but {given} were given"),
            names => format!(
                "it takes one array for each of {}, but {given} were given",
                names.join(", ")
            ),
        };
        self.error(py, ErrorKind::Binding, &message)
    }

    #[cold]
    pub(super) fn unknown_number(&self, py: Python<'_>, name: &str) -> PyErr {
        let message = match self.expr.params() {
            [] => format!("there is no parameter '{name}'; it has none"),
            known => {
                format!("there is no parameter '{name}'; the parameters are {}", known.join(", "))
            }
        };
        self.error(py, ErrorKind::Binding, &message)
    }

    /// Refuses what is no number, or one of more bits than there are, by the parameter's name.
    #[cold]
    pub(super) fn check_number(
        &self,
        py: Python<'_>,
        name: &str,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (kind, why) = match value_from(value, &Type::Scalar) {
            Ok(Some(_)) => return Ok(()),
            Ok(None) => {
                let hint = match _is_array(value).unwrap_or(false) {
                    true => "; arrays are inputs: leave it out of params, or pass one number",
                    false => "",
                };
                let given = describe_object(value);
                (ErrorKind::Binding, format!("has to be a number, not {given}{hint}"))
            }
            Err(error) => (error.kind(), format!("has to be a number: {}", error.message())),
        };
        Err(self.error(py, kind, &format!("parameter '{name}' {why}")))
    }

    /// The sizes of a shape, which may be one number, as NumPy takes it.
    #[cold]
    pub(super) fn sizes<'py>(
        &self,
        py: Python<'py>,
        shape: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        // A bool is an int to Python, but no size.
        let size = |item: &Bound<'py, PyAny>| match item.is_instance_of::<PyBool>() {
            true => None,
            false => item.extract::<i64>().ok(),
        };
        let listed = || {
            let items = shape.extract::<Vec<Bound<'py, PyAny>>>().ok()?;
            items.iter().map(size).collect::<Option<Vec<i64>>>()
        };
        let sizes = size(shape).map(|size| vec![size]).or_else(listed).ok_or_else(|| {
            let given = describe_object(shape);
            let message =
                format!("argument 'shape' has to be sizes, such as (2, 3) or (), not {given}");
            self.error(py, ErrorKind::Binding, &message)
        })?;
        PyTuple::new(py, sizes)
    }
}
