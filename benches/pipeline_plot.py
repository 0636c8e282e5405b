"""Draws the chains of bench_pipeline.py as an SVG: nanoseconds an element against the size."""

from __future__ import annotations

import math
from typing import Any

import svg

# Pixels: one panel, and the room around it and between.
WIDTH, HEIGHT = 232, 210
LEFT, TOP, GAP, BETWEEN, BOTTOM, RIGHT = 66, 108, 32, 62, 34, 20
# The title of a table of chains begins so.
CHAINS = "chains, "

# From a column to its class and its name in the legend.
LINES = {
    "copy": ("copy", "copy of the same bytes"),
    "NumPy": ("numpy", "NumPy"),
    "numexpr": ("numexpr", "numexpr"),
    "numba": ("numba", "numba"),
    "JAX": ("jax", "JAX"),
    "PyTorch": ("torch", "PyTorch"),
    "compiled": ("compiled", "torch.compile"),
    "eager": ("eager", "keyfold eager"),
    "by hand": ("hand", "one expression"),
    "kf.fuse": ("fuse", "kf.fuse"),
    "pipeline": ("pipeline", "pipeline"),
}
COLOURS = {
    "copy": ("#afb8c1", "#656c76"),
    "numpy": ("#8c959f", "#8b949e"),
    "numexpr": ("#bf8700", "#d29922"),
    "numba": ("#2da44e", "#3fb950"),
    "jax": ("#8250df", "#a371f7"),
    "torch": ("#e5534b", "#ff7b72"),
    "compiled": ("#bf3989", "#db61a2"),
    "eager": ("#54aeff", "#1f6feb"),
    "hand": ("#1b7c83", "#39c5cf"),
    "fuse": ("#cf5a00", "#f0883e"),
    "pipeline": ("#0a4fb3", "#a5d6ff"),
}
STYLE = "".join(f"  .{kind} {{ stroke: {light} }}\n" for kind, (light, _) in COLOURS.items())
STYLE += "  .copy, .hand { stroke-dasharray: 4 3 }\n"
DARK = "".join(f"    .{kind} {{ stroke: {dark} }}\n" for kind, (_, dark) in COLOURS.items())


def _panel(
    rows: list[dict[str, Any]], left: float, top: float, first: bool, decades: tuple[int, ...]
) -> list[str]:
    """The lines of a chain of one length and kind."""
    low, high, least, most = decades
    x = svg.Axis(10.0**low, 10.0**high, left, left + WIDTH)
    y = svg.Axis(10.0**least, 10.0**most, top + HEIGHT, top)
    head = f"{rows[0]['length']} operations, {rows[0]['table'].removeprefix(CHAINS)}"
    drawn = [svg.text(left, top - 10, head, "head")]
    for exponent in range(low, high + 1):
        at = x(10.0**exponent)
        drawn.append(svg.segment(at, top, at, top + HEIGHT, "grid"))
        drawn.append(svg.text(at, top + HEIGHT + 17, svg.power(exponent), "small", "middle"))
    for exponent in range(least, most + 1):
        at = y(10.0**exponent)
        drawn.append(svg.segment(left, at, left + WIDTH, at, "grid"))
        if first:
            drawn.append(svg.text(left - 8, at + 4, svg.time(10.0**exponent), "small", "end"))
    drawn.append(svg.frame(left, top, WIDTH, HEIGHT))
    for column, (kind, _) in LINES.items():
        points = [(row["elements"], row["ns"][column]) for row in rows if column in row["ns"]]
        drawn.append(svg.path([(x(size), y(ns / size)) for size, ns in points], kind))
    return drawn


def _bounds(values: list[float]) -> tuple[int, int]:
    """The powers of ten around values."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)


def draw(rows: list[dict[str, Any]]) -> str:
    """The SVG's text.

    Args:
        rows: as bench_pipeline.py writes them, some of chains; those of other tables are left out.
    """
    tables: dict[str, dict[int, list[dict[str, Any]]]] = {}
    for row in rows:
        if row["table"].startswith(CHAINS):
            tables.setdefault(row["table"], {}).setdefault(row["length"], []).append(row)
    chains = [row for table in tables.values() for one in table.values() for row in one]
    per_element = [ns / row["elements"] for row in chains for ns in row["ns"].values()]
    decades = *_bounds([row["elements"] for row in chains]), *_bounds(per_element)
    count = max(len(table) for table in tables.values())
    width = LEFT + count * (WIDTH + GAP) - GAP + RIGHT
    height = TOP + len(tables) * (HEIGHT + BETWEEN) - BETWEEN + BOTTOM
    title = "Time of a chain of operations for each element, float32"
    drawn = [svg.page(width, height), svg.text(LEFT, 26, title, "title")]
    used = {column for row in chains for column in row["ns"]}
    x, y = float(LEFT), 50
    for kind, name in (LINES[column] for column in LINES if column in used):
        room = 34 + 5.8 * len(name)
        if x + room > width:
            x, y = float(LEFT), y + 18
        drawn.append(svg.segment(x, y - 4, x + 18, y - 4, f"line {kind}"))
        drawn.append(svg.text(x + 23, y, name, "small"))
        x += room
    for number, lengths in enumerate(tables.values()):
        top = TOP + number * (HEIGHT + BETWEEN)
        for place, one in enumerate(lengths.values()):
            left = LEFT + place * (WIDTH + GAP)
            drawn += _panel(one, left, top, place == 0, decades)
    return svg.document(title, width, height, drawn, STYLE, DARK)
