"""Functions of arrays, element by element, that do more than call one operator.

All take `out=`, an array of the result's shape and of a dtype of its kind that the result is
written into; it may be one of the operands. It is returned, where it is of the operands' library.
"""

from __future__ import annotations

from typing import Any, Literal

from keyfold._default import dispatcher as _default
from keyfold._errors import BindingError, DTypeError, InvalidValue
from keyfold._messages import no_array, refused
from keyfold._ops._operators import add, maximum, minimum, multiply, not_equal, positive

__all__ = ["clip", "gelu", "logical_and", "logical_or", "logical_xor", "square"]

_aten = _default.ops.aten


def _is_number(x: Any) -> bool:
    return isinstance(x, (bool, int, float, complex)) and not hasattr(x, "dtype")


def gelu(
    x: Any, /, *, approximate: Literal["none", "tanh", "sigmoid"] = "none", out: Any = None
) -> Any:
    """Return the Gaussian error linear unit, `x` times the normal distribution's share below `x`.

    D. Hendrycks and K. Gimpel, "Gaussian error linear units", 2016. Not in the standard.

    Args:
        x: an array.
        approximate: `"none"` for the exact one, by `erf`; `"tanh"` and `"sigmoid"` for their
            approximations, the second of which is `x * sigmoid(1.702 * x)`.
        out: an array that takes the result.
    """
    if not isinstance(approximate, str):
        raise refused("gelu", "approximate", "'none', 'tanh' or 'sigmoid'", approximate)
    if approximate == "none":
        return _aten.gelu(x) if out is None else _aten.gelu.out(x, out=out)
    if approximate == "tanh":
        return _aten.gelu_tanh(x) if out is None else _aten.gelu_tanh.out(x, out=out)
    if approximate == "sigmoid":
        return _aten.gelu_sigmoid(x) if out is None else _aten.gelu_sigmoid.out(x, out=out)
    raise InvalidValue(f"gelu(): approximate is 'none', 'tanh' or 'sigmoid', not {approximate!r}")


def square(x: Any, /, *, out: Any = None) -> Any:
    """Return the elements times themselves."""
    return _aten.mul(x, x) if out is None else _aten.mul.out(x, x, out=out)


def clip(x: Any, /, min: Any = None, max: Any = None, *, out: Any = None) -> Any:
    """Return the elements, limited from below and from above."""
    if min is None and max is None:
        return positive(x, out=out)
    limit = "max" if min is None else "min"
    by_numbers = all(type(each) in (int, float, type(None)) for each in (min, max))
    try:
        if by_numbers and hasattr(x, "dtype"):
            # One pass over memory; the gradient of an element at a limit is whole, as in PyTorch.
            return (
                _aten.clamp(x, min, max) if out is None else _aten.clamp.out(x, min, max, out=out)
            )
        if max is None:
            return maximum(x, min, out=out)
        # Not into `out`, which may be the other limit.
        above = x if min is None else maximum(x, min)
        limit = "max"
        return minimum(above, max, out=out)
    except (BindingError, DTypeError):
        for name, given in {"x": x, "min": min, "max": max}.items():
            if given is not None and not _is_number(given) and not hasattr(given, "dtype"):
                raise no_array("clip", name, given, "an array or a number") from None
            dtype = type(given).__name__ if _is_number(given) else getattr(given, "dtype", "")
            if "complex" in str(dtype):
                raise DTypeError(
                    f"clip(): argument {name!r}: dtype {dtype}: complex numbers have no order; "
                    "clip one part, or the abs"
                ) from None
        raise
    except InvalidValue as error:
        raise InvalidValue(str(error).replace("'other'", repr(limit))) from None


def _masks(name: str, x1: Any, x2: Any) -> None:
    for argument, x in {"x1": x1, "x2": x2}.items():
        if not _is_number(x) and not hasattr(x, "dtype"):
            raise refused(name, argument, "an array of bools, or a bool", x)
        dtype = type(x).__name__ if _is_number(x) else str(x.dtype)
        if dtype != "bool":
            raise DTypeError(
                f"{name}() combines bools, not {dtype}, as argument {argument!r} is; compare first"
            )


def logical_and(x1: Any, x2: Any, /, *, out: Any = None) -> Any:
    """Return where both are true. For bools."""
    _masks("logical_and", x1, x2)
    return multiply(x1, x2, out=out)


def logical_or(x1: Any, x2: Any, /, *, out: Any = None) -> Any:
    """Return where at least one is true. For bools."""
    _masks("logical_or", x1, x2)
    return add(x1, x2, out=out)


def logical_xor(x1: Any, x2: Any, /, *, out: Any = None) -> Any:
    """Return where exactly one is true. For bools."""
    _masks("logical_xor", x1, x2)
    return not_equal(x1, x2, out=out)
