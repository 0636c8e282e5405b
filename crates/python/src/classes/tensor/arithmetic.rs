//! The operators of Python on `keyfold.Tensor`: each is a call of a built-in operator. Those of
//! quotients rounded down and of bits are in `whole_numbers`.
//!
//! Python's numbers are weak (the tensor's dtype stays where it can hold them), NumPy's scalars and
//! arrays count as tensors. Whatever else stands beside a tensor gets to try its own method.

use keyfold_core::ErrorKind;
use keyfold_dispatch::DispatchKey;
use keyfold_layers::autograd;
use pyo3::basic::CompareOp;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyComplex, PyFloat, PyInt};

use crate::classes::aten::{self, Aten, Pair};
use crate::marshal::arrays;
use crate::marshal::errors::{IntoPyResult, error};
use crate::marshal::tensor::PyTensor;

type Any<'py> = Bound<'py, PyAny>;

const AUTOGRAD: DispatchKey = DispatchKey::Autograd;

/// What stands beside a tensor.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operand {
    /// Something that counts as a tensor, or an array that is refused: the operator says why.
    Array,
    /// A number of Python's.
    Number,
    Other,
}

/// Which of these an object is.
pub(crate) fn operand(object: &Any<'_>) -> Operand {
    if object.is_exact_instance_of::<PyFloat>()
        || object.is_exact_instance_of::<PyInt>()
        || object.is_exact_instance_of::<PyBool>()
        || object.is_exact_instance_of::<PyComplex>()
    {
        return Operand::Number;
    }
    match arrays::look(object) {
        Ok(Some(_)) | Err(_) => Operand::Array,
        Ok(None) if is_number(object) => Operand::Number,
        Ok(None) => Operand::Other,
    }
}

/// A number of a subclass, an enum's member say.
fn is_number(object: &Any<'_>) -> bool {
    object.is_instance_of::<PyInt>()
        || object.is_instance_of::<PyFloat>()
        || object.is_instance_of::<PyComplex>()
}

fn not_implemented(py: Python<'_>) -> Any<'_> {
    py.NotImplemented().into_bound(py)
}

/// `tensor (op) other`.
#[inline]
pub(crate) fn binary<'py>(
    slf: &Bound<'py, PyTensor>,
    other: &Any<'py>,
    op: &Pair,
) -> PyResult<Any<'py>> {
    match operand(other) {
        Operand::Array => op.tensors.call(slf.py(), (slf, other)),
        Operand::Number => op.number.call(slf.py(), (slf, other)),
        Operand::Other => Ok(not_implemented(slf.py())),
    }
}

/// `other (op) tensor`; `number` is the overload with the number on the left.
#[inline]
pub(crate) fn reflected<'py>(
    slf: &Bound<'py, PyTensor>,
    other: &Any<'py>,
    op: &Pair,
    number: &Aten,
) -> PyResult<Any<'py>> {
    match operand(other) {
        Operand::Array => op.tensors.call(slf.py(), (other, slf)),
        Operand::Number => number.call(slf.py(), (slf, other)),
        Operand::Other => Ok(not_implemented(slf.py())),
    }
}

/// The tensor of `tensor (op)= other` as the derivative reads it: where gradients are recorded, a
/// copy, since the write replaces its elements.
pub(crate) fn before_write<'py>(
    slf: &Bound<'py, PyTensor>,
    other: &Any<'_>,
) -> PyResult<Bound<'py, PyTensor>> {
    if !requires_grad_here(slf, other)? {
        return Ok(slf.clone());
    }
    Ok(aten::CLONE.call(slf.py(), (slf,))?.cast_into()?)
}

/// Whether a call with these is recorded for gradients.
pub(crate) fn requires_grad_here(slf: &Bound<'_, PyTensor>, other: &Any<'_>) -> PyResult<bool> {
    let py = slf.py();
    let wanted = slf.get().tensor.requires_grad()
        || arrays::look(other).py(py)?.is_some_and(|(tag, _)| tag.keys().contains(AUTOGRAD));
    Ok(wanted && crate::call::context::in_context(py, autograd::is_enabled)?)
}

/// `tensor (op)= other`: `result`, which `tensor (op) other` gave, is written into the tensor's
/// memory, which must have room for its shape, its kind of numbers, and be writable.
pub(crate) fn in_place(
    slf: &Bound<'_, PyTensor>,
    other: &Any<'_>,
    sign: &str,
    result: Any<'_>,
) -> PyResult<()> {
    let py = slf.py();
    if result.is(py.NotImplemented()) {
        let name = other.get_type().fully_qualified_name()?;
        let what = match sign {
            "@=" => "a tensor or an array",
            _ => "a tensor, an array or a number",
        };
        let message = format!("{sign} takes {what} on the right, not {name}");
        return Err(error(py, ErrorKind::Binding, message));
    }
    aten::COPY.call(py, (slf, result)).map(drop)
}

/// An error if a product hasn't the shape of its left operand: written into that, it would be
/// repeated.
fn check_product(slf: &Bound<'_, PyTensor>, result: &Any<'_>) -> PyResult<()> {
    let py = slf.py();
    let Ok(product) = arrays::view(result) else { return Ok(()) };
    let own = slf.get().tensor.shape();
    if product.shape() == own {
        return Ok(());
    }
    let message = format!(
        "@= writes the product into its left side: that has shape {own:?}, and the product {:?}; \
         write x = x @ y",
        product.shape()
    );
    Err(error(py, ErrorKind::Shape, message))
}

/// Refuses the third argument of Python's `pow`.
fn no_modulo(py: Python<'_>, modulo: Option<&Any<'_>>) -> PyResult<()> {
    if modulo.is_none() {
        return Ok(());
    }
    let message = "pow() of a tensor takes no modulo".to_owned();
    Err(error(py, ErrorKind::Binding, message))
}

#[pymethods]
impl PyTensor {
    /// Puts keyfold's methods before those of NumPy's arrays.
    #[classattr]
    fn __array_priority__() -> f64 {
        1000.0
    }

    fn __add__<'py>(slf: &Bound<'py, Self>, other: &Any<'py>) -> PyResult<Any<'py>> {
        binary(slf, other, &aten::ADD)
    }

    fn __radd__<'py>(slf: &Bound<'py, Self>, other: &Any<'py>) -> PyResult<Any<'py>> {
        reflected(slf, other, &aten::ADD, &aten::ADD.number)
    }

    fn __iadd__(slf: &Bound<'_, Self>, other: &Any<'_>) -> PyResult<()> {
        in_place(slf, other, "+=", binary(slf, other, &aten::ADD)?)
    }

    fn __sub__<'py>(slf: &Bound<'py, Self>, other: &Any<'py>) -> PyResult<Any<'py>> {
        binary(slf, other, &aten::SUB)
    }

    fn __rsub__<'py>(slf: &Bound<'py, Self>, other: &Any<'py>) -> PyResult<Any<'py>> {
        reflected(slf, other, &aten::SUB, &aten::RSUB)
    }

    fn __isub__(slf: &Bound<'_, Self>, other: &Any<'_>) -> PyResult<()> {
        in_place(slf, other, "-=", binary(slf, other, &aten::SUB)?)
    }

    fn __mul__<'py>(slf: &Bound<'py, Self>, other: &Any<'py>) -> PyResult<Any<'py>> {
        binary(slf, other, &aten::MUL)
    }

    fn __rmul__<'py>(slf: &Bound<'py, Self>, other: &Any<'py>) -> PyResult<Any<'py>> {
        reflected(slf, other, &aten::MUL, &aten::MUL.number)
    }

    fn __imul__(slf: &Bound<'_, Self>, other: &Any<'_>) -> PyResult<()> {
        // The derivative of a product with a number reads the number alone.
        let before = match operand(other) {
            Operand::Number => slf.clone(),
            _ => before_write(slf, other)?,
        };
        in_place(slf, other, "*=", binary(&before, other, &aten::MUL)?)
    }

    fn __truediv__<'py>(slf: &Bound<'py, Self>, other: &Any<'py>) -> PyResult<Any<'py>> {
        binary(slf, other, &aten::DIV)
    }

    fn __rtruediv__<'py>(slf: &Bound<'py, Self>, other: &Any<'py>) -> PyResult<Any<'py>> {
        reflected(slf, other, &aten::DIV, &aten::RDIV)
    }

    fn __itruediv__(slf: &Bound<'_, Self>, other: &Any<'_>) -> PyResult<()> {
        in_place(slf, other, "/=", binary(slf, other, &aten::DIV)?)
    }

    fn __pow__<'py>(
        slf: &Bound<'py, Self>,
        other: &Any<'py>,
        modulo: Option<&Any<'py>>,
    ) -> PyResult<Any<'py>> {
        no_modulo(slf.py(), modulo)?;
        binary(slf, other, &aten::POW)
    }

    fn __rpow__<'py>(
        slf: &Bound<'py, Self>,
        other: &Any<'py>,
        modulo: Option<&Any<'py>>,
    ) -> PyResult<Any<'py>> {
        no_modulo(slf.py(), modulo)?;
        reflected(slf, other, &aten::POW, &aten::RPOW)
    }

    fn __ipow__(slf: &Bound<'_, Self>, other: &Any<'_>, modulo: Option<&Any<'_>>) -> PyResult<()> {
        in_place(slf, other, "**=", Self::__pow__(&before_write(slf, other)?, other, modulo)?)
    }

    fn __matmul__<'py>(slf: &Bound<'py, Self>, other: &Any<'py>) -> PyResult<Any<'py>> {
        match operand(other) {
            Operand::Array => aten::MATMUL.call(slf.py(), (slf, other)),
            _ => Ok(not_implemented(slf.py())),
        }
    }

    fn __rmatmul__<'py>(slf: &Bound<'py, Self>, other: &Any<'py>) -> PyResult<Any<'py>> {
        match operand(other) {
            Operand::Array => aten::MATMUL.call(slf.py(), (other, slf)),
            _ => Ok(not_implemented(slf.py())),
        }
    }

    fn __imatmul__(slf: &Bound<'_, Self>, other: &Any<'_>) -> PyResult<()> {
        let product = Self::__matmul__(&before_write(slf, other)?, other)?;
        check_product(slf, &product)?;
        in_place(slf, other, "@=", product)
    }

    fn __neg__<'py>(slf: &Bound<'py, Self>) -> PyResult<Any<'py>> {
        aten::NEG.call(slf.py(), (slf,))
    }

    fn __pos__<'py>(slf: &Bound<'py, Self>) -> PyResult<Any<'py>> {
        aten::CLONE.call(slf.py(), (slf,))
    }

    fn __abs__<'py>(slf: &Bound<'py, Self>) -> PyResult<Any<'py>> {
        aten::ABS.call(slf.py(), (slf,))
    }

    fn __richcmp__<'py>(
        slf: &Bound<'py, Self>,
        other: &Any<'py>,
        op: CompareOp,
    ) -> PyResult<Any<'py>> {
        let op = match op {
            CompareOp::Eq => &aten::EQ,
            CompareOp::Ne => &aten::NE,
            CompareOp::Lt => &aten::LT,
            CompareOp::Le => &aten::LE,
            CompareOp::Gt => &aten::GT,
            CompareOp::Ge => &aten::GE,
        };
        binary(slf, other, op)
    }
}
