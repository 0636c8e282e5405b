"""Counts the instructions of a call with valgrind's callgrind.

The whole benchmark runs once under valgrind, which writes a file at each mark. A row runs with two
lengths: the difference is what the calls alone cost, whatever surrounds the loop.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import fastcall
from timing import Row, Timing

SHORT, LONG = 1000, 3000
EMPTY = "empty loop"

Groups = list[tuple[str, list[Row]]]


class CannotCountError(Exception):
    """Instructions can't be counted here; the message says why."""


def run_rows(groups: Groups) -> None:
    """Runs every row with both lengths, with a mark after each: for the process under valgrind."""
    marks = fastcall.load()
    marks.start()
    for title, rows in [(EMPTY, [Row(EMPTY, "pass")]), *groups]:
        # All of them first: what one row turns on for the process, it does for the others, too.
        for row in rows:
            row.time(200)
        for row in rows:
            for calls in (SHORT, LONG):
                marks.mark("warm-up")
                row.time(calls)
                marks.mark(f"{title} | {row.name} | {calls}")


def count(script: Path, only: str, keep: Path | None = None) -> dict[str, float]:
    """Instructions per call, by `title | name`, net of the empty loop.

    Args:
        script: what runs under valgrind, with `--under-valgrind`.
        only: passed on to it.
        keep: a folder for callgrind's files, to be looked at with callgrind_annotate.

    Raises:
        CannotCountError: valgrind or its header is missing, or the run fails.
    """
    if shutil.which("valgrind") is None:
        raise CannotCountError("valgrind is not installed")
    try:
        if not fastcall.load().HAVE_MARKS:
            raise CannotCountError("valgrind/callgrind.h is missing")
    except fastcall.CannotBuildError as reason:
        raise CannotCountError(str(reason)) from reason
    with tempfile.TemporaryDirectory(prefix="keyfold-callgrind-") as folder:
        files = Path(keep or folder)
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=no"]
        command += [f"--callgrind-out-file={files / 'out'}", "--quiet"]
        command += [sys.executable, str(script), "--under-valgrind", "--only", only]
        # One thread and one hash seed: the same instructions every time.
        environment = os.environ | {"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or ["no message"]
            raise CannotCountError(f"valgrind gave up: {lines[-1]}")
        totals: dict[str, dict[int, int]] = {}
        for file in files.glob("out.*"):
            head = file.read_text(errors="replace")
            name = re.search(r"^desc: Trigger: Client Request: (.*) \| (\d+)$", head, re.MULTILINE)
            total = re.search(r"^(?:totals|summary): (\d+)", head, re.MULTILINE)
            if name and total:
                totals.setdefault(name[1], {})[int(name[2])] = int(total[1])
    each = {name: (of[LONG] - of[SHORT]) / (LONG - SHORT) for name, of in totals.items()}
    loop = each.pop(f"{EMPTY} | {EMPTY}")
    return {name: per_call - loop for name, per_call in each.items()}


def timings(title: str, rows: list[Row], counted: dict[str, float]) -> list[Timing]:
    """A group's counts in the shape of timings."""
    found = [(row, counted.get(f"{title} | {row.name}")) for row in rows]
    return [
        Timing(row, each / row.per, each / row.per, LONG) for row, each in found if each is not None
    ]
