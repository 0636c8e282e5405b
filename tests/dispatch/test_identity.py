"""A Python kernel receives the caller's own objects, also below native layers."""

import numpy as np
import pytest

import keyfold as kf


class Recorder:
    """A Python CPU kernel that keeps what it was given."""

    def __init__(self, lib, schema):
        self.seen = None
        lib.define(schema)
        self.op = kf.get_op(f"{lib.ns}::{schema.split('(')[0]}")
        lib.impl(self.op, self, "CPU")

    def __call__(self, *args, **kwargs):
        self.seen = (args, kwargs)
        return args[0]


@pytest.fixture
def recorder(lib):
    return Recorder(
        lib, 'f(Tensor x, Tensor? y=None, Tensor[] zs=[], float k=1.5, *, str mode="m") -> Tensor'
    )


def objects():
    return [
        np.ones((2, 3)),
        np.ones((2, 3))[::-1, ::2],
        np.zeros((0, 4)),
        np.array(2.0),
        kf.ops.aten.ones([2]),
    ]


@pytest.mark.parametrize("at", range(5))
def test_directly(recorder, at):
    x = objects()[at]
    assert recorder.op(x) is x
    assert recorder.seen[0][0] is x


@pytest.mark.parametrize("at", range(5))
def test_below_a_native_layer(recorder, native_layer, at):
    native_layer("Tracer")
    x, y, z = objects()[at], np.ones(1), np.ones(2)
    zs = [z, x]
    with kf.include_keys("Tracer"):
        assert kf.explain(recorder.op, x).key is kf.DispatchKey.Tracer
        result = recorder.op(x, y, zs, mode="other")
    assert result is x
    (got_x, got_y, got_zs, got_k), kwargs = recorder.seen
    assert got_x is x
    assert got_y is y
    assert got_zs[0] is z
    assert got_zs[1] is x
    assert got_k == 1.5
    assert kwargs == {"mode": "other"}


def test_below_two_native_layers(recorder, native_layer):
    native_layer("Tracer")
    native_layer("Profiler")
    x = np.ones(3)
    with kf.include_keys("Tracer", "Profiler"):
        assert recorder.op(x) is x
    assert recorder.seen[0][0] is x


def test_below_a_python_and_a_native_layer(recorder, lib, native_layer):
    native_layer("Profiler")
    name = recorder.op.name

    def tracer(keyset, x, *args, mode):
        return kf.redispatch(name, keyset.remove("Tracer"), x, *args, mode=mode)

    lib.impl(recorder.op, tracer, "Tracer", with_keyset=True)
    x = np.ones(3)
    with kf.include_keys("Tracer", "Profiler"):
        assert recorder.op(x) is x
    assert recorder.seen[0][0] is x


def test_an_array_class_of_the_users_own(recorder, native_layer, word):
    native_layer("Tracer")
    x = word("x", "CPU", "Tracer")
    assert recorder.op(x) is x
    assert recorder.seen[0][0] is x


def test_a_layer_that_replaces_a_tensor_gives_the_callers_library(recorder, native_layer):
    native_layer("Tracer", replace=True)
    x = np.arange(3.0)
    with kf.include_keys("Tracer"):
        result = recorder.op(x)
    got = recorder.seen[0][0]
    assert got is not x
    assert type(got) is np.ndarray
    assert np.array_equal(got, x)
    assert type(result) is np.ndarray
    assert not np.shares_memory(got, x)


def test_a_replaced_keyfold_tensor_stays_one(recorder, native_layer):
    native_layer("Tracer", replace=True)
    x = kf.ops.aten.ones([3])
    with kf.include_keys("Tracer"):
        recorder.op(x)
    got = recorder.seen[0][0]
    assert got is not x
    assert type(got) is kf.Tensor


def test_none_and_numbers_pass_a_native_layer(recorder, native_layer):
    native_layer("Tracer")
    with kf.include_keys("Tracer"):
        recorder.op(np.ones(1), None, [], 2)
    assert recorder.seen[0][1:] == (None, [], 2)


def test_a_native_kernel_below_a_python_layer_sees_the_memory(testing, lib):
    op = testing.identity.default
    seen = []

    def layer(keyset, x, y):
        seen.append((x, y))
        return op.redispatch(keyset.remove("Tracer"), x, y)

    handle = kf.impl(op, "Tracer", layer, with_keyset=True)
    x, y = np.ones(2), np.zeros(2)
    try:
        with kf.include_keys("Tracer"):
            result = op(x, y)
    finally:
        handle.remove()
    assert seen[0][0] is x
    assert seen[0][1] is y
    assert result is x, "what a native kernel returns unchanged is the caller's object again"


def test_a_native_identity_returns_the_object_itself(testing):
    x, y = np.ones(2), np.zeros(2)
    assert testing.identity(x, y) is x
    assert testing.identity_nogil(x, y) is x
    fresh = testing.fresh(x, y)
    assert fresh is not x
    assert np.array_equal(fresh, x)
    t = kf.ops.aten.ones([2])
    assert testing.identity(t, t) is t


def test_a_view_isnt_taken_for_its_base():
    x = np.ones((2, 3))
    result = kf.ops.aten.transpose(x, 0, 1)
    assert result is not x
    assert result.shape == (3, 2)
    assert np.shares_memory(result, x)


def test_an_exception_passes_native_layers_as_it_is(recorder, native_layer, lib):
    native_layer("Tracer")
    error = KeyError("mine")

    def fails(*args, **kwargs):
        raise error

    lib.impl(recorder.op, fails, "CPU", override="shadow")
    with kf.include_keys("Tracer"), pytest.raises(KeyError) as raised:
        recorder.op(np.ones(1))
    assert raised.value is error
    assert error.__notes__ == [f"keyfold: raised in {recorder.op.name}: Tracer > CPU"]


def test_a_python_kernel_below_a_native_layer_is_checked(recorder, native_layer, lib):
    native_layer("Tracer")
    lib.impl(recorder.op, lambda *args, **kwargs: "no tensor", "CPU", override="shadow")
    with kf.include_keys("Tracer"), pytest.raises(kf.KernelReturnError, match="no tensor"):
        recorder.op(np.ones(1))


def test_an_argument_handed_back_follows_the_results_library():
    kf._core._register_testing_kernels()
    x, t = np.ones(3), kf.ones(3)
    for operator in (kf.ops.keyfold_testing.identity, kf.ops.keyfold_testing.clone):
        assert operator(x, x) is x
        assert operator(t, t) is t
        assert type(operator(x, t)) is kf.Tensor, "NumPy together with keyfold.Tensor gives Tensor"
        assert type(operator(np.float64(3), x)) is np.ndarray
