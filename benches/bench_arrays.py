"""What a call costs with arrays of every library: keyfold beside tvm_ffi and PyTorch.

    make bench
    scripts/run.sh benches/bench_arrays.py [--json FILE] [--rounds N] [--only TEXT]
    scripts/run.sh benches/bench_arrays.py --instructions --only TEXT

All figures are nanoseconds per call, from one run. The time of an empty loop, taken in the same
rounds, is subtracted from each. Whatever isn't installed is left out by name. With --instructions
they are instructions instead, counted by valgrind.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

# One thread for everybody, before the libraries start theirs.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"

import instructions
import report
from arrays import EMPTY, PYTHON_FUNCTION, Group, chosen, make_groups, one_more
from timing import Timing, measure, pin

RESULTS = Path(__file__).with_name("results")
ONE_MORE = "one more array: (3 arguments - 1 argument) / 2"


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="where the figures are written")
    parser.add_argument("--rounds", type=int, default=200, help="how often each row is timed")
    parser.add_argument("--calls", type=int, default=20_000, help="calls at a time, at most")
    parser.add_argument("--seconds", type=float, default=0.001, help="seconds at a time, at most")
    parser.add_argument("--only", default="", help="no rows or tables but those with this text")
    parser.add_argument("--instructions", action="store_true", help="count instructions instead")
    parser.add_argument("--under-valgrind", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def group_tables(group: Group, timings: list[Timing], unit: str) -> list[dict[str, Any]]:
    """A table for each number of arguments, printed, too."""
    tables = []
    for count, rows in group.rows.items():
        names = {row.name for row in rows}
        references = {column: f"{name} ({count})" for column, name in group.references.items()}
        references = {column: name for column, name in references.items() if name in names}
        found = [timing for timing in timings if timing.row.name in names]
        if found:
            title = f"{group.title}, arguments: {count}"
            tables.append(show(title, report.as_records(found, references, unit), references, unit))
    return tables


def show(title: str, records: list[dict[str, Any]], columns: Any, unit: str) -> dict[str, Any]:
    """Prints a table, and gives it as plain data."""
    print(report.table(title, records, unit, list(columns)), end="\n\n", flush=True)
    return {"title": title, "unit": unit, "rows": records}


def main() -> None:
    chosen_options = options()
    processor = pin()
    left_out: list[str] = []
    groups = [chosen(group, chosen_options.only) for group in make_groups(left_out)]
    groups = [group for group in groups if group.all_rows]
    if chosen_options.under_valgrind:
        instructions.run_rows([(group.title, group.all_rows) for group in groups])
        return
    machine = report.machine(processor)
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    print(f"{machine['processor']}, load {machine['load_average']}", end="; ")
    print(f"Python {machine['python']}, {packages}\n", flush=True)

    counting = chosen_options.instructions
    unit = "instructions" if counting else "ns"
    try:
        counted = instructions.count(Path(__file__), chosen_options.only) if counting else {}
    except instructions.CannotCountError as reason:
        print(f"left out: instruction counts ({reason})")
        return
    tables, more = [], []
    for group in groups:
        if counting:
            timings = instructions.timings(group.title, group.all_rows, counted)
        else:
            limits = chosen_options.rounds, chosen_options.calls, chosen_options.seconds
            timings = measure(group.all_rows, EMPTY, *limits)
        tables += group_tables(group, timings, unit)
        more += one_more(group, timings)
    if more:
        tables.append(show(ONE_MORE, report.as_records(more, {}, unit), (), unit))
    finish(tables, left_out, machine, chosen_options)


def finish(
    tables: list[dict[str, Any]],
    left_out: list[str],
    machine: dict[str, Any],
    chosen_options: argparse.Namespace,
) -> None:
    """Says which bars are met and what is left out, and writes the file."""
    if not chosen_options.instructions:
        print(report.summary(tables))
        warning = report.disturbance(tables, f"{PYTHON_FUNCTION} (3)")
        if warning is not None:
            print(warning)
    for line in left_out:
        print(f"left out: {line}")
    suffix = "_instructions" if chosen_options.instructions else ""
    path = chosen_options.json or RESULTS / f"python_arrays{suffix}.json"
    report.write(path, {"machine": machine, "tables": tables, "left_out": left_out})
    print(f"written: {path}")


if __name__ == "__main__":
    main()
