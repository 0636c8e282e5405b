"""`kf.fuse` watches the names that a function reads, and runs one that keeps a state as it is."""

import asyncio
import copy
import functools
import pickle

import pytest

import keyfold as kf
from tests.helpers.programs import same
from tests.layers.test_fuse import numbers

pytestmark = pytest.mark.usefixtures("no_garbage")

SCALE = 2.0


def scaled(x):
    return x * SCALE


class Scaled:
    def __call__(self, x):
        return x * SCALE

    def method(self, x):
        return x * SCALE

    @staticmethod
    def static(x):
        return x * SCALE


class Holder:
    @kf.fuse
    def method(self, x):
        return self.other(x) + 1.0

    def other(self, x):
        return x * SCALE


scaled_fused = kf.fuse(scaled)
scaled_object = Scaled()


@kf.fuse
def scaled_pickled(x):
    return x * SCALE


scaled_gradient = kf.value_and_grad(lambda x: kf.sum(x * SCALE))


@pytest.mark.parametrize(
    "fused",
    [
        kf.fuse(lambda x: scaled(x) + 1.0),
        kf.fuse(lambda x: scaled_fused(x) + 1.0),
        kf.fuse(lambda x: scaled_object(x) + 1.0),
        kf.fuse(lambda x: scaled_object.method(x) + 1.0),
        kf.fuse(lambda x: Scaled.static(x) + 1.0),
        kf.fuse(functools.partial(lambda one, x: x * SCALE + one, 1.0)),
        Holder().method,
        kf.fuse(lambda x: scaled(x) + scaled_gradient(x)[1] * 0.0 + 1.0),
        kf.fuse(lambda x: x * scaled_gradient(x)[1] + 1.0),
    ],
)
def test_globals_that_called_functions_read_are_watched(fused):
    global SCALE
    x = kf.asarray([1.0, 2.0])
    try:
        assert fused(x).tolist() == [3.0, 5.0]
        SCALE = 3.0
        assert fused(x).tolist() == [4.0, 7.0]
    finally:
        SCALE = 2.0


class State:
    def __init__(self):
        self.total = kf.zeros(2)

    def add(self, x):
        self.total = self.total + x
        return self.total * 1.0


TOTAL = kf.zeros(2)


def add_to_global(x):
    global TOTAL
    TOTAL = TOTAL + x
    return TOTAL * 1.0


def adder_to_variable():
    total = kf.zeros(2)

    def add(x):
        nonlocal total
        total = total + x
        return total * 1.0

    return add


def adder_to_object():
    state = State()
    return lambda x: state.add(x)


@pytest.mark.parametrize("make", [kf.grad, kf.value_and_grad, kf.vmap, kf.jacrev, kf.hessian])
def test_what_transforms_return_is_recorded(make):
    def f(x):
        return kf.sum(kf.tanh(x) * x)

    transformed, x = make(f), numbers(3, 3)
    x = x if make is kf.vmap else x[0]
    fused = kf.fuse(transformed)
    for _ in range(2):
        found, expected = fused(x), transformed(x)
        both = (
            [(found, expected)]
            if make is not kf.value_and_grad
            else zip(found, expected, strict=True)
        )
        assert all(same(a, b) for a, b in both)
    assert fused.stats()["replayed"] == 2


@pytest.mark.parametrize(
    ("f", "reason"),
    [
        (add_to_global, "it assigns the variable TOTAL, which isn't its own"),
        (adder_to_variable(), "it assigns the variable total, which isn't its own"),
        (State().add, "it assigns an attribute, total"),
        (adder_to_object(), "it assigns an attribute, total"),
    ],
)
def test_a_function_that_keeps_a_state_runs_as_it_is(f, reason):
    fused = kf.fuse(f)
    x = kf.asarray([1.0, 2.0])
    assert [fused(x).tolist() for _ in range(3)] == [[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]]
    assert fused.explain().splitlines()[1] == f"not recorded: {reason}"


def test_changes_of_lists_and_dicts_among_the_arguments_are_made():
    def f(x, kept):
        kept["y"] = [x * 2.0]
        return kept["y"][0] + 1.0

    fused = kf.fuse(f)
    for _ in range(2):
        kept = {}
        assert fused(kf.asarray([1.0]), kept).tolist() == [3.0]
        assert kept["y"][0].tolist() == [2.0]
    assert "it changes a list or dict among its arguments" in fused.explain()


class Cache:
    def __init__(self):
        self.items = {"total": kf.zeros(1)}

    def add(self, x):
        self.items["total"] = self.items["total"] + x
        return self.items["total"] * 1.0


def test_a_function_that_keeps_tensors_in_lists_and_dicts_runs_as_it_is():
    kept, state, cache = [], {"total": kf.zeros(1)}, Cache()

    def keeps(x):
        kept.append(x + 1.0)
        return kept[-1] * 2.0

    def adds(x):
        state["total"] = state["total"] + x
        return state["total"] * 1.0

    fused = [kf.fuse(keeps), kf.fuse(adds), kf.fuse(cache.add), kf.fuse(lambda x: cache.add(x))]
    x = kf.asarray([1.0])
    found = [[f(x).tolist() for f in fused] for _ in range(2)]
    assert found == [[[4.0], [1.0], [1.0], [2.0]], [[4.0], [2.0], [3.0], [4.0]]]
    assert [one.tolist() for one in kept] == [[2.0], [2.0]]
    for f, kind in zip(fused, ["list", "dict", "dict", "dict"], strict=True):
        assert f.explain().splitlines()[1] == f"not recorded: it changes a {kind}"

    @kf.fuse
    def fails(x):
        kept.append(x)
        raise kf.InvalidValue("as it should")

    with pytest.raises(kf.InvalidValue, match="as it should"):
        fails(x)
    assert [one is x for one in kept] == [False, False, True]


def test_gradients_that_backward_keeps_and_seeds_are_those_of_each_call():
    weight = numbers(3)
    weight.requires_grad_()
    x = numbers(3)

    def step(x):
        kf.sum(kf.tanh(x) * weight).backward()
        return x * 1.0

    fused = kf.fuse(step)
    for _ in range(2):
        weight.grad = None
        fused(x)
        assert same(weight.grad, kf.tanh(x))
    assert fused.explain().splitlines()[1] == "not recorded: it calls backward"

    @kf.fuse
    def seeded(x):
        kf.manual_seed(1)
        return x + kf.rand(3, dtype="float64")

    assert same(seeded(x), seeded(x))


def test_a_property_that_counts_runs_as_it_is():
    class Counter:
        count = 0

        @property
        def next(self):
            self.count += 1
            return float(self.count)

    counter = Counter()
    fused = kf.fuse(lambda x: x * counter.next)
    x = kf.asarray([1.0])
    assert [fused(x).tolist() for _ in range(3)] == [[1.0], [2.0], [3.0]]


def test_copies_and_pickles_are_those_of_a_function():
    scaled_fused(kf.asarray([1.0]))
    assert pickle.loads(pickle.dumps(scaled_pickled)) is scaled_pickled
    assert copy.deepcopy([scaled_fused])[0] is scaled_fused


def test_a_coroutine_function_is_called_as_it_is():
    @kf.fuse
    async def double(x):
        return x * 2.0

    x = kf.asarray([1.0])
    assert [asyncio.run(double(x)).tolist() for _ in range(2)] == [[2.0]] * 2
    assert "it is a coroutine function" in double.explain()
