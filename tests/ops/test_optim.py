"""Optimizers against NumPy in float64, their state, and what they refuse."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keyfold as kf

FLOATS = {"float64": 1e-12, "float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}


class NumpyAdam:
    """One parameter's steps, in float64."""

    def __init__(self, lr, betas, eps, weight_decay, decoupled, amsgrad, maximize):
        self.lr, self.betas, self.eps, self.weight_decay = lr, betas, eps, weight_decay
        self.decoupled, self.amsgrad, self.maximize = decoupled, amsgrad, maximize
        self.m = self.v = self.most = 0.0
        self.t = 0

    def step(self, p, g):
        self.t += 1
        beta1, beta2 = self.betas
        g = -g if self.maximize else g
        if self.decoupled:
            p = p * (1 - self.lr * self.weight_decay)
        else:
            g = g + self.weight_decay * p
        self.m = beta1 * self.m + (1 - beta1) * g
        self.v = beta2 * self.v + (1 - beta2) * g * g
        self.most = np.maximum(self.most, self.v)
        second = (self.most if self.amsgrad else self.v) / (1 - beta2**self.t)
        return p - self.lr * self.m / (1 - beta1**self.t) / (np.sqrt(second) + self.eps)


class NumpySGD:
    """The same, of gradient descent."""

    def __init__(self, lr, momentum, dampening, weight_decay, nesterov, maximize):
        self.lr, self.momentum, self.dampening = lr, momentum, dampening
        self.weight_decay, self.nesterov, self.maximize = weight_decay, nesterov, maximize
        self.buffer = None

    def step(self, p, g):
        g = (-g if self.maximize else g) + self.weight_decay * p
        if not self.momentum:
            return p - self.lr * g
        first = self.buffer is None
        self.buffer = g if first else self.momentum * self.buffer + (1 - self.dampening) * g
        return p - self.lr * (g + self.momentum * self.buffer if self.nesterov else self.buffer)


def lay_out(x, how, dtype):
    """The same elements, which lie contiguously, transposed, with gaps or reversed."""
    if how == "transposed":
        made = kf.asarray(np.ascontiguousarray(x.T)).to(dtype)
        return made.permute(*reversed(range(x.ndim)))
    if how == "gaps":
        wide = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)
        wide[..., ::2] = x
        return kf.asarray(wide).to(dtype)[..., ::2]
    if how == "reversed":
        return kf.asarray(np.ascontiguousarray(x[::-1])).to(dtype)[::-1]
    return kf.asarray(x.copy()).to(dtype)


LAYOUTS = st.sampled_from(["contiguous", "transposed", "gaps", "reversed"])
SHAPES = st.lists(st.integers(1, 40), min_size=1, max_size=3).map(tuple)


def run(made, naive, dtype, shape, layouts, seed):
    """Takes three steps of both, and compares the parameters."""
    rng = np.random.default_rng(seed)
    start = rng.uniform(-1, 1, shape)
    param = lay_out(start, layouts[0], dtype)
    optimizer = made([param.requires_grad_()])
    expected = param.detach().to("float64").numpy().copy()
    for _ in range(3):
        grad = lay_out(rng.uniform(-1, 1, shape), layouts[1], dtype)
        param.grad = grad
        expected = naive.step(expected, grad.to("float64").numpy())
        optimizer.step()
    got = param.detach().to("float64").numpy()
    assert np.allclose(got, expected, rtol=FLOATS[dtype], atol=FLOATS[dtype])


@given(
    dtype=st.sampled_from(sorted(FLOATS)), shape=SHAPES, layouts=st.tuples(LAYOUTS, LAYOUTS),
    decay=st.sampled_from([0.0, 0.1]), flags=st.tuples(*[st.booleans()] * 3),
    betas=st.sampled_from([(0.9, 0.999), (0.0, 0.5), (0.5, 0.0)]), seed=st.integers(0, 99),
)  # fmt: skip
def test_adam_is_numpys(dtype, shape, layouts, decay, flags, betas, seed):
    decoupled, amsgrad, maximize = flags
    options = {"lr": 0.05, "betas": betas, "eps": 1e-3, "weight_decay": decay}
    options |= {"decoupled": decoupled, "amsgrad": amsgrad, "maximize": maximize}
    run(lambda p: kf.optim.Adam(p, **options), NumpyAdam(**options), dtype, shape, layouts, seed)


@given(
    dtype=st.sampled_from(sorted(FLOATS)), shape=SHAPES, layouts=st.tuples(LAYOUTS, LAYOUTS),
    decay=st.sampled_from([0.0, 0.1]), momentum=st.sampled_from([0.0, 0.9]),
    dampening=st.sampled_from([0.0, 0.5]), flags=st.tuples(*[st.booleans()] * 2),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_sgd_is_numpys(dtype, shape, layouts, decay, momentum, dampening, flags, seed):
    nesterov, maximize = flags
    nesterov = nesterov and momentum > 0 and dampening == 0
    options = {"lr": 0.05, "momentum": momentum, "dampening": dampening, "weight_decay": decay}
    options |= {"nesterov": nesterov, "maximize": maximize}
    run(lambda p: kf.optim.SGD(p, **options), NumpySGD(**options), dtype, shape, layouts, seed)


def loss(x):
    return ((x - 3.0) * (x - 3.0)).sum()


@pytest.mark.parametrize(
    "make",
    [
        lambda p: kf.optim.Adam(p, lr=0.1),
        lambda p: kf.optim.Adam(p, lr=0.1, amsgrad=True, weight_decay=0.01, decoupled=True),
        lambda p: kf.optim.SGD(p, lr=0.05, momentum=0.5, nesterov=True),
    ],
)
def test_an_optimizer_descends_and_goes_on_from_its_state(make):
    def train(x, optimizer, steps):
        for _ in range(steps):
            optimizer.zero_grad()
            loss(x).backward()
            optimizer.step()
        return x.detach().numpy().copy()

    x = kf.zeros(5).requires_grad_()
    optimizer = make([x])
    train(x, optimizer, 10)
    saved, kept = x.detach().numpy().copy(), optimizer.state_dict()
    kept = pickle.loads(pickle.dumps(kept))
    both = pickle.loads(pickle.dumps({"x": x, "optimizer": optimizer}))
    further = train(x, optimizer, 200)
    assert abs(further - 3.0).max() < 0.2
    again = kf.asarray(saved).requires_grad_()
    other = make([again])
    other.load_state_dict(kept)
    assert np.array_equal(train(again, other, 200), further)
    assert both["optimizer"].params[0] is both["x"]
    copied = both["x"].detach().requires_grad_()
    both["optimizer"].params = [copied]
    assert np.array_equal(train(copied, both["optimizer"], 200), further)
    # The state was copied, so the first optimizer's steps didn't change it.
    assert kept["state"][0]["step"] == 10


def test_parameters_without_a_gradient_stay():
    x, y = kf.ones(2).requires_grad_(), kf.ones(2).requires_grad_()
    optimizer = kf.optim.Adam([x, y], lr=0.5)
    x.sum().backward()
    optimizer.step()
    assert y.tolist() == [1.0, 1.0]
    assert x.tolist() == pytest.approx([0.5, 0.5])
    optimizer.zero_grad()
    assert x.grad is None
    assert [len(state) for state in optimizer.state_dict()["state"]] == [3, 0]
    assert repr(optimizer).startswith("Adam(2 parameters, lr=0.5, betas=(0.9, 0.999)")


def test_state_of_halves_is_float32():
    x = kf.ones(2, dtype="float16").requires_grad_()
    optimizer = kf.optim.Adam([x])
    x.grad = kf.ones(2, dtype="float16")
    optimizer.step()
    assert optimizer.state_dict()["state"][0]["exp_avg"].dtype == "float32"


@pytest.mark.parametrize(
    ("make", "kind", "parts"),
    [
        (lambda x: kf.optim.Adam([x], lr=float("nan")), kf.InvalidValue, ["'lr' is NaN"]),
        (lambda x: kf.optim.Adam([x], betas=(1.0, 0.5)), kf.InvalidValue, ["'beta1' is 1"]),
        (lambda x: kf.optim.Adam([x], betas=(0.5, -1.0)), kf.InvalidValue, ["'beta2' is -1"]),
        (lambda x: kf.optim.Adam([x], eps=-1.0), kf.InvalidValue, ["'eps' is -1"]),
        (lambda x: kf.optim.Adam(x), kf.BindingError, ["'params' is one tensor"]),
        (lambda x: kf.optim.Adam([]), kf.InvalidValue, ["'params' is empty"]),
        (lambda x: kf.optim.Adam([x, x]), kf.InvalidValue, ["twice"]),
        (lambda x: kf.optim.SGD([np.ones(2)]), kf.BindingError, ["params[0] is ndarray"]),
        (lambda x: kf.optim.SGD([x], nesterov=True), kf.InvalidValue, ["'nesterov'"]),
        (lambda x: kf.optim.SGD([x], momentum=-1.0), kf.InvalidValue, ["'momentum' is -1"]),
    ],
)
def test_options_that_cannot_be(make, kind, parts, raises_saying):
    with raises_saying(kind, *parts):
        make(kf.ones(2).requires_grad_())


def test_state_that_does_not_fit(raises_saying):
    adam = kf.optim.Adam([kf.ones(2).requires_grad_()])
    sgd = kf.optim.SGD([kf.ones(2).requires_grad_()])
    with raises_saying(kf.BindingError, "load_state_dict", "betas"):
        adam.load_state_dict(sgd.state_dict())
    two = kf.optim.Adam([kf.ones(2), kf.ones(2)])
    with raises_saying(kf.InvalidValue, "of 2 parameters", "there are 1"):
        adam.load_state_dict(two.state_dict())
    long = kf.ones(3).requires_grad_()
    long.grad = kf.ones(3)
    other = kf.optim.Adam([long])
    other.step()
    with raises_saying(kf.InvalidValue, "exp_avg of parameter 0", "(3,)", "(2,)"):
        adam.load_state_dict(other.state_dict())


def test_steps_are_for_no_grad():
    x = kf.ones(2).requires_grad_()
    zeros = [kf.zeros(2), kf.zeros(2)]
    with pytest.raises(kf.GradientError, match="no_grad"):
        kf.ops.keyfold.adam_step_(x, kf.ones(2), *zeros, step=1)
    assert x.tolist() == [1.0, 1.0]
    assert zeros[0].tolist() == [0.0, 0.0]


def test_a_batch_of_steps_is_a_step_of_each_example():
    rng = np.random.default_rng(0)
    shape = (4, 3)
    arrays = [rng.uniform(0.1, 1, shape) for _ in range(4)]
    one, each = ([kf.asarray(a.copy()) for a in arrays] for _ in range(2))
    step = kf.ops.keyfold.adam_step_
    kf.vmap(lambda p, g, m, v: step(p, g, m, v, step=3, lr=0.1))(*one)
    for p, g, m, v in zip(*each, strict=True):
        step(p, g, m, v, step=3, lr=0.1)
    for got, wanted in zip(one, each, strict=True):
        assert np.array_equal(got.numpy(), wanted.numpy())


def test_adam_is_pytorchs():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    start, grads = rng.uniform(-1, 1, (50, 40)), rng.uniform(-1, 1, (5, 50, 40))
    for decoupled, amsgrad in [(False, False), (True, False), (False, True)]:
        ours = kf.asarray(start.copy()).requires_grad_()
        theirs = torch.tensor(start, requires_grad=True)
        made = kf.optim.Adam(
            [ours], lr=0.01, weight_decay=0.1, decoupled=decoupled, amsgrad=amsgrad
        )
        kind = torch.optim.AdamW if decoupled else torch.optim.Adam
        wanted = kind([theirs], lr=0.01, weight_decay=0.1, amsgrad=amsgrad, fused=True)
        for grad in grads:
            ours.grad, theirs.grad = kf.asarray(grad), torch.tensor(grad)
            made.step()
            wanted.step()
        assert np.allclose(ours.detach().numpy(), theirs.detach().numpy(), rtol=1e-10, atol=1e-12)
