"""Fused functions are as the functions: identities, state, errors, and what ends a recording."""

import collections
import copy
import functools
import inspect
import pickle
import threading
import types

import numpy as np
import pytest

import keyfold as kf


def numbers(count=3):
    return kf.asarray(np.arange(1.0, count + 1.0), copy=True)


def pair_of_functions(make):
    """A function and a fused one, each with state of its own."""
    return make(), kf.fuse(make())


def test_an_object_that_is_called_keeps_its_attributes_to_itself():
    class Module:
        def __init__(self):
            self.w = kf.ones(2)
            self._keep = 0.5
            self._call = "a text"

        def __call__(self, x):
            return x * self.w * self._keep

    module, x = Module(), kf.ones(2)
    fused = kf.fuse(module)
    assert fused(x).tolist() == [0.5, 0.5]
    module.w = module.w * 4.0
    assert fused(x).tolist() == [2.0, 2.0]
    assert not hasattr(fused, "w")


@pytest.mark.parametrize("make", [kf.optim.Adam, functools.partial(kf.optim.SGD, momentum=0.9)])
def test_an_optimizer_makes_its_steps(make):
    def run(wrap):
        parameter = numbers(2).requires_grad_()
        optimizer = make([parameter], lr=0.1)
        step = wrap(optimizer.step)
        for _ in range(3):
            optimizer.zero_grad()
            kf.sum(parameter * parameter).backward()
            step()
        return parameter.detach().tolist()

    assert run(kf.fuse) == run(lambda f: f)


def test_state_that_a_refused_call_writes_is_valid_and_written_once():
    class Norm:
        def __init__(self):
            self.mean, self.calls = kf.zeros(1), 0

        def __call__(self, x):
            self.calls += 1
            self.mean = self.mean * 0.9 + kf.mean(x) * 0.1
            return x - self.mean

    class Net:
        def __init__(self):
            self.norm, self.kept = Norm(), [[]]

        def forward(self, x):
            self.kept[0].append(x * 2.0)
            self.last = x
            return self.norm(x) + kf.sum(kf.concat(self.kept[0]))

    plain, net, x = Net(), Net(), kf.ones(2)
    fused = kf.fuse(net.forward)
    for _ in range(3):
        assert fused(x).tolist() == plain.forward(x).tolist()
    assert net.norm.mean.tolist() == plain.norm.mean.tolist()
    assert (net.norm.calls, len(net.kept[0])) == (3, 3)
    assert net.last is x
    assert [one.tolist() for one in net.kept[0]] == [[2.0, 2.0]] * 3


def test_a_function_that_raises_runs_once_and_what_it_kept_is_computed():
    kept, calls = [], []

    def fails(x):
        calls.append(1)
        kept.append(x + 1.0)
        x += 1.0
        raise KeyError("as it should")

    fused, x = kf.fuse(fails), numbers()
    with pytest.raises(KeyError, match="as it should"):
        fused(x)
    assert len(calls) == 1
    assert (x.tolist(), kept[0].tolist()) == ([2.0, 3.0, 4.0], [2.0, 3.0, 4.0])

    # An interrupt gives up what waits.
    def stops(x):
        kept.append(x + 1.0)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kf.fuse(stops)(x)
    with pytest.raises(kf.PipelineError, match="left before this tensor was computed"):
        kept[-1].tolist()


def test_an_error_of_a_value_comes_before_one_that_the_function_raised_later():
    def f(x, powers):
        y = kf.pow(x, powers)
        x += 1
        raise KeyError(y.shape)

    x, powers = kf.asarray([1, 2]), kf.asarray([1, -1])
    for function in (f, kf.fuse(f)):
        with pytest.raises(kf.InvalidValue, match="-1 is negative"):
            function(x, powers)
        assert x.tolist() == [1, 2]


def test_a_write_to_a_view_of_an_argument_is_one_when_the_function_reads_elements():
    def f(x, y):
        before = y * 1.0
        x += 1.0
        after = y * 1.0
        total = float(kf.sum(x))
        x[0] = total
        return before, after, y * 1.0

    results = []
    for function in (f, kf.fuse(f)):
        x = numbers(4)
        found = function(x, x[1:])
        results.append(([one.tolist() for one in found], x.tolist()))
    assert results[0] == results[1]


def test_lists_and_dicts_among_the_arguments_are_changed_where_they_are():
    def f(items, names, x):
        items.append(x * 2.0)
        names["first"] = items[0]
        del names["old"]
        return items

    x, first = numbers(), numbers()
    items, names = [first], {"old": 1}
    fused = kf.fuse(f)
    assert fused(items, names, x) is items
    assert items[0] is first
    assert names == {"first": first}
    assert items[1].tolist() == [2.0, 4.0, 6.0]
    assert "changes a list or dict among its arguments" in fused.explain()


def test_identities_are_those_of_the_function():
    x, w = numbers(), numbers()
    view = x[:]
    assert kf.fuse(lambda a, b: b)(x, view) is view
    assert kf.fuse(lambda a: a[:])(x) is not x
    assert kf.fuse(lambda a: w)(x) is w
    both = kf.fuse(lambda a: (lambda y: (y, y))(a * 2.0))
    for _ in range(2):
        one, other = both(x)
        assert one is other
    is_one = kf.fuse(lambda a, b: a * (2.0 if a is b else 3.0))
    for _ in range(2):
        assert is_one(x, x).tolist() == [2.0, 4.0, 6.0]
        assert is_one(x, w).tolist() == [3.0, 6.0, 9.0]
    assert is_one.stats()["recorded"] == 2
    lists = kf.fuse(lambda a, b: a[0] * (2.0 if a is b else 3.0))
    items = [x]
    assert lists([x], [x]).tolist() == [3.0, 6.0, 9.0]
    assert lists(items, items).tolist() == [2.0, 4.0, 6.0]
    cyclic = [x]
    cyclic.append(cyclic)
    assert kf.fuse(lambda a: a[0] * 2.0)(cyclic).tolist() == [2.0, 4.0, 6.0]
    assert "given twice" in lists.explain()


Point = collections.namedtuple("Point", "a")


class Scaled(Point):
    scale = 1.0


def test_arguments_that_differ_a_little_have_recordings_of_their_own():
    x = kf.asarray([2, 3])
    by_keys = kf.fuse(lambda x, d: [x := x * (k[0] if type(k) is tuple else k) for k in d][-1])
    assert by_keys(x, {(1,): 0}).dtype == kf.int64
    assert by_keys(x, {(1.0,): 0}).dtype == kf.float64
    by_sign = kf.fuse(lambda x, s: x * 0.0 + s)
    y = kf.ones(1, dtype="float64")
    for nan in (float("nan"), -float("nan")):
        assert np.signbit(by_sign(y, nan).numpy()) == np.signbit(nan)
    point = Scaled(y)
    point.scale = 3.0
    assert kf.fuse(lambda p: p.a * p.scale)(point).tolist() == [3.0]
    by_writes = kf.fuse(lambda x: x * (2.0 if x.readonly else 3.0))
    assert by_writes(y).tolist() == [3.0]
    array = np.ones(1)
    array.flags.writeable = False
    assert by_writes(kf.asarray(array)).tolist() == [2.0]
    sliced = kf.fuse(lambda x, part: x[part] * 1.0)
    for _ in range(3):
        assert sliced(numbers(), slice(1, None)).tolist() == [2.0, 3.0]
    assert sliced.stats() == {"recorded": 1, "replayed": 3, "in_pipeline": 0, "eager": 0}


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (lambda d: d.values(), lambda d: d.update(a=5.0)),
        (types.MappingProxyType, lambda d: d.update(a=5.0)),
    ],
)
def test_views_of_what_may_change_are_read_at_each_call(make, change):
    held = {"a": 2.0}
    fused = kf.fuse(lambda x, view: x * sum(dict(view).values() if hasattr(view, "get") else view))
    view, x = make(held), kf.ones(1)
    assert fused(x, view).tolist() == [2.0]
    change(held)
    assert fused(x, view).tolist() == [5.0]
    memory = bytearray(b"\x02")
    read = kf.fuse(lambda x, view: x * view[0])
    assert read(x, memoryview(memory)).tolist() == [2.0]
    memory[0] = 5
    assert read(x, memoryview(memory)).tolist() == [5.0]


def test_what_differs_from_call_to_call_ends_a_recording():
    w, x = numbers(), numbers()

    def by_text(x):
        return x * float(str(w).split("[")[1].split(".")[0])

    fused = kf.fuse(by_text)
    assert fused(x).tolist() == [1.0, 2.0, 3.0]
    w[0] = 7.0
    assert fused(x).tolist() == [7.0, 14.0, 21.0]
    assert "it reads elements" in fused.explain()
    for name, reason in (("offset", "an offset"), ("is_pending", "whether a tensor is pending")):
        asked = kf.fuse(lambda x, name=name: x * float(1 + getattr(x, name)))
        assert asked(x[1:]).tolist() == (x[1:] * float(1 + getattr(x[1:], name))).tolist()
        assert reason in asked.explain()


def test_a_dual_that_the_function_holds_keeps_its_tangent():
    x, one = numbers(2), kf.ones(2, dtype="float64")
    _, tangent = kf.jvp(lambda w: kf.fuse(lambda x: x * w)(x), (one,), (one,))
    assert tangent.tolist() == [1.0, 2.0]


def test_operations_whose_results_nobody_reads_fail_and_have_their_effects():
    def checked(x):
        kf.linalg.cholesky(x)
        return x * 2.0

    fused, good = kf.fuse(checked), kf.asarray(np.eye(2))
    assert fused(good).tolist() == [[2.0, 0.0], [0.0, 2.0]]
    with pytest.raises(kf.InvalidValue):
        fused(kf.asarray(-np.eye(2)))
    powers = kf.fuse(lambda x, n: [kf.pow(x, n), x * 2][-1])
    assert powers(kf.asarray([2]), kf.asarray([1])).tolist() == [4]
    with pytest.raises(kf.InvalidValue, match="negative"):
        powers(kf.asarray([2]), kf.asarray([-1]))


def test_views_alone_are_made_anew_after_a_registration():
    fused, x = kf.fuse(lambda x: kf.permute_dims(x, (1, 0))), kf.asarray([[1.0, 2.0], [3.0, 4.0]])
    assert fused(x).tolist() == [[1.0, 3.0], [2.0, 4.0]]
    nines = kf.impl(
        "aten::permute", "CPU", lambda x, dims: kf.ones_like(x) * 9.0, override="shadow"
    )
    try:
        assert fused(x).tolist() == [[9.0, 9.0], [9.0, 9.0]]
    finally:
        nines.remove()
    assert fused(x).tolist() == [[1.0, 3.0], [2.0, 4.0]]


def test_examples_of_a_batch_reach_operators_without_a_rule():
    batch = kf.asarray(np.arange(12.0).reshape(3, 2, 2), copy=True)

    def norm(x):
        return kf.layer_norm(x, [2])

    expected = kf.vmap(norm)(batch)
    assert (kf.vmap(kf.fuse(norm))(batch) == expected).all()
    with kf.pipeline():
        found = kf.vmap(norm)(batch)
    assert (found == expected).all()


def test_what_a_destructor_calls_finds_no_lock():
    class Calls:
        def __init__(self, callback):
            self.callback = callback

        def __del__(self):
            self.callback()

    x = kf.ones(1)
    fused = kf.fuse(lambda x, one: x * 2.0)

    def work():
        fused(x, Calls(lambda: fused(x, 3)))
        fused.clear()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()


def test_numpy_arrays_come_back_under_layers_and_have_their_own_methods():
    def f(x):
        return {"one": kf.exp(x), "all": [x * 2.0, (x, 1)]}

    fused, x = kf.fuse(f), np.ones(2, "float32")
    for layer in (kf.no_grad(), kf.profile(), kf.autocast("float16")):
        with layer:
            found = fused(x)
        assert isinstance(found["one"], np.ndarray)
        assert isinstance(found["all"][0], np.ndarray)
        assert found["all"][1][0] is x
    counted = []
    ravelled = kf.fuse(lambda x: counted.append(1) or kf.exp(x.ravel("F").copy()))
    assert isinstance(ravelled(np.ones((2, 2))), np.ndarray)
    reading = kf.fuse(lambda x: x * 2.0 if float(kf.sum(x)) > 0.0 else x)
    for _ in range(2):
        assert isinstance(reading(x), np.ndarray)
    w = kf.ones(2)
    held = kf.fuse(lambda x: w)
    assert held(x) is w
    with kf.profile():
        assert held(x) is w


class Owner:
    def __init__(self):
        self.w = kf.ones(1)
        self.step = kf.fuse(self.scaled)

    def scaled(self, x):
        return x * self.w


def test_the_copy_of_a_method_s_owner_has_its_own():
    for other in (copy.deepcopy(Owner()), pickle.loads(pickle.dumps(Owner()))):
        other.w = kf.full((1,), 7.0)
        assert other.step(kf.ones(1)).tolist() == [7.0]


def test_the_decorator_takes_options_and_says_what_it_can_t_take():
    @kf.fuse(recordings=2)
    def double(x):
        return x * 2.0

    for size in (1, 2, 3, 4):
        assert double(kf.ones(size)).tolist() == [2.0] * size
    assert double.explain().splitlines()[0] == "2 recordings, 4 replays"
    assert str(inspect.signature(double)) == "(x)"
    assert "recordings" in str(inspect.signature(kf.fuse))
    with pytest.raises(kf.InvalidValue, match=r"recordings is 2\.5"):
        kf.fuse(double, recordings=2.5)
    with pytest.raises(kf.InvalidValue, match="put @staticmethod above @fuse"):
        kf.fuse(staticmethod(lambda x: x))
    with pytest.raises(TypeError, match="which can't be called"):
        kf.fuse(3)
    assert double(np.float64(2.0)) == 4.0
    assert "another library's array, or a number of NumPy's" in double.explain()
