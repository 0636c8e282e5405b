"""Attributes of objects and classes, read without running users' code.

`getattr` may call `__getattribute__`, `__getattr__` and descriptors; `isinstance` asks for
`__class__`. Here, classes' dicts are read by the functions of `type` itself.
"""

from __future__ import annotations

import functools
import gc
import operator
import sys
import types
from collections.abc import Iterable
from typing import Any, cast

import numpy as np

from keyfold import _core
from keyfold._layers._code import Scan

__all__ = [
    "ABSENT", "attributes", "calling", "class_dict", "class_name", "content", "drawing", "has",
    "imported", "inner", "is_of_a_library", "module_name", "mro", "names_of", "own_dict",
]  # fmt: skip

# Stands for what isn't there, in guards, too. No variable of a user's has this class as its value.
ABSENT = _core._Recording

# Libraries whose functions don't read what a user assigns; their objects aren't looked into.
_LIBRARIES = sys.stdlib_module_names | {"keyfold", "numpy"}
# Exceptions: an optimizer has a state, and a namespace has what a user assigns.
_NO_LIBRARIES = frozenset({"keyfold.optim", "types.SimpleNamespace", "argparse.Namespace"})

# Attributes of objects that call functions.
_INNER: dict[int, tuple[str, ...]] = {
    id(types.MethodType): ("__func__", "__self__"),
    id(types.BuiltinMethodType): ("__self__",),
    id(types.MethodWrapperType): ("__self__",),
    id(staticmethod): ("__func__",),
    id(classmethod): ("__func__",),
    id(property): ("fget",),
    id(functools.cached_property): ("func",),
    id(functools.partial): ("func", "args", "keywords"),
    id(functools.partialmethod): ("func", "args", "keywords"),
    id(functools.singledispatchmethod): ("dispatcher",),
}

# Modules whose functions are methods of a generator that they share.
_GENERATORS = ("random", "numpy.random")

_module = type.__dict__["__module__"].__get__
class_name = type.__dict__["__name__"].__get__
class_dict = type.__dict__["__dict__"].__get__
mro = type.__dict__["__mro__"].__get__


def module_name(kind: type) -> str:
    """The name of the module of a class; empty if it is no text."""
    name = _module(kind)
    return name if type(name) is str else ""


def is_of_a_library(value: type | str) -> bool:
    """Whether a class, or a module by its name, is one that isn't looked into."""
    name = value if isinstance(value, str) else module_name(value)
    if name in _NO_LIBRARIES:
        return False
    if not isinstance(value, str) and f"{name}.{class_name(value)}" in _NO_LIBRARIES:
        return False
    return name.partition(".")[0] in _LIBRARIES


def attributes(value: Any) -> dict[str, Any] | None:
    """The `__dict__` of an object, if it has one that is a dict."""
    for base in mro(type(value)):
        own = class_dict(base).get("__dict__")
        if type(own) in (types.GetSetDescriptorType, types.MemberDescriptorType):
            found = own.__get__(value)
            return found if type(found) is dict else None
        if own is not None:  # a property of the user's
            return None
    return None


def own_dict(kind: type) -> dict[str, Any]:
    """The dict in which a class keeps its attributes, for guards: only to be read.

    `getattr` of a class makes new objects, as of class methods, and runs descriptors.
    """
    found = gc.get_referents(class_dict(kind))[0]
    assert type(found) is dict
    return found


def names_of(value: operator.attrgetter[Any] | operator.methodcaller) -> list[str]:
    """The names of the attributes that an object of the module `operator` reads."""
    if type(value) is operator.attrgetter:
        texts = operator.attrgetter.__reduce__(value)[1]
        return [name for text in texts for name in str(text).split(".")]
    how, arguments = cast("Any", operator.methodcaller).__reduce__(value)
    return [str(how.args[0] if isinstance(how, functools.partial) else arguments[0])]


def has(kind: type, name: str) -> bool:
    """Whether objects of a class have an attribute by it."""
    return any(name in class_dict(base) for base in mro(kind))


def calling(kind: type) -> type | None:
    """The class of a class's that is one of objects that call functions."""
    return next((base for base in mro(kind) if id(base) in _INNER), None)


def inner(value: Any, base: type) -> list[Any]:
    """The functions that an object of such a class calls, and what they are called with."""
    found = []
    for name in _INNER[id(base)]:
        member = class_dict(base).get(name)
        own = attributes(value) or {}
        found.append(own.get(name) if member is None else member.__get__(value))
    return found


def imported(function: types.FunctionType, modules: Iterable[tuple[str, int]]) -> list[Any]:
    """The modules that a function imports, as far as they were before."""
    found = []
    package = str(function.__globals__.get("__package__") or "")
    for name, dots in modules:
        if dots > 0:
            parts = (package.rsplit(".", dots - 1)[0], name)
            name = ".".join(part for part in parts if part)
        found += [sys.modules.get(name), sys.modules.get(name.partition(".")[0])]
    return found


def drawing(function: types.FunctionType, code: Scan) -> list[Any]:
    """Attributes that a function reads of modules that have a generator of random numbers."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    variables = {name: content(cell) for name, cell in cells}
    found = []
    for first, *names in code.paths:
        value = variables.get(first, function.__globals__.get(first))
        for name in names:
            if type(value) is not types.ModuleType:
                break
            own = attributes(value) or {}
            # NumPy imports its own where it is asked for first.
            value = np.random if value is np and name == "random" else own.get(name)
            if own.get("__name__") in _GENERATORS:
                found.append(value)
    # One that the function imports may be in any of its variables.
    for module in imported(function, code.modules):
        own = attributes(module) or {}
        if own.get("__name__") in _GENERATORS:
            found += map(own.get, code.attributes)
    return found


def content(holder: Any, member: Any = types.CellType.cell_contents) -> Any:
    """What a cell or a slot holds; ABSENT if it is empty."""
    try:
        return member.__get__(holder)
    except (ValueError, AttributeError):
        return ABSENT
