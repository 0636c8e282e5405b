"""Pointwise operations of a graph: functions of elements, with broadcasting as NumPy's."""

from __future__ import annotations

from typing import Any

from keyfold.cudnn._base import GraphBase, Options, integer, number
from keyfold.cudnn._tensor import GraphTensor

__all__ = ["PointwiseOperations"]


class PointwiseOperations(GraphBase):
    """Functions of elements.

    Each method takes tensors of the graph, broadcast to one shape as NumPy's, `compute_data_type=`
    and `name=`, and returns the result, a virtual tensor until `set_output(True)`.

    Raises:
        ShapeError: the shapes don't fit.
        BindingError: an argument isn't a tensor of this graph.
    """

    def _pointwise(
        self, mode: str, inputs: dict[str, GraphTensor], options: Options, **attributes: Any
    ) -> GraphTensor:
        for port, given in inputs.items():
            self._uid(given, f"{mode}(): {port}")
        named = {name: number(value) for name, value in attributes.items()}
        operation = {"pointwise": {"mode": mode, **named}}
        port = "dx" if mode.endswith("_backward") else "y"
        (result,) = self._add(mode, operation, inputs, [port], options)
        return result

    def identity(
        self, input: GraphTensor, *, compute_data_type: Any = None, name: str = ""
    ) -> GraphTensor:
        """Return the elements, in the data type of the result."""
        return self._pointwise("identity", {"x": input}, (compute_data_type, name))

    def abs(
        self, input: GraphTensor, *, compute_data_type: Any = None, name: str = ""
    ) -> GraphTensor:
        """Return |x| of each element."""
        return self._pointwise("abs", {"x": input}, (compute_data_type, name))

    def ceil(
        self, input: GraphTensor, *, compute_data_type: Any = None, name: str = ""
    ) -> GraphTensor:
        """Return the least integer that isn't below each element."""
        return self._pointwise("ceil", {"x": input}, (compute_data_type, name))

    def cos(
        self, input: GraphTensor, *, compute_data_type: Any = None, name: str = ""
    ) -> GraphTensor:
        """Return the cosine of each element."""
        return self._pointwise("cos", {"x": input}, (compute_data_type, name))

    def erf(
        self, input: GraphTensor, *, compute_data_type: Any = None, name: str = ""
    ) -> GraphTensor:
        """Return the error function of each element."""
        return self._pointwise("erf", {"x": input}, (compute_data_type, name))

    def exp(
        self, input: GraphTensor, *, compute_data_type: Any = None, name: str = ""
    ) -> GraphTensor:
        """Return the exponential of each element."""
        return self._pointwise("exp", {"x": input}, (compute_data_type, name))

    def floor(
        self, input: GraphTensor, *, compute_data_type: Any = None, name: str = ""
    ) -> GraphTensor:
        """Return the greatest integer that isn't above each element."""
        return self._pointwise("floor", {"x": input}, (compute_data_type, name))

    def log(
        self, input: GraphTensor, *, compute_data_type: Any = None, name: str = ""
    ) -> GraphTensor:
        """Return the natural logarithm of each element."""
        return self._pointwise("log", {"x": input}, (compute_data_type, name))

    def neg(
        self, input: GraphTensor, *, compute_data_type: Any = None, name: str = ""
    ) -> GraphTensor:
        """Return -x of each element."""
        return self._pointwise("neg", {"x": input}, (compute_data_type, name))

    def reciprocal(
        self, input: GraphTensor, *, compute_data_type: Any = None, name: str = ""
    ) -> GraphTensor:
        """Return 1 / x of each element."""
        return self._pointwise("reciprocal", {"x": input}, (compute_data_type, name))

    def rsqrt(
        self, input: GraphTensor, *, compute_data_type: Any = None, name: str = ""
    ) -> GraphTensor:
        """Return 1 / sqrt(x) of each element."""
        return self._pointwise("rsqrt", {"x": input}, (compute_data_type, name))

    def sin(
        self, input: GraphTensor, *, compute_data_type: Any = None, name: str = ""
    ) -> GraphTensor:
        """Return the sine of each element."""
        return self._pointwise("sin", {"x": input}, (compute_data_type, name))

    def sqrt(
        self, input: GraphTensor, *, compute_data_type: Any = None, name: str = ""
    ) -> GraphTensor:
        """Return the square root of each element."""
        return self._pointwise("sqrt", {"x": input}, (compute_data_type, name))

    def tan(
        self, input: GraphTensor, *, compute_data_type: Any = None, name: str = ""
    ) -> GraphTensor:
        """Return the tangent of each element."""
        return self._pointwise("tan", {"x": input}, (compute_data_type, name))

    def logical_not(
        self, input: GraphTensor, *, compute_data_type: Any = None, name: str = ""
    ) -> GraphTensor:
        """Return whether each element is false."""
        return self._pointwise("logical_not", {"x": input}, (compute_data_type, name))

    def add_square(
        self, a: GraphTensor, b: GraphTensor, *, compute_data_type: Any = None, name: str = ""
    ) -> GraphTensor:
        """Return a + b^2."""
        return self._pointwise("add_square", {"x": a, "b": b}, (compute_data_type, name))

    def div(
        self, a: GraphTensor, b: GraphTensor, *, compute_data_type: Any = None, name: str = ""
    ) -> GraphTensor:
        """Return a / b."""
        return self._pointwise("div", {"x": a, "b": b}, (compute_data_type, name))

    def max(
        self,
        input0: GraphTensor,
        input1: GraphTensor,
        *,
        compute_data_type: Any = None,
        name: str = "",
    ) -> GraphTensor:
        """Return the greater of both."""
        return self._pointwise("max", {"x": input0, "b": input1}, (compute_data_type, name))

    def min(
        self,
        input0: GraphTensor,
        input1: GraphTensor,
        *,
        compute_data_type: Any = None,
        name: str = "",
    ) -> GraphTensor:
        """Return the less of both."""
        return self._pointwise("min", {"x": input0, "b": input1}, (compute_data_type, name))

    def mod(
        self,
        input0: GraphTensor,
        input1: GraphTensor,
        *,
        compute_data_type: Any = None,
        name: str = "",
    ) -> GraphTensor:
        """Return the remainder of input0 / input1, with the sign of input0."""
        return self._pointwise("mod", {"x": input0, "b": input1}, (compute_data_type, name))

    def floor_mod(
        self, a: GraphTensor, b: GraphTensor, *, compute_data_type: Any = None, name: str = ""
    ) -> GraphTensor:
        """Return the remainder of a / b, with the sign of b."""
        return self._pointwise("floor_mod", {"x": a, "b": b}, (compute_data_type, name))

    def pow(
        self,
        input0: GraphTensor,
        input1: GraphTensor,
        *,
        compute_data_type: Any = None,
        name: str = "",
    ) -> GraphTensor:
        """Return input0 ^ input1."""
        return self._pointwise("pow", {"x": input0, "b": input1}, (compute_data_type, name))

    def atan2(
        self, a: GraphTensor, b: GraphTensor, *, compute_data_type: Any = None, name: str = ""
    ) -> GraphTensor:
        """Return the angle of the point (b, a)."""
        return self._pointwise("atan2", {"x": a, "b": b}, (compute_data_type, name))

    def logical_and(
        self, a: GraphTensor, b: GraphTensor, *, compute_data_type: Any = None, name: str = ""
    ) -> GraphTensor:
        """Return whether both are true."""
        return self._pointwise("logical_and", {"x": a, "b": b}, (compute_data_type, name))

    def logical_or(
        self, a: GraphTensor, b: GraphTensor, *, compute_data_type: Any = None, name: str = ""
    ) -> GraphTensor:
        """Return whether one is true."""
        return self._pointwise("logical_or", {"x": a, "b": b}, (compute_data_type, name))

    def cmp_eq(
        self,
        input: GraphTensor,
        comparison: GraphTensor,
        *,
        compute_data_type: Any = None,
        name: str = "",
    ) -> GraphTensor:
        """Return whether input == comparison, element by element."""
        return self._pointwise("cmp_eq", {"x": input, "b": comparison}, (compute_data_type, name))

    def cmp_neq(
        self,
        input: GraphTensor,
        comparison: GraphTensor,
        *,
        compute_data_type: Any = None,
        name: str = "",
    ) -> GraphTensor:
        """Return whether input != comparison, element by element."""
        return self._pointwise("cmp_neq", {"x": input, "b": comparison}, (compute_data_type, name))

    def cmp_gt(
        self,
        input: GraphTensor,
        comparison: GraphTensor,
        *,
        compute_data_type: Any = None,
        name: str = "",
    ) -> GraphTensor:
        """Return whether input > comparison, element by element."""
        return self._pointwise("cmp_gt", {"x": input, "b": comparison}, (compute_data_type, name))

    def cmp_ge(
        self,
        input: GraphTensor,
        comparison: GraphTensor,
        *,
        compute_data_type: Any = None,
        name: str = "",
    ) -> GraphTensor:
        """Return whether input >= comparison, element by element."""
        return self._pointwise("cmp_ge", {"x": input, "b": comparison}, (compute_data_type, name))

    def cmp_lt(
        self,
        input: GraphTensor,
        comparison: GraphTensor,
        *,
        compute_data_type: Any = None,
        name: str = "",
    ) -> GraphTensor:
        """Return whether input < comparison, element by element."""
        return self._pointwise("cmp_lt", {"x": input, "b": comparison}, (compute_data_type, name))

    def cmp_le(
        self,
        input: GraphTensor,
        comparison: GraphTensor,
        *,
        compute_data_type: Any = None,
        name: str = "",
    ) -> GraphTensor:
        """Return whether input <= comparison, element by element."""
        return self._pointwise("cmp_le", {"x": input, "b": comparison}, (compute_data_type, name))

    def add(
        self,
        a: GraphTensor,
        b: GraphTensor,
        *,
        alpha1: float = 1.0,
        alpha2: float = 1.0,
        compute_data_type: Any = None,
        name: str = "",
    ) -> GraphTensor:
        """Return alpha1 a + alpha2 b."""
        factors = {"alpha1": alpha1, "alpha2": alpha2}
        return self._pointwise("add", {"x": a, "b": b}, (compute_data_type, name), **factors)

    def sub(
        self,
        a: GraphTensor,
        b: GraphTensor,
        *,
        alpha1: float = 1.0,
        alpha2: float = 1.0,
        compute_data_type: Any = None,
        name: str = "",
    ) -> GraphTensor:
        """Return alpha1 a - alpha2 b."""
        factors = {"alpha1": alpha1, "alpha2": alpha2}
        return self._pointwise("sub", {"x": a, "b": b}, (compute_data_type, name), **factors)

    def mul(
        self,
        a: GraphTensor,
        b: GraphTensor,
        *,
        alpha1: float = 1.0,
        alpha2: float = 1.0,
        compute_data_type: Any = None,
        name: str = "",
    ) -> GraphTensor:
        """Return alpha1 a alpha2 b."""
        factors = {"alpha1": alpha1, "alpha2": alpha2}
        return self._pointwise("mul", {"x": a, "b": b}, (compute_data_type, name), **factors)

    def bias(
        self,
        input: GraphTensor,
        bias: GraphTensor,
        *,
        compute_data_type: Any = None,
        name: str = "",
    ) -> GraphTensor:
        """Return input + bias, as `add`."""
        return self._pointwise("add", {"x": input, "b": bias}, (compute_data_type, name))

    def scale(
        self,
        input: GraphTensor,
        scale: GraphTensor,
        *,
        compute_data_type: Any = None,
        name: str = "",
    ) -> GraphTensor:
        """Return input scale, as `mul`."""
        return self._pointwise("mul", {"x": input, "b": scale}, (compute_data_type, name))

    def binary_select(
        self,
        input0: GraphTensor,
        input1: GraphTensor,
        mask: GraphTensor,
        *,
        compute_data_type: Any = None,
        name: str = "",
    ) -> GraphTensor:
        """Return input0 where the mask is true, and input1 elsewhere."""
        inputs = {"x": input0, "b": input1, "t": mask}
        return self._pointwise("binary_select", inputs, (compute_data_type, name))

    def gen_index(
        self, input: GraphTensor, axis: int, *, compute_data_type: Any = None, name: str = ""
    ) -> GraphTensor:
        """Return each element's index along an axis."""
        axis = integer(axis, "gen_index(): axis")
        return self._pointwise("gen_index", {"x": input}, (compute_data_type, name), axis=axis)
