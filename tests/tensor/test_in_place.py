"""Every form of `x (op)= y`: it writes where NumPy's does, or says why not."""

import numpy as np
import pytest

import keyfold as kf

NUMBERS = np.array([[1.5, 2.0], [3.0, 4.5]])
MASK = np.array([[True, False], [True, True]])


def apply(form, x, y):
    """`x (form) y` as the statement that it is: gives what the name stands for afterwards."""
    names = {"x": x, "y": y}
    exec(f"x {form} y", names)
    return names["x"]


FORMS = [
    ("+=", NUMBERS, NUMBERS.T),
    ("-=", NUMBERS, NUMBERS.T),
    ("*=", NUMBERS, NUMBERS.T),
    ("/=", NUMBERS, NUMBERS.T),
    ("**=", NUMBERS, NUMBERS.T),
    ("**=", NUMBERS, 2),
    ("@=", NUMBERS, NUMBERS.T),
    ("&=", MASK, MASK.T),
    ("|=", MASK, ~MASK),
    ("^=", MASK, MASK.T),
    ("^=", MASK, True),
]


@pytest.mark.parametrize(("form", "left", "right"), FORMS)
def test_it_writes_into_the_left_side(form, left, right):
    expected = left.copy()
    expected = apply(form, expected, right)
    for give in (lambda a: a, lambda a: kf.asarray(a, copy=True)):
        memory = left.copy()
        x = kf.from_numpy(memory)
        view = x[1]
        result = apply(form, x, give(right) if isinstance(right, np.ndarray) else right)
        assert result is x
        assert np.array_equal(memory, expected)
        assert np.array_equal(view.numpy(), expected[1])


@pytest.mark.parametrize(
    ("form", "left", "right", "kind", "parts"),
    [
        ("**=", np.array([2, 3]), 0.5, kf.DTypeError, ["float64", "int64"]),
        ("**=", np.ones(2), np.ones((3, 2)), kf.ShapeError, ["aten::copy_"]),
        ("**=", np.ones(2), "2", kf.BindingError, ["**=", "number", "str"]),
        ("@=", np.ones((2, 2)), np.ones(2), kf.ShapeError, ["@=", "[2, 2]", "[2]", "x = x @ y"]),
        ("@=", np.ones((2, 3)), np.ones((3, 2)), kf.ShapeError, ["@=", "[2, 3]", "[2, 2]"]),
        ("@=", np.ones((2, 2)), 2.0, kf.BindingError, ["@=", "float"]),
        ("@=", np.ones((1, 1), int), np.ones((1, 1)), kf.DTypeError, ["float64", "int64"]),
        ("&=", np.ones(2), np.array([1, 2]), kf.DTypeError, ["aten::bitwise_and", "float64"]),
        ("|=", MASK, 1, kf.DTypeError, ["int64", "bool"]),
        ("^=", MASK, None, kf.BindingError, ["^=", "NoneType"]),
    ],
)
def test_what_doesnt_fit_is_refused_and_nothing_is_written(
    form, left, right, kind, parts, raises_saying
):
    memory = left.copy()
    with raises_saying(kind, *parts):
        apply(form, kf.from_numpy(memory), right)
    assert np.array_equal(memory, left)


@pytest.mark.parametrize(("form", "left", "right"), FORMS)
def test_read_only_memory_isnt_written(form, left, right, raises_saying):
    memory = left.copy()
    memory.flags.writeable = False
    with raises_saying(kf.ReadOnlyError, "read-only"):
        apply(form, kf.from_numpy(memory), right)
    assert np.array_equal(memory, left)


@pytest.mark.parametrize("form", ["+=", "**=", "@="])
def test_a_leaf_isnt_written(form, raises_saying):
    leaf = kf.asarray(NUMBERS, copy=True).requires_grad_()
    with raises_saying(kf.GradientError, "leaf"):
        apply(form, leaf, NUMBERS)
    assert np.array_equal(leaf.detach().numpy(), NUMBERS)


def test_autograd_records_it():
    leaf = kf.asarray(NUMBERS, copy=True).requires_grad_()
    apply("@=", leaf * 2.0, NUMBERS).sum().backward()
    np.testing.assert_allclose(leaf.grad.numpy(), 2 * np.ones((2, 2)) @ NUMBERS.T)


@pytest.mark.parametrize(("form", "left", "right"), FORMS)
def test_vmap_trace_and_meta_see_the_write(form, left, right):
    def f(x):
        y = x.clone()
        alias = y[...]
        assert apply(form, y, right) is y
        return alias

    expected = apply(form, left.copy(), right)
    batch = kf.asarray(np.stack([left, left]))
    assert np.array_equal(kf.vmap(f)(batch).numpy(), np.stack([expected, expected]))
    graph = kf.trace(f, kf.zeros((2, 2), dtype=batch.dtype))
    assert np.array_equal(graph(kf.asarray(left)).numpy(), expected)
    meta = kf.asarray(left).to("meta")
    other = kf.asarray(right).to("meta") if isinstance(right, np.ndarray) else right
    assert apply(form, meta, other) is meta
