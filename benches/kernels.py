"""The rows of bench_kernels.py: one kernel each, as keyfold and its peers are asked for it.

Every call is `f(*inputs, out=None)`: it writes into `out` where that is given, and allocates its
result where it isn't.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from kernel_peers import CHAIN, FUNCTIONS, Call

import keyfold as kf

# Elements of a flat array, and of a side of a square matrix.
FLAT = 20_000_000
SIDE = 4096


@dataclass
class Kernel:
    """One row of the table.

    Args:
        name: what the table shows.
        inputs: names of arrays, see `make_arrays`.
        calls: what each library is asked, by its title; keyfold's takes tensors and NumPy arrays.
        floats: float32 numbers read and written per element of the first input, each input and
            the result once, however often the library goes over them.
        shape: the result's; the first input's unless given.
        dtype: the result's.
        fast: whether 1.5 times the best peer is asked for with the output given, too.
        share: which part of the copy's bandwidth is asked for.
        small: the result is a small one: it is returned, there is no row with the output given,
            and allocating it is no part of the bar.
        tolerance: how far from each other results may be, relative to them and to 1.
    """

    name: str
    inputs: tuple[str, ...]
    calls: Mapping[str, Call]
    floats: float
    shape: tuple[int, ...] | None = None
    dtype: type = np.float32
    fast: bool = False
    share: float | None = None
    small: bool = False
    tolerance: float = 1e-5
    without: dict[str, str] = field(default_factory=dict)


def make_arrays(scale: float) -> dict[str, np.ndarray]:
    """The inputs, the same in every run; `scale` makes them smaller."""
    random = np.random.default_rng(5)
    flat, side = int(FLAT * scale), int(SIDE * math.sqrt(scale))
    return {
        "a": random.standard_normal(flat, np.float32),
        "b": random.standard_normal(flat, np.float32),
        "m": random.standard_normal((side, side), np.float32),
        "row": random.standard_normal(side, np.float32),
        # Sums of these are far from 0, so that relative errors say something.
        "p": random.random(flat, np.float32),
        "q": random.random((side, side), np.float32),
    }


def make_kernels(peers: Mapping[str, Mapping[str, Call]]) -> list[Kernel]:
    """All rows, with the calls of the peers that are installed, see `kernel_peers.load`."""
    calls: dict[str, dict[str, Call]] = {}
    for library, functions in ({"keyfold": _keyfold()} | peers).items():
        for row, call in functions.items():
            calls.setdefault(row, {})[library] = call
    flat, matrix = ("a",), ("m",)
    rows = [
        Kernel("copy", flat, calls["copy"], 2),
        Kernel("add", ("a", "b"), calls["add"], 3, share=0.8),
        Kernel("exp", flat, calls["exp"], 2),
        Kernel("softplus", flat, calls["softplus"], 2, fast=True),
        Kernel("gelu, by erf", flat, calls["gelu"], 2, fast=True),
        Kernel("gelu, by tanh", flat, calls["gelu_tanh"], 2, fast=True),
        Kernel("sigmoid", flat, calls["sigmoid"], 2, fast=True),
        Kernel("chain of 8, arithmetic", ("a", "b"), calls["chain"], 3, fast=True),
        Kernel("chain of 8, functions", ("a", "b"), calls["functions"], 3, fast=True),
        Kernel("A + A.T", matrix, calls["add_transposed"], 2, fast=True),
        Kernel("row broadcast", ("m", "row"), calls["add_row"], 2),
        Kernel("softmax, axis 1", matrix, calls["softmax_rows"], 2),
        Kernel("softmax, axis 0", matrix, calls["softmax_columns"], 2),
        # Those who add one by one in float32 have errors that grow with the lane.
        Kernel("cumulative sum, flat", ("p",), calls["cumsum_flat"], 2, tolerance=1e-3),
        Kernel("cumulative sum, axis 1", ("q",), calls["cumsum_rows"], 2, tolerance=1e-3),
        Kernel("cumulative sum, axis 0", ("q",), calls["cumsum_columns"], 2, tolerance=1e-3),
    ]
    reductions = [
        ("sum, all", ("p",), "sum_all", (1,), np.float32),
        ("sum, axis 0", ("q",), "sum_columns", None, np.float32),
        ("sum, axis 1", ("q",), "sum_rows", None, np.float32),
        ("argmax, all", ("a",), "argmax_all", (1,), np.int64),
        ("argmax, axis 1", ("m",), "argmax_rows", None, np.int64),
    ]
    for name, inputs, key, shape, dtype in reductions:
        rows.append(
            Kernel(
                name,
                inputs,
                calls[key],
                1,
                shape=shape or (-1,),
                dtype=dtype,
                small=True,
                tolerance=1e-4 if dtype is np.float32 else 0.0,
            )
        )
    for row in rows:
        row.without = _reasons(row, peers)
    return rows


def _reasons(row: Kernel, peers: Mapping[str, Any]) -> dict[str, str]:
    """Why installed libraries have no call in a row."""
    reasons = {"gelu, by erf": "it has no erf", "argmax": "it has no argmax"}
    reasons["cumulative"] = "it has none, or none in parallel"
    missing = [library for library in peers if library not in row.calls]
    return {
        library: next((why for start, why in reasons.items() if row.name.startswith(start)), "")
        for library in missing
    }


def _keyfold() -> dict[str, Call]:
    aten = kf.ops.aten

    def copy(x, out=None):
        return aten.clone(x) if out is None else aten.copy_(out, x)

    def softmax(axis):
        def call(x, out=None):
            return aten.softmax(x, axis) if out is None else aten.softmax.out(x, axis, out=out)

        return call

    return {
        "copy": copy,
        "add": kf.add,
        "exp": kf.exp,
        "softplus": kf.softplus,
        "gelu": kf.gelu,
        "gelu_tanh": lambda x, out=None: kf.gelu(x, approximate="tanh", out=out),
        "sigmoid": kf.sigmoid,
        "chain": kf.Expression(CHAIN),
        "functions": kf.Expression(FUNCTIONS),
        "add_transposed": lambda m, out=None: kf.add(m, m.T, out=out),
        "add_row": kf.add,
        "softmax_rows": softmax(1),
        "softmax_columns": softmax(0),
        "cumsum_flat": lambda x, out=None: kf.cumulative_sum(x, 0, out=out),
        "cumsum_rows": lambda m, out=None: kf.cumulative_sum(m, 1, out=out),
        "cumsum_columns": lambda m, out=None: kf.cumulative_sum(m, 0, out=out),
        "sum_all": lambda x, out=None: kf.sum(x),
        "sum_columns": lambda m, out=None: kf.sum(m, axis=0),
        "sum_rows": lambda m, out=None: kf.sum(m, axis=1),
        "argmax_all": lambda x, out=None: kf.argmax(x),
        "argmax_rows": lambda m, out=None: kf.argmax(m, axis=1),
    }
