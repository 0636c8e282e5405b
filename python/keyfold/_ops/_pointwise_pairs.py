"""Functions of two arrays and more, element by element, by the names of the array API standard.

All take `out=`, an array of the result's shape and of a dtype of its kind that the result is
written into; it may be one of the operands. It is returned, where it is of the operands' library.
"""

from __future__ import annotations

from typing import Any

from keyfold._default import dispatcher as _default
from keyfold._errors import BindingError, DTypeError
from keyfold._ops._pointwise import positive

__all__ = [
    "add",
    "bitwise_and",
    "bitwise_left_shift",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "clip",
    "divide",
    "equal",
    "floor_divide",
    "greater",
    "greater_equal",
    "less",
    "less_equal",
    "logical_and",
    "logical_or",
    "logical_xor",
    "maximum",
    "minimum",
    "multiply",
    "not_equal",
    "pow",
    "remainder",
    "subtract",
    "where",
]

_aten = _default.ops.aten


def _is_number(x: Any) -> bool:
    return isinstance(x, (bool, int, float, complex)) and not hasattr(x, "dtype")


def _pair(op: Any, swapped: Any, x1: Any, x2: Any, out: Any) -> Any:
    """`op(x1, x2)`, or `swapped(x2, x1)` where a number stands on the left.

    The overload is named, since finding it by the arguments' kinds costs more than a small call.
    """
    if _is_number(x1):
        if _is_number(x2):
            raise BindingError(
                f"{op.name}: one of the operands must be an array; both are numbers: {x1!r}, {x2!r}"
            )
        op, x1, x2 = swapped, x2, x1
    elif not _is_number(x2):
        return op(x1, x2) if out is None else op.out(x1, x2, out=out)
    return op.Scalar(x1, x2) if out is None else op.Scalar_out(x1, x2, out=out)


def add(x1: Any, x2: Any, /, *, out: Any = None) -> Any:
    """Return the sum, element by element; "or" for bools."""
    return _pair(_aten.add, _aten.add, x1, x2, out)


def subtract(x1: Any, x2: Any, /, *, out: Any = None) -> Any:
    """Return the difference, element by element."""
    return _pair(_aten.sub, _aten.rsub, x1, x2, out)


def multiply(x1: Any, x2: Any, /, *, out: Any = None) -> Any:
    """Return the product, element by element; "and" for bools."""
    return _pair(_aten.mul, _aten.mul, x1, x2, out)


def divide(x1: Any, x2: Any, /, *, out: Any = None) -> Any:
    """Return the quotient, element by element: float64 for whole numbers."""
    return _pair(_aten.div, _aten.rdiv, x1, x2, out)


def maximum(x1: Any, x2: Any, /, *, out: Any = None) -> Any:
    """Return the greater of each two elements. NaN goes through."""
    return _pair(_aten.maximum, _aten.maximum, x1, x2, out)


def minimum(x1: Any, x2: Any, /, *, out: Any = None) -> Any:
    """Return the lesser of each two elements. NaN goes through."""
    return _pair(_aten.minimum, _aten.minimum, x1, x2, out)


def equal(x1: Any, x2: Any, /, *, out: Any = None) -> Any:
    """Return whether each two elements are equal."""
    return _pair(_aten.eq, _aten.eq, x1, x2, out)


def not_equal(x1: Any, x2: Any, /, *, out: Any = None) -> Any:
    """Return whether each two elements differ."""
    return _pair(_aten.ne, _aten.ne, x1, x2, out)


def less(x1: Any, x2: Any, /, *, out: Any = None) -> Any:
    """Return whether each element is less than its partner."""
    return _pair(_aten.lt, _aten.gt, x1, x2, out)


def less_equal(x1: Any, x2: Any, /, *, out: Any = None) -> Any:
    """Return whether each element is at most its partner."""
    return _pair(_aten.le, _aten.ge, x1, x2, out)


def greater(x1: Any, x2: Any, /, *, out: Any = None) -> Any:
    """Return whether each element is greater than its partner."""
    return _pair(_aten.gt, _aten.lt, x1, x2, out)


def greater_equal(x1: Any, x2: Any, /, *, out: Any = None) -> Any:
    """Return whether each element is at least its partner."""
    return _pair(_aten.ge, _aten.le, x1, x2, out)


def pow(x1: Any, x2: Any, /, *, out: Any = None) -> Any:
    """Return `x1` to the power of `x2`, element by element. Whole numbers wrap around.

    Raises:
        InvalidValue: a negative power of whole numbers, which gives fractions.
        DTypeError: both are bools.
    """
    return _pair(_aten.pow, _aten.rpow, x1, x2, out)


def floor_divide(x1: Any, x2: Any, /, *, out: Any = None) -> Any:
    """Return the quotients rounded down; 0 where whole numbers are divided by 0."""
    return _pair(_aten.floor_divide, _aten.rfloor_divide, x1, x2, out)


def remainder(x1: Any, x2: Any, /, *, out: Any = None) -> Any:
    """Return the remainders, with the sign of the divisor; 0 for whole numbers modulo 0."""
    return _pair(_aten.remainder, _aten.rremainder, x1, x2, out)


def bitwise_and(x1: Any, x2: Any, /, *, out: Any = None) -> Any:
    """Return the bits that both have. For whole numbers and bools."""
    return _pair(_aten.bitwise_and, _aten.bitwise_and, x1, x2, out)


def bitwise_or(x1: Any, x2: Any, /, *, out: Any = None) -> Any:
    """Return the bits that either has. For whole numbers and bools."""
    return _pair(_aten.bitwise_or, _aten.bitwise_or, x1, x2, out)


def bitwise_xor(x1: Any, x2: Any, /, *, out: Any = None) -> Any:
    """Return the bits that one of both has. For whole numbers and bools."""
    return _pair(_aten.bitwise_xor, _aten.bitwise_xor, x1, x2, out)


def bitwise_left_shift(x1: Any, x2: Any, /, *, out: Any = None) -> Any:
    """Return the bits moved up by `x2` places. For whole numbers."""
    return _pair(_aten.bitwise_left_shift, _aten.rbitwise_left_shift, x1, x2, out)


def bitwise_right_shift(x1: Any, x2: Any, /, *, out: Any = None) -> Any:
    """Return the bits moved down by `x2` places; the sign fills up."""
    return _pair(_aten.bitwise_right_shift, _aten.rbitwise_right_shift, x1, x2, out)


def clip(x: Any, /, min: Any = None, max: Any = None, *, out: Any = None) -> Any:
    """Return the elements, limited from below and from above."""
    if min is None and max is None:
        return positive(x, out=out)
    try:
        if max is None:
            return maximum(x, min, out=out)
        # Not into `out`, which may be the other limit.
        above = x if min is None else maximum(x, min)
        return minimum(above, max, out=out)
    except DTypeError:
        for name, given in {"x": x, "min": min, "max": max}.items():
            dtype = type(given).__name__ if _is_number(given) else getattr(given, "dtype", "")
            if "complex" in str(dtype):
                raise DTypeError(
                    f"clip(): argument {name!r}: dtype {dtype}: complex numbers have no order; "
                    "clip one part, or the abs"
                ) from None
        raise


def where(condition: Any, x1: Any, x2: Any, /, *, out: Any = None) -> Any:
    """Return elements of `x1` where the condition is true, else of `x2`."""
    if out is None:
        return _aten.where(condition, x1, x2)
    return _aten.where(condition, x1, x2, out=out)


def _masks(name: str, *operands: Any) -> None:
    for x in operands:
        dtype = type(x).__name__ if _is_number(x) else str(x.dtype)
        if dtype != "bool":
            raise DTypeError(f"{name}() combines bools, not {dtype}; compare first")


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
