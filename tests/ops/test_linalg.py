"""Decompositions and linear systems against NumPy: values, derivatives, stacks, and bad input."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keyfold as kf
from tests.helpers.random_arrays import lay_out, layouts, numbers

ROUNDING = {"float32": 1e-5, "float64": 1e-12}
STACKS = st.lists(st.integers(0, 3), max_size=2).map(tuple)


def draw(data, shape, dtype, symmetric=False):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    values = rng.normal(size=shape)
    if symmetric:
        values = values + np.swapaxes(values, -1, -2)
    return lay_out(values.astype(dtype), data.draw(layouts(shape, repeat=False)), dtype)


def shapes(data, square=False):
    m, n = data.draw(st.integers(0, 9)), data.draw(st.integers(0, 9))
    return (*data.draw(STACKS), n if square else m, n)


def near(got, wanted, dtype="float64", times=1.0):
    np.testing.assert_allclose(
        numbers(got), wanted, atol=times * ROUNDING[str(dtype)], rtol=times * ROUNDING[str(dtype)]
    )


def transposed(x):
    return np.swapaxes(x, -1, -2)


def orthonormal(x, dtype):
    product = transposed(numbers(x)) @ numbers(x)
    near(product, np.broadcast_to(np.eye(product.shape[-1]), product.shape), dtype)


def well(data, shape, dtype):
    """Matrices whose systems lose few digits."""
    x = np.asarray(draw(data, shape, dtype))
    return (x + 8 * np.eye(shape[-1], dtype=dtype)).astype(dtype)


dtypes = pytest.mark.parametrize("dtype", ROUNDING)


@pytest.mark.one_python
@dtypes
@given(data=st.data())
def test_svd_of_any_shape(dtype, data):
    x = draw(data, shapes(data), dtype)
    for full in (True, False):
        u, s, vh = kf.linalg.svd(x, full_matrices=full)
        wanted = np.linalg.svd(np.asarray(x, "float64"), full_matrices=full)
        assert [np.asarray(y).shape for y in (u, s, vh)] == [y.shape for y in wanted]
        assert {str(y.dtype) for y in (u, s, vh)} == {dtype}
        near(s, wanted[1], dtype)
        k = s.shape[-1]
        near((numbers(u)[..., :k] * numbers(s)[..., None, :]) @ numbers(vh)[..., :k, :], x, dtype)
        orthonormal(u, dtype)
        orthonormal(transposed(numbers(vh)), dtype)
    near(kf.linalg.svdvals(x), wanted[1], dtype)


@pytest.mark.one_python
@dtypes
@given(data=st.data())
def test_qr_of_any_shape(dtype, data):
    x = draw(data, shapes(data), dtype)
    for mode in ("reduced", "complete"):
        q, r = kf.linalg.qr(x, mode=mode)
        wanted = np.linalg.qr(np.asarray(x), mode=mode)
        assert q.shape == wanted[0].shape
        assert r.shape == wanted[1].shape
        near(numbers(q) @ numbers(r), x, dtype)
        assert np.all(np.tril(numbers(r), -1) == 0)
        orthonormal(q, dtype)
    empty, alone = kf.linalg.qr(x, mode="r")
    assert tuple(empty.shape) == (0,)
    near(alone, numbers(kf.linalg.qr(x)[1]), dtype)


@pytest.mark.one_python
@dtypes
@given(data=st.data())
def test_symmetric_matrices(dtype, data):
    x = draw(data, shapes(data, square=True), dtype, symmetric=True)
    values, vectors = kf.linalg.eigh(x)
    near(values, np.linalg.eigvalsh(np.asarray(x, "float64")), dtype, 4)
    near(kf.linalg.eigvalsh(x), numbers(values), dtype, 4)
    near(numbers(x) @ numbers(vectors), numbers(vectors) * numbers(values)[..., None, :], dtype, 8)
    positive = (np.asarray(x) @ transposed(np.asarray(x)) + np.eye(x.shape[-1])).astype(dtype)
    wanted = np.linalg.cholesky(positive.astype("float64"))
    near(kf.linalg.cholesky(positive), wanted, dtype, 50)
    near(kf.linalg.cholesky(positive, upper=True), transposed(wanted), dtype, 50)
    # One triangle is read.
    lower = np.tril(positive) + np.triu(np.full_like(positive, np.nan), 1)
    near(kf.linalg.cholesky(lower), wanted, dtype, 50)


@pytest.mark.one_python
@dtypes
@given(data=st.data())
def test_systems_of_stacks_that_broadcast(dtype, data):
    n, sides = data.draw(st.integers(0, 9)), data.draw(st.integers(0, 4))
    a = well(data, (*data.draw(st.sampled_from([(), (3,), (2, 1)])), n, n), dtype)
    stack = data.draw(st.sampled_from([(), (3,), (2, 3)]))
    b = draw(data, (*stack, n, sides), dtype)
    wanted = np.linalg.solve(a.astype("float64"), np.asarray(b, "float64"))
    near(kf.linalg.solve(a, b), wanted, dtype, 4)
    rows = np.broadcast_to(transposed(np.asarray(b)), (*wanted.shape[:-2], sides, n))
    other = kf.ops.aten.linalg_solve(transposed(a), rows, left=False)
    near(transposed(numbers(other)), wanted, dtype, 4)
    vector = draw(data, (n,), dtype)
    wanted = np.linalg.solve(a.astype("float64"), np.asarray(vector, "float64")[:, None])[..., 0]
    near(kf.linalg.solve(a, vector), wanted, dtype, 4)
    near(kf.linalg.inv(a), np.linalg.inv(a.astype("float64")), dtype)
    for upper in (True, False):
        for unit in (True, False):
            part = np.triu(a) if upper else np.tril(a)
            if unit:
                part = part / 8
                part[..., range(n), range(n)] = 1
            got = kf.ops.aten.linalg_solve_triangular(part, b, upper=upper, unitriangular=unit)
            near(part @ numbers(got), np.broadcast_to(np.asarray(b), got.shape), dtype, 50)


@pytest.mark.one_python
@dtypes
@given(data=st.data())
def test_determinants(dtype, data):
    x = draw(data, shapes(data, square=True), dtype)
    wide = np.asarray(x, "float64")
    near(kf.linalg.det(x), np.linalg.det(wide), dtype, 200 * 3.0 ** x.shape[-1])
    sign, log = kf.linalg.slogdet(x)
    wanted = np.linalg.slogdet(wide)
    clear = np.abs(wanted[1]) < 12
    np.testing.assert_array_equal(numbers(sign)[clear], wanted[0][clear])
    near(numbers(log)[clear], wanted[1][clear], "float32", 1e4 if dtype == "float32" else 10)


def test_ranks_inverses_norms_and_products():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(2, 5, 3)) @ rng.normal(size=(2, 3, 4))
    assert numbers(kf.linalg.matrix_rank(x)).tolist() == [3, 3]
    near(kf.linalg.pinv(x), np.linalg.pinv(x))
    near(kf.linalg.pinv(np.zeros((2, 3))), np.zeros((3, 2)))
    assert kf.linalg.pinv(np.zeros((0, 3))).shape == (3, 0)
    for order in ("fro", "nuc", 1, -1, 2, math.inf, -math.inf):
        for keep in (False, True):
            got = kf.linalg.matrix_norm(x, ord=order, keepdims=keep)
            near(got, np.linalg.norm(x, order, axis=(-2, -1), keepdims=keep))
    for order in (0, 1, 2, 3, 0.5, math.inf, -math.inf):
        near(kf.linalg.vector_norm(x, ord=order, axis=1), np.linalg.norm(x, order, axis=1))
    near(kf.linalg.vector_norm(x), np.linalg.norm(x.ravel()))
    for offset in (-6, -2, 0, 1, 3, 5):
        np.testing.assert_array_equal(
            numbers(kf.linalg.diagonal(x, offset=offset)), np.linalg.diagonal(x, offset=offset)
        )
        near(kf.linalg.trace(x, offset=offset), np.linalg.trace(x, offset=offset))
    a, b, square = rng.normal(size=(4, 3)), rng.normal(size=(2, 4, 3)), rng.normal(size=(2, 3, 3))
    near(kf.linalg.cross(a, b), np.cross(a, b))
    near(kf.linalg.cross(square, square[::-1], axis=1), np.cross(square, square[::-1], axis=1))
    near(kf.linalg.outer(a[0], b[0, 0]), np.outer(a[0], b[0, 0]))
    near(kf.linalg.vecdot(a, b), np.vecdot(a, b))
    near(kf.linalg.tensordot(b, a, axes=2), np.tensordot(b, a, axes=2))
    near(kf.linalg.tensordot(b, a, axes=([1], [0])), np.tensordot(b, a, axes=([1], [0])))
    for power in (-2, 0, 1, 5):
        near(
            kf.linalg.matrix_power(square, power), np.linalg.matrix_power(square, power), times=100
        )


def symmetric(x):
    return kf.matmul(x, kf.matrix_transpose(x)) + np.diag([1.0, 3.0, 6.0])


DERIVATIVES = {
    "svdvals": lambda x: kf.linalg.svdvals(x),
    "svd": lambda x: kf.linalg.svd(x, full_matrices=False).U ** 2,
    "qr": lambda x: kf.linalg.qr(x).Q,
    "r": lambda x: kf.linalg.qr(x).R,
    "eigh": lambda x: kf.linalg.eigh(symmetric(x)).eigenvectors ** 2,
    "eigvalsh": lambda x: kf.linalg.eigvalsh(symmetric(x)),
    "cholesky": lambda x: kf.linalg.cholesky(symmetric(x)),
    "upper": lambda x: kf.linalg.cholesky(symmetric(x), upper=True),
    "solve": lambda x: kf.linalg.solve(x, x[:, :2]),
    "vector": lambda x: kf.linalg.solve(x, x[0]),
    "inv": lambda x: kf.linalg.inv(x),
    "det": lambda x: kf.linalg.det(x),
    "slogdet": lambda x: kf.linalg.slogdet(x).logabsdet,
    "pinv": lambda x: kf.linalg.pinv(x),
}


@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives_are_those_of_differences(name):
    x = np.random.default_rng(4).normal(size=(3, 3)) + 2 * np.eye(3)
    assert kf.gradcheck(DERIVATIVES[name], (x,), check_forward=True)
    assert kf.gradgradcheck(DERIVATIVES[name], (x,), rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("shape", [(4, 2), (2, 4)])
def test_derivatives_of_matrices_that_arent_square(shape):
    x = np.random.default_rng(5).normal(size=shape)
    for name in ("svdvals", "svd", "qr", "r", "pinv"):
        assert kf.gradcheck(DERIVATIVES[name], (x,), check_forward=True), name


def test_determinants_of_singular_matrices_have_gradients():
    x = np.array([[1.0, 2.0], [2.0, 4.0]])
    near(kf.grad(kf.linalg.det)(x), [[4.0, -2.0], [-2.0, 1.0]])


def test_examples_of_a_batch_are_decomposed_alone():
    x = np.random.default_rng(6).normal(size=(4, 3, 3))
    for function in (kf.linalg.svdvals, kf.linalg.inv, lambda x: kf.linalg.qr(x).R):
        near(kf.vmap(function)(x), np.stack([numbers(function(one)) for one in x]))
    vectors = np.ones((4, 3))
    near(kf.vmap(kf.linalg.solve)(x, vectors), np.linalg.solve(x, vectors[..., None])[..., 0])


def test_systems_without_a_solution_are_refused_by_their_place():
    stack = np.stack([np.eye(2), np.ones((2, 2)), np.zeros((2, 2))])[None]
    with pytest.raises(kf.InvalidValue, match=r"solve: matrix \[0, 1\] is singular: pivot 2"):
        kf.linalg.solve(stack, np.ones((2, 1)))
    with pytest.raises(kf.InvalidValue, match=r"linalg_inv: the matrix is singular"):
        kf.linalg.inv(np.zeros((2, 2)))
    result, info = kf.ops.aten.linalg_solve_ex(stack, np.ones((2, 1)))
    assert numbers(info).tolist() == [[0, 2, 1]]
    assert np.isnan(numbers(result)[0, 1:]).all()
    with pytest.raises(kf.InvalidValue, match=r"matrix \[1\] isn't positive definite: .*order 2"):
        kf.linalg.cholesky(np.stack([np.eye(3), np.diag([1.0, -1.0, 1.0])]))
    out = kf.asarray(np.full((2, 2), 7.0))
    with pytest.raises(kf.InvalidValue, match="order 1"):
        kf.ops.aten.linalg_cholesky.out(-np.eye(2), out=out)
    assert out.tolist() == [[7.0, 7.0], [7.0, 7.0]]
    factor, info = kf.ops.aten.linalg_cholesky_ex(-np.eye(2))
    assert numbers(info) == 1
    assert np.isnan(numbers(factor)).all()


def test_numbers_that_arent_finite():
    bad = np.array([[1.0, np.nan], [0.0, 1.0]])
    for function in (kf.linalg.svd, kf.linalg.svdvals, kf.linalg.eigh, kf.linalg.eigvalsh):
        with pytest.raises(kf.InvalidValue, match="the matrix has elements that are NaN or inf"):
            function(bad.T)
    with pytest.raises(kf.InvalidValue, match="isn't positive definite"):
        kf.linalg.cholesky(bad.T)
    assert np.isnan(numbers(kf.linalg.qr(bad).R)).any()
    assert np.isnan(numbers(kf.linalg.solve(bad, np.ones(2)))).any()
    assert np.isnan(numbers(kf.linalg.det(bad * np.nan)))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: kf.linalg.svd(np.ones(3)), kf.ShapeError, "linalg_svd: argument 'x' has shape"),
        (lambda: kf.linalg.inv(np.ones((2, 3))), kf.ShapeError, "linalg_inv: .*2 by 3.*square"),
        (lambda: kf.linalg.cholesky(np.ones((2, 3))), kf.ShapeError, "square"),
        (lambda: kf.linalg.det(np.ones((2, 3))), kf.ShapeError, "square"),
        (lambda: kf.linalg.svd(np.ones((2, 2), "e")), kf.DTypeError, "float16.*float32, float64"),
        (lambda: kf.linalg.qr(np.ones((2, 2), "i")), kf.DTypeError, "int32.*float32, float64"),
        (lambda: kf.linalg.det(np.ones((2, 2), "D")), kf.DTypeError, "complex128"),
        (lambda: kf.linalg.qr(np.ones((2, 2)), mode="raw"), kf.InvalidValue, "'raw'.*'reduced'"),
        (lambda: kf.linalg.solve(np.eye(2), np.ones(3)), kf.ShapeError, "3 rows.*have 2"),
        (
            lambda: kf.linalg.solve(np.ones((2, 2, 2)), np.ones((3, 2, 1))),
            kf.ShapeError,
            "as stacks",
        ),
        (
            lambda: kf.ops.aten.linalg_eigh(np.eye(2), "X"),
            kf.InvalidValue,
            "'UPLO' is 'X'",
        ),
        (
            lambda: kf.ops.aten.linalg_svd(np.eye(2), driver="gesvd"),
            kf.InvalidValue,
            "'driver' is 'gesvd'",
        ),
        (lambda: kf.linalg.matrix_norm(np.eye(2), ord=5), kf.InvalidValue, "'ord' is 5"),
        (lambda: kf.linalg.cross(np.ones(2), np.ones(2)), kf.ShapeError, "three elements"),
    ],
)
def test_bad_input_is_refused_by_name(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_null_spaces_have_no_gradient():
    x = kf.asarray(np.random.default_rng(7).normal(size=(3, 2)))
    with pytest.raises(kf.GradientError, match="full_matrices=False"):
        kf.grad(lambda x: kf.sum(kf.linalg.svd(x).U))(x)
    with pytest.raises(kf.GradientError, match="use mode 'reduced'"):
        kf.grad(lambda x: kf.sum(kf.linalg.qr(x, mode="complete").R))(x)


def test_large_matrices_and_many_small_ones():
    rng = np.random.default_rng(8)
    x = rng.normal(size=(300, 200))
    u, s, vh = kf.linalg.svd(x, full_matrices=False)
    near((numbers(u) * numbers(s)) @ numbers(vh), x, times=10)
    near(s, np.linalg.svd(x, compute_uv=False), times=10)
    many = rng.normal(size=(5000, 3, 3))
    near(kf.linalg.inv(many + 5 * np.eye(3)), np.linalg.inv(many + 5 * np.eye(3)))
    near(kf.linalg.det(many), np.linalg.det(many))


def test_derivatives_equal_pytorchs():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(9)
    x = rng.normal(size=(2, 4, 4))
    gram = x @ transposed(x) + np.eye(4)
    weights = rng.normal(size=(2, 4, 4))
    pairs = [
        (gram, kf.linalg.cholesky, torch.linalg.cholesky),
        (gram, lambda a: kf.linalg.eigh(a)[1] ** 2, lambda a: torch.linalg.eigh(a)[1] ** 2),
        (x, lambda a: kf.linalg.qr(a)[1] ** 2, lambda a: torch.linalg.qr(a)[1] ** 2),
        (x, kf.linalg.inv, torch.linalg.inv),
        (x, lambda a: kf.linalg.svd(a)[0] ** 2, lambda a: torch.linalg.svd(a)[0] ** 2),
    ]
    for values, mine, theirs in pairs:
        leaf = torch.tensor(values, requires_grad=True)
        (theirs(leaf) * torch.tensor(weights)).sum().backward()
        got = kf.grad(lambda a, f=mine: kf.sum(f(a) * weights))(kf.asarray(values))
        near(got, leaf.grad.numpy(), times=1e3)


def test_norms_of_halves_and_their_gradient_at_zero():
    for dtype in (kf.float16, kf.bfloat16):
        x = kf.full((4,), 304.0, dtype=dtype)
        assert float(kf.linalg.vector_norm(x)) == 608
        assert kf.linalg.vector_norm(x).dtype == dtype
        assert float(kf.linalg.matrix_norm(kf.reshape(x, (2, 2)))) == 608
        assert abs(float(kf.linalg.vector_norm(x, ord=3)) - 482) < 4
    x = kf.zeros((3,)).requires_grad_()
    assert kf.grad(kf.linalg.vector_norm(x), [x])[0].tolist() == [0, 0, 0]
    assert np.isnan(float(kf.linalg.vector_norm(kf.asarray([1.0, np.nan]))))


def test_the_power_0_is_the_identity_of_the_dtype():
    whole = kf.linalg.matrix_power(np.array([[1, 2], [3, 4]]), 0)
    assert whole.dtype == np.int64
    np.testing.assert_array_equal(whole, np.eye(2))
    stack = kf.linalg.matrix_power(np.full((3, 2, 2), np.nan), 0)
    np.testing.assert_array_equal(stack, np.broadcast_to(np.eye(2), (3, 2, 2)))
    with pytest.raises(kf.BindingError, match="matrix_power"):
        kf.linalg.matrix_power(np.eye(2), 1.5)


@pytest.mark.parametrize("size", [1e-310, 1e-200, 1e200, 1e307])
def test_matrices_whose_squares_are_out_of_range(size):
    x = np.array([[2.0, 1.0], [1.0, 2.0]]) * size
    np.testing.assert_allclose(kf.linalg.svdvals(x) / size, [3, 1], rtol=1e-12)
    np.testing.assert_allclose(kf.linalg.eigvalsh(x) / size, [1, 3], rtol=1e-12)
    u, s, vh = kf.linalg.svd(x)
    np.testing.assert_allclose((u * (s / size)) @ vh, x / size, rtol=1e-12)
    # The other triangle isn't read.
    x[0, 1] = np.inf
    np.testing.assert_allclose(kf.linalg.eigh(x)[0] / size, [1, 3], rtol=1e-12)


def test_a_matrix_that_no_memory_holds_is_an_error():
    whole = kf.broadcast_to(kf.ones((1, 1)), (1 << 22, 1 << 22))
    with pytest.raises(MemoryError, match="a matrix of 4194304 by 4194304"):
        kf.linalg.det(whole)
