"""Pooling against NumPy, window by window: results, indices, gradients, tangents, bad input."""

import itertools
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keyfold as kf
from tests.helpers.random_arrays import lay_out, layouts, numbers, rounded

FLOATS = ["float16", "bfloat16", "float32", "float64"]
NUMBERS = [*FLOATS, "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
UNITS = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}


def count(size, kernel, stride, padding, dilation, ceil_mode):
    rest = size + 2 * padding - dilation * (kernel - 1) - 1
    windows = rest // stride + 1
    return windows + (ceil_mode and rest % stride != 0 and windows * stride < size + padding)


def windows(sizes, kernel, stride, padding, dilation, ceil_mode):
    """List for each window the places inside, and its number of elements with padding."""
    along = []
    for axis in zip(sizes, kernel, stride, padding, dilation, strict=True):
        size, k, s, p, d = axis
        each = []
        for o in range(count(*axis, ceil_mode)):
            places = [o * s - p + i * d for i in range(k)]
            padded = sum(place < size + p for place in places)
            each.append(([place for place in places if 0 <= place < size], padded))
        along.append(each)
    shape = tuple(map(len, along))
    for index in np.ndindex(*shape):
        chosen = [each[o] for each, o in zip(along, index, strict=True)]
        places = list(itertools.product(*(own for own, _ in chosen)))
        yield shape, index, places, int(np.prod([padded for _, padded in chosen]))


def max_pool(x, dims, options):
    planes, sizes = x.shape[: x.ndim - dims], x.shape[x.ndim - dims :]
    values = indices = None
    for shape, index, places, _ in windows(sizes, **options):
        if values is None:
            values = np.empty(planes + shape, x.dtype)
            indices = np.empty(planes + shape, np.int64)
        flat = np.array([np.ravel_multi_index(place, sizes) for place in places])
        items = x.reshape((*planes, -1))[..., flat]
        best = items.argmax(axis=-1)
        values[(..., *index)] = np.take_along_axis(items, best[..., None], -1)[..., 0]
        indices[(..., *index)] = flat[best]
    return values, indices


def avg_matrix(sizes, options, include_pad=True, divisor=None):
    """Return the matrix that computes the means of a plane's windows, and their shape."""
    rows, shape = [], ()
    for counts, _, places, padded in windows(sizes, **options):
        shape = counts
        row = np.zeros(int(np.prod(sizes)))
        for place in places:
            row[np.ravel_multi_index(place, sizes)] += 1.0
        rows.append(row / (divisor or (padded if include_pad else len(places))))
    return np.array(rows), shape


@st.composite
def calls(draw, dtypes, *, dilates):
    dims = draw(st.integers(1, 3))
    planes = draw(st.sampled_from([(1,), (3,), (2, 3)]))
    longest = {1: 80, 2: 40, 3: 9}[dims]
    sizes = tuple(draw(st.integers(1, longest)) for _ in range(dims))
    kernel, stride, padding, dilation = [], [], [], []
    for size in sizes:
        k = draw(st.integers(1, min(size, 5)))
        kernel.append(k)
        stride.append(draw(st.integers(1, 4)))
        padding.append(draw(st.integers(0, k // 2)))
        most = (size - 1) // (k - 1) if k > 1 else 3
        dilation.append(draw(st.integers(1, max(1, min(3, most)))) if dilates else 1)
    options = {
        "kernel": kernel,
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "ceil_mode": draw(st.booleans()),
    }
    dtype = draw(st.sampled_from(dtypes))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = planes + sizes
    if dtype in FLOATS:
        # A few distinct numbers, so that there are ties.
        exact = rounded(rng.integers(-9, 9, shape) / 4.0, dtype)
    else:
        info = np.iinfo(dtype)
        exact = rng.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
    return dims, dtype, exact, lay_out(exact, draw(layouts(shape)), dtype), options


def call_max(array, dims, options):
    operator = getattr(kf.ops.aten, f"max_pool{dims}d_with_indices")
    return operator(
        array,
        options["kernel"],
        options["stride"],
        options["padding"],
        options["dilation"],
        options["ceil_mode"],
    )


@given(calls(NUMBERS, dilates=True))
@settings(max_examples=80)
def test_the_greatest_elements_and_their_first_places(call):
    dims, dtype, _, array, options = call
    exact = numbers(array)
    values, indices = call_max(kf.asarray(array), dims, options)
    wanted, places = max_pool(exact, dims, options)
    np.testing.assert_array_equal(numbers(values), wanted)
    np.testing.assert_array_equal(np.asarray(indices), places)
    assert str(values.dtype) == dtype
    function = getattr(kf, f"max_pool{dims}d")
    same = function(
        array,
        options["kernel"],
        options["stride"],
        options["padding"],
        options["dilation"],
        options["ceil_mode"],
    )
    np.testing.assert_array_equal(numbers(same), wanted)


@given(calls(FLOATS, dilates=False), st.booleans(), st.sampled_from([None, 7, -2]))
@settings(max_examples=80)
def test_the_means_of_windows(call, include_pad, divisor):
    dims, dtype, _, array, options = call
    exact = numbers(array).astype(np.float64)
    sizes = exact.shape[exact.ndim - dims :]
    divisor = None if dims == 1 else divisor
    matrix, shape = avg_matrix(sizes, options, include_pad, divisor)
    wanted = exact.reshape(-1, matrix.shape[1]) @ matrix.T
    more = {} if divisor is None else {"divisor_override": divisor}
    got = getattr(kf, f"avg_pool{dims}d")(
        array,
        options["kernel"],
        options["stride"],
        options["padding"],
        ceil_mode=options["ceil_mode"],
        count_include_pad=include_pad,
        **more,
    )
    got = numbers(got)
    assert got.shape == exact.shape[: exact.ndim - dims] + shape
    wanted = wanted.reshape(got.shape)
    np.testing.assert_allclose(got, wanted, rtol=4 * UNITS[dtype], atol=300 * UNITS["float32"])


@given(st.data())
@settings(max_examples=40)
def test_the_means_of_even_windows(data):
    dims, dtype = data.draw(st.integers(1, 3)), data.draw(st.sampled_from(FLOATS))
    sizes = tuple(data.draw(st.integers(1, 12)) for _ in range(dims))
    outs = tuple(data.draw(st.integers(0, 14)) for _ in range(dims))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    shape = (2, 3, *sizes)
    array = lay_out(rounded(rng.uniform(-2, 2, shape), dtype), data.draw(layouts(shape)), dtype)
    exact = numbers(array).astype(np.float64)
    wanted = np.empty((2, 3, *outs))
    for index in np.ndindex(*outs):
        window = tuple(
            slice(o * n // m, -(-(o + 1) * n // m))
            for o, n, m in zip(index, sizes, outs, strict=True)
        )
        wanted[(..., *index)] = exact[(..., *window)].mean(axis=tuple(range(2, 2 + dims)))
    got = getattr(kf, f"adaptive_avg_pool{dims}d")(array, outs)
    np.testing.assert_allclose(
        numbers(got), wanted, rtol=4 * UNITS[dtype], atol=300 * UNITS["float32"]
    )


@given(calls(["float64"], dilates=True))
@settings(max_examples=30)
def test_gradients_go_to_the_greatest_elements(call):
    dims, _, exact, _, options = call
    x = kf.asarray(exact.astype(np.float64)).requires_grad_()
    values, indices = call_max(x, dims, options)
    grad = np.random.default_rng(3).normal(size=values.shape)
    (got,) = kf.grad(values, [x], kf.asarray(grad))
    planes = exact.shape[: exact.ndim - dims]
    wanted = np.zeros((int(np.prod(planes)), int(np.prod(exact.shape[exact.ndim - dims :]))))
    places = np.asarray(indices).reshape(len(wanted), -1)
    for plane, (own, share) in enumerate(zip(places, grad.reshape(places.shape), strict=True)):
        np.add.at(wanted[plane], own, share)
    np.testing.assert_allclose(np.asarray(got), wanted.reshape(exact.shape), atol=1e-12)


@given(calls(["float64", "float32"], dilates=False), st.booleans())
@settings(max_examples=30)
def test_gradients_are_shared_evenly(call, include_pad):
    dims, dtype, exact, _, options = call
    x = kf.asarray(exact.astype(dtype)).requires_grad_()
    out = getattr(kf, f"avg_pool{dims}d")(
        x,
        options["kernel"],
        options["stride"],
        options["padding"],
        ceil_mode=options["ceil_mode"],
        count_include_pad=include_pad,
    )
    grad = np.random.default_rng(4).normal(size=out.shape)
    (got,) = kf.grad(out, [x], kf.asarray(grad.astype(dtype)))
    matrix, _ = avg_matrix(exact.shape[exact.ndim - dims :], options, include_pad)
    wanted = (grad.reshape(-1, matrix.shape[0]) @ matrix).reshape(exact.shape)
    np.testing.assert_allclose(np.asarray(got), wanted, atol=100 * UNITS[dtype])


def test_tangents_follow_the_chosen_elements():
    rng = np.random.default_rng(5)
    x, t = (kf.asarray(rng.normal(size=(2, 3, 8))) for _ in range(2))
    _, indices = kf.ops.aten.max_pool1d_with_indices(x, [3], [2], [1])
    _, tangent = kf.jvp(lambda x: kf.max_pool1d(x, 3, 2, 1), (x,), (t,))
    wanted = np.take_along_axis(np.asarray(t), np.asarray(indices), -1)
    np.testing.assert_array_equal(np.asarray(tangent), wanted)
    _, tangent = kf.jvp(lambda x: kf.avg_pool1d(x, 2), (x,), (t,))
    wanted = np.asarray(t).reshape(2, 3, 4, 2).mean(axis=-1)
    np.testing.assert_allclose(np.asarray(tangent), wanted, atol=1e-15)


def test_nan_wins_and_the_first_of_equal_elements():
    x = np.array([[[1.0, np.nan, 5.0, np.nan], [7.0, 7.0, -np.inf, -np.inf]]])
    values, indices = kf.ops.aten.max_pool2d_with_indices(x, [1, 4])
    assert np.isnan(np.asarray(values)[0, 0, 0])
    assert np.asarray(indices)[0, :, 0].tolist() == [1, 4]
    low = np.full((1, 2, 3), -np.inf)
    values, indices = kf.ops.aten.max_pool2d_with_indices(low, [2, 2], [1, 1], [1, 1])
    assert np.isneginf(np.asarray(values)).all()
    # The first element that isn't padding.
    assert np.asarray(indices)[0, 0].tolist() == [0, 0, 1, 2]


def test_halves_add_up_in_float32():
    x = np.full((1, 64, 64), 60000, np.float16)
    assert np.asarray(kf.adaptive_avg_pool2d(x, 1)).tolist() == [[[60000.0]]]
    assert np.asarray(kf.avg_pool2d(x, 2)).max() == 60000.0


def image(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


BAD = {
    "rank": (lambda: kf.max_pool2d(image(4, 4), 2), kf.ShapeError, "2 dimensions"),
    "many dimensions": (lambda: kf.avg_pool2d(image(1, 1, 1, 4, 4), 2), kf.ShapeError, "5 dim"),
    "padding": (lambda: kf.max_pool2d(image(1, 4, 4), 2, 1, 2), kf.InvalidValue, "'padding'"),
    "average padding": (lambda: kf.avg_pool2d(image(1, 4, 4), 3, 1, 2), kf.InvalidValue, "half"),
    "large kernel": (lambda: kf.max_pool2d(image(1, 4, 4), 5), kf.ShapeError, "larger"),
    "dilated kernel": (lambda: kf.max_pool2d(image(1, 4, 4), 3, 1, 0, 2), kf.ShapeError, "larger"),
    "no element": (
        lambda: kf.max_pool2d(image(1, 1, 9), 2, 1, 2, 3),
        kf.InvalidValue,
        "no element",
    ),
    "kernel 0": (lambda: kf.max_pool2d(image(1, 4, 4), 0), kf.InvalidValue, "'kernel_size'"),
    "stride 0": (lambda: kf.avg_pool2d(image(1, 4, 4), 2, 0), kf.InvalidValue, "'stride'"),
    "dilation 0": (
        lambda: kf.max_pool2d(image(1, 4, 4), 2, 1, 0, 0),
        kf.InvalidValue,
        "'dilation'",
    ),
    "negative padding": (
        lambda: kf.max_pool2d(image(1, 4, 4), 2, 1, -1),
        kf.InvalidValue,
        "'padding'",
    ),
    "numbers": (lambda: kf.max_pool2d(image(1, 4, 4), [2, 2, 2]), kf.BindingError, "kernel_size"),
    "no size": (lambda: kf.max_pool2d(image(1, 0, 4), 1), kf.ShapeError, "size 0"),
    "divisor 0": (
        lambda: kf.avg_pool2d(image(1, 4, 4), 2, divisor_override=0),
        kf.InvalidValue,
        "'divisor_override'",
    ),
    "integers": (
        lambda: kf.avg_pool2d(image(1, 4, 4, dtype=np.int64), 2),
        kf.DTypeError,
        "int64",
    ),
    "bools": (lambda: kf.max_pool2d(image(1, 4, 4, dtype=bool), 2), kf.DTypeError, "bool"),
    "output size": (
        lambda: kf.adaptive_avg_pool2d(image(1, 4, 4), -1),
        kf.InvalidValue,
        "'output_size'",
    ),
    "adaptive without elements": (
        lambda: kf.adaptive_avg_pool2d(image(1, 0, 4), 2),
        kf.ShapeError,
        "without an element",
    ),
    "indices": (
        lambda: kf.ops.aten.max_pool2d_with_indices_backward(
            image(1, 2, 2),
            image(1, 4, 4),
            [2, 2],
            [2, 2],
            [0, 0],
            [1, 1],
            False,
            np.full((1, 2, 2), 16),
        ),
        kf.IndexOutOfRange,
        "16 is out of range",
    ),
    "gradient": (
        lambda: kf.ops.aten.avg_pool2d_backward(
            image(1, 3, 2), image(1, 4, 4), 2, 2, 0, False, True, None
        ),
        kf.ShapeError,
        "'grad_output'",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_with_what_would_be_right(case):
    call, error, words = BAD[case]
    with pytest.raises(error, match=words) as caught:
        call()
    assert re.match(r"aten::|keyfold\.", str(caught.value))


def test_empty_batches_have_empty_results():
    assert kf.max_pool2d(image(0, 3, 4, 4), 2).shape == (0, 3, 2, 2)
    assert kf.avg_pool2d(image(2, 0, 4, 4), 2).shape == (2, 0, 2, 2)
    assert kf.adaptive_avg_pool2d(image(0, 3, 4, 4), 1).shape == (0, 3, 1, 1)


def test_results_are_pytorchs():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(6)
    x = rng.normal(size=(2, 3, 17, 22)).astype(np.float32)
    theirs = torch.nn.functional.max_pool2d(
        torch.from_numpy(x), 3, 2, 1, ceil_mode=True, return_indices=True
    )
    ours = kf.ops.aten.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1], [1, 1], True)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(np.asarray(one), other.numpy())
    mean = torch.nn.functional.avg_pool2d(
        torch.from_numpy(x), 3, 2, 1, ceil_mode=True, count_include_pad=False
    )
    got = kf.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False)
    np.testing.assert_allclose(np.asarray(got), mean.numpy(), atol=1e-6)


def test_no_planes_of_any_size():
    """What isn't there takes no memory, however large its planes would be."""
    many = 1 << 40
    assert kf.adaptive_avg_pool2d(kf.zeros((0, 4, 4)), (many, 1)).shape == (0, many, 1)
    assert kf.avg_pool2d(kf.zeros((0, many, 1)), 1).shape == (0, many, 1)
    assert kf.max_pool2d(kf.zeros((0, many, 1)), 1).shape == (0, many, 1)


def test_refused_indices_leave_out_as_it_was():
    out = kf.full((2, 4, 4), -7.0)
    indices = kf.asarray(np.array([[[0, 2], [8, 10]], [[0, 2], [8, 99]]]))
    windows = ([2, 2], [2, 2], [0, 0], [1, 1], False)
    backward = kf.ops.aten.max_pool2d_with_indices_backward.out
    with pytest.raises(kf.IndexOutOfRange, match="index 99 is out of range"):
        backward(kf.ones((2, 2, 2)), kf.ones((2, 4, 4)), *windows, indices, out=out)
    assert (np.asarray(out) == -7).all()


def test_a_first_window_behind_the_padding_in_ceil_mode():
    x = np.arange(4.0).reshape(1, 2, 2)
    assert kf.avg_pool2d(x, 3, 2, ceil_mode=True).tolist() == [[[1.5]]]
    assert kf.max_pool2d(x, 3, 2, ceil_mode=True).tolist() == [[[3.0]]]
    assert kf.max_pool1d(np.arange(4.0)[None], 6, 3, ceil_mode=True).tolist() == [[3.0]]
    for options in ({"ceil_mode": False}, {"ceil_mode": True, "stride": 1}):
        with pytest.raises(kf.ShapeError, match="larger than the input of 2"):
            kf.avg_pool2d(x, 3, **{"stride": 2, **options})


@pytest.mark.parametrize("stride", [2**40, 2**62])
def test_a_stride_far_beyond_the_elements_takes_no_memory(stride):
    x = np.arange(6.0, dtype=np.float32).reshape(1, 1, 6)
    assert kf.avg_pool1d(x, 2, stride).tolist() == [[[0.5]]]
    assert kf.max_pool1d(x, 2, stride).tolist() == [[[1.0]]]
