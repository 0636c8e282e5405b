"""Draws the figures of bench_sizes.py as an SVG, for light and dark pages; no library, no font."""

from __future__ import annotations

import math
from typing import Any

# Pixels: one panel, the room around it, and the gap between the two of an operation.
WIDTH, HEIGHT, LOW = 278, 270, 92
LEFT, TOP, GAP, BETWEEN, BOTTOM, RIGHT = 62, 92, 34, 30, 52, 20

LINES = {
    "NumPy": "numpy",
    "keyfold, 1 thread": "one",
    "keyfold, 2 threads": "two",
}

STYLE = """
  text { font: 12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #57606a }
  .page { fill: #ffffff; stroke: #d8dee4 }
  .title { font-size: 15px; font-weight: 600; fill: #1f2328 }
  .head { font-size: 13px; font-weight: 600; fill: #1f2328 }
  .small { font-size: 11px }
  .frame { fill: none; stroke: #d0d7de }
  .grid { stroke: #eaeef2 }
  .even { stroke: #afb8c1 }
  .cut { stroke: #cf5a00; stroke-width: 1.25; stroke-dasharray: 4 3 }
  .cuttext { fill: #b34e00; font-size: 11px }
  .line { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round }
  .numpy { stroke: #8c959f }
  .one { stroke: #54aeff }
  .two { stroke: #0a4fb3 }
  .dot { stroke: none; fill: #0a4fb3 }
"""
DARK = """
    text { fill: #9198a1 }
    .page { fill: #0d1117; stroke: #30363d }
    .title, .head { fill: #f0f6fc }
    .frame { stroke: #3d444d }
    .grid { stroke: #21262d }
    .even { stroke: #656c76 }
    .cut { stroke: #f0883e }
    .cuttext { fill: #f0883e }
    .numpy { stroke: #8b949e }
    .one { stroke: #1f6feb }
    .two { stroke: #a5d6ff }
    .dot { fill: #a5d6ff }
"""


def _number(value: float) -> str:
    """A coordinate."""
    return f"{value:.1f}".rstrip("0").rstrip(".")


def _text(
    x: float, y: float, text: str, kind: str = "", anchor: str = "start", more: str = ""
) -> str:
    kind = f' class="{kind}"' if kind else ""
    place = f'x="{_number(x)}" y="{_number(y)}" text-anchor="{anchor}"'
    return f"<text {place}{kind}{more}>{text}</text>"


def _segment(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    ends = zip(("x1", "y1", "x2", "y2"), (x1, y1, x2, y2), strict=True)
    return (
        f'<line class="{kind}" {" ".join(f"{n}={chr(34)}{_number(v)}{chr(34)}" for n, v in ends)}/>'
    )


def _path(points: list[tuple[float, float]], kind: str) -> str:
    places = " ".join(f"{_number(x)},{_number(y)}" for x, y in points)
    return f'<polyline class="line {kind}" points="{places}"/>'


def _time(ns: float) -> str:
    """A round time, as an axis says it."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if ns >= size:
            return f"{ns / size:g} {unit}"
    return f"{ns:g} ns"


def _power(exponent: int) -> str:
    """A power of ten."""
    return f'10<tspan dy="-4" font-size="9">{exponent}</tspan>'


class _Axis:
    """From values to pixels, by the logarithm or evenly."""

    def __init__(self, low: float, high: float, start: float, end: float, log: bool = True) -> None:
        self.log = log
        self.low, self.high = self._of(low), self._of(high)
        self.start, self.end = start, end

    def _of(self, value: float) -> float:
        return math.log10(value) if self.log else value

    def __call__(self, value: float) -> float:
        part = (self._of(value) - self.low) / (self.high - self.low)
        return self.start + part * (self.end - self.start)


def _frame(x: float, y: float, height: float) -> str:
    size = f'width="{WIDTH}" height="{height}"'
    return f'<rect class="frame" x="{_number(x)}" y="{_number(y)}" {size} rx="3"/>'


def _panel(
    operation: dict[str, Any], left: float, first: bool, times: tuple[int, int]
) -> list[str]:
    """An operation's two panels: the times, and what the second thread gains."""
    lines = operation["lines"]
    elements = [point["elements"] for point in next(iter(lines.values()))]
    x = _Axis(elements[0], elements[-1], left, left + WIDTH)
    y = _Axis(10.0 ** times[0], 10.0 ** times[1], TOP + HEIGHT, TOP)
    low = TOP + HEIGHT + BETWEEN
    gain = _Axis(0, 2.2, low + LOW, low, log=False)
    drawn = [_text(left, TOP - 10, operation["operation"], "head")]
    for exponent in range(round(math.log10(elements[0])), round(math.log10(elements[-1])) + 1):
        at = x(10.0**exponent)
        drawn += [
            _segment(at, TOP, at, TOP + HEIGHT, "grid"),
            _segment(at, low, at, low + LOW, "grid"),
        ]
        drawn.append(_text(at, low + LOW + 17, _power(exponent), "small", "middle"))
    drawn.append(_text(left + WIDTH / 2, low + LOW + 37, "elements (float32)", "", "middle"))
    for exponent in range(times[0], times[1] + 1):
        at = y(10.0**exponent)
        drawn.append(_segment(left, at, left + WIDTH, at, "grid"))
        if first:
            drawn.append(_text(left - 8, at + 4, _time(10.0**exponent), "small", "end"))
    for value in (0, 1, 2):
        at = gain(value)
        drawn.append(_segment(left, at, left + WIDTH, at, "even" if value == 1 else "grid"))
        if first:
            drawn.append(_text(left - 8, at + 4, f"{value} &#215;", "small", "end"))
    drawn += [_frame(left, TOP, HEIGHT), _frame(left, low, LOW)]
    cut = operation["two_threads_from"]
    if cut:
        at = x(cut)
        drawn += [
            _segment(at, TOP, at, TOP + HEIGHT, "cut"),
            _segment(at, low, at, low + LOW, "cut"),
        ]
        drawn.append(_text(at - 6, TOP + 17, "two threads", "cuttext", "end"))
        drawn.append(_text(at - 6, TOP + 31, f"from {cut:,}", "cuttext", "end"))
    for name, kind in LINES.items():
        drawn.append(_path([(x(p["elements"]), y(p["ns"])) for p in lines[name]], kind))
    both = zip(lines["keyfold, 1 thread"], lines["keyfold, 2 threads"], strict=True)
    gains = [(x(one["elements"]), gain(min(2.2, one["ns"] / two["ns"]))) for one, two in both]
    drawn.append(_path(gains, "two"))
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
        f'<rect class="page" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>',
        _text(LEFT, 30, title, "title"),
    ]
    at = float(LEFT)
    for name, kind in LINES.items():
        drawn += [_segment(at, 50, at + 22, 50, f"line {kind}"), _text(at + 29, 54, name)]
        at += 50 + 6.3 * len(name) + (6 if len(name) < 8 else 0)
    for number, operation in enumerate(operations):
        drawn += _panel(operation, LEFT + number * (WIDTH + GAP), number == 0, times)
    middle = TOP + HEIGHT + BETWEEN - 9
    drawn.append(_text(LEFT, middle, "what the second thread gains", "small"))
    inside = "\n".join(drawn)
    box = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    style = f"<style>{STYLE}  @media (prefers-color-scheme: dark) {{{DARK}  }}\n</style>"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {box} role="img" aria-label="{title}">'
    return f"{head}\n{style}\n{inside}\n</svg>\n"
