"""A linear classifier, a step of training at a time, by keyfold, NumPy, JAX and PyTorch.

A batch of 64 images of the demo's digits, 64 cells each, a linear layer to 10 classes, softmax
cross entropy, its gradients with respect to weights and bias, and a step against them: the same
mathematics in each. The demo's own network is in `bench_demo.py`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib import resources
from typing import Any

import numpy as np

import keyfold as kf

BATCH, RATE = 64, 0.2

# What a step returns: the loss, the weights and the bias after it.
Step = Callable[[], tuple[Any, Any, Any]]


class DisagreementError(Exception):
    """Two libraries don't compute the same."""


def batch() -> tuple[Any, Any]:
    """The demo's first images, (64, 64) float32 from 0 to 1, and their labels, (64,) int64."""
    source = resources.files("keyfold") / "_data" / "optdigits.npz"
    with source.open("rb") as file, np.load(file) as data:
        images = data["images"][:BATCH].reshape(-1, 64).astype(np.float32) / 16
        return images, data["labels"][:BATCH].astype(np.int64)


def start(dtype: Any = np.float32) -> tuple[Any, Any]:
    """Weights, (64, 10), and bias, (10,), to begin with."""
    rng = np.random.default_rng(0)
    weight = 0.1 * rng.standard_normal((64, 10))
    return weight.astype(np.float32).astype(dtype), np.zeros(10, dtype)


def numpy_step(dtype: Any = np.float32) -> Step:
    """The gradients written out by hand."""
    x, labels = batch()
    x = x.astype(dtype)
    weight, bias = start(dtype)
    rows = np.arange(BATCH)

    def step() -> tuple[Any, Any, Any]:
        logits = x @ weight + bias
        logits -= logits.max(axis=1, keepdims=True)
        log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        loss = -log_p[rows, labels].mean()
        grad = np.exp(log_p)
        grad[rows, labels] -= 1
        grad /= BATCH
        np.subtract(weight, RATE * (x.T @ grad), out=weight)
        np.subtract(bias, RATE * grad.sum(axis=0), out=bias)
        return loss, weight, bias

    return step


def keyfold_loss(x: Any, labels: Any) -> Callable[[Any, Any], Any]:
    """The loss as a function of weights and bias. The labels have shape (64, 1)."""
    gather = kf.ops.aten.gather.default

    def loss(weight: Any, bias: Any) -> Any:
        log_p = kf.log_softmax(x @ weight + bias, axis=1)
        return -kf.mean(gather(log_p, 1, labels))

    return loss


def keyfold_data() -> tuple[Any, Any]:
    x, labels = batch()
    return kf.asarray(x), kf.asarray(labels[:, None])


def keyfold_autograd() -> Step:
    """`kf.grad` of tensors that require grad, and a step in place."""
    loss_of = keyfold_loss(*keyfold_data())
    weight, bias = (kf.asarray(array).requires_grad_() for array in start())
    copy_ = kf.ops.aten.copy_.default

    def step() -> tuple[Any, Any, Any]:
        loss = loss_of(weight, bias)
        of_weight, of_bias = kf.grad(loss, [weight, bias])
        with kf.no_grad():
            copy_(weight, weight - RATE * of_weight)
            copy_(bias, bias - RATE * of_bias)
        return loss, weight, bias

    return step


def keyfold_backward() -> Step:
    """`loss.backward()`, which leaves the gradients on the tensors."""
    loss_of = keyfold_loss(*keyfold_data())
    weight, bias = (kf.asarray(array).requires_grad_() for array in start())
    copy_ = kf.ops.aten.copy_.default

    def step() -> tuple[Any, Any, Any]:
        weight.grad = bias.grad = None
        loss = loss_of(weight, bias)
        loss.backward()
        with kf.no_grad():
            copy_(weight, weight - RATE * weight.grad)
            copy_(bias, bias - RATE * bias.grad)
        return loss, weight, bias

    return step


def keyfold_function() -> Step:
    """`kf.value_and_grad` of the loss as a function of tensors."""
    both = kf.value_and_grad(keyfold_loss(*keyfold_data()), argnums=(0, 1))
    weight, bias = (kf.asarray(array) for array in start())

    def step() -> tuple[Any, Any, Any]:
        nonlocal weight, bias
        loss, (of_weight, of_bias) = both(weight, bias)
        weight = weight - RATE * of_weight
        bias = bias - RATE * of_bias
        return loss, weight, bias

    return step


def keyfold_arrays() -> Step:
    """The same with NumPy's weights and bias: so the gradients, too, are arrays."""
    both = kf.value_and_grad(keyfold_loss(*keyfold_data()), argnums=(0, 1))
    weight, bias = start()

    def step() -> tuple[Any, Any, Any]:
        loss, (of_weight, of_bias) = both(weight, bias)
        np.subtract(weight, RATE * of_weight, out=weight)
        np.subtract(bias, RATE * of_bias, out=bias)
        return loss, weight, bias

    return step


def keyfold_forward() -> Callable[[], Any]:
    """The loss alone, of tensors that require no grad."""
    loss_of = keyfold_loss(*keyfold_data())
    weight, bias = (kf.asarray(array) for array in start())
    return lambda: loss_of(weight, bias)


def keyfold_by_hand() -> Step:
    """The gradients written out with keyfold's operators: what Autograd is compared with."""
    x, labels = keyfold_data()
    weight, bias = (kf.asarray(array) for array in start())
    aten = kf.ops.aten
    gather, scatter_add = aten.gather.default, aten.scatter_add.default
    minus = kf.full((BATCH, 1), -1.0, dtype=kf.float32)

    def step() -> tuple[Any, Any, Any]:
        nonlocal weight, bias
        log_p = kf.log_softmax(x @ weight + bias, axis=1)
        loss = -kf.mean(gather(log_p, 1, labels))
        grad = scatter_add(kf.exp(log_p), 1, labels, minus) / BATCH
        weight = weight - RATE * (x.T @ grad)
        bias = bias - RATE * kf.sum(grad, axis=0)
        return loss, weight, bias

    return step


def jax_steps(left_out: list[str]) -> dict[str, Step]:
    """JAX on the CPU: the whole step compiled, only the gradient compiled, nothing compiled."""
    try:
        jax = importlib.import_module("jax")
    except ImportError:
        left_out.append("JAX (not installed: scripts/bootstrap.sh peers)")
        return {}
    x, labels = (jax.numpy.asarray(array) for array in batch())
    rows = jax.numpy.arange(BATCH)

    def loss_of(weight: Any, bias: Any) -> Any:
        log_p = jax.nn.log_softmax(x @ weight + bias, axis=1)
        return -log_p[rows, labels].mean()

    both = jax.value_and_grad(loss_of, argnums=(0, 1))

    def plain(weight: Any, bias: Any) -> tuple[Any, Any, Any]:
        loss, (of_weight, of_bias) = both(weight, bias)
        return loss, weight - RATE * of_weight, bias - RATE * of_bias

    def stepper(function: Any) -> Step:
        weight, bias = (jax.numpy.asarray(array) for array in start())

        def step() -> tuple[Any, Any, Any]:
            nonlocal weight, bias
            # Calls return before they are done: the step is over when its results are there.
            loss, weight, bias = jax.block_until_ready(function(weight, bias))
            return loss, weight, bias

        return step

    return {"JAX, jitted": stepper(jax.jit(plain)), "JAX, eager": stepper(plain)}


def torch_steps(left_out: list[str]) -> dict[str, Step]:
    """PyTorch, eager, on the CPU."""
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        left_out.append("PyTorch (not installed)")
        return {}
    torch.set_num_threads(1)
    x, labels = (torch.from_numpy(array) for array in batch())
    weight, bias = (torch.from_numpy(array).requires_grad_() for array in start())

    def step() -> tuple[Any, Any, Any]:
        loss = torch.nn.functional.cross_entropy(torch.addmm(bias, x, weight), labels)
        of_weight, of_bias = torch.autograd.grad(loss, [weight, bias])
        with torch.no_grad():
            weight.sub_(of_weight, alpha=RATE)
            bias.sub_(of_bias, alpha=RATE)
        return loss.detach(), weight.detach(), bias.detach()

    return {"PyTorch, eager": step}


def keyfold_steps() -> dict[str, Callable[[], Step]]:
    """Makers of keyfold's steps: each makes weights of its own."""
    return {
        "keyfold, kf.grad": keyfold_autograd,
        "keyfold, backward": keyfold_backward,
        "keyfold, value_and_grad": keyfold_function,
        "keyfold, value_and_grad, NumPy arrays": keyfold_arrays,
        "keyfold, gradients by hand": keyfold_by_hand,
    }


def check(steps: dict[str, Step], count: int = 3) -> None:
    """Let each take some steps, and compare the numbers with NumPy's in float64.

    Raises:
        DisagreementError: loss, weights or bias are others than they should be.
    """
    exact = numpy_step(np.float64)
    for _ in range(count):
        wanted = exact()
        for name, step in steps.items():
            for what, mine, right in zip(("loss", "weight", "bias"), step(), wanted, strict=True):
                array = as_array(mine)
                if array.shape != np.shape(right):
                    raise DisagreementError(f"{name}: {what} has shape {array.shape}")
                error = float(np.abs(array - right).max())
                if not error <= 2e-6:
                    raise DisagreementError(f"{name}: {what} is off by {error:.2g}")


def as_array(value: Any) -> Any:
    """A copy as a NumPy array."""
    if isinstance(value, kf.Tensor):
        value = value.detach().numpy()
    return np.array(value)
