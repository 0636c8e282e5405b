"""A guide that is followed to the letter: files, changes of files, and commands with their output.

A file's text is the block after a line with its name in backticks; a `diff` block there has changes
of it. A `sh` block is a command, and a `text` block after it is its output.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.helpers.plugins import CARGO

BLOCK = re.compile(
    r"(?:`([\w./]+)`:\n\n)?^```(\w+)\n(.*?)^```\n(?:\n```text\n(.*?)^```)?", re.M | re.S
)


class Step(NamedTuple):
    """A file with its text or changes, or a command with its output."""

    file: str | None
    text: str
    is_change: bool
    command: str | None
    shown: str | None


def steps(page: str) -> Iterator[Step]:
    """The blocks of a page, in order."""
    for file, kind, text, shown in BLOCK.findall(page):
        command = text.strip() if kind == "sh" else None
        assert bool(file) != bool(command), f"neither a file nor a command:\n{text}"
        yield Step(file or None, text, kind == "diff", command, shown if command else None)


class Guide:
    """Somebody who follows a guide in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        # Flags, folders and profiles of the host's own build aren't the reader's.
        hosts = ("RUSTFLAGS", "TARGET_DIR", "CARGO_PROFILE_")
        kept = {k: v for k, v in os.environ.items() if not any(word in k for word in hosts)}
        tools = [str(Path(sys.executable).parent), str(Path(CARGO).parent), kept.get("PATH", "")]
        self.environment = kept | {"PATH": os.pathsep.join(tools), "CARGO_TERM_COLOR": "never"}

    def take(self, step: Step) -> str:
        """Does a step, and returns what its command prints."""
        if step.command is None:
            path = self.folder / str(step.file)
            before = path.read_text() if step.is_change else ""
            path.write_text(changed(before, step.text) if step.is_change else step.text)
            return ""
        if step.command.startswith("cd "):
            self.folder /= step.command.removeprefix("cd ")
            return ""
        done = subprocess.run(
            step.command,
            shell=True,
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.stdout


def changed(text: str, changes: str) -> str:
    """Applies changes, separated by lines `@@`: lines that stay, go (`-`) and come (`+`)."""
    for change in re.split(r"^@@\n", changes, flags=re.M):
        lines = change.splitlines(keepends=True)
        before = "".join(line[1:] for line in lines if line[0] != "+")
        after = "".join(line[1:] for line in lines if line[0] != "-")
        if not before:
            text += after
            continue
        assert text.count(before) == 1, (
            f"these lines are there {text.count(before)} times:\n{before}"
        )
        text = text.replace(before, after)
    return text
