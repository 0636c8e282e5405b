"""The rows of bench_opencl.py: what keyfold, pyopencl and NumPy are asked for.

Every call only queues; NumPy's is done when it returns.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import keyfold as kf

Call = Callable[[], Any]

SIZES = {"1": 1, "64k": 1 << 16, "16M": 1 << 24}
SIDES = (512, 1024)
# Eight operations over two arrays.
CHAIN = "((a * b + a) * (a - b) + 2.0 * b) * 0.5 - a"
CHAIN_C = "((a[i] * b[i] + a[i]) * (a[i] - b[i]) + 2.0f * b[i]) * 0.5f - a[i]"
SOFTPLUS_C = "log1p(exp(-fabs(a[i]))) + fmax(a[i], 0.0f)"
# Which part of the copy's bandwidth is asked for.
SHARE = 1 / 1.2


@dataclass
class Line:
    """One row: an operation at a size.

    Args:
        calls: what each library is asked, by its title, and the copy of so many elements.
        moved: bytes read and written, each once; 0 for products.
        flops: of products.
        without: why a library has no call.
        bar: whether a share of the copy's bandwidth is asked for.
    """

    name: str
    size: str
    calls: dict[str, Call]
    moved: int = 0
    flops: int = 0
    without: str = ""
    bar: bool = False


class Peer:
    """pyopencl's arrays, on a queue like keyfold's: in order, with times."""

    def __init__(self, cl: Any) -> None:
        import pyopencl.array
        import pyopencl.clmath
        import pyopencl.elementwise
        import pyopencl.tools

        self.reduces = importlib.util.find_spec("mako") is not None
        self.cl, self.array, self.math = cl, pyopencl.array, pyopencl.clmath
        self.device = cl.get_platforms()[0].get_devices()[0]
        self.context = cl.Context([self.device])
        profiling = cl.command_queue_properties.PROFILING_ENABLE
        self.queue = cl.CommandQueue(self.context, properties=profiling)
        # New arrays' memory comes from a pool, as pyopencl's documentation advises.
        tools = pyopencl.tools
        self.pool = tools.MemoryPool(tools.ImmediateAllocator(self.queue))
        elementwise = pyopencl.elementwise.ElementwiseKernel
        arguments = "float *r, float *a, float *b"
        self.chain = elementwise(self.context, arguments, f"r[i] = {CHAIN_C}", name="chain")
        self.softplus = elementwise(
            self.context, "float *r, float *a", f"r[i] = {SOFTPLUS_C}", name="softplus"
        )

    def there(self, values: np.ndarray) -> Any:
        return self.array.to_device(self.queue, values, allocator=self.pool)

    def copy(self, size: int) -> Call:
        """clEnqueueCopyBuffer of so many float32 numbers."""
        source, target = self.there(np.ones(size, "float32")), self.there(np.ones(size, "float32"))
        return lambda: self.cl.enqueue_copy(
            self.queue, target.data, source.data, byte_count=4 * size
        )


def lines(peer: Peer, only: list[str] | None) -> Any:
    """Makes the rows one after another, so that one row's arrays are there at a time."""
    chain = kf.Expression(CHAIN)
    for name in ("add", "exp", "softplus", "chain of 8", "sum", "softmax"):
        for size, count in SIZES.items():
            if only is None or any(text in name for text in only):
                yield _line(peer, name, size, count, chain)
    for side in SIDES:
        if only is None or any(text in "matmul" for text in only):
            yield _product(peer, side)


def _line(peer: Peer, name: str, size: str, count: int, chain: kf.Expression) -> Line:
    random = np.random.default_rng(5)
    a, b = random.standard_normal((2, count), np.float32)
    if name == "sum":
        a = np.abs(a)
    if name == "softmax":
        a = a.reshape(int(count**0.5), -1)
    r = np.empty_like(a)
    x, y = kf.asarray(a, device="opencl"), kf.asarray(b, device="opencl")
    out = kf.empty_like(x)
    p, q = peer.there(a), peer.there(b)
    t = peer.array.empty_like(p)
    without = ""
    # keyfold with an output, keyfold with a new result, pyopencl, NumPy.
    calls: dict[str, tuple[Call, Call, Call | None, Call]] = {
        "add": (
            lambda: kf.add(x, y, out=out),
            lambda: kf.add(x, y),
            lambda: p + q,
            lambda: np.add(a, b, out=r),
        ),
        "exp": (
            lambda: kf.exp(x, out=out),
            lambda: kf.exp(x),
            lambda: peer.math.exp(p),
            lambda: np.exp(a, out=r),
        ),
        "softplus": (
            lambda: kf.softplus(x, out=out),
            lambda: kf.softplus(x),
            lambda: (peer.softplus(t, p), t)[1],
            lambda: np.logaddexp(a, np.float32(0), out=r),
        ),
        "chain of 8": (
            lambda: chain(x, y, out=out),
            lambda: chain(x, y),
            lambda: (peer.chain(t, p, q), t)[1],
            lambda: ((a * b + a) * (a - b) + np.float32(2) * b) * np.float32(0.5) - a,
        ),
        "sum": (
            lambda: kf.sum(x),
            lambda: kf.sum(x),
            (lambda: peer.array.sum(p)) if peer.reduces else None,
            lambda: np.sum(a),
        ),
        "softmax": (
            lambda: kf.softmax(x, axis=-1),
            lambda: kf.softmax(x, axis=-1),
            None,
            lambda: _softmax(a, r),
        ),
    }
    ours, new, theirs, numpys = calls[name]
    chosen: dict[str, Call] = {"the copy": peer.copy(count), "keyfold": ours}
    if name not in ("sum", "softmax"):
        chosen["keyfold, new result"] = new
    if theirs is None:
        none = {"softmax": "pyopencl's arrays have no softmax"}
        without = none.get(name, "pyopencl needs mako for it: scripts/bootstrap.sh bench")
    else:
        chosen["pyopencl"] = theirs
    chosen["NumPy"] = numpys
    floats = {"add": 3, "chain of 8": 3, "sum": 1}.get(name, 2)
    return Line(
        name, size, chosen, moved=4 * floats * count, without=without,
        bar=size == "16M" and name in ("add", "exp", "softplus", "chain of 8"),
    )  # fmt: skip


def _softmax(a: np.ndarray, r: np.ndarray) -> np.ndarray:
    np.subtract(a, a.max(axis=-1, keepdims=True), out=r)
    np.exp(r, out=r)
    return np.divide(r, r.sum(axis=-1, keepdims=True), out=r)


def _product(peer: Peer, side: int) -> Line:
    a, b = np.random.default_rng(5).standard_normal((2, side, side), np.float32)
    r = np.empty_like(a)
    x, y = kf.asarray(a, device="opencl"), kf.asarray(b, device="opencl")
    out = kf.empty_like(x)
    calls: dict[str, Call] = {
        "the copy": peer.copy(side * side),
        "keyfold": lambda: kf.matmul(x, y, out=out),
        "NumPy": lambda: np.matmul(a, b, out=r),
    }
    why = "pyopencl's arrays have no product of matrices"
    return Line("matmul", str(side), calls, flops=2 * side**3, without=why)


def host(result: Any) -> np.ndarray:
    """A library's result as NumPy's."""
    if isinstance(result, kf.Tensor):
        return np.asarray(result.cpu())
    return result.get() if hasattr(result, "get") else np.asarray(result)
