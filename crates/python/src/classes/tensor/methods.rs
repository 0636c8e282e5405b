//! The methods of `keyfold.Tensor` that compute or change the shape: calls of built-in operators.

use keyfold_core::{ErrorKind, nearest};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyInt, PyList, PyTuple};

use crate::classes::aten::{self, Along, Aten};
use crate::marshal::describe::describe_object;
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

/// An argument whose default can be told from the same value that was given.
struct IfGiven<'py>(Option<Any<'py>>);

impl<'py> FromPyObject<'_, 'py> for IfGiven<'py> {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        Ok(IfGiven(Some(object.to_owned())))
    }
}

/// Whether the reduced dimensions stay: False where nothing was given. 0 and 1 are taken, too.
fn kept(py: Python<'_>, method: &str, keepdims: Option<&Any<'_>>) -> PyResult<bool> {
    let Some(given) = keepdims else { return Ok(false) };
    if let Ok(keep) = given.extract::<bool>() {
        return Ok(keep);
    }
    if let Ok(number @ (0 | 1)) = given.extract::<i64>() {
        return Ok(number == 1);
    }
    let message = format!(
        "Tensor.{method}() argument 'keepdims' must be True or False, not {}",
        describe_object(given)
    );
    Err(error(py, ErrorKind::Binding, message))
}

/// What a reduction is told: by NumPy's names, by PyTorch's, and by NumPy's functions, which pass `out`.
struct Reduction<'py> {
    axis: Option<Any<'py>>,
    keepdims: bool,
    out: Option<Any<'py>>,
}

impl<'py> Reduction<'py> {
    /// Of the arguments that the method `name` has, and the others that were given.
    fn new(
        slf: &Bound<'py, PyTensor>,
        name: &str,
        axis: Option<&Any<'py>>,
        keepdims: Option<&Any<'py>>,
        others: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Self> {
        let (py, mut axis, mut keepdims, mut out) =
            (slf.py(), axis.cloned(), keepdims.cloned(), None);
        for (keyword, value) in others.into_iter().flatten() {
            match &*keyword.extract::<String>()? {
                "dim" => axis = only(py, name, ("axis", "dim"), axis, value)?,
                "keepdim" => keepdims = only(py, name, ("keepdims", "keepdim"), keepdims, value)?,
                "out" => out = (!value.is_none()).then_some(value),
                other => return Err(unexpected(py, name, other)),
            }
        }
        Ok(Reduction { axis, keepdims: kept(py, name, keepdims.as_ref())?, out })
    }

    /// Calls the operator. What is written into the caller's `out` is returned as that object.
    fn call(self, slf: &Bound<'py, PyTensor>, op: &Along) -> PyResult<Any<'py>> {
        let py = slf.py();
        match self.out {
            None => op.fresh.call(py, (slf, self.axis, self.keepdims)),
            Some(out) => {
                let options = PyDict::new(py);
                options.set_item("out", &out)?;
                op.out.call_with(py, (slf, self.axis, self.keepdims), &options)?;
                Ok(out)
            }
        }
    }
}

/// A reduction along axes, or of all elements.
fn reduced<'py>(
    slf: &Bound<'py, PyTensor>,
    (name, op): (&str, &Along),
    axis: Option<&Any<'py>>,
    keepdims: Option<&Any<'py>>,
    others: Option<&Bound<'py, PyDict>>,
) -> PyResult<Any<'py>> {
    let mut told = Reduction::new(slf, name, axis, keepdims, others)?;
    told.axis = axes(told.axis.as_ref())?;
    told.call(slf, op)
}

/// The place of an extreme along an axis, or in the flattened tensor.
fn placed<'py>(
    slf: &Bound<'py, PyTensor>,
    (name, op): (&str, &Along),
    axis: Option<&Any<'py>>,
    keepdims: Option<&Any<'py>>,
    others: Option<&Bound<'py, PyDict>>,
) -> PyResult<Any<'py>> {
    Reduction::new(slf, name, axis, keepdims, others)?.call(slf, op)
}

/// A reduction with a dtype of its own; `all` is the overload that reduces all elements.
fn reduced_as<'py>(
    slf: &Bound<'py, PyTensor>,
    (name, all, along): (&str, &Aten, &Along),
    axis: Option<&Any<'py>>,
    keepdims: Option<&Any<'py>>,
    dtype: Option<&Any<'py>>,
    others: Option<&Bound<'py, PyDict>>,
) -> PyResult<Any<'py>> {
    let py = slf.py();
    let told = Reduction::new(slf, name, axis, keepdims, others)?;
    let axes = axes(told.axis.as_ref())?;
    let is_whole = axes.is_none() && !told.keepdims;
    if dtype.is_none() && told.out.is_none() {
        return match is_whole {
            true => all.call(py, (slf,)),
            false => along.fresh.call(py, (slf, axes, told.keepdims)),
        };
    }
    let options = PyDict::new(py);
    if let Some(dtype) = dtype {
        options.set_item("dtype", dtype)?;
    }
    match told.out {
        Some(out) => {
            options.set_item("out", &out)?;
            along.out.call_with(py, (slf, axes, told.keepdims), &options)?;
            Ok(out)
        }
        None if is_whole => all.call_with(py, (slf,), &options),
        None => along.fresh.call_with(py, (slf, axes, told.keepdims), &options),
    }
}

/// An argument that has two names, such as `axis` and `dim`: an error where both are given.
fn only<'py>(
    py: Python<'py>,
    method: &str,
    (ours, theirs): (&str, &str),
    first: Option<Any<'py>>,
    second: Any<'py>,
) -> PyResult<Option<Any<'py>>> {
    if first.is_none() {
        return Ok((!second.is_none()).then_some(second));
    }
    let message =
        format!("Tensor.{method}() got both '{ours}' and '{theirs}', which mean the same");
    Err(error(py, ErrorKind::Binding, message))
}

/// The axis of a method that takes nothing else by keyword.
fn axis_or_dim<'py>(
    py: Python<'py>,
    method: &str,
    axis: Option<&Any<'py>>,
    others: Option<&Bound<'py, PyDict>>,
) -> PyResult<Option<Any<'py>>> {
    let mut axis = axis.cloned();
    for (keyword, value) in others.into_iter().flatten() {
        match &*keyword.extract::<String>()? {
            "dim" => axis = only(py, method, ("axis", "dim"), axis, value)?,
            other => return Err(unexpected(py, method, other)),
        }
    }
    Ok(axis)
}

/// The error for a keyword that a method doesn't take, with the one that was meant.
fn unexpected(py: Python<'_>, method: &str, keyword: &str) -> PyErr {
    let meant = match keyword {
        "dims" | "axes" => Some("axis"),
        other => nearest(other, ["axis", "keepdims", "dtype"]).first().copied(),
    };
    let hint = meant.map(|name| format!(". Did you mean '{name}'?")).unwrap_or_default();
    let message = format!("Tensor.{method}() got an unexpected keyword argument '{keyword}'{hint}");
    error(py, ErrorKind::Binding, message)
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

    /// The sum of all elements, or along axes. Whole numbers and bools add up to int64.
    ///
    /// Args:
    ///     axis: the axis, or several in a tuple; None for all. `dim` is the same.
    ///     keepdims: whether these stay as dimensions of size 1. `keepdim` is the same.
    ///     dtype: the dtype to add up in.
    ///     out: a tensor to write the result into.
    #[pyo3(
        signature = (axis=None, *, keepdims=None, dtype=None, **others),
        text_signature = "($self, axis=None, *, keepdims=False, dtype=None, out=None, dim=None, keepdim=False)"
    )]
    fn sum<'py>(
        slf: &Bound<'py, Self>,
        axis: Option<&Any<'py>>,
        keepdims: Option<&Any<'py>>,
        dtype: Option<&Any<'py>>,
        others: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Any<'py>> {
        let ops = ("sum", &aten::SUM_ALL, &aten::SUM);
        reduced_as(slf, ops, axis, keepdims, dtype, others)
    }

    /// The mean of all elements, or along axes. Whole numbers and bools give float64.
    #[pyo3(
        signature = (axis=None, *, keepdims=None, dtype=None, **others),
        text_signature = "($self, axis=None, *, keepdims=False, dtype=None, out=None, dim=None, keepdim=False)"
    )]
    fn mean<'py>(
        slf: &Bound<'py, Self>,
        axis: Option<&Any<'py>>,
        keepdims: Option<&Any<'py>>,
        dtype: Option<&Any<'py>>,
        others: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Any<'py>> {
        let ops = ("mean", &aten::MEAN_ALL, &aten::MEAN);
        reduced_as(slf, ops, axis, keepdims, dtype, others)
    }

    /// The greatest element, or the greatest along axes. NaN goes through.
    #[pyo3(
        signature = (axis=None, *, keepdims=None, **others),
        text_signature = "($self, axis=None, *, keepdims=False, out=None, dim=None, keepdim=False)"
    )]
    fn max<'py>(
        slf: &Bound<'py, Self>,
        axis: Option<&Any<'py>>,
        keepdims: Option<&Any<'py>>,
        others: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Any<'py>> {
        reduced(slf, ("max", &aten::AMAX), axis, keepdims, others)
    }

    /// The least element, or the least along axes. NaN goes through.
    #[pyo3(
        signature = (axis=None, *, keepdims=None, **others),
        text_signature = "($self, axis=None, *, keepdims=False, out=None, dim=None, keepdim=False)"
    )]
    fn min<'py>(
        slf: &Bound<'py, Self>,
        axis: Option<&Any<'py>>,
        keepdims: Option<&Any<'py>>,
        others: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Any<'py>> {
        reduced(slf, ("min", &aten::AMIN), axis, keepdims, others)
    }

    /// Where the greatest element is along an axis, or in the flattened tensor: the first of several.
    #[pyo3(
        signature = (axis=None, *, keepdims=None, **others),
        text_signature = "($self, axis=None, *, keepdims=False, out=None, dim=None, keepdim=False)"
    )]
    fn argmax<'py>(
        slf: &Bound<'py, Self>,
        axis: Option<&Any<'py>>,
        keepdims: Option<&Any<'py>>,
        others: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Any<'py>> {
        placed(slf, ("argmax", &aten::ARGMAX), axis, keepdims, others)
    }

    /// Where the least element is along an axis, or in the flattened tensor: the first of several.
    #[pyo3(
        signature = (axis=None, *, keepdims=None, **others),
        text_signature = "($self, axis=None, *, keepdims=False, out=None, dim=None, keepdim=False)"
    )]
    fn argmin<'py>(
        slf: &Bound<'py, Self>,
        axis: Option<&Any<'py>>,
        keepdims: Option<&Any<'py>>,
        others: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Any<'py>> {
        placed(slf, ("argmin", &aten::ARGMIN), axis, keepdims, others)
    }

    /// Whether all elements, or all along axes, are true or nonzero.
    #[pyo3(
        signature = (axis=None, *, keepdims=None, **others),
        text_signature = "($self, axis=None, *, keepdims=False, out=None, dim=None, keepdim=False)"
    )]
    fn all<'py>(
        slf: &Bound<'py, Self>,
        axis: Option<&Any<'py>>,
        keepdims: Option<&Any<'py>>,
        others: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Any<'py>> {
        reduced(slf, ("all", &aten::ALL), axis, keepdims, others)
    }

    /// Whether any element, or any along axes, is true or nonzero.
    #[pyo3(
        signature = (axis=None, *, keepdims=None, **others),
        text_signature = "($self, axis=None, *, keepdims=False, out=None, dim=None, keepdim=False)"
    )]
    fn any<'py>(
        slf: &Bound<'py, Self>,
        axis: Option<&Any<'py>>,
        keepdims: Option<&Any<'py>>,
        others: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Any<'py>> {
        reduced(slf, ("any", &aten::ANY), axis, keepdims, others)
    }

    /// The softmax along an axis: positive numbers that add up to 1.
    #[pyo3(signature = (axis=IfGiven(None), **others), text_signature = "($self, axis=-1, *, dim=-1)")]
    fn softmax<'py>(
        slf: &Bound<'py, Self>,
        axis: IfGiven<'py>,
        others: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Any<'py>> {
        match axis_or_dim(slf.py(), "softmax", axis.0.as_ref(), others)? {
            None => aten::SOFTMAX.call(slf.py(), (slf, -1)),
            Some(axis) => aten::SOFTMAX.call(slf.py(), (slf, axis)),
        }
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
