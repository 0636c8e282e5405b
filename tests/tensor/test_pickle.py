"""Pickling, copying, and what survives them."""

import copy
import gc
import pickle
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import keyfold as kf

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
DTYPES = ["bool", "int8", "uint64", "float16", "float32", "float64", "complex64", "complex128"]


def same(a, b):
    assert (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)
    assert (a.requires_grad, a.readonly) == (b.requires_grad, b.readonly)
    assert a.tolist() == b.tolist()


@pytest.mark.parametrize("protocol", PROTOCOLS)
@given(
    a=hnp.arrays(
        st.sampled_from(DTYPES),
        hnp.array_shapes(min_dims=0, min_side=0, max_side=4),
        elements={"allow_nan": False},
    )
)
def test_a_tensor_comes_back_as_it_was(protocol, a):
    t = kf.from_numpy(a).flip()
    u = pickle.loads(pickle.dumps(t, protocol=protocol))
    same(t, u)
    assert u.is_contiguous()
    if u.size:
        u.fill_(False)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_isnt_plain_comes_back_too(protocol):
    fixed = np.arange(3.0)
    fixed.flags.writeable = False
    for t in [
        kf.full((2, 3), 1.5, dtype="bfloat16"),
        kf.ones(3).requires_grad_(),
        kf.from_numpy(fixed),
        kf.zeros((0, 3)),
        kf.asarray(7),
    ]:
        same(t, pickle.loads(pickle.dumps(t, protocol=protocol)))
    meta = pickle.loads(pickle.dumps(kf.empty((2, 3), device="meta"), protocol=protocol))
    assert (meta.shape, meta.device) == ((2, 3), "meta")


def test_out_of_band_nothing_is_copied():
    t = kf.zeros(100_000)
    buffers = []
    data = pickle.dumps(t, protocol=5, buffer_callback=buffers.append)
    assert len(data) < 200
    assert len(buffers) == 1
    u = pickle.loads(data, buffers=buffers)
    assert u.data_ptr() == t.data_ptr()
    u[0] = 5
    assert t[0].item() == 5


def test_out_of_band_the_memory_lives_on():
    t = kf.arange(1000)
    buffers = []
    data = pickle.dumps(t, protocol=5, buffer_callback=buffers.append)
    u = pickle.loads(data, buffers=buffers)
    del t, buffers
    gc.collect()
    assert u.tolist() == list(range(1000))


def test_buffers_from_elsewhere_may_lie_anywhere():
    t = kf.arange(3)
    buffers = []
    data = pickle.dumps(t, protocol=5, buffer_callback=buffers.append)
    shifted = memoryview(bytearray(1) + bytearray(buffers[0].raw()))[1:]
    assert pickle.loads(data, buffers=[shifted]).tolist() == [0, 1, 2]
    with pytest.raises(kf.ShapeError, match=r"8 bytes.*24"):
        pickle.loads(data, buffers=[bytes(8)])


def test_pickling_balances_references():
    a = np.zeros(3)
    t = kf.from_numpy(a)
    before = sys.getrefcount(a), sys.getrefcount(t)
    for _ in range(20):
        pickle.loads(pickle.dumps(t, protocol=5))
        copy.deepcopy(t)
    gc.collect()
    assert (sys.getrefcount(a), sys.getrefcount(t)) == before


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy])
def test_copies_have_memory_of_their_own(how):
    t = kf.arange(3)
    u = how(t)
    same(t, u)
    u[0] = 7
    assert t[0].item() == 0
    assert how(kf.ones(2).requires_grad_()).requires_grad
    assert how(kf.empty(2, device="meta")).device == "meta"


def test_a_deep_copy_copies_each_tensor_once():
    t = kf.arange(3)
    first, second = copy.deepcopy([t, t])
    assert first is second
    assert first is not t


@pytest.mark.parametrize(
    "value",
    [kf.float32, kf.Device("cuda:1"), kf.DispatchKeySet("CPU", "Autograd"), kf.DispatchKey.CPU],
)
def test_dtypes_devices_and_keys_are_values(value):
    for protocol in PROTOCOLS:
        assert pickle.loads(pickle.dumps(value, protocol=protocol)) == value
    assert copy.deepcopy(value) == value


@pytest.mark.parametrize("name", [n for n in kf.__all__ if isinstance(getattr(kf, n), type)])
def test_public_classes_pickle_by_their_public_names(name):
    found = pickle.loads(pickle.dumps(getattr(kf, name)))
    assert found is getattr(kf, name)


def test_errors_and_functions_pickle_by_their_public_names():
    error = pickle.loads(pickle.dumps(kf.MissingKernel("no kernel")))
    assert (type(error), error.args) == (kf.MissingKernel, ("no kernel",))
    for function in (kf.impl, kf.sum, kf.redispatch, kf.include_keys):
        assert b"keyfold._" not in pickle.dumps(function)
        assert pickle.loads(pickle.dumps(function)) is function
