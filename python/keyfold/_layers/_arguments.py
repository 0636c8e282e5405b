"""The arguments of a fused function's call, and what stands for them while it is recorded."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, MappingView, MutableSequence, MutableSet
from typing import Any

import numpy as np

from keyfold import _core
from keyfold._trace._structure import Spec, put_together, take_apart

__all__ = ["Arguments", "Given", "is_array", "is_tree", "replaced"]

# Arguments that one recording can't stand for: what they hold isn't seen.
_CHANGING = (Iterator, Mapping, MappingView, MutableSequence, MutableSet)
# The most objects in lists, tuples and dicts among the arguments: each is compared at each call.
_MAX_LEAVES = 10_000
# Classes of objects that don't change, though some have a buffer.
_NUMBERS = frozenset({bytes, str, int, float, complex, bool, type(None)})


def is_array(leaf: Any) -> bool:
    # Not `isinstance`, which asks an object for its class.
    return issubclass(type(leaf), _core.Tensor | np.ndarray)


def is_tree(value: Any) -> bool:
    """Whether a value is taken apart. An object of a class derived from a named tuple's isn't."""
    kind = type(value)
    return kind in (list, dict, tuple) or (kind.__bases__ == (tuple,) and hasattr(kind, "_fields"))


@dataclasses.dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of a call, taken apart."""

    spec: Spec
    leaves: tuple[Any, ...]
    # Whether they are positional, and none is in a list, tuple or dict.
    is_plain: bool

    @staticmethod
    def of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        """Take arguments apart; None if a list or dict is twice in them, or they are too many."""
        if _is_odd([*args, *kwargs.values()]):
            return None
        found: list[tuple[str, Any]] = []
        spec = take_apart((args, kwargs), "", found, lambda leaf: not is_tree(leaf), "input")
        is_plain = not kwargs and all("input" in one for one in spec["tuple"][0]["tuple"])
        return Arguments(spec, tuple(leaf for _, leaf in found), is_plain)

    def key(self) -> Any:
        """The structure to compare and hash; None for arguments that are plain."""
        return None if self.is_plain else _key(self.spec)

    def firsts(self) -> tuple[int, ...]:
        """For each leaf the place where an array is given first, or its own place."""
        first: dict[int, int] = {}
        places = enumerate(self.leaves)
        return tuple(
            first.setdefault(id(leaf), at) if is_array(leaf) else at for at, leaf in places
        )

    def form(self) -> Any:
        """What decides whether calls can be recorded, to remember those that can't."""
        return (self.key(), _core.is_grad_enabled(), self.firsts(), *map(_form, self.leaves))

    def are_numpy(self) -> bool:
        """Whether there are arrays, and all are NumPy's."""
        arrays = [leaf for leaf in self.leaves if is_array(leaf)]
        return bool(arrays) and not any(isinstance(leaf, _core.Tensor) for leaf in arrays)

    def holders(self, call: Any) -> Iterator[Any]:
        """The arrays among them, and the lists and dicts."""
        yield from (leaf for leaf in self.leaves if is_array(leaf))
        yield from (own for own, _ in _copies(call, call))

    def unrecordable(self) -> str | None:
        """Why a recording can't stand for them, if it can't."""
        others = [leaf for leaf in self.leaves if not is_array(leaf)]
        if any(issubclass(type(leaf), _CHANGING) or _has_buffer(leaf) for leaf in others):
            return "an argument is an iterator, or a collection that may change"
        if any(issubclass(type(leaf), tuple) for leaf in others):
            return "an argument is of a class of its own that is a tuple"
        return None


class Given:
    """What a function is given while it is recorded: placeholders instead of arrays."""

    def __init__(self, arguments: Arguments, recorder: _core._Recorder, call: Any) -> None:
        self._leaves = arguments.leaves
        self._are_numpy = arguments.are_numpy()
        given: list[Any] = []
        for leaf, first in zip(arguments.leaves, arguments.firsts(), strict=True):
            again = given[first] if first < len(given) else recorder.placeholder(leaf)
            given.append(leaf if again is None else again)
        self._given = given
        # The leaf that each placeholder stands for.
        pairs = enumerate(zip(given, arguments.leaves, strict=True))
        self.places = {id(one): at for at, (one, leaf) in reversed([*pairs]) if one is not leaf}
        self.args, self.kwargs = put_together(arguments.spec, "input", given)
        # Lists and dicts are copies, which have placeholders in them.
        self._copies = list(_copies(call, (self.args, self.kwargs)))
        self._owns = {id(copy): own for own, copy in self._copies}

    def is_copy(self, value: Any) -> bool:
        return id(value) in self._owns

    def hand_back(self) -> bool:
        """Change the caller's lists and dicts as the copies were; whether any was."""
        changed = False
        for own, copy in self._copies:
            if isinstance(own, dict):
                new = {key: self.own(item) for key, item in copy.items()}
                same = list(new) == list(own) and all(new[key] is own[key] for key in own)
                if not same:
                    own.clear()
                    own.update(new)
            else:
                items = [self.own(item) for item in copy]
                same = len(items) == len(own) and all(
                    a is b for a, b in zip(items, own, strict=True)
                )
                if not same:
                    own[:] = items
            changed |= not same
        return changed

    def own(self, value: Any) -> Any:
        """The caller's object that an object stands for."""
        place = self.places.get(id(value))
        if place is not None:
            return self._leaves[place]
        return self._owns.get(id(value), value)

    def result(self, result: Any, held: Iterable[Any]) -> Any:
        """The result of a function that ran, with the caller's objects; `held` it had before."""
        before = {id(value) for value in held}

        def own(value: Any) -> Any:
            found = self.own(value)
            is_new = isinstance(found, _core.Tensor) and id(found) not in before
            is_new = is_new and found is value and self._are_numpy
            return _core._for_numpy(value) if is_new else found

        try:
            return replaced(result, own)
        except RecursionError:
            # It is in itself, or too deep, and stays as the function made it.
            return result

    def forget(self) -> None:
        """Drop the placeholders."""
        self._given, self.args, self.kwargs, self._copies, self._owns = [], (), {}, [], {}


def replaced(tree: Any, own: Any) -> Any:
    """A tree with other leaves: lists and dicts are changed where they are."""
    other = own(tree)
    if other is not tree or not is_tree(tree):
        return other
    if type(tree) is dict:
        for key, item in tree.items():
            tree[key] = replaced(item, own)
        return tree
    items = [replaced(item, own) for item in tree]
    if all(new is old for new, old in zip(items, tree, strict=True)):
        return tree
    if type(tree) is list:
        tree[:] = items
        return tree
    return tuple(items) if type(tree) is tuple else type(tree)(*items)


def _is_odd(rest: list[Any]) -> bool:
    seen: set[int] = set()
    count = 0
    while rest:
        tree = rest.pop()
        if not is_tree(tree):
            continue
        count += len(tree)
        # One tuple in two places can't be told from two equal ones by what it holds.
        if count > _MAX_LEAVES or (id(tree) in seen and type(tree) in (list, dict)):
            return True
        seen.add(id(tree))
        rest += tree.values() if type(tree) is dict else tree
    return False


def _copies(own: Any, copy: Any) -> Iterator[tuple[Any, Any]]:
    """The lists and dicts in arguments, each with what was put together for it."""
    rest = [*zip(own[0], copy[0], strict=True), *((own[1][key], copy[1][key]) for key in own[1])]
    while rest:
        one, other = rest.pop()
        if not is_tree(one):
            continue
        if not isinstance(one, tuple):
            yield one, other
        if type(one) is dict:
            rest += [(item, other[key]) for key, item in one.items()]
        else:
            rest += zip(one, other, strict=True)


def _key(spec: Spec) -> Any:
    """A structure of arguments as something to compare and hash; its leaves are left out."""
    if "tuple" in spec:
        return ("tuple", spec["class"], *map(_key, spec["tuple"]))
    if "list" in spec:
        return ("list", *map(_key, spec["list"]))
    if "dict" in spec:
        return ("dict", *((_exact(key), _key(item)) for key, item in spec["dict"]))
    return None


def _exact(key: Any) -> Any:
    """A key of a dict such that only equal ones of equal types are equal: 0.0 is -0.0 otherwise."""
    if isinstance(key, tuple):
        return (type(key), *map(_exact, key))
    return (type(key), repr(key) if type(key) in (float, complex) else key)


def _form(leaf: Any) -> Any:
    """The form of an argument, to remember what can't be recorded."""
    if is_array(leaf):
        return (str(leaf.dtype), leaf.shape, leaf.strides)
    return (type(leaf), leaf if type(leaf) in (int, float, str, bool, complex) else id(leaf))


def _has_buffer(leaf: Any) -> bool:
    """Whether an object shows memory that may change, as a `ctypes` array does."""
    if type(leaf) in _NUMBERS:
        return False
    try:
        memoryview(leaf).release()
    except Exception:
        return False
    return not isinstance(leaf, bytes)
