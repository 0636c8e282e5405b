"""Functions that work element by element, by their names in the Python array API standard.

All take `out=`, an array of the result's shape and of a dtype of its kind that the result is
written into; it may be one of the operands. It is returned, where it is of the operands' library.
"""

from __future__ import annotations

from typing import Any, Literal

from keyfold._default import dispatcher as _default
from keyfold._errors import BindingError, DTypeError, InvalidValue

__all__ = [
    "abs",
    "add",
    "bitwise_and",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "ceil",
    "clip",
    "cos",
    "divide",
    "equal",
    "erf",
    "exp",
    "expm1",
    "floor",
    "floor_divide",
    "gelu",
    "greater",
    "greater_equal",
    "isfinite",
    "isinf",
    "isnan",
    "less",
    "less_equal",
    "log",
    "log1p",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "maximum",
    "minimum",
    "multiply",
    "negative",
    "not_equal",
    "positive",
    "pow",
    "reciprocal",
    "relu",
    "remainder",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "softplus",
    "sqrt",
    "square",
    "subtract",
    "tanh",
    "trunc",
    "where",
]

_aten = _default.ops.aten


def _is_number(x: Any) -> bool:
    return isinstance(x, (bool, int, float, complex)) and not hasattr(x, "dtype")


def _one(op: Any, x: Any, out: Any) -> Any:
    return op(x) if out is None else op.out(x, out=out)


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


def negative(x: Any, /, *, out: Any = None) -> Any:
    """Return the elements with their signs turned."""
    return _one(_aten.neg, x, out)


def positive(x: Any, /, *, out: Any = None) -> Any:
    """Return a copy."""
    return _one(_aten.clone, x, out)


def abs(x: Any, /, *, out: Any = None) -> Any:
    """Return the absolute values."""
    return _one(_aten.abs, x, out)


def sign(x: Any, /, *, out: Any = None) -> Any:
    """Return 1, 0 or -1 for each element. NaN stays; a bool is its own sign."""
    return _one(_aten.sign, x, out)


def exp(x: Any, /, *, out: Any = None) -> Any:
    """Return the exponentials: float64 for whole numbers."""
    return _one(_aten.exp, x, out)


def expm1(x: Any, /, *, out: Any = None) -> Any:
    """Return `exp(x) - 1`, exact for small elements: float64 for whole numbers."""
    return _one(_aten.expm1, x, out)


def log(x: Any, /, *, out: Any = None) -> Any:
    """Return the natural logarithms: float64 for whole numbers."""
    return _one(_aten.log, x, out)


def log1p(x: Any, /, *, out: Any = None) -> Any:
    """Return `log(1 + x)`, exact for small elements: float64 for whole numbers."""
    return _one(_aten.log1p, x, out)


def sqrt(x: Any, /, *, out: Any = None) -> Any:
    """Return the square roots: float64 for whole numbers."""
    return _one(_aten.sqrt, x, out)


def sin(x: Any, /, *, out: Any = None) -> Any:
    """Return the sines of angles in radians: float64 for whole numbers."""
    return _one(_aten.sin, x, out)


def cos(x: Any, /, *, out: Any = None) -> Any:
    """Return the cosines of angles in radians: float64 for whole numbers."""
    return _one(_aten.cos, x, out)


def tanh(x: Any, /, *, out: Any = None) -> Any:
    """Return the hyperbolic tangents: float64 for whole numbers."""
    return _one(_aten.tanh, x, out)


def relu(x: Any, /, *, out: Any = None) -> Any:
    """Return each element, or 0 where it is negative. Not in the standard."""
    return _one(_aten.relu, x, out)


def sigmoid(x: Any, /, *, out: Any = None) -> Any:
    """Return `1 / (1 + exp(-x))`: float64 for whole numbers. Not in the standard."""
    return _one(_aten.sigmoid, x, out)


def logical_not(x: Any, /, *, out: Any = None) -> Any:
    """Return whether each element is false, or zero."""
    return _one(_aten.logical_not, x, out)


def rsqrt(x: Any, /, *, out: Any = None) -> Any:
    """Return `1 / sqrt(x)`: float64 for whole numbers. Not in the standard."""
    return _one(_aten.rsqrt, x, out)


def reciprocal(x: Any, /, *, out: Any = None) -> Any:
    """Return `1 / x`: float64 for whole numbers."""
    return _one(_aten.reciprocal, x, out)


def erf(x: Any, /, *, out: Any = None) -> Any:
    """Return the error function: float64 for whole numbers. Not in the standard."""
    return _one(_aten.erf, x, out)


def softplus(x: Any, /, *, out: Any = None) -> Any:
    """Return `log(1 + exp(x))`, which is never infinite for finite x. Not in the standard."""
    return _one(_aten.softplus, x, out)


def silu(x: Any, /, *, out: Any = None) -> Any:
    """Return `x * sigmoid(x)`. Not in the standard."""
    return _one(_aten.silu, x, out)


def floor(x: Any, /, *, out: Any = None) -> Any:
    """Return the greatest whole numbers that are not above the elements."""
    return _one(_aten.floor, x, out)


def ceil(x: Any, /, *, out: Any = None) -> Any:
    """Return the smallest whole numbers that are not below the elements."""
    return _one(_aten.ceil, x, out)


def round(x: Any, /, *, out: Any = None) -> Any:
    """Return the nearest whole numbers, the even one of two."""
    return _one(_aten.round, x, out)


def trunc(x: Any, /, *, out: Any = None) -> Any:
    """Return the elements without their fractions."""
    return _one(_aten.trunc, x, out)


def isnan(x: Any, /, *, out: Any = None) -> Any:
    """Return whether each element is NaN."""
    return _one(_aten.isnan, x, out)


def isinf(x: Any, /, *, out: Any = None) -> Any:
    """Return whether each element is infinite."""
    return _one(_aten.isinf, x, out)


def isfinite(x: Any, /, *, out: Any = None) -> Any:
    """Return whether each element is neither infinite nor NaN."""
    return _one(_aten.isfinite, x, out)


def bitwise_invert(x: Any, /, *, out: Any = None) -> Any:
    """Return all bits turned over; "not" for bools."""
    return _one(_aten.bitwise_not, x, out)


def gelu(x: Any, /, *, approximate: Literal["none", "tanh"] = "none", out: Any = None) -> Any:
    """Return the Gaussian error linear unit, `x` times the normal distribution's share below `x`.

    D. Hendrycks and K. Gimpel, "Gaussian error linear units", 2016. Not in the standard.

    Args:
        x: an array.
        approximate: `"none"` for the exact one, by `erf`; `"tanh"` for their approximation.
        out: an array that takes the result.
    """
    if approximate == "none":
        return _one(_aten.gelu, x, out)
    if approximate == "tanh":
        return _one(_aten.gelu_tanh, x, out)
    raise InvalidValue(f"gelu(): approximate is 'none' or 'tanh', not {approximate!r}")


def square(x: Any, /, *, out: Any = None) -> Any:
    """Return the elements times themselves."""
    return _aten.mul(x, x) if out is None else _aten.mul.out(x, x, out=out)


def clip(x: Any, /, min: Any = None, max: Any = None, *, out: Any = None) -> Any:
    """Return the elements, limited from below and from above."""
    if min is None and max is None:
        return positive(x, out=out)
    if max is None:
        return maximum(x, min, out=out)
    if min is not None:
        # Not into `out`, which may be the other limit.
        x = maximum(x, min)
    return minimum(x, max, out=out)


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
