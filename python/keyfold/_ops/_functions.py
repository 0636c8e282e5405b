"""Functions by their names in the Python array API standard, over the operators in `ops.aten`.

They take what the operators take, tensors and arrays of other libraries, and give results of the
caller's own library. Python numbers may stand on either side of an operator of two operands.
An `axis` may be given by position, as in NumPy, and as `dim`, PyTorch's name; `keepdims` as
`keepdim`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Never, Unpack

from keyfold import _core
from keyfold._default import dispatcher as _default
from keyfold._errors import BindingError, ShapeError
from keyfold._messages import unexpected
from keyfold._ops._axis import FIRST, LAST, Axis, Dim, DimOrNone, Dims, axis_of, several
from keyfold._ops._creation import asarray, sizes_of

__all__ = [
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
    "permute_dims",
    "reshape",
    "softmax",
    "squeeze",
    "stack",
    "take",
]

_aten = _default.ops.aten


def _is_number(x: Any) -> bool:
    return isinstance(x, (bool, int, float, complex)) and not hasattr(x, "dtype")


def softmax(x: Any, /, axis: int = LAST, *, out: Any = None, **other: Unpack[Dim]) -> Any:
    """Return positive numbers that add up to 1 along an axis. Not in the standard."""
    axis = axis_of(softmax, axis, other)
    return _aten.softmax(x, axis) if out is None else _aten.softmax.out(x, axis, out=out)


def log_softmax(x: Any, /, axis: int = LAST, *, out: Any = None, **other: Unpack[Dim]) -> Any:
    """Return the logarithms of the softmax along an axis. Not in the standard."""
    axis = axis_of(log_softmax, axis, other)
    return _aten.log_softmax(x, axis) if out is None else _aten.log_softmax.out(x, axis, out=out)


def dropout(x: Any, /, p: float = 0.5, *, train: bool = True) -> Any:
    """Return the array with random elements replaced by 0. Not in the standard.

    The others are scaled by `1 / (1 - p)`, so that the expectation doesn't change. The random
    numbers are the process's own, see `manual_seed`.

    Args:
        x: an array of floats.
        p: the probability of each element to be replaced, from 0 to 1.
        train: False to return the array as it is.

    Raises:
        InvalidValue: the probability is out of range.
    """
    return _aten.dropout(x, p, train)


def matmul(x1: Any, x2: Any, /, *, out: Any = None) -> Any:
    """Return the matrix product over the last two dimensions; the ones before broadcast."""
    return _aten.matmul(x1, x2) if out is None else _aten.matmul.out(x1, x2, out=out)


def _ndim(x: Any, function: str, argument: str = "x") -> int:
    try:
        ndim: int = x.ndim
    except AttributeError:
        raise BindingError(
            f"keyfold.{function}() argument {argument!r} must be an array, not "
            f"{type(x).__name__} {str(x)[:60]}; keyfold.asarray makes one of lists and numbers"
        ) from None
    return ndim


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


def expand_dims(x: Any, /, axis: int = FIRST, **other: Unpack[Dim]) -> Any:
    """Return the array with a dimension of size 1 more, at `axis`: a view."""
    return _aten.unsqueeze(x, axis_of(expand_dims, axis, other))


def squeeze(x: Any, /, axis: Axis = None, **other: Unpack[Dims]) -> Any:
    """Return the array without these dimensions of size 1, or without all of them: a view."""
    axis = axis_of(squeeze, axis, other)
    if axis is None:
        return _aten.squeeze(x)
    ndim, axes = _ndim(x, "squeeze"), several(axis)
    if not hasattr(axes, "__iter__"):
        return _aten.squeeze(x, axes)
    # From the last on, so that each still counts as it did.
    for place in sorted((at + ndim if at < 0 else at for at in axes), reverse=True):
        x = _aten.squeeze(x, place)
    return x


def flip(x: Any, /, axis: Axis = None, **other: Unpack[Dims]) -> Any:
    """Return the array in reverse order along some axes, or along all: a view."""
    axes = several(axis_of(flip, axis, other))
    return _aten.flip(x, tuple(range(_ndim(x, "flip"))) if axes is None else axes)


def concat(
    arrays: Sequence[Any],
    /,
    axis: int | None = FIRST,
    *,
    out: Any = None,
    **other: Unpack[DimOrNone],
) -> Any:
    """Return the arrays one behind the other along an axis; flattened first if it is None.

    Raises:
        ShapeError: there are none, or their shapes differ elsewhere than along the axis.
    """
    axis = axis_of(concat, axis, other)
    if axis is None:
        arrays, axis = [_aten.reshape(x, (-1,)) for x in arrays], 0
    return _aten.cat(arrays, axis) if out is None else _aten.cat.out(arrays, axis, out=out)


def stack(
    arrays: Sequence[Any], /, axis: int = FIRST, *, out: Any = None, **other: Unpack[Dim]
) -> Any:
    """Return the arrays side by side along a new axis.

    Raises:
        ShapeError: there are none, or their shapes differ.
    """
    axis = axis_of(stack, axis, other)
    return _aten.stack(arrays, axis) if out is None else _aten.stack.out(arrays, axis, out=out)


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


def take(
    x: Any,
    indices: Any,
    /,
    axis: int | None = None,
    *,
    out: Any = None,
    **other: Unpack[DimOrNone],
) -> Any:
    """Return the elements at these positions along an axis; one dimension needs none named."""
    axis = axis_of(take, axis, other)
    if axis is None:
        ndim = _ndim(x, "take")
        if ndim != 1:
            raise BindingError(f"take() needs an axis for an array of {ndim} dimensions")
        axis = 0
    if out is not None:
        return _aten.index_select.out(x, axis, indices, out=out)
    return _aten.index_select(x, axis, indices)


def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> _core.Tensor:
    """Return the array as a tensor of another dtype; itself, if it has it and `copy` is False."""
    return asarray(x).to(dtype=dtype, device=device, copy=copy)
