//! Python's operators of quotients rounded down (`//`, `%`, `divmod`) and of bits (`<<`, `>>`, `&`,
//! `|`, `^`, `~`) on `keyfold.Tensor`.

use pyo3::prelude::*;

use crate::classes::aten;
use crate::classes::tensor::arithmetic::{before_write, binary, in_place, reflected};
use crate::marshal::tensor::PyTensor;

type Any<'py> = Bound<'py, PyAny>;

/// The pair that `divmod` gives; `NotImplemented` where the quotient is that.
fn both<'py>(quotient: Any<'py>, remainder: Any<'py>) -> PyResult<Any<'py>> {
    let py = quotient.py();
    if quotient.is(py.NotImplemented()) {
        return Ok(quotient);
    }
    Ok((quotient, remainder).into_pyobject(py)?.into_any())
}

#[pymethods]
impl PyTensor {
    fn __floordiv__<'py>(slf: &Bound<'py, Self>, other: &Any<'py>) -> PyResult<Any<'py>> {
        binary(slf, other, &aten::FLOOR_DIVIDE)
    }

    fn __rfloordiv__<'py>(slf: &Bound<'py, Self>, other: &Any<'py>) -> PyResult<Any<'py>> {
        reflected(slf, other, &aten::FLOOR_DIVIDE, &aten::RFLOOR_DIVIDE)
    }

    fn __ifloordiv__<'py>(slf: &Bound<'py, Self>, other: &Any<'py>) -> PyResult<()> {
        in_place(slf, other, "//=", binary(&before_write(slf, other)?, other, &aten::FLOOR_DIVIDE)?)
    }

    fn __mod__<'py>(slf: &Bound<'py, Self>, other: &Any<'py>) -> PyResult<Any<'py>> {
        binary(slf, other, &aten::REMAINDER)
    }

    fn __rmod__<'py>(slf: &Bound<'py, Self>, other: &Any<'py>) -> PyResult<Any<'py>> {
        reflected(slf, other, &aten::REMAINDER, &aten::RREMAINDER)
    }

    fn __imod__<'py>(slf: &Bound<'py, Self>, other: &Any<'py>) -> PyResult<()> {
        in_place(slf, other, "%=", binary(&before_write(slf, other)?, other, &aten::REMAINDER)?)
    }

    fn __divmod__<'py>(slf: &Bound<'py, Self>, other: &Any<'py>) -> PyResult<Any<'py>> {
        both(Self::__floordiv__(slf, other)?, Self::__mod__(slf, other)?)
    }

    fn __rdivmod__<'py>(slf: &Bound<'py, Self>, other: &Any<'py>) -> PyResult<Any<'py>> {
        both(Self::__rfloordiv__(slf, other)?, Self::__rmod__(slf, other)?)
    }

    fn __lshift__<'py>(slf: &Bound<'py, Self>, other: &Any<'py>) -> PyResult<Any<'py>> {
        binary(slf, other, &aten::LEFT_SHIFT)
    }

    fn __rlshift__<'py>(slf: &Bound<'py, Self>, other: &Any<'py>) -> PyResult<Any<'py>> {
        reflected(slf, other, &aten::LEFT_SHIFT, &aten::RLEFT_SHIFT)
    }

    fn __ilshift__<'py>(slf: &Bound<'py, Self>, other: &Any<'py>) -> PyResult<()> {
        in_place(slf, other, "<<=", binary(slf, other, &aten::LEFT_SHIFT)?)
    }

    fn __rshift__<'py>(slf: &Bound<'py, Self>, other: &Any<'py>) -> PyResult<Any<'py>> {
        binary(slf, other, &aten::RIGHT_SHIFT)
    }

    fn __rrshift__<'py>(slf: &Bound<'py, Self>, other: &Any<'py>) -> PyResult<Any<'py>> {
        reflected(slf, other, &aten::RIGHT_SHIFT, &aten::RRIGHT_SHIFT)
    }

    fn __irshift__<'py>(slf: &Bound<'py, Self>, other: &Any<'py>) -> PyResult<()> {
        in_place(slf, other, ">>=", binary(slf, other, &aten::RIGHT_SHIFT)?)
    }

    fn __and__<'py>(slf: &Bound<'py, Self>, other: &Any<'py>) -> PyResult<Any<'py>> {
        binary(slf, other, &aten::BITWISE_AND)
    }

    fn __rand__<'py>(slf: &Bound<'py, Self>, other: &Any<'py>) -> PyResult<Any<'py>> {
        reflected(slf, other, &aten::BITWISE_AND, &aten::BITWISE_AND.number)
    }

    fn __iand__<'py>(slf: &Bound<'py, Self>, other: &Any<'py>) -> PyResult<()> {
        in_place(slf, other, "&=", binary(slf, other, &aten::BITWISE_AND)?)
    }

    fn __or__<'py>(slf: &Bound<'py, Self>, other: &Any<'py>) -> PyResult<Any<'py>> {
        binary(slf, other, &aten::BITWISE_OR)
    }

    fn __ror__<'py>(slf: &Bound<'py, Self>, other: &Any<'py>) -> PyResult<Any<'py>> {
        reflected(slf, other, &aten::BITWISE_OR, &aten::BITWISE_OR.number)
    }

    fn __ior__<'py>(slf: &Bound<'py, Self>, other: &Any<'py>) -> PyResult<()> {
        in_place(slf, other, "|=", binary(slf, other, &aten::BITWISE_OR)?)
    }

    fn __xor__<'py>(slf: &Bound<'py, Self>, other: &Any<'py>) -> PyResult<Any<'py>> {
        binary(slf, other, &aten::BITWISE_XOR)
    }

    fn __rxor__<'py>(slf: &Bound<'py, Self>, other: &Any<'py>) -> PyResult<Any<'py>> {
        reflected(slf, other, &aten::BITWISE_XOR, &aten::BITWISE_XOR.number)
    }

    fn __ixor__<'py>(slf: &Bound<'py, Self>, other: &Any<'py>) -> PyResult<()> {
        in_place(slf, other, "^=", binary(slf, other, &aten::BITWISE_XOR)?)
    }

    fn __invert__<'py>(slf: &Bound<'py, Self>) -> PyResult<Any<'py>> {
        aten::BITWISE_NOT.call(slf.py(), (slf,))
    }
}
