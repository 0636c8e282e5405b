"""tvm_ffi and PyTorch in bench_arrays.py, each used as it documents."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache
from typing import Any

from timing import Row

# Numbers of arguments, and the arguments' names.
COUNTS = (1, 3)
NAMES = ("x", "y", "z")

TVM_NOP = "tvm_ffi: testing.nop"
TVM_KEPT = "tvm_ffi: testing.nop, GIL kept"
TVM_PYTHON = "tvm_ffi: Python function"
TORCH_IMPL = "PyTorch: define, impl, Python kernel"
TORCH_LAYER = "PyTorch: Autograd layer, redispatch"
TORCH_GUARD = "PyTorch: Autograd layer, guard, called again"
TORCH_CUSTOM = "PyTorch: custom_op"


def call_of(count: int) -> str:
    """The expression of a row: `f` called with so many arguments."""
    return f"f({', '.join(NAMES[:count])})"


def function(parameters: str, body: str, names: Mapping[str, Any]) -> Any:
    """A function written out: no `*args`, which cost time that no kernel needs to spend."""
    scope = dict(names)
    exec(f"def function({parameters}):\n    {body}", scope)
    return scope["function"]


def nothing(count: int) -> Any:
    """A Python function of so many arguments that does nothing."""
    return function(", ".join(NAMES[:count]), "pass", {})


def tvm(left_out: list[str]) -> Any:
    """The module of tvm_ffi, if it is installed."""
    try:
        return importlib.import_module("tvm_ffi")
    except ImportError:
        left_out.append("tvm_ffi (not installed: pip install apache-tvm-ffi)")
        return None


def torch(left_out: list[str]) -> Any:
    """The module of PyTorch, if it is installed."""
    try:
        module = importlib.import_module("torch")
    except ImportError:
        left_out.append("PyTorch, torch tensors (not installed)")
        return None
    module.set_num_threads(1)
    return module


def tvm_nop() -> Any:
    """tvm_ffi's own native function that does nothing: a new object each time."""
    module = tvm([])
    return None if module is None else module.get_global_func("testing.nop")


def tvm_rows(given: dict[str, Any], count: int) -> list[Row]:
    """tvm_ffi calls a native function, without the GIL (its default) and with it; a Python one."""
    kept = tvm_nop()
    kept.release_gil = False
    called = {
        TVM_NOP: tvm_nop(),
        TVM_KEPT: kept,
        TVM_PYTHON: tvm([]).convert(nothing(count)),
    }
    return [Row(name, call_of(count), {"f": f, **given}) for name, f in called.items()]


@cache
def torch_library() -> Any:
    """Registrations end with it."""
    return torch([]).library.Library("bench_arrays_peer", "DEF")


def torch_operators(count: int) -> dict[str, Any]:
    """PyTorch's operators that do nothing, by their rows' names."""
    module, library = torch([]), torch_library()
    args = ", ".join(NAMES[:count])
    schema = f"({', '.join(f'Tensor {x}' for x in NAMES[:count])}) -> ()"
    made = {}
    for name in ("plain", "layer", "guard"):
        library.define(f"{name}{count}{schema}")
        library.impl(f"{name}{count}", nothing(count), "CPU")
        made[name] = getattr(module.ops.bench_arrays_peer, f"{name}{count}").default
    names = {
        "pass_on": made["layer"].redispatch,
        "below": module._C._after_autograd_keyset,
        "guard": module._C._AutoDispatchBelowAutograd,
        "call": made["guard"],
    }
    layer = function(f"keyset, {args}", f"return pass_on(keyset & below, {args})", names)
    library.impl(f"layer{count}", layer, "Autograd", with_keyset=True)
    guarded = function(args, f"with guard(): return call({args})", names)
    library.impl(f"guard{count}", guarded, "Autograd")
    custom = module.library.custom_op(
        f"bench_arrays_peer::custom{count}", nothing(count), mutates_args=(), schema=schema
    )
    return {
        TORCH_IMPL: made["plain"],
        TORCH_LAYER: made["layer"],
        TORCH_GUARD: made["guard"],
        TORCH_CUSTOM: custom,
    }


def torch_rows(given: dict[str, Any], count: int) -> list[Row]:
    """PyTorch's own ways to a Python kernel; and what an operator of its own costs, once."""
    rows = [
        Row(name, call_of(count), {"f": f, **given}) for name, f in torch_operators(count).items()
    ]
    if count == COUNTS[-1]:
        add = {"f": torch([]).add, **given}
        rows.insert(0, Row("PyTorch: torch.add(x, y)", "f(x, y)", add))
    return rows
