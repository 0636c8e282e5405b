"""Functions by their names in the Python array API standard, over the operators in `ops.aten`.

They take what the operators take, tensors and arrays of other libraries, and give results of the
caller's own library. Python numbers may stand on either side of an operator of two operands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from keyfold import _core
from keyfold._creation import asarray
from keyfold._default import dispatcher as _default
from keyfold._errors import BindingError, DTypeError, ShapeError

__all__ = [
    "abs",
    "add",
    "all",
    "any",
    "argmax",
    "argmin",
    "astype",
    "broadcast_arrays",
    "broadcast_shapes",
    "broadcast_to",
    "clip",
    "concat",
    "cos",
    "divide",
    "dropout",
    "equal",
    "exp",
    "expand_dims",
    "expm1",
    "flip",
    "greater",
    "greater_equal",
    "less",
    "less_equal",
    "log",
    "log1p",
    "log_softmax",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "matmul",
    "matrix_transpose",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "multiply",
    "negative",
    "not_equal",
    "permute_dims",
    "positive",
    "pow",
    "relu",
    "reshape",
    "sigmoid",
    "sign",
    "sin",
    "softmax",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "subtract",
    "sum",
    "take",
    "tanh",
    "where",
]

_aten = _default.ops.aten
_Axis = int | Sequence[int] | None


def _is_number(x: Any) -> bool:
    return isinstance(x, (bool, int, float, complex)) and not hasattr(x, "dtype")


def _pair(op: Any, swapped: Callable[[Any, Any], Any], x1: Any, x2: Any) -> Any:
    """`op(x1, x2)`, or `swapped(x2, x1)` where a number stands on the left."""
    if not _is_number(x1):
        return op(x1, x2)
    if _is_number(x2):
        raise BindingError(
            f"{op.name}: one of the operands must be an array; both are numbers: {x1!r}, {x2!r}"
        )
    return swapped(x2, x1)


def add(x1: Any, x2: Any, /) -> Any:
    """Return the sum, element by element; "or" for bools."""
    return _pair(_aten.add, _aten.add, x1, x2)


def subtract(x1: Any, x2: Any, /) -> Any:
    """Return the difference, element by element."""
    return _pair(_aten.sub, _aten.rsub, x1, x2)


def multiply(x1: Any, x2: Any, /) -> Any:
    """Return the product, element by element; "and" for bools."""
    return _pair(_aten.mul, _aten.mul, x1, x2)


def divide(x1: Any, x2: Any, /) -> Any:
    """Return the quotient, element by element: float64 for whole numbers."""
    return _pair(_aten.div, _aten.rdiv, x1, x2)


def maximum(x1: Any, x2: Any, /) -> Any:
    """Return the greater of each two elements. NaN goes through."""
    return _pair(_aten.maximum, _aten.maximum, x1, x2)


def minimum(x1: Any, x2: Any, /) -> Any:
    """Return the lesser of each two elements. NaN goes through."""
    return _pair(_aten.minimum, _aten.minimum, x1, x2)


def equal(x1: Any, x2: Any, /) -> Any:
    """Return whether each two elements are equal."""
    return _pair(_aten.eq, _aten.eq, x1, x2)


def not_equal(x1: Any, x2: Any, /) -> Any:
    """Return whether each two elements differ."""
    return _pair(_aten.ne, _aten.ne, x1, x2)


def less(x1: Any, x2: Any, /) -> Any:
    """Return whether each element is less than its partner."""
    return _pair(_aten.lt, _aten.gt, x1, x2)


def less_equal(x1: Any, x2: Any, /) -> Any:
    """Return whether each element is at most its partner."""
    return _pair(_aten.le, _aten.ge, x1, x2)


def greater(x1: Any, x2: Any, /) -> Any:
    """Return whether each element is greater than its partner."""
    return _pair(_aten.gt, _aten.lt, x1, x2)


def greater_equal(x1: Any, x2: Any, /) -> Any:
    """Return whether each element is at least its partner."""
    return _pair(_aten.ge, _aten.le, x1, x2)


def _masks(name: str, *operands: Any) -> None:
    for x in operands:
        dtype = type(x).__name__ if _is_number(x) else str(x.dtype)
        if dtype != "bool":
            raise DTypeError(f"{name}() combines bools, not {dtype}; compare first")


def logical_and(x1: Any, x2: Any, /) -> Any:
    """Return where both are true. For bools."""
    _masks("logical_and", x1, x2)
    return multiply(x1, x2)


def logical_or(x1: Any, x2: Any, /) -> Any:
    """Return where at least one is true. For bools."""
    _masks("logical_or", x1, x2)
    return add(x1, x2)


def logical_xor(x1: Any, x2: Any, /) -> Any:
    """Return where exactly one is true. For bools."""
    _masks("logical_xor", x1, x2)
    return not_equal(x1, x2)


def logical_not(x: Any, /) -> Any:
    """Return whether each element is false, or zero."""
    return _aten.logical_not(x)


def negative(x: Any, /) -> Any:
    """Return the elements with their signs turned."""
    return _aten.neg(x)


def positive(x: Any, /) -> Any:
    """Return a copy."""
    return _aten.clone(x)


def abs(x: Any, /) -> Any:
    """Return the absolute values."""
    return _aten.abs(x)


def exp(x: Any, /) -> Any:
    """Return the exponentials: float64 for whole numbers."""
    return _aten.exp(x)


def log(x: Any, /) -> Any:
    """Return the natural logarithms: float64 for whole numbers."""
    return _aten.log(x)


def sqrt(x: Any, /) -> Any:
    """Return the square roots: float64 for whole numbers."""
    return _aten.sqrt(x)


def pow(x1: Any, x2: Any, /) -> Any:
    """Return `x1` to the power of `x2`, element by element. Whole numbers wrap around.

    Raises:
        InvalidValue: a negative power of whole numbers, which gives fractions.
        DTypeError: both are bools.
    """
    return _pair(_aten.pow, _aten.rpow, x1, x2)


def log1p(x: Any, /) -> Any:
    """Return `log(1 + x)`, exact for small elements: float64 for whole numbers."""
    return _aten.log1p(x)


def expm1(x: Any, /) -> Any:
    """Return `exp(x) - 1`, exact for small elements: float64 for whole numbers."""
    return _aten.expm1(x)


def sin(x: Any, /) -> Any:
    """Return the sines of angles in radians: float64 for whole numbers."""
    return _aten.sin(x)


def cos(x: Any, /) -> Any:
    """Return the cosines of angles in radians: float64 for whole numbers."""
    return _aten.cos(x)


def tanh(x: Any, /) -> Any:
    """Return the hyperbolic tangents: float64 for whole numbers."""
    return _aten.tanh(x)


def sign(x: Any, /) -> Any:
    """Return 1, 0 or -1 for each element. NaN stays; a bool is its own sign."""
    return _aten.sign(x)


def square(x: Any, /) -> Any:
    """Return the elements times themselves."""
    return _aten.mul(x, x)


def relu(x: Any, /) -> Any:
    """Return each element, or 0 where it is negative. Not in the standard."""
    return _aten.relu(x)


def softmax(x: Any, /, *, axis: int = -1) -> Any:
    """Return positive numbers that add up to 1 along an axis. Not in the standard."""
    return _aten.softmax(x, axis)


def log_softmax(x: Any, /, *, axis: int = -1) -> Any:
    """Return the logarithms of the softmax along an axis. Not in the standard."""
    return _aten.log_softmax(x, axis)


def sigmoid(x: Any, /) -> Any:
    """Return `1 / (1 + exp(-x))`: float64 for whole numbers. Not in the standard."""
    return _aten.sigmoid(x)


def dropout(x: Any, /, p: float = 0.5, *, train: bool = True) -> Any:
    """Return the array with random elements replaced by 0. Not in the standard.

    What stays is scaled by `1 / (1 - p)`, so that the expectation doesn't change. The random
    numbers are the process's own, see `manual_seed`.

    Args:
        x: an array of floats.
        p: the probability of each element to be replaced, from 0 to 1.
        train: False to return the array as it is.

    Raises:
        InvalidValue: the probability is out of range.
    """
    return _aten.dropout(x, p, train)


def clip(x: Any, /, min: Any = None, max: Any = None) -> Any:
    """Return the elements, limited from below and from above."""
    if min is not None:
        x = _aten.maximum(x, min)
    if max is not None:
        x = _aten.minimum(x, max)
    return _aten.clone(x) if min is None and max is None else x


def where(condition: Any, x1: Any, x2: Any, /) -> Any:
    """Return elements of `x1` where the condition is true, else of `x2`."""
    return _aten.where(condition, x1, x2)


def matmul(x1: Any, x2: Any, /) -> Any:
    """Return the matrix product over the last two dimensions; the ones before broadcast."""
    return _aten.matmul(x1, x2)


def _axes(axis: _Axis) -> Sequence[int] | None:
    return (axis,) if isinstance(axis, int) else axis


def sum(x: Any, /, *, axis: _Axis = None, dtype: Any = None, keepdims: bool = False) -> Any:
    """Return the sum of all elements, or along axes. Whole numbers and bools add up to int64."""
    return _aten.sum.dim(x, _axes(axis), keepdims, dtype=dtype)


def mean(x: Any, /, *, axis: _Axis = None, keepdims: bool = False) -> Any:
    """Return the mean of all elements, or along axes."""
    return _aten.mean.dim(x, _axes(axis), keepdims)


def max(x: Any, /, *, axis: _Axis = None, keepdims: bool = False) -> Any:
    """Return the greatest element, or the greatest along axes. NaN goes through."""
    return _aten.amax(x, _axes(axis), keepdims)


def min(x: Any, /, *, axis: _Axis = None, keepdims: bool = False) -> Any:
    """Return the least element, or the least along axes. NaN goes through."""
    return _aten.amin(x, _axes(axis), keepdims)


def all(x: Any, /, *, axis: _Axis = None, keepdims: bool = False) -> Any:
    """Return whether all elements, or all along axes, are true or nonzero."""
    return _aten.all(x, _axes(axis), keepdims)


def any(x: Any, /, *, axis: _Axis = None, keepdims: bool = False) -> Any:
    """Return whether any element, or any along axes, is true or nonzero."""
    return _aten.any(x, _axes(axis), keepdims)


def argmax(x: Any, /, *, axis: int | None = None, keepdims: bool = False) -> Any:
    """Return where the greatest element is, along an axis or in the flattened array."""
    return _aten.argmax(x, axis, keepdims)


def argmin(x: Any, /, *, axis: int | None = None, keepdims: bool = False) -> Any:
    """Return where the least element is, along an axis or in the flattened array."""
    return _aten.argmin(x, axis, keepdims)


def reshape(x: Any, /, shape: Sequence[int], *, copy: bool | None = None) -> Any:
    """Return the elements in another shape: a view where the strides allow it, else a copy.

    Args:
        x: the array.
        shape: the sizes; one of them may be -1, for what is left.
        copy: True for a copy in any case; False for none, and an error where one is needed.

    Raises:
        ShapeError: the shapes hold different numbers of elements, or a copy is needed.
    """
    if copy:
        x = _aten.clone(x)
    result = _aten.reshape(x, shape)
    if copy is False and not _same_memory(x, result):
        raise ShapeError(f"reshape(): shape {tuple(shape)} can't be had here without a copy")
    return result


def _same_memory(x: Any, y: Any) -> bool:
    a, b = asarray(x), asarray(y)
    return a.size == 0 or a.data_ptr() == b.data_ptr()


def permute_dims(x: Any, /, axes: Sequence[int]) -> Any:
    """Return the array with its dimensions in another order: a view."""
    return _aten.permute(x, axes)


def matrix_transpose(x: Any, /) -> Any:
    """Return the array with its last two dimensions swapped: a view."""
    if x.ndim < 2:
        raise ShapeError(f"matrix_transpose() needs 2 dimensions or more, not {x.ndim}")
    return _aten.transpose(x, -2, -1)


def expand_dims(x: Any, /, *, axis: int = 0) -> Any:
    """Return the array with a dimension of size 1 more, at `axis`: a view."""
    return _aten.unsqueeze(x, axis)


def squeeze(x: Any, /, axis: int | Sequence[int]) -> Any:
    """Return the array without these dimensions of size 1: a view."""
    ndim = x.ndim
    given = (axis,) if isinstance(axis, int) else tuple(axis)
    # From the last on, so that each still counts as it did.
    for place in sorted((at + ndim if at < 0 else at for at in given), reverse=True):
        x = _aten.squeeze(x, place)
    return x


def flip(x: Any, /, *, axis: _Axis = None) -> Any:
    """Return the array in reverse order along some axes, or along all: a view."""
    axes = _axes(axis)
    return _aten.flip(x, tuple(range(x.ndim)) if axes is None else axes)


def concat(arrays: Sequence[Any], /, *, axis: int | None = 0) -> Any:
    """Return the arrays one behind the other along an axis; flattened first if it is None.

    Raises:
        ShapeError: there are none, or their shapes differ elsewhere than along the axis.
    """
    if axis is None:
        return _aten.cat([_aten.reshape(x, (-1,)) for x in arrays], 0)
    return _aten.cat(arrays, axis)


def stack(arrays: Sequence[Any], /, *, axis: int = 0) -> Any:
    """Return the arrays side by side along a new axis.

    Raises:
        ShapeError: there are none, or their shapes differ.
    """
    return _aten.stack(arrays, axis)


def broadcast_shapes(*shapes: Sequence[int]) -> tuple[int, ...]:
    """Return the shape that these broadcast to."""
    result: list[int] = []
    for shape in shapes:
        sizes = [1] * (len(shape) - len(result)) + result
        for back in range(1, len(shape) + 1):
            old, new = sizes[-back], shape[-back]
            if old != new and 1 not in (old, new):
                raise ShapeError(f"shapes {shapes} don't broadcast: {old} meets {new}")
            sizes[-back] = new if old == 1 else old
        result = sizes
    return tuple(result)


def broadcast_to(x: Any, /, shape: Sequence[int]) -> Any:
    """Return the array repeated to a shape: a view with stride 0."""
    return _aten.expand(x, shape)


def broadcast_arrays(*arrays: Any) -> tuple[Any, ...]:
    """Return the arrays, each repeated to the shape that they share."""
    shape = broadcast_shapes(*(x.shape for x in arrays))
    return tuple(broadcast_to(x, shape) for x in arrays)


def take(x: Any, indices: Any, /, *, axis: int | None = None) -> Any:
    """Return the elements at these positions along an axis; one dimension needs none named."""
    if axis is None:
        if x.ndim != 1:
            raise BindingError(f"take() needs an axis for an array of {x.ndim} dimensions")
        axis = 0
    return _aten.index_select(x, axis, indices)


def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> _core.Tensor:
    """Return the array as a tensor of another dtype; itself, if it has it and `copy` is False."""
    return asarray(x).to(dtype=dtype, device=device, copy=copy)
