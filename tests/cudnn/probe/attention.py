"""Attention: as one operation, and written with its parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from keyfold.cudnn import GraphTensor
from tests.cudnn.probe.draft import NORMAL, Case, Draft, data_type, strides

BATCH, HEADS, LENGTH = 2, 8, 512
SCORES, ROW = [BATCH, HEADS, LENGTH, LENGTH], [BATCH, HEADS, LENGTH, 1]
NARROW, BOTH = ("f16", "bf16"), ("bhsd", "bshd")
TURN = [0, 1, 3, 2]


class Heads(NamedTuple):
    """The tensors of an attention's inputs and results, in the case's layout."""

    d: Draft
    depth: int
    kv_heads: int

    def dims(self, heads: int = HEADS) -> list[int]:
        """Sizes of a tensor of so many heads."""
        return [BATCH, heads, LENGTH, self.depth]

    def stride(self, heads: int = HEADS) -> list[int]:
        """Its strides."""
        if self.d.layout == "bhsd":
            return strides(self.dims(heads))
        return [heads * LENGTH * self.depth, self.depth, heads * self.depth, 1]

    def q(self) -> GraphTensor:
        """Add an input like the queries."""
        return self.d.t(self.dims(), None, self.stride())

    def kv(self) -> GraphTensor:
        """Add an input like the keys."""
        return self.d.t(self.dims(self.kv_heads), None, self.stride(self.kv_heads))

    def turned(self) -> GraphTensor:
        """Add the keys with sequence and features exchanged, which are strides."""
        dims, stride = self.dims(self.kv_heads), self.stride(self.kv_heads)
        return self.d.t([dims[i] for i in TURN], None, [stride[i] for i in TURN])

    def result(self, made: GraphTensor, dtype: str | None = None) -> GraphTensor:
        """Keep a result like the queries."""
        return self.d.real(made, self.dims(), dtype, self.stride())

    def kv_result(self, made: GraphTensor) -> GraphTensor:
        """Keep a result like the keys."""
        return self.d.real(made, self.dims(self.kv_heads), None, self.stride(self.kv_heads))


def lengths(d: Draft) -> dict[str, Any]:
    """Arguments of a padding mask."""
    q, kv = (d.t([BATCH, 1, 1, 1], "i32", [1] * 4) for _ in range(2))
    return {"use_padding_mask": True, "seq_len_q": q, "seq_len_kv": kv}


def forward(
    d: Draft,
    depth: int,
    kv_heads: int = HEADS,
    causal: bool = False,
    padding: bool = False,
    stats: bool = False,
    dropout: bool = False,
) -> None:
    """Attention as one operation."""
    at = Heads(d, depth, kv_heads)
    options: dict[str, Any] = {"use_causal_mask": causal, "generate_stats": stats}
    options |= lengths(d) if padding else {}
    if dropout:
        options["dropout"] = (0.1, d.t([1] * 4, "i64"), d.t([1] * 4, "i64"))
    o, sums = d.g.sdpa(at.q(), at.kv(), at.kv(), attn_scale=d.s(), **options)
    at.result(o)
    if sums is not None:
        d.real(sums, ROW, "f32")


def eight_bits(d: Draft, depth: int, out: str | None = None) -> None:
    """Attention of 8-bit floats with their scales."""
    at = Heads(d, depth, HEADS)
    scales = [d.t([1] * 4, "f32") for _ in range(6)]
    made = d.g.sdpa_fp8(at.q(), at.kv(), at.kv(), *scales, attn_scale=d.s())
    at.result(made[0], out)
    for amax in made[2:]:
        assert amax is not None
        d.real(amax, [1] * 4, "f32")


def softmax_parts(d: Draft, scores: GraphTensor, stats: bool) -> GraphTensor:
    """Softmax written with its parts, and the statistics of its rows."""
    greatest = d.virtual(d.red("MAX", scores, ROW))
    powers = d.virtual(d.pw("EXP", d.virtual(d.pw("SUB", scores, greatest))))
    total = d.virtual(d.red("ADD", powers, ROW))
    if stats:
        d.real(d.pw("ADD", greatest, d.virtual(d.pw("LOG", total))), ROW, "f32")
    return d.virtual(d.pw("DIV", powers, total), SCORES, d.dtype)


def composite(
    d: Draft,
    depth: int,
    kv_heads: int = HEADS,
    causal: bool = False,
    stats: bool = False,
    parts: bool = False,
    scale: bool = True,
) -> None:
    """Attention written with its parts, softmax as one operation or with its own."""
    at = Heads(d, depth, kv_heads)
    scores = d.virtual(d.mm(at.q(), at.turned()), SCORES)
    if scale:
        scores = d.virtual(d.pw("MUL", scores, d.s()))
    if causal:
        scores = d.virtual(d.g.diagonal_band_mask(scores, d.s()))
    if parts:
        weights = softmax_parts(d, scores, stats)
    else:
        weights, sums = d.g.softmax(scores, generate_stats=stats)
        d.virtual(weights, SCORES, d.dtype)
        if sums is not None:
            d.real(sums, ROW, "f32")
    d.real(d.mm(weights, at.kv()), at.dims())


def turn(d: Draft, x: GraphTensor) -> GraphTensor:
    """Exchange rows and columns, which are strides alone.

    The probe's RESHAPE converted the data type as well: here that is an operation of its own, with
    which libcudnn chooses the same engine.
    """
    if x.data_type != data_type(d.dtype):
        x = d.virtual(d.pw("IDENTITY", x), dtype=d.dtype)
    return d.virtual(d.g.transpose(x, TURN), dtype=d.dtype, stride=[x.stride[i] for i in TURN])


def padded(d: Draft, scores: GraphTensor, length: Sequence[GraphTensor]) -> GraphTensor:
    """The scores inside each example's lengths, and a number elsewhere."""
    inside = []
    for axis, limit in zip((2, 3), length, strict=True):
        index = d.virtual(d.pw("GEN_INDEX", scores, axis=axis), SCORES, "i32")
        inside.append(d.virtual(d.pw("CMP_LT", index, limit), SCORES, "bool"))
    both = d.virtual(d.pw("LOGICAL_AND", *inside, compute="bool"), SCORES, "bool")
    return d.virtual(d.pw("BINARY_SELECT", scores, d.s(), both))


def backward_composite(
    d: Draft, depth: int, kv_heads: int = HEADS, causal: bool = False, padding: bool = False
) -> None:
    """The gradients of attention, as NVIDIA's frontend writes them.

    Two tensors that the frontend holds in the workspace are outputs of the graph. Some virtual
    tensors differ from the probe's: strides that overlap are packed, indices and their comparisons
    are computed in float32, and the keys stay in their data type. libcudnn chose the same engine.
    """
    at = Heads(d, depth, kv_heads)
    q, o, do, k, v = at.q(), at.q(), at.q(), at.turned(), at.turned()
    stats, scale = d.t(ROW, "f32"), d.s()
    length = [d.t([BATCH, 1, 1, 1], "i32", [1] * 4) for _ in range(2)] if padding else []

    def limits(*names: str) -> dict[str, Any]:
        """Overrides of a product's sizes: q's lengths for the first name, kv's for the second."""
        return dict(zip(names, length, strict=False))

    both = d.virtual(d.pw("MUL", do, o))
    rows = d.real(d.pw("MUL", d.virtual(d.red("ADD", both, ROW)), d.s()), ROW, "f32")
    scores = d.virtual(d.mm(q, k, **limits("m_override", "n_override")), SCORES)
    scores = d.virtual(d.pw("MUL", scores, scale))
    scores = d.virtual(d.pw("SUB", scores, stats))
    if padding:
        scores = padded(d, scores, length)
    if causal:
        scores = d.virtual(d.g.diagonal_band_mask(scores, d.s()))
    weights = d.virtual(d.pw("EXP", scores))

    def gradient(turned: GraphTensor, of: GraphTensor) -> None:
        """A product like the keys; heads that share keys are summed up."""
        made = d.mm(turned, of, **limits("k_override", "m_override"))
        if kv_heads != HEADS:
            made = d.virtual(made, at.dims(), d.dtype)
            made = d.red("ADD", made, at.dims(kv_heads))
        at.kv_result(made)

    gradient(turn(d, weights), do)
    of_weights = d.virtual(d.mm(do, v, **limits("m_override", "n_override")), SCORES)
    less = d.virtual(d.pw("SUB", of_weights, rows))
    of_scores = d.virtual(d.pw("MUL", d.virtual(d.pw("MUL", less, weights)), scale))
    gradient(turn(d, of_scores), q)
    sums = d.mm(of_scores, turn(d, k), **limits("m_override", "k_override"))
    at.result(d.pw("IDENTITY", d.real(sums, at.dims(), "f32", strides(at.dims()))))


def backward(
    d: Draft, depth: int, kv_heads: int = HEADS, causal: bool = False, padding: bool = False
) -> None:
    """The gradients of attention as one operation."""
    at = Heads(d, depth, kv_heads)
    options = {"use_causal_mask": causal, **(lengths(d) if padding else {})}
    q, k, v, o, do = at.q(), at.kv(), at.kv(), at.q(), at.q()
    made = d.g.sdpa_backward(q, k, v, o, do, d.t(ROW, "f32"), attn_scale=d.s(), **options)
    at.result(made[0])
    for one in made[1:]:
        at.kv_result(one)


FORWARD: dict[str, dict[str, Any]] = {
    "": {},
    " causal": {"causal": True},
    " padding": {"padding": True},
    " causal+padding+stats": {"causal": True, "padding": True, "stats": True},
    " stats": {"stats": True},
    " dropout": {"dropout": True},
    " GQA 8/2": {"kv_heads": 2},
    " GQA 8/2 causal+stats": {"kv_heads": 2, "causal": True, "stats": True},
}
COMPOSITE: dict[str, dict[str, Any]] = {
    "": {},
    " causal+stats": {"causal": True, "stats": True},
    " GQA 8/2": {"kv_heads": 2},
}
BACKWARD: dict[str, dict[str, Any]] = {
    "": {},
    " causal": {"causal": True},
    " padding": {"padding": True},
    " GQA 8/2 causal": {"kv_heads": 2, "causal": True},
}


def _cases() -> list[Case]:
    made = []

    def case(op: str, write: Any, options: Any, dtypes: Any, layouts: Any = ("bhsd",)) -> None:
        written = lambda d: write(d, **options)  # noqa: E731
        made.append(Case("attention", op, written, dtypes, layouts))

    for depth in (64, 128):
        at = {"depth": depth}

        def types(label: str) -> Sequence[str]:
            return NARROW if label else NORMAL

        for label, options in FORWARD.items():
            op = f"fwd, SDPA_FWD descriptor, d={depth}{label}"
            case(op, forward, at | options, types(label), BOTH)
        for label, options in COMPOSITE.items():
            op = f"fwd, matmul/scale/SOFTMAX/matmul, d={depth}{label}"
            case(op, composite, at | options, types(label))
        parts = at | {"parts": True}
        op = "fwd, softmax by max/sub/exp/sum/div"
        case(f"{op}, d={depth}", composite, parts, NORMAL)
        case(f"{op} + stats, d={depth}", composite, parts | {"stats": True}, NARROW)
        case(f"{op}, no scale, d={depth}", composite, parts | {"scale": False}, NARROW)
        for label, options in BACKWARD.items():
            op = f"bwd, composite as the frontend builds it, d={depth}{label}"
            case(op, backward_composite, at | options, types(label), BOTH)
            op = f"bwd, SDPA_BWD descriptor, d={depth}{label}"
            case(op, backward, at | options, types(label))
        op = "fwd fp8, SDPA_FWD with scales"
        case(f"{op}, d={depth}", eight_bits, at, ("e4m3", "e5m2"), BOTH)
        case(f"{op}, bf16 out, d={depth}", eight_bits, at | {"out": "bf16"}, ("e4m3",), BOTH)
    return made


CASES = _cases()
