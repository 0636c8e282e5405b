"""Linear algebra, networks, indexing and fused steps, keyfold beside NumPy, SciPy, PyTorch and JAX.

    make bench
    scripts/run.sh benches/bench_networks.py [--only TEXT] [--threads N] [--rounds N] [--json FILE]

All libraries of a row take turns, in another order each round, on the same threads and the same
inputs; each call is timed right after one that isn't. A figure is the least of the rounds, in
milliseconds; results are new, and dropping them is in the time.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

# Before the libraries start their threads.
os.environ.update(
    dict.fromkeys(
        ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"),
        sys.argv[sys.argv.index("--threads") + 1] if "--threads" in sys.argv[:-1] else "2",
    )
)
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_ENABLE_X64"] = "1"

import numpy as np
import report
from networks import Call, Row, load, make_rows
from timing import take_turns

import keyfold as kf

RESULTS = Path(__file__).with_name("results")
COLUMNS = ("keyfold", "NumPy", "SciPy", "PyTorch", "JAX")


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="where the figures are written")
    parser.add_argument("--threads", type=int, default=2, help="for every library")
    parser.add_argument("--rounds", type=int, default=25, help="how often each call is timed")
    parser.add_argument("--seconds", type=float, default=6.0, help="per row, at most (3 rounds)")
    parser.add_argument("--only", action="append", metavar="TEXT", help="no rows but with this")
    return parser.parse_args()


def calls_of(row: Row, modules: dict[str, Any], left_out: list[str]) -> dict[str, Call]:
    """The calls of the libraries that can make one, and whose results agree with keyfold's."""
    found: dict[str, Call] = {}
    expected: np.ndarray | None = None
    for library in COLUMNS:
        if library not in row.calls or library not in modules:
            continue
        try:
            call = row.calls[library](modules[library])
            result = call()
        except (AttributeError, kf.Error, NotImplementedError, RuntimeError) as why:
            reason = str(why).splitlines()[0][:100]
            left_out.append(f"{library} in {row.name} ({type(why).__name__}: {reason})")
            continue
        if row.tolerance is not None:
            got = as_numpy(result)
            expected = got if expected is None else expected
            error = np.abs(got - expected).max() / np.abs(expected).max()
            if not error <= row.tolerance:
                raise SystemExit(f"{row.name}: {library}'s result is off by {error:.1e}")
        found[library] = call
    return found


def as_numpy(result: Any) -> np.ndarray:
    """A result as NumPy's, without its gradients."""
    if hasattr(result, "detach"):
        result = result.detach()
    return np.asarray(result)


def once(call: Call) -> float:
    """Seconds of one call, its result dropped, right after another that isn't timed."""
    call()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def record(row: Row, taken: dict[str, list[float]]) -> dict[str, Any]:
    """A row as plain data."""
    least = {name: min(times) * 1e3 for name, times in taken.items()}
    peers = {name: ms for name, ms in least.items() if name != "keyfold"}
    made: dict[str, Any] = {
        "name": row.name,
        "ms": {name: round(ms, 4) for name, ms in least.items()},
        "ms_median": {n: round(statistics.median(t) * 1e3, 4) for n, t in taken.items()},
        "bar": row.bar,
    }
    if peers and "keyfold" in least:
        best = min(peers, key=lambda name: peers[name])
        ratio = least["keyfold"] / peers[best]
        made |= {"best_peer": best, "ratio": round(ratio, 3)}
        made["verdict"] = report.verdict(ratio, row.bar)
    return made


def line(record: dict[str, Any]) -> str:
    text = f"{record['name']:<42}"
    for column in COLUMNS:
        ms = record["ms"].get(column)
        text += f"{ms:10.3f}" if ms is not None else f"{'':>10}"
    if "ratio" in record:
        text += f"  {record['best_peer']:>8} {record['ratio']:7.2f}  {record['bar']:5.2f}"
        text += f"  {record['verdict']}"
    return text


def main() -> None:
    chosen = options()
    left_out: list[str] = []
    modules = load(chosen.threads, left_out)
    machine = report.machine(None) | {"threads": chosen.threads}
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    print(
        f"{machine['processor']}, load {machine['load_average']}, {chosen.threads} threads; "
        f"{packages}"
    )
    head = f"{'ms':<42}" + "".join(f"{column:>10}" for column in COLUMNS)
    head += f"  {'keyfold / best peer':>16}  {'bar':>5}"
    print(f"{head}\n{'-' * len(head)}", flush=True)
    shuffle, records = random.Random(5), []
    for row in make_rows():
        if chosen.only is not None and not any(text in row.name for text in chosen.only):
            continue
        calls = calls_of(row, modules, left_out)
        if not calls:
            continue
        turns = {library: partial(once, call) for library, call in calls.items()}
        taken = take_turns(turns, chosen.rounds, chosen.seconds, shuffle)
        records.append(record(row, taken))
        print(line(records[-1]), flush=True)
    judged = [one for one in records if "verdict" in one]
    met = sum(one["verdict"] == "PASS" for one in judged)
    print(f"\n{met} of {len(judged)} bars met")
    for reason in left_out:
        print(f"left out: {reason}")
    path = chosen.json or RESULTS / "python_networks.json"
    report.write(path, {"machine": machine, "rows": records, "left_out": left_out})
    print(f"written: {path}")


if __name__ == "__main__":
    main()
