"""Picking, putting, products and counting for every dtype, positions of every integer dtype."""

import numpy as np
import pytest

import keyfold as kf

SIGNED = ["int8", "int16", "int32", "int64"]
INTEGERS = [*SIGNED, "uint8", "uint16", "uint32", "uint64"]
COMPLEX = ["complex64", "complex128"]
NUMPYS = ["bool", *INTEGERS, "float16", "float32", "float64", *COMPLEX]
aten = kf.ops.aten


def samples(dtype, shape, seed=0):
    random = np.random.default_rng(seed)
    if dtype == "bool":
        return random.integers(0, 2, shape).astype(bool)
    if dtype in INTEGERS:
        info = np.iinfo(dtype)
        return random.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
    made = random.normal(size=shape)
    if dtype in COMPLEX:
        made = made + 1j * random.normal(size=shape)
    return made.astype(dtype)


def same(result, expected):
    assert isinstance(result, kf.Tensor)
    assert str(result.dtype) == str(expected.dtype)
    np.testing.assert_array_equal(result.numpy(), expected)


@pytest.mark.parametrize("dtype", NUMPYS)
def test_elements_are_picked_for_every_dtype(dtype):
    a = samples(dtype, (4, 5))
    x = kf.asarray(a)
    rows, columns = np.array([[3], [-1], [0]]), np.array([[0, -5, 4]])
    mask = samples("bool", (4, 5), 1)
    same(x[rows, columns], a[rows, columns])
    same(x[:, columns[0]], a[:, columns[0]])
    same(x[::-1].T[columns[0]], a[::-1].T[columns[0]])
    same(x[mask], a[mask])
    same(aten.masked_select(x, mask), a[mask])
    same(kf.take(x, rows[:, 0], axis=0), a.take(rows[:, 0], 0))
    where = np.argsort(a.real, axis=1)
    same(aten.gather(x, 1, where), np.take_along_axis(a, where, 1))
    meta = kf.empty((4, 5), dtype=dtype, device="meta")
    assert aten.gather(meta, 1, kf.asarray(where, device="meta")).dtype == dtype


@pytest.mark.parametrize("dtype", NUMPYS)
def test_elements_are_put_for_every_dtype(dtype):
    a, values = samples(dtype, (4, 5)), samples(dtype, (3,), 1)
    rows, columns = np.array([3, -1, 0]), np.array([0, 1, 2])
    expected = a.copy()
    expected[rows, columns] = values
    x = kf.asarray(a, copy=True)
    same(aten.index_put(x, [rows, columns], values), expected)
    x[rows, columns] = values
    same(x, expected)
    x[samples("bool", (4, 5), 2)] = values[0]
    expected[samples("bool", (4, 5), 2)] = values[0]
    same(x, expected)


@pytest.mark.parametrize("dtype", NUMPYS)
def test_elements_are_added_for_every_dtype(dtype):
    a, values = samples(dtype, (4, 3)), samples(dtype, (5, 3), 1)
    rows = np.array([0, 3, 0, -1, 0])
    wide = {"float16": "float32"}.get(dtype, dtype)
    expected = a.astype(wide)
    with np.errstate(over="ignore"):
        np.add.at(expected, rows, values.astype(wide))
    expected = expected.astype(dtype)
    x = kf.asarray(a)
    same(aten.index_add(x, 0, kf.asarray(rows), kf.asarray(values)), expected)
    same(aten.index_put(x, [kf.asarray(rows)], kf.asarray(values), True), expected)
    along = np.broadcast_to(rows[:, None], values.shape)
    same(aten.scatter_add(x, 0, kf.asarray(along), kf.asarray(values)), expected)


@pytest.mark.parametrize("dtype", NUMPYS)
@pytest.mark.parametrize("sizes", [(2, 3, 4), (17, 33, 9), (1, 300, 1)])
def test_products_for_every_dtype(dtype, sizes):
    m, k, n = sizes
    a, b = samples(dtype, (2, m, k)), samples(dtype, (k, n), 1)
    ours = kf.asarray(a) @ kf.asarray(b)
    assert str(ours.dtype) == dtype
    turned = kf.asarray(np.asfortranarray(a)) @ kf.asarray(b[::-1, ::-1])[::-1, ::-1].contiguous()
    if dtype in ("bool", *INTEGERS):
        # Whole numbers wrap around, whatever their order.
        same(ours, a @ b)
        same(turned, a @ b)
        return
    wide = "complex128" if dtype in COMPLEX else "float64"
    exact = a.astype(wide) @ b.astype(wide)
    size = np.abs(a).astype("float64") @ np.abs(b).astype("float64")
    unit = {"float16": 2**-10, "float32": 2**-23, "complex64": 2**-22}.get(dtype, 2**-51)
    for result in (ours, turned):
        error = np.abs(result.numpy().astype(wide) - exact)
        assert (error <= 4 * k**0.5 * unit * size + unit).all()


def test_gradients_of_complex_products_and_picks():
    a, b = samples("complex128", (3, 4)), samples("complex128", (4, 2), 1)
    kf.gradcheck(lambda x, y: x @ y, (a, b))
    index = np.array([[0, 2, 0], [1, 1, 3]])
    kf.gradcheck(lambda x: aten.gather(x, 1, kf.asarray(index)), (a,))
    kf.gradcheck(lambda x: x[kf.asarray([2, 0, 2], dtype="uint8")], (a,))
    source = samples("complex128", (2, 3), 2)
    kf.gradcheck(lambda x, s: aten.scatter_add(x, 1, kf.asarray(index), s), (a, source))


@pytest.mark.parametrize("dtype", NUMPYS)
def test_counting_in_every_dtype(dtype):
    count = 2 if dtype == "bool" else 100
    same(kf.arange(count, dtype=dtype), np.arange(count).astype(dtype))
    if dtype not in ("bool", *INTEGERS):
        same(kf.arange(0.5, 3, 0.25, dtype=dtype), np.arange(0.5, 3, 0.25).astype(dtype))
    same(kf.arange(1, -1, -1, dtype=dtype), np.array([1, 0]).astype(dtype))


def test_counting_beyond_a_dtype_is_refused():
    with pytest.raises(kf.InvalidValue, match="comes to 2, which is out of range for dtype bool"):
        kf.arange(3, dtype="bool")
    with pytest.raises(kf.DTypeError, match="in bool; all must be whole"):
        kf.arange(0.5, dtype="bool")
    with pytest.raises(kf.DTypeError, match="complex and has no order"):
        kf.arange(3j)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_positions_of_every_integer_dtype(dtype):
    a = np.arange(12.0).reshape(4, 3)
    x = kf.asarray(a)
    positions = np.array([2, 0, 3, 2], dtype=dtype)
    if dtype in SIGNED:
        positions[0] = -1
    places = positions.astype("int64")
    p = kf.asarray(positions)
    same(x[p], a[places])
    same(x[positions], a[places])
    same(aten.index(x, [p]), a[places])
    same(aten.index_select(x, 0, p), a[places])
    same(kf.take(x, p, axis=0), a[places])
    along = np.broadcast_to(positions[:, None] % 3, (4, 2)).copy()
    same(aten.gather(x, 1, kf.asarray(along)), np.take_along_axis(a, along.astype("int64"), 1))
    added = a.copy()
    np.add.at(added, places, np.ones((4, 3)))
    same(aten.index_add(x, 0, p, kf.ones((4, 3))), added)
    same(aten.index_put(x, [p], kf.ones((4, 3)), True), added)
    y = kf.asarray(a, copy=True)
    y[p] = -1.0
    added = a.copy()
    added[places] = -1
    same(y, added)
    same(kf.vmap(lambda row: row[p % 3])(x), a[:, (p % 3).numpy().astype("int64")])
    leaf = kf.asarray(a, copy=True).requires_grad_()
    leaf[p].sum().backward()
    counts = np.zeros((4, 3))
    np.add.at(counts, places, 1.0)
    same(leaf.grad, counts)
    meta = kf.empty((4, 3), device="meta")
    assert aten.index_select(meta, 0, kf.empty(4, dtype=dtype, device="meta")).shape == (4, 3)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_positions_out_of_range_are_refused(dtype):
    x = kf.zeros(3)
    worst = np.iinfo(dtype)
    for place in (worst.max, worst.min if worst.min else 3):
        index = kf.asarray(np.array([place], dtype=dtype))
        for pick in (
            lambda index: x[index],
            lambda index: aten.gather(x, 0, index),
            lambda index: aten.scatter_add(x, 0, index, kf.ones(1)),
            lambda index: aten.index_add(x, 0, index, kf.ones(1)),
        ):
            with pytest.raises(kf.IndexOutOfRange, match=f"{place} is out of range"):
                pick(index)


def test_floats_are_no_positions():
    x, wrong = kf.zeros(3), kf.zeros(1)
    for pick in (
        lambda: aten.index(x, [wrong]),
        lambda: aten.gather(x, 0, wrong),
        lambda: aten.index_select(x, 0, wrong),
        lambda: aten.gather(x, 0, wrong > 1),
    ):
        with pytest.raises(kf.DTypeError, match=r"integer dtype, not (float64|bool)"):
            pick()


def test_bfloat16_is_picked_and_multiplied():
    x = kf.asarray([[1.5, 2.5], [3.0, -4.0]]).to("bfloat16")
    assert x[kf.asarray([1, 0], dtype="int8")].to("float32").tolist() == [[3, -4], [1.5, 2.5]]
    assert (x @ x).to("float32").tolist() == [[9.75, -6.25], [-7.5, 23.5]]
    assert kf.arange(3, dtype="bfloat16").to("float32").tolist() == [0, 1, 2]
