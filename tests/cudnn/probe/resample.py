"""Pooling and interpolation."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from tests.cudnn.probe.draft import IMAGES, Case, Draft

X, Y = [16, 64, 56, 56], [16, 64, 28, 28]
WINDOW: dict[str, Any] = {"window": 3, "stride": 2, "padding": 1}
MODES = [
    ("max", "maxpool"),
    ("avg include padding", "avgpool_include_padding"),
    ("avg exclude padding", "avgpool_exclude_padding"),
]


def forward(d: Draft, mode: str = "maxpool", x: Any = X, y: Any = Y, **changed: Any) -> None:
    """Pooling of an image."""
    made, _ = d.g.resample(d.t(x), resampling_mode=mode, **(WINDOW | changed))
    d.real(made, y)


def backward(d: Draft, mode: str, both: bool = False) -> None:
    """Its gradient, of dy alone or of x and y, too."""
    dy = d.t(Y)
    given: dict[str, Any] = {"input": d.t(X), "output": d.t(Y)} if both else {}
    d.real(d.g.resample_backward(dy, resampling_mode=mode, **given, **WINDOW), X)


def with_index(d: Draft) -> None:
    """Max pooling with the place of each maximum."""
    y, index = d.g.resample(d.t(X), generate_index=True, **WINDOW)
    d.real(y, Y)
    assert index is not None
    d.real(index, Y, "i8")


def from_index(d: Draft) -> None:
    """Its gradient from these places."""
    d.real(d.g.resample_backward(d.t(Y), index=d.t(Y, "i8"), **WINDOW), X)


def bilinear(d: Draft) -> None:
    """An image of twice the size."""
    half = Fraction(1, 2)
    options = {"window": 2, "stride": half, "pre_padding": half, "post_padding": 1, "padding": 0}
    forward(d, "bilinear", Y, X, padding_mode="edge_value", **options)


def then_relu(d: Draft) -> None:
    """Max pooling whose result isn't kept."""
    y, _ = d.g.resample(d.t(X), **WINDOW)
    d.real(d.pw("RELU_FWD", d.virtual(y, Y)))


def _cases() -> list[Case]:
    made = []

    def case(op: str, write: Any, dtypes: Any = ("f32", "f16", "bf16")) -> None:
        made.append(Case("resample", op, write, dtypes, IMAGES))

    for label, mode in MODES:
        case(f"{label} fwd", lambda d, m=mode: forward(d, m))
        case(f"{label} bwd", lambda d, m=mode: backward(d, m))
        case(f"{label} bwd with X and Y", lambda d, m=mode: backward(d, m, both=True))
    case("max fwd + index i8", with_index)
    case("max bwd from index i8", from_index)
    case("max fwd, zero padding", lambda d: forward(d, padding_mode="zero"))
    case("max fwd i8", forward, ("i8",))
    case(
        "max fwd, window 2 stride 2 no padding",
        lambda d: forward(d, window=2, padding=0),
    )
    case(
        "global avg fwd (window 56)",
        lambda d: forward(
            d, "avgpool_exclude_padding", y=[16, 64, 1, 1], window=56, stride=1, padding=0
        ),
    )
    case("bilinear upsampling x2 fwd (fractions)", bilinear)
    case("max fwd then relu", then_relu)
    return made


CASES = _cases()
