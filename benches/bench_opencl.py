"""OpenCL from Python: keyfold's plugin beside pyopencl's own arrays, NumPy, and a copy there.

    make bench-opencl
    scripts/bench.sh benches/bench_opencl.py [--only TEXT|overhead] [--seconds N] [--json FILE]
    scripts/run.sh benches/bench_opencl.py --markdown      # the JSON file as tables, for README.md

All libraries of a row take turns in one process on one device, each on a queue of its own in order
and with times, in another order each round; each turn is a call that isn't timed, a wait, then
calls that are queued and waited for. A figure is the least of the rounds, for one call. The
environment variable OPENCL names the plugin.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib.util
import json
import os
import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import fastcall
import numpy as np
import opencl_rows
import report
from opencl_rows import SHARE, Call, Line, Peer, host

import keyfold as kf

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "opencl.json"
COLUMNS = ("the copy", "keyfold", "keyfold, new result", "pyopencl", "NumPy")
# How many calls are queued before each wait.
QUEUED = {"1": 100, "64k": 20}
# The bar: microseconds of a call beyond the empty enqueue.
BEYOND = 5.0
# A peer with so many times the fastest's time, and so much of a row's time, is timed once.
SLOW, TOO_LONG = 4.0, 10
EMPTY = "C: an empty kernel"


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, default=RESULTS, help="where the figures are written")
    parser.add_argument("--seconds", type=float, default=1.5, help="per row, at most (3 rounds)")
    parser.add_argument("--rounds", type=int, default=15, help="how often each call is timed")
    parser.add_argument("--markdown", action="store_true", help="only the JSON file as tables")
    parser.add_argument("--only", action="append", metavar="TEXT", help="no rows but these")
    return parser.parse_args()


def missing() -> str | None:
    """Why nothing can be measured; finds the loader that keyfold shares with pyopencl."""
    if "OPENCL" not in os.environ:
        return "OPENCL doesn't name the plugin's library: make bench-opencl builds it"
    found = importlib.util.find_spec("pyopencl")
    if found is None or found.origin is None:
        return "pyopencl isn't installed: scripts/bootstrap.sh opencl"
    bundled = sorted(Path(found.origin).parent.glob(".libs/libOpenCL*"))
    if bundled:
        os.environ.setdefault("KEYFOLD_OPENCL", str(bundled[0]))
    return None


def in_turns(
    calls: dict[str, Callable[[], float]], rounds: int, seconds: float
) -> dict[str, float]:
    """The least of each call's figures."""
    shuffle, least = random.Random(5), dict.fromkeys(calls, float("inf"))
    end = time.perf_counter() + seconds
    gc.collect()
    gc.disable()
    try:
        for number in range(rounds):
            if number >= 3 and time.perf_counter() > end:
                break
            fastest = min(least.values())
            for name in shuffle.sample(list(calls), len(calls)):
                if number and least[name] > SLOW * fastest and seconds < TOO_LONG * least[name]:
                    continue
                least[name] = min(least[name], calls[name]())
    finally:
        gc.enable()
    return least


def timed(call: Call, drain: Call, queued: int) -> Callable[[], float]:
    """Seconds of one of `queued` calls, with the wait for them."""

    def turn() -> float:
        call()
        drain()
        start = time.perf_counter()
        for _ in range(queued):
            call()
        drain()
        return (time.perf_counter() - start) / queued

    return turn


def measure(line: Line, drains: dict[str, Call], chosen: argparse.Namespace) -> dict[str, Any]:
    """Compares the results, times the calls, and returns the row."""
    expected = host(line.calls["NumPy"]()).astype(np.float64)
    for name, call in line.calls.items():
        if name not in ("NumPy", "the copy"):
            np.testing.assert_allclose(host(call()), expected, rtol=1e-3, atol=1e-3, err_msg=name)
    queued = QUEUED.get(line.size, 1)
    calls = {name: timed(call, drains[name], queued) for name, call in line.calls.items()}
    seconds = in_turns(calls, chosen.rounds, chosen.seconds)
    ours = seconds["keyfold"]
    row: dict[str, Any] = {
        "name": line.name,
        "size": line.size,
        "us": {name: round(second * 1e6, 2) for name, second in seconds.items()},
        "times_faster": {
            name: round(seconds[name] / ours, 3)
            for name in ("pyopencl", "NumPy")
            if name in seconds
        },
    }
    if line.flops:
        row["gigaflops"] = {
            name: round(line.flops / seconds[name] / 1e9, 1) for name in ("keyfold", "NumPy")
        }
    else:
        # The copy reads and writes 4 bytes of each element.
        elements = opencl_rows.SIZES[line.size]
        row["share_of_copy"] = round(line.moved / ours / (8 * elements / seconds["the copy"]), 3)
    if line.bar:
        row["bar"] = round(SHARE, 3)
        row["met"] = row["share_of_copy"] >= SHARE
    if line.without:
        row["without"] = line.without
    return row


def overheads(peer: Peer, chosen: argparse.Namespace, stack: ExitStack) -> list[dict[str, Any]]:
    """Microseconds of one queueing call, the queue drained outside of the time."""
    calls = 200
    library = stack.enter_context(fastcall.built(HERE / "opencl_enqueue.c", "enqueue"))
    program = ctypes.CDLL(str(library))
    program.enqueue.restype = ctypes.c_double
    loader = os.environ.get("KEYFOLD_OPENCL", "libOpenCL.so.1")
    if failed := program.prepare(loader.encode()):
        raise SystemExit(f"opencl_enqueue.c: step {failed} of its preparation failed")
    include = Path(kf.__file__).parent / "include"
    device = stack.enter_context(
        fastcall.built(HERE / "nothing_device.c", "nothing", [str(include)])
    )
    stack.enter_context(kf.load_plugin(device))

    def of_c(arguments: int) -> Callable[[], float]:
        def turn() -> float:
            program.enqueue(8, arguments)
            program.drain()
            seconds = program.enqueue(calls, arguments) / calls
            program.drain()
            return seconds

        return turn

    def of_python(call: Call, drain: Call) -> Callable[[], float]:
        def turn() -> float:
            for _ in range(8):
                call()
            drain()
            start = time.perf_counter()
            for _ in range(calls):
                call()
            seconds = (time.perf_counter() - start) / calls
            drain()
            return seconds

        return turn

    source = "kernel void nothing(void) {}"
    empty = peer.cl.Kernel(peer.cl.Program(peer.context, source).build(), "nothing")
    enqueue, queue = peer.cl.enqueue_nd_range_kernel, peer.queue
    rows = {
        EMPTY: of_c(0),
        "C: three buffers set, a kernel": of_c(3),
        "pyopencl: an empty kernel": of_python(
            lambda: enqueue(queue, empty, (64,), (64,)), queue.finish
        ),
    }
    for device_type, title in (
        ("opencl", "keyfold"),
        ("nothing", "keyfold, a device that does nothing"),
        ("cpu", "keyfold, cpu"),
    ):
        x = kf.asarray([1.0], dtype="float32", device=device_type)
        out = kf.empty_like(x)

        def drain(device_type: str = device_type) -> None:
            kf.synchronize(device_type)

        rows[f"{title}: add with out"] = of_python(
            lambda x=x, out=out: kf.add(x, x, out=out), drain
        )
        rows[f"{title}: add"] = of_python(lambda x=x: kf.add(x, x), drain)
    least = in_turns(rows, 4 * chosen.rounds, 4 * chosen.seconds)
    floor = least[EMPTY]
    made = []
    for name, seconds in least.items():
        beyond = (seconds - floor) * 1e6
        row: dict[str, Any] = {
            "name": name,
            "us": round(seconds * 1e6, 2),
            "beyond": round(beyond, 2),
        }
        if name.startswith("keyfold: "):
            row |= {"bar": BEYOND, "met": beyond <= BEYOND}
        made.append(row)
    return made


def verdict(row: dict[str, Any]) -> str:
    return "" if "met" not in row else "PASS" if row["met"] else f"over ({row['bar']:g})"


def markdown(content: dict[str, Any]) -> str:
    """The tables of README.md."""
    machine = content["machine"]
    text = [f"{machine['device']} ({machine['version']}, driver {machine['driver']})", ""]
    text += [
        f"| us | {' | '.join(COLUMNS)} | pyopencl / keyfold | NumPy / keyfold | share | bar |",
        f"| --- {'| --- ' * (len(COLUMNS) + 4)}|",
    ]
    for row in content["rows"]:
        cells = [f"{row['us'][name]:.4g}" if name in row["us"] else "" for name in COLUMNS]
        for name in ("pyopencl", "NumPy"):
            ratio = row["times_faster"].get(name)
            cells.append(f"{ratio:.2f}" if ratio is not None else "")
        cells.append(f"{row['share_of_copy']:.2f}" if "share_of_copy" in row else "")
        text.append(f"| {row['name']}, {row['size']} | {' | '.join(cells)} | {verdict(row)} |")
    text += [
        "",
        "| one call that queues, us | | beyond the empty one | bar |",
        "| --- | --- | --- | --- |",
    ]
    text += [
        f"| {row['name']} | {row['us']:.2f} | {row['beyond']:.2f} | {verdict(row)} |"
        for row in content["overheads"]
    ]
    return "\n".join(text)


def main() -> None:
    chosen = options()
    if chosen.markdown:
        print(markdown(json.loads(chosen.json.read_text())))
        return
    if why := missing():
        print(f"left out: OpenCL ({why})")
        return
    import pyopencl as cl

    peer = Peer(cl)
    with ExitStack() as stack:
        stack.enter_context(kf.load_plugin(os.environ["OPENCL"]))
        machine = report.machine(None) | {
            "device": peer.device.name,
            "version": peer.device.version,
            "driver": peer.device.driver_version,
        }
        print(f"{machine['device']}, {machine['version']}, load {machine['load_average']}")
        queue = peer.queue.finish
        drains: dict[str, Call] = {
            **dict.fromkeys(("the copy", "pyopencl"), queue),
            **dict.fromkeys(("keyfold", "keyfold, new result"), lambda: kf.synchronize("opencl")),
            "NumPy": lambda: None,
        }
        rows = []
        for line in opencl_rows.lines(peer, chosen.only):
            rows.append(measure(line, drains, chosen))
            us, faster = rows[-1]["us"], rows[-1]["times_faster"]
            share = rows[-1].get("share_of_copy", "")
            print(f"{line.name:<11}{line.size:>5}  {us}  times faster {faster}", flush=True)
            print(f"{'':16}  share of the copy {share} {verdict(rows[-1])}", flush=True)
        content = {"machine": machine, "rows": rows, "overheads": []}
        if chosen.only is None or "overhead" in chosen.only:
            content["overheads"] = overheads(peer, chosen, stack)
    print(f"\n{markdown(content)}\n")
    for reason in dict.fromkeys(
        f"{row['name']}: {row['without']}" for row in rows if "without" in row
    ):
        print(f"left out: {reason}")
    if chosen.only is None or chosen.json != RESULTS:
        report.write(chosen.json, content)
        print(f"written: {chosen.json}")


if __name__ == "__main__":
    main()
