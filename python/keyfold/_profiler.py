"""The profiler: `profile` and `profile_range`."""

from __future__ import annotations

import functools
import html
import inspect
import json
import threading
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

from keyfold import _core
from keyfold._errors import GuardError, InvalidValue

__all__ = ["ProfileTable", "profile", "profile_range"]


class ProfileTable:
    """A profile in rows, one per operator and key path. Prints as text, or as HTML in notebooks.

    Attributes:
        heads: the names of the columns.
        rows: the cells, as text.
    """

    def __init__(
        self, text: str, heads: list[str], rows: list[list[str]], notes: list[str]
    ) -> None:
        self._text = text
        self.heads = heads
        self.rows = rows
        self._notes = notes

    def __str__(self) -> str:
        return self._text

    __repr__ = __str__

    def __len__(self) -> int:
        return len(self.rows)

    def _repr_html_(self) -> str:
        def line(tag: str, cells: list[str]) -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in cells) + "</tr>"

        rows = "".join(line("td", row) for row in self.rows)
        notes = "<br>".join(html.escape(note) for note in self._notes)
        return f"<table>{line('th', self.heads)}{rows}</table><p>{notes}</p>"


class profile:  # noqa: N801 - used as a block: `with keyfold.profile() as p:`
    """Record the operator calls made inside the `with` block, on this thread and in this context.

    One event per call: the operator, the keys that it passes, shapes, dtypes, bytes, time, memory.
    What kernels call for themselves counts as a part of the call that they serve, unless `nested`.
    Of several open profiles the innermost records a call. Other threads and tasks that were there
    before aren't recorded, unless they `attach()`. While no profile is open, calls cost what they
    cost without one. A profile may be opened again when it is closed, and then goes on.

    Args:
        nested: record the calls that kernels make, too, as children. Without it, a profile that is
            opened inside a kernel stays empty while another one records that kernel's call.
        memory: count the host memory that calls allocate.

    Raises:
        GuardError: opened twice at a time; closed out of order, or elsewhere than opened.

    Example:
        >>> import numpy as np, keyfold as kf
        >>> with kf.profile() as p:
        ...     with p.range("step"):
        ...         _ = kf.ops.aten.exp(np.zeros(3))
        >>> [event["name"] for event in p.events]
        ['step', 'aten::exp']
        >>> p.save("trace.json")  # opens in Perfetto (ui.perfetto.dev) and chrome://tracing
    """

    def __init__(self, nested: bool = False, *, memory: bool = True) -> None:
        self._session = _core._ProfileSession(nested, memory)
        self._guard: Any = None

    def __enter__(self) -> profile:
        guard = self._session.open()
        guard.__enter__()
        self._session.name_thread(threading.current_thread().name)
        self._guard = guard
        return self

    def __exit__(self, *exception: object) -> None:
        guard = self._guard
        if guard is None:
            raise GuardError("this profile was closed without being open")
        try:
            guard.__exit__(*exception)
        finally:
            # In another thread or context the guard stays entered, and so the profile open.
            if not guard.is_entered:
                self._guard = None
                self._session.close()

    def attach(self) -> Any:
        """Return a block in which this thread's calls are recorded, too.

        Call it in that thread, which gives its name to what is recorded there.

        Raises:
            GuardError: the profile isn't open.
        """
        guard = self._session.attach()
        self._session.name_thread(threading.current_thread().name)
        return guard

    def range(self, name: str) -> profile_range:
        """Return a block that is an event of that name around the calls made in it."""
        return profile_range(name, _session=self._session)

    @property
    def is_open(self) -> bool:
        """Whether it records now."""
        return self._session.is_open

    @property
    def total_time(self) -> float:
        """How long it was open, in seconds."""
        return self._session.total_time

    @property
    def events(self) -> list[dict[str, Any]]:
        """What was recorded, in the order in which it began.

        Each is a dict: `name`, `kind` ("call" or "range"), `keys` ("Autograd > CPU"), `args`
        ("float32[2, 3]") and `shapes`, `bytes_in`, `bytes_out`, `start`, `duration` and `self_time`
        in seconds, `thread`, `thread_name`, `depth`, `parent` (the event around it, by its place in
        this list), `path` (names from the outermost), `allocated` and `live` in bytes, `failed`.
        """
        return self._session.events()

    def table(self, sort: str = "self", limit: int | None = 20) -> ProfileTable:
        """Sum the events up by operator and key path.

        Args:
            sort: "self" (time without children), "total", "mean", "calls", "bytes", "allocated" or
                "operator".
            limit: the most rows; None for all.

        Raises:
            InvalidValue: there is no such column.
        """
        return ProfileTable(*self._session.table(sort, limit))

    def chrome_trace(self) -> dict[str, Any]:
        """Return the recording in the Trace Event Format, as Perfetto and chrome://tracing read it.

        Source: "Trace Event Format", the Chromium project.
        """
        trace: dict[str, Any] = json.loads(self._session.chrome_trace())
        return trace

    def save(self, path: str | PathLike[str]) -> None:
        """Write the Chrome trace to a file; open it at ui.perfetto.dev or chrome://tracing."""
        Path(path).write_text(self._session.chrome_trace(), encoding="utf-8")

    def __repr__(self) -> str:
        state = "open" if self.is_open else "closed"
        count, time = self._session.event_count, 1e3 * self.total_time
        return f"<profile ({state}, {count} events, {time:.3f} ms)>"


class profile_range:  # noqa: N801 - used as a block
    """A named event around the calls made inside the `with` block, or by the function it decorates.

    It belongs to the innermost profile that is open there. Where none is, it does nothing. Of an
    `async` function it lasts until that returns; other tasks' calls meanwhile aren't its children.

    An exception that goes through it makes it a failed event.

    Args:
        name: what the event is called.

    Raises:
        InvalidValue: a name that can't be written as UTF-8: a part of a surrogate pair in it.
    """

    def __init__(self, name: str, *, _session: Any = None) -> None:
        if not isinstance(name, str):
            raise TypeError(f"a range's name is a str, not {name!r}")
        try:
            name.encode()
        except UnicodeEncodeError:
            raise InvalidValue(
                f"a range's name must be text that UTF-8 can hold, and {name!r} has half of a "
                "surrogate pair in it"
            ) from None
        self._name = name
        self._session = _session
        self._open: list[Any] = []

    def __enter__(self) -> profile_range:
        opened = _core._open_range(self._name, self._session)
        if opened is not None:
            opened[1].__enter__()
        self._open.append(opened)
        return self

    def __exit__(self, *exception: object) -> None:
        if not self._open:
            raise GuardError(f"the range {self._name!r} was closed without being open")
        # One object may be open in several threads and tasks: the last that is open here.
        for opened in reversed(list(self._open)):
            if opened is None:
                continue
            span, guard = opened
            try:
                guard.__exit__(*exception)
            except GuardError:
                if guard.is_entered:
                    continue
                raise
            finally:
                if not guard.is_entered:
                    self._open.remove(opened)
                    span.close(bool(exception) and exception[0] is not None)
            return
        if None not in self._open:
            raise GuardError(
                f"the range {self._name!r} was closed on another thread or in another context than "
                "it was opened in"
            )
        self._open.remove(None)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def awaited(*args: Any, **kwargs: Any) -> Any:
                with profile_range(self._name, _session=self._session):
                    return await function(*args, **kwargs)

            return awaited

        @functools.wraps(function)
        def ranged(*args: Any, **kwargs: Any) -> Any:
            with profile_range(self._name, _session=self._session):
                return function(*args, **kwargs)

        return ranged
