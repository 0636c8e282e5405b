//! `keyfold.Expression` and `keyfold.elementwise`: the language is in `keyfold_expr`, what becomes of
//! an operator in `keyfold_ops::pointwise`.

mod arguments;
mod call;
pub(crate) mod object;

use std::hash::{DefaultHasher, Hash, Hasher};

use keyfold_core::{DType, DTypeKind, ErrorKind};
use keyfold_dispatch::schema::Schema;
use keyfold_dispatch::{Override, Provenance};
use keyfold_expr::Lowered;
use keyfold_expr::source::{self, Layout, Options, Target};
use keyfold_ops::pointwise::{self, from_text};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use self::object::PyExpression;
use crate::call::operator::with_c_arguments;
use crate::classes::dispatcher::PyDispatcher;
use crate::classes::handle::PyHandle;
use crate::marshal::argument::Text;
use crate::marshal::dtype::{self, PyDType, dtype_from};
use crate::marshal::errors::{IntoPyResult, error};

impl PyExpression {
    /// The place of an input.
    fn place(&self, py: Python<'_>, name: &str) -> PyResult<usize> {
        self.expr.inputs().iter().position(|input| input.name == name).ok_or_else(|| {
            let names: Vec<_> = self.expr.inputs().iter().map(|i| i.name.as_str()).collect();
            let message =
                format!("there is no input '{name}'; the inputs are {}", names.join(", "));
            self.error(py, ErrorKind::Value, &message)
        })
    }

    /// The steps for inputs of these dtypes.
    fn lowered(
        &self,
        py: Python<'_>,
        dtypes: &Bound<'_, PyAny>,
        params: Option<&Bound<'_, PyDict>>,
        out: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Lowered> {
        let inputs = self.expr.inputs();
        let mut chosen: Vec<DType> = Vec::with_capacity(inputs.len());
        if let Ok(by_name) = dtypes.cast::<PyDict>() {
            for name in by_name.keys() {
                self.place(py, &name.extract::<String>()?)?;
            }
            for input in inputs {
                let Some(dtype) = by_name.get_item(&input.name)? else {
                    let message = format!("the dtype of input '{}' isn't given", input.name);
                    return Err(self.error(py, ErrorKind::Binding, &message));
                };
                chosen.push(dtype_from(&dtype)?);
            }
        } else {
            let dtype = dtype_from(dtypes)?;
            chosen.resize(inputs.len(), dtype);
        }
        let mut kinds = Vec::new();
        for name in self.expr.params() {
            let given = params.map(|params| params.get_item(name)).transpose()?.flatten();
            kinds.push(given.map_or(Ok(DTypeKind::Float), |given| kind_of(&given))?);
        }
        let out = out.map(dtype_from).transpose()?;
        Lowered::new(&self.expr, &chosen, &kinds, out).py(py)
    }

    /// The options of a kernel as source text.
    fn options(
        &self,
        py: Python<'_>,
        target: Target,
        layout: &str,
        name: &str,
        vector: Option<u32>,
        in_place: Option<&str>,
    ) -> PyResult<Options> {
        let layout = match layout {
            "contiguous" => Layout::Contiguous,
            "strided" => Layout::Strided,
            other => {
                let message = format!("layout is 'contiguous' or 'strided', not '{other}'");
                return Err(self.error(py, ErrorKind::Value, &message));
            }
        };
        let in_place = in_place.map(|name| self.place(py, name)).transpose()?;
        Ok(Options {
            target,
            layout,
            name: name.to_owned(),
            vector,
            in_place: in_place.map(|at| at as u32),
            ..Options::new(&self.expr)
        })
    }
}

/// The kind of number that a Python type, or a number, is.
fn kind_of(given: &Bound<'_, PyAny>) -> PyResult<DTypeKind> {
    let class = match given.cast::<pyo3::types::PyType>() {
        Ok(class) => class.clone(),
        Err(_) => given.get_type(),
    };
    let name = class.name()?.to_string();
    match name.as_str() {
        "bool" => Ok(DTypeKind::Bool),
        "int" => Ok(DTypeKind::Int),
        "float" => Ok(DTypeKind::Float),
        "complex" => Ok(DTypeKind::Complex),
        _ => {
            let message = format!("a parameter is bool, int, float or complex, and not {name}");
            Err(error(given.py(), ErrorKind::Binding, message))
        }
    }
}

#[pymethods]
impl PyExpression {
    #[new]
    #[pyo3(signature = (text, *, inputs=None, params=None))]
    fn py_new(
        py: Python<'_>,
        text: &Bound<'_, PyAny>,
        inputs: Option<&Bound<'_, PyAny>>,
        params: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let text = arguments::text("argument 'text'", text, "\"log1p(exp(x))\"")?;
        let inputs = inputs.map(|inputs| arguments::names("inputs", Some(inputs))).transpose()?;
        let params = arguments::names("params", params)?;
        Ok(PyExpression::new(py, arguments::parse(py, &text, inputs, params)?))
    }

    /// The names that stand for arrays, in order.
    #[getter]
    fn inputs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.expr.inputs().iter().map(|input| input.name.as_str()))
    }

    /// The names that stand for numbers.
    #[getter]
    fn params<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.expr.params())
    }

    /// By input: how many indices it is read at, None for element by element.
    #[getter]
    fn ranks<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let ranks = PyDict::new(py);
        for input in self.expr.inputs() {
            ranks.set_item(&input.name, input.rank)?;
        }
        Ok(ranks)
    }

    /// The partial derivative with respect to an input, an expression of the same arguments.
    ///
    /// Raises:
    ///     keyfold.NotSupportedError: the input is read at computed indices.
    fn derivative(&self, py: Python<'_>, input: &Bound<'_, PyAny>) -> PyResult<Self> {
        let input = arguments::text("derivative(): argument 'input'", input, "\"x\"")?;
        let place = self.place(py, &input)?;
        Ok(PyExpression::new(py, self.expr.derivative(place).py(py)?))
    }

    /// The dtype of the result for inputs of these dtypes: one for all, or a dict by name.
    ///
    /// Parameters are floats unless `params` says otherwise: `{"n": int}`.
    #[pyo3(signature = (dtypes, *, params=None))]
    fn result_dtype<'py>(
        &self,
        py: Python<'py>,
        dtypes: &Bound<'py, PyAny>,
        params: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyDType>> {
        dtype::object(py, self.lowered(py, dtypes, params, None)?.result())
    }

    /// A CUDA C kernel that computes the expression: see docs/cuda.md for its parameters.
    ///
    /// Args:
    ///     dtypes: the inputs' dtypes, one for all or a dict by name.
    ///     out: the dtype of the result; the one that follows by default.
    ///     layout: "contiguous", or "strided" for views and broadcasting.
    ///     name: the kernel's name.
    ///     params: the kinds of parameters that aren't floats: `{"n": int}`.
    ///     vector: elements per vector, for a contiguous kernel; chosen by default.
    ///     in_place: the input that the result replaces.
    #[pyo3(signature = (
        dtypes, *, out=None, layout="contiguous", name="elementwise", params=None, vector=None,
        in_place=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "all but the first by keyword")]
    fn cuda(
        &self,
        py: Python<'_>,
        dtypes: &Bound<'_, PyAny>,
        out: Option<&Bound<'_, PyAny>>,
        layout: &str,
        name: &str,
        params: Option<&Bound<'_, PyDict>>,
        vector: Option<u32>,
        in_place: Option<&str>,
    ) -> PyResult<String> {
        let options = self.options(py, Target::CudaC, layout, name, vector, in_place)?;
        let lowered = self.lowered(py, dtypes, params, out)?;
        Ok(source::emit(&lowered, &options).py(py)?.text)
    }

    /// An OpenCL C kernel that computes the expression: see docs/opencl.md for its parameters.
    ///
    /// Args:
    ///     dtypes: the inputs' dtypes, one for all or a dict by name.
    ///     out: the dtype of the result; the one that follows by default.
    ///     layout: "contiguous", or "strided" for views and broadcasting.
    ///     name: the kernel's name.
    ///     params: the kinds of parameters that aren't floats: `{"n": int}`.
    ///     vector: elements per vector, for a contiguous kernel; chosen by default.
    ///     in_place: the input that the result replaces.
    #[pyo3(signature = (
        dtypes, *, out=None, layout="contiguous", name="elementwise", params=None, vector=None,
        in_place=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "all but the first by keyword")]
    fn opencl(
        &self,
        py: Python<'_>,
        dtypes: &Bound<'_, PyAny>,
        out: Option<&Bound<'_, PyAny>>,
        layout: &str,
        name: &str,
        params: Option<&Bound<'_, PyDict>>,
        vector: Option<u32>,
        in_place: Option<&str>,
    ) -> PyResult<String> {
        let options = self.options(py, Target::OpenClC, layout, name, vector, in_place)?;
        let lowered = self.lowered(py, dtypes, params, out)?;
        Ok(source::emit(&lowered, &options).py(py)?.text)
    }

    /// Computes the expression for arrays, one for each input, and numbers, by name.
    ///
    /// Arrays broadcast; results are of the caller's own library. All layers work: it is a call of
    /// the operator `keyfold::elementwise`.
    ///
    /// Args:
    ///     arrays: one for each name in `inputs`.
    ///     out: an array that takes the result, and is returned.
    ///     numbers: one for each name in `params`.
    ///     shape: the result's shape, where no input is read element by element.
    #[pyo3(signature = (*arrays, **numbers))]
    fn __call__<'py>(
        &self,
        py: Python<'py>,
        arrays: &Bound<'py, PyTuple>,
        numbers: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        with_c_arguments(arrays, numbers, |all, nargs, names| {
            // SAFETY: live objects held by the tuple and dict; a new reference comes back.
            unsafe {
                let result = self.call_c(py, all.as_ptr(), nargs, names)?;
                Ok(Bound::from_owned_ptr(py, result))
            }
        })
    }

    fn __str__(&self) -> String {
        self.expr.to_string()
    }

    fn __repr__(&self) -> String {
        format!("<keyfold.Expression {}>", self.text)
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<PyExpression>().is_ok_and(|other| other.get().expr == self.expr)
    }

    fn __hash__(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.expr.hash(&mut hasher);
        hasher.finish()
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, (String,))> {
        let rebuild = slf.py().import("keyfold._core")?.getattr("_rebuild_expression")?;
        Ok((rebuild, (slf.get().text.clone(),)))
    }
}

/// Unpickles an expression.
#[pyfunction]
pub(crate) fn _rebuild_expression(py: Python<'_>, text: &str) -> PyResult<PyExpression> {
    Ok(PyExpression::new(py, from_text(text).py(py)?))
}

/// Registers kernels, derivative and batching rule made of an expression, for an operator of a
/// dispatcher; `file` and `line` are the caller's.
#[pyfunction]
pub(crate) fn _elementwise(
    py: Python<'_>,
    dispatcher: &Bound<'_, PyDispatcher>,
    operator: Text,
    text: Text,
    r#override: Text,
    file: String,
    line: u32,
) -> PyResult<(PyExpression, Vec<PyHandle>)> {
    let mode = r#override.parse::<Override>().py(py)?;
    let provenance = Provenance {
        language: "expression",
        name: operator.to_string(),
        // The same text again is the same kernel.
        module: Some(text.to_string()),
        file,
        line,
        named: true,
        instance: None,
    };
    let dispatcher = dispatcher.get();
    let done =
        pointwise::implement(&dispatcher.dispatcher, &operator, &text, mode, Some(&provenance));
    let done = done.py(py)?;
    let handles = done.handles.into_iter().map(|handle| dispatcher.handle(py, handle)).collect();
    Ok((PyExpression::new(py, done.expression.expr().clone()), handles))
}

/// The schema of the overload that writes into a tensor of the caller's; None where there is none.
#[pyfunction]
pub(crate) fn _out_schema(py: Python<'_>, schema: Text) -> PyResult<Option<String>> {
    let schema = Schema::parse(&schema).py(py)?;
    Ok(keyfold_ops::pointwise::out_schema(&schema).map(|schema| schema.to_string()))
}
