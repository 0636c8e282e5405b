"""Parts of plots: axes, text, lines as SVG, for light and dark pages; no library, no font."""

from __future__ import annotations

import math

STYLE = """
  text { font: 12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #57606a }
  .page { fill: #ffffff; stroke: #d8dee4 }
  .title { font-size: 15px; font-weight: 600; fill: #1f2328 }
  .head { font-size: 13px; font-weight: 600; fill: #1f2328 }
  .small { font-size: 11px }
  .frame { fill: none; stroke: #d0d7de }
  .grid { stroke: #eaeef2 }
  .line { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round }
"""
DARK = """
    text { fill: #9198a1 }
    .page { fill: #0d1117; stroke: #30363d }
    .title, .head { fill: #f0f6fc }
    .frame { stroke: #3d444d }
    .grid { stroke: #21262d }
"""


def number(value: float) -> str:
    """A coordinate."""
    return f"{value:.1f}".rstrip("0").rstrip(".")


def text(
    x: float, y: float, words: str, kind: str = "", anchor: str = "start", more: str = ""
) -> str:
    """Words at a place."""
    kind = f' class="{kind}"' if kind else ""
    place = f'x="{number(x)}" y="{number(y)}" text-anchor="{anchor}"'
    return f"<text {place}{kind}{more}>{words}</text>"


def segment(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """A straight line."""
    ends = zip(("x1", "y1", "x2", "y2"), (x1, y1, x2, y2), strict=True)
    return (
        f'<line class="{kind}" {" ".join(f"{n}={chr(34)}{number(v)}{chr(34)}" for n, v in ends)}/>'
    )


def path(points: list[tuple[float, float]], kind: str) -> str:
    """A line through points."""
    places = " ".join(f"{number(x)},{number(y)}" for x, y in points)
    return f'<polyline class="line {kind}" points="{places}"/>'


def frame(x: float, y: float, width: float, height: float) -> str:
    """A panel's border."""
    size = f'width="{number(width)}" height="{number(height)}"'
    return f'<rect class="frame" x="{number(x)}" y="{number(y)}" {size} rx="3"/>'


def time(ns: float) -> str:
    """A round time, as an axis says it."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if ns >= size:
            return f"{ns / size:g} {unit}"
    return f"{ns:g} ns"


def power(exponent: int) -> str:
    """A power of ten."""
    return f'10<tspan dy="-4" font-size="9">{exponent}</tspan>'


class Axis:
    """From values to pixels, by the logarithm or evenly."""

    def __init__(self, low: float, high: float, start: float, end: float, log: bool = True) -> None:
        self.log = log
        self.low, self.high = self._of(low), self._of(high)
        self.start, self.end = start, end

    def _of(self, value: float) -> float:
        return math.log10(value) if self.log else value

    def __call__(self, value: float) -> float:
        """The pixel of a value."""
        part = (self._of(value) - self.low) / (self.high - self.low)
        return self.start + part * (self.end - self.start)


def page(width: float, height: float) -> str:
    """The background."""
    return f'<rect class="page" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>'


def document(
    title: str, width: float, height: float, drawn: list[str], style: str, dark: str
) -> str:
    """The SVG's text: what was drawn, with the styles of this module and of the plot."""
    inside = "\n".join(drawn)
    box = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    rules = f"{STYLE}{style}  @media (prefers-color-scheme: dark) {{{DARK}{dark}  }}\n"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {box} role="img" aria-label="{title}">'
    return f"{head}\n<style>{rules}</style>\n{inside}\n</svg>\n"
