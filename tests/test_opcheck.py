"""opcheck and gradcheck: honest operators pass, and each kind of dishonesty is caught."""

import numpy as np
import pytest

import keyfold as kf

TESTS = ["schema", "layouts", "meta", "autograd", "vmap", "autocast", "trace"]


@pytest.fixture
def make(lib, ns):
    """`make(schema, kernel, **kernels)`: an operator of that schema in a namespace of its own."""

    def make(schema, kernel, **kernels):
        lib.define(schema)
        name = schema.split("(")[0]
        lib.impl(name, kernel, "CPU")
        for key, other in kernels.items():
            lib.impl(name, other, key)
        return kf.get_op(f"{ns}::{name}")

    return make


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


# Apart from each other and from where functions have kinks.
A, B = x(), x()[::-1] * 1.3 - 0.7
ROW = np.array([1, 0])

CASES = {
    "abs": (B,),
    "add": (A, B),
    "add.Scalar": (A, 2.0),
    "alias": (A,),
    "all": (A > 1.0, [0]),
    "amax": (B, [1]),
    "amin": (B, [0], True),
    "any": (A > 1.0,),
    "arange": (3,),
    "argmax": (B, 1),
    "argmin": (B,),
    "bitwise_and": (ROW, ROW),
    "bitwise_and.Scalar": (ROW, 1),
    "bitwise_left_shift": (ROW, ROW),
    "bitwise_left_shift.Scalar": (ROW, 1),
    "bitwise_not": (ROW,),
    "bitwise_or": (ROW, ROW),
    "bitwise_or.Scalar": (ROW, 1),
    "bitwise_right_shift": (ROW, ROW),
    "bitwise_right_shift.Scalar": (ROW, 1),
    "bitwise_xor": (ROW, ROW),
    "bitwise_xor.Scalar": (ROW, 1),
    "cat": ([A, B], 1),
    "ceil": (B,),
    "clone": (A.T,),
    "contiguous": (x()[:, ::2],),
    "copy_": (A, B),
    "cos": (A,),
    "detach": (A,),
    "div": (A, B),
    "div.Scalar": (A, 2.0),
    "dropout": (A, 0.5, True),
    "empty": ([2, 3],),
    "eq": (A, B),
    "eq.Scalar": (A, 1.0),
    "erf": (B,),
    "exp": (A,),
    "expand": (x(1, 3), [2, 3]),
    "expm1": (A,),
    "fill_.Scalar": (A, 2.0),
    "flip": (A, [1]),
    "floor": (B,),
    "floor_divide": (A, B * 1.07 + 0.01),
    "floor_divide.Scalar": (A, 0.7),
    "full": ([2], 1.5),
    "gather": (A, 1, np.array([[0, 2], [1, 1]])),
    "ge": (A, B),
    "ge.Scalar": (A, 1.0),
    "gelu": (B,),
    "gelu_tanh": (B,),
    "gt": (A, B),
    "gt.Scalar": (A, 1.0),
    "index.Tensor": (A, [ROW, None]),
    "index_add": (A, 0, ROW, B),
    "index_put": (A, [ROW], B),
    "index_put_": (A, [np.array([1])], x(1, 3)),
    "index_select": (A, 1, np.array([2, 0])),
    "isfinite": (B,),
    "isinf": (B,),
    "isnan": (B,),
    "le": (A, B),
    "le.Scalar": (A, 1.0),
    "log": (A,),
    "log1p": (A,),
    "log_softmax": (A, 1),
    "logical_not": (A > 1.0,),
    "lt": (A, B),
    "lt.Scalar": (A, 1.0),
    "masked_select": (A, A > 0.6),
    "matmul": (A, x(3, 2)),
    "max": (B,),
    "maximum": (A, B),
    "maximum.Scalar": (A, 0.6),
    "mean": (A,),
    "mean.dim": (A, [0]),
    "min": (B,),
    "minimum": (A, B),
    "minimum.Scalar": (A, 0.6),
    "mul": (A, B[0]),
    "mul.Scalar": (A, 2.0),
    "ne": (A, B),
    "ne.Scalar": (A, 1.0),
    "neg": (A,),
    "ones": ([2],),
    "permute": (A, [1, 0]),
    "pow": (A, B),
    "pow.Scalar": (A, 3.0),
    "rand": ([2],),
    "randn": ([2],),
    "rbitwise_left_shift.Scalar": (ROW, 1),
    "rbitwise_right_shift.Scalar": (ROW, 4),
    "rdiv.Scalar": (A, 2.0),
    "reciprocal": (A,),
    "relu": (B,),
    "remainder": (A, B * 1.07 + 0.01),
    "remainder.Scalar": (A, 0.7),
    "reshape": (A.T, [6]),
    "round": (B,),
    "rfloor_divide.Scalar": (A, 0.77),
    "rpow.Scalar": (A, 2.0),
    "rremainder.Scalar": (A, 0.77),
    "rsqrt": (A,),
    "rsub.Scalar": (A, 2.0),
    "scatter_add": (A, 1, np.array([[0, 2], [1, 1]]), x(2, 2)),
    "select.int": (A, 1, 2),
    "select_scatter": (A, x(3), 0, 1),
    "sigmoid": (B,),
    "sign": (B,),
    "silu": (B,),
    "sin": (B,),
    "slice.Tensor": (A, 1, 0, 3, 2),
    "slice_scatter": (A, x(1, 3), 0, 1, 2),
    "softmax": (A, 0),
    "softplus": (B,),
    "sqrt": (A,),
    "squeeze": (x(1, 3, 1),),
    "squeeze.dim": (x(1, 3), 0),
    "stack": ([A, B], 1),
    "sub": (A, B),
    "sub.Scalar": (A, 2.0),
    "sum": (A,),
    "sum.dim": (A, [0]),
    "tanh": (B,),
    "to": (A, kf.float32),
    "transpose": (A, 0, 1),
    "trunc": (B,),
    "unsqueeze": (A, 1),
    "where": (A > 0.6, A, B),
    "where.Scalar": (A > 0.6, 1.0, 2.0),
    "where.ScalarOther": (A > 0.6, A, 2.0),
    "where.ScalarSelf": (A > 0.6, 2.0, B),
    "zeros": ([2, 3],),
}


def test_the_cases_are_all_built_in_operators():
    names = kf._default_dispatcher.operator_names()
    # Overloads that write into `out` are compared with NumPy in test_operators_numpy.py.
    expected = {n for n in names if n.startswith("aten::") and not n.endswith((".out", "_out"))}
    assert {f"aten::{name}" for name in CASES} == expected


@pytest.mark.parametrize("name", CASES)
def test_built_in_operators_are_honest(name):
    report = kf.opcheck(kf.get_op(f"aten::{name}"), CASES[name])
    assert report["schema"] == "passed"
    # As tensors, and where there are shorter floats in them.
    for dtype in ("float64", "float32", "float16", "bfloat16"):
        args = [convert(arg, dtype) for arg in CASES[name]]
        kf.opcheck(kf.get_op(f"aten::{name}"), args, rtol=1e-2, atol=1e-2)


def convert(arg, dtype):
    if isinstance(arg, list):
        return [convert(item, dtype) for item in arg]
    if not isinstance(arg, np.ndarray):
        return arg
    tensor = kf.asarray(arg)
    return tensor.to(dtype) if arg.dtype == np.float64 else tensor


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


# gradcheck


def leaf(data):
    return kf.asarray(np.array(data, dtype=np.float64)).requires_grad_()


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
