"""Distances in units of the last place, and the numbers that functions are measured on.

The reference is NumPy's longdouble: 64 bits of mantissa or more; where it has no more than float64,
only float32 is measured.
"""

import numpy as np

LONG = np.longdouble


DTYPES = ["float32"] + (["float64"] if np.finfo(LONG).nmant >= 63 else [])


# Of both `pow`'s operands.
SPECIAL = [
    *(0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 0.5, -0.5, 1e-3, 1e-300, 1e300),
    *(9007199254740991.0, np.inf, -np.inf, np.nan),
]


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
