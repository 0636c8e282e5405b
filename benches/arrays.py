"""The rows of bench_arrays.py: operators that do nothing, called with arrays of every library.

All of them return nothing, so that a call is all that is timed: arguments in, a kernel found, the
kernel called. Each has one or three arguments, all of them arrays of three float32 numbers.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import array_peers
import fastcall
import numpy as np
from array_peers import (
    COUNTS,
    NAMES,
    TORCH_CUSTOM,
    TORCH_IMPL,
    TORCH_LAYER,
    TVM_KEPT,
    TVM_NOP,
    TVM_PYTHON,
    call_of,
    function,
    nothing,
)
from timing import Row, Timing

import keyfold as kf

EMPTY = Row("empty loop", "pass")
OWN = "each library's own tensors"
TVM_TENSORS = "tvm_ffi's tensors"
TORCH_TENSORS = "torch tensors"
PYTHON_FUNCTION = "plain Python function"
C_KEPT = "keyfold: C function, GIL kept"
NOP_KEPT = "keyfold: testing.nop, GIL kept"
PYTHON_KERNEL = "keyfold: Python kernel"

# How many times faster than the peer; and nanoseconds for one more torch tensor.
THAN_TVM, THAN_TORCH, TORCH_TENSOR = 1.0, 10.0, 60.0

Make = Callable[[], Any]


@dataclass
class Kind:
    """Arrays of one library.

    Args:
        title: what they are called.
        keyfold: makes one for keyfold.
        tvm: makes one for tvm_ffi.
        most: the bar for one more of them, in nanoseconds.
    """

    title: str
    keyfold: Make
    tvm: Make | None
    most: float | None = None


@dataclass
class Group:
    """Rows that are timed in turn, by their number of arguments: a table for each.

    Args:
        title: what the calls are made with.
        rows: their names end in the number of arguments.
        references: from a column's title to the name of the row that it divides by, without the
            number.
        most: the bar for one more argument, in nanoseconds; `None`: there is none.
        per_argument: names of rows, without the number, of which one more argument is looked at.
    """

    title: str
    rows: dict[int, list[Row]]
    references: dict[str, str] = field(default_factory=dict)
    most: float | None = None
    per_argument: tuple[str, ...] = ()

    @property
    def all_rows(self) -> list[Row]:
        return [row for count in COUNTS for row in self.rows[count]]


def numbers() -> Any:
    return np.ones(3, np.float32)


def own() -> Any:
    return kf.asarray(numbers())


def kinds(left_out: list[str]) -> list[Kind]:
    """The arrays of whatever is installed."""
    tvm = array_peers.tvm(left_out)
    made = [Kind(OWN, own, None)]
    if tvm is not None:

        def theirs() -> Any:
            return tvm.from_dlpack(numbers())

        made = [Kind(OWN, own, theirs), shared(TVM_TENSORS, theirs, tvm)]
    torch = array_peers.torch(left_out)
    if torch is not None:
        made.append(shared(TORCH_TENSORS, lambda: torch.ones(3), tvm, TORCH_TENSOR))
    made.append(shared("NumPy arrays", numbers, tvm))
    try:
        jax = importlib.import_module("jax")
    except ImportError:
        left_out.append("JAX arrays (not installed: scripts/bootstrap.sh peers)")
    else:
        made.append(shared("JAX arrays", lambda: jax.numpy.ones(3), tvm))
    return made


def shared(title: str, make: Make, tvm: Any, most: float | None = None) -> Kind:
    """Arrays of somebody else's, which keyfold and tvm_ffi are both given."""
    return Kind(title, make, None if tvm is None else make, most)


@dataclass
class Kernels:
    """What does nothing in keyfold, by its name in the tables."""

    native: dict[str, Any]
    operators: dict[str, dict[int, Any]] = field(default_factory=dict)

    def define(self) -> None:
        """Operators of every number of arguments for every kernel."""
        for count in COUNTS:
            kernels = self.native | {PYTHON_KERNEL: nothing(count)}
            for number, (name, kernel) in enumerate(kernels.items()):
                self._keep(name, count, define(f"call{number}", count, {"CPU": kernel}))
            made = kf.custom_op(
                f"bench_arrays::custom{count}",
                nothing(count),
                mutates_args=(),
                schema=schema("", count),
            )
            self._keep("keyfold: custom_op", count, made)

    def _keep(self, name: str, count: int, operator: Any) -> None:
        self.operators.setdefault(name, {})[count] = operator


def native_kernels(left_out: list[str]) -> dict[str, Any]:
    """tvm_ffi's own function that does nothing, and one from a C file."""
    made = {}
    nop = array_peers.tvm_nop()
    if nop is not None:
        made["keyfold: testing.nop"] = kf.NativeKernel.from_tvm_ffi(nop)
        made[NOP_KEPT] = kf.NativeKernel.from_tvm_ffi(nop, release_gil=False)
    try:
        with fastcall.built(Path(__file__).with_name("nothing.c"), "nothing") as library:
            load = kf.NativeKernel.from_library
            made["keyfold: C function"] = load(library, "nothing")
            made[C_KEPT] = load(library, "nothing", release_gil=False)
    except fastcall.CannotBuildError as reason:
        left_out.append(f"keyfold: C function ({reason})")
    return made


def schema(name: str, count: int) -> str:
    return f"{name}({', '.join(f'Tensor {x}' for x in NAMES[:count])}) -> ()"


def define(name: str, count: int, kernels: dict[str, Any]) -> Any:
    """An operator of keyfold's with kernels by key."""
    full_name = f"bench_arrays::{name}_{count}"
    kf.define(schema(full_name, count))
    for key, kernel in kernels.items():
        kf.impl(full_name, key, kernel)
    return kf.get_op(full_name)


def values(make: Make, count: int) -> dict[str, Any]:
    """Different arrays under the names of the arguments."""
    return {name: make() for name in NAMES[:count]}


def bars(name: str) -> dict[str, Any]:
    """What a row of keyfold's must be faster than, in tvm_ffi."""
    if name == "keyfold: custom_op":
        return {}
    over = TVM_PYTHON if name == PYTHON_KERNEL else TVM_KEPT if "GIL kept" in name else TVM_NOP
    return {"bar": THAN_TVM, "over": over, "form": "faster"}


def kind_rows(kind: Kind, kernels: Kernels, count: int) -> list[Row]:
    """keyfold beside tvm_ffi, on one kind of array."""
    own_values = values(kind.keyfold, count)
    plain = Row(PYTHON_FUNCTION, call_of(count), {"f": nothing(count), **own_values})
    rows = [plain]
    if kind.tvm is not None:
        rows += array_peers.tvm_rows(values(kind.tvm, count), count)
    for name, operators in kernels.operators.items():
        called = {"f": operators[count], **own_values}
        rows.append(Row(name, call_of(count), called, **bars(name)))
    if kind.tvm is not None:
        rows += exported_rows(kernels, values(kind.tvm, count), count)
    return rows


def exported_rows(kernels: Kernels, given: dict[str, Any], count: int) -> list[Row]:
    """keyfold's operators as TVM FFI functions."""
    export = importlib.import_module("keyfold.tvm_ffi").export
    return [
        Row(
            f"tvm_ffi calls {name}, exported",
            call_of(count),
            {"f": export(kernels.operators[name][count]), **given},
        )
        for name in (C_KEPT, PYTHON_KERNEL)
        if name in kernels.operators
    ]


def layers(count: int) -> dict[str, Any]:
    """Operators with a layer at Pipeline, which passes the call on in two ways."""
    args = ", ".join(NAMES[:count])
    # A guard may be entered any number of times, so one will do.
    pipeline = kf.DispatchKeySet("Pipeline")
    names: dict[str, Any] = {"layer": pipeline, "without": kf.exclude_keys(pipeline)}
    made = {}
    for number, (way, parameters, body, with_keyset) in enumerate(
        (
            ("redispatch", f"keyset, {args}", f"return pass_on(keyset - layer, {args})", True),
            ("guard, called again", args, f"with without: return call({args})", False),
        )
    ):
        operator = define(f"layer{number}", count, {"CPU": nothing(count)})
        names = names | {"call": operator, "pass_on": operator.redispatch}
        layer = function(parameters, body, names)
        kf.impl(operator.name, "Pipeline", layer, with_keyset=with_keyset)
        made[f"layer, {way}"] = operator
    return made


def in_pipeline() -> Any:
    return kf.include_keys("Pipeline")


def layer_rows(title: str, make: Make, operators: dict[str, Any], count: int) -> list[Row]:
    given = values(make, count)
    return [
        Row(f"{title}: {way}", call_of(count), {"f": operator, **given}, inside=in_pipeline)
        for way, operator in operators.items()
    ]


def torch_rows(every: list[Kind], kernels: Kernels, count: int) -> list[Row]:
    """keyfold beside PyTorch on torch tensors; keyfold's layers on the other arrays, too."""
    kind = next(kind for kind in every if kind.title == TORCH_TENSORS)
    given = values(kind.keyfold, count)
    rows = array_peers.torch_rows(given, count)
    for name, over in ((PYTHON_KERNEL, TORCH_IMPL), ("keyfold: custom_op", TORCH_CUSTOM)):
        called = {"f": kernels.operators[name][count], **given}
        rows.append(faster(Row(name, call_of(count), called), over))
    operators = layers(count)
    # PyTorch's layer may redispatch or call again below a guard; a layer of keyfold's redispatches.
    redispatch, *ways = layer_rows("keyfold", kind.keyfold, operators, count)
    rows += [faster(redispatch, TORCH_LAYER), *ways]
    for other in every:
        if other is not kind and other.title != TVM_TENSORS:
            title = other.title.replace("each library's", "its")
            rows += layer_rows(f"keyfold on {title}", other.keyfold, operators, count)
    return rows + torch_exported_rows(kernels, given, count)


def faster(row: Row, over: str) -> Row:
    return replace(row, bar=THAN_TORCH, over=over, form="faster")


def torch_exported_rows(kernels: Kernels, given: dict[str, Any], count: int) -> list[Row]:
    """keyfold's operators as torch's."""
    export = importlib.import_module("keyfold.torch").export
    return [
        Row(
            f"PyTorch calls {name}, exported",
            call_of(count),
            {"f": export(kernels.operators[name][count]).op, **given},
        )
        for name in (C_KEPT, PYTHON_KERNEL)
        if name in kernels.operators
    ]


def numbered(rows: list[Row], count: int) -> list[Row]:
    """The rows with the number of arguments in their names."""
    return [
        replace(
            row,
            name=f"{row.name} ({count})",
            over=None if row.over is None else f"{row.over} ({count})",
        )
        for row in rows
    ]


def make_groups(left_out: list[str]) -> list[Group]:
    """All rows, in groups that are timed one after the other.

    The last one opens guards: until one was ever opened in a process, calls don't look for them.

    Args:
        left_out: what can't be timed here is added to it, with the reason.
    """
    every = kinds(left_out)
    kernels = Kernels(native_kernels(left_out))
    kernels.define()
    groups = [
        Group(
            kind.title,
            {count: numbered(kind_rows(kind, kernels, count), count) for count in COUNTS},
            {"tvm_ffi native": TVM_NOP, "tvm_ffi Python": TVM_PYTHON},
            kind.most,
            (TVM_NOP, TVM_KEPT, NOP_KEPT, C_KEPT, TVM_PYTHON, PYTHON_KERNEL),
        )
        for kind in every
    ]
    if array_peers.torch([]) is not None:
        rows = {count: numbered(torch_rows(every, kernels, count), count) for count in COUNTS}
        columns = {"define, impl": TORCH_IMPL, "PyTorch layer": TORCH_LAYER}
        groups.append(Group("beside PyTorch", rows, columns | {"custom_op": TORCH_CUSTOM}))
    return groups


def chosen(group: Group, only: str) -> Group:
    """The rows that contain a text, with those that they are compared with."""
    every = group.all_rows
    wanted = {row.name for row in every if only in row.name or only in group.title}
    if wanted:
        wanted |= {row.over for row in every if row.name in wanted and row.over}
        wanted |= {f"{name} ({count})" for name in group.references.values() for count in COUNTS}
    kept = {
        count: [row for row in rows if row.name in wanted] for count, rows in group.rows.items()
    }
    return replace(group, rows=kept)


def one_more(group: Group, timings: list[Timing]) -> list[Timing]:
    """What each argument after the first adds, in a call with the most of them."""
    by_name = {timing.row.name: timing for timing in timings}
    fewest, most = COUNTS[0], COUNTS[-1]
    found = []
    for name in group.per_argument:
        few, many = by_name.get(f"{name} ({fewest})"), by_name.get(f"{name} ({most})")
        if few is None or many is None:
            continue
        row = Row(f"{group.title}: {name}", "pass")
        if group.most is not None and name in (NOP_KEPT, C_KEPT):
            row = replace(row, bar=group.most, form="most")
        found.append(
            Timing(
                row,
                (many.least - few.least) / (most - fewest),
                (many.median - few.median) / (most - fewest),
                many.calls,
            )
        )
    return found
