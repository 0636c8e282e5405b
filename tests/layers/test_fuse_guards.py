"""`kf.fuse` runs a function anew where what it reads was added, replaced or made otherwise."""

import ctypes
import functools
import operator
import random
import sys
import time
import types

import numpy as np
import pytest

import keyfold as kf
from keyfold._layers._watched import watched

pytestmark = pytest.mark.usefixtures("no_garbage")


class Object:
    pass


class Slotted:
    __slots__ = ("s",)


class Cell(ctypes.Structure):
    _fields_ = [("s", ctypes.c_double)]


def an_object(**attributes):
    made = Object()
    vars(made).update(attributes)
    return made


def a_class(**attributes):
    return type("Made", (), attributes)


def gradient():
    w = kf.ones(1).requires_grad_()
    return lambda x: x if w.grad is None else x * w.grad, lambda: kf.sum(w * 3.0).backward()


def gradient_kept():
    w = kf.ones(1).requires_grad_()
    kf.sum(w * 3.0).backward()
    kept = [w.grad]

    def change():
        kept.append(w.grad)
        w.grad = None
        kf.sum(w * 7.0).backward()

    return lambda x: x * w.grad, change


def later(holder):
    """An attribute that isn't there at first."""
    return lambda x: x * getattr(holder, "s", 2.0), lambda: setattr(holder, "s", 5.0)


def later_in_a_slot():
    return later(Slotted())


def later_of_a_base():
    base = a_class()
    made = type("Made", (base,), {})()
    return lambda x: x * getattr(made, "s", 2.0), lambda: setattr(base, "s", 5.0)


def later_hidden():
    base = a_class(s=2.0)
    kind = type("Made", (base,), {})
    made = kind()
    return lambda x: x * made.s, lambda: setattr(kind, "s", 5.0)


def later_tried():
    made = an_object(a=1)

    def f(x):
        try:
            return x * made.s
        except AttributeError:
            return x

    return f, lambda: setattr(made, "s", 5.0)


def later_tried_of_many():
    made = an_object(a=1)

    def f(x):
        x = x * (0.0 if made is None else 1.0)
        try:
            return x * made.s
        except:  # noqa: E722
            return x
        return made.a, made.b, made.c, made.d, made.e, made.f, made.g, made.h, made.i

    return f, lambda: setattr(made, "s", 5.0)


def later_of_a_metaclass():
    metaclass = type("Meta", (type,), {})
    kind = metaclass("Made", (), {})
    return lambda x: x * getattr(kind, "s", 2.0), lambda: setattr(metaclass, "s", 5.0)


def later_of_a_module():
    module = types.ModuleType("made")
    change = lambda: setattr(module, "__getattr__", lambda _: 5.0)  # noqa: E731
    return lambda x: x * getattr(module, "s", 2.0), change


def hidden():
    class Base:
        def s(self):
            return 2.0

    class Made(Base):
        def s(self):
            return super().s()

    made = Made()
    return lambda x: x * made.s(), lambda: setattr(Base, "s", lambda _: 5.0)


def truth():
    kind = a_class()
    made = kind()
    return lambda x: x if made else x * 5.0, lambda: setattr(kind, "__bool__", lambda _: False)


def length():
    kind = a_class()
    made = kind()
    return lambda x: x if made else x * 5.0, lambda: setattr(kind, "__len__", lambda _: 0)


def replaced_property():
    kind = a_class(s=property(lambda _: 2.0))
    made = kind()
    return lambda x: x * made.s, lambda: setattr(kind, "s", property(lambda _: 5.0))


def replaced_class_method():
    kind = a_class(s=classmethod(lambda _: 2.0))
    return lambda x: x * kind.s(), lambda: setattr(kind, "s", classmethod(lambda _: 5.0))


def replaced_partial_method():
    kind = a_class(s=functools.partialmethod(lambda _, value: value, 2.0))
    made = kind()
    other = functools.partialmethod(lambda _, value: value, 5.0)
    return lambda x: x * made.s(), lambda: setattr(kind, "s", other)


def pattern():
    made = an_object(s=2.0)

    def f(x):
        match made:
            case Object(s=value):
                return x * value

    return f, lambda: setattr(made, "s", 5.0)


def pattern_by_place():
    kind = a_class(__match_args__=("s",))
    made = kind()
    made.s = 2.0

    def f(x):
        match made:
            case kind(value):
                return x * value

    return f, lambda: setattr(made, "s", 5.0)


def other_class():
    one, other = a_class(s=lambda _: 2.0), a_class(s=lambda _: 5.0)
    made = one()
    return lambda x: x * made.s(), lambda: setattr(made, "__class__", other)


def other_dict():
    made = an_object(s=2.0)
    return lambda x: x * made.s, lambda: setattr(made, "__dict__", {"s": 5.0})


def dispatched():
    state = an_object(s=2.0)
    f = functools.singledispatch(lambda x: x)
    f.register(kf.Tensor)(lambda x: x * state.s)
    return lambda x: f(x), lambda: setattr(state, "s", 5.0)


def registered():
    f = functools.singledispatch(lambda x: x)
    f.register(kf.Tensor)(lambda x: x * 2.0)
    return lambda x: f(x), lambda: f.register(kf.Tensor)(lambda x: x * 5.0)


def module_attribute():
    module, state = types.ModuleType("made"), {"s": 2.0}
    module.__getattr__ = lambda name: state[name]
    return lambda x: x * module.s, lambda: state.update(s=5.0)


def structure():
    made = Cell(2.0)
    return lambda x: x * made.s, lambda: setattr(made, "s", 5.0)


def getter():
    made, get = an_object(s=2.0), operator.attrgetter("s")
    return lambda x: x * get(made), lambda: setattr(made, "s", 5.0)


def caller():
    made, call = an_object(s=lambda a, b: a * b * 2.0), operator.methodcaller("s", 1.0, b=1.0)
    return lambda x: x * call(made), lambda: setattr(made, "s", lambda a, b: 5.0)


def computed_slot():
    made, names = Slotted(), ["s"]
    made.s = 2.0
    return lambda x: x * getattr(made, names[0]), lambda: setattr(made, "s", 5.0)


def computed_of_a_class():
    kind, names = a_class(s=2.0), ["s"]
    return lambda x: x * getattr(kind, names[0]), lambda: setattr(kind, "s", 5.0)


CASES = [
    gradient, gradient_kept, later_in_a_slot, later_of_a_base, later_hidden, later_tried,
    later_tried_of_many, later_of_a_metaclass, later_of_a_module, hidden, truth,
    length, replaced_property, replaced_class_method,
    replaced_partial_method, pattern, pattern_by_place, other_class, other_dict, dispatched,
    registered, module_attribute, structure, getter, caller, computed_slot, computed_of_a_class,
    lambda: later(Object()), lambda: later(a_class()), lambda: later(types.ModuleType("made")),
    lambda: later(lambda x: x),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_changes_is_read_anew(case):
    f, change = case()
    fused, x = kf.fuse(f), kf.ones(1)
    assert fused(x).tolist() == f(x).tolist()
    before = f(x).tolist()
    change()
    assert fused(x).tolist() == f(x).tolist() != before


@pytest.mark.parametrize("name", ["of_package", "of_module"])
def test_modules_of_relative_imports_are_watched(name, tmp_path, monkeypatch):
    package = tmp_path / "made_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "cfg.py").write_text("s = 2.0\n")
    (package / "of_package.py").write_text(
        "def f(x):\n    from . import cfg\n    return x * cfg.s\n"
    )
    (package / "of_module.py").write_text("def f(x):\n    from .cfg import s\n    return x * s\n")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        __import__("made_package.cfg")
        __import__(f"made_package.{name}")
        fused, x = kf.fuse(sys.modules[f"made_package.{name}"].f), kf.ones(1)
        assert fused(x).tolist() == [2.0]
        sys.modules["made_package.cfg"].s = 5.0
        assert fused(x).tolist() == [5.0]
    finally:
        for one in [one for one in sys.modules if one.partition(".")[0] == "made_package"]:
            del sys.modules[one]


def imported(x):
    import random as made

    return x * made.random()


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x * random.random(),
        lambda x: x * random.uniform(0.0, 1.0),
        lambda x: x * float(np.random.rand()),  # noqa: NPY002
        imported,
    ],
)
def test_functions_of_modules_that_draw_random_numbers_run_at_each_call(f):
    fused, x = kf.fuse(f), kf.ones(1, dtype=kf.float64)
    assert len({fused(x).item() for _ in range(5)}) == 5
    assert "which draws random numbers" in fused.explain()


def test_names_as_of_functions_that_draw_random_numbers_are_no_reason():
    made = an_object(gamma=2.0, beta=1.0)
    fused = kf.fuse(lambda x: x * made.gamma + made.beta * float(np.pi > 3))
    assert fused(kf.ones(1)).tolist() == [3.0]
    assert fused.stats()["recorded"] == 1


def test_a_large_container_is_refused_at_once():
    many = [0] * 5_000_000
    start = time.perf_counter()
    reads = watched(lambda x: x * many[3], [])
    assert reads.reason == "it reads more than 100000 objects"
    # Copying it takes about 20 ms.
    assert time.perf_counter() - start < 0.015


def test_large_numpy_arrays_are_no_reason_unless_they_may_be_written_to():
    array = np.ones((17 << 20) // 8)

    def writes(x):
        array[0] += 1.0
        return x * array[0]

    assert watched(lambda x: x * array, []).reason is None
    reason = "it reads NumPy arrays of more than 16 MiB that it may write to"
    assert watched(writes, []).reason == reason
    assert watched(lambda x: np.add(array, 1.0, out=array), []).reason == reason


def test_what_is_reached_without_the_arguments_is_known():
    w, v, items, array = kf.ones(1), kf.ones(1), [1.0], np.ones(1)
    held, given = an_object(w=w), an_object(v=v)
    reached = watched(lambda one, x: x * held.w * one.v * items[0] * array, [given]).reached
    assert {id(w), id(held), id(items), id(array)} <= reached.keys()
    assert reached.keys().isdisjoint({id(v), id(given)})


def test_what_an_argument_s_code_names_of_what_is_reached_is_known():
    w = kf.ones(1)
    held = an_object(w=w)
    given = a_class(__call__=lambda _, one, x: one.w * x)()
    assert id(w) in watched(lambda one, x: one(held, x), [given]).reached


def test_guards_of_plain_functions_are_few():
    scale, made = 2.0, an_object(s=2.0)

    def f(x):
        y = kf.exp(x * scale)
        return y + made.s

    reads = watched(f, [kf.ones(1)])
    assert reads.reason is None
    assert len(reads.guards) <= 16


def test_users_code_is_not_run():
    ran = []

    class Loud:
        def __getattribute__(self, name):
            ran.append(name)
            return object.__getattribute__(self, name)

        def __bool__(self):
            ran.append("__bool__")
            return True

        __class__ = property(lambda self: ran.append("__class__"))

    made = Loud()
    reads = watched(lambda x: x * made.s if hasattr(made, "s") else x, [])
    assert ran == []
    assert not any(holder is made for holder, _, _ in reads.guards)
