"""Tables, verdicts and the JSON file of a benchmark."""

from __future__ import annotations

import json
import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from timing import Row, Timing

PACKAGES = (
    *("keyfold", "numpy", "plum-dispatch", "apache-tvm-ffi", "torch", "jax", "jaxlib"),
    *("scipy", "numexpr", "numba", "pyopencl", "pocl-binary-distribution"),
)


def machine(processor: int | None) -> dict[str, Any]:
    """What the figures depend on: processor, system, versions."""
    model = platform.processor()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "processor": model,
        "processors": os.cpu_count(),
        "pinned_to": processor,
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "system": platform.platform(),
        "python": sys.version.split()[0],
        "packages": versions,
    }


def verdict(ratio: float, bar: float) -> str:
    """`PASS`, or how far over the bar."""
    return "PASS" if ratio <= bar else f"over by {ratio / bar:.2f}x"


def judge(row: Row, figure: float, reference: float) -> str:
    """A row's verdict, and the number that its bar is about where that is no ratio of the table."""
    assert row.bar is not None
    if row.form == "most":
        return verdict(max(figure, 0.0), row.bar)
    if row.form == "above":
        more = figure - reference
        return f"{verdict(max(more, 0.0), row.bar)} ({more:+.1f})"
    if row.form == "faster":
        times = reference / figure
        return f"{verdict(row.bar, times) if times < row.bar else 'PASS'} ({times:.1f} x)"
    if row.form == "equal":
        return f"{verdict(abs(figure - reference), row.bar)} ({figure - reference:+.2f})"
    return verdict(figure / reference, row.bar)


# How the table says a bar, by its form.
BARS = {
    "times": "{bar:g} x {over}",
    "most": "at most {bar:g}",
    "above": "at most {bar:g} above {over}",
    "faster": "{bar:g} x faster than {over}",
    "equal": "as {over}",
}


def as_records(
    timings: list[Timing], references: dict[str, str], unit: str
) -> list[dict[str, Any]]:
    """A group's rows as plain data, with their ratios to the reference rows.

    Args:
        references: from a column's title to the name of the row that it divides by.
        unit: what the figures are: `ns` or `instructions`.
    """
    least = {timing.row.name: timing.least for timing in timings}
    records = []
    for timing in timings:
        row = timing.row
        record: dict[str, Any] = {
            "name": row.name,
            unit: round(timing.least, 2),
            "calls": timing.calls,
            "ratios": {
                title: round(timing.least / least[name], 3)
                for title, name in references.items()
                if name in least
            },
        }
        if unit == "ns":
            record["ns_median"] = round(timing.median, 2)
        # The bars are bars of time, but for those that say that nothing is added.
        judged = unit == "ns" or row.form == "equal"
        comparable = row.form == "most" or row.over in least
        if judged and row.bar is not None and comparable:
            record |= {"bar": row.bar, "over": row.over, "form": row.form}
            record["verdict"] = judge(row, timing.least, least.get(row.over or "", 0.0))
        records.append(record)
    return records


def table(title: str, records: list[dict[str, Any]], unit: str, columns: list[str]) -> str:
    """A group as text."""
    width = max(len(record["name"]) for record in records)
    medians = f"{unit}_median" in records[0]
    head = f"{title:<{width}}  {unit:>12}" + (f" {'median':>8}" if medians else "")
    head += "".join(f"  {'/ ' + column:>17}" for column in columns)
    head += "  bar" if medians else ""
    lines = [head, "-" * len(head)]
    for record in records:
        line = f"{record['name']:<{width}}  {record[unit]:12.1f}"
        line += f" {record['ns_median']:8.1f}" if medians else ""
        for column in columns:
            ratio = record["ratios"].get(column)
            line += f"  {ratio:17.2f}" if ratio is not None else " " * 19
        if "bar" in record:
            line += f"  {BARS[record['form']].format(**record)}: {record['verdict']}"
        lines.append(line.rstrip())
    return "\n".join(lines)


def summary(tables: list[dict[str, Any]]) -> str:
    """How many bars are met."""
    verdicts = [row["verdict"] for table in tables for row in table["rows"] if "verdict" in row]
    met = sum(verdict.startswith("PASS") for verdict in verdicts)
    return f"{met} of {len(verdicts)} bars met"


def disturbance(tables: list[dict[str, Any]], reference: str) -> str | None:
    """A warning where the same row took different times in different groups."""
    times = [row["ns"] for table in tables for row in table["rows"] if row["name"] == reference]
    if len(times) < 2 or max(times) < 1.1 * min(times):
        return None
    return (
        f"the machine was busy: {reference} took {min(times):.1f} to {max(times):.1f} ns; run again"
    )


def write(path: Path, content: dict[str, Any]) -> None:
    """Writes the JSON file, making its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n")
