"""An `axis` and `keepdims`, given by NumPy's names or by PyTorch's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypedDict

from keyfold._errors import BindingError
from keyfold._messages import unexpected
from keyfold._ops._creation import is_index

__all__ = [
    "FIRST",
    "LAST",
    "Axis",
    "Dim",
    "DimOrNone",
    "Dims",
    "ReducedDim",
    "ReducedDims",
    "axes_of",
    "axis_of",
    "reduced",
    "several",
]

Axis = int | Sequence[int] | None


class Dim(TypedDict, total=False):
    """PyTorch's name of an axis."""

    dim: int


class DimOrNone(TypedDict, total=False):
    """PyTorch's name of an axis that may be None."""

    dim: int | None


class Dims(TypedDict, total=False):
    """PyTorch's name of one axis or several."""

    dim: Axis


class ReducedDim(TypedDict, total=False):
    """PyTorch's names of the one axis that is reduced, and of whether it stays."""

    dim: int | None
    keepdim: bool | None


class ReducedDims(TypedDict, total=False):
    """PyTorch's names of the axes that are reduced, and of whether they stay."""

    dim: Axis
    keepdim: bool | None


class _Default(int):
    """The axis that a function has by default: not the same object as one that was given."""

    __slots__ = ()


LAST = _Default(-1)
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


def reduced(
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
    return axis_of(function, axis, other), keepdims


def axes_of(
    function: Callable[..., Any], axis: Any, keepdims: bool | None, other: Any
) -> tuple[Any, Any]:
    """As `reduced`, of a function that takes several axes."""
    if axis is None and keepdims is None and not other:
        return None, False
    axis, keepdims = reduced(function, axis, keepdims, other)
    return several(axis), keepdims


def several(axis: Any) -> Any:
    """One axis as a tuple of axes. What is none stays as it is, for the operator to refuse."""
    return (axis,) if is_index(axis) else axis
