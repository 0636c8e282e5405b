"""A digit classifier on operators of its own: keyfold's tutorial, as a program.

Read it from top to bottom, and run it with `python -m keyfold demo`. It uses what every user has:
the names in `keyfold`. What prints headings and the progress bar is in `keyfold._cli._terminal`,
what writes files in `keyfold._cli._files`.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from contextlib import nullcontext
from importlib import resources
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

import keyfold as kf
from keyfold._cli._files import graph_text, save
from keyfold._cli._json import show
from keyfold._cli._terminal import Progress, heading, paint, width
from keyfold._show import _text

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

# The operators that come with keyfold: native kernels, on NumPy arrays among others.
aten = kf.ops.aten

# ---- 1. Operators of our own ---------------------------------------------------------------------
# A schema says what goes in and what comes out. "Tensor(a!)" is an argument that is written to.

kf.define("demo::linear(Tensor x, Tensor weight, Tensor bias) -> Tensor")
kf.define("demo::cross_entropy(Tensor logits, Tensor labels) -> Tensor")
kf.define("demo::descend_(Tensor(a!) param, Tensor grad, float rate) -> ()")

demo = kf.ops.demo

# ---- 2. Kernels in Python ------------------------------------------------------------------------
# A kernel is registered for an operator and a dispatch key. This first one is written in terms of
# other operators, so it serves every backend that has those, and it has the derivative that follows
# from theirs: "CompositeImplicitAutograd".


@kf.impl("demo::linear", "CompositeImplicitAutograd")
def linear(x: Any, weight: Any, bias: Any) -> Any:
    """Return `x @ weight + bias`, for x of shape (n, in) and weight of shape (in, out)."""
    return aten.add(aten.matmul(x, weight), bias)


# Kernels for one backend. They get the caller's own objects: NumPy arrays from one who calls with
# those, tensors from one who calls with tensors. What is written with operators takes both.


@kf.impl("demo::cross_entropy", "CPU")
def cross_entropy(logits: Any, labels: Any) -> Any:
    """Return the mean loss of (n, classes) logits."""
    likely = aten.gather(aten.log_softmax(logits, 1), 1, aten.unsqueeze(labels, 1))
    return aten.neg(aten.mean(likely))


@kf.impl("demo::descend_", "CPU")
def descend(param: Any, grad: Any, rate: float) -> None:
    """Take one step against the gradient, in place."""
    param -= rate * grad


# For the device "meta", where tensors have a shape and a dtype and no data, a rule of one line.


def cross_entropy_meta(logits: Any, labels: Any) -> Any:
    """Return a tensor like the loss of such logits."""
    return kf.empty((), dtype=logits.dtype, device="meta")


kf.register_fake("demo::cross_entropy", cross_entropy_meta)


# ---- 3. A derivative -----------------------------------------------------------------------------
# The kernel of cross_entropy is for the CPU alone, so Autograd, above it, doesn't look inside: the
# operator has a derivative of its own, simpler than what would follow from the kernel.


def keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Keep what the derivative needs of a call."""
    ctx.save_for_backward(*inputs)


def cross_entropy_backward(ctx: Any, grad: Any) -> tuple[Any, None]:
    """Return the gradient with respect to the logits; the labels have none."""
    logits, labels = ctx.saved_tensors
    n, classes = logits.shape
    numbers = aten.arange(classes, device=logits.device)
    right = aten.eq(aten.unsqueeze(labels, 1), numbers)
    return grad * (aten.softmax(logits, 1) - kf.astype(right, logits.dtype)) / n, None


kf.register_autograd("demo::cross_entropy", cross_entropy_backward, setup_context=keep)

# ---- 4. A kernel in C ----------------------------------------------------------------------------
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


# ---- 5. A layer of our own -----------------------------------------------------------------------
# A key above the backends is a layer. A fallback is its kernel for all operators at once: it does
# its part and redispatches the call below its key. Autograd, Profiler and Tracer are layers. This
# key is a new one; "skippable" makes it a mode, which costs nothing where it isn't included. While
# a layer runs, its key is excluded on this thread, so calls that a kernel makes, as linear calls
# matmul, aren't counted.

kf.register_key("Audit", above="Profiler", skippable=True)

calls: Counter[str] = Counter()
bytes_in: Counter[str] = Counter()


def audit(op: kf.Operator, keyset: kf.DispatchKeySet, args: Any, kwargs: Any) -> Any:
    """Count an operator's calls and the bytes of the arrays that it is given."""
    calls[op.name] += 1
    bytes_in[op.name] += sum(getattr(arg, "nbytes", 0) for arg in args)
    return op.redispatch(keyset.remove("Audit"), *args, **kwargs)


kf.fallback("Audit", audit)

# ---- 6. Real data --------------------------------------------------------------------------------
# 1,797 handwritten digits of 8 x 8 cells with ink from 0 to 16, UCI's test portion of "Optical
# Recognition of Handwritten Digits" (E. Alpaydin and C. Kaynak, CC BY 4.0).


def load_digits() -> tuple[Array, Array]:
    """Return the images, (1797, 64) float32 from 0 to 1, and the labels, (1797,) int64."""
    source = resources.files("keyfold") / "_data" / "optdigits.npz"
    with source.open("rb") as file, np.load(file) as data:
        images = data["images"].reshape(-1, 64).astype(np.float32) / 16
        return images, data["labels"].astype(np.int64)


# ---- 7. Training ---------------------------------------------------------------------------------
# Softmax regression by gradient descent on small batches. The parameters are tensors that require
# grad: Autograd records what is done with them, `backward` goes through it from the loss back and
# leaves the gradients in `.grad`.

RATE = 0.2
BATCH = 64
GOAL = 0.94


def loss(weight: Any, bias: Any, x: Any, y: Any) -> Any:
    """Return the mean loss of the classifier on images x, (n, 64), with labels y, (n,)."""
    return demo.cross_entropy(demo.linear(x, weight, bias), y)


def step(weight: kf.Tensor, bias: kf.Tensor, x: Array, y: Array) -> float:
    """Change the parameters a little to what fits this batch better. Return its loss before."""
    value = loss(weight, bias, x, y)
    value.backward()
    # Writing to a parameter is refused where it would be recorded.
    with kf.no_grad():
        for param in (weight, bias):
            demo.descend_(param, param.grad, RATE)
            param.grad = None
    return float(value.item())


def train_epoch(
    weight: kf.Tensor, bias: kf.Tensor, x: Array, y: Array, rng: np.random.Generator
) -> float:
    """Go over the images once, in batches. Return the mean loss."""
    losses = []
    for batch in np.array_split(rng.permutation(len(x)), len(x) // BATCH):
        # In a profile, an event around the step's calls; without a profile it does nothing.
        with kf.profile_range("step"):
            losses.append(step(weight, bias, x[batch], y[batch]))
    return float(np.mean(losses))


def guesses(weight: Any, bias: Any, x: Array) -> Array:
    """Return the most likely class of each image."""
    with kf.no_grad():
        most: Array = aten.argmax(demo.linear(x, weight, bias), 1).numpy()
    return most


# ---- 8. One example at a time --------------------------------------------------------------------
# `grad` makes a function of a function: the gradient of this one. `vmap` makes another: the same
# for each image of a batch, here with the parameters shared (None).


def loss_of_one(weight: Any, bias: Any, image: Any, label: Any) -> Any:
    """Return the loss on a single image, (64,)."""
    return loss(weight, bias, aten.unsqueeze(image, 0), aten.unsqueeze(label, 0))


gradients_of_each = kf.vmap(kf.grad(loss_of_one, argnums=(0, 1)), in_axes=(None, None, 0, 0))


def hardest(weight: Any, bias: Any, x: Array, y: Array, count: int) -> Array:
    """Return the numbers of the images that pull most at the parameters, the hardest one first."""
    squares = sum(
        (gradient.detach().numpy().reshape(len(x), -1) ** 2).sum(1)
        for gradient in gradients_of_each(weight.detach(), bias.detach(), x, y)
    )
    return np.argsort(-np.asarray(squares), kind="stable")[:count]


# ---- 9. All of it --------------------------------------------------------------------------------


def run(
    epochs: int = 200,
    seed: int = 0,
    quiet: bool = False,
    save_trace: Path | None = None,
    draw: Path | None = None,
    as_json: bool = False,
) -> int:
    """Run the tutorial and print what a newcomer wants to see.

    Args:
        epochs: how often the training goes over its images.
        seed: of the split and of the order of the batches.
        quiet: whether to print the accuracy alone.
        save_trace: the file that the profile's Chrome trace is written to.
        draw: the file that the graph is written to, in the form that its ending says.
        as_json: whether to print the accuracy alone, as JSON.

    Returns:
        The exit code: 0 where the test accuracy is 0.94 or more, else 1.
    """

    def say(*lines: str) -> None:
        if not quiet:
            print(*lines, sep="\n")

    quiet = quiet or as_json
    started = time.perf_counter()
    calls.clear()
    bytes_in.clear()

    rng = np.random.default_rng(seed)
    images, labels = load_digits()
    order = rng.permutation(len(images))
    cut = len(order) * 4 // 5
    learn, test = order[:cut], order[cut:]
    x, y = images[learn], labels[learn]
    say(
        paint("keyfold demo: a digit classifier on operators of its own", "bold"),
        f"The program is {_text.shorten(__file__)}: read it as the tutorial.",
        heading("The data"),
        f"  {len(images):,} handwritten digits of 8 x 8 cells (UCI, CC BY 4.0):",
        f"  {len(learn):,} to learn from, {len(test):,} to test\n",
        *pictures(x[:4]),
    )

    outcome = register_c_kernel()
    on_meta = demo.linear(
        kf.empty((BATCH, 64), device="meta"),
        kf.empty((64, 10), device="meta"),
        kf.empty(10, device="meta"),
    )
    report = kf.opcheck("demo::cross_entropy", (rng.normal(size=(3, 10)), y[:3]))
    say(
        heading("Operators of our own"),
        *(f"  {getattr(demo, name).schema}" for name in dir(demo)),
        "",
        f"  descend_ in C: {outcome}",
        f"  linear knows shapes without data, on the device meta: {tuple(on_meta.shape)}",
        "  Do the kernel, the shapes and the derivative of cross_entropy agree?\n",
        *(f"  {line}" for line in report._lines(width() - 2)),
    )

    say(heading("Training with Autograd, below our own layer Audit"))
    began = time.perf_counter()
    weight = kf.zeros((64, 10), dtype="float32").requires_grad_()
    bias = kf.zeros(10, dtype="float32").requires_grad_()
    profile = kf.profile()
    with kf.include_keys("Audit"), Progress(epochs, "training", quiet=quiet) as progress:
        for epoch in range(1, epochs + 1):
            # The last epoch is profiled: its steps are like all others.
            with profile if epoch == epochs else nullcontext():
                mean = train_epoch(weight, bias, x, y, rng)
            progress.update(epoch, f"epoch {epoch}/{epochs}  loss {mean:.3f}")
    score = float(np.mean(guesses(weight, bias, images[test]) == labels[test]))
    spent = time.perf_counter() - began
    say(f"  {calls['demo::cross_entropy']:,} batches of about {BATCH} images in {spent:.1f} s")
    if as_json:
        said = {"test_accuracy": score, "goal": GOAL, "epochs": epochs, "seed": seed}
        show("demo", {**said, "training_seconds": spent, "c_kernel": outcome})
    else:
        print(paint(f"  test accuracy {score:.4f}", "bold", "green" if score >= GOAL else "red"))

    say(
        heading("The last epoch, profiled"),
        *profile.table(limit=12)._lines(width(), indent=2),
        "  step's own time is what no operator took: Python, the way back, Audit",
        heading("What Audit counted: all epochs, backward too"),
        *_text.table(
            [
                (name, f"{count:,}", f"{bytes_in[name] / 1e6:,.1f}")
                for name, count in calls.most_common(8)
            ],
            ("operator", "calls", "MB in"),
            right=(1, 2),
            indent=2,
        ),
    )

    # Traced with one batch: every operator that the loss and its gradients take, as a graph.
    both = kf.value_and_grad(loss, argnums=(0, 1))
    params = weight.detach(), bias.detach()
    graph = kf.trace(both, *params, x[:BATCH], y[:BATCH])
    other = x[BATCH : 2 * BATCH], y[BATCH : 2 * BATCH]
    replayed, computed = (f(*params, *other)[0].item() for f in (graph, both))
    say(
        heading("The loss and its gradients as a graph"),
        *(f"  {line}" for line in str(graph).splitlines()),
        "",
        f"  replayed on other images: loss {replayed:.4f}; computed for them: {computed:.4f}",
    )

    if not quiet:  # Each image is a call of its own here, which takes a second.
        hard = hardest(weight, bias, x, y, 4)
        taken = guesses(weight, bias, x[hard])
        captions = [f"a {y[i]}, read as {guess}" for i, guess in zip(hard, taken, strict=True)]
        say(
            heading("The hardest digits to learn: those with the largest gradients (vmap of grad)"),
            f"  {'  '.join(f'{caption:16}' for caption in captions)}".rstrip(),
            *pictures(x[hard]),
        )

    with kf.include_keys("Audit"):
        explanation = kf.explain(demo.cross_entropy, demo.linear(x, weight, bias), y)
    say(
        heading("The dispatch table of demo::descend_"),
        *demo.descend_.table(fallbacks=True)._lines(width(), indent=2),
        heading("What the call demo::cross_entropy(logits, labels) did, and why"),
        *explanation._lines(width()),
        "",
    )

    if save_trace is not None:
        save("--save-trace", save_trace, profile.save)
        say(f"The profile is in {save_trace}: open it at https://ui.perfetto.dev.")
    if draw is not None:
        drawing = graph_text(graph, draw)
        save("--draw", draw, lambda path: path.write_text(drawing, encoding="utf-8"))
        say(f"The graph is in {draw}.")
    say(f"Done in {time.perf_counter() - started:.1f} s.")
    if score < GOAL:
        say(paint(f"The accuracy is below {GOAL}: train for more epochs.", "red"))
    return 0 if score >= GOAL else 1


def pictures(images: Array) -> list[str]:
    """Return digits side by side as lines of text, a cell two characters wide."""
    shades = " .:-=+*#%"
    grid = (images.reshape(-1, 8, 8) * (len(shades) - 1)).astype(int)
    return [
        f"  {'  '.join(''.join(2 * shades[cell] for cell in row) for row in rows)}".rstrip()
        for rows in grid.transpose(1, 0, 2)
    ]
