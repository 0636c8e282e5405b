"""Functions by their names in the Python array API standard, over the operators in `ops.aten`.

They take what the operators take, tensors and arrays of other libraries, and give results of the
caller's own library. Python numbers may stand on either side of an operator of two operands.
An `axis` may be given by position, as in NumPy, and as `dim`, PyTorch's name; `keepdims` as
`keepdim`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Never, TypedDict, Unpack

from keyfold import _core
from keyfold._creation import asarray, is_index, sizes_of
from keyfold._default import dispatcher as _default
from keyfold._errors import BindingError, ShapeError
from keyfold._messages import unexpected

__all__ = [
    "all",
    "any",
    "argmax",
    "argmin",
    "astype",
    "broadcast_arrays",
    "broadcast_shapes",
    "broadcast_to",
    "concat",
    "dropout",
    "expand_dims",
    "flip",
    "log_softmax",
    "matmul",
    "matrix_transpose",
    "max",
    "mean",
    "min",
    "permute_dims",
    "reshape",
    "softmax",
    "squeeze",
    "stack",
    "sum",
    "take",
]

_aten = _default.ops.aten
_Axis = int | Sequence[int] | None


class _Dim(TypedDict, total=False):
    """PyTorch's name of an axis."""

    dim: int


class _DimOrNone(TypedDict, total=False):
    """PyTorch's name of an axis that may be None."""

    dim: int | None


class _Dims(TypedDict, total=False):
    """PyTorch's name of one axis or several."""

    dim: _Axis


class _ReducedDim(TypedDict, total=False):
    """PyTorch's names of the one axis that is reduced, and of whether it stays."""

    dim: int | None
    keepdim: bool | None


class _ReducedDims(TypedDict, total=False):
    """PyTorch's names of the axes that are reduced, and of whether they stay."""

    dim: _Axis
    keepdim: bool | None


class _Default(int):
    """The axis that a function has by default: not the same object as one that was given."""

    __slots__ = ()


_LAST = _Default(-1)
_FIRST = _Default(0)


def _axis_of(function: Callable[..., Any], axis: Any, other: Any) -> Any:
    """The axis of a function that got `other` keywords than its own."""
    if other:
        if "dim" in other:
            if axis is not None and not isinstance(axis, _Default):
                raise _given_twice(function, "axis", "dim")
            axis = other.pop("dim")
        if other:
            raise unexpected(function, other)
    return int(axis) if isinstance(axis, _Default) else axis


def _given_twice(function: Callable[..., Any], name: str, other: str) -> BindingError:
    return BindingError(
        f"keyfold.{function.__name__}() got both {name!r} and {other!r}, which mean the same"
    )


def _reduced(
    function: Callable[..., Any], axis: Any, keepdims: bool | None, other: Any
) -> tuple[Any, Any]:
    """The axis and `keepdims` of a reduction that got `other` keywords than its own.

    0 and 1 are taken for False and True, as NumPy takes them.
    """
    if keepdims is None and not other:
        return axis, False
    if "keepdim" in other:
        if keepdims is not None:
            raise _given_twice(function, "keepdims", "keepdim")
        keepdims = other.pop("keepdim")
    if keepdims is None or (isinstance(keepdims, int) and keepdims in (0, 1)):
        keepdims = bool(keepdims)
    return _axis_of(function, axis, other), keepdims


def _axes_of(
    function: Callable[..., Any], axis: Any, keepdims: bool | None, other: Any
) -> tuple[Any, Any]:
    """As `_reduced`, of a function that takes several axes."""
    if axis is None and keepdims is None and not other:
        return None, False
    axis, keepdims = _reduced(function, axis, keepdims, other)
    return _several(axis), keepdims


def _several(axis: Any) -> Any:
    """One axis as a tuple of axes. What is none stays as it is, for the operator to refuse."""
    return (axis,) if is_index(axis) else axis


def _is_number(x: Any) -> bool:
    return isinstance(x, (bool, int, float, complex)) and not hasattr(x, "dtype")


def softmax(x: Any, /, axis: int = _LAST, *, out: Any = None, **other: Unpack[_Dim]) -> Any:
    """Return positive numbers that add up to 1 along an axis. Not in the standard."""
    axis = _axis_of(softmax, axis, other)
    return _aten.softmax(x, axis) if out is None else _aten.softmax.out(x, axis, out=out)


def log_softmax(x: Any, /, axis: int = _LAST, *, out: Any = None, **other: Unpack[_Dim]) -> Any:
    """Return the logarithms of the softmax along an axis. Not in the standard."""
    axis = _axis_of(log_softmax, axis, other)
    return _aten.log_softmax(x, axis) if out is None else _aten.log_softmax.out(x, axis, out=out)


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


def matmul(x1: Any, x2: Any, /) -> Any:
    """Return the matrix product over the last two dimensions; the ones before broadcast."""
    return _aten.matmul(x1, x2)


def _ndim(x: Any, function: str, argument: str = "x") -> int:
    try:
        ndim: int = x.ndim
    except AttributeError:
        raise BindingError(
            f"keyfold.{function}() argument {argument!r} must be an array, not "
            f"{type(x).__name__} {str(x)[:60]}; keyfold.asarray makes one of lists and numbers"
        ) from None
    return ndim


def sum(
    x: Any,
    /,
    axis: _Axis = None,
    *,
    dtype: Any = None,
    keepdims: bool | None = None,
    out: Any = None,
    **other: Unpack[_ReducedDims],
) -> Any:
    """Return the sum of all elements, or along axes. Whole numbers and bools add up to int64.

    Unsigned ones add up to uint64. The result's bits don't depend on the number of threads.
    """
    axes, keepdims = _axes_of(sum, axis, keepdims, other)
    if out is not None:
        return _aten.sum.dim_out(x, axes, keepdims, dtype=dtype, out=out)
    return _aten.sum.dim(x, axes, keepdims, dtype=dtype)


def mean(
    x: Any,
    /,
    axis: _Axis = None,
    *,
    keepdims: bool | None = None,
    out: Any = None,
    **other: Unpack[_ReducedDims],
) -> Any:
    """Return the mean of all elements, or along axes."""
    axes, keepdims = _axes_of(mean, axis, keepdims, other)
    if out is not None:
        return _aten.mean.dim_out(x, axes, keepdims, out=out)
    return _aten.mean.dim(x, axes, keepdims)


def max(
    x: Any,
    /,
    axis: _Axis = None,
    *,
    keepdims: bool | None = None,
    out: Any = None,
    **other: Unpack[_ReducedDims],
) -> Any:
    """Return the greatest element, or the greatest along axes. NaN goes through."""
    axes, keepdims = _axes_of(max, axis, keepdims, other)
    if out is not None:
        return _aten.amax.out(x, axes, keepdims, out=out)
    return _aten.amax(x, axes, keepdims)


def min(
    x: Any,
    /,
    axis: _Axis = None,
    *,
    keepdims: bool | None = None,
    out: Any = None,
    **other: Unpack[_ReducedDims],
) -> Any:
    """Return the least element, or the least along axes. NaN goes through."""
    axes, keepdims = _axes_of(min, axis, keepdims, other)
    if out is not None:
        return _aten.amin.out(x, axes, keepdims, out=out)
    return _aten.amin(x, axes, keepdims)


def all(
    x: Any,
    /,
    axis: _Axis = None,
    *,
    keepdims: bool | None = None,
    out: Any = None,
    **other: Unpack[_ReducedDims],
) -> Any:
    """Return whether all elements, or all along axes, are true or nonzero."""
    axes, keepdims = _axes_of(all, axis, keepdims, other)
    if out is not None:
        return _aten.all.out(x, axes, keepdims, out=out)
    return _aten.all(x, axes, keepdims)


def any(
    x: Any,
    /,
    axis: _Axis = None,
    *,
    keepdims: bool | None = None,
    out: Any = None,
    **other: Unpack[_ReducedDims],
) -> Any:
    """Return whether any element, or any along axes, is true or nonzero."""
    axes, keepdims = _axes_of(any, axis, keepdims, other)
    if out is not None:
        return _aten.any.out(x, axes, keepdims, out=out)
    return _aten.any(x, axes, keepdims)


def argmax(
    x: Any,
    /,
    axis: int | None = None,
    *,
    keepdims: bool | None = None,
    out: Any = None,
    **other: Unpack[_ReducedDim],
) -> Any:
    """Return where the greatest element is, along an axis or in the flattened array."""
    axis, keepdims = _reduced(argmax, axis, keepdims, other)
    if out is not None:
        return _aten.argmax.out(x, axis, keepdims, out=out)
    return _aten.argmax(x, axis, keepdims)


def argmin(
    x: Any,
    /,
    axis: int | None = None,
    *,
    keepdims: bool | None = None,
    out: Any = None,
    **other: Unpack[_ReducedDim],
) -> Any:
    """Return where the least element is, along an axis or in the flattened array."""
    axis, keepdims = _reduced(argmin, axis, keepdims, other)
    if out is not None:
        return _aten.argmin.out(x, axis, keepdims, out=out)
    return _aten.argmin(x, axis, keepdims)


def reshape(x: Any, /, shape: int | Sequence[int], *sizes: int, copy: bool | None = None) -> Any:
    """Return the elements in another shape: a view where the strides allow it, else a copy.

    Args:
        x: the array.
        shape: the sizes, in a tuple or one by one; one of them may be -1, for what is left.
        sizes: the sizes after the first, where they are given one by one.
        copy: True for a copy in any case; False for none, and an error where one is needed.

    Raises:
        ShapeError: the shapes hold different numbers of elements, or a copy is needed.
    """
    sizes = sizes_of("reshape", shape, sizes)
    if copy:
        x = _aten.clone(x)
    result = _aten.reshape(x, sizes)
    if copy is False and not _same_memory(x, result):
        raise ShapeError(f"reshape(): shape {tuple(sizes)} can't be had here without a copy")
    return result


def _same_memory(x: Any, y: Any) -> bool:
    a, b = asarray(x), asarray(y)
    return a.size == 0 or a.data_ptr() == b.data_ptr()


def permute_dims(x: Any, /, axes: Sequence[int], **foreign: Never) -> Any:
    """Return the array with its dimensions in another order: a view."""
    if foreign:
        raise unexpected(permute_dims, foreign)
    return _aten.permute(x, axes)


def matrix_transpose(x: Any, /) -> Any:
    """Return the array with its last two dimensions swapped: a view."""
    ndim = _ndim(x, "matrix_transpose")
    if ndim < 2:
        raise ShapeError(f"matrix_transpose() needs 2 dimensions or more, not {ndim}")
    return _aten.transpose(x, -2, -1)


def expand_dims(x: Any, /, axis: int = _FIRST, **other: Unpack[_Dim]) -> Any:
    """Return the array with a dimension of size 1 more, at `axis`: a view."""
    return _aten.unsqueeze(x, _axis_of(expand_dims, axis, other))


def squeeze(x: Any, /, axis: _Axis = None, **other: Unpack[_Dims]) -> Any:
    """Return the array without these dimensions of size 1, or without all of them: a view."""
    axis = _axis_of(squeeze, axis, other)
    if axis is None:
        return _aten.squeeze(x)
    ndim, axes = _ndim(x, "squeeze"), _several(axis)
    if not hasattr(axes, "__iter__"):
        return _aten.squeeze(x, axes)
    # From the last on, so that each still counts as it did.
    for place in sorted((at + ndim if at < 0 else at for at in axes), reverse=True):
        x = _aten.squeeze(x, place)
    return x


def flip(x: Any, /, axis: _Axis = None, **other: Unpack[_Dims]) -> Any:
    """Return the array in reverse order along some axes, or along all: a view."""
    axes = _several(_axis_of(flip, axis, other))
    return _aten.flip(x, tuple(range(_ndim(x, "flip"))) if axes is None else axes)


def concat(arrays: Sequence[Any], /, axis: int | None = _FIRST, **other: Unpack[_DimOrNone]) -> Any:
    """Return the arrays one behind the other along an axis; flattened first if it is None.

    Raises:
        ShapeError: there are none, or their shapes differ elsewhere than along the axis.
    """
    axis = _axis_of(concat, axis, other)
    if axis is None:
        return _aten.cat([_aten.reshape(x, (-1,)) for x in arrays], 0)
    return _aten.cat(arrays, axis)


def stack(arrays: Sequence[Any], /, axis: int = _FIRST, **other: Unpack[_Dim]) -> Any:
    """Return the arrays side by side along a new axis.

    Raises:
        ShapeError: there are none, or their shapes differ.
    """
    return _aten.stack(arrays, _axis_of(stack, axis, other))


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


def broadcast_to(x: Any, /, shape: int | Sequence[int], *sizes: int) -> Any:
    """Return the array repeated to a shape: a view with stride 0."""
    return _aten.expand(x, sizes_of("broadcast_to", shape, sizes))


def broadcast_arrays(*arrays: Any) -> tuple[Any, ...]:
    """Return the arrays, each repeated to the shape that they share."""
    for x in arrays:
        _ndim(x, "broadcast_arrays", "arrays")
    shape = broadcast_shapes(*(x.shape for x in arrays))
    return tuple(broadcast_to(x, shape) for x in arrays)


def take(x: Any, indices: Any, /, axis: int | None = None, **other: Unpack[_DimOrNone]) -> Any:
    """Return the elements at these positions along an axis; one dimension needs none named."""
    axis = _axis_of(take, axis, other)
    if axis is None:
        ndim = _ndim(x, "take")
        if ndim != 1:
            raise BindingError(f"take() needs an axis for an array of {ndim} dimensions")
        axis = 0
    return _aten.index_select(x, axis, indices)


def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> _core.Tensor:
    """Return the array as a tensor of another dtype; itself, if it has it and `copy` is False."""
    return asarray(x).to(dtype=dtype, device=device, copy=copy)
