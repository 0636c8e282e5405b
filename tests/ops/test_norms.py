"""Layer norm, RMS norm, group norm, batch norm and instance norm, and gradients of softmax, against
NumPy in float64: values, gradients, running statistics, edges, and what is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keyfold as kf
from tests.helpers.random_arrays import (
    FLOATS,
    computed,
    elements,
    examples,
    lay_out,
    layouts,
    numbers,
)

aten = kf.ops.aten
EPS = 1e-2


def standard(x, axes, eps=EPS, centered=True):
    """The normalized elements in float64."""
    x = np.asarray(x, np.float64)
    mean = x.mean(axes, keepdims=True) if centered else 0
    return (x - mean) / np.sqrt(((x - mean) ** 2).mean(axes, keepdims=True) + eps)


def gradients(g, x, w, axes, outer, eps=EPS, centered=True):
    """The gradients of elements, weights and biases; `outer` are the axes of one weight."""
    mean = x.mean(axes, keepdims=True) if centered else 0
    r = 1 / np.sqrt(((x - mean) ** 2).mean(axes, keepdims=True) + eps)
    normal, weighted = (x - mean) * r, g * w
    along = normal * (weighted * normal).mean(axes, keepdims=True)
    dx = r * (weighted - along - (weighted.mean(axes, keepdims=True) if centered else 0))
    return dx, (g * normal).sum(outer), g.sum(outer)


def draw(data, dtype, shape, span=(-4, 4), repeat=True):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    values = elements(rng, dtype, shape, span)
    array = lay_out(values, data.draw(layouts(shape, repeat=repeat)), dtype)
    if dtype != "bfloat16" and data.draw(st.booleans()):
        array = kf.asarray(array)
    return numbers(array).astype(np.float64), array


def tolerance(dtype, count):
    eps = float(np.finfo(computed(dtype)).eps)
    last = {"float16": 2.0**-10, "bfloat16": 2.0**-7}.get(dtype, eps)
    return 2 * last + 40 * eps * np.sqrt(count)


def close(got, expected, dtype, count):
    got = numbers(got)
    size = max(1.0, float(np.abs(expected).max(initial=0)))
    assert got.shape == expected.shape
    worst = float(np.abs(got - expected).max(initial=0))
    assert worst <= tolerance(dtype, count) * size * 4, (worst, size, dtype, count)


LAST = st.one_of(
    st.tuples(st.lists(st.integers(1, 5), max_size=3), st.integers(1, 40)),
    st.tuples(st.just([3]), st.integers(1000, 5000)),
    st.tuples(st.just([300]), st.integers(60, 70)),
    st.tuples(st.just([2]), st.just(70000)),
)


@pytest.mark.one_python
@examples(80)
@given(data=st.data())
def test_layer_norm_and_rms_norm(data):
    dtype = data.draw(st.sampled_from(FLOATS))
    outer, last = data.draw(LAST)
    shape = (*outer, last)
    count = data.draw(st.integers(1, min(2, len(shape))))
    axes, normalized = tuple(range(-count, 0)), shape[len(shape) - count :]
    x, array = draw(data, dtype, shape)
    w, weight = draw(data, dtype, normalized)
    b, bias = draw(data, dtype, normalized)
    length = int(np.prod(normalized))
    got = kf.layer_norm(array, normalized, weight, bias, eps=EPS)
    assert str(got.dtype) == dtype
    close(got, standard(x, axes) * w + b, dtype, length)
    close(kf.layer_norm(array, normalized, eps=EPS), standard(x, axes), dtype, length)
    rms = kf.rms_norm(array, normalized, weight, eps=EPS)
    close(rms, standard(x, axes, centered=False) * w, dtype, length)
    g, grad = draw(data, dtype, shape)
    outer_axes = tuple(range(len(shape) - count))
    for centered in (True, False):
        expected = gradients(g, x, w, axes, outer_axes, centered=centered)
        if centered:
            _, mean, rstd = aten.native_layer_norm(array, normalized, weight, bias, EPS)
            found = aten.native_layer_norm_backward(
                grad, array, normalized, mean, rstd, weight, bias, [True] * 3
            )
        else:
            _, rstd = aten._fused_rms_norm(array, normalized, weight, EPS)
            found = aten._fused_rms_norm_backward(grad, array, normalized, rstd, weight, [True] * 2)
        rows = x.size // length
        for one, wanted, terms in zip(found, expected, (length, rows, rows), strict=False):
            close(one, wanted, dtype, terms * 4)


CHANNELS = st.one_of(
    st.tuples(st.integers(1, 4), st.integers(1, 9), st.lists(st.integers(1, 6), max_size=2)),
    st.tuples(st.integers(1, 3), st.sampled_from([4, 6, 32]), st.just([40, 60])),
    st.tuples(st.sampled_from([70, 300]), st.sampled_from([5, 300]), st.just([])),
    st.tuples(st.just(2), st.just(2), st.just([150, 150])),
    st.tuples(st.integers(1, 3), st.just(6), st.sampled_from([[31], [32], [2049]])),
)


def beside(w, rank):
    return w.reshape(-1, *[1] * (rank - 2))


@pytest.mark.one_python
@examples(80)
@given(data=st.data())
def test_batch_norm(data):
    dtype = data.draw(st.sampled_from(FLOATS))
    n, c, rest = data.draw(CHANNELS)
    shape, axes = (n, c, *rest), (0, *range(2, 2 + len(rest)))
    x, array = draw(data, dtype, shape)
    w, weight = draw(data, dtype, (c,))
    b, bias = draw(data, dtype, (c,))
    length = x.size // c
    expected = standard(x, axes) * beside(w, x.ndim) + beside(b, x.ndim)
    got = kf.batch_norm(array, None, None, weight, bias, training=True, eps=EPS)
    assert str(got.dtype) == dtype
    close(got, expected, dtype, length)
    g, grad = draw(data, dtype, shape)
    _, mean, rstd = aten._native_batch_norm_legit.no_stats(array, weight, bias, True, 0.1, EPS)
    found = aten.native_batch_norm_backward(
        grad, array, weight, None, None, mean, rstd, True, EPS, [True] * 3
    )
    wanted = gradients(g, x, beside(w, x.ndim), axes, axes)
    for one, expected in zip(found, wanted, strict=True):
        close(one, expected, dtype, length * 4)
    # By running statistics.
    m, mean = draw(data, dtype, (c,))
    v, variance = draw(data, dtype, (c,), (0.5, 4))
    r = 1 / np.sqrt(beside(v, x.ndim) + EPS)
    normal = (x - beside(m, x.ndim)) * r
    got = kf.batch_norm(array, mean, variance, weight, bias, eps=EPS)
    close(got, normal * beside(w, x.ndim) + beside(b, x.ndim), dtype, 1)
    found = aten.native_batch_norm_backward(
        grad, array, weight, mean, variance, None, None, False, EPS, [True] * 3
    )
    wanted = (g * beside(w, x.ndim) * r, (g * normal).sum(axes), g.sum(axes))
    for one, expected in zip(found, wanted, strict=True):
        close(one, expected, dtype, length * 4)


@pytest.mark.one_python
@examples(40)
@given(data=st.data())
def test_group_norm_and_instance_norm(data):
    dtype = data.draw(st.sampled_from(FLOATS))
    n, c, rest = data.draw(CHANNELS)
    groups = data.draw(st.sampled_from([g for g in range(1, c + 1) if c % g == 0]))
    shape = (n, c, *rest)
    x, array = draw(data, dtype, shape)
    w, weight = draw(data, dtype, (c,))
    b, bias = draw(data, dtype, (c,))
    grouped = x.reshape(n, groups, -1)
    affine = lambda y: y.reshape(shape) * beside(w, x.ndim) + beside(b, x.ndim)  # noqa: E731
    length = grouped.shape[2]
    got = kf.group_norm(array, groups, weight, bias, eps=EPS)
    assert str(got.dtype) == dtype
    close(got, affine(standard(grouped, (2,))), dtype, length)
    each = standard(x.reshape(n, c, -1), (2,))
    got = kf.instance_norm(array, weight=weight, bias=bias, eps=EPS)
    close(got, affine(each), dtype, x.size // (n * c))
    g, grad = draw(data, dtype, shape)
    sizes = (n, c, x.size // (n * c), groups)
    _, mean, rstd = aten.native_group_norm(array, weight, bias, *sizes, EPS)
    found = aten.native_group_norm_backward(grad, array, mean, rstd, weight, *sizes, [True] * 3)
    by_channel = np.broadcast_to(beside(w, x.ndim), shape).reshape(grouped.shape)
    dx, *_ = gradients(g.reshape(grouped.shape), grouped, by_channel, (2,), ())
    axes = (0, *range(2, x.ndim))
    normal = standard(grouped, (2,)).reshape(shape)
    wanted = (dx.reshape(shape), (g * normal).sum(axes), g.sum(axes))
    for one, expected in zip(found, wanted, strict=True):
        close(one, expected, dtype, max(length, x.size // c) * 4)


def test_running_statistics_are_updated_in_place():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(5, 3, 4)) * 2 + 1
    mean, variance = np.zeros(3), np.ones(3)
    kf.batch_norm(x, mean, variance, training=True, momentum=0.25)
    assert np.allclose(mean, 0.25 * x.mean((0, 2)))
    assert np.allclose(variance, 0.75 + 0.25 * x.var((0, 2), ddof=1))
    before = mean.copy()
    kf.batch_norm(x, mean, variance)
    assert np.array_equal(mean, before)
    mean, variance = np.zeros(3), np.ones(3)
    kf.instance_norm(x, mean, variance, momentum=0.25)
    assert np.allclose(mean, 0.25 * x.mean(2).mean(0))
    assert np.allclose(variance, 0.75 + 0.25 * x.var(2, ddof=1).mean(0))


def test_means_do_not_cancel():
    x = (np.random.default_rng(0).normal(size=(4, 1000)) + 4096).astype(np.float32)
    for got in (kf.layer_norm(x, (1000,)), kf.group_norm(x.reshape(4, 10, 100), 1).reshape(4, -1)):
        assert np.abs(got - standard(x, (1,), 1e-5)).max() < 1e-3
    got = kf.batch_norm(x.T.copy(), training=True)
    assert np.abs(got - standard(x.T, (0,), 1e-5)).max() < 1e-3


def test_halves_and_weights_of_float32():
    x, w = np.random.default_rng(0).normal(size=(3, 64)).astype(np.float16), np.ones(64, np.float32)
    got = kf.layer_norm(x, (64,), w, w)
    assert got.dtype == np.float16
    assert np.abs(got - (standard(x, (1,), 1e-5) + 1)).max() < 4e-3
    _, mean, rstd = aten.native_layer_norm(x, (64,), w, w, 1e-5)
    assert mean.dtype == rstd.dtype == np.float32
    grads = aten.native_layer_norm_backward(x, x, (64,), mean, rstd, w, w, [True] * 3)
    assert [grad.dtype for grad in grads] == [np.float16, np.float32, np.float32]


def test_edges():
    assert kf.layer_norm(np.ones((0, 4)), (4,)).shape == (0, 4)
    assert kf.group_norm(np.ones((0, 4, 2)), 2).shape == (0, 4, 2)
    assert np.array_equal(kf.layer_norm(np.full((2, 5), 3.0), (5,)), np.zeros((2, 5)))
    got = kf.layer_norm(np.array([[1.0, np.nan, 2.0], [1.0, 2.0, 3.0]]), (3,))
    assert np.all(np.isnan(got[0]))
    assert not np.any(np.isnan(got[1]))
    got = kf.layer_norm(np.array([[1.0, np.inf, 2.0]]), (3,))
    assert np.all(np.isnan(got))
    grads = aten.native_layer_norm_backward(
        np.ones((0, 4)),
        np.ones((0, 4)),
        (4,),
        np.ones((0, 1)),
        np.ones((0, 1)),
        np.ones(4),
        None,
        [True] * 3,
    )
    assert np.array_equal(grads[1], np.zeros(4))
    assert grads[0].shape == (0, 4)
    none = aten.native_layer_norm_backward(
        np.ones((2, 4)),
        np.ones((2, 4)),
        (4,),
        np.ones((2, 1)),
        np.ones((2, 1)),
        None,
        None,
        [False, False, True],
    )
    assert none[0] is None
    assert none[1] is None
    assert np.array_equal(none[2], [2.0] * 4)


@pytest.mark.parametrize("dim", [-1, 0, 1])
@pytest.mark.parametrize("dtype", FLOATS)
def test_gradients_of_softmax(dtype, dim):
    rng = np.random.default_rng(0)
    x, grad = (kf.asarray(rng.normal(size=(7, 70, 3))).to(dtype) for _ in range(2))
    for log in (False, True):
        output = (kf.log_softmax if log else kf.softmax)(x, axis=dim)
        name = "_log_softmax_backward_data" if log else "_softmax_backward_data"
        got = getattr(aten, name)(grad, output, dim, getattr(kf, dtype))
        g, s = (numbers(t).astype(np.float64) for t in (grad, output))
        if log:
            expected = g - np.exp(s) * g.sum(dim, keepdims=True)
        else:
            expected = s * (g - (g * s).sum(dim, keepdims=True))
        close(got, expected, dtype, 70)


def test_gradients_and_tangents_of_functions():
    rng = np.random.default_rng(0)
    x, w, b = rng.normal(size=(3, 4, 5)), rng.normal(size=5), rng.normal(size=5)
    cw, cb = rng.normal(size=4), rng.normal(size=4)
    functions = [
        (lambda x, w, b: kf.layer_norm(x, (5,), w, b), (x, w, b)),
        (lambda x, w: kf.rms_norm(x, (5,), w, eps=0.1), (x, w)),
        (lambda x, w, b: kf.group_norm(x, 2, w, b), (x, cw, cb)),
        (lambda x, w, b: kf.batch_norm(x, weight=w, bias=b, training=True), (x, cw, cb)),
        (lambda x, w, b: kf.batch_norm(x, cb, cw**2 + 1, w, b), (x, cw, cb)),
        (lambda x, w, b: kf.instance_norm(x, weight=w, bias=b), (x, cw, cb)),
    ]
    for function, inputs in functions:
        assert kf.gradcheck(function, inputs)
        assert kf.gradgradcheck(function, inputs)


def refused(kind, words, function, *args, **kwargs):
    with pytest.raises(kind) as caught:
        function(*args, **kwargs)
    for word in words:
        assert word in str(caught.value), (word, str(caught.value))


def test_what_does_not_fit_is_refused():
    x, c = np.ones((2, 6, 4)), np.ones(6)
    shape, dtype, value = kf.ShapeError, kf.DTypeError, kf.InvalidValue
    layer = "aten::native_layer_norm"
    refused(shape, [layer, "'normalized_shape'", "[6]", "[2, 6, 4]"], kf.layer_norm, x, (6,))
    refused(shape, [layer, "'normalized_shape'"], kf.layer_norm, x, ())
    refused(shape, [layer, "'normalized_shape'"], kf.layer_norm, x, (1, 2, 6, 4))
    refused(shape, [layer, "'weight'", "[6]", "[4]"], kf.layer_norm, x, (4,), c)
    refused(shape, [layer, "'bias'"], kf.layer_norm, x, (4,), None, c)
    refused(dtype, [layer, "'weight'", "float32"], kf.layer_norm, x, (4,), np.ones(4, np.float32))
    refused(dtype, [layer, "int64"], kf.layer_norm, np.ones((2, 3), int), (3,))
    refused(dtype, ["complex128"], kf.rms_norm, np.ones((2, 3)) + 0j, (3,))
    refused(value, ["no elements"], kf.layer_norm, np.ones((2, 0)), (0,))
    for eps in (-1.0, np.nan, np.inf):
        refused(value, [layer, "'eps'"], kf.layer_norm, x, (4,), eps=eps)
        refused(value, ["'eps'"], kf.rms_norm, x, (4,), eps=eps)
        refused(value, ["'eps'"], kf.batch_norm, x, training=True, eps=eps)
        refused(value, ["'eps'"], kf.group_norm, x, 2, eps=eps)
    for groups in (0, -2, 4, 7):
        refused(value, ["aten::group_norm", "'num_groups'", "6 channels"], kf.group_norm, x, groups)
    refused(shape, ["'weight'", "[4]", "[6]"], kf.group_norm, x, 2, np.ones(4))
    refused(shape, ["channels"], kf.batch_norm, np.ones(3), training=True)
    refused(
        shape, ["'running_mean'", "[5]"], kf.batch_norm, x, np.ones(5), np.ones(5), training=True
    )
    refused(value, ["'running_mean'", "'running_var'"], kf.batch_norm, x, c, training=True)
    refused(value, ["'running_mean'", "None"], kf.batch_norm, x)
    refused(value, ["no elements"], kf.batch_norm, np.ones((0, 3)), training=True)
    refused(value, ["unbiased"], kf.batch_norm, np.ones((1, 6)), c, c.copy(), training=True)
    for momentum in (-0.5, 1.5, np.nan):
        mean, variance = np.zeros(6), np.ones(6)
        refused(
            value,
            ["'momentum'"],
            kf.batch_norm,
            x,
            mean,
            variance,
            training=True,
            momentum=momentum,
        )
        assert not mean.any()
        assert np.all(variance == 1)
    # Nothing is written where one of the statistics can't be.
    mean, variance = np.zeros(6), np.ones(6)
    variance.flags.writeable = False
    refused(
        kf.Error,
        ["aten::batch_norm", "'running_var'"],
        kf.batch_norm,
        x,
        mean,
        variance,
        training=True,
    )
    assert not mean.any()
    g = np.ones((2, 6, 4))
    refused(
        shape,
        ["'grad_out'"],
        aten.native_layer_norm_backward,
        g[:1],
        x,
        (4,),
        g[..., :1],
        g[..., :1],
        None,
        None,
        [True] * 3,
    )
    refused(
        shape, ["'mean'"], aten.native_layer_norm_backward, g, x, (4,), c, c, None, None, [True] * 3
    )
    refused(
        kf.BindingError,
        ["'output_mask'"],
        aten._fused_rms_norm_backward,
        g,
        x,
        (4,),
        g[..., :1],
        None,
        [True] * 3,
    )
    refused(
        value,
        ["'save_mean'"],
        aten.native_batch_norm_backward,
        g,
        x,
        None,
        None,
        None,
        None,
        None,
        True,
        EPS,
        [True] * 3,
    )


def test_against_torch():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    x, w, b = (rng.normal(size=s).astype(np.float32) for s in ((4, 6, 5, 5), (6,), (6,)))
    t = torch.from_numpy
    functional = torch.nn.functional
    got = kf.batch_norm(x, None, None, w, b, training=True)
    assert np.allclose(got, functional.batch_norm(t(x), None, None, t(w), t(b), True), atol=1e-5)
    got = kf.group_norm(x, 3, w, b)
    assert np.allclose(got, functional.group_norm(t(x), 3, t(w), t(b)), atol=1e-5)
    got = kf.layer_norm(x, (5, 5))
    assert np.allclose(got, functional.layer_norm(t(x), (5, 5)), atol=1e-5)
    got = kf.rms_norm(x, (5,))
    assert np.allclose(got, functional.rms_norm(t(x), (5,)), atol=1e-5)


@pytest.mark.parametrize("norm", [kf.batch_norm, kf.instance_norm])
def test_running_statistics_that_cant_be_updated_leave_both_as_they_were(norm):
    mean, variance = kf.zeros((3,)), kf.ones((3,)).requires_grad_()
    x = kf.ones((2, 3, 4))
    options = {"training": True} if norm is kf.batch_norm else {}
    with pytest.raises(kf.GradientError, match="'running_var' requires grad"):
        norm(x, mean, variance, **options)
    assert not np.asarray(mean).any()
    with kf.no_grad():
        norm(x, mean, variance, **options)
    assert np.allclose(np.asarray(mean), 0.1)
