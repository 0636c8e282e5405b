"""gradcheck and gradgradcheck: right derivatives pass, wrong ones are told with their element."""

import numpy as np
import pytest

import keyfold as kf
from tests.helpers.opchecks import x
from tests.helpers.tensors import leaf


def test_gradcheck_passes_what_is_right():
    a, b = leaf(x(2, 3)), leaf(x(3, 2))
    assert kf.gradcheck(lambda a, b: (a @ b).exp().sum(), (a, b))
    assert kf.gradcheck(lambda a: [a.sin(), a.sum(axis=0), a > 0.5, "text"], a)
    assert kf.gradcheck(lambda a, n: a * float(n), (x(), 3))
    assert a.grad is None


def test_gradcheck_works_without_dimensions_and_elements():
    assert kf.gradcheck(lambda a: a * a, leaf(1.5))
    assert kf.gradcheck(lambda a: a * a, leaf(np.ones((0, 3))))


def test_gradcheck_repeats_random_numbers():
    assert kf.gradcheck(lambda a: kf.dropout(a, 0.5) * a, leaf(x()))


def wrong(make):
    op = make("third(Tensor x, Tensor y) -> Tensor", lambda x, y: x * y)

    def setup(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    kf.register_autograd(op, lambda ctx, g: (g * ctx.saved_tensors[1], g), setup_context=setup)
    return op


def test_gradcheck_says_which_element_is_wrong_and_by_how_much(make):
    op = wrong(make)
    a, b = leaf([[0.5, 2.0]]), leaf([[1.0, 3.0]])
    with pytest.raises(kf.GradientError) as raised:
        kf.gradcheck(lambda a, b: (a + 1.0, op(a, b)), (a, b))
    said = str(raised.value)
    assert "the derivative of output 1 with respect to input 1 is wrong in 2 of 4 elements" in said
    assert "of output element [0, 0] by input element [0, 0] it is numerically 0.5" in said
    assert "analytically 1 (apart by 0.5; allowed are atol=1e-05 + rtol=0.001" in said
    assert kf.gradcheck(op, (a, b), raise_exception=False) is False
    assert kf.gradcheck(op, (a, b), atol=3.0)


def with_tangent(make, slope):
    op = make("scaled(Tensor x) -> Tensor", lambda x: x * 3.0)
    kf.register_autograd(op, lambda ctx, grad: grad * 3.0)
    kf.register_jvp(op, lambda inputs, tangents, output: tangents[0] * slope)
    return op


def test_gradcheck_compares_forward_mode_where_it_is_asked_to(make):
    def both_parts(a):
        return kf.exp(a), kf.real(a) * kf.imag(a), kf.sum(a * a, axis=0)

    assert kf.gradcheck(both_parts, leaf(x(2) * (1.0 + 0.5j)), check_forward=True)
    assert kf.gradcheck(with_tangent(make, 3.0), leaf(x()), check_forward=True)


def test_gradcheck_finds_a_wrong_tangent(make):
    op = with_tangent(make, 2.0)
    assert kf.gradcheck(op, leaf(x()))
    said = "forward-mode derivative of output 0 with respect to input 0 .* analytically 2 "
    with pytest.raises(kf.GradientError, match=said):
        kf.gradcheck(op, leaf(x()), check_forward=True)
    assert kf.gradcheck(op, leaf(x()), check_forward=True, raise_exception=False) is False
    without = make("without(Tensor x) -> Tensor", lambda x: x * 3.0)
    kf.register_autograd(without, lambda ctx, grad: grad * 3.0)
    with pytest.raises(kf.GradientError, match="no rule for tangents"):
        kf.gradcheck(without, leaf(x()), check_forward=True)


def test_gradcheck_compares_forward_mode_alone(make):
    op = make("scaled(Tensor x) -> Tensor", lambda x: x * 3.0)
    handle = kf.register_jvp(op, lambda inputs, tangents, output: tangents[0] * 3.0)
    with pytest.raises(kf.GradientError, match="scaled"):
        kf.gradcheck(op, leaf(x()), check_forward=True)
    assert kf.gradcheck(op, leaf(x()), check_forward=True, check_backward=False)
    handle.remove()
    kf.register_jvp(op, lambda inputs, tangents, output: tangents[0] * 2.0)
    with pytest.raises(kf.GradientError, match="forward-mode derivative of output 0"):
        kf.gradcheck(op, leaf(x()), check_forward=True, check_backward=False)
    with pytest.raises(kf.InvalidValue, match="check_backward or check_forward must be True"):
        kf.gradcheck(op, leaf(x()), check_backward=False)
    with pytest.raises(kf.BindingError, match="'check_backward' must be True or False, not int 1"):
        kf.gradcheck(op, leaf(x()), check_backward=1)


def test_gradcheck_finds_what_is_not_recorded():
    with pytest.raises(kf.GradientError, match="isn't recorded"):
        kf.gradcheck(lambda a: a.detach() * 2.0, leaf(x()))
    with pytest.raises(kf.GradientError, match="has left the graph"):
        kf.gradcheck(lambda a: a.detach().numpy() * 2.0, leaf(x()))


def test_gradcheck_wants_float64_and_something_to_check():
    with pytest.raises(kf.DTypeError, match="input 1 is float32; finite differences need float64"):
        kf.gradcheck(
            lambda a, b: a * b, (leaf(x()), kf.ones((2, 3), dtype="float32").requires_grad_())
        )
    with pytest.raises(kf.DTypeError, match="input 0 is float32"):
        kf.gradcheck(lambda a: a, x().astype(np.float32))
    with pytest.raises(kf.InvalidValue, match="none of the 2 inputs is to be checked"):
        kf.gradcheck(lambda a, b: a, (kf.ones(2), 3.0))


def test_gradcheck_passes_on_what_going_back_raises(make):
    op = make("plain(Tensor x) -> Tensor", lambda x: x * 2.0)
    with pytest.raises(kf.GradientError, match="plain"):
        kf.gradcheck(op, leaf(x()))


def test_gradgradcheck_passes_what_is_right():
    a, b = leaf(x(2, 3)), leaf(x(3, 2))
    assert kf.gradgradcheck(lambda a, b: (a @ b).tanh(), (a, b))
    assert kf.gradgradcheck(lambda a: a * 2.0, a)
    assert kf.gradgradcheck(lambda a: (a.sum(), a.exp()), a, (np.array(2.0), x(2, 3)))


def test_gradgradcheck_finds_a_derivative_that_is_right_once_only(make):
    op = make("square(Tensor x) -> Tensor", lambda x: x * x)

    def setup(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    def backward(ctx, grad):
        return grad * (ctx.saved_tensors[0].detach() * 2.0)

    kf.register_autograd(op, backward, setup_context=setup)
    a = leaf(x())
    assert kf.gradcheck(op, a)
    with pytest.raises(
        kf.GradientError, match="the derivative of output 0 with respect to input 0"
    ):
        kf.gradgradcheck(op, a)
    assert kf.gradgradcheck(op, a, raise_exception=False) is False
