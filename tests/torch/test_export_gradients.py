"""keyfold operators in PyTorch: their gradients."""

import pytest

import keyfold as kf
from tests.torch.exports import DOUBLE, exports, fresh_compiler, kt, passes, randn, scale, torch

pytestmark = pytest.mark.filterwarnings("ignore:::torch")

__all__ = ["exports", "fresh_compiler", "scale"]


def test_gradients_of_an_operator_of_ones_own(scale):
    assert torch.autograd.gradcheck(scale, (randn(3), 3.0))
    assert torch.autograd.gradgradcheck(lambda x: scale(x * x, 3.0) * x, (randn(3),))
    passes(scale, randn(3), 3.0)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("aten::mul", (randn(3), randn(2, 3))),
        ("aten::matmul", (randn(2, 3), randn(3, 4))),
        ("aten::softmax", (randn(2, 3), 1)),
        ("aten::sum.dim", (randn(2, 3), [0], True)),
        ("aten::cat", ([randn(2, 3), randn(1, 3)], 0)),
        ("aten::where", (torch.tensor([True, False, True]), randn(3), randn(2, 3))),
        ("aten::index.Tensor", (randn(4, 3), [torch.tensor([0, 2, 2])])),
        ("aten::index.Tensor", (randn(4, 3), [None, torch.tensor([0, 2, 2])])),
        ("aten::reshape", (randn(2, 3), [3, 2])),
        ("aten::exp", (randn(),)),
        ("aten::exp", (randn(0, 2),)),
    ],
)
def test_gradients_of_builtin_operators(exports, name, args):
    op = exports(name)

    def flat(*tensors):
        given = iter(tensors)

        def put(arg):
            if isinstance(arg, list):
                return [put(item) for item in arg]
            return next(given) if isinstance(arg, torch.Tensor) and arg.requires_grad else arg

        return op(*map(put, args))

    leaves = [t for arg in args for t in (arg if isinstance(arg, list) else [arg])]
    variables = tuple(t for t in leaves if isinstance(t, torch.Tensor) and t.requires_grad)
    assert torch.autograd.gradcheck(flat, variables)
    assert torch.autograd.gradgradcheck(flat, variables)
    passes(op, *args)


def test_the_same_tensor_twice_and_once(exports):
    mul = exports("aten::mul")
    x = randn(3)
    (grad,) = torch.autograd.grad(mul(x, x).sum(), x)
    assert grad.allclose(2 * x)
    y = randn(3, grad=False)
    (grad,) = torch.autograd.grad(mul(x, y).sum(), x)
    assert grad.allclose(y)


def test_several_results_of_which_some_have_no_gradient(lib, ns, exports):
    lib.define("parts(Tensor x) -> (Tensor, Tensor, Tensor)")
    lib.impl(
        "parts",
        lambda x: (kf.ops.aten.exp(x), kf.ops.aten.argmax(x), kf.ops.aten.mul(x, x)),
        "CompositeImplicitAutograd",
    )
    parts = exports(f"{ns}::parts")
    x = randn(3)
    e, place, square = parts(x)
    assert not place.requires_grad
    assert torch.autograd.grad(e.sum(), x, retain_graph=True)[0].allclose(x.exp())
    assert torch.autograd.grad(square.sum(), x, retain_graph=True)[0].allclose(2 * x)
    assert torch.autograd.grad((e + square).sum(), x)[0].allclose(x.exp() + 2 * x)
    assert torch.autograd.gradgradcheck(lambda x: parts(x)[::2], (x,))
    passes(parts, x)


def test_keyword_only_tensors_have_gradients(lib, ns, exports):
    lib.define("plus(Tensor x, *, Tensor? bias=None, float k=1.0) -> Tensor")
    lib.impl(
        "plus",
        lambda x, *, bias, k: (x if bias is None else kf.ops.aten.add(x, bias)) * k,
        "CompositeImplicitAutograd",
    )
    plus = exports(f"{ns}::plus")
    assert torch.autograd.gradcheck(lambda x, b: plus(x, bias=b, k=2.0), (randn(3), randn(1)))
    assert torch.autograd.gradcheck(lambda x: plus(x, k=2.0), (randn(3),))


def test_keyword_only_numbers_reach_the_derivative(exports):
    total = exports("aten::sum.dim")
    x = torch.ones(2, 3, requires_grad=True)
    y = total(x, [0], keepdim=True, dtype=DOUBLE)
    assert y.dtype == DOUBLE
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert (grad.dtype, grad.tolist()) == (torch.float32, [[1, 1, 1], [1, 1, 1]])


def test_argument_names_of_the_derivative_do_not_clash(lib, ns, exports):
    lib.define("odd(Tensor grads, float needed, float given, float random) -> Tensor")
    lib.impl("odd", lambda x, a, b, c: kf.ops.aten.mul(x, a + b + c), "CompositeImplicitAutograd")
    odd = exports(f"{ns}::odd")
    assert torch.autograd.gradcheck(odd, (randn(2), 1.0, 2.0, 3.0))


def test_kernels_that_are_written_with_torch_have_derivatives(lib, ns, exports):
    kinds = []

    def square(x):
        kinds.append(type(x))
        return torch.square(x)

    def square_backward(x, grad):
        kinds.append(type(x))
        return [torch.mul(grad, x).mul_(2)]

    lib.define("square(Tensor x) -> Tensor")
    lib.impl("square", square, "CPU")
    lib.define("square_slope(Tensor x, Tensor grad) -> Tensor[]")
    lib.impl("square_slope", square_backward, "CPU")
    lib.define("negate_(Tensor(a!) x) -> Tensor(a!)")
    lib.impl("negate_", torch.Tensor.neg_, "CPU")
    ops = getattr(kf.ops, ns)
    kf.register_fake(f"{ns}::square", lambda x: x)

    def backward(ctx, grad):
        (slope,) = ops.square_slope(ctx.saved_tensors[0], grad)
        assert ops.negate_(ops.negate_(slope)) is slope
        return slope

    def keep(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    kf.register_autograd(f"{ns}::square", backward, setup_context=keep)
    square = exports(f"{ns}::square")
    assert torch.autograd.gradcheck(square, (randn(3),))
    assert set(kinds) == {torch.Tensor}
    passes(square, randn(3))


def test_no_derivative_is_said_where_the_gradient_is_asked_for(lib, ns, exports):
    lib.define("bare(Tensor x) -> Tensor")
    lib.impl("bare", lambda x: x * 1, "CPU")
    bare = exports(f"{ns}::bare")
    y = bare(randn(2)).sum()
    with pytest.raises(kf.GradientError, match=f"{ns}::bare has no derivative"):
        y.backward()
    # One that is registered later counts.
    kf.register_autograd(f"{ns}::bare", lambda ctx, grad: grad * 5.0)
    x = randn(2)
    bare(x).sum().backward()
    assert x.grad.tolist() == [5, 5]


def test_absent_tensors_beside_those_that_require_grad_are_refused(lib, ns, exports):
    lib.define("some(Tensor y, Tensor?[] xs) -> Tensor")
    lib.impl("some", lambda y, xs: y * 1, "CPU")
    some = exports(f"{ns}::some")
    with pytest.raises(kf.GradientError, match="'xs' has None beside tensors"):
        some(randn(2), [None, randn(2)])
    some(randn(2), [None, randn(2).detach()])


def test_random_numbers_are_the_same_in_backward(exports):
    dropout = exports("aten::dropout")
    x = torch.ones(500, requires_grad=True)
    y = dropout(x, 0.5)
    other = dropout(x, 0.5)
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert grad.equal(y.detach())
    assert not grad.equal(other.detach())
    before = kf.get_rng_state()
    torch.autograd.grad(other.sum(), x)
    assert kf.get_rng_state() == before


def test_random_numbers_in_a_compiled_derivative_are_refused(exports):
    dropout = exports("aten::dropout")
    compiled = torch.compile(lambda x: dropout(x, 0.5), fullgraph=True, backend="aot_eager")
    x = torch.ones(8, requires_grad=True)
    y = compiled(x)
    with pytest.raises(kf.GradientError, match="can't draw the same again"):
        y.sum().backward()


def test_a_tensor_changed_before_backward_is_an_error_of_torchs(exports):
    mul, fill = exports("aten::mul"), exports("aten::fill_.Scalar")
    x, y = randn(3), randn(3, grad=False)
    z = mul(x, y)
    fill(y, 0.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


def test_complex_gradients_follow_torchs_convention(ns, exports):
    kt.import_("aten::mul.Tensor", name=f"{ns}::mul")
    mul = exports(f"{ns}::mul", name=f"{ns}::complex_mul")
    a, b = (torch.randn(3, dtype=torch.complex128, requires_grad=True) for _ in range(2))
    try:
        assert torch.autograd.gradcheck(mul, (a, b))
    finally:
        kt.remove(f"{ns}::mul")
