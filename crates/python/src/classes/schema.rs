//! The parts of a schema's text, for `keyfold.Schema`.

use keyfold_dispatch::schema::{Alias, Argument, Return, Schema};
use pyo3::prelude::*;

use crate::marshal::argument::Text;
use crate::marshal::errors::IntoPyResult;
use crate::marshal::values;

/// Alias sets at the beginning of a call and at its end, and whether it writes.
type Aliases = (Vec<String>, Vec<String>, bool);

/// Name, type, whether it is required, default, whether it is keyword-only, alias sets.
type ArgumentParts = (String, String, bool, Option<Py<PyAny>>, bool, Aliases);

/// Name, type, alias sets.
type ReturnParts = (Option<String>, String, Aliases);

fn aliases(alias: Option<&Alias>) -> Aliases {
    alias.map_or_else(Aliases::default, |alias| {
        (alias.sets.clone(), alias.after.clone(), alias.write)
    })
}

fn argument_parts(py: Python<'_>, argument: &Argument) -> PyResult<ArgumentParts> {
    let default = argument
        .default_value()
        .map(|literal| values::literal_to_py(py, &literal, &argument.ty))
        .transpose()?;
    Ok((
        argument.name.clone(),
        argument.ty.to_string(),
        argument.default.is_none(),
        default,
        argument.kwarg_only,
        aliases(argument.alias.as_ref()),
    ))
}

fn return_parts(declared: &Return) -> ReturnParts {
    (declared.name.clone(), declared.ty.to_string(), aliases(declared.alias.as_ref()))
}

/// The canonical text of a schema.
#[pyfunction]
#[pyo3(signature = (text, /))]
pub(crate) fn _canonical_schema(py: Python<'_>, text: Text) -> PyResult<String> {
    Ok(Schema::parse(&text).py(py)?.to_string())
}

/// The name, the overload, the arguments and the returns of a schema.
#[pyfunction]
#[pyo3(signature = (text, /))]
pub(crate) fn _schema_parts(
    py: Python<'_>,
    text: Text,
) -> PyResult<(String, String, Vec<ArgumentParts>, Vec<ReturnParts>)> {
    let schema = Schema::parse(&text).py(py)?;
    let arguments = schema.arguments.iter().map(|argument| argument_parts(py, argument));
    Ok((
        schema.name.qualified(),
        schema.name.overload.clone(),
        arguments.collect::<PyResult<_>>()?,
        schema.returns.iter().map(return_parts).collect(),
    ))
}
