"""Jacobians and Hessians: known ones, both modes beside each other, and beside PyTorch."""

import warnings

import numpy as np
import pytest

import keyfold as kf

aten = kf.ops.aten


def rand(*shape):
    return np.random.default_rng(len(shape) + sum(shape)).uniform(0.3, 1.7, shape)


def test_shapes_and_structures():
    a, b = rand(2, 3), rand(3)

    def f(a, b):
        return {"product": a @ b, "sum": kf.sum(a)}

    for jacobian in (kf.jacfwd, kf.jacrev):
        found = jacobian(f, argnums=(0, 1))(a, b)
        assert found["product"][0].shape == (2, 2, 3)
        assert found["sum"][0].shape == (2, 3)
        assert np.allclose(found["product"][1], a)
        assert np.allclose(found["product"][0], np.einsum("ij,k->ijk", np.eye(2), b))
        assert found["sum"][1].tolist() == [0.0, 0.0, 0.0]
        assert type(found["sum"][0]) is np.ndarray
        alone, aux = jacobian(lambda a: (a * 2.0, ("kept", a)), has_aux=True)(kf.asarray(b))
        assert np.allclose(alone.numpy(), 2 * np.eye(3))
        assert aux[0] == "kept"
        assert np.allclose(aux[1].numpy(), b)
        nested = jacobian(lambda tree: tree["x"] * tree["y"][0])({"x": b, "y": [b + 1.0]})
        assert np.allclose(nested["x"], np.diag(b + 1.0))
        assert np.allclose(nested["y"][0], np.diag(b))
        assert jacobian(lambda x: x * x)(kf.asarray(3.0)).item() == 6.0


def test_hessians_that_are_known():
    a, x = rand(4, 4), rand(4)
    quadratic = kf.hessian(lambda x: 0.5 * (x @ kf.asarray(a) @ x))(x)
    assert np.allclose(quadratic, (a + a.T) / 2)

    def rosenbrock(x):
        return kf.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2)

    x = np.array([-1.2, 1.0])
    expected = [[1200 * x[0] ** 2 - 400 * x[1] + 2, -400 * x[0]], [-400 * x[0], 200.0]]
    assert np.allclose(kf.hessian(rosenbrock)(x), expected)
    assert np.allclose(kf.jacrev(kf.jacfwd(rosenbrock))(x), expected)
    assert np.allclose(kf.jacfwd(kf.jacfwd(rosenbrock))(x), expected)
    assert np.allclose(kf.jacrev(kf.jacrev(rosenbrock))(x), expected)
    p = rand(3)
    p /= p.sum()
    entropy = kf.hessian(lambda p: kf.sum(p * kf.log(p)))(p)
    assert np.allclose(entropy, np.diag(1 / p))
    both = kf.hessian(lambda x, y: kf.sum(x * x * y), argnums=(0, 1))(p, p + 1.0)
    assert np.allclose(both[0][0], 2 * np.diag(p + 1.0))
    assert np.allclose(both[0][1], 2 * np.diag(p))
    assert np.allclose(both[1][1], 0.0)
    batch = kf.vmap(kf.hessian(rosenbrock))(np.stack([x, x + 1.0]))
    assert np.allclose(batch[0], expected)


FUNCTIONS = {
    "pointwise": lambda o, x: o.tanh(x) * o.exp(-x) / (1.0 + x * x),
    "softmax": lambda o, x: o.softmax(x @ x, 1),
    "log_softmax": lambda o, x: o.log_softmax(x, 0) * x,
    "reductions": lambda o, x: o.amax(x, 1) * o.sum(x, 0) + o.mean(x, 1),
    "indexing": lambda o, x: x[1:, [2, 0]] * x[:2, 1:],
    "matmul": lambda o, x: x @ o.sin(x) @ x[0],
    "choice": lambda o, x: o.where(x > 1.0, x * x, o.log(x)),
    "joins": lambda o, x: o.concat([x, o.flip(x, [0]) * x], 1),
    "powers": lambda o, x: x**2.5 + 2.0**x + x**x,
}


class Ours:
    """The functions above by keyfold's operators."""

    concat = staticmethod(lambda parts, axis: kf.concat(parts, axis=axis))
    softmax, log_softmax, amax, flip = aten.softmax, aten.log_softmax, aten.amax, aten.flip
    sum = staticmethod(lambda x, axis: kf.sum(x, axis=axis))
    mean = staticmethod(lambda x, axis: kf.mean(x, axis=axis))

    def __getattr__(self, name):
        return getattr(kf, name)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_both_modes_agree(name):
    x = kf.asarray(rand(3, 3))

    def f(x):
        return FUNCTIONS[name](Ours(), x)

    assert np.allclose(kf.jacfwd(f)(x).numpy(), kf.jacrev(f)(x).numpy(), rtol=1e-12)
    again = kf.jacfwd(kf.jacfwd(f))(x).numpy()
    assert np.allclose(again, kf.jacfwd(kf.jacrev(f))(x).numpy(), rtol=1e-10, atol=1e-12)


def installed_torch():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("torch", reason="PyTorch isn't installed")


# torch compiles decompositions for its own forward mode by what it says is deprecated.
JIT = "ignore:.*torch.jit.script:DeprecationWarning"


@pytest.mark.filterwarnings(JIT)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_beside_torch(name):
    torch = installed_torch()

    x, t = rand(3, 3), rand(3, 3) - 1.0

    def theirs(x):
        return FUNCTIONS[name](torch, x)

    def ours(x):
        return FUNCTIONS[name](Ours(), x)

    given = torch.from_numpy(x)
    value, tangent = torch.func.jvp(theirs, (given,), (torch.from_numpy(t),))
    found = kf.jvp(ours, (x,), (t,))
    assert np.allclose(found[0], value.numpy())
    assert np.allclose(found[1], tangent.numpy())
    assert np.allclose(kf.jacfwd(ours)(x), torch.func.jacfwd(theirs)(given).numpy())

    def total(f, o):
        return lambda x: o.sum(f(x))

    hessian = torch.func.hessian(total(theirs, torch))(given)
    assert np.allclose(kf.hessian(total(ours, kf))(x), hessian.numpy())


@pytest.mark.filterwarnings(JIT)
def test_complex_tangents_are_those_of_torch():
    torch = installed_torch()

    z, t = rand(3) + 1j * rand(3), rand(3) - 0.5j
    for f in (lambda o, z: o.exp(z) * z, lambda o, z: o.abs(z) * o.conj(z)):
        theirs = torch.func.jvp(
            lambda z: f(torch, z),  # noqa: B023
            (torch.from_numpy(z),),
            (torch.from_numpy(t),),
        )[1]
        assert np.allclose(kf.jvp(lambda z: f(kf, z), (z,), (t,))[1], theirs.numpy())  # noqa: B023


def test_a_hessian_without_recording_is_the_same():
    x = kf.asarray(np.array([1.0, 2.0]))
    with kf.no_grad():
        assert kf.hessian(lambda z: kf.sum(z * z * z))(x).tolist() == [[6.0, 0.0], [0.0, 12.0]]
        rows = kf.vmap(lambda t: kf.jvp(lambda y: kf.jacrev(lambda z: z * z)(y), (x,), (t,))[1])
        assert rows(kf.asarray(np.eye(2)))[0].tolist() == [[2.0, 0.0], [0.0, 0.0]]


def squares(z):
    return z * z


@pytest.mark.parametrize("form", [kf.jacrev, kf.hessian])
def test_complex_numbers_are_refused_in_reverse_mode_with_what_to_take(form):
    z = kf.asarray(np.array([1 + 2j, 3 - 1j]))
    ran = []

    def f(z):
        ran.append(z)
        return squares(z)

    said = r"jacrev: argument 0 of \S+\.f\(\) is complex128: .*kf\.jacfwd"
    with pytest.raises(kf.GradientError, match=said):
        form(f)(z)
    assert not ran
    with pytest.raises(kf.GradientError, match=r"the result of \S+<lambda>\(\) is complex128"):
        kf.jacrev(lambda x: x * 1j)(kf.ones(2))
    slope = np.diag(2 * z.numpy())
    assert np.array_equal(kf.jacfwd(squares)(z), slope)
    second = kf.jacfwd(kf.jacfwd(squares))(z)
    assert np.array_equal(second, 2 * np.eye(2)[:, :, None] * np.eye(2)[:, None, :])


@pytest.mark.filterwarnings(JIT)
def test_torch_refuses_complex_numbers_too():
    torch = installed_torch()
    for form in (torch.func.jacrev, torch.func.hessian):
        with pytest.raises(RuntimeError, match="real but received complex"):
            form(squares)(torch.ones(2, dtype=torch.complex128))
