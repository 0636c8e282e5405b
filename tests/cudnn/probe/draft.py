"""What the probe's cases are written with: a graph, and tensors as the probe made them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import keyfold as kf
from keyfold.cudnn import Graph, GraphTensor

NORMAL = ("f32", "f16", "bf16")
IMAGES = ("nchw", "nhwc")

# The probe's names of data types.
DTYPES = {
    "f32": "float32", "f16": "float16", "bf16": "bfloat16", "f64": "float64", "i8": "int8",
    "u8": "uint8", "i32": "int32", "i64": "int64", "bool": "bool", "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2", "bbool": "BYTE_BOOLEAN", "e8m0": "FP8_E8M0",
}  # fmt: skip


class Absent(Exception):
    """A case that a graph can't say: it has no such operation or data type."""


def data_type(short: str | None) -> str | None:
    """keyfold's name of a data type of the probe's."""
    if short in ("bbool", "e8m0"):
        raise Absent(f"graphs have no data type {DTYPES[short]}")
    return None if short is None else DTYPES[short]


def strides(dims: Sequence[int], layout: str = "packed") -> list[int]:
    """Strides of channels last for `nhwc`, row-major ones for every other layout."""
    order = list(range(len(dims)))
    if layout == "nhwc":
        order = [0, *order[2:], 1]
    made, step = [0] * len(dims), 1
    for axis in reversed(order):
        made[axis] = step
        step *= dims[axis]
    return made


class Draft:
    """The graph of one case, in the case's data type and layout.

    Results of operations go through `real` or `virtual`, which give them the sizes, strides and
    data type that the probe's tensor had.
    """

    def __init__(self, dtype: str, layout: str, title: str = "") -> None:
        self.dtype, self.layout = dtype, layout
        self.g = Graph(io_data_type=data_type(dtype), name=title)

    def t(
        self, dims: Sequence[int], dtype: str | None = None, stride: Sequence[int] | None = None
    ) -> GraphTensor:
        """Add an input, of the case's data type and layout by default."""
        return self.g.tensor(
            dims, strides(dims, self.layout) if stride is None else stride, data_type(dtype)
        )

    def s(self, rank: int = 4) -> GraphTensor:
        """Add a float32 that is given by value."""
        return self.g.tensor([1] * rank, [1] * rank, "float32", is_pass_by_value=True)

    def real(
        self,
        made: GraphTensor,
        dims: Sequence[int] | None = None,
        dtype: str | None = None,
        stride: Sequence[int] | None = None,
    ) -> GraphTensor:
        """Give a result memory."""
        return self._shaped(made, dims, dtype or self.dtype, stride).set_output(True)

    def virtual(
        self,
        made: GraphTensor,
        dims: Sequence[int] | None = None,
        dtype: str = "f32",
        stride: Sequence[int] | None = None,
    ) -> GraphTensor:
        """Leave a result without memory, in float32 by default."""
        return self._shaped(made, dims, dtype, stride)

    def _shaped(
        self,
        made: GraphTensor,
        dims: Sequence[int] | None,
        dtype: str,
        stride: Sequence[int] | None,
    ) -> GraphTensor:
        if dims is not None and made.dim != list(dims):
            made.set_dim(dims)
        made.set_stride(strides(made.dim, self.layout) if stride is None else stride)
        return made.set_data_type(data_type(dtype))

    def pw(
        self, mode: str, *operands: GraphTensor, compute: str = "f32", **attributes: Any
    ) -> GraphTensor:
        """Add a pointwise operation of the probe's name, with the operands of the method's."""
        name = mode.lower().removesuffix("_fwd")
        name = f"{name[:-4]}_backward" if name.endswith("_bwd") else name
        method = getattr(self.g, name)
        made: GraphTensor = method(*operands, compute_data_type=data_type(compute), **attributes)
        return made

    def mm(self, a: GraphTensor, b: GraphTensor, compute: str = "f32", **overrides: Any) -> Any:
        """Add a matrix product."""
        return self.g.matmul(a, b, compute_data_type=data_type(compute), **overrides)

    def red(self, mode: str, x: GraphTensor, dims: Sequence[int]) -> GraphTensor:
        """Add a reduction to sizes."""
        return self.g.reduction(x, mode.lower(), dim=dims)


Write = Callable[[Draft], object]


class Case(NamedTuple):
    """An operation of the probe's, in all its data types and layouts."""

    group: str
    op: str
    write: Write
    dtypes: Sequence[str] = NORMAL
    layouts: Sequence[str] = ("packed",)

    def each(self) -> Iterable[tuple[str, Callable[[], kf.cudnn.Graph]]]:
        """Its ids, with functions that build their graphs."""
        for dtype in self.dtypes:
            for layout in self.layouts:
                yield f"{self.group}/{self.op}/{dtype}/{layout}", self._builder(dtype, layout)

    def _builder(self, dtype: str, layout: str) -> Callable[[], kf.cudnn.Graph]:
        def build() -> kf.cudnn.Graph:
            draft = Draft(dtype, layout, self.op)
            self.write(draft)
            return draft.g

        return build


def absent(what: str) -> Write:
    """A case of an operation that graphs don't have."""

    def write(_: Draft) -> None:
        raise Absent(f"graphs have no {what}")

    return write
