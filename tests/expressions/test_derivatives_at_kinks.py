"""First and second derivatives of every function of expressions where it bends, or might.

For each function its kinks, its zeros, the points where its parts meet, and infinities, with the
known limits; at a tip, where two sides differ, what docs/expressions.md says.
"""

import math
import re

import numpy as np
import pytest

import keyfold as kf
from tests.helpers.paths import ROOT

INF = math.inf
LN2, LN10 = math.log(2), math.log(10)
BELL = 2 / math.sqrt(math.pi)
NORMAL = 1 / math.sqrt(2 * math.pi)
HALF = math.sqrt(0.5)

# By expression: (x, y), then the derivatives by x and by y, and the second by x twice, None where
# there is no promise. Where the expression has no y, nothing is by y.
POINTS = {
    "exp(x)": [((0, 0), (1, 0), 1), ((-INF, 0), (0, 0), 0)],
    "exp2(x)": [((0, 0), (LN2, 0), LN2**2)],
    "expm1(x)": [((0, 0), (1, 0), 1), ((-INF, 0), (0, 0), 0)],
    "log(x)": [((1, 0), (1, 0), -1), ((0, 0), (INF, 0), -INF)],
    "log2(x)": [((1, 0), (1 / LN2, 0), -1 / LN2), ((0, 0), (INF, 0), -INF)],
    "log10(x)": [((1, 0), (1 / LN10, 0), -1 / LN10), ((0, 0), (INF, 0), -INF)],
    "log1p(x)": [((0, 0), (1, 0), -1), ((-1, 0), (INF, 0), -INF)],
    "logaddexp(x, y)": [
        ((0, 0), (0.5, 0.5), 0.25),
        ((7, 7), (0.5, 0.5), 0.25),
        ((INF, INF), (0.5, 0.5), 0),
        ((-INF, -INF), (0.5, 0.5), 0),
        ((-INF, 3), (0, 1), 0),
        ((INF, 3), (1, 0), 0),
    ],
    "softplus(x)": [((0, 0), (0.5, 0), 0.25), ((40, 0), (1, 0), 0), ((-INF, 0), (0, 0), 0)],
    "sqrt(x)": [((1, 0), (0.5, 0), -0.25), ((0, 0), (INF, 0), -INF)],
    "rsqrt(x)": [((1, 0), (-0.5, 0), 0.75)],
    "square(x)": [((0, 0), (0, 0), 2)],
    "reciprocal(x)": [((1, 0), (-1, 0), 2), ((-1, 0), (-1, 0), -2)],
    "pow(x, y)": [
        ((0, 2), (0, 0), 2),
        ((0, 1), (1, 0), 0),
        ((0, 0), (0, 0), 0),
        ((1, 1), (1, 0), 0),
        ((2, 3), (12, 8 * LN2), 12),
    ],
    "hypot(x, y)": [
        ((0, 0), (0, 0), 0),
        ((0, 2), (0, 1), 0.5),
        ((2, 0), (1, 0), 0),
        ((3, 3), (HALF, HALF), HALF / 6),
        ((3, -3), (HALF, -HALF), HALF / 6),
        ((-INF, 1), (-1, 0), 0),
        ((1, INF), (0, 1), 0),
        # Subnormal: the power of two that both are divided by has no reciprocal.
        ((5e-324, 0), (1, 0), None),
        ((-3e-310, 4e-310), (-0.6, 0.8), None),
    ],
    "sin(x)": [((0, 0), (1, 0), 0)],
    "cos(x)": [((0, 0), (0, 0), -1)],
    "tan(x)": [((0, 0), (1, 0), 0)],
    "sinh(x)": [((0, 0), (1, 0), 0), ((1, 0), (math.cosh(1), 0), math.sinh(1))],
    "cosh(x)": [((0, 0), (0, 0), 1)],
    "tanh(x)": [((0, 0), (1, 0), 0), ((INF, 0), (0, 0), 0)],
    "relu(x)": [((0, 0), (0, 0), 0), ((1, 0), (1, 0), 0), ((-INF, 0), (0, 0), 0)],
    "gelu(x)": [
        ((0, 0), (0.5, 0), 2 * NORMAL),
        ((-INF, 0), (0, 0), 0),
        ((INF, 0), (1, 0), 0),
    ],
    "gelu_tanh(x)": [
        ((0, 0), (0.5, 0), 2 * NORMAL),
        ((-INF, 0), (0, 0), 0),
        ((INF, 0), (1, 0), 0),
    ],
    "silu(x)": [((0, 0), (0.5, 0), 0.5), ((-INF, 0), (0, 0), 0), ((1e4, 0), (1, 0), 0)],
    "sigmoid(x)": [((0, 0), (0.25, 0), 0), ((-INF, 0), (0, 0), 0), ((INF, 0), (0, 0), 0)],
    "erf(x)": [
        ((0, 0), (BELL, 0), 0),
        ((3, 0), (BELL * math.exp(-9), 0), -6 * BELL * math.exp(-9)),
    ],
    "erfc(x)": [
        ((0, 0), (-BELL, 0), 0),
        ((3, 0), (-BELL * math.exp(-9), 0), 6 * BELL * math.exp(-9)),
    ],
    "floor(x)": [((0, 0), (0, 0), 0), ((1, 0), (0, 0), 0)],
    "ceil(x)": [((0, 0), (0, 0), 0)],
    "round(x)": [((0.5, 0), (0, 0), 0)],
    "trunc(x)": [((-1, 0), (0, 0), 0)],
    "abs(x)": [((0, 0), (0, 0), 0), ((-2, 0), (-1, 0), 0)],
    "sign(x)": [((0, 0), (0, 0), 0)],
    "real(x)": [((0, 0), (1, 0), 0)],
    "imag(x)": [((0, 0), (0, 0), 0)],
    "conj(x)": [((0, 0), (1, 0), 0)],
    "neg(x)": [((0, 0), (-1, 0), 0)],
    "where(x > y, x * x, y)": [((0, 0), (0, 1), 0), ((2, 1), (4, 0), 2)],
    "min(x, y)": [((1, 1), (0.5, 0.5), 0), ((0, 1), (1, 0), 0)],
    "max(x, y)": [((1, 1), (0.5, 0.5), 0), ((0, 1), (0, 1), 0)],
    "clamp(x, -1, y)": [((-1, 1), (0.5, 0), 0), ((0, 1), (1, 0), 0), ((1, 1), (0.5, 0.5), 0)],
    "isnan(x)": [((0, 0), (0, 0), 0)],
    "isinf(x)": [((INF, 0), (0, 0), 0)],
    "isfinite(x)": [((0, 0), (0, 0), 0)],
    "logical_and(x, y)": [((0, 0), (0, 0), 0)],
    "logical_or(x, y)": [((0, 0), (0, 0), 0)],
    "logical_xor(x, y)": [((0, 0), (0, 0), 0)],
    "logical_not(x)": [((0, 0), (0, 0), 0)],
    "add(x, y)": [((0, 0), (1, 1), 0)],
    "sub(x, y)": [((2, 2), (1, -1), 0)],
    "mul(x, y)": [((0, 0), (0, 0), 0), ((3, 3), (3, 3), 0)],
    "div(x, y)": [((2, 2), (0.5, -0.5), 0), ((0, 2), (0.5, 0), 0)],
    "floor_divide(x, y)": [((4, 2), (0, 0), 0), ((0, 2), (0, 0), 0)],
    "remainder(x, y)": [((4, 2), (1, -2), 0), ((0, 2), (1, 0), 0)],
    **{f"{name}(x, y)": [((1, 1), (0, 0), 0)] for name in ("eq", "ne", "lt", "le", "gt", "ge")},
}

# On bits, which have no derivatives.
BITS = {"bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "left_shift", "right_shift"}


def functions():
    """The functions in the table of docs/expressions.md, without their other names."""
    text = (ROOT / "docs" / "expressions.md").read_text()
    table = text[text.index("### Functions") :].split("\n\n")[1]
    rows = [row.split("|")[2] for row in table.splitlines()[2:]]
    names = [re.sub(r"\([^)]*`[^)]*\)", "", row) for row in rows]
    return {name for row in names for name in re.findall(r"`(\w+)", row)}


def test_every_function_is_here():
    here = {text.split("(")[0] for text in POINTS}
    assert functions() - BITS == here


def close(got, expected):
    return expected is None or np.isclose(got, expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("text", POINTS)
def test_first_and_second_derivatives_are_the_limits(text):
    expression = kf.Expression(text, inputs=["x", "y"])
    by_x, by_y = expression.derivative("x"), expression.derivative("y")
    second = by_x.derivative("x")
    for (x, y), (first_x, first_y), twice in POINTS[text]:
        at = (np.array([float(x)]), np.array([float(y)]))
        found = [float(derivative(*at)[0]) for derivative in (by_x, by_y, second)]
        assert all(map(close, found, (first_x, first_y, twice))), (text, x, y, found)


@pytest.mark.parametrize("text", POINTS)
def test_autograd_has_the_same_numbers(text):
    expression = kf.Expression(text, inputs=["x", "y"])
    if kf.Expression(text).result_dtype("float64") == kf.bool:
        return

    def total(x, y):
        return kf.sum(expression(x, y))

    for (x, y), (first_x, first_y), twice in POINTS[text]:
        at = [kf.asarray(np.array([float(v)])) for v in (x, y)]
        first = kf.grad(total, argnums=(0, 1))
        assert all(map(close, [float(g[0]) for g in first(*at)], (first_x, first_y))), (text, x, y)
        second = kf.grad(lambda x, y: kf.sum(kf.grad(total)(x, y)))(*at)
        assert close(float(second[0]), twice), (text, x, y, second)


def test_gates_are_shut_at_minus_infinity():
    x = np.array([-INF, INF, -0.0])
    for text in ("gelu(x)", "gelu_tanh(x)", "silu(x)", "relu(x)"):
        got = kf.Expression(text)(x)
        assert got.tolist() == [0.0, INF, 0.0], text
    for function in (kf.gelu, kf.silu, kf.relu):
        assert np.asarray(function(x)).tolist() == [0.0, INF, 0.0]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_gates_are_open_at_infinity(dtype):
    x = kf.asarray(np.array([-INF, INF, -1e4, 1e4])).to(dtype)
    for function in (kf.gelu, kf.Expression("gelu_tanh(x)")):
        slope = kf.grad(lambda x, function=function: kf.sum(function(x)))
        bend = kf.grad(lambda x, slope=slope: kf.sum(slope(x)))
        assert slope(x).to("float64").tolist() == [0, 1, 0, 1], function
        assert bend(x).to("float64").tolist() == [0, 0, 0, 0], function
