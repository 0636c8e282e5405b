"""opcheck catches mistakes in layouts, Meta kernels, derivatives and rules of layers."""

import numpy as np
import pytest

import keyfold as kf
from tests.helpers.opchecks import check, failure, x

# Layouts


def test_a_kernel_that_forgets_strides_is_caught(make):
    def kernel(x):
        flat = np.lib.stride_tricks.as_strided(x, (x.size,), (x.itemsize,))
        return flat.reshape(x.shape) * 2.0

    op = make("flat(Tensor x) -> Tensor", kernel)
    said = failure(op, x(), test="layouts")
    assert said.startswith("with arguments with gaps between elements: ")
    assert "elements differ: at [0, 1] " in said


def test_a_kernel_that_wants_contiguous_arguments_is_caught(make):
    def kernel(x):
        assert x.flags.c_contiguous
        return x * 2.0

    op = make("picky(Tensor x) -> Tensor", kernel)
    assert "AssertionError" in failure(op, x(), test="layouts")


def test_a_kernel_that_cannot_take_no_elements_is_caught(make):
    def kernel(x):
        return x / (1 // x.size)

    op = make("divides(Tensor x) -> Tensor", kernel)
    said = failure(op, x(1), test="layouts")
    assert said.startswith("with arguments without elements the call raised ZeroDivisionError")


def test_arguments_that_are_refused_with_an_error_of_their_own_are_fine(make):
    def kernel(x):
        if x.ndim != 2 or not x.size:
            raise ValueError("matrices with elements alone, please")
        return x * 2.0

    op = make("matrices(Tensor x) -> Tensor", kernel)
    assert kf.opcheck(op, (x(),), tests="layouts") == {"layouts": "passed"}


# Meta


@pytest.mark.parametrize(
    ("fake", "said"),
    [
        (
            lambda x: kf.empty((3, 2), dtype=x.dtype, device="meta"),
            "shape [2, 3], the Meta kernel says [3, 2]",
        ),
        (
            lambda x: kf.empty(x.shape, dtype="float32", device="meta"),
            "dtype float64, the Meta kernel says float32",
        ),
        (lambda x: kf.ones(x.shape), "KernelReturnError"),
        (lambda x: x.item(), "the Meta kernel raised"),
        (lambda x: (x, x), "where the schema promises Tensor"),
    ],
)
def test_a_meta_kernel_that_is_wrong_is_caught(make, fake, said):
    op = make("f(Tensor x) -> Tensor", lambda x: x * 2.0)
    kf.register_fake(op, fake)
    assert said in failure(op, x(), test="meta")


@pytest.mark.parametrize(
    ("kernel", "fake", "said"),
    [
        (
            lambda x: np.ascontiguousarray(x.T),
            lambda x: x.T,
            "result 0 has strides [2, 1], the Meta kernel says [1, 3]",
        ),
        (
            lambda x: x * 2.0,
            lambda x: x,
            "result 0 has its own memory, the Meta kernel says an arg",
        ),
        (
            lambda x: x,
            lambda x: kf.empty(x.shape, dtype=x.dtype, device="meta"),
            "result 0 has an argument's memory, the Meta kernel says its own",
        ),
        (
            lambda x: x[1:],
            lambda x: x[:1],
            "begins at element 3 of an argument's memory, the Meta kernel says at element 0",
        ),
    ],
)
def test_other_strides_and_memory_are_caught(make, kernel, fake, said):
    op = make("f(Tensor(a) x) -> Tensor(a)", kernel)
    kf.register_fake(op, fake)
    assert said in failure(op, x(), test="meta")


def test_lists_of_another_length_are_caught(make):
    op = make("items(Tensor x) -> Tensor[]", lambda x: [x * 1.0, x * 2.0])
    kf.register_fake(op, lambda x: [x])
    assert "result 0 has 2 tensors, the Meta kernel says 1" in failure(op, x(), test="meta")


# The layers


def test_a_wrong_derivative_is_caught(make):
    op = make("twice(Tensor x) -> Tensor", lambda x: x * 2.0)
    kf.register_autograd(op, lambda ctx, grad: grad * 3.0)
    said = failure(op, kf.asarray(x()), test="autograd")
    assert "the derivative of output 0 with respect to input 0 is wrong" in said
    assert "numerically 2" in said
    assert "analytically 3" in said


def test_a_wrong_tangent_is_caught(make):
    op = make("twice(Tensor x) -> Tensor", lambda x: x * 2.0)
    kf.register_autograd(op, lambda ctx, grad: grad * 2.0)
    assert kf.opcheck(op, (x(),), tests="autograd")["autograd"] == "passed"
    kf.register_jvp(op, lambda inputs, tangents, output: tangents[0] * 3.0)
    said = failure(op, kf.asarray(x()), test="autograd")
    assert "the forward-mode derivative of output 0 with respect to input 0 is wrong" in said


@pytest.mark.parametrize("derivative", ["none", "refused"])
def test_tangents_are_checked_without_a_derivative(make, derivative):
    op = make("twice(Tensor x) -> Tensor", lambda x: x * 2.0)

    def refuse(ctx, grad):
        raise kf.NotSupported("not this one")

    if derivative == "refused":
        kf.register_autograd(op, refuse)
    skipped = {"none": "no derivative registered", "refused": "no derivative: not this one"}
    assert kf.opcheck(op, (x(),), tests="autograd") == {
        "autograd": f"skipped: {skipped[derivative]}"
    }
    kf.register_jvp(op, lambda inputs, tangents, output: tangents[0] * 2.0)
    assert kf.opcheck(op, (x(),), tests="autograd") == {"autograd": "passed"}
    kf.register_jvp(op, lambda inputs, tangents, output: tangents[0] * 3.0, override="replace")
    said = failure(op, kf.asarray(x()), test="autograd")
    assert "the forward-mode derivative of output 0 with respect to input 0 is wrong" in said


def test_a_rule_that_says_it_has_no_rule_is_a_failure(make):
    op = make("twice(Tensor x) -> Tensor", lambda x: x * 2.0)

    def lie(inputs, tangents, output):
        raise kf.GradientError("twice has no rule for tangents")

    kf.register_autograd(op, lambda ctx, grad: grad * 2.0)
    kf.register_jvp(op, lie)
    assert "twice has no rule for tangents" in failure(op, kf.asarray(x()), test="autograd")


@pytest.mark.parametrize(
    "backward",
    [
        lambda ctx, grad: None,
        lambda ctx, grad: (grad, grad),
        lambda ctx, grad: kf.ones((7,)),
        lambda ctx, grad: grad.to("float32"),
        lambda ctx, grad: 1 / 0,
    ],
    ids=["nothing", "count", "shape", "dtype", "raises"],
)
def test_a_derivative_that_breaks_its_form_is_caught(make, backward):
    op = make("twice(Tensor x) -> Tensor", lambda x: x * 2.0)
    kf.register_autograd(op, backward)
    assert failure(op, kf.asarray(x()), test="autograd")


def test_a_derivative_that_is_refused_by_design_is_none(ns):
    pick = kf.elementwise(f"{ns}::pick(Tensor t, Tensor i) -> Tensor", "t[i] * 2")
    mixed = kf.elementwise(f"{ns}::mixed(Tensor x, Tensor t) -> Tensor", "x * x * t[index]")
    try:
        report = kf.opcheck(pick, (x(3), np.array([2, 0])))
        assert report["autograd"].startswith("skipped: no derivative: ")
        assert "'t' is read at computed indices" in report["autograd"]
        # Operators that have one are compared all the same.
        assert kf.opcheck(mixed, (x(3), x(3)))["autograd"] == "passed"
    finally:
        pick.remove()
        mixed.remove()


def test_an_error_of_a_derivative_of_ones_own_is_a_failure(make):
    def backward(ctx, grad):
        raise kf.GradientError("lost")

    op = make("twice(Tensor x) -> Tensor", lambda x: x * 2.0)
    kf.register_autograd(op, backward)
    assert "lost" in failure(op, kf.asarray(x()), test="autograd")

    def unsupported(ctx, grad):
        raise kf.NotSupported("not in this release")

    other = make("thrice(Tensor x) -> Tensor", lambda x: x * 3.0)
    kf.register_autograd(other, unsupported)
    report = check(other, kf.asarray(x()), tests="autograd")
    assert report["autograd"] == "skipped: no derivative: not in this release"


def test_large_examples_are_not_differentiated_by_differences():
    report = kf.opcheck("aten::neg", (np.ones((40, 40)),), tests="autograd")
    assert "too many for finite differences" in report["autograd"]


def test_a_wrong_batching_rule_is_caught(make):
    op = make("total(Tensor x) -> Tensor", lambda x: x.sum())

    def forgets_the_axis(info, in_dims, x):
        return kf.asarray(x).sum() * kf.ones(info.batch_size), 0

    kf.register_vmap(op, forgets_the_axis)
    assert "vmap and a loop differ in result 0" in failure(op, kf.asarray(x()), test="vmap")


def test_an_operator_that_a_category_breaks_is_caught(make):
    def kernel(x):
        if x.dtype != "float64" and x.dtype != "float32":
            raise kf.DTypeError(f"no kernel for {x.dtype}")
        return x * 2.0

    op = make("wide(Tensor x) -> Tensor", kernel)
    kf.register_autocast(op, "lower")
    said = failure(op, x().astype(np.float32), test="autocast")
    assert said == "under autocast(float16) the call raised DTypeError: no kernel for float16"


def test_a_result_that_autocast_changes_in_shape_is_caught(make):
    op = make("odd(Tensor x) -> Tensor", lambda x: x[0] * 1 if x.dtype == "float16" else x * 1)
    kf.register_autocast(op, cast_inputs="float16")
    assert "the results have shapes [[3]] instead of [[2, 3]]" in failure(
        op, x().astype(np.float32), test="autocast"
    )


def test_an_operator_that_cannot_be_replayed_is_caught(make):
    calls = []

    def kernel(x):
        calls.append(x)
        return x * len(calls)

    op = make("counts(Tensor x) -> Tensor", kernel)
    assert "running the trace again" in failure(op, x(), test="trace")
