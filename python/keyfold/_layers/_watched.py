"""What a function reads and changes besides its arguments and results, as far as its code says."""

from __future__ import annotations

import dis
import functools
import inspect
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

from keyfold import _core

__all__ = ["Watched", "containers", "take_back", "watched"]

# The most functions whose names are watched: the function, and those that it calls.
_MAX_FUNCTIONS = 64
# Methods and functions whose effect a recording wouldn't have, by name.
_EFFECTS = {"backward", "manual_seed", "requires_grad_", "set_rng_state", "set_state"}

# Libraries that don't read what a user assigns; their functions aren't looked into.
_LIBRARIES = sys.stdlib_module_names | {"keyfold", "numpy"}

Watched = tuple[Any, str, Any]


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _effect(function: types.FunctionType) -> str | None:
    """The reason why a function has an effect besides its results; None if none is seen."""
    enclosing = function.__code__.co_freevars
    for code in _codes(function.__code__):
        for one in dis.get_instructions(code):
            kind, _, place = one.opname.partition("_")
            if kind not in ("STORE", "DELETE"):
                continue
            if place == "GLOBAL" or (place == "DEREF" and one.argval in enclosing):
                return f"it assigns the variable {one.argval}, which isn't its own"
            if place == "ATTR":
                return f"it assigns an attribute, {one.argval}"
        for name in code.co_names:
            if name in _EFFECTS:
                return f"it calls {name}"
    return None


def watched(f: Any, arguments: Iterable[Any]) -> tuple[list[Watched], str | None]:
    """What a function reads besides its arguments: (holder, name, value) of globals and cells.

    The functions that it calls are looked into: those that it knows by name, and methods of what it
    reads and of its arguments. The second result is the reason why it can't be recorded, if it has
    an effect.
    """
    found: list[Watched] = []
    called, seen = [f], set[Any]()
    while called:
        function = _function(called.pop())
        if function is None or function in seen:
            continue
        if len(seen) == _MAX_FUNCTIONS:
            return found, f"it calls more than {_MAX_FUNCTIONS} functions"
        seen.add(function)
        variables = function.__globals__
        # The function that `value_and_grad(f)` returns is named as `f` is, and is keyfold's.
        is_users = str(variables.get("__name__")).partition(".")[0] not in _LIBRARIES
        if is_users and (effect := _effect(function)) is not None:
            return found, effect
        names = dict.fromkeys(n for code in _codes(function.__code__) for n in code.co_names)
        read: list[Watched] = [(variables, n, variables[n]) for n in names if n in variables]
        for cell in function.__closure__ or ():
            try:
                read.append((cell, "cell_contents", cell.cell_contents))
            except ValueError:  # it is empty yet
                continue
        found += read
        inner = getattr(function, "__wrapped__", None)
        for value in [*(value for _, _, value in read), *arguments, inner]:
            if not _is_of_a_library(value):
                called.append(value)
                called += _methods(value, names)
    return found, None


def _wrapped(value: Any) -> Any:
    """The function that an object is made of, as `fuse` and other decorators say it."""
    own = getattr(value, "__dict__", None)
    return own.get("__wrapped__") if isinstance(own, dict) else None


def _function(value: Any) -> types.FunctionType | None:
    """The Python function that a call of an object runs, as far as that is known."""
    while not isinstance(value, types.FunctionType):
        if (inner := _wrapped(value)) is not None:
            value = inner
        elif isinstance(value, functools.partial):
            value = value.func
        elif isinstance(value, types.MethodType):
            value = value.__func__
        elif isinstance(value, type):
            return None
        else:
            value = getattr(type(value), "__call__", None)  # noqa: B004 - its value, not a test
            if not isinstance(value, types.FunctionType) and _wrapped(value) is None:
                return None
    return value


def _methods(value: Any, names: Iterable[str]) -> Iterator[Any]:
    """The methods and properties of an object, or functions of a module, with one of the names."""
    holder = value if isinstance(value, type | types.ModuleType) else type(value)
    for name in names:
        own = inspect.getattr_static(holder, name, None)
        if isinstance(own, staticmethod | classmethod):
            own = own.__func__
        if isinstance(own, property):
            own = own.fget
        is_function = isinstance(own, types.FunctionType) or _wrapped(own) is not None
        if is_function and not _is_of_a_library(own):
            yield own


def _is_of_a_library(value: Any) -> bool:
    if isinstance(value, types.ModuleType):
        name = value.__name__
    else:
        named = value if isinstance(value, type) else _function(value) or type(value)
        name = str(named.__module__)
    return name.partition(".")[0] in _LIBRARIES and name != "builtins"


def containers(values: Iterable[Any]) -> Iterator[Any]:
    """The lists and dicts among objects and their attributes."""
    for value in values:
        if type(value) in (list, dict):
            yield value
        elif not _is_of_a_library(value) and not isinstance(value, type | types.FunctionType):
            yield from (own for own in _attributes(value) if type(own) in (list, dict))


def _attributes(value: Any) -> list[Any]:
    own = getattr(value, "__dict__", None)
    return list(own.values()) if type(own) is dict else []


def take_back(before: list[tuple[Any, Any]], recorder: _core._Recorder) -> bool:
    """Remove a recorder's tensors from lists and dicts that had other items before.

    Returns whether there were any.
    """
    found = False
    for container, old in before:
        items = container.items() if isinstance(container, dict) else enumerate(container)
        recorded = [at for at, item in list(items) if recorder.made(item)]
        found = found or bool(recorded)
        if recorded and isinstance(container, list):
            # Another thread may have changed the others.
            if len(container) == len(old):
                for at in recorded:
                    container[at] = old[at]
            else:
                container[:] = [item for item in container if not recorder.made(item)]
        elif recorded:
            kept = {at: old[at] for at in recorded if at in old}
            for at in recorded:
                del container[at]
            container.update(kept)
    return found
