"""Redispatch, call_direct, running layers, and recursion that is stopped."""

import sys
import threading

import numpy as np
import pytest

import keyfold as kf
from keyfold import DispatchKeySet


@pytest.fixture
def f(d, word):
    """`ns::f` with kernels that name themselves at several keys."""
    d.define("ns::f(Tensor x) -> Tensor")
    for key in ["CPU", "CUDA", "AutogradCPU", "Tracer", "Sparse"]:
        d.impl("ns::f", key, lambda x, key=key: word(key))
    return d.get_op("ns::f")


@pytest.mark.parametrize(
    ("keys", "chosen"),
    [
        (["CPU"], "CPU"),
        (["CPU", "CUDA"], "CUDA"),
        (["CPU", "Autograd"], "AutogradCPU"),
        (["CUDA", "Autograd"], "CUDA"),
        (["CPU", "CUDA", "Autograd"], "CUDA"),
        (["CPU", "Tracer", "Autograd"], "Tracer"),
        (["CPU", "Profiler", "Autocast"], "CPU"),
        (["CPU", "Sparse", "Profiler"], "Sparse"),
        (["Tracer"], "Tracer"),
    ],
)
def test_the_set_is_taken_as_given(f, word, keys, chosen):
    assert f.redispatch(DispatchKeySet(*keys), word("x")).text == chosen


def test_includes_and_excludes_dont_touch_a_given_set(f, word):
    with kf.include_keys("Tracer"), kf.exclude_keys("CPU"):
        assert f.redispatch("CPU", word("x")).text == "CPU"
        assert kf.redispatch(f, DispatchKeySet("CPU"), word("x")).text == "CPU"


def test_the_arguments_own_keys_dont_count(f, word):
    assert f.redispatch("CPU", word("x", "CUDA", "Tracer")).text == "CPU"


@pytest.mark.parametrize("key", ["Vmap", "Nested", "Quantized"])
def test_a_representation_is_never_masked(f, word, key, raises_saying):
    with raises_saying(NotImplementedError, "ns::f", f"{key}CPU"):
        f.redispatch(DispatchKeySet("CPU", key), word("x"))


def test_a_backend_is_never_masked(f, word, raises_saying):
    with raises_saying(NotImplementedError, "ns::f", "no kernel registered for Meta", "CPU, CUDA"):
        f.redispatch(DispatchKeySet("CPU", "Meta"), word("x"))


def test_a_fallthrough_is_masked_in_a_given_set(f, d, word):
    d.impl("ns::f", "Profiler", kf.fallthrough)
    assert f.redispatch(DispatchKeySet("CPU", "Profiler"), word("x")).text == "CPU"


def test_an_empty_set_is_an_error_of_its_own(f, word, raises_saying):
    with raises_saying(ValueError, "ns::f", "empty keyset") as raised:
        f.redispatch(DispatchKeySet(), word("x"))
    assert isinstance(raised.value, kf.EmptyKeySetError)
    assert f(word("x")).text == "CPU"


def test_redispatch_through_every_door(lib, ns, word):
    lib.define("f(Tensor x, int n=1) -> Tensor")
    lib.impl("f", lambda x, n: word(f"cpu{n}"), "CPU")
    name, packet = f"{ns}::f", getattr(kf.ops, ns).f
    x = word("x", "CUDA")
    for op in [name, packet, packet.default, kf.get_op(name)]:
        assert kf.redispatch(op, DispatchKeySet("CPU"), x, n=3).text == "cpu3"
        assert kf.redispatch(op, "CPU", x).text == "cpu1"
    assert packet.default.redispatch(kf.DispatchKey.CPU, x, 2).text == "cpu2"
    assert packet.redispatch("CPU", x, 2).text == "cpu2"


def test_redispatch_by_name_resolves_overloads(lib, ns, word):
    lib.define("f(Tensor x) -> Tensor")
    lib.define("f.two(Tensor x, int n) -> Tensor")
    lib.impl("f", lambda x: word("one"), "CPU")
    lib.impl("f.two", lambda x, n: word("two"), "CPU")
    assert kf.redispatch(f"{ns}::f", "CPU", word("x")).text == "one"
    assert kf.redispatch(f"{ns}::f", "CPU", word("x"), 1).text == "two"
    assert kf.redispatch(getattr(kf.ops, ns).f, "CPU", word("x"), 1).text == "two"
    assert kf.redispatch(f"{ns}::f.two", "CPU", word("x"), 1).text == "two"


def test_redispatch_checks_its_own_arguments():
    with pytest.raises(TypeError, match=r"redispatch\(\)"):
        kf.redispatch("aten::neg")
    with pytest.raises(TypeError, match="operator"):
        kf.redispatch(3, "CPU", np.ones(1))
    with pytest.raises(TypeError, match="takes the key set before"):
        kf.redispatch("aten::neg", 3, np.ones(1))
    with pytest.raises(kf.UnknownOperator, match="aten::neg"):
        kf.redispatch("aten::negg", "CPU", np.ones(1))
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'self'"):
        kf.redispatch("aten::neg", "CPU")


def test_redispatch_loses_no_keys(d, word):
    """The kernel gets the call's set, masked modes included."""
    seen = []
    d.define("f(Tensor x) -> Tensor")

    @d.impl("f", "Autograd", with_keyset=True)
    def autograd(keyset, x):
        seen.append(keyset)
        return d.redispatch("f", keyset.remove("Autograd"), x)

    @d.impl("f", "CPU", with_keyset=True)
    def cpu(keyset, x):
        seen.append(keyset)
        return x

    d.call("f", word("x", "CPU", "Autograd", "Profiler"))
    assert seen == [
        DispatchKeySet("CPU", "Autograd", "Profiler"),
        DispatchKeySet("CPU", "Profiler"),
    ]


def test_a_running_layer_is_excluded_for_the_calls_inside_it(d, word):
    log = []
    for name in ["f", "g"]:
        d.define(f"{name}(Tensor x) -> Tensor")
        d.impl(name, "CPU", lambda x: x)

    @d.impl("f", "Tracer")
    def f_traced(x):
        log.append("f")
        d.call("g", x)
        return d.call("f", x)

    @d.impl("g", "Tracer")
    def g_traced(x):
        log.append("g")
        return d.call("g", x)

    x = word("x", "CPU", "Tracer")
    assert d.call("f", x) is x
    assert log == ["f"], "neither g's tracer nor f's again"
    d.call("g", x)
    assert log == ["f", "g"], "outside it is back"


def test_a_redispatch_continues_below_a_running_layer(d, word):
    log = []
    d.define("f(Tensor x) -> Tensor")
    for key in ["Tracer", "Autograd"]:

        @d.impl("f", key, with_keyset=True)
        def layer(keyset, x, key=key):
            log.append(key)
            return d.redispatch("f", keyset.remove(key), x)

    d.impl("f", "CPU", lambda x: x)
    d.call("f", word("x", "CPU", "Autograd", "Tracer"))
    assert log == ["Tracer", "Autograd"]


def test_a_layers_exclusion_ends_with_an_exception(d, word):
    d.define("f(Tensor x) -> Tensor")
    d.impl("f", "CPU", lambda x: word("cpu"))
    calls = []

    @d.impl("f", "Tracer")
    def tracer(x):
        calls.append(1)
        raise KeyError("mine")

    for _ in range(2):
        with pytest.raises(KeyError):
            d.call("f", word("x", "CPU", "Tracer"))
    assert len(calls) == 2


def test_a_redispatch_inside_stays_in_its_dispatcher(d, word):
    """By the bare name, too: the call runs in the isolated dispatcher."""
    d.define("ns::only_here(Tensor x) -> Tensor")
    d.impl("ns::only_here", "CPU", lambda x: word("cpu"))

    @d.impl("ns::only_here", "Tracer", with_keyset=True)
    def tracer(keyset, x):
        return kf.redispatch("ns::only_here", keyset.remove("Tracer"), x)

    assert d.call("ns::only_here", word("x", "CPU", "Tracer")).text == "cpu"


def test_a_fallbacks_redispatch_stays_in_its_dispatcher(d, word):
    d.define("ns::only_here(Tensor x) -> Tensor")
    d.impl("ns::only_here", "CPU", lambda x: word("cpu"))
    d.fallback(
        "Tracer",
        lambda op, keyset, args, kwargs: kf.redispatch(op, keyset.remove("Tracer"), *args),
    )
    assert d.call("ns::only_here", word("x", "CPU", "Tracer")).text == "cpu"


def test_call_direct_runs_one_keys_kernel(f, d, word):
    x = word("x", "CPU", "Tracer")
    assert f.call_direct("CPU", x).text == "CPU"
    assert f.call_direct("AutogradCPU", x).text == "AutogradCPU"
    assert f.call_direct("CUDA", x).text == "CUDA", "the key need not be in the set"
    assert d.call_direct("ns::f", kf.DispatchKey.Tracer, x).text == "Tracer"
    assert d.ops.ns.f.call_direct("CPU", x).text == "CPU"


def test_call_direct_of_a_functionality_uses_the_calls_backend(f, word, raises_saying):
    assert f.call_direct("Autograd", word("x", "CPU")).text == "AutogradCPU"
    with raises_saying(NotImplementedError, "ns::f", "AutogradCUDA"):
        f.call_direct("Autograd", word("x", "CUDA"))


def test_call_direct_gives_the_keyset_or_the_computed_one(d, word):
    seen = []
    d.define("f(Tensor x) -> Tensor")
    d.impl("f", "CPU", lambda keyset, x: seen.append(keyset) or x, with_keyset=True)
    d.call_direct("f", "CPU", word("x", "CPU", "Tracer"))
    d.call_direct("f", "CPU", word("x"), keyset=DispatchKeySet("CUDA", "CPU"))
    d.call_direct("f", "CPU", word("x"), keyset="Autograd")
    with kf.include_keys("Profiler"):
        d.call_direct("f", "CPU", word("x"))
    assert seen == [
        DispatchKeySet("CPU", "Tracer"),
        DispatchKeySet("CUDA", "CPU"),
        DispatchKeySet("Autograd"),
        DispatchKeySet("CPU", "Profiler"),
    ]


def test_call_direct_fails_where_there_is_no_kernel(f, word, raises_saying):
    for key in ["Meta", "Profiler", "AutogradCUDA"]:
        with raises_saying(NotImplementedError, "ns::f", key, "call_direct"):
            f.call_direct(key, word("x"))


def test_call_direct_of_an_alias(f, word, raises_saying):
    with raises_saying(ValueError, "CompositeImplicitAutograd", "alias"):
        f.call_direct("CompositeImplicitAutograd", word("x"))


def test_call_direct_of_the_module(lib, ns, word):
    lib.define("f(Tensor x) -> Tensor")
    lib.impl("f", lambda x: word("cpu"), "CPU")
    assert kf.call_direct(f"{ns}::f", "CPU", word("x", "CUDA")).text == "cpu"


@pytest.fixture
def endless(d):
    """An operator whose layer calls itself with its own key still in the set."""
    d.define("ns::endless(Tensor x) -> Tensor")
    d.impl("ns::endless", "CPU", lambda x: x)
    op = d.get_op("ns::endless")

    @d.impl("ns::endless", "Tracer", with_keyset=True)
    def forgets_to_mask(keyset, x):
        return op.redispatch(keyset, x)

    return op


@pytest.mark.parametrize("limit", [200, 1000, 100_000, 1_000_000])
def test_endless_redispatch_is_a_recursion_error(endless, word, limit):
    old = sys.getrecursionlimit()
    sys.setrecursionlimit(limit)
    try:
        with pytest.raises(RecursionError):
            endless(word("x", "CPU", "Tracer"))
    finally:
        sys.setrecursionlimit(old)
    x = word("x")
    assert endless(x) is x, "the engine works on"


def test_the_engines_recursion_error_names_operator_and_path(endless, word, raises_saying):
    old = sys.getrecursionlimit()
    sys.setrecursionlimit(1_000_000)
    try:
        with raises_saying(RecursionError, "ns::endless", "Tracer") as raised:
            endless(word("x", "CPU", "Tracer"))
    finally:
        sys.setrecursionlimit(old)
    assert isinstance(raised.value, kf.RedispatchRecursion)


def test_endless_calls_of_two_operators(d, word):
    for name, other in [("ns::a", "ns::b"), ("ns::b", "ns::a")]:
        d.define(f"{name}(Tensor x) -> Tensor")
        d.impl(name, "CPU", lambda x, other=other: d.call(other, x))
    with pytest.raises(RecursionError):
        d.call("ns::a", word("x"))


def test_recursion_is_stopped_on_a_thread_with_a_small_stack(endless, word):
    """For every recursion limit: a thread's stack may be far smaller than the main one's."""
    old_limit, old_size = sys.getrecursionlimit(), threading.stack_size(1 << 20)
    sys.setrecursionlimit(1_000_000)
    caught = []

    def run():
        try:
            endless(word("x", "CPU", "Tracer"))
        except RecursionError as error:
            caught.append(error)

    try:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    finally:
        sys.setrecursionlimit(old_limit)
        threading.stack_size(old_size)
    assert len(caught) == 1


def test_deep_but_finite_redispatch_works(d, word):
    d.define("f(Tensor x, int n) -> Tensor")
    d.impl("f", "CPU", lambda x, n: x if n == 0 else d.call("f", x, n - 1))
    x = word("x")
    assert d.call("f", x, 60) is x
