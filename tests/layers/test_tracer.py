"""`trace` and `Graph`: what is recorded, replays, texts and drawings, JSON, and what is refused."""

import asyncio
import pickle
import threading
from collections import namedtuple

import numpy as np
import pytest

import keyfold as kf
from keyfold import Graph, TraceError, trace
from tests.helpers.tensors import layer, tensor

X = np.arange(6.0).reshape(2, 3)


# Contents of a graph.


def test_a_graph_prints_one_aligned_line_per_call():
    graph = trace(layer, tensor(2, 3), tensor(3, 4), tensor(4))
    assert str(graph) == (
        "graph(%0 x: float64[2, 3], %1 w: float64[3, 4], %2 b: float64[4]):\n"
        "  %3: float64[2, 4] = aten::matmul(%0, %1)\n"
        "  %4: float64[2, 4] = aten::add(%3, %2)\n"
        "  %5: float64[2, 4] = aten::relu(%4)\n"
        "  %6: float64[2, 4] = aten::mul.Scalar(%5, 2.0)\n"
        "  %7: float64[2, 4] = aten::softmax(%6, -1)\n"
        "  return %7\n"
    )
    assert repr(graph) + "\n" == str(graph)


def test_its_parts_can_be_looked_at():
    w = tensor(3)
    graph = trace(lambda x: kf.sum(x * w, axis=0), tensor(2, 3))
    (x,) = graph.inputs
    assert (x.name, x.title, x.dtype, x.shape, str(x.device)) == (
        ("%0", "x", kf.float64, (2, 3), "cpu")
    )
    mul, total = graph.nodes
    assert (mul.operator, mul.effects) == ("aten::mul", False)
    assert [value.name for value in mul.arguments.values()] == ["%0", "%c0"]
    assert total.arguments["dim"] == [0]
    assert repr(total) == "%2: float64[3] = aten::sum.dim(%1, [0])"
    assert graph.outputs[0].name == "%2"
    (held,) = graph.constants.values()
    assert held.data_ptr() == w.data_ptr()


def test_a_replay_computes_what_the_function_does():
    args = tensor(2, 3), tensor(3, 4), tensor(4)
    graph = trace(layer, *args)
    others = tensor(2, 3, seed=1), tensor(3, 4, seed=2), tensor(4, seed=3)
    np.testing.assert_array_equal(graph(*others), layer(*others))


def test_arguments_and_results_keep_their_arrangement():
    Pair = namedtuple("Pair", "low high")

    def f(x, params, *more):
        y = x @ params["w"]
        return {"y": y, "all": [y + more[0], (more[1][0], 7, "text")], "pair": Pair(x, None)}

    args = X, {"w": tensor(3, 2), "n": 3}, tensor(2), [tensor(1)]
    graph = trace(f, *args)
    assert [value.title for value in graph.inputs] == ["x", "params['w']", "more[0]", "more[1][0]"]
    result = graph(kf.from_numpy(X), {"w": args[1]["w"], "n": 3}, args[2], args[3])
    assert list(result) == ["y", "all", "pair"]
    np.testing.assert_allclose(result["all"][0], X @ args[1]["w"].numpy() + args[2].numpy())
    assert type(result["all"]) is list
    assert result["all"][1][1:] == (7, "text")
    assert type(result["pair"]) is Pair
    assert result["pair"].high is None
    # An output that is an input is the very object.
    assert result["all"][1][0] is args[3][0]


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        ((), ["takes 2 arguments", "0"]),
        ((X, [tensor(3)]), ["args[1]", "a tuple of 2", "a list of 1"]),
        ((X, (tensor(3),)), ["args[1]", "a tuple of 2", "a tuple of 1"]),
        ((X, (tensor(3), {"b": X})), ["args[1][1]", "keys ['a']", "keys ['b']"]),
        ((X, (tensor(3), {"a": 4})), ["args[1][1]['a']", "3", "4", "fixed"]),
        ((X, (tensor(3), {"a": True})), ["args[1][1]['a']"]),
        ((None, (tensor(3), {"a": 3})), ["argument x", "an array", "None"]),
        (([X], (tensor(3), {"a": 3})), ["argument x", "an array", "a list"]),
        ((X[:1], (tensor(3), {"a": 3})), ["%0 (x)", "float64[2, 3]", "float64[1, 3]", "any_shape"]),
        ((X, (tensor(4), {"a": 3})), ["%1", "float64[3]", "float64[4]"]),
        ((X[0], (tensor(3), {"a": 3})), ["%0 (x)", "float64[2, 3]", "float64[3]"]),
    ],
)
def test_other_arguments_are_refused_by_name(args, parts, raises_saying):
    graph = trace(lambda x, y: x * y[0], X, (tensor(3), {"a": 3}))
    with raises_saying(TraceError, *parts):
        graph(*args)


def test_another_dtype_or_device_is_refused(raises_saying):
    graph = trace(lambda pixels: -pixels, X)
    with raises_saying(kf.DTypeError, "(pixels)", "float64[2, 3]", "float32[2, 3]"):
        graph(X.astype("float32"))
    with raises_saying(kf.DeviceError, "(pixels)", "meta"):
        graph(kf.empty((2, 3), device="meta"))
    with raises_saying(kf.BindingError, "pixels"):
        graph("text" and object())


def test_other_sizes_are_taken_when_asked_for():
    graph = trace(lambda x: kf.sum(kf.exp(x), axis=1), X)
    x = np.ones((5, 3))
    np.testing.assert_array_equal(graph.run(x, any_shape=True), np.exp(x).sum(1))
    with pytest.raises(TraceError, match="float64"):
        graph.run(np.ones(3), any_shape=True)


def test_sizes_that_python_read_are_fixed():
    graph = trace(lambda x: kf.sum(x, axis=0) * x.shape[0], X)
    np.testing.assert_array_equal(graph.run(np.ones((5, 3)), any_shape=True), [10.0, 10.0, 10.0])


def test_numpy_comes_back_where_only_numpy_was_given():
    graph = trace(lambda x, y: (x + y, x), X, X.copy())
    both = graph(X, X + 1)
    assert type(both[0]) is np.ndarray
    assert both[1] is X
    assert type(graph(kf.asarray(X), X)[0]) is kf.Tensor
    graph = trace(lambda: (np.arange(2), 3, kf.zeros(1)))
    assert type(graph()[0]) is np.ndarray
    assert type(graph()[2]) is kf.Tensor


def test_what_requires_grad_is_a_tensor_also_where_only_numpy_was_given():
    w = kf.asarray(X[0]).requires_grad_()
    graph = trace(lambda x: (kf.sum(x * w), x + 1), X[1])
    loss, plain = graph(X[1])
    assert type(loss) is kf.Tensor
    assert type(plain) is np.ndarray
    loss.backward()
    np.testing.assert_array_equal(w.grad.numpy(), X[1])
    with kf.no_grad():
        assert type(graph(X[1])[0]) is np.ndarray


def test_a_function_without_tensors_gives_what_it_gave():
    graph = trace(lambda n: {"n": n + 1, "none": None}, 3)
    assert graph(3) == {"n": 4, "none": None}
    assert str(graph) == "graph():\n  return None\n"
    with pytest.raises(TraceError, match="argument args\\[0\\] was 3"):
        graph(4)


def test_one_array_given_twice_is_two_inputs():
    x = tensor(3)
    graph = trace(lambda a, b: a - b, x, x)
    np.testing.assert_array_equal(graph(x, kf.zeros(3)), x)
    graph = trace(lambda a, b: a - b, X, X)
    np.testing.assert_array_equal(graph(X, 0 * X), X)


def test_loops_and_iterating_are_unrolled():
    def f(x):
        total = kf.zeros(3)
        for row in x:
            for _ in range(2):
                total = total + row
        return total[1:]

    graph = trace(f, X)
    assert sum(node.operator == "aten::add" for node in graph.nodes) == 4
    np.testing.assert_array_equal(graph(2 * X), 4 * X.sum(0)[1:])


# Constants.


def test_constants_are_held_by_reference():
    w = np.ones(3)
    graph = trace(lambda x: x * w, X)
    w[:] = 5.0
    np.testing.assert_array_equal(graph(X), X * 5.0)
    text = graph.to_json()
    w[:] = 6.0
    np.testing.assert_array_equal(Graph.from_json(text)(X), X * 5.0)
    assert graph.constants["%c0"] is w


def test_what_is_made_inside_is_made_anew():
    def f(x):
        total = kf.asarray([0.0, 0.0, 0.0])
        total += x
        return total

    graph = trace(f, np.ones(3))
    for _ in range(3):
        np.testing.assert_array_equal(graph(np.ones(3)), [1.0, 1.0, 1.0])


def test_writing_in_place_happens_at_each_replay():
    count = kf.zeros(1)

    def f(x):
        kf.ops.aten.copy_(count, count + 1)
        y = x * 2.0
        y[0] = 100.0
        return y

    graph = trace(f, X)
    assert "aten::copy_" in str(graph)
    result = graph(X)
    np.testing.assert_array_equal(result, [[100.0, 100.0, 100.0], [6.0, 8.0, 10.0]])
    graph(X)
    assert count.item() == 3.0


def test_an_input_that_is_written_to_is_written_at_replay():
    def f(x):
        x[0] = 7.0
        return x

    x = np.zeros((2, 2))
    graph = trace(f, x)
    assert x[0, 0] == 7.0
    other = np.zeros((2, 2))
    assert graph(other) is other
    assert other[0, 1] == 7.0


# Operators of all kinds, the user's own.


def test_a_users_operator_is_one_node(op):
    scale, name = op("scale(Tensor x, float k=2.0) -> Tensor", lambda x, k: kf.asarray(x) * k)
    graph = trace(lambda x: scale(x) + scale(x, 3.0), X)
    assert [node.operator for node in graph.nodes] == [name, name, "aten::add"]
    assert f"{name}(%0)" in str(graph)
    assert f"{name}(%0, 3.0)" in str(graph)
    np.testing.assert_array_equal(graph(X), X * 5.0)


def test_several_results_lists_none_and_numbers(op):
    split, _ = op("split(Tensor x) -> Tensor[]", lambda x: [x[0], x[1]])
    pair, _ = op("pair(Tensor x) -> (Tensor, int, Tensor?)", lambda x: (x * 2.0, 5, None))
    size, _ = op("size(Tensor x) -> int", lambda x: x.shape[0])

    def f(x):
        first, second = split(x)
        doubled, number, nothing = pair(second)
        assert nothing is None
        return first + doubled * number * size(x)

    graph = trace(f, X)
    np.testing.assert_array_equal(graph(X + 1), f(kf.asarray(X + 1)))
    text = str(graph)
    assert "[%1, %2]:      [float64[3], float64[3]] = " in text
    assert "(%3, 5, None): (float64[3], int, None)  = " in text
    # A number stays as it was.
    assert "aten::mul.Scalar(%4, 2)" in text


def test_lists_of_tensors_are_arguments(op):
    total, name = op("total(Tensor[] xs, Tensor? bias=None) -> Tensor", lambda xs, b: sum(xs, 0.0))
    graph = trace(lambda x, y: total([x, y, x]), X, X + 1)
    assert f"{name}([%0, %1, %0])" in str(graph)
    np.testing.assert_array_equal(graph(X, 0 * X), 2 * X)


def test_kernels_may_read_what_they_like(op):
    def kernel(x):
        return x * 2.0 if float(kf.asarray(x).sum()) > 0 else kf.asarray(x)

    choose, _ = op("choose(Tensor x) -> Tensor", kernel)
    graph = trace(lambda x: choose(x), X)
    np.testing.assert_array_equal(graph(X), 2 * X)
    np.testing.assert_array_equal(graph(-X), -X)


def test_a_kernel_below_gets_the_constant_itself(op):
    seen = []
    note, _ = op("note(Tensor x, Tensor w) -> Tensor", lambda x, w: seen.append(w) or x)
    w = np.ones(2)
    graph = trace(lambda x: note(x, w), X)
    graph(X)
    assert [one is w for one in seen] == [True, True]


def test_an_operator_that_is_gone_is_named(lib, ns, raises_saying):
    lib.define("gone(Tensor x) -> Tensor")
    lib.impl("gone", lambda x: x, "CPU")
    gone = getattr(kf.ops, ns).gone
    graph = trace(lambda x: gone(x), X)
    lib.close()
    with raises_saying(AttributeError, f"%1 = {ns}::gone"):
        graph(X)


def test_a_kernel_that_fails_at_replay_raises_its_own_error(op):
    def kernel(x):
        if np.asarray(x).sum() > 100:
            raise ZeroDivisionError("too much")
        return x

    picky, _ = op("picky(Tensor x) -> Tensor", kernel)
    graph = trace(lambda x: picky(x), X)
    with pytest.raises(ZeroDivisionError, match="too much"):
        graph(X + 100)


def test_layers_have_their_part_at_replay(op):
    log = []
    plain, name = op("plain(Tensor x) -> Tensor", lambda x: x)
    graph = trace(lambda x: plain(x), X)

    def layer(x):
        log.append("layer")
        return kf.redispatch(name, "CPU", x)

    handle = kf.impl(name, "Profiler", layer)
    graph(X)
    assert log == []
    with kf.include_keys("Profiler"):
        graph(X)
    handle.remove()
    assert log == ["layer"]


# Reading.


READS = {
    "bool()": lambda x: 1 if x.sum() > 0 else 2,
    "float()": lambda x: float(x.sum()),
    "int()": lambda x: int(x.sum()),
    "complex()": lambda x: complex(x.sum()),
    "item()": lambda x: x.sum().item(),
    "tolist()": lambda x: x.tolist(),
    "numpy()": lambda x: x.numpy(),
    "as a NumPy array": lambda x: np.asarray(x),
    "__dlpack__()": lambda x: np.from_dlpack(x),
    "pickling": lambda x: pickle.dumps(x),
    "use as an index": lambda x: list(range(6))[kf.argmax(x)],
}


@pytest.mark.parametrize("what", READS)
def test_reading_what_follows_from_the_arguments_is_refused(what, raises_saying):
    with raises_saying(TraceError, what, "follows from the inputs", "keyfold.where"):
        trace(READS[what], X)
    with raises_saying(ValueError, what):
        trace(lambda x: READS[what](-x), tensor(2, 3))
    # Outside of the trace nothing changed.
    READS[what](kf.asarray(X))


def test_a_ufunc_and_a_position_are_reading_too():
    with pytest.raises(TraceError):
        trace(lambda x: np.sin(x), X)
    with pytest.raises(TraceError):
        trace(lambda x: x[kf.argmax(x[0])], X)


def test_what_does_not_follow_from_the_arguments_can_be_read():
    w = tensor(3)

    def f(x):
        assert w.sum() > 0
        return x * float((w * 2.0).sum()) if kf.ones(1) else x

    np.testing.assert_array_equal(trace(f, X)(X), X * float((w * 2.0).sum()))


def test_printing_inside_is_fine(capsys):
    trace(lambda x: print(x + 1.0), np.zeros(2))
    assert "[1., 1.]" in capsys.readouterr().out


def test_a_constant_that_is_written_to_differs_at_the_next_replay():
    w = kf.zeros(1)

    def f(x):
        w[0] = 1.0
        return float(w)

    with pytest.raises(TraceError):
        trace(f, X)


# Where a trace runs.


def test_a_trace_inside_a_trace_records_in_both():
    inner = []

    def f(x):
        y = x + 1.0
        inner.append(trace(lambda z: z * 2.0, y))
        return inner[0](y)

    outer = trace(f, X)
    assert [node.operator for node in inner[0].nodes] == ["aten::mul.Scalar"]
    assert [node.operator for node in outer.nodes] == [
        "aten::add.Scalar",
        "aten::mul.Scalar",
        "aten::mul.Scalar",
    ]
    assert [node.operator for node in outer.simplified().nodes] == [
        "aten::add.Scalar",
        "aten::mul.Scalar",
    ]
    np.testing.assert_array_equal(outer(X), (X + 1) * 2)


def test_an_inner_trace_does_not_let_the_outer_ones_tensors_be_read():
    with pytest.raises(TraceError):
        trace(lambda x: trace(lambda y: float(x.sum()), np.ones(2)), X)


def test_threads_trace_each_their_own():
    graphs, failed = {}, []

    def work(n):
        try:
            graphs[n] = trace(lambda x: _repeat(x, n), X)
        except BaseException as error:
            failed.append(error)

    def _repeat(x, n):
        for _ in range(n):
            x = x + 1.0
        return x

    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    for n, graph in graphs.items():
        assert len(graph.nodes) == n
        np.testing.assert_array_equal(graph(X), X + n)


def test_other_tasks_are_not_recorded():
    async def other(go, done):
        await go.wait()
        result = float(kf.asarray(X).sum() * 2.0)
        done.set()
        return result

    async def main():
        go, done = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(other(go, done))
        await asyncio.sleep(0)

        session_graph = trace(lambda x: (go.set(), x + 1.0)[1], X)
        await done.wait()
        return session_graph, await task

    graph, number = asyncio.run(main())
    assert len(graph.nodes) == 1
    assert number == 30.0


def test_a_function_that_fails_leaves_nothing_behind():
    class Stop(BaseException):
        pass

    held = []

    def f(x):
        held.append(x)
        raise Stop

    with pytest.raises(Stop):
        trace(f, X)
    assert float(held[0].sum()) == 15.0
    assert not kf._core._is_tracing()
    assert len(trace(lambda x: x + 1.0, X).nodes) == 1


def test_what_is_left_of_a_trace_can_be_read_afterwards():
    held = []
    trace(lambda x: held.append(x * 2.0), X)
    assert float(held[0].sum()) == 30.0


def test_excluding_the_key_hides_calls_and_lets_read():
    def f(x):
        with kf.exclude_keys("Tracer"):
            hidden = float(x.sum())
        return x + hidden

    graph = trace(f, X)
    assert len(graph.nodes) == 1
    np.testing.assert_array_equal(graph(0 * X), 0 * X + 15.0)


def test_a_trace_that_could_record_nothing_is_refused(op):
    with kf.exclude_keys("Tracer"), pytest.raises(TraceError, match="excluded"):
        trace(lambda x: x, X)
    inner, _ = op("inner(Tensor x) -> Tensor", lambda x: trace(lambda y: y + 1.0, x)(x))
    with pytest.raises(TraceError, match="excluded"):
        trace(lambda x: inner(x), X)
    np.testing.assert_array_equal(inner(X), X + 1)


def test_random_operators_draw_anew():
    draw = getattr(kf.ops.aten, "rand", None)
    if draw is None:
        assert "rand" not in dir(kf.ops.aten)
        return
    graph = trace(lambda x: x + draw(x.shape), X)
    assert not np.array_equal(graph(X), graph(X))
    assert graph.simplified().nodes[0].effects


# Other layers inside a trace.

W = tensor(3, 2)


def loss(x):
    return kf.sum(kf.tanh(x @ W) * 2.0)


def train(x):
    w = kf.from_numpy(np.ones((3, 2)))
    w.requires_grad_()
    kf.sum((x @ w) ** 2).backward()
    return w.grad


LAYERED = {
    "grad": lambda x: kf.grad(loss)(x),
    "double": lambda x: kf.grad(lambda y: kf.sum(kf.grad(loss)(y)))(x),
    "vmap": lambda x: kf.vmap(lambda row: kf.sum(kf.exp(row)) * 2.0)(x),
    "grad in vmap": lambda x: kf.vmap(kf.grad(loss))(x),
    "vmap in grad": lambda x: kf.grad(lambda y: kf.sum(kf.vmap(loss)(y)))(x),
    "checkpoint": lambda x: kf.grad(lambda y: kf.sum(kf.checkpoint(loss, y)))(x),
    "backward": train,
}


@pytest.mark.parametrize("name", LAYERED)
def test_what_layers_compute_is_in_the_graph(name):
    f = LAYERED[name]
    graph = trace(f, tensor(4, 3))
    other = tensor(4, 3, seed=9)
    expected = f(other).detach().numpy()
    for again in [graph, graph.simplified(), Graph.from_json(graph.to_json())]:
        np.testing.assert_allclose(again(other).detach(), expected)


def test_a_replay_has_a_gradient():
    graph = trace(loss, tensor(4, 3))
    x = tensor(4, 3, seed=9)
    np.testing.assert_allclose(kf.grad(graph)(x), kf.grad(loss)(x))


def test_a_graph_can_be_mapped():
    graph = trace(loss, tensor(3))
    x = tensor(4, 3)
    np.testing.assert_allclose(kf.vmap(graph)(x), kf.vmap(loss)(x))
