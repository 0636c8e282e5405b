"""Convolutions and their derivatives beside plain sums of NumPy in float64."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import keyfold as kf

CONV = {1: kf.conv1d, 2: kf.conv2d, 3: kf.conv3d}
TRANSPOSE = {1: kf.conv_transpose1d, 2: kf.conv_transpose2d, 3: kf.conv_transpose3d}
EPS = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}


def reference(
    x: np.ndarray, w: np.ndarray, b: Any, stride: Any, padding: Any, dilation: Any, groups: int
) -> np.ndarray:
    """The convolution by a sum over the places of the kernel."""
    rank = w.ndim - 2
    x = np.pad(x, [(0, 0), (0, 0), *padding])
    reach = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilation, strict=True)]
    size = [(n - r) // s + 1 for n, r, s in zip(x.shape[2:], reach, stride, strict=True)]
    out = np.zeros((x.shape[0], w.shape[0], *size))
    c, o = w.shape[1], w.shape[0] // groups
    for place in itertools.product(*map(range, w.shape[2:])):
        first = [k * d for k, d in zip(place, dilation, strict=True)]
        steps = zip(first, size, stride, strict=True)
        parts = [slice(f, f + (n - 1) * s + 1, s) for f, n, s in steps]
        seen = x[(slice(None), slice(None), *parts)]
        for g in range(groups):
            factor = w[(slice(g * o, (g + 1) * o), slice(None), *place)]
            own = seen[:, g * c : (g + 1) * c]
            out[:, g * o : (g + 1) * o] += np.einsum("nc...,oc->no...", own, factor)
    return out if b is None else out + b.reshape(-1, *[1] * rank)


def problem(rng: np.random.Generator, rank: int) -> dict[str, Any]:
    groups = int(rng.choice([1, 1, 2, 3]))
    most = [24, 14, 7][rank - 1]
    channels, rows = int(rng.integers(1, 6)), int(rng.integers(1, 20))
    kernel = [int(rng.integers(1, 4)) for _ in range(rank)]
    stride = [int(rng.integers(1, 4)) for _ in range(rank)]
    dilation = [int(rng.integers(1, 3)) for _ in range(rank)]
    padding = [(int(rng.integers(0, 3)), int(rng.integers(0, 3))) for _ in range(rank)]
    size = [
        max((k - 1) * d + 1 - sum(p), 1) + int(rng.integers(0, most))
        for k, d, p in zip(kernel, dilation, padding, strict=True)
    ]
    return {
        "x": rng.standard_normal((int(rng.integers(1, 4)), groups * channels, *size)),
        "w": rng.standard_normal((groups * rows, channels, *kernel)),
        "b": rng.standard_normal(groups * rows) if rng.integers(2) else None,
        "settings": (stride, padding, dilation, groups),
    }


def leaf(x: np.ndarray) -> Any:
    """A tensor that requires grad."""
    return kf.asarray(x).requires_grad_()


def arrange(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """The same array in another order of memory: channels last, reversed, or with gaps."""
    choice = int(rng.integers(4))
    if choice == 0:
        return np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1)
    if choice == 1:
        return np.ascontiguousarray(x[..., ::-1])[..., ::-1]
    if choice == 2:
        return np.repeat(x, 2, axis=-1)[..., ::2]
    return x


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("dtype", list(EPS))
def test_convolutions_are_sums_of_products(rank: int, dtype: str) -> None:
    rng = np.random.default_rng(rank)
    for _ in range(12):
        case = problem(rng, rank)
        stride, padding, dilation, groups = case["settings"]
        x, w = (kf.astype(kf.asarray(arrange(rng, case[n])), getattr(kf, dtype)) for n in "xw")
        b = case["b"] if case["b"] is None else kf.astype(kf.asarray(case["b"]), getattr(kf, dtype))
        exact = [None if a is None else np.asarray(kf.astype(a, kf.float64)) for a in (x, w, b)]
        expected = reference(*exact, stride, padding, dilation, groups)
        sizes = [None if a is None else abs(a) for a in exact]
        bound = reference(*sizes, stride, padding, dilation, groups)
        pairs = [n for pair in padding for n in pair]
        found = CONV[rank](x, w, b, stride, pairs, dilation, groups)
        assert found.dtype == getattr(kf, dtype)
        error = abs(np.asarray(kf.astype(found, kf.float64)) - expected)
        steps = 4 * np.sqrt(w.shape[1] * np.prod(w.shape[2:]) + 1)
        accumulated = EPS["float32" if "16" in dtype else dtype] * steps * bound
        # Below the normal range float16 has fewer digits.
        smallest = 2.0**-24 if dtype == "float16" else 0.0
        assert (error <= accumulated + 2 * EPS[dtype] * abs(expected) + smallest).all()


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_gradients_are_the_adjoints(rank: int) -> None:
    """<dy, conv(x, w)> is linear in x and in w, so its gradients follow from one-sided products."""
    rng = np.random.default_rng(10 + rank)
    for _ in range(8):
        case = problem(rng, rank)
        stride, padding, dilation, groups = case["settings"]
        x, w = leaf(case["x"]), leaf(case["w"])
        b = leaf(rng.standard_normal(case["w"].shape[0]))
        pairs = [n for pair in padding for n in pair]
        y = CONV[rank](x, w, b, stride, pairs, dilation, groups)
        dy = rng.standard_normal(y.shape)
        dx, dw, db = kf.grad(kf.sum(kf.multiply(y, kf.asarray(dy))), [x, w, b])
        tx, tw = rng.standard_normal(x.shape), rng.standard_normal(w.shape)
        of_x = (dy * reference(tx, case["w"], None, stride, padding, dilation, groups)).sum()
        of_w = (dy * reference(case["x"], tw, None, stride, padding, dilation, groups)).sum()
        assert np.isclose((np.asarray(dx) * tx).sum(), of_x, rtol=1e-9, atol=1e-8)
        assert np.isclose((np.asarray(dw) * tw).sum(), of_w, rtol=1e-9, atol=1e-8)
        assert np.allclose(np.asarray(db), dy.sum((0, *range(2, rank + 2))), rtol=1e-9)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_transposed_convolutions_are_gradients(rank: int) -> None:
    rng = np.random.default_rng(20 + rank)
    for _ in range(6):
        case = problem(rng, rank)
        stride, _, dilation, groups = case["settings"]
        sizes = zip(case["x"].shape[2:], case["w"].shape[2:], dilation, strict=True)
        if any(n <= (k - 1) * d for n, k, d in sizes):
            continue
        x, w = leaf(case["x"]), kf.asarray(case["w"])
        y = CONV[rank](x, w, None, stride, 0, dilation, groups)
        dy = kf.asarray(rng.standard_normal(y.shape))
        (dx,) = kf.grad(kf.sum(kf.multiply(y, dy)), [x])
        found = TRANSPOSE[rank](dy, w, None, stride, 0, 0, groups, dilation)
        inner = tuple(slice(0, n) for n in found.shape)
        assert np.allclose(np.asarray(dx)[inner], np.asarray(found), rtol=1e-12, atol=1e-12)


def test_the_words_valid_and_same() -> None:
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal((2, 3, 9)), rng.standard_normal((4, 3, 4))
    same = np.asarray(kf.conv1d(kf.asarray(x), kf.asarray(w), padding="same", dilation=2))
    assert same.shape == (2, 4, 9)
    assert np.allclose(same, reference(x, w, None, [1], [(3, 3)], [2], 1))
    valid = kf.conv1d(kf.asarray(x), kf.asarray(w), padding="valid", stride=2)
    assert np.allclose(np.asarray(valid), reference(x, w, None, [2], [(0, 0)], [1], 1))


def test_one_image_without_a_dimension_for_images() -> None:
    rng = np.random.default_rng(4)
    x, w = rng.standard_normal((3, 6, 7)), rng.standard_normal((5, 3, 3, 2))
    found = kf.conv2d(kf.asarray(x), kf.asarray(w), padding=1)
    expected = reference(x[None], w, None, [1, 1], [(1, 1), (1, 1)], [1, 1], 1)[0]
    assert np.allclose(np.asarray(found), expected)


def test_no_images_and_no_channels() -> None:
    w = kf.asarray(np.ones((4, 3, 2, 2)))
    assert kf.conv2d(kf.asarray(np.ones((0, 3, 5, 5))), w).shape == (0, 4, 4, 4)
    x, w = kf.asarray(np.ones((2, 0, 5, 5))), kf.asarray(np.ones((4, 0, 2, 2)))
    none = kf.conv2d(x, w, kf.asarray(np.arange(4.0)))
    expected = np.broadcast_to(np.arange(4.0)[:, None, None], (2, 4, 4, 4))
    assert np.array_equal(np.asarray(none), expected)


def test_activations_follow_the_sum() -> None:
    rng = np.random.default_rng(5)
    x, w, b = (kf.asarray(rng.standard_normal(s)) for s in ((2, 3, 8, 9), (8, 3, 3, 3), (8,)))
    plain = kf.conv2d(x, w, b, 1, 1)
    for name in ["relu", "gelu", "sigmoid", "tanh"]:
        fused = kf.convolution_activation(x, w, b, padding=1, activation=name)
        assert np.allclose(np.asarray(fused), np.asarray(getattr(kf, name)(plain)), rtol=1e-13)


def test_halves_past_their_range_are_infinite_and_nan_propagates() -> None:
    x, w = np.full((1, 2, 3), 200.0, np.float16), np.full((1, 2, 1), 200.0, np.float16)
    assert np.isposinf(np.asarray(kf.conv1d(kf.asarray(x), kf.asarray(w)))).all()
    x[0, 0, 1] = np.nan
    found = np.asarray(kf.conv1d(kf.asarray(x), kf.asarray(w)))
    assert np.isnan(found[0, 0, 1])
    assert np.isposinf(found[0, 0, [0, 2]]).all()


def test_strides_beyond_the_input() -> None:
    """Few places are seen, and the product of the longer strides overflows."""
    rng = np.random.default_rng(6)
    data, weight = rng.standard_normal((2, 3, 4, 5)), rng.standard_normal((4, 3, 2, 2))
    for stride in (7, 1 << 33):
        x, w = leaf(data), leaf(weight)
        y = kf.conv2d(x, w, stride=stride)
        wanted = reference(data, weight, None, [7, 7], [(0, 0)] * 2, [1, 1], 1)
        assert np.allclose(np.asarray(y.detach()), wanted)
        dx, dw = kf.grad(kf.sum(y), [x, w])
        expected = np.zeros_like(data)
        expected[:, :, :2, :2] = weight.sum(0)
        assert np.allclose(np.asarray(dx), expected)
        seen = np.broadcast_to(data[:, :, :2, :2].sum(0), weight.shape)
        assert np.allclose(np.asarray(dw), seen)


@pytest.mark.parametrize("sizes", [1, 2, 3])
def test_padding_that_no_copy_holds_is_an_error(sizes: int) -> None:
    """The gradient copies an input with its padding, whose elements may be too many to count."""
    x, w = leaf(np.ones((1, 1, *[1] * sizes))), leaf(np.ones((1, 1, *[1] * sizes)))
    y = CONV[sizes](x, w, stride=1 << 45, padding=1 << 45)
    assert np.asarray(y.detach()).sum() == 1
    with pytest.raises(MemoryError, match="of the padded input"):
        kf.grad(kf.sum(y), [w])


X, W = np.ones((2, 4, 5, 5)), np.ones((6, 4, 3, 3))


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"x": np.ones((2, 4, 2, 5))}, kf.ShapeError, "the kernel spans 3 elements"),
        ({"stride": 0}, kf.InvalidValue, "argument 'stride' has 0; it has to be at least 1"),
        ({"dilation": 0}, kf.InvalidValue, "argument 'dilation' has 0"),
        ({"padding": -1}, kf.InvalidValue, "argument 'padding' has -1; it has to be at least 0"),
        ({"groups": 0}, kf.InvalidValue, "argument 'groups' is 0"),
        ({"groups": 3}, kf.ShapeError, "argument 'groups' is 3, which divides"),
        ({"x": np.ones((2, 3, 5, 5))}, kf.ShapeError, "has 3 channels; .* it has 4"),
        ({"x": np.ones((5, 5))}, kf.ShapeError, "argument 'x' has shape"),
        ({"w": np.ones((6, 4, 3))}, kf.ShapeError, "argument 'weight' has shape"),
        ({"w": np.ones((6, 4, 0, 3))}, kf.ShapeError, "a kernel has at least 1 place"),
        ({"bias": np.ones(5)}, kf.ShapeError, r"argument 'bias' has shape \[5\]; .* \[6\]"),
        ({"x": X.astype(np.int64)}, kf.DTypeError, "argument 'x': dtype int64"),
        ({"padding": "some"}, kf.InvalidValue, "'valid' or 'same'"),
        ({"padding": "same", "stride": 2}, kf.InvalidValue, "needs a stride of 1"),
        ({"padding": 1 << 62}, kf.ShapeError, "out of range"),
    ],
)
def test_errors_say_what_would_be_right(change: dict[str, Any], error: type, text: str) -> None:
    given = {"x": X, "w": W, "bias": None, **change}
    x, w = kf.asarray(given.pop("x")), kf.asarray(given.pop("w"))
    bias = given.pop("bias")
    with pytest.raises(error, match=text) as raised:
        kf.conv2d(x, w, bias if bias is None else kf.asarray(bias), **given)
    assert "aten::conv2d" in str(raised.value)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_forward_mode_is_the_sum_of_both_directions(rank: int) -> None:
    rng = np.random.default_rng(30 + rank)
    case = problem(rng, rank)
    stride, padding, dilation, groups = case["settings"]
    pairs = [n for pair in padding for n in pair]
    tx, tw = rng.standard_normal(case["x"].shape), rng.standard_normal(case["w"].shape)

    def call(x: Any, w: Any) -> Any:
        return CONV[rank](x, w, None, stride, pairs, dilation, groups)

    primals = [kf.asarray(case["x"]), kf.asarray(case["w"])]
    _, tangent = kf.jvp(call, primals, [kf.asarray(tx), kf.asarray(tw)])
    expected = reference(tx, case["w"], None, stride, padding, dilation, groups)
    expected += reference(case["x"], tw, None, stride, padding, dilation, groups)
    assert np.allclose(np.asarray(tangent), expected, rtol=1e-10, atol=1e-10)


def test_beside_pytorch() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(40)
    for _ in range(10):
        case = problem(rng, 2)
        stride, _, dilation, groups = case["settings"]
        x, w = case["x"], case["w"]
        args = (stride, [2, 1], dilation, groups)
        tx, tw = torch.tensor(x, requires_grad=True), torch.tensor(w, requires_grad=True)
        try:
            expected = torch.nn.functional.conv2d(tx, tw, None, *args)
        except RuntimeError:
            continue
        kx, kw = leaf(x), leaf(w)
        found = kf.conv2d(kx, kw, None, *args)
        assert np.allclose(np.asarray(found.detach()), expected.detach().numpy(), atol=1e-11)
        theirs = torch.autograd.grad(expected.square().sum(), [tx, tw])
        ours = kf.grad(kf.sum(kf.multiply(found, found)), [kx, kw])
        for a, b in zip(ours, theirs, strict=True):
            assert np.allclose(np.asarray(a), b.numpy(), atol=1e-9)
