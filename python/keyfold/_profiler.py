"""The profiler: `profile` and `profile_range`."""

from __future__ import annotations

import functools
import html
import inspect
import json
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

from keyfold import _core
from keyfold._errors import BindingError, InvalidValue

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


class profile(_core._ProfileSession):  # noqa: N801 - used as a block: `with keyfold.profile() as p:`
    """Record the operator calls made inside the `with` block, on this thread and in this context.

    One event per call: the operator, the keys that it passes, shapes, dtypes, bytes, time, memory.
    What kernels call for themselves counts as a part of the call that they serve, unless `nested`.
    Of several open profiles the innermost records a call. Other threads and tasks that were there
    before aren't recorded, unless they `attach()`. Of calls on a device that works late the
    device's time is recorded too, by events on its stream: reading the profile waits for them,
    calls don't. While no profile is open, calls cost what they cost without one. A profile may be
    opened again when it is closed, and then goes on.

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

    def __new__(cls, nested: bool = False, *, memory: bool = True) -> profile:
        """Make a profile that nothing was recorded in yet."""
        return super().__new__(cls, nested, memory)

    def range(self, name: str) -> profile_range:
        """Return a block that is an event of that name around the calls made in it."""
        return profile_range(name, _session=self)

    @property
    def events(self) -> list[dict[str, Any]]:
        """What was recorded, in the order in which it began.

        Each is a dict: `name`, `kind` ("call" or "range"), `keys` ("Autograd > CPU"), `args`
        ("float32[2, 3]") and `shapes`, `bytes_in`, `bytes_out`, `start`, `duration` and `self_time`
        in seconds, `device_time` (how long a device that works late took, by its own events; None
        for calls on others), `thread`, `thread_name`, `depth`, `parent` (the event around it, by
        its place in this list), `path` (names from the outermost), `allocated` and `live` in bytes,
        `failed`.
        """
        return self._events()

    def table(self, sort: str = "self", limit: int | None = 20) -> ProfileTable:
        """Sum the events up by operator and key path.

        Args:
            sort: "self" (time without children), "total", "mean", "device", "calls", "bytes",
                "allocated" or "operator".
            limit: the most rows; None for all.

        Raises:
            InvalidValue: there is no such column.
        """
        return ProfileTable(*self._table(sort, limit))

    def chrome_trace(self) -> dict[str, Any]:
        """Return the recording in the Trace Event Format, as Perfetto and chrome://tracing read it.

        Source: "Trace Event Format", the Chromium project.
        """
        trace: dict[str, Any] = json.loads(self._chrome_trace())
        return trace

    def save(self, path: str | PathLike[str]) -> None:
        """Write the Chrome trace to a file; open it at ui.perfetto.dev or chrome://tracing."""
        Path(path).write_text(self._chrome_trace(), encoding="utf-8")

    def __repr__(self) -> str:
        state = "open" if self.is_open else "closed"
        count, time, device = self._event_count, 1e3 * self.total_time, self._device_time
        on_devices = "" if device is None else f", {1e3 * device:.3f} ms on devices"
        return f"<profile ({state}, {count} events, {time:.3f} ms{on_devices})>"


class profile_range(_core._ProfileRange):  # noqa: N801 - used as a block
    """A named event around the calls made inside the `with` block, or by the function it decorates.

    It belongs to the innermost profile that is open there. Where none is, it does nothing. Of an
    `async` function it lasts until that returns; other tasks' calls meanwhile aren't its children.

    An exception that goes through it makes it a failed event.

    Args:
        name: what the event is called.

    Raises:
        InvalidValue: a name that can't be written as UTF-8: a part of a surrogate pair in it.
    """

    def __new__(cls, name: str, *, _session: Any = None) -> profile_range:
        """Make a range; it may be entered any number of times."""
        if not isinstance(name, str):
            raise BindingError(f"a range's name is a str, not {name!r}")
        try:
            name.encode()
        except UnicodeEncodeError:
            raise InvalidValue(
                f"a range's name must be text that UTF-8 can hold, and {name!r} has half of a "
                "surrogate pair in it"
            ) from None
        return super().__new__(cls, name, _session)

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
