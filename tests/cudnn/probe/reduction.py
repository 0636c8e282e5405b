"""Reductions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.cudnn.probe.draft import IMAGES, NORMAL, Case, Draft

CUBE = [8, 512, 512]
X, C = [16, 64, 56, 56], [1, 64, 1, 1]
# A matrix as an image: its rows are images, its columns channels.
MATRIX, ROW, COLUMN = [4096, 1024, 1, 1], [4096, 1, 1, 1], [1, 1024, 1, 1]
NARROW = ("f16", "bf16")
MODES = ("ADD", "MUL", "MIN", "MAX", "AVG", "AMAX", "NORM1", "NORM2", "MUL_NO_ZEROS")


def alone(
    d: Draft, mode: str, x: Sequence[int], y: Sequence[int], dtype: str | None = "f32"
) -> None:
    """A reduction of an input."""
    d.real(d.red(mode, d.t(x), y), y, dtype)


def after_relu(d: Draft, mode: str, x: Sequence[int], y: Sequence[int]) -> None:
    """A reduction of a relu that isn't kept."""
    d.real(d.red(mode, d.virtual(d.pw("RELU_FWD", d.t(x))), y), y, "f32")


def after_square(d: Draft, mode: str, x: Sequence[int], y: Sequence[int]) -> None:
    """A reduction of squares that aren't kept."""
    given = d.t(x)
    d.real(d.red(mode, d.virtual(d.pw("MUL", given, given)), y), y, "f32")


def mean(d: Draft) -> None:
    """A mean: the sum of elements that are multiplied first."""
    d.real(d.red("ADD", d.virtual(d.pw("MUL", d.t(MATRIX), d.s())), ROW), ROW, "f32")


def softmax_middle(d: Draft) -> None:
    """The second of the three graphs of a softmax."""
    less = d.virtual(d.pw("SUB", d.t(MATRIX), d.t(ROW, "f32")))
    d.real(d.red("ADD", d.real(d.pw("EXP", less)), ROW), ROW, "f32")


def then_scaled(d: Draft, x: Sequence[int], y: Sequence[int], dtype: str | None = None) -> None:
    """A sum that is multiplied afterwards."""
    d.real(d.pw("MUL", d.virtual(d.red("ADD", d.t(x), y), y), d.s(len(y))), y, dtype)


def after_matmul(d: Draft, mode: str, y: Sequence[int]) -> None:
    """A reduction of a matrix product."""
    d.real(d.red(mode, d.virtual(d.mm(d.t(CUBE), d.t(CUBE))), y), y, "f32")


def after_conv(d: Draft, mode: str) -> None:
    """A reduction of a convolution."""
    y = d.virtual(d.g.conv_fprop(d.t(X), d.t([64, 64, 3, 3]), padding=1))
    d.real(d.red(mode, y, C), C, "f32")


def _cases() -> list[Case]:
    made = []

    def case(op: str, write: Any, dtypes: Any = NORMAL, layouts: Any = ("packed",)) -> None:
        made.append(Case("reduction", op, write, dtypes, layouts))

    def simple(op: str, mode: str, x: Any, y: Any, *rest: Any, dtype: Any = "f32") -> None:
        case(op, lambda d: alone(d, mode, x, y, dtype), *rest)

    channels_last = (NORMAL, ("nhwc",))
    images = (NORMAL, IMAGES)
    for r in MODES:
        simple(f"{r} row [4096,1024,1,1]->[4096,1,1,1], f32 out", r, MATRIX, ROW, *images)
        simple(f"{r} column [4096,1024,1,1]->[1,1024,1,1], f32 out", r, MATRIX, COLUMN, *images)
        simple(f"{r} row [8,512,512]->[8,512,1], f32 out", r, CUBE, [8, 512, 1], ("f16",))
    simple("ADD all [4096,1024,1,1]->[1,1,1,1], f32 out", "ADD", MATRIX, [1] * 4, *channels_last)
    simple(
        "ADD row of an image seen as rows [N*H*W,C,1,1], io dtype out", "ADD", MATRIX, ROW,
        NARROW, ("nhwc",), dtype=None,
    )  # fmt: skip
    for r in ("ADD", "MAX"):
        for axis, y in (("row", ROW), ("column", COLUMN)):
            where = f"then {r} {axis} (NHWC matrix)"
            case(f"relu {where}", lambda d, r=r, y=y: after_relu(d, r, MATRIX, y), *channels_last)
            case(
                f"square {where}", lambda d, r=r, y=y: after_square(d, r, MATRIX, y), *channels_last
            )
    case("by-value scale then ADD row (mean, NHWC matrix)", mean, *channels_last)
    case(
        "softmax middle: x - max, exp (kept), ADD row (NHWC matrix)", softmax_middle, *channels_last
    )
    case(
        "ADD row then pointwise (NHWC matrix)",
        lambda d: then_scaled(d, MATRIX, ROW, "f32"),
        *channels_last,
    )
    for r in ("ADD", "MAX"):
        rows = [1, 4096, 512]
        simple(f"{r} row, out in the io dtype", r, CUBE, [8, 512, 1], NARROW, dtype=None)
        simple(f"{r} all [8,512,512]->[1,1,1], f32 out", r, CUBE, [1, 1, 1])
        simple(f"{r} batch and rows ->[1,1,512], f32 out", r, CUBE, [1, 1, 512])
        simple(f"{r} [1,4096,512]->[1,1,512] 2D column, f32 out", r, rows, [1, 1, 512])
        simple(f"{r} [1,4096,512]->[1,4096,1] 2D row, f32 out", r, rows, [1, 4096, 1])
        simple(f"{r} N,H,W of an image ->[1,C,1,1], f32 out", r, X, C, *images)
        simple(f"{r} H,W of an image ->[N,C,1,1], f32 out", r, X, [16, 64, 1, 1], *images)
        simple(f"{r} C of an image ->[N,1,H,W], f32 out", r, X, [16, 1, 56, 56], *images)
        simple(f"{r} [4096,1024,1,1]->[4096,1,1,1], f32 out", r, MATRIX, ROW)
        for axis, y in (("row", [8, 512, 1]), ("column", [8, 1, 512])):
            where = f"then {r} {axis}"
            case(f"relu {where}", lambda d, r=r, y=y: after_relu(d, r, CUBE, y))
            case(f"square (mul) {where}", lambda d, r=r, y=y: after_square(d, r, CUBE, y))
            case(f"matmul {where}", lambda d, r=r, y=y: after_matmul(d, r, y))
        case(f"conv then {r} ->[1,C,1,1]", lambda d, r=r: after_conv(d, r), *images)
    case("row ADD then pointwise MUL (mean)", lambda d: then_scaled(d, CUBE, [8, 512, 1]))
    return made


CASES = _cases()
