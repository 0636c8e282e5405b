"""Plans of keyfold beside those of NVIDIA's frontend, for cards that aren't here.

    scripts/run.sh benches/bench_cudnn_frontend.py [--frontend PYTHON] [--rounds N] [--only TEXT]

Both build each graph by the same calls (frontend_graphs.py) and plan it by the same libcudnn, for
the four cards whose profiles come with keyfold. Compared are engine and knobs of the first plan.
The times are those from the built graph to its first plan, in milliseconds, the least of some
rounds in which the two take turns: keyfold's in a helper process that is warm, the way there and
back included, with an empty cache of plans; the frontend's in a process that has planned before.
The frontend is `nvidia-cudnn-frontend` of the Python that `--frontend` names, this one by default;
it also needs libcudart (`nvidia-cuda-runtime`). Nothing is installed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

import report
from frontend_graphs import CASES

import keyfold as kf
from keyfold import _core
from keyfold.cudnn import _library

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "cudnn_frontend.json"
SHIM = HERE.parent / "crates" / "libcudnn" / "shim" / "libcuda.c"
TYPES = {"half": "float16", "float": "float32", "int32": "int32"}
STEP = re.compile(r": engine (\d+) of heuristics (?:A|FALLBACK)(?: with ([^,]*))?, \d+ bytes")


class MissingError(Exception):
    """Something that the comparison needs isn't there."""


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, default=RESULTS, help="where the figures are written")
    parser.add_argument("--frontend", default=sys.executable, help="the Python that has it")
    parser.add_argument("--rounds", type=int, default=3, help="how often each case is planned")
    parser.add_argument("--only", default="", help="cases whose name has this text")
    return parser.parse_args()


class Frontend:
    """NVIDIA's frontend in a process of its own, which has a libcuda without a card."""

    def __init__(self, python: str, library: Path, folder: Path) -> None:
        code = "import cudnn, sys; print(*sys.path, sep='\\n')"
        where = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
        if where.returncode != 0:
            why = (where.stderr.strip().splitlines() or ["it failed"])[-1]
            raise MissingError(f"{python} has no nvidia-cudnn-frontend: {why}")
        paths = [Path(line) for line in where.stdout.splitlines() if line]
        compiler = os.environ.get("CC", "cc").split()
        shared = ["-shared", "-fPIC", "-nostdlib", "-Wl,-soname,libcuda.so.1"]
        made = folder / "libcuda.so.1"
        subprocess.run([*compiler, *shared, "-o", str(made), str(SHIM)], check=True)
        folders = [folder, library.parent, *(lib for p in paths for lib in p.glob("nvidia/*/lib"))]
        self.process = subprocess.Popen(
            [python, str(HERE / "frontend_graphs.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"LD_LIBRARY_PATH": os.pathsep.join(map(str, folders))},
        )
        self.versions = self.read()

    def read(self) -> dict[str, Any]:
        line = self.pipe(self.process.stdout).readline()
        if not line:
            raise MissingError(f"the frontend's process ended with {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    @staticmethod
    def pipe(stream: IO[str] | None) -> IO[str]:
        assert stream is not None
        return stream

    def plan(self, case: str, properties: dict[str, Any]) -> dict[str, Any]:
        stream = self.pipe(self.process.stdin)
        stream.write(json.dumps({"case": case, "properties": properties}) + "\n")
        stream.flush()
        return self.read()

    def close(self) -> None:
        self.pipe(self.process.stdin).close()
        self.process.wait(timeout=60)


def plan(case: str, card: str) -> dict[str, Any]:
    """keyfold's plan of a case."""
    write, given = CASES[case]
    g = kf.cudnn.Graph(
        io_data_type="float16", intermediate_data_type="float32", compute_data_type="float32"
    )
    write(g, TYPES, **given)
    kf.cudnn.plan_cache.clear()
    begun = time.perf_counter()
    try:
        made = g.build(card, tf32=True)
    except kf.Error as error:
        return {"error": f"{type(error).__name__}: {error}"}
    ms = (time.perf_counter() - begun) * 1e3
    found = [match for step in made.steps if (match := STEP.search(step))]
    if len(found) != 1:
        return {"error": f"{len(found)} plans in place of one: {made.steps}"}
    knobs = dict(knob.split("=") for knob in (found[0][2] or "").split())
    return {
        "engine": int(found[0][1]),
        "knobs": {name: int(value) for name, value in knobs.items()},
        "workspace_bytes": made.workspace_bytes,
        "ms": ms,
    }


def best(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """The first round's answer with the least time, and the first one's."""
    answer = dict(rounds[0])
    if "error" not in answer:
        answer["first_ms"] = round(answer["ms"], 1)
        answer["ms"] = round(min(one["ms"] for one in rounds), 1)
    return answer


def compare(frontend: Frontend, chosen: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    cards = kf.cudnn.CardProfile.names()
    properties = {
        card: json.loads(kf.cudnn.CardProfile.named(card).to_json())["properties"] for card in cards
    }
    for card in cards:
        # Both have planned for the card before anything is timed.
        plan("conv relu", card)
        frontend.plan("conv relu", properties[card])
        for case in CASES:
            if chosen.only not in case:
                continue
            ours, theirs = [], []
            for turn in range(chosen.rounds):
                pair = [
                    lambda at: at.append(plan(case, card)),  # noqa: B023
                    lambda at: at.append(frontend.plan(case, properties[card])),  # noqa: B023
                ]
                sides = list(zip(pair, (ours, theirs), strict=True))
                for call, at in sides if turn % 2 == 0 else reversed(sides):
                    call(at)
            row = {"card": card, "case": case, "keyfold": best(ours), "frontend": best(theirs)}
            rows.append(row)
            print(line(row), flush=True)
    return rows


def is_same(row: dict[str, Any]) -> bool:
    ours, theirs = row["keyfold"], row["frontend"]
    return "error" not in ours and all(ours[key] == theirs.get(key) for key in ("engine", "knobs"))


def line(row: dict[str, Any]) -> str:
    cells = [row["card"], row["case"]]
    for side in ("keyfold", "frontend"):
        one = row[side]
        if "error" in one:
            cells += [f"none ({one['error'][:60]})", ""]
        else:
            knobs = " ".join(f"{name}={value}" for name, value in sorted(one["knobs"].items()))
            cells += [f"{one['engine']} {knobs}".strip(), f"{one['ms']:.1f}"]
    cells.append("same" if is_same(row) else "differs")
    return "| " + " | ".join(cells) + " |"


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts, and ratios of the times, by kind of graph."""
    found: dict[str, Any] = {}
    for kind in ("attention backward", "attention", "conv"):
        mine = [row for row in rows if row["case"].startswith(kind)]
        if kind == "attention":
            mine = [row for row in mine if not row["case"].startswith("attention backward")]
        both = [row for row in mine if "error" not in row["keyfold"] | row["frontend"]]
        ratios = [row["keyfold"]["ms"] / row["frontend"]["ms"] for row in both]
        found[kind] = {
            "cases": len(mine),
            "neither_plans": sum(
                "error" in row["keyfold"] and "error" in row["frontend"] for row in mine
            ),
            "both_plan": len(both),
            "same_engine": sum(r["keyfold"]["engine"] == r["frontend"]["engine"] for r in both),
            "same_engine_and_knobs": sum(map(is_same, both)),
            "keyfold_ms": round(statistics.median(r["keyfold"]["ms"] for r in both), 1)
            if both
            else None,
            "frontend_ms": round(statistics.median(r["frontend"]["ms"] for r in both), 1)
            if both
            else None,
            "median_ratio": round(statistics.median(ratios), 3) if both else None,
            "not_slower": sum(ratio <= 1 for ratio in ratios),
        }
    return found


def main() -> None:
    chosen = options()
    all_found = _core._cudnn_libraries(_library.packages())
    usable = [path for path, _, refusal in all_found if refusal is None]
    with tempfile.TemporaryDirectory(prefix="shim") as folder:
        try:
            if not usable:
                raise MissingError("no libcudnn was found (python -m keyfold doctor)")
            frontend = Frontend(chosen.frontend, Path(usable[0]), Path(folder))
        except MissingError as reason:
            print(f"left out: {reason}")
            return
        machine = report.machine(None)
        machine["packages"]["cudnn"] = _core._cudnn_helpers(_library.base())[0]
        machine["packages"]["nvidia-cudnn-frontend"] = frontend.versions["frontend"]
        print(f"{machine['processor']}, load {machine['load_average']}; {machine['packages']}\n")
        print("| card | graph | keyfold | ms | NVIDIA's frontend | ms | |")
        print("| --- | --- | --- | --- | --- | --- | --- |")
        rows = compare(frontend, chosen)
        frontend.close()
    counts = summary(rows)
    print()
    for kind, found in counts.items():
        print(f"{kind}: {found}")
    machine["load_average_after"] = round(os.getloadavg()[0], 2)
    report.write(
        chosen.json,
        {"machine": machine, "rounds": chosen.rounds, "summary": counts, "rows": rows},
    )
    print(f"written: {chosen.json}")


if __name__ == "__main__":
    main()
