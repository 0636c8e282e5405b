"""The pipeline: `pipeline`, `flush`, and what they tell of deferred operations."""

from __future__ import annotations

import os
from typing import Any

from keyfold import _core
from keyfold._errors import InvalidValue
from keyfold._show import _html, _text
from keyfold._trace import Graph

__all__ = ["PipelineFailure", "PipelinePlan", "pipeline"]


def _graph(graph: _core._Graph) -> Graph:
    """A graph without arguments, whose result is the tuple of its outputs."""
    outputs = [{"output": at, "numpy": False} for at in range(len(graph.outputs))]
    return Graph._over(graph, [], {"tuple": outputs, "class": None})


class PipelineFailure:
    """An operation of a pipeline that failed. Prints as text.

    Attributes:
        index: its place among all operations of the pipeline.
        operator: the operator's name.
        line: the line that recorded it, as "file:line"; None if Python doesn't know it.
        call: the call, with the forms of its results and arguments.
        after: the indices of the operations that it ran after.
        error: the exception, which reading anything that depends on the operation raises.
        graph: the operation as a `Graph` with its arguments as constants: a replay fails alike.
    """

    def __init__(self, data: dict[str, Any]) -> None:
        self.index: int = data["index"]
        self.operator: str = data["operator"]
        self.line: str | None = data["line"]
        self.call: str = data["call"]
        self.after: list[int] = data["after"]
        self.error: BaseException = data["error"]
        self.graph: Graph = _graph(data["graph"])
        self._text: str = data["text"]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the graph to a file, which `keyfold.Graph.load(path)` reads, anywhere."""
        self.graph.save(path)

    def __str__(self) -> str:
        return self._text.rstrip("\n")

    def __repr__(self) -> str:
        return f"<PipelineFailure {self.index}: {self.operator}, {self.error!r}>"


class PipelinePlan:
    """What waits in a pipeline, and which calls ran at once. Prints as text, in notebooks as HTML.

    Attributes:
        operations: the operations that wait, in order. Each is a dict: `index`, `operator`, `call`
            ("%1: float64[3] = aten::exp(%0)"), `line` ("file:line"), `after` (the indices of those
            that run before), `dead` (whether it is left out, since nobody holds its result),
            `bytes`.
        groups: the operations that are computed together. Each is a dict: `operations` (their
            indices), `stored` (those whose results are stored), `tiles` (False: in one pass over
            memory; True: tile by tile, some rows, or a part of a long lane, by all of them, then
            the next ones), `saved_bytes` (of the other results, which in one pass are neither
            written nor read, and tile by tile stay in the cache).
        concurrent: the steps that are computed concurrently, on several threads: lists of steps,
            each a list of the indices of its operations.
        at_once: the calls that ran at once, as dicts: `operator`, `reason`, `count`.
        bytes: how many bytes wait.
    """

    def __init__(self, data: dict[str, Any]) -> None:
        self.operations: list[dict[str, Any]] = data["operations"]
        self.groups: list[dict[str, Any]] = data["groups"]
        self.concurrent: list[list[list[int]]] = data["concurrent"]
        self.at_once: list[dict[str, Any]] = data["at_once"]
        self.bytes: int = data["bytes"]
        self._graph: _core._Graph = data["graph"]
        self._text: str = data["text"]

    def dot(self, direction: str = "down") -> str:
        """Draw what waits, in Graphviz's language. A view is drawn as the tensor that it is of.

        Args:
            direction: "down" or "right".
        """
        return self._graph.dot(direction)

    def mermaid(self, direction: str = "down") -> str:
        """Draw what waits, in Mermaid's language. See `dot`."""
        return self._graph.mermaid(direction)

    def __len__(self) -> int:
        return len(self.operations)

    def __str__(self) -> str:
        return "\n".join(_text.folded(self._text.splitlines()))

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        heads = ["call", "line", "bytes", "computed"]
        group = {at: number for number, one in enumerate(self.groups) for at in one["operations"]}
        stored = {at for one in self.groups for at in one["stored"]}
        levels = enumerate(self.concurrent)
        level = {at: number for number, steps in levels for step in steps for at in step}

        def computed(one: dict[str, Any]) -> str:
            at = one["index"]
            if one["dead"]:
                return "no: nobody holds its result"
            others = f", concurrently with others of level {level[at]}" if at in level else ""
            if at not in group:
                return f"alone{others}"
            return f"in group {group[at]}{others}" + ("" if at in stored else ", not stored")

        rows = [
            [one["call"], one["line"] or "", str(one["bytes"]), computed(one)]
            for one in self.operations
        ]
        saved = sum(one["saved_bytes"] for one in self.groups)
        notes = [f"{len(rows)} operations wait, {self.bytes} bytes"]
        if self.groups:
            notes.append(f"a group is computed together: {saved} bytes don't go through memory")
        if self.concurrent:
            notes.append("the operations of a level are computed concurrently, on several threads")
        notes += [
            f"{one['operator']} ran at once ({one['count']}): {one['reason']}"
            for one in self.at_once
        ]
        table = _html.table(heads, rows, range(2, 3)) if rows else ""
        return _html.page("", table, _html.notes(notes))


class pipeline(_core.pipeline):  # noqa: N801 - used as a block: `with keyfold.pipeline() as pipe:`
    """Defer the operator calls made inside the `with` block.

    A call returns at once, with a pending tensor whose shape, dtype and device are known, and the
    operation is recorded. What was recorded runs, in order, at the end of the block; at `flush()`;
    where data is read in any way (`numpy()`, `item()`, `bool()`, `print`, DLPack, a copy to another
    device); where a call can't be deferred; and when a limit is reached. Results are those of the
    same program without a pipeline, bit for bit. A result that nobody holds isn't computed, and
    pointwise operations that read each other's results are computed in one pass over memory.
    Operations that don't depend on each other, and that one thread computes, run concurrently.

    Errors of shapes and dtypes are raised by the call, errors of values when the operation runs:
    the message says which line recorded it. Everything that depends on a failed operation raises
    the same error when it is read, and everything else is computed. An exception that leaves the
    block stays what it is; one that stops the program (Ctrl-C, the end of a generator) gives up
    what waits.

    Arrays of other libraries are copied when a call is recorded, and its result is a
    `keyfold.Tensor`. A block inside another one joins it: one record, the outer limits. A pipeline
    may be opened again after it was closed.

    Args:
        max_ops: the most operations that wait.
        max_pending_bytes: the most bytes that wait: results, and copies of other libraries' arrays.
            Results of pointwise calls that nobody but waiting calls holds, as inside of a chain,
            aren't counted while all others are at most half of the limit; arguments that only
            waiting calls keep in memory are then counted in their place.
        max_wait: the longest time in seconds that an operation waits; None for no limit. A thread
            of keyfold's runs what waited too long.
        flush_on_backward: run what waits when `backward` or `grad` returns.
        check: "eager" runs each operation twice when what waits is run: one by one on copies of
            what it reads, with the same random numbers, and as the pipeline computes it. Results
            are compared bit for bit, NaN equal to NaN. The first difference is a `PipelineError`
            that names the operation, its line, the element and both numbers, and what was computed
            in the same pass. For finding mistakes: it takes twice the time and memory.

    Raises:
        InvalidValue: a limit of 0, or another `check`.
        PipelineError: a pipeline with a check, opened inside one without.
        GuardError: closed out of order, or elsewhere than opened.

    Example:
        >>> import keyfold as kf
        >>> x = kf.asarray([1.0, 2.0, 3.0])
        >>> with kf.pipeline() as pipe:
        ...     y = kf.exp(x * x)
        ...     print(y.is_pending, y.shape, pipe.pending_count())
        True (3,) 2
        >>> y.is_pending
        False
    """

    def explain(self) -> PipelinePlan:
        """Say what waits, without running it, and which calls ran at once, and why."""
        return PipelinePlan(self._explain())

    def last_error(self) -> PipelineFailure | None:
        """Return the last operation that failed; None if none did."""
        failure = self._last_failure()
        return None if failure is None else PipelineFailure(failure)

    def save_failure(self, path: str | os.PathLike[str]) -> None:
        """Write the operation that failed last to a file, with its arguments.

        `keyfold.Graph.load(path)` reads it anywhere, and running that graph fails as the operation
        did.

        Raises:
            InvalidValue: no operation failed.
        """
        failure = self.last_error()
        if failure is None:
            raise InvalidValue("save_failure(): no operation of this pipeline failed")
        failure.save(path)

    def stats(self) -> dict[str, int]:
        """Count what the pipeline did.

        Returns:
            `recorded`: operations; `ran`: those that ran, failed ones included; `at_once`: calls
            that couldn't be deferred; `dead`: operations left out, since nobody held their results;
            `merged`: those of them whose results equal calls before had, which were read instead;
            `failed`; `skipped`: those that depended on a failed one; `flushes`: how often something
            waiting was run; `groups`: groups of operations that were computed together; `fused`:
            the operations in them; `concurrent`: operations that were computed concurrently
            with others, on several threads; `planned`: flushes whose groups were chosen and
            compiled, since no flush before had the same operations; `recognised`: flushes of a
            program that came before, whose calls were recognised one by one; `checked`: operations
            whose results were compared with those of an eager call (`check="eager"`).
        """
        return self._statistics()

    def __repr__(self) -> str:
        state = "open" if self.is_open else "closed"
        return f"<pipeline ({state}, {self.pending_count()} operations wait)>"
