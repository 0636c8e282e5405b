"""Operations of a backend by the names of their operators, against NumPy: those whose functions in
Python call others."""

import math

import numpy as np
import pytest

import keyfold as kf

aten = kf.ops.aten
RNG = np.random.default_rng(5)
WHOLE = ["uint8", "int16", "int32", "int64"]
FLOATS = ["float16", "float32", "float64"]
ALL = [*WHOLE, *FLOATS, "bool", "complex64", "complex128"]
LAYOUTS = ["contiguous", "transposed", "sliced", "reversed"]


def random_array(shape, dtype, layout="contiguous"):
    """Small whole numbers, which sums of every dtype hold exactly, with these strides."""
    low = 0 if dtype in ("bool", "uint8") else -4
    data = RNG.integers(low, 2 if dtype == "bool" else 5, shape).astype(dtype)
    if layout == "transposed":
        return np.ascontiguousarray(data.T).T
    if layout == "sliced":
        return np.repeat(data, 2, axis=-1)[..., ::2]
    return np.ascontiguousarray(data[::-1])[::-1] if layout == "reversed" else data


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ALL)
def test_copies_transposes_and_permutations(dtype, layout):
    x = random_array((3, 4, 5), dtype, layout)
    for found, expected in (
        (aten.clone(x), x),
        (aten.transpose(x, 0, -1), x.swapaxes(0, -1)),
        (aten.permute(x, [2, 0, 1]), x.transpose(2, 0, 1)),
        (aten.zeros((2, 3), dtype=dtype).numpy(), np.zeros((2, 3), dtype)),
    ):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
    assert not np.shares_memory(aten.clone(x), x)
    assert np.shares_memory(aten.permute(x, [2, 0, 1]), x)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [*WHOLE, *FLOATS, "bool"])
def test_the_greatest_and_least_of_all(dtype, layout):
    x = random_array((3, 4, 5), dtype, layout)
    assert aten.max(x) == x.max()
    assert aten.min(x) == x.min()
    if dtype in FLOATS:
        x[1, 2, 3] = np.nan
        assert np.isnan(aten.max(x))
        assert np.isnan(aten.min(x))


@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize("dtype", ALL)
def test_rows_and_elements_by_index(dtype, index):
    x = random_array((6, 5), dtype, "transposed")
    rows = RNG.integers(0, 6, 9).astype(index)
    np.testing.assert_array_equal(aten.index_select(x, 0, rows), x[rows])
    np.testing.assert_array_equal(aten.index_select(x, 1, rows[:3] % 5), x[:, rows[:3] % 5])
    values = random_array((9, 5), dtype, "reversed")
    expected = x.copy()
    np.add.at(expected, rows, values)
    np.testing.assert_array_equal(aten.index_add(x, 0, rows, values), expected)
    places = RNG.integers(0, 6, (4, 5)).astype(index)
    expected = x.copy()
    np.add.at(expected, (places, np.arange(5)), values[:4])
    np.testing.assert_array_equal(aten.scatter_add(x, 0, places, values), expected)
    for call in (
        lambda: aten.index_select(x, 0, np.array([0, 6], index)),
        lambda: aten.index_add(x, 0, np.array([6], index), values[:1]),
        lambda: aten.scatter_add(x, 0, np.full((1, 5), 6, index), values),
    ):
        before = x.copy()
        with pytest.raises(kf.IndexOutOfRange, match="6"):
            call()
        np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ALL)
def test_parts_along_an_axis_and_into_given_outputs(dtype, layout):
    x = random_array((4, 7), dtype, layout)
    for axis in (0, 1, -1):
        size = x.shape[axis]
        even = np.split(x, range(3, size, 3), axis)
        first = [2, 0, size - 2]
        uneven = np.split(x, [2, 2], axis)
        views = (aten.split.Tensor(x, 3, axis), aten.split_with_sizes(x, first, axis))
        outs = [[np.zeros_like(part) for part in parts] for parts in (even, uneven)]
        aten.split_copy.Tensor_out(x, 3, axis, out=outs[0])
        aten.split_with_sizes_copy.out(x, first, axis, out=outs[1])
        for parts, wanted in zip((*views, *outs), (even, uneven) * 2, strict=True):
            assert len(parts) == len(wanted)
            for part, expected in zip(parts, wanted, strict=True):
                assert part.dtype == expected.dtype
                np.testing.assert_array_equal(part, expected)
        assert np.shares_memory(views[0][0], x)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_three_forms_of_gelu(dtype):
    x = np.linspace(-6, 6, 101).astype(dtype)
    wide = x.astype(np.float64)
    cubic = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)
    forms = {
        aten.gelu: wide * np.vectorize(lambda x: 0.5 * math.erfc(-x / math.sqrt(2)))(wide),
        aten.gelu_tanh: wide / (1 + np.exp(-2 * cubic)),
        aten.gelu_sigmoid: wide / (1 + np.exp(-1.702 * wide)),
    }
    for operator, expected in forms.items():
        tolerance = 64 * float(np.finfo(dtype).eps)
        np.testing.assert_allclose(operator(x), expected, tolerance, tolerance)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_batch_norm_by_its_statistics_and_the_running_ones(dtype):
    x = RNG.standard_normal((5, 3, 4, 2)).astype(dtype)
    weight, bias = RNG.standard_normal((2, 3)).astype(dtype)
    mean, variance = np.zeros(3, dtype), np.ones(3, dtype)
    axes, tolerance = (0, 2, 3), {"float32": 1e-5, "float64": 1e-12}[dtype]

    def normal(mean, variance):
        mean, variance, w, b = (a.reshape(3, 1, 1) for a in (mean, variance, weight, bias))
        return (x - mean) / np.sqrt(variance + 1e-5) * w + b

    own = x.mean(axes), x.var(axes)
    found = aten.native_batch_norm(x, weight, bias, mean, variance, True, 0.25, 1e-5)
    wanted = (normal(*own), own[0], 1 / np.sqrt(own[1] + 1e-5))
    for one, expected in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, expected, tolerance, tolerance)
    np.testing.assert_allclose(mean, 0.25 * own[0], tolerance, tolerance)
    unbiased = own[1] * 40 / 39
    np.testing.assert_allclose(variance, 0.75 + 0.25 * unbiased, tolerance, tolerance)
    found = aten.native_batch_norm(x, weight, bias, mean, variance, False, 0.25, 1e-5)
    np.testing.assert_allclose(found[0], normal(mean, variance), tolerance, tolerance)
