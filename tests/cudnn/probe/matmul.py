"""Matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.cudnn.probe.draft import NORMAL, Case, Draft

CUBE, BIAS, ONE = [8, 512, 512], [1, 1, 512], [1, 1, 1]
COLUMN_MAJOR = [512 * 512, 1, 512]
NARROW, EIGHT_BITS = ("f16", "bf16"), ("e4m3", "e5m2")
EPILOGUES = (
    ["ADD"],
    ["RELU_FWD"],
    ["ADD", "RELU_FWD"],
    ["ADD", "GELU_FWD"],
    ["ADD", "GELU_APPROX_TANH_FWD"],
    ["ADD", "SWISH_FWD", "MUL"],
    ["ADD", "GELU_FWD", "MUL", "TANH_FWD", "NEG"],
)
SECOND = {"ADD": BIAS, "MUL": CUBE}


def product(
    d: Draft,
    a: Sequence[int] = CUBE,
    b: Sequence[int] = CUBE,
    b_stride: Sequence[int] | None = None,
    b_dtype: str | None = None,
    out: str | None = None,
    compute: str = "f32",
) -> None:
    """A product alone."""
    d.real(d.mm(d.t(a), d.t(b, b_dtype, b_stride), compute), dtype=out)


def integers(d: Draft) -> None:
    """A product of int8, multiplied into float32."""
    c = d.virtual(d.mm(d.t(CUBE), d.t(CUBE, None, COLUMN_MAJOR), "i32"), CUBE, "i32")
    d.real(d.pw("MUL", c, d.s(3)), CUBE, "f32")


def scaled(d: Draft, out: str = "bf16", amax: bool = False) -> None:
    """A product of 8-bit floats with their scales."""
    c = d.virtual(d.mm(d.t(CUBE), d.t(CUBE, None, COLUMN_MAJOR)))
    for _ in range(2):
        c = d.virtual(d.pw("MUL", c, d.t(ONE, "f32")))
    c = d.pw("MUL", c, d.t(ONE, "f32"))
    if amax:
        c = d.virtual(c)
        d.real(d.red("AMAX", c, ONE), ONE, "f32")
        d.real(d.pw("IDENTITY", c), CUBE, out)
    else:
        d.real(c, CUBE, out)


def cast(d: Draft, which: str, dtype: str) -> None:
    """A product of which one factor is converted first."""
    narrow = d.virtual(d.pw("IDENTITY", d.t(CUBE, dtype)), CUBE, d.dtype)
    other = d.t(CUBE)
    d.real(d.mm(narrow, other) if which == "A" else d.mm(other, narrow))


def epilogue(d: Draft, modes: Sequence[str]) -> None:
    """A product, and operations on it."""
    x = d.virtual(d.mm(d.t(CUBE), d.t(CUBE)))
    for i, mode in enumerate(modes):
        y = d.pw(mode, x, *([d.t(SECOND[mode])] if mode in SECOND else []))
        x = d.real(y) if i == len(modes) - 1 else d.virtual(y)


def kept_bias(d: Draft) -> None:
    """A product with a bias, which is kept, and gelu of it."""
    product = d.virtual(d.mm(d.t(CUBE), d.t(CUBE)))
    d.real(d.pw("GELU_FWD", d.real(d.pw("ADD", product, d.t(BIAS)))))


def gelu_backward(d: Draft) -> None:
    """A product that is the gradient of gelu's result."""
    d.real(d.pw("GELU_BWD", d.virtual(d.mm(d.t(CUBE), d.t(CUBE))), d.t(CUBE)))


def after_relu(d: Draft) -> None:
    """A product of a relu that isn't kept."""
    d.real(d.mm(d.virtual(d.pw("RELU_FWD", d.t(CUBE)), CUBE, d.dtype), d.t(CUBE)))


def chained(d: Draft) -> None:
    """A product of a product."""
    d.real(d.mm(d.virtual(d.mm(d.t(CUBE), d.t(CUBE)), CUBE, d.dtype), d.t(CUBE)))


def _cases() -> list[Case]:
    made = []

    def case(op: str, write: Any, dtypes: Any = NORMAL) -> None:
        made.append(Case("matmul", op, write, dtypes))

    single, four = [1, 512, 512], [2, 4, 512, 512]
    turned: dict[str, Any] = {"b_stride": COLUMN_MAJOR}
    case("batched [8,512,512]", product)
    case("B column major (A x B^T)", lambda d: product(d, **turned))
    case("B broadcast over the batch [1,512,512]", lambda d: product(d, b=single))
    case("single [1,512,512]", lambda d: product(d, single, single))
    case("4D [2,4,512,512]", lambda d: product(d, four, four))
    case("odd sizes M=33 K=77 N=55", lambda d: product(d, [2, 33, 77], [2, 77, 55]))
    case("vector M=1", lambda d: product(d, [1, 1, 512], single))
    case("f32 output", lambda d: product(d, out="f32"), NARROW)
    case("f16 accumulation", lambda d: product(d, compute="f16"), ("f16",))
    case("i8 -> i32", lambda d: product(d, compute="i32", out="i32", **turned), ("i8",))
    case("i8 -> f32", integers, ("i8",))
    case("f64", lambda d: product(d, compute="f64"), ("f64",))
    case("fp8, no scales, bf16 out", lambda d: product(d, out="bf16", **turned), EIGHT_BITS)
    case("fp8, B row major, bf16 out", lambda d: product(d, out="bf16"), EIGHT_BITS)
    case("fp8 + descale A, descale B, scale C, bf16 out", scaled, EIGHT_BITS)
    case("fp8 + descales + scale, e4m3 out", lambda d: scaled(d, "e4m3"), EIGHT_BITS)
    case("fp8 + descales + scale + amax", lambda d: scaled(d, amax=True), ("e4m3",))
    case(
        "fp8 mixed e4m3 x e5m2, bf16 out",
        lambda d: product(d, out="bf16", b_dtype="e5m2", **turned),
        ("e4m3",),
    )
    for which, dtype in (("A", "i8"), ("B", "i8"), ("A", "e4m3"), ("A", "f32")):
        case(
            f"mixed input: {which} {dtype} cast to the io dtype (virtual)",
            lambda d, which=which, dtype=dtype: cast(d, which, dtype),
            NARROW,
        )
    case("A f16, B bf16 directly", lambda d: product(d, b_dtype="bf16"), ("f16",))
    case("relu on A (virtual) then matmul", after_relu)
    for modes in EPILOGUES:
        case("matmul + " + " + ".join(modes), lambda d, modes=modes: epilogue(d, modes))
    case("matmul + bias + gelu, pre-activation kept (2 outputs)", kept_bias)
    case("matmul + GELU_BWD", gelu_backward)
    case("two matmuls chained", chained)
    return made


CASES = _cases()
