"""Instructions of the built-in operators on one element, counted by valgrind.

    scripts/run.sh benches/bench_operators.py [--json FILE] [--only TEXT]

A row is a call of an operator, or of the function of the package that calls it, on tensors of one
float32 element, with its result made and dropped. Other load on the machine doesn't disturb the
figures, so two builds can be compared.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import instructions
import numpy as np
import report
from timing import Row, pin

import keyfold as kf

RESULTS = Path(__file__).with_name("results")
TITLE = "one element"

# The operator, and its arguments.
CALLS = [
    ("add", "x, x"),
    ("add.Scalar", "x, 2.0"),
    ("add.out", "x, x, out=y"),
    ("mul", "x, x"),
    ("exp", "x"),
    ("gelu", "x"),
    ("relu", "x"),
    ("pow.Scalar", "x, 2"),
    ("where", "b, x, x"),
    ("lt", "x, x"),
    ("neg.out", "x, out=y"),
    ("sum", "x"),
    ("sum.dim", "x, [0]"),
    ("mean", "x"),
    ("max", "x"),
    ("argmax", "x"),
    ("any", "b"),
    ("sum.out", "x, out=z"),
    ("softmax", "x, 0"),
    ("matmul", "m, m"),
    ("matmul", "x, x"),
    ("index.Tensor", "x, [i]"),
    ("index_put", "x, [i], x"),
    ("index_select", "x, 0, i"),
    ("gather", "x, 0, i"),
    ("scatter_add", "x, 0, i, x"),
    ("masked_select", "x, b"),
    ("cat", "[x, x]"),
    ("stack", "[x, x]"),
    ("to", "x, kf.float64"),
    ("clone", "x"),
    ("contiguous", "x"),
    ("reshape", "x, [1]"),
    ("select.int", "x, 0, 0"),
    ("slice.Tensor", "x"),
    ("copy_", "y, x"),
    ("fill_.Scalar", "y, 1.0"),
    ("zeros", "[1]"),
    ("full", "[1], 2.0"),
    ("arange", "1"),
    ("rand", "[1]"),
    ("randn", "[1]"),
]

# The functions that call some of them.
FUNCTIONS = [
    ("add", "x, x"),
    ("add", "x, 2.0"),
    ("add", "x, x, out=y"),
    ("subtract", "2.0, x"),
    ("exp", "x"),
    ("negative", "x, out=y"),
    ("where", "b, x, x"),
    ("sum", "x"),
    ("sum", "x, axis=0"),
    ("argmax", "x"),
    ("softmax", "x, 0"),
    ("matmul", "m, m"),
]

# The methods that call some of those, and one that isn't called.
METHODS = ["x.exp()", "x.sum()", "x.sum(0)", "x.argmax(0)", "x.softmax(0)", "x.sum"]


def rows(only: str) -> list[Row]:
    def tensor(value: list, dtype: str) -> kf.Tensor:
        return kf.from_numpy(np.array(value, dtype))

    values = {
        "kf": kf,
        "x": tensor([0.5], "float32"),
        "y": tensor([0.5], "float32"),
        "z": kf.from_numpy(np.array(0.5, "float32")),
        "m": tensor([[0.5]], "float32"),
        "b": tensor([True], "bool"),
        "i": tensor([0], "int64"),
    }
    found = []
    for name, arguments in CALLS:
        shown = f"{name}({arguments})"
        if only not in shown:
            continue
        base, _, overload = name.partition(".")
        operator = getattr(getattr(kf.ops.aten, base), overload or "default")
        found.append(Row(shown, f"f({arguments})", {**values, "f": operator}))
    for name, arguments in FUNCTIONS:
        shown = f"keyfold.{name}({arguments})"
        if only in shown:
            found.append(Row(shown, f"f({arguments})", {**values, "f": getattr(kf, name)}))
    found += [Row(shown, shown, values) for shown in METHODS if only in shown]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="where the figures are written")
    parser.add_argument("--only", default="", help="no rows but those that contain this text")
    parser.add_argument("--under-valgrind", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    processor = pin()
    all_rows = rows(chosen.only)
    if chosen.under_valgrind:
        instructions.run_rows([(TITLE, all_rows)])
        return
    try:
        counted = instructions.count(Path(__file__), chosen.only)
    except instructions.CannotCountError as reason:
        print(f"left out: instruction counts ({reason})")
        return
    records = report.as_records(instructions.timings(TITLE, all_rows, counted), {}, "instructions")
    print(report.table(TITLE, records, "instructions", []))
    tables = [{"title": TITLE, "rows": records}]
    path = chosen.json or RESULTS / "operators_instructions.json"
    report.write(
        path, {"unit": "instructions", "machine": report.machine(processor), "tables": tables}
    )
    print(f"written: {path}")


if __name__ == "__main__":
    main()
