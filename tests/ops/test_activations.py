"""Activations with parameters, masked fills, gradients of activations, and `has_inf_nan`, against
NumPy in float64."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keyfold as kf
from tests.helpers.random_arrays import (
    ALL,
    FLOATS,
    computed,
    elements,
    examples,
    kind,
    lay_out,
    layouts,
    numbers,
)

aten = kf.ops.aten
SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)


def erf(x):
    return np.vectorize(math.erf, otypes=[np.float64])(x)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


FUNCTIONS = {
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "hardtanh": lambda x: np.clip(x, -1, 1),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "mish": lambda x: np.maximum(x, -1000) * np.tanh(np.logaddexp(0, x)),
    "gelu_sigmoid": lambda x: np.maximum(x, -600) * sigmoid(1.702 * x),
}
SLOPES = {
    "gelu": lambda x: 0.5 * (1 + erf(x / np.sqrt(2))) + x * np.exp(-x * x / 2) / np.sqrt(2 * np.pi),
    "gelu_sigmoid": lambda x: sigmoid(1.702 * x) * (1 + 1.702 * x * sigmoid(-1.702 * x)),
}


def draw(data, dtype, shape, span=(-8, 8)):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    with np.errstate(all="ignore"):
        values = elements(rng, dtype, shape, span)
    array = lay_out(values, data.draw(layouts(shape)), dtype)
    return numbers(array).astype(np.float64), array


def close(got, expected, dtype, size=None):
    """Within some roundings of the dtype that is computed in, and one of the result's."""
    eps = float(np.finfo(computed(dtype)).eps)
    last = {"float16": 2.0**-10, "bfloat16": 2.0**-7}.get(dtype, eps)
    size = np.abs(expected) if size is None else size
    return np.all(
        np.abs(numbers(got) - expected) <= 16 * eps * size + last * np.abs(expected) + 1e-6 * eps
    )


@pytest.mark.parametrize("name", FUNCTIONS)
@examples(40)
@given(data=st.data())
def test_functions(name, data):
    dtype = data.draw(st.sampled_from(["float32", "float64"]))
    x, array = draw(data, dtype, data.draw(SHAPES))
    named = name.startswith("gelu")
    got = kf.gelu(array, approximate="sigmoid") if named else getattr(kf, name)(array)
    assert (str(got.dtype), got.shape) == (dtype, x.shape)
    assert close(got, FUNCTIONS[name](x), dtype, np.abs(x) + 1)


def test_functions_with_numbers():
    x = np.linspace(-3, 3, 25)
    assert np.allclose(kf.elu(x, 0.5), np.where(x > 0, x, 0.5 * np.expm1(x)))
    assert np.allclose(kf.leaky_relu(x, 0.25), np.where(x > 0, x, 0.25 * x))
    assert np.array_equal(kf.hardtanh(x, -2, 0.5), np.clip(x, -2, 0.5))
    assert np.array_equal(aten.clamp(x, -2, 0.5), np.clip(x, -2, 0.5))
    assert np.array_equal(aten.clamp(x, None, 0.5), np.minimum(x, 0.5))
    whole = np.arange(-5, 5)
    assert aten.clamp(whole, -2).dtype == whole.dtype
    assert np.array_equal(aten.clamp(whole, -2), np.maximum(whole, -2))
    assert np.array_equal(
        aten.clamp(whole.astype(np.uint8), 3, 250).tolist(), np.clip(whole.astype(np.uint8), 3, 250)
    )
    assert np.isnan(aten.clamp(np.array([np.nan]), 0, 1))[0]
    assert np.isnan(kf.hardtanh(np.array([np.nan])))[0]


def test_ends_of_the_range():
    x = np.array([-np.inf, np.inf, np.nan, -0.0])
    for function in (kf.mish, lambda x: kf.gelu(x, approximate="sigmoid")):
        got = function(x)
        assert got[0] == 0
        assert got[1] == np.inf
        assert np.isnan(got[2])
    assert np.array_equal(kf.elu(x)[:2], [-1, np.inf])
    one = np.ones(4)
    for name in ("gelu", "gelu_tanh", "gelu_sigmoid"):
        got = getattr(aten, f"{name}_backward")(one, x)
        assert np.allclose(got[[0, 1, 3]], [0, 1, 0.5])
        assert np.isnan(got[2])


@examples(40)
@given(data=st.data())
def test_gradients_as_operators(data):
    dtype, shape = data.draw(st.sampled_from(FLOATS)), data.draw(SHAPES)
    (g, grad), (x, array) = draw(data, dtype, shape), draw(data, dtype, shape)
    for name, slope in SLOPES.items():
        got = getattr(aten, f"{name}_backward")(grad, array)
        assert str(got.dtype) == dtype
        assert close(got, g * slope(x), dtype, np.abs(g) * (np.abs(x) + 1))
    assert close(
        aten.sigmoid_backward(grad, array), g * x * (1 - x), dtype, np.abs(g) * (1 + x * x)
    )
    assert close(aten.tanh_backward(grad, array), g * (1 - x * x), dtype, np.abs(g) * (1 + x * x))
    threshold = aten.threshold_backward(grad, array, 0.5)
    assert np.array_equal(numbers(threshold), np.where(x > 0.5, g, 0))


def test_gradients_call_the_operators():
    x = kf.asarray(np.linspace(-2, 2, 7))
    for name in ("relu", "sigmoid", "tanh", "gelu"):
        traced = kf.trace(kf.grad(lambda x, name=name: kf.sum(getattr(kf, name)(x))), x)
        wanted = "threshold_backward" if name == "relu" else f"{name}_backward"
        assert wanted in str(traced), str(traced)


@examples(60)
@given(data=st.data())
def test_masked_fills(data):
    dtype, shape = data.draw(st.sampled_from(ALL)), data.draw(SHAPES)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    with np.errstate(all="ignore"):
        array = lay_out(elements(rng, dtype, shape, None), data.draw(layouts(shape)), dtype)
    x = numbers(array)
    mask = rng.integers(0, 2, shape[data.draw(st.integers(0, len(shape))) :]).astype(bool)
    value = True if dtype == "bool" else 3
    got = kf.masked_fill(array, mask, value)
    assert (str(got.dtype), got.shape) == (dtype, x.shape)
    assert np.array_equal(
        numbers(got), np.where(mask, value, x), equal_nan=kind(dtype) in ("float", "complex")
    )
    zero = kf.masked_zero(array, mask)
    assert str(zero.dtype) == dtype
    assert np.array_equal(
        numbers(zero), np.where(mask, 0, x), equal_nan=kind(dtype) in ("float", "complex")
    )
    values = kf.asarray(rounded_like(array, value))
    filled = kf.ops.aten.masked_fill(kf.asarray(array), kf.asarray(mask), values)
    assert np.array_equal(
        numbers(filled), numbers(got), equal_nan=kind(dtype) in ("float", "complex")
    )


def rounded_like(array, value):
    return kf.full((), value, dtype=str(array.dtype))


def test_a_mask_that_is_no_mask_and_a_value_that_does_not_fit():
    x, mask = np.ones((2, 3), np.int32), np.ones((2, 3), bool)
    message = (
        "aten::masked_fill: argument 'mask' must be True or False, not int32; compare it first"
    )
    with pytest.raises(kf.DTypeError, match=message):
        kf.masked_fill(x, x, 1)
    message = "keyfold::masked_zero: argument 'mask' must be True or False"
    with pytest.raises(kf.DTypeError, match=message):
        kf.masked_zero(x, x)
    for value in (0.5, 1 << 40):
        with pytest.raises(kf.Error, match="aten::masked_fill: argument 'value'"):
            kf.masked_fill(x, mask, value)
    with pytest.raises(kf.ShapeError):
        kf.masked_fill(x, np.ones(2, bool), 1)
    with pytest.raises(kf.InvalidValue, match="'min' and 'max' are both None"):
        aten.clamp(x)
    with pytest.raises(kf.DTypeError, match="complex"):
        aten.clamp(x + 1j, 0)
    assert np.array_equal(x, np.ones((2, 3)))


@examples(80)
@given(data=st.data())
def test_has_inf_nan(data):
    dtype, shape = (
        data.draw(st.sampled_from(ALL)),
        data.draw(SHAPES | st.tuples(st.integers(1, 70000))),
    )
    values = np.ones(shape, np.complex128 if kind(dtype) == "complex" else np.float64)
    inject = kind(dtype) in ("float", "complex") and values.size > 0 and data.draw(st.booleans())
    if inject:
        at = data.draw(st.integers(0, values.size - 1))
        values.reshape(-1)[at] = data.draw(st.sampled_from([np.inf, -np.inf, np.nan]))
    elif kind(dtype) == "float":
        values *= {"float16": 65504.0, "bfloat16": 3e38, "float32": 3.4e38}.get(dtype, 1.7e308)
    with np.errstate(all="ignore"):
        array = lay_out(values, data.draw(layouts(shape)), dtype)
    got = kf.has_inf_nan(array)
    assert (got.shape, str(got.dtype)) == ((), "bool")
    # A layout may leave the injected element out.
    wide = "complex128" if kind(dtype) == "complex" else "float64"
    assert bool(got) == (not np.isfinite(np.asarray(kf.astype(kf.asarray(array), wide))).all())


def test_gradients_of_masked_fills_and_clamps():
    x, mask = np.linspace(-2, 2, 6).reshape(2, 3), np.array([[True, False, True]] * 2)
    gradient = kf.grad(lambda x: kf.sum(kf.masked_fill(x, mask, 5.0)))(x)
    assert np.array_equal(gradient, np.where(mask, 0, 1))
    clamped = kf.grad(lambda x: kf.sum(kf.ops.aten.clamp(x, -1.0, 1.2)))(x)
    assert np.array_equal(clamped, (x >= -1) & (x <= 1.2))
