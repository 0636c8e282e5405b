"""An operator defined a minute ago, with a CPU kernel in Python and nothing else, under each layer:
it works by the general way, or fails with the typed error that the layer promises; then with its
rule."""

import numpy as np
import pytest

import keyfold as kf

X = np.linspace(-1.0, 1.0, 4)
BATCH = np.stack([X, X + 1.0, X + 2.0])


@pytest.fixture
def op():
    handles = [kf.define("own_op::bump(Tensor x, float k=2.0) -> Tensor")]
    calls = []

    def bump(x, k):
        calls.append(x)
        return np.asarray(x) * np.asarray(x) * k

    handles.append(kf.impl("own_op::bump", "CPU", bump))
    operator = kf.get_op("own_op::bump")
    yield operator, calls, handles
    for handle in reversed(handles):
        handle.remove()


def test_tracer(op):
    bump, _, _ = op
    graph = kf.trace(lambda x: bump(x) + 1.0, X)
    assert [node.operator for node in graph.nodes] == ["own_op::bump", "aten::add.Scalar"]
    assert np.allclose(graph(X + 1.0), 2 * (X + 1.0) ** 2 + 1.0)


def test_profiler(op):
    bump, _, _ = op
    with kf.profile() as p:
        bump(X)
    assert [event["name"] for event in p.events] == ["own_op::bump"]


def test_vmap(op):
    bump, calls, handles = op
    assert np.allclose(kf.vmap(bump)(BATCH), 2 * BATCH**2)
    assert len(calls) == 3, "the general way is a call per example"

    def rule(info, in_dims, x, k):
        return bump(x, k), in_dims[0]

    handles.append(kf.register_vmap(bump, rule))
    del calls[:]
    assert np.allclose(kf.vmap(bump)(BATCH), 2 * BATCH**2)
    assert len(calls) == 1, "the rule calls it once for all"


def test_autograd(op):
    bump, _, handles = op
    x = kf.asarray(X).requires_grad_()
    y = bump(x, 3.0)
    assert np.allclose(y.detach().numpy(), 3 * X**2)
    with pytest.raises(kf.GradientError, match="own_op::bump has no derivative"):
        y.sum().backward()

    def setup(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.k = inputs[1]

    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0] * (2.0 * ctx.k), None

    handles.append(kf.register_autograd(bump, backward, setup_context=setup))
    bump(x, 3.0).sum().backward()
    assert np.allclose(x.grad.numpy(), 6 * X)
    assert kf.gradcheck(lambda x: bump(x, 3.0), [x])
    assert kf.gradgradcheck(lambda x: bump(x, 3.0), [x])


def test_autocast(op):
    bump, calls, handles = op
    x = kf.asarray(X.astype(np.float32))
    with kf.autocast("float16"):
        assert bump(x).dtype == "float32"
    assert calls[-1] is x, "without a category arguments stay as they are"
    handles.append(kf.register_autocast(bump, category="lower"))
    with kf.autocast("float16"):
        assert bump(x).dtype == "float16"
    assert bump(x).dtype == "float32"


def test_meta(op):
    bump, _, handles = op
    with pytest.raises(kf.MissingKernel, match=r"@keyfold\.register_fake\(\"own_op::bump\"\)"):
        bump(kf.empty((4,), device="meta"))
    handles.append(kf.register_fake(bump, lambda x, k: kf.empty_like(x)))
    assert bump(kf.empty((4,), device="meta")).shape == (4,)
    assert kf.infer_meta(bump, kf.asarray(X)).dtype == "float64"


def test_opcheck_agrees_with_all_of_it(op):
    bump, _, handles = op
    handles.append(kf.register_fake(bump, lambda x, k: kf.empty_like(x)))
    report = kf.opcheck(bump, (kf.asarray(X), 2.0))
    assert report["meta"] == "passed"
    assert report["vmap"] == "passed"
    assert not report.failures
