"""Times many calls side by side, rounds interleaved over all rows.

`measure` is for calls of nanoseconds: net of the loop, one after the other. `take_turns` is for
calls of microseconds and more, whose caches and threads the others disturb: in another order each
round, where each contestant runs once untimed before it is timed.
"""

from __future__ import annotations

import gc
import os
import random
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

# A contestant slower than the fastest by this factor is timed in every eighth round only.
SLOW = 4.0

LOOP = """
def run(times, clock, {names}):
    start = clock()
    for _ in times:
        {call}
    return clock() - start
"""


@dataclass
class Row:
    """One call to time.

    Args:
        name: what the table shows.
        call: the expression, over the names in `values`.
        values: its names; they are the loop's local variables.
        modules: names that it reads as globals, as a module's code does.
        bar: how the figure must stand to that of the row `over`.
        form: what the bar says: "times": at most so many times it; "above": at most so much more,
            in the unit of the figures; "faster": at least so many times faster; "equal": no
            further from it than that; "most": at most so much, by itself.
        per: how many operator calls there are in one call of the expression: figures are for each.
        inside: makes a context that the loop runs in, entered outside of the time.
    """

    name: str
    call: str
    values: Mapping[str, Any] = field(default_factory=dict)
    modules: Mapping[str, Any] = field(default_factory=dict)
    bar: float | None = None
    over: str | None = None
    form: str = "times"
    per: int = 1
    inside: Callable[[], AbstractContextManager[Any]] = nullcontext

    def __post_init__(self) -> None:
        # A code object of its own: CPython specialises a call where it stands.
        source = LOOP.format(names=", ".join(self.values) or "_unused=None", call=self.call)
        scope = dict(self.modules)
        exec(compile(source, f"<{self.name}>", "exec"), scope)
        self._run = scope["run"]

    def time(self, calls: int) -> float:
        """Seconds that so many calls take, the loop included."""
        with self.inside():
            return self._run(repeat(None, calls), time.perf_counter, **self.values)


@dataclass
class Timing:
    """A row's nanoseconds per operator call, net of the empty loop."""

    row: Row
    least: float
    median: float
    calls: int


def pin() -> int | None:
    """Keeps this process on one processor, and says which; `None` where that can't be done."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    processor = max(os.sched_getaffinity(0))
    try:
        os.sched_setaffinity(0, {processor})
    except OSError:
        return None
    return processor


def calls_for(row: Row, seconds: float, most: int, fewest: int | None = None) -> int:
    """How many calls of a row fill the time, up to `most`. Warms the row up on the way.

    Args:
        fewest: calls at a time. By default 1 for a call of many operators, which is long enough to
            be timed alone, and 64 for one of a single operator, which isn't.
    """
    fewest = fewest or (1 if row.per > 1 else 64)
    calls = fewest
    while True:
        taken = row.time(calls)
        if calls >= most:
            return most
        if taken >= seconds / 4:
            return min(most, max(fewest, int(calls * seconds / taken)))
        calls *= 4


def measure(rows: list[Row], empty: Row, rounds: int, calls: int, seconds: float) -> list[Timing]:
    """Times the rows in turn, so many rounds.

    Each round times every row once, so that a machine that slows down slows all of them down.
    The least over the rounds is what the call costs undisturbed; the median shows how disturbed
    they were.
    """
    counts = [calls_for(row, seconds, calls) for row in rows]
    loops: list[float] = []
    taken: list[list[float]] = [[] for _ in rows]
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            loops.append(empty.time(calls) / calls)
            for times, row, count in zip(taken, rows, counts, strict=True):
                times.append(row.time(count) / count)
    finally:
        if was_enabled:
            gc.enable()
    loop_least, loop_median = min(loops), statistics.median(loops)
    return [
        Timing(
            row,
            (min(times) - loop_least) * 1e9 / row.per,
            (statistics.median(times) - loop_median) * 1e9 / row.per,
            count,
        )
        for row, times, count in zip(rows, taken, counts, strict=True)
    ]


def take_turns(
    turns: Mapping[str, Callable[[], float]],
    rounds: int,
    seconds: float,
    shuffle: random.Random,
    limit: str | None = None,
) -> dict[str, list[float]]:
    """Times contestants in turn, in another order each round.

    Args:
        turns: from a contestant's name to what runs and times it once, in seconds.
        rounds: how often each is timed.
        seconds: no round after the third begins later than that.
        shuffle: orders the rounds.
        limit: the contestant that the others can't reach, a copy of the same bytes, say: it makes
            none of them slow.

    Returns:
        From a contestant's name to its seconds.
    """
    taken: dict[str, list[float]] = {name: [] for name in turns}
    end = time.perf_counter() + seconds
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for number in range(rounds):
            if number >= 3 and time.perf_counter() > end:
                break
            order = list(turns)
            shuffle.shuffle(order)
            fastest = min(
                (min(times) for name, times in taken.items() if times and name != limit),
                default=0.0,
            )
            for name in order:
                if number % 8 and min(taken[name]) > SLOW * fastest:
                    continue
                taken[name].append(turns[name]())
    finally:
        if was_enabled:
            gc.enable()
    return taken
