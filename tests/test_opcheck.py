"""opcheck and gradcheck: honest operators pass, and each kind of dishonesty is caught."""

import numpy as np
import pytest

import keyfold as kf

TESTS = ["schema", "layouts", "meta", "autograd", "vmap", "autocast", "trace"]


def check(op, *args, tests=None, **kwargs):
    return kf.opcheck(op, args, kwargs, tests=tests, raise_exception=False)


def failure(op, *args, test):
    """What the one test says, which must have failed."""
    report = check(op, *args, tests=test)
    assert list(report.failures) == [test], report
    return report[test]


def x(*shape):
    shape = shape or (2, 3)
    return np.arange(1.0, 1.0 + np.prod(shape, dtype=int)).reshape(shape) / 4


# The report


def test_it_gives_a_dict_that_prints():
    report = kf.opcheck("aten::mul", (x(), x()))
    assert isinstance(report, dict)
    assert list(report) == TESTS
    assert set(report.values()) == {"passed"}
    assert report.failures == {}
    lines = str(report).splitlines()
    assert lines[0] == "opcheck aten::mul"
    assert lines[1] == "  schema    passed"
    assert repr(report) == str(report)


def test_operators_are_given_by_name_packet_or_overload():
    by_name = kf.opcheck("aten::add", (x(), 2.0), tests="meta")
    assert by_name.operator == "aten::add.Scalar", "the arguments choose the overload"
    assert kf.opcheck(kf.ops.aten.add, (x(), x()), tests=["meta"]).operator == "aten::add"
    assert kf.opcheck(kf.ops.aten.sum.dim, (x(), [0]), {"keepdim": True}) == dict.fromkeys(
        TESTS, "passed"
    )


def test_tests_can_be_chosen_and_must_exist():
    assert list(kf.opcheck("aten::neg", (x(),), tests=("vmap", "schema"))) == ["vmap", "schema"]
    with pytest.raises(ValueError, match="no such test: shema; the tests are schema, layouts"):
        kf.opcheck("aten::neg", (x(),), tests="shema")


def test_arguments_that_do_not_fit_are_the_callers_error():
    with pytest.raises(kf.UnknownOperator):
        kf.opcheck("aten::no_such_operator", ())
    report = check("aten::neg", "text", tests="schema")
    assert "BindingError" in report["schema"]


def test_a_failure_raises_with_the_whole_report(make):
    def grows(x):
        x += 1.0
        return x.copy()

    op = make("grows(Tensor x) -> Tensor", grows)
    with pytest.raises(kf.OpCheckError, match="argument 'x' was changed") as raised:
        kf.opcheck(op, (x(),))
    assert isinstance(raised.value, kf.Error)
    assert isinstance(raised.value, AssertionError)
    assert list(raised.value.report) == TESTS
    assert "schema" in raised.value.report.failures
    assert "FAILED: argument 'x' was changed" in str(raised.value)


def test_arguments_and_random_state_are_left_as_they_were():
    a = kf.asarray(x())
    state = kf.get_rng_state()
    kf.opcheck("aten::fill_", (a, 3.0))
    kf.opcheck("aten::dropout", (a, 0.5, True))
    assert a.tolist() == x().tolist()
    assert kf.get_rng_state() == state


# Honest operators


def test_what_does_not_apply_is_skipped_with_the_reason(make):
    op = make("plain(Tensor x) -> Tensor", lambda x: x * 2.0)
    report = kf.opcheck(op, (x(),))
    assert report["meta"].startswith("skipped: no Meta kernel; add one with @keyfold.register_fake")
    assert report["autograd"] == "skipped: no derivative registered"
    assert [report[t] for t in ("schema", "layouts", "vmap", "autocast", "trace")] == ["passed"] * 5
    report = kf.opcheck("aten::fill_", (x(), 1.0))
    assert report["vmap"] == report["trace"] == "skipped: it writes to an argument"
    assert kf.opcheck("aten::arange", (3,))["layouts"] == "skipped: it has no tensor arguments"
    assert "random numbers" in kf.opcheck("aten::dropout", (x(), 0.5, True))["vmap"]
    report = kf.opcheck("aten::eq", (x(), x()))
    assert report["autograd"].startswith("skipped: no ")


def test_why_derivatives_are_not_compared_is_told():
    assert kf.opcheck("aten::detach", (x(),))["autograd"].endswith("gradients end here")
    report = kf.opcheck("aten::to", (x(), kf.float32))
    assert (
        report["autograd"]
        == "skipped: it gives float32 for float64, too short for finite differences"
    )
    assert kf.opcheck("aten::argmax", (x(),))["autograd"].startswith("skipped: no ")


def test_an_operator_with_all_rules_passes_everything(make):
    op = make("cube(Tensor x, float k=1.0) -> Tensor", lambda x, k: x * x * x * k)
    kf.register_fake(op, lambda x, k: kf.empty_like(x))
    kf.register_autocast(op, "full")

    def setup(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.k = inputs[1]

    def backward(ctx, grad):
        (saved,) = ctx.saved_tensors
        return grad * saved * saved * (3.0 * ctx.k), None

    kf.register_autograd(op, backward, setup_context=setup)
    assert kf.opcheck(op, (kf.asarray(x()),), {"k": 2.0}) == dict.fromkeys(TESTS, "passed")


# Dishonest operators: the schema


def test_a_changed_argument_is_caught(make):
    def kernel(x, y):
        y[0] = 7.0
        return x + y

    op = make("sneaky(Tensor x, Tensor y) -> Tensor", kernel)
    said = failure(op, x(), x(), test="schema")
    assert said.startswith(
        "argument 'y' was changed, and the schema doesn't say so: mark it Tensor(a!)"
    )


def test_a_changed_argument_in_a_list_is_caught(make):
    def kernel(items):
        items[1][...] = 0.0
        return items[0].copy()

    op = make("sneaky(Tensor[] items) -> Tensor", kernel)
    assert "argument 'items' was changed" in failure(op, [x(), x()], test="schema")


@pytest.mark.parametrize("kernel", [lambda x: x, lambda x: x[::2], lambda x: x.T])
def test_a_view_that_the_schema_does_not_mention_is_caught(make, kernel):
    op = make("view(Tensor x) -> Tensor", kernel)
    said = failure(op, x(), test="schema")
    assert "result 0 shares memory with argument 'x'" in said
    assert failure(op, kf.asarray(x()), test="schema") == said


def test_a_view_of_another_argument_than_the_schema_says_is_caught(make):
    op = make("view(Tensor(a) x, Tensor y) -> Tensor(a)", lambda x, y: y)
    assert "result 0 shares memory with argument 'y'" in failure(op, x(), x(), test="schema")


def test_results_that_share_memory_are_caught(make):
    def kernel(x):
        y = x + 1.0
        return y, y[0]

    op = make("pair(Tensor x) -> (Tensor, Tensor)", kernel)
    said = failure(op, x(), test="schema")
    assert said.startswith("results 0 and 1 share memory, and the schema doesn't say so")


def test_an_alias_that_is_a_copy_is_caught(make):
    op = make("copy(Tensor(a) x) -> Tensor(a)", lambda x: x.copy())
    said = failure(op, x(), test="schema")
    assert said.startswith(
        "result 0 is annotated (a), as memory of argument 'x', but has memory of"
    )


def test_a_written_result_that_is_a_copy_is_caught(make):
    def kernel(x):
        x += 1.0
        return x.copy()

    op = make("add_(Tensor(a!) x) -> Tensor(a!)", kernel)
    assert "result 0 is annotated (a!)" in failure(op, x(), test="schema")


@pytest.mark.parametrize(
    ("kernel", "returns"),
    [
        (lambda x: None, "Tensor"),
        (lambda x: "text", "Tensor"),
        (lambda x: x, "int"),
        (lambda x: (x + 1.0, x + 1.0, x + 1.0), "(Tensor, Tensor)"),
        (lambda x: x + 1.0, "()"),
    ],
)
def test_the_wrong_kind_or_count_of_results_is_caught(make, kernel, returns):
    op = make(f"kinds(Tensor x) -> {returns}", kernel)
    said = failure(op, x(), test="schema")
    assert said.startswith("the call raised KernelReturnError: ")
    assert "where the schema promises" in said


def test_an_operator_with_a_state_is_caught(make):
    calls = []

    def kernel(x):
        calls.append(x)
        return x * len(calls)

    op = make("counts(Tensor x) -> Tensor", kernel)
    assert "two calls with the same arguments" in failure(op, x(), test="schema")


def test_random_numbers_of_another_generator_are_caught(make):
    random = np.random.default_rng()
    op = make("noise(Tensor x) -> Tensor", lambda x: x + random.standard_normal(x.shape))
    assert "draw random numbers with keyfold's generator" in failure(op, x(), test="schema")


def test_random_numbers_of_keyfolds_generator_are_repeated(make):
    op = make("noise(Tensor x) -> Tensor", lambda x: np.asarray(x) + kf.randn(x.shape).numpy())
    assert kf.opcheck(op, (x(),), tests="schema") == {"schema": "passed"}


def test_a_kernel_that_fails_is_told(make):
    def kernel(x):
        raise ZeroDivisionError("mine")

    op = make("fails(Tensor x) -> Tensor", kernel)
    report = check(op, x())
    assert report["schema"] == "the call raised ZeroDivisionError: mine"
    assert "ZeroDivisionError" in report["layouts"]


# Dishonest operators: layouts


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


# Dishonest operators: Meta


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


def test_lists_of_another_length_are_caught(make):
    op = make("items(Tensor x) -> Tensor[]", lambda x: [x * 1.0, x * 2.0])
    kf.register_fake(op, lambda x: [x])
    assert "result 0 has 2 tensors, the Meta kernel says 1" in failure(op, x(), test="meta")


# Dishonest operators: the layers


def test_a_wrong_derivative_is_caught(make):
    op = make("twice(Tensor x) -> Tensor", lambda x: x * 2.0)
    kf.register_autograd(op, lambda ctx, grad: grad * 3.0)
    said = failure(op, kf.asarray(x()), test="autograd")
    assert "the derivative of output 0 with respect to input 0 is wrong" in said
    assert "numerically 2" in said
    assert "analytically 3" in said


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
        # What has one is compared all the same.
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
