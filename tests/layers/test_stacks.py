"""Layers on top of each other: every subset, switched on in every order, gives the same numbers and
the order of calls that the priorities promise; a key of one's own between two of them sees what is
below it; and a caller's array reaches a Python kernel through all of them as the very object."""

import itertools

import numpy as np
import pytest

import keyfold as kf

LAYERS = ("Tracer", "Profiler", "Vmap", "Autograd", "Autocast")
SUBSETS = [
    subset for size in range(len(LAYERS) + 1) for subset in itertools.combinations(LAYERS, size)
]
BATCH, N, M = 3, 4, 2

# A key of our own below each built-in layer. They are registered when tests are collected: places
# for keys are few, and other tests use up what is left.
BELOW = {
    "BelowTracer": "Profiler",
    "BelowProfiler": "Pipeline",
    "BelowVmap": "Autograd",
    "BelowAutograd": "Autocast",
    "BelowAutocast": "Quantized",
}
for name, above in BELOW.items():
    kf.register_key(name, above=above, skippable=True)
kf.register_key("Forgetful", above="Pipeline", skippable=True)

seen: list[str] = []


@pytest.fixture(scope="module")
def stack():
    """An operator, and a layer of our own below each built-in one that notes what reaches it."""
    handles = []
    for name in BELOW:

        def note(op, keyset, args, kwargs, name=name):
            if op.name.startswith("stacks::"):
                seen.append(name)
            return op.redispatch(keyset.remove(name), *args, **kwargs)

        handles.append(kf.fallback(name, note))
    handles.append(kf.define("stacks::scale(Tensor x, Tensor w) -> Tensor"))

    @kf.impl("stacks::scale", "CPU")
    def scale(x, w):
        seen.append("CPU")
        return kf.ops.aten.mul(x, w)

    def setup(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad * w, grad * x

    handles.append(kf.register_autograd("stacks::scale", backward, setup_context=setup))
    yield BELOW
    for handle in reversed(handles):
        handle.remove()


def data():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((BATCH, N)).astype(np.float32)
    w = rng.standard_normal((N, M)).astype(np.float32)
    s = rng.standard_normal(N).astype(np.float32)
    return x, w, s


def expected(x, w, s):
    return np.tanh((x * s) @ w).sum(axis=1)


def network(x, w, s):
    """One example: (N,) to a number."""
    scaled = kf.ops.stacks.scale(x, s)
    return kf.tanh(kf.matmul(scaled, w)).sum()


def run(order, notes):
    """Run the network on the batch with these layers, switched on in this order, and the notes."""
    x, w, s = (kf.asarray(a.copy()) for a in data())
    if "Autograd" in order:
        w.requires_grad_()

    def innermost(x, w, s):
        if "Vmap" in order:
            return network(x, w, s)
        return kf.stack([network(x[i], w, s) for i in range(BATCH)])

    call = innermost
    graphs, profiles = [], []
    # The last that is switched on is the innermost `with`.
    for layer in reversed(order):
        call = {
            "Tracer": with_tracer(call, graphs),
            "Profiler": with_profiler(call, profiles),
            "Vmap": with_vmap(call),
            "Autograd": call,
            "Autocast": with_autocast(call),
        }[layer]
    with kf.include_keys(*notes) if notes else kf.exclude_keys("Pipeline"):
        result = call(x, w, s)
    return result, w, graphs, profiles


def with_tracer(call, graphs):
    def traced(*args):
        results = []

        def body(*inner):
            results.append(call(*inner))
            return results[0]

        graph = kf.trace(body, *args)
        graphs.append((graph, args))
        return results[0]

    return traced


def with_profiler(call, profiles):
    def profiled(*args):
        with kf.profile() as p:
            result = call(*args)
        profiles.append(p)
        return result

    return profiled


def with_vmap(call):
    return lambda x, w, s: kf.vmap(call, in_axes=(0, None, None))(x, w, s)


def with_autocast(call):
    def autocast(*args):
        with kf.autocast("bfloat16"):
            return call(*args)

    return autocast


def tolerance(order):
    # bfloat16 has 8 bits of mantissa.
    return 5e-2 if "Autocast" in order else 1e-5


@pytest.mark.parametrize("subset", SUBSETS, ids="-".join)
def test_every_order_of_switching_on_gives_the_same_numbers_and_order_of_calls(subset, stack):
    x, w, s = data()
    want = expected(x, w, s)
    order_below = None
    for order in itertools.permutations(subset):
        # Tracing from inside vmap records what one example does; from outside, the whole.
        del seen[:]
        result, weights, graphs, profiles = run(order, list(stack))
        values = result.detach().to("float32").numpy()
        assert np.allclose(values, want, atol=tolerance(order)), order
        # Each key of ours runs in the order of the priorities, whatever the order of switching on.
        calls = [name for name in seen if name in stack or name == "CPU"]
        first = calls[: calls.index("CPU") + 1]
        assert first == [*stack, "CPU"][-len(first) :] or first == [*stack, "CPU"], order
        order_below = order_below or first
        assert first == order_below, order
        if "Autograd" in order:
            (gradient,) = kf.grad(result.to("float32").sum(), [weights])
            h = (x * s).T @ (1 - np.tanh((x * s) @ w) ** 2)
            assert np.allclose(gradient.numpy(), h, atol=10 * tolerance(order)), order
        for graph, _args in graphs:
            assert any("stacks::scale" in str(node) for node in graph.nodes)
        for p in profiles:
            assert any(event["name"] == "stacks::scale" for event in p.events), order


def test_a_traced_stack_replays_to_the_same_numbers(stack):
    x, w, s = data()
    f = kf.vmap(network, in_axes=(0, None, None))
    graph = kf.trace(f, x, w, s)
    assert np.allclose(graph(x, w, s), expected(x, w, s), atol=1e-5)
    assert np.allclose(graph(2 * x, w, s), expected(2 * x, w, s), atol=1e-5)


@pytest.mark.parametrize("notes", [False, True])
def test_the_callers_own_array_reaches_a_python_kernel_through_all_layers(notes, stack):
    given = []
    handle = kf.define("stacks::look(Tensor x, float k) -> Tensor")

    @kf.impl("stacks::look", "CPU")
    def look(x, k):
        given.append(x)
        return x

    x = np.ones(3)
    included = [*stack] if notes else []
    with kf.profile(), kf.autocast("bfloat16"), kf.include_keys(*included, "Autograd"):
        result = kf.ops.stacks.look(x, 2.0)
    assert given[0] is x
    assert result is x
    handle.remove()


def test_gradients_inside_and_outside_of_vmap():
    x, w, s = (a.astype(np.float64) for a in data())

    def loss(x, w):
        return kf.tanh(kf.matmul(x * kf.asarray(s), w)).sum()

    per_example = kf.vmap(kf.grad(loss, argnums=1), in_axes=(0, None))(x, w)
    assert per_example.shape == (BATCH, N, M)
    for i in range(BATCH):
        assert np.allclose(per_example[i], kf.grad(loss, argnums=1)(x[i], w))
    whole = kf.grad(lambda w: kf.vmap(loss, in_axes=(0, None))(kf.asarray(x), w).sum())(w)
    assert np.allclose(whole, per_example.sum(axis=0))
    second = kf.vmap(kf.grad(lambda x: kf.grad(lambda y: (y * y * y).sum())(x).sum()))(x)
    assert np.allclose(second, 6 * x)


def test_backward_inside_vmap_is_refused():
    w = kf.ones(3, dtype="float64").requires_grad_()

    def f(x):
        (x * w).sum().backward()
        return x

    with pytest.raises(kf.GradientError, match=r"kf\.vmap|vmap"):
        kf.vmap(f)(np.ones((2, 3)))
    with pytest.raises(kf.GradientError, match="the same for all examples"):
        kf.vmap(lambda x: kf.grad((x * w).sum(), [w])[0])(np.ones((2, 3)))


def test_a_layer_that_forgets_to_mask_itself_is_an_error_with_advice():
    handle = kf.fallback(
        "Forgetful", lambda op, keyset, args, kwargs: op.redispatch(keyset, *args, **kwargs)
    )
    advice = r"Forgetful x \d+|removing its key"
    with kf.include_keys("Forgetful"), pytest.raises(RecursionError, match=advice):
        kf.ops.aten.exp(np.ones(2))
    handle.remove()
    assert kf.ops.aten.exp(np.zeros(1)).tolist() == [1.0]


def test_a_kernel_that_returns_numpy_gives_what_it_gives_without_layers():
    handle = kf.define("stacks::triple(Tensor x) -> Tensor")
    kf.impl("stacks::triple", "CPU", lambda x: np.asarray(x) * 3.0)
    triple = kf.ops.stacks.triple
    x = kf.asarray([1.0, 2.0])
    with kf.profile():
        inside = triple(x)
    assert type(inside) is type(triple(x)) is kf.Tensor
    assert type(triple(np.ones(2))) is np.ndarray
    graph = kf.trace(lambda x: triple(x) + 1.0, np.ones(2))
    assert graph(np.array([2.0, 3.0])).tolist() == [7.0, 10.0]
    assert kf.vmap(triple)(np.ones((2, 2))).tolist() == [[3.0, 3.0], [3.0, 3.0]]
    with pytest.raises(kf.GradientError, match="stacks::triple has no derivative"):
        kf.grad(lambda x: triple(x).sum())(x)
    handle.remove()
