"""Functions of the Python array API standard that do more than call one operator.

They take what the operators take, tensors and arrays of other libraries, and give results of the
caller's own library. Python numbers may stand on either side of an operator of two operands.
An `axis` may be given by position, as in NumPy, and as `dim`, PyTorch's name; `keepdims` as
`keepdim`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from keyfold import _core
from keyfold._default import dispatcher as _default
from keyfold._errors import BindingError, IndexOutOfRange, ShapeError
from keyfold._messages import no_array, refused
from keyfold._ops._axis import FIRST, Axis, DimOrNone, Dims, axis_of, several
from keyfold._ops._creation import asarray, copy_of, is_index, sizes_of

__all__ = [
    "astype",
    "broadcast_arrays",
    "broadcast_shapes",
    "broadcast_to",
    "concat",
    "embedding",
    "flip",
    "matrix_transpose",
    "reshape",
    "slice_read",
    "slice_write",
    "squeeze",
    "take",
]

_aten = _default.ops.aten
_keyfold = _default.ops.keyfold


def _ndim(x: Any, function: str, argument: str = "x") -> int:
    try:
        ndim: int = x.ndim
    except AttributeError:
        raise no_array(function, argument, x) from None
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
    copy = copy_of("reshape", copy)
    if copy:
        x = _aten.clone(x)
    result = _aten.reshape(x, sizes)
    if copy is False and not _same_memory(x, result):
        raise ShapeError(f"reshape(): shape {tuple(sizes)} can't be had here without a copy")
    return result


def _same_memory(x: Any, y: Any) -> bool:
    a, b = asarray(x), asarray(y)
    return a.size == 0 or a.data_ptr() == b.data_ptr()


def matrix_transpose(x: Any, /) -> Any:
    """Return the array with its last two dimensions swapped: a view."""
    ndim = _ndim(x, "matrix_transpose")
    if ndim < 2:
        raise ShapeError(f"matrix_transpose() needs 2 dimensions or more, not {ndim}")
    return _aten.transpose(x, -2, -1)


def _indices(given: Any) -> tuple[int, ...] | None:
    """Integers in any iterable; None where there are none or others."""
    items = tuple(given) if hasattr(given, "__iter__") else (None,)
    return tuple(int(item) for item in items) if all(map(is_index, items)) else None


def squeeze(x: Any, /, axis: Axis = None, **other: Unpack[Dims]) -> Any:
    """Return the array without these dimensions of size 1, or without all of them: a view."""
    axis = axis_of(squeeze, axis, other)
    if axis is None:
        return _aten.squeeze(x)
    ndim, axes = _ndim(x, "squeeze"), _indices(several(axis))
    if axes is None:
        wanted = "a whole number, or several in a tuple or list"
        raise refused("squeeze", "axis", wanted, axis)
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


def broadcast_shapes(*shapes: Sequence[int]) -> tuple[int, ...]:
    """Return the shape that these broadcast to."""
    result: list[int] = []
    for shape in shapes:
        given = _indices(shape)
        if given is None:
            raise refused("broadcast_shapes", "shapes", "whole numbers in a tuple or list", shape)
        sizes = [1] * (len(given) - len(result)) + result
        for back in range(1, len(given) + 1):
            old, new = sizes[-back], given[-back]
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


def embedding(
    indices: Any, weight: Any, /, padding_idx: int | None = None, *, out: Any = None
) -> Any:
    """Return the rows of a table that have these numbers.

    The result has the shape of the indices and, behind it, the length of a row. In the gradient the
    rows of one number are added up in order, those of float16 and bfloat16 in float32.

    Args:
        indices: integers from 0 on.
        weight: the table, an array of two dimensions.
        padding_idx: a row that gets no gradient, from the end where it is negative; None for none.
        out: an array to write the result to, which is returned.

    Raises:
        IndexOutOfRange: an index is negative or beyond the last row, or there is no such row.
        ShapeError: the table doesn't have two dimensions.
        DTypeError: the indices aren't integers.
    """
    padding = -1 if padding_idx is None else padding_idx
    if padding_idx is not None and is_index(padding_idx) and padding_idx < 0:
        rows = weight.shape[0] if _ndim(weight, "embedding", "weight") else 0
        if padding_idx < -rows:
            raise IndexOutOfRange(
                f"embedding(): argument 'padding_idx' is {padding_idx}, but the table has {rows} "
                f"rows; give a number from {-rows} to {rows - 1}, or None for no such row"
            )
        padding = padding_idx + rows
    if out is None:
        return _aten.embedding(weight, indices, padding)
    return _aten.embedding.out(weight, indices, padding, out=out)


def slice_read(x: Any, /, length: int) -> Any:
    """Return the first positions of a cache of shape (examples, positions, ...): a view.

    Args:
        x: the cache.
        length: the number of positions.

    Raises:
        IndexOutOfRange: the cache has fewer positions.
    """
    return _keyfold.slice_read(x, length)


def slice_write(x: Any, source: Any, /, pos: int) -> Any:
    """Return the cache after rows were written to it, in place, from a position on.

    Args:
        x: the cache, of shape (examples, positions, ...).
        source: a row for one position, of shape (examples, ...), or rows for several, which have a
            dimension more, at 1.
        pos: the first position that is written.

    Raises:
        IndexOutOfRange: the rows end behind the last position.
        ShapeError: the source has another shape.
    """
    return _keyfold.slice_write_(x, source, pos)


def astype(x: Any, dtype: Any, /, *, copy: bool | None = True, device: Any = None) -> _core.Tensor:
    """Return the array as a tensor of another dtype.

    Args:
        x: the array.
        dtype: the dtype.
        copy: True for a copy in any case; False or None for the array itself, if it has the dtype.
        device: the device; by default the array's.
    """
    return asarray(x).to(dtype=dtype, device=device, copy=bool(copy_of("astype", copy)))
