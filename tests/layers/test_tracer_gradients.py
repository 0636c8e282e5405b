"""Traces of gradients of batches: a replay on other values gives what the function itself gives."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import keyfold as kf


def make(rng, *shapes):
    return [rng.uniform(0.5, 1.5, shape) for shape in shapes]


def check(f, shapes, rng):
    """A replay on other values equals a direct call."""
    graph = kf.trace(f, *make(rng, *shapes))
    others = make(rng, *shapes)
    for result, expected in zip(*(flat(g(*others)) for g in (graph, f)), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-12)
    again = kf.Graph.from_json(graph.to_json())
    for result, expected in zip(*(flat(g(*others)) for g in (again, f)), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-12)


def flat(result):
    if isinstance(result, (tuple, list)):
        return [array for item in result for array in flat(item)]
    return [np.asarray(result.detach() if isinstance(result, kf.Tensor) else result)]


PROGRAMS = {
    "product": lambda x, y: kf.sum(x * y),
    "quotient": lambda x, y: kf.sum(kf.exp(x) / (y + x * x)),
    "power": lambda x, y: kf.sum(kf.pow(y, x)),
    "choice": lambda x, y: kf.sum(kf.where(x > 1.0, x * y, kf.sin(y) * x)),
    "maximum": lambda x, y: kf.sum(kf.maximum(x, y) * x),
}
# The shape of an example of each argument, and the axes that the batch of 2 may be at.
EXAMPLES = [((3,), ()), ((), (3,)), ((4, 3), (3,)), ((3,), (4, 3)), ((4, 3), ()), ((3,), (3,))]


def axes_of(example):
    return [None, *range(len(example) + 1)]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("argnums", [0, 1, (0, 1)])
def test_gradients_of_batches_of_all_ranks_and_axes(program, argnums):
    rng = np.random.default_rng(0)
    f = PROGRAMS[program]
    for examples in EXAMPLES:
        for axes in itertools.product(*map(axes_of, examples)):
            if axes == (None, None):
                continue
            shapes = [
                example if axis is None else (*example[:axis], 2, *example[axis:])
                for example, axis in zip(examples, axes, strict=True)
            ]
            check(kf.vmap(kf.grad(f, argnums=argnums), axes), shapes, rng)


NESTED = {
    "vmap of grad": lambda f: kf.vmap(kf.grad(f), (0, None)),
    "vmap of vmap of grad": lambda f: kf.vmap(kf.vmap(kf.grad(f), (0, None)), (0, None)),
    "vmap of vmap of grad, axes": lambda f: kf.vmap(kf.vmap(kf.grad(f), (0, None)), (1, 0)),
    "vmap of grad of vmap": lambda f: kf.vmap(
        kf.grad(lambda x, y: kf.sum(kf.vmap(f, (0, None))(x, y))), (0, None)
    ),
    "grad of vmap": lambda f: kf.grad(lambda x, y: kf.sum(kf.vmap(f, (0, None))(x, y))),
    "grad of vmap of vmap": lambda f: kf.grad(
        lambda x, y: kf.sum(kf.vmap(kf.vmap(f, (0, None)), (0, None))(x, y))
    ),
    "vmap of value_and_grad": lambda f: kf.vmap(kf.value_and_grad(f), (0, None)),
    "vmap of grad of grad": lambda f: kf.vmap(
        kf.grad(lambda x, y: kf.sum(kf.grad(f)(x, y) * y * x)), (0, None)
    ),
    "grad of vmap of grad": lambda f: kf.grad(
        lambda x, y: kf.sum(kf.vmap(kf.grad(f), (0, None))(x, y) * x)
    ),
}


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("transform", NESTED)
def test_nested_transforms(program, transform):
    rng = np.random.default_rng(1)
    f = NESTED[transform](PROGRAMS[program])
    for y in [(), (3,), (4, 3)]:
        if transform == "vmap of vmap of grad, axes":
            check(f, [(4, 2, 3), (2, *y)], rng)
        else:
            check(f, [(2, 4, 3), y], rng)


def test_mixed_parts_with_and_without_gradients():
    """Values computed without gradients appear for one example, and the others use them."""

    def f(x, y):
        scale = kf.exp(y) * 2.0
        return kf.vmap(lambda y, s: kf.sum(kf.grad(lambda x: kf.sum(x * x * s * y))(x)), 0)(
            y, scale
        )

    check(f, [(3,), (2, 3)], np.random.default_rng(2))

    def g(x, y):
        def row(y):
            def cell(z):
                scale = kf.sin(z)
                return kf.grad(lambda x: kf.sum(x * x * scale * y))(x)

            return kf.vmap(cell)(y)

        return kf.vmap(row)(y)

    check(g, [(4,), (2, 4)], np.random.default_rng(2))


def test_weights_stay_constants():
    w = kf.asarray([1.0, 2.0, 3.0])
    graph = kf.trace(kf.vmap(kf.grad(lambda x: kf.sum(kf.sin(x * w)))), np.ones((2, 3)))
    assert [value.tolist() for value in graph.constants.values()] == [[1.0, 2.0, 3.0]]
    x = np.random.default_rng(3).uniform(size=(2, 3))
    np.testing.assert_allclose(graph(x), np.cos(x * [1.0, 2.0, 3.0]) * [1.0, 2.0, 3.0])


@pytest.fixture
def by_loop(lib, ns):
    """An operator with a derivative that keeps its result, and without a rule for vmap."""
    lib.define("grow(Tensor x) -> Tensor")
    lib.impl("grow", lambda x: kf.asarray(np.exp(np.asarray(x))), "CPU")
    kf.register_autograd(
        f"{ns}::grow",
        lambda ctx, grad: grad * ctx.saved_tensors[0],
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output),
    )
    return getattr(kf.ops, ns).grow


def test_an_operator_that_is_called_once_per_example(by_loop):
    """Its derivative keeps the examples' own results, each computed below vmap."""
    check(kf.vmap(kf.grad(lambda x: kf.sum(by_loop(x)))), [(2, 3)], np.random.default_rng(4))
    check(kf.vmap(kf.grad(lambda x: kf.sum(by_loop(x * x)))), [(2, 3)], np.random.default_rng(4))


def test_a_composite_operator(lib, ns):
    """Values that the derivatives of its parts keep are computed inside it."""
    lib.define("twice(Tensor x) -> Tensor")
    lib.impl("twice", lambda x: kf.exp(kf.exp(x)), "CompositeImplicitAutograd")
    twice = getattr(kf.ops, ns).twice
    check(kf.grad(lambda x: kf.sum(twice(x))), [(3,)], np.random.default_rng(5))
    check(kf.vmap(kf.grad(lambda x: kf.sum(twice(x)))), [(2, 3)], np.random.default_rng(5))
    assert [node.operator for node in kf.trace(twice, np.ones(2)).nodes] == [f"{ns}::twice"]


def test_what_a_layer_hides_is_refused(lib, ns, audit):
    """A layer that computes under the tracer's nose makes tensors that no graph can have."""
    lib.define("hidden(Tensor x) -> Tensor")
    lib.impl("hidden", lambda x: x, "CPU")
    lib.impl("hidden", lambda x: kf.exp(kf.exp(x)), audit)
    hidden = getattr(kf.ops, ns).hidden

    def f(x):
        with kf.include_keys(audit):
            return kf.sum(hidden(x))

    with pytest.raises(kf.TraceError, match="computed inside an operator and kept"):
        kf.trace(kf.grad(f), np.ones(2))


def test_a_graph_with_batches_inside_a_batch():
    """Replays inside vmap: the levels of the graph's own batches come on top."""
    f = kf.vmap(lambda row: kf.sum(kf.exp(row) * row))
    graph = kf.trace(f, np.ones((3, 2)))
    x = np.random.default_rng(6).uniform(size=(4, 3, 2))
    np.testing.assert_allclose(kf.vmap(graph)(x), kf.vmap(f)(x))
    g = kf.vmap(kf.grad(lambda row: kf.sum(kf.exp(row) * row)))
    graph = kf.trace(g, np.ones((3, 2)))
    np.testing.assert_allclose(kf.vmap(graph)(x), kf.vmap(g)(x))
