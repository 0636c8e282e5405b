"""Functions of complex numbers at infinities, NaN and signed zeros, beside NumPy's.

NumPy's are the C library's, which keep to C99's Annex G. Where that leaves a sign open, any is
right.
"""

import itertools

import numpy as np
import pytest

import keyfold as kf

INF, NAN = np.inf, np.nan
PARTS = [-INF, -1.0, -0.0, 0.0, 1.0, INF, NAN]
PAIRS = [complex(re, im) for re, im in itertools.product(PARTS, PARTS)]


def infinite(*parts):
    return all(np.isinf(part) for part in parts)


def nan(part):
    return part != part


def open_at_a_zero(z, part, other):
    """Of sin and cos, whose imaginary part is turned by `part` and grows by `other`."""
    if not np.isfinite(part):
        return other == 0 or infinite(other)
    return nan(other) and part == 0


# For which operands C99 leaves the signs of a function's parts open.
OPEN = {
    "exp": lambda z: infinite(z.real) and not np.isfinite(z.imag),
    "tanh": lambda z: infinite(z.real) and not np.isfinite(z.imag),
    "sqrt": lambda z: z.real == -INF and nan(z.imag),
    "sin": lambda z: open_at_a_zero(z, z.real, z.imag),
    "cos": lambda z: open_at_a_zero(z, z.real, z.imag),
}
NAMES = ["exp", "log", "sqrt", "sin", "cos", "tanh", "abs", "sign", "reciprocal", "square", "conj"]


def same(got, wanted, open_sign, rtol):
    if np.isnan(wanted) or np.isnan(got):
        return bool(np.isnan(wanted) and np.isnan(got))
    if open_sign:
        got, wanted = abs(got), abs(wanted)
    if wanted == 0 or np.isinf(wanted):
        return got == wanted and np.signbit(got) == np.signbit(wanted)
    return abs(got - wanted) <= rtol * abs(wanted)


def near(got, wanted, rtol):
    """Finite numbers by their distance, others part by part."""
    if np.isfinite(got) and np.isfinite(wanted) and wanted != 0:
        return abs(got - wanted) <= rtol * abs(wanted)
    return all(
        same(getattr(got, part), getattr(wanted, part), False, rtol) for part in ("real", "imag")
    )


def table(name, dtype, mine, theirs):
    rtol = 8 * np.finfo(dtype).eps
    wrong = []
    for z, got, wanted in zip(PAIRS, mine, theirs, strict=True):
        open_sign = name in OPEN and OPEN[name](z)
        if not all(
            same(getattr(got, part), getattr(wanted, part), open_sign, rtol)
            for part in ("real", "imag")
        ):
            wrong.append(f"{name}({z}) is {got}, NumPy's {wanted}")
    return wrong


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("name", NAMES)
def test_functions_at_special_values(name, dtype):
    z = np.array(PAIRS, dtype)
    with np.errstate(all="ignore"):
        # NumPy's `reciprocal` has zeros of other signs than its quotient.
        wanted = np.divide(1, z) if name == "reciprocal" else getattr(np, name)(z)
    got = np.asarray(getattr(kf, name)(z))
    wrong = table(name, dtype, got, wanted)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_powers_at_special_values(dtype):
    a, b = (np.array(side, dtype) for side in zip(*itertools.product(PAIRS, PAIRS), strict=True))
    with np.errstate(all="ignore"):
        wanted = np.power(a, b)
    # The inverse of infinity is 0, as C99's `cpow` has it: NumPy multiplies with `1 + 0j` first,
    # which gives NaN.
    inverse = (np.isinf(a.real) != np.isinf(a.imag)) & ~np.isnan(a) & (b == -1)
    wanted[inverse] = np.divide(1, a[inverse])
    got = np.asarray(kf.pow(a, b))
    rtol = 64 * np.finfo(dtype).eps
    wrong = [
        f"{x} ** {y} is {g}, NumPy's {w}"
        for x, y, g, w in zip(a, b, got, wanted, strict=True)
        if not near(g, w, rtol)
    ]
    assert inverse.sum() == 32
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong[:80])
