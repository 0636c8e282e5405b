"""Cumulative sums and products against NumPy, their arguments, and their derivatives at zeros."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keyfold as kf
from tests.helpers.random_arrays import (
    ALL,
    FLOATS,
    HALVES,
    LONG,
    UNSIGNED,
    computed,
    elements,
    examples,
    kind,
    lay_out,
    layouts,
    numbers,
    rounded,
)

# Long enough for lanes side by side, for tiles of columns, and for blocks of a lane.
SHAPES = st.one_of(
    st.lists(st.integers(0, 4), min_size=1, max_size=4).map(tuple),
    st.tuples(st.integers(1, 700), st.integers(1, 40)),
    st.tuples(st.integers(1, 40), st.integers(1, 700)),
    st.tuples(st.integers(1, 6), st.integers(1, 90), st.integers(1, 6)),
    st.tuples(st.integers(1, 40000)),
    st.tuples(st.integers(1, 3), st.integers(1000, 9000)),
)


def result_dtype(dtype):
    if kind(dtype) in ("bool", "whole"):
        return "uint64" if dtype in UNSIGNED else "int64"
    return dtype


def draw(data, dtype, span):
    shape = data.draw(SHAPES)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    with np.errstate(all="ignore"):
        is_complex = kind(dtype) == "complex"
        values = elements(rng, dtype, shape, None if is_complex else span, limit=9.0)
        if is_complex and span:
            values /= np.abs(values)
    array = lay_out(values, data.draw(layouts(shape)), dtype)
    if dtype != "bfloat16" and data.draw(st.booleans()):
        array = kf.asarray(array)
    return numbers(array), array, data.draw(st.integers(-len(shape), len(shape) - 1))


def compare(function, name, data, span=None, each=4):
    dtype = data.draw(st.sampled_from(ALL))
    values, array, axis = draw(data, dtype, None if kind(dtype) in ("bool", "whole") else span)
    got, result = function(array, axis=axis), result_dtype(dtype)
    assert type(got) is type(array)
    assert (str(got.dtype), got.shape) == (result, values.shape)
    got = numbers(got)
    about = f"{name} of {dtype} {values.shape}, axis {axis}"
    if kind(result) == "whole":
        assert np.array_equal(got, getattr(np, name)(values, axis=axis, dtype=result)), about
        return
    wide = values.astype(np.clongdouble if kind(dtype) == "complex" else LONG)
    with np.errstate(all="ignore"):
        exact = getattr(np, name)(wide, axis=axis)
        sizes = np.abs(exact) if name == "cumprod" else np.cumsum(np.abs(wide), axis=axis)
        places = np.cumsum(np.ones(values.shape), axis=axis)
        slack = each * sizes * places * LONG(np.finfo(computed(result)).eps)
        slack = np.where(np.isfinite(slack), slack, 0) + LONG(np.finfo(computed(result)).tiny)
        if kind(dtype) == "complex":
            fits = np.abs(got - exact) <= slack
        else:
            low, high = rounded(exact - slack, result), rounded(exact + slack, result)
            fits = (got >= low) & (got <= high)
        assert np.all(fits | np.isnan(got) & np.isnan(exact)), about


@examples(150)
@given(data=st.data())
def test_sums_equal_numpys(data):
    compare(kf.cumulative_sum, "cumsum", data)


@examples(150)
@given(data=st.data())
def test_products_equal_numpys(data):
    # Near 1, so that products of many stay in range.
    compare(kf.cumulative_prod, "cumprod", data, span=(0.999, 1.001))


@pytest.mark.parametrize("dtype", FLOATS)
def test_each_product_is_rounded_in_order_and_stays_zero_or_infinite(dtype):
    near = np.tile([0.0, 100.0, 100.0, 100.0], 3000)
    x = kf.asarray(near).to(dtype)
    assert not kf.cumulative_prod(x).any(), "no block of its own overflows to NaN"
    many = kf.asarray(np.tile([0.5, 2.0], 20000)).to(dtype)
    assert np.array_equal(numbers(kf.cumulative_prod(many)), np.tile([0.5, 1.0], 20000))


def test_halves_accumulate_in_float32():
    for dtype in HALVES:
        ones = kf.ones((4096, 3), dtype=dtype)
        for x, axis in ((ones, 0), (ones.T, 1), (ones[:, 0], 0)):
            last = kf.cumulative_sum(x, axis=axis)
            assert last.max().item() == 4096.0


def test_signed_zeros_and_what_is_not_finite_are_kept():
    x = np.array([-0.0, -0.0, 1.0, np.inf, -np.inf, 2.0])
    for function, ufunc in ((kf.cumulative_sum, np.add), (kf.cumulative_prod, np.multiply)):
        with np.errstate(invalid="ignore"):
            expected = ufunc.accumulate(x)
        np.testing.assert_array_equal(function(x), expected)
        assert np.array_equal(np.signbit(function(x)[:2]), np.signbit(expected[:2]))
    complex_first = np.array([complex(1, np.inf), 2.0])
    assert kf.cumulative_prod(complex_first)[0] == complex_first[0], "the first one is copied"


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "float16", "float32", "complex64"])
def test_a_dtype_may_be_asked_for(dtype):
    x = np.array([[100, 100, 1], [2, 3, 5]])
    for name in ("cumsum", "cumprod"):
        function = kf.cumulative_sum if name == "cumsum" else kf.cumulative_prod
        got = function(x, axis=1, dtype=dtype)
        assert got.dtype == dtype
        assert np.array_equal(got, getattr(np, name)(x, axis=1, dtype=dtype))
    saturated = kf.cumulative_sum(np.array([1e9, np.nan, 1.0]), dtype="int8")
    assert saturated.tolist() == [127, 127, -128], "each is converted, then they wrap"


@pytest.mark.parametrize("library", [np.asarray, kf.asarray], ids=["numpy", "keyfold"])
def test_the_initial_value_comes_first(library):
    x = np.arange(1, 7, dtype="float32").reshape(2, 3)
    sums = kf.cumulative_sum(library(x), axis=1, include_initial=True)
    assert type(sums) is type(library(x))
    assert sums.tolist() == [[0, 1, 3, 6], [0, 4, 9, 15]]
    products = kf.cumulative_prod(library(x), axis=-2, include_initial=True, dtype="int64")
    assert products.tolist() == [[1, 1, 1], [1, 2, 3], [4, 10, 18]]
    assert products.dtype == "int64"
    nothing = kf.cumulative_prod(library(x[:, :0]), axis=1, include_initial=True)
    assert nothing.tolist() == [[1], [1]]
    out = np.zeros(4)
    assert kf.cumulative_sum(np.ones(3), include_initial=True, out=out) is out
    assert out.tolist() == [0, 1, 2, 3]


def test_the_result_may_be_written_over_the_elements():
    for shape, axis in (((3, 5), 0), ((3, 5), 1), ((9000,), 0)):
        x = kf.asarray(np.ones(shape))
        assert kf.cumulative_sum(x, axis=axis, out=x) is x
        assert np.array_equal(x.numpy(), np.cumsum(np.ones(shape), axis))


def test_bits_do_not_depend_on_the_number_of_threads():
    x = kf.asarray(np.random.default_rng(0).normal(size=(2, 100_003)).astype("float32"))
    threads, found = kf.get_num_threads(), set()
    try:
        for count in (1, 2, 5):
            kf.set_num_threads(count)
            found.add(
                tuple(kf.cumulative_sum(y, axis=a).numpy().tobytes() for y, a in [(x, 1), (x.T, 0)])
            )
    finally:
        kf.set_num_threads(threads)
    assert len(found) == 1


def test_mistakes_are_told():
    x, number = np.ones((2, 3)), kf.asarray(1.0)
    sums, products = kf.cumulative_sum, kf.cumulative_prod
    needs = "needs an axis for an array of"
    told = [
        (kf.BindingError, f"cumulative_sum() {needs} 2 dim", lambda: sums(x)),
        (kf.BindingError, f"cumulative_prod() {needs} 0 dim", lambda: products(number)),
        (kf.IndexOutOfRange, "aten::cumsum: axis 2", lambda: sums(x, axis=2)),
        (kf.IndexOutOfRange, "aten::cumsum: axis 0", lambda: sums(number, axis=0)),
        (kf.DTypeError, "bool can't hold a sum", lambda: sums(x, axis=0, dtype="bool")),
        (kf.DTypeError, "bool can't hold a product", lambda: products(x, 0, dtype="bool")),
        (kf.DTypeError, "drop the imaginary", lambda: sums(x * 1j, axis=0, dtype="float32")),
        (kf.BindingError, "both 'axis' and 'dim'", lambda: sums(x, axis=0, dim=1)),
        (AttributeError, "keyfold.cumulative_sum", lambda: kf.cumsum),
        (AttributeError, "keyfold.cumulative_prod(x, axis)", lambda: number.cumprod),
    ]
    for error, text, call in told:
        with pytest.raises(error) as caught:
            call()
        assert text in str(caught.value)
    assert np.array_equal(kf.cumulative_sum(x, dim=1), np.cumsum(x, 1))


# Lanes without zeros, and with one, two and three.
LANES = [
    [0.5, -1.5, 2.0, 0.8],
    [0.7, 0.0, 1.2, 1.1],
    [0.0, 1.3, 0.0, -0.4],
    [0.0, 0.0, 0.9, 0.0],
]


def product_by_hand(x, last):
    """The product up to an element, by multiplications alone, whose derivatives need no rule."""
    result = x[0]
    for i in range(1, last + 1):
        result = result * x[i]
    return result


@pytest.mark.parametrize("lane", LANES, ids=str)
def test_derivatives_of_products_are_right_at_zeros_to_the_third_order(lane):
    weights = [0.3, -1.1, 0.7, 2.0]

    def loss(x):
        return (kf.cumulative_prod(x) * kf.asarray(weights)).sum()

    def by_hand(x):
        return sum(w * product_by_hand(x, i) for i, w in enumerate(weights))

    x = kf.asarray(lane)
    np.testing.assert_allclose(kf.grad(loss)(x), kf.grad(by_hand)(x), atol=1e-12)
    np.testing.assert_allclose(kf.hessian(loss)(x), kf.hessian(by_hand)(x), atol=1e-12)
    forward = kf.jacfwd(kf.jacfwd(kf.jacfwd(loss)))(x)
    reverse = kf.jacrev(kf.jacrev(kf.jacrev(loss)))(x)
    expected = kf.jacfwd(kf.hessian(by_hand))(x)
    np.testing.assert_allclose(forward, expected, atol=1e-12)
    np.testing.assert_allclose(reverse, expected, atol=1e-12)


def test_gradients_of_long_products_that_underflow_are_zero_and_not_nan():
    x = kf.asarray(np.concatenate([np.full(2000, 0.5), np.full(2000, 2.0)]))
    gradient = kf.grad(lambda x: kf.cumulative_prod(x).sum())(x)
    assert np.isfinite(gradient.numpy()).all()
    _, tangent = kf.jvp(kf.cumulative_prod, (x,), (kf.ones_like(x),))
    assert np.isfinite(tangent.numpy()).all()
