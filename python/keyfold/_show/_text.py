"""Text for people: tables and pairs of head and text, at most 80 columns wide.

No cell is cut off: what is too long for its column goes on in the next line, below its beginning.
"""

from __future__ import annotations

import contextlib
import os
import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Sequence

__all__ = ["WIDTH", "counted", "folded", "pairs", "printable", "shorten", "size", "table", "wrap"]

WIDTH = 80
"""How many columns a text may have."""

_GAP = "  "
# The least width that a column is narrowed to.
_LEAST = 8
# The longest word that a column is kept wide enough for, while other columns can be narrowed.
_WORD = 32
# Characters that a word may be broken behind, folders first, if that isn't in its first quarter.
_BREAKS = "/,_"
# A new word in a name such as `CompositeExplicitAutograd`.
_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))


def size(text: str) -> int:
    """Return how many columns a text takes: two for a wide character, none for a combining one."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(unicodedata.combining(char) > 0 for char in text)


def counted(number: int, what: str) -> str:
    """Return `1 row` or `2 rows`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def printable(text: str) -> str:
    """Return a text without line breaks and other characters that move the cursor."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def shorten(text: str) -> str:
    """Return a text with the long beginnings of kernels' and files' names taken off.

    A Python kernel loses its module, since its file stands beside it. A file below the working
    directory is named from there, one of an installed package from its site-packages directory, and
    one in a temporary directory by its name; another one that is far down by its last folder.
    """
    text = re.sub(r"[\w.<>]+\.(<?\w+>?) \(Python, ", r"\1 (Python, ", text)
    text = text.replace(f"{_PACKAGE}{os.sep}", "")
    with contextlib.suppress(OSError):  # The working directory may have been removed.
        text = text.replace(f"{os.getcwd()}{os.sep}", "")
    text = re.sub(r"(?<![\w.])/[^\s:()]*/(?:site-packages/|tmp[\w]*/)", "", text)
    return re.sub(r"(?<![\w.])/(?:[^\s:()/]+/){2,}([^\s:()/]+/[^\s:()/]+)", r".../\1", text)


def _fitting(word: str, room: int) -> int:
    """How many characters of a word go into the room, broken where it reads best."""
    taken = columns = 0
    for char in word:
        columns += size(char)
        if columns > room and taken:
            break
        taken += 1
    if taken == len(word):
        return taken
    ends = [word.rfind(char, taken // 4, taken) + 1 for char in _BREAKS]
    capitals = [found.start() for found in _CAPITAL.finditer(word, taken // 4, taken + 1)]
    return next(filter(None, [*ends, *capitals[::-1]]), taken)


def wrap(text: str, room: int, hang: int = 0) -> list[str]:
    """Return a text in lines of at most so many columns; at least one.

    Args:
        text: the text, broken at spaces where that is possible.
        room: the columns.
        hang: by how much the second line and those after it are indented.
    """
    if size(text) <= room:
        return [text]
    if hang:
        first, *_ = wrap(text, room)
        rest = wrap(text[len(first) :].lstrip(" "), room - hang)
        return [first, *(" " * hang + line for line in rest)]
    lines, room = [""], max(2, room)
    for gap, word in re.findall(r"( *)([^ ]+)", text):
        if size(lines[-1] + gap + word) <= room:
            lines[-1] += gap + word
            continue
        if lines[-1]:
            lines.append("")
        while size(word) > room:
            end = _fitting(word, room)
            lines[-1], word = word[:end], word[end:]
            lines.append("")
        lines[-1] = word
    return lines


def _longest_word(text: str) -> int:
    """The size of the longest part of a text that wrapping doesn't break."""
    return max(map(size, re.split(f" |(?<=[{_BREAKS}])", text)))


def _widths(
    rows: Sequence[Sequence[str]], room: int, paths: Iterable[int], hang: int
) -> list[int] | None:
    """The columns' widths, the widest narrowed until all fit; None where they can't.

    Columns are narrowed to their longest words first, and through words where that isn't enough.
    """
    columns = list(zip(*rows, strict=True))
    widths = [max(map(size, column)) for column in columns]
    room -= len(_GAP) * (len(widths) - 1)
    for at in paths:
        widths[at] -= max(0, min(sum(widths) - room, widths[at] - 2 * _LEAST))
    words = [min(max(map(_longest_word, column)) + hang, _WORD) for column in columns]
    for least in ([max(word, _LEAST) for word in words], [_LEAST] * len(widths)):
        while (excess := sum(widths) - room) > 0:
            wide = [at for at, width in enumerate(widths) if width > least[at]]
            if not wide:
                break
            # Of several that are as wide, the last one goes first.
            at = max(wide, key=lambda at: (widths[at], at))
            next_to_it = max((width for width in widths if width < widths[at]), default=0)
            widths[at] -= min(excess, max(1, widths[at] - max(next_to_it, least[at])))
    return widths if excess <= 0 else None


def _line(cells: Iterable[str], widths: Sequence[int], right: Collection[int]) -> str:
    padded = []
    for at, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        space = " " * (width - size(cell))
        padded.append(space + cell if at in right else cell + space)
    return _GAP.join(padded).rstrip()


def table(
    rows: Iterable[Sequence[str]],
    head: Sequence[str] | None = None,
    *,
    right: Collection[int] = (),
    width: int = WIDTH,
    indent: int = 0,
    hang: int = 0,
    paths: Collection[int] = (),
) -> list[str]:
    """Return a table's lines, those of its head and a rule first.

    Args:
        rows: the cells, all rows of one length.
        head: the columns' titles.
        right: the columns that are aligned to the right, for numbers.
        width: how many columns of text there are.
        indent: with how many spaces each line begins.
        hang: by how much the second line of a cell, and those after it, are indented.
        paths: the columns of files' names, which are narrowed before others.
    """
    body = [[printable(cell) for cell in row] for row in rows]
    whole = body if head is None else [list(head), *body]
    if not whole:
        return []
    margin = " " * indent
    widths = _widths(whole, width - indent, paths, hang)
    if widths is None:
        # More columns than a line has room for: each row is shown as pairs.
        titles = list(head) if head is not None else [""] * len(whole[0])
        blocks = [pairs(zip(titles, row, strict=True), width=width, indent=indent) for row in body]
        return [line for block in blocks for line in [*block, ""]][:-1]
    lines = []
    for number, row in enumerate(whole):
        parts = [wrap(cell, room, hang) for cell, room in zip(row, widths, strict=True)]
        for at in range(max(map(len, parts))):
            cells = [part[at] if at < len(part) else "" for part in parts]
            lines.append(margin + _line(cells, widths, right))
        if number == 0 and head is not None:
            lines.append(margin + _GAP.join("-" * room for room in widths))
    return lines


def pairs(rows: Iterable[tuple[str, str]], *, width: int = WIDTH, indent: int = 2) -> list[str]:
    """Return lines of a head and a text each; long texts go on below their beginning.

    Args:
        rows: each head with its text, which may have several lines.
        width: how many columns there are.
        indent: with how many spaces each line begins.
    """
    body = [(printable(head), text) for head, text in rows]
    room = width - indent - len(_GAP)
    column = min(max((size(head) for head, _ in body), default=0), room // 2)
    lines = []
    for head, text in body:
        heads = wrap(head, column)
        texts = [
            line
            for whole in text.splitlines() or [""]
            for line in wrap(printable(whole), room - column)
        ]
        for at in range(max(len(heads), len(texts))):
            cells = [part[at] if at < len(part) else "" for part in (heads, texts)]
            lines.append(" " * indent + _line(cells, (column, room - column), ()))
    return lines


def folded(lines: Iterable[str], *, width: int = WIDTH, hang: int = 4) -> Iterator[str]:
    """Yield lines; a line that is too long goes on in the next, indented by `hang` spaces more."""
    for line in lines:
        inside = printable(line.lstrip(" "))
        margin = " " * (len(line) - len(line.lstrip(" ")))
        yield from (margin + part for part in wrap(inside, width - len(margin), hang))
