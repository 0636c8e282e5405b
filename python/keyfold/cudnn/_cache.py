"""The process's cache of plans."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keyfold import _core
from keyfold._errors import BindingError, InvalidValue
from keyfold.cudnn import _library
from keyfold.cudnn._base import integer, sizes
from keyfold.cudnn._plan import Plan

if TYPE_CHECKING:
    from keyfold.cudnn._graph import Graph, Progress
    from keyfold.cudnn._tensor import GraphTensor

__all__ = ["PlanCache", "PlanCacheStats", "plan_cache"]


class PlanCacheStats:
    """The counters of the cache. It prints as two tables: counters by kind of graph, and plans.

    Attributes:
        plans: how many plans are kept.
        hits: how many requests found a plan in the cache.
        misses: how many requests found none, and built it.
        waits: how many requests waited for another thread's build and got its plan.
        failures: how many builds failed or were cancelled.
        evictions: how many plans were evicted because of the bounds.
        build_seconds: the time of all builds.
        bytes: the memory that the plans hold.
        capacity: the most plans.
        capacity_bytes: the most bytes of them.
        by_operation: a dict of these counters (`plans` to `build_seconds`) for each main operation
            of the graphs, of all data types together.
        by_kind: the same for each pair of main operation and its data type:
            `stats.by_kind["conv_fprop", "float16"]["hits"]`.
        entries: a dict for each plan, the one used last first: `operation`, `data_type`,
            `signature`, `device`, `engine`, `workspace_bytes`, `bytes`, `build_seconds`, `hits`,
            `is_marker`.
    """

    plans: int
    hits: int
    misses: int
    waits: int
    failures: int
    evictions: int
    build_seconds: float
    bytes: int
    capacity: int
    capacity_bytes: int
    by_operation: dict[str, dict[str, Any]]
    by_kind: dict[tuple[str, str | None], dict[str, Any]]
    entries: list[dict[str, Any]]

    def __init__(self, text: str, data: dict[str, Any]) -> None:
        self._text = text
        self.__dict__.update(data)

    def __repr__(self) -> str:
        return self._text.rstrip()

    def _repr_html_(self) -> str:
        """The tables that notebooks show."""
        from keyfold._show import _html

        counters = ("plans", "hits", "misses", "waits", "failures", "evictions")
        kinds = [
            [
                operation,
                str(data_type),
                *(str(counts[counter]) for counter in counters),
                f"{counts['build_seconds'] * 1e3:.1f} ms",
            ]
            for (operation, data_type), counts in self.by_kind.items()
        ]
        by_kind = _html.table(
            ["operation", "data_type", *counters, "builds"], kinds, right=tuple(range(2, 9))
        )
        columns = ("operation", "data_type", "signature", "device", "engine", "workspace_bytes")
        head = [*columns, "build", "hits"]
        rows = [
            [
                *(str(entry[column]) for column in columns),
                f"{entry['build_seconds'] * 1e3:.1f} ms",
                str(entry["hits"]),
            ]
            for entry in self.entries
        ]
        title = _html.words(f"Plan cache: {len(rows)} of {self.capacity} plans")
        lines = self._text.splitlines()[1:2]
        plans = _html.table(head, rows, right=(5, 6, 7))
        return _html.page(title, by_kind, plans, _html.notes(lines))


class PlanCache:
    """The process's cache of plans, which `Graph.build` asks: `keyfold.cudnn.plan_cache`.

    The least recently used plan goes first. Any thread may use it; one build is made of a graph
    that several threads ask for.
    """

    def __len__(self) -> int:
        return _core._cudnn_cache_size()[0]

    @property
    def capacity(self) -> tuple[int, int]:
        """The most plans, and the most bytes of them."""
        _, entries, bytes_ = _core._cudnn_cache_size()
        return entries, bytes_

    def set_capacity(self, entries: int | None = None, bytes: int | None = None) -> None:
        """Set the bounds, and forget the plans beyond them; None leaves one as it is.

        Raises:
            InvalidValue: a bound is 0.
        """
        now = self.capacity
        _core._cudnn_cache_set_capacity(
            now[0] if entries is None else entries, now[1] if bytes is None else bytes
        )

    def clear(self) -> None:
        """Forget all plans. Those in use stay until they are dropped, and the counters go on."""
        _core._cudnn_cache_clear()

    @property
    def folder(self) -> Path | None:
        """The folder in which libcudnn's plans are kept for other processes; None if none is.

        It is that of the environment's `KEYFOLD_CUDNN_PLANS` until `keep_in` names another.
        """
        return _library.plans.folder

    def keep_in(self, folder: str | os.PathLike[str] | None, max_bytes: int = 512 << 20) -> None:
        """Keep libcudnn's plans in a folder, and read those that are there.

        A file is written whole or not at all, so several processes may share the folder. One that
        is damaged, or of another card or version, isn't used; the plan's `steps` say why.

        Args:
            folder: the folder, which is made when the first plan is kept; None keeps none.
            max_bytes: the most that its files hold; the oldest are removed.

        Raises:
            InvalidValue: `max_bytes` is 0 or less.
        """
        limit = integer(max_bytes, "keep_in(): max_bytes")
        if limit <= 0:
            raise InvalidValue(f"keep_in(): max_bytes is a number of bytes, not {max_bytes}")
        _library.plans.folder = _library.placed(folder)
        _library.plans.limit = limit

    def stats(self) -> PlanCacheStats:
        """Return the counters, and what is there."""
        return PlanCacheStats(*_core._cudnn_cache_stats())

    def prepare(
        self,
        graph: Graph,
        shapes: Iterable[Mapping[GraphTensor | int | str, Sequence[int]]],
        *,
        device: Any = "cpu",
        policy: str = "first",
        workspace_limit: int | None = None,
        precision: str = "spec",
        tf32: bool = False,
        rewrite: str = "split",
        progress: Progress | None = None,
    ) -> list[Plan]:
        """Build plans ahead, for each of several sizes.

        Args:
            graph: the graph.
            shapes: for each plan, the sizes of tensors by tensor, uid or name; those of the other
                tensors follow, or stay.
            device: as for `Graph.build`, as are the arguments behind it.
            policy: how a plan is chosen.
            workspace_limit: the most scratch memory of a run.
            precision: what the reference executor computes in.
            tf32: whether float32 may be multiplied as TF32.
            rewrite: what libcudnn's planner may do with the graph.
            progress: called with the number of shapes done, of all, and what is done next.

        Returns:
            The plans, in order.

        Raises:
            ShapeError: operations don't take the sizes.
            InvalidValue: the graph isn't valid, or has no such tensor.

        Example:
            >>> g = kf.cudnn.Graph(io_data_type="float32")
            >>> x = g.tensor(dim=[1, 3], name="x")
            >>> y = g.exp(x).set_output(True)
            >>> plans = kf.cudnn.plan_cache.prepare(g, shapes=[{x: [n, 3]} for n in (2, 4)])
            >>> plans[1]({x: kf.zeros((4, 3), dtype="float32")})[y].shape
            (4, 3)
        """
        if isinstance(shapes, Mapping):
            raise BindingError(
                "prepare(): shapes is a list of dicts, one for each plan, not a dict"
            )
        listed = [
            [(_number(graph, key), sizes(dim, "prepare(): shapes")) for key, dim in shape.items()]
            for shape in shapes
        ]
        options = graph._options(device, policy, workspace_limit, precision, tf32, rewrite)
        plans = _core._cudnn_prepare(graph._native, graph._keys(), listed, options, progress)
        return [Plan(plan, graph._may_be_narrow) for plan in plans]

    def __repr__(self) -> str:
        return f"PlanCache({len(self)} of {self.capacity[0]} plans)"


def _number(graph: Graph, key: Any) -> int:
    if isinstance(key, str | int):
        return graph[key].uid
    if getattr(key, "_graph", None) is not graph:
        raise BindingError(
            f"prepare(): shapes has sizes of the graph's tensors, and of {key!r}, which is none"
        )
    uid: int = key.uid
    return uid


plan_cache = PlanCache()
