"""Every case of the probe: its id, and a function that builds its graph."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

from keyfold.cudnn import Graph
from tests.cudnn.probe import (
    attention,
    conv,
    matmul,
    move,
    norm,
    other,
    pointwise,
    reduction,
    resample,
)

HERE = Path(__file__).parent
MODULES = (resample, norm, reduction, pointwise, matmul, conv, move, other, attention)


def cases() -> Iterator[tuple[str, Callable[[], Graph]]]:
    """Each case's id, `group/op/dtype/layout`, and what builds its graph, which isn't validated."""
    for module in MODULES:
        for case in module.CASES:
            yield from case.each()


def planned() -> dict[str, list[str]]:
    """The ids that the real libcudnn planned, with the profiles on which it did."""
    found: dict[str, list[str]] = {}
    table = json.loads((HERE / "planned.json").read_text())["planned"]
    for op, rows in table.items():
        for profiles, layouts in rows.items():
            for layout in layouts.split():
                found.setdefault(f"{op}/{layout}", []).extend(profiles.split())
    return found


def refused() -> dict[str, str]:
    """The ids that were refused on an H100 for layout, rank or order alone, with which of these."""
    table: dict[str, str] = json.loads((HERE / "refused.json").read_text())["refused"]
    return table
