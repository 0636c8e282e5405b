"""Activation functions of a graph, with their gradients."""

from __future__ import annotations

import math
from typing import Any

from keyfold.cudnn._pointwise import PointwiseOperations
from keyfold.cudnn._tensor import GraphTensor

__all__ = ["Activations"]


class Activations(PointwiseOperations):
    """Activation functions, and the gradients of their inputs, of those of their results."""

    def tanh(
        self, input: GraphTensor, *, compute_data_type: Any = None, name: str = ""
    ) -> GraphTensor:
        """Return the hyperbolic tangent of each element."""
        return self._pointwise("tanh", {"x": input}, (compute_data_type, name))

    def sigmoid(
        self, input: GraphTensor, *, compute_data_type: Any = None, name: str = ""
    ) -> GraphTensor:
        """Return 1 / (1 + exp(-x)) of each element."""
        return self._pointwise("sigmoid", {"x": input}, (compute_data_type, name))

    def gelu(
        self, input: GraphTensor, *, compute_data_type: Any = None, name: str = ""
    ) -> GraphTensor:
        """Return x (1 + erf(x / sqrt(2))) / 2 of each element."""
        return self._pointwise("gelu", {"x": input}, (compute_data_type, name))

    def gelu_approx_tanh(
        self, input: GraphTensor, *, compute_data_type: Any = None, name: str = ""
    ) -> GraphTensor:
        """Return gelu of each element, with tanh for the error function."""
        return self._pointwise("gelu_approx_tanh", {"x": input}, (compute_data_type, name))

    def tanh_backward(
        self,
        loss: GraphTensor,
        input: GraphTensor,
        *,
        compute_data_type: Any = None,
        name: str = "",
    ) -> GraphTensor:
        """Return the gradient of tanh's input, of that of its result."""
        return self._pointwise("tanh_backward", {"dy": loss, "x": input}, (compute_data_type, name))

    def sigmoid_backward(
        self,
        loss: GraphTensor,
        input: GraphTensor,
        *,
        compute_data_type: Any = None,
        name: str = "",
    ) -> GraphTensor:
        """Return the gradient of sigmoid's input, of that of its result."""
        return self._pointwise(
            "sigmoid_backward", {"dy": loss, "x": input}, (compute_data_type, name)
        )

    def gelu_backward(
        self,
        loss: GraphTensor,
        input: GraphTensor,
        *,
        compute_data_type: Any = None,
        name: str = "",
    ) -> GraphTensor:
        """Return the gradient of gelu's input, of that of its result."""
        return self._pointwise("gelu_backward", {"dy": loss, "x": input}, (compute_data_type, name))

    def gelu_approx_tanh_backward(
        self,
        loss: GraphTensor,
        input: GraphTensor,
        *,
        compute_data_type: Any = None,
        name: str = "",
    ) -> GraphTensor:
        """Return the gradient of gelu_approx_tanh's input, of that of its result."""
        return self._pointwise(
            "gelu_approx_tanh_backward", {"dy": loss, "x": input}, (compute_data_type, name)
        )

    def relu(
        self,
        input: GraphTensor,
        *,
        negative_slope: float = 0.0,
        lower_clip: float = 0.0,
        upper_clip: float = math.inf,
        compute_data_type: Any = None,
        name: str = "",
    ) -> GraphTensor:
        """Return min(x, upper_clip) above lower_clip, else lower_clip + slope (x - lower_clip)."""
        relu = _relu(negative_slope, lower_clip, upper_clip)
        return self._pointwise("relu", {"x": input}, (compute_data_type, name), **relu)

    def leaky_relu(
        self,
        input: GraphTensor,
        negative_slope: float,
        *,
        compute_data_type: Any = None,
        name: str = "",
    ) -> GraphTensor:
        """Return x above 0, else negative_slope x: `relu` with a slope."""
        relu = _relu(negative_slope, 0.0, math.inf)
        return self._pointwise("relu", {"x": input}, (compute_data_type, name), **relu)

    def leaky_relu_backward(
        self,
        loss: GraphTensor,
        input: GraphTensor,
        negative_slope: float,
        *,
        compute_data_type: Any = None,
        name: str = "",
    ) -> GraphTensor:
        """Return the gradient of leaky_relu's input, of that of its result."""
        relu = _relu(negative_slope, 0.0, math.inf)
        return self._pointwise(
            "relu_backward", {"dy": loss, "x": input}, (compute_data_type, name), **relu
        )

    def relu_backward(
        self,
        loss: GraphTensor,
        input: GraphTensor,
        *,
        negative_slope: float = 0.0,
        lower_clip: float = 0.0,
        upper_clip: float = math.inf,
        compute_data_type: Any = None,
        name: str = "",
    ) -> GraphTensor:
        """Return the gradient of relu's input, of that of its result."""
        relu = _relu(negative_slope, lower_clip, upper_clip)
        return self._pointwise(
            "relu_backward", {"dy": loss, "x": input}, (compute_data_type, name), **relu
        )

    def elu(
        self,
        input: GraphTensor,
        *,
        elu_alpha: float = 1.0,
        compute_data_type: Any = None,
        name: str = "",
    ) -> GraphTensor:
        """Return x above 0, else elu_alpha (exp(x) - 1), of each element."""
        return self._pointwise("elu", {"x": input}, (compute_data_type, name), elu_alpha=elu_alpha)

    def elu_backward(
        self,
        loss: GraphTensor,
        input: GraphTensor,
        *,
        elu_alpha: float = 1.0,
        compute_data_type: Any = None,
        name: str = "",
    ) -> GraphTensor:
        """Return the gradient of elu's input, of that of its result."""
        inputs = {"dy": loss, "x": input}
        return self._pointwise(
            "elu_backward", inputs, (compute_data_type, name), elu_alpha=elu_alpha
        )

    def softplus(
        self,
        input: GraphTensor,
        *,
        softplus_beta: float = 1.0,
        compute_data_type: Any = None,
        name: str = "",
    ) -> GraphTensor:
        """Return log(1 + exp(softplus_beta x)) / softplus_beta of each element."""
        return self._pointwise(
            "softplus", {"x": input}, (compute_data_type, name), softplus_beta=softplus_beta
        )

    def softplus_backward(
        self,
        loss: GraphTensor,
        input: GraphTensor,
        *,
        softplus_beta: float = 1.0,
        compute_data_type: Any = None,
        name: str = "",
    ) -> GraphTensor:
        """Return the gradient of softplus's input, of that of its result."""
        inputs = {"dy": loss, "x": input}
        return self._pointwise(
            "softplus_backward", inputs, (compute_data_type, name), softplus_beta=softplus_beta
        )

    def swish(
        self,
        input: GraphTensor,
        *,
        swish_beta: float = 1.0,
        compute_data_type: Any = None,
        name: str = "",
    ) -> GraphTensor:
        """Return x / (1 + exp(-swish_beta x)) of each element."""
        return self._pointwise(
            "swish", {"x": input}, (compute_data_type, name), swish_beta=swish_beta
        )

    def swish_backward(
        self,
        loss: GraphTensor,
        input: GraphTensor,
        *,
        swish_beta: float = 1.0,
        compute_data_type: Any = None,
        name: str = "",
    ) -> GraphTensor:
        """Return the gradient of swish's input, of that of its result."""
        inputs = {"dy": loss, "x": input}
        return self._pointwise(
            "swish_backward", inputs, (compute_data_type, name), swish_beta=swish_beta
        )


def _relu(slope: float, lower: float, upper: float) -> dict[str, float]:
    names = ("relu_lower_clip_slope", "relu_lower_clip", "relu_upper_clip")
    return dict(zip(names, (slope, lower, upper), strict=True))
