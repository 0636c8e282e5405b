"""Errors of the elementary functions in units of the last place, over dense sweeps.

`pytest -s tests/ops/test_accuracy.py` prints the table. The reference is NumPy's longdouble.
"""

import numpy as np
import pytest

import keyfold as kf
from tests.helpers.ulps import DTYPES, LONG, SPECIAL, arguments, check, patterns

pytestmark = pytest.mark.one_python

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
