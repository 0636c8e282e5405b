"""Autograd: backward, grad, hooks, checkpoints, derivatives of one's own, and what goes wrong."""

import gc
import weakref

import numpy as np
import pytest

import keyfold as kf
from tests.helpers.tensors import leaf

# Basics


def test_backward_adds_gradients_at_the_leaves():
    x, w = leaf([1.0, 2.0]), leaf([3.0, 4.0])
    (x * w).sum().backward()
    assert x.grad.tolist() == [3.0, 4.0]
    assert w.grad.tolist() == [1.0, 2.0]
    (x * 2.0).sum().backward()
    assert x.grad.tolist() == [5.0, 6.0]
    x.grad = None
    assert x.grad is None


def test_gradients_have_memory_of_their_own():
    x, w = leaf([1.0, 2.0]), leaf([3.0, 4.0])
    (x + w).sum().backward()
    with kf.no_grad():
        x.grad.fill_(7.0)
    assert w.grad.tolist() == [1.0, 1.0]


def test_a_gradient_that_is_a_part_of_an_expanded_one_can_be_written():
    x, w = leaf(np.ones((4, 3))), kf.asarray(np.arange(12.0).reshape(4, 3))
    loss = kf.sum(kf.sum(kf.stack([w, x]), axis=0) * w)
    loss.backward()
    x.grad.fill_(7.0)
    assert x.grad.tolist() == [[7.0] * 3] * 4


def test_the_graph_can_be_looked_at():
    x = leaf([1.0])
    y = x * 2.0
    assert x.is_leaf
    assert x.grad_fn is None
    assert not y.is_leaf
    assert y.requires_grad
    assert y.grad_fn.name.startswith("aten::mul")
    assert [node.is_leaf for node in y.grad_fn.next] == [True]


def test_broadcast_operands_get_gradients_of_their_shape():
    x, b = leaf(np.ones((3, 2))), leaf([1.0, 2.0])
    (x * b).sum().backward()
    assert x.grad.shape == (3, 2)
    assert b.grad.tolist() == [3.0, 3.0]


def test_grad_of_tensors_leaves_the_leaves_alone():
    x = leaf([2.0, 3.0])
    y = (x * x).sum()
    (gx,) = kf.grad(y, [x])
    assert gx.tolist() == [4.0, 6.0]
    assert x.grad is None


def test_grad_of_a_function_works_on_arrays_numbers_and_trees():
    g = kf.grad(lambda x: (x * x).sum())(np.array([1.0, 2.0]))
    assert isinstance(g, np.ndarray)
    assert g.tolist() == [2.0, 4.0]
    params = {"w": np.array([1.0, 2.0]), "b": [np.float64(3.0)]}
    g = kf.grad(lambda p, x: (p["w"] * x).sum() + p["b"][0] * 2.0)(params, np.array([5.0, 6.0]))
    assert g["w"].tolist() == [5.0, 6.0]
    assert float(g["b"][0]) == 2.0
    assert float(kf.grad(lambda x: x * x)(3.0)) == 6.0
    value, (ga, gb) = kf.value_and_grad(lambda a, b: (a * b).sum(), argnums=(0, 1))(2.0, 5.0)
    assert (float(value), float(ga), float(gb)) == (10.0, 5.0, 2.0)


def test_what_a_function_does_not_use_has_zero_gradient():
    g = kf.grad(lambda a, b: a.sum(), argnums=1)(kf.ones(2), np.ones(3))
    assert g.tolist() == [0.0, 0.0, 0.0]


def test_grads_nest():
    third = kf.grad(kf.grad(kf.grad(lambda x: x * x * x * x)))
    assert float(third(2.0)) == pytest.approx(48.0)


def test_a_gradient_of_a_gradient_through_create_graph():
    x = leaf([3.0])
    (g,) = kf.grad((x * x * x).sum(), [x], create_graph=True)
    g.sum().backward()
    assert x.grad.tolist() == [18.0]


def test_no_grad_detach_and_integers_record_nothing():
    x = leaf([1.0, 2.0])
    with kf.no_grad():
        assert not kf.is_grad_enabled()
        assert not (x * 2.0).requires_grad
    assert kf.is_grad_enabled()

    @kf.no_grad()
    def f(x):
        return x * 2.0

    assert not f(x).requires_grad
    assert not x.detach().requires_grad
    assert x.detach().data_ptr() == x.data_ptr()
    assert not (x > 1.5).requires_grad


def test_hooks_see_and_change_gradients():
    x = leaf([1.0, 2.0])
    seen = []
    y = x * 3.0
    handle = y.register_hook(lambda g: seen.append(g.tolist()))
    x.register_hook(lambda g: g * 10.0)
    y.sum().backward()
    assert seen == [[1.0, 1.0]]
    assert x.grad.tolist() == [30.0, 30.0]
    assert handle.remove()
    assert not handle.remove()


def test_retain_grad_keeps_the_gradient_in_between():
    x = leaf([1.0, 2.0])
    y = x * 3.0
    y.retain_grad()
    (y * y).sum().backward()
    assert y.grad.tolist() == [6.0, 12.0]


def test_in_place_operations_are_recorded_where_the_graph_stays_right():
    x = leaf([1.0, 2.0])
    y = x * 2.0
    before = y
    y += x
    assert y is before
    y.sum().backward()
    assert x.grad.tolist() == [3.0, 3.0]


def test_a_copy_is_a_leaf_of_its_own():
    import copy

    x = leaf([1.0])
    y = copy.copy(x)
    assert y.is_leaf
    assert y.requires_grad
    (y * 2.0).sum().backward()
    assert x.grad is None
    assert y.grad.tolist() == [2.0]


def test_a_long_chain_neither_overflows_nor_leaks_on_the_way_back_or_when_dropped():
    x = leaf([1.0])
    y = x
    for _ in range(100_000):
        y = y + x
    y.sum().backward()
    assert x.grad.tolist() == [100_001.0]
    del y
    y = x
    for _ in range(100_000):
        y = y + x
    del y


def test_results_kept_by_their_own_node_are_no_circle():
    x = leaf(np.ones(4))
    y = x.exp()
    memory = weakref.ref(y)
    del y
    gc.collect()
    assert memory() is None


# Derivatives of one's own


@pytest.fixture
def cube():
    handles = [kf.define("autograd_test::cube(Tensor x, float k=1.0) -> Tensor")]

    @kf.impl("autograd_test::cube", "CPU")
    def _(x, k):
        return np.asarray(x) ** 3 * k

    yield "autograd_test::cube"
    for handle in handles:
        handle.remove()


def call(name, *args):
    return kf.get_op(name)(*args)


def test_an_operator_without_a_derivative_works_forward_and_names_itself_back(cube):
    x = leaf([2.0])
    y = call(cube, x)
    assert y.tolist() == [8.0]
    assert y.requires_grad
    with pytest.raises(kf.GradientError, match="autograd_test::cube has no derivative"):
        y.sum().backward()


def test_a_registered_derivative_is_used_and_taken_back(cube):
    def setup(ctx, inputs, output):
        ctx.save_for_backward(inputs[0], output)
        ctx.k = inputs[1]

    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        assert ctx.needs_input_grad == (True, False)
        assert y.tolist() == [16.0]
        return grad * x * x * (3.0 * ctx.k), None

    handle = kf.register_autograd(cube, backward, setup_context=setup)
    x = leaf([2.0])
    call(cube, x, 2.0).sum().backward()
    assert x.grad.tolist() == [24.0]
    # A derivative written with operators has one itself.
    second = kf.grad(lambda g: kf.grad(lambda t: call(cube, t, 1.0).sum(), create_graph=True)(g))
    with pytest.raises(AssertionError):
        second(np.array([3.0]))
    handle.remove()
    with pytest.raises(kf.GradientError, match="no derivative"):
        call(cube, x).sum().backward()


def test_derivatives_written_with_operators_have_derivatives(cube):
    def setup(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    handle = kf.register_autograd(
        cube, lambda ctx, g: (g * ctx.saved_tensors[0] ** 2 * 3.0, None), setup_context=setup
    )
    second = kf.grad(kf.grad(lambda t: call(cube, t).sum()))
    assert float(second(2.0)) == pytest.approx(12.0)
    handle.remove()


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda g: g, "returned 1 gradients; it has 2 arguments"),
        (lambda g: (g, g), "argument 'k', which is a float"),
        (lambda g: (kf.ones(5), None), r"float64\[5\].*which is float64\[1\]"),
        (lambda g: (kf.ones(1, dtype="float32"), None), "float32.*which is float64"),
        (lambda g: (g.to("meta"), None), "on meta.*on cpu"),
        (lambda g: ("no tensor", None), "'no tensor'.*argument 'x'"),
    ],
)
def test_a_wrong_gradient_is_an_error_that_says_what_was_returned(cube, returned, message):
    handle = kf.register_autograd(cube, lambda ctx, g: returned(g))
    x = leaf([2.0])
    with pytest.raises(kf.GradientError, match=message):
        call(cube, x).sum().backward()
    handle.remove()


def test_an_exception_in_a_derivative_or_a_hook_comes_out_as_it_is(cube):
    def broken(ctx, g):
        raise KeyError("mine")

    handle = kf.register_autograd(cube, broken)
    with pytest.raises(KeyError, match="mine"):
        call(cube, leaf([2.0])).sum().backward()
    handle.remove()
    x = leaf([1.0])
    y = x * 2.0

    def hook(g):
        raise LookupError("hooked")

    y.register_hook(hook)
    with pytest.raises(LookupError, match="hooked"):
        y.sum().backward()
    y = x * 2.0
    y.register_hook(lambda g: kf.ones(7))
    with pytest.raises(kf.GradientError, match=r"hook.*float64\[7\]"):
        y.sum().backward()


# Checkpoints


def test_a_checkpoint_computes_again_and_gives_the_same_gradients():
    calls = []
    w = leaf(np.linspace(0.1, 1.0, 4))

    def part(x):
        calls.append(1)
        return (x * w).tanh().exp()

    def loss(x):
        return kf.checkpoint(part, x).sum()

    x = leaf(np.linspace(-1.0, 1.0, 4))
    loss(x).backward()
    assert len(calls) == 2
    gx, gw = x.grad.tolist(), w.grad.tolist()
    x.grad, w.grad = None, None
    part(x).sum().backward()
    assert np.allclose(gx, x.grad.tolist())
    assert np.allclose(gw, w.grad.tolist())


def test_a_checkpoint_drops_the_same_elements_again():
    kf.manual_seed(7)
    x = leaf(np.ones(1000))
    y = kf.checkpoint(lambda x: kf.dropout(x * 2.0, 0.5), x)
    kf.rand(10)
    state = kf.get_rng_state()
    y.sum().backward()
    assert kf.get_rng_state() == state
    assert np.array_equal(x.grad.numpy(), y.detach().numpy())


def test_a_checkpoint_that_does_something_else_the_second_time_is_found_out():
    times = []

    def part(x):
        times.append(1)
        return x * x if len(times) == 1 else x + x

    x = leaf([1.0])
    y = kf.checkpoint(part, x)
    with pytest.raises(kf.GradientError, match="second run"):
        y.sum().backward()


def test_checkpoints_nest():
    x = leaf([0.5])
    y = kf.checkpoint(lambda x: kf.checkpoint(lambda x: x.exp() * x, x).tanh(), x)
    y.sum().backward()
    (expected,) = kf.grad((x.exp() * x).tanh().sum(), [x])
    assert np.allclose(x.grad.tolist(), expected.tolist())
