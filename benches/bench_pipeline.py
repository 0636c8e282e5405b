"""Chains of operations in a pipeline, beside eager calls, one expression by hand and peers.

    make bench
    scripts/run.sh benches/bench_pipeline.py [--only TEXT] [--threads N] [--rounds N] [--large]
    scripts/run.sh benches/bench_pipeline.py --quick        # does everything run? writes no file
    scripts/run.sh benches/bench_pipeline.py --plot-only    # draws again what is in the JSON file

All columns of a row take turns, in another order each round, on the same threads and the same
numbers, with some calls that aren't timed before those that are; a figure is the least of the
rounds, in microseconds a call. Results are new, and dropping them is in the time; so are the
pipeline's block and its flush. "by hand" is one `kf.Expression`, followed by `kf.sum` where the row
ends in a reduction, or the operator (softmax, layer norm). "copy" copies as many bytes as the row's
inputs and result have. Before anything is timed all results are compared with NumPy's in float64,
and the pipeline's with the eager ones, bit for bit.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
from functools import partial
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
os.environ["JAX_PLATFORMS"] = "cpu"

import numpy as np
import pipeline_plot
import recording
import report
import timing
from layers import EMPTY
from networks import load
from pipeline_rows import (
    BY_HAND,
    COLUMNS,
    COPY,
    EAGER,
    FUSE,
    LENGTHS,
    PEERS,
    PIPELINE,
    Row,
    make_rows,
)

RESULTS = Path(__file__).with_name("results")
LIBRARIES = {"numexpr": "numexpr", "numba": "numba", "JAX": "jax", "PyTorch": "torch"}
OURS = (EAGER, PIPELINE, FUSE, BY_HAND)
# Calls before the timed ones, at most.
WARM = 64


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="where the figures are written")
    parser.add_argument("--svg", type=Path, help="where the plot is written")
    parser.add_argument("--threads", type=int, default=2, help="for every library")
    parser.add_argument("--rounds", type=int, default=25, help="how often each column is timed")
    parser.add_argument("--seconds", type=float, default=6.0, help="per row, at most (3 rounds)")
    parser.add_argument("--turn", type=float, default=0.004, help="seconds of calls at a time")
    parser.add_argument("--large", action="store_true", help="chains of 1e8 elements, too")
    parser.add_argument("--quick", action="store_true", help="small sizes, two rounds, no files")
    parser.add_argument("--plot-only", action="store_true", help="measure nothing")
    parser.add_argument("--only", action="append", metavar="TEXT", help="no rows but with this")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.rounds, chosen.turn = 2, 0.0005
    else:
        chosen.json = chosen.json or RESULTS / "pipeline.json"
        chosen.svg = chosen.svg or RESULTS / "pipeline.svg"
    return chosen


def columns_of(modules: dict[str, Any]) -> list[str]:
    """The columns that can have a figure."""
    absent = {c for c in PEERS if ("PyTorch" if c == "compiled" else c) not in modules}
    return [column for column in COLUMNS if column not in absent]


def restrict(threads: int) -> None:
    """Keeps the process on so many processors: JAX has no other number of threads."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def arrays_of(result: Any) -> list[np.ndarray]:
    """All arrays of a result, in order, as NumPy's."""
    if isinstance(result, tuple | list):
        return [array for part in result for array in arrays_of(part)]
    return [np.asarray(result)]


def mistake(got: list[np.ndarray], expected: list[np.ndarray], tolerance: float) -> str:
    """How a result differs from the expected one; an empty text where it doesn't."""
    shapes = [array.shape for array in got], [array.shape for array in expected]
    if shapes[0] != shapes[1]:
        return f"of the shapes {shapes[0]}, not {shapes[1]}"
    if any(array.dtype != np.float32 for array in got):
        return f"of the dtypes {', '.join(str(array.dtype) for array in got)}, not float32"
    for one, right in zip(got, expected, strict=True):
        error = float((np.abs(one - right) / (1 + np.abs(right))).max())
        if not error <= tolerance:
            return f"off by {error:.1e}"
    return ""


def calls_of(row: Row, modules: dict[str, Any], left_out: list[str]) -> dict[str, Any]:
    """The columns' calls whose results are right.

    Raises:
        SystemExit: keyfold's aren't, or the pipeline's aren't the eager ones.
    """
    expected, calls, eager = arrays_of(row.expected()), {}, []
    for column, make in row.calls(modules):
        if column == COPY:
            calls[column] = make()
            continue
        try:
            call = make()
            got = arrays_of(call())
        except Exception as why:
            if column in OURS:
                raise
            reason = str(why).strip().splitlines()[0][:100] if str(why).strip() else ""
            left_out.append(f"{column} in {row.name} ({type(why).__name__}: {reason})")
            continue
        problem = mistake(got, expected, row.tolerance)
        if column == EAGER:
            eager = got
        elif column in (PIPELINE, FUSE) and not problem:
            same = all(map(np.array_equal, got, eager))
            problem = "" if same else "not the eager one, bit for bit"
        if not problem:
            calls[column] = call
        elif column in OURS:
            raise SystemExit(f"{row.name}: the result of keyfold, {column}, is {problem}")
        else:
            left_out.append(f"{column} in {row.name} (its result is {problem})")
    return calls


def turn(row: timing.Row, count: int) -> float:
    """Seconds of a call, of so many in a row, right after some that aren't timed."""
    row.time(min(count, WARM))
    return row.time(count) / count


def measure(row: Row, calls: dict[str, Any], chosen: argparse.Namespace, shuffle: Any) -> Any:
    """A row as plain data."""
    timed = {column: timing.Row(column, "f()", {"f": call}) for column, call in calls.items()}
    turns = {
        column: partial(turn, one, timing.calls_for(one, chosen.turn, 10_000, 1))
        for column, one in timed.items()
    }
    taken = timing.take_turns(turns, chosen.rounds, chosen.seconds, shuffle, COPY)
    least = {column: min(times) * 1e9 for column, times in taken.items()}
    made: dict[str, Any] = {
        "table": row.table,
        "name": row.name,
        "elements": row.elements,
        "length": row.length,
        "ns": {column: round(ns, 1) for column, ns in least.items()},
        "ns_median": {n: round(statistics.median(t) * 1e9, 1) for n, t in taken.items()},
        "ratios": {n: round(least[PIPELINE] / ns, 3) for n, ns in least.items() if n != PIPELINE},
        "bars": [],
    }
    if peers := [column for column in least if column in PEERS]:
        made["best_peer"] = min(peers, key=lambda column: least[column])
    for own in (PIPELINE, FUSE):
        for over, bar in row.bars.items():
            column = made.get("best_peer") if over == "best peer" else over
            if column in least:
                verdict = report.verdict(least[own] / least[column], bar)
                made["bars"].append({"of": own, "over": column, "bar": bar, "verdict": verdict})
    return made


def line(record: dict[str, Any], columns: list[str]) -> str:
    """A row as text."""
    text = f"{record['name']:<48}"
    for column in columns:
        ns = record["ns"].get(column)
        text += f"{ns / 1e3:11.1f}" if ns is not None else f"{'':>11}"
    for column in (EAGER, BY_HAND, record.get("best_peer"), COPY):
        ratio = record["ratios"].get(column)
        text += f"{ratio:9.2f}" if ratio is not None else f"{'':>9}"
    bars = [
        f"{one['of']} {one['bar']:g} x {one['over']}: {one['verdict']}" for one in record["bars"]
    ]
    return f"{text}  {'; '.join(bars)}".rstrip()


def header(table: str, columns: list[str]) -> str:
    """A table's first lines."""
    text = f"{table + ', us':<48}" + "".join(f"{column:>11}" for column in columns)
    text += "".join(f"{'/ ' + column:>9}" for column in (EAGER, "hand", "best", COPY))
    return f"\n{text}  bars\n{'-' * (len(text) + 6)}"


def time_recording(chosen: argparse.Namespace) -> list[dict[str, Any]]:
    """The tables of recording and replaying, printed."""
    tables = []
    for group in recording.groups(LENGTHS):
        if not wanted(group.title, chosen):
            continue
        rounds, calls = chosen.rounds, recording.CALLS
        timings = timing.measure(group.rows, EMPTY, rounds, calls, chosen.turn)
        records = report.as_records(timings, group.references, "ns")
        tables.append({"title": group.title, "unit": "ns", "rows": records})
        print("\n" + report.table(group.title, records, "ns", list(group.references)), flush=True)
    return tables


def wanted(name: str, chosen: argparse.Namespace) -> bool:
    """Whether a row or table was asked for."""
    return chosen.only is None or any(text in name for text in chosen.only)


def run(chosen: argparse.Namespace) -> dict[str, Any]:
    """Measures and prints everything; the figures as plain data."""
    restrict(chosen.threads)
    left_out: list[str] = []
    modules = load(chosen.threads, left_out, LIBRARIES)
    machine = report.machine(None) | {"threads": chosen.threads}
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    print(f"{machine['processor']}, load {machine['load_average']}, {chosen.threads} threads")
    print(f"Python {machine['python']}, {packages}", flush=True)
    tables = time_recording(chosen)
    shuffle, records, table = random.Random(5), [], ""
    columns = columns_of(modules)
    for row in make_rows(chosen.quick, chosen.large):
        if not wanted(f"{row.table}: {row.name}", chosen):
            continue
        if row.table != table:
            table = row.table
            print(header(table, columns))
        calls = calls_of(row, modules, left_out)
        records.append(measure(row, calls, chosen, shuffle))
        print(line(records[-1], columns), flush=True)
    judged = [{"rows": [bar for one in records for bar in one["bars"]]}, *tables]
    print(f"\n{report.summary(judged)}")
    for reason in left_out:
        print(f"left out: {reason}")
    return {"machine": machine, "tables": tables, "rows": records, "left_out": left_out}


def main() -> None:
    chosen = options()
    if chosen.plot_only:
        content = json.loads(chosen.json.read_text())
    else:
        content = run(chosen)
        if chosen.json:
            report.write(chosen.json, content)
            print(f"written: {chosen.json}")
    if chosen.svg:
        rows = content["rows"]
        if not any(row["table"].startswith(pipeline_plot.CHAINS) for row in rows):
            print("no plot: no chains were asked for")
            return
        chosen.svg.parent.mkdir(parents=True, exist_ok=True)
        chosen.svg.write_text(pipeline_plot.draw(rows))
        print(f"written: {chosen.svg}")


if __name__ == "__main__":
    main()
