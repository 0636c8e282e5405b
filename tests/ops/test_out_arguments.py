"""`out=` of every public function that takes it."""

import inspect

import numpy as np
import pytest

import keyfold as kf
from keyfold._ops import _operators

X = np.array([[0.5, -1.25, 2.0], [0.25, 3.0, -0.75]])
Y = np.array([[2.0, -1.25, 0.5], [-0.25, 3.0, 0.75]])
POSITIVE = np.abs(X)
WHOLE, SHIFT = np.array([[6, -5, 4]]), np.array([[1, 0, 2]])
BOOLS, OTHERS = X > 0, Y > 0

ONE = (X,)
TWO = (X, Y)


def takes_one_array(name):
    return list(inspect.signature(getattr(kf, name)).parameters) == ["x", "out"]


ARGUMENTS = {
    **{name: ONE for name in _operators.__all__ if takes_one_array(name)},
    **dict.fromkeys(["gelu", "square", "all", "any", "argmax", "argmin", "max", "mean"], ONE),
    **dict.fromkeys(["min", "sum", "elu", "hardtanh", "leaky_relu"], ONE),
    **dict.fromkeys(["log", "log1p", "rsqrt", "sqrt"], (POSITIVE,)),
    **dict.fromkeys(["add", "divide", "equal", "floor_divide", "greater", "greater_equal"], TWO),
    **dict.fromkeys(["less", "less_equal", "maximum", "minimum", "multiply", "not_equal"], TWO),
    **dict.fromkeys(["remainder", "subtract"], TWO),
    "pow": (POSITIVE, Y),
    **dict.fromkeys(["bitwise_and", "bitwise_or", "bitwise_xor"], (WHOLE, SHIFT)),
    **dict.fromkeys(["bitwise_left_shift", "bitwise_right_shift"], (WHOLE, SHIFT)),
    "bitwise_invert": (WHOLE,),
    **dict.fromkeys(["logical_and", "logical_or", "logical_xor"], (BOOLS, OTHERS)),
    "clip": (X, -1.0, 1.0),
    "where": (BOOLS, X, Y),
    "softmax": ONE,
    "log_softmax": ONE,
    "matmul": (X, Y.T),
    "concat": ((X, Y), -1),
    "stack": ((X, Y), 1),
    **dict.fromkeys(["cumulative_sum", "cumulative_prod"], (X, 1)),
    "take": (X, np.array([1, 0]), 1),
    "linear": (X, Y, np.array([0.5, -1.0])),
    "linear_activation": (X, Y, np.array([0.5, -1.0]), "gelu"),
    "matmul_mixed": (X.astype(np.float32), Y.T.astype(np.float32), "float16"),
    "masked_fill": (X, BOOLS, 2.5),
    "masked_zero": (X, BOOLS),
    "embedding": (np.array([[1, 0], [1, 1]]), X),
    "convolution_activation": (np.stack([X, Y]), np.ones((3, 2, 2)), None, 1, 0, 1, 1, "relu"),
    "avg_pool2d": (X[None], 2),
    "adaptive_avg_pool2d": (X[None], 1),
    "avg_pool3d": (X[None, None], [1, 2, 2]),
    "adaptive_avg_pool3d": (X[None, None], 1),
}


def changed(change, value):
    """The value with each array in it changed."""
    if isinstance(value, np.ndarray):
        return change(value)
    return type(value)(changed(change, x) for x in value) if isinstance(value, tuple) else value


def takes_out(name):
    value = getattr(kf, name)
    return inspect.isroutine(value) and "out" in inspect.signature(value).parameters


def test_every_function_that_takes_out_is_here():
    several = {"dropout_threshold"}  # With several results: test_several_outs.py.
    assert {name for name in kf.__all__ if takes_out(name)} == {*ARGUMENTS, *several}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_the_result_is_written_and_returned(name):
    function, arguments = getattr(kf, name), ARGUMENTS[name]
    expected = np.asarray(function(*arguments))
    for layout in (expected.shape, (*expected.shape, 2)):
        out = np.zeros(layout, expected.dtype)
        out = out if layout == expected.shape else out[..., 1]
        given = changed(np.copy, arguments)
        assert function(*given, out=out) is out
        assert np.array_equal(out, expected)
        for x, before in zip(given, arguments, strict=True):
            assert np.array_equal(x, before), "operands stay as they are"
    tensors, array = changed(kf.asarray, arguments), np.zeros(expected.shape, expected.dtype)
    for out in (kf.asarray(np.zeros(expected.shape, expected.dtype)), array):
        assert function(*tensors, out=out) is out, "an array beside tensors, too"
        assert np.array_equal(np.asarray(out), expected)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_what_takes_no_result_is_refused_by_its_name(name, raises_saying):
    function, arguments = getattr(kf, name), ARGUMENTS[name]
    expected = np.asarray(function(*arguments))
    wrong = np.zeros((*expected.shape, 5), expected.dtype)
    with raises_saying(kf.ShapeError, "'out'"):
        function(*arguments, out=wrong)
    frozen = np.zeros(expected.shape, expected.dtype)
    frozen.flags.writeable = False
    with raises_saying(kf.ReadOnlyError, "'out'"):
        function(*arguments, out=frozen)
