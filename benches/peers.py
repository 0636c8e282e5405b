"""Rows of other libraries that choose a function by its arguments, each used as it documents."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from timing import Row

_torch_layers: list[Row] = []


def plum_rows(left_out: list[str]) -> list[Row]:
    """plum: multiple dispatch on both arguments."""
    try:
        plum = importlib.import_module("plum")
    except ImportError:
        left_out.append("plum (not installed: pip install plum-dispatch)")
        return []
    dispatch = plum.Dispatcher()

    def first(x, y):
        return x

    first.__annotations__ = {"x": np.ndarray, "y": np.ndarray}
    function = dispatch(first)
    return [Row("plum", "f(x, y)", {"f": function, "x": np.ones(3), "y": np.ones(3)})]


def torch_rows(left_out: list[str]) -> list[Row]:
    """PyTorch's `define` and `impl`, with a Python kernel."""
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        left_out.append("PyTorch (not installed)")
        return []
    library = torch.library.Library("keyfold_bench_peer", "DEF")
    library.define("python(Tensor x, Tensor y) -> Tensor")
    library.impl("python", lambda x, y: x.clone(), "CPU")
    library.define("layer(Tensor x, Tensor y) -> Tensor")
    library.impl("layer", lambda x, y: x.clone(), "CPU")
    operators = torch.ops.keyfold_bench_peer
    below = torch._C._after_autograd_keyset

    def layer(keyset: Any, x: Any, y: Any) -> Any:
        return operators.layer.default.redispatch(keyset & below, x, y)

    library.impl("layer", layer, "AutogradCPU", with_keyset=True)
    # The registrations end with the library: the rows keep it.
    values = {"x": torch.ones(3), "y": torch.ones(3), "_library": library}
    clone = Row("PyTorch: x.clone(), a part of the next", "x.clone()", {"x": values["x"]})
    python = {"f": operators.python.default, **values}
    layers = {"f": operators.layer.default, **values}
    _torch_layers[:] = [Row("PyTorch: AutogradCPU layer, redispatch", "f(x, y)", layers)]
    return [clone, Row("PyTorch: define, impl, Python kernel", "f(x, y)", python)]


def torch_layer_rows() -> list[Row]:
    """PyTorch's Python layer at AutogradCPU; none where `torch_rows` left it out."""
    return list(_torch_layers)
