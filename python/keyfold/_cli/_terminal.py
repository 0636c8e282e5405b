"""What the commands print with: headings, aligned columns, a progress bar.

Colour and the in-place bar appear on a terminal only; a pipe or a file gets plain lines. `NO_COLOR`
(https://no-color.org) and `TERM=dumb` turn colour off.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

__all__ = [
    "Progress",
    "columns",
    "fold",
    "heading",
    "paint",
    "profile_lines",
    "short",
    "table_lines",
    "width",
]

_MAX_WIDTH = 100
_STYLES = {"bold": "1", "dim": "2", "green": "32", "cyan": "36", "red": "31"}


def width(stream: TextIO | None = None) -> int:
    """Return how many characters a line may have: the terminal's width, at most 100."""
    stream = sys.stdout if stream is None else stream
    return min(shutil.get_terminal_size().columns, _MAX_WIDTH) if stream.isatty() else _MAX_WIDTH


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


def columns(
    rows: Iterable[Sequence[str]], head: Sequence[str] | None = None, right: Iterable[int] = ()
) -> list[str]:
    """Return rows of cells as aligned lines, indented by two.

    Args:
        rows: the cells, all rows of one length.
        head: the columns' titles.
        right: the columns that are aligned to the right, for numbers.
    """
    body = [list(row) for row in rows]
    whole = body if head is None else [list(head), *body]
    if not whole:
        return []
    widths = [max(len(row[i]) for row in whole) for i in range(len(whole[0]))]
    flush = set(right)

    def line(row: Sequence[str]) -> str:
        cells = (
            cell.rjust(size) if i in flush else cell.ljust(size)
            for i, (cell, size) in enumerate(zip(row, widths, strict=True))
        )
        return f"  {'  '.join(cells)}".rstrip()

    lines = [line(row) for row in body]
    return lines if head is None else [paint(line(head), "dim"), *lines]


def short(text: str) -> str:
    """Return a text with the long beginnings of kernels' and files' names taken off.

    A Python kernel loses its module, since its file stands beside it. A file below the working
    directory is named from there, one of an installed package from its site-packages directory, and
    one in a temporary directory by its name.
    """
    text = re.sub(r"[\w.]+\.(\w+) \(Python, ", r"\1 (Python, ", text)
    text = text.replace(f"{Path(__file__).parents[2]}{os.sep}", "")
    text = text.replace(f"{Path.cwd()}{os.sep}", "")
    return re.sub(r"(?<![\w.])/[^\s:()]*/(?:site-packages/|tmp[\w]*/)", "", text)


def fold(text: str) -> list[str]:
    """Return a text's lines, those that are too long folded under their second column."""
    lines = []
    for line in text.splitlines():
        # The second column begins after the first run of spaces behind a word.
        column = re.match(r"\s*\S+(?: \S+)*\s{2,}", line)
        indent = " " * (column.end() if column else 6)
        lines += textwrap.wrap(
            line,
            width(),
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]
    return lines


def profile_lines(table: Any) -> list[str]:
    """Return a profile's table as lines, without the columns that there is no room for."""
    whole = [table.heads, *table.rows]
    for title in ("allocated", "bytes", "total", "mean", "keys"):
        if sum(2 + max(map(len, column)) for column in zip(*whole, strict=True)) <= width():
            break
        place = whole[0].index(title)
        whole = [[*row[:place], *row[place + 1 :]] for row in whole]
    head, *rows = whole
    numbers = [i for i, title in enumerate(head) if title not in ("operator", "keys")]
    # Its text is a head, a line below it and the rows, where there are any; then notes.
    notes = str(table).splitlines()[2 + len(rows) if rows else 0 :]
    return [*(columns(rows, head, numbers) if rows else []), *(f"  {note}" for note in notes)]


def table_lines(table: Mapping[str, Any]) -> list[str]:
    """Return an operator's dispatch table as lines: key, kernel, its place, registered at.

    Where they are too long, the places lose their beginnings.
    """
    rows = []
    for key, entry in table.items():
        # "name (language, place)": the place's ending tells the language.
        name, _, origin = short(entry.origin).rpartition(" (")
        place = origin.rstrip(")").partition(", ")[2]
        # Which alias or fallback a kernel came by says more than "the key itself".
        how = "" if entry.rule in ("Direct", entry.registered_at) else f" ({entry.rule.lower()})"
        rows.append((key, name, place, entry.registered_at + how))
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(4)]
    room = max(16, width() - 8 - (widths[0] + widths[1] + max(widths[3], len("registered at"))))
    rows = [(key, name, _end(place, room), where) for key, name, place, where in rows]
    return columns(rows, ("key", "kernel", "where", "registered at"))


def _end(place: str, room: int) -> str:
    """Return the end of a file's name that fits, from a directory on if that is possible."""
    if len(place) <= room:
        return place
    tail = place[len(place) - room + 3 :]
    whole = tail.partition("/")[1:]
    return f"...{''.join(whole) or tail}"


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
        # What was printed before stands before the bar, where both go to one file.
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
