"""Convolution and pooling."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Rational
from typing import Any

from keyfold._errors import BindingError
from keyfold.cudnn._base import GraphBase, Options, fractions, integers, number, word
from keyfold.cudnn._tensor import GraphTensor

__all__ = ["Convolutions"]

_Integers = int | Iterable[int]
_Fractions = int | Rational | Iterable[int | Rational]


def _factor(given: Any, where: str) -> Any:
    """A factor that is an attribute, as JSON has it."""
    value = number(given)
    if not isinstance(value, int | float | str) or isinstance(given, str):
        raise BindingError(f"{where} takes a number, not {given!r}")
    return value


class Convolutions(GraphBase):
    """Convolution and pooling.

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
        options: Options,
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
        (made,) = self._add(method, {method: attributes}, inputs, [result], options)
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
        compute_data_type: Any = None,
        name: str = "",
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
            compute_data_type: what it computes in; the graph's by default.
            name: its name in errors and drawings.
        """
        return self._convolution(
            "conv_fprop", {"x": image, "w": weight}, "y", padding, pre_padding, post_padding,
            stride, dilation, convolution_mode, alpha, beta, (compute_data_type, name),
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
        compute_data_type: Any = None,
        name: str = "",
    ) -> GraphTensor:
        """Return the gradient of a convolution's image, of that of its result.

        With a stride, images of several sizes have one result: `set_dim` says a greater size.
        """
        return self._convolution(
            "conv_dgrad", {"dy": loss, "w": filter}, "dx", padding, pre_padding, post_padding,
            stride, dilation, convolution_mode, alpha, beta, (compute_data_type, name),
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
        compute_data_type: Any = None,
        name: str = "",
    ) -> GraphTensor:
        """Return the gradient of a convolution's filter; `set_dim` says which size of several."""
        return self._convolution(
            "conv_wgrad", {"x": image, "dy": loss}, "dw", padding, pre_padding, post_padding,
            stride, dilation, convolution_mode, alpha, beta, (compute_data_type, name),
        )  # fmt: skip

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
        compute_data_type: Any = None,
        name: str = "",
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
            compute_data_type: what it computes in; the graph's by default.
            name: its name in errors and drawings.
        """
        self._uid(input, "resample(): input")
        operation = self._resampling(
            "resample", input, window, stride, padding, pre_padding, post_padding,
            resampling_mode, padding_mode,
        )  # fmt: skip
        ports = ["y", "index"] if generate_index else ["y"]
        made = self._add("resample", operation, {"x": input}, ports, (compute_data_type, name))
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
        compute_data_type: Any = None,
        name: str = "",
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
        (made,) = self._add(
            "resample_backward", operation, inputs, ["dx"], (compute_data_type, name)
        )
        return made
