"""`trace`: a function run once, with every operator that it calls recorded."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from keyfold import _core
from keyfold._errors import BindingError, TraceError
from keyfold._trace._graph import Graph
from keyfold._trace._structure import Spec, put_together, take_apart

__all__ = ["trace"]


def trace(f: Callable[..., Any], /, *args: Any) -> Graph:
    """Run a function once and record every operator that it calls, as a graph.

    The graph prints, draws, replays on other arguments and goes to JSON and back. Arguments are
    arrays, and tuples, lists and dicts of arrays, as deep as you like; each array becomes an input.
    The function gets `keyfold.Tensor`s, also where NumPy arrays were given, and objects of a class
    that was registered with `register_array_type` as they are. Other arguments (numbers, text) are
    handed on as they are and are fixed in the graph.

    Only operators are recorded. Python's own control flow runs once, now: loops are unrolled, and
    sizes that Python reads are fixed. Arrays that the function uses and that are no arguments
    (weights, say) become constants, held by reference. Random operators draw anew at each replay.
    Gradients and `vmap` inside the function are in the graph as the operators that they call: one
    example's under `vmap`, and where gradients are recorded, those on whole batches; autocast and
    profiles aren't: they have their part at replay, if they are on then.

    Args:
        f: the function.
        *args: its arguments.

    Returns:
        The graph. `graph(*args)` replays it.

    Raises:
        TraceError: the function reads numbers of a tensor that follows from its arguments (`if`,
            `float()`, `.item()`, NumPy functions): what it does with them would stay as it is now.
            Use `keyfold.where`, or trace each branch as a function of its own. Also for a value
            that was made of them without an operator.

    Example:
        >>> import keyfold as kf
        >>> print(kf.trace(lambda x: kf.exp(x * 2.0), kf.asarray([0.0, 1.0])), end="")
        graph(%0 x: float64[2]):
          %1: float64[2] = aten::mul.Scalar(%0, 2.0)
          %2: float64[2] = aten::exp(%1)
          return %2
    """
    if not callable(f):
        raise BindingError(f"trace records a function, not {f!r}")
    arguments: list[Spec] = []
    leaves: list[tuple[str, Any]] = []
    for name, given in zip(_names(f, len(args)), args, strict=True):
        arguments.append(take_apart(given, name, leaves, _is_array, "input"))
    session = _core._TraceSession()
    try:
        tensors = [session.input(array, name) for name, array in leaves]
        with session.guard():
            if not _core._is_tracing():
                raise TraceError(
                    "the key Tracer is excluded here, so nothing would be recorded: by an "
                    'exclude_keys("Tracer") block, or inside an operator\'s kernel whose call is '
                    "being traced"
                )
            returned = f(*(put_together(spec, "input", tensors) for spec in arguments))
        outputs: list[tuple[str, Any]] = []
        result = take_apart(returned, "the result", outputs, _is_array, "output")
        graph = session.finish([array for _, array in outputs])
    except BaseException:
        session.abandon()
        raise
    return Graph._over(graph, arguments, result)


def _names(f: Callable[..., Any], count: int) -> list[str]:
    """Return the function's names for its arguments; `args[0]` and so on where it doesn't say."""
    names: list[str] = []
    try:
        parameters = list(inspect.signature(f).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}[{i}]" for i in range(count - len(names))]
        elif parameter.kind is not parameter.KEYWORD_ONLY:
            names.append(parameter.name)
    names += [f"args[{i}]" for i in range(len(names), count)]
    return names[:count]


def _is_array(leaf: Any) -> bool:
    if isinstance(leaf, (_core.Tensor, np.ndarray)):
        return True
    # NumPy's scalars and Python's numbers are constants of the graph.
    plain = isinstance(leaf, (np.generic, bool, int, float, complex))
    return not plain and (_core._is_array(leaf) or _core._is_registered(leaf))
