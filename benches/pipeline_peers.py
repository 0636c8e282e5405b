"""Each library's functions, with which the array programs of bench_pipeline.py are written.

A program is a function of these functions, and returns the function of arrays that is timed. Loops
and calls of libraries without such functions are here, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numba_loops
import numpy as np

import keyfold as kf

EPSILON = 1e-5
# Of the GELU by tanh.
SCALE, CUBIC = math.sqrt(2 / math.pi), 0.044715


def keyfold_functions() -> SimpleNamespace:
    """keyfold's."""
    return SimpleNamespace(
        **{name: getattr(kf, name) for name in ("tanh", "exp", "sigmoid", "sqrt", "matmul")},
        maximum=kf.maximum,
        at_least=kf.maximum,
        mean=kf.mean,
        total=kf.sum,
        row_max=lambda x: kf.max(x, axis=1, keepdims=True),
        row_sum=lambda x: kf.sum(x, axis=1, keepdims=True),
        row_mean=lambda x: kf.mean(x, axis=1, keepdims=True),
        row_total=lambda x: kf.sum(x, axis=1),
        gelu=lambda x: kf.gelu(x, approximate="tanh"),
        value_and_grad=lambda f, numbers: kf.value_and_grad(f, argnums=numbers),
        svdvals=kf.linalg.svdvals,
        solve=kf.linalg.solve,
    )


def numpy_functions() -> SimpleNamespace:
    """NumPy's, of any dtype."""
    return SimpleNamespace(
        **{name: getattr(np, name) for name in ("tanh", "exp", "sqrt", "matmul", "maximum")},
        at_least=np.maximum,
        sigmoid=lambda x: 1 / (1 + np.exp(-x)),
        mean=np.mean,
        total=np.sum,
        row_max=lambda x: x.max(axis=1, keepdims=True),
        row_sum=lambda x: x.sum(axis=1, keepdims=True),
        row_mean=lambda x: x.mean(axis=1, keepdims=True),
        row_total=lambda x: x.sum(axis=1),
        svdvals=lambda x: np.linalg.svd(x, compute_uv=False),
        solve=np.linalg.solve,
    )


def jax_functions(jax: Any) -> SimpleNamespace:
    """JAX's."""
    jnp = jax.numpy
    return SimpleNamespace(
        **{name: getattr(jnp, name) for name in ("tanh", "exp", "sqrt", "matmul", "maximum")},
        at_least=jnp.maximum,
        sigmoid=jax.nn.sigmoid,
        mean=jnp.mean,
        total=jnp.sum,
        row_max=lambda x: x.max(axis=1, keepdims=True),
        row_sum=lambda x: x.sum(axis=1, keepdims=True),
        row_mean=lambda x: x.mean(axis=1, keepdims=True),
        row_total=lambda x: x.sum(axis=1),
        gelu=lambda x: jax.nn.gelu(x, approximate=True),
        value_and_grad=jax.value_and_grad,
        svdvals=lambda x: jnp.linalg.svd(x, compute_uv=False),
        solve=jnp.linalg.solve,
    )


def torch_functions(torch: Any) -> SimpleNamespace:
    """PyTorch's."""
    gelu = torch.nn.functional.gelu

    def value_and_grad(function: Callable[..., Any], numbers: tuple[int, ...]) -> Any:
        def call(*tensors: Any) -> Any:
            given = list(tensors)
            wanted = [given[number].detach().requires_grad_() for number in numbers]
            for number, tensor in zip(numbers, wanted, strict=True):
                given[number] = tensor
            value = function(*given)
            return value.detach(), torch.autograd.grad(value, wanted)

        return call

    return SimpleNamespace(
        **{name: getattr(torch, name) for name in ("tanh", "exp", "sqrt", "matmul", "maximum")},
        at_least=torch.clamp_min,
        sigmoid=torch.sigmoid,
        mean=torch.mean,
        total=torch.sum,
        row_max=lambda x: x.amax(1, keepdim=True),
        row_sum=lambda x: x.sum(1, keepdim=True),
        row_mean=lambda x: x.mean(1, keepdim=True),
        row_total=lambda x: x.sum(1),
        gelu=lambda x: gelu(x, approximate="tanh"),
        value_and_grad=value_and_grad,
        svdvals=torch.linalg.svdvals,
        solve=torch.linalg.solve,
    )


def compiled_functions(torch: Any) -> SimpleNamespace:
    """PyTorch's; of a derivative the function is compiled, and with it its backward."""
    functions = torch_functions(torch)
    eager = functions.value_and_grad
    functions.value_and_grad = lambda f, numbers: eager(compiled(torch, f), numbers)
    return functions


def compiled(torch: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function by torch.compile: for these shapes, as a whole, or an error; no eager part."""
    return torch.compile(function, dynamic=False, fullgraph=True)


def numpy_mlp(x: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
    """The multilayer perceptron of `pipeline_rows`, its mean square and gradients, by hand."""
    before = x @ w1 + b1
    square = before * before
    bent = np.tanh(SCALE * before * (1 + CUBIC * square))
    hidden = 0.5 * before * (1 + bent)
    y = hidden @ w2 + b2
    dy = y * (2 / y.size)
    slope = 0.5 * (1 + bent)
    slope += 0.5 * before * (1 - bent * bent) * (SCALE * (1 + 3 * CUBIC * square))
    dbefore = (dy @ w2.T) * slope
    gradients = x.T @ dbefore, dbefore.sum(axis=0), hidden.T @ dy, dy.sum(axis=0)
    return np.mean(y * y), gradients


def numexpr_layer_norm(numexpr: Any) -> Callable[..., Any]:
    """Layer norm of rows: numexpr has no reduction inside an expression."""

    def call(x: Any, scale: Any, shift: Any) -> Any:
        values = {"x": x, "m": x.mean(axis=1, keepdims=True), "one": np.float32(1)}
        values |= {"scale": scale, "shift": shift, "count": np.float32(x.shape[1])}
        values["c"] = numexpr.evaluate("x - m", local_dict=values)
        values["v"] = numexpr.evaluate("sum(c * c, axis=1)", local_dict=values)[:, None]
        values["eps"] = np.float32(EPSILON)
        text = "c / sqrt(v / count + eps) * scale + shift"
        return numexpr.evaluate(text, local_dict=values)

    return call


def numba_layer_norm(numba: Any) -> Callable[..., Any]:
    """Layer norm of rows as a loop."""
    prange, eps, zero, one = numba.prange, np.float32(EPSILON), np.float32(0), np.float32(1)

    def layer_norm(x, scale, shift, out):
        count = np.float32(x.shape[1])
        for i in prange(x.shape[0]):
            mean = zero
            for j in range(x.shape[1]):
                mean += x[i, j]
            mean /= count
            variance = zero
            for j in range(x.shape[1]):
                variance += (x[i, j] - mean) * (x[i, j] - mean)
            factor = one / math.sqrt(variance / count + eps)
            for j in range(x.shape[1]):
                out[i, j] = (x[i, j] - mean) * factor * scale[j] + shift[j]

    return _allocating(numba_loops.jit(numba, layer_norm), lambda x: x.shape)


def numba_row_total(numba: Any, text: str, inputs: str, numbers: dict[str, Any]) -> Any:
    """The sums of an expression's rows as a loop; names are those of `numba_loops.pointwise`."""
    lines = [
        f"def loop({inputs}, out):",
        "    for i in prange(out.size):",
        "        total = zero",
        f"        for j in range({inputs.split(',')[0]}.shape[1]):",
        *(f"            {name}_ = {name}[i, j]" for name in inputs.split(", ")),
        f"            total += {text}",
        "        out[i] = total",
    ]
    scope = {"prange": numba.prange, "math": math, "zero": np.float32(0), **numbers}
    exec(compile("\n".join(lines), f"<numba: rows of {text}>", "exec"), scope)
    return _allocating(numba_loops.jit(numba, scope["loop"]), lambda x: x.shape[:1])


def _allocating(loop: Callable[..., None], shape: Callable[[Any], Any]) -> Callable[..., Any]:
    """The function that allocates the result which a loop writes."""

    def call(*arrays: Any) -> Any:
        out = np.empty(shape(arrays[0]), np.float32)
        loop(*arrays, out)
        return out

    return call
