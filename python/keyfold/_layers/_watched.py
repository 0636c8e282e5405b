"""What a function reads besides its arguments, and whether it has an effect besides its results.

The walk begins at the function and its arguments. It follows the variables that code reads, the
items of containers, and the attributes whose names code reads, to further functions and objects.
Users' code isn't run by it.
"""

from __future__ import annotations

import contextlib
import operator
import types
from collections.abc import Iterable
from typing import Any, NamedTuple, cast

import numpy as np

from keyfold import _core
from keyfold._layers._changes import MAX_BYTES, items, length, opaque
from keyfold._layers._code import IMPLICIT, OF_NEW, UNCALLED, scan
from keyfold._layers._static import (
    ABSENT,
    attributes,
    calling,
    class_dict,
    content,
    drawing,
    has,
    imported,
    inner,
    is_of_a_library,
    mro,
    names_of,
    own_dict,
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
# From so many names on that an object lacks, its `__dict__` is compared as a whole.
_MANY_NAMES = 8

# Classes of objects that have nothing to be followed. Classes are compared by identity here and
# below: metaclasses may define `__eq__` and `__hash__`.
_ATOMS = frozenset(
    id(kind)
    for kind in (
        type(None), bool, int, float, complex, str, bytes, type(...), range, slice,
        types.CodeType, np.ufunc,
        _core.DType, _core.Device,
    )
)  # fmt: skip


class Reads(NamedTuple):
    """What `watched` found.

    Attributes:
        guards: what the function reads.
        reason: why it can't be recorded; None if it can, as far as its code says.
        state: the objects that it may change, for `snapshot`.
        reached: the objects that it reaches without its arguments, by their ids.
    """

    guards: list[Watched]
    reason: str | None
    state: list[Any]
    reached: dict[int, Any]


def watched(f: Any, arguments: Iterable[Any]) -> Reads:
    """Find what a function reads besides its arguments.

    Args:
        f: the function.
        arguments: its arguments that aren't containers; arrays among them aren't part of the state.
    """
    walk = _Walk()
    walk.run([f])
    reached, named = dict(walk.seen), len(walk.names)
    # The caller checks collections among the arguments, and replaces arrays.
    walk.run(
        [one for one in arguments if not issubclass(type(one), np.ndarray) and opaque(one) is None]
    )
    if len(walk.names) > named:
        # Objects that the function reaches have attributes that the arguments' code names, too.
        again = _Walk()
        again.names = dict(walk.names)
        again.run([f])
        reached = dict(again.seen)
    walk.finish(reached)
    return Reads(list(walk.guards.values()), walk.reason, walk.state, reached)


class _Walk:
    """A walk from objects to those that their code reads, and those that these hold."""

    def __init__(self) -> None:
        self.guards: dict[tuple[int, str | None], Watched] = {}
        self.reason: str | None = None
        self.state: list[Any] = []
        # By identity; the objects stay alive, so that none gets another's.
        self.seen: dict[int, Any] = {}
        self._todo: list[Any] = []
        self._tensors: list[_core.Tensor] = []
        self._objects = 0
        self._functions = 0
        # The names of attributes that code reads, and what has attributes: the object, its
        # `__dict__`, and how many of the names were read of it.
        self.names: dict[str, None] = {}
        self._holders: list[tuple[Any, dict[str, Any] | None, list[int]]] = []
        self._looks_up, self._catches, self._writes = False, False, False
        self._looked: set[int] = set()
        self._classes: set[tuple[int, bool]] = set()
        self._members: dict[tuple[int, str], tuple[Any, bool]] = {}
        self._read_by_users: dict[int, bool] = {}
        self._bases: dict[int, list[tuple[dict[str, Any], bool]]] = {}

    def run(self, values: list[Any]) -> None:
        """Walk from objects."""
        self._todo = values
        while self._todo and self.reason is None:
            value = self._todo.pop()
            if id(type(value)) not in _ATOMS and id(value) not in self.seen:
                self.seen[id(value)] = value
                self._count(1)
                # An object of an unusual class, which raises, isn't looked into.
                with contextlib.suppress(Exception):
                    self._visit(value)
                self._limit()
            if not self._todo:
                self._read_attributes()

    def finish(self, reached: dict[int, Any]) -> None:
        """Guard what isn't there, and check what is only known at the end of the walk."""
        if self.reason is None and (self._looks_up or self._catches):
            for holder, own, _ in self._holders:
                self._lacks(holder, own)
        # Each `getattr` makes a new tensor of a gradient.
        for tensor in self._tensors if "grad" in self.names else ():
            if tensor.grad is not None:
                self.reason = self.reason or "it reads a gradient"
            elif id(tensor) in reached:
                self._guard(tensor, "grad", None)
        self._limit()
        arrays = [one for one in self.state if issubclass(type(one), np.ndarray)]
        if self._writes and sum(map(np.ndarray.nbytes.__get__, arrays)) > MAX_BYTES:
            size = f"{MAX_BYTES >> 20} MiB"
            self.reason = self.reason or (
                f"it reads NumPy arrays of more than {size} that it may write to"
            )

    def _lacks(self, holder: Any, own: dict[str, Any] | None) -> None:
        """Guard the names of attributes that neither an object nor its class has."""
        kind = holder if issubclass(type(holder), type) else type(holder)
        whole = self._looks_up and kind is holder
        found = self._dicts(kind) + (self._dicts(type(kind)) if kind is holder else [])
        dicts = [one for one, is_of_users in found if is_of_users]
        if own is not None:
            dicts.append(own)
        for one in dicts:
            names = [name for name in self.names if name not in one]
            if (id(one), None) in self.guards or not (names or whole):
                continue
            is_module = issubclass(kind, types.ModuleType)
            if whole or (len(names) > _MANY_NAMES and not is_module):
                self.guards[id(one), None] = (one, None, items(one) or ())
            else:
                for name in names:
                    self._guard(one, name, ABSENT)

    def _count(self, objects: int) -> None:
        self._objects += objects
        if self._objects > _MAX_OBJECTS:
            self.reason = f"it reads more than {_MAX_OBJECTS} objects"

    def _guard(self, holder: Any, name: str | None, value: Any) -> None:
        self.guards.setdefault((id(holder), name), (holder, name, value))
        if value is not ABSENT:
            self._todo.append(value)

    def _limit(self) -> None:
        if len(self.guards) > _MAX_GUARDS:
            self.reason = f"it reads more than {_MAX_GUARDS} objects"

    def _visit(self, value: Any) -> None:
        kind = type(value)
        if kind is types.FunctionType:
            self._function(value)
        elif kind is _core.Tensor:
            self._tensors.append(value)
        elif kind is operator.attrgetter or kind is operator.methodcaller:
            self.names |= dict.fromkeys(names_of(value))
        elif (base := calling(kind)) is not None:
            self._todo += inner(value, base)
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
                self._guard(own, "__getattr__", own.get("__getattr__", ABSENT))
        elif issubclass(kind, np.ndarray):
            self.state.append(value)
        elif (reason := opaque(value)) is not None:
            self.reason = reason
        else:
            self._object(value, kind)

    def _object(self, value: Any, kind: type) -> None:
        # Before they are copied.
        self._count(length(value))
        if self.reason is not None:
            return
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
            if not self._is_read_by_users(kind):
                # By `guards`, since it isn't called.
                self.guards[id(value), "__class__"] = (value, "__class__", kind)
                if own is not None:
                    self.guards[id(value), "__dict__"] = (value, "__dict__", own)
        elif own is not None and "__wrapped__" in own:  # `fuse` and other decorators
            self._todo.append(own["__wrapped__"])
            return
        if found is not None or not is_of_a_library(kind):
            self.state.append(value)

    def _container(self, value: Any, found: tuple[Any, ...]) -> None:
        self.guards.setdefault((id(value), None), (value, None, found))
        self._todo += [item for item in found if id(type(item)) not in _ATOMS]

    def _function(self, function: types.FunctionType) -> None:
        own = function.__dict__
        if "__wrapped__" in own:
            self._todo.append(own["__wrapped__"])
        # By its module's name: what `value_and_grad(f)` returns is named as `f` is.
        module = str(function.__globals__.get("__name__"))
        if is_of_a_library(module):
            # Its parts aren't assigned later, and may be functions of the user's.
            names = function.__code__.co_freevars
            for name, cell in zip(names, function.__closure__ or (), strict=True):
                value = content(cell)
                # Of `singledispatch`; of `singledispatchmethod`, and what it is bound to.
                is_users = module == "functools" and name in ("registry", "obj", "self")
                if value is not ABSENT and (callable(value) or is_users):
                    self._todo.append(value)
            return
        self._functions += 1
        code = scan(function.__code__)
        if self._functions > _MAX_FUNCTIONS:
            self.reason = f"it calls more than {_MAX_FUNCTIONS} functions"
        elif code.effect is not None:
            self.reason = code.effect
        elif code.stores_items and module == "keyfold.optim":
            self.reason = "it changes the state of an optimizer"
        self._holders.append((function, own, [0]))
        self._guard(function, "__code__", function.__code__)
        if function.__defaults__ is not None:
            self._guard(function, "__defaults__", function.__defaults__)
        if function.__kwdefaults__ is not None:
            self._guard(function, "__kwdefaults__", function.__kwdefaults__)
        self._variables(function, code.variables)
        self._todo += imported(function, code.modules)
        self._todo += drawing(function, code)
        self.names |= dict.fromkeys(code.attributes)
        self._looks_up |= code.looks_up
        self._catches |= code.catches
        self._writes |= code.writes

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
        for name in IMPLICIT:
            self._member(kind, name, is_run=True)
        for members, is_of_users in self._dicts(kind):
            for name, member in list(members.items()) if is_of_users else ():
                is_run = name not in UNCALLED or (is_called and name in OF_NEW)
                if is_run and name.startswith("__") and name.endswith("__") and callable(member):
                    self._member(kind, name)

    def _dicts(self, kind: type) -> list[tuple[dict[str, Any], bool]]:
        """The dicts of a class and its bases, each with whether it is a users' class."""
        if id(kind) not in self._bases:
            users = [(base, not is_of_a_library(base)) for base in mro(kind)]
            self._bases[id(kind)] = [
                (own_dict(base) if own else class_dict(base), own) for base, own in users
            ]
        return self._bases[id(kind)]

    def _is_read_by_users(self, kind: type) -> bool:
        """Whether reading `__class__` of an object runs users' code."""
        if id(kind) not in self._read_by_users:
            of_users = [found for found, is_of_users in self._dicts(kind) if is_of_users]
            own = [one for one in of_users if "__getattribute__" in one or "__class__" in one]
            self._read_by_users[id(kind)] = bool(own)
        return self._read_by_users[id(kind)]

    def _member(self, kind: type, name: str, *, is_run: bool = False) -> tuple[Any, bool]:
        """Guard and follow an attribute of a class, and those that it hides, which `super()` reads.

        Returns the one that is found first, and whether it goes before an object's own; ABSENT if
        only libraries' classes have it, before which users' classes may get one if `is_run`.
        """
        if (id(kind), name) not in self._members:
            dicts = self._dicts(kind)
            at = next((at for at, (base, _) in enumerate(dicts) if name in base), None)
            of_users = [base for base, is_of_users in dicts if is_of_users]
            if is_run or at is not None:
                for base in of_users:
                    self._guard(base, name, base.get(name, ABSENT))
            is_users = any(name in base for base in of_users)
            first = dicts[at][0][name] if is_users and at is not None else ABSENT
            if name == "__match_args__" and type(first) is tuple:
                self.names |= dict.fromkeys(one for one in first if type(one) is str)
            self._members[id(kind), name] = (first, has(type(first), "__set__"))
        return self._members[id(kind), name]

    def _read_attributes(self) -> None:
        """Read the attributes of what was found, by the names that were found since."""
        names = list(self.names)
        for holder, own, read in list(self._holders):
            for name in names[read[0] :]:
                with contextlib.suppress(Exception):
                    self._attribute(holder, own, name)
            read[0] = len(names)
            is_object = not issubclass(type(holder), type | types.ModuleType | types.FunctionType)
            if self._looks_up and is_object and id(holder) not in self._looked:
                self._looked.add(id(holder))
                self._look(holder, own)

    def _look(self, holder: Any, own: dict[str, Any] | None) -> None:
        """Guard all attributes that an object has of its own."""
        if own:
            self._count(len(own))
            self._container(own, items(own) or ())
        for members, is_of_users in self._dicts(type(holder)):
            for name, member in list(members.items()) if is_of_users else ():
                if type(member) is types.MemberDescriptorType:
                    self._guard(holder, name, content(holder, member))

    def _attribute(self, holder: Any, own: dict[str, Any] | None, name: str) -> None:
        if issubclass(type(holder), type):
            self._member(holder, name)
            if type(holder) is type:
                return
        member, is_first = self._member(type(holder), name)
        if type(member) is types.MemberDescriptorType:  # of `__slots__`
            self._guard(holder, name, content(holder, member))
        elif own is None or is_first:
            return
        elif name in own:
            self._guard(own, name, own[name])
        elif member is not ABSENT:
            # The object's own would hide the class's.
            self._guard(own, name, ABSENT)
