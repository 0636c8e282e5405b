"""Whether memory grows with the number of plans: of this process, and of the helpers.

    scripts/run.sh benches/bench_plans.py [--builds 10000] [--fresh 20]

Needs a libcudnn (pip install nvidia-cudnn-jit-cu13), and no GPU. A small product is built for the
card a100 so many times, each time without the process's cache of plans: every `--fresh`th time
libcudnn plans it, which takes it 0.2 s, and in between it reads the plan that is kept in a folder.
It prints resident memory in MB.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import keyfold as kf

CARD = "a100"
PAGE = os.sysconf("SC_PAGE_SIZE")


def resident(process: int | str = "self") -> float:
    """The resident memory of a process in MB; 0 where it has ended."""
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * PAGE / 1e6
    except OSError:
        return 0.0


def graph(size: int) -> kf.cudnn.Graph:
    g = kf.cudnn.Graph(io_data_type="float16")
    a, b = g.tensor(dim=[1, size, 64]), g.tensor(dim=[1, 64, 64])
    g.matmul(a, b).set_output(True)
    return g


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--builds", type=int, default=10_000)
    options.add_argument("--fresh", type=int, default=20, help="how often libcudnn plans")
    given = options.parse_args()
    marks = sorted({1, 10, given.builds} | {10**n for n in range(2, 6) if 10**n < given.builds})
    marks = sorted({*marks, given.builds // 2})
    base = kf.cudnn._library.base()
    begun = time.perf_counter()
    read = most = 0
    print("| builds | read from the folder | helpers started | this process MB | helper MB | s |")
    print("| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory(prefix="plans") as folder:
        kf.cudnn.plan_cache.keep_in(folder)
        for number in range(1, given.builds + 1):
            kf.cudnn.plan_cache.clear()
            if number % given.fresh == 1:
                for path in Path(folder).iterdir():
                    path.unlink()
            plan = graph(64).build(device=CARD)
            read += plan.steps[0].startswith("read from the plans in")
            if number % 100 == 0 or number in marks:
                _, started, idle = kf._core._cudnn_helpers(base)
                helpers = [round(resident(process)) for process in idle]
                most = max([most, *helpers])
            if number in marks:
                row = [number, read, started, f"{resident():.1f}", ", ".join(map(str, helpers))]
                cells = [*map(str, row), f"{time.perf_counter() - begun:.0f}"]
                print(f"| {' | '.join(cells)} |", flush=True)
    print(f"The most that a helper had, looked at every 100 builds: {most} MB.")


if __name__ == "__main__":
    main()
