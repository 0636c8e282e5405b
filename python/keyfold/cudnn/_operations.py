"""Convolution, matrix products, pooling, reductions, and what moves elements."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Rational
from typing import Any

from keyfold._errors import BindingError, InvalidValue
from keyfold.cudnn._base import GraphBase, fractions, integer, integers, number, sizes, word
from keyfold.cudnn._tensor import GraphTensor

__all__ = ["Operations"]

_Integers = int | Iterable[int]
_Fractions = int | Rational | Iterable[int | Rational]


def _factor(given: Any, where: str) -> Any:
    """A factor that is an attribute, as JSON has it."""
    value = number(given)
    if not isinstance(value, int | float | str) or isinstance(given, str):
        raise BindingError(f"{where} takes a number, not {given!r}")
    return value


class Operations(GraphBase):
    """Operations that are no functions of elements, norms or attention.

    Each method takes tensors of the graph, `compute_data_type=` and `name=`, and returns its
    results, virtual tensors until `set_output(True)`. Lists have an int for each dimension of
    space; one int counts for all of them.

    Raises:
        ShapeError: the shapes don't fit.
        InvalidValue: an attribute isn't one that cuDNN has.
        BindingError: an argument isn't a tensor of this graph.
    """

    def _convolution(
        self,
        method: str,
        inputs: dict[str, GraphTensor],
        result: str,
        padding: _Integers | None,
        pre_padding: _Integers | None,
        post_padding: _Integers | None,
        stride: _Integers,
        dilation: _Integers,
        convolution_mode: str,
        alpha: float,
        beta: float,
        options: dict[str, Any],
    ) -> GraphTensor:
        first = next(iter(inputs.values()))
        self._uid(first, f"{method}(): {next(iter(inputs))}")
        space = max(len(first.dim) - 2, 0)
        if padding is not None and (pre_padding is not None or post_padding is not None):
            raise BindingError(
                f"{method}() takes padding=, or pre_padding= and post_padding=, not both"
            )

        def listed(name: str, given: _Integers) -> list[int]:
            return integers(given, space, f"{method}(): {name}")

        both = 0 if padding is None else padding
        attributes = {
            "pre_padding": listed("pre_padding", both if pre_padding is None else pre_padding),
            "post_padding": listed("post_padding", both if post_padding is None else post_padding),
            "stride": listed("stride", stride),
            "dilation": listed("dilation", dilation),
            "mode": word(convolution_mode, f"{method}(): convolution_mode"),
            "alpha": _factor(alpha, f"{method}(): alpha"),
            "beta": _factor(beta, f"{method}(): beta"),
        }
        (made,) = self._add(method, {method: attributes}, inputs, [result], **options)
        return made

    def conv_fprop(
        self,
        image: GraphTensor,
        weight: GraphTensor,
        *,
        padding: _Integers | None = None,
        pre_padding: _Integers | None = None,
        post_padding: _Integers | None = None,
        stride: _Integers = 1,
        dilation: _Integers = 1,
        convolution_mode: str = "cross_correlation",
        alpha: float = 1.0,
        beta: float = 0.0,
        **options: Any,
    ) -> GraphTensor:
        """Return the convolution of images with a filter.

        The number of groups is that of the image's channels over the weight's.

        Args:
            image: images, channels, space.
            weight: output channels, channels of a group, space.
            padding: zeros on both sides.
            pre_padding: zeros before the image, in place of `padding`.
            post_padding: zeros behind the image.
            stride: the distance of what neighbours in the result see.
            dilation: the distance of what neighbours in the weight see.
            convolution_mode: `cross_correlation`, or `convolution` with the weight read backwards.
            alpha: the factor of the result.
            beta: the factor of what the output holds before, which is added; a plan's `out=` gives
                the array.
            **options: `compute_data_type` and `name`.
        """
        return self._convolution(
            "conv_fprop", {"x": image, "w": weight}, "y", padding, pre_padding, post_padding,
            stride, dilation, convolution_mode, alpha, beta, options,
        )  # fmt: skip

    def conv_dgrad(
        self,
        loss: GraphTensor,
        filter: GraphTensor,
        *,
        padding: _Integers | None = None,
        pre_padding: _Integers | None = None,
        post_padding: _Integers | None = None,
        stride: _Integers = 1,
        dilation: _Integers = 1,
        convolution_mode: str = "cross_correlation",
        alpha: float = 1.0,
        beta: float = 0.0,
        **options: Any,
    ) -> GraphTensor:
        """Return the gradient of a convolution's image, of that of its result.

        With a stride, images of several sizes have one result: `set_dim` says a greater size.
        """
        return self._convolution(
            "conv_dgrad", {"dy": loss, "w": filter}, "dx", padding, pre_padding, post_padding,
            stride, dilation, convolution_mode, alpha, beta, options,
        )  # fmt: skip

    def conv_wgrad(
        self,
        image: GraphTensor,
        loss: GraphTensor,
        *,
        padding: _Integers | None = None,
        pre_padding: _Integers | None = None,
        post_padding: _Integers | None = None,
        stride: _Integers = 1,
        dilation: _Integers = 1,
        convolution_mode: str = "cross_correlation",
        alpha: float = 1.0,
        beta: float = 0.0,
        **options: Any,
    ) -> GraphTensor:
        """Return the gradient of a convolution's filter; `set_dim` says which size of several."""
        return self._convolution(
            "conv_wgrad", {"x": image, "dy": loss}, "dw", padding, pre_padding, post_padding,
            stride, dilation, convolution_mode, alpha, beta, options,
        )  # fmt: skip

    def matmul(
        self,
        A: GraphTensor,  # noqa: N803 # NVIDIA's frontend's names
        B: GraphTensor,  # noqa: N803
        *,
        m_override: GraphTensor | None = None,
        n_override: GraphTensor | None = None,
        k_override: GraphTensor | None = None,
        **options: Any,
    ) -> GraphTensor:
        """Return the matrix products over the last two dimensions; those before are batches."""
        inputs = {
            "a": A,
            "b": B,
            "m_override": m_override,
            "n_override": n_override,
            "k_override": k_override,
        }
        (made,) = self._add("matmul", "matmul", inputs, ["c"], **options)
        return made

    def moe_grouped_matmul(
        self,
        token: GraphTensor,
        weight: GraphTensor,
        first_token_offset: GraphTensor,
        **options: Any,
    ) -> GraphTensor:
        """Return the products of consecutive rows with one matrix for each group of rows.

        Args:
            token: the rows, one behind the other.
            weight: a matrix for each group.
            first_token_offset: the first row of each group, int32.
            **options: `compute_data_type` and `name`.
        """
        inputs = {"token": token, "weight": weight, "first_token_offset": first_token_offset}
        (made,) = self._add("moe_grouped_matmul", "grouped_matmul", inputs, ["y"], **options)
        return made

    grouped_matmul = moe_grouped_matmul

    def _resampling(
        self,
        method: str,
        image: GraphTensor,
        window: _Integers,
        stride: _Fractions | None,
        padding: _Fractions,
        pre_padding: _Fractions | None,
        post_padding: _Fractions | None,
        resampling_mode: str,
        padding_mode: str | None,
    ) -> dict[str, Any]:
        space = max(len(image.dim) - 2, 0)

        def listed(name: str, given: _Fractions) -> list[list[int]]:
            return fractions(given, space, f"{method}(): {name}")

        mode = word(resampling_mode, f"{method}(): resampling_mode")
        attributes = {
            "mode": mode,
            "padding_mode": padding_mode or ("neg_inf" if mode == "maxpool" else "zero"),
            "window": integers(window, space, f"{method}(): window"),
            "stride": listed("stride", window if stride is None else stride),
            "pre_padding": listed("pre_padding", padding if pre_padding is None else pre_padding),
            "post_padding": listed(
                "post_padding", padding if post_padding is None else post_padding
            ),
        }
        return {method: attributes}

    def resample(
        self,
        input: GraphTensor,
        *,
        window: _Integers,
        stride: _Fractions | None = None,
        padding: _Fractions = 0,
        pre_padding: _Fractions | None = None,
        post_padding: _Fractions | None = None,
        resampling_mode: str = "maxpool",
        padding_mode: str | None = None,
        generate_index: bool = False,
        **options: Any,
    ) -> tuple[GraphTensor, GraphTensor | None]:
        """Return what pooling makes of each window, and for max pooling its place there.

        Args:
            input: images, channels, space.
            window: the sizes of a window.
            stride: the distances of windows; the window's sizes by default. Bilinear and nearest
                resampling take `fractions.Fraction`s here and as padding: `Fraction(1, 2)` doubles.
            padding: elements on both sides.
            pre_padding: elements before the input, in place of `padding`.
            post_padding: elements behind the input.
            resampling_mode: `maxpool`, `avgpool_include_padding`, `avgpool_exclude_padding`,
                `bilinear` or `nearest`.
            padding_mode: `neg_inf`, `zero` or `edge_value`; by the mode by default.
            generate_index: whether the index that `resample_backward` takes is returned, too.
            **options: `compute_data_type` and `name`.
        """
        self._uid(input, "resample(): input")
        operation = self._resampling(
            "resample", input, window, stride, padding, pre_padding, post_padding,
            resampling_mode, padding_mode,
        )  # fmt: skip
        ports = ["y", "index"] if generate_index else ["y"]
        made = self._add("resample", operation, {"x": input}, ports, **options)
        return made[0], made[1] if generate_index else None

    def resample_backward(
        self,
        loss: GraphTensor,
        *,
        window: _Integers,
        index: GraphTensor | None = None,
        input: GraphTensor | None = None,
        output: GraphTensor | None = None,
        stride: _Fractions | None = None,
        padding: _Fractions = 0,
        pre_padding: _Fractions | None = None,
        post_padding: _Fractions | None = None,
        resampling_mode: str = "maxpool",
        padding_mode: str | None = None,
        **options: Any,
    ) -> GraphTensor:
        """Return the gradient of pooling's input, of that of its result.

        Max pooling needs the forward's `index`, or its `input` and `output`. Average pooling takes
        the `input`, too, whose sizes the gradient has. Where several sizes have one result,
        `set_dim` says a greater one.
        """
        self._uid(loss, "resample_backward(): loss")
        operation = self._resampling(
            "resample_backward", loss, window, stride, padding, pre_padding, post_padding,
            resampling_mode, padding_mode,
        )  # fmt: skip
        inputs = {"dy": loss, "index": index, "x": input, "y": output}
        (made,) = self._add("resample_backward", operation, inputs, ["dx"], **options)
        return made

    def reduction(
        self,
        input: GraphTensor,
        mode: str,
        *,
        dim: Sequence[int] | None = None,
        **options: Any,
    ) -> GraphTensor:
        """Return a reduction over the dimensions that are 1 in the result.

        Args:
            input: the tensor.
            mode: `add`, `mul`, `mul_no_zeros`, `min`, `max`, `amax`, `avg`, `norm1` or `norm2`.
            dim: the sizes of the result, each that of the input, or 1 where elements are reduced;
                all are 1 by default.
            **options: `compute_data_type` and `name`.
        """
        operation = {"reduction": {"mode": word(mode, "reduction(): mode")}}
        (made,) = self._add("reduction", operation, {"x": input}, ["y"], dims=dim, **options)
        return made

    def reshape(
        self, input: GraphTensor, dim: Sequence[int] | None = None, **options: Any
    ) -> GraphTensor:
        """Return the same elements, in row-major order, under other sizes."""
        (made,) = self._add("reshape", "reshape", {"x": input}, ["y"], dims=dim, **options)
        return made

    def transpose(
        self, input: GraphTensor, permutation: Sequence[int], **options: Any
    ) -> GraphTensor:
        """Return the tensor whose dimensions are the input's, in the order of the permutation."""
        axes = sizes(permutation, "transpose(): permutation")
        operation = {"transpose": {"permutation": axes}}
        (made,) = self._add("transpose", operation, {"x": input}, ["y"], **options)
        return made

    def slice(self, input: GraphTensor, slices: Sequence[slice], **options: Any) -> GraphTensor:
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
        (made,) = self._add("slice", operation, {"x": input}, ["y"], **options)
        return made

    def concatenate(
        self,
        inputs: Sequence[GraphTensor],
        axis: int,
        *,
        in_place_index: int | None = None,
        **options: Any,
    ) -> GraphTensor:
        """Return tensors one behind the other along an axis."""
        attributes = {"axis": integer(axis, "concatenate(): axis")}
        if in_place_index is not None:
            where = "concatenate(): in_place_index"
            attributes["in_place_index"] = integer(in_place_index, where)
        operation = {"concatenate": attributes}
        (made,) = self._add("concatenate", operation, {"x": list(inputs)}, ["y"], **options)
        return made

    def genstats(self, input: GraphTensor, **options: Any) -> tuple[GraphTensor, GraphTensor]:
        """Return the sum of each channel's elements, and the sum of their squares."""
        total, squares = self._add(
            "genstats", "gen_stats", {"x": input}, ["sum", "sq_sum"], **options
        )
        return total, squares
