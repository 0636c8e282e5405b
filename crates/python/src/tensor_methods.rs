//! The methods of `keyfold.Tensor` that compute or change the shape: calls of built-in operators.

use keyfold_core::{ErrorKind, nearest};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyInt, PyList, PyTuple};

use crate::argument::Axis;
use crate::aten::{self, Aten};
use crate::tensor::{PyTensor, error};
use crate::tensor_ops::{Operand, operand};

type Any<'py> = Bound<'py, PyAny>;

/// `f(2, 3)` and `f((2, 3))` alike.
fn unpacked<'py>(args: &Bound<'py, PyTuple>) -> PyResult<Any<'py>> {
    if args.len() == 1 {
        let only = args.get_item(0)?;
        if only.is_instance_of::<PyTuple>() || only.is_instance_of::<PyList>() {
            return Ok(only);
        }
    }
    Ok(args.clone().into_any())
}

/// One axis as a list of axes.
fn axes<'py>(axis: Option<&Any<'py>>) -> PyResult<Option<Any<'py>>> {
    let Some(axis) = axis else { return Ok(None) };
    if axis.is_instance_of::<PyTuple>() || axis.is_instance_of::<PyList>() {
        return Ok(Some(axis.clone()));
    }
    Ok(Some(PyTuple::new(axis.py(), [axis])?.into_any()))
}

/// A reduction along axes, or of all elements.
fn reduced<'py>(
    slf: &Bound<'py, PyTensor>,
    op: &Aten,
    axis: Option<&Any<'py>>,
    keepdims: bool,
) -> PyResult<Any<'py>> {
    op.call(slf.py(), (slf, axes(axis)?, keepdims))
}

/// A reduction with a dtype of its own; `all` is the overload that reduces all elements.
fn reduced_as<'py>(
    slf: &Bound<'py, PyTensor>,
    (all, along): (&Aten, &Aten),
    axis: Option<&Any<'py>>,
    keepdims: bool,
    dtype: Option<&Any<'py>>,
) -> PyResult<Any<'py>> {
    let py = slf.py();
    let options = PyDict::new(py);
    if let Some(dtype) = dtype {
        options.set_item("dtype", dtype)?;
    }
    if axis.is_none() && !keepdims {
        return all.call_with(py, (slf,), &options);
    }
    along.call_with(py, (slf, axes(axis)?, keepdims), &options)
}

/// Refuses keywords that a reduction doesn't take, with the one that was meant.
fn no_others(py: Python<'_>, method: &str, foreign: Option<&Bound<'_, PyDict>>) -> PyResult<()> {
    let Some((keyword, _)) = foreign.and_then(|foreign| foreign.iter().next()) else {
        return Ok(());
    };
    let keyword = keyword.extract::<String>()?;
    let meant = match keyword.as_str() {
        "dim" | "dims" | "axes" => Some("axis"),
        other => nearest(other, ["axis", "keepdims", "dtype"]).first().copied(),
    };
    let hint = meant.map(|name| format!(". Did you mean '{name}'?")).unwrap_or_default();
    let message = format!("Tensor.{method}() got an unexpected keyword argument '{keyword}'{hint}");
    Err(error(py, ErrorKind::Binding, message))
}

#[pymethods]
impl PyTensor {
    /// The tensor with its two dimensions swapped: a view.
    ///
    /// Raises:
    ///     ShapeError: it hasn't two dimensions. `mT` swaps the last two of more.
    #[getter(T)]
    fn transposed<'py>(slf: &Bound<'py, Self>) -> PyResult<Any<'py>> {
        let ndim = slf.get().tensor.ndim();
        if ndim != 2 {
            let message = format!(
                ".T is for 2 dimensions, and the tensor has {ndim}; use .mT for the last two, or \
                 permute(...)"
            );
            return Err(error(slf.py(), ErrorKind::Shape, message));
        }
        aten::TRANSPOSE.call(slf.py(), (slf, 0, 1))
    }

    /// The tensor with its last two dimensions swapped: a view.
    ///
    /// Raises:
    ///     ShapeError: it has fewer than two dimensions.
    #[getter(mT)]
    fn matrix_transposed<'py>(slf: &Bound<'py, Self>) -> PyResult<Any<'py>> {
        let ndim = slf.get().tensor.ndim();
        if ndim < 2 {
            let message = format!(".mT is for 2 dimensions and more, and the tensor has {ndim}");
            return Err(error(slf.py(), ErrorKind::Shape, message));
        }
        aten::TRANSPOSE.call(slf.py(), (slf, -2, -1))
    }

    /// The elements in another shape: a view where the strides allow it, else a copy.
    ///
    /// Args:
    ///     shape: the sizes, as one tuple or one by one; one of them may be -1, for what is left.
    #[pyo3(signature = (*shape))]
    fn reshape<'py>(slf: &Bound<'py, Self>, shape: &Bound<'py, PyTuple>) -> PyResult<Any<'py>> {
        aten::RESHAPE.call(slf.py(), (slf, unpacked(shape)?))
    }

    /// The tensor with two dimensions swapped: a view.
    fn transpose<'py>(
        slf: &Bound<'py, Self>,
        dim0: &Any<'py>,
        dim1: &Any<'py>,
    ) -> PyResult<Any<'py>> {
        aten::TRANSPOSE.call(slf.py(), (slf, dim0, dim1))
    }

    /// The tensor with its dimensions in another order: a view.
    ///
    /// Args:
    ///     dims: which dimension comes at each place, as one tuple or one by one.
    #[pyo3(signature = (*dims))]
    fn permute<'py>(slf: &Bound<'py, Self>, dims: &Bound<'py, PyTuple>) -> PyResult<Any<'py>> {
        aten::PERMUTE.call(slf.py(), (slf, unpacked(dims)?))
    }

    /// The tensor with a dimension of size 1 more, at `axis`: a view.
    fn unsqueeze<'py>(slf: &Bound<'py, Self>, axis: &Any<'py>) -> PyResult<Any<'py>> {
        aten::UNSQUEEZE.call(slf.py(), (slf, axis))
    }

    /// The tensor without a dimension of size 1, or without all of them: a view.
    #[pyo3(signature = (axis=None))]
    fn squeeze<'py>(slf: &Bound<'py, Self>, axis: Option<&Any<'py>>) -> PyResult<Any<'py>> {
        match axis {
            Some(axis) => aten::SQUEEZE.call(slf.py(), (slf, axis)),
            None => aten::SQUEEZE_ALL.call(slf.py(), (slf,)),
        }
    }

    /// The tensor repeated along dimensions of size 1 and new leading ones: a view with stride 0.
    ///
    /// Args:
    ///     sizes: the sizes, as one tuple or one by one; -1 keeps a dimension as it is.
    #[pyo3(signature = (*sizes))]
    fn expand<'py>(slf: &Bound<'py, Self>, sizes: &Bound<'py, PyTuple>) -> PyResult<Any<'py>> {
        aten::EXPAND.call(slf.py(), (slf, unpacked(sizes)?))
    }

    /// As `expand`.
    #[pyo3(signature = (*shape))]
    fn broadcast_to<'py>(
        slf: &Bound<'py, Self>,
        shape: &Bound<'py, PyTuple>,
    ) -> PyResult<Any<'py>> {
        aten::EXPAND.call(slf.py(), (slf, unpacked(shape)?))
    }

    /// The tensor in reverse order along some axes, or along all: a view.
    #[pyo3(signature = (axis=None))]
    fn flip<'py>(slf: &Bound<'py, Self>, axis: Option<&Any<'py>>) -> PyResult<Any<'py>> {
        let axes = match axes(axis)? {
            Some(axes) => axes,
            None => PyTuple::new(slf.py(), 0..slf.get().tensor.ndim())?.into_any(),
        };
        aten::FLIP.call(slf.py(), (slf, axes))
    }

    /// The elements in row-major order without gaps: the same memory if they lie so, else a copy.
    fn contiguous<'py>(slf: &Bound<'py, Self>) -> PyResult<Any<'py>> {
        aten::CONTIGUOUS.call(slf.py(), (slf,))
    }

    /// A copy, in memory of its own.
    fn clone<'py>(slf: &Bound<'py, Self>) -> PyResult<Any<'py>> {
        aten::CLONE.call(slf.py(), (slf,))
    }

    /// Writes a tensor's elements, converted and broadcast, into this one's memory.
    ///
    /// Raises:
    ///     ReadOnlyError: the memory must not be written.
    ///     DTypeError: the kind of the elements would get lost.
    ///     ShapeError: the shape doesn't broadcast to this one's.
    fn copy_<'py>(slf: &Bound<'py, Self>, src: &Any<'py>) -> PyResult<Any<'py>> {
        aten::COPY.call(slf.py(), (slf, src))
    }

    /// Writes one number everywhere.
    fn fill_<'py>(slf: &Bound<'py, Self>, value: &Any<'py>) -> PyResult<Any<'py>> {
        aten::FILL.call(slf.py(), (slf, value))
    }

    /// The sum of all elements, or along axes. Whole numbers and bools add up to int64.
    #[pyo3(
        signature = (axis=None, *, keepdims=false, dtype=None, **foreign),
        text_signature = "($self, axis=None, *, keepdims=False, dtype=None)"
    )]
    fn sum<'py>(
        slf: &Bound<'py, Self>,
        axis: Option<&Any<'py>>,
        keepdims: bool,
        dtype: Option<&Any<'py>>,
        foreign: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Any<'py>> {
        no_others(slf.py(), "sum", foreign)?;
        reduced_as(slf, (&aten::SUM_ALL, &aten::SUM), axis, keepdims, dtype)
    }

    /// The mean of all elements, or along axes. Whole numbers and bools give float64.
    #[pyo3(
        signature = (axis=None, *, keepdims=false, dtype=None, **foreign),
        text_signature = "($self, axis=None, *, keepdims=False, dtype=None)"
    )]
    fn mean<'py>(
        slf: &Bound<'py, Self>,
        axis: Option<&Any<'py>>,
        keepdims: bool,
        dtype: Option<&Any<'py>>,
        foreign: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Any<'py>> {
        no_others(slf.py(), "mean", foreign)?;
        reduced_as(slf, (&aten::MEAN_ALL, &aten::MEAN), axis, keepdims, dtype)
    }

    /// The greatest element, or the greatest along axes. NaN goes through.
    #[pyo3(
        signature = (axis=None, *, keepdims=false, **foreign),
        text_signature = "($self, axis=None, *, keepdims=False)"
    )]
    fn max<'py>(
        slf: &Bound<'py, Self>,
        axis: Option<&Any<'py>>,
        keepdims: bool,
        foreign: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Any<'py>> {
        no_others(slf.py(), "max", foreign)?;
        reduced(slf, &aten::AMAX, axis, keepdims)
    }

    /// The least element, or the least along axes. NaN goes through.
    #[pyo3(
        signature = (axis=None, *, keepdims=false, **foreign),
        text_signature = "($self, axis=None, *, keepdims=False)"
    )]
    fn min<'py>(
        slf: &Bound<'py, Self>,
        axis: Option<&Any<'py>>,
        keepdims: bool,
        foreign: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Any<'py>> {
        no_others(slf.py(), "min", foreign)?;
        reduced(slf, &aten::AMIN, axis, keepdims)
    }

    /// Where the greatest element is along an axis, or in the flattened tensor: the first of several.
    #[pyo3(
        signature = (axis=None, *, keepdims=false, **foreign),
        text_signature = "($self, axis=None, *, keepdims=False)"
    )]
    fn argmax<'py>(
        slf: &Bound<'py, Self>,
        axis: Option<&Bound<'py, PyInt>>,
        keepdims: bool,
        foreign: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Any<'py>> {
        no_others(slf.py(), "argmax", foreign)?;
        aten::ARGMAX.call(slf.py(), (slf, axis, keepdims))
    }

    /// Where the least element is along an axis, or in the flattened tensor: the first of several.
    #[pyo3(
        signature = (axis=None, *, keepdims=false, **foreign),
        text_signature = "($self, axis=None, *, keepdims=False)"
    )]
    fn argmin<'py>(
        slf: &Bound<'py, Self>,
        axis: Option<&Bound<'py, PyInt>>,
        keepdims: bool,
        foreign: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Any<'py>> {
        no_others(slf.py(), "argmin", foreign)?;
        aten::ARGMIN.call(slf.py(), (slf, axis, keepdims))
    }

    /// Whether all elements, or all along axes, are true or nonzero.
    #[pyo3(
        signature = (axis=None, *, keepdims=false, **foreign),
        text_signature = "($self, axis=None, *, keepdims=False)"
    )]
    fn all<'py>(
        slf: &Bound<'py, Self>,
        axis: Option<&Any<'py>>,
        keepdims: bool,
        foreign: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Any<'py>> {
        no_others(slf.py(), "all", foreign)?;
        reduced(slf, &aten::ALL, axis, keepdims)
    }

    /// Whether any element, or any along axes, is true or nonzero.
    #[pyo3(
        signature = (axis=None, *, keepdims=false, **foreign),
        text_signature = "($self, axis=None, *, keepdims=False)"
    )]
    fn any<'py>(
        slf: &Bound<'py, Self>,
        axis: Option<&Any<'py>>,
        keepdims: bool,
        foreign: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Any<'py>> {
        no_others(slf.py(), "any", foreign)?;
        reduced(slf, &aten::ANY, axis, keepdims)
    }

    /// The softmax along an axis: positive numbers that add up to 1.
    #[pyo3(signature = (axis=Axis(-1), **foreign), text_signature = "($self, axis=-1)")]
    fn softmax<'py>(
        slf: &Bound<'py, Self>,
        axis: Axis,
        foreign: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Any<'py>> {
        no_others(slf.py(), "softmax", foreign)?;
        aten::SOFTMAX.call(slf.py(), (slf, axis.0))
    }

    /// The exponential of each element.
    fn exp<'py>(slf: &Bound<'py, Self>) -> PyResult<Any<'py>> {
        aten::EXP.call(slf.py(), (slf,))
    }

    /// The natural logarithm of each element.
    fn log<'py>(slf: &Bound<'py, Self>) -> PyResult<Any<'py>> {
        aten::LOG.call(slf.py(), (slf,))
    }

    /// The square root of each element.
    fn sqrt<'py>(slf: &Bound<'py, Self>) -> PyResult<Any<'py>> {
        aten::SQRT.call(slf.py(), (slf,))
    }

    /// The hyperbolic tangent of each element.
    fn tanh<'py>(slf: &Bound<'py, Self>) -> PyResult<Any<'py>> {
        aten::TANH.call(slf.py(), (slf,))
    }

    /// The logistic function of each element, `1 / (1 + exp(-x))`.
    fn sigmoid<'py>(slf: &Bound<'py, Self>) -> PyResult<Any<'py>> {
        aten::SIGMOID.call(slf.py(), (slf,))
    }

    /// The sine of each element, an angle in radians.
    fn sin<'py>(slf: &Bound<'py, Self>) -> PyResult<Any<'py>> {
        aten::SIN.call(slf.py(), (slf,))
    }

    /// The cosine of each element, an angle in radians.
    fn cos<'py>(slf: &Bound<'py, Self>) -> PyResult<Any<'py>> {
        aten::COS.call(slf.py(), (slf,))
    }

    /// Each element to the power of `exponent`: of a number, or of its partner in a tensor.
    fn pow<'py>(slf: &Bound<'py, Self>, exponent: &Any<'py>) -> PyResult<Any<'py>> {
        match operand(exponent) {
            Operand::Number => aten::POW.number.call(slf.py(), (slf, exponent)),
            _ => aten::POW.tensors.call(slf.py(), (slf, exponent)),
        }
    }

    /// The absolute value of each element.
    fn abs<'py>(slf: &Bound<'py, Self>) -> PyResult<Any<'py>> {
        aten::ABS.call(slf.py(), (slf,))
    }

    /// The complex conjugate of each element; real ones as they are.
    fn conj<'py>(slf: &Bound<'py, Self>) -> PyResult<Any<'py>> {
        aten::CONJ.call(slf.py(), (slf,))
    }

    /// The real part of each element: a tensor of its own, no view.
    #[getter]
    fn real<'py>(slf: &Bound<'py, Self>) -> PyResult<Any<'py>> {
        aten::REAL.call(slf.py(), (slf,))
    }

    /// The imaginary part of each element, which is 0 of real ones: a tensor of its own, no view.
    #[getter]
    fn imag<'py>(slf: &Bound<'py, Self>) -> PyResult<Any<'py>> {
        aten::IMAG.call(slf.py(), (slf,))
    }

    /// Each element, or 0 where it is negative.
    fn relu<'py>(slf: &Bound<'py, Self>) -> PyResult<Any<'py>> {
        aten::RELU.call(slf.py(), (slf,))
    }
}
