//! The built-in operators, for what `keyfold.Tensor` does itself: its arithmetic, indexing and
//! methods are calls of these like any other, so layers and user keys see them.

use std::borrow::Cow;

use pyo3::call::PyCallArgs;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::call::operator::{self, PyOperator};
use crate::marshal::errors::IntoPyResult;

/// One overload of a built-in operator, looked up when it is first used.
pub(crate) struct Aten {
    name: Cow<'static, str>,
    object: PyOnceLock<Py<PyOperator>>,
}

impl Aten {
    const fn new(name: &'static str) -> Self {
        Aten { name: Cow::Borrowed(name), object: PyOnceLock::new() }
    }

    /// The overload of this name.
    pub(crate) fn named(name: String) -> Self {
        Aten { name: Cow::Owned(name), object: PyOnceLock::new() }
    }

    /// The operator's object. It is kept: an operator that was removed says so when called.
    #[inline]
    pub(crate) fn object<'py>(&self, py: Python<'py>) -> PyResult<&Bound<'py, PyOperator>> {
        let object = self.object.get_or_try_init(py, || {
            let operator = keyfold::dispatcher().operator(&self.name).py(py)?;
            operator::object_of(py, &operator).map(Bound::unbind)
        })?;
        Ok(object.bind(py))
    }

    /// Calls the operator through the dispatcher.
    pub(crate) fn call<'py>(
        &self,
        py: Python<'py>,
        args: impl PyCallArgs<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.object(py)?.call1(args)
    }
}

pub(crate) static BITWISE_NOT: Aten = Aten::new("aten::bitwise_not");
pub(crate) static MATMUL: Aten = Aten::new("aten::matmul");
pub(crate) static NEG: Aten = Aten::new("aten::neg");
pub(crate) static ABS: Aten = Aten::new("aten::abs");
pub(crate) static REAL: Aten = Aten::new("aten::real");
pub(crate) static IMAG: Aten = Aten::new("aten::imag");

pub(crate) static ANY: Aten = Aten::new("aten::any");
pub(crate) static RESHAPE: Aten = Aten::new("aten::reshape");
pub(crate) static TRANSPOSE: Aten = Aten::new("aten::transpose");
pub(crate) static PERMUTE: Aten = Aten::new("aten::permute");
pub(crate) static UNSQUEEZE: Aten = Aten::new("aten::unsqueeze");
pub(crate) static SQUEEZE: Aten = Aten::new("aten::squeeze.dim");
pub(crate) static SQUEEZE_ALL: Aten = Aten::new("aten::squeeze");
pub(crate) static EXPAND: Aten = Aten::new("aten::expand");
pub(crate) static FLIP: Aten = Aten::new("aten::flip");
pub(crate) static CONTIGUOUS: Aten = Aten::new("aten::contiguous");
pub(crate) static ALIAS: Aten = Aten::new("aten::alias");
pub(crate) static DETACH: Aten = Aten::new("aten::detach");
pub(crate) static CLONE: Aten = Aten::new("aten::clone");
pub(crate) static TO: Aten = Aten::new("aten::to");
pub(crate) static TO_DEVICE: Aten = Aten::new("aten::to.device");

pub(crate) static SELECT: Aten = Aten::new("aten::select.int");
pub(crate) static SLICE: Aten = Aten::new("aten::slice.Tensor");
pub(crate) static INDEX: Aten = Aten::new("aten::index.Tensor");
pub(crate) static INDEX_PUT: Aten = Aten::new("aten::index_put");
pub(crate) static INDEX_PUT_IN_PLACE: Aten = Aten::new("aten::index_put_");
pub(crate) static SELECT_SCATTER: Aten = Aten::new("aten::select_scatter");
pub(crate) static SLICE_SCATTER: Aten = Aten::new("aten::slice_scatter");
pub(crate) static WHERE: Aten = Aten::new("aten::where");
pub(crate) static COPY: Aten = Aten::new("aten::copy_");
pub(crate) static FILL: Aten = Aten::new("aten::fill_.Scalar");
