"""The rows of bench_layers.py: what each layer adds to a call, and the bars."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import fastcall
import numpy as np
import training
from timing import Row

import keyfold as kf

EMPTY = Row("empty loop", "pass")
# Operator calls in one chain, and examples in one batch.
LENGTH, EXAMPLES = 256, 1000

# Nanoseconds that a recorded call and a profiled call may take above a plain one.
RECORDED, EVENT = 1000.0, 200.0
# At least so many times faster than a Python loop over the batch.
BATCHED = 10.0
# Instructions by which two counts of the same call differ at most.
SAME_COUNT = 1.0

Function = Callable[..., Any]


@dataclass
class Group:
    """Rows that are timed in turn.

    Args:
        title: of the table.
        rows: in its order.
        references: from a column's title to the name of the row that it divides by.
    """

    title: str
    rows: list[Row]
    references: dict[str, str] = field(default_factory=dict)


def tensor(size: int) -> Any:
    """A tensor of so many float32 elements from 0.1 to 0.9."""
    return kf.asarray(np.linspace(0.1, 0.9, size, dtype=np.float32))


def variable(size: int) -> Any:
    """The same, which requires grad."""
    return tensor(size).requires_grad_()


def chain(function: Function) -> Function:
    """The function that calls another so many times, each time on the last result."""
    numbers = range(LENGTH)

    def chained(x: Any) -> Any:
        for _ in numbers:
            x = function(x)
        return x

    return chained


def with_constant(function: Function, constant: Any) -> Function:
    """A function of the first of two arguments."""
    numbers = range(LENGTH)

    def chained(x: Any) -> Any:
        for _ in numbers:
            x = function(x, constant)
        return x

    return chained


def training_group(left_out: list[str]) -> Group:
    """Forward, backward and step of the demo's network. Raises where libraries disagree."""
    makers = {"NumPy by hand": training.numpy_step, **training.keyfold_steps()}
    peers = training.jax_steps(left_out) | training.torch_steps(left_out)
    steps = {name: make() for name, make in makers.items()} | peers
    training.check(steps)
    rows = [Row(name, "step()", {"step": step}) for name, step in steps.items()]
    rows.append(Row("keyfold, forward alone", "step()", {"step": training.keyfold_forward()}))
    columns = {"NumPy by hand": "NumPy by hand", "JAX, jitted": "JAX, jitted"}
    columns["PyTorch"] = "PyTorch, eager"
    return Group("a step of training, 64 x 64 to 10", rows, columns)


def autograd_group() -> Group:
    """Chains of small operators, with a tensor that requires grad and without."""
    aten = kf.ops.aten
    rows = []
    for size in (1, 8):
        constant = tensor(size)
        chains = {
            "add": with_constant(aten.add.default, constant),
            "mul": with_constant(aten.mul.default, constant),
            "tanh": chain(aten.tanh.default),
        }
        for name, chained in chains.items():
            label = f"{name}, {size} element{'s' if size > 1 else ''}"
            values = {"f": chained}
            plain = Row(label, "f(x)", {**values, "x": tensor(size)}, per=LENGTH)
            recorded = Row(
                f"{label}: recorded, and dropped",
                "f(x)",
                {**values, "x": variable(size)},
                bar=RECORDED,
                over=label,
                form="above",
                per=LENGTH,
            )
            rows += [plain, recorded, backward_row(label, chained, variable(size))]
    return Group(f"Autograd, per operator of a chain of {LENGTH}", rows)


def backward_row(label: str, chained: Function, x: Any) -> Row:
    """Backward through a graph that was recorded once and is kept."""
    values = {"grad": kf.grad, "y": [chained(x)], "x": [x], "ones": [kf.ones_like(x)]}
    call = "grad(y, x, ones, retain_graph=True)"
    return Row(f"{label}: backward alone", call, values, per=LENGTH)


def define_operators() -> None:
    """A composite operator, whose inner calls nested profiling shows; one without a vmap rule."""
    kf.define("bench_layers::composite(Tensor x, Tensor y) -> Tensor")
    add = kf.ops.aten.add.default
    inside = kf.ops.aten.mul.default

    @kf.impl("bench_layers::composite", "CompositeImplicitAutograd")
    def composite(x: Any, y: Any) -> Any:
        return add(inside(x, y), y)

    kf.define("bench_layers::python(Tensor x, Tensor y) -> Tensor")
    kf.impl("bench_layers::python", "CPU", lambda x, y: x)
    kf.define("bench_layers::no_rule(Tensor x, Tensor y) -> Tensor")

    @kf.impl("bench_layers::no_rule", "CPU")
    def no_rule(x: Any, y: Any) -> Any:
        return inside(x, y)


def guarded() -> AbstractContextManager[Any]:
    """A guard that changes nothing for a plain call: what any open block costs."""
    return kf.exclude_keys("Tracer")


def profiler_group() -> Group:
    """Calls with profiling off, on, and on for inner calls too. Each call is one event."""
    rows = []
    calls = {
        "add, 1 element": (kf.ops.aten.add.default, 1),
        "add, 8 elements": (kf.ops.aten.add.default, 8),
        "a Python kernel": (kf.ops.bench_layers.python.default, 8),
        "composite of mul and add": (kf.ops.bench_layers.composite.default, 8),
    }
    ways: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "profiled": kf.profile,
        "profiled, nested": lambda: kf.profile(nested=True),
    }
    for label, (function, size) in calls.items():
        off = Row(label, "f(x, y)", {"f": function, "x": tensor(size), "y": tensor(size)})
        rows += [off, replace(off, name=f"{label}: some other guard open", inside=guarded)]
        for way, inside in ways.items():
            # A nested composite makes three events.
            bar = 3 * EVENT if "composite" in label and "nested" in way else EVENT
            judged = {"bar": bar, "over": label, "form": "above", "inside": inside}
            rows.append(replace(off, name=f"{label}: {way}", **judged))
    return Group("Profiler, per call", rows)


def tracer_group() -> Group:
    """A chain called, recorded and replayed."""
    rows = []
    for size in (1, 8):
        label = f"mul, {size} element{'s' if size > 1 else ''}"
        chained = with_constant(kf.ops.aten.mul.default, tensor(size))
        x = tensor(size)
        graph = kf.trace(chained, x)
        assert len(graph.nodes) == LENGTH
        assert np.array_equal(graph(x).numpy(), chained(x).numpy())
        rows += [
            Row(label, "f(x)", {"f": chained, "x": x}, per=LENGTH),
            Row(
                f"{label}: recorded by kf.trace",
                "trace(f, x)",
                {"trace": kf.trace, "f": chained, "x": x},
                per=LENGTH,
            ),
            Row(f"{label}: replayed", "graph(x)", {"graph": graph, "x": x}, per=LENGTH),
        ]
    return Group(f"Tracer, per operator of a chain of {LENGTH}", rows)


def vmap_groups() -> list[Group]:
    """Functions of one example over a batch: by vmap, by a Python loop, and at once by hand."""
    rng = np.random.default_rng(0)

    def array(*shape: int) -> Any:
        return kf.asarray(rng.uniform(0.1, 0.9, shape).astype(np.float32))

    weight, small = array(16, 16), array(8)
    no_rule = kf.ops.bench_layers.no_rule.default

    def layer(x: Any) -> Any:
        return kf.tanh(x @ weight)

    def elementwise(x: Any) -> Any:
        return kf.exp(-kf.square(x)) * kf.sin(x) + x

    def without_rule(x: Any) -> Any:
        return no_rule(x, small)

    return [
        vmap_group("tanh(x @ w), x of 16, w of 16 x 16", layer, array(EXAMPLES, 16)),
        vmap_group("exp(-x * x) * sin(x) + x, x of 8", elementwise, array(EXAMPLES, 8)),
        vmap_group(
            "an operator without a rule, x of 8", without_rule, array(EXAMPLES, 8), rule=False
        ),
    ]


def vmap_group(label: str, function: Function, batch: Any, rule: bool = True) -> Group:
    """One function's rows; without a rule, vmap loops itself, and there is no bar."""
    stack = kf.stack
    numbers = range(EXAMPLES)
    examples = [batch[number] for number in numbers]

    def loop(batch: Any) -> Any:
        return stack([function(batch[number]) for number in numbers])

    def loop_ready(examples: Any) -> Any:
        return stack([function(example) for example in examples])

    mapped = kf.vmap(function)
    wanted = loop(batch).numpy()
    # The functions broadcast, so they serve a whole batch as they are.
    for found in (mapped(batch), loop_ready(examples), function(batch)):
        np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5, atol=1e-6)
    name = "Python loop: index, call, stack"
    by_vmap = Row("vmap, with rules" if rule else "vmap, its own loop", "f(x)")
    by_vmap = replace(by_vmap, values={"f": mapped, "x": batch}, per=EXAMPLES)
    if rule:
        by_vmap = replace(by_vmap, bar=BATCHED, over=name, form="faster")
    rows = [
        Row(name, "f(x)", {"f": loop, "x": batch}, per=EXAMPLES),
        Row("Python loop over ready examples", "f(x)", {"f": loop_ready, "x": examples}),
        by_vmap,
        Row("the whole batch by hand", "f(x)", {"f": function, "x": batch}),
    ]
    rows = [replace(row, per=EXAMPLES) for row in rows]
    title = f"vmap, per example of {EXAMPLES}: {label}"
    return Group(title, rows, {"Python loop": name, "by hand": "the whole batch by hand"})


def autocast_group() -> Group:
    """A small matrix product, whose arguments autocast makes shorter, and what it leaves alone."""
    matmul, neg = kf.ops.aten.matmul.default, kf.ops.aten.neg.default
    full = kf.asarray(np.linspace(0.1, 0.9, 64, dtype=np.float32).reshape(8, 8))
    short = full.to(kf.bfloat16)

    def autocast() -> AbstractContextManager[Any]:
        return kf.autocast(kf.bfloat16)

    with autocast():
        assert matmul(full, full).dtype == kf.bfloat16
    plain = "matmul, float32"
    product = {"f": matmul, "x": full, "y": full}
    shorter = {"f": matmul, "x": short, "y": short}
    rows = [
        Row(plain, "f(x, y)", product),
        Row("matmul, bfloat16", "f(x, y)", shorter),
        Row(
            "matmul, two casts to bfloat16 by hand",
            "f(x.to(d), y.to(d))",
            product | {"d": kf.bfloat16},
        ),
        Row("matmul, float32, autocast to bfloat16", "f(x, y)", product, inside=autocast),
        Row("matmul, bfloat16, autocast: nothing to cast", "f(x, y)", shorter, inside=autocast),
        Row("neg", "f(x)", {"f": neg, "x": full}),
        Row("neg, autocast leaves it", "f(x)", {"f": neg, "x": full}, inside=autocast),
    ]
    return Group("Autocast, per call, 8 x 8", rows, {plain: plain})


def off_group() -> Group:
    """Calls below layers that are off: counted in instructions, which must be the same.

    The same operator stands in dispatchers without layers, with a fallback at Profiler alone, and
    with all layers.

    Raises:
        CannotBuildError: the C kernel can't be compiled.
    """
    with fastcall.built(Path(__file__).with_name("nothing.c"), "nothing") as library:
        native = kf.NativeKernel.from_library(library, "nothing", release_gil=False)
    bare = kf.Dispatcher()
    profiler = kf.Dispatcher()
    profiler.fallback("Profiler", lambda op, keyset, args, kwargs: None)
    layers = kf.Dispatcher(layers=True)
    rows = []
    for what, kernel in (("Python kernel", lambda x, y: None), ("C kernel", native)):
        name = what.partition(" ")[0].lower()
        first = f"{what}, no layers"
        for kind, dispatcher in (
            ("no layers", bare),
            ("Profiler's fallback, off", profiler),
            ("all layers, off", layers),
        ):
            dispatcher.define(f"{name}(Tensor x, Tensor y) -> ()")
            dispatcher.impl(name, "CPU", kernel)
            values = {"f": dispatcher.get_op(name), "x": tensor(3), "y": tensor(3)}
            row = Row(f"{what}, {kind}", "f(x, y)", values)
            if row.name != first:
                row = replace(row, bar=SAME_COUNT, over=first, form="equal")
            rows.append(row)
    return Group("layers that are off, per call", rows)


def chosen(group: Group, only: str) -> Group:
    """The rows that contain a text, with those that they are compared with."""
    wanted = {row.name for row in group.rows if only in row.name or only in group.title}
    over = {row.over for row in group.rows if row.name in wanted}
    kept = wanted | over | set(group.references.values()) if wanted else set()
    return replace(group, rows=[row for row in group.rows if row.name in kept])


def make_groups(left_out: list[str]) -> list[Group]:
    """All rows that are timed, in groups that are timed one after the other."""
    define_operators()
    # From the first guard on, calls look for guards: so all rows are timed after one.
    with kf.include_keys("Profiler"):
        pass
    return [
        training_group(left_out),
        autograd_group(),
        profiler_group(),
        tracer_group(),
        *vmap_groups(),
        autocast_group(),
    ]
