"""The demo's convolutional network, trained by keyfold in three ways, and by PyTorch.

    make bench
    scripts/run.sh benches/bench_demo.py [--seeds N] [--epochs N] [--threads N] [--json FILE]

All train the network of `keyfold demo` in float32 on the same threads: from the same parameters,
on the same images in the same batches, with fused steps of Adam and running averages of the
parameters. keyfold does it as the demo does, with each step in a pipeline, and with the loss and
its gradients as a function of `kf.fuse`; the first losses of all three have to be equal, bit for
bit. PyTorch takes part where it is installed. Each seed has another split of the images, start and
order. The libraries take turns, epoch by epoch; a time is the sum of a seed's epochs, without the
making of the parameters and without the test. Before anything is timed the first losses are
compared.
"""

from __future__ import annotations

import argparse
import importlib
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

# Before the libraries start their threads.
os.environ.update(
    dict.fromkeys(
        ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"),
        sys.argv[sys.argv.index("--threads") + 1] if "--threads" in sys.argv[:-1] else "2",
    )
)

import numpy as np
import report

import keyfold as kf
from keyfold._demo import tutorial
from keyfold._demo.digits import Array, load_digits

RESULTS = Path(__file__).with_name("results")


class PipelineTrainer(tutorial.Trainer):
    """The demo's trainer, whose steps are each in a pipeline."""

    def step(self, x: Any, y: Any) -> float:
        """Change the parameters as the demo does."""
        with kf.pipeline():
            return super().step(x, y)


class FusedTrainer(tutorial.Trainer):
    """The demo's trainer, whose loss and gradients are a recorded function."""

    def __init__(self, params: list[Array], device: str = "cpu") -> None:
        super().__init__(params, device)
        self.loss_and_gradients = kf.fuse(kf.value_and_grad(tutorial.loss))

    def step(self, x: Any, y: Any) -> float:
        """Change the parameters as the demo does."""
        value, gradients = self.loss_and_gradients([p.detach() for p in self.params], x, y)
        for param, gradient in zip(self.params, gradients, strict=True):
            param.grad = gradient
        self.optimizer.step()
        self.optimizer.zero_grad()
        with kf.no_grad():
            for average, param in zip(self.averages, self.params, strict=True):
                tutorial.demo.average_(average, param.detach(), tutorial.AVERAGING_RATE)
        return float(value)


class TorchTrainer:
    """The demo's `Trainer`, in PyTorch.

    Args:
        torch: the module.
        params: the parameters at first.
    """

    def __init__(self, torch: Any, params: list[Array]) -> None:
        self.torch = torch
        self.params = [torch.from_numpy(param.copy()).requires_grad_() for param in params]
        self.averages = [torch.from_numpy(param.copy()) for param in params]
        self.optimizer = torch.optim.Adam(self.params, lr=tutorial.LEARNING_RATE, fused=True)

    def classify(self, params: Any, x: Any) -> Any:
        """Return the logits, (n, 10), of images x, (n, 1, 8, 8)."""
        functional = self.torch.nn.functional
        for weight, scale, shift in (params[0:3], params[3:6]):
            x = functional.conv2d(x, weight, padding=1)
            x = functional.group_norm(x, len(weight) // 4, scale, shift)
            x = functional.max_pool2d(functional.relu(x), 2)
        return self.torch.addmm(params[7], x.flatten(1), params[6])

    def step(self, x: Array, y: Array) -> float:
        """Change the parameters a little to what fits this batch better. Return its loss before."""
        torch = self.torch
        logits = self.classify(self.params, torch.from_numpy(x))
        value = torch.nn.functional.cross_entropy(logits, torch.from_numpy(y))
        value.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        with torch.no_grad():
            torch._foreach_lerp_(self.averages, self.params, tutorial.AVERAGING_RATE)
        return float(value.item())

    def guesses(self, x: Array) -> Any:
        """Return the most likely class of each image."""
        with self.torch.no_grad():
            return self.classify(self.averages, self.torch.from_numpy(x)).argmax(1).numpy()


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="where the figures are written")
    parser.add_argument("--threads", type=int, default=2, help="for both libraries")
    parser.add_argument("--seeds", type=int, default=5, help="how often both are trained")
    parser.add_argument("--epochs", type=int, default=16, help="the demo's own are 16")
    return parser.parse_args()


def compare(trainers: dict[str, Any], x: Array, y: Array, steps: int = 3) -> None:
    """Let each take a few steps on the first images. Refuse losses that differ."""
    for step in range(steps):
        losses = {name: trainer.step(x[:64], y[:64]) for name, trainer in trainers.items()}
        ours = {loss for name, loss in losses.items() if name != "PyTorch"}
        if len(ours) > 1 or max(losses.values()) - min(losses.values()) > 1e-3:
            raise SystemExit(f"step {step}: the losses differ: {losses}")


def train(
    trainers: dict[str, Any], x: Array, y: Array, epochs: int, seed: int
) -> tuple[dict[str, float], int]:
    """Train each, epoch by epoch in turn. Return the seconds of each, and the number of steps."""
    taken = dict.fromkeys(trainers, 0.0)
    rng, steps = np.random.default_rng(seed), 0
    for epoch in range(epochs):
        batches = np.array_split(rng.permutation(len(x)), len(x) // tutorial.BATCH)
        steps += len(batches)
        order = list(trainers) if epoch % 2 else list(trainers)[::-1]
        for name in order:
            start = time.perf_counter()
            for batch in batches:
                trainers[name].step(x[batch], y[batch])
            taken[name] += time.perf_counter() - start
    return taken, steps


def main() -> None:
    chosen = options()
    kf.set_num_threads(chosen.threads)
    makers: dict[str, Any] = {
        "keyfold": tutorial.Trainer,
        "pipeline": PipelineTrainer,
        "kf.fuse": FusedTrainer,
    }
    try:
        torch = importlib.import_module("torch")
        torch.set_num_threads(chosen.threads)
        makers["PyTorch"] = lambda params: TorchTrainer(torch, params)
    except ImportError:
        print("left out: PyTorch (not installed)")
    print(f"average_ in C: {tutorial.register_c_kernel()}")
    images, labels = load_digits()
    scores: dict[str, list[float]] = {name: [] for name in makers}
    seconds: dict[str, list[float]] = {name: [] for name in makers}
    steps = 0
    for seed in range(chosen.seeds):
        rng = np.random.default_rng(seed)
        order = rng.permutation(len(images))
        learn, test = np.split(order, [len(order) * 4 // 5])
        x, y = images[learn], labels[learn]
        params = tutorial.new_parameters(rng)
        copies = {name: [param.copy() for param in params] for name in makers}
        if seed == 0:
            compare({name: make(copies[name]) for name, make in makers.items()}, x, y)
            copies = {name: [param.copy() for param in params] for name in makers}
        trainers = {name: make(copies[name]) for name, make in makers.items()}
        spent, steps = train(trainers, x, y, chosen.epochs, seed)
        for name in makers:
            seconds[name].append(spent[name])
            guesses = trainers[name].guesses(images[test])
            scores[name].append(float(np.mean(guesses == labels[test])))
    machine = report.machine(None) | {"threads": chosen.threads}
    print(f"{machine['processor']}, {chosen.threads} threads; {machine['packages']}")
    print(f"{chosen.seeds} seeds, {chosen.epochs} epochs, {steps} steps each\n")
    print(f"{'':<10}{'mean accuracy':>14}{'least':>8}{'seconds':>9}{'median':>8}{'ms a step':>11}")
    records = []
    for name in makers:
        record = {
            "name": name,
            "accuracy": round(statistics.mean(scores[name]), 4),
            "accuracy_least": round(min(scores[name]), 4),
            "seconds": round(min(seconds[name]), 3),
            "seconds_median": round(statistics.median(seconds[name]), 3),
            "ms_a_step": round(min(seconds[name]) / steps * 1e3, 3),
        }
        records.append(record)
        print(
            f"{name:<10}{record['accuracy']:>14}{record['accuracy_least']:>8}"
            f"{record['seconds']:>9}{record['seconds_median']:>8}{record['ms_a_step']:>11}"
        )
    print()
    for record in records[1:]:
        ratio = records[0]["seconds"] / record["seconds"]
        print(f"keyfold / {record['name']}: {ratio:.2f} of the time")
    path = chosen.json or RESULTS / "python_demo.json"
    report.write(path, {"machine": machine, "epochs": chosen.epochs, "rows": records})
    print(f"written: {path}")


if __name__ == "__main__":
    main()
