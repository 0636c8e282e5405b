"""What a function's bytecode reads and assigns."""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["MAKERS", "Scan", "scan"]

# Methods that set the attributes of a new object, which nothing else has seen.
MAKERS = frozenset({"__init__", "__post_init__", "__set_name__"})

# Methods and functions whose effect a recording wouldn't have, by name.
_EFFECTS = frozenset({"backward", "manual_seed", "requires_grad_", "set_rng_state", "set_state"})

# Names by which code reads attributes whose names aren't in its instructions.
_LOOKUPS = frozenset(
    {"getattr", "hasattr", "vars", "dir", "attrgetter", "__dict__", "__getattribute__"}
)

_GLOBAL_LOADS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_ATTRIBUTE_LOADS = frozenset(
    {"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "LOAD_SUPER_METHOD", "IMPORT_FROM"}
)


class Scan(NamedTuple):
    """What a function's code does, the functions inside it included.

    Attributes:
        variables: the globals and builtins that it reads.
        attributes: the names of the attributes that it reads.
        modules: the modules that it imports.
        looks_up: whether it reads attributes by computed names.
        stores_items: whether it assigns items of containers.
        effect: the reason why it has an effect besides its results; None if none is seen.
    """

    variables: tuple[str, ...]
    attributes: tuple[str, ...]
    modules: tuple[str, ...]
    looks_up: bool
    stores_items: bool
    effect: str | None


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


# Decoding takes about 4 us per instruction, and layers share their classes' code.
@functools.lru_cache(maxsize=512)
def scan(code: types.CodeType) -> Scan:
    """Scan the code of a function."""
    variables: dict[str, None] = {}
    attributes: dict[str, None] = {}
    modules: dict[str, None] = {}
    looks_up, stores_items = False, False
    effect: str | None = None
    for part in _codes(code):
        before: dis.Instruction | None = None
        for one in dis.get_instructions(part):
            if one.opname in _GLOBAL_LOADS:
                variables[one.argval] = None
            elif one.opname in _ATTRIBUTE_LOADS:
                attributes[one.argval] = None
            elif one.opname == "IMPORT_NAME":
                modules[one.argval] = None
            elif one.opname in ("STORE_SUBSCR", "DELETE_SUBSCR"):
                stores_items = True
            elif effect is None:
                effect = _assigned(one, before, part, code.co_freevars)
            before = one
        effects = _EFFECTS - {"requires_grad_"} if part.co_name in MAKERS else _EFFECTS
        called = next((name for name in part.co_names if name in effects), None)
        if effect is None and called is not None:
            effect = f"it calls {called}"
        if not _LOOKUPS.isdisjoint(part.co_names):
            looks_up = True
            texts = (text for text in part.co_consts if isinstance(text, str))
            attributes.update(dict.fromkeys(text for text in texts if text.isidentifier()))
    return Scan(tuple(variables), tuple(attributes), tuple(modules), looks_up, stores_items, effect)


def _assigned(
    one: dis.Instruction,
    before: dis.Instruction | None,
    code: types.CodeType,
    enclosing: tuple[str, ...],
) -> str | None:
    """The reason why an instruction has an effect: it assigns what outlives the call."""
    kind, _, place = one.opname.partition("_")
    if kind not in ("STORE", "DELETE"):
        return None
    if place == "GLOBAL" or (place == "DEREF" and one.argval in enclosing):
        return f"it assigns the variable {one.argval}, which isn't its own"
    if place == "ATTR" and not (code.co_name in MAKERS and _loads_self(before, code)):
        return f"it assigns an attribute, {one.argval}"
    return None


def _loads_self(one: dis.Instruction | None, code: types.CodeType) -> bool:
    """Whether the instruction before an assignment of an attribute loads the first parameter."""
    if one is None or code.co_argcount == 0:
        return False
    # From CPython 3.13 on, one instruction may load two variables, or store one and load another.
    loaded = one.argval[-1] if isinstance(one.argval, tuple) else one.argval
    is_own = "LOAD_FAST" in one.opname or one.opname == "LOAD_DEREF"
    return is_own and bool(loaded == code.co_varnames[0])
