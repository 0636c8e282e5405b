"""Plans in Python: arrays in and out, mistakes, the cache, interrupts."""

import importlib.util
import signal
import threading

import numpy as np
import pytest

import keyfold as kf

rng = np.random.default_rng(7)


def block():
    """relu(x @ w + b), its tensors and its arrays."""
    g = kf.cudnn.Graph(io_data_type="float32", name="block")
    x = g.tensor(dim=[2, 3, 4], name="x")
    w = g.tensor(dim=[2, 4, 5], name="w")
    b = g.tensor(dim=[1, 1, 5], name="b")
    y = g.relu(g.bias(g.matmul(x, w), b)).set_output(True).set_name("y")
    arrays = {t: rng.normal(size=t.dim).astype(np.float32) for t in (x, w, b)}
    expected = np.maximum(arrays[x] @ arrays[w] + arrays[b], 0)
    return g, arrays, y, expected


def test_a_plan_computes_numpy_arrays_of_numpy_arrays():
    g, arrays, y, expected = block()
    plan = g.build(device="cpu")
    out = plan(arrays)
    assert list(out) == [y]
    assert type(out[y]) is np.ndarray
    np.testing.assert_allclose(out[y], expected, rtol=1e-5, atol=1e-5)
    assert (plan.outputs, set(plan.inputs)) == ((y,), set(arrays))


def test_keys_are_tensors_numbers_or_names():
    g, arrays, y, _ = block()
    plan = g.build()
    x, w, b = arrays
    expected = plan(arrays)[y]
    mixed = plan({x: arrays[x], w.uid: arrays[w], "b": arrays[b]})[y]
    np.testing.assert_array_equal(mixed, expected)


def test_results_are_read_by_tensor_number_or_name():
    g, arrays, y, expected = block()
    out = g.build()(arrays)
    assert type(out) is kf.cudnn.Results
    assert out["y"] is out[y.uid] is out[y] is out.get("y")
    assert list(out) == [y]
    assert "y" in out
    assert y in out
    np.testing.assert_allclose(out["y"], expected, rtol=1e-5, atol=1e-5)


def test_a_result_that_is_not_there_is_refused_with_those_that_are():
    g, arrays, y, _ = block()
    z = g.neg(y).set_output(True)
    out = g.build()(arrays)
    x = next(iter(arrays))
    for key in ("z", 99, x, None, ""):
        assert key not in out
        assert out.get(key, 5) == 5
        with pytest.raises(kf.UnknownTensor, match=rf'have no tensor .*: "y", #{z.uid}$'):
            out[key]
    with pytest.raises(KeyError) as refused:
        out["z"]
    assert str(refused.value).startswith("the results have no tensor 'z'; there are")


def test_a_name_that_two_tensors_have_is_no_key():
    g, arrays, y, _ = block()
    z = g.neg(y).set_output(True).set_name("y")
    out = g.build()(arrays)
    with pytest.raises(kf.UnknownTensor, match=rf"2 tensors 'y', #{y.uid}, #{z.uid}: "):
        out["y"]
    with pytest.raises(kf.UnknownTensor, match="2 tensors 'y'"):
        out.get("y")
    np.testing.assert_array_equal(out[z], -out[y.uid])
    with pytest.raises(kf.UnknownTensor, match="the graph has 2 tensors 'y'"):
        g["y"]
    x, w, _ = arrays
    given = {"same": arrays[x], **{tensor: arrays[tensor] for tensor in arrays if tensor is not x}}
    x.set_name("same")
    w.set_name("same")
    del given[w]
    with pytest.raises(kf.InvalidValue, match=rf"^plan\(\): 'same' is the name of #{x.uid} and #"):
        g.build()(given)


def test_results_are_of_the_inputs_library():
    g, arrays, y, expected = block()
    plan = g.build()
    out = plan({key: kf.asarray(array) for key, array in arrays.items()})[y]
    assert type(out) is kf.Tensor
    np.testing.assert_allclose(np.asarray(out), expected, rtol=1e-5, atol=1e-5)


def test_numpy_beside_keyfold_gives_keyfold():
    g, arrays, y, _ = block()
    x = next(iter(arrays))
    assert type(g.build()(arrays | {x: kf.asarray(arrays[x])})[y]) is kf.Tensor


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch isn't installed")
def test_torch_tensors_give_torch_tensors():
    import torch

    g, arrays, y, expected = block()
    out = g.build()({key: torch.from_numpy(array) for key, array in arrays.items()})[y]
    assert type(out) is torch.Tensor
    mixed = {**arrays, next(iter(arrays)): torch.ones(2, 3, 4)}
    with pytest.raises(kf.BindingError, match="one library"):
        g.build()(mixed)
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-5, atol=1e-5)


def test_channels_last_stay_last():
    g = kf.cudnn.Graph(io_data_type="float32")
    array = rng.normal(size=(2, 5, 6, 3)).astype(np.float32).transpose(0, 3, 1, 2)
    y = g.exp(g.tensor_like(array, name="x")).set_output()
    out = g.build()({"x": array})[y]
    assert out.strides == array.strides
    np.testing.assert_allclose(out, np.exp(array), rtol=1e-6)


def test_results_are_written_into_given_arrays():
    g, arrays, y, expected = block()
    given = np.zeros((2, 3, 5), np.float32)
    out = g.build()(arrays, out={y: given})
    assert out[y] is given
    np.testing.assert_allclose(given, expected, rtol=1e-5, atol=1e-5)
    g.build()(arrays, {"y": given})


def test_a_tensor_that_is_passed_by_value_takes_a_number():
    g = kf.cudnn.Graph(io_data_type="float32")
    x = g.tensor(dim=[2, 2], name="x")
    factor = g.tensor(dim=[1, 1], name="factor", is_pass_by_value=True)
    y = g.mul(x, factor).set_output()
    out = g.build()({x: np.ones((2, 2), np.float32), factor: 2.5})
    np.testing.assert_array_equal(out[y], np.full((2, 2), 2.5, np.float32))


def test_precision_is_chosen():
    g = kf.cudnn.Graph(io_data_type="float16")
    x = g.tensor(dim=[64, 64], name="x")
    y = g.exp(x).set_output()
    array = rng.normal(size=(64, 64)).astype(np.float16)
    for precision in ("spec", "float32", "float64"):
        out = g.build(precision=precision)({x: array})[y]
        assert out.dtype == np.float16
        np.testing.assert_allclose(out, np.exp(array.astype(np.float64)), rtol=1e-3)


def test_a_plan_says_what_it_is():
    g, _arrays, _, _ = block()
    plan = g.build(policy="deterministic", workspace_limit=1 << 30)
    assert plan.workspace_bytes <= 1 << 30
    assert (str(plan.device), plan.signature) == ("cpu", g.signature())
    told = plan.explain()
    assert plan.engine in told
    assert '"x" float32 [2, 3, 4]' in told
    assert all(step in told for step in plan.steps)
    assert repr(plan).startswith("Plan(engine=")


def mistakes():
    def changed(**arrays):
        return lambda plan, given: plan(given | arrays)

    def without(name):
        return lambda plan, given: plan({k: v for k, v in given.items() if k != name})

    wrong = np.ones((2, 3, 4), np.float64)
    yield kf.InvalidValue, r'^plan\(\): "b" is missing$', without("b")
    yield kf.InvalidValue, r'^plan\(\): "x", "w", "b" are missing$', lambda plan, given: plan({})
    yield (
        kf.InvalidValue,
        r"""^plan\(\): "b" is missing; 'B' is no input of the graph$""",
        lambda plan, given: plan({"x": given["x"], "w": given["w"], "B": given["b"]}),
    )
    yield kf.DTypeError, '"x".*float64.*float32', changed(x=wrong)
    yield kf.ShapeError, r'"x".*\[2, 3\]', changed(x=np.ones((2, 3), np.float32))
    yield kf.ShapeError, r'"x".*strides', changed(x=np.ones((4, 3, 2), np.float32).T)
    yield (
        kf.DeviceError,
        '"x".*meta',
        changed(x=kf.empty((2, 3, 4), dtype="float32", device="meta")),
    )
    yield kf.BindingError, '"x".*it is an array, not list', changed(x=[1, 2])
    yield kf.InvalidValue, r"^plan\(\): 'z' is no input of the graph$", changed(z=wrong)
    yield kf.InvalidValue, "'y' is an output", changed(y=wrong)
    yield kf.InvalidValue, '"x" is given twice', lambda plan, given: plan(given | {1: given["x"]})
    yield kf.BindingError, "takes a dict", lambda plan, given: plan(list(given.values()))
    yield kf.InvalidValue, "'x' is an input", lambda plan, given: plan(given, out={"x": wrong})
    yield (
        kf.ShapeError,
        '"y"',
        lambda plan, given: plan(given, out={"y": np.ones((2, 3), np.float32)}),
    )
    yield (
        kf.GradientError,
        "requires grad",
        lambda plan, given: plan({k: kf.asarray(v).requires_grad_() for k, v in given.items()}),
    )


@pytest.mark.parametrize(("error", "says", "mistake"), list(mistakes()))
def test_wrong_arrays_are_refused_by_name(error, says, mistake):
    g, arrays, _, _ = block()
    plan = g.build()
    given = {tensor.name: array for tensor, array in arrays.items()}
    with pytest.raises(error, match=says):
        mistake(plan, given)


def test_a_refused_call_writes_nothing():
    g, arrays, y, _ = block()
    plan = g.build()
    read_only = np.zeros((2, 3, 5), np.float32)
    read_only.flags.writeable = False
    with pytest.raises(kf.ReadOnlyError):
        plan(arrays, out={y: read_only})
    memory = np.zeros(40, np.float32)
    x = next(iter(arrays))
    overlapping = arrays | {x: memory[:24].reshape(2, 3, 4)}
    with pytest.raises(kf.InvalidValue, match="overlaps"):
        plan(overlapping, out={y: memory[10:].reshape(2, 3, 5)})
    assert not memory.any()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"policy": "best"}, '"first", "autotune", "deterministic", not "best"'),
        ({"precision": "float16"}, '"spec", "float32", "float64"'),
        ({"device": "no_such_device"}, "no_such_device"),
        ({"workspace_limit": -1}, "workspace_limit"),
    ],
)
def test_wrong_options_of_a_build_are_refused(arguments, says):
    with pytest.raises(kf.Error, match=says):
        block()[0].build(**arguments)


def test_a_graph_that_is_not_valid_is_not_built():
    g = kf.cudnn.Graph()
    g.relu(g.tensor(dim=[2], name="x"))
    with pytest.raises(kf.Error):
        g.build()


def test_equal_graphs_share_a_plan():
    cache = kf.cudnn.plan_cache
    g, arrays, y, expected = block()
    g.build()
    before = cache.stats()
    again, arrays, y, expected = block()
    next(iter(arrays)).set_uid(77)
    y.set_name("other")
    plan = again.build()
    after = cache.stats()
    assert (after.hits - before.hits, after.misses - before.misses) == (1, 0)
    np.testing.assert_allclose(plan(arrays)[y], expected, rtol=1e-5, atol=1e-5)


def test_plans_are_prepared_for_several_sizes():
    cache = kf.cudnn.plan_cache
    g = kf.cudnn.Graph(io_data_type="float32", name="sizes")
    x = g.tensor(dim=[3, 17], name="x")
    y = g.tanh(x).set_output()
    told = []
    shapes = [{x: [n, 17]} for n in (5, 6)]
    plans = cache.prepare(g, shapes=shapes, progress=lambda *step: told.append(step))
    assert len(told) >= 2
    before = cache.stats().misses
    array = np.ones((6, 17), np.float32)
    np.testing.assert_allclose(plans[1]({x: array})[y], np.tanh(array), rtol=1e-6)
    x.set_dim([6, 17])
    g.build()
    assert cache.stats().misses == before
    with pytest.raises(kf.ShapeError):
        cache.prepare(g, shapes=[{"x": [6, 17, 1]}])
    with pytest.raises(kf.BindingError, match="none"):
        cache.prepare(g, shapes=[{object(): [6, 17]}])


def test_the_cache_has_bounds_and_shows_itself():
    cache = kf.cudnn.plan_cache
    was = cache.capacity
    try:
        cache.set_capacity(entries=1)
        block()[0].build()
        g = kf.cudnn.Graph(io_data_type="float32")
        g.exp(g.tensor(dim=[2])).set_output()
        g.build()
        assert len(cache) == 1
        stats = cache.stats()
        (entry,) = stats.entries
        assert (entry["operation"], entry["data_type"]) == ("exp", "float32")
        assert stats.capacity == 1
        assert stats.evictions >= 1
        assert "1 of 1 plans" in repr(stats)
        assert "exp" in stats._repr_html_()
        with pytest.raises(kf.InvalidValue):
            cache.set_capacity(entries=0)
        cache.clear()
        assert (len(cache), cache.stats().entries) == (0, [])
    finally:
        cache.set_capacity(*was)


def test_what_progress_raises_cancels_a_build():
    g, _, _, _ = block()
    kf.cudnn.plan_cache.clear()

    def stop(done, total, what):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        g.build(progress=stop)
    assert len(kf.cudnn.plan_cache) == 0
    g.build()


def test_an_interrupt_cancels_a_build():
    kf.cudnn.plan_cache.clear()

    def interrupt(done, total, what):
        signal.raise_signal(signal.SIGINT)

    # A process that was started in the background may ignore the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            block()[0].build(progress=interrupt)
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(kf.cudnn.plan_cache) == 0


def test_a_plan_runs_in_many_threads():
    g, arrays, y, expected = block()
    plan = g.build()
    wrong = []

    def run():
        for _ in range(200):
            if not np.allclose(plan(arrays)[y], expected, rtol=1e-5, atol=1e-5):
                wrong.append(1)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_layers_refuse_plans():
    g, arrays, y, _ = block()
    plan = g.build()
    given = [kf.asarray(array) for array in arrays.values()]
    names = [tensor.name for tensor in arrays]
    with pytest.raises(kf.NotSupported, match="recorded"):
        kf.trace(lambda *a: plan(dict(zip(names, a, strict=True)))[y], *given)
    batched = [kf.asarray(np.stack([array, array])) for array in arrays.values()]
    with pytest.raises(kf.NotSupported, match="vmap"):
        kf.vmap(lambda *a: plan(dict(zip(names, a, strict=True)))[y])(*batched)
