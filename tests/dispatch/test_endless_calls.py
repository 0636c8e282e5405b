"""Calls that repeat without end: the error says what repeats, whichever limit comes first."""

import sys
import threading

import numpy as np
import pytest

import keyfold as kf


@pytest.fixture
def limit():
    """Sets Python's recursion limit until the test ends."""
    before = sys.getrecursionlimit()
    yield sys.setrecursionlimit
    sys.setrecursionlimit(before)


def forgetful(op, keyset, args, kwargs):
    """A layer that passes calls on with its own key still in the set."""
    return op.redispatch(keyset, *args, **kwargs)


def advice(op, key):
    return f'kf.redispatch("{op}", keyset.remove("{key}"), ...)'


@pytest.mark.parametrize("depth", [200, 500, 3000, 100_000])
def test_a_layer_that_keeps_its_key_is_told_so(d, word, limit, depth):
    d.define("ns::f(Tensor x) -> Tensor")
    d.impl("ns::f", "Tracer", lambda ks, x: d.redispatch("ns::f", ks, x), with_keyset=True)
    limit(depth)
    with pytest.raises(kf.RedispatchRecursion) as raised:
        d.call("ns::f", word("x", "CPU", "Tracer"))
    text = str(raised.value)
    assert isinstance(raised.value, RecursionError)
    assert "ns::f at Tracer runs inside itself" in text
    assert advice("ns::f", "Tracer") in text
    pythons = "ns::f: Python's recursion limit is reached:"
    engines = "ns::f: operator calls nest 1000 deep on this thread"
    # CPython 3.12 has a limit of its own for calls through C, which comes before the engine's.
    last = pythons if sys.version_info[:2] == (3, 12) else engines
    assert text.startswith(pythons if depth < 1000 else last) or depth == 3000
    assert raised.value.__cause__ is None or type(raised.value.__cause__) is RecursionError


def test_a_helper_between_kernel_and_call_changes_nothing(d, word):
    def helper(keyset, x, left):
        return helper(keyset, x, left - 1) if left else d.redispatch("ns::f", keyset, x)

    d.define("ns::f(Tensor x) -> Tensor")
    d.impl("ns::f", "Tracer", lambda ks, x: helper(ks, x, 5), with_keyset=True)
    with pytest.raises(kf.RedispatchRecursion, match="ns::f at Tracer runs inside itself"):
        d.call("ns::f", word("x", "CPU", "Tracer"))


def test_a_forgetful_fallback():
    handle = kf.fallback("Nested", forgetful)
    try:
        with kf.include_keys("Nested"), pytest.raises(kf.RedispatchRecursion) as raised:
            kf.ops.aten.exp(np.ones(2))
    finally:
        handle.remove()
    assert advice("aten::exp", "Nested") in str(raised.value)


def test_a_forgetful_fallback_below_native_layers():
    """The kernel gets its arguments from a native layer, and its error goes through that."""
    handle = kf.fallback("Nested", forgetful)
    x = kf.ones(2).requires_grad_()
    try:
        with kf.profile(), kf.include_keys("Nested"), pytest.raises(RecursionError) as raised:
            kf.ops.aten.exp(x)
    finally:
        handle.remove()
    assert type(raised.value) is kf.RedispatchRecursion
    assert advice("aten::exp", "Nested") in str(raised.value)


def test_two_operators_that_call_each_other(d, word):
    for name, other in [("ns::a", "ns::b"), ("ns::b", "ns::a")]:
        d.define(f"{name}(Tensor x) -> Tensor")
        d.impl(name, "CPU", lambda x, other=other: d.call(other, x))
    with pytest.raises(kf.RedispatchRecursion) as raised:
        d.call("ns::a", word("x"))
    text = str(raised.value)
    assert "ns::a at CPU, then ns::b at CPU" in text or "ns::b at CPU, then ns::a at CPU" in text
    assert "a kernel at CPU can't compute with its own operator" in text


def test_on_another_thread(d, word):
    d.define("ns::f(Tensor x) -> Tensor")
    d.impl("ns::f", "Tracer", lambda ks, x: d.redispatch("ns::f", ks, x), with_keyset=True)
    caught = []

    def run():
        try:
            d.call("ns::f", word("x", "CPU", "Tracer"))
        except RecursionError as error:
            caught.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert [type(error) for error in caught] == [kf.RedispatchRecursion]
    assert advice("ns::f", "Tracer") in str(caught[0])


def deep(n):
    return deep(n + 1)


def test_a_function_of_the_users_own_that_recurses_stays_what_it_is(d, word):
    d.define("ns::f(Tensor x) -> Tensor")
    d.impl("ns::f", "CPU", lambda x: deep(0))
    with pytest.raises(RecursionError) as raised:
        d.call("ns::f", word("x"))
    assert type(raised.value) is RecursionError


@pytest.mark.parametrize("levels", [2, 30])
def test_kernels_that_call_their_operator_for_parts_arent_blamed(d, word, levels):
    """The function `deep` fills the stack, not the calls around it."""
    d.define("ns::f(Tensor x, int left) -> Tensor")
    d.impl("ns::f", "CPU", lambda x, n: d.call("ns::f", x, n - 1) if n else deep(0))
    with pytest.raises(RecursionError) as raised:
        d.call("ns::f", word("x"), levels)
    assert type(raised.value) is RecursionError


def test_a_recursion_with_calls_beside_it_stays_what_it_is():
    def walk(n):
        kf.ops.aten.neg(np.ones(1))
        return walk(n + 1)

    with pytest.raises(RecursionError) as raised:
        walk(0)
    assert type(raised.value) is RecursionError


def test_an_exception_class_of_the_users_own_stays_what_it_is(d, word):
    class Mine(RecursionError):
        pass

    def kernel(x, n):
        if n == 0:
            raise Mine("enough")
        return d.call("ns::f", x, n - 1)

    d.define("ns::f(Tensor x, int left) -> Tensor")
    d.impl("ns::f", "CPU", kernel)
    with pytest.raises(Mine, match="enough"):
        d.call("ns::f", word("x"), 50)
