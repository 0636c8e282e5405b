"""Writing in place where gradients are recorded, against the same written without."""

from __future__ import annotations

import operator

import numpy as np
import pytest

import keyfold as kf
from tests.helpers.tensors import leaf

aten = kf.ops.aten


def gradients(f, *values):
    leaves = [leaf(value) for value in values]
    f(*leaves).backward()
    return [np.asarray(x.grad) for x in leaves]


SIGNS = {
    "+": (operator.iadd, operator.add),
    "-": (operator.isub, operator.sub),
    "*": (operator.imul, operator.mul),
    "/": (operator.itruediv, operator.truediv),
}


@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("other", ["sin(x)", "x", "number", "weight"])
def test_in_place_operators_have_the_plain_ones_gradients(sign, other):
    in_place, plain = SIGNS[sign]
    right = {
        "sin(x)": lambda x: kf.sin(x),
        "x": lambda x: x,
        "number": lambda x: 3.0,
        "weight": lambda x: kf.asarray([5.0, 7.0]),
    }[other]

    def written(x):
        y = x * 2.0
        before = y
        y = in_place(y, right(x))
        assert y is before
        return kf.sum(y * y)

    def computed(x):
        y = plain(x * 2.0, right(x))
        return kf.sum(y * y)

    for result, expected in zip(
        gradients(written, [1.0, 2.0]), gradients(computed, [1.0, 2.0]), strict=True
    ):
        np.testing.assert_allclose(result, expected)


def test_an_in_place_product_chain():
    def f(x):
        y = x * 2.0
        for _ in range(3):
            y *= kf.sin(x)
            y /= kf.exp(x)
        return kf.sum(y)

    def plain(x):
        y = x * 2.0
        for _ in range(3):
            y = y * kf.sin(x) / kf.exp(x)
        return kf.sum(y)

    np.testing.assert_allclose(gradients(f, [1.0, 2.0])[0], gradients(plain, [1.0, 2.0])[0])


INDICES = {
    "0": (0,),
    "-1": (-1,),
    "slice": (slice(1, None),),
    "step": (slice(None, None, 2),),
    "pair": (1, 2),
    "column": (slice(None), 1),
    "newaxis": (None, 0),
    "ellipsis": (..., 2),
    "true": (True,),
    "false": (False,),
    "whole": (...,),
    "mask": (np.array([True, False, True]),),
    "empty mask": (np.zeros(3, dtype=bool),),
    "positions": (np.array([2, 0]),),
    "positions twice": (np.array([1, 1]),),
    "row, positions": (1, np.array([0, 3, 0])),
    "slice, positions": (slice(1, 3), np.array([0, 3])),
    "slice, mask": (slice(1, 3), np.array([True, False, True, True])),
}


@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize("value", ["number", "array", "leaf", "own part"])
def test_assignment_to_a_computed_tensor(index, value):
    """The gradient is that of a product with the mask of what stays, and of what was put."""
    key = INDICES[index]
    start = np.arange(12.0).reshape(3, 4) + 1.0
    picked = np.zeros((3, 4))[key]

    def f(x, z):
        y = x * 2.0
        put = {
            "number": lambda: 5.0,
            "array": lambda: np.arange(picked.size, dtype=float).reshape(picked.shape),
            "leaf": lambda: z,
            "own part": lambda: y[key] * 3.0,
        }[value]()
        y[key] = put
        return kf.sum(y * y)

    z = np.float64(7.0)
    expected = start * 2.0
    put = {
        "number": 5.0,
        "array": np.arange(picked.size, dtype=float).reshape(picked.shape),
        "leaf": z,
        "own part": expected[key] * 3.0,
    }[value]
    stays = np.ones((3, 4))
    stays[key] = 3.0 if value == "own part" else 0.0
    expected[key] = put
    of_x, of_z = gradients_or_zeros(f, start, z)
    np.testing.assert_allclose(of_x, 2.0 * expected * 2.0 * stays)
    touched = np.zeros((3, 4))
    touched[key] = 1.0
    if value == "leaf":
        np.testing.assert_allclose(of_z, np.sum(2.0 * expected * touched))


def gradients_or_zeros(f, *values):
    leaves = [leaf(value) for value in values]
    f(*leaves).backward()
    return [np.zeros(x.shape) if x.grad is None else np.asarray(x.grad) for x in leaves]


def test_a_written_tensor_is_the_same_object_and_memory():
    x = leaf([1.0, 2.0])
    y = x * 2.0
    address = y.data_ptr()
    y[0] = 5.0
    assert y.data_ptr() == address
    assert y.tolist() == [5.0, 4.0]
    kf.sum(y).backward()
    assert x.grad.tolist() == [0.0, 2.0]


def test_a_value_with_gradients_into_a_plain_tensor():
    z = leaf(3.0)
    y = kf.zeros((2, 3))
    y[:, 1] = z
    kf.sum(y * y).backward()
    assert z.grad.item() == 12.0


def test_what_stays_refused():
    x = leaf([1.0, 2.0])
    with pytest.raises(kf.GradientError, match="leaf that requires grad"):
        x[0] = 5.0
    assert x.tolist() == [1.0, 2.0]
    y = (x * 2.0)[1:]
    with pytest.raises(kf.GradientError, match="view of another tensor"):
        y[0] = 5.0
    with kf.no_grad():
        y[0] = 5.0
    assert y.tolist() == [5.0]
    saved = x * 2.0
    product = kf.sum(saved * saved)
    saved[0] = 1.0
    with pytest.raises(kf.GradientError, match="changed in place"):
        product.backward()


def test_assignment_inside_grad():
    def f(x):
        y = x * 2.0
        y[0] = kf.sin(x[1])
        y *= kf.exp(x)
        return kf.sum(y)

    x = np.array([1.0, 2.0, 3.0])
    direct = kf.grad(f)
    expected = np.array([np.sin(2.0) * np.e, 0.0, 0.0])
    expected[1] = np.cos(2.0) * np.e + 2 * np.exp(2.0) * 3.0
    expected[2] = 2 * np.exp(3.0) * 4.0
    np.testing.assert_allclose(direct(x), expected)


@pytest.mark.parametrize("name", ["ceil", "floor", "round", "trunc", "sign"])
def test_step_functions_have_gradients_of_zeros(name):
    x = leaf([1.5, -2.0, 0.0])
    kf.sum(getattr(kf, name)(x)).backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0.0, 0.0, 0.0]


def test_expressions_that_are_flat_have_gradients_of_zeros(ns):
    x = leaf([1.5, -2.0])
    flat = kf.elementwise(f"{ns}::flat(Tensor x) -> Tensor", "floor(x) + 1.0")
    kf.sum(flat(x)).backward()
    assert x.grad.tolist() == [0.0, 0.0]
    x = leaf([1.5, -2.0])
    kf.sum(kf.floor_divide(x, 2.0)).backward()
    assert x.grad.tolist() == [0.0, 0.0]


def test_what_is_written_over_has_gradients_of_zeros():
    x, z = leaf([1.0, 2.0]), leaf(3.0)
    y = x * 2.0
    y[...] = z
    kf.sum(y).backward()
    assert x.grad.tolist() == [0.0, 0.0]
    assert z.grad.item() == 2.0
    x = leaf([1.0, 2.0])
    y = x * 2.0
    aten.fill_(y, 4.0)
    kf.sum(y).backward()
    assert x.grad.tolist() == [0.0, 0.0]
