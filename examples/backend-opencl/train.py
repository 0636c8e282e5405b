"""Trains the demo's digit classifier on a device and on the CPU: `make demo DEVICE=opencl`.

The operators, their derivative and the training are those of `python -m keyfold demo`; the two that
have kernels for the CPU alone get the same ones for the device.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

import keyfold as kf
from keyfold._demo import tutorial


def train(device: str, epochs: int) -> float:
    """Train on a device, and return the accuracy on images that weren't trained with."""
    images, labels = tutorial.load_digits()
    rng = np.random.default_rng(0)
    order = rng.permutation(len(images))
    seen, new = order[360:], order[:360]
    zeros = (np.zeros((64, 10), np.float32), np.zeros(10, np.float32))
    weight, bias = (kf.asarray(z, device=device).requires_grad_() for z in zeros)
    for _ in range(epochs):
        mixed = rng.permutation(seen)
        for batch in np.array_split(mixed, len(mixed) // tutorial.BATCH):
            x = kf.asarray(images[batch], device=device)
            y = kf.asarray(labels[batch], device=device)
            tutorial.loss(weight, bias, x, y).backward()
            with kf.no_grad():
                for param in (weight, bias):
                    tutorial.demo.descend_(param, param.grad, tutorial.RATE)
                    param.grad = None
    with kf.no_grad():
        logits = tutorial.demo.linear(kf.asarray(images[new], device=device), weight, bias)
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
        for function in (tutorial.cross_entropy, tutorial.descend):
            name = {"descend": "descend_"}.get(function.__name__, function.__name__)
            kf.impl(f"demo::{name}", "OPENCL", function)
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
