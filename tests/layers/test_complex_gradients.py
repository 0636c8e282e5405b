"""Gradients of complex numbers: checked with finite differences, and beside PyTorch's."""

import importlib
import warnings

import numpy as np
import pytest

import keyfold as kf

rng = np.random.default_rng(3)
Z, W = (rng.standard_normal((2, 3)) + 1j * rng.standard_normal((2, 3)) for _ in range(2))
ROW = rng.standard_normal(3) + 1j * rng.standard_normal(3)
X = rng.uniform(0.5, 2.0, (2, 3))
MASK = np.array([[True, False, True], [False, True, True]])

# Name: the function of a library and its arrays, and the arrays.
CASES = {
    "add": (lambda xp, x, y: x + y, (Z, ROW)),
    "sub": (lambda xp, x, y: x - y, (Z, X)),
    "mul": (lambda xp, x, y: x * y, (Z, ROW)),
    "mul real": (lambda xp, x, y: x * y, (X, Z)),
    "mul twice": (lambda xp, x: x * x, (Z,)),
    "div": (lambda xp, x, y: x / y, (Z, W)),
    "div real": (lambda xp, x, y: x / y, (X, W)),
    "div by real": (lambda xp, x, y: x / y, (Z, X)),
    "numbers": (lambda xp, x: (2.0 - 1j) * x + 3j / x - x / (1 + 2j), (Z,)),
    "number and real": (lambda xp, x: (2.0 - 1j) * x * x, (X,)),
    "neg": (lambda xp, x: -x * x, (Z,)),
    "exp": (lambda xp, x: xp.exp(x), (Z,)),
    "log": (lambda xp, x: xp.log(x), (Z,)),
    "sqrt": (lambda xp, x: xp.sqrt(x), (Z,)),
    "rsqrt": (lambda xp, x: xp.rsqrt(x), (Z,)),
    "reciprocal": (lambda xp, x: xp.reciprocal(x), (Z,)),
    "square": (lambda xp, x: xp.square(x), (Z,)),
    "sin": (lambda xp, x: xp.sin(x), (Z,)),
    "cos": (lambda xp, x: xp.cos(x), (Z,)),
    "tanh": (lambda xp, x: xp.tanh(x), (Z,)),
    "pow": (lambda xp, x, y: x**y, (Z, W)),
    "pow real base": (lambda xp, x, y: x**y, (X, W)),
    "pow real exponent": (lambda xp, x, y: x**y, (Z, X)),
    "pow number": (lambda xp, x: x**3 + x**2.5 + x ** (1 + 2j), (Z,)),
    "number pow": (lambda xp, x: 2.0**x + (1 - 2j) ** x, (Z,)),
    "abs": (lambda xp, x: abs(x), (Z,)),
    "abs times": (lambda xp, x: abs(x) * x, (Z,)),
    "sgn": (lambda xp, x: xp.sgn(x) * x, (Z,)),
    "real": (lambda xp, x: x.real * x, (Z,)),
    "imag": (lambda xp, x: x.imag * x.imag, (Z,)),
    "conj": (lambda xp, x, y: x.conj() * y, (Z, W)),
    "squared length": (lambda xp, x: (x * x.conj()).real, (Z,)),
    "where": (lambda xp, x, y: xp.where(xp.array(MASK), x * y, y * y), (Z, ROW)),
    "sum": (lambda xp, x: (x * x).sum(), (Z,)),
    "mean": (lambda xp, x: (x * x).mean(0), (Z,)),
    "reshape": (lambda xp, x: (x * x).reshape((3, 2)), (Z,)),
    "slices": (lambda xp, x: x[1:, ::2] * x[:1, 1:] * x[0, 0], (Z,)),
    "stack": (lambda xp, x, y: xp.stack([x * y, y * y]), (Z, X)),
}


class Keyfold:
    """The functions of the cases, by keyfold."""

    def __getattr__(self, name):
        return getattr(kf, name)

    sgn = staticmethod(kf.sign)
    array = staticmethod(kf.asarray)

    def gradients(self, f, args, second):
        leaves = [kf.asarray(a).requires_grad_() for a in args]
        return grads_of(kf.grad, lambda *a: f(self, *a), leaves, kf.asarray, second)

    def numpy(self, x):
        return np.asarray(x)


class Torch:
    def __init__(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.torch = pytest.importorskip("torch", reason="PyTorch isn't installed")

    def __getattr__(self, name):
        return getattr(self.torch, name)

    def array(self, x):
        return self.torch.as_tensor(x)

    def gradients(self, f, args, second):
        leaves = [self.torch.tensor(a, requires_grad=True) for a in args]
        grad = self.torch.autograd.grad
        return grads_of(grad, lambda *a: f(self, *a), leaves, self.torch.as_tensor, second)

    def numpy(self, x):
        return x.detach().resolve_conj().resolve_neg().numpy()


def seed_of(y):
    seed = np.linspace(0.5, 1.5, max(1, int(np.prod(tuple(y.shape))))).reshape(tuple(y.shape))
    return seed * (1 - 0.5j) if "complex" in str(y.dtype) else seed


def grads_of(grad, f, leaves, array, second):
    y = f(*leaves)
    found = grad([y], leaves, [array(seed_of(y))], create_graph=second)
    if second:
        pairs = [g for g in found if g.requires_grad]
        if not pairs:
            return [g * 0 for g in found]
        seeds = [array(seed_of(g)) for g in pairs]
        found = grad(pairs, leaves, seeds, allow_unused=True)
        found = [x * 0 if g is None else g for x, g in zip(leaves, found, strict=True)]
    return list(found)


@pytest.mark.parametrize("second", [False, True], ids=["first", "second"])
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_pytorch(case, second):
    function, args = CASES[case]
    own, other = Keyfold(), Torch()
    ours, theirs = own.gradients(function, args, second), other.gradients(function, args, second)
    for mine, reference, arg in zip(ours, theirs, args, strict=True):
        mine, reference = np.asarray(own.numpy(mine.detach())), other.numpy(reference)
        assert mine.dtype == arg.dtype
        np.testing.assert_allclose(mine, reference, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_finite_differences(case):
    function, args = CASES[case]
    own = Keyfold()
    assert kf.gradcheck(lambda *a: function(own, *a), args)
    assert kf.gradgradcheck(lambda *a: function(own, *a), args)


def gradients_at(f, *args):
    leaves = [kf.asarray(np.asarray(a, complex)).requires_grad_() for a in args]
    y = f(*leaves)
    y.backward(kf.asarray(np.ones(y.shape, str(y.dtype))))
    return [np.asarray(leaf.grad) for leaf in leaves]


def test_gradients_at_zero():
    zero = np.zeros(1)
    assert gradients_at(abs, zero)[0] == 0
    assert gradients_at(kf.sign, zero)[0] == 0
    assert gradients_at(lambda x: x**0, zero)[0] == 0
    base, exponent = gradients_at(lambda a, b: a**b, [0, 0, 0], [0, 1, 2])
    np.testing.assert_array_equal(base, [0, 1, 0])
    np.testing.assert_array_equal(exponent, [0, 0, 0])


def test_powers_at_zero_are_those_of_pytorch():
    torch = Torch().torch
    # PyTorch has NaN for the exponent 1, where it meets `0 ** 0`.
    a, b = np.array([0, 0, 0, 2 + 1j]), np.array([0, 3, 2, 0j])
    ours = gradients_at(lambda x, y: x**y, a, b)
    x, y = (torch.tensor(v, requires_grad=True) for v in (a, b))
    (x**y).backward(torch.ones(4, dtype=torch.complex128))
    for mine, theirs in zip(ours, (x.grad, y.grad), strict=True):
        np.testing.assert_allclose(mine, theirs.numpy(), rtol=1e-9, atol=1e-12)


def test_a_complex_loss_is_refused():
    z = kf.asarray(Z).requires_grad_()
    y = (z * z).sum()
    with pytest.raises(
        kf.GradientError, match=r"only a real number has an initial gradient.*complex128"
    ):
        y.backward()
    with pytest.raises(kf.GradientError, match=r"must return a real number.*not complex128"):
        kf.grad(lambda z: (z * z).sum())(Z)
    np.testing.assert_allclose(kf.grad(lambda z: (z * z).sum().real)(Z), 2 * Z.conj())
    np.testing.assert_allclose(kf.grad(lambda z: (abs(z) ** 2).sum())(Z), 2 * Z)


def test_gradcheck_sees_the_conjugate_and_says_which_part(ns):
    kf.define(f"{ns}::square(Tensor x) -> Tensor")
    kf.impl(f"{ns}::square", "CPU", lambda x: x * x)
    op = getattr(kf.ops, ns).square

    def saves(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    wrong = kf.register_autograd(
        op, lambda ctx, g: g * 2 * ctx.saved_tensors[0], setup_context=saves
    )
    with pytest.raises(kf.GradientError, match=r"element \[0, 0\]\.real by input.*\]\.imag"):
        kf.gradcheck(op, Z)
    wrong.remove()
    kf.register_autograd(
        op, lambda ctx, g: g * 2 * ctx.saved_tensors[0].conj(), setup_context=saves
    )
    assert kf.gradcheck(op, Z)
    assert kf.gradgradcheck(op, Z)


def test_the_real_part_of_what_a_rule_returns_for_a_real_operand(ns):
    kf.define(f"{ns}::turn(Tensor x, Tensor z) -> Tensor")
    kf.impl(f"{ns}::turn", "CPU", lambda x, z: x * z)

    def backward(ctx, g):
        x, z = ctx.saved_tensors
        return g * z.conj(), g * x

    op = getattr(kf.ops, ns).turn
    kf.register_autograd(
        op, backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs)
    )
    assert kf.gradcheck(op, (X, Z))


def test_gradients_of_an_expression():
    text = "x, y: where(abs(x) > 1.0, conj(x) * y, x ** y + imag(x))"

    def op(x, y):
        return kf.ops.keyfold.elementwise([x, y], [], expression=text)

    assert kf.gradcheck(op, (Z, W))
    assert kf.gradgradcheck(op, (Z, X))
    assert kf.gradgradcheck(op, (X, W))


def test_printed_derivatives_are_without_conjugates():
    assert "conj" not in str(kf.Expression("exp(x) * x").derivative("x"))


def test_per_example_gradients():
    grads = kf.vmap(kf.grad(lambda z: abs(z * z)))(kf.asarray(ROW))
    np.testing.assert_allclose(np.asarray(grads), 2 * abs(ROW) ** 2 / ROW.conj())


def test_parts_and_conjugates():
    z = kf.asarray(Z)
    for kind in (kf.Tensor, np.ndarray):
        given = z if kind is kf.Tensor else Z
        for name in ("real", "imag", "conj"):
            result = getattr(kf, name)(given)
            assert isinstance(result, kind)
            np.testing.assert_array_equal(np.asarray(result), getattr(np, name)(Z))
    np.testing.assert_array_equal(np.asarray(z.real), Z.real)
    np.testing.assert_array_equal(np.asarray(z.imag), Z.imag)
    np.testing.assert_array_equal(np.asarray(z.conj()), Z.conj())
    for dtype in ("float32", "int16", "bool", "bfloat16"):
        x = kf.ones((2,), dtype=dtype)
        for name, value in (("real", 1), ("imag", 0), ("conj", 1)):
            result = getattr(kf, name)(x)
            assert (str(result.dtype), result.shape) == (dtype, (2,))
            assert [int(v) for v in result.tolist()] == [value, value]
    meta = z.to("meta")
    assert (str(meta.real.dtype), str(meta.conj().dtype)) == ("float64", "complex128")


@pytest.mark.parametrize(
    "name",
    ["mul", "div", "pow", "exp", "tanh", "abs", "real", "imag", "conj"],
)
def test_exported_and_imported_operators_have_the_same_gradients(name, ns):
    torch = Torch().torch
    kt = importlib.import_module("keyfold.torch")
    native = getattr(kf.ops.aten, name)
    args = (Z, W) if name in ("mul", "div", "pow") else (Z,)
    leaves = [kf.asarray(a).requires_grad_() for a in args]
    wanted = grads_of(kf.grad, native, leaves, kf.asarray, False)
    exported = kt.export(f"aten::{name}", name=f"{ns}::{name}")
    try:
        tensors = [torch.tensor(a, requires_grad=True) for a in args]
        found = grads_of(torch.autograd.grad, exported, tensors, torch.as_tensor, False)
        for mine, theirs in zip(wanted, found, strict=True):
            np.testing.assert_allclose(
                np.asarray(mine),
                theirs.resolve_conj().resolve_neg().numpy(),
                rtol=1e-12,
                atol=1e-12,
            )
    finally:
        kt.remove(exported)


@pytest.mark.parametrize("name", ["aten::mul.Tensor", "aten::div.Tensor", "aten::exp", "aten::abs"])
def test_imported_operators_have_the_gradients_of_native_ones(name, ns):
    Torch()
    kt = importlib.import_module("keyfold.torch")
    own = name.split("::")[1].split(".")[0]
    imported = kt.import_(name, name=name.replace("aten", ns))
    try:
        args = (Z, W) if own in ("mul", "div") else (Z,)
        leaves = [kf.asarray(a).requires_grad_() for a in args]
        wanted = grads_of(kf.grad, getattr(kf.ops.aten, own), leaves, kf.asarray, False)
        found = grads_of(kf.grad, imported, leaves, kf.asarray, False)
        for mine, theirs in zip(wanted, found, strict=True):
            np.testing.assert_allclose(np.asarray(mine), np.asarray(theirs), rtol=1e-12)
    finally:
        kt.remove(imported)
