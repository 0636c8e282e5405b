"""Pointwise operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.cudnn.probe.draft import IMAGES, NORMAL, Case, Draft

P, BIAS = [8, 512, 512], [1, 1, 512]
X, C = [16, 64, 56, 56], [1, 64, 1, 1]
TWO = (
    "ADD", "ADD_SQUARE", "DIV", "MAX", "MIN", "MOD", "FLOOR_MOD", "MUL", "POW", "SUB", "ATAN2",
)  # fmt: skip
ONE = (
    "ABS", "CEIL", "COS", "EXP", "FLOOR", "LOG", "NEG", "RSQRT", "SIN", "SQRT", "TAN", "ERF",
    "IDENTITY", "RECIPROCAL", "RELU_FWD", "TANH_FWD", "SIGMOID_FWD", "ELU_FWD", "GELU_FWD",
    "SOFTPLUS_FWD", "SWISH_FWD", "GELU_APPROX_TANH_FWD",
)  # fmt: skip
BACKWARD = (
    "RELU_BWD", "TANH_BWD", "SIGMOID_BWD", "ELU_BWD", "GELU_BWD", "SOFTPLUS_BWD", "SWISH_BWD",
    "GELU_APPROX_TANH_BWD",
)  # fmt: skip
COMPARISONS = (
    "CMP_EQ", "CMP_NEQ", "CMP_GT", "CMP_GE", "CMP_LT", "CMP_LE",
)  # fmt: skip
TRUTHS = ("bool", "bbool", "i8")
CHAIN: list[tuple[str, Sequence[int] | None]] = [
    ("ADD", BIAS), ("MUL", [1, 1, 1]), ("GELU_FWD", None), ("ADD", P), ("TANH_FWD", None),
    ("MUL", BIAS),
]  # fmt: skip


def alone(
    d: Draft, mode: str, count: int, dims: Sequence[int] = P, dtype: str | None = None, **more: Any
) -> None:
    """An operation on inputs of one size."""
    d.real(d.pw(mode, *(d.t(dims) for _ in range(count)), **more), dims, dtype)


def with_second(d: Draft, mode: str, second: Sequence[int], dims: Sequence[int] = P) -> None:
    """An operation with a broadcast operand."""
    d.real(d.pw(mode, d.t(dims), d.t(second)), dims)


def compare_then_select(d: Draft, compute: str) -> None:
    """A comparison that isn't kept, and a choice by it."""
    x, b = d.t(P), d.t(P)
    mask = d.virtual(d.pw("CMP_GT", x, b, compute=compute), P, "bool")
    d.real(d.pw("BINARY_SELECT", x, b, mask))


def triangle(d: Draft, index: str, truth: str) -> None:
    """What lies on the diagonal and below it."""
    x = d.t(P)
    rows, columns = (
        d.virtual(d.pw("GEN_INDEX", x, axis=axis, compute=index), P, index) for axis in (1, 2)
    )
    mask = d.virtual(d.pw("CMP_GE", rows, columns, compute=truth), P, "bool")
    d.real(d.pw("BINARY_SELECT", x, d.s(3), mask))


def chain(d: Draft, length: int) -> None:
    """Operations one behind the other, the last one kept."""
    x = d.t(P)
    for i, (mode, second) in enumerate(CHAIN[:length]):
        # The second one's factor is given by value.
        other = [] if second is None else [d.s(3) if mode == "MUL" and i == 1 else d.t(second)]
        y = d.pw(mode, x, *other)
        x = d.real(y) if i == length - 1 else d.virtual(y)


def tanhs(d: Draft, length: int) -> None:
    """One operation many times."""
    x = d.t(P)
    for _ in range(length - 1):
        x = d.virtual(d.pw("TANH_FWD", x))
    d.real(d.pw("TANH_FWD", x))


def swish_elu(d: Draft) -> None:
    """Two activations with parameters."""
    d.real(d.pw("ELU_FWD", d.virtual(d.pw("SWISH_FWD", d.t(P), swish_beta=1.5)), elu_alpha=0.5))


def _cases() -> list[Case]:
    made = []

    def case(op: str, write: Any, dtypes: Any = NORMAL, layouts: Any = ("packed",)) -> None:
        made.append(Case("pointwise", op, write, dtypes, layouts))

    for count, modes in ((2, TWO), (1, ONE), (2, BACKWARD)):
        for m in modes:
            case(m, lambda d, m=m, count=count: alone(d, m, count))
    for m in COMPARISONS:
        case(
            f"{m} -> boolean, boolean compute",
            lambda d, m=m: alone(d, m, 2, dtype="bool", compute="bool"),
            ("f16",),
        )
        case(f"{m} -> boolean, f32 compute", lambda d, m=m: alone(d, m, 2, dtype="bool"))
    for o in ("f32", "i8", "u8", "bbool", "i32"):
        case(f"CMP_GT -> {o}, f32 compute", lambda d, o=o: alone(d, "CMP_GT", 2, dtype=o))
    for c in ("bool", "f32"):
        case(
            f"CMP_GT (virtual boolean, {c} compute) then BINARY_SELECT",
            lambda d, c=c: compare_then_select(d, c),
        )
    for m in ("LOGICAL_AND", "LOGICAL_OR"):
        for c in ("bool", "f32"):
            case(f"{m}, {c} compute", lambda d, m=m, c=c: alone(d, m, 2, compute=c), TRUTHS)
    for c in ("bool", "f32"):
        case(
            f"LOGICAL_NOT, {c} compute",
            lambda d, c=c: alone(d, "LOGICAL_NOT", 1, compute=c),
            TRUTHS,
        )
    for mask in TRUTHS:
        case(
            f"BINARY_SELECT, mask {mask}",
            lambda d, k=mask: d.real(d.pw("BINARY_SELECT", d.t(P), d.t(P), d.t(P, k))),
        )
    for c, o in (("i32", "i32"), ("f32", "i32"), ("f32", "f32")):
        case(
            f"GEN_INDEX axis 2 -> {o}, {c} compute",
            lambda d, c=c, o=o: alone(d, "GEN_INDEX", 1, dtype=o, compute=c, axis=2),
        )
    shape = "triangle: GEN_INDEX x2, CMP_GE, BINARY_SELECT"
    case(f"{shape}, native compute", lambda d: triangle(d, "i32", "bool"))
    case(f"{shape}, f32 compute", lambda d: triangle(d, "f32", "f32"))
    case("ADD broadcast bias [1,1,512]", lambda d: with_second(d, "ADD", BIAS))
    case("ADD broadcast column [8,512,1]", lambda d: with_second(d, "ADD", [8, 512, 1]))
    case("MUL by-value scalar f32", lambda d: d.real(d.pw("MUL", d.t(P), d.s(3))))
    case(
        "MUL device scalar [1,1,1]",
        lambda d: d.real(d.pw("MUL", d.t(P), d.t([1, 1, 1], "f32"))),
    )
    case("ADD image + [1,C,1,1]", lambda d: with_second(d, "ADD", C, X), layouts=IMAGES)
    case(
        "cast IDENTITY to f32",
        lambda d: alone(d, "IDENTITY", 1, dtype="f32"),
        ("f16", "bf16", "e4m3", "e5m2", "i8", "i32", "bool", "f64", "i64"),
    )
    case(
        "cast IDENTITY from f32",
        lambda d: d.real(d.pw("IDENTITY", d.t(P, "f32"))),
        ("f16", "bf16", "e4m3", "e5m2", "i8", "i32", "u8", "f64", "i64"),
    )
    for c in ("i32", "f32"):
        case(
            f"integer ADD, {c} compute",
            lambda d, c=c: alone(d, "ADD", 2, compute=c),
            ("i32", "i8", "i64"),
        )
    case(
        "RELU_FWD with lower clip and slope",
        lambda d: alone(d, "RELU_FWD", 1, negative_slope=0.1, lower_clip=0.0, upper_clip=6.0),
    )
    case("SWISH_FWD beta 1.5 / ELU alpha", swish_elu)
    for n in range(2, 7):
        case(
            f"chain of {n} (bias, scalar, gelu, residual, tanh, scale)",
            lambda d, n=n: chain(d, n),
        )
    for n in (12, 32):
        case(f"chain of {n}", lambda d, n=n: tanhs(d, n))
    case(
        "chain with two outputs",
        lambda d: d.real(d.pw("EXP", d.real(d.pw("NEG", d.t(P))))),
    )
    for dims, label in (
        ([512], "1D"),
        ([4096, 512], "2D"),
        ([2, 3, 4, 5, 6], "5D"),
        ([2, 3, 2, 3, 4, 5], "6D"),
        ([1, 7, 13], "odd sizes"),
        ([1, 1, 1], "one element"),
    ):
        case(f"RELU_FWD {label} {dims}", lambda d, dims=dims: alone(d, "RELU_FWD", 1, dims))
    case("RELU_FWD 4D image", lambda d: alone(d, "RELU_FWD", 1, X), layouts=IMAGES)
    volume = [2, 32, 8, 28, 28]
    case("RELU_FWD 5D volume", lambda d: alone(d, "RELU_FWD", 1, volume), layouts=IMAGES)
    case(
        "NCHW image as 3D [N,C,H*W] + [1,C,1]",
        lambda d: with_second(d, "ADD", [1, 64, 1], [16, 64, 3136]),
    )
    return made


CASES = _cases()
