"""Trains a digit classifier on a device and on the CPU: `make demo DEVICE=opencl`.

The data are those of `python -m keyfold demo`; the classifier is a softmax regression, whose
operators this backend has.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

import keyfold as kf
from keyfold._demo.digits import load_digits

BATCH = 64
RATE = 0.2


def loss(weight: kf.Tensor, bias: kf.Tensor, x: kf.Tensor, y: kf.Tensor) -> kf.Tensor:
    """Return the mean loss on images x, (n, 64), with labels y, (n,)."""
    aten = kf.ops.aten
    logits = aten.log_softmax(aten.add(aten.matmul(x, weight), bias), 1)
    result: kf.Tensor = aten.neg(aten.mean(aten.gather(logits, 1, aten.unsqueeze(y, 1))))
    return result


def train(device: str, epochs: int) -> float:
    """Train on a device, and return the accuracy on images that weren't trained with."""
    images, labels = load_digits()
    images = images.reshape(-1, 64)
    rng = np.random.default_rng(0)
    order = rng.permutation(len(images))
    seen, new = order[360:], order[:360]
    zeros = (np.zeros((64, 10), np.float32), np.zeros(10, np.float32))
    weight, bias = (kf.asarray(z, device=device).requires_grad_() for z in zeros)
    for _ in range(epochs):
        mixed = rng.permutation(seen)
        for batch in np.array_split(mixed, len(mixed) // BATCH):
            x = kf.asarray(images[batch], device=device)
            y = kf.asarray(labels[batch], device=device)
            loss(weight, bias, x, y).backward()
            with kf.no_grad():
                for param in (weight, bias):
                    if param.grad is not None:
                        kf.subtract(param, RATE * param.grad, out=param)
                    param.grad = None
    with kf.no_grad():
        logits = kf.matmul(kf.asarray(images[new], device=device), weight) + bias
        guesses = np.asarray(kf.argmax(logits, axis=1).cpu())
    return float(np.mean(guesses == labels[new]))


def main() -> int:
    """Train on both devices; fail if the accuracy differs by more than an image in a hundred."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plugin", type=Path, help="the built library")
    parser.add_argument("--epochs", type=int, default=40)
    options = parser.parse_args()
    with kf.load_plugin(options.plugin) as plugin:
        (found,) = [backend for backend in kf.backends() if backend.device_type == "opencl"]
        devices = ", ".join(str(device) for device in found.devices)
        print(f"{plugin.name} {plugin.version}: {devices}; {options.epochs} epochs on each device")
        accuracies = []
        for device in ("cpu", "opencl"):
            print(f"{device}: ", end="", flush=True)
            start = time.perf_counter()
            accuracies.append(train(device, options.epochs))
            seconds = time.perf_counter() - start
            print(f"accuracy {accuracies[-1]:.1%} in {seconds:.1f} s")
    return int(abs(accuracies[0] - accuracies[1]) > 0.01)


if __name__ == "__main__":
    sys.exit(main())
