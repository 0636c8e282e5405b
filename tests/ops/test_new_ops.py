"""Joins, scatters, functions, powers, halves and random numbers, against NumPy in float64."""

import operator
import pickle
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import keyfold as kf

aten = kf.ops.aten
FLOATS = hnp.arrays(
    np.float64, hnp.array_shapes(max_dims=3, max_side=4), elements=st.floats(-6, 6, width=32)
)
ROUNDING = {"float16": 2.0**-10, "bfloat16": 2.0**-7}


def same(got, expected, dtype="float64", rtol=1e-14):
    """Asserts that a tensor or array has these values, and its dtype that name."""
    assert str(got.dtype) == dtype
    wide = kf.asarray(got).to("float64").numpy()
    assert wide.shape == np.shape(expected)
    assert np.allclose(wide, expected, rtol=rtol, atol=rtol, equal_nan=True)


FUNCTIONS = {
    "tanh": np.tanh,
    "sin": np.sin,
    "cos": np.cos,
    "sign": np.sign,
    "expm1": np.expm1,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "log1p": np.log1p,
}


@pytest.mark.one_python
@pytest.mark.parametrize("name", FUNCTIONS)
@given(a=FLOATS)
def test_functions_are_numpys(name, a):
    a = np.abs(a) if name == "log1p" else a
    expected = FUNCTIONS[name](a)
    same(getattr(kf, name)(kf.asarray(a)), expected)
    same(getattr(kf, name)(a.T), expected.T)
    assert isinstance(getattr(kf, name)(a), np.ndarray)
    for dtype, step in ROUNDING.items():
        half = kf.asarray(a).to(dtype)
        wide = FUNCTIONS[name](half.to("float64").numpy())
        same(getattr(kf, name)(half), wide, dtype, rtol=step)


@pytest.mark.parametrize("name", ["tanh", "sigmoid", "sin", "cos"])
def test_tensors_have_the_functions_as_methods(name):
    a = np.linspace(-3, 3, 7)
    same(getattr(kf.asarray(a), name)(), FUNCTIONS[name](a))
    same(getattr(kf.asarray([0, 1]), name)(), FUNCTIONS[name](np.array([0.0, 1.0])))


@given(a=FLOATS, exponent=st.sampled_from([0, 1, 2, 3, -1, 0.5, 2.0]))
def test_powers_are_numpys(a, exponent):
    a = np.abs(a) + 0.5
    t = kf.asarray(a)
    for got in [t**exponent, t.pow(exponent), kf.pow(t, exponent), kf.pow(a, exponent)]:
        same(got, a**exponent)
    base = abs(exponent)
    for got in [base**t, kf.pow(base, t)]:
        same(got, np.float64(base) ** a)
    same(t**t, a**a)
    same(a**t, a**a)
    same(t.pow(a), a**a)


def test_powers_of_whole_numbers_stay_whole_and_refuse_fractions(raises_saying):
    t = kf.asarray([1, 2, -3])
    assert (t**3).tolist() == [1, 8, -27]
    assert (2 ** t.abs()).tolist() == [2, 4, 8]
    assert (t**2.0).dtype == kf.float64
    assert kf.pow(np.array([2, 3]), 2).dtype == np.int64
    with raises_saying(kf.InvalidValue, "aten::pow", "'exponent'", "-1", "float64"):
        t**-1
    with raises_saying(kf.DTypeError, "aten::pow", "bools"):
        kf.asarray([True]) ** kf.asarray([True])
    with raises_saying(kf.BindingError, "modulo"):
        pow(t, 2, 5)
    with pytest.raises(TypeError):
        t ** "2"
    with pytest.raises(kf.BindingError, match="both are numbers"):
        kf.pow(2, 3)


@given(a=FLOATS, axis=st.integers(-1, 0))
def test_log_softmax_is_the_logarithm_of_softmax(a, axis):
    shifted = a - a.max(axis=axis, keepdims=True)
    expected = shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))
    same(kf.log_softmax(kf.asarray(a), axis=axis), expected)
    assert kf.log_softmax(np.array([0.0, -2000.0])).tolist() == [0.0, -2000.0]


@given(a=FLOATS, axis=st.integers(-1, 0))
def test_concat_and_stack_are_numpys(a, axis):
    b, c = a * 2, np.ones(a.shape, dtype=np.int64)
    tensors = [kf.asarray(x) for x in (a, b, c)]
    for arrays in [tensors, [a, b, c]]:
        same(kf.concat(arrays, axis=axis), np.concatenate([a, b, c], axis=axis))
        same(kf.stack(arrays, axis=axis), np.stack([a, b, c], axis=axis))
        same(kf.concat(arrays, axis=None), np.concatenate([a, b, c], axis=None))


def test_joins_that_dont_fit_name_position_and_shapes(raises_saying):
    a, b = kf.zeros((2, 3)), kf.zeros((2, 4))
    with raises_saying(kf.ShapeError, "aten::cat", "tensors[1]", "[2, 4]", "[2, 3]"):
        kf.concat([a, b])
    with raises_saying(kf.ShapeError, "aten::stack", "tensors[2]", "[2, 4]", "[2, 3]"):
        kf.stack([a, a, b])
    for function in [kf.concat, kf.stack]:
        with raises_saying(kf.ShapeError, "empty list"):
            function([])
    assert kf.concat([a, b], axis=1).shape == (2, 7)
    assert kf.concat([kf.ones(1, dtype="float16"), kf.ones(1, dtype="bfloat16")]).dtype == "float32"


def test_detach_and_alias_are_views():
    t = kf.zeros(3).requires_grad_()
    for view in [aten.detach(t), aten.alias(t)]:
        assert view.data_ptr() == t.data_ptr()


@given(a=FLOATS, data=st.data())
def test_scatters_write_into_a_copy(a, data):
    axis = data.draw(st.integers(0, a.ndim - 1))
    place = data.draw(st.integers(-a.shape[axis], a.shape[axis] - 1))
    expected = a.copy()
    part = np.full(np.delete(a.shape, axis), 9.0)
    key = (slice(None),) * axis
    expected[(*key, place)] = part
    same(aten.select_scatter(kf.asarray(a), part, axis, place), expected)
    start, stop = sorted(data.draw(st.tuples(st.integers(0, 4), st.integers(0, 4))))
    step = data.draw(st.integers(1, 2))
    expected = a.copy()
    part = expected[(*key, slice(start, stop, step))] + 1
    expected[(*key, slice(start, stop, step))] = part
    before = a.copy()
    same(aten.slice_scatter(a, part, axis, start, stop, step), expected)
    assert np.array_equal(a, before)


@given(data=st.data(), accumulate=st.booleans())
def test_index_put_is_numpys(data, accumulate):
    a = np.arange(12.0).reshape(3, 4)
    count = data.draw(st.integers(0, 5))
    places = st.lists(st.integers(0, 2), min_size=count, max_size=count)
    rows, columns = (np.array(data.draw(places), dtype=np.int64) for _ in range(2))
    values = np.linspace(1, 2, count)
    expected = a.copy()
    if accumulate:
        np.add.at(expected, (rows, columns), values)
    else:
        for row, column, value in zip(rows, columns, values, strict=True):
            expected[row, column] = value
    same(aten.index_put(a, [rows, columns], values, accumulate), expected)
    assert a[0, 1] == 1.0
    t = kf.asarray(a.copy())
    assert aten.index_put_(t, [rows, columns], values, accumulate=accumulate) is t
    same(t, expected)


@given(data=st.data())
def test_gather_scatter_add_and_index_add_are_numpys(data):
    a = np.arange(24.0).reshape(2, 3, 4)
    axis = data.draw(st.integers(0, 2))
    places = st.integers(0, a.shape[axis] - 1)
    index = data.draw(hnp.arrays(np.int64, (2, 3, 4), elements=places))
    same(aten.gather(kf.asarray(a), axis, index), np.take_along_axis(a, index, axis))
    source, expected = a * 0.5, a.copy()
    grid = list(np.indices(a.shape))
    grid[axis] = index
    np.add.at(expected, tuple(grid), source)
    same(aten.scatter_add(a, axis, kf.asarray(index), source), expected)
    rows = data.draw(hnp.arrays(np.int64, 2, elements=places))
    part, expected = source.take([0, 1], axis), a.copy()
    np.add.at(expected, (slice(None),) * axis + (rows,), part)
    same(aten.index_add(a, axis, rows, part), expected)


def test_indices_that_arent_there_are_named(raises_saying):
    a = kf.ones(2)
    with raises_saying(kf.IndexOutOfRange, "aten::gather", "index 5", "size 2"):
        aten.gather(a, 0, np.array([5]))
    with raises_saying(kf.ShapeError, "aten::scatter_add", "'src'", "[3]"):
        aten.scatter_add(a, 0, np.array([0, 0, 0]), a)
    with raises_saying(kf.ShapeError, "aten::index_add", "'source'", "[2]", "[1]"):
        aten.index_add(a, 0, np.array([0]), a)


BINARY = [
    (operator.add, np.add), (operator.sub, np.subtract), (operator.mul, np.multiply),
    (operator.truediv, np.divide), (kf.maximum, np.maximum), (kf.minimum, np.minimum),
]  # fmt: skip


@given(a=hnp.arrays(np.float16, 5, elements=st.floats(-100, 100, width=16)))
def test_float16_is_rounded_as_numpys(a):
    b = a[::-1] + np.float16(200)
    t, u = kf.asarray(a), kf.asarray(b)
    for ours, numpys in BINARY:
        assert np.array_equal(ours(t, u).numpy(), numpys(a, b))
        assert np.array_equal(ours(t, 0.1).numpy(), numpys(a, np.float16(0.1)))
    for ours in [operator.lt, operator.eq, operator.ge]:
        assert np.array_equal(ours(t, u).numpy(), ours(a, b))
    assert np.array_equal((-t).numpy(), -a)
    assert np.array_equal(abs(t).numpy(), abs(a))
    assert t.max().item() == a.max()
    assert t.argmin().item() == a.argmin()
    assert np.array_equal(kf.where(t > 0, t, u).numpy(), np.where(a > 0, a, b))
    assert np.array_equal(t[[3, 0]].numpy(), a[[3, 0]])
    wide = np.exp(a.astype(np.float64) / 64)
    assert np.allclose(kf.exp(t / 64).numpy(), wide, rtol=2.0**-9)


@pytest.mark.parametrize("dtype", ROUNDING)
def test_sums_and_products_of_halves_are_rounded_once(dtype):
    rng = np.random.default_rng(0)
    a, b = (kf.asarray(rng.normal(size=(64, 64))).to(dtype) for _ in range(2))
    wide_a, wide_b = a.to("float64").numpy(), b.to("float64").numpy()
    step = ROUNDING[dtype]
    same(a @ b, wide_a @ wide_b, dtype, rtol=step)
    same(a.sum(), wide_a.sum(), dtype, rtol=step)
    same(a.mean(axis=0), wide_a.mean(axis=0), dtype, rtol=step)
    soft = np.exp(wide_a) / np.exp(wide_a).sum(axis=1, keepdims=True)
    same(a.softmax(), soft, dtype, rtol=step)
    # One after the other, ones would stop counting at 2048 in float16 and at 256 in bfloat16.
    assert kf.ones(4096, dtype=dtype).sum().item() == 4096
    assert (kf.ones((1, 4096), dtype=dtype) @ kf.ones((4096, 1), dtype=dtype)).item() == 4096


def test_dtypes_that_halves_meet():
    half, brain = kf.ones(2, dtype="float16"), kf.ones(2, dtype="bfloat16")
    for other, expected in [
        (brain, "float32"), (kf.ones(2, dtype="float32"), "float32"), (kf.ones(2), "float64"),
        (kf.ones(2, dtype="bool"), "float16"), (2, "float16"), (0.5, "float16"), (half, "float16"),
    ]:  # fmt: skip
        assert (half * other).dtype == expected
        assert (half**other).dtype == expected
    assert brain.sum().dtype == "bfloat16"
    assert brain.sum(dtype="float64").dtype == "float64"
    assert kf.ones(2).sum(dtype="float16").dtype == "float16"
    # A number counts as the element that it would be.
    assert (kf.full(1, 0.1, dtype="float16") == 0.1).item()


@given(x=st.floats(allow_nan=False))
def test_conversion_to_float16_rounds_as_numpys(x):
    with np.errstate(over="ignore"):
        expected = np.float64(x).astype(np.float16)
    assert kf.asarray(np.array([x])).to("float16").numpy()[0] == expected


def test_random_numbers_are_the_same_for_the_same_seed():
    for function in [kf.rand, kf.randn, lambda n: kf.dropout(kf.ones(n), 0.3)]:
        kf.manual_seed(5)
        first = function(100).tolist()
        state = pickle.loads(pickle.dumps(kf.get_rng_state()))
        second = function(100).tolist()
        assert first != second
        kf.set_rng_state(state)
        assert function(100).tolist() == second
        kf.manual_seed(5)
        assert kf.get_rng_state() == (5, 0)
        assert function(100).tolist() == first


def test_random_numbers_are_philoxs():
    # Random123's known answer for key and counter 0.
    words = [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    kf.manual_seed(0)
    assert kf.rand(4, dtype="float32").tolist() == [(word >> 8) / 2**24 for word in words]
    kf.manual_seed(0)
    pairs = [words[1] << 32 | words[0], words[3] << 32 | words[2]]
    assert kf.rand(2).tolist() == [(pair >> 11) / 2**53 for pair in pairs]
    assert kf.get_rng_state() == (0, 1)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_random_numbers_have_their_distribution(dtype):
    kf.manual_seed(1)
    uniform = kf.rand((1000, 100), dtype=dtype).to("float64").numpy()
    assert uniform.shape == (1000, 100)
    assert uniform.min() >= 0
    assert uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 0.01
    assert abs(uniform.var() - 1 / 12) < 0.01
    normal = kf.randn(100_000, dtype=dtype).to("float64").numpy()
    assert abs(normal.mean()) < 0.02
    assert abs(normal.var() - 1) < 0.03
    assert abs((normal**3).mean()) < 0.1
    assert abs((normal**4).mean() - 3) < 0.2


def test_factories_take_sizes_devices_and_float_dtypes(raises_saying):
    assert kf.rand(3).shape == (3,)
    assert kf.randn((2, 0)).shape == (2, 0)
    assert kf.rand((), device="meta").device == "meta"
    with raises_saying(kf.DTypeError, "aten::rand", "'dtype'", "int64", "float32"):
        kf.rand(3, dtype="int64")


@pytest.mark.parametrize(
    ("call", "kind", "part"),
    [
        (lambda: kf.manual_seed(-1), kf.InvalidValue, "-1"),
        (lambda: kf.manual_seed(2**64), kf.InvalidValue, "2 ** 64 - 1"),
        (lambda: kf.manual_seed(0.5), kf.BindingError, "float"),
        (lambda: kf.set_rng_state(3), kf.BindingError, "get_rng_state()"),
        (lambda: kf.set_rng_state((1, 2, 3)), kf.BindingError, "get_rng_state()"),
        (lambda: kf.set_rng_state((1, -2)), kf.InvalidValue, "'offset'"),
    ],
)
def test_seeds_and_states_that_cannot_be(call, kind, part, raises_saying):
    before = kf.get_rng_state()
    with raises_saying(kind, part):
        call()
    assert kf.get_rng_state() == before


def test_dropout_scales_what_stays(raises_saying):
    kf.manual_seed(2)
    x = kf.full((100, 100), 3.0)
    result = kf.dropout(x, 0.25).numpy()
    assert set(np.unique(result)) == {0.0, 4.0}
    assert abs((result == 0).mean() - 0.25) < 0.03
    assert kf.dropout(x, 0.25, train=False) is x
    assert kf.dropout(x, 0.0) is x
    assert not kf.dropout(np.array([np.inf, np.nan, 1.0]), 1.0).any()
    assert isinstance(kf.dropout(np.ones(3)), np.ndarray)
    for p in [-0.5, 1.5, float("nan")]:
        with raises_saying(kf.InvalidValue, "aten::dropout", "'p'", "from 0 to 1"):
            kf.dropout(x, p)
    with raises_saying(kf.DTypeError, "aten::dropout", "int64"):
        kf.dropout(kf.ones(2, dtype="int64"))


def test_the_gradient_of_dropout_is_its_mask():
    kf.manual_seed(4)
    x = kf.full((50,), 3.0).requires_grad_()
    y = kf.dropout(x, 0.25)
    (grad,) = kf.grad(y.sum(), [x])
    assert np.allclose(grad.numpy() * 3.0, y.detach().numpy())
    assert set(np.round(grad.numpy(), 3)) == {0.0, 1.333}
    assert kf.grad(kf.dropout(x, 1.0).sum(), [x])[0].tolist() == [0.0] * 50


def test_threads_draw_numbers_of_their_own():
    kf.manual_seed(3)
    draws = []

    def draw():
        draws.extend(kf.rand(500).tolist())

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(draws)) == 2000
    assert kf.get_rng_state() == (3, 1000)
