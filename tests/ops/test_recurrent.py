"""Cells of recurrent networks against NumPy in float64: values, derivatives, and bad input."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keyfold as kf
from tests.helpers.random_arrays import lay_out, layouts, numbers

FLOATS = ["float16", "bfloat16", "float32", "float64"]
ROUNDING = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 2e-6, "float64": 1e-13}
SIZES = st.tuples(st.integers(0, 9), st.integers(0, 9)) | st.tuples(
    st.integers(1, 3), st.integers(200, 600)
)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gates_of(x, count):
    return np.split(x, count, axis=-1)


def gru(inputs, hiddens, state, biases=(0.0, 0.0)):
    of_input, of_hidden = inputs + biases[0], hiddens + biases[1]
    (ir, iz, i_n), (hr, hz, hn) = gates_of(of_input, 3), gates_of(of_hidden, 3)
    r, z = sigmoid(ir + hr), sigmoid(iz + hz)
    n = np.tanh(i_n + r * hn)
    return (1 - z) * n + z * state, np.concatenate([r, z, n, state, hn], axis=-1)


def lstm(inputs, hiddens, cell, biases=(0.0, 0.0)):
    i, f, g, o = gates_of(inputs + biases[0] + hiddens + biases[1], 4)
    i, f, g, o = sigmoid(i), sigmoid(f), np.tanh(g), sigmoid(o)
    new = f * cell + i * g
    return o * np.tanh(new), new, np.concatenate([i, f, g, o], axis=-1)


CELLS = {
    "gru": (kf.ops.aten._thnn_fused_gru_cell, gru, 3),
    "lstm": (kf.ops.aten._thnn_fused_lstm_cell, lstm, 4),
}


def draw(data, gates, dtype):
    rows, width = data.draw(SIZES)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    shapes = [(rows, gates * width)] * 2 + [(rows, width)]
    if data.draw(st.booleans()):
        shapes += [(gates * width,)] * 2

    def array(shape):
        return lay_out(rng.normal(size=shape), data.draw(layouts(shape)), dtype)

    return [array(shape) for shape in shapes]


def split(values):
    return (*values[:3], values[3:] or (0.0, 0.0))


@pytest.mark.parametrize("name", CELLS)
@given(data=st.data())
def test_cells_equal_numpys(name, data):
    function, wanted, gates = CELLS[name]
    dtype = data.draw(st.sampled_from(FLOATS))
    arrays = draw(data, gates, dtype)
    got = function(*arrays)
    for mine, theirs in zip(got, wanted(*split([numbers(x) for x in arrays])), strict=True):
        assert mine.dtype == arrays[0].dtype
        np.testing.assert_allclose(numbers(mine), theirs, atol=4 * ROUNDING[dtype], rtol=0)


@pytest.mark.parametrize("name", CELLS)
def test_gradients_and_tangents_are_those_of_differences(name):
    function, _, gates = CELLS[name]
    rng = np.random.default_rng(5)
    shapes = [(3, gates * 2)] * 2 + [(3, 2)] + [(gates * 2,)] * 2
    arrays = tuple(rng.normal(size=shape) for shape in shapes)
    for place in range(len(function(*arrays))):
        assert kf.gradcheck(lambda *x, at=place: function(*x)[at], arrays, check_forward=True)
        assert kf.gradgradcheck(lambda *x, at=place: function(*x)[at], arrays)


@pytest.mark.parametrize("dtype", FLOATS)
def test_composites_multiply_and_differentiate(dtype):
    rng = np.random.default_rng(6)
    x, h, c = (rng.normal(size=(4, n)) for n in (5, 3, 3))
    for gates, cell in ((3, "gru"), (4, "lstm")):
        weights = [rng.normal(size=(gates * 3, n)) for n in (5, 3)]
        biases = [rng.normal(size=gates * 3) for _ in range(2)]
        given = [kf.asarray(a, dtype=dtype) for a in (x, h, *weights, *biases)]
        exact = [numbers(a) for a in given]
        products = exact[0] @ exact[2].T, exact[1] @ exact[3].T
        if cell == "gru":
            got = [kf.gru_cell(*given)]
            wanted = gru(*products, exact[1], exact[4:])[:1]
        else:
            last = kf.asarray(c, dtype=dtype)
            got = kf.lstm_cell(given[0], (given[1], last), *given[2:])
            wanted = lstm(*products, numbers(last), exact[4:])[:2]
        for mine, theirs in zip(got, wanted, strict=True):
            np.testing.assert_allclose(numbers(mine), theirs, atol=30 * ROUNDING[dtype])
    leaves = (x, h, *weights)
    assert kf.gradcheck(lambda x, h, a, b: kf.lstm_cell(x, (h, h), a, b)[0], leaves)


@pytest.mark.parametrize("name", CELLS)
def test_half_gradients_are_near_those_of_float64(name):
    function, _, gates = CELLS[name]
    rng = np.random.default_rng(7)
    shapes = [(5, gates * 40)] * 2 + [(5, 40)] + [(gates * 40,)] * 2
    arrays = [rng.normal(size=shape) for shape in shapes]

    def gradients(dtype):
        leaves = [kf.asarray(a.astype("float16"), dtype=dtype) for a in arrays]
        numbers_of = kf.grad(lambda *x: kf.sum(function(*x)[0]), argnums=tuple(range(5)))
        return [numbers(grad) for grad in numbers_of(*leaves)]

    exact = gradients("float64")
    for dtype in FLOATS[:3]:
        for mine, theirs in zip(gradients(dtype), exact, strict=True):
            np.testing.assert_allclose(mine, theirs, atol=20 * ROUNDING[dtype])


def test_nan_stays_in_its_element():
    inputs = np.zeros((2, 6))
    inputs[1, 0] = np.nan
    state, _ = kf.ops.aten._thnn_fused_gru_cell(
        kf.asarray(inputs), kf.asarray(np.ones((2, 6))), kf.asarray(np.ones((2, 2)))
    )
    assert np.isnan(numbers(state)).tolist() == [[False, False], [True, False]]


@pytest.mark.parametrize(
    ("shapes", "dtypes", "error", "words"),
    [
        ([(2, 7), (2, 7), (2, 2)], "d", kf.ShapeError, "input_gates.*3 gates"),
        ([(2, 6), (2, 9), (2, 2)], "d", kf.ShapeError, "hidden_gates.*2, 9.*2, 6"),
        ([(2, 6), (2, 6), (2, 3)], "d", kf.ShapeError, "hx.*2, 3.*2, 2"),
        ([(2, 6), (2, 6), (3, 2)], "d", kf.ShapeError, "hx"),
        ([(6,), (6,), (2,)], "d", kf.ShapeError, "input_gates.*2 dimensions"),
        ([(2, 6), (2, 6), (2, 2), (5,), (6,)], "d", kf.ShapeError, "input_bias"),
        ([(2, 6), (2, 6), (2, 2), (6,), None], "d", kf.InvalidValue, "hidden_bias.*missing"),
        ([(2, 6), (2, 6), (2, 2), None, (6,)], "d", kf.InvalidValue, "input_bias.*missing"),
        ([(2, 6), (2, 6), (2, 2)], "i", kf.DTypeError, "int32.*float16"),
        ([(2, 6), (2, 6), (2, 2)], "D", kf.DTypeError, "complex128"),
    ],
)
def test_bad_input_is_refused_by_name(shapes, dtypes, error, words):
    arrays = [None if s is None else kf.asarray(np.ones(s, dtypes)) for s in shapes]
    with pytest.raises(error, match=f"_thnn_fused_gru_cell: (?s:.*){words}"):
        kf.ops.aten._thnn_fused_gru_cell(*arrays)


def test_bad_input_of_the_composites():
    x, h, w, u = (np.ones(s) for s in ((2, 3), (2, 2), (6, 3), (6, 2)))
    with pytest.raises(kf.ShapeError, match=r"gru_cell: argument 'hx'.*\[2, width\]"):
        kf.gru_cell(x, np.ones((3, 2)), w, u)
    with pytest.raises(kf.ShapeError, match=r"w_ih.*3 gates of a state of width 2"):
        kf.gru_cell(x, h, np.ones((8, 3)), u)
    with pytest.raises(kf.InvalidValue, match="'b_hh' is missing"):
        kf.gru_cell(x, h, w, u, np.ones(6))
    with pytest.raises(kf.InvalidValue, match="lstm_cell: argument 'hx' has 1"):
        kf.lstm_cell(x, [h], np.ones((8, 3)), np.ones((8, 2)))


def test_cells_of_batches_are_those_of_examples():
    rng = np.random.default_rng(8)
    inputs, hiddens, states = (kf.asarray(rng.normal(size=(4, 3, n))) for n in (6, 6, 2))
    together = kf.vmap(lambda a, b, c: kf.ops.aten._thnn_fused_gru_cell(a, b, c)[0])
    got = numbers(together(inputs, hiddens, states))
    for place in range(4):
        wanted, _ = gru(*(numbers(x)[place] for x in (inputs, hiddens, states)))
        np.testing.assert_allclose(got[place], wanted, atol=1e-13)


def test_cells_equal_pytorchs():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(9)
    arrays = [rng.normal(size=s) for s in ((4, 5), (4, 3), (9, 5), (9, 3), (9,), (9,))]
    theirs = [torch.tensor(a, requires_grad=True) for a in arrays]
    wanted = torch.gru_cell(*theirs)
    wanted.sum().backward()
    mine = [kf.asarray(a) for a in arrays]
    np.testing.assert_allclose(numbers(kf.gru_cell(*mine)), wanted.detach().numpy(), atol=1e-12)
    grads = kf.grad(lambda *x: kf.sum(kf.gru_cell(*x)), argnums=tuple(range(6)))(*mine)
    for got, leaf in zip(grads, theirs, strict=True):
        np.testing.assert_allclose(numbers(got), leaf.grad.numpy(), atol=1e-12)
