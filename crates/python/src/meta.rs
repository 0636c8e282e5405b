//! `keyfold.infer_meta`: an operator's results without data; and what `keyfold.opcheck` asks of a
//! schema.

use keyfold::layers::meta;
use keyfold_dispatch::schema::{Alias, Type};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::arrays::Caller;
use crate::errors::IntoPyResult;
use crate::operator::PyOperator;
use crate::{guards, packet, results};

/// The results of an operator's Meta kernel for real arguments.
#[pyfunction]
#[pyo3(signature = (op, args, kwargs))]
pub(crate) fn _infer_meta<'py>(
    op: &Bound<'py, PyAny>,
    args: &Bound<'py, PyTuple>,
    kwargs: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = op.py();
    let operator = packet::overload_for(keyfold::dispatcher(), op, args, Some(kwargs))?;
    let operator = operator.get();
    let result = operator.with_arguments(args, Some(kwargs), |values| {
        guards::in_context(py, || meta::infer(&operator.operator, values))
    })?;
    results::value_to_py(py, result?.py(py)?, &[], Caller::TENSOR)
}

/// The overload that a call with these arguments means.
#[pyfunction]
#[pyo3(signature = (op, args, kwargs))]
pub(crate) fn _overload_for<'py>(
    op: &Bound<'py, PyAny>,
    args: &Bound<'py, PyTuple>,
    kwargs: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyOperator>> {
    let dispatcher = keyfold::dispatcher();
    // Where none fits, the default one: what is done with it says why it doesn't.
    packet::overload_for(dispatcher, op, args, Some(kwargs))
        .or_else(|error| packet::operator_from(dispatcher, op).map_err(|_| error))
}

/// A name, whether it carries tensors, its alias sets, and whether it is written to.
type Part = (String, bool, Vec<String>, bool);

fn part(name: &str, ty: &Type, alias: Option<&Alias>) -> Part {
    let sets = alias.map_or(Vec::new(), |alias| {
        // An argument may join a set while the operator runs: `(a -> *)`.
        alias.sets.iter().chain(&alias.after).cloned().collect()
    });
    (name.to_owned(), ty.carries_tensors(), sets, alias.is_some_and(|alias| alias.write))
}

/// What an operator's schema says of arguments and results, in declaration order.
#[pyfunction]
pub(crate) fn _schema_parts(op: &Bound<'_, PyOperator>) -> (Vec<Part>, Vec<Part>) {
    let schema = op.get().operator.schema();
    let arguments = schema.arguments.iter();
    let returns = schema.returns.iter();
    (
        arguments.map(|a| part(&a.name, &a.ty, a.alias.as_ref())).collect(),
        returns.map(|r| part(r.name.as_deref().unwrap_or(""), &r.ty, r.alias.as_ref())).collect(),
    )
}
