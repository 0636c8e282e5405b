//! The operators of Python on `keyfold.Tensor`: each is a call of a built-in operator, the one whose
//! expression has the same sign.
//!
//! Python's numbers are weak (the tensor's dtype stays where it can hold them), NumPy's scalars and
//! arrays count as tensors. Whatever else stands beside a tensor gets to try its own method.

use keyfold_core::ErrorKind;
use keyfold_dispatch::DispatchKey;
use keyfold_layers::autograd;
use pyo3::basic::CompareOp;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyComplex, PyFloat, PyInt};

use crate::call::operator::{self, PyOperator};
use crate::classes::aten;
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

/// One of Python's operators on two operands: the overloads of the rows with this sign.
pub(crate) struct Sign {
    text: &'static str,
    overloads: PyOnceLock<Overloads>,
}

struct Overloads {
    tensors: Overload,
    number: Overload,
    /// A number and a tensor, in this order.
    number_first: Overload,
}

struct Overload {
    operator: Py<PyOperator>,
    /// Whether the derivative reads the left operand.
    saves_left: bool,
}

impl Overload {
    fn call<'py>(&self, left: &Any<'py>, right: &Any<'py>) -> PyResult<Any<'py>> {
        self.operator.bind(left.py()).call1((left, right))
    }
}

impl Sign {
    const fn new(text: &'static str) -> Self {
        Sign { text, overloads: PyOnceLock::new() }
    }

    fn overloads(&self, py: Python<'_>) -> PyResult<&Overloads> {
        self.overloads.get_or_try_init(py, || {
            let tensors = self.overload(py, false, false)?;
            let number = self.overload(py, true, false)?;
            // Where the order makes no difference there is no overload of its own.
            let number_first =
                self.overload(py, true, true).or_else(|_| self.overload(py, true, false))?;
            Ok(Overloads { tensors, number, number_first })
        })
    }

    #[cold]
    fn overload(
        &self,
        py: Python<'_>,
        takes_number: bool,
        is_reflected: bool,
    ) -> PyResult<Overload> {
        let signs = keyfold_ops::rows().iter().filter_map(|row| Some((row, row.sign()?)));
        let mut fitting = signs.filter(|(_, sign)| {
            (sign.text, sign.takes_number, sign.is_reflected)
                == (self.text, takes_number, is_reflected)
        });
        let Some((row, sign)) = fitting.next() else {
            let message = format!("no operator computes {}", self.text);
            return Err(error(py, ErrorKind::UnknownOperator, message));
        };
        let operator = keyfold::dispatcher().operator(&row.schema().name.to_string()).py(py)?;
        let operator = operator::object_of(py, &operator)?.unbind();
        Ok(Overload { operator, saves_left: sign.saves_self })
    }

    /// `tensor (sign) other`.
    #[inline]
    pub(crate) fn call<'py>(
        &self,
        slf: &Bound<'py, PyTensor>,
        other: &Any<'py>,
    ) -> PyResult<Any<'py>> {
        let overloads = self.overloads(slf.py())?;
        match operand(other) {
            Operand::Array => overloads.tensors.call(slf, other),
            Operand::Number => overloads.number.call(slf, other),
            Operand::Other => Ok(not_implemented(slf.py())),
        }
    }

    /// `other (sign) tensor`.
    #[inline]
    fn reflected<'py>(&self, slf: &Bound<'py, PyTensor>, other: &Any<'py>) -> PyResult<Any<'py>> {
        let overloads = self.overloads(slf.py())?;
        match operand(other) {
            Operand::Array => overloads.tensors.call(other, slf),
            Operand::Number => overloads.number_first.call(slf, other),
            Operand::Other => Ok(not_implemented(slf.py())),
        }
    }

    /// `tensor (sign)= other`: the result is written into the tensor's memory, which must have room for its
    /// shape, its kind of numbers, and be writable.
    fn in_place<'py>(&self, slf: &Bound<'py, PyTensor>, other: &Any<'py>) -> PyResult<()> {
        let overloads = self.overloads(slf.py())?;
        let overload = match operand(other) {
            Operand::Array => &overloads.tensors,
            Operand::Number => &overloads.number,
            Operand::Other => {
                return Err(no_operand(self.text, other, "a tensor, an array or a number"));
            }
        };
        let result = match overload.saves_left {
            true => overload.call(&before_write(slf, other)?, other)?,
            false => overload.call(slf, other)?,
        };
        write(slf, &result)
    }
}

/// The tensor of `tensor (sign)= other` as the derivative reads it: where gradients are recorded, a
/// copy, since the write replaces its elements.
fn before_write<'py>(slf: &Bound<'py, PyTensor>, other: &Any<'_>) -> PyResult<Any<'py>> {
    match requires_grad_here(slf, other)? {
        true => aten::CLONE.call(slf.py(), (slf,)),
        false => Ok(slf.clone().into_any()),
    }
}

/// Whether a call with these is recorded for gradients.
pub(crate) fn requires_grad_here(slf: &Bound<'_, PyTensor>, other: &Any<'_>) -> PyResult<bool> {
    let py = slf.py();
    let wanted = slf.get().tensor.requires_grad()
        || arrays::look(other).py(py)?.is_some_and(|(tag, _)| tag.keys().contains(AUTOGRAD));
    Ok(wanted && crate::call::context::in_context(py, autograd::is_enabled)?)
}

fn write<'py>(slf: &Bound<'py, PyTensor>, result: &Any<'py>) -> PyResult<()> {
    aten::COPY.call(slf.py(), (slf, result)).map(drop)
}

#[cold]
fn no_operand(sign: &str, other: &Any<'_>, wanted: &str) -> PyErr {
    match other.get_type().fully_qualified_name() {
        Ok(name) => {
            let message = format!("{sign}= takes {wanted} on the right, not {name}");
            error(other.py(), ErrorKind::Binding, message)
        }
        Err(raised) => raised,
    }
}

/// The pair that `divmod` gives; `NotImplemented` where the quotient is that.
fn both<'py>(quotient: Any<'py>, remainder: Any<'py>) -> PyResult<Any<'py>> {
    let py = quotient.py();
    if quotient.is(py.NotImplemented()) {
        return Ok(quotient);
    }
    Ok((quotient, remainder).into_pyobject(py)?.into_any())
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

macro_rules! signs {
    // Python's operators on two operands, with the methods for each, which have to be functions of these
    // names.
    ($($sign:ident $text:literal $method:ident $reflected:ident $in_place:ident;)*) => {
        $(static $sign: Sign = Sign::new($text);)*

        #[allow(unsafe_op_in_unsafe_fn, reason = "PyO3's code, which here counts as written by hand")]
        mod methods {
            use super::*;

        #[pymethods]
        impl PyTensor {$(
            fn $method<'py>(slf: &Bound<'py, Self>, other: &Any<'py>) -> PyResult<Any<'py>> {
                $sign.call(slf, other)
            }

            fn $reflected<'py>(slf: &Bound<'py, Self>, other: &Any<'py>) -> PyResult<Any<'py>> {
                $sign.reflected(slf, other)
            }

            fn $in_place(slf: &Bound<'_, Self>, other: &Any<'_>) -> PyResult<()> {
                $sign.in_place(slf, other)
            }
        )*}
        }
    };
}

signs! {
    ADD "+" __add__ __radd__ __iadd__;
    SUB "-" __sub__ __rsub__ __isub__;
    MUL "*" __mul__ __rmul__ __imul__;
    DIV "/" __truediv__ __rtruediv__ __itruediv__;
    FLOOR_DIVIDE "//" __floordiv__ __rfloordiv__ __ifloordiv__;
    REMAINDER "%" __mod__ __rmod__ __imod__;
    LEFT_SHIFT "<<" __lshift__ __rlshift__ __ilshift__;
    RIGHT_SHIFT ">>" __rshift__ __rrshift__ __irshift__;
    AND "&" __and__ __rand__ __iand__;
    OR "|" __or__ __ror__ __ior__;
    XOR "^" __xor__ __rxor__ __ixor__;
}

static POW: Sign = Sign::new("**");
pub(crate) static EQ: Sign = Sign::new("==");
static NE: Sign = Sign::new("!=");
static LT: Sign = Sign::new("<");
static LE: Sign = Sign::new("<=");
static GT: Sign = Sign::new(">");
static GE: Sign = Sign::new(">=");

#[pymethods]
impl PyTensor {
    /// Puts keyfold's methods before those of NumPy's arrays.
    #[classattr]
    fn __array_priority__() -> f64 {
        1000.0
    }

    fn __divmod__<'py>(slf: &Bound<'py, Self>, other: &Any<'py>) -> PyResult<Any<'py>> {
        both(FLOOR_DIVIDE.call(slf, other)?, REMAINDER.call(slf, other)?)
    }

    fn __rdivmod__<'py>(slf: &Bound<'py, Self>, other: &Any<'py>) -> PyResult<Any<'py>> {
        both(FLOOR_DIVIDE.reflected(slf, other)?, REMAINDER.reflected(slf, other)?)
    }

    fn __pow__<'py>(
        slf: &Bound<'py, Self>,
        other: &Any<'py>,
        modulo: Option<&Any<'py>>,
    ) -> PyResult<Any<'py>> {
        no_modulo(slf.py(), modulo)?;
        POW.call(slf, other)
    }

    fn __rpow__<'py>(
        slf: &Bound<'py, Self>,
        other: &Any<'py>,
        modulo: Option<&Any<'py>>,
    ) -> PyResult<Any<'py>> {
        no_modulo(slf.py(), modulo)?;
        POW.reflected(slf, other)
    }

    fn __ipow__(slf: &Bound<'_, Self>, other: &Any<'_>, modulo: Option<&Any<'_>>) -> PyResult<()> {
        no_modulo(slf.py(), modulo)?;
        POW.in_place(slf, other)
    }

    /// Each element to the power of `exponent`: of a number, or of its partner in a tensor.
    fn pow<'py>(slf: &Bound<'py, Self>, exponent: &Any<'py>) -> PyResult<Any<'py>> {
        let overloads = POW.overloads(slf.py())?;
        match operand(exponent) {
            Operand::Number => overloads.number.call(slf, exponent),
            // The operator words the error where it is no array.
            _ => overloads.tensors.call(slf, exponent),
        }
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
        if operand(other) != Operand::Array {
            return Err(no_operand("@", other, "a tensor or an array"));
        }
        let product = aten::MATMUL.call(slf.py(), (before_write(slf, other)?, other))?;
        check_product(slf, &product)?;
        write(slf, &product)
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

    fn __invert__<'py>(slf: &Bound<'py, Self>) -> PyResult<Any<'py>> {
        aten::BITWISE_NOT.call(slf.py(), (slf,))
    }

    fn __richcmp__<'py>(
        slf: &Bound<'py, Self>,
        other: &Any<'py>,
        op: CompareOp,
    ) -> PyResult<Any<'py>> {
        let sign = match op {
            CompareOp::Eq => &EQ,
            CompareOp::Ne => &NE,
            CompareOp::Lt => &LT,
            CompareOp::Le => &LE,
            CompareOp::Gt => &GT,
            CompareOp::Ge => &GE,
        };
        sign.call(slf, other)
    }
}
