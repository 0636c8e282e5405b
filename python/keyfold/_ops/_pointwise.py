"""Functions of one array, element by element, by their names in the Python array API standard.

All take `out=`, an array of the result's shape and of a dtype of its kind that the result is
written into; it may be the operand. It is returned, where it is of the operand's library.
"""

from __future__ import annotations

from typing import Any, Literal

from keyfold._default import dispatcher as _default
from keyfold._errors import InvalidValue

__all__ = [
    "abs",
    "bitwise_invert",
    "ceil",
    "conj",
    "cos",
    "erf",
    "exp",
    "expm1",
    "floor",
    "gelu",
    "imag",
    "isfinite",
    "isinf",
    "isnan",
    "log",
    "log1p",
    "logical_not",
    "negative",
    "positive",
    "real",
    "reciprocal",
    "relu",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "softplus",
    "sqrt",
    "square",
    "tanh",
    "trunc",
]

_aten = _default.ops.aten


def _one(op: Any, x: Any, out: Any) -> Any:
    return op(x) if out is None else op.out(x, out=out)


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
    """Return 1, 0 or -1 for each element; of complex ones `x / abs(x)`, and 0 of 0.

    NaN stays; a bool is its own sign.
    """
    return _one(_aten.sign, x, out)


def conj(x: Any, /, *, out: Any = None) -> Any:
    """Return the complex conjugates; real elements as they are."""
    return _one(_aten.conj, x, out)


def real(x: Any, /, *, out: Any = None) -> Any:
    """Return the real parts, in an array of their own."""
    return _one(_aten.real, x, out)


def imag(x: Any, /, *, out: Any = None) -> Any:
    """Return the imaginary parts, in an array of their own: 0 of real elements."""
    return _one(_aten.imag, x, out)


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
