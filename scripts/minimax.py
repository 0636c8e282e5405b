"""Polynomial coefficients for crates/kit/src/math: Remez's exchange in many digits.

`python scripts/minimax.py` prints every set of coefficients, lowest power first, with the greatest
error left over once they are rounded to the type that they are used in. It needs mpmath.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import mpmath as mp

mp.mp.dps = 50
Function = Callable[[mp.mpf], mp.mpf]


def rounded(x: mp.mpf, single: bool) -> mp.mpf:
    """The nearest float32 or float64."""
    # A float32 through a float64: rounding twice changes a coefficient's last bit at the most.
    near = float(x)
    return mp.mpf(struct.unpack("f", struct.pack("f", near))[0] if single else near)


def exchange(
    f: Function, weight: Function, powers: Sequence[int], low: mp.mpf, high: mp.mpf
) -> list[mp.mpf]:
    """The sum of c * x**power that keeps max |weight * (sum - f)| least (E. Remez, 1934)."""
    count = len(powers) + 1
    grid = [(low + high - (high - low) * mp.cos(mp.pi * (k + 0.3) / 800)) / 2 for k in range(800)]
    values = [(x, f(x), weight(x)) for x in grid]
    points = [values[round(799 * k / (count - 1))] for k in range(count)]
    coefficients: list[mp.mpf] = []
    for _ in range(30):
        rows = [[w * x**p for p in powers] + [(-1) ** k] for k, (x, _, w) in enumerate(points)]
        solved = mp.lu_solve(mp.matrix(rows), mp.matrix([w * y for _, y, w in points]))
        coefficients, level = list(solved)[:-1], abs(solved[len(powers)])
        errors = [
            w * (sum(c * x**p for c, p in zip(coefficients, powers, strict=True)) - y)
            for x, y, w in values
        ]
        # One extremum per run of errors of one sign.
        peaks: list[int] = []
        for k, error in enumerate(errors):
            if peaks and error * errors[peaks[-1]] > 0:
                if abs(error) > abs(errors[peaks[-1]]):
                    peaks[-1] = k
            else:
                peaks.append(k)
        while len(peaks) > count:
            peaks.pop(0 if abs(errors[peaks[0]]) < abs(errors[peaks[-1]]) else -1)
        if len(peaks) < count or max(map(abs, errors)) < level * mp.mpf("1.001"):
            break
        points = [values[k] for k in peaks]
    return coefficients


def fit(
    name: str, f: Function, weight: Function, degree: int, low: float, high: float, single: bool
) -> None:
    """Prints rounded coefficients of a polynomial, and the error that they leave."""
    low, high = mp.mpf(low), mp.mpf(high)
    kept = [rounded(c, single) for c in exchange(f, weight, range(degree + 1), low, high)]
    steps = [low + (high - low) * (k + 0.3) / 997 for k in range(997)]
    left = max(abs(weight(x) * (sum(c * x**p for p, c in enumerate(kept)) - f(x))) for x in steps)
    print(f"{name}, {'f32' if single else 'f64'}: error 2**{float(mp.log(left, 2)):.1f}")
    for c in kept:
        digits = mp.nstr(c, 9 if single else 17)
        print(f"    {digits},")


def near_zero(f: Function, series: Function) -> Function:
    """`f`, and its series where it would divide nothing by nothing."""
    return lambda x: f(x) if abs(x) > mp.mpf(10) ** -10 else series(x)


def exact_point(f: Function, near: mp.mpf) -> mp.mpf:
    """The float32 nearby where erf or erfc is nearest to a float32.

    After S. Gal, "Computing elementary functions: a new approach for achieving high accuracy and
    good performance", 1986.
    """
    start = near
    if f is mp.erf:
        # Where erf is flat, the points where it is a float32 are far apart: first to one of those.
        value = rounded(mp.erf(near), True)
        if value == 1:
            value -= mp.mpf(2) ** -24
        start = mp.erfinv(value)
    step = mp.mpf(2) ** (mp.floor(mp.log(start, 2)) - 23)
    candidates = [rounded(start + k * step, True) for k in range(-300, 301)]
    return min(candidates, key=lambda x: abs(f(x) - rounded(f(x), True)) / f(x))


def least_greatest(
    f: Function, weight: Function, powers: Sequence[int], low: mp.mpf, high: mp.mpf
) -> list[mp.mpf]:
    """As `exchange`, where powers don't oscillate as it wants.

    Least squares whose weights follow the errors (C. L. Lawson, 1961).
    """
    xs = [
        (low + high - (high - low) * mp.cos(mp.pi * (k + mp.mpf(1) / 3) / 80)) / 2
        for k in range(80)
    ]
    basis = [[weight(x) * x**p for p in powers] for x in xs]
    values = [weight(x) * f(x) for x in xs]
    shares = [mp.mpf(1) / len(xs)] * len(xs)
    best: tuple[mp.mpf, list[mp.mpf]] | None = None
    for _ in range(60):
        count = range(len(powers))
        left = mp.matrix(
            [
                [sum(s * b[i] * b[j] for s, b in zip(shares, basis, strict=True)) for j in count]
                for i in count
            ]
        )
        right = mp.matrix(
            [
                sum(s * b[i] * v for s, b, v in zip(shares, basis, values, strict=True))
                for i in count
            ]
        )
        found = list(mp.lu_solve(left, right))
        errors = [abs(mp.fdot(found, b) - v) for b, v in zip(basis, values, strict=True)]
        if best is None or max(errors) < best[0]:
            best = (max(errors), found)
        shares = [s * e for s, e in zip(shares, errors, strict=True)]
        total = sum(shares)
        shares = [s / total for s in shares]
    assert best is not None
    return best[1]


def table(name: str, f: Function, step: float, count: int, degree: int) -> None:
    """Prints points near the multiples of `step`, and polynomials of erf or erfc there.

    Power by power.
    """
    points, rows = [mp.mpf(0)], []
    for k in range(count):
        middle, half = mp.mpf(step) * k, mp.mpf(step) / 2 * mp.mpf("1.001")
        if k:
            points.append(exact_point(f, middle))
        point = points[k]
        constant = rounded(f(point), True)
        low, high = (middle - half - point if k else half / 10**6), middle + half - point
        found = least_greatest(
            lambda t, p=point, c=constant: f(p + t) - c,
            lambda t, p=point: 1 / f(p + t),
            range(1, degree + 1),
            low,
            high,
        )
        rows.append([rounded(c, True) for c in [constant, *found]])
    print(f"{name}, near the multiples of {step}, f32: the points, and power by power")
    for power in [points, *zip(*rows, strict=True)]:
        print("    [" + ", ".join(mp.nstr(c, 9) for c in power) + "],")


def main() -> None:
    """All of them."""
    table("erf", mp.erf, 33 / 256, 32, 4)
    table("erfc", mp.erfc, 33 / 256, 32, 6)
    half_ln2 = float(mp.log(2) / 2) * 1.0001
    quarter = float(mp.pi / 4) ** 2 * 1.0001
    third = 1 / 3 * 1.0001
    for single in (True, False):
        # exp(r) = 1 + r + r^2 q(r); the same q serves expm1.
        q = near_zero(lambda r: (mp.expm1(r) - r) / r**2, lambda r: mp.mpf(1) / 2 + r / 6)
        part = near_zero(lambda r: r**2 / mp.expm1(r), lambda r: r)
        whole = near_zero(lambda r: r**2 / mp.exp(r), lambda r: r**2)
        fit("exp", q, whole, 4 if single else 10, -half_ln2, half_ln2, single)
        fit("expm1", q, part, 5 if single else 10, -half_ln2, half_ln2, single)
        # 2^r = 1 + r q(r).
        q2 = near_zero(
            lambda r: mp.expm1(r * mp.log(2)) / r, lambda r: mp.log(2) + r * mp.log(2) ** 2 / 2
        )
        fit("exp2", q2, lambda r: r / mp.mpf(2) ** r, 6 if single else 11, -0.5001, 0.5001, single)
        # sin(r) = r + r^3 s(r^2) and cos(r) = 1 - r^2/2 + r^4 c(r^2), in z = r^2.
        s = near_zero(
            lambda z: (mp.sin(mp.sqrt(z)) / mp.sqrt(z) - 1) / z, lambda z: -mp.mpf(1) / 6 + z / 120
        )
        sw = near_zero(lambda z: z * mp.sqrt(z) / mp.sin(mp.sqrt(z)), lambda z: z)
        fit("sin", s, sw, 3 if single else 6, 0, quarter, single)
        c = near_zero(
            lambda z: (mp.cos(mp.sqrt(z)) - 1 + z / 2) / z**2, lambda z: mp.mpf(1) / 24 - z / 720
        )
        fit("cos", c, lambda z: z**2 / mp.cos(mp.sqrt(z)), 2 if single else 5, 0, quarter, single)
        # erf(x) = x + x p(x^2) below `split`; erfc(x) = 2^-(q(x)) above, up to where erf is 1.
        split, end = (0.9, 4.0) if single else (1.0, 6.0)
        p = near_zero(
            lambda z: mp.erf(mp.sqrt(z)) / mp.sqrt(z) - 1,
            lambda z: 2 / mp.sqrt(mp.pi) * (1 - z / 3) - 1,
        )
        pw = near_zero(lambda z: mp.sqrt(z) / mp.erf(mp.sqrt(z)), lambda z: mp.sqrt(mp.pi) / 2)
        fit("erf, small", p, pw, 6 if single else 12, 0, split**2, single)
        # The weight: what an error of q does to erf, which is erfc * ln 2.
        fit(
            "erf, large",
            lambda x: -mp.log(mp.erfc(x), 2),
            lambda x: mp.erfc(x) / mp.erf(x) * mp.log(2),
            7 if single else 17,
            split,
            end,
            single,
        )
        # tanh(x) = x + x z t(z), z = x^2.
        t = near_zero(
            lambda z: (mp.tanh(mp.sqrt(z)) / mp.sqrt(z) - 1) / z,
            lambda z: -mp.mpf(1) / 3 + z * 2 / 15,
        )
        tw = near_zero(lambda z: z * mp.sqrt(z) / mp.tanh(mp.sqrt(z)), lambda z: z)
        fit("tanh", t, tw, 4 if single else 10, 0, 0.55**2, single)
    # log(1 + f) = f - f^2/2 + f^3 p(f).
    p = near_zero(lambda f: (mp.log1p(f) - f + f**2 / 2) / f**3, lambda f: mp.mpf(1) / 3 - f / 4)
    pw = near_zero(lambda f: f**3 / mp.log1p(f), lambda f: f**2)
    fit("log", p, pw, 8, -third, third, True)
    # log(1 + f) = 2 atanh(s), s = f / (2 + f): 2 atanh(s) = 2 s + s z p(z), z = s^2.
    t = near_zero(
        lambda z: (2 * mp.atanh(mp.sqrt(z)) / mp.sqrt(z) - 2) / z,
        lambda z: mp.mpf(2) / 3 + z * 2 / 5,
    )
    tw = near_zero(lambda z: z * mp.sqrt(z) / mp.atanh(mp.sqrt(z)) / 2, lambda z: z / 2)
    fit("log", t, tw, 6, 0, 0.0295, False)
    # The same beyond its first term, for pow: 2 atanh(s) = 2 s + s z (2/3 + z p(z)).
    u = near_zero(
        lambda z: ((2 * mp.atanh(mp.sqrt(z)) / mp.sqrt(z) - 2) / z - mp.mpf(2) / 3) / z,
        lambda z: mp.mpf(2) / 5 + z * 2 / 7,
    )
    uw = near_zero(lambda z: z**2 * mp.sqrt(z) / mp.atanh(mp.sqrt(z)) / 2, lambda z: z**2 / 2)
    fit("log for pow", u, uw, 7, 0, 0.0295, False)
    # For pow of float32 in float64: log2(1 + f) = f p(f) and 2^r.
    v = near_zero(lambda f: mp.log1p(f) / f / mp.log(2), lambda f: (1 - f / 2) / mp.log(2))
    fit("log2 for powf", v, lambda f: 1 / v(f), 13, -third, third, False)
    w = lambda r: mp.mpf(2) ** r  # noqa: E731
    fit("exp2 for powf", w, lambda r: 1 / w(r), 7, -0.5001, 0.5001, False)
    # erfc(x) = exp(-x^2) p(u) / (1 + 2 x), u = (x - k) / (x + k), where its power is no number.
    for single, high, degree in ((True, 10.25, 8), (False, 28.0, 22)):
        m, low = mp.mpf("3.75"), 0.5

        def x_of(u: mp.mpf, m: mp.mpf = m) -> mp.mpf:
            return m * (1 + u) / (1 - u)

        def scaled(u: mp.mpf, x_of: Function = x_of) -> mp.mpf:
            return (1 + 2 * x_of(u)) * mp.exp(x_of(u) ** 2) * mp.erfc(x_of(u))

        ends = (low - m) / (low + m), (high - m) / (high + m)
        name = "erfc, single" if single else "erfc, double"
        fit(name, scaled, lambda u, f=scaled: 1 / f(u), degree, *ends, single)
    for name, value in (("ln 2", mp.log(2)), ("pi / 2", mp.pi / 2), ("2 / 3", mp.mpf(2) / 3)):
        print(name, mp.nstr(value, 40))


if __name__ == "__main__":
    main()
