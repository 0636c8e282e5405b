"""A digit classifier on operators of its own: keyfold's tutorial, as a program.

Read it from top to bottom, and run it with `python -m keyfold demo`. It uses what every user has:
the names in `keyfold`. What prints headings and the progress bar is in `keyfold._cli._terminal`.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
import time
from collections import Counter, defaultdict
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import keyfold as kf
from keyfold._cli._terminal import Progress, columns, fold, heading, paint, short, table_lines

Array = NDArray[Any]

# The operators that come with keyfold: native kernels, on NumPy arrays among others.
aten = kf.ops.aten

# ---- 1. Operators of our own ---------------------------------------------------------------------
# A schema says what goes in and what comes out. "Tensor(a!)" is an argument that is written to.

kf.define("demo::linear(Tensor x, Tensor weight, Tensor bias) -> Tensor")
kf.define("demo::cross_entropy(Tensor logits, Tensor labels) -> (Tensor, Tensor)")
kf.define("demo::descend_(Tensor(a!) param, Tensor grad, float rate) -> ()")

demo = kf.ops.demo

# ---- 2. Kernels in Python ------------------------------------------------------------------------
# A kernel is registered for an operator and a dispatch key. This first one is written in terms of
# other operators, so it serves every backend that has those: "CompositeImplicitAutograd".


@kf.impl("demo::linear", "CompositeImplicitAutograd")
def linear(x: Array, weight: Array, bias: Array) -> Any:
    """Return `x @ weight + bias`, for x of shape (n, in) and weight of shape (in, out)."""
    return aten.add(aten.matmul(x, weight), bias)


# A kernel for one backend. It gets the caller's own objects: call the operator with NumPy arrays,
# and NumPy arrays are what is here.


@kf.impl("demo::cross_entropy", "CPU")
def cross_entropy(logits: Array, labels: Array) -> tuple[Any, Any]:
    """Return the mean loss of (n, classes) logits, and its gradient with respect to them."""
    rows = np.arange(len(labels))
    grad = aten.softmax(logits, 1)
    loss = -np.log(grad[rows, labels]).mean()
    grad[rows, labels] -= 1
    grad /= len(labels)
    return loss, grad


@kf.impl("demo::descend_", "CPU")
def descend(param: Array, grad: Array, rate: float) -> None:
    """Take one step against the gradient, in place."""
    param -= rate * grad


# ---- 3. A kernel in C ----------------------------------------------------------------------------
# One C function, in a file that needs no header of ours. It takes the place of the Python kernel
# above ("shadow"); removing it would bring that one back.


def find_compiler() -> list[str] | None:
    """Return the C compiler's command: $CC, or the first of cc, gcc, clang; None without one."""
    for candidate in (os.environ.get("CC"), "cc", "gcc", "clang"):
        command = shlex.split(candidate or "")
        if command and shutil.which(command[0]):
            return command
    return None


def register_c_kernel() -> str:
    """Compile descend.c and register it for the CPU. Return what came of it, in one line."""
    compiler = find_compiler()
    if compiler is None:
        return "no C compiler found ($CC, cc, gcc, clang): the Python kernel stays"
    source = resources.files("keyfold") / "_demo" / "descend.c"
    # The directory can go as soon as the library is loaded.
    with tempfile.TemporaryDirectory() as folder, resources.as_file(source) as path:
        library = Path(folder) / "libdescend.so"
        command = [*compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            problem = (done.stderr.strip().splitlines() or ["it gave no reason"])[0]
            return f"{compiler[0]} can't compile descend.c, the Python kernel stays: {problem}"
        kernel = kf.NativeKernel.from_library(library, "descend")
    kf.impl("demo::descend_", "CPU", kernel, override="shadow")
    return f"compiled by {Path(compiler[0]).name}, shadows the Python kernel"


# ---- 4. Layers -----------------------------------------------------------------------------------
# A key above the backends is a layer. A fallback is its kernel for all operators at once: it does
# its part and hands the call on to what lies below its key. Modes like Profiler cost nothing until
# somebody includes their key. While a layer runs, its key is excluded on this thread: what a kernel
# calls for itself, as linear calls matmul, counts as a part of it.

seconds: dict[str, float] = defaultdict(float)


def profiler(op: kf.Operator, keyset: kf.DispatchKeySet, args: Any, kwargs: Any) -> Any:
    """Time a call of any operator."""
    start = time.perf_counter()
    try:
        return op.redispatch(keyset.remove("Profiler"), *args, **kwargs)
    finally:
        seconds[op.name] += time.perf_counter() - start


kf.fallback("Profiler", profiler)

# Keys are open. This one is ours, right above Profiler: what it does is not in Profiler's times.

kf.register_key("Audit", above="Profiler", skippable=True)

calls: Counter[str] = Counter()
bytes_in: Counter[str] = Counter()


def audit(op: kf.Operator, keyset: kf.DispatchKeySet, args: Any, kwargs: Any) -> Any:
    """Count an operator's calls and the bytes of the arrays that it is given."""
    calls[op.name] += 1
    bytes_in[op.name] += sum(arg.nbytes for arg in args if isinstance(arg, np.ndarray))
    return op.redispatch(keyset.remove("Audit"), *args, **kwargs)


kf.fallback("Audit", audit)

# ---- 5. Real data --------------------------------------------------------------------------------
# 1,797 handwritten digits of 8 x 8 cells with ink from 0 to 16, UCI's test portion of "Optical
# Recognition of Handwritten Digits" (E. Alpaydin and C. Kaynak, CC BY 4.0).


def load_digits() -> tuple[Array, Array]:
    """Return the images, (1797, 64) float32 from 0 to 1, and the labels, (1797,) int64."""
    source = resources.files("keyfold") / "_data" / "optdigits.npz"
    with source.open("rb") as file, np.load(file) as data:
        images = data["images"].reshape(-1, 64).astype(np.float32) / 16
        return images, data["labels"].astype(np.int64)


# ---- 6. Training ---------------------------------------------------------------------------------
# Softmax regression by gradient descent on small batches; the gradients are written out.

RATE = 0.2
BATCH = 64
GOAL = 0.94


def train(
    x: Array, y: Array, epochs: int, rng: np.random.Generator, progress: Progress
) -> tuple[Array, Array]:
    """Return the weights, (64, 10), and the bias, (10,), of the trained classifier."""
    weight = np.zeros((64, 10), np.float32)
    bias = np.zeros(10, np.float32)
    for epoch in range(1, epochs + 1):
        losses = []
        for batch in np.array_split(rng.permutation(len(x)), len(x) // BATCH):
            logits = demo.linear(x[batch], weight, bias)
            loss, grad = demo.cross_entropy(logits, y[batch])
            demo.descend_(weight, aten.matmul(aten.transpose(x[batch], 0, 1), grad), RATE)
            demo.descend_(bias, aten.sum(grad, [0]), RATE)
            losses.append(float(loss))
        progress.update(epoch, f"epoch {epoch}/{epochs}  loss {np.mean(losses):.3f}")
    return weight, bias


def accuracy(x: Array, y: Array, weight: Array, bias: Array) -> float:
    """Return the share of the images whose most likely class is their label."""
    guesses = aten.argmax(demo.linear(x, weight, bias), 1)
    return float(np.mean(guesses == y))


# ---- 7. All of it --------------------------------------------------------------------------------


def run(epochs: int = 200, seed: int = 0, quiet: bool = False) -> int:
    """Run the tutorial and print what a newcomer wants to see.

    Args:
        epochs: how often the training goes over its images.
        seed: of the split and of the order of the batches.
        quiet: whether to print the accuracy alone.

    Returns:
        The exit code: 0 where the test accuracy is 0.94 or more, else 1.
    """

    def say(*lines: str) -> None:
        if not quiet:
            print(*lines, sep="\n")

    started = time.perf_counter()
    for counts in (seconds, calls, bytes_in):
        counts.clear()

    rng = np.random.default_rng(seed)
    images, labels = load_digits()
    order = rng.permutation(len(images))
    cut = len(order) * 4 // 5
    learn, test = order[:cut], order[cut:]
    say(
        paint("keyfold demo: a digit classifier on operators of its own", "bold"),
        f"The program is {short(__file__)}: read it as the tutorial.",
        heading("The data"),
        f"  {len(images):,} handwritten digits of 8 x 8 cells (UCI, CC BY 4.0):",
        f"  {len(learn):,} to learn from, {len(test):,} to test\n",
        *draw(images[learn[:4]]),
    )

    outcome = register_c_kernel()
    shape = demo.linear(
        kf.empty((BATCH, 64), device="meta"),
        kf.empty((64, 10), device="meta"),
        kf.empty(10, device="meta"),
    ).shape
    say(
        heading("Operators of our own"),
        *(f"  {getattr(demo, name).schema}" for name in dir(demo)),
        "",
        f"  descend_ in C: {outcome}",
        f"  linear knows shapes without data, on the device meta: {tuple(shape)}",
    )

    say(heading("Training, below the layers Audit and Profiler"))
    began = time.perf_counter()
    with kf.include_keys("Audit", "Profiler"):
        with Progress(epochs, "training", quiet=quiet) as progress:
            weight, bias = train(images[learn], labels[learn], epochs, rng, progress)
        score = accuracy(images[test], labels[test], weight, bias)
        explanation = kf.explain(demo.descend_, bias, bias, RATE)
    spent = time.perf_counter() - began
    say(f"  {calls['demo::cross_entropy']:,} batches of about {BATCH} images in {spent:.1f} s")
    print(paint(f"  test accuracy {score:.4f}", "bold", "green" if score >= GOAL else "red"))

    total = sum(seconds.values())
    say(
        heading("Time spent per operator"),
        *columns(
            [
                (
                    name,
                    f"{calls[name]:,}",
                    f"{1e3 * time_in:.1f}",
                    f"{100 * time_in / total:.1f} %",
                    f"{1e6 * time_in / calls[name]:.1f}",
                    f"{bytes_in[name] / 1e6:.1f}",
                )
                for name, time_in in sorted(seconds.items(), key=lambda item: -item[1])
            ],
            ("operator", "calls", "ms", "share", "us/call", "MB in"),
            right=(1, 2, 3, 4, 5),
        ),
        f"  {total:.2f} s in operators, of {spent:.2f} s for training and test",
        heading("The dispatch table of demo::descend_"),
        *table_lines(demo.descend_.table(fallbacks=True)),
        heading(f"What the call demo::descend_(bias, grad, {RATE}) did, and why"),
        *fold(short(str(explanation))),
        f"\nDone in {time.perf_counter() - started:.1f} s.",
    )
    if score < GOAL:
        say(paint(f"The accuracy is below {GOAL}: train for more epochs.", "red"))
    return 0 if score >= GOAL else 1


def draw(images: Array) -> list[str]:
    """Return digits side by side as lines of text, a cell two characters wide."""
    shades = " .:-=+*#%"
    grid = (images.reshape(-1, 8, 8) * (len(shades) - 1)).astype(int)
    return [
        f"  {'  '.join(''.join(2 * shades[cell] for cell in row) for row in rows)}".rstrip()
        for rows in grid.transpose(1, 0, 2)
    ]
