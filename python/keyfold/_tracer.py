"""`trace` and `Graph`: how Python's arguments and results become a graph's inputs and outputs."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from keyfold import _core
from keyfold._errors import BindingError, TraceError
from keyfold._show import _html
from keyfold._show._text import counted

__all__ = ["Graph", "trace"]

# What a place in the arguments or in the result holds is said by a dict with one of these keys:
#   {"input": 0}                       an array: the input of that number
#   {"output": 0, "numpy": False}      a tensor: the output of that number
#   {"static": 3}                      anything else, as it was
#   {"tuple": [...], "class": cls}     each of its items; the class of a named tuple, or None
#   {"list": [...]}
#   {"dict": [[key, ...], ...]}
_Spec = dict[str, Any]


def trace(f: Callable[..., Any], /, *args: Any) -> Graph:
    """Run a function once and record every operator that it calls, as a graph.

    The graph prints, draws, replays on other arguments and goes to JSON and back. Arguments are
    arrays, and tuples, lists and dicts of arrays, as deep as you like; each array becomes an input.
    The function gets `keyfold.Tensor`s, also where NumPy arrays were given, and objects of a class
    that was registered with `register_array_type` as they are. Other arguments (numbers, text) are
    handed on as they are and are fixed in the graph.

    Only operators are recorded. Python's own control flow runs once, now: loops are unrolled, and
    sizes that Python reads are fixed. Arrays that the function uses and that are no arguments
    (weights, say) become constants, held by reference. Random operators draw anew at each replay.
    Gradients and `vmap` inside the function are in the graph as the operators that they call: one
    example's under `vmap`, and where gradients are recorded, those on whole batches; autocast and
    profiles aren't: they have their part at replay, if they are on then.

    Args:
        f: the function.
        *args: its arguments.

    Returns:
        The graph. `graph(*args)` replays it.

    Raises:
        TraceError: the function reads numbers of a tensor that follows from its arguments (`if`,
            `float()`, `.item()`, NumPy functions): what it does with them would stay as it is now.
            Use `keyfold.where`, or trace each branch as a function of its own. Also for a value
            that was made of them without an operator.

    Example:
        >>> import keyfold as kf
        >>> print(kf.trace(lambda x: kf.exp(x * 2.0), kf.asarray([0.0, 1.0])), end="")
        graph(%0 x: float64[2]):
          %1: float64[2] = aten::mul.Scalar(%0, 2.0)
          %2: float64[2] = aten::exp(%1)
          return %2
    """
    if not callable(f):
        raise BindingError(f"trace records a function, not {f!r}")
    arguments: list[_Spec] = []
    leaves: list[tuple[str, Any]] = []
    for name, given in zip(_names(f, len(args)), args, strict=True):
        arguments.append(_take_apart(given, name, leaves, _is_array, "input"))
    session = _core._TraceSession()
    try:
        tensors = [session.input(array, name) for name, array in leaves]
        with session.guard():
            if not _core._is_tracing():
                raise TraceError(
                    "the key Tracer is excluded here, so nothing would be recorded: by an "
                    'exclude_keys("Tracer") block, or inside an operator\'s kernel whose call is '
                    "being traced"
                )
            returned = f(*(_put_together(spec, "input", tensors) for spec in arguments))
        outputs: list[tuple[str, Any]] = []
        result = _take_apart(returned, "the result", outputs, _is_array, "output")
        graph = session.finish([array for _, array in outputs])
    except BaseException:
        session.abandon()
        raise
    return Graph._over(graph, arguments, result)


def _names(f: Callable[..., Any], count: int) -> list[str]:
    """What the function calls its arguments; `args[0]` and so on where it doesn't say."""
    names: list[str] = []
    try:
        parameters = list(inspect.signature(f).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}[{i}]" for i in range(count - len(names))]
        elif parameter.kind is not parameter.KEYWORD_ONLY:
            names.append(parameter.name)
    names += [f"args[{i}]" for i in range(len(names), count)]
    return names[:count]


def _is_array(leaf: Any) -> bool:
    if isinstance(leaf, (_core.Tensor, np.ndarray)):
        return True
    # NumPy's scalars and Python's numbers are constants of the graph.
    plain = isinstance(leaf, (np.generic, bool, int, float, complex))
    return not plain and (_core._is_array(leaf) or _core._is_registered(leaf))


def _take_apart(
    tree: Any,
    place: str,
    leaves: list[tuple[str, Any]],
    is_leaf: Callable[[Any], bool],
    kind: str,
) -> _Spec:
    """What a tree of arrays looks like; the arrays go to `leaves` with their places."""
    if is_leaf(tree):
        leaves.append((place, tree))
        spec: _Spec = {kind: len(leaves) - 1}
        if kind == "output":
            spec["numpy"] = isinstance(tree, np.ndarray)
        return spec
    if isinstance(tree, tuple):
        items = [
            _take_apart(item, f"{place}[{i}]", leaves, is_leaf, kind) for i, item in enumerate(tree)
        ]
        return {"tuple": items, "class": type(tree) if hasattr(tree, "_fields") else None}
    if type(tree) is list:
        items = [
            _take_apart(item, f"{place}[{i}]", leaves, is_leaf, kind) for i, item in enumerate(tree)
        ]
        return {"list": items}
    if type(tree) is dict:
        pairs = [
            [key, _take_apart(item, f"{place}[{key!r}]", leaves, is_leaf, kind)]
            for key, item in tree.items()
        ]
        return {"dict": pairs}
    return {"static": tree}


def _put_together(spec: _Spec, kind: str, leaves: list[Any]) -> Any:
    """The tree that a spec stands for, with these arrays in their places."""
    if kind in spec:
        return leaves[spec[kind]]
    if "tuple" in spec:
        items = [_put_together(item, kind, leaves) for item in spec["tuple"]]
        named = spec["class"]
        return tuple(items) if named is None else named(*items)
    if "list" in spec:
        return [_put_together(item, kind, leaves) for item in spec["list"]]
    if "dict" in spec:
        return {key: _put_together(item, kind, leaves) for key, item in spec["dict"]}
    return spec["static"]


def _match(spec: _Spec, given: Any, place: str) -> Iterator[Any]:
    """The arrays of an argument that is arranged as when the graph was recorded.

    Raises:
        TraceError: it is arranged otherwise.
    """
    if "input" in spec:
        if isinstance(given, (tuple, list, dict, str, type(None))):
            raise _misfit(place, "an array", given)
        yield given
    elif "tuple" in spec or "list" in spec:
        kind = tuple if "tuple" in spec else list
        items = spec["tuple" if "tuple" in spec else "list"]
        if not isinstance(given, kind) or len(given) != len(items):
            raise _misfit(place, f"a {kind.__name__} of {len(items)}", given)
        for i, (item, part) in enumerate(zip(items, given, strict=True)):
            yield from _match(item, part, f"{place}[{i}]")
    elif "dict" in spec:
        keys = [key for key, _ in spec["dict"]]
        if not isinstance(given, dict) or set(given) != set(keys):
            raise _misfit(place, f"a dict with the keys {keys}", given)
        for key, item in spec["dict"]:
            yield from _match(item, given[key], f"{place}[{key!r}]")
    elif not _same(spec["static"], given):
        raise TraceError(
            f"argument {place} was {spec['static']!r} when the graph was recorded, and is fixed in "
            f"it; it can't be {given!r} now. Trace the function again for it"
        )


def _misfit(place: str, wanted: str, given: Any) -> TraceError:
    if isinstance(given, dict):
        what = f"a dict with the keys {list(given)}"
    elif isinstance(given, (tuple, list)):
        what = f"a {type(given).__name__} of {len(given)}"
    else:
        what = f"{given!r}" if given is None else f"a {type(given).__name__}"
    return TraceError(f"argument {place} was {wanted} when the graph was recorded, not {what}")


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    try:
        return type(a) is type(b) and (bool(a == b) or (a != a and b != b))
    except Exception:
        # Objects that can't be compared aren't known to be the same.
        return False


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
    _arguments: list[_Spec]
    _result: _Spec

    def __init__(self) -> None:
        raise TraceError("a Graph is made by keyfold.trace(f, *args) or Graph.from_json(text)")

    @classmethod
    def _over(cls, graph: _core._Graph, arguments: list[_Spec], result: _Spec) -> Graph:
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
            for array in _match(spec, given, title)
        ]
        numpy = [spec["numpy"] for spec in _leaves(self._result)]
        outputs = self._graph.run(arrays, numpy, any_shape, dispatcher)
        return _put_together(self._result, "output", outputs)

    def _titles(self) -> list[str]:
        """What errors call the arguments."""
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
        """Return the graph without calls whose results nobody needs.

        What writes in place, returns nothing or draws random numbers stays.
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
                _plain(spec, title)
                for spec, title in zip(self._arguments, self._titles(), strict=True)
            ],
            "result": _plain(self._result, "the result"),
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
            raise _damaged("extra", "doesn't say how arguments and result are arranged")
        if not isinstance(known["arguments"], list):
            raise _damaged("extra.arguments", "is no list")
        arguments = [
            _full(spec, f"extra.arguments[{i}]", "input")
            for i, spec in enumerate(known["arguments"])
        ]
        result = _full(known["result"], "extra.result", "output")
        numbers = [spec["input"] for argument in arguments for spec in _leaves(argument)]
        if numbers != list(range(len(graph.inputs))):
            raise _damaged("extra.arguments", f"has the inputs {numbers}, not each one in order")
        numbers = [spec["output"] for spec in _leaves(result)]
        if numbers != list(range(len(graph.outputs))):
            raise _damaged("extra.result", f"has the outputs {numbers}, not each one in order")
        return cls._over(graph, arguments, result)

    def save(self, path: str | Path) -> None:
        """Write the graph's JSON to a file."""
        Path(path).write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Graph:
        """Return the graph that `save` wrote to a file.

        Raises:
            TraceError: the file holds something else or is damaged.
            OSError: it can't be read.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
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


def _leaves(spec: _Spec) -> Iterator[_Spec]:
    """The places of arrays in a spec, in order."""
    if "input" in spec or "output" in spec:
        yield spec
    for item in spec.get("tuple") or spec.get("list") or ():
        yield from _leaves(item)
    for _, item in spec.get("dict", ()):
        yield from _leaves(item)


# What JSON says as it is; all else is said by an object with one key.
_JSON = (type(None), bool, int, str)


def _plain(spec: _Spec, place: str) -> _Spec:
    """A spec as JSON."""
    if "tuple" in spec:
        return {"tuple": [_plain(item, f"{place}[{i}]") for i, item in enumerate(spec["tuple"])]}
    if "list" in spec:
        return {"list": [_plain(item, f"{place}[{i}]") for i, item in enumerate(spec["list"])]}
    if "dict" in spec:
        pairs = [
            [_value(key, f"a key of {place}"), _plain(item, f"{place}[{key!r}]")]
            for key, item in spec["dict"]
        ]
        return {"dict": pairs}
    if "static" in spec:
        return {"static": _value(spec["static"], place)}
    return spec


def _value(value: Any, place: str) -> Any:
    """A fixed value as JSON."""
    kind = type(value)
    if kind is int and not -(2**63) <= value < 2**63:
        return {"int": str(value)}
    if kind in _JSON:
        return value
    if kind is float:
        return {"float": repr(value)}
    if kind is complex:
        return {"complex": [repr(value.real), repr(value.imag)]}
    if kind is _core.DType:
        return {"dtype": value.name}
    if kind is _core.Device:
        return {"device": str(value)}
    raise TraceError(
        f"to_json(): {place} is fixed in the graph and is a {kind.__name__}, which has no JSON; "
        "give the function numbers and text, or hold the object outside of its arguments"
    )


def _full(plain: Any, place: str, kind: str) -> _Spec:
    """A spec out of JSON."""
    if not isinstance(plain, dict):
        raise _damaged(place, "is no object")
    fields = set(plain)
    if fields == ({"input"} if kind == "input" else {"output", "numpy"}):
        number, numpy = plain[kind], plain.get("numpy", False)
        if type(number) is not int or type(numpy) is not bool:
            raise _damaged(place, f"has no number of an {kind}")
        return plain
    if fields == {"static"}:
        return {"static": _read(plain["static"], f"{place}.static")}
    if len(fields) == 1 and fields <= {"tuple", "list", "dict"}:
        (form,) = fields
        items = plain[form]
        if not isinstance(items, list):
            raise _damaged(f"{place}.{form}", "is no list")
        if form != "dict":
            parts = [_full(item, f"{place}.{form}[{i}]", kind) for i, item in enumerate(items)]
            return {form: parts, "class": None} if form == "tuple" else {form: parts}
        pairs = []
        for i, pair in enumerate(items):
            if not isinstance(pair, list) or len(pair) != 2:
                raise _damaged(f"{place}.dict[{i}]", "is no pair of a key and what it holds")
            key = _read(pair[0], f"{place}.dict[{i}][0]")
            pairs.append([key, _full(pair[1], f"{place}.dict[{i}][1]", kind)])
        return {"dict": pairs}
    raise _damaged(place, f"has the unknown keys {sorted(fields)}")


_READ: dict[str, Callable[[Any], Any]] = {
    "int": int,
    "float": float,
    "complex": lambda pair: complex(float(pair[0]), float(pair[1])),
    "dtype": _core.DType,
    "device": _core.Device,
}


def _read(value: Any, place: str) -> Any:
    """A fixed value out of JSON."""
    if isinstance(value, _JSON):
        return value
    if isinstance(value, dict) and len(value) == 1:
        ((kind, text),) = value.items()
        if kind in _READ:
            try:
                return _READ[kind](text)
            except (TypeError, ValueError, IndexError, KeyError) as error:
                raise _damaged(place, f"is no {kind}: {error}") from error
    raise _damaged(place, "is no value that a graph fixes")


def _damaged(place: str, problem: str) -> TraceError:
    return TraceError(f"no keyfold graph: {place} {problem}")
