"""Cumulative sums and products along an axis."""

from __future__ import annotations

from typing import Any, Unpack

from keyfold._default import dispatcher as _default
from keyfold._errors import BindingError
from keyfold._messages import no_array
from keyfold._ops._axis import DimOrNone, axis_of

__all__ = [
    "cumulative_prod",
    "cumulative_sum",
]

_aten = _default.ops.aten


def cumulative_sum(
    x: Any,
    /,
    axis: int | None = None,
    *,
    dtype: Any = None,
    include_initial: bool = False,
    out: Any = None,
    **other: Unpack[DimOrNone],
) -> Any:
    """Return the sums of all elements up to each one along an axis. Integers add up to int64.

    Unsigned ones add up to uint64. The result's bits don't depend on the number of threads.

    Args:
        x: an array.
        axis: the axis; None for an array of one dimension.
        dtype: the dtype to add up in and of the result; None to go by the array's.
        include_initial: True to begin with 0, so that the axis is longer by one.
        out: an array to write the result to, which is returned.

    Raises:
        BindingError: there is no axis, and the array has more dimensions than one.

    Example:
        >>> kf.cumulative_sum(kf.asarray([1, 2, 3]), include_initial=True).tolist()
        [0, 1, 3, 6]
    """
    axis = _axis(cumulative_sum, x, axis_of(cumulative_sum, axis, other))
    if not include_initial:
        return _call(_aten.cumsum, x, axis, dtype, out)
    return _joined([_none(x, axis, dtype), _aten.cumsum(x, axis, dtype=dtype)], axis, out)


def cumulative_prod(
    x: Any,
    /,
    axis: int | None = None,
    *,
    dtype: Any = None,
    include_initial: bool = False,
    out: Any = None,
    **other: Unpack[DimOrNone],
) -> Any:
    """Return the products of all elements up to each one along an axis. Integers are int64.

    Unsigned ones are uint64; both wrap around. Floats are multiplied in order.

    Args:
        x: an array.
        axis: the axis; None for an array of one dimension.
        dtype: the dtype to multiply in and of the result; None to go by the array's.
        include_initial: True to begin with 1, so that the axis is longer by one.
        out: an array to write the result to, which is returned.

    Raises:
        BindingError: there is no axis, and the array has more dimensions than one.

    Example:
        >>> kf.cumulative_prod(kf.asarray([2, 3, 4]), include_initial=True).tolist()
        [1, 2, 6, 24]
    """
    axis = _axis(cumulative_prod, x, axis_of(cumulative_prod, axis, other))
    if not include_initial:
        return _call(_aten.cumprod, x, axis, dtype, out)
    ones = _aten.add(_none(x, axis, dtype), 1)
    return _joined([ones, _aten.cumprod(x, axis, dtype=dtype)], axis, out)


def _axis(function: Any, x: Any, axis: int | None) -> int:
    if axis is not None:
        return axis
    try:
        ndim = x.ndim
    except AttributeError:
        raise no_array(function.__name__, "x", x) from None
    if ndim != 1:
        name = function.__name__
        raise BindingError(f"{name}() needs an axis for an array of {ndim} dimensions")
    return 0


def _call(operator: Any, x: Any, axis: int, dtype: Any, out: Any) -> Any:
    if out is None:
        return operator(x, axis, dtype=dtype)
    return operator.out(x, axis, dtype=dtype, out=out)


def _none(x: Any, axis: int, dtype: Any) -> Any:
    """The sums of no elements along an axis, which stays with size 1: zeros."""
    return _aten.sum(_aten.slice(x, axis, 0, 0), [axis], True, dtype=dtype)


def _joined(arrays: list[Any], axis: int, out: Any) -> Any:
    return _aten.cat(arrays, axis) if out is None else _aten.cat.out(arrays, axis, out=out)
