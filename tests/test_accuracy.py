"""Errors of the elementary functions in units of the last place, over dense sweeps.

`pytest -s tests/test_accuracy.py` prints the table. The reference is NumPy's longdouble: 64 bits of
mantissa or more; where it has no more than float64, only float32 is measured.
"""

import numpy as np
import pytest

import keyfold as kf

LONG = np.longdouble
DTYPES = ["float32"] + (["float64"] if np.finfo(LONG).nmant >= 63 else [])
# Where a function does anything else than overflow or stay what it is.
SPANS = {
    "exp": (-760, 730),
    "expm1": (-50, 730),
    "log": (0, 20),
    "log1p": (-1, 20),
    "sqrt": (0, 20),
    "rsqrt": (0, 20),
    "tanh": (-25, 25),
    "sigmoid": (-760, 50),
    "erf": (-7, 7),
    "sin": (-3000, 3000),
    "cos": (-3000, 3000),
}
# Of both `pow`'s operands.
SPECIAL = [
    *(0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 0.5, -0.5, 1e-3, 1e-300, 1e300),
    *(9007199254740991.0, np.inf, -np.inf, np.nan),
]


def erf(x):
    """The error function in longdouble: its series below 3, the continued fraction above."""
    a = np.minimum(np.abs(x), LONG(12))
    pi = LONG(4) * np.arctan(LONG(1))
    small = np.minimum(a, LONG(3))
    term, total = small.copy(), small.copy()
    for k in range(1, 90):
        term = term * (2 * small * small / (2 * k + 1))
        total = total + term
    low = 2 / np.sqrt(pi) * np.exp(-small * small) * total
    large = np.maximum(a, LONG(3))
    fraction = large.copy()
    for k in range(90, 0, -1):
        fraction = large + LONG(k) / 2 / fraction
    high = 1 - np.exp(-large * large) / (np.sqrt(pi) * fraction)
    return np.copysign(np.where(a < 3, low, high), x)


REFERENCES = {
    **{
        name: getattr(np, name)
        for name in ("exp", "expm1", "log", "log1p", "sqrt", "tanh", "sin", "cos")
    },
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "erf": erf,
}


def patterns(dtype, count):
    """Numbers of every exponent, both signs, infinities and NaN: evenly spread bit patterns."""
    bits = np.dtype(dtype).itemsize * 8
    unsigned = np.dtype(f"uint{bits}")
    step = unsigned.type((2**bits // count) | 1)
    return (np.arange(count, dtype=unsigned) * step).view(dtype)


def arguments(dtype, span):
    """Bit patterns, an even grid over a span, and magnitudes around 1."""
    rng = np.random.default_rng(5)
    near = np.exp(rng.uniform(-12, 4, 200_000)) * rng.choice([-1, 1], 200_000)
    grid = np.linspace(*span, 200_000)
    special = np.array(SPECIAL)
    with np.errstate(over="ignore"):
        numbers = np.concatenate([grid, near, special]).astype(dtype)
    return np.concatenate([patterns(dtype, 200_001), numbers])


def ulps(got, exact):
    """Each result's distance from the exact value, in units of the last place of its dtype.

    Infinity counts as the number after the greatest; NaN for a number, or the reverse, and a zero
    of the wrong sign are infinitely far.
    """
    info = np.finfo(got.dtype)
    limit = np.ldexp(LONG(1), info.maxexp)
    with np.errstate(invalid="ignore"):
        got = got.astype(LONG)
    wide, exact = np.clip(got, -limit, limit), np.clip(exact, -limit, limit)
    exponent = np.clip(
        np.frexp(np.where(np.isnan(exact), 1, exact))[1] - 1, info.minexp, info.maxexp - 1
    )
    error = np.abs(wide - exact) / np.ldexp(LONG(1), exponent - info.nmant)
    wrong = (np.isnan(got) != np.isnan(exact)) | (np.signbit(got) != np.signbit(exact)) & ~np.isnan(
        got
    )
    return np.where(wrong, LONG(np.inf), np.where(np.isnan(got), LONG(0), error))


def check(name, got, exact, bound, *places):
    """Prints the worst error and where it is, and holds it against the bound."""
    error = ulps(got, exact)
    at = int(np.argmax(error))
    where = ", ".join(f"{place[at]!r}" for place in places)
    print(
        f"\n{name:8} {got.dtype!s:8} {float(error[at]):6.3f} ulp (bound {bound}) at {where}", end=""
    )
    assert error[at] <= bound, f"{name}({where}) is {got[at]!r}, exactly {exact[at]!r}"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", list(SPANS))
def test_a_function_is_within_its_bound(name, dtype):
    x = arguments(dtype, SPANS[name])
    with np.errstate(all="ignore"):
        exact = REFERENCES[name](x.astype(LONG))
    got = np.asarray(getattr(kf, name)(x))
    assert got.dtype == x.dtype
    check(name, got, exact, 4 if name == "erf" else 2, x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_powers_are_within_their_bound(dtype):
    rng = np.random.default_rng(5)
    count = 200_000
    near = np.exp(rng.uniform(-3, 3, count))
    # Results of every size, and every whole exponent with negative bases.
    large = np.exp(rng.uniform(-300, 300, count))
    size = rng.uniform(-760, 720, count) / np.log(large)
    base = -near
    whole = rng.integers(-60, 60, count)
    special = np.array(SPECIAL)
    pairs = np.array([(a, b) for a in special for b in special]).T
    with np.errstate(all="ignore"):
        x = np.concatenate([near, large, base, pairs[0], patterns(dtype, count)]).astype(dtype)
        y = np.concatenate(
            [rng.uniform(-60, 60, count), size, whole, pairs[1], patterns(dtype, count)[::-1]]
        )
        y = y.astype(dtype)
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(LONG), y.astype(LONG))
    check("pow", np.asarray(kf.pow(x, y)), exact, 4, x, y)
