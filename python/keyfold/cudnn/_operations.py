"""Matrix products, reductions, and what moves elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keyfold._errors import BindingError, InvalidValue
from keyfold.cudnn._base import (
    GraphBase,
    integer,
    sizes,
    word,
)
from keyfold.cudnn._tensor import GraphTensor

__all__ = ["Operations"]


class Operations(GraphBase):
    """Operations that are no functions of elements, norms or attention.

    Each method takes tensors of the graph, `compute_data_type=` and `name=`, and returns its
    results, virtual tensors until `set_output(True)`.

    Raises:
        ShapeError: the shapes don't fit.
        InvalidValue: an attribute isn't one that cuDNN has.
        BindingError: an argument isn't a tensor of this graph.
    """

    def matmul(
        self,
        A: GraphTensor,  # noqa: N803 # NVIDIA's frontend's names
        B: GraphTensor,  # noqa: N803
        *,
        m_override: GraphTensor | None = None,
        n_override: GraphTensor | None = None,
        k_override: GraphTensor | None = None,
        compute_data_type: Any = None,
        name: str = "",
    ) -> GraphTensor:
        """Return the matrix products over the last two dimensions; those before are batches.

        Batches have equal sizes or 1. Of four dimensions, the second has heads: those of `A` may be
        a multiple of those of `B`, of which each serves several in a row.
        """
        inputs = {
            "a": A,
            "b": B,
            "m_override": m_override,
            "n_override": n_override,
            "k_override": k_override,
        }
        (made,) = self._add("matmul", "matmul", inputs, ["c"], (compute_data_type, name))
        return made

    def moe_grouped_matmul(
        self,
        token: GraphTensor,
        weight: GraphTensor,
        first_token_offset: GraphTensor,
        *,
        compute_data_type: Any = None,
        name: str = "",
    ) -> GraphTensor:
        """Return the products of consecutive rows with one matrix for each group of rows.

        Args:
            token: the rows, one behind the other.
            weight: a matrix for each group.
            first_token_offset: the first row of each group, int32.
            compute_data_type: what it computes in; the graph's by default.
            name: its name in errors and drawings.
        """
        inputs = {"token": token, "weight": weight, "first_token_offset": first_token_offset}
        (made,) = self._add(
            "moe_grouped_matmul", "grouped_matmul", inputs, ["y"], (compute_data_type, name)
        )
        return made

    grouped_matmul = moe_grouped_matmul

    def reduction(
        self,
        input: GraphTensor,
        mode: str,
        *,
        dim: Sequence[int] | None = None,
        compute_data_type: Any = None,
        name: str = "",
    ) -> GraphTensor:
        """Return a reduction over the dimensions that are 1 in the result.

        Args:
            input: the tensor.
            mode: `add`, `mul`, `mul_no_zeros`, `min`, `max`, `amax`, `avg`, `norm1` or `norm2`.
            dim: the sizes of the result, each that of the input, or 1 where elements are reduced;
                all are 1 by default. The second of four, which has heads, may divide the input's:
                heads are reduced in groups, several in a row.
            compute_data_type: what it computes in; the graph's by default.
            name: its name in errors and drawings.
        """
        operation = {"reduction": {"mode": word(mode, "reduction(): mode")}}
        (made,) = self._add(
            "reduction", operation, {"x": input}, ["y"], (compute_data_type, name), dims=dim
        )
        return made

    def reshape(
        self,
        input: GraphTensor,
        dim: Sequence[int] | None = None,
        *,
        compute_data_type: Any = None,
        name: str = "",
    ) -> GraphTensor:
        """Return the same elements, in row-major order, under other sizes."""
        (made,) = self._add(
            "reshape", "reshape", {"x": input}, ["y"], (compute_data_type, name), dims=dim
        )
        return made

    def transpose(
        self,
        input: GraphTensor,
        permutation: Sequence[int],
        *,
        compute_data_type: Any = None,
        name: str = "",
    ) -> GraphTensor:
        """Return the tensor whose dimensions are the input's, in the order of the permutation."""
        axes = sizes(permutation, "transpose(): permutation")
        operation = {"transpose": {"permutation": axes}}
        (made,) = self._add("transpose", operation, {"x": input}, ["y"], (compute_data_type, name))
        return made

    def slice(
        self,
        input: GraphTensor,
        slices: Sequence[slice],
        *,
        compute_data_type: Any = None,
        name: str = "",
    ) -> GraphTensor:
        """Return a part of a tensor, a Python `slice` for each dimension."""
        self._uid(input, "slice(): input")
        if len(slices) != len(input.dim) or not all(isinstance(one, slice) for one in slices):
            raise BindingError(
                f"slice(): slices is a list of {len(input.dim)} slices, one for each dimension of "
                f"{input!r}, not {slices!r}"
            )
        ranges = [one.indices(size) for one, size in zip(slices, input.dim, strict=True)]
        if any(step < 1 for _, _, step in ranges):
            raise InvalidValue(f"slice(): a step is 1 or more, and slices is {slices!r}")
        start, limit, stride = (list(numbers) for numbers in zip(*ranges, strict=True))
        operation = {"slice": {"start": start, "limit": limit, "stride": stride}}
        (made,) = self._add("slice", operation, {"x": input}, ["y"], (compute_data_type, name))
        return made

    def concatenate(
        self,
        inputs: Sequence[GraphTensor],
        axis: int,
        *,
        in_place_index: int | None = None,
        compute_data_type: Any = None,
        name: str = "",
    ) -> GraphTensor:
        """Return tensors one behind the other along an axis."""
        attributes = {"axis": integer(axis, "concatenate(): axis")}
        if in_place_index is not None:
            where = "concatenate(): in_place_index"
            attributes["in_place_index"] = integer(in_place_index, where)
        operation = {"concatenate": attributes}
        (made,) = self._add(
            "concatenate", operation, {"x": list(inputs)}, ["y"], (compute_data_type, name)
        )
        return made

    def genstats(
        self, input: GraphTensor, *, compute_data_type: Any = None, name: str = ""
    ) -> tuple[GraphTensor, GraphTensor]:
        """Return the sum of each channel's elements, and the sum of their squares."""
        total, squares = self._add(
            "genstats", "gen_stats", {"x": input}, ["sum", "sq_sum"], (compute_data_type, name)
        )
        return total, squares
