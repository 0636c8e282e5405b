"""Printing for the commands: headings, colour, a progress bar, a status line.

Colour and the in-place bar appear on a terminal only; a pipe or a file gets plain lines. `NO_COLOR`
(https://no-color.org) and `TERM=dumb` turn colour off.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from types import TracebackType
from typing import TextIO

from keyfold._show._text import WIDTH

__all__ = ["Progress", "Status", "heading", "paint", "width"]

_STYLES = {"bold": "1", "dim": "2", "green": "32", "cyan": "36", "red": "31"}


def width(stream: TextIO | None = None) -> int:
    """Return how many characters a line may have: the terminal's width, at most 80."""
    stream = sys.stdout if stream is None else stream
    return min(shutil.get_terminal_size().columns, WIDTH) if stream.isatty() else WIDTH


def paint(text: str, *styles: str, stream: TextIO | None = None) -> str:
    """Return the text in colour where the stream shows colour, else as it is."""
    stream = sys.stdout if stream is None else stream
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    if plain or not stream.isatty():
        return text
    return f"\x1b[{';'.join(_STYLES[style] for style in styles)}m{text}\x1b[0m"


def heading(text: str) -> str:
    """Return a section's title, with an empty line before it and a rule under it."""
    return f"\n{paint(text, 'bold', 'cyan')}\n{paint('-' * len(text), 'dim')}"


class Progress:
    """A progress bar on standard error, as a context manager.

    On a terminal it is redrawn in place, at most 20 times a second, and wiped at the end. Elsewhere
    it prints four plain lines in all, so that a log stays readable.
    """

    _INTERVAL = 0.05
    _PLAIN_LINES = 4

    def __init__(self, total: int, label: str, *, quiet: bool = False) -> None:
        """Begin at 0.

        Args:
            total: how many steps there are.
            label: what is going on, in a word or two.
            quiet: whether to print nothing at all.
        """
        self._total = total
        self._label = label
        self._quiet = quiet
        self._stream = sys.stderr
        self._live = not quiet and self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._drawn = 0.0
        self._cells = 40

    def __enter__(self) -> Progress:
        # Output printed earlier has to stand before the bar, where both go to one file.
        sys.stdout.flush()
        return self

    def update(self, done: int, note: str = "") -> None:
        """Show that `done` steps of the total are behind us.

        Args:
            done: the number of finished steps.
            note: a few words on how it goes, shown behind the bar.
        """
        if self._quiet:
            return
        if not self._live:
            every = max(1, self._total // self._PLAIN_LINES)
            if done % every == 0 and done // every <= self._PLAIN_LINES:
                percent = 100 * done // self._total
                print(f"  {self._label} {percent:3d} %  {note}", file=self._stream, flush=True)
            return
        now = time.monotonic()
        if now - self._drawn < self._INTERVAL and done < self._total:
            return
        self._drawn = now
        tail = f"{100 * done // self._total:3d} %  {note}"
        room = width(self._stream) - len(self._label) - len(tail) - 6
        # Never wider than it was: a bar that grows and shrinks is restless.
        self._cells = cells = max(5, min(self._cells, room))
        full = cells * done // self._total
        bar = paint("━" * full, "green", stream=self._stream) + paint(
            "─" * (cells - full), "dim", stream=self._stream
        )
        self._write(f"\r  {self._label} {bar} {tail}\x1b[K")

    def _write(self, text: str) -> None:
        encoding = self._stream.encoding or "ascii"
        try:
            text.encode(encoding)
        except UnicodeEncodeError:
            text = text.replace("━", "#").replace("─", "-")
        self._stream.write(text)
        self._stream.flush()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._live:
            # Wiped when it went well, kept where it stood when it did not.
            self._write("\n" if kind is not None else "\r\x1b[K")


class Status:
    """A line on standard error that says which step is running, as a context manager.

    For work whose number of steps isn't known before. It is there on a terminal only, and wiped at
    the end.
    """

    def __init__(self) -> None:
        self._stream = sys.stderr
        self._live = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._shown = ""

    def __enter__(self) -> Status:
        sys.stdout.flush()
        return self

    def update(self, done: int, total: int, what: str) -> None:
        """Show the step that begins: the form of `Graph.build(progress=...)`."""
        # A long step is told again and again.
        if self._live and what != self._shown:
            self._shown = what
            self._stream.write(f"\r  {what[: width(self._stream) - 3]}\x1b[K")
            self._stream.flush()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._live:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
