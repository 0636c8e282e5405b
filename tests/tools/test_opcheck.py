"""opcheck's report, what it says of honest operators, and schemas that don't tell the truth."""

import numpy as np
import pytest

import keyfold as kf
from tests.helpers.opchecks import check, failure, x

TESTS = ["schema", "layouts", "meta", "autograd", "vmap", "autocast", "trace"]


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
