"""What a function reads besides its arguments, and whether it has an effect besides its results.

The walk begins at the function and its arguments. It follows the variables that code reads, the
items of containers, and the attributes whose names code reads, to further functions and objects.
Users' code isn't run by it.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections.abc import Iterable
from typing import Any, NamedTuple, cast

import numpy as np

from keyfold import _core
from keyfold._layers._changes import items, opaque
from keyfold._layers._code import MAKERS, scan
from keyfold._layers._static import (
    ABSENT,
    attributes,
    class_dict,
    content,
    has,
    inner,
    intercepts,
    is_of_a_library,
    mro,
)

__all__ = ["ABSENT", "Reads", "Watched", "watched"]

# A guard, which a replay compares by identity:
# (dict, name, value)      the dict has this item; if `value` is ABSENT, it has none of the name
# (container, None, items) a list, set or deque has just these items; a dict, these keys and values
#                          in turn
# (object, name, value)    the attribute is this object; if `value` is ABSENT, there is none
Watched = tuple[Any, str | None, Any]

# The most functions whose code is scanned: the function, and those that it calls.
_MAX_FUNCTIONS = 512
# A replay compares a guard in about 25 ns: more of them would take longer than most calls.
_MAX_GUARDS = 10_000
_MAX_OBJECTS = 100_000

# Classes of objects that have nothing to be followed. Classes are compared by identity here and
# below: metaclasses may define `__eq__` and `__hash__`.
_ATOMS = frozenset(
    id(kind)
    for kind in (
        type(None), bool, int, float, complex, str, bytes, type(...), range, slice,
        types.CodeType, np.ufunc,
        _core.Tensor, _core.DType, _core.Device,
    )
)  # fmt: skip

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
}

# Special methods that a call with an object doesn't run: it was made before, and isn't copied.
_UNCALLED = MAKERS | {
    "__new__", "__setattr__", "__delattr__", "__del__", "__repr__", "__str__", "__format__",
    "__dir__", "__sizeof__", "__copy__", "__deepcopy__", "__reduce__", "__reduce_ex__",
    "__getstate__", "__setstate__", "__getnewargs__", "__getnewargs_ex__", "__init_subclass__",
}  # fmt: skip
# Those that are run where the class is called.
_OF_NEW = MAKERS | {"__new__", "__setattr__"}


class Reads(NamedTuple):
    """What `watched` found.

    Attributes:
        guards: what the function reads.
        reason: why it can't be recorded; None if it can, as far as its code says.
        state: the objects that it may change, for `snapshot`.
    """

    guards: list[Watched]
    reason: str | None
    state: list[Any]


def watched(f: Any, arguments: Iterable[Any]) -> Reads:
    """Find what a function reads besides its arguments.

    Args:
        f: the function.
        arguments: its arguments that aren't containers; arrays among them aren't part of the state.
    """
    # The caller checks collections among the arguments, and replaces arrays.
    seen = [
        one for one in arguments if not issubclass(type(one), np.ndarray) and opaque(one) is None
    ]
    walk = _Walk([f, *seen])
    walk.run()
    return Reads(list(walk.guards.values()), walk.reason, walk.state)


class _Walk:
    """A walk from objects to those that their code reads, and those that these hold."""

    def __init__(self, values: list[Any]) -> None:
        self.guards: dict[tuple[int, str | None], Watched] = {}
        self.reason: str | None = None
        self.state: list[Any] = []
        self._todo = values
        # By identity; the objects stay alive, so that none gets another's.
        self._seen: dict[int, Any] = {}
        self._objects = 0
        self._functions = 0
        # The names of attributes that code reads, and what has attributes: the object, its
        # `__dict__`, and how many of the names were read of it.
        self._names: dict[str, None] = {}
        self._holders: list[tuple[Any, dict[str, Any] | None, list[int]]] = []
        self._looks_up = False
        self._classes: set[tuple[int, bool]] = set()
        self._members: dict[tuple[int, str], Any] = {}

    def run(self) -> None:
        while self._todo and self.reason is None:
            value = self._todo.pop()
            if id(type(value)) not in _ATOMS and id(value) not in self._seen:
                self._seen[id(value)] = value
                self._count(1)
                # An object of an unusual class, which raises, isn't looked into.
                with contextlib.suppress(Exception):
                    self._visit(value)
            if not self._todo:
                self._read_attributes()

    def _count(self, objects: int) -> None:
        self._objects += objects
        if self._objects > _MAX_OBJECTS:
            self.reason = f"it reads more than {_MAX_OBJECTS} objects"

    def _guard(self, holder: Any, name: str | None, value: Any) -> None:
        self.guards.setdefault((id(holder), name), (holder, name, value))
        if value is not ABSENT:
            self._todo.append(value)
        if len(self.guards) > _MAX_GUARDS:
            self.reason = f"it reads more than {_MAX_GUARDS} objects"

    def _visit(self, value: Any) -> None:
        kind = type(value)
        if kind is types.FunctionType:
            self._function(value)
        elif (base := next((one for one in mro(kind) if id(one) in _INNER), None)) is not None:
            self._todo += [inner(value, base, name) for name in _INNER[id(base)]]
            if not is_of_a_library(kind):
                self._object(value, kind)
        elif issubclass(kind, type):
            if not is_of_a_library(value):
                self._holders.append((value, None, [0]))
                self._class(value, is_called=True)
        elif issubclass(kind, types.ModuleType):
            own = attributes(value) or {}
            if not is_of_a_library(str(own.get("__name__"))):
                self._holders.append((value, own, [0]))
        elif issubclass(kind, np.ndarray):
            self.state.append(value)
        elif (reason := opaque(value)) is not None:
            self.reason = reason
        else:
            self._object(value, kind)

    def _object(self, value: Any, kind: type) -> None:
        found = items(value)
        if found is not None:
            self._container(value, found)
        elif issubclass(kind, tuple):
            self._todo += tuple.__iter__(value)
        elif issubclass(kind, frozenset):
            self._todo += frozenset.__iter__(value)
        own = attributes(value)
        if not is_of_a_library(kind):
            self._holders.append((value, own, [0]))
            self._class(kind, is_called=False)
        elif own is not None and "__wrapped__" in own:  # `fuse` and other decorators
            self._todo.append(own["__wrapped__"])
            return
        if found is not None or not is_of_a_library(kind):
            self.state.append(value)

    def _container(self, value: Any, found: tuple[Any, ...]) -> None:
        self._count(len(found))
        self.guards.setdefault((id(value), None), (value, None, found))
        self._todo += [item for item in found if id(type(item)) not in _ATOMS]

    def _function(self, function: types.FunctionType) -> None:
        own = function.__dict__
        if "__wrapped__" in own:
            self._todo.append(own["__wrapped__"])
        # By its module's name: what `value_and_grad(f)` returns is named as `f` is.
        module = str(function.__globals__.get("__name__"))
        if is_of_a_library(module):
            # What it is made of isn't assigned later, and may be functions of the user's.
            cells = [content(cell) for cell in function.__closure__ or ()]
            self._todo += [value for value in cells if value is not ABSENT and callable(value)]
            return
        self._functions += 1
        code = scan(function.__code__)
        if self._functions > _MAX_FUNCTIONS:
            self.reason = f"it calls more than {_MAX_FUNCTIONS} functions"
        elif code.effect is not None:
            self.reason = code.effect
        elif code.stores_items and module == "keyfold.optim":
            self.reason = "it changes the state of an optimizer"
        if own:
            self._holders.append((function, own, [0]))
        self._guard(function, "__code__", function.__code__)
        if function.__defaults__ is not None:
            self._guard(function, "__defaults__", function.__defaults__)
        if function.__kwdefaults__ is not None:
            self._guard(function, "__kwdefaults__", function.__kwdefaults__)
        self._variables(function, code.variables)
        for name in code.modules:
            self._todo += [sys.modules.get(name), sys.modules.get(name.partition(".")[0])]
        self._names |= dict.fromkeys(code.attributes)
        self._looks_up |= code.looks_up

    def _variables(self, function: types.FunctionType, names: Iterable[str]) -> None:
        """Guard the globals, builtins and enclosing variables of a function."""
        variables = function.__globals__
        builtins: dict[str, Any] = cast("Any", function).__builtins__
        for name in names:
            self._guard(variables, name, variables.get(name, ABSENT))
            if name not in variables:
                self._guard(builtins, name, builtins.get(name, ABSENT))
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        for name, cell in cells:
            value = content(cell)
            if name != "__class__":
                self._guard(cell, "cell_contents", value)
            elif value is not ABSENT:  # of `super()`, which doesn't call it
                self._class(value, is_called=False)

    def _class(self, kind: type, *, is_called: bool) -> None:
        """Follow the special methods of a class, those of new objects if it is called."""
        if (id(kind), is_called) in self._classes or is_of_a_library(kind):
            return
        self._classes.add((id(kind), is_called))
        if type(kind) is not type:
            self._class(type(kind), is_called=False)
        for base in mro(kind):
            for name, member in () if is_of_a_library(base) else list(class_dict(base).items()):
                is_run = name not in _UNCALLED or (is_called and name in _OF_NEW)
                if is_run and name.startswith("__") and name.endswith("__") and callable(member):
                    self._member(kind, name)

    def _member(self, kind: type, name: str) -> Any:
        """Guard and follow an attribute of a class, and those that it hides, which `super()` reads.

        Returns the one that is found first; ABSENT if only libraries' classes have it.
        """
        if (id(kind), name) not in self._members:
            bases = [base for base in mro(kind) if name in class_dict(base)]
            of_users = [class_dict(base)[name] for base in bases if not is_of_a_library(base)]
            self._todo += of_users
            first = class_dict(bases[0])[name] if of_users else ABSENT
            self._members[id(kind), name] = first
            value = first.__func__ if type(first) is staticmethod else first
            # Others, as a class method, are made by each `getattr`.
            is_kept = value is not first or _binds_nothing(first)
            if of_users and is_kept and not intercepts(type(kind), name):
                self._guard(kind, name, value)
        return self._members[id(kind), name]

    def _read_attributes(self) -> None:
        """Read the attributes of what was found, by the names that were found since."""
        names = list(self._names)
        for holder, own, read in list(self._holders):
            for name in names[read[0] :]:
                with contextlib.suppress(Exception):
                    self._attribute(holder, own, name)
            read[0] = len(names)
            is_object = not issubclass(type(holder), type | types.ModuleType | types.FunctionType)
            if self._looks_up and own and is_object and (id(own), None) not in self.guards:
                found = items(own) or ()
                self._container(own, found)

    def _attribute(self, holder: Any, own: dict[str, Any] | None, name: str) -> None:
        if issubclass(type(holder), type):
            self._member(holder, name)
            return
        member = self._member(type(holder), name)
        if type(member) is types.MemberDescriptorType:  # of `__slots__`
            self._guard(holder, name, content(holder, member))
        elif own is None or has(type(member), "__set__"):
            return
        elif name in own:
            self._guard(own, name, own[name])
        elif member is not ABSENT:
            # The object's own would hide the class's.
            self._guard(own, name, ABSENT)


def _binds_nothing(member: Any) -> bool:
    """Whether the attribute of a class is the object in its `__dict__`."""
    kind = type(member)
    is_function = kind is types.FunctionType or issubclass(kind, _core._Fused)
    return is_function or not has(kind, "__get__")
