"""`kf.fuse` sees what a function reads and changes through objects, classes and containers."""

import collections
import dataclasses
import functools
import itertools
import random
import threading
import types

import numpy as np
import pytest

import keyfold as kf

pytestmark = pytest.mark.usefixtures("no_garbage")

SCALE = 2.0


def one():
    return kf.ones(1, dtype="float64")


def numbers_of(f, calls=3):
    """The results of calls with ones."""
    return [f(one()).tolist()[0] for _ in range(calls)]


def check(f, change, *, before, after):
    """Compare results, which are those of one recording before a change and of one after it."""
    fused = kf.fuse(f)
    assert numbers_of(fused) == [before] * 3
    assert fused.stats()["recorded"] == 1, fused.explain()
    change()
    assert numbers_of(f, 1) == [after]
    assert numbers_of(fused) == [after] * 3
    assert fused.stats() == {"recorded": 2, "replayed": 6, "in_pipeline": 0, "eager": 0}


def check_not_recorded(make, reason, values=(1.0, 2.0, 3.0)):
    """Compare calls of a function that keeps a state with calls of one that is fused."""
    fused = kf.fuse(make())
    assert numbers_of(make()) == list(values)
    assert numbers_of(fused) == list(values)
    assert fused.stats()["replayed"] == 0
    assert reason in fused.explain()


@pytest.fixture
def scale():
    """Sets the global variable SCALE; it is what it was after the test."""

    def change(value=5.0):
        global SCALE
        SCALE = value

    yield change
    change(2.0)


class Scaled:
    def forward(self, x):
        return x * SCALE

    def _scaled_by(self, x, more):
        return x * SCALE * more

    once = functools.partialmethod(_scaled_by, more=1.0)

    @classmethod
    def of_class(cls, x):
        return x * SCALE

    @functools.cached_property
    def cached(self):
        return None

    @property
    def value(self):
        return SCALE


class Inherits(Scaled):
    def forward(self, x):
        return super().forward(x)


class Made:
    def __init__(self):
        self.scale = SCALE

    def run(self, x):
        return x * self.scale


class Operators:
    def __rmul__(self, x):
        return x * SCALE

    def __getitem__(self, at):
        return SCALE


class Descriptor:
    def __get__(self, instance, owner=None):
        return SCALE


class HasDescriptor:
    value = Descriptor()


SCALED, OPERATORS, DESCRIBED = Scaled(), Operators(), HasDescriptor()
LAYERS = [Scaled().forward, {"nested": (Inherits(),)}]


def called_as_a_parameter(layer, x):
    return layer.forward(x)


@pytest.mark.parametrize(
    "f",
    [
        Inherits().forward,
        lambda x: Made().run(x),
        lambda x: SCALED.once(x),
        lambda x: Scaled.of_class(x),
        lambda x: x * SCALED.value,
        lambda x: kf.sum(x) * OPERATORS[0] * x,
        lambda x: x * DESCRIBED.value,
        lambda x: LAYERS[0](x),
        lambda x: LAYERS[1]["nested"][0].forward(x),
        functools.partial(called_as_a_parameter, Inherits()),
        functools.partial(lambda x, *, layer: layer.forward(x), layer=SCALED),
        lambda x, layer=SCALED: layer.forward(x),
        lambda x, *, layer=SCALED: layer.forward(x),
        kf.vmap(lambda x: SCALED.forward(x)),
        lambda x: functools.reduce(lambda a, _: a * SCALE, [x, x]),
    ],
)
def test_globals_that_are_read_through_objects_are_watched(f, scale):
    check(f, scale, before=2.0, after=5.0)


def test_a_name_that_is_defined_later_is_found():
    variables = {"__name__": "users"}
    exec(
        "def f(x):\n    try:\n        return x * LATER\n    except NameError:\n        return x\n",
        variables,
    )
    check(variables["f"], lambda: variables.update(LATER=3.0), before=1.0, after=3.0)


def test_a_builtin_that_a_global_hides_later_is_not_called():
    variables = {"__name__": "users"}
    exec("def f(x):\n    return x * float(len('ab'))\n", variables)
    check(variables["f"], lambda: variables.update(len=lambda text: 7.0), before=2.0, after=7.0)


def test_a_variable_that_is_assigned_later_is_found():
    def f(x):
        try:
            return x * late
        except NameError:
            return x

    fused = kf.fuse(f)
    assert numbers_of(fused) == [1.0] * 3
    late = 3.0
    assert numbers_of(fused) == [3.0] * 3


def test_code_and_defaults_of_functions_are_watched():
    def helper(x, factor=2.0, *, more=1.0):
        return x * factor * more

    def assign_code():
        helper.__code__ = (lambda x, factor=0.0, *, more=0.0: x * factor * more * 4.0).__code__

    f = lambda x: helper(x)  # noqa: E731
    check(f, assign_code, before=2.0, after=8.0)
    check(f, lambda: setattr(helper, "__defaults__", (3.0,)), before=8.0, after=12.0)
    check(f, lambda: helper.__kwdefaults__.update(more=2.0), before=12.0, after=24.0)


class Layer:
    mode = "class"

    def __init__(self, scale):
        self.scale = scale
        self.training = True
        self.layers = []

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x * self.scale if self.training else x

    def by_name(self, x):
        return x * getattr(self, "sc" + "ale")

    def optional(self, x):
        return x * self.bonus if hasattr(self, "bonus") else x

    def by_mode(self, x):
        return x if self.mode == "class" else x * 9.0


def nested(depth):
    layer = Layer(2.0)
    for _ in range(depth):
        outer = Layer(1.0)
        outer.layers.append(layer)
        layer = outer
    return layer


def innermost(layer):
    while layer.layers:
        layer = layer.layers[0]
    return layer


@pytest.mark.parametrize(
    ("change", "after"),
    [
        (lambda net: setattr(innermost(net), "scale", 5.0), 5.0),
        (lambda net: setattr(innermost(net), "training", False), 1.0),
        (lambda net: net.layers.append(Layer(3.0)), 6.0),
        (lambda net: net.layers.__setitem__(0, Layer(7.0)), 7.0),
        (lambda net: net.layers.clear(), 1.0),
    ],
)
def test_attributes_and_lists_of_nested_layers_are_watched(change, after):
    net = nested(3)
    check(net, lambda: change(net), before=2.0, after=after)


def test_attributes_by_computed_names_and_those_that_are_not_there_are_watched():
    layer = Layer(2.0)
    check(layer.by_name, lambda: setattr(layer, "scale", 3.0), before=2.0, after=3.0)
    check(layer.optional, lambda: setattr(layer, "bonus", 4.0), before=1.0, after=4.0)
    check(layer.by_mode, lambda: setattr(layer, "mode", "own"), before=1.0, after=9.0)
    other = Layer(2.0)
    try:
        check(other.by_mode, lambda: setattr(Layer, "mode", "other"), before=1.0, after=9.0)
    finally:
        Layer.mode = "class"


def test_a_method_that_is_replaced_is_called():
    class Replaced:
        def run(self, x):
            return x

        def __call__(self, x):
            return self.run(x)

    layer = Replaced()
    check(layer, lambda: setattr(Replaced, "run", lambda _, x: x * 2.0), before=1.0, after=2.0)
    check(layer, lambda: setattr(layer, "run", lambda x: x * 3.0), before=2.0, after=3.0)
    check(layer, lambda: setattr(Replaced, "__call__", lambda _, x: x * 4.0), before=3.0, after=4.0)


def test_slots_are_watched():
    @dataclasses.dataclass(slots=True)
    class Options:
        scale: float

    options = Options(2.0)
    check(
        lambda x: x * options.scale, lambda: setattr(options, "scale", 3.0), before=2.0, after=3.0
    )


def test_dicts_sets_and_namespaces_are_watched():
    options, kinds, space = {"scale": 2.0}, {"a"}, types.SimpleNamespace(scale=2.0)
    queue = collections.deque([2.0])
    check(lambda x: x * options["scale"], lambda: options.update(scale=3.0), before=2.0, after=3.0)
    check(lambda x: x * options.get("b", 1.0), lambda: options.update(b=4.0), before=1.0, after=4.0)
    check(lambda x: x * float(len(kinds)), lambda: kinds.add("b"), before=1.0, after=2.0)
    check(lambda x: x * queue[0], lambda: queue.appendleft(3.0), before=2.0, after=3.0)
    check(lambda x: x * space.scale, lambda: setattr(space, "scale", 3.0), before=2.0, after=3.0)


def test_variables_of_users_modules_are_watched():
    module = types.ModuleType("users_module")
    exec("SCALE = 2.0\ndef f(x):\n    return x * SCALE\n", module.__dict__)
    check(lambda x: module.f(x), lambda: setattr(module, "SCALE", 3.0), before=2.0, after=3.0)
    module.f = lambda x: x * 4.0
    check(lambda x: module.f(x), lambda: setattr(module, "f", lambda x: x), before=4.0, after=1.0)


def test_weights_that_are_replaced_while_old_ones_are_held():
    class Net:
        pass

    net = Net()
    net.weight = one() * 2.0
    f = lambda x: x * net.weight  # noqa: E731
    fused = kf.fuse(f)
    assert numbers_of(fused, 1) == [2.0]

    def with_weight(function, weight):
        old, net.weight = net.weight, weight
        try:
            return kf.sum(function(one() * 3.0))
        finally:
            net.weight = old

    gradients = [kf.grad(functools.partial(with_weight, g))(one()).tolist() for g in (f, fused)]
    assert gradients == [[3.0]] * 2
    history = [net.weight]
    net.weight = net.weight * 5.0
    assert numbers_of(fused) == [10.0] * 3
    assert history[0].tolist() == [2.0]


class Counts:
    def __init__(self):
        self.count = 0

    def __call__(self, x):
        self.count += 1
        return x * self.count

    def forward(self, x):
        return self(x)


class CountsByName:
    count = 0

    def forward(self, x):
        setattr(self, "count", self.count + 1)  # noqa: B010 - its name isn't in an instruction
        return x * self.count


class InheritsCounts(Counts):
    def forward(self, x):
        return super().forward(x)


class HasCounts:
    def __init__(self):
        self.layer, self.layers = Counts(), [Counts()]

    def first(self, x):
        return self.layer(x)

    def each(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize(
    "make",
    [
        lambda: HasCounts().first,
        lambda: HasCounts().each,
        lambda: InheritsCounts().forward,
        lambda: functools.partial(lambda layer, x: layer(x), Counts()),
        lambda: functools.partial(lambda x, layer: layer(x), layer=Counts()),
    ],
)
def test_counters_of_reached_objects_count_each_call(make):
    check_not_recorded(make, "it assigns an attribute, count")


def counts_in(container, count):
    def f(x):
        return x * count(container)

    return f


def appended(items):
    items.append(1)
    return len(items)


def by_default():
    def f(x, items=[]):  # noqa: B006 - it is what is tested
        items.append(1)
        return x * len(items)

    return f


def in_numpy_array():
    count = np.zeros(1)

    def f(x):
        count[0] += 1
        return x * count

    return f


def in_dict():
    counts = {"calls": [0, {}]}

    def f(x):
        counts["calls"][1].setdefault(len(counts["calls"][1]))
        return x * len(counts["calls"][1])

    return f


def in_set():
    seen = set()

    def f(x):
        seen.add(len(seen))
        return x * len(seen)

    return f


def in_iterator():
    numbers = itertools.count(1)
    return lambda x: x * next(numbers)


def by_bound_method():
    items = []
    append = items.append

    def f(x):
        append(1)
        return x * len(items)

    return f


def in_generator():
    numbers = (number for number in (1, 2, 3))
    return lambda x: x * next(numbers)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: counts_in([], appended), "it changes a list"),
        (lambda: counts_in(collections.deque(), appended), "it changes a deque"),
        (by_default, "it changes a list"),
        (by_bound_method, "it changes a list"),
        (in_numpy_array, "it writes to a NumPy array"),
        (in_dict, "it changes a dict"),
        (in_set, "it changes a set"),
        (lambda: CountsByName().forward, "it sets attributes by functions"),
        (in_iterator, "it reads an iterator"),
        (in_generator, "it reads an iterator"),
    ],
)
def test_a_function_that_changes_what_it_reads_runs_as_it_is(make, reason):
    check_not_recorded(make, reason)


def test_generators_of_random_numbers_are_asked_at_each_call():
    for drawn in (random.Random(5).random, np.random.default_rng(5).random):
        fused = kf.fuse(lambda x, drawn=drawn: x * float(drawn()))
        assert len(set(numbers_of(fused))) == 3
        assert fused.stats()["replayed"] == 0


class Momentum:
    def __init__(self):
        self.mean = kf.zeros(1, dtype="float64")

    def __call__(self, x):
        self.mean = self.mean * 0.5 + x
        return self.mean * 1.0


class Network:
    def __init__(self):
        self.norm = Momentum()

    def forward(self, x):
        return self.norm(x)


def test_a_state_of_tensors_stays_usable():
    net = Network()
    fused = kf.fuse(net.forward)
    assert numbers_of(fused) == [1.0, 1.5, 1.75]
    assert numbers_of(net.forward, 1) == [1.875]

    cache = [[], []]

    def step(x):
        cache[0].append(x * 2.0)
        return kf.sum(kf.concat(cache[0])) * x

    assert numbers_of(kf.fuse(step)) == [2.0, 4.0, 6.0]
    assert [kept.tolist() for kept in cache[0]] == [[2.0]] * 3


@pytest.mark.parametrize("options", [{"lr": 0.1}, {"lr": 0.1, "amsgrad": True}])
def test_steps_of_optimizers_are_taken(options):
    def trained(wrap):
        parameter = kf.asarray([1.0, 2.0]).requires_grad_()
        optimizer = kf.optim.Adam([parameter], **options)
        step, zero_grad = wrap(optimizer.step), wrap(lambda: optimizer.zero_grad())
        for _ in range(3):
            zero_grad()
            kf.sum(parameter * parameter).backward()
            step()
        return parameter.detach().tolist()

    assert trained(kf.fuse) == trained(lambda f: f)


def test_a_new_object_s_attributes_are_no_effect():
    @dataclasses.dataclass
    class Options:
        scale: float

        def __post_init__(self):
            self.double = self.scale * 2.0

    class Parameter:
        def __init__(self, value):
            super().__init__()
            self.value = value

    fused = kf.fuse(lambda x: x * Options(1.0).double + Parameter(x).value)
    assert numbers_of(fused) == [3.0] * 3
    assert fused.stats()["replayed"] == 3, fused.explain()


def test_unusual_objects_do_no_harm():
    class Reached:
        pass

    class Guarded:
        def __getattribute__(self, name):
            raise RuntimeError(f"it was asked for {name}")

    asked_for = []

    class Asked:
        def __getattr__(self, name):
            asked_for.append(name)
            raise AttributeError(name)

        def __eq__(self, other):
            asked_for.append("==")
            return False

        def __hash__(self):
            asked_for.append("hash")
            return 1

        @property
        def scale(self):
            asked_for.append("scale")
            return 1.0

    itself, guarded, asked = Reached(), Guarded(), Asked()
    itself.__wrapped__ = itself
    cyclic = [itself]
    cyclic.append(cyclic)

    @kf.fuse
    def f(x, other):
        unused = (guarded, asked, cyclic)
        return x * 2.0 if unused else x * other.scale

    results = []
    thread = threading.Thread(target=lambda: results.append(f(one(), itself).tolist()), daemon=True)
    thread.start()
    thread.join(60)
    assert results == [[2.0]]
    assert f(one(), itself).tolist() == [2.0]
    assert f.stats()["replayed"] == 2
    assert asked_for == []


def test_a_function_that_reads_too_much_runs_as_it_is():
    numbers = list(range(200_000))
    fused = kf.fuse(lambda x: x * numbers[2])
    assert numbers_of(fused) == [2.0] * 3
    assert "it reads more than 100000 objects" in fused.explain()
