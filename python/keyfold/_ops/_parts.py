"""Parts of arrays along an axis, and arrays whose parts are moved or repeated.

Parts are views. They are returned in a tuple, as in the array API.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Unpack

from keyfold._default import dispatcher as _default
from keyfold._errors import InvalidValue, ShapeError
from keyfold._messages import no_array, refused
from keyfold._ops._axis import FIRST, Axis, DimOrNone, Dims, axis_of, several
from keyfold._ops._creation import is_index

__all__ = [
    "array_split",
    "chunk",
    "moveaxis",
    "roll",
    "split",
    "tile",
    "unstack",
]

_aten = _default.ops.aten


def _shape(x: Any, function: str) -> tuple[int, ...]:
    try:
        return tuple(x.shape)
    except AttributeError:
        raise no_array(function, "x", x) from None


def _axis(function: Any, axis: Any, other: Any) -> int:
    """One axis, given by NumPy's name or by PyTorch's."""
    axis = axis_of(function, axis, other)
    if not is_index(axis):
        raise refused(function.__name__, "axis", "a whole number", axis)
    return int(axis)


def unstack(x: Any, /, *, axis: int | None = FIRST, **other: Unpack[DimOrNone]) -> tuple[Any, ...]:
    """Return the arrays along an axis, each without it: views.

    Args:
        x: the array.
        axis: the axis.

    Raises:
        IndexOutOfRange: the array has no such axis.
    """
    return tuple(_aten.unbind(x, _axis(unstack, axis, other)))


def split(
    x: Any,
    indices_or_sections: int | Sequence[int],
    /,
    axis: int | None = FIRST,
    **other: Unpack[DimOrNone],
) -> tuple[Any, ...]:
    """Return the parts of an array along an axis: views. As in NumPy.

    Args:
        x: the array.
        indices_or_sections: the number of parts, which are of one size; or where parts begin but
            the first.
        axis: the axis.

    Raises:
        ShapeError: so many parts of one size don't divide the axis.
        InvalidValue: the number of parts is less than 1, or the places don't ascend.
    """
    at = _axis(split, axis, other)
    count: Any = indices_or_sections
    if is_index(count) and count > 0:
        shape = _shape(x, "split")
        if -len(shape) <= at < len(shape) and shape[at] % count:
            message = f"split(): axis {at} of size {shape[at]} has no {count} equal parts"
            raise ShapeError(f"{message}; use array_split for parts that differ by 1")
    return _split("split", x, indices_or_sections, at)


def array_split(
    x: Any,
    indices_or_sections: int | Sequence[int],
    /,
    axis: int | None = FIRST,
    **other: Unpack[DimOrNone],
) -> tuple[Any, ...]:
    """Return the parts of an array along an axis, which may differ in size: views. As in NumPy.

    Args:
        x: the array.
        indices_or_sections: the number of parts, whose sizes differ by 1 at most, the larger ones
            in front; or where parts begin but the first.
        axis: the axis.

    Raises:
        InvalidValue: the number of parts is less than 1, or the places don't ascend.
    """
    return _split("array_split", x, indices_or_sections, _axis(array_split, axis, other))


def _split(function: str, x: Any, where: Any, axis: int) -> tuple[Any, ...]:
    if is_index(where):
        return tuple(_aten.tensor_split.sections(x, int(where), axis))
    try:
        places = [operator.index(place) for place in where]
    except TypeError:
        name, wanted = "indices_or_sections", "a whole number, or several in a tuple"
        raise refused(function, name, wanted, where) from None
    return tuple(_aten.tensor_split.indices(x, places, axis))


def chunk(
    x: Any, chunks: int, /, axis: int | None = FIRST, **other: Unpack[DimOrNone]
) -> tuple[Any, ...]:
    """Return at most so many parts of an array along an axis, all but the last of one size: views.

    Args:
        x: the array.
        chunks: the greatest number of parts.
        axis: the axis.

    Raises:
        InvalidValue: the number of parts is less than 1.
    """
    return tuple(_aten.chunk(x, chunks, _axis(chunk, axis, other)))


def _normalized(function: str, axis: Any, rank: int) -> int:
    if not is_index(axis):
        raise refused(function, "axis", "a whole number, or several in a tuple", axis)
    if not -rank <= axis < rank:
        raise ShapeError(f"{function}(): an array of {rank} dimensions has no axis {axis}")
    return int(axis) % rank


def moveaxis(x: Any, source: Axis, destination: Axis, /) -> Any:
    """Return the array with axes at other places and the others in their order: a view.

    Args:
        x: the array.
        source: the axis to move, or several in a tuple.
        destination: its new place, or those of several.

    Raises:
        ShapeError: the array has no such axis.
        InvalidValue: an axis or a place is given twice, or the numbers of both differ.
    """
    rank = len(_shape(x, "moveaxis"))
    taken, places = (
        [_normalized("moveaxis", axis, rank) for axis in _numbers("moveaxis", name, axes)]
        for name, axes in (("source", source), ("destination", destination))
    )
    if len(taken) != len(places) or len({*taken}) != len(taken) or len({*places}) != len(places):
        raise InvalidValue(f"moveaxis(): axes {source} don't go to the places {destination}")
    axes = [axis for axis in range(rank) if axis not in taken]
    for place, axis in sorted(zip(places, taken, strict=True)):
        axes.insert(place, axis)
    return _aten.permute(x, axes)


def _numbers(function: str, argument: str, given: Any) -> list[Any]:
    """One whole number, or several in any iterable, in a list."""
    try:
        numbers = [given] if is_index(given) else list(given)
    except TypeError:
        numbers = [None]
    if not all(is_index(number) for number in numbers):
        raise refused(function, argument, "a whole number, or several in a tuple", given)
    return numbers


def roll(x: Any, shift: int | Sequence[int], /, axis: Axis = None, **other: Unpack[Dims]) -> Any:
    """Return the elements moved on along axes; those beyond the end come to the front.

    Args:
        x: the array.
        shift: by how many places, or a number for each axis.
        axis: the axis, or several in a tuple; None to flatten first, and to restore the shape.

    Raises:
        InvalidValue: the numbers of shifts and of axes differ.
    """
    axes, shape = several(axis_of(roll, axis, other)), _shape(x, "roll")
    if axes is None:
        flat = roll(_aten.reshape(x, (-1,)), shift, axis=0)
        return _aten.reshape(flat, shape)
    shifts = _numbers("roll", "shift", shift)
    shifts = shifts * len(axes) if is_index(shift) else shifts
    if len(shifts) != len(axes):
        raise InvalidValue(f"roll(): {len(shifts)} shifts for {len(axes)} axes; give one for each")
    x = _aten.clone(x)
    for places, axis in zip(shifts, axes, strict=True):
        at = _normalized("roll", axis, len(shape))
        back = -int(places) % shape[at] if shape[at] else 0
        if back:
            x = _aten.cat([_aten.slice(x, at, back), _aten.slice(x, at, 0, back)], at)
    return x


def tile(x: Any, repetitions: int | Sequence[int], /) -> Any:
    """Return the array repeated along its axes.

    Args:
        x: the array.
        repetitions: how often along each axis, the last one for the last axis; axes that the array
            lacks are added in front.

    Raises:
        InvalidValue: a number of repetitions is negative.
    """
    shape = _shape(x, "tile")
    counts = _numbers("tile", "repetitions", repetitions)
    if any(count < 0 for count in counts):
        raise InvalidValue(f"tile(): the repetitions {repetitions} aren't numbers from 0 on")
    rank = max(len(shape), len(counts))
    sizes = [1] * (rank - len(shape)) + list(shape)
    counts = [1] * (rank - len(counts)) + counts
    spread = [size for pair in zip(counts, sizes, strict=True) for size in pair]
    ones = [size for own in sizes for size in (1, own)]
    whole = [count * size for count, size in zip(counts, sizes, strict=True)]
    return _aten.clone(_aten.reshape(_aten.expand(_aten.reshape(x, ones), spread), whole))
