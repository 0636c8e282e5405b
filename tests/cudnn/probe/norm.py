"""Normalization."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from keyfold.cudnn import GraphTensor
from tests.cudnn.probe.draft import IMAGES, NORMAL, Case, Draft, absent

X, C = [16, 64, 56, 56], [1, 64, 1, 1]
ROWS, WIDTH = 4096, 1024
# Sizes of the input, of scale and bias, and of the statistics.
MATRIX = ([ROWS, WIDTH, 1, 1], [1, WIDTH, 1, 1], [ROWS, 1, 1, 1])
ODD = ([ROWS, 1000, 1, 1], [1, 1000, 1, 1], [ROWS, 1, 1, 1])
IMAGE = (X, C, [16, 64, 1, 1])
GROUPED = (X, C, [16, 8, 1, 1])
GROUPS_AS_CHANNELS = ([16, 8, 8 * 3136, 1], [1, 8, 1, 1], [16, 8, 1, 1])
EXAMPLES = ([8, 512, 1024], [8, 1, 1024], [8, 512, 1])
Sizes = tuple[Sequence[int], Sequence[int], Sequence[int]]


def batch_training(d: Draft, running: bool = True, relu: bool = False) -> None:
    """Batch norm in training."""

    def channels() -> GraphTensor:
        return d.t(C, "f32")

    x, scale, bias, epsilon = d.t(X), channels(), channels(), d.s()
    moving = (channels(), channels(), epsilon, d.s()) if running else (None, None, epsilon)
    y, *statistics = d.g.batchnorm(x, scale, bias, *moving)
    for one in statistics:
        if one is not None:
            d.real(one, C, "f32")
    if relu:
        d.real(d.pw("RELU_FWD", d.virtual(y)))
    else:
        d.real(y)


def batch_inference(d: Draft) -> None:
    """Batch norm of given statistics. The probe's descriptor had an epsilon that isn't read."""
    d.real(d.g.batchnorm_inference(d.t(X), *(d.t(C, "f32") for _ in range(4))))


def batch_inference_pointwise(d: Draft) -> None:
    """The same, of four pointwise operations."""
    y = d.virtual(d.pw("SUB", d.t(X), d.t(C, "f32")))
    y = d.virtual(d.pw("MUL", y, d.t(C, "f32")))
    y = d.virtual(d.pw("MUL", y, d.t(C, "f32")))
    d.real(d.pw("ADD", y, d.t(C, "f32")))


def stats(d: Draft, x: GraphTensor) -> None:
    """The sums of channels, and of squares."""
    for one in d.g.genstats(x):
        d.real(one, C, "f32")


def conv_stats(d: Draft) -> None:
    """The same of a convolution's result, which is kept."""
    stats(d, d.real(d.g.conv_fprop(d.t(X), d.t([64, 64, 3, 3]), padding=1)))


def forward(
    name: str, phase: str, sizes: Sizes = MATRIX, bias: bool = True, io: bool = False
) -> Callable[[Draft], None]:
    """A norm; scale and bias are float32, or of the case's data type."""
    x, channels, statistics = sizes

    def write(d: Draft) -> None:
        scale = [d.t(channels, None if io else "f32") for _ in range(2 if bias else 1)]
        options: dict[str, Any] = {"epsilon": d.s(len(x))}
        if name == "groupnorm":
            options["groups"] = statistics[1]
        y, *kept = getattr(d.g, name)(phase, d.t(x), *scale, **options)
        d.real(y)
        for one in kept:
            if one is not None:
                d.real(one, statistics, "f32")

    return write


def backward(
    name: str,
    sizes: Sizes = MATRIX,
    bias: bool = True,
    io: bool = False,
    epsilon: bool = False,
) -> Callable[[Draft], None]:
    """The gradients of a norm."""
    x, channels, statistics = sizes

    def write(d: Draft) -> None:
        parameters = None if io else "f32"
        read = [d.t(x), d.t(x), d.t(channels, parameters)]
        read += [d.t(statistics, "f32") for _ in range(1 if name == "rmsnorm" else 2)]
        options: dict[str, Any] = {"epsilon": d.s(len(x))} if epsilon else {}
        if name == "groupnorm":
            options["groups"] = statistics[1]
        if name == "rmsnorm":
            options["has_dbias"] = bias
        dx, *gradients = getattr(d.g, f"{name}_backward")(*read, **options)
        d.real(dx)
        for one in gradients:
            if one is not None:
                d.real(one, channels, parameters)

    return write


def _cases() -> list[Case]:
    made = []

    def case(op: str, write: Any, dtypes: Any = NORMAL, layouts: Any = ("packed",)) -> None:
        made.append(Case("norm", op, write, dtypes, layouts))

    narrow = ("f16", "bf16")
    batch = "batch fwd"
    case(f"{batch} training, running stats", batch_training, layouts=IMAGES)
    case(f"{batch} training, no running stats", lambda d: batch_training(d, False), layouts=IMAGES)
    case(
        f"{batch} training, running stats, then relu",
        lambda d: batch_training(d, relu=True),
        layouts=IMAGES,
    )
    case(f"{batch} inference (NORM_FORWARD)", batch_inference, layouts=IMAGES)
    case(f"{batch} inference (4 pointwise)", batch_inference_pointwise, layouts=IMAGES)
    case("batch bwd", backward("batchnorm", (X, C, C)), layouts=IMAGES)
    case("gen_stats", lambda d: stats(d, d.t(X)), layouts=IMAGES)
    case("conv + gen_stats", conv_stats, layouts=IMAGES)
    case("bn_finalize", absent("operation BN_FINALIZE_STATISTICS"), layouts=("nhwc",))
    for phase in ("training", "inference"):
        case(f"layer fwd {phase}", forward("layernorm", phase))
        io = f"layer fwd {phase}, scale/bias in the io dtype"
        case(io, forward("layernorm", phase, io=True), narrow)
        case(f"rms fwd {phase}", forward("rmsnorm", phase, bias=False))
        case(f"rms fwd {phase} with bias", forward("rmsnorm", phase))
        case(f"instance fwd {phase}", forward("instancenorm", phase, IMAGE), layouts=IMAGES)
        case(f"group fwd {phase}", forward("groupnorm", phase, GROUPED), layouts=IMAGES)
        case(f"adaptive layer fwd {phase}", forward("adalayernorm", phase, EXAMPLES))
    case("layer bwd", backward("layernorm"))
    case("layer bwd with epsilon", backward("layernorm", epsilon=True))
    case("layer bwd, scale/bias in the io dtype", backward("layernorm", io=True), narrow)
    case("rms bwd", backward("rmsnorm", bias=False))
    case("rms bwd with bias", backward("rmsnorm"))
    case("instance bwd", backward("instancenorm", IMAGE), layouts=IMAGES)
    seen = "as instance norm of [N,G,C/G*H*W,1]"
    case(
        f"group fwd {seen}",
        forward("instancenorm", "training", GROUPS_AS_CHANNELS),
        layouts=("nchw",),
    )
    case(f"group bwd {seen}", backward("instancenorm", GROUPS_AS_CHANNELS), layouts=("nchw",))
    case("group bwd", backward("groupnorm", GROUPED), layouts=IMAGES)
    case("adaptive layer bwd", backward("adalayernorm", EXAMPLES))
    case("layer fwd training, width 1000 (odd)", forward("layernorm", "training", ODD))
    case("layer bwd, width 1000 (odd)", backward("layernorm", ODD))
    return made


CASES = _cases()
