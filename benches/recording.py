"""The rows of bench_pipeline.py on one element: an operation recorded, beside the eager call.

A result is dropped before the flush, so the pipeline computes nothing; its end, which discards the
record, is outside of the time. Chains that `kf.fuse` replays, too.
"""

from __future__ import annotations

from typing import Any

import chains
import numpy as np
import pipeline_peers
from layers import Group
from timing import Row

import keyfold as kf

# At most so many times the eager call's time.
RECORDED = 1.0
# Nanoseconds that replaying takes at most: by itself, and for each operation.
REPLAY, REPLAY_EACH = 2_000.0, 100.0
# Calls in one record, well below the limit that would flush it.
CALLS = 1_000


def ones(*shape: int) -> Any:
    """A tensor of ones in memory of its own."""
    return kf.asarray(np.ones(shape, np.float32), copy=True)


def recorded_group() -> Group:
    """Operations of each family, eager and recorded."""
    x, y, m = ones(1), ones(1), ones(1, 1)
    operations = {
        "add of two tensors": ("add(x, y)", {"add": kf.add, "x": x, "y": y}),
        "x * y": ("x * y", {"x": x, "y": y}),
        "x * 0.5": ("x * 0.5", {"x": x}),
        "tanh": ("tanh(x)", {"tanh": kf.tanh, "x": x}),
        "sum": ("sum(x)", {"sum": kf.sum, "x": x}),
        "matmul": ("matmul(m, m)", {"matmul": kf.matmul, "m": m}),
    }
    rows = []
    for name, (call, values) in operations.items():
        rows += [
            Row(name, call, values),
            Row(
                f"{name}: recorded",
                call,
                values,
                bar=RECORDED,
                over=name,
                inside=kf.pipeline,
            ),
        ]
    return Group("recording, one element", rows)


def replay_group(lengths: tuple[int, ...]) -> Group:
    """Chains of one element, replayed by a function that was recorded once."""
    rows = []
    for length in lengths:
        chain = chains.python("arithmetic", length, vars(pipeline_peers.keyfold_functions()))
        fused, values = kf.fuse(chain), {"x": ones(1), "a": ones(1), "b": ones(1)}
        name, call = f"chain of {length}", "f(x, a, b)"
        rows += [
            Row(name, call, {"f": chain, **values}),
            Row(
                f"{name}: replayed",
                call,
                {"f": fused, **values},
                bar=REPLAY + REPLAY_EACH * length,
                form="most",
            ),
        ]
    return Group("kf.fuse, one element", rows)


def groups(lengths: tuple[int, ...]) -> list[Group]:
    """Both groups of rows."""
    return [recorded_group(), replay_group(lengths)]
