"""numba's kernels, written as one would by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

# Columns of a row of a matrix that one thread takes at a time where it goes down the columns.
STRIP = 256


def jit(numba: Any, function: Callable[..., None]) -> Callable[..., None]:
    """The function compiled for the threads that are set; IEEE arithmetic, as everybody else's."""
    return numba.njit(parallel=numba.get_num_threads() > 1, fastmath=False)(function)


def pointwise(
    numba: Any, expression: str, inputs: str, numbers: Mapping[str, np.float32] | None = None
) -> Callable[..., Any]:
    """numba's loop over one expression of flat float32 arrays, as one would write it by hand.

    Numbers in the expression are float32 names: numba computes in float64 beside a literal.

    Args:
        numbers: more of them, by name.
    """
    names = [name.strip() for name in inputs.split(",")]
    elements = {name: f"{name}[i]" for name in names}
    lines = [
        f"def loop({inputs}, out):",
        "    for i in prange(out.size):",
        *(f"        {name}_ = {element}" for name, element in elements.items()),
        f"        out[i] = {expression}",
    ]
    scope: dict[str, Any] = {"prange": numba.prange, "math": math, "numba": numba}
    scope |= {"half": np.float32(0.5), "one": np.float32(1), "two": np.float32(2)}
    scope |= {"root_half": np.float32(math.sqrt(0.5))}
    scope |= {"tanh_scale": np.float32(math.sqrt(2 / math.pi)), "cubic": np.float32(0.044715)}
    scope |= numbers or {}
    exec(compile("\n".join(lines), f"<numba: {expression}>", "exec"), scope)
    return jit(numba, scope["loop"])


def matrix_loops(numba: Any) -> dict[str, Callable[..., None]]:
    """numba's loops over matrices and reductions, by name; each writes into its last argument."""
    prange = numba.prange
    zero, lowest = np.float32(0), np.float32(-np.inf)

    def add_transposed(a, out):
        for i in prange(a.shape[0]):
            for j in range(a.shape[1]):
                out[i, j] = a[i, j] + a[j, i]

    def add_row(m, row, out):
        for i in prange(m.shape[0]):
            for j in range(m.shape[1]):
                out[i, j] = m[i, j] + row[j]

    def softmax_rows(m, out):
        for i in prange(m.shape[0]):
            greatest = lowest
            for j in range(m.shape[1]):
                greatest = max(greatest, m[i, j])
            total = zero
            for j in range(m.shape[1]):
                out[i, j] = math.exp(m[i, j] - greatest)
                total += out[i, j]
            for j in range(m.shape[1]):
                out[i, j] /= total

    def softmax_columns(m, out):
        rows, columns = m.shape
        for strip in prange((columns + STRIP - 1) // STRIP):
            begin, end = strip * STRIP, min((strip + 1) * STRIP, columns)
            greatest = m[0, begin:end].copy()
            total = np.zeros_like(greatest)
            for i in range(rows):
                for j in range(begin, end):
                    greatest[j - begin] = max(greatest[j - begin], m[i, j])
            for i in range(rows):
                for j in range(begin, end):
                    out[i, j] = math.exp(m[i, j] - greatest[j - begin])
                    total[j - begin] += out[i, j]
            for i in range(rows):
                for j in range(begin, end):
                    out[i, j] /= total[j - begin]

    def cumsum_rows(m, out):
        for i in prange(m.shape[0]):
            total = zero
            for j in range(m.shape[1]):
                total += m[i, j]
                out[i, j] = total

    def cumsum_columns(m, out):
        rows, columns = m.shape
        for strip in prange((columns + STRIP - 1) // STRIP):
            begin, end = strip * STRIP, min((strip + 1) * STRIP, columns)
            out[0, begin:end] = m[0, begin:end]
            for i in range(1, rows):
                for j in range(begin, end):
                    out[i, j] = out[i - 1, j] + m[i, j]

    def sum_all(x, out):
        total = 0.0
        for i in prange(x.size):
            total += x[i]
        out[0] = total

    def sum_columns(m, out):
        rows, columns = m.shape
        for strip in prange((columns + STRIP - 1) // STRIP):
            begin, end = strip * STRIP, min((strip + 1) * STRIP, columns)
            out[begin:end] = zero
            for i in range(rows):
                for j in range(begin, end):
                    out[j] += m[i, j]

    def sum_rows(m, out):
        for i in prange(m.shape[0]):
            total = zero
            for j in range(m.shape[1]):
                total += m[i, j]
            out[i] = total

    def argmax_all(x, out):
        parts = numba.get_num_threads()
        places = np.zeros(parts, np.int64)
        size = (x.size + parts - 1) // parts
        for part in prange(parts):
            best = part * size
            for i in range(best, min(best + size, x.size)):
                if x[i] > x[best]:
                    best = i
            places[part] = best
        out[0] = places[0]
        for part in range(1, parts):
            if x[places[part]] > x[out[0]]:
                out[0] = places[part]

    def argmax_rows(m, out):
        for i in prange(m.shape[0]):
            best = 0
            for j in range(m.shape[1]):
                if m[i, j] > m[i, best]:
                    best = j
            out[i] = best

    loops = (add_transposed, add_row, softmax_rows, softmax_columns)
    loops += (cumsum_rows, cumsum_columns)
    loops += (sum_all, sum_columns, sum_rows, argmax_all, argmax_rows)
    return {loop.__name__: jit(numba, loop) for loop in loops}


def calls(numba: Any) -> dict[str, Callable[..., Any]]:
    """The calls by row, see `kernel_peers`."""

    def flat(expression, inputs):
        loop = pointwise(numba, expression, inputs)

        def call(*arrays, out=None):
            out = np.empty_like(arrays[0]) if out is None else out
            loop(*arrays, out)
            return out

        return call

    loops = matrix_loops(numba)

    def into(name, shape=None, dtype=np.float32):
        loop = loops[name]

        def call(*arrays, out=None):
            if shape is None:
                out = np.empty_like(arrays[0]) if out is None else out
            else:
                out = np.empty(shape(arrays[0]), dtype)
            loop(*arrays, out)
            return out

        return call

    def one(x):
        return 1

    def columns(m):
        return m.shape[1]

    def rows(m):
        return m.shape[0]

    inner = "tanh_scale * (a_ + cubic * a_ * a_ * a_)"
    return {
        "copy": flat("a_", "a"),
        "add": flat("a_ + b_", "a, b"),
        "exp": flat("math.exp(a_)", "a"),
        "softplus": flat("math.log1p(math.exp(a_))", "a"),
        "gelu": flat("half * a_ * (one + math.erf(a_ * root_half))", "a"),
        "gelu_tanh": flat(f"half * a_ * (one + math.tanh({inner}))", "a"),
        "sigmoid": flat("one / (one + math.exp(-a_))", "a"),
        "chain": flat("((a_ * b_ + a_) * (a_ - b_) + two * b_) * half - a_", "a, b"),
        "functions": flat(
            "math.exp(-(a_ * a_)) * math.tanh(b_) + math.log1p(abs(b_))",
            "a, b",
        ),
        "add_transposed": into("add_transposed"),
        "add_row": into("add_row"),
        "softmax_rows": into("softmax_rows"),
        "softmax_columns": into("softmax_columns"),
        "cumsum_rows": into("cumsum_rows"),
        "cumsum_columns": into("cumsum_columns"),
        "sum_all": into("sum_all", one),
        "sum_columns": into("sum_columns", columns),
        "sum_rows": into("sum_rows", rows),
        "argmax_all": into("argmax_all", one, np.int64),
        "argmax_rows": into("argmax_rows", rows, np.int64),
    }
