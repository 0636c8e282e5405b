"""Tensors whose backend was removed: what they still do, and what every error says."""

import numpy as np
import pytest

import keyfold as kf
from keyfold.testing import delayed_device


class Adds:
    """A backend in Python with all that the tests call."""

    device_count = 2

    def pointwise(self, name, inputs, out):
        out[...] = {"add": np.add, "mul": np.multiply, "cast": lambda x: x}[name](*inputs)

    def reduce(self, name, x, out, dims, keepdim):
        out[...] = x.sum(axis=dims, keepdims=keepdim)


def in_python():
    return kf.register_backend("npu", Adds())


def delayed():
    return delayed_device("npu", devices=2)


@pytest.fixture(params=[in_python, delayed])
def orphan(request):
    """A tensor of a backend that was removed, and what registers another one under its name."""
    first = request.param()
    x = kf.asarray([[1.0, 2.0], [3.0, 4.0]]).to("npu").T[0]
    first.remove()
    return x, request.param


def test_errors_say_that_the_backend_was_removed(orphan, raises_saying):
    x, _ = orphan
    removed = "the backend of npu was removed"
    for call in (
        lambda: x + x,
        lambda: x.sum(),
        lambda: x[0],
        lambda: x.__setitem__(0, 1.0),
        lambda: kf.ops.aten.add.out(x, x, out=x),
        lambda: kf.ones((2,), device="npu"),
        lambda: kf.ops.aten.add.call_direct("NPU", x, x),
    ):
        with raises_saying(kf.MissingKernel, "aten::", removed, ".cpu()"):
            call()
    for call in (
        lambda: kf.ones(2).to("npu"),
        lambda: x.to("npu:1"),
        lambda: kf.synchronize("npu"),
        lambda: kf.random.get_state("npu"),
    ):
        with raises_saying(kf.DeviceError, removed):
            call()
    assert x.tolist() == [1.0, 3.0]


def test_a_name_that_is_registered_again_is_no_removed_one(raises_saying):
    in_python().remove()
    kf.register_backend("npu")
    with raises_saying(kf.MissingKernel, "aten::ones", "kf.impl") as caught:
        kf.ones(2, device="npu")
    assert "removed" not in str(caught.value)


def test_a_new_backend_takes_no_tensor_of_the_one_before(orphan, raises_saying):
    x, register = orphan
    handle = register()
    try:
        own = kf.asarray([3.0, 4.0]).to("npu")
        add = kf.ops.aten.add.out
        calls = {
            "self": [
                lambda: x + x,
                lambda: x + own,
                lambda: x.sum(),
                lambda: x[0],
                lambda: x.reshape((2, 1)),
                lambda: x.clone(),
                lambda: x.to("float32"),
                lambda: x.copy_(own),
                lambda: add(x, own, out=own),
                lambda: x.__setitem__(0, 5.0),
            ],
            "other": [lambda: own + x],
            "src": [lambda: own.copy_(x), lambda: own.__setitem__(slice(None), x)],
            "out": [lambda: add(own, own, out=x)],
            "arrays": [lambda: kf.concat([own, x])],
        }
        for argument, made in calls.items():
            for call in made:
                with raises_saying(
                    kf.DeviceError, "aten::", f"argument '{argument}'", "was removed", ".cpu()"
                ):
                    call()
        for device in ("npu", "npu:1"):
            with raises_saying(kf.DeviceError, "aten::to", "was removed", ".cpu()"):
                x.to(device)
        # Its own memory still reads and copies it, gaps included.
        assert repr(x) == "Tensor([1., 3.], device='npu:0')"
        assert (x.cpu().to("npu") + own).tolist() == [4.0, 7.0]
        assert own.tolist() == [3.0, 4.0]
        assert kf.vmap(lambda row: row + row)(own).tolist() == [6.0, 8.0]
    finally:
        handle.remove()
