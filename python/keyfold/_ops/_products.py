"""Products of arrays of the array API standard, and `outer`, by operators for matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from keyfold._default import dispatcher as _default
from keyfold._errors import InvalidValue, ShapeError
from keyfold._messages import no_array, refused
from keyfold._ops._creation import is_index

__all__ = ["outer", "tensordot", "vecdot"]

_aten = _default.ops.aten


def shape_of(x: Any, function: str, argument: str) -> tuple[int, ...]:
    """Return an array's shape, which a list or a number doesn't have."""
    try:
        return tuple(x.shape)
    except (AttributeError, TypeError):
        raise no_array(function, argument, x) from None


def _is_complex(x: Any) -> bool:
    return "complex" in str(x.dtype)


def outer(x1: Any, x2: Any, /) -> Any:
    """Return the products of each element of one vector with each of another.

    Args:
        x1: an array of shape `(M,)`, for the rows.
        x2: an array of shape `(N,)`, for the columns.

    Raises:
        ShapeError: an array doesn't have 1 dimension.
    """
    for name, x in (("x1", x1), ("x2", x2)):
        shape = shape_of(x, "outer", name)
        if len(shape) != 1:
            raise ShapeError(f"outer() takes arrays of 1 dimension; {name} has shape {shape}")
    return _aten.mul(_aten.unsqueeze(x1, 1), x2)


def vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    """Return the dot products of vectors along an axis; complex `x1` is conjugated.

    The other axes broadcast.

    Args:
        x1: an array.
        x2: an array whose size along the axis is that of `x1`.
        axis: the axis of both arrays, counted from the last one, as a negative number, where their
            numbers of dimensions differ.

    Raises:
        ShapeError: the sizes along the axis differ, the others don't broadcast, or an array lacks
            the axis.
    """
    if not is_index(axis):
        raise refused("vecdot", "axis", "a whole number", axis)
    shapes = [shape_of(x1, "vecdot", "x1"), shape_of(x2, "vecdot", "x2")]
    places = []
    for name, shape in zip(("x1", "x2"), shapes, strict=True):
        if not -len(shape) <= axis < len(shape):
            raise ShapeError(f"vecdot(): {name} has shape {shape}, without axis {axis}")
        places.append(axis % len(shape) - len(shape))
    if places[0] != places[1]:
        raise ShapeError(
            f"vecdot(): axis {axis} of shapes {shapes[0]} and {shapes[1]} isn't the same one when "
            f"counted from the last; give a negative axis"
        )
    sizes = [shape[places[0]] for shape in shapes]
    if sizes[0] != sizes[1]:
        raise ShapeError(
            f"vecdot(): the sizes along axis {axis} of shapes {shapes[0]} and {shapes[1]} are "
            f"{sizes[0]} and {sizes[1]}, which must be equal"
        )
    rows, columns = (_last(x, places[0]) for x in (x1, x2))
    if _is_complex(x1):
        rows = _aten.conj(rows)
    product = _aten.matmul(_aten.unsqueeze(rows, -2), _aten.unsqueeze(columns, -1))
    return _aten.squeeze(_aten.squeeze(product, -1), -1)


def _last(x: Any, axis: int) -> Any:
    """The array with an axis, counted from the last, moved to the end."""
    rank = len(x.shape)
    order = [place for place in range(rank) if place != axis + rank]
    return x if axis == -1 else _aten.permute(x, [*order, axis + rank])


def tensordot(x1: Any, x2: Any, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> Any:
    """Return the sum of products over axes of one array and as many of another.

    The result has the other axes of `x1`, and then those of `x2`.

    Args:
        x1: an array.
        x2: an array.
        axes: how many axes, the last ones of `x1` and the first ones of `x2`; or the axes of each,
            in two sequences.

    Raises:
        ShapeError: the sizes along a pair of axes differ, or an array lacks an axis.
        InvalidValue: the sequences differ in length, or name an axis twice, or the number is
            negative.
    """
    shapes = (shape_of(x1, "tensordot", "x1"), shape_of(x2, "tensordot", "x2"))
    left, right = _pairs(axes, shapes)
    for a, b in zip(left, right, strict=True):
        if shapes[0][a] != shapes[1][b]:
            raise ShapeError(
                f"tensordot(): axis {a} of shape {shapes[0]} and axis {b} of shape {shapes[1]} "
                f"have the sizes {shapes[0][a]} and {shapes[1][b]}, which must be equal"
            )
    kept = [
        [axis for axis in range(len(shape)) if axis not in used]
        for shape, used in zip(shapes, (left, right), strict=True)
    ]
    sizes = [[shape[axis] for axis in own] for shape, own in zip(shapes, kept, strict=True)]
    inner = math.prod(shapes[0][axis] for axis in left)
    rows = _aten.reshape(_aten.permute(x1, [*kept[0], *left]), [math.prod(sizes[0]), inner])
    columns = _aten.reshape(_aten.permute(x2, [*right, *kept[1]]), [inner, math.prod(sizes[1])])
    return _aten.reshape(_aten.matmul(rows, columns), [*sizes[0], *sizes[1]])


def _pairs(axes: Any, shapes: tuple[tuple[int, ...], ...]) -> tuple[list[int], list[int]]:
    """The axes of each array, counted from the front."""
    ranks = (len(shapes[0]), len(shapes[1]))
    if is_index(axes):
        count = int(axes)
        if count < 0:
            raise InvalidValue(f"tensordot(): axes is a number of axes, and not {count}")
        if count > min(ranks):
            raise ShapeError(
                f"tensordot(): axes is {count}, but the shapes are {shapes[0]} and {shapes[1]}"
            )
        return list(range(ranks[0] - count, ranks[0])), list(range(count))
    try:
        left, right = ([*own] for own in axes)
    except (TypeError, ValueError):
        raise refused("tensordot", "axes", "a number, or two sequences of axes", axes) from None
    if len(left) != len(right):
        raise InvalidValue(
            f"tensordot(): axes has {len(left)} axes for x1 and {len(right)} for x2, which must be "
            f"as many"
        )
    found: list[list[int]] = []
    for name, own, shape in zip(("x1", "x2"), (left, right), shapes, strict=True):
        for axis in own:
            if not is_index(axis):
                raise refused("tensordot", "axes", "a number, or two sequences of axes", axes)
            if not -len(shape) <= axis < len(shape):
                raise ShapeError(f"tensordot(): {name} has shape {shape}, without axis {axis}")
        places = [int(axis) % len(shape) for axis in own]
        if len(set(places)) != len(places):
            raise InvalidValue(f"tensordot(): axes names an axis of {name} twice: {own}")
        found.append(places)
    return found[0], found[1]
