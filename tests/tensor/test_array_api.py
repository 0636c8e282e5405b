"""The functions named as in the Python array API standard, against NumPy, which has them too."""

import inspect

import numpy as np
import pytest

import keyfold as kf

A = np.array([[1.0, -2.0, 3.0], [4.0, 0.5, 6.0]])
B = np.array([2.0, 5.0, 0.5])
I = np.arange(-3, 3).reshape(2, 3)  # noqa: E741
M = A > 1


def both(function):
    """The function's result on tensors and on NumPy arrays, and what NumPy's own gives."""
    result = function(kf, kf.asarray)
    array = function(kf, lambda a: a)
    expected = np.asarray(function(np, lambda a: a))
    assert isinstance(result, kf.Tensor)
    assert isinstance(array, np.ndarray)
    for got in [result.numpy(), array]:
        assert got.shape == expected.shape
        assert got.dtype == expected.dtype
        assert np.allclose(got, expected, equal_nan=True)


BINARY = [
    "add", "subtract", "multiply", "divide", "maximum", "minimum", "equal", "not_equal", "less",
    "less_equal", "greater", "greater_equal",
]  # fmt: skip


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_operands(name):
    both(lambda xp, t: getattr(xp, name)(t(A), t(B)))
    both(lambda xp, t: getattr(xp, name)(t(I), t(A)))
    both(lambda xp, t: getattr(xp, name)(t(A), 2.0))
    both(lambda xp, t: getattr(xp, name)(2.0, t(A)))
    with pytest.raises(kf.BindingError, match=r"keyfold\..*both are numbers"):
        getattr(kf, name)(1, 2)


@pytest.mark.parametrize("name", ["logical_and", "logical_or", "logical_xor"])
def test_functions_of_two_masks(name):
    both(lambda xp, t: getattr(xp, name)(t(M), t(~M)))
    both(lambda xp, t: getattr(xp, name)(t(M), True))
    with pytest.raises(kf.DTypeError, match=rf"{name}.*float64"):
        getattr(kf, name)(A, A)


@pytest.mark.parametrize("name", ["abs", "negative", "positive", "exp", "square", "logical_not"])
def test_functions_of_one_operand(name):
    both(lambda xp, t: getattr(xp, name)(t(A)))
    both(lambda xp, t: getattr(xp, name)(t(I)))


@pytest.mark.parametrize("name", ["sqrt", "log"])
def test_functions_of_positive_numbers(name):
    both(lambda xp, t: getattr(xp, name)(t(np.abs(A))))


@pytest.mark.parametrize("name", ["sum", "mean", "max", "min", "all", "any"])
@pytest.mark.parametrize("axis", [None, 0, -1, (0, 1)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions(name, axis, keepdims):
    for a in [A, I, M]:
        if not (a is M and name in ("max", "min")):
            both(lambda xp, t, a=a: getattr(xp, name)(t(a), axis=axis, keepdims=keepdims))


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_positions_of_extremes(name, axis):
    both(lambda xp, t: getattr(xp, name)(t(A), axis=axis))


@pytest.mark.parametrize(
    "function",
    [
        lambda xp, t: xp.reshape(t(A), (3, 2)),
        lambda xp, t: xp.reshape(t(A), (-1,), copy=True),
        lambda xp, t: xp.permute_dims(t(A), (1, 0)),
        lambda xp, t: xp.matrix_transpose(t(A)),
        lambda xp, t: xp.expand_dims(t(A), axis=1),
        lambda xp, t: xp.squeeze(t(A[None, :, None]), axis=(0, 2)),
        lambda xp, t: xp.squeeze(t(A[None]), axis=0),
        lambda xp, t: xp.flip(t(A)),
        lambda xp, t: xp.flip(t(A), axis=1),
        lambda xp, t: xp.broadcast_to(t(B), (4, 3)),
        lambda xp, t: xp.broadcast_arrays(t(A), t(B))[1],
        lambda xp, t: xp.take(t(A), t(np.array([2, 0])), axis=1),
        lambda xp, t: xp.take(t(B), t(np.array([2, 0]))),
        lambda xp, t: xp.where(t(M), t(A), t(B)),
        lambda xp, t: xp.where(t(M), t(A), 0.0),
        lambda xp, t: xp.matmul(t(A), t(A.T.copy())),
        lambda xp, t: xp.clip(t(A), 0.0, 4.0),
        lambda xp, t: xp.clip(t(A), max=0.0),
    ],
)
def test_shapes_picks_and_products(function):
    both(function)


def test_reshape_says_when_it_would_copy():
    t = kf.asarray(A)
    assert kf.reshape(t, (6,), copy=False).data_ptr() == t.data_ptr()
    assert kf.reshape(t, (6,), copy=True).data_ptr() != t.data_ptr()
    with pytest.raises(kf.ShapeError, match=r"reshape.*\(6,\).*copy"):
        kf.reshape(t.T, (6,), copy=False)


def test_shapes_broadcast_as_numpys():
    for shapes in [((2, 1), (3,)), ((), (4, 1)), ((5,), (1,), (2, 1)), ((0,), (1,))]:
        assert kf.broadcast_shapes(*shapes) == np.broadcast_shapes(*shapes)
    with pytest.raises(kf.ShapeError, match="2 meets 3"):
        kf.broadcast_shapes((2,), (3,))


def test_astype_converts_and_copies_as_asked():
    t = kf.asarray(A)
    assert kf.astype(t, "int64").dtype == "int64"
    assert kf.astype(t, "float64").data_ptr() != t.data_ptr()
    assert kf.astype(t, "float64", copy=False) is t


def test_softmax_adds_up_to_one():
    assert np.allclose(kf.softmax(A, axis=0).sum(axis=0), 1)
    assert np.array_equal(kf.relu(A), np.maximum(A, 0))


def test_errors_in_arguments_are_errors():
    with pytest.raises(kf.BindingError, match=r"take\(\).*axis.*2"):
        kf.take(A, np.array([0]))
    with pytest.raises(kf.ShapeError, match=r"matrix_transpose\(\).*1"):
        kf.matrix_transpose(B)


def test_a_tensor_knows_the_namespace():
    t = kf.zeros(1)
    assert t.__array_namespace__() is kf
    assert t.__array_namespace__(api_version="2023.12") is kf
    with pytest.raises(kf.InvalidValue, match=r"1999\.01"):
        t.__array_namespace__(api_version="1999.01")


def test_every_public_name_is_documented():
    for name in kf.__all__:
        value = getattr(kf, name)
        if inspect.isroutine(value) or inspect.isclass(value):
            assert value.__doc__, name
    for name, value in vars(kf.Tensor).items():
        if not name.startswith("_"):
            assert value.__doc__, name
    assert sorted(set(kf.__all__)) == sorted(kf.__all__)
    assert kf.__version__
    assert kf.__doc__


def test_every_error_is_public():
    from keyfold import _errors

    assert set(_errors.__all__) <= set(kf.__all__)
