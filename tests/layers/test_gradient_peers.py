"""First and second derivatives beside those of JAX and PyTorch, where they are installed."""

import importlib
import warnings

import numpy as np
import pytest

import keyfold as kf

aten = kf.ops.aten


class Keyfold:
    """The functions below, by keyfold's operators."""

    name = "keyfold"

    def __getattr__(self, name):
        return getattr(kf, name, None) or getattr(aten, name)

    def array(self, x):
        return kf.asarray(x)

    def sum(self, x, axis=None):
        return kf.sum(x, axis=axis)

    def mean(self, x, axis=None):
        return kf.mean(x, axis=axis)

    def amax(self, x, axis):
        return kf.max(x, axis=axis)

    def amin(self, x, axis):
        return kf.min(x, axis=axis)

    def softmax(self, x, axis):
        return aten.softmax(x, axis)

    def log_softmax(self, x, axis):
        return aten.log_softmax(x, axis)

    def transpose(self, x, axes):
        return kf.permute_dims(x, axes)

    def gather(self, x, axis, index):
        return aten.gather(x, axis, index)

    def stack(self, items, axis):
        return kf.stack(items, axis=axis)

    def concat(self, items, axis):
        return kf.concat(items, axis=axis)

    def gradients(self, f, args, second):
        g = kf.grad(f, argnums=tuple(range(len(args))))
        if second:
            first = g
            g = kf.grad(
                lambda *a: sum((t * t).sum() for t in first(*a)), argnums=tuple(range(len(args)))
            )
        return [np.asarray(t) for t in g(*args)]


class Jax:
    name = "jax"

    def __init__(self):
        self.jax = importlib.import_module("jax")
        self.jax.config.update("jax_enable_x64", True)
        self.np = importlib.import_module("jax.numpy")

    def __getattr__(self, name):
        return getattr(self.np, name, None) or getattr(self.jax.nn, name)

    def array(self, x):
        return self.np.asarray(x)

    def gather(self, x, axis, index):
        return self.np.take_along_axis(x, index, axis)

    def concat(self, items, axis):
        return self.np.concatenate(items, axis)

    def gradients(self, f, args, second):
        g = self.jax.grad(f, argnums=tuple(range(len(args))))
        if second:
            first = g
            g = self.jax.grad(
                lambda *a: sum((t * t).sum() for t in first(*a)), argnums=tuple(range(len(args)))
            )
        return [np.asarray(t) for t in g(*(self.np.asarray(a) for a in args))]


class Torch:
    name = "torch"

    def __init__(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.torch = importlib.import_module("torch")

    def __getattr__(self, name):
        return getattr(self.torch, {"concat": "cat"}.get(name, name))

    def array(self, x):
        return self.torch.as_tensor(np.asarray(x))

    def sum(self, x, axis=None):
        return x.sum() if axis is None else x.sum(axis)

    def mean(self, x, axis=None):
        return x.mean() if axis is None else x.mean(axis)

    def transpose(self, x, axes):
        return x.permute(axes)

    def gradients(self, f, args, second):
        tensors = [self.torch.tensor(a, requires_grad=True) for a in args]
        grads = self.torch.autograd.grad(
            f(*tensors), tensors, create_graph=second, allow_unused=True, materialize_grads=True
        )
        if second:
            total = sum((t * t).sum() for t in grads)
            if not total.requires_grad:
                return [np.zeros_like(a) for a in args]
            grads = self.torch.autograd.grad(
                total, tensors, allow_unused=True, materialize_grads=True
            )
        return [t.numpy() for t in grads]


def peer(kind):
    try:
        return kind()
    except ImportError:
        pytest.skip(f"{kind.__name__} isn't installed: gradients aren't compared with it")


rng = np.random.default_rng(1)
A, B = rng.standard_normal((3, 4)), rng.standard_normal((3, 4))
P = rng.uniform(0.5, 2.0, (3, 4))
ROW, COLUMN = rng.standard_normal(4), rng.standard_normal((3, 1))
M, BATCHED = rng.standard_normal((4, 2)), rng.standard_normal((2, 3, 4))
INDEX = np.array([[0, 2, 2], [1, 0, 3], [3, 3, 3]])
MASK = rng.standard_normal((3, 4)) > 0

# Name: the function of a library and arrays, and the arrays. Results are weighed, so that symmetric
# mistakes show.
CASES = {
    "add": (lambda xp, x, y: x + y, (A, ROW)),
    "sub": (lambda xp, x, y: x - y, (A, COLUMN)),
    "mul": (lambda xp, x, y: x * y, (A, ROW)),
    "div": (lambda xp, x, y: x / y, (A, P)),
    "numbers": (lambda xp, x: 2.0 - x * 3.0 + 1.0 / (x * x + 1.0), (A,)),
    "maximum": (lambda xp, x, y: xp.maximum(x, y), (A, B)),
    "minimum": (lambda xp, x, y: xp.minimum(x, y), (A, COLUMN + 0 * A)),
    "pow": (lambda xp, x, y: xp.pow(x, y), (P, A)),
    "pow number": (lambda xp, x: x**3 + x**2.5, (P,)),
    "number pow": (lambda xp, x: 2.0**x, (A,)),
    "exp": (lambda xp, x: xp.exp(x), (A,)),
    "log": (lambda xp, x: xp.log(x), (P,)),
    "log1p": (lambda xp, x: xp.log1p(x), (P,)),
    "expm1": (lambda xp, x: xp.expm1(x), (A,)),
    "sqrt": (lambda xp, x: xp.sqrt(x), (P,)),
    "sin": (lambda xp, x: xp.sin(x), (A,)),
    "cos": (lambda xp, x: xp.cos(x), (A,)),
    "tanh": (lambda xp, x: xp.tanh(x), (A,)),
    "sigmoid": (lambda xp, x: xp.sigmoid(x), (A,)),
    "relu": (lambda xp, x: xp.relu(x) * x, (A,)),
    "abs": (lambda xp, x: xp.abs(x) * x, (A,)),
    "sign": (lambda xp, x: xp.sign(x) * x * x, (A,)),
    "where": (lambda xp, x, y: xp.where(xp.array(MASK), x * y, y * y), (A, ROW)),
    "matmul": (lambda xp, x, y: xp.matmul(x, y), (A, M)),
    "matmul vector": (lambda xp, x, y: xp.matmul(x, y), (ROW, M)),
    "matmul by vector": (lambda xp, x, y: xp.matmul(x, y), (A, ROW)),
    "dot": (lambda xp, x, y: xp.matmul(x, y) * 1.0, (ROW, ROW + 1)),
    "matmul batched": (lambda xp, x, y: xp.matmul(x, y), (BATCHED, M)),
    "sum": (lambda xp, x: xp.sum(x * x), (A,)),
    "sum axis": (lambda xp, x: xp.sum(x * x, axis=0), (A,)),
    "mean": (lambda xp, x: xp.mean(x * x * x), (A,)),
    "mean axis": (lambda xp, x: xp.mean(x * x, axis=1), (A,)),
    "amax": (lambda xp, x: xp.amax(x * x, 1), (A,)),
    "amin": (lambda xp, x: xp.amin(x * x, 0), (A,)),
    "softmax": (lambda xp, x: xp.softmax(x, 1), (A,)),
    "log_softmax": (lambda xp, x: xp.log_softmax(x, 0), (A,)),
    "reshape": (lambda xp, x: xp.reshape(x * x, (2, 6)), (A,)),
    "transpose": (lambda xp, x: xp.transpose(x * x, (2, 0, 1)), (BATCHED,)),
    "slices": (lambda xp, x: x[1:, ::2] * x[:2, 1::2] * x[0, 0], (A,)),
    "stack": (lambda xp, x, y: xp.stack([x * y, y * y], 1), (A, B)),
    "concat": (lambda xp, x, y: xp.concat([x * y, y[:1] * 2.0], 0), (A, B)),
    "gather": (lambda xp, x: xp.gather(x * x, 1, xp.array(INDEX)), (A,)),
    "index": (lambda xp, x: (x * x)[xp.array(np.array([0, 2, 2]))], (A,)),
}


@pytest.mark.parametrize("second", [False, True], ids=["first", "second"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", [Jax, Torch], ids=["JAX", "PyTorch"])
def test_derivatives_agree(kind, case, second):
    other = peer(kind)
    function, args = CASES[case]

    def weighed(xp):
        def f(*args):
            y = function(xp, *args)
            weights = np.linspace(0.5, 1.5, int(np.prod(tuple(y.shape)))).reshape(tuple(y.shape))
            return (y * xp.array(weights)).sum()

        return f

    own = Keyfold()
    ours = own.gradients(weighed(own), args, second)
    theirs = other.gradients(weighed(other), args, second)
    for mine, reference in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, reference, rtol=1e-9, atol=1e-9)
