"""Graphs to plan, and what helper processes there are."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

import keyfold as kf
from tests.helpers.paths import ROOT

STAND_IN = Path(__file__).with_name("stand_in.py")

READ = "read from the plans in"
UNUSED = "the kept plan isn't used: "
NOT_KEPT = "the plan isn't kept: "

# Of the shipped cards the one for which libcudnn compiles `product` quickest.
CARD = "a100"


def product(size: int = 64) -> kf.cudnn.Graph:
    """A product of matrices: 0.2 s to plan for CARD."""
    g = kf.cudnn.Graph(io_data_type="float16", name="product")
    a, b = g.tensor(dim=[1, size, 64], name="a"), g.tensor(dim=[1, 64, 64], name="b")
    g.matmul(a, b).set_output(True).set_name("c")
    return g


def build(graph: kf.cudnn.Graph | None = None, device: Any = CARD, **more: Any) -> kf.cudnn.Plan:
    """The plan of a graph that isn't in the process's cache."""
    kf.cudnn.plan_cache.clear()
    return (graph or product()).build(device=device, **more)


def use(monkeypatch: pytest.MonkeyPatch, program: list[str]) -> None:
    """Have helpers run another program."""
    base = kf.cudnn._library.base

    def other(card: str | None = None, ordinal: int = 0) -> dict[str, Any]:
        return base(card, ordinal) | {"helper": program}

    monkeypatch.setattr(kf.cudnn._library, "base", other)


def idle() -> list[int]:
    """The idle helpers of the present options."""
    return kf._core._cudnn_helpers(kf.cudnn._library.base())[2]


def started() -> int:
    """How many helpers the present options have started."""
    return kf._core._cudnn_helpers(kf.cudnn._library.base())[1]


def children() -> set[int]:
    """The processes that this one started and that haven't ended."""
    found = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(parent) == os.getpid() and state != "Z":
            found.add(int(entry.name))
    return found


def ended(process: int) -> bool:
    """Whether a process is a zombie or gone."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def wait_for(what: Any, seconds: float = 60, pause: float = 0.01) -> None:
    """Wait until a function returns something true."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, f"{what} isn't true after {seconds} s"
        time.sleep(pause)


# The beginning of code for another process, whose first argument is the folder of plans.
_BEGIN = """
import sys
import keyfold as kf
from tests.cudnn.planning import *
folder = sys.argv[1]
kf.cudnn.plan_cache.keep_in(folder or None)
"""
_BEGIN_STAND_IN = f"""
base = kf.cudnn._library.base
program = [sys.executable, "-S", {str(STAND_IN)!r}, "plan"]
kf.cudnn._library.base = lambda *a: base(*a) | {{"helper": program}}
"""


def start(
    code: str, folder: Path | str = "", *, stand_in: bool = False, **environment: str
) -> subprocess.Popen[str]:
    """Run code in a Python of its own, which keeps plans in the folder."""
    begin = _BEGIN + _BEGIN_STAND_IN * stand_in
    words = [sys.executable, "-c", begin + textwrap.dedent(code), str(folder)]
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | environment
    pipe = subprocess.PIPE
    return subprocess.Popen(words, env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def run(code: str, folder: Path | str = "", *, stand_in: bool = False, **environment: str) -> str:
    """Run such code to its end, and return what it prints."""
    process = start(code, folder, stand_in=stand_in, **environment)
    out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return out
