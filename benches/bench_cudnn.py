"""What a plan of a cuDNN graph costs from Python, beyond the operators that compute it.

    make bench
    scripts/run.sh benches/bench_cudnn.py [--json FILE] [--rounds N]
    scripts/run.sh benches/bench_cudnn.py --instructions

All times are nanoseconds per call, net of the empty loop, from one run. With --instructions they
are instructions instead, counted by valgrind, which other load on the machine doesn't disturb.
Arrays have two elements, so that the operators' own work is next to nothing; the row of `kf.add` is
the operator, called directly: a plan's overhead is its row above that one. NVIDIA's frontend is a
peer where it is installed and makes graphs. Without a GPU it does so for the device that
`--device-property FILE` describes, cuDNN's JSON of one, with a `libcuda.so.1` and the real libcudnn
in the loader's path.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import instructions
import numpy as np
import report
from timing import Row, measure, pin

import keyfold as kf

RESULTS = Path(__file__).with_name("results")
EMPTY = Row("(empty loop)", "None")
BAR = 2000.0


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="where the figures are written")
    parser.add_argument("--rounds", type=int, default=100, help="how often each row is timed")
    parser.add_argument("--calls", type=int, default=20_000, help="calls at a time, at most")
    parser.add_argument("--seconds", type=float, default=0.002, help="seconds at a time, at most")
    parser.add_argument("--instructions", action="store_true", help="count instructions instead")
    parser.add_argument("--under-valgrind", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--only", default="", help=argparse.SUPPRESS)
    parser.add_argument("--device-property", type=Path, help="a device for NVIDIA's frontend")
    return parser.parse_args()


def runs(limit: float | None) -> list[Row]:
    """A prepared run, beside the operator that it calls; `limit` is the most that it may add."""
    g = kf.cudnn.Graph(io_data_type="float32")
    a, b = g.tensor(dim=[2], name="a"), g.tensor(dim=[2], name="b")
    c = g.add(a, b).set_output()
    plan = g.build()
    x, y = np.ones(2, np.float32), np.ones(2, np.float32)
    s, t = kf.asarray(x), kf.asarray(y)
    arrays = {"plan": plan, "a": a, "b": b, "c": c, "x": x, "y": y, "s": s, "t": t}
    arrays |= {"given": {a: x, b: y}, "out": {c: np.empty(2, np.float32)}, "add": kf.add}

    def row(name: str, call: str, over: str | None = None) -> Row:
        used = {key: value for key, value in arrays.items() if key in call}
        return Row(name, call, used, bar=limit if over else None, over=over, form="above")

    return [
        row("kf.add of NumPy arrays", "add(x, y)"),
        row("kf.add of tensors", "add(s, t)"),
        row("plan of NumPy arrays", "plan({a: x, b: y})", "kf.add of NumPy arrays"),
        row("plan of a dict that is there", "plan(given)", "kf.add of NumPy arrays"),
        row("plan into a given array", "plan(given, out)", "kf.add of NumPy arrays"),
        row("plan by names", "plan({'a': x, 'b': y})", "kf.add of NumPy arrays"),
        row("plan of tensors", "plan({a: s, b: t})", "kf.add of tensors"),
    ]


def block(frontend: Any, **more: Any) -> tuple[Any, Any]:
    """A convolution, a bias and relu, in keyfold's or NVIDIA's frontend: the names are the same."""
    g = frontend(**more)
    x = g.tensor(dim=[8, 64, 56, 56], stride=[200704, 1, 3584, 64])
    w = g.tensor(dim=[32, 64, 3, 3], stride=[576, 1, 192, 64])
    b = g.tensor(dim=[1, 32, 1, 1], stride=[32, 1, 32, 32])
    y = g.conv_fprop(x, w, padding=[1, 1], stride=[1, 1], dilation=[1, 1])
    y = g.relu(g.bias(y, b))
    y.set_output(True)
    return g, y


def keys(left_out: list[str], device: Path | None) -> list[Row]:
    """The look-up of a graph, beside NVIDIA's key of one."""
    g, _ = block(kf.cudnn.Graph, io_data_type="float32")
    g.build()
    rows = [
        Row("signature of 3 operations", "g.signature()", {"g": g}),
        Row("build of 3 operations that is a hit", "g.build()", {"g": g}),
    ]
    try:
        import cudnn

        float32 = cudnn.data_type.FLOAT
        types = ("io_data_type", "intermediate_data_type", "compute_data_type")
        more: dict[str, Any] = dict.fromkeys(types, float32)
        if device is not None:
            more["device_property"] = cudnn.create_device_properties(device.read_text())
            more["sm_version"] = 90
        peer, _ = block(cudnn.pygraph, **more)
        peer.validate()
        rows.append(Row("NVIDIA's key() of 3 operations", "peer.key()", {"peer": peer}))
    except Exception as reason:  # Whatever it is that is missing.
        left_out.append(
            f"NVIDIA's frontend ({type(reason).__name__}: {str(reason).splitlines()[0]})"
        )
    return rows


def main() -> None:
    chosen = options()
    processor = pin()
    left_out: list[str] = []
    groups = [
        ("a prepared run", runs(None if chosen.instructions else BAR)),
        ("a graph's look-up", keys(left_out, chosen.device_property)),
    ]
    if chosen.under_valgrind:
        instructions.run_rows(groups)
        return
    machine = report.machine(processor)
    print(f"{machine['processor']}, load {machine['load_average']}; Python {machine['python']}\n")
    unit = "instructions" if chosen.instructions else "ns"
    try:
        counted = instructions.count(Path(__file__), "") if chosen.instructions else None
    except instructions.CannotCountError as reason:
        print(f"left out: instruction counts ({reason})")
        return
    tables = []
    for title, rows in groups:
        if counted is None:
            timings = measure(rows, EMPTY, chosen.rounds, chosen.calls, chosen.seconds)
        else:
            timings = instructions.timings(title, rows, counted)
        records = report.as_records(timings, {}, unit)
        tables.append({"title": title, "unit": unit, "rows": records})
        print(report.table(title, records, unit, []), end="\n\n")
    if counted is None:
        print(report.summary(tables))
    for line in left_out:
        print(f"left out: {line}")
    suffix = "_instructions" if chosen.instructions else ""
    path = chosen.json or RESULTS / f"python_cudnn{suffix}.json"
    report.write(path, {"machine": machine, "tables": tables, "left_out": left_out})
    print(f"written: {path}")


if __name__ == "__main__":
    main()
