"""examples/backend-opencl on pocl: a third party's device of a real interface."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest

import keyfold as kf
from keyfold._cli import _doctor
from tests.helpers.paths import EXAMPLES

pytestmark = pytest.mark.one_python


@pytest.fixture(scope="module")
def opencl(opencl_library, pocl):
    """The plugin."""
    with kf.load_plugin(opencl_library) as plugin:
        yield plugin


def there(values):
    return kf.asarray(values, device="opencl")


def numbers(*shape, dtype="float32", seed=0):
    made = np.random.default_rng(seed).standard_normal(shape) * 3
    return made.astype(dtype)


def same(function, *arrays, rtol=1e-5):
    """Compares a function of tensors on the device with the CPU's."""
    expected = np.asarray(function(*[kf.asarray(array) for array in arrays]))
    result = function(*[there(array) for array in arrays])
    assert str(result.device) == "opencl:0"
    found = np.asarray(result.cpu())
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol)


def test_the_device_is_listed(opencl):
    assert opencl.device_types == ["opencl"]
    (row,) = [backend for backend in kf.backends() if backend.device_type == "opencl"]
    assert row.groups == (
        *("pointwise", "reduce", "rows", "scan", "linalg", "index", "random", "norm", "linear"),
        *("convolution", "pool", "attention", "recurrent", "optim", "dropout"),
    )


def test_copies_of_every_layout(opencl):
    x = numbers(6, 8, 5)
    on = there(x)
    views = [
        lambda t: t,
        lambda t: t[1:4, 2:6],
        lambda t: t[:, :, 1],
        lambda t: t[::-2, ::3],
        lambda t: t.permute(2, 0, 1) if isinstance(t, kf.Tensor) else t.transpose(2, 0, 1),
    ]
    for view in views:
        np.testing.assert_array_equal(np.asarray(view(on).cpu()), view(x))
    target = there(np.zeros((8, 6), "float32"))
    target[2:5, 1:5] = there(x[0, :3, :4])
    expected = np.zeros((8, 6), "float32")
    expected[2:5, 1:5] = x[0, :3, :4]
    np.testing.assert_array_equal(np.asarray(target.cpu()), expected)


def test_operators_agree_with_the_cpu(opencl):
    x, y = numbers(7, 9), numbers(9, seed=1)
    same(lambda a, b: kf.exp(a) * b, x, y)
    same(lambda a: kf.where(a > 0, a, -a), x.T)
    same(kf.argmax, x)
    same(lambda a: kf.softmax(a, axis=-1), x)
    same(kf.matmul, x, numbers(9, 4))
    # Several tiles of each dimension, with tails.
    same(kf.matmul, numbers(2, 70, 40), numbers(40, 133, seed=2), rtol=1e-4)
    same(lambda a, at: a[at], x, np.array([2, -1, 0]))
    same(lambda a: a[a > 1], x)
    same(kf.abs, numbers(9, dtype="float16"), rtol=1e-3)


def test_long_lanes_are_reduced_in_two_stages(opencl):
    same(kf.sum, numbers(100_003))


def test_scans_of_few_long_many_and_neighbouring_lanes(opencl):
    for x in (numbers(3, 50_001), numbers(50_001, 3).T[::-1, ::2], numbers(1_000, 300)):
        near_one = 1 + x / 10_000
        for axis in (0, 1):
            same(lambda a, axis=axis: kf.cumulative_sum(a, axis=axis), x / 100, rtol=1e-3)
            same(lambda a, axis=axis: kf.cumulative_prod(a, axis=axis), near_one, rtol=1e-3)
    # No part of a lane overflows where the lane doesn't.
    lane = np.concatenate([np.zeros(1), np.full(40_000, 100.0)]).astype("float32")
    same(kf.cumulative_prod, lane)
    same(kf.cumulative_prod, np.tile(np.float32([0.5, 2.0]), 30_000))


def test_random_numbers_are_the_cpus(opencl):
    def drawn(device):
        kf.manual_seed(7)
        return np.asarray(kf.rand(1001, dtype="float32", device=device).cpu())

    np.testing.assert_array_equal(drawn("opencl"), drawn("cpu"))


def test_a_position_out_of_range_is_a_late_error(opencl):
    x = there(numbers(3, 4))
    taken = x[there(np.array([0, 7]))]
    with pytest.raises(kf.IndexOutOfRange, match=r"aten::index.*position 7.*dimension 0"):
        taken.cpu()
    same(lambda a: a + 1, numbers(3))


def test_each_of_several_positions_out_of_range_is_an_error(opencl):
    x = there(numbers(3, 4))
    wrong = [x[there(np.array([0, 7 + k]))] for k in range(70)]
    for k, taken in enumerate(wrong):
        with pytest.raises(kf.IndexOutOfRange, match=f"position {7 + k} "):
            taken.cpu()
    same(lambda a: a + 1, numbers(3))


def test_gradients_and_vmap(opencl):
    x, w = numbers(5, 4) / 10, numbers(4, 3, seed=2)

    def loss(w, x):
        return kf.sum(kf.exp(kf.matmul(x, w)))

    same(kf.grad(loss), w, x)
    same(lambda x: kf.grad(lambda a: kf.sum(kf.grad(lambda b: kf.sum(b**3))(a)))(x), x)
    same(kf.grad(lambda w: kf.checkpoint(lambda v: kf.sum(kf.softmax(v, 0) ** 2), w)), w)
    same(lambda x: kf.jvp(lambda a: kf.sum(kf.tanh(a), 1), (x,), (x * x,))[1], x)
    same(lambda x: kf.hessian(lambda a: kf.sum(kf.exp(a) * a))(x[0]), x)
    same(lambda x: kf.vmap(lambda row: kf.sum(row * row))(x), x)
    weight = there(w).requires_grad_()
    loss(weight, there(x)).backward()
    np.testing.assert_allclose(
        weight.grad.cpu(), kf.grad(loss)(kf.asarray(w), kf.asarray(x)), rtol=1e-5
    )


def test_trace_autocast_and_profile(opencl):
    x = there(numbers(5, 4))
    graph = kf.trace(lambda a: kf.exp(a) * a, x)
    assert "float32[5, 4] opencl:0 = aten::exp(%0)" in str(graph)
    np.testing.assert_array_equal(graph(x).cpu(), (kf.exp(x) * x).cpu())
    with kf.autocast("float16"):
        assert kf.matmul(x, x.T).dtype == "float16"
    with kf.profile() as profile:
        kf.exp(x)
    (event,) = profile.events
    assert event["name"] == "aten::exp"
    assert event["device_time"] is not None


def test_tensors_are_shown_pickled_and_exchanged(opencl, raises_saying):
    x = there(np.arange(6, dtype="float32").reshape(2, 3))
    assert repr(x[0]) == "Tensor([0., 1., 2.], dtype=float32, device='opencl:0')"
    assert repr(kf.zeros((3000, 3000), device="opencl")).count("...") == 7
    assert (float(x[1, 2]), bool(x[0, 0]), [int(i) for i in x[1]]) == (5.0, False, [3, 4, 5])
    back = pickle.loads(pickle.dumps(x[:, ::2]))
    assert (back.device, back.tolist()) == ("opencl:0", [[0.0, 2.0], [3.0, 5.0]])
    # DLPack's extension device, for keyfold alone; NumPy has no device.
    shared = kf.from_dlpack(x)
    shared[0, 0] = 7.0
    assert (x[0, 0].item(), x.__dlpack_device__()[0]) == (7.0, 12)
    assert kf.from_dlpack(x, device="cpu").tolist() == x.tolist()
    with raises_saying(kf.DeviceError, "a tensor on opencl:0", ".cpu()"):
        np.asarray(x)
    with pytest.raises((RuntimeError, BufferError)):
        np.from_dlpack(x)


def test_doctor_lists_the_device(opencl):
    x = there(numbers(4))
    (device,) = [backend for backend in kf.backends() if backend.device_type == "opencl"]
    rows = list(_doctor._backends())
    offers = f"{opencl.name} {opencl.version}: offers {', '.join(device.groups)}"
    assert ("opencl", offers) in rows
    assert any(text.startswith("opencl:0: ") and "4 streams" in text for _, text in rows)
    assert kf.memory_stats("opencl")["live"] >= x.nbytes


def test_training_is_as_accurate_as_on_the_cpu(opencl_library, pocl):
    script = EXAMPLES / "backend-opencl" / "train.py"
    command = [sys.executable, str(script), str(opencl_library), "--epochs", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    named = [line.partition(":")[0] for line in done.stdout.splitlines()]
    assert named == ["keyfold-opencl 0.1.0", "cpu", "opencl"]
