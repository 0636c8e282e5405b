"""The OpenCL backend's kernels on pocl, in the shapes for CPUs and for GPUs.

Lanes are cut into stretches, neighbouring lanes taken together; tails, odd numbers.
"""

from __future__ import annotations

import numpy as np
import pytest

import keyfold as kf

pytestmark = pytest.mark.one_python


@pytest.fixture(scope="module", params=["cpu", "gpu"])
def shapes(request, opencl_library, pocl):
    """The plugin, with the kernels of that type of device."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KEYFOLD_OPENCL_KERNELS", request.param)
        with kf.load_plugin(opencl_library):
            yield


def numbers(*shape):
    return np.random.default_rng(3).standard_normal(shape).astype("float32")


def same(function, array):
    """Compares a function on the device with the CPU's, for the array and its transposed view."""
    for view in (lambda t: t, lambda t: t.T)[: array.ndim]:
        expected = np.asarray(function(view(kf.asarray(array))))
        found = np.asarray(function(view(kf.asarray(array, device="opencl"))).cpu())
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


# One long lane, long lanes, many short ones, more lanes than four vectors of them, no whole vector.
SHAPES = [(40_001,), (3, 9_001), (300, 7), (30, 130), (2, 3)]


@pytest.mark.parametrize("shape", SHAPES)
def test_sums(shapes, shape):
    same(kf.sum, numbers(*shape))
    same(lambda a: kf.sum(a, dim=[0]), numbers(*shape))


@pytest.mark.parametrize("shape", SHAPES)
def test_the_first_of_equal_extremes_is_found(shapes, shape):
    same(lambda a: kf.argmax(a, axis=0), np.round(numbers(*shape)))
    same(lambda a: kf.argmax(a, axis=-1), np.round(numbers(*shape)))


@pytest.mark.parametrize("odd", [np.nan, -np.inf, np.inf])
def test_extremes_of_odd_numbers(shapes, odd):
    x = numbers(70, 33)
    x[41:43, 7] = odd
    x[:, 8] = odd
    x[5] = odd
    for axis in (0, 1):
        same(lambda a, axis=axis: kf.argmax(a, axis=axis), x)
        same(lambda a, axis=axis: kf.argmax(-a, axis=axis), x)


@pytest.mark.parametrize("shape", SHAPES)
def test_softmax(shapes, shape):
    x = numbers(*shape)
    x.flat[: x.size // 3] = -np.inf
    for axis in range(x.ndim):
        same(lambda a, axis=axis: kf.softmax(a, axis=axis), x)


@pytest.mark.parametrize(
    ("rows", "depth", "columns"), [(1, 1, 1), (70, 40, 130), (64, 256, 64), (133, 3, 2)]
)
def test_products(shapes, rows, depth, columns):
    x, y = numbers(rows, depth), numbers(depth, columns)
    found = kf.matmul(kf.asarray(x, device="opencl"), kf.asarray(y, device="opencl"))
    np.testing.assert_allclose(np.asarray(found.cpu()), x @ y, rtol=1e-4, atol=1e-3)
    turned = kf.matmul(kf.asarray(y, device="opencl").T, kf.asarray(x, device="opencl").T)
    np.testing.assert_allclose(np.asarray(turned.cpu()).T, x @ y, rtol=1e-4, atol=1e-3)


def alike(function, *arrays):
    """Compares a function on the device with the CPU's."""
    found = []
    for device in ("cpu", "opencl"):
        result = function(*[kf.asarray(array, device=device) for array in arrays])
        found.append(np.asarray(result.cpu()))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("examples", "channels", "places"), [(2, 3, 700), (70, 5, 1), (1, 4, 9)])
def test_norms(shapes, examples, channels, places):
    x, weight = numbers(examples, channels, places), numbers(channels)
    alike(lambda a: kf.layer_norm(a, [places]), x)
    for axes in ([0, 1, 2], [0, 2, 1]):
        there = np.ascontiguousarray(np.transpose(x, axes))

        def turned(a, axes=axes):
            return kf.permute_dims(a, axes)

        alike(lambda a, w, t=turned: kf.group_norm(t(a), 1, w, w), there, weight)
        alike(lambda a, w, t=turned: kf.batch_norm(t(a), None, None, w, None, True), there, weight)


@pytest.mark.parametrize(("queries", "keys", "width"), [(3, 5, 4), (70, 300, 9), (2, 1, 1100)])
def test_attention_over_several_tiles(shapes, queries, keys, width):
    q, k, v = numbers(2, queries, 8), numbers(2, keys, 8), numbers(2, keys, width)
    mask = numbers(queries, keys) > -0.5
    alike(kf.scaled_dot_product_attention, q, k, v, mask)


def test_products_with_an_epilogue(shapes):
    x, weight, bias = numbers(70, 40), numbers(130, 40), numbers(130)
    alike(lambda *given: kf.linear_activation(*given, "gelu"), x, weight, bias)


def test_indices_outside_of_their_windows(shapes):
    """The gradients of windows whose index the forward never finds count, too."""
    grad, x = numbers(1, 1, 4, 4), numbers(1, 1, 8, 8)
    indices = np.random.default_rng(4).integers(0, 64, (1, 1, 4, 4))
    windows = ([2, 2], [2, 2], [0, 0], [1, 1], False)

    def gradient(grad, x, indices):
        return kf.ops.aten.max_pool2d_with_indices_backward(grad, x, *windows, indices)

    alike(gradient, grad, x, indices)
