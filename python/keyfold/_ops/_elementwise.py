"""Operators made of one expression."""

from __future__ import annotations

import sys
from typing import Any

from keyfold import _core
from keyfold._default import dispatcher as _default
from keyfold._show import _html
from keyfold._show._objects import of_operator

__all__ = ["ElementwiseOperator", "elementwise"]


class ElementwiseOperator:
    """An operator that is an expression, as `elementwise` returns it.

    Calling it calls the operator. `remove()` takes back what `elementwise` registered.
    """

    __slots__ = ("_handles", "_operator", "_packet", "expression")

    expression: _core.Expression
    """The expression."""

    def __init__(
        self,
        operator: _core.Operator,
        packet: Any,
        expression: _core.Expression,
        handles: list[_core.Handle],
    ) -> None:
        self._operator = operator
        self._packet = packet
        self.expression = expression
        self._handles = handles

    @property
    def operator(self) -> _core.Operator:
        """The operator itself: with keys, tables and explanations."""
        return self._operator

    @property
    def handles(self) -> tuple[_core.Handle, ...]:
        """The registrations, in the order in which they were made."""
        return tuple(self._handles)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the operator; with `out=`, its overload that writes there."""
        return self._packet(*args, **kwargs)

    def remove(self) -> None:
        """Take back what `elementwise` registered, and the operators if it defined them."""
        for handle in reversed(self._handles):
            handle.remove()

    def __repr__(self) -> str:
        return f"<keyfold.ElementwiseOperator {self._operator.name}: {self.expression}>"

    def _repr_html_(self) -> str:
        return of_operator(self._operator, _html.block(str(self.expression)))


def elementwise(op: Any, text: str, *, override: str = "error") -> ElementwiseOperator:
    """Make an operator of one scalar expression: kernels, Meta, derivative and batching rule.

    The kernels take every dtype that the expression makes sense for, every layout and rank, and
    broadcast; the derivative is symbolic, of any order.

    Args:
        op: a schema, such as `"my::leaky(Tensor x, float slope=0.01) -> Tensor"`, which is defined
            together with an overload `out` that writes into a tensor; or an operator that is
            defined, or its name. `Tensor` arguments are the expression's inputs, numbers its
            parameters.
        text: the expression, such as `"where(x > 0, x, slope * x)"`: see docs/expressions.md.
        override: what to do where a kernel is registered already, as for `impl`. The same text
            again is no conflict.

    Returns:
        The operator, callable, with its expression.

    Raises:
        SchemaError: the schema doesn't parse.
        ValueError: the expression doesn't parse; a caret shows where.
        RegistrationError: an argument that no expression can have, or the place is taken.

    Example:
        >>> import keyfold as kf, numpy as np
        >>> leaky = kf.elementwise(
        ...     "doc::leaky(Tensor x, float slope=0.1) -> Tensor", "where(x > 0, x, slope * x)"
        ... )
        >>> leaky(np.array([-1.0, 2.0]))
        array([-0.1,  2. ])
        >>> leaky.remove()
    """
    caller = sys._getframe(1)
    return _elementwise(_default, op, text, override, caller.f_code.co_filename, caller.f_lineno)


def _elementwise(
    dispatcher: _core.Dispatcher, op: Any, text: str, override: str, file: str, line: int
) -> ElementwiseOperator:
    handles: list[_core.Handle] = []
    names: list[str] = []
    try:
        if isinstance(op, str) and "(" in op:
            out = _core._out_schema(op)
            for schema in (op, out) if out else (op,):
                handle = dispatcher.define(schema)
                handles.append(handle)
                names.append(handle.name)
        else:
            names.append(op if isinstance(op, str) else dispatcher.get_op(op).name)
        expression = None
        for name in names:
            made, registered = _core._elementwise(dispatcher, name, text, override, file, line)
            expression = expression or made
            handles.extend(registered)
    except BaseException:
        for handle in reversed(handles):
            handle.remove()
        raise
    assert expression is not None
    operator = dispatcher.get_op(names[0])
    return ElementwiseOperator(operator, _packet(dispatcher, names[0]), expression, handles)


def _packet(dispatcher: _core.Dispatcher, name: str) -> Any:
    """The operator with all its overloads, so that `out=` finds its own."""
    qualified = name.split(".")[0]
    if "." in name or "::" not in qualified:
        return dispatcher.get_op(name)
    found: Any = dispatcher.ops
    for part in qualified.split("::"):
        found = getattr(found, part)
    return found
