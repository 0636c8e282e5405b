"""Linear algebra by its names in the Python array API standard (`linalg`).

Matrices are in the last two dimensions, and dimensions before them are a stack. Decompositions and
systems take float32 and float64. Of symmetric matrices the lower triangle is read.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from keyfold import _foreign_names
from keyfold._default import dispatcher as _default
from keyfold._errors import InvalidValue, ShapeError
from keyfold._messages import refused
from keyfold._ops._creation import asarray, is_index
from keyfold._ops._functions import matrix_transpose
from keyfold._ops._operators import matmul
from keyfold._ops._outs import into
from keyfold._ops._products import outer, shape_of, tensordot, vecdot

__all__ = [
    "EighResult",
    "QRResult",
    "SVDResult",
    "SlogdetResult",
    "cholesky",
    "cross",
    "det",
    "diagonal",
    "eigh",
    "eigvalsh",
    "inv",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "outer",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "svd",
    "svdvals",
    "tensordot",
    "trace",
    "vecdot",
    "vector_norm",
]

_aten = _default.ops.aten
_EPSILON = {"float32": 2.0**-23, "float64": 2.0**-52}


class EighResult(NamedTuple):
    """Eigenvalues, ascending, and eigenvectors in columns."""

    eigenvalues: Any
    eigenvectors: Any


class QRResult(NamedTuple):
    """Orthonormal columns, and an upper triangular matrix."""

    Q: Any
    R: Any


class SVDResult(NamedTuple):
    """Left singular vectors in columns, singular values, descending, and right ones in rows."""

    U: Any
    S: Any
    Vh: Any


class SlogdetResult(NamedTuple):
    """The sign of a determinant, and the logarithm of its absolute value."""

    sign: Any
    logabsdet: Any


def cholesky(x: Any, /, *, upper: bool = False) -> Any:
    """Return the lower triangular `L` with `L @ L.T == x`, of positive definite matrices.

    Args:
        x: symmetric matrices `[..., n, n]`, of which one triangle is read.
        upper: True for the upper triangular factor, of the upper triangle.

    Raises:
        InvalidValue: a matrix isn't positive definite; the message names its place in the stack and
            the order of the first leading minor that isn't positive. NaN isn't.
    """
    return _aten.linalg_cholesky(x, upper=upper)


def svd(
    x: Any, /, *, full_matrices: bool = True, out: tuple[Any, Any, Any] | None = None
) -> SVDResult:
    """Return the singular value decomposition: `x == (U * S[..., None, :]) @ Vh`.

    That is so with `full_matrices=False`, where `U` is `[..., m, k]` and `Vh` `[..., k, n]`; by
    default they are square. `S` is `[..., k]`, with `k = min(m, n)`.

    Args:
        x: matrices `[..., m, n]`.
        full_matrices: False for as many singular vectors as singular values only.
        out: arrays to write the results to, which are returned.

    Raises:
        InvalidValue: elements are NaN or infinite.
    """
    return SVDResult(*into("linalg.svd", _aten.linalg_svd, "U", (x, full_matrices), out))


def svdvals(x: Any, /) -> Any:
    """Return the singular values `[..., min(m, n)]` of matrices `[..., m, n]`, descending.

    Raises:
        InvalidValue: elements are NaN or infinite.
    """
    return _aten.linalg_svdvals(x)


def qr(x: Any, /, *, mode: str = "reduced", out: tuple[Any, Any] | None = None) -> QRResult:
    """Return orthonormal `Q` and upper triangular `R` with `Q @ R == x`.

    Args:
        x: matrices `[..., m, n]`.
        mode: `reduced` for `Q` of `min(m, n)` columns, `complete` for `m` columns, and `r` for `R`
            only, with an empty `Q`.
        out: arrays to write the results to, which are returned.

    Raises:
        InvalidValue: another mode.
    """
    return QRResult(*into("linalg.qr", _aten.linalg_qr, "out", (x, mode), out))


def eigh(x: Any, /, *, out: tuple[Any, Any] | None = None) -> EighResult:
    """Return the eigenvalues `[..., n]` and eigenvectors of symmetric matrices `[..., n, n]`.

    Args:
        x: symmetric matrices, of which the lower triangle is read.
        out: arrays to write the results to, which are returned.

    Raises:
        InvalidValue: elements are NaN or infinite.
    """
    return EighResult(*into("linalg.eigh", _aten.linalg_eigh, "eigvals", (x,), out))


def eigvalsh(x: Any, /) -> Any:
    """Return the eigenvalues of symmetric matrices, ascending.

    Raises:
        InvalidValue: elements are NaN or infinite.
    """
    return _aten.linalg_eigvalsh(x)


def solve(x1: Any, x2: Any, /) -> Any:
    """Return the solution of `x1 @ x == x2`.

    Args:
        x1: square matrices `[..., n, n]`.
        x2: a vector `[n]`, or matrices `[..., n, k]` whose columns are the right sides; stacks
            broadcast.

    Raises:
        InvalidValue: a matrix is singular; the message names its place in the stack.
        ShapeError: the shapes don't fit.
    """
    rank, sizes = len(shape_of(x1, "linalg.solve", "x1")), shape_of(x2, "linalg.solve", "x2")
    # One dimension is a vector here, and more are matrices; the operator would take a stack of them
    # for a vector for each matrix.
    if len(sizes) > 1 and len(sizes) + 1 == rank:
        x2 = _aten.unsqueeze(x2, 0)
    return _aten.linalg_solve(x1, x2)


def inv(x: Any, /) -> Any:
    """Return the inverse of square matrices.

    Raises:
        InvalidValue: a matrix is singular; the message names its place in the stack.
    """
    return _aten.linalg_inv(x)


def det(x: Any, /) -> Any:
    """Return the determinant of square matrices."""
    return _aten.linalg_det(x)


def slogdet(x: Any, /, *, out: tuple[Any, Any] | None = None) -> SlogdetResult:
    """Return the sign and the logarithm of the absolute value of determinants.

    Args:
        x: square matrices.
        out: arrays to write the results to, which are returned.
    """
    return SlogdetResult(*into("linalg.slogdet", _aten.linalg_slogdet, "out", (x,), out))


def diagonal(x: Any, /, *, offset: int = 0) -> Any:
    """Return the diagonals of matrices.

    Args:
        x: matrices `[m, n]`.
        offset: how far above the main diagonal; negative for below.
    """
    *stack, m, n = _matrices("diagonal", x)
    count = max(0, min(m, n - offset) if offset >= 0 else min(m + offset, n))
    start = offset if offset >= 0 else -offset * n
    flat = _aten.reshape(x, (*stack, m * n))
    # A step from each row to the next, and one column on.
    return _aten.slice(
        flat, -1, start if count else 0, start + count * (n + 1) if count else 0, n + 1
    )


def trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Any:
    """Return the sums along the diagonals of matrices.

    Args:
        x: matrices.
        offset: how far above the main diagonal; negative for below.
        dtype: the dtype to add up in and of the result; None to go by the array's.
    """
    _matrices("trace", x)
    return _aten.sum(diagonal(x, offset=offset), (-1,), dtype=dtype)


def matrix_rank(x: Any, /, *, rtol: float | None = None) -> Any:
    """Return how many singular values of matrices are greater than `rtol` times the greatest.

    Args:
        x: matrices `[m, n]`.
        rtol: by default `max(m, n)` times the distance from 1 to the next number.
    """
    values = svdvals(x)
    return _aten.sum(_aten.gt(values, _cutoff(x, values, rtol)), (-1,))


def pinv(x: Any, /, *, rtol: float | None = None) -> Any:
    """Return the pseudo-inverse (E. Moore, R. Penrose) of matrices.

    Args:
        x: matrices `[m, n]`.
        rtol: singular values up to this multiple of the greatest count as 0; by default
            `max(m, n)` times the distance from 1 to the next number.
    """
    u, values, vh = svd(x, full_matrices=False)
    kept = _aten.gt(values, _cutoff(x, values, rtol))
    # The others are 1 before they are dropped: a gradient through 1 / 0 would be NaN.
    safe = _aten.where(kept, values, 1.0)
    inverse = _aten.where(kept, _aten.rdiv(safe, 1.0), 0.0)
    scaled = _aten.mul(matrix_transpose(vh), _aten.unsqueeze(inverse, -2))
    return _aten.matmul(scaled, matrix_transpose(u))


def _cutoff(x: Any, values: Any, rtol: float | None) -> Any:
    """The greatest singular value that counts as 0, for each matrix."""
    if values.shape[-1] == 0:
        return values
    if rtol is None:
        rtol = max(x.shape[-2:]) * _EPSILON[str(asarray(values).dtype)]
    return _aten.mul(_aten.amax(values, (-1,), True), rtol)


def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: float | str | None = "fro") -> Any:
    """Return the norms of matrices.

    Args:
        x: matrices.
        keepdims: whether the two dimensions stay, with size 1.
        ord: `fro` for the root of the sum of squares, `nuc` for the sum of the singular values, 2
            and -2 for the greatest and the least of them, 1 and -1 for the greatest and the least
            sum of a column's absolute values, inf and -inf for those of a row.

    Raises:
        InvalidValue: another order.
    """
    _matrices("matrix_norm", x)
    if ord in ("fro", None):
        return vector_norm(x, axis=(-2, -1), keepdims=keepdims)
    if ord in ("nuc", 2, -2):
        values = svdvals(x)
        place = 0 if ord == 2 else -1
        result = _aten.sum(values, (-1,)) if ord == "nuc" else _aten.select(values, -1, place)
    elif ord in (1, -1, math.inf, -math.inf):
        sums = _aten.sum(_aten.abs(x), (-2 if ord in (1, -1) else -1,))
        result = (_aten.amin if ord < 0 else _aten.amax)(sums, (-1,))
    else:
        wanted = "'fro', 'nuc', 1, -1, 2, -2, inf or -inf"
        raise InvalidValue(f"matrix_norm(): argument 'ord' is {ord!r}, but it must be {wanted}")
    return _aten.unsqueeze(_aten.unsqueeze(result, -1), -1) if keepdims else result


def vector_norm(
    x: Any, /, *, axis: int | tuple[int, ...] | None = None, keepdims: bool = False, ord: float = 2
) -> Any:
    """Return the norms of vectors: the `ord`-th root of the sum of `abs(x) ** ord`.

    Args:
        x: an array.
        axis: the dimension of the vectors, or several in a tuple; None for all.
        keepdims: whether the dimensions stay, with size 1.
        ord: inf and -inf for the greatest and the least absolute value, 0 for the number of
            elements that aren't 0.
    """
    axes = (axis,) if isinstance(axis, int) else axis
    if ord == 0:
        return _aten.sum(_aten.to(_aten.ne(x, 0), asarray(x).dtype), axes, keepdims)
    sizes = _aten.abs(x)
    if ord in (math.inf, -math.inf):
        return (_aten.amax if ord > 0 else _aten.amin)(sizes, axes, keepdims)
    if ord == 1:
        return _aten.sum(sizes, axes, keepdims)
    dtype = asarray(x).dtype
    is_half = str(dtype) in ("float16", "bfloat16")
    # Powers of float16 soon are infinite.
    sizes = _aten.to(sizes, "float32") if is_half else sizes
    if ord == 2:
        total = _aten.sum(_aten.mul(sizes, sizes), axes, keepdims)
        # The root's derivative at 0 is infinite; the norm's is taken to be 0.
        is_zero = _aten.eq(total, 0)
        result = _aten.masked_fill(_aten.sqrt(_aten.masked_fill(total, is_zero, 1)), is_zero, 0)
    else:
        result = _aten.pow(_aten.sum(_aten.pow(sizes, ord), axes, keepdims), 1 / ord)
    return _aten.to(result, dtype) if is_half else result


def matrix_power(x: Any, n: int, /) -> Any:
    """Return the `n`-th power of square matrices; of their inverses where it is negative.

    Raises:
        InvalidValue: a matrix is singular, and `n` is negative.
    """
    if not is_index(n):
        raise refused("linalg.matrix_power", "n", "a whole number", n)
    *_, rows, columns = _matrices("matrix_power", x)
    if rows != columns:
        raise ShapeError(f"matrix_power() needs square matrices, not shape {tuple(x.shape)}")
    if n < 0:
        x, n = inv(x), -n
    if n == 0:
        places = _default.ops.aten.arange(0, rows, 1, device=asarray(x).device)
        mask = _aten.eq(_aten.unsqueeze(places, 1), places)
        # Of `x` only the form counts, not its elements, which may be NaN.
        return _aten.masked_fill(_aten.masked_fill(x, _aten.ge(places, 0), 0), mask, 1)
    result = None
    while n:
        if n & 1:
            result = x if result is None else _aten.matmul(result, x)
        n >>= 1
        if n:
            x = _aten.matmul(x, x)
    return result


def cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    """Return the cross products of vectors of three elements.

    Args:
        x1: vectors.
        x2: others; the dimensions beside `axis` broadcast.
        axis: the dimension of the vectors, counted from the end for arrays of different ranks.

    Raises:
        ShapeError: the dimension hasn't size 3.
    """
    for name, x in (("x1", x1), ("x2", x2)):
        shape = shape_of(x, "linalg.cross", name)
        if not -len(shape) <= axis < len(shape) or shape[axis] != 3:
            given = f"axis {axis} of shape {shape}"
            raise ShapeError(f"cross() takes vectors of three elements along an axis, not {given}")
    a, b = ([_aten.select(x, axis, place) for place in range(3)] for x in (x1, x2))
    parts = [
        _aten.sub(_aten.mul(a[i], b[j]), _aten.mul(a[j], b[i])) for i, j in ((1, 2), (2, 0), (0, 1))
    ]
    return _aten.stack(parts, axis)


def _matrices(function: str, x: Any) -> tuple[int, ...]:
    """The shape of matrices."""
    shape = shape_of(x, f"linalg.{function}", "x")
    if len(shape) < 2:
        raise ShapeError(f"{function}() needs 2 dimensions or more, not {len(shape)}")
    return shape


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise _foreign_names.attribute_error(name, __all__, __name__)
