"""Embedding, caches, parts and repetitions, compared with NumPy: shapes, strides and dtypes."""

import numpy as np
import pytest

import keyfold as kf

RNG = np.random.default_rng(11)
DTYPES = ["float64", "float32", "float16", "int64", "int32", "uint8", "bool", "complex64"]


def random_array(shape, dtype="float64"):
    """Random elements, with strides that are those of a reversed and transposed array."""
    data = RNG.integers(-9, 9, tuple(reversed(shape))).astype(dtype)
    return data[::-1].T if data.ndim else data


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("index", ["int64", "int32", "uint16"])
@pytest.mark.parametrize("shape", [(7,), (2, 3), (), (0,)])
def test_embedding_returns_rows(dtype, index, shape):
    table = random_array((5, 4), dtype)
    rows = np.asarray(RNG.integers(0, 5, shape)).astype(index)
    found = kf.embedding(kf.asarray(rows), kf.asarray(table))
    np.testing.assert_array_equal(np.asarray(found), table[rows])
    out = np.zeros(found.shape, dtype)
    kf.embedding(rows, table, out=out)
    np.testing.assert_array_equal(out, table[rows])


@pytest.mark.parametrize("padding", [None, 2, -1, -2])
def test_the_gradient_of_embedding_adds_up_rows(padding):
    table, rows = RNG.standard_normal((4, 3)), np.array([[2, 0, 2], [1, 2, 0]])
    weights = RNG.standard_normal((2, 3, 3))

    def loss(x):
        return kf.sum(kf.embedding(kf.asarray(rows), x, padding) * kf.asarray(weights))

    expected = np.zeros((4, 3))
    np.add.at(expected, rows, weights)
    if padding is not None:
        expected[padding] = 0
    np.testing.assert_allclose(np.asarray(kf.grad(loss)(kf.asarray(table))), expected)


def test_the_tangent_and_the_batch_of_embedding():
    table, rows = kf.asarray(RNG.standard_normal((4, 3))), kf.asarray(np.array([1, 1, 3]))
    tangent = kf.asarray(RNG.standard_normal((4, 3)))
    _, found = kf.jvp(lambda x: kf.embedding(rows, x), (table,), (tangent,))
    np.testing.assert_array_equal(np.asarray(found), np.asarray(tangent)[[1, 1, 3]])
    several = kf.asarray(np.array([[0, 1], [2, 3], [3, 3]]))
    mapped = kf.vmap(lambda at: kf.embedding(at, table))(several)
    np.testing.assert_array_equal(np.asarray(mapped), np.asarray(table)[np.asarray(several)])


def test_rows_that_a_table_lacks_are_refused_by_place():
    table = np.zeros((3, 2))
    with pytest.raises(kf.IndexOutOfRange, match=r"index 3 .*size 3.*\[1, 0\]"):
        kf.embedding(np.array([[0, 1], [3, 1]]), table)
    with pytest.raises(kf.IndexOutOfRange, match="index -1 is negative"):
        kf.embedding(np.array([0, -1]), table)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_cache_is_filled_position_by_position(dtype):
    cache = kf.zeros((2, 5, 3), dtype=getattr(kf, dtype))
    expected = np.zeros((2, 5, 3), dtype)
    for pos in range(4):
        row = random_array((2, 3), dtype)
        assert kf.slice_write(cache, kf.asarray(row), pos) is cache
        expected[:, pos] = row
        np.testing.assert_array_equal(
            np.asarray(kf.slice_read(cache, pos + 1)), expected[:, : pos + 1]
        )
    rows = random_array((2, 2, 3), dtype)
    kf.slice_write(cache, kf.asarray(rows), 3)
    expected[:, 3:] = rows
    np.testing.assert_array_equal(np.asarray(cache), expected)
    with pytest.raises(kf.IndexOutOfRange, match="'pos' is 5"):
        kf.slice_write(cache, kf.asarray(row), 5)
    with pytest.raises(kf.ShapeError, match="'source'"):
        kf.slice_write(cache, kf.zeros((2, 4), dtype=cache.dtype), 0)
    np.testing.assert_array_equal(np.asarray(cache), expected)


def same(found, expected):
    assert isinstance(found, tuple)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(one), other)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_parts_are_those_of_numpy(dtype, axis):
    x = random_array((6, 4, 5), dtype)
    y = kf.asarray(x)
    same(kf.unstack(y, axis=axis), np.moveaxis(x, axis, 0))
    same(kf.split(y, [1, -2], axis), np.split(x, [1, -2], axis))
    same(kf.array_split(y, 4, axis), np.array_split(x, 4, axis))
    same(kf.array_split(y, 9, axis), np.array_split(x, 9, axis))
    same(kf.split(y, x.shape[axis], axis), np.split(x, x.shape[axis], axis))
    parts = kf.chunk(y, 3, axis)
    np.testing.assert_array_equal(np.concatenate([np.asarray(p) for p in parts], axis), x)
    with pytest.raises(kf.ShapeError, match="no 7 equal parts"):
        kf.split(y, 7, axis)
    with pytest.raises(kf.InvalidValue, match="'sections' is 0"):
        kf.split(y, 0, axis)
    with pytest.raises(kf.InvalidValue, match="ascend"):
        kf.split(y, [3, 1], axis)


def test_the_gradient_of_parts_is_that_of_the_whole():
    x = kf.asarray(RNG.standard_normal((4, 3)))

    def loss(x):
        first, _, third, fourth = kf.unstack(x)
        left, right = kf.split(x, [1], axis=1)
        return kf.sum(first * fourth) + kf.sum(third) + kf.sum(left) * 2 + kf.sum(right * right)

    a = np.asarray(x)
    expected = np.concatenate([np.full((4, 1), 2.0), 2 * a[:, 1:]], 1)
    expected[0] += a[3]
    expected[3] += a[0]
    expected[2] += 1
    np.testing.assert_allclose(np.asarray(kf.grad(loss)(x)), expected)


@pytest.mark.parametrize("dtype", ["float32", "int16", "bool"])
@pytest.mark.parametrize("shape", [(3, 4, 2), (5, 1), (0, 3)])
def test_moved_and_repeated_elements_are_those_of_numpy(shape, dtype):
    x = random_array(shape, dtype)
    y = kf.asarray(x)
    np.testing.assert_array_equal(np.asarray(kf.moveaxis(y, 0, -1)), np.moveaxis(x, 0, -1))
    np.testing.assert_array_equal(
        np.asarray(kf.moveaxis(y, (1, 0), (0, 1))), np.moveaxis(x, (1, 0), (0, 1))
    )
    for shift, axis in [(1, 0), (-7, 1), ((2, 1), (0, 1)), (3, None), ((1, 1), (0, 0))]:
        np.testing.assert_array_equal(
            np.asarray(kf.roll(y, shift, axis=axis)), np.roll(x, shift, axis)
        )
    for counts in [2, (2, 3), (2, 1, 1, 2), 0, ()]:
        np.testing.assert_array_equal(np.asarray(kf.tile(y, counts)), np.tile(x, counts))


def test_mistakes_with_axes_are_named():
    x = kf.zeros((2, 3))
    with pytest.raises(kf.ShapeError, match=r"moveaxis.*no axis 2"):
        kf.moveaxis(x, 2, 0)
    with pytest.raises(kf.InvalidValue, match="moveaxis"):
        kf.moveaxis(x, (0, 0), (0, 1))
    with pytest.raises(kf.InvalidValue, match="2 shifts for 1 axes"):
        kf.roll(x, (1, 2), axis=0)
    with pytest.raises(kf.InvalidValue, match="repetitions"):
        kf.tile(x, -1)
    with pytest.raises(kf.IndexOutOfRange):
        kf.unstack(x, axis=2)


@pytest.mark.parametrize("index", ["int64", "int32"])
def test_large_takes_and_scatters_are_those_of_numpy(index):
    x, rows = RNG.standard_normal((300, 70)), RNG.integers(-300, 300, 2000).astype(index)
    np.testing.assert_array_equal(np.asarray(kf.take(x, rows, axis=0)), x[rows])
    values = RNG.standard_normal((2000, 70))
    expected = x.copy()
    np.add.at(expected, rows, values)
    np.testing.assert_array_equal(kf.ops.aten.index_add(x, 0, rows, values), expected)
    at = RNG.integers(0, 70, (300, 70)).astype(index)
    np.testing.assert_array_equal(kf.ops.aten.gather(x, 1, at), np.take_along_axis(x, at, 1))


def test_embedding_is_that_of_pytorch():
    torch = pytest.importorskip("torch")
    table, rows = RNG.standard_normal((9, 4)), RNG.integers(0, 9, (3, 5))
    expected = torch.nn.functional.embedding(torch.from_numpy(rows), torch.from_numpy(table))
    np.testing.assert_array_equal(kf.embedding(rows, table), expected.numpy())
    grad = RNG.standard_normal((3, 5, 4))
    args = torch.from_numpy(grad), torch.from_numpy(rows), 9, 4, False
    expected = torch.ops.aten.embedding_dense_backward(*args).numpy()
    found = kf.ops.aten.embedding_dense_backward(grad, rows, 9, 4, False)
    np.testing.assert_allclose(found, expected)
