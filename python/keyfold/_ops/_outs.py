"""Calls of operators with several results, into the caller's arrays where they are given."""

from __future__ import annotations

from typing import Any

from keyfold._errors import BindingError


def into(function: str, packet: Any, overload: str, args: tuple[Any, ...], out: Any) -> Any:
    """Call an operator, or with `out` its overload that writes the results into arrays.

    Args:
        function: the function's name, for errors.
        packet: the operator with its overloads.
        overload: the name of the one that writes.
        args: the arguments.
        out: a tuple of an array for each result; None for new ones.

    Raises:
        BindingError: `out` isn't such a tuple.
    """
    if out is None:
        return packet(*args)
    operator = getattr(packet, overload)
    names = [argument.name for argument in operator.schema.arguments if argument.writes]
    if not isinstance(out, tuple) or len(out) != len(names):
        raise BindingError(
            f"{function}(): argument 'out' must be a tuple of {len(names)} arrays, for "
            f"{', '.join(names)}, not {out!r:.80}"
        )
    return operator(*args, **dict(zip(names, out, strict=True)))
