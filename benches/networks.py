"""The rows of bench_networks.py: linear algebra, networks, indexing and fused steps.

A row has a function for each library that makes its arrays and returns the call to time, a function
without arguments. What a library lacks raises, and is left out by name.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

import keyfold as kf

Call = Callable[[], Any]
Make = Callable[[Any], Call]

# The bars, as so many times the best peer's time: kernels of keyfold's own; products and
# convolutions; decompositions, which are a library's.
OWN, PRODUCTS, LIBRARY = 1.05, 1.11, 2.0

FLOAT32 = "float32"


@dataclass
class Row:
    """One computation.

    Args:
        name: what the table shows.
        bar: at most so many times the best peer's time.
        calls: makes the call of each library, from its module.
        tolerance: the greatest difference to keyfold's result, relative to its greatest element;
            `None` where results are random, or change from call to call.
    """

    name: str
    bar: float
    calls: dict[str, Make] = field(default_factory=dict)
    tolerance: float | None = 1e-3


# The libraries of bench_networks.py: their modules, by their titles.
LIBRARIES = {"SciPy": "scipy", "PyTorch": "torch", "JAX": "jax"}


def load(
    threads: int, left_out: list[str], libraries: Mapping[str, str] = LIBRARIES
) -> dict[str, Any]:
    """keyfold, NumPy and the installed libraries, on so many threads: modules by their titles."""
    modules: dict[str, Any] = {"keyfold": kf, "NumPy": np}
    for title, name in libraries.items():
        try:
            modules[title] = importlib.import_module(name)
        except ImportError:
            left_out.append(f"{title} (not installed)")
    if "SciPy" in modules:
        importlib.import_module("scipy.linalg")
    for module in modules.values():
        if hasattr(module, "set_num_threads"):
            module.set_num_threads(threads)
    return modules


def normal(*shape: int, seed: int = 0, dtype: str = FLOAT32) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def ours(*arrays: np.ndarray) -> list[Any]:
    return [kf.from_numpy(array) for array in arrays]


def theirs(torch: Any, *arrays: np.ndarray) -> list[Any]:
    return [torch.from_numpy(array) for array in arrays]


def jax_call(jax: Any, function: Callable[..., Any], *arrays: np.ndarray) -> Call:
    """A compiled call, which waits for its result."""
    compiled, given = jax.jit(function), [jax.numpy.asarray(array) for array in arrays]
    return lambda: jax.block_until_ready(compiled(*given))


def products() -> list[Row]:
    """Products of square matrices, and of many small ones."""

    def row(name: str, a: np.ndarray, b: np.ndarray) -> Row:
        def numpy(_: Any) -> Call:
            return partial(np.matmul, a, b)

        def keyfold(_: Any) -> Call:
            return partial(kf.matmul, *ours(a, b))

        def pytorch(torch: Any) -> Call:
            return partial(torch.matmul, *theirs(torch, a, b))

        calls = {"keyfold": keyfold, "NumPy": numpy, "PyTorch": pytorch}
        calls["JAX"] = lambda jax: jax_call(jax, jax.numpy.matmul, a, b)
        return Row(name, PRODUCTS, calls)

    rows = []
    for n in (64, 128, 256, 512, 1024, 2048):
        rows.append(row(f"matmul {n}", normal(n, n), normal(n, n, seed=1)))
    wide = [normal(1024, 1024, seed=seed, dtype="float64") for seed in (0, 1)]
    rows.append(row("matmul 1024 float64", *wide))
    batch = normal(512, 64, 64), normal(512, 64, 64, seed=1)
    rows.append(row("matmul 512 x 64 x 64", *batch))
    return rows


# Layers of ResNet-50: the input's shape, the kernels', the stride and the padding.
LAYERS = {
    "7x7/2 3-64 of 224": ((8, 3, 224, 224), (64, 3, 7, 7), 2, 3),
    "3x3 64-64 of 56": ((8, 64, 56, 56), (64, 64, 3, 3), 1, 1),
    "1x1 256-64 of 56": ((8, 256, 56, 56), (64, 256, 1, 1), 1, 0),
    "3x3 128-128 of 28": ((8, 128, 28, 28), (128, 128, 3, 3), 1, 1),
    "3x3/2 256-256 of 28": ((8, 256, 28, 28), (256, 256, 3, 3), 2, 1),
}


def convolutions() -> list[Row]:
    """The forward of layers, and the gradients of their inputs and of their weights."""
    rows = []
    for name, (shape, kernels, stride, padding) in LAYERS.items():
        x, w = normal(*shape), normal(*kernels, seed=1)
        size = [(n + 2 * padding - kernels[2]) // stride + 1 for n in shape[2:]]
        grad = normal(shape[0], kernels[0], *size, seed=2)
        steps = ([stride] * 2, [padding] * 2, [1, 1], False, [0, 0], 1)

        def forward(module: Any, given: Any, x: Any = x, w: Any = w, steps: Any = steps) -> Call:
            return partial(module.convolution, *given(x, w), None, *steps)

        def backward(
            module: Any, given: Any, mask: list[bool], x: Any = x, w: Any = w, grad: Any = grad,
            steps: Any = steps,
        ) -> Call:  # fmt: skip
            call = partial(module.convolution_backward, *given(grad, x, w), None, *steps, mask)
            return lambda: call()[mask.index(True)]

        def jax_forward(
            jax: Any, x: Any = x, w: Any = w, s: int = stride, p: int = padding
        ) -> Call:
            def function(x: Any, w: Any) -> Any:
                return jax.lax.conv_general_dilated(x, w, (s, s), [(p, p), (p, p)])

            return jax_call(jax, function, x, w)

        rows.append(
            Row(
                f"conv2d {name}",
                PRODUCTS,
                {
                    "keyfold": lambda _, f=forward: f(kf.ops.aten, ours),
                    "PyTorch": lambda t, f=forward: f(t.ops.aten, partial(theirs, t)),
                    "JAX": jax_forward,
                },
            )
        )
        for title, mask in {"input": [True, False, False], "weight": [False, True, False]}.items():
            rows.append(
                Row(
                    f"conv2d {name}, gradient of {title}",
                    PRODUCTS,
                    {
                        "keyfold": lambda _, f=backward, m=mask: f(kf.ops.aten, ours, m),
                        "PyTorch": lambda t, f=backward, m=mask: f(
                            t.ops.aten, partial(theirs, t), m
                        ),
                    },
                )
            )
    return rows


def aten_row(
    name: str,
    function: Callable[[Any, list[Any]], Call],
    arrays: list[np.ndarray],
    tolerance: float | None = 1e-3,
) -> Row:
    """A call that keyfold and PyTorch have under one name and with the same arguments."""
    return Row(
        name,
        OWN,
        {
            "keyfold": lambda _: function(kf.ops.aten, ours(*arrays)),
            "PyTorch": lambda torch: function(torch.ops.aten, theirs(torch, *arrays)),
        },
        tolerance,
    )


def norms() -> list[Row]:
    """Normalizations and their backwards."""
    lanes = {
        f"{count} x {length}": [
            normal(count, length), normal(count, length, seed=1), normal(length), normal(length)
        ]
        for count, length in ((4096, 1024), (65536, 64))
    }  # fmt: skip

    def layer(aten: Any, given: list[Any]) -> Call:
        x, _, w, b = given
        return lambda: aten.native_layer_norm(x, w.shape, w, b, 1e-5)[0]

    def layer_backward(aten: Any, given: list[Any]) -> Call:
        x, grad, w, b = given
        _, mean, rstd = aten.native_layer_norm(x, w.shape, w, b, 1e-5)
        all_three = [True, True, True]
        return lambda: aten.native_layer_norm_backward(
            grad, x, w.shape, mean, rstd, w, b, all_three
        )[0]

    def softmax_backward(aten: Any, given: list[Any]) -> Call:
        x, grad, _, _ = given
        output = aten.softmax(x, 1)
        return partial(aten._softmax_backward_data, grad, output, 1, x.dtype)

    of_lanes = {"layer norm {}": layer, "layer norm {}, backward": layer_backward}
    of_lanes |= {"softmax {}, backward": softmax_backward}

    images = normal(8, 64, 56, 56), normal(8, 64, 56, 56, seed=1)
    # The weight, the bias, and the running mean and variance, which a momentum of 0 leaves alone.
    channels = [number * np.ones(64, FLOAT32) for number in (1, 0, 0, 1)]

    def batch(aten: Any, given: list[Any]) -> Call:
        x, _, w, b, mean, var = given
        return lambda: aten.native_batch_norm(x, w, b, mean, var, True, 0.0, 1e-5)[0]

    def batch_backward(aten: Any, given: list[Any]) -> Call:
        x, grad, w, b, mean, var = given
        _, saved, invstd = aten.native_batch_norm(x, w, b, mean, var, True, 0.0, 1e-5)
        all_three = [True, True, True]
        return lambda: aten.native_batch_norm_backward(
            grad, x, w, mean, var, saved, invstd, True, 1e-5, all_three
        )[0]

    return [
        *[
            aten_row(name.format(shape), call, arrays)
            for shape, arrays in lanes.items()
            for name, call in of_lanes.items()
        ],
        aten_row("batch norm 8 x 64 x 56 x 56", batch, [*images, *channels]),
        aten_row("batch norm 8 x 64 x 56 x 56, backward", batch_backward, [*images, *channels]),
    ]


def pools() -> list[Row]:
    """Pooling over windows of 3 x 3 in steps of 2, of 2 x 2 in tiny planes, and its backward."""
    small, large = ([2, 2], [2, 2], [0, 0]), ([3, 3], [2, 2], [1, 1])
    planes = {
        "8 x 64 x 112 x 112": (large, normal(8, 64, 112, 112), normal(8, 64, 56, 56, seed=1)),
        "16 x 512 x 7 x 7": (small, normal(16, 512, 7, 7), normal(16, 512, 3, 3, seed=1)),
    }

    def most(aten: Any, window: Any, given: list[Any]) -> Call:
        return lambda: aten.max_pool2d_with_indices(given[0], *window, [1, 1], False)[0]

    def most_backward(aten: Any, window: Any, given: list[Any]) -> Call:
        x, grad = given
        _, places = aten.max_pool2d_with_indices(x, *window, [1, 1], False)
        return lambda: aten.max_pool2d_with_indices_backward(
            grad, x, *window, [1, 1], False, places
        )

    def mean(aten: Any, window: Any, given: list[Any]) -> Call:
        return lambda: aten.avg_pool2d(given[0], *window, False, True, None)

    def mean_backward(aten: Any, window: Any, given: list[Any]) -> Call:
        x, grad = given
        return lambda: aten.avg_pool2d_backward(grad, x, *window, False, True, None)

    rows = {"max": most, "max, backward": most_backward}
    rows |= {"average": mean, "average, backward": mean_backward}
    return [
        aten_row(f"pool {shape}, {n}", lambda aten, g, f=f, w=w: f(aten, w, g), [x, grad])
        for shape, (w, x, grad) in planes.items()
        for n, f in rows.items()
    ]


def attention() -> list[Row]:
    """Attention of 8 heads over 1024 positions, and with its backward."""
    arrays = [normal(1, 8, 1024, 64, seed=seed) for seed in range(3)]

    def forward(aten: Any, given: list[Any]) -> Call:
        return partial(aten.scaled_dot_product_attention, *given)

    def both_ours(_: Any) -> Call:
        given = [x.requires_grad_() for x in ours(*[array.copy() for array in arrays])]
        attend = kf.ops.aten.scaled_dot_product_attention
        return lambda: kf.grad(attend(*given).sum(), given)[0]

    def both_theirs(torch: Any) -> Call:
        given = [x.requires_grad_() for x in theirs(torch, *[array.copy() for array in arrays])]
        attend = torch.nn.functional.scaled_dot_product_attention
        return lambda: torch.autograd.grad(attend(*given).sum(), given)[0]

    return [
        aten_row("attention 8 x 1024 x 64", forward, arrays),
        Row(
            "attention 8 x 1024 x 64, with backward",
            OWN,
            {"keyfold": both_ours, "PyTorch": both_theirs},
        ),
    ]


def indexing() -> list[Row]:
    """Rows of a table by index, and sums into rows."""
    table = normal(50_000, 256)
    index = np.random.default_rng(1).integers(0, 50_000, 16_384)

    def rows_of(aten: Any, given: list[Any]) -> Call:
        return partial(aten.embedding, *given)

    x, flat, source = normal(100_000), index * 6 % 100_000, normal(16_384, seed=2)
    wide = np.repeat(index[:2048, None] % 1000, 256, axis=1)

    def add(aten: Any, given: list[Any]) -> Call:
        x, index, source = given
        return partial(aten.scatter_add, x, 0, index, source)

    return [
        aten_row("embedding 16384 of 50000 x 256", rows_of, [table, index]),
        aten_row("scatter_add 16384 into 100000", add, [x, flat, source]),
        aten_row("scatter_add 2048 rows of 256", add, [normal(1000, 256), wide, normal(2048, 256)]),
    ]


def decompositions() -> list[Row]:
    """Decompositions of matrices of 256 x 256, in float64."""
    a = normal(256, 256, dtype="float64")
    positive, b = a @ a.T + 256 * np.eye(256), normal(256, 16, seed=1, dtype="float64")
    cases: dict[str, tuple[str, str, list[np.ndarray]]] = {
        "svd 256": ("svd", "svd", [a]),
        "qr 256": ("qr", "qr", [a]),
        "cholesky 256": ("cholesky", "cholesky", [positive]),
        "solve 256": ("solve", "solve", [positive, b]),
    }

    def call(function: Callable[..., Any], given: list[Any]) -> Call:
        return partial(function, *given)

    rows = []
    for name, (here, scipys, given) in cases.items():
        calls: dict[str, Make] = {
            "keyfold": lambda _, n=here, g=given: call(getattr(kf.linalg, n), ours(*g)),
            "NumPy": lambda _, n=here, g=given: call(getattr(np.linalg, n), g),
            "SciPy": lambda s, n=scipys, g=given: call(getattr(s.linalg, n), g),
            "PyTorch": lambda t, n=here, g=given: call(getattr(t.linalg, n), theirs(t, *g)),
        }
        # Signs of singular vectors and of columns are free, so results aren't compared.
        rows.append(Row(name, LIBRARY, calls, 1e-9 if here == "solve" else None))
    return rows


def steps() -> list[Row]:
    """Steps of optimizers over ten million parameters, and dropout of as many elements."""
    count = 10_000_000
    start, grad = normal(count), normal(count, seed=1)

    def keyfold(make: Callable[[list[Any]], Any]) -> Call:
        (param,) = ours(start.copy())
        optimizer = make([param.requires_grad_()])
        (param.grad,) = ours(grad)
        return optimizer.step  # type: ignore[no-any-return]

    def pytorch(torch: Any, make: Callable[[list[Any]], Any]) -> Call:
        (param,) = theirs(torch, start.copy())
        optimizer = make([param.requires_grad_()])
        (param.grad,) = theirs(torch, grad)
        return optimizer.step  # type: ignore[no-any-return]

    adam = {
        "keyfold": lambda _: keyfold(lambda p: kf.optim.Adam(p)),
        "PyTorch": lambda t: pytorch(t, lambda p: t.optim.Adam(p, fused=True)),
    }
    sgd = {
        "keyfold": lambda _: keyfold(lambda p: kf.optim.SGD(p, momentum=0.9)),
        "PyTorch": lambda t: pytorch(t, lambda p: t.optim.SGD(p, momentum=0.9, fused=True)),
    }

    def dropout(aten: Any, given: list[Any]) -> Call:
        return lambda: aten.native_dropout(given[0], 0.5, True)[0]

    return [
        Row("Adam over 10 million", OWN, adam, None),
        Row("SGD with momentum over 10 million", OWN, sgd, None),
        aten_row("dropout of 10 million", dropout, [start], None),
    ]


def make_rows() -> list[Row]:
    """All rows, in the order of the table."""
    families = [products, convolutions, norms, pools, attention, indexing, decompositions, steps]
    return [row for family in families for row in family()]
