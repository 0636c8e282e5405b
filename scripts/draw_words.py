"""Draw comments and names at random from crates/ and python/, to review how they read.

    python scripts/draw_words.py --seed 13 --comments 10 --names 10

A comment is a paragraph of `//`, `///`, `//!` or `#` lines, or of a docstring. A name is that of a
function, a class, a type, a trait or a module. The same seed draws the same words from the same
tree.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
RUST_COMMENT = re.compile(r"\s*(//[/!]?)(?!/) ?(.*)")
RUST_NAME = re.compile(
    r"\s*(?:pub(?:\([^)]*\))? )?(?:const )?(?:async )?(?:unsafe )?(?:extern \"[^\"]*\" )?"
    r"(fn|struct|enum|trait|type|mod|union|macro_rules!) ([A-Za-z_]\w*)"
)


class Word(NamedTuple):
    """A comment or a name with its place."""

    file: Path
    line: int
    text: str


def paragraphs(file: Path, lines: list[tuple[int, str, str]]) -> Iterator[Word]:
    """Join numbered lines with their marks (`//`, `#`) to paragraphs; code blocks are left out."""
    first, mark, words, fenced, last = 0, "", [], False, 0
    for number, kind, text in [*lines, (0, "", "")]:
        fence = text.strip().startswith("```")
        new = number != last + 1 or kind != mark or fence or fenced or not text.strip()
        if new or re.match(r"\s*([-*] |\d+\. |#|\|)", text):
            if words:
                yield Word(file, first, " ".join(words))
            first, words = number, []
        fenced = fenced != fence
        last, mark = number, kind
        if text.strip() and not fence and not fenced and number:
            words.append(text.strip())


def rust(file: Path) -> tuple[list[Word], list[Word]]:
    """Return the comments and the names of a Rust file."""
    comments, names = [], []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if found := RUST_COMMENT.fullmatch(line):
            comments.append((number, found[1], found[2]))
        elif found := RUST_NAME.match(line):
            names.append(Word(file, number, f"{found[1]} {found[2]}"))
    return list(paragraphs(file, comments)), names


def python(file: Path) -> tuple[list[Word], list[Word]]:
    """Return the comments, docstrings and names of a Python file."""
    with file.open("rb") as source:
        tokens = [t for t in tokenize.tokenize(source.readline) if t.type == tokenize.COMMENT]
    comments = list(paragraphs(file, [(t.start[0], "#", t.string.lstrip("#! ")) for t in tokens]))
    names = []
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if not isinstance(node, ast.Module):
                kind = "class" if isinstance(node, ast.ClassDef) else "def"
                names.append(Word(file, node.lineno, f"{kind} {node.name}"))
            if ast.get_docstring(node) and isinstance(node.body[0], ast.Expr):
                start, text = node.body[0].lineno, ast.get_docstring(node) or ""
                lines = [(start + n, '"', line) for n, line in enumerate(text.splitlines())]
                code = re.compile(r"\s*(>>>|\.\.\. )")
                comments += paragraphs(file, [line for line in lines if not code.match(line[2])])
    return comments, names


def collect() -> tuple[list[Word], list[Word]]:
    """Return all comments and all names of the tree, in the order of the files."""
    comments: list[Word] = []
    names: list[Word] = []
    for folder, suffix, read in (("crates", "rs", rust), ("python", "py", python)):
        for file in sorted((ROOT / folder).rglob(f"*.{suffix}")):
            found = read(file)
            comments += found[0]
            names += found[1]
            module = file.parent.name if file.stem in ("mod", "__init__") else file.stem
            names.append(Word(file, 1, f"module {module}"))
    return comments, names


def main() -> None:
    """Print the drawn comments and names with their places."""
    parser = argparse.ArgumentParser(description="Draw comments and names at random.")
    parser.add_argument("--seed", type=int, default=13)
    parser.add_argument("--comments", type=int, default=10)
    parser.add_argument("--names", type=int, default=10)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    for title, words, count in zip(
        ("comments", "names"), collect(), (options.comments, options.names), strict=True
    ):
        print(f"{count} of {len(words)} {title}, seed {options.seed}")
        for word in draw.sample(words, count):
            print(f"  {word.file.relative_to(ROOT)}:{word.line}\n    {word.text}")


if __name__ == "__main__":
    main()
