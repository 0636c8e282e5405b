"""A convolutional network on operators of its own: keyfold's tutorial, as a program.

Read it from top to bottom, and run it with `python -m keyfold demo`. It uses what every user has:
the names in `keyfold`. What prints headings and the progress bar is in `keyfold._cli._terminal`,
what writes files in `keyfold._cli._files`; beside this file are the digits and the C compiler.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

import keyfold as kf
from keyfold._cli._files import graph_text, save
from keyfold._cli._json import show
from keyfold._cli._terminal import Progress, heading, paint, width
from keyfold._demo.compiler import compile_kernel
from keyfold._demo.digits import Array, load_digits, pictures
from keyfold._show import _text

# The operators that come with keyfold: native kernels, on NumPy arrays among others.
aten = kf.ops.aten

# ---- 1. Operators of our own ---------------------------------------------------------------------
# A schema says what goes in and what comes out. "Tensor(a!)" is an argument that is written to.

kf.define("demo::block(Tensor x, Tensor weight, Tensor scale, Tensor shift) -> Tensor")
kf.define("demo::cross_entropy(Tensor logits, Tensor labels) -> Tensor")
kf.define("demo::average_(Tensor(a!) mean, Tensor value, float rate) -> ()")

demo = kf.ops.demo

# ---- 2. Kernels in Python ------------------------------------------------------------------------
# A kernel is registered for an operator and a dispatch key. This first one is written in terms of
# other operators, so it serves every backend that has those, and it has the derivative that follows
# from theirs: "CompositeImplicitAutograd".


@kf.impl("demo::block", "CompositeImplicitAutograd")
def block(x: Any, weight: Any, scale: Any, shift: Any) -> Any:
    """Return images of half the size: convolution, group norm, relu, and max pooling.

    x has shape (n, in, height, width), weight (out, in, 3, 3), scale and shift (out,). Each image
    is normalized on its own, in groups of four channels.
    """
    found = aten.conv2d(x, weight, None, stride=[1, 1], padding=[1, 1])
    even = aten.group_norm(found, weight.shape[0] // 4, scale, shift)
    return aten.max_pool2d(aten.relu(even), [2, 2])


# Kernels for one backend. They get the caller's own objects: NumPy arrays from one who calls with
# those, tensors from one who calls with tensors. What is written with operators takes both.


@kf.impl("demo::cross_entropy", "CPU")
def cross_entropy(logits: Any, labels: Any) -> Any:
    """Return the mean loss of (n, classes) logits."""
    likely = aten.gather(aten.log_softmax(logits, 1), 1, aten.unsqueeze(labels, 1))
    return aten.neg(aten.mean(likely))


@kf.impl("demo::average_", "CPU")
def average(mean: Any, value: Any, rate: float) -> None:
    """Move a running average towards a value, in place."""
    mean += rate * (value - mean)


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
# One C function, in a file that needs no header of ours. It takes the place of the Python kernel of
# average_ ("shadow"); removing it would bring that one back.


def register_c_kernel() -> str:
    """Compile average.c and register it for the CPU. Return what came of it, in one line."""
    kernel, outcome = compile_kernel("average")
    if kernel is None:
        return outcome
    kf.impl("demo::average_", "CPU", kernel, override="shadow")
    return f"{outcome}, shadows the Python kernel"


# ---- 5. A layer of our own -----------------------------------------------------------------------
# A key above the backends is a layer. A fallback is its kernel for all operators at once: it does
# its part and redispatches the call below its key. Autograd, Profiler and Tracer are layers. This
# key is a new one; "skippable" makes it a mode, which costs nothing where it isn't included. While
# a layer runs, its key is excluded on this thread, so calls that a kernel makes, as block calls
# conv2d, aren't counted.

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
# Recognition of Handwritten Digits" (E. Alpaydin and C. Kaynak, CC BY 4.0). `load_digits` returns
# the images, (1797, 1, 8, 8) float32 from 0 to 1, and the labels, (1797,) int64.

# ---- 7. Training ---------------------------------------------------------------------------------
# Two blocks, then a product with a matrix, by Adam on small batches. The parameters are tensors
# that require grad: Autograd records what is done with them, `backward` goes through it from the
# loss back and leaves the gradients in `.grad`. Adam is one fused kernel a parameter. The
# classifier has the running averages of the parameters, which are better than the last ones.

LEARNING_RATE = 0.01
AVERAGING_RATE = 0.02
BATCH = 64
GOAL = 0.97


def new_parameters(rng: np.random.Generator) -> list[Array]:
    """Return the network's parameters: three for each block, then a matrix and a bias."""

    def normal(*shape: int, inputs: int) -> Array:
        return rng.normal(size=shape, scale=inputs**-0.5).astype(np.float32)

    def like(value: float, size: int) -> Array:
        return np.full(size, value, np.float32)

    return [
        *(normal(16, 1, 3, 3, inputs=9), like(1, 16), like(0, 16)),
        *(normal(32, 16, 3, 3, inputs=144), like(1, 32), like(0, 32)),
        *(normal(128, 10, inputs=128), like(0, 10)),
    ]


def classify(params: Any, x: Any) -> Any:
    """Return the logits, (n, 10), of images x, (n, 1, 8, 8)."""
    half = demo.block(x, *params[0:3])
    quarter = demo.block(half, *params[3:6])
    flat = aten.reshape(quarter, [x.shape[0], 128])
    return aten.add(aten.matmul(flat, params[6]), params[7])


def loss(params: Any, x: Any, y: Any) -> Any:
    """Return the mean loss of the classifier on images x, (n, 1, 8, 8), with labels y, (n,)."""
    return demo.cross_entropy(classify(params, x), y)


class Trainer:
    """The parameters, the optimizer's moments, and the running averages.

    Args:
        params: the parameters at first.
        device: where they are kept and trained.
    """

    def __init__(self, params: list[Array], device: str = "cpu") -> None:
        self.device = device
        self.params = [kf.asarray(param, device=device).requires_grad_() for param in params]
        self.averages = [kf.asarray(param, device=device, copy=True) for param in params]
        self.optimizer = kf.optim.Adam(self.params, lr=LEARNING_RATE)

    def step(self, x: Any, y: Any) -> float:
        """Change the parameters a little to what fits this batch better. Return its loss before."""
        x, y = (kf.asarray(array, device=self.device) for array in (x, y))
        value = loss(self.params, x, y)
        value.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        with kf.no_grad():
            for average, param in zip(self.averages, self.params, strict=True):
                demo.average_(average, param.detach(), AVERAGING_RATE)
        return float(value.item())

    def epoch(self, x: Array, y: Array, rng: np.random.Generator) -> float:
        """Go over the images once, in batches. Return the mean loss."""
        losses = []
        for batch in np.array_split(rng.permutation(len(x)), len(x) // BATCH):
            # In a profile, an event around the step's calls; without a profile it does nothing.
            with kf.profile_range("step"):
                losses.append(self.step(x[batch], y[batch]))
        return float(np.mean(losses))

    def guesses(self, x: Array) -> Array:
        """Return the most likely class of each image."""
        with kf.no_grad():
            logits = classify(self.averages, kf.asarray(x, device=self.device))
            most: Array = aten.argmax(logits, 1).cpu().numpy()
        return most


# ---- 8. One example at a time --------------------------------------------------------------------
# `grad` makes a function of a function: the gradient of this one. `vmap` makes another: the same
# for each image of a batch, here with the parameters shared (None).


def loss_of_one(params: Any, image: Any, label: Any) -> Any:
    """Return the loss on a single image, (1, 8, 8)."""
    return loss(params, aten.unsqueeze(image, 0), aten.unsqueeze(label, 0))


gradients_of_each = kf.vmap(kf.grad(loss_of_one), in_axes=(None, 0, 0))


def hardest(params: Any, x: Array, y: Array, count: int) -> Array:
    """Return the numbers of the images that pull most at the parameters, the hardest one first."""
    squares = sum(
        (gradient.detach().numpy().reshape(len(x), -1) ** 2).sum(1)
        for gradient in gradients_of_each(params, x, y)
    )
    return np.argsort(-np.asarray(squares), kind="stable")[:count]


# ---- 9. All of it --------------------------------------------------------------------------------


def run(
    epochs: int = 16,
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
        The exit code: 0 where the test accuracy is 0.97 or more, else 1.
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
        paint("keyfold demo: a convolutional network on operators of its own", "bold"),
        f"The program is {_text.shorten(__file__)}: read it as the tutorial.",
        heading("The data"),
        f"  {len(images):,} handwritten digits of 8 x 8 cells (UCI, CC BY 4.0):",
        f"  {len(learn):,} to learn from, {len(test):,} to test\n",
        *pictures(x[:4]),
    )

    outcome = register_c_kernel()
    on_meta = demo.block(
        kf.empty((BATCH, 1, 8, 8), device="meta"),
        kf.empty((16, 1, 3, 3), device="meta"),
        kf.empty(16, device="meta"),
        kf.empty(16, device="meta"),
    )
    report = kf.opcheck("demo::cross_entropy", (rng.normal(size=(3, 10)), y[:3]))
    say(
        heading("Operators of our own"),
        *(f"  {getattr(demo, name).schema}" for name in dir(demo)),
        "",
        f"  average_ in C: {outcome}",
        f"  block knows shapes without data, on the device meta: {tuple(on_meta.shape)}",
        "  Do the kernel, the shapes and the derivative of cross_entropy agree?\n",
        *(f"  {line}" for line in report._lines(width() - 2)),
    )

    say(heading("Training with Autograd, below our own layer Audit"))
    began = time.perf_counter()
    trainer = Trainer(new_parameters(rng))
    profile = kf.profile()
    with kf.include_keys("Audit"), Progress(epochs, "training", quiet=quiet) as progress:
        for epoch in range(1, epochs + 1):
            # The last epoch is profiled: its steps are like all others.
            with profile if epoch == epochs else nullcontext():
                mean = trainer.epoch(x, y, rng)
            progress.update(epoch, f"epoch {epoch}/{epochs}  loss {mean:.3f}")
    score = float(np.mean(trainer.guesses(images[test]) == labels[test]))
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
    both = kf.value_and_grad(loss)
    params = [param.detach() for param in trainer.params]
    graph = kf.trace(both, params, x[:BATCH], y[:BATCH])
    other = x[BATCH : 2 * BATCH], y[BATCH : 2 * BATCH]
    replayed, computed = (f(params, *other)[0].item() for f in (graph, both))
    say(
        heading("The loss and its gradients as a graph"),
        *_text.folded((f"  {line}" for line in str(graph).splitlines()), width=width()),
        "",
        f"  replayed on other images: loss {replayed:.4f}; computed for them: {computed:.4f}",
    )

    if not quiet:  # A gradient of all parameters for each image takes a second.
        hard = hardest(params, x, y, 4)
        taken = trainer.guesses(x[hard])
        captions = [f"a {y[i]}, read as {guess}" for i, guess in zip(hard, taken, strict=True)]
        say(
            heading("The hardest digits to learn: those with the largest gradients (vmap of grad)"),
            f"  {'  '.join(f'{caption:16}' for caption in captions)}".rstrip(),
            *pictures(x[hard]),
        )

    with kf.include_keys("Audit"):
        explanation = kf.explain(demo.cross_entropy, classify(trainer.params, x), y)
    say(
        heading("The dispatch table of demo::average_"),
        *demo.average_.table(fallbacks=True)._lines(width(), indent=2),
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
