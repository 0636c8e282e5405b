"""Time against size, from a hundred elements to a hundred million, with one thread and with two.

    make bench
    scripts/run.sh benches/bench_sizes.py [--rounds N] [--most N] [--json FILE] [--svg FILE]
    scripts/run.sh benches/bench_sizes.py --plot-only     # draws again what is in the JSON file

float32; keyfold writes into a given output, and so does NumPy beside it. All take turns; a point is
the least of the rounds. The serial cut-off, the size from which a second thread is asked for help,
is found by watching whether the other threads of the process ran at all.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import report
import sizes_plot

import keyfold as kf

RESULTS = Path(__file__).with_name("results")
FEWEST, MOST, PER_DECADE = 100, 100_000_000, 4
# Longer than a worker looks out for more work before it sleeps.
PAUSE = 0.003

Call = Callable[[Any, Any, Any], Any]

# One call each: of two inputs and an output.
OPERATIONS: dict[str, tuple[Call, Call]] = {
    "add": (
        lambda a, b, out: kf.add(a, b, out=out),
        lambda a, b, out: np.add(a, b, out=out),
    ),
    "exp": (
        lambda a, b, out: kf.exp(a, out=out),
        lambda a, b, out: np.exp(a, out=out),
    ),
    "sum": (
        lambda a, b, out: kf.sum(a),
        lambda a, b, out: np.add.reduce(a),
    ),
}


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, default=RESULTS / "sizes.json")
    parser.add_argument("--svg", type=Path, default=RESULTS / "sizes.svg")
    parser.add_argument("--rounds", type=int, default=15, help="how often each point is timed")
    parser.add_argument("--seconds", type=float, default=0.001, help="seconds at a time, at least")
    parser.add_argument("--most", type=int, default=MOST, help="elements, at most")
    parser.add_argument("--plot-only", action="store_true", help="measure nothing")
    return parser.parse_args()


@dataclass
class Point:
    """One line's call at one size."""

    line: str
    threads: int | None
    call: Call
    arguments: tuple[Any, Any, Any]
    calls: int = 1
    seconds: list[float] = field(default_factory=list)

    def run(self, calls: int) -> float:
        """Seconds per call of so many."""
        call, (a, b, out) = self.call, self.arguments
        start = time.perf_counter()
        for _ in repeat(None, calls):
            call(a, b, out)
        return (time.perf_counter() - start) / calls

    def ready(self, seconds: float) -> None:
        """Finds how many calls fill the time."""
        self.threads_set()
        while (taken := self.run(self.calls) * self.calls) < seconds:
            self.calls = max(self.calls * 2, int(self.calls * seconds / max(taken, 1e-7)))

    def threads_set(self) -> None:
        if self.threads is not None:
            kf.set_num_threads(self.threads)

    def time(self) -> None:
        """Adds a figure; as many calls again go before it, a few at most."""
        self.threads_set()
        self.run(min(self.calls, 64))
        self.seconds.append(self.run(self.calls))


def sizes(most: int) -> list[int]:
    """Sizes in equal steps of their logarithm."""
    steps = round(math.log10(most / FEWEST) * PER_DECADE)
    return [round(FEWEST * 10 ** (step / PER_DECADE)) for step in range(steps + 1)]


def points_of(operation: str, size: int, arrays: tuple[np.ndarray, ...]) -> list[Point]:
    """The lines at a size, over the same memory."""
    ours, numpys = OPERATIONS[operation]
    a, b, out = (array[:size] for array in arrays)
    tensors = (kf.from_numpy(a), kf.from_numpy(b), kf.from_numpy(out))
    return [
        Point("keyfold, 1 thread", 1, ours, tensors),
        Point("keyfold, 2 threads", 2, ours, tensors),
        Point("NumPy", None, numpys, (a, b, out)),
    ]


def others_ran() -> int | None:
    """Nanoseconds that the other threads of this process ran so far; `None` if that isn't told."""
    own, total = threading.get_native_id(), 0
    try:
        for task in os.listdir("/proc/self/task"):
            if int(task) != own:
                total += int(Path(f"/proc/self/task/{task}/schedstat").read_text().split()[0])
    except (OSError, ValueError):
        return None
    return total


def cut_off(operation: str, arrays: tuple[np.ndarray, ...]) -> int | None:
    """The least size at which a call has help, by halving."""
    if others_ran() is None:
        return None
    kf.set_num_threads(2)
    points_of(operation, arrays[0].size, arrays)[1].run(2)

    def helped_once(size: int) -> bool:
        point = points_of(operation, size, arrays)[1]
        time.sleep(PAUSE)
        before = others_ran()
        point.run(1)
        time.sleep(PAUSE)
        return others_ran() != before

    def helped(size: int) -> bool:
        # A thread that the system held up may still be on its way to sleep.
        return all(helped_once(size) for _ in range(4))

    below, above = FEWEST, arrays[0].size
    if not helped(above):
        return None
    while above - below > max(1, below // 1000):
        middle = (below + above) // 2
        if helped(middle):
            above = middle
        else:
            below = middle
    return above


def measure(operation: str, chosen: argparse.Namespace, arrays: tuple[np.ndarray, ...]) -> Any:
    """An operation's lines and its cut-off, as plain data."""
    lines: dict[str, list[dict[str, Any]]] = {}
    for size in sizes(chosen.most):
        points = points_of(operation, size, arrays)
        for point in points:
            point.ready(chosen.seconds)
        for number in range(chosen.rounds):
            for point in points if number % 2 else reversed(points):
                point.time()
        for point in points:
            figure = {
                "elements": size,
                "ns": round(min(point.seconds) * 1e9, 1),
                "ns_median": round(statistics.median(point.seconds) * 1e9, 1),
            }
            lines.setdefault(point.line, []).append(figure)
        row = "".join(f"{lines[point.line][-1]['ns'] / 1e3:14.2f}" for point in points)
        print(f"{operation:<6}{size:>12,}{row}", flush=True)
    found = cut_off(operation, arrays)
    print(f"{operation}: two threads from {found:,} elements\n" if found else "", flush=True)
    return {"operation": operation, "two_threads_from": found, "lines": lines}


def main() -> None:
    chosen = options()
    if not chosen.plot_only:
        random = np.random.default_rng(5)
        a = random.standard_normal(chosen.most, np.float32)
        arrays = (a, a[::-1].copy(), np.zeros_like(a))
        print(f"{'us':<6}{'elements':>12}{'1 thread':>14}{'2 threads':>14}{'NumPy':>14}")
        gc.disable()
        operations = [measure(operation, chosen, arrays) for operation in OPERATIONS]
        report.write(chosen.json, {"machine": report.machine(None), "operations": operations})
        print(f"written: {chosen.json}")
    chosen.svg.parent.mkdir(parents=True, exist_ok=True)
    chosen.svg.write_text(sizes_plot.draw(json.loads(chosen.json.read_text())["operations"]))
    print(f"written: {chosen.svg}")


if __name__ == "__main__":
    main()
