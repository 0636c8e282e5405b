//! The methods of `keyfold.Tensor` that call operators but aren't made from their rows, since their
//! parameters differ from the operator's.

use keyfold_core::ErrorKind;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyInt, PyList, PyTuple};

use crate::classes::aten;
use crate::classes::function::unexpected;
use crate::marshal::errors::error;
use crate::marshal::tensor::PyTensor;

type Any<'py> = Bound<'py, PyAny>;

/// Whether an object stands for one whole number, and so for a list of it.
fn is_whole_number(object: &Any<'_>) -> bool {
    if object.is_instance_of::<PyInt>() {
        return !object.is_instance_of::<PyBool>();
    }
    let is_list = object.is_instance_of::<PyTuple>() || object.is_instance_of::<PyList>();
    !is_list && object.extract::<i64>().is_ok()
}

/// `f(2, 3)` and `f((2, 3))` alike.
fn unpacked<'py>(args: &Bound<'py, PyTuple>) -> PyResult<Any<'py>> {
    if args.len() == 1 {
        let only = args.get_item(0)?;
        if !is_whole_number(&only) {
            return Ok(only);
        }
    }
    Ok(args.clone().into_any())
}

/// One axis as a list of axes. What is none stays as it is, for the operator to refuse.
fn axes<'py>(axis: Option<&Any<'py>>) -> PyResult<Option<Any<'py>>> {
    match axis {
        Some(axis) if is_whole_number(axis) => {
            Ok(Some(PyTuple::new(axis.py(), [axis])?.into_any()))
        }
        other => Ok(other.cloned()),
    }
}

/// The axis of a method that takes nothing else, by its own name or by PyTorch's.
fn axis_or_dim<'py>(
    py: Python<'py>,
    method: &str,
    axis: Option<&Any<'py>>,
    others: Option<&Bound<'py, PyDict>>,
) -> PyResult<Option<Any<'py>>> {
    let mut axis = axis.cloned();
    for (keyword, value) in others.into_iter().flatten() {
        let keyword = keyword.extract::<String>()?;
        if keyword != "dim" {
            return Err(unexpected(py, &format!("Tensor.{method}"), &["axis", "dim"], &keyword));
        }
        if axis.is_none() {
            axis = Some(value).filter(|value| !value.is_none());
        } else if !value.is_none() {
            let message =
                format!("Tensor.{method}() got both 'axis' and 'dim', which mean the same");
            return Err(error(py, ErrorKind::Binding, message));
        }
    }
    Ok(axis)
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

    /// The tensor with a dimension of size 1 more, at `axis`: a view. `dim` is the same.
    #[pyo3(signature = (axis=None, **others), text_signature = "($self, axis=None, *, dim=None)")]
    fn unsqueeze<'py>(
        slf: &Bound<'py, Self>,
        axis: Option<&Any<'py>>,
        others: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Any<'py>> {
        let py = slf.py();
        match axis_or_dim(py, "unsqueeze", axis, others)? {
            Some(axis) => aten::UNSQUEEZE.call(py, (slf, axis)),
            None => {
                let message = "Tensor.unsqueeze() needs the axis of the new dimension";
                Err(error(py, ErrorKind::Binding, message))
            }
        }
    }

    /// The tensor without a dimension of size 1, or without all of them: a view. `dim` is `axis`.
    #[pyo3(signature = (axis=None, **others), text_signature = "($self, axis=None, *, dim=None)")]
    fn squeeze<'py>(
        slf: &Bound<'py, Self>,
        axis: Option<&Any<'py>>,
        others: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Any<'py>> {
        match axis_or_dim(slf.py(), "squeeze", axis, others)? {
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

    /// The tensor in reverse order along some axes, or along all: a view. `dim` is `axis`.
    #[pyo3(signature = (axis=None, **others), text_signature = "($self, axis=None, *, dim=None)")]
    fn flip<'py>(
        slf: &Bound<'py, Self>,
        axis: Option<&Any<'py>>,
        others: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Any<'py>> {
        let axes = match axes(axis_or_dim(slf.py(), "flip", axis, others)?.as_ref())? {
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
}
