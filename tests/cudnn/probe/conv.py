"""Convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tests.cudnn.probe.draft import IMAGES, NORMAL, Case, Draft

X, W, C = [8, 64, 28, 28], [64, 64, 3, 3], [1, 64, 1, 1]
VOLUME = [2, 32, 8, 28, 28]
KINDS = ("fprop", "dgrad", "wgrad")


class Sizes(NamedTuple):
    """Sizes of the three tensors of a convolution, and its attributes."""

    x: Sequence[int]
    w: Sequence[int]
    y: Sequence[int]
    options: dict[str, Any]


PADDED: dict[str, Any] = {"padding": 1}
PLAIN = Sizes(X, W, X, PADDED)
SHAPES = {
    "2D 3x3 pad 1": PLAIN,
    "2D 1x1": Sizes(X, [64, 64, 1, 1], X, {}),
    "2D stride 2": Sizes(X, W, [8, 64, 14, 14], {"padding": 1, "stride": 2}),
    "2D dilation 2": Sizes(X, W, X, {"padding": 2, "dilation": 2}),
    "2D asymmetric padding": Sizes(
        X, W, [8, 64, 27, 29], {"pre_padding": [0, 1], "post_padding": [1, 2]}
    ),
    "2D 4 groups": Sizes(X, [64, 16, 3, 3], X, PADDED),
    "2D depthwise": Sizes(X, [64, 1, 3, 3], X, PADDED),
    "1D as 2D": Sizes([8, 64, 1, 128], [64, 64, 1, 3], [8, 64, 1, 128], {"padding": [0, 1]}),
    "2D first layer C=3": Sizes(
        [8, 3, 56, 56], [64, 3, 7, 7], [8, 64, 28, 28], {"padding": 3, "stride": 2}
    ),
    "3D 3x3x3": Sizes(VOLUME, [32, 32, 3, 3, 3], VOLUME, PADDED),
    "3D 4 groups": Sizes(VOLUME, [32, 8, 3, 3, 3], VOLUME, PADDED),
}


def alone(
    d: Draft, kind: str, sizes: Sizes = PLAIN, out: str | None = None, compute: str = "float32"
) -> None:
    """A convolution, or one of its gradients."""
    read = {"fprop": (sizes.x, sizes.w), "dgrad": (sizes.y, sizes.w), "wgrad": (sizes.x, sizes.y)}
    written = {"fprop": sizes.y, "dgrad": sizes.x, "wgrad": sizes.w}
    first, second = (d.t(dims) for dims in read[kind])
    method = getattr(d.g, f"conv_{kind}")
    made = method(first, second, **sizes.options, compute_data_type=compute)
    d.real(made, written[kind], out)


def integers(d: Draft) -> None:
    """A convolution of int8, scaled and biased into int8."""
    y = d.g.conv_fprop(d.t(X), d.t(W), padding=1, compute_data_type="int32")
    y = d.virtual(d.pw("MUL", d.virtual(y, X, "i32"), d.t(C, "f32")))
    d.real(d.pw("ADD", y, d.t(C, "f32")))


EPILOGUE: dict[str, tuple[str, Sequence[int] | None]] = {
    "scale": ("MUL", C), "bias": ("ADD", C), "relu": ("RELU_FWD", None), "residual": ("ADD", X),
    "gelu": ("GELU_FWD", None), "swish": ("SWISH_FWD", None),
}  # fmt: skip


def epilogue(d: Draft, names: Sequence[str]) -> None:
    """A convolution, and operations on it."""
    y = d.virtual(d.g.conv_fprop(d.t(X), d.t(W), padding=1))
    for i, name in enumerate(names):
        mode, second = EPILOGUE[name]
        y = d.pw(mode, y, *([] if second is None else [d.t(second)]))
        y = d.real(y) if i == len(names) - 1 else d.virtual(y)


def prologue(d: Draft, kind: str) -> None:
    """Scale, bias and relu of the image, and a convolution of it or its filter's gradient."""
    x = d.virtual(d.pw("MUL", d.t(X), d.t(C)))
    x = d.virtual(d.pw("ADD", x, d.t(C)))
    x = d.virtual(d.pw("RELU_FWD", x), X, d.dtype)
    if kind == "fprop":
        d.real(d.g.conv_fprop(x, d.t(W), padding=1))
    else:
        d.real(d.g.conv_wgrad(x, d.t(X), padding=1), W)


def gradient_of_relu(d: Draft) -> None:
    """The gradient of the image of a convolution behind a relu."""
    dy = d.virtual(d.g.conv_dgrad(d.t(X), d.t(W), padding=1), X)
    d.real(d.pw("RELU_BWD", dy, d.t(X)))


def _cases() -> list[Case]:
    made = []

    def case(op: str, write: Any, dtypes: Any = NORMAL) -> None:
        made.append(Case("conv", op, write, dtypes, IMAGES))

    for kind in KINDS:
        for label, sizes in SHAPES.items():
            case(f"{kind} {label}", lambda d, kind=kind, sizes=sizes: alone(d, kind, sizes))
    line = Sizes([8, 64, 128], [64, 64, 3], [8, 64, 128], PADDED)
    case("fprop true 1D (3D tensors)", lambda d: alone(d, "fprop", line))
    case(
        "fprop i8 -> i32 (alone)",
        lambda d: alone(d, "fprop", out="i32", compute="int32"),
        ("i8",),
    )
    case("fprop i8 -> i8 (alone)", lambda d: alone(d, "fprop", compute="int32"), ("i8",))
    case("fprop i8 + scale + bias -> i8", integers, ("i8",))
    for kind in KINDS:
        out = "f32" if kind == "wgrad" else "bf16"
        case(
            f"{kind} fp8 -> bf16/f32",
            lambda d, kind=kind, out=out: alone(d, kind, out=out),
            ("e4m3", "e5m2"),
        )
    case("fprop f64", lambda d: alone(d, "fprop", compute="float64"), ("f64",))
    for names in (
        ["bias"],
        ["relu"],
        ["bias", "relu"],
        ["scale", "bias", "relu"],
        ["scale", "bias", "residual", "relu"],
        ["scale", "bias", "relu", "residual"],
        ["bias", "gelu"],
        ["bias", "swish"],
    ):
        case("fprop + " + " + ".join(names), lambda d, names=names: epilogue(d, names))
    for kind in ("fprop", "wgrad"):
        case(f"scale + bias + relu then {kind}", lambda d, kind=kind: prologue(d, kind))
    case("dgrad + relu backward", gradient_of_relu)
    return made


CASES = _cases()
