"""Two builds of keyfold side by side: times of kernels from 100 to 20 million elements, as ratios.

    scripts/run.sh benches/bench_builds.py BASE NEW [--rounds N] [--only TEXT]

BASE and NEW are folders that hold the package, `python` of a checkout that was built. The two take
turns, each in a process of its own, and the least time of each row counts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable

SIZES = {100: 3000, 8192: 600, 1_000_000: 40, 20_000_000: 8}


def least(call: Callable[[], object], rounds: int) -> float:
    """The least time of a call, in microseconds."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times) * 1e6


def measure(only: str) -> dict[str, float]:
    """The rows of the build that this process imports, on one thread."""
    import numpy as np

    import keyfold as kf

    kf.set_num_threads(1)
    rng = np.random.default_rng(0)
    aten = kf.ops.aten
    found = {}

    def row(name: str, call: Callable[[], object], rounds: int) -> None:
        if only in name:
            found[name] = least(call, rounds)

    def random(*shape: int) -> kf.Tensor:
        return kf.asarray(rng.normal(size=shape).astype(np.float32))

    for size, rounds in SIZES.items():
        x, y, out = random(size), random(size), random(size)
        rows = kf.reshape(x, (-1, 50 if size % 50 == 0 else 64))
        half = x.to("float16")
        calls: dict[str, Callable[[], object]] = {
            "add": lambda x=x, y=y, out=out: aten.add.out(x, y, out=out),
            "exp": lambda x=x, out=out: aten.exp.out(x, out=out),
            "gelu": lambda x=x, out=out: aten.gelu.out(x, out=out),
            "add to a transposed": lambda rows=rows: rows.mT + 1.0,
            "sum": lambda x=x: kf.sum(x),
            "sum, float16": lambda half=half: kf.sum(half),
            "sum, axis 0": lambda rows=rows: kf.sum(rows, axis=0),
            "argmax": lambda x=x: kf.argmax(x),
            "softmax": lambda rows=rows: kf.softmax(rows, axis=-1),
        }
        for name, call in calls.items():
            row(f"{name}, {size}", call, rounds)
    for size in (16, 64, 256, 1024):
        x = random(size, size)
        row(f"matmul, {size} squared", lambda x=x: x @ x, 2000 if size < 100 else 12)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("base", help="the folder with the package of one build")
    parser.add_argument("new", help="the folder with that of the other")
    parser.add_argument("--rounds", type=int, default=2, help="processes of each build")
    parser.add_argument("--only", default="", help="no rows but those that contain this text")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.measure:
        print(json.dumps(measure(chosen.only)))
        return
    least_of: dict[str, dict[str, float]] = {"base": {}, "new": {}}
    for _ in range(chosen.rounds):
        for build in ("base", "new"):
            folder = getattr(chosen, build)
            command = [sys.executable, __file__, folder, folder]
            done = subprocess.run(
                [*command, "--measure", "--only", chosen.only],
                env=os.environ | {"PYTHONPATH": folder},
                capture_output=True,
                text=True,
                check=True,
            )
            for name, each in json.loads(done.stdout).items():
                known = least_of[build].get(name, each)
                least_of[build][name] = min(known, each)
    print(f"{'':28}{'base, us':>12}{'new, us':>12}{'ratio':>8}")
    for name, base in least_of["base"].items():
        new = least_of["new"][name]
        print(f"{name:28}{base:12.1f}{new:12.1f}{new / base:8.2f}")


if __name__ == "__main__":
    main()
