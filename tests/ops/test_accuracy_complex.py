"""Errors of functions of complex numbers, over magnitudes to the ends of the range.

An error is the distance from the exact value in units of its size: the real and the imaginary
part together, since products and quotients cancel in one of them. Where a part of the exact value
is beyond the range, or below it, that part is held against infinity, or 0. The reference is NumPy's
clongdouble, whose exponents reach further, so that nothing overflows on the way.
"""

from fractions import Fraction

import numpy as np
import pytest

import keyfold as kf

LONG, WIDE = np.longdouble, np.clongdouble
pytestmark = [
    pytest.mark.one_python,
    pytest.mark.skipif(
        np.finfo(LONG).nmant < 63, reason="longdouble has no more digits than float64 here"
    ),
]
DTYPES = ["complex64", "complex128"]


def parts(dtype):
    return np.finfo(dtype)


def spread(dtype, low, high, count, seed):
    """Numbers of magnitudes from `10**low` to `10**high` at every angle, the axes included."""
    rng = np.random.default_rng(seed)
    size = np.power(LONG(10), rng.uniform(low, high, count).astype(LONG))
    angle = rng.uniform(-np.pi, np.pi, count)
    angle[: count // 8] = np.round(angle[: count // 8] / (np.pi / 4)) * (np.pi / 4)
    z = (size * np.cos(angle) + 1j * (size * np.sin(angle))).astype(dtype)
    on_real = np.arange(count) % 97 == 0
    on_imaginary = np.arange(count) % 97 == 1
    z.imag[on_real] = 0
    z.real[on_imaginary] = 0
    return z


def ends(dtype):
    """As powers of ten, the range of normal numbers with some room."""
    info = parts(dtype)
    return float(np.log10(info.tiny)) + 1, float(np.log10(info.max)) - 1


def rectangle(dtype, real, imaginary, count=40_000, seed=3):
    rng = np.random.default_rng(seed)
    z = np.empty(count, dtype)
    z.real, z.imag = rng.uniform(-real, real, count), rng.uniform(-imaginary, imaginary, count)
    z.imag[: count // 20] = 0
    z.real[count // 20 : count // 10] = 0
    return z


def errors(got, exact):
    """The distances in units of the last place, and whether each part is what it has to be."""
    info = parts(got.dtype)
    limit, least = LONG(info.max), LONG(info.smallest_subnormal)
    wide = got.astype(WIDE)
    size = np.maximum(np.abs(exact), LONG(info.tiny))
    distance = np.zeros(got.shape, LONG)
    right = np.ones(got.shape, bool)
    for part in ("real", "imag"):
        g, e = getattr(wide, part), getattr(exact, part)
        beyond = np.abs(e) > limit * (1 - 64 * LONG(info.eps))
        # One that is nearly beyond may be either.
        right &= np.where(
            beyond, (np.sign(g) == np.sign(e)) & (np.abs(g) > limit / 2), np.isfinite(g)
        )
        with np.errstate(invalid="ignore"):
            part_error = np.maximum(np.abs(g - e) - 4 * least, 0) / (size * info.eps)
        distance = np.maximum(distance, np.where(beyond | ~np.isfinite(g), 0, part_error))
    return distance, right


def check(name, got, exact, bound, *operands):
    assert got.dtype == operands[0].dtype
    distance, right = errors(got, exact)
    for at in (int(np.argmax(distance)), int(np.argmin(right))):
        where = ", ".join(repr(operand[at]) for operand in operands)
        shown = f"{name}({where}) is {got[at]!r}, exactly {exact[at]!r}"
        assert right[at], shown
        assert distance[at] <= bound, f"{shown}: {float(distance[at])} ulp"


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_and_quotients_are_within_their_bound_over_the_whole_range(dtype):
    low, high = ends(dtype)
    for half in (0.5, 1.0):
        a = spread(dtype, low * half, high * half, 40_000, 1)
        b = spread(dtype, low * half, high * half, 40_000, 2)
        # Neither is 0, which the smallest may have been rounded to.
        a, b = (pair[(a != 0) & (b != 0)] for pair in (a, b))
        with np.errstate(all="ignore"):
            product, quotient = a.astype(WIDE) * b, a.astype(WIDE) / b
        # A product that is beyond the range on the way may be infinite, or not a number, there.
        inside = np.abs(product) < LONG(parts(dtype).max) / 4
        got = np.asarray(kf.multiply(a, b))
        check("multiply", got[inside], product[inside], 4, a[inside], b[inside])
        inside = np.abs(quotient) < LONG(parts(dtype).max) / 4
        got = np.asarray(kf.divide(a, b))
        check("divide", got[inside], quotient[inside], 8, a[inside], b[inside])
        check("reciprocal", np.asarray(kf.reciprocal(a)), 1 / a.astype(WIDE), 8, a)


# By function: the arguments, and the bound.
UNARY = {
    "sqrt": (lambda t: spread(t, *ends(t), 40_000, 1), 4),
    "log": (lambda t: spread(t, *ends(t), 40_000, 1), 4),
    "exp": (lambda t: rectangle(t, 1.05 * np.log(parts(t).max), 50), 8),
    "sin": (lambda t: rectangle(t, 50, 1.05 * np.log(parts(t).max)), 8),
    "cos": (lambda t: rectangle(t, 50, 1.05 * np.log(parts(t).max)), 8),
    "tanh": (lambda t: rectangle(t, 50, 50), 16),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", UNARY)
def test_a_function_is_within_its_bound(name, dtype):
    arguments, bound = UNARY[name]
    z = np.concatenate([arguments(dtype), spread(dtype, -6, 0.5, 20_000, 7)])
    with np.errstate(all="ignore"):
        exact = getattr(np, name)(z.astype(WIDE))
    check(name, np.asarray(getattr(kf, name)(z)), exact, bound, z)


@pytest.mark.parametrize("dtype", DTYPES)
def test_tanh_far_out_is_one(dtype):
    rng = np.random.default_rng(1)
    real = np.concatenate([[23, 88, 400, 1e4], 10 ** rng.uniform(2, ends(dtype)[1], 2000)])
    z = (real * rng.choice([-1, 1], real.size) + 1j * rng.uniform(-9, 9, real.size)).astype(dtype)
    got = np.asarray(kf.tanh(z))
    assert np.array_equal(got.real, np.sign(z.real))
    assert np.all(np.abs(got.imag) < 1e-15)


@pytest.mark.parametrize("dtype", DTYPES)
def test_roots_and_logarithms_of_the_largest_and_the_smallest(dtype):
    info = parts(dtype)
    large, small = info.max, info.smallest_subnormal
    z = np.array(
        [a + 1j * b for a in (large, -large, small, 0) for b in (large, -large, small, 0)], dtype
    )[:-1]
    for name in ("sqrt", "log"):
        exact = getattr(np, name)(z.astype(WIDE))
        check(name, np.asarray(getattr(kf, name)(z)), exact, 8, z)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_logarithm_of_numbers_of_length_one_has_an_accurate_real_part(dtype):
    """Their squares cancel but for the last digits: only exact arithmetic tells what is left."""
    angle = np.random.default_rng(5).uniform(-np.pi, np.pi, 1000)
    z = np.exp(1j * angle).astype(dtype)
    z[::3] *= np.asarray(1 + 1e-6, z.real.dtype)
    z[:4] = 1, -1, 1j, 0.6 + 0.8j
    squares = [Fraction(float(w.real)) ** 2 + Fraction(float(w.imag)) ** 2 - 1 for w in z]
    exact = np.log1p(np.array([float(square) for square in squares], LONG)) / 2
    got = np.asarray(kf.log(z)).real
    assert got[0] == got[1] == got[2] == 0
    assert np.all(np.abs(got - exact) <= 2 * LONG(parts(dtype).eps) * np.abs(exact))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("z", [complex("inf+nanj"), complex("nan+infj"), complex("-inf+nanj")])
def test_the_logarithm_of_a_number_with_an_infinite_part_is_infinite(dtype, z):
    got = np.asarray(kf.log(np.array([z], dtype)))[0]
    assert got.real == np.inf
    assert np.isnan(got.imag)
