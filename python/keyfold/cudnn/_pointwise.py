"""Pointwise operations of a graph: functions of elements, with broadcasting as NumPy's."""

from __future__ import annotations

import math
from typing import Any

from keyfold.cudnn._base import GraphBase, integer, number
from keyfold.cudnn._tensor import GraphTensor

__all__ = ["PointwiseOperations"]

_Options = Any


class PointwiseOperations(GraphBase):
    """Functions of elements.

    Each method takes tensors of the graph, broadcast to one shape as NumPy's, `compute_data_type=`
    and `name=`, and returns the result, a virtual tensor until `set_output(True)`.

    Raises:
        ShapeError: the shapes don't fit.
        BindingError: an argument isn't a tensor of this graph.
    """

    def _pointwise(
        self, mode: str, inputs: dict[str, GraphTensor], options: _Options, **attributes: Any
    ) -> GraphTensor:
        for port, given in inputs.items():
            self._uid(given, f"{mode}(): {port}")
        named = {name: number(value) for name, value in attributes.items()}
        operation = {"pointwise": {"mode": mode, **named}}
        port = "dx" if mode.endswith("_backward") else "y"
        (result,) = self._add(mode, operation, inputs, [port], **options)
        return result

    def identity(self, input: GraphTensor, **options: _Options) -> GraphTensor:
        """Return the elements, in the data type of the result."""
        return self._pointwise("identity", {"x": input}, options)

    def abs(self, input: GraphTensor, **options: _Options) -> GraphTensor:
        """Return |x| of each element."""
        return self._pointwise("abs", {"x": input}, options)

    def ceil(self, input: GraphTensor, **options: _Options) -> GraphTensor:
        """Return the least integer that isn't below each element."""
        return self._pointwise("ceil", {"x": input}, options)

    def cos(self, input: GraphTensor, **options: _Options) -> GraphTensor:
        """Return the cosine of each element."""
        return self._pointwise("cos", {"x": input}, options)

    def erf(self, input: GraphTensor, **options: _Options) -> GraphTensor:
        """Return the error function of each element."""
        return self._pointwise("erf", {"x": input}, options)

    def exp(self, input: GraphTensor, **options: _Options) -> GraphTensor:
        """Return the exponential of each element."""
        return self._pointwise("exp", {"x": input}, options)

    def floor(self, input: GraphTensor, **options: _Options) -> GraphTensor:
        """Return the greatest integer that isn't above each element."""
        return self._pointwise("floor", {"x": input}, options)

    def log(self, input: GraphTensor, **options: _Options) -> GraphTensor:
        """Return the natural logarithm of each element."""
        return self._pointwise("log", {"x": input}, options)

    def neg(self, input: GraphTensor, **options: _Options) -> GraphTensor:
        """Return -x of each element."""
        return self._pointwise("neg", {"x": input}, options)

    def reciprocal(self, input: GraphTensor, **options: _Options) -> GraphTensor:
        """Return 1 / x of each element."""
        return self._pointwise("reciprocal", {"x": input}, options)

    def rsqrt(self, input: GraphTensor, **options: _Options) -> GraphTensor:
        """Return 1 / sqrt(x) of each element."""
        return self._pointwise("rsqrt", {"x": input}, options)

    def sin(self, input: GraphTensor, **options: _Options) -> GraphTensor:
        """Return the sine of each element."""
        return self._pointwise("sin", {"x": input}, options)

    def sqrt(self, input: GraphTensor, **options: _Options) -> GraphTensor:
        """Return the square root of each element."""
        return self._pointwise("sqrt", {"x": input}, options)

    def tan(self, input: GraphTensor, **options: _Options) -> GraphTensor:
        """Return the tangent of each element."""
        return self._pointwise("tan", {"x": input}, options)

    def logical_not(self, input: GraphTensor, **options: _Options) -> GraphTensor:
        """Return whether each element is false."""
        return self._pointwise("logical_not", {"x": input}, options)

    def tanh(self, input: GraphTensor, **options: _Options) -> GraphTensor:
        """Return the hyperbolic tangent of each element."""
        return self._pointwise("tanh", {"x": input}, options)

    def sigmoid(self, input: GraphTensor, **options: _Options) -> GraphTensor:
        """Return 1 / (1 + exp(-x)) of each element."""
        return self._pointwise("sigmoid", {"x": input}, options)

    def gelu(self, input: GraphTensor, **options: _Options) -> GraphTensor:
        """Return x (1 + erf(x / sqrt(2))) / 2 of each element."""
        return self._pointwise("gelu", {"x": input}, options)

    def gelu_approx_tanh(self, input: GraphTensor, **options: _Options) -> GraphTensor:
        """Return gelu of each element, with tanh for the error function."""
        return self._pointwise("gelu_approx_tanh", {"x": input}, options)

    def add_square(self, a: GraphTensor, b: GraphTensor, **options: _Options) -> GraphTensor:
        """Return a + b^2."""
        return self._pointwise("add_square", {"x": a, "b": b}, options)

    def div(self, a: GraphTensor, b: GraphTensor, **options: _Options) -> GraphTensor:
        """Return a / b."""
        return self._pointwise("div", {"x": a, "b": b}, options)

    def max(self, a: GraphTensor, b: GraphTensor, **options: _Options) -> GraphTensor:
        """Return the greater of a and b."""
        return self._pointwise("max", {"x": a, "b": b}, options)

    def min(self, a: GraphTensor, b: GraphTensor, **options: _Options) -> GraphTensor:
        """Return the less of a and b."""
        return self._pointwise("min", {"x": a, "b": b}, options)

    def mod(self, a: GraphTensor, b: GraphTensor, **options: _Options) -> GraphTensor:
        """Return the remainder of a / b, with the sign of a."""
        return self._pointwise("mod", {"x": a, "b": b}, options)

    def floor_mod(self, a: GraphTensor, b: GraphTensor, **options: _Options) -> GraphTensor:
        """Return the remainder of a / b, with the sign of b."""
        return self._pointwise("floor_mod", {"x": a, "b": b}, options)

    def pow(self, a: GraphTensor, b: GraphTensor, **options: _Options) -> GraphTensor:
        """Return a ^ b."""
        return self._pointwise("pow", {"x": a, "b": b}, options)

    def atan2(self, a: GraphTensor, b: GraphTensor, **options: _Options) -> GraphTensor:
        """Return the angle of the point (b, a)."""
        return self._pointwise("atan2", {"x": a, "b": b}, options)

    def logical_and(self, a: GraphTensor, b: GraphTensor, **options: _Options) -> GraphTensor:
        """Return whether both are true."""
        return self._pointwise("logical_and", {"x": a, "b": b}, options)

    def logical_or(self, a: GraphTensor, b: GraphTensor, **options: _Options) -> GraphTensor:
        """Return whether one is true."""
        return self._pointwise("logical_or", {"x": a, "b": b}, options)

    def cmp_eq(
        self, input: GraphTensor, comparison: GraphTensor, **options: _Options
    ) -> GraphTensor:
        """Return whether input == comparison, element by element."""
        return self._pointwise("cmp_eq", {"x": input, "b": comparison}, options)

    def cmp_neq(
        self, input: GraphTensor, comparison: GraphTensor, **options: _Options
    ) -> GraphTensor:
        """Return whether input != comparison, element by element."""
        return self._pointwise("cmp_neq", {"x": input, "b": comparison}, options)

    def cmp_gt(
        self, input: GraphTensor, comparison: GraphTensor, **options: _Options
    ) -> GraphTensor:
        """Return whether input > comparison, element by element."""
        return self._pointwise("cmp_gt", {"x": input, "b": comparison}, options)

    def cmp_ge(
        self, input: GraphTensor, comparison: GraphTensor, **options: _Options
    ) -> GraphTensor:
        """Return whether input >= comparison, element by element."""
        return self._pointwise("cmp_ge", {"x": input, "b": comparison}, options)

    def cmp_lt(
        self, input: GraphTensor, comparison: GraphTensor, **options: _Options
    ) -> GraphTensor:
        """Return whether input < comparison, element by element."""
        return self._pointwise("cmp_lt", {"x": input, "b": comparison}, options)

    def cmp_le(
        self, input: GraphTensor, comparison: GraphTensor, **options: _Options
    ) -> GraphTensor:
        """Return whether input <= comparison, element by element."""
        return self._pointwise("cmp_le", {"x": input, "b": comparison}, options)

    def tanh_backward(
        self, loss: GraphTensor, input: GraphTensor, **options: _Options
    ) -> GraphTensor:
        """Return the gradient of tanh's input, of that of its result."""
        return self._pointwise("tanh_backward", {"dy": loss, "x": input}, options)

    def sigmoid_backward(
        self, loss: GraphTensor, input: GraphTensor, **options: _Options
    ) -> GraphTensor:
        """Return the gradient of sigmoid's input, of that of its result."""
        return self._pointwise("sigmoid_backward", {"dy": loss, "x": input}, options)

    def gelu_backward(
        self, loss: GraphTensor, input: GraphTensor, **options: _Options
    ) -> GraphTensor:
        """Return the gradient of gelu's input, of that of its result."""
        return self._pointwise("gelu_backward", {"dy": loss, "x": input}, options)

    def gelu_approx_tanh_backward(
        self, loss: GraphTensor, input: GraphTensor, **options: _Options
    ) -> GraphTensor:
        """Return the gradient of gelu_approx_tanh's input, of that of its result."""
        return self._pointwise("gelu_approx_tanh_backward", {"dy": loss, "x": input}, options)

    def add(
        self,
        a: GraphTensor,
        b: GraphTensor,
        *,
        alpha1: float = 1.0,
        alpha2: float = 1.0,
        **options: _Options,
    ) -> GraphTensor:
        """Return alpha1 a + alpha2 b."""
        factors = {"alpha1": alpha1, "alpha2": alpha2}
        return self._pointwise("add", {"x": a, "b": b}, options, **factors)

    def sub(
        self,
        a: GraphTensor,
        b: GraphTensor,
        *,
        alpha1: float = 1.0,
        alpha2: float = 1.0,
        **options: _Options,
    ) -> GraphTensor:
        """Return alpha1 a - alpha2 b."""
        factors = {"alpha1": alpha1, "alpha2": alpha2}
        return self._pointwise("sub", {"x": a, "b": b}, options, **factors)

    def mul(
        self,
        a: GraphTensor,
        b: GraphTensor,
        *,
        alpha1: float = 1.0,
        alpha2: float = 1.0,
        **options: _Options,
    ) -> GraphTensor:
        """Return alpha1 a alpha2 b."""
        factors = {"alpha1": alpha1, "alpha2": alpha2}
        return self._pointwise("mul", {"x": a, "b": b}, options, **factors)

    def bias(self, input: GraphTensor, bias: GraphTensor, **options: _Options) -> GraphTensor:
        """Return input + bias, as `add`."""
        return self._pointwise("add", {"x": input, "b": bias}, options)

    def scale(self, input: GraphTensor, scale: GraphTensor, **options: _Options) -> GraphTensor:
        """Return input scale, as `mul`."""
        return self._pointwise("mul", {"x": input, "b": scale}, options)

    def binary_select(
        self, input0: GraphTensor, input1: GraphTensor, mask: GraphTensor, **options: _Options
    ) -> GraphTensor:
        """Return input0 where the mask is true, and input1 elsewhere."""
        inputs = {"x": input0, "b": input1, "t": mask}
        return self._pointwise("binary_select", inputs, options)

    def gen_index(self, input: GraphTensor, axis: int, **options: _Options) -> GraphTensor:
        """Return each element's index along an axis."""
        axis = integer(axis, "gen_index(): axis")
        return self._pointwise("gen_index", {"x": input}, options, axis=axis)

    def relu(
        self,
        input: GraphTensor,
        *,
        negative_slope: float = 0.0,
        lower_clip: float = 0.0,
        upper_clip: float = math.inf,
        **options: _Options,
    ) -> GraphTensor:
        """Return min(x, upper_clip) above lower_clip, else lower_clip + slope (x - lower_clip)."""
        relu = _relu(negative_slope, lower_clip, upper_clip)
        return self._pointwise("relu", {"x": input}, options, **relu)

    def leaky_relu(
        self, input: GraphTensor, negative_slope: float, **options: _Options
    ) -> GraphTensor:
        """Return x above 0, else negative_slope x: `relu` with a slope."""
        relu = _relu(negative_slope, 0.0, math.inf)
        return self._pointwise("relu", {"x": input}, options, **relu)

    def leaky_relu_backward(
        self,
        loss: GraphTensor,
        input: GraphTensor,
        negative_slope: float,
        **options: _Options,
    ) -> GraphTensor:
        """Return the gradient of leaky_relu's input, of that of its result."""
        relu = _relu(negative_slope, 0.0, math.inf)
        return self._pointwise("relu_backward", {"dy": loss, "x": input}, options, **relu)

    def relu_backward(
        self,
        loss: GraphTensor,
        input: GraphTensor,
        *,
        negative_slope: float = 0.0,
        lower_clip: float = 0.0,
        upper_clip: float = math.inf,
        **options: _Options,
    ) -> GraphTensor:
        """Return the gradient of relu's input, of that of its result."""
        relu = _relu(negative_slope, lower_clip, upper_clip)
        return self._pointwise("relu_backward", {"dy": loss, "x": input}, options, **relu)

    def elu(
        self, input: GraphTensor, *, elu_alpha: float = 1.0, **options: _Options
    ) -> GraphTensor:
        """Return x above 0, else elu_alpha (exp(x) - 1), of each element."""
        return self._pointwise("elu", {"x": input}, options, elu_alpha=elu_alpha)

    def elu_backward(
        self,
        loss: GraphTensor,
        input: GraphTensor,
        *,
        elu_alpha: float = 1.0,
        **options: _Options,
    ) -> GraphTensor:
        """Return the gradient of elu's input, of that of its result."""
        inputs = {"dy": loss, "x": input}
        return self._pointwise("elu_backward", inputs, options, elu_alpha=elu_alpha)

    def softplus(
        self, input: GraphTensor, *, softplus_beta: float = 1.0, **options: _Options
    ) -> GraphTensor:
        """Return log(1 + exp(softplus_beta x)) / softplus_beta of each element."""
        return self._pointwise("softplus", {"x": input}, options, softplus_beta=softplus_beta)

    def softplus_backward(
        self,
        loss: GraphTensor,
        input: GraphTensor,
        *,
        softplus_beta: float = 1.0,
        **options: _Options,
    ) -> GraphTensor:
        """Return the gradient of softplus's input, of that of its result."""
        inputs = {"dy": loss, "x": input}
        return self._pointwise("softplus_backward", inputs, options, softplus_beta=softplus_beta)

    def swish(
        self, input: GraphTensor, *, swish_beta: float = 1.0, **options: _Options
    ) -> GraphTensor:
        """Return x / (1 + exp(-swish_beta x)) of each element."""
        return self._pointwise("swish", {"x": input}, options, swish_beta=swish_beta)

    def swish_backward(
        self,
        loss: GraphTensor,
        input: GraphTensor,
        *,
        swish_beta: float = 1.0,
        **options: _Options,
    ) -> GraphTensor:
        """Return the gradient of swish's input, of that of its result."""
        inputs = {"dy": loss, "x": input}
        return self._pointwise("swish_backward", inputs, options, swish_beta=swish_beta)


def _relu(slope: float, lower: float, upper: float) -> dict[str, float]:
    names = ("relu_lower_clip_slope", "relu_lower_clip", "relu_upper_clip")
    return dict(zip(names, (slope, lower, upper), strict=True))
