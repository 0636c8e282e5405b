"""Movement of elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.cudnn.probe.draft import IMAGES, NORMAL, Case, Draft, strides

CUBE, FLAT, ROWS = [8, 512, 512], [4096, 512, 1], [1, 4096, 512]
X = [16, 64, 56, 56]
# The strides of a transposed matrix.
TURNED = [512 * 512, 1, 512]
TURN = [0, 2, 1]


def reshape(d: Draft) -> None:
    """The same elements under other sizes. A graph has no mode: libcudnn has it unset."""
    d.real(d.g.reshape(d.t(CUBE), FLAT), FLAT)


def reshape_strided(d: Draft) -> None:
    """The same sizes, other strides."""
    d.real(d.g.reshape(d.t(CUBE), CUBE), CUBE, stride=TURNED)


def reshape_then_relu(d: Draft) -> None:
    """A relu under other sizes."""
    d.real(d.pw("RELU_FWD", d.virtual(d.g.reshape(d.t(CUBE), ROWS), ROWS, d.dtype)))


def relu_then_reshape(d: Draft) -> None:
    """The result of a relu under other sizes."""
    y = d.virtual(d.pw("RELU_FWD", d.t(CUBE)), CUBE, d.dtype)
    d.real(d.g.reshape(y, ROWS), ROWS)


def reshape_then_matmul(d: Draft) -> None:
    """A product under other sizes."""
    d.real(d.mm(d.virtual(d.g.reshape(d.t(FLAT), CUBE), CUBE, d.dtype), d.t(CUBE)))


def transpose(d: Draft) -> None:
    """Transposed matrices, packed."""
    d.real(d.g.transpose(d.t(CUBE), TURN))


def transpose_then(d: Draft, what: str) -> None:
    """An operation on transposed matrices that aren't moved."""
    y = d.virtual(d.g.transpose(d.t(CUBE), TURN), CUBE, d.dtype, TURNED)
    d.real(d.pw("RELU_FWD", y) if what == "relu" else d.mm(y, d.t(CUBE)))


def identity(d: Draft, dims: Sequence[int], stride: Sequence[int]) -> None:
    """The same elements under other strides."""
    d.real(d.pw("IDENTITY", d.t(dims)), dims, stride=stride)


def part(d: Draft, x: Sequence[int], start: int, rows: int) -> Any:
    """Some rows of each matrix."""
    everything = slice(None)
    return d.g.slice(d.t(x), [everything, slice(start, start + rows), everything])


def slice_then_relu(d: Draft) -> None:
    """A relu of rows that aren't moved."""
    y = d.virtual(part(d, CUBE, 128, 256), dtype=d.dtype, stride=[512 * 512, 512, 1])
    d.real(d.pw("RELU_FWD", y))


def slice_then_matmul(d: Draft) -> None:
    """A product of rows that aren't moved."""
    y = d.virtual(part(d, [8, 1024, 512], 0, 512), CUBE, d.dtype, [1024 * 512, 512, 1])
    d.real(d.mm(y, d.t(CUBE)))


def concatenate(
    d: Draft, axis: int, count: int = 2, dims: Sequence[int] = CUBE, **options: Any
) -> None:
    """Tensors one behind the other."""
    d.real(d.g.concatenate([d.t(dims) for _ in range(count)], axis, **options))


def relu_then_concatenate(d: Draft) -> None:
    """A relu, and another tensor behind it."""
    y = d.virtual(d.pw("RELU_FWD", d.t(CUBE)), CUBE, d.dtype)
    d.real(d.g.concatenate([y, d.t(CUBE)], 1))


def _cases() -> list[Case]:
    made = []

    def case(op: str, write: Any, layouts: Any = ("packed",)) -> None:
        made.append(Case("move", op, write, NORMAL, layouts))

    for mode in ("unset", "VIEW_ONLY", "LOGICAL"):
        case(f"reshape [8,512,512]->[4096,512,1], mode {mode}", reshape)
    case("reshape same dims, other strides (transpose)", reshape_strided)
    case("reshape (virtual) then relu", reshape_then_relu)
    case("relu (virtual) then reshape", relu_then_reshape)
    case("reshape (virtual) then matmul", reshape_then_matmul)
    case("transpose [0,2,1] alone", transpose)
    case("transpose [0,2,1] as strides (virtual) then relu", lambda d: transpose_then(d, "relu"))
    case("transpose (virtual) then matmul", lambda d: transpose_then(d, "matmul"))
    case(
        "IDENTITY into other strides (transpose by pointwise)",
        lambda d: identity(d, CUBE, TURNED),
    )
    case("IDENTITY NCHW -> NHWC", lambda d: identity(d, X, strides(X, "nhwc")))
    case("slice alone", lambda d: d.real(part(d, CUBE, 0, 256)))
    case("slice (virtual) then relu", slice_then_relu)
    case("slice (virtual) then matmul", slice_then_matmul)
    for axis in range(3):
        case(f"concat 2 along {axis}", lambda d, axis=axis: concatenate(d, axis))
    case("concat 3 along 1", lambda d: concatenate(d, 1, 3))
    case("concat in place (index 0)", lambda d: concatenate(d, 1, in_place_index=0))
    case("concat channels of images", lambda d: concatenate(d, 1, dims=X), IMAGES)
    case("relu (virtual) + x -> concat", relu_then_concatenate)
    return made


CASES = _cases()
