"""Arrays of registered classes under trace, vmap and grad: they work, or are refused by name."""

from __future__ import annotations

import numpy as np
import pytest

import keyfold as kf
from tests.helpers.array_libraries import MAKERS


class Opaque:
    """Data that only its own kernels can read."""

    def __init__(self, data):
        self.data = np.asarray(data, dtype=float)


class Viewed(Opaque):
    """The same with elements that keyfold can read."""

    def __dlpack__(self, **options):
        return self.data.__dlpack__(**options)

    def __dlpack_device__(self):
        return (1, 0)


def _class(base, keys, **options):
    kind = type(base.__name__, (base,), {})
    kf.register_array_type(kind, keys, **options)
    return kind


@pytest.fixture(
    params=[(Opaque, "CPU"), (Opaque, ("Sparse", "CPU")), (Viewed, "CPU"), (Viewed, "Sparse")],
    ids=lambda param: f"{param[0].__name__}-{param[1]}",
)
def kind(request):
    base, keys = request.param
    keys = keys if isinstance(keys, tuple) else (keys,)
    return _class(base, kf.DispatchKeySet(*keys))


@pytest.fixture
def ops(lib, ns, kind):
    """`twice` of an object, `total` of a list, `pack` into an object, `unpack` out of it."""
    for schema, kernel in {
        "twice(Tensor x) -> Tensor": lambda x: type(x)(x.data * 2),
        "total(Tensor[] xs) -> Tensor": lambda xs: type(xs[0])(sum(x.data for x in xs)),
        "pack(Tensor x) -> Tensor": lambda x: kind(np.array(x)),
        "unpack(Tensor x) -> Tensor": lambda x: kf.asarray(np.array(x.data)),
        "scale(Tensor x, Tensor y) -> Tensor": lambda x, y: kf.asarray(np.array(x) * y.data),
    }.items():
        lib.define(schema, mixed_arrays=True)
        name = schema.partition("(")[0]
        for key in ["CPU", "Sparse"]:
            lib.impl(name, kernel, key)
    return getattr(kf.ops, ns)


def test_an_argument_is_an_input(kind, ops):
    graph = kf.trace(ops.twice, kind([1.0, 2.0]))
    assert len(graph.inputs) == 1
    assert not graph.constants
    result = graph(kind([10.0, 20.0]))
    assert type(result) is kind
    assert result.data.tolist() == [20.0, 40.0]


def test_a_result_is_an_output(kind, ops):
    graph = kf.trace(lambda x: {"packed": ops.pack(x)}, np.ones(2))
    result = graph(np.array([5.0, 6.0]))["packed"]
    assert type(result) is kind
    assert result.data.tolist() == [5.0, 6.0]


def test_objects_in_the_middle(kind, ops):
    graph = kf.trace(lambda x: ops.unpack(ops.twice(ops.pack(x))), np.ones(2))
    assert graph(np.array([5.0, 6.0])).tolist() == [10.0, 12.0]
    graph = kf.trace(lambda x: ops.unpack(ops.twice(ops.twice(x))), kind([1.0, 2.0]))
    assert graph(kind([5.0, 6.0])).tolist() == [20.0, 24.0]


def test_objects_in_lists(kind, ops):
    x, y = kind([1.0, 2.0]), kind([3.0, 4.0])
    graph = kf.trace(lambda x, y: ops.total([x, y, x]), x, y)
    assert graph(y, kind([100.0, 100.0])).data.tolist() == [106.0, 108.0]
    graph = kf.trace(lambda both: ops.total(both), [x, y])
    assert graph([y, kind([100.0, 100.0])]).data.tolist() == [103.0, 104.0]


def test_closures_are_constants_by_reference(kind, ops):
    held = kind([1.0, 2.0])
    graph = kf.trace(lambda x: ops.total([ops.twice(held), ops.pack(x)]), np.ones(2))
    assert graph(np.array([5.0, 6.0])).data.tolist() == [7.0, 10.0]
    held.data[:] = 0.0
    assert graph(np.array([5.0, 6.0])).data.tolist() == [5.0, 6.0]
    alone = kf.trace(lambda x: (held, x), np.ones(2))
    assert alone(np.zeros(2))[0] is held


def test_misfits_are_refused(kind, ops):
    graph = kf.trace(ops.twice, kind([1.0, 2.0]))
    with pytest.raises(kf.BindingError, match="input %0"):
        graph(3)
    x = kind([1.0, 2.0])
    with pytest.raises(kf.TraceError, match=r"y: the object is an argument already.*copy"):
        kf.trace(lambda x, y: ops.total([x, y]), x, x)


def test_vmap_refuses_what_it_would_map_over(kind, ops):
    name = kind.__qualname__
    with pytest.raises(kf.BindingError, match=rf"argument 0 is a {name}.*kf|keyfold\.asarray"):
        kf.vmap(ops.twice)(kind([1.0, 2.0]))
    with pytest.raises(kf.BindingError, match=rf"result of .* is a {name}"):
        kf.vmap(lambda x: kind([1.0]))(np.ones(2))
    with pytest.raises(kf.KernelReturnError, match=r"pack: under vmap.*registered"):
        kf.vmap(ops.pack)(np.ones((2, 3)))
    held = kind([1.0, 2.0])
    mapped = kf.vmap(ops.scale, in_axes=(0, None))
    assert mapped(np.ones((3, 2)), held).tolist() == [[1.0, 2.0]] * 3


def test_grad_refuses_what_it_would_differentiate(kind, ops, ns):
    name = kind.__qualname__
    for transform in [kf.grad, kf.value_and_grad]:
        with pytest.raises(kf.BindingError, match=rf"grad: argument 0 of .* is a {name}"):
            transform(lambda x: kf.sum(kf.asarray(ops.unpack(x))))(kind([1.0, 2.0]))
    held = kind([3.0, 4.0])
    kf.register_autograd(
        f"{ns}::scale",
        lambda ctx, grad: (ops.scale(grad, ctx.factor), None),
        setup_context=lambda ctx, inputs, output: setattr(ctx, "factor", inputs[1]),
    )
    f = kf.grad(lambda x: kf.sum(ops.scale(x, held)))
    assert f(np.ones(2)).tolist() == [3.0, 4.0]


def test_a_gradient_never_ends_in_an_object_unsaid(ops, lib, ns):
    kind = _class(Opaque, "CPU")
    lib.define("hold(Tensor x) -> Tensor")
    lib.impl("hold", lambda x: kind(np.array(x.detach())), "CPU")
    with pytest.raises(kf.GradientError, match=r"hold: an argument requires grad.*Opaque"):
        kf.grad(lambda x: kf.sum(x * ops.unpack(getattr(kf.ops, ns).hold(x))))(np.ones(2))


class Holder:
    """A class around a tensor, which results of native kernels come back in."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, **options):
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self):
        return (1, 0)


@pytest.fixture
def holder():
    kind = type("Holder", (Holder,), {})
    kf.register_array_type(kind, "CPU", wrap=kind)
    return lambda *values: kind(kf.asarray(list(values)))


WRAPPED = {
    "one": lambda x: kf.exp(x),
    "chain": lambda x: kf.exp(kf.negative(x)),
    "with its argument": lambda x: kf.add(kf.negative(kf.sin(x)), x),
    "with a constant": lambda x: kf.multiply(kf.asarray([2.0, 3.0]), x),
    "inside what it holds": lambda x: kf.multiply(kf.exp(x), kf.exp(x).tensor),
    "several": lambda x: {"first": kf.exp(x), "both": kf.concat([x, kf.sin(x)])},
    "composite": lambda x: kf.softmax(x, axis=0),
    "written": lambda x: kf.ops.aten.copy_(kf.exp(x), kf.sin(x)),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_results_of_native_kernels_are_wrapped_at_each_replay(name, holder):
    f = WRAPPED[name]
    graph = kf.trace(f, holder(1.0, 2.0))
    inner = kf.trace(lambda x: graph(x), holder(1.0, 2.0))
    others = holder(3.0, 5.0)
    expected = _held(f(others))
    for replayed in (graph, graph.simplified(), inner):
        result = _held(replayed(others))
        assert [kind for kind, _ in result] == [kind for kind, _ in expected]
        assert [values for _, values in result] == [values for _, values in expected]
        assert result[0][1] != _held(f(holder(1.0, 2.0)))[0][1]


def _held(tree):
    """The class and the values of each array of a tree."""
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, (list, tuple)):
        return [leaf for item in tree for leaf in _held(item)]
    inside = tree.tensor if isinstance(tree, Holder) else tree
    return [(type(tree).__name__, inside.tolist())]


def test_a_wrapped_result_says_in_the_graph_how_it_was_made(holder):
    graph = kf.trace(kf.exp, holder(1.0, 2.0))
    names = [node.operator for node in graph.nodes]
    assert names == ["aten::exp", "keyfold::in_kind"]
    assert not graph.constants


def test_results_inside_a_traced_kernel_are_not_recorded(holder, lib, ns):
    """Calls of a kernel are inside its own node, the wrapping of the results too."""
    lib.define("twice(Tensor x) -> Tensor")
    lib.impl("twice", lambda x: kf.exp(kf.exp(x)), "CPU")
    graph = kf.trace(getattr(kf.ops, ns).twice, holder(0.1, 0.2))
    assert [node.operator for node in graph.nodes] == [f"{ns}::twice"]
    result = graph(holder(0.3, 0.4))
    np.testing.assert_allclose(result.tensor.numpy(), np.exp(np.exp([0.3, 0.4])))


def test_an_object_over_traced_memory_is_refused(lib, ns):
    kind = _class(Viewed, "CPU")
    lib.define("twice(Tensor x) -> Tensor")
    lib.impl("twice", lambda x: kind(x.data * 2), "CPU")
    array = np.ones(2)
    with pytest.raises(kf.TraceError, match=r"twice: argument 'x': .*Viewed.*registered.*asarray"):
        kf.trace(lambda x: getattr(kf.ops, ns).twice(kind(array)), array)


@pytest.mark.parametrize("name", ["torch", "jax", "tvm_ffi"])
def test_other_libraries_arrays_in_the_middle(name, lib, ns):
    """Arrays that kernels return in their own library are values of the graph."""
    library = MAKERS[name]()
    lib.define("double(Tensor x) -> Tensor")
    lib.impl("double", lambda x: library.array(np.asarray(np.from_dlpack(x)) * 2), "CPU")
    double = getattr(kf.ops, ns).double
    graph = kf.trace(lambda x: kf.exp(double(double(x))), library.array([0.0, 1.0]))
    result = graph(library.array([0.0, 0.5]))
    np.testing.assert_allclose(np.from_dlpack(result), np.exp([0.0, 2.0]))
