"""The contents of containers and objects, to see whether a function changed them.

Users' code isn't run: their classes' `__iter__`, `__getattribute__` and `__eq__` aren't called.
"""

from __future__ import annotations

import contextvars
import ctypes
import itertools
import operator
import threading
import types
import weakref
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import (
    Callable,
    Iterable,
    Iterator,
    MappingView,
    MutableMapping,
    MutableSequence,
    MutableSet,
)
from typing import Any

import numpy as np

from keyfold._layers._static import (
    attributes,
    class_dict,
    class_name,
    is_of_a_library,
    module_name,
    mro,
)

__all__ = [
    "MAX_BYTES",
    "WRITES_ARRAY",
    "Snapshot",
    "changed",
    "items",
    "length",
    "opaque",
    "replace",
    "snapshot",
]

# An object and its contents, for each object.
Snapshot = list[tuple[Any, Any]]

# NumPy arrays are compared up to this many bytes in all: copying them takes about 2 ms.
MAX_BYTES = 16 << 20

# A write that leaves an array's bytes as they were can't be seen, so it may be made again unseen.
WRITES_ARRAY = "it writes to a NumPy array"

# Classes whose objects show others at times, by code that isn't looked into.
_OPAQUE: tuple[type, ...] = (
    MutableMapping, MutableSequence, MutableSet, MappingView, types.MappingProxyType, memoryview,
    threading.local, contextvars.ContextVar, weakref.ref, ctypes.Structure.__mro__[1],
)  # fmt: skip
# Those among them whose subclasses, too, are read by code in C or of a library.
_STORAGES = (
    set, deque, bytearray, UserDict, UserList, ChainMap, threading.local, weakref.ref,
    ctypes.Structure.__mro__[1],
)  # fmt: skip

# Modules of NumPy's and Python's generators, whose numbers would be constants of a recording.
_RANDOM = ("random", "numpy.random._generator", "numpy.random.mtrand")


def items(value: Any) -> tuple[Any, ...] | None:
    """The items of a list, set or deque, or keys and values of a dict in turn."""
    kind = type(value)
    if issubclass(kind, list):
        return tuple(list.__iter__(value))
    if issubclass(kind, dict):
        return tuple(itertools.chain.from_iterable(dict.items(value)))
    if kind is set or kind is deque:
        return tuple(value)
    return None


def length(value: Any) -> int:
    """How many items a container of Python's has; 0 for others."""
    for kind in (list, dict, tuple, frozenset, set, deque):
        if issubclass(type(value), kind):
            return kind.__len__(value)
    return 0


def opaque(value: Any) -> str | None:
    """The reason if an object has items that can't be compared: an iterator or a view, say."""
    kind = type(value)
    if issubclass(kind, Iterator):
        return "it reads an iterator"
    if issubclass(kind, list | dict) or kind is set or kind is deque:
        return None
    if module_name(kind) in _RANDOM:
        return f"it reads a {class_name(kind)}, which draws random numbers"
    if issubclass(kind, _OPAQUE) and (is_of_a_library(kind) or issubclass(kind, _STORAGES)):
        return f"it reads a {class_name(kind)}, which may change"
    return None


def _slots(value: Any) -> Iterator[Any]:
    for base in mro(type(value)):
        for member in () if is_of_a_library(base) else class_dict(base).values():
            if type(member) is types.MemberDescriptorType:
                try:
                    held = member.__get__(value)
                except AttributeError:
                    yield member
                    continue
                # Classes in C, as Cython's functions, make new objects of what they keep otherwise.
                if member.__get__(value) is held:
                    yield held


def _contents(value: Any) -> tuple[Any, ...] | bytes:
    if issubclass(type(value), np.ndarray):
        return np.ndarray.tobytes(value)
    found = items(value) or ()
    if is_of_a_library(type(value)):
        return found
    own = itertools.chain.from_iterable((attributes(value) or {}).items())
    return (*found, *own, *_slots(value))


def snapshot(values: Iterable[Any]) -> Snapshot:
    """Take the contents of containers, NumPy arrays and objects with attributes."""
    found, room = [], MAX_BYTES
    for value in values:
        if issubclass(type(value), np.ndarray):
            if value.nbytes > room:
                continue
            room -= value.nbytes
        found.append((value, _contents(value)))
    return found


def changed(before: Snapshot) -> str | None:
    """The reason if one of the objects of a snapshot has other contents now."""
    for value, old in before:
        new = _contents(value)
        if isinstance(old, bytes):
            if new != old:
                return WRITES_ARRAY
        elif len(new) != len(old) or not all(map(operator.is_, new, old)):
            kind = type(value)
            what = "" if items(value) is not None else "attributes of "
            return f"it changes {what}a {class_name(kind)}"
    return None


def replace(before: Snapshot, own: Callable[[Any], Any]) -> None:
    """Replace what the lists, dicts and attributes of a snapshot hold now by `own` of it."""
    for value, _ in before:
        for holder in (value, attributes(value)):
            if isinstance(holder, dict):
                for key, item in [*dict.items(holder)]:
                    if (new := own(item)) is not item:
                        dict.__setitem__(holder, key, new)
            elif isinstance(holder, list):
                for at, item in enumerate([*list.__iter__(holder)]):
                    if (new := own(item)) is not item:
                        list.__setitem__(holder, at, new)
