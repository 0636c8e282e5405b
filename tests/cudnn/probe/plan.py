"""Plans of the cases by the real libcudnn, for cards that aren't here.

python -m tests.cudnn.probe.plan [--profiles h100,a100] [--refused] [-o FILE.json]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import keyfold as kf
from tests.cudnn.probe.cases import cases, planned, refused
from tests.cudnn.probe.equal import difference

PROFILES = ("h100", "a100", "l40s", "b200")
KEPT = "read from the plans in"


def plan(graph: kf.cudnn.Graph, profile: str) -> dict[str, Any]:
    """Build a graph's plan, twice: the second time from the folder of plans, by libcudnn again."""
    begun = time.perf_counter()
    try:
        first = graph.build(device=profile, tf32=True)
    except kf.Error as error:
        return {"verdict": "refused", "error": str(error)}
    row: dict[str, Any] = {"engine": first.engine, "steps": first.steps}
    row["ms"] = round((time.perf_counter() - begun) * 1e3, 1)
    kf.cudnn.plan_cache.clear()
    again = graph.build(device=profile, tf32=True)
    reloaded = again.steps[0].startswith(KEPT) and again.engine == first.engine
    return row | {"verdict": "reloaded" if reloaded else "planned", "again": again.steps[0]}


def sweep(
    pairs: Iterable[tuple[str, str]], threads: int = 2, *, compare: bool = False
) -> Iterator[dict[str, Any]]:
    """Plan cases, each an id and a profile, with a folder of plans of their own.

    With `compare` the parts of plans of several, or of other views, are run on the CPU and compared
    with the graph; NumPy has no bfloat16 to do that with.
    """
    build = dict(cases())

    def one(pair: tuple[str, str]) -> dict[str, Any]:
        case, profile = pair
        graph = build[case]()
        row = {"case": case, "profile": profile} | plan(graph, profile)
        if compare and row["verdict"] == "reloaded" and "/bf16/" not in case:
            row["difference"] = difference(graph, graph.build(device=profile, tf32=True))
        return row

    before = kf.cudnn.plan_cache.folder
    with tempfile.TemporaryDirectory(prefix="plans") as folder:
        kf.cudnn.plan_cache.keep_in(folder)
        try:
            with ThreadPoolExecutor(threads) as pool:
                yield from pool.map(one, pairs)
        finally:
            kf.cudnn.plan_cache.keep_in(before)


def part(pairs: list[tuple[str, str]], step: int) -> list[tuple[str, str]]:
    """Each group's first case on each profile, and every `step`-th pair of the group.

    A list of pairs has the profiles of a case next to each other: with an odd `step` the profiles
    take turns, and nearly every pair is another case.
    """
    count: Counter[str] = Counter()
    seen = set()
    chosen = []
    for case, profile in pairs:
        group = case.partition("/")[0]
        if count[group] % step == 0 or (group, profile) not in seen:
            chosen.append((case, profile))
        count[group] += 1
        seen.add((group, profile))
    return chosen


def table(rows: list[dict[str, Any]]) -> str:
    """Counts by group and profile: those that were reloaded, of those that were asked."""
    groups = list(dict.fromkeys(row["case"].partition("/")[0] for row in rows))
    profiles = [p for p in PROFILES if any(row["profile"] == p for row in rows)]
    lines = ["| group | " + " | ".join(profiles) + " |", "| --- |" + " --- |" * len(profiles)]
    for group in [*groups, "all"]:
        cells = []
        for profile in profiles:
            mine = [
                row["verdict"]
                for row in rows
                if row["profile"] == profile and group in (row["case"].partition("/")[0], "all")
            ]
            cells.append(f"{sum(v == 'reloaded' for v in mine)} of {len(mine)}")
        lines.append(f"| {group} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> int:
    """Plan all cases that the probe planned, or those that the legaliser aims at."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--profiles", default=",".join(PROFILES))
    options.add_argument(
        "--refused", action="store_true", help="the cases of refused.json, on h100"
    )
    options.add_argument("--only", default="", help="cases whose id has this text")
    options.add_argument("-o", type=Path)
    given = options.parse_args()
    if given.refused:
        pairs = [(case, "h100") for case in refused()]
    else:
        wanted = given.profiles.split(",")
        pairs = [(case, p) for case, on in planned().items() for p in on if p in wanted]
    pairs = [pair for pair in pairs if given.only in pair[0]]
    begun = time.perf_counter()
    rows = []
    for row in sweep(pairs, compare=given.refused):
        rows.append(row)
        if row["verdict"] != "reloaded":
            print(
                row["verdict"], row["profile"], row["case"], row.get("error", row)[:300], flush=True
            )
        if len(rows) % 200 == 0:
            print(f"{len(rows)} of {len(pairs)}, {time.perf_counter() - begun:.0f} s", flush=True)
    print(table(rows))
    compared = [row for row in rows if "difference" in row]
    if compared:
        worst = max(compared, key=lambda row: row["difference"])
        print(f"{len(compared)} compared, the largest difference {worst['difference']:.2g}")
        print(
            *(f"{r['difference']:.2g} {r['case']}" for r in compared if r["difference"]), sep="\n"
        )
    print(f"{time.perf_counter() - begun:.0f} s")
    if given.o:
        given.o.write_text(json.dumps(rows, separators=(",", ":")) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
