"""Operators made of one expression: `kf.elementwise` and `kf.Expression`, under every layer."""

import copy
import itertools
import pickle
import re

import numpy as np
import pytest

import keyfold as kf
from tests.helpers.random_arrays import BITS, HALVES, computed, distance, lay_out, numbers, rounded

SOFTPLUS = "log1p(exp(x))"
X = np.linspace(-2.0, 2.0, 6).reshape(3, 2)


# Steps, elements before, order of dimensions: by layout and rank.
LAYOUTS = {
    "contiguous": lambda n: ((1,) * n, (0,) * n, range(n)),
    "sliced": lambda n: ((2,) * n, (1,) * n, range(n)),
    "reversed": lambda n: ((-1,) * n, (0,) * n, range(n)),
    "transposed": lambda n: ((1,) * n, (0,) * n, reversed(range(n))),
    "repeated": lambda n: ((0, *(1,) * (n - 1))[:n], (0,) * n, range(n)),
}
SHAPES = [(), (7,), (0,), (1000,), (3, 5), (33, 70), (4, 1, 3), (2, 3, 2, 2), (2, 1, 3, 2, 2)]


@pytest.mark.parametrize("dtype", BITS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_softplus_is_one_line_for_every_dtype_layout_rank_and_placement(define, dtype, layout):
    softplus = define("softplus(Tensor x) -> Tensor", SOFTPLUS)
    rng = np.random.default_rng(7)
    calls = 0
    for shape, tensors in itertools.product(SHAPES, [False, True]):
        values = rounded(rng.uniform(-9, 9, shape), dtype)
        where = tuple(map(tuple, LAYOUTS[layout](len(shape))))
        values = np.broadcast_to(values[:1], shape) if layout == "repeated" and shape else values
        wide = values.astype(np.longdouble)
        exact = np.log1p(np.exp(wide))

        def made(values=values, where=where, tensors=tensors):
            array = lay_out(values, where, dtype)
            return kf.asarray(array) if tensors else array

        def right(got, exact=exact):
            assert str(got.dtype) == dtype
            limit = 0.51 if dtype in HALVES else 4
            assert np.all(distance(numbers(got), exact, dtype) <= limit)

        x = made()
        got = softplus(x)
        assert type(got) is type(x)
        right(got)
        assert np.array_equal(numbers(x), values), "the operand stays as it is"
        calls += 1
        ones = (1,) * len(shape)
        out = lay_out(
            np.zeros(shape, computed(dtype)), (ones, ones, tuple(range(len(shape)))), dtype
        )
        out = kf.asarray(out) if isinstance(x, kf.Tensor) else out
        assert softplus(x, out=out) is out
        right(out)
        if layout != "repeated":
            assert softplus(x, out=x) is x
            right(x)
    assert calls == 2 * len(SHAPES)


EXPRESSIONS = {
    "log1p(exp(x))": 1,
    "x * sigmoid(x) + gelu(x) - softplus(x) * tanh(x)": 1,
    "where(x > 0, x ** 2, sin(x) * cos(x))": 1,
    "x ** y + exp(-y) / (1 + x * x)": 2,
    "t = sqrt(x * x + y * y + 1); log(t) * erf(x) + rsqrt(t)": 2,
    "min(x, y) * max(x, 2 * y) + abs(x - 3 * y)": 2,
    "hypot(x, y) + logaddexp(x, y) + expm1(x) * log1p(y * y)": 2,
}


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_derivatives_are_those_of_finite_differences(text):
    expression = kf.Expression(text)
    rng = np.random.default_rng(3)
    arrays = [rng.uniform(0.3, 2.2, 5) for _ in range(EXPRESSIONS[text])]
    assert expression.inputs == ("x", "y")[: len(arrays)]
    for at, name in enumerate(expression.inputs):
        step = np.zeros(5)
        step[:] = 1e-6
        up = [a + step * (i == at) for i, a in enumerate(arrays)]
        down = [a - step * (i == at) for i, a in enumerate(arrays)]
        slope = (expression(*up) - expression(*down)) / 2e-6
        derivative = expression.derivative(name)
        assert derivative.inputs == expression.inputs
        assert np.allclose(derivative(*arrays), slope, rtol=1e-6, atol=1e-8)
        # Broadcast, the gradient is added up.
        few = arrays[at][:1]
        mixed = [kf.asarray(few if i == at else a) for i, a in enumerate(arrays)]
        full = [np.broadcast_to(few, 5) if i == at else a for i, a in enumerate(arrays)]
        gradient = kf.grad(lambda v, at=at, m=mixed: expression(*m[:at], v, *m[at + 1 :]).sum())
        if len(arrays) == 2:
            total = derivative(*full).sum()
            assert np.allclose(gradient(mixed[at]).numpy(), total)
    tensors = [kf.asarray(a).requires_grad_() for a in arrays]
    assert kf.gradcheck(expression, tensors)
    assert kf.gradgradcheck(expression, tensors)


def test_gradients_of_gradients_of_gradients():
    cube = kf.Expression("x ** 3")
    third = kf.grad(kf.grad(kf.grad(lambda x: cube(x))))
    assert third(kf.asarray(2.0)).item() == 6.0
    sine = kf.Expression("sin(k * x)", params=["k"])
    x = kf.asarray(0.3)
    second = kf.grad(kf.grad(lambda x: sine(x, k=2.0)))(x)
    assert np.isclose(second.item(), -4 * np.sin(0.6))


def test_an_operator_has_its_derivative_in_every_dtype(define):
    softplus = define("softplus(Tensor x) -> Tensor", SOFTPLUS)
    for dtype in BITS:
        x = kf.asarray(X).to(dtype).requires_grad_()
        softplus(x).sum().backward()
        assert x.grad.dtype == dtype
        wide = numbers(x.detach()).astype(np.float64)
        assert np.all(distance(numbers(x.grad), 1 / (1 + np.exp(-wide)), dtype) <= 4)
    # Far out, where `exp` overflows, the slope is a number all the same.
    x = kf.asarray([800.0, -800.0]).requires_grad_()
    softplus(x).sum().backward()
    assert x.grad.tolist() == [1.0, 0.0]


def test_a_batch_is_one_call(define):
    calls = define("axpy(Tensor x, Tensor y, float a=2.0) -> Tensor", "a * x + y")
    y = np.arange(3.0)
    assert np.array_equal(kf.vmap(lambda x: calls(x, y, 3.0))(X.T), 3 * X.T + y)
    assert np.array_equal(kf.vmap(calls, in_axes=(0, 1))(X.T, X), 3 * X.T)
    assert np.array_equal(kf.vmap(calls, in_axes=(0, None))(X, 1 + X[0]), 2 * X + 1 + X[0])
    nested = kf.vmap(kf.vmap(lambda x: calls(x, 1.0 + x)))
    assert np.array_equal(nested(X), 3 * X + 1)
    with kf.profile() as p:
        kf.vmap(lambda x: calls(x, y))(np.ones((50, 3)))
    assert sum(event["name"].endswith("::axpy") for event in p.events) <= 2
    # The gradient of each example.
    slopes = kf.vmap(kf.grad(lambda x: calls(x, y).sum()))(kf.asarray(X.T))
    assert np.array_equal(slopes.numpy(), np.full((2, 3), 2.0))


def test_an_index_counts_within_an_example():
    for text in ["x + index", "x + index(0)", "x + index(1)", "table[index] * x"]:
        expression = kf.Expression(text)
        arrays = [np.arange(10.0)] if "table" in text else []

        def call(x, expression=expression, arrays=arrays):
            return expression(*arrays, x)

        batch = np.arange(24.0).reshape(4, 3, 2)
        each = np.stack([call(x) for x in batch])
        assert np.array_equal(kf.vmap(call)(batch), each)


def test_a_table_of_each_example_is_read():
    pick = kf.Expression("table[place]", inputs=["place", "table"])
    tables, places = np.arange(12.0).reshape(3, 4), np.array([[0, -1], [3, 2], [1, 1]])
    expected = np.take_along_axis(tables, places % 4, axis=1)
    assert np.array_equal(kf.vmap(pick)(places, tables), expected)
    assert np.array_equal(kf.vmap(pick, in_axes=(0, None))(places, tables[0]), tables[0][places])


def test_a_trace_records_and_replays_it(define):
    leaky = define("leaky(Tensor x, float slope=0.1) -> Tensor", "where(x > 0, x, slope * x)")
    graph = kf.trace(lambda x: kf.Expression("x * x + 1")(leaky(x, 0.5)), X)
    operators = [node.operator for node in graph.nodes]
    assert operators == [leaky.operator.name, "keyfold::elementwise"]
    expected = np.where(X > 0, X, 0.5 * X) ** 2 + 1
    assert np.array_equal(graph(X), expected)
    assert np.array_equal(graph(-X), np.where(X < 0, -X, -0.5 * X) ** 2 + 1)


def test_autocast_leaves_it_alone_until_it_is_told(define):
    softplus = define("softplus(Tensor x) -> Tensor", SOFTPLUS)
    x = kf.asarray(X.astype(np.float32))
    with kf.autocast("bfloat16"):
        assert softplus(x).dtype == "float32"
        assert kf.Expression(SOFTPLUS)(x).dtype == "float32"
        handle = kf.register_autocast(softplus.operator, category="lower")
        assert softplus(x).dtype == "bfloat16"
        handle.remove()
        assert softplus(x).dtype == "float32"


def test_shapes_and_dtypes_are_known_without_numbers(define):
    mix = define("mix(Tensor x, Tensor y, Scalar w=1) -> Tensor", "w * x + y")
    for one, two in itertools.product(
        ["bool", "int8", "float16", "float32", "complex64"], repeat=2
    ):
        x, y = kf.ones((3, 1), dtype=one), kf.ones((2,), dtype=two)
        real = mix(x, y)
        meta = mix(x.to_device("meta"), y.to_device("meta"))
        assert (meta.shape, meta.dtype, meta.device.type) == (real.shape, real.dtype, "meta")
        fake = kf.infer_meta(mix.operator, x, y)
        assert (fake.shape, fake.dtype) == (real.shape, real.dtype)
        result = kf.Expression("w * x + y", inputs=["x", "y"], params=["w"])
        assert result.result_dtype({"x": one, "y": two}, params={"w": int}) == real.dtype
    with pytest.raises(kf.ShapeError, match=r"mix.*don't broadcast"):
        mix(kf.empty((3,), device="meta"), kf.empty((2,), device="meta"))
    with pytest.raises(kf.InvalidValue, match="300 is out of range for dtype uint8"):
        mix(*[kf.empty((3,), dtype="uint8", device="meta")] * 2, 300)


def test_opcheck_finds_nothing(define):
    operator = define("op(Tensor x, Tensor y, float k=2.0) -> Tensor", "k * x * y + sin(x)")
    report = kf.opcheck(operator.operator, (kf.asarray(X), kf.asarray(X[0])))
    assert not report.failures
    for name in ["schema", "layouts", "meta", "autograd", "vmap", "trace"]:
        assert report[name] == "passed"


def test_ranked_inputs_are_read_at_indices(define):
    gather = define("gather(Tensor table, Tensor row, Tensor col) -> Tensor", "table[row, col]")
    rng = np.random.default_rng(1)
    for dtype in ["bool", "uint8", "int64", "float32", "complex128"]:
        table = rng.integers(0, 200, (7, 9)).astype(dtype)
        for place in ["int8", "uint16", "int64"]:
            row, col = rng.integers(0, 7, (5, 1)).astype(place), rng.integers(0, 9, 4).astype(place)
            for t in [table, table.T.copy().T, table[::-1], table.repeat(2, 1)[:, ::2]]:
                got = gather(t, row, col)
                assert got.dtype == dtype
                assert np.array_equal(got, t[row, col])
    negative = gather(table, np.array([-1, -7]), np.array([-9, -1]))
    assert np.array_equal(negative, [table[6, 0], table[0, 8]])
    half = kf.asarray([1.5, 2.5]).to("bfloat16")
    assert kf.Expression("t[int64(x)]")(half, np.array([1.0, 0.0])).dtype == "bfloat16"


def test_a_stencil_wraps_around_by_indices():
    expression = kf.Expression("x[(index + 1) % n] - x[index - 1]", params=["n"], inputs=["x"])
    assert expression.ranks == {"x": 1}
    grid = kf.Expression("0 * like + x[(index(1) + 1) % 3, index(0)]", inputs=["like", "x"])
    assert np.array_equal(grid(X, X), np.roll(X, -1, axis=0))


SPREAD = """
a = (v | v << 8) & 0x00FF00FF
b = (a | a << 4) & 0x0F0F0F0F
c = (b | b << 2) & 0x33333333
(c | c << 1) & 0x55555555
"""


def test_morton_codes_by_index_arithmetic():
    spread = kf.Expression(SPREAD)
    rows, cols = 16, 32
    # Each element's code from its place alone, by the bits of row and column.
    bits = [
        f"((index(0) >> {bit} & 1) << {2 * bit}) | ((index(1) >> {bit} & 1) << {2 * bit + 1})"
        for bit in range(5)
    ]
    codes = kf.Expression(f"0 * like + ({' | '.join(bits)})")(np.zeros((rows, cols), np.int64))
    y, x = np.meshgrid(np.arange(rows), np.arange(cols), indexing="ij")
    expected = sum(((x >> b & 1) << 2 * b) | ((y >> b & 1) << (2 * b + 1)) for b in range(5))
    assert np.array_equal(codes, expected)
    assert np.array_equal(spread(x) | spread(y) << 1, expected)
    assert len(np.unique(codes)) == rows * cols
    # Read in that order, as an encoder does.
    data = np.random.default_rng(2).random((32, 32))
    place = np.arange(1024)
    row, column = (
        " | ".join(f"(place >> {2 * bit + odd} & 1) << {bit}" for bit in range(5)) for odd in (1, 0)
    )
    encoded = kf.Expression(f"x[{row}, {column}]", inputs=["x", "place"])(data, place)
    rows_, cols_ = (sum((place >> 2 * bit + odd & 1) << bit for bit in range(5)) for odd in (1, 0))
    assert np.array_equal(encoded, data[rows_, cols_])


def test_an_index_is_the_place_in_the_result_whatever_the_strides():
    for shape in [(), (5,), (3, 4), (2, 3, 4), (64, 33)]:
        for x in [np.zeros(shape), np.zeros(shape[::-1]).T, np.broadcast_to(0.0, shape)]:
            assert np.array_equal(kf.Expression("x + index")(x).ravel(), np.arange(x.size))
            for d in range(len(shape)):
                place = np.indices(shape)[len(shape) - 1 - d]
                assert np.array_equal(kf.Expression(f"x + index({d})")(x), place)


def test_parameters_have_the_types_and_defaults_of_the_schema(define):
    text = "where(f, x ** n, x * s + k)"
    op = define("op(Tensor x, int n=2, bool f=True, Scalar s=3, float k=0.5) -> Tensor", text)
    assert op.expression.params == ("n", "f", "s", "k")
    assert np.array_equal(op(X), X**2)
    assert np.allclose(op(X, 3), X**3, rtol=1e-15)
    assert np.array_equal(op(X, f=False), X * 3 + 0.5)
    assert np.array_equal(op(X, 1, False, 2.5, k=1.0), X * 2.5 + 1)
    assert np.array_equal(op(X, 1, False, s=True, k=0.0), X)
    # A number takes the dtype of what it meets where that can hold its kind.
    scale = kf.Expression("x * s", params=["s"])
    ints = np.arange(3, dtype=np.int8)
    kinds = {2: "int8", True: "int8", 2.5: "float64", 1j: "complex128"}
    for number, dtype in kinds.items():
        assert scale(ints, s=number).dtype == dtype
        assert np.array_equal(scale(ints, s=number), ints * number)
    assert scale(ints.astype(np.float32), s=np.float64(0.1)).dtype == np.float32
    with pytest.raises(kf.BindingError, match="'n' must be int, not float"):
        op(X, 1.5)


def test_results_are_written_where_they_are_wanted(define):
    mix = define("mix(Tensor x, Tensor y) -> Tensor", "x + 2 * y")
    x, y = X.copy(), np.arange(2.0)
    expected = X + 2 * y
    base = np.full((6, 5), 9.0)
    out = base[::2, 3:0:-2]
    assert mix(x, y, out=out) is out
    assert np.array_equal(out, expected)
    assert np.sum(base == 9.0) >= base.size - out.size
    assert mix(x, y, out=x) is x
    assert np.array_equal(x, expected)
    square = np.arange(9.0).reshape(3, 3)
    expected = square + 2 * square.T
    kf.Expression("x + 2 * y")(square, square.T, out=square)
    assert np.array_equal(square, expected)
    moved = np.arange(10.0)
    kf.Expression("x * 2")(moved[:-1], out=moved[1:])
    assert np.array_equal(moved, [0, *np.arange(9.0) * 2])
    # A ranked input that is written over is read as it was.
    backwards = np.arange(8.0)
    kf.Expression("0 * like + x[7 - index]", inputs=["like", "x"])(
        np.zeros(8), backwards, out=backwards
    )
    assert np.array_equal(backwards, np.arange(8.0)[::-1])
    wide = kf.empty((3, 2), dtype="float64")
    assert kf.Expression("x")(X.astype(np.float32), out=wide) is wide


def test_an_operator_that_writes_to_its_argument(define):
    scale = define("scale_(Tensor(a!) self, float k=2.0) -> Tensor(a!)", "k * self")
    x = X.copy()
    assert scale(x, 3.0) is x
    assert np.array_equal(x, 3 * X)
    assert scale.handles[0].name.endswith("::scale_")


def test_an_operator_that_is_defined_gets_its_kernels_by_name(ns, lib):
    lib.define("later(Tensor x, float k=2.0) -> Tensor")
    name = f"{ns}::later"
    with pytest.raises(kf.MissingKernel):
        kf.get_op(name)(X)
    first = kf.elementwise(name, "k * x")
    assert np.array_equal(kf.get_op(name)(X), 2 * X)
    first.remove()
    second = kf.elementwise(kf.get_op(name), "k + x")
    assert np.array_equal(second(X, 1.0), 1 + X)
    second.remove()
    with pytest.raises(kf.MissingKernel):
        kf.get_op(name)(X)


def test_registering_again_and_the_modes(define, ns):
    first = define("op(Tensor x) -> Tensor", "x + 1")
    name = f"{ns}::op"
    again = kf.elementwise(name, "x + 1")
    assert np.array_equal(first(X), X + 1)
    with pytest.raises(kf.RegistrationError, match=rf"{name} already has a kernel at CPU.*shadow"):
        kf.elementwise(name, "x + 2")
    assert np.array_equal(first(X), X + 1), "nothing of it was registered"
    shadow = kf.elementwise(name, "x + 3", override="shadow")
    assert np.array_equal(first(X), X + 3)
    shadow.remove()
    assert np.array_equal(first(X), X + 1)
    kf.elementwise(name, "x + 4", override="replace")
    assert np.array_equal(first(X), X + 4)
    x = kf.asarray(X).requires_grad_()
    first(x).sum().backward()
    assert x.grad.tolist() == np.ones((3, 2)).tolist()
    with pytest.raises(kf.InvalidValue, match='override="sometimes"'):
        kf.elementwise(name, "x", override="sometimes")
    again.remove()


def test_what_is_removed_is_gone(ns):
    made = kf.elementwise(f"{ns}::gone(Tensor x) -> Tensor", "x + 1")
    keep = kf.get_op(f"{ns}::gone")
    made.remove()
    made.remove()
    with pytest.raises(kf.OperatorRemoved, match=f"{ns}::gone"):
        keep(X)
    for name in [f"{ns}::gone", f"{ns}::gone.out"]:
        with pytest.raises(kf.UnknownOperator):
            kf.get_op(name)
    back = kf.elementwise(f"{ns}::gone(Tensor x) -> Tensor", "x + 2")
    assert np.array_equal(back(X), X + 2)
    back.remove()


def test_other_dispatchers_know_nothing_of_it(define, d, ns):
    before = d.operator_names()
    define("op(Tensor x) -> Tensor", "x + 1")
    assert d.operator_names() == before
    with pytest.raises(kf.UnknownOperator):
        d.get_op(f"{ns}::op")
    d.define(f"{ns}::op(Tensor x) -> Tensor")
    d.impl(f"{ns}::op", "CPU", lambda x: x - 1)
    assert np.array_equal(d.get_op(f"{ns}::op")(X), X - 1)
    assert np.array_equal(kf.get_op(f"{ns}::op")(X), X + 1)


def test_an_explanation_shows_text_and_place(define, ns):
    softplus = define("softplus(Tensor x) -> Tensor", SOFTPLUS)
    text = str(kf.explain(f"{ns}::softplus", X))
    assert re.search(rf"{re.escape(SOFTPLUS)} \(expression, \S*conftest\.py:\d+\)", text)
    assert "registered at exactly this key" in text
    x = kf.asarray(X).requires_grad_()
    text = str(kf.explain(softplus.operator, x))
    assert f"the derivative of {SOFTPLUS} (expression," in " ".join(text.split())
    kernels = "\n".join(map(repr, softplus.handles))
    for key in ["CPU", "Meta", "Autograd", "Vmap"]:
        assert f"{ns}::softplus at {key}" in kernels
    assert f"{ns}::softplus.out at CPU" in kernels
    assert repr(softplus) == f"<keyfold.ElementwiseOperator {ns}::softplus: {SOFTPLUS}>"


def test_expressions_are_values():
    plain = kf.Expression("log1p( exp(x) )  # softplus")
    assert str(plain) == SOFTPLUS
    assert plain == kf.Expression(SOFTPLUS)
    assert plain != kf.Expression("log1p(exp(y))")
    assert plain != SOFTPLUS
    assert {plain: 1}[kf.Expression(SOFTPLUS)] == 1
    full = kf.Expression("a * x + t[int64(y)]", inputs=["y", "x", "t", "spare"], params=["a", "b"])
    assert full.ranks == {"y": None, "x": None, "t": 1, "spare": None}
    for expression in [plain, full, plain.derivative("x"), kf.Expression("a", params=["a"])]:
        for other in [
            *(pickle.loads(pickle.dumps(expression, protocol)) for protocol in range(2, 6)),
            copy.copy(expression),
            copy.deepcopy(expression),
        ]:
            assert other == expression
            assert hash(other) == hash(expression)
            assert (other.inputs, other.params) == (expression.inputs, expression.params)
            assert repr(other) == repr(expression)
    assert str(plain.derivative("x")) == "sigmoid(x)"


def test_values_with_names_are_computed_once():
    text = "t = exp(x)\nu = t / (1 + t)\nu * u"
    expression = kf.Expression(text)
    assert np.allclose(expression(X), (1 / (1 + np.exp(-X))) ** 2)
    assert kf.Expression(str(expression)) == expression


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint64"])
def test_composed_functions_of_the_least_whole_numbers(dtype):
    info = np.iinfo(dtype)
    x = np.array([info.min, info.max, 0, 5], dtype)
    y = np.array([info.min, info.min, info.max, 12], dtype)
    wide = x.astype(np.float64), y.astype(np.float64)
    for name in ["softplus", "silu", "gelu", "gelu_tanh", "sinh", "cosh", "erfc", "log2", "square"]:
        text = f"{name}(x)" if name != "square" else "square(float64(x))"
        got = kf.Expression(text)(x)
        assert np.allclose(got, kf.Expression(text)(wide[0]), rtol=1e-14, atol=0, equal_nan=True)
    for name in ["hypot", "logaddexp"]:
        expression = kf.Expression(f"{name}(x, y)")
        assert np.allclose(expression(x, y), expression(*wide), rtol=1e-14)
        with np.errstate(all="ignore"):
            assert np.allclose(expression(x, y), getattr(np, name)(*wide), rtol=1e-14)


def test_signed_and_unsigned_numbers_of_64_bits_compare_exactly():
    signed = np.array([-(2**63), -1, 0, 1, 2**53, 2**53 + 1, 2**63 - 1])
    unsigned = np.array([0, 1, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1], np.uint64)
    for name in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"):
        for dtype in ("int8", "int16", "int32", "int64"):
            narrow = signed[np.abs(signed.astype(object)) <= np.iinfo(dtype).max].astype(dtype)
            a, b = narrow[:, None], unsigned[None]
            for left, right in ((a, b), (b, a)):
                wanted = [
                    [
                        {
                            "equal": x == y,
                            "not_equal": x != y,
                            "less": x < y,
                            "less_equal": x <= y,
                            "greater": x > y,
                            "greater_equal": x >= y,
                        }[name]
                        for x, y in zip(*rows, strict=True)
                    ]
                    for rows in zip(
                        *(x.astype(object).tolist() for x in np.broadcast_arrays(left, right)),
                        strict=True,
                    )
                ]
                assert getattr(kf, name)(left, right).tolist() == wanted, (name, dtype)
    # Inside an expression too, which goes on from there.
    kept = kf.Expression("where(x < y, 1, 0) + (x == y)")
    got = kept(np.array([-1, 2**63 - 1]), np.array([2**64 - 1, 2**63 - 1], np.uint64))
    assert got.tolist() == [1, 1]


@pytest.mark.parametrize("place", [2**63, 2**63 + 1, 2**64 - 1])
def test_an_unsigned_index_beyond_int64_is_out_of_range(place, raises_saying):
    pick = kf.Expression("t[place]", inputs=["place", "t"])
    for scalar in (False, True):
        index = np.array(place if scalar else [place], np.uint64)
        with raises_saying(kf.IndexOutOfRange, "'t'", "out of range", "size 3"):
            pick(index, np.arange(3.0))
    assert pick(np.array([2, 0], np.uint64), np.arange(3.0)).tolist() == [2, 0]


def test_calls_take_the_same_arguments_however_they_are_made():
    scaled = kf.Expression("x * k + y", params=["k"])
    x, y = np.arange(3.0), np.ones(3)
    wanted = (x * 2 + y).tolist()
    for k in (2, 2.0, np.float64(2), np.int8(2), np.float32(2)):
        assert scaled(x, y, k=k).tolist() == wanted
        out = np.empty(3)
        assert scaled(x, y, k=k, out=out) is out
        assert out.tolist() == wanted
    assert scaled(x, y, k=True).tolist() == (x + y).tolist()
    assert scaled(x, y, k=2, out=None, shape=None).tolist() == wanted
    assert scaled(x.astype(np.complex128), y, k=2j).tolist() == (x * 2j + y).tolist()
    assert scaled(x, y, **{"".join(["k"]): 2}).tolist() == wanted
    many = [np.full(2, float(k)) for k in range(20)]
    total = kf.Expression(" + ".join(f"x{k}" for k in range(20)))
    assert total(*many).tolist() == [190.0, 190.0]
    assert total(*many, out=many[3]) is many[3]
    assert many[3].tolist() == [190.0, 190.0]
    mixed = kf.Expression("x + y")
    assert isinstance(mixed(kf.asarray(x), y), kf.Tensor)
    assert mixed(x, np.float64(1)).tolist() == [1, 2, 3]


def test_a_kernel_in_python_gets_the_calls_of_expressions():
    seen = []

    def layer(keyset, inputs, numbers, *, expression, shape=None):
        seen.append((len(inputs), numbers, expression, shape))
        return kf.redispatch("keyfold::elementwise", keyset.remove("Tracer"), inputs, numbers,
                             expression=expression, shape=shape)  # fmt: skip

    handle = kf.impl("keyfold::elementwise", "Tracer", layer, with_keyset=True)
    try:
        with kf.include_keys("Tracer"):
            got = kf.Expression("x * k", params=["k"])(np.ones(2), k=3)
    finally:
        handle.remove()
    assert got.tolist() == [3, 3]
    assert seen == [(1, [3], "x; k: x * k", None)]


def test_threads_call_one_expression_at_once():
    import threading

    expression = kf.Expression("exp(x) + y * k", params=["k"])
    x, y = np.linspace(0, 1, 50_000), np.ones(50_000)
    wanted = expression(x, y, k=2.0)
    wrong = []

    def work():
        for _ in range(50):
            if not np.array_equal(expression(x, y, k=2.0), wanted):
                wrong.append(True)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
