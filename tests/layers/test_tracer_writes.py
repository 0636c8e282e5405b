"""Writes in place where gradients are recorded, alone, over batches and in traces.

Each function is compared with one that computes the same without writing, on other values than
those it was traced with.
"""

from __future__ import annotations

import numpy as np
import pytest

import keyfold as kf

MASK = np.array([True, False, True])


def _one(x, value):
    """A vector with another first element."""
    return kf.where(np.array([True, False, False]), value, x)


def number(x, w):
    y = x * w
    y[0] = 5.0
    return y


def scalar(x, w):
    y = x * w
    y[0] = kf.sin(x[1])
    return y


def piece(x, w):
    y = x * w
    y[1:] = x[:2] * x[:2]
    return y


def whole(x, w):
    y = kf.asarray(w) * 2.0
    y[...] = x * x
    return y


def into_plain(x, w):
    y = kf.asarray(w) * 1.0
    y[0] = kf.exp(x[2])
    return y


def masked(x, w):
    y = x * w
    y[MASK] = x[1]
    return y


def computed_mask(x, w):
    y = x * w
    y[x > 1.0] = 0.5
    return y


def places(x, w):
    y = x * w
    y[np.array([2, 0])] = x[:2]
    return y


def row_and_places(x, w):
    y = kf.exp(kf.reshape(x * w, (1, 3))) * 1.0
    y[0, np.array([1])] = x[2]
    return y[0]


def product(x, w):
    y = x * w
    y *= kf.sin(x)
    return y


def chain(x, w):
    y = x * w
    z = kf.exp(y)
    y[0] = z[1]
    y += x
    y[2] = kf.sin(w[0])
    return y


def two_dimensions(x, w):
    y = kf.reshape(x, (3, 1)) * w
    y[1, ::2] = w[:2]
    y[:, 1] = x
    return kf.sum(y, axis=0)


def _piece(x, w):
    return kf.concat([(x * w)[:1], x[:2] * x[:2]])


def _chain(x, w):
    z = kf.exp(x * w)
    y = _one(x * w, z[1]) + x
    return kf.concat([y[:2], kf.reshape(kf.sin(w[0]), (1,))])


def _two_dimensions(x, w):
    y = kf.reshape(x, (3, 1)) * w
    middle = kf.stack([w[0], y[1, 1], w[1]])
    y = kf.stack([y[0], middle, y[2]])
    return kf.sum(kf.where(np.array([False, True, False]), kf.reshape(x, (3, 1)), y), axis=0)


# Pairs of functions: one writes in place, the other computes the same without.
WRITES = {
    number: lambda x, w: _one(x * w, 5.0),
    scalar: lambda x, w: _one(x * w, kf.sin(x[1])),
    piece: _piece,
    whole: lambda x, w: x * x,
    into_plain: lambda x, w: _one(w, kf.exp(x[2])),
    masked: lambda x, w: kf.where(MASK, x[1], x * w),
    computed_mask: lambda x, w: kf.where(x > 1.0, 0.5, x * w),
    places: lambda x, w: kf.stack([x[1], (x * w)[1], x[0]]),
    row_and_places: lambda x, w: kf.where(np.array([False, True, False]), x[2], kf.exp(x * w)),
    product: lambda x, w: x * w * kf.sin(x),
    chain: _chain,
    two_dimensions: _two_dimensions,
}


def loss(f):
    return lambda x, w: kf.sum(f(x, w) * f(x, w) * x)


TRANSFORMS = {
    "grad": (lambda f: kf.grad(f), (3,), (3,)),
    "grad by both": (lambda f: kf.grad(f, argnums=(0, 1)), (3,), (3,)),
    "vmap of grad": (lambda f: kf.vmap(kf.grad(f)), (2, 3), (2, 3)),
    "vmap of grad, axes": (lambda f: kf.vmap(kf.grad(f), in_axes=(1, 0)), (3, 2), (2, 3)),
    "vmap of grad by both": (
        lambda f: kf.vmap(kf.grad(f, argnums=(0, 1)), in_axes=(0, 1)),
        (2, 3),
        (3, 2),
    ),
    "vmap of vmap of grad": (lambda f: kf.vmap(kf.vmap(kf.grad(f))), (2, 4, 3), (2, 4, 3)),
    "grad of vmap": (
        lambda f: kf.grad(lambda x, w: kf.sum(kf.vmap(f)(x, w))),
        (2, 3),
        (2, 3),
    ),
}


def _flat(result):
    results = result if isinstance(result, tuple) else (result,)
    return [np.asarray(array) for array in results]


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("written", WRITES, ids=lambda f: f.__name__)
def test_writes_have_the_gradients_of_what_computes_the_same(written, transform, trace_too):
    make, *shapes = TRANSFORMS[transform]
    rng = np.random.default_rng(0)
    first, others = ([rng.uniform(0.5, 1.5, shape) for shape in shapes] for _ in range(2))
    f, plain = make(loss(written)), make(loss(WRITES[written]))
    if trace_too:
        f = kf.trace(f, *first)
    for _ in range(2):
        for result, expected in zip(_flat(f(*others)), _flat(plain(*others)), strict=True):
            np.testing.assert_allclose(result, expected, rtol=1e-12)


@pytest.fixture(params=[False, True], ids=["called", "traced"])
def trace_too(request):
    return request.param


def test_a_value_with_gradients_into_a_new_tensor():
    def f(x):
        y = kf.zeros(3, dtype="float64")
        y[1] = x[0] * x[0]
        y[2:] = x[1:]
        return kf.sum(y * y)

    graph = kf.trace(kf.grad(f), np.ones(2))
    x = np.array([2.0, 3.0])
    np.testing.assert_allclose(graph(x), [4 * 2.0**3, 6.0])
    np.testing.assert_allclose(graph(x), kf.grad(f)(x))


def test_what_others_see_is_not_written_with_gradients_in_a_trace():
    def f(x):
        y = kf.zeros(3, dtype="float64")
        view = y[1:]
        y[1] = x[0]
        return kf.sum(y * y) + kf.sum(view)

    for run in (kf.grad(f), lambda x: kf.trace(kf.grad(f), x)):
        with pytest.raises(kf.GradientError, match="shares its memory with other tensors"):
            run(np.ones(2))


def test_what_others_see_of_an_example_is_not_written_with_gradients():
    def f(x, w):
        y = kf.asarray(w) * 1.0
        view = y[1:]
        y[1] = x[0]
        return kf.sum(y * y) + kf.sum(view)

    both = np.ones((2, 3)), np.ones((2, 3))
    for run in (kf.vmap(kf.grad(f)), lambda *args: kf.trace(kf.vmap(kf.grad(f)), *args)):
        with pytest.raises(kf.GradientError, match="shares its memory with other tensors"):
            run(*both)


def test_an_example_of_a_tensor_from_outside_is_not_written_with_gradients():
    def double(r):
        r *= 2.0
        return r

    def first(r):
        r[0] = 5.0
        return r

    same = kf.vmap(lambda r: r)
    for write in (double, first):
        for run in (kf.vmap(write), lambda y, write=write: write(same(y))):
            x = kf.asarray(np.ones((3, 4))).requires_grad_()
            y = x * 2.0
            with pytest.raises(kf.GradientError, match="view of another tensor"):
                run(y)
            kf.sum(y).backward()
            np.testing.assert_array_equal(x.grad, np.full((3, 4), 2.0))


def test_a_batch_that_is_returned_twice_is_two_results():
    x = kf.asarray(np.ones((3, 4))).requires_grad_()

    def twice(r):
        y = r * 2.0
        return y, y

    a, b = kf.vmap(twice)(x)
    a *= 3.0
    np.testing.assert_array_equal(b.detach(), np.full((3, 4), 2.0))
    kf.sum(a + b).backward()
    np.testing.assert_array_equal(x.grad, np.full((3, 4), 8.0))
