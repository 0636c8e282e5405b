"""What a call from Python costs: keyfold beside a C function, a Python function and its peers.

    make bench
    scripts/run.sh benches/bench_calls.py [--json FILE] [--rounds N] [--calls N] [--only TEXT]
    scripts/run.sh benches/bench_calls.py --instructions

All figures are nanoseconds per call, net of the empty loop, from one run. With --instructions they
are instructions instead, counted by valgrind, which other load on the machine doesn't disturb.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import instructions
import report
from calls import C_FUNCTION, EMPTY, PYTHON_FUNCTION, make_groups
from timing import measure, pin

RESULTS = Path(__file__).with_name("results")
REFERENCES = {"C fastcall": C_FUNCTION, "Python function": PYTHON_FUNCTION}


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="where the figures are written")
    parser.add_argument("--rounds", type=int, default=200, help="how often each row is timed")
    parser.add_argument("--calls", type=int, default=20_000, help="calls at a time, at most")
    parser.add_argument("--seconds", type=float, default=0.001, help="seconds at a time, at most")
    parser.add_argument("--only", default="", help="no rows but those that contain this text")
    parser.add_argument("--instructions", action="store_true", help="count instructions instead")
    parser.add_argument("--under-valgrind", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    chosen = options()
    processor = pin()
    left_out: list[str] = []
    groups = make_groups(left_out, chosen.only)
    if chosen.under_valgrind:
        instructions.run_rows(groups)
        return
    machine = report.machine(processor)
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    print(f"{machine['processor']}, load {machine['load_average']}", end="; ")
    print(f"Python {machine['python']}, {packages}\n", flush=True)

    unit = "instructions" if chosen.instructions else "ns"
    try:
        counted = instructions.count(Path(__file__), chosen.only) if chosen.instructions else None
    except instructions.CannotCountError as reason:
        print(f"left out: instruction counts ({reason})")
        return
    tables = []
    for title, rows in groups:
        if counted is None:
            timings = measure(rows, EMPTY, chosen.rounds, chosen.calls, chosen.seconds)
        else:
            timings = instructions.timings(title, rows, counted)
        records = report.as_records(timings, REFERENCES, unit)
        tables.append({"title": title, "rows": records})
        print(report.table(title, records, unit, list(REFERENCES)), end="\n\n", flush=True)
    if counted is None:
        print(report.summary(tables))
        warning = report.disturbance(tables, PYTHON_FUNCTION)
        if warning is not None:
            print(warning)
    for line in left_out:
        print(f"left out: {line}")
    suffix = "_instructions" if chosen.instructions else ""
    path = chosen.json or RESULTS / f"python_calls{suffix}.json"
    content = {"unit": unit, "machine": machine, "tables": tables, "left_out": left_out}
    report.write(path, content)
    print(f"written: {path}")


if __name__ == "__main__":
    main()
