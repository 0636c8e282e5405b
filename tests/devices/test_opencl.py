"""examples/backend-opencl on pocl: a third party's device of a real interface."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import keyfold as kf
from tests.helpers.paths import EXAMPLES


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
    assert row.groups == ("pointwise", "reduce", "rows", "linalg", "index", "random")


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
    same(lambda a, at: a[at], x, np.array([2, -1, 0]))
    same(lambda a: a[a > 1], x)
    same(kf.abs, numbers(9, dtype="float16"), rtol=1e-3)


def test_long_lanes_are_reduced_in_two_stages(opencl):
    same(kf.sum, numbers(100_003))


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


def test_gradients_and_vmap(opencl):
    x, w = numbers(5, 4) / 10, numbers(4, 3, seed=2)

    def loss(w, x):
        return kf.sum(kf.exp(kf.matmul(x, w)))

    same(kf.grad(loss), w, x)
    same(lambda x: kf.vmap(lambda row: kf.sum(row * row))(x), x)


def test_trace_autocast_and_profile(opencl):
    x = there(numbers(5, 4))
    graph = kf.trace(lambda a: kf.exp(a) * a, x)
    assert "float32[5, 4] opencl:0 = aten::exp(%0)" in str(graph)
    with kf.autocast("float16"):
        assert kf.matmul(x, x.T).dtype == "float16"
    with kf.profile() as profile:
        kf.exp(x)
    (event,) = profile.events
    assert event["name"] == "aten::exp"
    assert event["device_time"] is not None


def test_streams_and_errors_conform(opencl_library, pocl):
    command = [
        sys.executable,
        "-m",
        "keyfold",
        "conformance",
        "opencl",
        "--load",
        str(opencl_library),
    ]
    command += ["--fraction", "0.02"]
    for group in ("streams", "errors"):
        command += ["--group", group]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.endswith("The backend conforms.\n"), done.stdout + done.stderr


def test_training_is_as_accurate_as_on_the_cpu(opencl_library, pocl):
    script = EXAMPLES / "backend-opencl" / "train.py"
    command = [sys.executable, str(script), str(opencl_library), "--epochs", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == ["cpu", "opencl"]
