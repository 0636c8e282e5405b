"""The rows of bench_calls.py: what is called, on what, and the bars."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import singledispatch
from typing import Any

import fastcall
import numpy as np
import peers
from timing import Row

import keyfold as kf
from keyfold import _core

C_FUNCTION = "C fastcall function"
C_OBJECT = "C, as an object with vectorcall"
C_NO_GIL = "C fastcall function, GIL released"
C_NEW_ARRAY = "C fastcall function, a new NumPy array"
PYTHON_FUNCTION = "plain Python function"
EMPTY = Row("empty loop", "pass")

Groups = list[tuple[str, list[Row]]]

# Each at most so many times what a C function or a Python function costs.
NATIVE, NATIVE_NEW, NATIVE_NO_GIL = 2.5, 4.0, 6.0
PYTHON_ON_TENSORS, PYTHON_ON_ARRAYS = 2.5, 3.0
LAYER = 6.0


def plain(x: Any, y: Any) -> Any:
    return x


@singledispatch
def single(x: Any, y: Any) -> Any:
    raise TypeError(type(x).__name__)


single.register(np.ndarray, plain)


def references(left_out: list[str]) -> list[Row]:
    """What keyfold's rows are compared with, in each group."""
    values = {"x": np.ones(3), "y": np.ones(3)}
    rows = []
    try:
        built = fastcall.load()
        rows.append(Row(C_FUNCTION, "f(x, y)", {"f": built.first, **values}))
        # The floors: no call of an object, no release of the GIL, no new array can cost less.
        rows.append(Row(C_OBJECT, "f(x, y)", {"f": built.first_object, **values}))
        rows.append(Row(C_NO_GIL, "f(x, y)", {"f": built.first_without_gil, **values}))
        rows.append(Row(C_NEW_ARRAY, "f(x, y)", {"f": built.new_array, **values}))
    except fastcall.CannotBuildError as reason:
        left_out.append(f"{C_FUNCTION} ({reason})")
    rows.append(Row(PYTHON_FUNCTION, "f(x, y)", {"f": plain, **values}))
    return rows


def context() -> list[Row]:
    """What else the figures may be held against."""
    values = {"x": np.ones(3), "y": np.ones(3)}
    return [
        Row("functools.singledispatch", "f(x, y)", {"f": single, **values}),
        Row("np.empty_like(x), a new array", "f(x)", {"f": np.empty_like, "x": values["x"]}),
        Row("np.add(x, y)", "f(x, y)", {"f": np.add, **values}),
    ]


def define_operators() -> None:
    """Operators with a Python kernel, and one with a layer over it in each way to write one."""
    two = "(Tensor x, Tensor y) -> Tensor"
    kf.define(f"bench::python{two}")
    kf.impl("bench::python", "CPU", plain)
    kf.define("bench::default(Tensor x, Tensor y, float k=2.0) -> Tensor")
    kf.impl("bench::default", "CPU", lambda x, y, k: x)
    profiler = kf.DispatchKeySet("Profiler")
    redispatch = kf.redispatch

    for name in ("by_object", "by_name", "by_set", "by_method"):
        kf.define(f"bench::{name}{two}")
        kf.impl(f"bench::{name}", "CPU", plain)
    by_object = kf.ops.bench.by_object.default
    by_set = kf.ops.bench.by_set.default
    by_method = kf.ops.bench.by_method.default

    @kf.impl("bench::by_object", "Profiler", with_keyset=True)
    def layer_by_object(keyset: Any, x: Any, y: Any) -> Any:
        return kf.redispatch(by_object, keyset.remove("Profiler"), x, y)

    @kf.impl("bench::by_name", "Profiler", with_keyset=True)
    def layer_by_name(keyset: Any, x: Any, y: Any) -> Any:
        return kf.redispatch("bench::by_name", keyset.remove("Profiler"), x, y)

    @kf.impl("bench::by_set", "Profiler", with_keyset=True)
    def layer_by_set(keyset: Any, x: Any, y: Any) -> Any:
        return redispatch(by_set, keyset - profiler, x, y)

    @kf.impl("bench::by_method", "Profiler", with_keyset=True)
    def layer_by_method(keyset: Any, x: Any, y: Any) -> Any:
        return by_method.redispatch(keyset - profiler, x, y)


def native_rows(label: str, values: dict[str, Any]) -> list[Row]:
    """Native kernels, through the overload's object."""
    bench = kf.ops.keyfold_testing
    kinds = [
        ("returns its argument", bench.identity, NATIVE),
        ("a new result", bench.fresh, NATIVE_NEW),
        ("GIL released", bench.identity_nogil, NATIVE_NO_GIL),
    ]
    return [
        Row(
            f"{label}: native, {what}",
            "f(x, y)",
            {"f": packet.default, **values},
            bar=bar,
            over=C_FUNCTION,
        )
        for what, packet, bar in kinds
    ]


def python_rows(label: str, values: dict[str, Any], bar: float) -> list[Row]:
    """A Python kernel, through everything that a person may hold or write."""
    packet = kf.ops.bench.python
    held = {"f": packet.default, **values}
    name = f"{label}: Python kernel"
    default = kf.ops.bench.default.default
    return [
        Row(name, "f(x, y)", held, bar=bar, over=PYTHON_FUNCTION),
        Row(f"{name}, through the packet", "f(x, y)", {"f": packet, **values}),
        Row(f"{name}, kf.ops.bench.python(x, y)", "kf.ops.bench.python(x, y)", values, {"kf": kf}),
        Row(f"{name}, by keyword", "f(x=x, y=y)", held),
        Row(f"{name}, a default filled in", "f(x, y)", {"f": default, **values}),
    ]


def layer_rows(label: str, values: dict[str, Any]) -> list[Row]:
    """A layer at Profiler, over a Python kernel: by how it passes the call on."""
    ways = [
        ("redispatch(op, keyset.remove(name), ...)", kf.ops.bench.by_object),
        ("redispatch(name, keyset.remove(name), ...)", kf.ops.bench.by_name),
        ("redispatch(op, keyset - set, ...)", kf.ops.bench.by_set),
        ("op.redispatch(keyset - set, ...)", kf.ops.bench.by_method),
    ]
    return [
        Row(
            f"{label}: layer, {way}",
            "f(x, y)",
            {"f": packet.default, **values},
            bar=LAYER,
            over=PYTHON_FUNCTION,
            inside=profiling,
        )
        for way, packet in ways
    ]


def profiling() -> Any:
    return kf.include_keys("Profiler")


@contextmanager
def after_a_guard() -> Iterator[None]:
    """None is open, but one was: from then on, calls look for them."""
    with profiling():
        pass
    yield


def tensor() -> Any:
    """A small tensor of keyfold's own."""
    return kf.ops.aten.ones([3])


def make_groups(left_out: list[str], only: str = "") -> Groups:
    """All rows, in groups that are timed one after the other.

    The second group opens guards: until one was ever opened in a process, calls don't look for
    them, so its figures are those of a process that uses them.

    Args:
        left_out: what can't be timed here is added to it, with the reason.
        only: no rows but those that contain this text, beside the references.
    """
    define_operators()
    _core._register_testing_kernels()
    tensors = {"x": tensor(), "y": tensor()}
    arrays = {"x": np.ones(3), "y": np.ones(3)}
    kinds = [("tensors", tensors, PYTHON_ON_TENSORS), ("arrays", arrays, PYTHON_ON_ARRAYS)]

    calls, guarded = [], []
    for label, values, bar in kinds:
        native = native_rows(label, values)
        python = python_rows(label, values, bar)
        calls += native + python
        guarded += [replace(row, inside=after_a_guard) for row in (native[0], python[0])]
        guarded += layer_rows(label, values)
    others = context() + peers.plum_rows(left_out) + peers.torch_rows(left_out)
    compared = references(left_out)
    return [
        ("no guard was ever opened", compared + chosen(others + calls, only)),
        ("guards in use", compared + chosen(peers.torch_layer_rows() + guarded, only)),
    ]


def chosen(rows: list[Row], only: str) -> list[Row]:
    return [row for row in rows if only in row.name]
