"""Arithmetic, comparison and broadcasting of tensors, against NumPy."""

import operator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import keyfold as kf

NUMBERS = ["int64", "float32", "float64"]
ARITHMETIC = [operator.add, operator.sub, operator.mul, operator.truediv]
COMPARISONS = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]


def arrays(dtypes, shape):
    dtype = st.sampled_from(dtypes)
    # Small whole numbers: sums and products of floats are exact, in whatever order.
    return dtype.flatmap(
        lambda d: hnp.arrays(np.int64, shape, elements=st.integers(-9, 9)).map(
            lambda a: a.astype(d)
        )
    )


@st.composite
def operands(draw, dtypes=("bool", *NUMBERS)):
    shapes = draw(hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=4, max_side=4))
    a, b = (draw(arrays(list(dtypes), shape)) for shape in shapes.input_shapes)
    if draw(st.booleans()) and a.ndim:
        a = a[::-1]
    if draw(st.booleans()):
        b = np.asfortranarray(b)
    return a, b


def check(result, expected):
    assert isinstance(result, kf.Tensor)
    assert result.shape == expected.shape
    assert str(result.dtype) == str(expected.dtype)
    assert np.array_equal(result.numpy(), expected, equal_nan=expected.dtype.kind == "f")


@pytest.mark.parametrize("op", ARITHMETIC)
@given(pair=operands(dtypes=NUMBERS))
@settings(max_examples=60)
def test_arithmetic_is_numpys(op, pair):
    a, b = pair
    with np.errstate(all="ignore"):
        expected = np.asarray(op(a, b))
    check(op(kf.from_numpy(a), kf.from_numpy(b)), expected)
    check(op(kf.from_numpy(a), b), expected)
    check(op(a, kf.from_numpy(b)), expected)


@pytest.mark.parametrize("op", COMPARISONS)
@given(pair=operands())
@settings(max_examples=60)
def test_comparison_is_numpys(op, pair):
    a, b = pair
    expected = np.asarray(op(a, b))
    check(op(kf.from_numpy(a), kf.from_numpy(b)), expected)
    check(op(kf.from_numpy(a), b), expected)
    check(op(a, kf.from_numpy(b)), expected)


@pytest.mark.parametrize("op", [*ARITHMETIC, *COMPARISONS])
@given(
    a=arrays(NUMBERS, (2, 3)), number=st.one_of(st.integers(-9, 9), st.sampled_from([0.5, -2.0]))
)
@settings(max_examples=40)
def test_python_numbers_are_weak_on_either_side(op, a, number):
    t = kf.from_numpy(a)
    with np.errstate(all="ignore"):
        left, right = np.asarray(op(a, number)), np.asarray(op(number, a))
    check(op(t, number), left)
    check(op(number, t), right)


@given(pair=operands(dtypes=["float64"]))
@settings(max_examples=60)
def test_in_place_is_numpys(pair):
    a, b = pair
    if np.broadcast_shapes(a.shape, b.shape) != a.shape:
        with pytest.raises(kf.ShapeError):
            operator.iadd(kf.from_numpy(a), b)
        return
    expected = a + b
    a = a.copy()
    t = kf.from_numpy(a)
    t += b
    assert np.array_equal(a, expected)


@given(
    shapes=hnp.mutually_broadcastable_shapes(signature=np.matmul.signature, max_dims=3, max_side=4),
    data=st.data(),
)
@settings(max_examples=80)
def test_matmul_is_numpys(shapes, data):
    a, b = (data.draw(arrays(["float64"], shape)) for shape in shapes.input_shapes)
    expected = a @ b
    check(kf.from_numpy(a) @ kf.from_numpy(b), np.asarray(expected))
    check(a @ kf.from_numpy(b), np.asarray(expected))


def test_shapes_that_dont_broadcast_name_the_operator():
    with pytest.raises(kf.ShapeError, match=r"aten::add.*\[2\].*\[3\]"):
        kf.zeros(2) + kf.zeros(3)


def test_a_number_that_the_dtype_cant_hold_is_an_error():
    with pytest.raises(kf.InvalidValue, match="64 bits"):
        kf.arange(3) + 2**70


def test_tensors_on_different_devices_dont_mix():
    with pytest.raises(kf.DeviceError, match=r"aten::add.*(cpu|meta).*(cpu|meta)"):
        kf.zeros(2) + kf.zeros(2, device="meta")
