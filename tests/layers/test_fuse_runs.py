"""Calls of fused functions that aren't recorded: they are as without `fuse`, and run once."""

import collections
import signal
import types

import numpy as np
import pytest

import keyfold as kf


def both(make, *args):
    """What a function gives and what a fused one does, each made anew."""
    results = []
    for wrap in (lambda f: f, kf.fuse):
        try:
            results.append(make(wrap, *args))
        except kf.Error as error:
            results.append(type(error))
    return results


def test_writes_by_a_numpy_array_come_after_the_reads_before_them():
    def constant(wrap):
        memory = np.ones(2)
        w = kf.asarray(memory, copy=False)

        def f(x):
            y = x * w
            memory[:] = 5.0
            return y

        return wrap(f)(kf.ones(2)).tolist()

    def argument(wrap):
        memory = np.ones(2)

        def f(x):
            y = x * 2.0
            memory[:] = 5.0
            return y

        return wrap(f)(memory).tolist()

    assert both(constant) == [[1.0, 1.0]] * 2
    assert both(argument) == [[2.0, 2.0]] * 2


def test_a_write_to_what_was_saved_is_noticed_through_another_argument():
    def run(wrap):
        a = kf.asarray([1.0, 2.0])
        p = kf.ones(2, dtype=a.dtype).requires_grad_()

        def f(x, y):
            x *= 1.0
            out = kf.sum(p * x)
            y *= 10.0
            float(y[0])
            return out

        wrap(f)(a, a[:]).backward()
        return p.grad.tolist()

    assert both(run) == [kf.GradientError] * 2


def test_an_argument_that_the_function_holds_as_well():
    def run(wrap):
        w = kf.ones(2)

        def f(x):
            y = w * 3.0
            x += 1.0
            return float(kf.sum(y)) + (1.0 if x is w else 0.0)

        fused = wrap(f)
        return [fused(w) for _ in range(3)], w.tolist()

    def of_a_list(wrap):
        items = [kf.ones(1)]

        def f(x):
            x.append(x[0] * 2.0)
            return items[-1] * 1.0

        return wrap(f)(items).tolist(), len(items)

    first, second = both(run)
    assert first == second
    assert both(of_a_list) == [([2.0], 2)] * 2


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there are no timers")
def test_an_interrupt_that_the_function_catches_loses_no_read():
    def stop(*_):
        raise KeyboardInterrupt

    n = kf.full((900, 900), 1e-3)

    def f(x):
        z = kf.exp(n @ n) @ n @ n @ n @ n
        w = x * 7.0
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            z[0, 0].item()
        except KeyboardInterrupt:
            pass
        signal.setitimer(signal.ITIMER_REAL, 0)
        x += 1.0
        return w

    old = signal.signal(signal.SIGALRM, stop)
    try:
        assert kf.fuse(f)(kf.ones(2)).tolist() == [7.0, 7.0]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


def test_functions_run_once_whatever_they_change():
    module, holder, calls = types.ModuleType("m"), type("Holder", (), {"n": 0}), []
    module.n = 0
    w = kf.ones(2)

    def of_a_class(x):
        calls.append("class")
        setattr(holder, "n", holder.n + 1)  # noqa: B010 - not seen in the code
        return x * 2.0

    def of_a_module(x):
        calls.append("module")
        setattr(module, "n", module.n + 1)  # noqa: B010
        return x * 2.0

    def of_held_memory(x):
        calls.append("memory")
        x += 1.0
        return x * w

    for f in (of_a_class, of_a_module, of_held_memory):
        kf.fuse(f)(kf.ones(2))
        kf.fuse(of_held_memory)(w[:])
    assert collections.Counter(calls) == {"class": 1, "module": 1, "memory": 4}
    assert (holder.n, module.n, w.tolist()) == (1, 1, [4.0, 4.0])


def test_an_exit_of_the_program_comes_after_what_was_called_before():
    kept = []

    def f(x):
        kept.append((x, 1))
        x += 1.0
        raise SystemExit

    x = kf.ones(2)
    with pytest.raises(SystemExit):
        kf.fuse(f)(x)
    assert x.tolist() == kept[0][0].tolist() == [2.0, 2.0]


def test_long_arguments_are_not_compared_one_by_one():
    fused, x = kf.fuse(lambda x, items: x * items[3]), kf.ones(1)
    for _ in range(2):
        assert fused(x, [float(at) for at in range(100_000)]).tolist() == [3.0]
    assert "too long" in fused.explain()
    tensors = [kf.ones(1) for _ in range(500)]
    many = kf.fuse(lambda items: items[0] + items[-1])
    for _ in range(2):
        assert many(tensors).tolist() == [2.0]
    assert many.stats()["replayed"] == 2
    assert many([tensors[0]] * 500).tolist() == [2.0]
    assert many.stats()["recorded"] == 2


def test_what_differs_at_each_call_isn_t_recorded_for_ever():
    class Scaled:
        scale = 1.0

    scaled, x = Scaled(), kf.ones(1)
    fused = kf.fuse(lambda x: x * scaled.scale)
    for at in range(200):
        scaled.scale = at + 0.5
        assert fused(x).tolist() == [at + 0.5]
    assert fused.stats()["recorded"] < 50


class Held(collections.namedtuple("HeldBase", "a b")):
    __slots__ = ()

    def __new__(cls, a):
        return super().__new__(cls, a, a)


def test_arguments_and_results_that_can_t_be_put_together():
    class Lazy:
        @property
        def __class__(self):
            raise RuntimeError("unbound")

    class Box:
        def __init__(self, held):
            self.held = held

    def cyclic(x):
        items = [x]
        items.append(items)
        return items

    def deep(x):
        for _ in range(3000):
            x = [x]
        return x

    x, array = kf.ones(2), np.ones(2)
    assert kf.fuse(lambda x, lazy: x * 2.0)(x, Lazy()).tolist() == [2.0, 2.0]
    assert kf.fuse(lambda p: p.a * 1.0)(Held(x)).tolist() == [1.0, 1.0]
    assert type(kf.fuse(lambda x: Held(x))(x)) is Held
    result = kf.fuse(cyclic)(x)
    assert result[1] is result
    assert type(kf.fuse(deep)(x)) is list
    assert isinstance(kf.fuse(lambda x: Box(x))(array).held, np.ndarray)
    assert [type(one) for one in kf.fuse(lambda x: (x * 1.0 for _ in "1"))(array)] == [np.ndarray]


def test_a_pipeline_that_checks_may_be_inside():
    def f(x):
        y = x * 2.0
        with kf.pipeline(check="eager"):
            return kf.exp(y)

    fused, x = kf.fuse(f), kf.ones(2)
    assert fused(x).tolist() == f(x).tolist()
    assert "it opens a pipeline that checks" in fused.explain()


def test_a_placeholder_has_the_keys_of_its_array():
    seen = []
    kf.fuse(lambda x: seen.append(str(x.keys)) or x * 1.0)(kf.ones(2))
    assert seen == [str(kf.ones(2).keys)]
