"""Matrix products, with an addend and an activation, and in mixed precision, against NumPy."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keyfold as kf
from tests.helpers.random_arrays import (
    ALL,
    FLOATS,
    HALVES,
    computed,
    examples,
    kind,
    lay_out,
    layouts,
    numbers,
)

aten = kf.ops.aten
ACTIVATIONS = ["none", "relu", "gelu", "gelu_tanh", "gelu_sigmoid", "sigmoid", "tanh"]
# Half a unit in the last place of the dtype that adds up.
UNIT = {"float16": 2.0**-24, "bfloat16": 2.0**-24, "float32": 2.0**-24, "float64": 2.0**-53}
ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}

# Within one tile, across tiles and parts, and long and narrow.
SIZES = st.one_of(
    st.tuples(*[st.integers(0, 6)] * 3),
    st.tuples(*[st.integers(1, 90)] * 3),
    st.tuples(st.integers(250, 600), st.integers(1, 40), st.integers(250, 600)),
    st.tuples(st.integers(1, 3), st.integers(1, 2500), st.integers(1, 300)),
    st.tuples(st.integers(1, 1200), st.integers(1, 9), st.integers(1, 3)),
)


def draw_array(data, dtype, shape):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    if kind(dtype) in ("bool", "whole"):
        values = rng.integers(0, 2 if dtype == "bool" else 50, shape)
    else:
        values = rng.standard_normal(shape)
        if kind(dtype) == "complex":
            values = values + 1j * rng.standard_normal(shape)
    return lay_out(values.astype(computed(dtype)), data.draw(layouts(shape)), dtype)


def wide(x):
    """The elements in float64, or complex128."""
    return numbers(x).astype(np.complex128 if "complex" in str(x.dtype) else np.float64)


def bound(a, b, dtype, extra=0.0):
    """The greatest error of a product, and what is added to it, of these operands."""
    dtype = {"complex64": "float32", "complex128": "float64"}.get(dtype, dtype)
    k = a.shape[-1]
    sizes = np.abs(a) @ np.abs(b) + np.abs(extra)
    steps = min(k, 4 * math.sqrt(k)) + 12
    return (4 * steps * UNIT[dtype] + 2 * ROUNDING[dtype]) * sizes


def compare(got, exact, dtype, error):
    got = wide(got)
    assert got.shape == exact.shape
    if kind(dtype) in ("bool", "whole"):
        bits = np.iinfo(dtype).bits if dtype != "bool" else 0
        expected = exact != 0 if dtype == "bool" else exact.astype(np.int64)
        if dtype != "bool":
            expected = expected.astype(np.dtype(f"u{bits // 8}")).astype(dtype)
        assert (got == expected).all()
        return
    tiny = 2.0**-24 if dtype == "float16" else 1e-37
    assert (np.abs(got - exact) <= error + tiny).all(), np.abs(got - exact).max()


@examples(60)
@given(st.data())
def test_products_of_every_dtype_and_layout(data):
    dtype = data.draw(st.sampled_from(ALL))
    m, k, n = data.draw(SIZES)
    batch = data.draw(st.sampled_from([((), ()), ((2,), (2,)), ((3, 1), (2,)), ((), (2,))]))
    a, b = draw_array(data, dtype, (*batch[0], m, k)), draw_array(data, dtype, (*batch[1], k, n))
    exact = wide(a) @ wide(b)
    is_float = kind(dtype) not in ("bool", "whole")
    error = bound(wide(a), wide(b), dtype) if is_float else None
    compare(kf.matmul(a, b), exact, dtype, error)


@examples(40)
@given(st.data())
def test_mixed_precision_rounds_the_factors_alone(data):
    dtype = data.draw(st.sampled_from(HALVES))
    m, k, n = data.draw(SIZES)
    given_dtype = data.draw(st.sampled_from(["float32", *HALVES]))
    a, b = draw_array(data, given_dtype, (m, k)), draw_array(data, given_dtype, (k, n))
    got = kf.matmul_mixed(a, b, getattr(kf, dtype))
    assert str(got.dtype).endswith("float32")
    round_to = getattr(kf, dtype)
    a, b = (wide(kf.astype(kf.asarray(x), round_to)) for x in (a, b))
    compare(got, a @ b, "float32", bound(a, b, "float32"))


def test_mixed_precision_overflows_in_the_factors_and_keeps_nan():
    x = np.array([[65504.0, 1.0], [65520.0, 1.0], [np.nan, 1.0]], np.float32)
    ones = np.ones((2, 1), np.float32)
    got = kf.matmul_mixed(x, ones, kf.float16)[:, 0]
    np.testing.assert_array_equal(got, [65505.0, np.inf, np.nan])
    big = np.full((4, 4), 60000.0, np.float32)
    assert (kf.matmul_mixed(big, big, kf.float16) == np.float32(60000.0**2 * 4)).all()
    assert (kf.matmul_mixed(x * 1e30, ones, kf.bfloat16)[:2, 0] > 1e34).all()
    # In float16 alone the sum is past 65504.
    assert np.isinf(kf.matmul(big.astype(np.float16), big.astype(np.float16))).all()


def test_mixed_precision_refuses_other_dtypes_by_name():
    x = np.ones((2, 2), np.float32)
    with pytest.raises(kf.DTypeError, match=r"'dtype': dtype float32.*float16, bfloat16"):
        kf.matmul_mixed(x, x, kf.float32)
    with pytest.raises(kf.DTypeError, match="matmul_mixed: argument 'x2': dtype float64"):
        kf.matmul_mixed(x, x.astype(np.float64), kf.float16)
    with pytest.raises(kf.ShapeError, match=r"inner sizes are 2 and 3"):
        kf.matmul_mixed(x, np.ones((3, 2), np.float32), kf.float16)


def test_subnormal_bfloat16_numbers_are_multiplied():
    tiny = np.full((8, 32), 2.0**-130, np.float32)
    a = kf.astype(kf.asarray(tiny), kf.bfloat16)
    b = kf.astype(kf.asarray(np.full((32, 32), 2.0**120, np.float32)), kf.bfloat16)
    assert (np.asarray(kf.matmul_mixed(a, b, kf.bfloat16)) == 2.0**-5).all()


def activated(name, x):
    erf = np.vectorize(math.erf, otypes=[np.float64])
    logistic = lambda x: 1 / (1 + np.exp(-x))  # noqa: E731
    return {
        "none": lambda: x,
        "relu": lambda: np.maximum(x, 0),
        "gelu": lambda: x * 0.5 * (1 + erf(x / math.sqrt(2))),
        "gelu_tanh": lambda: (
            0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        ),
        "gelu_sigmoid": lambda: x * logistic(1.702 * x),
        "sigmoid": lambda: logistic(x),
        "tanh": lambda: np.tanh(x),
    }[name]()


@examples(60)
@given(st.data())
def test_layers_with_bias_and_activation(data):
    dtype = data.draw(st.sampled_from(FLOATS))
    m, k, n = data.draw(SIZES)
    shape = data.draw(st.sampled_from([(m, k), (k,), (2, m, k)]))
    x, weight = draw_array(data, dtype, shape), draw_array(data, dtype, (n, k))
    bias = draw_array(data, dtype, (n,)) if data.draw(st.booleans()) else None
    name = data.draw(st.sampled_from(ACTIVATIONS))
    added = wide(bias) if bias is not None else np.zeros(n)
    exact = wide(x) @ wide(weight).T + added
    error = bound(wide(x), wide(weight).T, dtype, added)
    compare(kf.linear(x, weight, bias), exact, dtype, error)
    got = kf.linear_activation(x, weight, bias, activation=name)
    compare(got, activated(name, exact), dtype, 2 * error + 20 * UNIT[dtype])


def test_activations_at_the_ends_of_the_range():
    x = np.array([[np.inf], [-np.inf], [np.nan], [-0.0], [1e30], [-1e30]], np.float32)
    one = np.ones((1, 1), np.float32)
    ends = {
        "relu": [np.inf, 0, np.nan, 0, 1e30, 0],
        "gelu": [np.inf, 0, np.nan, 0, 1e30, 0],
        "gelu_tanh": [np.inf, 0, np.nan, 0, 1e30, 0],
        "gelu_sigmoid": [np.inf, 0, np.nan, 0, 1e30, 0],
        "sigmoid": [1, 0, np.nan, 0.5, 1, 0],
        "tanh": [1, -1, np.nan, 0, 1, -1],
    }
    for dtype in (np.float32, np.float64):
        for name, expected in ends.items():
            got = kf.linear_activation(x.astype(dtype), one.astype(dtype), activation=name)
            np.testing.assert_array_equal(got[:, 0], np.array(expected, np.float32).astype(dtype))


@examples(40)
@given(st.data())
def test_scaled_sums_of_products(data):
    dtype = data.draw(st.sampled_from(["int32", "uint8", "bool", *FLOATS, "complex64"]))
    m, k, n = data.draw(SIZES)
    batch = data.draw(st.sampled_from([(), (3,)]))
    a, b = draw_array(data, dtype, (*batch, m, k)), draw_array(data, dtype, (*batch, k, n))
    own = data.draw(st.sampled_from([(m, n), (n,), (m, 1), ()]))
    addend = draw_array(data, dtype, own)
    whole = kind(dtype) in ("bool", "whole")
    alpha, beta = data.draw(st.sampled_from([(1, 1), (3, 2), (1, 0)] + [(-0.5, 1.5)] * (not whole)))
    function = aten.baddbmm if batch else aten.addmm
    got = function(addend, a, b, beta=beta, alpha=alpha)
    scaled = beta * wide(addend)
    exact = alpha * (wide(a) @ wide(b)) + scaled
    error = None if whole else 3 * bound(wide(a), wide(b), dtype, scaled)
    compare(got, exact, dtype, error)


def test_a_factor_of_0_leaves_the_addend_out():
    nan, one = np.full((2, 2), np.nan), np.ones((2, 2))
    assert (aten.addmm(nan, one, one, beta=0) == 2).all()
    assert np.isnan(aten.addmm(nan, one, one)).all()


def test_factors_that_the_dtype_lacks_are_refused():
    x = np.ones((2, 2), np.int64)
    with pytest.raises(kf.DTypeError, match=r"aten::addmm: argument 'alpha'.*give an integer"):
        aten.addmm(x, x, x, alpha=0.5)
    with pytest.raises(kf.DTypeError, match=r"aten::addmm: argument 'beta'.*give a real number"):
        aten.addmm(x * 1.0, x * 1.0, x * 1.0, beta=1j)


def test_shapes_that_do_not_fit_are_named():
    ones = np.ones
    for call, words in [
        (lambda: kf.linear(ones((2, 3)), ones((4, 5))), "last sizes are 3 and 5"),
        (lambda: kf.linear(ones(()), ones((4, 5))), "'x' has shape"),
        (lambda: kf.linear(ones((2, 3)), ones((2, 4, 3))), "'weight' has shape"),
        (lambda: kf.linear(ones((2, 3)), ones((4, 3)), ones(3)), "'bias' has shape"),
        (lambda: kf.linear(ones((2, 3)), ones(3), ones(3)), "'bias' has shape"),
        (lambda: aten.addmm(ones(5), ones((2, 3)), ones((3, 4))), "'self' has shape"),
        (lambda: aten.addmm(ones(4), ones(3), ones((3, 4))), "'mat1' has shape"),
        (lambda: aten.baddbmm(ones(4), ones((2, 2, 3)), ones((3, 3, 4))), "2 and 3"),
        (lambda: aten.mm(ones(3), ones((3, 4))), "'self' has shape"),
        (lambda: aten.bmm(ones((2, 2, 3)), ones((1, 3, 4))), "2 and 1"),
        (lambda: aten.mv(ones((2, 3)), ones((3, 1))), "'vec' has shape"),
        (lambda: aten.dot(ones(3), ones(4)), "3 and 4"),
    ]:
        with pytest.raises(kf.ShapeError, match=words):
            call()
    x = ones((2, 3))
    with pytest.raises(kf.InvalidValue, match=r"'activation' is 'Relu'.*none, relu, gelu"):
        kf.linear_activation(x, x, activation="Relu")
    with pytest.raises(kf.DTypeError, match="'activation' is 'relu', but the result is of int64"):
        kf.linear_activation(x.astype(int), x.astype(int), activation="relu")


def test_out_is_left_alone_by_a_call_that_fails():
    out = np.full((2, 2), 7.0)
    with pytest.raises(kf.ShapeError):
        kf.linear(np.ones((2, 3)), np.ones((2, 4)), out=out)
    assert (out == 7.0).all()
    kf.linear(np.ones((2, 3)), np.ones((2, 3)), np.ones(2), out=out)
    assert (out == 4.0).all()


def test_products_of_pytorch_by_rank():
    rng = np.random.default_rng(0)
    a, b, v = (rng.standard_normal(shape) for shape in [(3, 4), (4, 5), (4,)])
    np.testing.assert_allclose(aten.mm(a, b), a @ b, rtol=1e-14)
    np.testing.assert_allclose(aten.mv(a, v), a @ v, rtol=1e-14)
    np.testing.assert_allclose(aten.dot(v, v), v @ v, rtol=1e-14)
    batches = rng.standard_normal((2, 3, 4)), rng.standard_normal((2, 4, 5))
    np.testing.assert_allclose(aten.bmm(*batches), batches[0] @ batches[1], rtol=1e-14)


def leaf(x):
    return kf.asarray(x).requires_grad_()


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gradients_of_layers_are_those_of_differences(name):
    rng = np.random.default_rng(1)
    inputs = [rng.standard_normal(shape) for shape in [(2, 3, 5), (4, 5), (4,)]]

    def layer(x, weight, bias):
        return kf.linear_activation(x, weight, bias, activation=name)

    inputs = tuple(leaf(x) for x in inputs)
    assert kf.gradcheck(layer, inputs, check_forward=True)
    assert kf.gradgradcheck(layer, inputs)


def test_gradients_in_mixed_precision_are_of_the_rounded_factors():
    rng = np.random.default_rng(2)
    a, b = (leaf(rng.standard_normal(shape).astype(np.float32)) for shape in [(3, 4), (4, 5)])
    kf.matmul_mixed(a, b, kf.bfloat16).sum().backward()
    rounded = [kf.astype(kf.astype(x.detach(), kf.bfloat16), kf.float32).numpy() for x in (a, b)]
    ones = np.ones((3, 5), np.float32)
    np.testing.assert_allclose(a.grad.numpy(), ones @ rounded[1].T, rtol=1e-6)
    np.testing.assert_allclose(b.grad.numpy(), rounded[0].T @ ones, rtol=1e-6)
    t = kf.asarray(np.ones((3, 4), np.float32))
    _, tangent = kf.jvp(lambda a: kf.matmul_mixed(a, b.detach(), kf.bfloat16), (a.detach(),), (t,))
    np.testing.assert_allclose(tangent.numpy(), t.numpy() @ rounded[1], rtol=1e-6)


def test_vecdot_along_any_axis():
    rng = np.random.default_rng(3)
    for dtype in (np.float64, np.complex128, np.int64):
        shape = (2, 3, 4)
        a, b = (
            (rng.standard_normal(shape) * 9 + (1j if dtype == np.complex128 else 0)).astype(dtype)
            for _ in range(2)
        )
        for axis in (-1, -2, -3):
            np.testing.assert_allclose(
                kf.vecdot(a, b, axis=axis), (a.conj() * b).sum(axis), rtol=1e-13
            )
    assert kf.vecdot(np.arange(3.0), np.ones((5, 3))).shape == (5,)
    with pytest.raises(kf.ShapeError, match="3 and 2"):
        kf.vecdot(np.ones(3), np.ones(2))
    with pytest.raises(kf.ShapeError, match="without axis -2"):
        kf.vecdot(np.ones(3), np.ones((3, 3)), axis=-2)
    with pytest.raises(kf.ShapeError, match="give a negative axis"):
        kf.vecdot(np.ones(3), np.ones((3, 3)), axis=0)


def test_tensordot_over_axes():
    rng = np.random.default_rng(4)
    a, b = rng.standard_normal((2, 3, 4)), rng.standard_normal((4, 3, 5))
    for axes in (0, 1, ((1, 2), (1, 0)), ((-1,), (0,)), ((), ())):
        np.testing.assert_allclose(
            kf.tensordot(a, b, axes=axes), np.tensordot(a, b, axes=axes), rtol=1e-12
        )
    square = rng.standard_normal((2, 4, 3))
    np.testing.assert_allclose(kf.tensordot(square, b), np.tensordot(square, b), rtol=1e-12)
    with pytest.raises(kf.ShapeError, match="sizes 3 and 4"):
        kf.tensordot(a, b)
    with pytest.raises(kf.InvalidValue, match="twice"):
        kf.tensordot(a, b, axes=((1, 1), (1, 0)))
    with pytest.raises(kf.InvalidValue, match="2 axes for x1 and 1"):
        kf.tensordot(a, b, axes=((1, 2), (1,)))
    with pytest.raises(kf.BindingError, match="axes"):
        kf.tensordot(a, b, axes="ab")


def test_outer_products():
    a, b = np.arange(3), np.arange(4.0)
    np.testing.assert_array_equal(kf.outer(a, b), np.outer(a, b))
    assert type(kf.outer(kf.asarray(a), kf.asarray(b))) is kf.Tensor
    with pytest.raises(kf.ShapeError, match=r"x2 has shape \(2, 2\)"):
        kf.outer(a, np.ones((2, 2)))


def test_layers_of_pytorch():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(5)
    x, weight, bias = (
        torch.tensor(rng.standard_normal(shape).astype(np.float32))
        for shape in [(7, 33), (20, 33), (20,)]
    )
    expected = torch.nn.functional.gelu(torch.nn.functional.linear(x, weight, bias))
    got = kf.linear_activation(x, weight, bias, activation="gelu")
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(
        aten.addmm(bias, x, weight.T, beta=0.5, alpha=2),
        torch.addmm(bias, x, weight.T, beta=0.5, alpha=2),
    )
