"""The rows of bench_pipeline.py: chains of operations and what is made of them, by each library."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import chains
import kernel_peers
import numba_loops
import numpy as np
import pipeline_peers as peers
from networks import Call, jax_call, normal, theirs

import keyfold as kf

# The columns, in order: keyfold's, the peers', and a copy of the same bytes.
EAGER, PIPELINE, FUSE, BY_HAND = "eager", "pipeline", "kf.fuse", "by hand"
PEERS = ("NumPy", "numexpr", "numba", "JAX", "PyTorch", "compiled")
COPY = "copy"
COLUMNS = (EAGER, PIPELINE, FUSE, BY_HAND, *PEERS, COPY)

# The bars of the column `pipeline`: at most so many times another column's time.
WITHIN_HAND, WITHIN_EAGER = 1.1, 1.02
WITHIN_PEERS = {"arithmetic": 1.1, "functions": 1.0}
BARS_FROM = 100_000

LENGTHS = (4, 8, 16, 32)
SIZES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
ROW_SIZES, ROW = (100_000, 1_000_000, 10_000_000), 1_000
TOTAL_SIZES = 100_000, 10_000_000
PRODUCTS, PRODUCT_SIZES = 8, (64, 256, 512)

Function = Callable[..., Any]
Program = Callable[[SimpleNamespace], Function]


@dataclass
class Row:
    """One computation.

    Args:
        table: its table's title.
        name: what the table shows.
        arrays: the inputs, float32.
        program: makes the function of arrays from a library's functions.
        elements: of an input, for the plot and the bars.
        floats: float32 numbers read and written, each input and the result once; 0 where a copy
            isn't a measure.
        own: functions of libraries that the program isn't written for, made from their modules.
        reference: the function over float64 arrays; the program by NumPy's functions unless given.
        bars: from a column, or "best peer", to how many times its time `pipeline` may take.
        tolerance: the greatest difference to the reference, relative to it and to 1.
        length: operations of the chain.
        differentiates: the program takes derivatives: torch.compile is inside of it then.
        is_lent: keyfold's tensors are NumPy's memory, which a pipeline has to copy.
    """

    table: str
    name: str
    arrays: tuple[np.ndarray, ...]
    program: Program
    elements: int
    floats: int = 0
    own: dict[str, Callable[[Any], Function]] = field(default_factory=dict)
    reference: Function | None = None
    bars: dict[str, float] = field(default_factory=dict)
    tolerance: float = 1e-4
    length: int | None = None
    differentiates: bool = False
    is_lent: bool = False

    def expected(self) -> Any:
        """The result of the reference."""
        function = self.reference or self.program(peers.numpy_functions())
        return function(*(array.astype(np.float64) for array in self.arrays))

    def calls(self, modules: dict[str, Any]) -> Iterator[tuple[str, Callable[[], Call]]]:
        """The columns, each with a function that makes its call."""
        tensors = [kf.asarray(array, copy=not self.is_lent) for array in self.arrays]
        eager = self.program(peers.keyfold_functions())
        yield EAGER, lambda: partial(eager, *tensors)
        yield PIPELINE, lambda: pipelined(eager, tensors)
        yield FUSE, lambda: partial(kf.fuse(eager), *tensors)
        for column, make in self.own.items():
            if column == BY_HAND:
                yield column, lambda make=make: partial(make(kf), *tensors)
            elif column in modules:
                yield column, lambda make=make, m=modules[column]: partial(make(m), *self.arrays)
        if "NumPy" not in self.own:
            yield "NumPy", lambda: partial(self.program(peers.numpy_functions()), *self.arrays)
        if jax := modules.get("JAX"):
            yield "JAX", lambda: jax_call(jax, self.program(peers.jax_functions(jax)), *self.arrays)
        if torch := modules.get("PyTorch"):
            given = theirs(torch, *self.arrays)
            yield "PyTorch", lambda: partial(self.program(peers.torch_functions(torch)), *given)
            yield "compiled", lambda: self.compiled(torch, given)
        if self.floats:
            yield COPY, lambda: copy(self.floats // 2)

    def compiled(self, torch: Any, given: list[Any]) -> Call:
        """The call by torch.compile."""
        functions = peers.compiled_functions(torch)
        function = self.program(functions)
        if not self.differentiates:
            function = peers.compiled(torch, function)
        return partial(function, *given)


def pipelined(function: Function, tensors: list[Any]) -> Call:
    """A call in a pipeline of its own, which the end of the block flushes."""

    def call() -> Any:
        with kf.pipeline():
            return function(*tensors)

    return call


def copy(count: int) -> Call:
    """A copy of so many float32 numbers, by keyfold's threads, into memory that is there."""
    source, target = kf.zeros((count,), dtype="float32"), kf.zeros((count,), dtype="float32")
    return partial(kf.ops.aten.copy_, target, source)


def inputs(*shape: int) -> tuple[np.ndarray, ...]:
    """Three arrays of numbers from -1 to 1."""
    rng = np.random.default_rng(5)
    return tuple(2 * rng.random(shape, np.float32) - 1 for _ in chains.INPUTS)


def chain_bars(kind: str, elements: int) -> dict[str, float]:
    """The bars of a chain."""
    if elements < BARS_FROM:
        return {}
    return {BY_HAND: WITHIN_HAND, "best peer": WITHIN_PEERS[kind]}


def chain_rows(lengths: tuple[int, ...], sizes: tuple[int, ...]) -> Iterator[Row]:
    """Chains of pointwise operations of flat arrays."""
    for kind in chains.STEPS:
        for size in sizes:
            arrays = inputs(size)
            for length in lengths:
                own = {
                    BY_HAND: lambda _, kind=kind, n=length: chains.expression(kind, n),
                    "numexpr": partial(chains.numexpr, kind=kind, length=length),
                    "numba": partial(chains.numba, kind=kind, length=length),
                }
                yield Row(
                    f"chains, {kind}",
                    f"{length} {kind}, {size:.0e}".replace("e+0", "e"),
                    arrays,
                    lambda f, kind=kind, n=length: chains.python(kind, n, vars(f)),
                    size,
                    4 * size,
                    own,
                    bars=chain_bars(kind, size),
                    length=length,
                )


def lent_rows(length: int, sizes: tuple[int, ...]) -> Iterator[Row]:
    """A chain of tensors in NumPy's memory, whose writes a pipeline can't see."""
    for size in sizes:
        count = f"{size:.0e}".replace("e+0", "e")
        yield Row(
            "in NumPy's memory",
            f"{length} arithmetic in NumPy's memory, {count}",
            inputs(size),
            lambda f: chains.python("arithmetic", length, vars(f)),
            size,
            4 * size,
            {BY_HAND: lambda _: chains.expression("arithmetic", length)},
            length=length,
            is_lent=True,
        )


def reduced_rows(length: int, sizes: tuple[int, ...]) -> Iterator[Row]:
    """A chain whose result is summed along rows; by hand an expression, then a sum."""
    for kind in chains.STEPS:
        for size in sizes:

            def program(f: SimpleNamespace, kind: str = kind) -> Function:
                chain, total = chains.python(kind, length, vars(f)), f.row_total
                return lambda x, a, b: total(chain(x, a, b))

            def by_hand(_: Any, kind: str = kind) -> Function:
                made = chains.expression(kind, length)
                return lambda x, a, b: kf.sum(made(x, a, b), axis=1)

            def numba(module: Any, kind: str = kind) -> Function:
                names = {name: f"{name}_" for name in chains.INPUTS}
                text = chains.write(kind, length, chains.NUMBA, names)
                given = ", ".join(chains.INPUTS)
                return peers.numba_row_total(module, text, given, chains.FLOAT32)

            around = {"kind": kind, "length": length, "around": "sum({}, axis=1)"}
            yield Row(
                "ending in a reduction of rows",
                f"{length} {kind} and sum, {size:.0e}".replace("e+0", "e"),
                inputs(size // ROW, ROW),
                program,
                size,
                3 * size,
                {BY_HAND: by_hand, "numexpr": partial(chains.numexpr, **around), "numba": numba},
                bars=chain_bars(kind, size),
                tolerance=1e-3,
                length=length,
            )


def total_rows(length: int, sizes: tuple[int, ...]) -> Iterator[Row]:
    """A mean square, and a chain that is summed; by hand an expression, then the reduction."""

    def mean_square(f: SimpleNamespace) -> Function:
        mean = f.mean
        return lambda x, y: mean((x - y) ** 2)

    def mean_square_by_hand(_: Any) -> Function:
        made = kf.Expression("(x - y) ** 2")
        return lambda x, y: kf.mean(made(x, y))

    def total(f: SimpleNamespace) -> Function:
        chain, total = chains.python("arithmetic", length, vars(f)), f.total
        return lambda x, a, b: total(chain(x, a, b))

    def total_by_hand(_: Any) -> Function:
        made = chains.expression("arithmetic", length)
        return lambda x, a, b: kf.sum(made(x, a, b))

    table = "ending in a reduction of everything"
    for size in sizes:
        x, a, b = inputs(size)
        count = f"{size:.0e}".replace("e+0", "e")
        yield Row(
            table,
            f"mean square, {count}",
            (x, a),
            mean_square,
            size,
            2 * size,
            {BY_HAND: mean_square_by_hand},
            bars={BY_HAND: WITHIN_HAND},
        )
        yield Row(
            table,
            f"{length} arithmetic and total, {count}",
            (x, a, b),
            total,
            size,
            3 * size,
            {BY_HAND: total_by_hand},
            bars={BY_HAND: WITHIN_HAND},
            tolerance=1e-3,
            length=length,
        )


def softmax(f: SimpleNamespace) -> Function:
    """Softmax of rows."""
    exp, row_max, row_sum = f.exp, f.row_max, f.row_sum

    def call(x: Any) -> Any:
        powers = exp(x - row_max(x))
        return powers / row_sum(powers)

    return call


def layer_norm(f: SimpleNamespace) -> Function:
    """Layer norm of rows."""
    sqrt, row_mean = f.sqrt, f.row_mean

    def call(x: Any, scale: Any, shift: Any) -> Any:
        centered = x - row_mean(x)
        variance = row_mean(centered * centered)
        return centered / sqrt(variance + peers.EPSILON) * scale + shift

    return call


def layer_norm_operator(x: Any, scale: Any, shift: Any) -> Any:
    """keyfold's layer norm of rows."""
    return kf.layer_norm(x, [ROW], scale, shift, eps=peers.EPSILON)


def norm_rows(sizes: tuple[int, ...]) -> Iterator[Row]:
    """Softmax and layer norm, written in primitives; by hand the operator."""
    for size in sizes:
        shape = size // ROW, ROW
        x, scale, shift = normal(*shape), 1 + normal(ROW, seed=1), normal(ROW, seed=2)
        own = {
            BY_HAND: lambda _: partial(kf.softmax, axis=1),
            "numexpr": lambda module: kernel_peers.numexpr_calls(module)["softmax_rows"],
            "numba": lambda module: numba_loops.calls(module)["softmax_rows"],
        }
        name = f"{size:.0e}".replace("e+0", "e")
        table = "softmax and layer norm in primitives"
        yield Row(table, f"softmax, {name}", (x,), softmax, size, 2 * size, own)
        own = {
            BY_HAND: lambda _: layer_norm_operator,
            "numexpr": peers.numexpr_layer_norm,
            "numba": peers.numba_layer_norm,
        }
        arrays = x, scale, shift
        yield Row(table, f"layer norm, {name}", arrays, layer_norm, size, 2 * size, own)


def mlp(f: SimpleNamespace, gelu: Function) -> Function:
    """The mean square of a GELU network's result, and its gradients by the parameters."""
    matmul, mean = f.matmul, f.mean

    def loss(x: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
        y = matmul(gelu(matmul(x, w1) + b1), w2) + b2
        return mean(y * y)

    return f.value_and_grad(loss, (1, 2, 3, 4))


def mlp_operator(f: SimpleNamespace) -> Function:
    """With the library's GELU by tanh."""
    return mlp(f, f.gelu)


def mlp_primitives(f: SimpleNamespace) -> Function:
    """With GELU by tanh, operation by operation."""
    tanh, scale, cubic = f.tanh, peers.SCALE, peers.CUBIC
    return mlp(f, lambda x: 0.5 * x * (1 + tanh(scale * (x + cubic * x * x * x))))


def mlp_rows(batch: int, width: int) -> Iterator[Row]:
    """Forward and backward of a network of two layers."""
    scale = np.float32(width**-0.5)
    x, w1, w2 = (normal(batch, width), normal(width, width, seed=1), normal(width, width, seed=2))
    arrays = x, scale * w1, normal(width, seed=3), scale * w2, normal(width, seed=4)
    programs = {"its operator": mlp_operator, "GELU in primitives": mlp_primitives}
    for name, program in programs.items():
        yield Row(
            "GELU network, forward and backward",
            f"{batch} x {width} by {width} x {width}, {name}",
            arrays,
            program,
            x.size,
            own={"NumPy": lambda _: peers.numpy_mlp},
            reference=peers.numpy_mlp,
            differentiates=True,
        )


def product_rows(sizes: tuple[int, ...]) -> Iterator[Row]:
    """Chains of products of square matrices."""

    def program(f: SimpleNamespace) -> Function:
        matmul, times = f.matmul, range(PRODUCTS)

        def call(x: Any, w: Any) -> Any:
            for _ in times:
                x = matmul(x, w)
            return x

        return call

    for n in sizes:
        arrays = normal(n, n), np.float32(n**-0.5) * normal(n, n, seed=1)
        name, bars = f"{PRODUCTS} products, {n} x {n}", {EAGER: WITHIN_EAGER}
        table = "chains of products"
        yield Row(table, name, arrays, program, n * n, bars=bars, tolerance=1e-3, length=PRODUCTS)


def independent_rows(count: int, n: int) -> Iterator[Row]:
    """Products and decompositions of n x n matrices that don't depend on each other."""

    def products(f: SimpleNamespace) -> Function:
        matmul = f.matmul
        return lambda w, *all_: [matmul(x, w) for x in all_]

    table = "independent calls"
    arrays = tuple(normal(n, n, seed=seed) for seed in range(count + 1))
    name = f"{count} products, {n} x {n}"
    yield Row(table, name, arrays, products, n * n, tolerance=1e-3, length=count)

    def values(f: SimpleNamespace) -> Function:
        svdvals = f.svdvals
        return lambda *all_: [svdvals(x) for x in all_]

    def solutions(f: SimpleNamespace) -> Function:
        solve = f.solve
        return lambda b, *all_: [solve(x, b) for x in all_]

    # Far from singular, so that float32 is exact enough.
    diagonal = np.float32(4 * n**0.5) * np.eye(n, dtype=np.float32)
    arrays = tuple(normal(n, n, seed=seed) + diagonal for seed in range(count + 1))
    name = f"{count} x singular values, {n} x {n}"
    yield Row(table, name, arrays[1:], values, n * n, tolerance=1e-3, length=count)
    name = f"{count} x {n} linear systems, {n} x {n}"
    yield Row(table, name, arrays, solutions, n * n, tolerance=1e-3, length=count)


def make_rows(quick: bool, large: bool) -> Iterator[Row]:
    """All rows, one at a time: the next one's arrays are made when it is asked for."""
    sizes = (1_000, BARS_FROM) if quick else (*SIZES, 100_000_000) if large else SIZES
    rows = (BARS_FROM,) if quick else ROW_SIZES
    yield from chain_rows((4, 8) if quick else LENGTHS, sizes)
    yield from lent_rows(8, sizes[:1] if quick else SIZES[:4])
    yield from reduced_rows(8, rows)
    yield from total_rows(8, TOTAL_SIZES[:1] if quick else TOTAL_SIZES)
    yield from norm_rows(rows)
    yield from mlp_rows(*((32, 64) if quick else (256, 512)))
    yield from product_rows(PRODUCT_SIZES[:1] if quick else PRODUCT_SIZES)
    yield from independent_rows(*((4, 32) if quick else (8, 96)))
