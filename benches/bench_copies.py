"""Large copies on the host by one thread and by several, of 64 MB: milliseconds and their ratio.

    scripts/run.sh benches/bench_copies.py [--threads N]

The numbers of threads take turns, and the least time of each counts.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import keyfold as kf

ROUNDS = 15


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    several = parser.parse_args().threads
    x = kf.from_numpy(np.ones((4096, 4096), np.float32))
    deep = kf.from_numpy(np.ones((64, 64, 64, 64), np.float32))
    wide = kf.from_numpy(np.ones((4096, 8192), np.float32))
    whole = (-1,)
    # `reshape` copies where it can't make a view.
    calls = {
        "contiguous": lambda: kf.ops.aten.clone(x),
        "every second column": lambda: kf.reshape(wide[:, :8190:2], whole),
        "transposed": lambda: kf.reshape(x.T, whole),
        "dimensions reversed": lambda: kf.reshape(kf.permute_dims(deep, (3, 2, 1, 0)), whole),
    }
    print(f"{'64 MB of float32':24}{'1 thread':>12}{f'{several} threads':>12}{'ratio':>8}")
    for name, call in calls.items():
        least = {1: float("inf"), several: float("inf")}
        for _ in range(ROUNDS):
            for threads in least:
                kf.set_num_threads(threads)
                start = time.perf_counter()
                call()
                least[threads] = min(least[threads], time.perf_counter() - start)
        one, more = (1e3 * least[threads] for threads in (1, several))
        print(f"{name:24}{one:10.2f}ms{more:10.2f}ms{more / one:8.2f}")


if __name__ == "__main__":
    main()
