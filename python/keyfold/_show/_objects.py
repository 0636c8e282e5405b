"""HTML of what is written in Rust: tensors, expressions, operators."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from keyfold import _core
from keyfold._show import _html
from keyfold._show._text import counted

__all__ = ["of_expression", "of_operator", "of_packet", "of_tensor"]

# A tensor's text: values, then what a reader has to know beside them.
_TENSOR = re.compile(
    r"Tensor\((?P<values>.*?)(?:, shape=\([\d, ]*\))?(?:, dtype=\w+)?(?:, device='[^']*')?"
    r"(?:, requires_grad=True)?\)",
    re.DOTALL,
)
# The most operators that a listing shows.
_MOST = 50


def _read(read: Callable[[], object]) -> str:
    """A property as text; empty where it can't be read, since showing an object never fails."""
    try:
        return str(read())
    except Exception:
        return ""


def _cut(text: str, most: int = 400) -> str:
    """A text, the end of a very long one left out."""
    return text if len(text) <= most else f"{text[:most]} ... ({len(text):,} characters)"


def of_tensor(tensor: _core.Tensor) -> str:
    """Return a tensor's HTML: its values, as its text has them, below what it is."""
    known = [
        _read(lambda: tensor.dtype),
        _read(lambda: f"shape {tuple(tensor.shape)}"),
        _read(lambda: f"on {tensor.device}"),
        _read(lambda: f"{tensor.nbytes:,} bytes"),
        _read(lambda: "requires grad" if tensor.requires_grad else ""),
        _read(lambda: f"from {tensor.grad_fn}" if tensor.grad_fn is not None else ""),
    ]
    title = f"Tensor {_html.code(', '.join(part for part in known if part))}"
    try:
        text = repr(tensor)
    except Exception as error:
        return _html.page(title, _html.notes([f"the values can't be read: {error}"]))
    found = _TENSOR.fullmatch(text)
    values = found["values"] if found else text
    if values == "...":
        return _html.page(title, _html.notes(["no values: there are none on this device"]))
    if values.startswith("example of "):
        return _html.page(title, _html.notes([f"no values: it is an {values}"]))
    # The text's lines are indented by what stands before the values in the first one.
    return _html.page(title, _html.block(values.replace("\n" + " " * len("Tensor("), "\n")))


def of_expression(expression: _core.Expression) -> str:
    """Return an expression's HTML: its text, what it takes, its derivatives."""
    rows = [("inputs", ", ".join(expression.inputs))]
    rows += [("parameters", ", ".join(expression.params))] if expression.params else []
    for name in expression.inputs:
        try:
            rows.append((f"derivative by {name}", _cut(str(expression.derivative(name)))))
        except Exception as error:  # One that has none is shown without it.
            rows.append((f"derivative by {name}", f"none: {error}"))
    return _html.page("Expression", _html.block(str(expression)), _html.pairs(rows))


def of_operator(operator: _core.Operator, *more: str) -> str:
    """Return an operator's HTML: its schema, tags and table."""
    if operator.removed:
        return _html.page(_html.code(operator.schema), _html.notes(["it was removed"]))
    tags = [f"tags: {', '.join(operator.tags)}"] if operator.tags else []
    table = operator.table()._html()
    return _html.page(_html.code(operator.schema), *more, table, _html.notes(tags))


def of_packet(packet: Any) -> str:
    """Return the HTML of an operator's overloads: schemas, and the keys that have kernels."""
    overloads = [getattr(packet, name) for name in packet.overloads()]
    title = f"{_html.code(packet.name)}: {counted(len(overloads), 'overload')}"
    return _html.page(title, listing(overloads))


def listing(operators: list[_core.Operator]) -> str:
    """Return a table of operators."""
    rows = [(str(op.schema), ", ".join(op.kernels)) for op in operators[:_MOST]]
    more = len(operators) - len(rows)
    return _html.table(("operator", "kernels"), rows) + (
        _html.notes([f"... and {counted(more, 'more operator')}"] if more else [])
    )


for _shown, _form in (
    (_core.Tensor, of_tensor),
    (_core.Expression, of_expression),
    (_core.Operator, of_operator),
    (_core.OperatorPacket, of_packet),
):
    _shown._repr_html_ = _form  # type: ignore[union-attr]
