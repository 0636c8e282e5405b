"""What the layers cost from Python: Autograd, Profiler, Tracer, Vmap, Autocast, beside their peers.

    make bench
    scripts/run.sh benches/bench_layers.py [--json FILE] [--rounds N] [--only TEXT]
    scripts/run.sh benches/bench_layers.py --instructions

All times are nanoseconds per operator call (per step, for training), net of the empty loop, from
one run. The last table is instructions, counted by valgrind: layers that are off must add none.
With --instructions it is counted alone.
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

import fastcall
import instructions
import report
from layers import EMPTY, Group, chosen, make_groups, off_group
from timing import measure, pin

RESULTS = Path(__file__).with_name("results")


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="where the figures are written")
    parser.add_argument("--rounds", type=int, default=100, help="how often each row is timed")
    parser.add_argument("--calls", type=int, default=20_000, help="calls at a time, at most")
    parser.add_argument("--seconds", type=float, default=0.002, help="seconds at a time, at most")
    parser.add_argument("--only", default="", help="no rows or tables but those with this text")
    parser.add_argument("--instructions", action="store_true", help="count instructions alone")
    parser.add_argument("--under-valgrind", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def count(group: Group) -> list[dict[str, Any]]:
    """The instructions of a group's rows.

    Raises:
        CannotCountError: there is no valgrind, say.
    """
    counted = instructions.count(Path(__file__), "")
    timings = instructions.timings(group.title, group.rows, counted)
    return report.as_records(timings, group.references, "instructions")


def main() -> None:
    chosen_options = options()
    processor = pin()
    left_out: list[str] = []
    if chosen_options.under_valgrind:
        group = off_group()
        instructions.run_rows([(group.title, group.rows)])
        return
    machine = report.machine(processor)
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    print(f"{machine['processor']}, load {machine['load_average']}", end="; ")
    print(f"Python {machine['python']}, {packages}\n", flush=True)

    tables = []

    def add(group: Group, records: list[dict[str, Any]], unit: str) -> None:
        tables.append({"title": group.title, "unit": unit, "rows": records})
        print(report.table(group.title, records, unit, list(group.references)), end="\n\n")

    groups = [] if chosen_options.instructions else make_groups(left_out)
    for group in (chosen(group, chosen_options.only) for group in groups):
        if not group.rows:
            continue
        names = {row.name for row in group.rows}
        group.references = {
            column: name for column, name in group.references.items() if name in names
        }
        timings = measure(
            group.rows,
            EMPTY,
            chosen_options.rounds,
            chosen_options.calls,
            chosen_options.seconds,
        )
        add(group, report.as_records(timings, group.references, "ns"), "ns")
    try:
        off = chosen(off_group(), chosen_options.only)
        if off.rows:
            add(off, count(off), "instructions")
    except (instructions.CannotCountError, fastcall.CannotBuildError) as reason:
        left_out.append(f"instruction counts ({reason})")
    print(report.summary(tables))
    for line in left_out:
        print(f"left out: {line}")
    suffix = "_instructions" if chosen_options.instructions else ""
    path = chosen_options.json or RESULTS / f"python_layers{suffix}.json"
    report.write(path, {"machine": machine, "tables": tables, "left_out": left_out})
    print(f"written: {path}")


if __name__ == "__main__":
    main()
