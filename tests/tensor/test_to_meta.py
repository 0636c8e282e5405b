"""`to` and its like keep requires_grad and the graph."""

import copy
import pickle

import numpy as np
import pytest

import keyfold as kf


def leaf():
    return kf.asarray(np.arange(6.0).reshape(2, 3)).requires_grad_()


WAYS = {
    "to": lambda x: x.to("meta"),
    "to device": lambda x: x.to(kf.Device("meta")),
    "to keyword": lambda x: x.to(device="meta"),
    "to_device": lambda x: x.to_device("meta"),
    "dtype and device": lambda x: x.to("float32", device="meta"),
    "asarray": lambda x: kf.asarray(x, device="meta"),
    "asarray copy": lambda x: kf.asarray(x, device="meta", copy=True),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_meta_keeps_requires_grad(way):
    x = leaf()
    for given in (x, x * 2.0):
        meta = way(given)
        assert meta.device == kf.Device("meta")
        assert meta.shape == (2, 3)
        assert meta.requires_grad
        assert (meta * 2.0).requires_grad
    assert not way(kf.ones((2, 3))).requires_grad
    with kf.no_grad():
        assert not way(x).requires_grad


def test_no_gradient_comes_back_from_meta(raises_saying):
    x = leaf()
    with raises_saying(kf.GradientError, "aten::to", "no data", "cpu"):
        x.to("meta").sum().backward()
    assert x.grad is None


def test_layers_see_it():
    x = kf.ones((2, 3))
    assert "aten::to.device" in str(kf.trace(lambda x: x.to("meta") * 2.0, x))
    made = kf.vmap(lambda row: row.to("meta"))(x)
    assert (made.shape, made.device) == ((2, 3), kf.Device("meta"))


SAME = {
    "float32": lambda x: x.to("float32"),
    "contiguous": lambda x: x.contiguous(),
    "clone": lambda x: x.clone(),
    "cpu": lambda x: x.to("cpu"),
    "cpu copy": lambda x: x.to("cpu", copy=True),
    "asarray copy": lambda x: kf.asarray(x, copy=True),
    "astype": lambda x: kf.astype(x, "float32"),
}


@pytest.mark.parametrize("way", SAME.values(), ids=SAME)
def test_what_stays_on_the_device_has_its_gradient(way):
    x = leaf()
    (way(x) * 3.0).sum().backward()
    assert x.grad.tolist() == [[3.0] * 3] * 2
    assert x.grad.dtype == kf.float64


def test_copies_of_leaves_are_leaves():
    x = leaf()
    for made in (copy.copy(x), copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert made.requires_grad
        (made * 3.0).sum().backward()
        assert made.grad.tolist() == [[3.0] * 3] * 2
    assert x.grad is None
    meta = pickle.loads(pickle.dumps(x.to("meta")))
    assert meta.requires_grad
    assert not pickle.loads(pickle.dumps(x.detach())).requires_grad
