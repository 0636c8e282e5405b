"""Shapes and dtypes without data: `register_fake`, `infer_meta`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from keyfold import _core
from keyfold._default import dispatcher as _default
from keyfold._entry_points import find
from keyfold._errors import KernelReturnError

__all__ = ["infer_meta", "register_fake"]

_F = TypeVar("_F", bound=Callable[..., Any])


def register_fake(
    op: Any,
    func: Callable[..., Any] | None = None,
    /,
    *,
    override: str = "error",
    dispatcher: _core.Dispatcher | None = None,
) -> Any:
    """Register how an operator's results look, without data: its kernel at the key Meta.

    The function gets what a call would give the operator, with meta tensors, which have a shape,
    strides and a dtype and no elements. It returns meta tensors of the form that the results have:
    `keyfold.empty(shape, dtype=x.dtype, device="meta")`, or what operators make of the arguments.
    Without `func`, this is a decorator, which gives the function back.

    Args:
        op: the operator or its name.
        func: the function, with the operator's arguments.
        override: as for `impl`.
        dispatcher: where; the process's own by default.

    Returns:
        A handle, whose `remove()` takes it back; the function, where this is a decorator.

    Raises:
        UnknownOperator: there is no such operator.
        RegistrationError: it has a Meta kernel already, or the function's signature contradicts the
            schema.

    A call on meta tensors raises KernelReturnError if the function returns a tensor with data, or
    something else than the schema promises.
    """
    target = _default if dispatcher is None else dispatcher

    def register(function: Callable[..., Any]) -> _core.Handle:
        name = find(target, op, target.get_op, op).name
        return target.impl(op, "Meta", _checked(name, function), override=override)

    if func is not None:
        return register(func)

    def decorate(function: _F) -> _F:
        register(function)
        return function

    return decorate


def _checked(op: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with a check that what it returns has no data."""

    @functools.wraps(function)
    def fake(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        items = result if isinstance(result, (tuple, list)) else [result]
        for place, item in enumerate(items):
            problem = _problem(item)
            if problem:
                where = f" as result {place}" if items is result else ""
                name = getattr(function, "__qualname__", repr(function))
                raise KernelReturnError(
                    f"{op}: the fake kernel {name} returned {problem}{where}; results must be "
                    "tensors on meta, which have no data: make them with "
                    'keyfold.empty(shape, dtype=..., device="meta")'
                )
        return result

    return fake


def _problem(item: Any) -> str | None:
    """Describe a result that is an array or a tensor with data; None for others."""
    if isinstance(item, _core.Tensor):
        if item.device.type == "meta":
            return None
        return f"a tensor {item.dtype}{list(item.shape)} on {item.device}"
    if isinstance(item, (tuple, list)):
        return next(filter(None, map(_problem, item)), None)
    if hasattr(item, "shape") and hasattr(item, "dtype"):
        if _core._is_array(item) and "Meta" in _core.DispatchKeySet.from_tensors([item]):
            return None
        kind = type(item)
        return f"a {kind.__module__}.{kind.__qualname__} {item.dtype}{list(item.shape)} with data"
    return None


def infer_meta(op: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Say which results a call would have, without data and without running it.

    Tensors, arrays and devices among the arguments are replaced by their like on meta, and the
    operator's Meta kernel is called.

    Args:
        op: the operator or its name.
        args: the operator's arguments.
        kwargs: the operator's keyword arguments.

    Returns:
        The results as tensors on meta: shapes, strides and dtypes.

    Raises:
        MissingKernel: the operator has no Meta kernel; see `register_fake`.
    """
    return find(_default, op, _core._infer_meta, op, args, kwargs)
