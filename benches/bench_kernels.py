"""Kernels from Python, keyfold beside NumPy, numexpr, numba and PyTorch, on the same threads.

    make bench
    scripts/run.sh benches/bench_kernels.py [--only TEXT] [--threads N] [--rounds N] [--json FILE]
    scripts/run.sh benches/bench_kernels.py --scale 0.01 --rounds 2    # quick: does everything run?
    scripts/run.sh benches/bench_kernels.py --markdown     # the JSON file as tables, for README.md

All libraries of a row take turns, in another order each round, each with one call that isn't
timed before the one that is; a figure is the least of the rounds. They share the same inputs and
the same output in memory. Where a call allocates its result, dropping it is in the time.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Before the libraries start their threads.
os.environ.update(
    dict.fromkeys(
        (
            *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"),
            *("NUMEXPR_NUM_THREADS", "NUMEXPR_MAX_THREADS", "NUMBA_NUM_THREADS"),
        ),
        sys.argv[sys.argv.index("--threads") + 1] if "--threads" in sys.argv[:-1] else "2",
    )
)

import kernel_peers
import numpy as np
import report
from kernels import Kernel, make_arrays, make_kernels
from timing import take_turns

import keyfold as kf

RESULTS = Path(__file__).with_name("results")
COLUMNS = ("keyfold", "on NumPy", "NumPy", "numexpr", "numba", "PyTorch")
OURS = COLUMNS[:2]
GIVEN, ALLOCATED, RETURNED = "output given", "output allocated", "small result returned"

# The bars: at most so many times the best peer's time, or so many times faster.
NO_SLOWER = 1.05
FASTER = 1.5


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="where the figures are written")
    parser.add_argument("--threads", type=int, default=2, help="for every library")
    parser.add_argument("--rounds", type=int, default=25, help="how often each call is timed")
    parser.add_argument("--seconds", type=float, default=8.0, help="per row, at most (3 rounds)")
    parser.add_argument("--scale", type=float, default=1.0, help="makes the arrays smaller")
    parser.add_argument(
        "--markdown", action="store_true", help="measure nothing: the JSON file as tables"
    )
    parser.add_argument(
        "--only", action="append", metavar="TEXT", help="no rows but the copy and those with this"
    )
    return parser.parse_args()


@dataclass
class Contestant:
    """One library's call in a row, with its arguments."""

    name: str
    call: Callable[..., Any]
    inputs: tuple[Any, ...]
    out: Any
    seconds: list[float] = field(default_factory=list)

    def result(self) -> np.ndarray:
        """What it computes, as NumPy's."""
        if self.out is None:
            return np.asarray(self.call(*self.inputs))
        self.call(*self.inputs, out=self.out)
        return np.asarray(self.out)

    def time(self) -> float:
        """Seconds of one call, its result dropped, right after another that isn't timed."""
        call, inputs, out, clock = self.call, self.inputs, self.out, time.perf_counter
        if out is None:
            call(*inputs)
            start = clock()
            call(*inputs)
            return clock() - start
        call(*inputs, out=out)
        start = clock()
        call(*inputs, out=out)
        return clock() - start


def contestants(
    kernel: Kernel, arrays: dict[str, np.ndarray], modules: dict[str, Any], given: bool
) -> list[Contestant]:
    """All who take part in a row; keyfold with its tensors and with NumPy arrays."""
    inputs = tuple(arrays[name] for name in kernel.inputs)
    out = np.zeros(inputs[0].shape, kernel.dtype) if given else None
    found = []
    for column in COLUMNS:
        library = "keyfold" if column in OURS else column
        if library not in kernel.calls:
            continue
        as_its_own: Callable[[Any], Any] = lambda array: array  # noqa: E731
        if column == "keyfold":
            as_its_own = kf.from_numpy
        elif column == "PyTorch":
            as_its_own = modules["PyTorch"].from_numpy
        theirs = tuple(as_its_own(array) for array in inputs)
        output = None if out is None else as_its_own(out)
        found.append(Contestant(column, kernel.calls[library], theirs, output))
    return found


def compare(kernel: Kernel, found: list[Contestant], left_out: list[str]) -> list[Contestant]:
    """The contestants whose results agree with NumPy's; with numba's where NumPy has no call.

    Raises:
        SystemExit: keyfold's don't.
    """
    judge = next(one for one in found if one.name not in OURS)
    expected = np.array(judge.result(), copy=True).ravel()
    agree = []
    for one in found:
        got = one.result().ravel()
        if got.dtype != kernel.dtype or got.size != expected.size:
            problem = f"{got.size} elements of {got.dtype}, not {expected.size}"
        elif kernel.tolerance == 0.0:
            count = int((got != expected).sum())
            problem = f"{count} places differ" if count else ""
        else:
            error = 0.0
            # In parts, to be kind to memory.
            for at in range(0, expected.size, 1 << 20):
                part = expected[at : at + (1 << 20)].astype(np.float64)
                error = max(
                    error,
                    float((np.abs(got[at : at + (1 << 20)] - part) / (1 + np.abs(part))).max()),
                )
            problem = f"off by {error:.1e}" if not error <= kernel.tolerance else ""
        if not problem:
            agree.append(one)
        elif one.name in OURS:
            raise SystemExit(
                f"{kernel.name}: keyfold's result is wrong beside {judge.name}'s: {problem}"
            )
        else:
            left_out.append(f"{one.name} in {kernel.name} (its result is {problem})")
    return agree


def measure(found: list[Contestant], rounds: int, seconds: float, shuffle: random.Random) -> None:
    """Times the contestants in turn."""
    taken = take_turns({one.name: one.time for one in found}, rounds, seconds, shuffle)
    for one in found:
        one.seconds += taken[one.name]


def bar(met: bool, wanted: float, got: float, what: str) -> dict[str, Any]:
    """A bar, and how the figure stands to it."""
    return {"what": what, "wanted": round(wanted, 3), "got": round(got, 3), "met": met}


def record(kernel: Kernel, mode: str, found: list[Contestant], copy: Contestant, size: int) -> dict:
    """A row as plain data."""
    least = {one.name: min(one.seconds) * 1e3 for one in found}
    ours = least["keyfold"]
    peers = {name: ms for name, ms in least.items() if name not in OURS}
    best = min(peers, key=lambda name: peers[name])
    moved = 4 * kernel.floats * size
    bandwidth = moved / ours / 1e6
    limit = 8 * copy.inputs[0].size / (min(copy.seconds) * 1e3) / 1e6
    ratio = peers[best] / ours
    fast = mode == ALLOCATED or (mode == GIVEN and kernel.fast)
    wanted = FASTER if fast else 1 / NO_SLOWER
    bars = [bar(ratio >= wanted, wanted, ratio, "times the best peer's speed")]
    if kernel.share is not None and mode == GIVEN:
        share = bandwidth / limit
        bars.append(bar(share >= kernel.share, kernel.share, share, "of the copy's bandwidth"))
    return {
        "name": kernel.name,
        "mode": mode,
        "bytes": int(moved),
        "ms": {name: round(ms, 3) for name, ms in least.items()},
        "ms_median": {one.name: round(statistics.median(one.seconds) * 1e3, 3) for one in found},
        "rounds": max(len(one.seconds) for one in found),
        "best_peer": best,
        "best_peer_over_keyfold": round(ratio, 3),
        "best_peer_over_keyfold_on_numpy": round(peers[best] / least["on NumPy"], 3),
        "gigabytes_per_second": round(bandwidth, 2),
        "copy_gigabytes_per_second": round(limit, 2),
        "share_of_copy": round(bandwidth / limit, 3),
        "bars": bars,
    }


def verdict(record: dict[str, Any]) -> str:
    """The bars of a row, in a word or a few."""
    missed = [one for one in record["bars"] if not one["met"]]
    if not missed:
        return "PASS"
    return "; ".join(f"{one['got']:.2f} of {one['wanted']:.2f} {one['what']}" for one in missed)


def header(mode: str) -> str:
    line = f"{mode + ', ms':<26}" + "".join(f"{column:>9}" for column in COLUMNS)
    line += f"  {'best peer / keyfold':>20}  {'of the copy':>12}  bar"
    return f"{line}\n{'-' * len(line)}"


def line(record: dict[str, Any]) -> str:
    text = f"{record['name']:<26}"
    for column in COLUMNS:
        ms = record["ms"].get(column)
        text += f"{ms:9.2f}" if ms is not None else f"{'':>9}"
    text += f"  {record['best_peer']:>12} {record['best_peer_over_keyfold']:7.2f}"
    return f"{text}  {record['share_of_copy']:12.2f}  {verdict(record)}"


def markdown(rows: list[dict[str, Any]]) -> str:
    """The tables of README.md."""
    parts = []
    for mode in (GIVEN, ALLOCATED, RETURNED):
        parts.append(
            f"| {mode}, ms | {' | '.join(COLUMNS)} | best peer / keyfold | share | bar |\n"
            f"| --- {'| --- ' * (len(COLUMNS) + 3)}|"
        )
        for row in (row for row in rows if row["mode"] == mode):
            figures = (row["ms"].get(column) for column in COLUMNS)
            cells = [f"{ms:.3g}" if ms is not None else "" for ms in figures]
            cells += [f"{row['best_peer']} {row['best_peer_over_keyfold']:.2f}"]
            cells += [f"{row['share_of_copy']:.2f}", verdict(row)]
            parts.append(f"| {row['name']} | {' | '.join(cells)} |")
        parts.append("")
    return "\n".join(parts)


def main() -> None:
    chosen = options()
    path = chosen.json or RESULTS / "python_kernels.json"
    if chosen.markdown:
        print(markdown(json.loads(path.read_text())["rows"]))
        return
    kf.set_num_threads(chosen.threads)
    left_out: list[str] = []
    modules, calls = kernel_peers.load(chosen.threads, left_out)
    machine = report.machine(None) | {"threads": chosen.threads}
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    print(
        f"{machine['processor']}, load {machine['load_average']}, {chosen.threads} threads",
        end="; ",
    )
    print(f"Python {machine['python']}, {packages}\n", flush=True)

    arrays = make_arrays(chosen.scale)
    kernels = make_kernels(calls)
    shuffle = random.Random(5)
    copy: Contestant | None = None
    rows: list[dict[str, Any]] = []
    for mode in (GIVEN, ALLOCATED, RETURNED):
        print(header(mode))
        for kernel in kernels:
            if kernel.small != (mode == RETURNED):
                continue
            first = copy is None
            if not (first or chosen.only is None or any(t in kernel.name for t in chosen.only)):
                continue
            found = contestants(kernel, arrays, modules, mode == GIVEN)
            found = compare(kernel, found, left_out if mode != ALLOCATED else [])
            # The limit is timed in every row's own rounds: the fastest copy that anybody makes.
            limit = [Contestant("the copy", copy.call, copy.inputs, copy.out)] if copy else []
            measure([*found, *limit], chosen.rounds, chosen.seconds, shuffle)
            if copy is None:
                limit = [min(found, key=lambda one: min(one.seconds))]
                copy = limit[0]
            size = arrays[kernel.inputs[0]].size
            rows.append(record(kernel, mode, found, limit[0], size))
            print(line(rows[-1]), flush=True)
        print()
    missed = [one for one in rows if verdict(one) != "PASS"]
    print(f"{len(rows) - len(missed)} of {len(rows)} rows meet their bars")
    for kernel in kernels:
        left_out += [
            f"{library} in {kernel.name} ({why})" for library, why in kernel.without.items()
        ]
    for reason in left_out:
        print(f"left out: {reason}")
    assert copy is not None
    content = {
        "machine": machine,
        "elements": arrays["a"].size,
        "side": arrays["row"].size,
        "copy_by": copy.name,
        "bars": {"no_slower_than": NO_SLOWER, "faster": FASTER},
        "rows": rows,
        "left_out": left_out,
    }
    report.write(path, content)
    print(f"written: {path}")


if __name__ == "__main__":
    main()
