//! `keyfold.infer_meta`: an operator's results without data.

use keyfold::layers::meta;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::call::operator::PyOperator;
use crate::call::{context, results};
use crate::classes::function::{self, OperatorCall, PyFunction};
use crate::classes::packet;
use crate::marshal::arrays::caller::Caller;
use crate::marshal::errors::IntoPyResult;

/// The results of an operator's Meta kernel for real arguments.
#[pyfunction]
#[pyo3(signature = (op, args, kwargs))]
pub(crate) fn _infer_meta<'py>(
    op: &Bound<'py, PyAny>,
    args: &Bound<'py, PyTuple>,
    kwargs: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = op.py();
    let dispatcher = keyfold::dispatcher();
    let (operator, args, kwargs) = function::resolved(dispatcher, op, args, Some(kwargs))?;
    let operator = operator.get();
    let result = operator.with_arguments(&args, kwargs.as_ref(), |values| {
        context::in_context(py, || meta::infer(&operator.operator, values))
    })?;
    results::value_to_py(py, result?.py(py)?, &[], Caller::TENSOR)
}

/// As [`_infer_meta`], and for each tensor among the results which tensor among the arguments it has its
/// memory from, and how many elements behind that one's first element it begins.
#[pyfunction]
#[pyo3(signature = (op, args, kwargs))]
pub(crate) fn _infer_meta_aliases<'py>(
    op: &Bound<'py, PyOperator>,
    args: &Bound<'py, PyTuple>,
    kwargs: &Bound<'py, PyDict>,
) -> PyResult<(Bound<'py, PyAny>, Vec<meta::Alias>)> {
    let (py, operator) = (op.py(), op.get());
    let result = operator.with_arguments(args, Some(kwargs), |values| {
        context::in_context(py, || meta::infer_aliases(&operator.operator, values))
    })?;
    let (result, aliases) = result?.py(py)?;
    Ok((results::value_to_py(py, result, &[], Caller::TENSOR)?, aliases))
}

/// The overload that a call with these arguments means, and the arguments as it takes them.
#[pyfunction]
#[pyo3(signature = (op, args, kwargs))]
pub(crate) fn _resolved<'py>(
    op: &Bound<'py, PyAny>,
    args: &Bound<'py, PyTuple>,
    kwargs: &Bound<'py, PyDict>,
) -> PyResult<OperatorCall<'py>> {
    let dispatcher = keyfold::dispatcher();
    function::resolved(dispatcher, op, args, Some(kwargs)).or_else(|error| {
        if op.is_instance_of::<PyFunction>() {
            return Err(error);
        }
        // Where none fits, the default one: its call says why it doesn't.
        let operator = packet::operator_from(dispatcher, op).map_err(|_| error)?;
        Ok((operator, args.clone(), Some(kwargs.clone())))
    })
}
