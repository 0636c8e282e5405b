"""The checks of kernels that `custom_op` registers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from keyfold import _core
from keyfold._errors import KernelReturnError, SchemaError

__all__ = ["check_marks", "no_fake", "returning_no_argument"]


def check_marks(operator: _core.Operator, mutates_args: str | Iterable[str]) -> bool:
    """Whether the kernels need to be watched: they write to arguments, and return something.

    Raises:
        SchemaError: the schema writes to other arguments than `mutates_args` names.
    """
    written = [argument.name for argument in operator.schema.arguments if argument.writes]
    results = operator.schema.returns
    if mutates_args != "unknown" and set(written) != set(mutates_args):
        named = ", ".join(sorted(mutates_args)) or "none"
        raise SchemaError(
            f"{operator.name}: mutates_args names {named}, and the schema marks "
            f"{', '.join(written) or 'none'} with (a!)"
        )
    aliased = any(result.alias_sets for result in results)
    return bool(written and results and not aliased)


def returning_no_argument(op: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with a check that it returns none of its arguments.

    Its schema says so. A caller would take the result for a new array, and autograd and the tracer
    do; the call itself can't tell.
    """

    @functools.wraps(function)
    def kernel(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        # By identity, and by hand: this runs in each call, and arrays have an `==` of their own.
        for item in result if isinstance(result, (tuple, list)) else (result,):
            for given in args:
                if item is given and hasattr(item, "shape"):
                    raise _argument_returned(op, function)
            if kwargs:
                for given in kwargs.values():
                    if item is given and hasattr(item, "shape"):
                        raise _argument_returned(op, function)
        return result

    return kernel


def _argument_returned(op: str, function: Callable[..., Any]) -> KernelReturnError:
    return KernelReturnError(
        f"{op}: the kernel {getattr(function, '__qualname__', function)} returned one of its "
        "arguments, which its schema doesn't say: return None or a copy, or give a schema that "
        'says it, schema="(Tensor(a!) x) -> Tensor(a!)"'
    )


def no_fake(op: str, problem: str) -> str:
    return (
        f"{op} has no fake kernel, and given tensors on meta, which have no data, {problem}; "
        "register one with @op.register_fake"
    )
