"""Attributes of objects and classes, read without running users' code.

`getattr` may call `__getattribute__`, `__getattr__` and descriptors; `isinstance` asks for
`__class__`. Here, classes' dicts are read by the functions of `type` itself.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from keyfold import _core

__all__ = [
    "ABSENT", "attributes", "class_dict", "class_name", "content", "has", "inner", "intercepts",
    "is_of_a_library", "module_name", "mro",
]  # fmt: skip

# Stands for what isn't there, in guards, too. No variable of a user's has this class as its value.
ABSENT = _core._Recording

# Libraries whose functions don't read what a user assigns; their objects aren't looked into.
_LIBRARIES = sys.stdlib_module_names | {"keyfold", "numpy"}
# Exceptions: an optimizer has a state, and a namespace has what a user assigns.
_NO_LIBRARIES = frozenset({"keyfold.optim", "types.SimpleNamespace", "argparse.Namespace"})

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


def has(kind: type, name: str) -> bool:
    """Whether objects of a class have an attribute by it."""
    return any(name in class_dict(base) for base in mro(kind))


def inner(value: Any, base: type, name: str) -> Any:
    """An attribute of an object as a library's class has it."""
    member = class_dict(base).get(name)
    return (attributes(value) or {}).get(name) if member is None else member.__get__(value)


def intercepts(metaclass: type, name: str) -> bool:
    """Whether a class of classes has its own way to read an attribute of them."""
    bases = [class_dict(base) for base in mro(metaclass) if not is_of_a_library(base)]
    return any(name in base or "__getattribute__" in base for base in bases)


def content(holder: Any, member: Any = types.CellType.cell_contents) -> Any:
    """What a cell or a slot holds; ABSENT if it is empty."""
    try:
        return member.__get__(holder)
    except (ValueError, AttributeError):
        return ABSENT
