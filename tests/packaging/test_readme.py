"""The Python blocks of README.md and docs: they run, and print what the page shows.

What a block prints is shown by the text block that follows it, or else by the comments at the ends
of its lines with `print`. There `...` stands for what differs from machine to machine: a part of a
line, or as a line of its own any lines.
"""

import contextlib
import importlib.util
import io
import os
import re
import shutil
import subprocess
import sys
import tokenize
from typing import NamedTuple

import pytest

import keyfold as kf
from tests.helpers.paths import ROOT

PAGES = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "examples/native/README.md",
    *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md")),
]
BLOCK = re.compile(r"^```python\n(.*?)^```(?:\n+```text\n(.*?)^```)?", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    source: str
    """Moved down to its line in the page."""
    shown: str
    """The output that the page promises."""


def blocks(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for match in BLOCK.finditer(text):
        source, shown = match.groups()
        lines = "\n" * text.count("\n", 0, match.start(1))
        yield Block(lines + source, comments(source) if shown is None else shown)


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


def with_blocks():
    return [page for page in PAGES if (ROOT / page).exists() and any(blocks(page))]


@pytest.mark.parametrize("page", with_blocks())
def test_the_blocks_of_a_page_print_what_it_shows(page, c_library, tmp_path, monkeypatch):
    if page == "docs/torch.md" and importlib.util.find_spec("torch") is None:
        pytest.skip(f"{page} needs PyTorch, which isn't installed")
    # Pages that load the example's library expect it where they were told to compile it.
    shutil.copy(c_library, tmp_path / "libscale.so")
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "shop"}
    if page == "docs/native-kernels.md":
        # Its blocks continue the example beside the C source.
        for block in blocks("examples/native/README.md"):
            run(block, "examples/native/README.md", names)
    for block in blocks(page):
        run(block, page, names)


def test_the_comparison_of_outputs_finds_differences():
    assert same("a ... c\n...\nend", "a bb c\n1\n2\nend\n")
    assert not same("a ... c", "a\nb c")
    assert not same("[2. 2.]", "[2. 3.]")
    assert not same("", "more")
    assert comments("print(1)  # 1\nx = 2  # two\nprint(\n    2,\n)  # 2\n") == "1\n2\n"


def test_the_blocks_of_the_readme_go_into_the_plain_prompt():
    """Pasted line by line: no block ends a statement that the prompt still reads."""
    source = "\n\n".join(block.source.strip() + "\n" for block in blocks("README.md"))
    done = subprocess.run(
        [sys.executable, "-i", "-q"],
        input=source,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHON_BASIC_REPL": "1", "PYTHONSTARTUP": ""},
        check=False,
    )
    assert "Error" not in done.stderr, done.stderr
    assert "[2. 2. 2.]" in done.stdout


def test_the_picture_in_the_readme_has_every_key_in_order():
    picture = re.search(r"```text\n(.*?Tracer.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    names = [key.name for key in reversed(list(kf.DispatchKey)) if key.name in vars(kf.DispatchKey)]
    shown = [word for word in re.findall(r"\w+", picture[1]) if word in names]
    assert shown == names


@pytest.mark.parametrize("page", [page for page in PAGES if (ROOT / page).exists()])
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        if "://" not in target and not target.startswith("mailto:"):
            assert ((ROOT / page).parent / target).exists(), f"{page} links to {target}"
