"""The profiler: `profile` and `profile_range`."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable
from os import PathLike
from typing import Any

from keyfold import _core
from keyfold._errors import BindingError, InvalidValue
from keyfold._show import _html, _text

__all__ = ["ProfileTable", "profile", "profile_range"]


# Columns that are words, and so are aligned left.
_WORDS = 2
# How wide these get before columns are left out for them; longer text goes on in the next line.
_ROOM = 28
# The columns that a narrow text leaves out, in this order.
_OPTIONAL = ("mean", "allocated", "bytes", "device", "total", "keys")


class ProfileTable:
    """A profile in rows, one per operator and key path. Prints as text, or as HTML in notebooks.

    The text has the columns that 80 characters have room for, and says which ones it leaves out.

    Attributes:
        heads: the names of the columns.
        rows: the cells, as text.
    """

    def __init__(
        self, heads: list[str], rows: list[list[str]], notes: list[str], sort: str = "self"
    ) -> None:
        self.heads = heads
        self.rows = rows
        self._notes = notes
        self._sort = sort

    def _shared_keys(self) -> str | None:
        """The key path that all calls have, if that is one."""
        paths = {row[1] for row in self.rows} - {"(range)"}
        return paths.pop() if len(paths) == 1 else None

    def _lines(self, width: int = _text.WIDTH, indent: int = 0) -> list[str]:
        """The text's lines."""
        shown, notes = list(range(len(self.heads))), list(self._notes)
        shared = self._shared_keys()
        if shared is not None:
            shown.remove(1)
            notes.insert(0, f"the keys of each call: {shared}")
        whole = [self.heads, *self.rows]
        sizes = [max(map(_text.size, column)) for column in zip(*whole, strict=True)]
        sizes[:_WORDS] = [min(size, _ROOM) for size in sizes[:_WORDS]]
        left_out = []
        for name in _OPTIONAL:
            if sum(sizes[at] + 2 for at in shown) - 2 + indent <= width:
                break
            at = self.heads.index(name) if name in self.heads else -1
            if at in shown and name != self._sort:
                shown.remove(at)
                left_out.append(name)
        if left_out:
            names = ", ".join(name for name in self.heads if name in left_out)
            notes.append(f"no room for: {names} (see rows)")
        heads, *rows = ([row[at] for at in shown] for row in whole)
        numbers = [place for place, at in enumerate(shown) if at >= _WORDS]
        lines = _text.table(rows, heads, right=numbers, width=width, indent=indent)
        below = (" " * indent + note for note in notes)
        return [*(lines if rows else []), *_text.folded(below, width=width)]

    def __str__(self) -> str:
        return "\n".join(self._lines())

    __repr__ = __str__

    def __len__(self) -> int:
        return len(self.rows)

    def _repr_html_(self) -> str:
        numbers = range(_WORDS, len(self.heads))
        table = _html.table(self.heads, self.rows, numbers) if self.rows else ""
        return _html.page("", table, _html.notes(self._notes))


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
        """The recorded events, in the order in which they began.

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
        return ProfileTable(*self._table(sort, limit), sort)

    def chrome_trace(self) -> dict[str, Any]:
        """Return the recording in the Trace Event Format, as Perfetto and chrome://tracing read it.

        Source: "Trace Event Format", the Chromium project.
        """
        trace: dict[str, Any] = json.loads(self._chrome_trace())
        return trace

    def save(self, path: str | PathLike[str]) -> None:
        """Write the Chrome trace to a file; open it at ui.perfetto.dev or chrome://tracing."""
        text = self._chrome_trace()
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def __repr__(self) -> str:
        state = "open" if self.is_open else "closed"
        count, time, device = self._event_count, 1e3 * self.total_time, self._device_time
        on_devices = "" if device is None else f", {1e3 * device:.3f} ms on devices"
        return f"<profile ({state}, {count} events, {time:.3f} ms{on_devices})>"

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


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
