"""The libraries that kernels are timed beside: what each is asked, on the same number of threads.

Every call is `f(*inputs, out=None)`: it writes into `out` where that is given, with its temporaries
there already, and allocates its result where it isn't.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

import numba_loops
import numpy as np

Call = Callable[..., Any]

# Eight operations over two arrays each: arithmetic, and with functions.
CHAIN = "((a * b + a) * (a - b) + 2.0 * b) * 0.5 - a"
FUNCTIONS = "exp(-(a * a)) * tanh(b) + log1p(abs(b))"


def load(threads: int, left_out: list[str]) -> tuple[dict[str, Any], dict[str, dict[str, Call]]]:
    """The modules of the installed peers and their calls by row, by their titles in the table."""
    makers = {
        "NumPy": ("numpy", lambda _: numpy_calls()),
        "numexpr": ("numexpr", numexpr_calls),
        "numba": ("numba", numba_loops.calls),
        "PyTorch": ("torch", torch_calls),
    }
    modules, calls = {}, {}
    for title, (name, make) in makers.items():
        try:
            module = importlib.import_module(name)
        except ImportError:
            left_out.append(f"{title} (not installed: pip install {name})")
            continue
        if title != "NumPy":
            module.set_num_threads(threads)
        modules[title], calls[title] = module, make(module)
    return modules, calls


def numpy_calls() -> dict[str, Call]:
    """NumPy's calls: with an output, its temporaries are there already, too."""
    half, one, two = np.float32(0.5), np.float32(1), np.float32(2)
    scale, cubic = np.float32(math.sqrt(2 / math.pi)), np.float32(0.044715)
    spare: dict[tuple[int, ...], np.ndarray] = {}

    def scratch(out):
        if out.shape not in spare:
            spare.clear()
            spare[out.shape] = np.empty_like(out)
        return spare[out.shape]

    def copy(x, out=None):
        return x.copy() if out is None else np.copyto(out, x)

    def softplus(x, out=None):
        out = np.exp(x, out=out)
        return np.log1p(out, out=out)

    def sigmoid(x, out=None):
        out = np.negative(x, out=out)
        np.exp(out, out=out)
        np.add(out, one, out=out)
        return np.reciprocal(out, out=out)

    def gelu_tanh(x, out=None):
        out = np.multiply(x, x, out=out)
        out *= cubic
        out += one
        out *= x
        out *= scale
        np.tanh(out, out=out)
        out += one
        out *= x
        out *= half
        return out

    def chain(a, b, out=None):
        if out is None:
            return ((a * b + a) * (a - b) + two * b) * half - a
        other = scratch(out)
        np.multiply(a, b, out=out)
        out += a
        out *= np.subtract(a, b, out=other)
        out += np.multiply(two, b, out=other)
        out *= half
        out -= a
        return out

    def functions(a, b, out=None):
        if out is None:
            return np.exp(-(a * a)) * np.tanh(b) + np.log1p(np.abs(b))
        other = scratch(out)
        np.multiply(a, a, out=out)
        np.exp(np.negative(out, out=out), out=out)
        out *= np.tanh(b, out=other)
        out += np.log1p(np.abs(b, out=other), out=other)
        return out

    def softmax(axis):
        def call(x, out=None):
            out = np.subtract(x, x.max(axis=axis, keepdims=True), out=out)
            np.exp(out, out=out)
            out /= out.sum(axis=axis, keepdims=True)
            return out

        return call

    return {
        "copy": copy,
        "add": np.add,
        "exp": np.exp,
        "softplus": softplus,
        "gelu_tanh": gelu_tanh,
        "sigmoid": sigmoid,
        "chain": chain,
        "functions": functions,
        "add_transposed": lambda m, out=None: np.add(m, m.T, out=out),
        "add_row": np.add,
        "softmax_rows": softmax(1),
        "softmax_columns": softmax(0),
        "cumsum_flat": lambda x, out=None: np.cumsum(x, 0, out=out),
        "cumsum_rows": lambda m, out=None: np.cumsum(m, 1, out=out),
        "cumsum_columns": lambda m, out=None: np.cumsum(m, 0, out=out),
        "sum_all": lambda x, out=None: x.sum(),
        "sum_columns": lambda m, out=None: m.sum(axis=0),
        "sum_rows": lambda m, out=None: m.sum(axis=1),
        "argmax_all": lambda x, out=None: x.argmax(),
        "argmax_rows": lambda m, out=None: m.argmax(axis=1),
    }


def numexpr_calls(numexpr: Any) -> dict[str, Call]:
    # A literal 0.5 would make everything float64.
    numbers = {"half": np.float32(0.5), "one": np.float32(1), "two": np.float32(2)}
    numbers |= {"scale": np.float32(math.sqrt(2 / math.pi)), "cubic": np.float32(0.044715)}

    def text(expression, *names):
        def call(*arrays, out=None):
            values = numbers | dict(zip(names, arrays, strict=True))
            return numexpr.evaluate(expression, local_dict=values, out=out)

        return call

    def softmax(axis):
        def call(x, out=None):
            greatest = {"x": x, "g": x.max(axis=axis, keepdims=True)}
            out = numexpr.evaluate("exp(x - g)", local_dict=greatest, out=out)
            total = {"x": out, "t": out.sum(axis=axis, keepdims=True)}
            return numexpr.evaluate("x / t", local_dict=total, out=out)

        return call

    def add_transposed(m, out=None):
        return numexpr.evaluate("m + t", local_dict={"m": m, "t": m.T}, out=out)

    return {
        "copy": text("a", "a"),
        "add": text("a + b", "a", "b"),
        "exp": text("exp(a)", "a"),
        "softplus": text("log1p(exp(a))", "a"),
        "gelu_tanh": text("half * a * (one + tanh(scale * (a + cubic * a * a * a)))", "a"),
        "sigmoid": text("one / (one + exp(-a))", "a"),
        "chain": text("((a * b + a) * (a - b) + two * b) * half - a", "a", "b"),
        "functions": text(FUNCTIONS, "a", "b"),
        "add_transposed": add_transposed,
        "add_row": text("m + row", "m", "row"),
        "softmax_rows": softmax(1),
        "softmax_columns": softmax(0),
        "sum_all": text("sum(a)", "a"),
        "sum_columns": text("sum(a, axis=0)", "a"),
        "sum_rows": text("sum(a, axis=1)", "a"),
    }


def torch_calls(torch: Any) -> dict[str, Call]:
    aten, gelu = torch.ops.aten, torch.nn.functional.gelu
    spare: dict[Any, Any] = {}

    def scratch(out):
        if out.shape not in spare:
            spare.clear()
            spare[out.shape] = torch.empty_like(out)
        return spare[out.shape]

    def copy(x, out=None):
        return x.clone() if out is None else out.copy_(x)

    def softplus(x, out=None):
        return aten.softplus(x) if out is None else aten.softplus.out(x, out=out)

    def gelu_as(form):
        def call(x, out=None):
            if out is None:
                return gelu(x, approximate=form)
            return aten.gelu.out(x, approximate=form, out=out)

        return call

    def softmax(axis):
        def call(x, out=None):
            return torch.softmax(x, axis) if out is None else torch.softmax(x, axis, out=out)

        return call

    def chain(a, b, out=None):
        if out is None:
            return ((a * b + a) * (a - b) + 2 * b) * 0.5 - a
        other = scratch(out)
        torch.mul(a, b, out=out)
        out += a
        out *= torch.sub(a, b, out=other)
        out += torch.mul(b, 2, out=other)
        out *= 0.5
        out -= a
        return out

    def functions(a, b, out=None):
        if out is None:
            return torch.exp(-(a * a)) * torch.tanh(b) + torch.log1p(torch.abs(b))
        other = scratch(out)
        torch.mul(a, a, out=out)
        out.neg_().exp_()
        out *= torch.tanh(b, out=other)
        out += torch.abs(b, out=other).log1p_()
        return out

    return {
        "copy": copy,
        "add": torch.add,
        "exp": torch.exp,
        "softplus": softplus,
        "gelu": gelu_as("none"),
        "gelu_tanh": gelu_as("tanh"),
        "sigmoid": torch.sigmoid,
        "chain": chain,
        "functions": functions,
        "add_transposed": lambda m, out=None: torch.add(m, m.T, out=out),
        "add_row": torch.add,
        "softmax_rows": softmax(1),
        "softmax_columns": softmax(0),
        "cumsum_flat": lambda x, out=None: torch.cumsum(x, 0, out=out),
        "cumsum_rows": lambda m, out=None: torch.cumsum(m, 1, out=out),
        "cumsum_columns": lambda m, out=None: torch.cumsum(m, 0, out=out),
        "sum_all": lambda x, out=None: x.sum(),
        "sum_columns": lambda m, out=None: m.sum(dim=0),
        "sum_rows": lambda m, out=None: m.sum(dim=1),
        "argmax_all": lambda x, out=None: x.argmax(),
        "argmax_rows": lambda m, out=None: m.argmax(dim=1),
    }
