"""Errors of functions that only expressions have, and logarithms of powers.

The reference is NumPy's longdouble, as there.
"""

import math

import numpy as np
import pytest

import keyfold as kf
from tests.helpers.ulps import DTYPES, LONG, arguments, check, ulps

pytestmark = pytest.mark.one_python

LN2, LN10 = np.log(LONG(2)), np.log(LONG(10))


def erfc(x):
    """The complementary error function in longdouble: its series below 2, its fraction above."""
    pi = LONG(4) * np.arctan(LONG(1))
    small = np.clip(x, LONG(-12), LONG(2))
    term, total = small.copy(), small.copy()
    for k in range(1, 400):
        term = term * (2 * small * small / (2 * k + 1))
        total = total + term
    low = 1 - 2 / np.sqrt(pi) * np.exp(-small * small) * total
    large = np.maximum(x, LONG(2))
    fraction = large.copy()
    for k in range(400, 0, -1):
        fraction = large + LONG(k) / 2 / fraction
    high = np.exp(-large * large) / (np.sqrt(pi) * fraction)
    return np.where(x < 2, low, np.where(np.isnan(x), x, high))


# The reference, the range where it neither overflows nor is constant, and the bound in ulp.
ONE = {
    "log2": (lambda x: np.log(x) / LN2, (0, 20), 2),
    "log10": (lambda x: np.log(x) / LN10, (0, 20), 2),
    "exp2": (np.exp2, (-1080, 1030), 4),
    "sinh": (np.sinh, (-730, 730), 6),
    "cosh": (np.cosh, (-730, 730), 6),
    "tan": (np.tan, (-3000, 3000), 5),
    "erfc": (erfc, (-7, 28), 4),
    "softplus": (lambda x: np.where(x > 40, x, np.log1p(np.exp(x))), (-760, 60), 4),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ONE)
def test_a_function_of_expressions_is_within_its_bound(name, dtype):
    reference, span, bound = ONE[name]
    x = arguments(dtype, span)
    if name == "erfc":
        # Between 2 and 3 the longdouble's own series and fraction are slow to settle.
        x = x[::4]
    with np.errstate(all="ignore"):
        exact = reference(x.astype(LONG))
    got = kf.Expression(f"{name}(x)")(x)
    assert got.dtype == x.dtype
    check(name, got, exact, bound, x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_lengths_are_within_their_bound(dtype):
    x = arguments(dtype, (-20, 20))
    y = np.random.default_rng(9).permutation(x)
    with np.errstate(all="ignore"):
        near = np.random.default_rng(1).uniform(0.5, 2, x.size).astype(dtype) * x
    x, y = np.concatenate([x, x, x]), np.concatenate([y, near, x])
    with np.errstate(all="ignore"):
        exact = np.hypot(x.astype(LONG), y.astype(LONG))
    check("hypot", kf.Expression("hypot(x, y)")(x, y), exact, 3, x, y)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_of_exponentials_are_within_their_bound(dtype):
    x = arguments(dtype, (-20, 20))
    y = np.random.default_rng(9).permutation(x)
    with np.errstate(all="ignore"):
        near = (x + np.random.default_rng(1).uniform(-40, 40, x.size)).astype(dtype)
    x, y = np.concatenate([x, x, x]), np.concatenate([y, near, x])
    with np.errstate(all="ignore"):
        wide, other = x.astype(LONG), y.astype(LONG)
        exact = np.logaddexp(wide, other)
    got = kf.Expression("logaddexp(x, y)")(x, y)
    # Where the result is near 0 its two terms cancel: the unit is the greater operand's.
    scale = np.maximum(np.abs(exact), np.abs(np.maximum(wide, other)))
    with np.errstate(all="ignore"):
        error = np.abs(got.astype(LONG) - exact) / (scale * np.finfo(dtype).eps)
    special = ~np.isfinite(exact) | ~np.isfinite(got) | (scale <= np.finfo(dtype).tiny)
    with np.errstate(all="ignore"):
        nearest = exact[special].astype(dtype)
    assert np.allclose(got[special], nearest, rtol=0, atol=4 * np.finfo(dtype).tiny, equal_nan=True)
    # The difference of the operands is rounded, which the exponential makes |a - b| / 2 units of
    # the lesser term: nothing beside a result of 1, and up to 20 where that is all there is.
    assert error[~special].max() <= 20
    assert error[~special & (scale >= 1)].max() <= 2


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_logarithms_are_whole_at_powers(dtype):
    info = np.finfo(dtype)
    twos = np.arange(info.minexp - info.nmant, info.maxexp)
    x = np.ldexp(np.ones((), dtype), twos)
    assert np.array_equal(kf.Expression("log2(x)")(x), twos.astype(dtype))
    tens = np.arange(int(math.log10(info.tiny)), int(math.log10(info.max)) + 1)
    x = np.array([f"1e{power}" for power in tens]).astype(dtype)
    assert np.array_equal(kf.Expression("log10(x)")(x), tens.astype(dtype))
    # Those next to them aren't, and are on the right side.
    for text, powers, base in (("log2(x)", twos, 2.0), ("log10(x)", tens, 10.0)):
        few = powers[np.abs(powers) < 8]
        x = np.power(base, few).astype(dtype)
        up, down = (kf.Expression(text)(np.nextafter(x, x.dtype.type(to))) for to in (np.inf, 0))
        assert np.all(up >= few)
        assert np.all(down <= few)


def test_the_measure_sees_what_is_off():
    exact = np.array([1, 2, 3], LONG)
    assert np.all(ulps(np.array([1.0, 2.0, 3.0]), exact) == 0)
    assert ulps(np.nextafter(np.array([1.0, 2.0, 3.0]), 9), exact).tolist() == [1, 1, 1]
