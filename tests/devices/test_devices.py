"""Devices: random state, memory, copies, and what each error says."""

import pickle

import numpy as np
import pytest

import keyfold as kf


def test_a_random_state_is_plain_data_that_knows_its_device(raises_saying):
    kf.manual_seed(5)
    kf.rand(8)
    state = kf.random.get_state()
    assert state == kf.random.RandomState("cpu", 5, 4)
    assert state == kf.random.get_state(device=kf.Device("cpu"))
    again = pickle.loads(pickle.dumps(state))
    first = kf.rand(3).tolist()
    kf.random.set_state(again)
    assert kf.rand(3).tolist() == first
    kf.random.set_state(again, device="cpu")
    assert kf.rand(3).tolist() == first
    with raises_saying(kf.DeviceError, "set_state", "cpu", "meta"):
        kf.random.set_state(again, device="meta")
    with raises_saying(kf.BindingError, "get_state()", "tuple"):
        kf.random.set_state((5, 4))
    with raises_saying(kf.InvalidValue, "'offset'"):
        kf.random.set_state(again._replace(offset=-1))


@pytest.mark.parametrize("name", ["npu:1", "NPU:1", "Npu:1"])
def test_names_are_read_in_any_case(name):
    class Two:
        device_count = 2

    handle = kf.register_backend("NPU", Two())
    try:
        assert handle.device_type == "npu"
        x = kf.asarray([1.0]).to(name)
        assert (str(x.device), kf.Device(name)) == ("npu:1", x.device)
        assert kf.asarray([1.0], device=name).device == name
        assert kf.random.get_state(name).device == "npu:1"
        assert kf.memory_stats(name)["live"] > 0
        kf.synchronize(name)
    finally:
        handle.remove()
    assert kf.ones(2, device="CPU").device == "cpu"
    assert kf.ones(2, device="Meta").device == "meta"


def test_each_device_has_a_stream_of_its_own():
    kf.manual_seed(3)
    kf.rand(8)
    assert kf.random.get_state("meta") == ("meta", 3, 0)
    kf.random.set_state(kf.random.RandomState("meta", 9, 7))
    assert kf.random.get_state("meta").offset == 7
    assert kf.random.get_state("cpu").seed == 3
    kf.manual_seed(4)
    assert [kf.random.get_state(d)[1:] for d in ("cpu", "meta")] == [(4, 0), (4, 0)]


@pytest.mark.parametrize("device", ["cpu:1", "cuda:0"])
def test_a_device_that_is_not_there_is_named_with_those_that_are(device, raises_saying):
    listed = "cpu" if device == "cpu:1" else "cpu, meta"
    calls = [
        lambda: kf.random.get_state(device),
        lambda: kf.random.set_state(kf.random.RandomState(device, 0, 0)),
        lambda: kf.memory_stats(device),
        lambda: kf.set_cache_limit(0, device=device),
        lambda: kf.synchronize(device),
        lambda: kf.ones(2).to(device),
    ]
    for call in calls:
        with raises_saying(kf.DeviceError, device, listed):
            call()


@pytest.mark.parametrize(
    "make",
    [
        lambda d: kf.zeros(2, device=d),
        lambda d: kf.ones(2, device=d),
        lambda d: kf.full(2, 3.0, device=d),
        lambda d: kf.empty(2, device=d),
        lambda d: kf.arange(3, device=d),
        lambda d: kf.rand(2, device=d),
        lambda d: kf.randn(2, device=d),
        lambda d: kf.asarray([1.0], device=d),
        lambda d: kf.zeros_like(kf.ones(2), device=d),
        lambda d: kf.full_like(kf.ones(2), 2.0, device=d),
    ],
)
def test_no_tensor_is_made_on_an_index_that_is_not_there(make, raises_saying):
    with raises_saying(kf.DeviceError, "cpu has 1 device", "there is no cpu:3"):
        make("cpu:3")
    with raises_saying(kf.DeviceError, "npx", "known are"):
        make("npx")
    assert make("meta").device == "meta"


def test_synchronize_and_memory_of_devices_that_are_there():
    kf.synchronize()
    kf.synchronize("cpu")
    assert kf.memory_stats("cpu").keys() == kf.memory_stats().keys()
    assert kf.memory_stats(device="meta")["live"] == 0
    before = kf.memory_stats()["limit"]
    kf.set_cache_limit(1 << 20, device="cpu")
    assert kf.memory_stats()["limit"] == 1 << 20
    kf.set_cache_limit(before)


def test_to_cpu_is_the_tensor_itself():
    x = kf.ones((2, 3))
    assert x.cpu() is x
    assert x.to("cpu") is x
    assert kf.ops.aten.to(x, device="cpu") is not x
    assert np.array_equal(kf.ops.aten.to(x, device="cpu").numpy(), x.numpy())


def test_nothing_is_read_of_meta(raises_saying):
    x = kf.ones(2, device="meta")
    with raises_saying(kf.DeviceError, "meta", "no data"):
        x.cpu()
    with raises_saying(kf.DeviceError, "meta", "NumPy"):
        x.numpy()
    with raises_saying(kf.DeviceError, "meta", "NumPy"):
        np.asarray(x)
    with raises_saying(kf.Error, "meta"):
        x.tolist()
    assert repr(x) == "Tensor(..., shape=(2,), dtype=float64, device='meta')"


def test_a_checkpoint_draws_the_same_again():
    x = kf.ones(1000).requires_grad_()
    kf.manual_seed(1)
    (kept,) = kf.grad(kf.dropout(x, 0.5).sum(), [x])
    kf.manual_seed(1)
    result = kf.checkpoint(lambda x: kf.dropout(x, 0.5), x)
    after = kf.random.get_state()
    kf.rand(10)
    (again,) = kf.grad(result.sum(), [x])
    assert again.tolist() == kept.tolist()
    assert kf.random.get_state().offset == after.offset + 5
