"""Fused functions and what they read otherwise than as arguments: arrays, objects, themselves."""

import functools
import types

import numpy as np
import pytest

import keyfold as kf


def compared(make, calls):
    """Run a function and a fused one, each made anew, and compare; returns the fused one."""
    plain, fused = make(lambda f: f), make(kf.fuse)
    for arguments in calls:
        expected, found = (f(*own) for f, own in ((plain, arguments), (fused, arguments)))
        assert kf.asarray(found).tolist() == kf.asarray(expected).tolist()
    return fused


def test_an_operation_reads_an_array_as_it_was_when_it_was_called():
    def own_buffer(wrap):
        @wrap
        def f(x):
            b = np.zeros(3)
            rows = []
            for i in range(3):
                b.fill(i)
                rows.append(x * b + kf.sum(kf.asarray(b)))
            return kf.stack(rows)

        return f

    def mean(wrap):
        state = types.SimpleNamespace(mean=np.zeros(3))

        @wrap
        def f(x):
            y = x - state.mean
            state.mean[:] = state.mean + 1.0
            return y

        return f

    calls = [(kf.ones(3) * number,) for number in range(4)]
    fused = compared(own_buffer, calls)
    assert "not recorded: it writes to an array that an operation has read" in fused.explain()
    assert fused.stats()["recorded"] == 0
    fused = compared(mean, calls)
    assert fused.stats()["recorded"] == 0


def test_an_array_that_is_written_before_it_is_read_is_recorded():
    def make(wrap):
        @wrap
        def f(x):
            b = np.empty(3)
            b[:] = 2.0
            return x * b

        return f

    assert compared(make, [(kf.ones(3) * number,) for number in range(4)]).stats()["replayed"] == 4


def test_replays_read_arrays_as_they_are():
    weight = np.ones(3)
    own = kf.asarray([1.0, 2.0, 3.0], copy=True)
    own.numpy()  # somebody else may write to it

    @kf.fuse
    def f(x):
        return x * weight + own

    for number in range(4):
        weight[:] = number
        assert f(kf.ones(3)).tolist() == [number + 1.0, number + 2.0, number + 3.0]
    assert f.stats() == {"recorded": 1, "replayed": 4, "in_pipeline": 0, "eager": 0}


def test_a_function_that_writes_to_an_array_is_never_recorded():
    def make(wrap):
        mask = np.zeros(4)

        @wrap
        def f(x, n):
            mask.fill(0.0)
            mask[:n] = 1.0
            return x * mask

        return f

    fused = compared(make, [(kf.ones(4), n) for n in (2, 2, 2, 3, 3, 3, 2)])
    assert fused.stats()["recorded"] == 0
    assert fused.explain().splitlines()[1:] == ["not recorded: it writes to a NumPy array"]
    fused.clear()
    assert fused(kf.ones(4), 2).tolist() == [1.0, 1.0, 0.0, 0.0]


def test_a_recording_is_not_for_arguments_that_the_function_reads_otherwise():
    none = kf.asarray([0.0, 0.0])
    options = {"scale": kf.asarray([3.0, 3.0])}

    def masked(wrap):
        return wrap(lambda x, mask=none: x * 10.0 if mask is none else x * mask)

    def given(wrap):
        return wrap(lambda x, own: x * (10.0 if own is options else own["scale"]))

    x = kf.ones(2)
    fused = compared(masked, [(x, kf.ones(2)), (x, none), (x,), (x, kf.ones(2) * 2.0)])
    assert (fused.stats()["recorded"], fused.stats()["replayed"]) == (2, 3)
    other = {"scale": kf.asarray([4.0, 4.0])}
    fused = compared(given, [(x, other), (x, options), (x, other), (x, options)])
    assert fused.stats()["replayed"] == 2


def test_a_list_that_the_function_reads_is_returned_itself():
    def make(wrap):
        metrics = {"calls": [0]}

        @wrap
        def f(x):
            return x * 2.0, metrics["calls"]

        return f

    for wrap in (lambda f: f, kf.fuse):
        f = make(wrap)
        for calls in range(3):
            _, found = f(kf.ones(2))
            assert found == [calls]
            found[0] += 1


def test_attributes_that_functions_set_are_set_at_each_call():
    class Model:
        pass

    for name in ("setattr", "object.__setattr__"):
        setter = setattr if name == "setattr" else object.__setattr__

        @kf.fuse
        def f(x, model, setter=setter):
            if setter is setattr:
                setattr(model, "mode", "eval")  # noqa: B010 - what is tested
            else:
                object.__setattr__(model, "mode", "eval")
            return x * 2.0

        model = Model()
        for _ in range(3):
            model.mode = "train"
            assert f(kf.ones(2), model).tolist() == [2.0, 2.0]
            assert model.mode == "eval"


def test_a_method_of_singledispatchmethod_reads_its_object():
    class Scaled:
        def __init__(self):
            self.scale = 2.0

        @functools.singledispatchmethod
        def apply(self, kind, x):
            raise TypeError(kind)

        @apply.register
        def _(self, kind: int, x):
            return x * self.scale

    scaled = Scaled()
    fused = kf.fuse(scaled.apply)
    assert fused(1, kf.ones(2)).tolist() == [2.0, 2.0]
    scaled.scale = 4.0
    assert fused(1, kf.ones(2)).tolist() == [4.0, 4.0]


def test_numpys_generators_that_are_only_reached_do_not_prevent_a_recording():
    class Layer:
        def __init__(self, scale):
            self.scale = scale if scale is not None else np.random.default_rng(0).uniform()

        def __call__(self, x):
            return x * self.scale if isinstance(self, Layer) else x

    fused = kf.fuse(Layer(2.0))
    for _ in range(3):
        assert fused(kf.ones(2)).tolist() == [2.0, 2.0]
    assert fused.stats()["replayed"] == 3, fused.explain()


def test_a_gradient_error_is_raised_once():
    weight, kept = kf.ones(2).requires_grad_(), kf.ones(2)

    @kf.fuse
    def f(out, x):
        kept.fill_(2.0)
        out += x * weight
        return out

    with pytest.raises(kf.GradientError):
        f(kf.asarray([1.0, 1.0], copy=True), kf.ones(2))
    assert f(kf.asarray([1.0, 1.0], copy=True), kf.ones(2)).tolist() == [2.0, 2.0]


def test_an_array_that_an_argument_shares_is_read_after_the_write_to_the_argument():
    def make(wrap):
        kept = kf.asarray([1.0, 2.0], copy=True)
        kept.numpy()

        @wrap
        def f(x):
            before = kept * 1.0
            x += 1.0
            return before + kept * x

        return lambda _: f(kept.reshape(2))

    fused = make(kf.fuse)
    for expected in ([5.0, 11.0], [11.0, 19.0], [19.0, 29.0]):
        assert make(lambda f: f)(0).tolist() == [5.0, 11.0]
        assert fused(0).tolist() == expected
