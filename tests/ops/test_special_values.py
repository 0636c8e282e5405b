"""Every real operator at zeros, infinities, NaN and the ends of the range, beside NumPy's.

They are as NumPy's, with these differences, which are intended: `logical_and`, `logical_or` and
`logical_xor` take bools alone; a number beyond a float's range becomes infinite without a warning.
NumPy has no `relu`, `gelu` and `silu`: at -inf they are 0, and NaN stays.
"""

import itertools
import math

import numpy as np
import pytest

import keyfold as kf

INF, NAN = math.inf, math.nan
aten = kf.ops.aten


def expression(text):
    names = ["x", "y"] if "y" in text else ["x"]
    return kf.Expression(text, inputs=names)


def relu(x):
    return np.where(x <= 0, x.dtype.type(0), x)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def shut(x, by):
    """A product with a gate that is shut at -inf."""
    return np.where(x == -INF, x.dtype.type(-1), x) * by


def by_math(function):
    exact = np.vectorize(function, otypes=[np.float64])
    return lambda x: exact(x.astype(np.float64)).astype(x.dtype)


erf, erfc = by_math(math.erf), by_math(math.erfc)


def gelu(x):
    return np.where(x < -40, x.dtype.type(-0.0), shut(x, erfc(-x / math.sqrt(2)) / 2))


ONE = {
    "abs": (kf.abs, np.abs),
    "ceil": (kf.ceil, np.ceil),
    "cos": (kf.cos, np.cos),
    "cosh": (expression("cosh(x)"), np.cosh),
    "erf": (kf.erf, erf),
    "erfc": (expression("erfc(x)"), erfc),
    "exp": (kf.exp, np.exp),
    "exp2": (expression("exp2(x)"), np.exp2),
    "expm1": (kf.expm1, np.expm1),
    "floor": (kf.floor, np.floor),
    "gelu": (kf.gelu, gelu),
    "isfinite": (kf.isfinite, np.isfinite),
    "isinf": (kf.isinf, np.isinf),
    "isnan": (kf.isnan, np.isnan),
    "log": (kf.log, np.log),
    "log10": (expression("log10(x)"), np.log10),
    "log1p": (kf.log1p, np.log1p),
    "log2": (expression("log2(x)"), np.log2),
    "logical_not": (kf.logical_not, np.logical_not),
    "negative": (kf.negative, np.negative),
    "positive": (kf.positive, np.positive),
    "reciprocal": (kf.reciprocal, np.reciprocal),
    "relu": (kf.relu, relu),
    "round": (kf.round, np.rint),
    "rsqrt": (kf.rsqrt, lambda x: 1 / np.sqrt(x)),
    "sigmoid": (kf.sigmoid, sigmoid),
    "sign": (kf.sign, np.sign),
    "silu": (kf.silu, lambda x: np.where(x < -1000, x.dtype.type(-0.0), shut(x, sigmoid(x)))),
    "sin": (kf.sin, np.sin),
    "sinh": (expression("sinh(x)"), np.sinh),
    "softplus": (kf.softplus, lambda x: np.logaddexp(x, x.dtype.type(0))),
    "sqrt": (kf.sqrt, np.sqrt),
    "square": (kf.square, np.square),
    "tan": (expression("tan(x)"), np.tan),
    "tanh": (kf.tanh, np.tanh),
    "trunc": (kf.trunc, np.trunc),
}
TWO = {
    "add": (kf.add, np.add),
    "divide": (kf.divide, np.divide),
    "equal": (kf.equal, np.equal),
    "floor_divide": (kf.floor_divide, np.floor_divide),
    "greater": (kf.greater, np.greater),
    "greater_equal": (kf.greater_equal, np.greater_equal),
    "hypot": (expression("hypot(x, y)"), np.hypot),
    "less": (kf.less, np.less),
    "less_equal": (kf.less_equal, np.less_equal),
    "logaddexp": (expression("logaddexp(x, y)"), np.logaddexp),
    "logical_and": (expression("x and y"), np.logical_and),
    "logical_or": (expression("x or y"), np.logical_or),
    "logical_xor": (expression("logical_xor(x, y)"), np.logical_xor),
    "maximum": (kf.maximum, np.maximum),
    "minimum": (kf.minimum, np.minimum),
    "multiply": (kf.multiply, np.multiply),
    "not_equal": (kf.not_equal, np.not_equal),
    "pow": (kf.pow, np.power),
    "remainder": (kf.remainder, np.remainder),
    "subtract": (kf.subtract, np.subtract),
}


def specials(dtype):
    info = np.finfo(dtype)
    positive = [
        0.0,
        info.smallest_subnormal,
        info.tiny,
        0.5,
        1.0,
        1.5,
        2.0,
        3.0,
        1e4,
        info.max,
        INF,
    ]
    return np.array([sign * v for v in positive for sign in (1, -1)] + [NAN], dtype)


def differs(got, expected, dtype):
    """Where two results aren't the same special value, or not the same number to 16 ulp."""
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.dtype == expected.dtype
    if got.dtype == bool:
        return got != expected
    info = np.finfo(dtype)
    close = np.isclose(got, expected, rtol=16 * info.eps, atol=8 * info.smallest_subnormal)
    same = close & (np.signbit(got) == np.signbit(expected))
    return ~(same | (np.isnan(got) & np.isnan(expected)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ONE)
def test_functions_of_one_number(name, dtype):
    function, reference = ONE[name]
    x = specials(dtype)
    with np.errstate(all="ignore"):
        expected = np.asarray(reference(x))
    got = np.asarray(function(x))
    wrong = differs(got, expected, dtype)
    assert not wrong.any(), list(zip(x[wrong], got[wrong], expected[wrong], strict=True))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", TWO)
def test_functions_of_all_pairs(name, dtype):
    function, reference = TWO[name]
    x, y = np.array(list(itertools.product(specials(dtype), repeat=2))).T.copy()
    with np.errstate(all="ignore"):
        expected = np.asarray(reference(x, y))
    got = np.asarray(function(x, y))
    wrong = differs(got, expected, dtype)
    assert not wrong.any(), list(zip(x[wrong], y[wrong], got[wrong], expected[wrong], strict=True))


@pytest.mark.parametrize("name", ["logical_and", "logical_or", "logical_xor"])
def test_logical_operators_refuse_floats_by_name(name):
    with pytest.raises(kf.DTypeError, match=f"{name}.. combines bools, not float64"):
        getattr(kf, name)(np.ones(2), np.ones(2))


def test_three_operands_and_rows():
    x = np.array([-INF, -0.0, 0.0, 1.0, INF, NAN])
    for low, high in [(-1.0, 0.5), (NAN, 1.0), (0.0, NAN), (2.0, 1.0), (-INF, INF)]:
        np.testing.assert_array_equal(kf.clip(x, low, high), np.clip(x, low, high))
    halves = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5])
    assert np.asarray(kf.round(halves)).tolist() == [-2, -2, -0.0, 0, 2, 2]
    rows = np.array([[-INF, -INF], [INF, 1.0], [NAN, 1.0], [-INF, 1.0]])
    for function in (aten.softmax, aten.log_softmax):
        got = np.asarray(function(rows, 1))
        # As PyTorch's: a row of -inf alone has no distribution.
        assert np.isnan(got[:3]).all()
        assert got[3].tolist() == ([0.0, 1.0] if function is aten.softmax else [-INF, 0.0])
    assert np.asarray(kf.max(rows, axis=1))[[0, 1, 3]].tolist() == [-INF, INF, 1.0]
    assert np.isnan(np.asarray(kf.max(rows, axis=1))[2])
    assert np.isnan(np.asarray(kf.mean(np.zeros((0, 2)), axis=0))).all()


# The places where a Python number becomes a float of a tensor's dtype.
def items_set(x, number):
    x[0] = number
    return x


def items_set_by_mask(x, number):
    x[kf.asarray(np.array([True, False]))] = number
    return x


NUMBERS = {
    "full": lambda x, number: kf.full((2,), number, dtype=x.dtype),
    "full_like": lambda x, number: kf.full_like(x, number),
    "asarray": lambda x, number: kf.asarray(number, dtype=x.dtype),
    "asarray of a list": lambda x, number: kf.asarray([number], dtype=x.dtype),
    "fill_": lambda x, number: x.fill_(number),
    "+": lambda x, number: x + number,
    "- from": lambda x, number: number - x,
    "*": lambda x, number: x * number,
    "maximum": lambda x, number: kf.maximum(x, abs(number)) * math.copysign(1, number),
    "where": lambda x, number: kf.where(x < 0, x, number),
    "an item": items_set,
    "a mask": items_set_by_mask,
    "an expression's": lambda x, number: kf.Expression(f"x * {number}")(x),
    "a parameter": lambda x, number: kf.Expression("x * p", inputs=["x"], params=["p"])(
        x, p=number
    ),
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_beyond_the_range_of_a_float_is_infinite_everywhere(name, dtype):
    for number in (1e300, -1e300):
        x = kf.asarray(np.ones(2)).to(dtype)
        got = NUMBERS[name](x, number)
        assert str(got.dtype) == dtype
        assert float(got.reshape([-1])[0]) == math.copysign(INF, number)
    # Whole numbers have no infinity.
    with pytest.raises(kf.Error, match="out of range for dtype uint8"):
        kf.full((), 300, dtype="uint8")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gelu_is_as_exact_far_below_0_as_near_it(dtype):
    """`1 + erf` would leave nothing of its value there.

    The argument of erfc is rounded, here and in the reference: half an ulp of it is x ** 2 / 2
    ulp of the value.
    """
    x = -np.linspace(0.01, 13.0 if dtype == "float32" else 37.0, 2001).astype(dtype)
    wide = x.astype(np.float64)
    cdf = np.array([math.erfc(-v / math.sqrt(2)) / 2 for v in wide])
    bell = np.exp(-wide * wide / 2) / math.sqrt(2 * math.pi)
    eps = np.finfo(dtype).eps
    bound = eps * (6 + 2 * wide * wide)
    for expr, exact in [
        (kf.Expression("gelu(x)"), wide * cdf),
        (kf.Expression("gelu(x)").derivative("x"), cdf + wide * bell),
    ]:
        # The two terms of the derivative cancel where it is 0, near -0.75.
        size = np.maximum(np.abs(exact), cdf)
        normal = size > np.finfo(dtype).tiny * 1e3
        error = np.abs(np.asarray(expr(x), np.float64) - exact) / size
        assert (error <= bound)[normal].all(), (
            x[normal][np.argmax((error / bound)[normal])],
            error,
        )
    slope = kf.grad(lambda x: kf.sum(kf.gelu(x)))(kf.asarray(x))
    assert (np.abs(np.asarray(slope, np.float64) - exact) / size <= bound)[normal].all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_gelu_of_halves_is_rounded_once(dtype):
    x = kf.asarray(-np.linspace(0.0, 6.0, 500)).to(dtype)
    wide = np.asarray(x.to("float64"))
    exact = np.array([v * math.erfc(-v / math.sqrt(2)) / 2 for v in wide])
    assert kf.gelu(x).to("float64").tolist() == pytest.approx(
        kf.asarray(exact).to(dtype).to("float64").tolist(), rel=2**-7, abs=6e-8
    )


def test_gelu_by_tanh_doesnt_cancel_far_below_0():
    x = -np.linspace(0.1, 12.0, 500)
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    exact = x / (1 + np.exp(-2 * inner))
    got = kf.gelu(x, approximate="tanh")
    np.testing.assert_allclose(got, exact, rtol=1e-13)
