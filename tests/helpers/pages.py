"""The Python blocks of a page: run, and compared with what the page shows.

A block below the line `<!-- needs libcudnn -->` runs where the real libcudnn plans; no other block
of the page depends on it.

What a block prints is shown by the text block that follows it, or else by the comments at the ends
of its lines with `print`. There `...` stands for what differs from machine to machine: a part of a
line, or as a line of its own any lines.
"""

import contextlib
import io
import re
import tokenize
from typing import NamedTuple

import pytest

from tests.helpers.paths import ROOT

BLOCK = re.compile(
    r"^(<!-- needs libcudnn -->\n)?```python\n(.*?)^```(?:\n+```text\n(.*?)^```)?",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    source: str
    """Moved down to its line in the page."""
    shown: str
    """The output that the page promises."""
    needs_libcudnn: bool


def blocks(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for match in BLOCK.finditer(text):
        needs, source, shown = match.groups()
        lines = "\n" * text.count("\n", 0, match.start(2))
        shown = comments(source) if shown is None else shown
        yield Block(lines + source, shown, needs is not None)


def comments(source):
    """The comments behind calls of `print`."""
    found, prints = "", False
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if prints and token.type == tokenize.COMMENT:
            found += token.string.removeprefix("# ") + "\n"
        prints = (prints or token.string == "print") and token.type != tokenize.NEWLINE
    return found


def same(shown, printed):
    """Whether a text was printed, `...` aside."""
    pattern = ""
    for line in shown.strip().splitlines():
        if line.strip() == "...":
            pattern += r"(?:.*\n)*?"
        else:
            pattern += ".*".join(map(re.escape, narrow(line).split("..."))) + r"\n"
    lines = [narrow(line) + "\n" for line in printed.strip().splitlines()]
    return re.fullmatch(pattern, "".join(lines)) is not None


def narrow(line):
    """A line with its columns moved together: their widths depend on places and times."""
    return re.sub(r"-{3,}", "---", re.sub(r"(?<=\S) +", " ", line.rstrip()))


def run(block, page, names):
    """Runs a block and compares what it prints with what the page shows."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block.source, str(ROOT / page), "exec"), names)
    if not same(block.shown, printed.getvalue()):
        pytest.fail(f"{page} shows\n{block.shown}\nand the block printed\n{printed.getvalue()}")
