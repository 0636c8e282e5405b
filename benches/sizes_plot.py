"""Draws the figures of bench_sizes.py as an SVG."""

from __future__ import annotations

import math
from typing import Any

import svg

# Pixels: one panel, the room around it, and the gap between the two of an operation.
WIDTH, HEIGHT, LOW = 278, 270, 92
LEFT, TOP, GAP, BETWEEN, BOTTOM, RIGHT = 62, 92, 34, 30, 52, 20

LINES = {
    "NumPy": "numpy",
    "keyfold, 1 thread": "one",
    "keyfold, 2 threads": "two",
}

STYLE = """  .even { stroke: #afb8c1 }
  .cut { stroke: #cf5a00; stroke-width: 1.25; stroke-dasharray: 4 3 }
  .cuttext { fill: #b34e00; font-size: 11px }
  .numpy { stroke: #8c959f }
  .one { stroke: #54aeff }
  .two { stroke: #0a4fb3 }
  .dot { stroke: none; fill: #0a4fb3 }
"""
DARK = """    .even { stroke: #656c76 }
    .cut { stroke: #f0883e }
    .cuttext { fill: #f0883e }
    .numpy { stroke: #8b949e }
    .one { stroke: #1f6feb }
    .two { stroke: #a5d6ff }
    .dot { fill: #a5d6ff }
"""


def _panel(
    operation: dict[str, Any], left: float, first: bool, times: tuple[int, int]
) -> list[str]:
    """An operation's two panels: the times, and what the second thread gains."""
    lines = operation["lines"]
    elements = [point["elements"] for point in next(iter(lines.values()))]
    x = svg.Axis(elements[0], elements[-1], left, left + WIDTH)
    y = svg.Axis(10.0 ** times[0], 10.0 ** times[1], TOP + HEIGHT, TOP)
    low = TOP + HEIGHT + BETWEEN
    gain = svg.Axis(0, 2.2, low + LOW, low, log=False)
    drawn = [svg.text(left, TOP - 10, operation["operation"], "head")]
    for exponent in range(round(math.log10(elements[0])), round(math.log10(elements[-1])) + 1):
        at = x(10.0**exponent)
        drawn += [
            svg.segment(at, TOP, at, TOP + HEIGHT, "grid"),
            svg.segment(at, low, at, low + LOW, "grid"),
        ]
        drawn.append(svg.text(at, low + LOW + 17, svg.power(exponent), "small", "middle"))
    drawn.append(svg.text(left + WIDTH / 2, low + LOW + 37, "elements (float32)", "", "middle"))
    for exponent in range(times[0], times[1] + 1):
        at = y(10.0**exponent)
        drawn.append(svg.segment(left, at, left + WIDTH, at, "grid"))
        if first:
            drawn.append(svg.text(left - 8, at + 4, svg.time(10.0**exponent), "small", "end"))
    for value in (0, 1, 2):
        at = gain(value)
        drawn.append(svg.segment(left, at, left + WIDTH, at, "even" if value == 1 else "grid"))
        if first:
            drawn.append(svg.text(left - 8, at + 4, f"{value} &#215;", "small", "end"))
    drawn += [svg.frame(left, TOP, WIDTH, HEIGHT), svg.frame(left, low, WIDTH, LOW)]
    cut = operation["two_threads_from"]
    if cut:
        at = x(cut)
        drawn += [
            svg.segment(at, TOP, at, TOP + HEIGHT, "cut"),
            svg.segment(at, low, at, low + LOW, "cut"),
        ]
        drawn.append(svg.text(at - 6, TOP + 17, "two threads", "cuttext", "end"))
        drawn.append(svg.text(at - 6, TOP + 31, f"from {cut:,}", "cuttext", "end"))
    for name, kind in LINES.items():
        drawn.append(svg.path([(x(p["elements"]), y(p["ns"])) for p in lines[name]], kind))
    both = zip(lines["keyfold, 1 thread"], lines["keyfold, 2 threads"], strict=True)
    gains = [(x(one["elements"]), gain(min(2.2, one["ns"] / two["ns"]))) for one, two in both]
    drawn.append(svg.path(gains, "two"))
    return drawn


def draw(operations: list[dict[str, Any]]) -> str:
    """The SVG's text.

    Args:
        operations: as bench_sizes.py writes them: name, cut-off or `None`, lines of points.
    """
    figures = [p["ns"] for one in operations for line in one["lines"].values() for p in line]
    times = (math.floor(math.log10(min(figures))), math.ceil(math.log10(max(figures))))
    width = LEFT + len(operations) * (WIDTH + GAP) - GAP + RIGHT
    height = TOP + HEIGHT + BETWEEN + LOW + BOTTOM
    title = "Time of one call against its size"
    drawn = [
        svg.page(width, height),
        svg.text(LEFT, 30, title, "title"),
    ]
    at = float(LEFT)
    for name, kind in LINES.items():
        drawn += [svg.segment(at, 50, at + 22, 50, f"line {kind}"), svg.text(at + 29, 54, name)]
        at += 50 + 6.3 * len(name) + (6 if len(name) < 8 else 0)
    for number, operation in enumerate(operations):
        drawn += _panel(operation, LEFT + number * (WIDTH + GAP), number == 0, times)
    middle = TOP + HEIGHT + BETWEEN - 9
    drawn.append(svg.text(LEFT, middle, "what the second thread gains", "small"))
    return svg.document(title, width, height, drawn, STYLE, DARK)
