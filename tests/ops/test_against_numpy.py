"""Every elementwise operator against NumPy: random shapes, strides, dtypes, numbers and `out=`.

Exact operators have to agree to the bit; functions are measured against float64, float64 ones
against longdouble. A normal run takes 60 examples per operator, about 4000; `KEYFOLD_EXAMPLES=10`
takes ten times as many. `-s` prints how many it were. Reductions are in
`test_reductions_against_numpy.py`.
"""

import inspect
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keyfold as kf
from tests.helpers.random_arrays import (
    ALL,
    COMPLEX,
    FLOATS,
    HALVES,
    LONG,
    REAL,
    WHOLE,
    broadcasting,
    computed,
    distance,
    elements,
    examples,
    kind,
    lay_out,
    layouts,
    numbers,
    promoted,
    rounded,
    weak,
)

counted = {"examples": 0, "elements": 0}


@pytest.fixture(scope="module", autouse=True)
def count():
    """Says at the end how much was compared."""
    yield
    print("\ncompared with NumPy: {examples} calls, {elements} elements".format(**counted))


def erf(x):
    return np.vectorize(math.erf, otypes=[np.float64])(x.astype(np.float64)).astype(x.dtype)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def shut(x):
    """The numbers that a gate meets: at -inf it is shut, and 0 times that would be NaN."""
    return np.where(x == -np.inf, x.dtype.type(-1e4), x)


def gelu_tanh(x):
    c = np.clip(x, -16, 16)
    inner = np.sqrt(x.dtype.type(2) / (4 * np.arctan(x.dtype.type(1)))) * (c + 0.044715 * c**3)
    return shut(x) * (1 + np.tanh(inner)) / 2


# The value, the dtypes, and the bound in ulp: 0 for the same bits. Functions that are floating
# whatever they are given are in FLOATING.
UNARY = {
    "abs": (np.abs, ALL, 1),
    "bitwise_invert": (np.invert, ["bool", *WHOLE], 0),
    "ceil": (np.ceil, REAL, 0),
    "conj": (lambda x: x if x.dtype == bool else np.conj(x), ALL, 0),
    "cos": (np.cos, ALL, 2),
    "erf": (erf, REAL, 5),
    "exp": (np.exp, ALL, 2),
    "expm1": (np.expm1, REAL, 2),
    "floor": (np.floor, REAL, 0),
    "gelu": (lambda x: shut(x) * (1 + erf(x / np.sqrt(x.dtype.type(2)))) / 2, REAL, 6),
    "imag": (np.imag, ALL, 0),
    "isfinite": (np.isfinite, ALL, 0),
    "isinf": (np.isinf, ALL, 0),
    "isnan": (np.isnan, ALL, 0),
    "log": (np.log, ALL, 2),
    "log1p": (np.log1p, REAL, 2),
    "logical_not": (np.logical_not, ALL, 0),
    "negative": (np.negative, [*WHOLE, *FLOATS, *COMPLEX], 0),
    "positive": (np.array, ALL, 0),
    "real": (np.real, ALL, 0),
    "reciprocal": (lambda x: x.dtype.type(1) / x, ALL, 0),
    "relu": (lambda x: np.where(x <= 0, x.dtype.type(0), x), REAL, 0),
    "round": (lambda x: np.rint(x) if x.dtype.kind == "f" else x, REAL, 0),
    "rsqrt": (lambda x: 1 / np.sqrt(x), ALL, 2),
    "sigmoid": (sigmoid, REAL, 2),
    "sign": (lambda x: x if x.dtype == bool else np.sign(x), ALL, 0),
    "silu": (lambda x: shut(x) * sigmoid(x), REAL, 4),
    "sin": (np.sin, ALL, 2),
    "softplus": (lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))), REAL, 4),
    "sqrt": (np.sqrt, ALL, 0),
    "square": (lambda x: x & x if x.dtype == bool else x * x, ALL, 0),
    "tanh": (np.tanh, ALL, 2),
    "trunc": (np.trunc, REAL, 0),
}
FLOATING = {
    *("cos", "erf", "exp", "expm1", "gelu", "log", "log1p", "reciprocal", "rsqrt", "sigmoid"),
    *("silu", "sin", "softplus", "sqrt", "tanh", "divide"),
}
ORDER = {"maximum": np.maximum, "minimum": np.minimum}
COMPARE = {
    name: getattr(np, name)
    for name in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
}
NUMERIC = [*WHOLE, *FLOATS]
BINARY = {
    "add": (np.add, ALL, 0),
    "subtract": (np.subtract, [*NUMERIC, *COMPLEX], 0),
    "multiply": (np.multiply, ALL, 0),
    "divide": (np.divide, ALL, 0),
    "floor_divide": (np.floor_divide, NUMERIC, 0),
    "remainder": (np.remainder, NUMERIC, 0),
    "pow": (np.power, [*NUMERIC, *COMPLEX], 4),
    "bitwise_and": (np.bitwise_and, ["bool", *WHOLE], 0),
    "bitwise_or": (np.bitwise_or, ["bool", *WHOLE], 0),
    "bitwise_xor": (np.bitwise_xor, ["bool", *WHOLE], 0),
    "bitwise_left_shift": (np.left_shift, WHOLE, 0),
    "bitwise_right_shift": (np.right_shift, WHOLE, 0),
    "logical_and": (np.logical_and, ["bool"], 0),
    "logical_or": (np.logical_or, ["bool"], 0),
    "logical_xor": (np.logical_xor, ["bool"], 0),
    **{name: (function, REAL, 0) for name, function in ORDER.items()},
    **{
        name: (function, ALL if name in ("equal", "not_equal") else REAL, 0)
        for name, function in COMPARE.items()
    },
}


def wide(x):
    """The number with more digits."""
    return x.astype({"f": np.float64, "d": LONG, "F": complex, "D": np.clongdouble}[x.dtype.char])


def check(name, got, function, operands, dtype, bound, library):
    """Holds a result against what NumPy's function gives for the operands, which are in the dtype
    that all are computed in; `dtype` is the result's."""
    assert type(got) is library
    assert str(got.dtype) == dtype
    result = numbers(got)
    counted["examples"] += 1
    counted["elements"] += result.size
    with np.errstate(all="ignore"):
        if kind(dtype) in ("bool", "whole") or (bound == 0 and kind(dtype) == "float"):
            expected = rounded(function(*operands), dtype)
            same = (result == expected) | (result != result) & (expected != expected)
            if kind(dtype) == "float" and name not in ORDER:
                same &= np.isnan(expected) | (np.signbit(result) == np.signbit(expected))
        elif kind(dtype) == "complex":
            expected = function(*map(wide, operands))
            eps = max(np.finfo(operands[0].dtype).eps, np.finfo(dtype).eps)
            # Relative to the length of the number; of 1, where parts cancel each other.
            size = np.maximum(np.abs(expected), 1) * 8
            if name == "pow":
                power = np.abs(wide(operands[1]) * np.log(wide(operands[0])))
                size = size * np.where(np.isfinite(power), 1 + power, 1)
            error = np.abs(result - expected)
            same = (error <= size * eps) | ~np.isfinite(expected) | ~np.isfinite(result)
        else:
            expected = function(*map(wide, operands))
            # Where a sum comes near zero by subtracting, the last place is that of `x`.
            scale = operands[0] if name in ("gelu", "gelu_tanh") else None
            if name == "silu":
                # Where the sigmoid is subnormal, its error is that of a last place, times `x`.
                scale = operands[0] * np.finfo(operands[0].dtype).tiny
            limit = 0.51 if dtype in HALVES else bound
            same = distance(result, expected, dtype, scale) <= limit
    assert result.shape == expected.shape
    if not np.all(same):
        at = np.unravel_index(np.argmin(same), result.shape)
        given_ = [np.broadcast_to(x, result.shape)[at] for x in operands]
        text = f"{name}({given_}) -> {dtype}: {result[at]!r}, and not {expected[at]!r}, at {at}"
        raise AssertionError(text)


def span_of(name, dtype, second=False):
    """The range of a function's operands, where it has one."""
    if name == "pow" and kind(dtype) == "whole" and second:
        return (0, 9)
    if kind(dtype) == "complex":
        # Away from the zeros and poles of what it is divided by.
        return {"tanh": (-1, 1), "divide": (1, 3), "reciprocal": (1, 3), "rsqrt": (1, 3)}.get(name)
    return None


def draw_array(data, name, dtype, shape, second=False, repeat=True):
    """Elements, as numbers, and an array with them."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    with np.errstate(all="ignore"):
        values = elements(rng, dtype, shape, span_of(name, dtype, second))
    array = lay_out(values, data.draw(layouts(shape, repeat=repeat)), dtype)
    values = numbers(array)
    if dtype != "bfloat16" and data.draw(st.booleans()):
        array = kf.asarray(array)
    return values, array


def draw_out(data, dtype, shape):
    """Nothing, or an array to write into, of any layout."""
    if data.draw(st.booleans()):
        return None
    values = rounded(np.full(shape, 99), dtype)
    return lay_out(values, data.draw(layouts(shape, repeat=False)), dtype)


def floating(name, dtype):
    return "float64" if name in FLOATING and kind(dtype) in ("bool", "whole") else dtype


def result_dtype(name, common):
    if name in COMPARE or name.startswith(("is", "logical")):
        return "bool"
    if name in ("abs", "real", "imag"):
        return {"complex64": "float32", "complex128": "float64"}.get(common, common)
    return floating(name, common)


def call(function, arrays, out):
    """Calls with or without `out`, and gives the result and the library that it belongs to: NumPy's
    where all arrays do."""
    library = kf.Tensor if any(isinstance(x, kf.Tensor) for x in [*arrays, out]) else np.ndarray
    if out is None:
        return function(*arrays), library
    out = kf.asarray(out) if library is kf.Tensor else out
    result = function(*arrays, out=out)
    assert result is out
    return result, library


@pytest.mark.one_python
@pytest.mark.parametrize("name", UNARY)
@examples(60)
@given(data=st.data())
def test_functions_of_one_operand(name, data):
    function, dtypes, bound = UNARY[name]
    dtype = data.draw(st.sampled_from(dtypes))
    (shape,), _ = data.draw(broadcasting(1))
    values, array = draw_array(data, name, dtype, shape)
    result = result_dtype(name, dtype)
    out = draw_out(data, result, shape)
    operand = values.astype(computed(floating(name, dtype)))
    got, library = call(getattr(kf, name), [array], out)
    check(name, got, function, [operand], result, bound, library)


@examples(60)
@given(data=st.data())
def test_gelu_by_tanh(data):
    dtype = data.draw(st.sampled_from(FLOATS))
    (shape,), _ = data.draw(broadcasting(1))
    values, array = draw_array(data, "gelu", dtype, shape)
    got = kf.gelu(array, approximate="tanh")
    check("gelu_tanh", got, gelu_tanh, [values], dtype, 6, type(array))


@pytest.mark.one_python
@pytest.mark.parametrize("name", BINARY)
@examples(60)
@given(data=st.data())
def test_functions_of_two_operands_that_broadcast(name, data):
    function, dtypes, bound = BINARY[name]
    one = data.draw(st.sampled_from(dtypes))
    two = one if data.draw(st.booleans()) else data.draw(st.sampled_from(dtypes))
    common = promoted(one, two)
    if common not in dtypes:
        # uint64 with signed numbers gives float64, which has no bits.
        one = two = common = "int64"
    shapes, shape = data.draw(broadcasting(2))
    first, x = draw_array(data, name, one, shapes[0])
    second, y = draw_array(data, name, two, shapes[1], second=True)
    result = result_dtype(name, common)
    out = draw_out(data, result, shape)
    operands = [v.astype(computed(floating(name, common))) for v in (first, second)]
    got, library = call(getattr(kf, name), [x, y], out)
    check(name, got, function, operands, result, bound, library)


NUMBERS = [name for name in BINARY if not name.startswith("logical")]


def draw_number(data, name, dtype, left):
    """A number that goes with an array of a dtype, and is exact in a half."""
    kinds = {"bool": ["whole"], "whole": ["whole", "bool"], "float": ["whole", "float", "bool"]}
    kinds = [*kinds.get(kind(dtype), ["whole", "float", "complex"])]
    if "bitwise" not in name and kind(dtype) == "whole":
        kinds.append("float")
    which = data.draw(st.sampled_from(kinds))
    if which == "bool":
        return data.draw(st.booleans())
    if which == "float":
        return data.draw(st.integers(-20, 20)) / 4
    if which == "complex":
        return complex(data.draw(st.integers(1, 4)), data.draw(st.integers(-4, 4)))
    negative = dtype[0] != "u" and not (name == "pow" and not left)
    return data.draw(st.integers(-9 if negative else 0, 9))


@pytest.mark.one_python
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", NUMBERS)
@examples(20)
@given(data=st.data())
def test_a_number_on_one_side(name, side, data):
    function, dtypes, bound = BINARY[name]
    dtype = data.draw(st.sampled_from(dtypes))
    number = draw_number(data, name, dtype, side == "left")
    common = weak(dtype, number)
    if common not in dtypes:
        number, common = 1, weak(dtype, 1)
    (shape,), _ = data.draw(broadcasting(1))
    values, x = draw_array(data, name, dtype, shape, second=side == "left")
    result = result_dtype(name, common)
    out = draw_out(data, result, shape)
    kept = computed(floating(name, common))
    operands = [values.astype(kept), np.asarray(number).astype(kept)]
    arguments = [x, number]
    if side == "left":
        operands.reverse()
        arguments.reverse()
    got, library = call(getattr(kf, name), arguments, out)
    check(name, got, function, operands, result, bound, library)


@examples(60)
@given(data=st.data())
def test_a_choice_of_arrays_and_numbers(data):
    one, two = data.draw(st.sampled_from(ALL)), data.draw(st.sampled_from(ALL))
    shapes, shape = data.draw(broadcasting(3))
    condition, c = draw_array(data, "where", "bool", shapes[0])
    first, x = draw_array(data, "where", one, shapes[1])
    second, y = draw_array(data, "where", two, shapes[2])
    common = promoted(one, two)
    if data.draw(st.integers(0, 3)) == 0:
        y = draw_number(data, "where", one, left=False)
        second, common = np.asarray(y), weak(one, y)
        shape = np.broadcast_shapes(*shapes[:2])
        if data.draw(st.booleans()):
            x, y, first, second = y, x, second, first
    out = draw_out(data, common, shape)
    operands = [condition, first.astype(computed(common)), second.astype(computed(common))]
    got, library = call(kf.where, [c, x, y], out)
    if kind(common) == "complex":
        # By parts: a float on the other side may be NaN, which is chosen as it is.
        wanted, given = np.where(*operands), numbers(got)
        assert np.array_equal(given.real, wanted.real, equal_nan=True)
        assert np.array_equal(given.imag, wanted.imag, equal_nan=True)
    else:
        check("where", got, np.where, operands, common, 0, library)


@examples(60)
@given(data=st.data())
def test_clip_by_numbers_and_arrays(data):
    dtype = data.draw(st.sampled_from([*WHOLE, *FLOATS]))
    shapes, shape = data.draw(broadcasting(3))
    values, x = draw_array(data, "clip", dtype, shapes[0])
    limits, operands = [], [values]
    for place in (1, 2):
        which = data.draw(st.sampled_from(["none", "number", "array"]))
        if which == "array":
            limit, y = draw_array(data, "clip", dtype, shapes[place])
        elif which == "number":
            y = data.draw(st.integers(0, 6))
            limit = np.asarray(y).astype(computed(dtype))
        else:
            limit = y = None
        limits.append(y)
        operands.append(limit)
    shape = np.broadcast_shapes(*(v.shape for v in operands if v is not None))
    out = draw_out(data, dtype, shape)

    def clip(x, *given):
        low, high = limits_of(given)
        x = x if low is None else np.maximum(x, low)
        return np.array(x) if high is None else np.minimum(x, high)

    def limits_of(given):
        rest = iter(given)
        return [None if v is None else next(rest) for v in operands[1:]]

    got, library = call(kf.clip, [x, *limits], out)
    given = [v for v in operands if v is not None]
    check("maximum", got, clip, given, dtype, 0, library)


def test_clip_may_write_over_a_limit():
    x, low, high = np.array([-5.0, 5.0, 2.0]), np.array([0.0, 1.0, 3.0]), np.array([1.0, 2.0, 3.0])
    expected = np.clip(x, low, high)
    for at in range(3):
        arrays = [x.copy(), low.copy(), high.copy()]
        assert kf.clip(*arrays, out=arrays[at]) is arrays[at]
        assert np.array_equal(arrays[at], expected)
    wide = np.empty((2, 3))
    assert np.array_equal(kf.clip(x, low, np.ones((2, 3)), out=wide), np.clip([x, x], low, 1.0))


def test_clip_of_complex_numbers_is_an_error_of_clip():
    x, z = np.ones(2), np.ones(2) + 1j
    for arguments, name, dtype in [
        ((z, 0, 1), "x", "complex128"),
        ((z, None, 1), "x", "complex128"),
        ((kf.asarray(z), 0), "x", "complex128"),
        ((x, 0, z), "max", "complex128"),
        ((x, 1j, 2), "min", "complex"),
    ]:
        said = rf"clip\(\): argument '{name}': dtype {dtype}: complex numbers have no order"
        with pytest.raises(kf.DTypeError, match=said):
            kf.clip(*arguments)
    with pytest.raises(kf.DTypeError, match="aten::clamp"):
        kf.clip(x, 0, 1, out=np.empty(2, np.int8))


@examples(180)
@given(data=st.data())
def test_results_over_the_memory_of_an_operand(data):
    """In place, and moved, reversed or transposed against the operand."""
    name = data.draw(st.sampled_from(["exp", "negative", "add", "multiply", "maximum", "less"]))
    dtype = "bool" if name == "less" else data.draw(st.sampled_from(FLOATS))
    rows = data.draw(st.integers(1, 70))
    count = rows * rows
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    with np.errstate(all="ignore"):
        flat = lay_out(elements(rng, dtype, (2 * count,)), ((1,), (0,), (0,)), dtype)
    start = data.draw(st.integers(0, count))
    x = flat[start : start + count].reshape((rows, rows))
    where = data.draw(st.sampled_from(["same", "moved", "reversed", "turned", "spread"]))
    if where == "moved":
        start = data.draw(st.integers(max(0, start - 9), min(count, start + 9)))
    out = flat[start : start + count].reshape((rows, rows))
    if where == "reversed":
        out = kf.flip(out)
    elif where == "turned":
        out = kf.matrix_transpose(out)
    elif where == "spread":
        out = flat[::2].reshape((rows, rows))
    if isinstance(flat, np.ndarray):
        assert np.shares_memory(np.asarray(out), flat)
    operands, arrays = [numbers(x)], [x]
    if name in BINARY:
        y = kf.matrix_transpose(x) if data.draw(st.booleans()) else x[0]
        operands.append(numbers(y))
        arrays.append(y)
    function, _, bound = {**UNARY, **BINARY}[name]
    getattr(kf, name)(*arrays, out=out)
    check(name, out, function, operands, dtype, bound, type(out))


@examples(60)
@given(data=st.data())
def test_results_in_another_dtype_of_the_kind(data):
    name = data.draw(st.sampled_from(["add", "multiply", "divide", "subtract"]))
    group = COMPLEX if data.draw(st.integers(0, 5)) == 0 else FLOATS
    dtype, other = data.draw(st.sampled_from(group)), data.draw(st.sampled_from(group))
    (shape,), _ = data.draw(broadcasting(1))
    first, x = draw_array(data, name, dtype, shape)
    second, y = draw_array(data, name, dtype, shape)
    out = lay_out(rounded(np.zeros(shape), other), data.draw(layouts(shape, repeat=False)), other)
    getattr(kf, name)(x, y, out=out)
    check(name, out, BINARY[name][0], [first, second], other, 0, type(out))


# Compared with NumPy in other files: tests/ops/test_activations.py and tests/ops/test_norms.py.
ELSEWHERE = {
    *("batch_norm", "elu", "group_norm", "hardtanh", "has_inf_nan", "instance_norm", "layer_norm"),
    *("leaky_relu", "masked_fill", "masked_zero", "mish", "rms_norm"),
    *("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "avg_pool1d"),
    *("avg_pool2d", "avg_pool3d", "max_pool1d", "max_pool2d", "max_pool3d"),
    *("convolution_activation", "linear", "linear_activation", "matmul_mixed"),
    *("dropout_threshold", "gru_cell", "lstm_cell", "scaled_dot_product_attention"),
}


def test_every_public_function_is_compared():
    from keyfold._ops import _operators, _pointwise

    def takes_arrays_alone(name):
        parameters = inspect.signature(getattr(kf, name)).parameters
        return name != "matmul" and not {"axis", "axes", "p"} & parameters.keys()

    compared = {*UNARY, *BINARY, *ELSEWHERE, "where", "clip"}
    assert compared == {*_pointwise.__all__, *filter(takes_arrays_alone, _operators.__all__)}
