"""`Graph`: a recorded function."""

from __future__ import annotations

import json
import os
from typing import Any

from keyfold import _core
from keyfold._errors import TraceError
from keyfold._show import _html
from keyfold._show._text import counted
from keyfold._trace._json import damaged, full, plain
from keyfold._trace._structure import Spec, leaves, match, put_together

__all__ = ["Graph"]


class Graph:
    """A recorded function: inputs, constants, the calls of operators in order, outputs.

    Made by `keyfold.trace`, `Graph.from_json` and `Graph.load`. `print(graph)` shows it in full,
    `graph(*args)` replays it.

    Constants (arrays that the function used and that weren't arguments) are held by reference: a
    weight that changes later counts with its new value, and an operator that writes to a constant
    in place does so at each replay. `to_json` writes their present values. An operator's result
    that is a number counts as it was when the graph was recorded. What a function does beside
    calling operators isn't in the graph: prints, assignments, `requires_grad_`, the `.grad` that
    `backward` leaves.
    """

    __slots__ = ("__weakref__", "_arguments", "_graph", "_result")

    _graph: _core._Graph
    _arguments: list[Spec]
    _result: Spec

    def __init__(self) -> None:
        raise TraceError("a Graph is made by keyfold.trace(f, *args) or Graph.from_json(text)")

    @classmethod
    def _over(cls, graph: _core._Graph, arguments: list[Spec], result: Spec) -> Graph:
        made = object.__new__(cls)
        made._graph, made._arguments, made._result = graph, arguments, result
        return made

    def __call__(self, *args: Any) -> Any:
        """Replay the graph. See `run`."""
        return self.run(*args)

    def run(
        self, *args: Any, any_shape: bool = False, dispatcher: _core.Dispatcher | None = None
    ) -> Any:
        """Replay the graph: call each operator again, in order, by its name.

        The calls go through the dispatcher, so the layers that are on now have their part. The
        result is arranged as the function's was. Its tensors are NumPy arrays where the function
        returned such, and where only NumPy arrays are given; but what requires grad, by a constant
        that does, is a `Tensor`.

        Args:
            *args: arranged as when the graph was recorded; each array with the same dtype, device
                and shape as then.
            any_shape: whether other sizes are allowed, with as many dimensions as before. Sizes
                that were arguments of an operator (of `reshape`, say) or that Python read stay as
                they were.
            dispatcher: where to look the operators up; keyfold's own by default.

        Raises:
            TraceError: another arrangement, number, rank or shape of the arguments.
            DTypeError, DeviceError: an input of another dtype or device than recorded.
            UnknownOperator: an operator of the graph is gone.
        """
        if len(args) != len(self._arguments):
            wanted = len(self._arguments)
            s = "" if wanted == 1 else "s"
            raise TraceError(f"the graph takes {wanted} argument{s}, and {len(args)} were given")
        titles = self._titles()
        arrays = [
            array
            for spec, given, title in zip(self._arguments, args, titles, strict=True)
            for array in match(spec, given, title)
        ]
        numpy = [spec["numpy"] for spec in leaves(self._result)]
        outputs = self._graph.run(arrays, numpy, any_shape, dispatcher)
        return put_together(self._result, "output", outputs)

    def _titles(self) -> list[str]:
        """Return the arguments' names in errors."""
        titles = []
        inputs = self._graph.inputs
        for at, spec in enumerate(self._arguments):
            plain = "input" in spec
            titles.append((plain and inputs[spec["input"]].title) or f"args[{at}]")
        return titles

    @property
    def inputs(self) -> tuple[_core.GraphValue, ...]:
        """The inputs, in order, each with name, title, dtype, shape and device."""
        return tuple(self._graph.inputs)

    @property
    def outputs(self) -> tuple[Any, ...]:
        """The values that it gives, in order."""
        return tuple(self._graph.outputs)

    @property
    def nodes(self) -> tuple[_core.GraphNode, ...]:
        """The calls, in order, each with operator, arguments and results."""
        return tuple(self._graph.nodes)

    @property
    def constants(self) -> dict[str, Any]:
        """The arrays that it holds, by the names that the graph's text has for them (`%c0`)."""
        return {value.name: held for value, held in self._graph.constants}

    def simplified(self) -> Graph:
        """Return the graph without calls whose results are unused.

        Calls that write in place, return nothing or draw random numbers stay.
        """
        return Graph._over(self._graph.simplified(), self._arguments, self._result)

    def dot(self, direction: str = "down") -> str:
        """Return the graph as Graphviz text, for `dot -Tsvg`.

        Args:
            direction: "down" has the inputs on top, "right" at the left.
        """
        return self._graph.dot(direction)

    def mermaid(self, direction: str = "down") -> str:
        """Return the graph as Mermaid text, for pages that show Markdown. As `dot`."""
        return self._graph.mermaid(direction)

    def to_json(self) -> str:
        """Return the graph as JSON, with the present values of its constants.

        Raises:
            TraceError: something in it has no JSON: an object of yours as a fixed argument, say.
        """
        extra = {
            "arguments": [
                plain(spec, title)
                for spec, title in zip(self._arguments, self._titles(), strict=True)
            ],
            "result": plain(self._result, "the result"),
        }
        return self._graph.to_json(json.dumps(extra))

    @classmethod
    def from_json(cls, text: str) -> Graph:
        """Return the graph that `to_json` wrote. A named tuple comes back as a plain one.

        Raises:
            TraceError: the text is something else or damaged; the message says where.
        """
        graph, extra = _core._Graph.from_json(text)
        known = json.loads(extra)
        if not isinstance(known, dict) or set(known) != {"arguments", "result"}:
            raise damaged("extra", "doesn't say how arguments and result are arranged")
        if not isinstance(known["arguments"], list):
            raise damaged("extra.arguments", "is no list")
        arguments = [
            full(spec, f"extra.arguments[{i}]", "input")
            for i, spec in enumerate(known["arguments"])
        ]
        result = full(known["result"], "extra.result", "output")
        numbers = [spec["input"] for argument in arguments for spec in leaves(argument)]
        if numbers != list(range(len(graph.inputs))):
            raise damaged("extra.arguments", f"has the inputs {numbers}, not each one in order")
        numbers = [spec["output"] for spec in leaves(result)]
        if numbers != list(range(len(graph.outputs))):
            raise damaged("extra.result", f"has the outputs {numbers}, not each one in order")
        return cls._over(graph, arguments, result)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the graph's JSON to a file."""
        text = self.to_json()
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Graph:
        """Return the graph that `save` wrote to a file.

        Raises:
            TraceError: the file holds something else or is damaged.
            OSError: it can't be read.
        """
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read()
        except UnicodeDecodeError as error:
            raise TraceError(f"no keyfold graph: {path} isn't UTF-8 text: {error}") from error
        return cls.from_json(text)

    def __str__(self) -> str:
        return str(self._graph)

    def __repr__(self) -> str:
        return "\n".join(_shortened(str(self).splitlines(), "print(graph) shows them"))

    def __reduce__(self) -> tuple[Any, ...]:
        return (Graph.from_json, (self.to_json(),))

    def _repr_html_(self) -> str:
        """A table for notebooks: one row per value."""
        rows = [("input", value.name, _type(value), value.title) for value in self.inputs]
        rows += [("constant", value.name, _type(value), "") for value, _ in self._graph.constants]
        for node in self.nodes:
            made, _, call = repr(node).rpartition(" = ") if node.results else ("", "", repr(node))
            name, _, kind = made.partition(": ")
            rows.append(("call", name, kind, call))
        returned = ", ".join(getattr(out, "name", repr(out)) for out in self.outputs)
        title = ", ".join(
            counted(number, what)
            for number, what in (
                (len(self.inputs), "input"),
                (len(self._graph.constants), "constant"),
                (len(rows) - len(self.inputs) - len(self._graph.constants), "call"),
                (len(self.outputs), "output"),
            )
            if number
        )
        shown = _shortened([*rows, ("returns", returned, "", "")], "print(graph) shows them")
        cells = [row if isinstance(row, tuple) else ("", "", "", row) for row in shown]
        return _html.page(
            f"Graph: {_html.words(title)}",
            _html.table(("", "value", "type", "made by"), cells),
        )


# How many lines of a graph are shown at the prompt and in notebooks: the first and the last ones.
_FIRST, _LAST = 150, 50


def _shortened(lines: list[Any], where: str) -> list[Any]:
    """The lines; of very many the first and the last, with a text between them."""
    left_out = len(lines) - _FIRST - _LAST
    if left_out <= 1:
        return lines
    return [*lines[:_FIRST], f"  ... {left_out} more lines: {where}", *lines[-_LAST:]]


def _type(value: _core.GraphValue) -> str:
    return repr(value).partition(": ")[2]
