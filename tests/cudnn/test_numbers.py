"""The methods of a graph pass their arguments where they belong: numbers against NumPy's."""

import doctest

import numpy as np
import pytest

import keyfold as kf

rng = np.random.default_rng(11)


def compute(build, *arrays):
    """The outputs of a graph, whose tensors are those of the arrays; `build(g, *tensors)`."""
    g = kf.cudnn.Graph(io_data_type="float32")
    tensors = [g.tensor_like(array) for array in arrays]
    made = build(g, *tensors)
    made = [one for one in (made if isinstance(made, tuple) else (made,)) if one is not None]
    for one in made:
        one.set_output(True)
    out = g.build(precision="float64")(dict(zip(tensors, arrays, strict=True)))
    return [out[one] for one in made]


def floats(*dims):
    return rng.uniform(0.5, 2.0, size=dims).astype(np.float32)


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda g, a, b: g.sub(a, b, alpha2=2.0), lambda a, b: a - 2 * b),
        (lambda g, a, b: g.add(a, b, alpha1=3.0), lambda a, b: 3 * a + b),
        (lambda g, a, b: g.div(a, b), lambda a, b: a / b),
        (lambda g, a, b: g.pow(a, b), lambda a, b: a**b),
        (lambda g, a, b: g.mod(a, b), np.fmod),
        (lambda g, a, b: g.atan2(a, b), np.arctan2),
        (lambda g, a, b: g.add_square(a, b), lambda a, b: a + b * b),
        (lambda g, a, b: g.binary_select(a, b, g.cmp_gt(a, b)), np.maximum),
        (lambda g, a, b: g.sub(a, g.scalar(1.0)), lambda a, b: a - 1),
        (
            lambda g, a, b: g.leaky_relu(g.sub(a, b), 0.5),
            lambda a, b: np.where(a > b, a - b, (a - b) / 2),
        ),
        (lambda g, a, b: g.elu(g.neg(a), elu_alpha=2.0), lambda a, b: 2 * np.expm1(-a)),
        (lambda g, a, b: g.swish(a, swish_beta=2.0), lambda a, b: a / (1 + np.exp(-2 * a))),
        (
            lambda g, a, b: g.relu_backward(a, g.sub(b, g.scalar(1.0))),
            lambda a, b: np.where(b > 1, a, 0),
        ),
        (
            lambda g, a, b: g.sigmoid_backward(a, b),
            lambda a, b: a * np.exp(-b) / (1 + np.exp(-b)) ** 2,
        ),
        (lambda g, a, b: g.gen_index(g.mul(a, b), 1), lambda a, b: np.indices((3, 4))[1]),
    ],
)
def test_functions_of_elements(build, expected):
    a, b = floats(3, 4), floats(3, 4)

    def used(g, x, y):
        # Both are read, so that neither is a tensor too many.
        return g.identity(build(g, x, y)), g.add(x, y)

    np.testing.assert_allclose(compute(used, a, b)[0], expected(a, b), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("add", np.sum),
        ("MAX", np.max),
        ("min", np.min),
        ("avg", np.mean),
        ("mul", np.prod),
        ("norm2", lambda x, **kw: np.sqrt(np.sum(x * x, **kw))),
    ],
)
def test_reductions(mode, expected):
    x = floats(2, 3, 4)
    (out,) = compute(lambda g, t: g.reduction(t, mode, dim=[2, 1, 4]), x)
    np.testing.assert_allclose(out, expected(x, axis=1, keepdims=True), rtol=1e-5)


def test_what_moves_elements():
    x, y = floats(2, 3, 4), floats(2, 5, 4)
    out = compute(
        lambda g, a, b: (
            g.transpose(a, [2, 0, 1]),
            g.slice(a, [slice(1, 2), slice(None), slice(0, 4, 3)]),
            g.concatenate([a, b], axis=1),
            g.reshape(a, [6, 4]),
        ),
        x,
        y,
    )
    expected = [x.transpose(2, 0, 1), x[1:2, :, ::3], np.concatenate([x, y], 1), x.reshape(6, 4)]
    for got, wanted in zip(out, expected, strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_norms():
    x, scale, bias = floats(6, 5, 1, 1), floats(1, 5, 1, 1), floats(1, 5, 1, 1)
    y, mean, inv = compute(lambda g, *t: g.layernorm("training", *t, epsilon=0.25), x, scale, bias)
    expected_inv = 1 / np.sqrt(x.var(1, keepdims=True) + 0.25)
    normal = (x - x.mean(1, keepdims=True)) * expected_inv
    np.testing.assert_allclose(y, normal * scale + bias, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(mean, x.mean(1, keepdims=True), rtol=1e-5)
    np.testing.assert_allclose(inv, expected_inv, rtol=1e-5)
    mean, inv = floats(1, 5, 1, 1), floats(1, 5, 1, 1)
    (y,) = compute(lambda g, *t: g.batchnorm_inference(*t), x, mean, inv, scale, bias)
    np.testing.assert_allclose(y, (x - mean) * inv * scale + bias, rtol=1e-5)


def test_batchnorm_in_training_moves_the_running_statistics():
    x, scale, bias, mean, var = floats(4, 3, 2, 2), *(floats(1, 3, 1, 1) for _ in range(4))
    out = compute(lambda g, *t: g.batchnorm(*t, momentum=0.25), x, scale, bias, mean, var)
    batch = x.mean((0, 2, 3), keepdims=True)
    np.testing.assert_allclose(out[1], batch, rtol=1e-5)
    np.testing.assert_allclose(out[3], 0.75 * mean + 0.25 * batch, rtol=1e-5)


def test_attention():
    q, k, v = floats(1, 2, 3, 4), floats(1, 2, 3, 4), floats(1, 2, 3, 4)
    scores = 0.5 * q @ k.swapaxes(2, 3)
    scores = np.where(np.tri(3, dtype=bool), scores, -np.inf)
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    (o,) = compute(lambda g, *t: g.sdpa(*t, attn_scale=0.5, use_causal_mask=True), q, k, v)
    np.testing.assert_allclose(o, weights @ v, rtol=1e-5)


def test_pooling_and_its_gradient():
    x = floats(1, 1, 4, 4)

    def build(g, t):
        y, index = g.resample(t, window=2, generate_index=True)
        return y, g.resample_backward(y, index=index, window=2)

    y, back = compute(build, x)
    windows = x.reshape(2, 2, 2, 2).swapaxes(1, 2).reshape(2, 2, 4)
    np.testing.assert_array_equal(y[0, 0], windows.max(-1))
    np.testing.assert_array_equal(back, np.where(np.isin(x, y), x, 0))


def test_products():
    a, b = floats(2, 3, 4), floats(2, 4, 5)
    (c,) = compute(lambda g, *t: g.matmul(*t), a, b)
    np.testing.assert_allclose(c, a @ b, rtol=1e-5)


@pytest.mark.parametrize("name", ["Graph", "GraphTensor", "Plan", "PlanCache", "Results"])
def test_the_examples_in_docstrings_run(name):
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner()
    for test in finder.find(getattr(kf.cudnn, name), name, globs={"kf": kf}):
        runner.run(test)
    assert runner.summarize(verbose=False).failed == 0
