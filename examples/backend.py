"""A backend of one's own: the device "npu", whose memory the host can't reach.

NumPy plays the accelerator. `register_backend` gives the key NPU, the device type "npu", memory on
its devices, and kernels for every operator that the methods below are enough for: elementwise ones
are run step by step by two dozen primitives. Every layer works over them.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

import keyfold as kf

Array = np.ndarray[Any, Any]

# NumPy's functions where they aren't called as the primitive is.
UFUNCS = {"sub": "subtract", "mul": "multiply", "div": "divide", "neg": "negative", "abs": "fabs"}
UFUNCS |= {"and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor"}
UFUNCS |= {"shift_left": "left_shift", "shift_right": "right_shift"}


class Npu:
    """Two devices. Each method writes into `out`, an array over the device's memory."""

    device_count = 2

    @np.errstate(all="ignore")
    def pointwise(self, name: str, inputs: list[Array], out: Array) -> None:
        """Run a primitive."""
        if name == "cast":
            np.copyto(out, saturated(inputs[0], out.dtype), casting="unsafe")
        elif name == "iota":
            out[...] = np.arange(out.size).reshape(out.shape)
        elif name == "gather":
            out[...] = inputs[0][inputs[1]]
        elif name == "where":
            out[...] = np.where(*inputs)
        elif name == "div" and out.dtype.kind in "iu":
            quotient, rest = np.divmod(*inputs)  # Rounded down; the primitive rounds towards 0.
            out[...] = quotient + ((rest != 0) & ((inputs[0] < 0) != (inputs[1] < 0)))
        else:
            getattr(np, UFUNCS.get(name, name))(*inputs, out=out)

    def reduce(self, name: str, x: Array, out: Array, dims: tuple[int, ...], keepdim: bool) -> None:
        """Reduce along dimensions."""
        if name in ("argmax", "argmin"):
            kept = [d for d in range(x.ndim) if d not in dims]
            flat = x.transpose(*kept, *dims).reshape(*(x.shape[d] for d in kept), -1)
            out[...] = getattr(np, name)(flat, axis=-1).reshape(out.shape)
        else:
            options: Any = {"dtype": out.dtype} if name in ("sum", "mean") else {}
            getattr(np, name)(x, axis=dims, out=out, keepdims=keepdim, **options)

    def rows(self, name: str, x: Array, out: Array, axis: int) -> None:
        """Compute softmax or its logarithm."""
        if not out.size:
            return
        # Not in the dtype of x: unsigned numbers would wrap, and halves round every step.
        x = x.astype(np.result_type(out, np.float32))
        x -= x.max(axis, keepdims=True)
        total = np.exp(x).sum(axis, keepdims=True)
        out[...] = np.exp(x) / total if name == "softmax" else x - np.log(total)

    def scan(self, name: str, x: Array, out: Array, axis: int) -> None:
        """Compute cumulative sums or products."""
        accumulate = (np.add if name == "sum" else np.multiply).accumulate
        x = saturated(x, out.dtype).astype(out.dtype)
        out[...] = accumulate(x.astype(np.float32) if out.dtype == np.float16 else x, axis)

    def matmul(self, a: Array, b: Array, out: Array) -> None:
        """Multiply stacks of matrices."""
        np.matmul(a, b, out=out)

    def norm(
        self, name: str, inputs: list[Array], outputs: list[Array], params: dict[str, Any]
    ) -> None:
        """Normalize the last dimensions, or compute the gradients of that, in float32 or wider."""
        wide = [x.astype(np.result_type(x, np.float32)) for x in inputs]
        weighted, biased, *wanted = (bool(params["tensors"] & bit) for bit in (1, 2, 8, 16, 32))
        x = wide[0]
        front = tuple(range(x.ndim - params["dims"]))
        lane = tuple(range(len(front), x.ndim))
        if name == "layer_norm":
            mean = x.mean(lane, keepdims=True)
            rstd = 1 / np.sqrt(np.square(x - mean).mean(lane, keepdims=True) + params["eps"])
            y = (x - mean) * rstd * (wide[1] if weighted else 1) + (wide[-1] if biased else 0)
            results = [y, mean, rstd]
        else:
            sizes = x.shape[: len(front)] + (1,) * len(lane)
            grad, x = wide[:2]
            mean, rstd = (each.reshape(sizes) for each in wide[2:4])
            y = (x - mean) * rstd
            of_y = grad * wide[4] if weighted else grad
            away = of_y.mean(lane, keepdims=True) + y * (of_y * y).mean(lane, keepdims=True)
            gradients = rstd * (of_y - away), (grad * y).sum(front), grad.sum(front)
            results = list(itertools.compress(gradients, wanted))
        for out, result in zip(outputs, results, strict=True):
            out[...] = result.reshape(out.shape)

    def supports(self, method: str, name: str, inputs: Any, output: Any) -> bool | str:
        """Tell which operations of the groups there are."""
        return method != "norm" or name.startswith("layer_norm") or f"it normalizes no {name}"


def saturated(x: Array, dtype: np.dtype[Any]) -> Array:
    """Whole numbers of floats: the nearest in range, 0 of NaN."""
    if x.dtype.kind != "f" or dtype.kind not in "iu":
        return x
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    whole = np.where(x >= float(high), high, np.where(x > low, x, low).astype(dtype))
    return np.where(np.isnan(x), 0, whole)


def main() -> None:
    handle = kf.register_backend("npu", Npu())
    print("backends:  ", *(f"{b.name} ({b.device_type})" for b in kf.backends()))
    x = kf.asarray([[1.0, 2.0], [3.0, 4.0]], dtype="float32", device="npu:1").requires_grad_()
    w = kf.ones((2, 2), dtype="float32", device="npu:1")
    print("computed:  ", (x @ w)[0].detach())
    (gradient,) = kf.grad((x.tanh() @ w).sum(), [x])
    print("gradient:  ", gradient.device, gradient.tolist()[0])
    normalized = kf.layer_norm(x, (2,))
    (gradient,) = kf.grad((normalized * w[0] * x).sum(), [x])
    print("normalized:", normalized.detach().cpu().numpy().round(3).tolist(), gradient.device)
    print("in a batch:", kf.vmap(lambda row: (row * row).sum())(x.detach()).tolist())
    print("traced:    ", kf.trace(lambda x: x.sigmoid() + 1, w)(w).device)
    with kf.profile() as profile, kf.autocast("float16"):
        print("autocast:  ", (w @ w).dtype)
    print("profiled:  ", sorted({event["name"] for event in profile.events}))
    print("on the CPU:", (x.detach().cpu() * 2).tolist())
    for refused in (lambda: np.asarray(w), lambda: w + w.cpu(), lambda: kf.rand(3, device="npu")):
        try:
            refused()
        except kf.Error as error:
            print("refused:   ", error)
    handle.remove()


if __name__ == "__main__":
    main()
