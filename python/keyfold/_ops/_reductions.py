"""Reductions by their names in the Python array API standard, over the operators in `ops.aten`."""

from __future__ import annotations

from typing import Any, Unpack

from keyfold._default import dispatcher as _default
from keyfold._ops._axis import Axis, ReducedDim, ReducedDims, axes_of, reduced

__all__ = ["all", "any", "argmax", "argmin", "max", "mean", "min", "sum"]

_aten = _default.ops.aten


def sum(
    x: Any,
    /,
    axis: Axis = None,
    *,
    dtype: Any = None,
    keepdims: bool | None = None,
    out: Any = None,
    **other: Unpack[ReducedDims],
) -> Any:
    """Return the sum of all elements, or along axes. Whole numbers and bools add up to int64.

    Unsigned ones add up to uint64. The result's bits don't depend on the number of threads.
    """
    axes, keepdims = axes_of(sum, axis, keepdims, other)
    if out is not None:
        return _aten.sum.dim_out(x, axes, keepdims, dtype=dtype, out=out)
    return _aten.sum.dim(x, axes, keepdims, dtype=dtype)


def mean(
    x: Any,
    /,
    axis: Axis = None,
    *,
    keepdims: bool | None = None,
    out: Any = None,
    **other: Unpack[ReducedDims],
) -> Any:
    """Return the mean of all elements, or along axes."""
    axes, keepdims = axes_of(mean, axis, keepdims, other)
    if out is not None:
        return _aten.mean.dim_out(x, axes, keepdims, out=out)
    return _aten.mean.dim(x, axes, keepdims)


def max(
    x: Any,
    /,
    axis: Axis = None,
    *,
    keepdims: bool | None = None,
    out: Any = None,
    **other: Unpack[ReducedDims],
) -> Any:
    """Return the greatest element, or the greatest along axes. NaN goes through."""
    axes, keepdims = axes_of(max, axis, keepdims, other)
    if out is not None:
        return _aten.amax.out(x, axes, keepdims, out=out)
    return _aten.amax(x, axes, keepdims)


def min(
    x: Any,
    /,
    axis: Axis = None,
    *,
    keepdims: bool | None = None,
    out: Any = None,
    **other: Unpack[ReducedDims],
) -> Any:
    """Return the least element, or the least along axes. NaN goes through."""
    axes, keepdims = axes_of(min, axis, keepdims, other)
    if out is not None:
        return _aten.amin.out(x, axes, keepdims, out=out)
    return _aten.amin(x, axes, keepdims)


def all(
    x: Any,
    /,
    axis: Axis = None,
    *,
    keepdims: bool | None = None,
    out: Any = None,
    **other: Unpack[ReducedDims],
) -> Any:
    """Return whether all elements, or all along axes, are true or nonzero."""
    axes, keepdims = axes_of(all, axis, keepdims, other)
    if out is not None:
        return _aten.all.out(x, axes, keepdims, out=out)
    return _aten.all(x, axes, keepdims)


def any(
    x: Any,
    /,
    axis: Axis = None,
    *,
    keepdims: bool | None = None,
    out: Any = None,
    **other: Unpack[ReducedDims],
) -> Any:
    """Return whether any element, or any along axes, is true or nonzero."""
    axes, keepdims = axes_of(any, axis, keepdims, other)
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
    **other: Unpack[ReducedDim],
) -> Any:
    """Return where the greatest element is, along an axis or in the flattened array."""
    axis, keepdims = reduced(argmax, axis, keepdims, other)
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
    **other: Unpack[ReducedDim],
) -> Any:
    """Return where the least element is, along an axis or in the flattened array."""
    axis, keepdims = reduced(argmin, axis, keepdims, other)
    if out is not None:
        return _aten.argmin.out(x, axis, keepdims, out=out)
    return _aten.argmin(x, axis, keepdims)
