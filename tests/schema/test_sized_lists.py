"""`int[2]` given one value: every kernel gets the list, whichever way the call comes."""

import pytest

import keyfold as kf

SCHEMA = (
    "sized(Tensor x, int[2] n=3, float[2] f=0.5, *, bool[3] b=True, int[2]? o=None, "
    "Scalar[2] s=1) -> Tensor"
)
DEFAULTS = ([3, 3], [0.5, 0.5], [True, True, True], None, [1, 1])
GIVEN = ([4, 4], [1.5, 1.5], [False, False, False], [5, 5], [2.5, 2.5])


@pytest.fixture
def op(lib, ns, seen):
    """An operator whose CPU kernel notes what it got."""

    def kernel(x, n, f, *, b, o, s):
        seen.append((n, f, b, o, s))
        return x

    lib.define(SCHEMA)
    lib.impl("sized", kernel, "CPU")
    return getattr(kf.ops, ns).sized


def every_way(op, x):
    """Ways of calling with one value for each list."""
    one = {"n": 4, "f": 1.5, "b": False, "o": 5, "s": 2.5}
    keys = kf.DispatchKeySet("CPU")
    yield "direct", lambda: op(x, **one)
    yield "positional", lambda: op(x, 4, 1.5, b=False, o=5, s=2.5)
    yield "overload", lambda: op.default(x, **one)
    yield "redispatch", lambda: kf.redispatch(op.default, keys, x, **one)
    yield "method", lambda: op.default.redispatch(keys, x, **one)
    yield "call_direct", lambda: op.default.call_direct("CPU", x, **one)
    yield "handle", lambda: kf.get_kernel(op.default, "CPU")(x, **one)
    yield "vmap", lambda: kf.vmap(lambda x: op(x, **one))(kf.stack([x]))

    def profiled():
        with kf.profile():
            return op(x, **one)

    yield "profile", profiled
    yield "trace", lambda: kf.trace(lambda x: op(x, **one), x)
    yield "grad", lambda: op(kf.asarray(x, copy=True).requires_grad_(), **one)


def test_one_value_is_the_list_on_every_way(op, seen):
    x = kf.zeros(2)
    for way, call in every_way(op, x):
        seen.clear()
        call()
        assert seen, way
        for got in seen:
            assert got == GIVEN, way
            assert all(type(part) is list for part in got), way


def test_defaults_are_lists(op, seen):
    op(kf.zeros(2))
    assert seen == [DEFAULTS]


def test_lists_and_none_stay_what_they_are(op, seen):
    given = [1, 2]
    op(kf.zeros(2), given, [1.0, 2.0], b=[True, False, True], o=None, s=(1, 2.5))
    ((n, f, b, o, s),) = seen
    assert n is given
    assert (f, b, o, s) == ([1.0, 2.0], [True, False, True], None, (1, 2.5))


def test_all_by_position(lib, ns, seen):
    lib.define("plain(Tensor x, int[2] n) -> Tensor")
    lib.impl("plain", lambda x, n: seen.append(n) or x, "CPU")
    op = getattr(kf.ops, ns).plain
    op(kf.zeros(1), 7)
    op(kf.zeros(1), (7, 8))
    assert seen == [[7, 7], (7, 8)]


def test_a_layer_gets_the_list_too(lib, ns, seen):
    lib.define("layered(Tensor x, int[3] n) -> Tensor")
    lib.impl("layered", lambda x, n: seen.append(("CPU", n)) or x, "CPU")

    def layer(keys, x, n):
        seen.append(("Profiler", n))
        return kf.redispatch(f"{ns}::layered", keys.remove("Profiler"), x, 6)

    lib.impl("layered", layer, "Profiler", with_keyset=True)
    with kf.include_keys("Profiler"):
        getattr(kf.ops, ns).layered(kf.zeros(1), 5)
    assert seen == [("Profiler", [5, 5, 5]), ("CPU", [6, 6, 6])]


def test_what_isnt_a_value_of_the_list_is_refused(op, raises_saying):
    for wrong in ("text", 1.5, [1, 2, 3], [1, "2"]):
        with raises_saying(kf.BindingError, "sized", "'n'", "int[2]"):
            op(kf.zeros(1), wrong)


def test_a_list_of_any_size_takes_no_lone_value(lib, ns, raises_saying):
    lib.define("unsized(Tensor x, int[] n) -> Tensor")
    lib.impl("unsized", lambda x, n: x, "CPU")
    with raises_saying(kf.BindingError, "unsized", "'n'", "int[]"):
        getattr(kf.ops, ns).unsized(kf.zeros(1), 3)
