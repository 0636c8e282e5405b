"""An `axis` and `keepdims`, given by NumPy's names or by PyTorch's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypedDict

from keyfold._errors import BindingError
from keyfold._messages import unexpected
from keyfold._ops._creation import is_index

__all__ = [
    "FIRST",
    "Axis",
    "DimOrNone",
    "Dims",
    "axis_of",
    "several",
]

Axis = int | Sequence[int] | None


class DimOrNone(TypedDict, total=False):
    """PyTorch's name of an axis that may be None."""

    dim: int | None


class Dims(TypedDict, total=False):
    """PyTorch's name of one axis or several."""

    dim: Axis


class _Default(int):
    """The axis that a function has by default: not the same object as one that was given."""

    __slots__ = ()


FIRST = _Default(0)


def axis_of(function: Callable[..., Any], axis: Any, other: Any) -> Any:
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


def several(axis: Any) -> Any:
    """One axis as a tuple of axes. What is none stays as it is, for the operator to refuse."""
    return (axis,) if is_index(axis) else axis
