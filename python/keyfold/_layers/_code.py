"""What a function's bytecode reads and assigns."""

from __future__ import annotations

import dis
import types
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["IMPLICIT", "OF_NEW", "UNCALLED", "Scan", "scan"]

# Methods that set the attributes of a new object, which nothing else has seen.
_MAKERS = frozenset({"__init__", "__post_init__", "__set_name__"})

# Special methods that a call with an object doesn't run: it was made before, and isn't copied.
UNCALLED = _MAKERS | {
    "__new__", "__setattr__", "__delattr__", "__del__", "__repr__", "__str__", "__format__",
    "__dir__", "__sizeof__", "__copy__", "__deepcopy__", "__reduce__", "__reduce_ex__",
    "__getstate__", "__setstate__", "__getnewargs__", "__getnewargs_ex__", "__init_subclass__",
}  # fmt: skip
# Those that are run where the class is called.
OF_NEW = _MAKERS | {"__new__", "__setattr__"}
# Those that code runs without naming them, if a class has them.
IMPLICIT = ("__bool__", "__len__", "__eq__", "__call__", "__getattr__", "__getattribute__")

# Methods and functions whose effect a recording wouldn't have, by name.
_EFFECTS = frozenset({"backward", "manual_seed", "requires_grad_", "set_rng_state", "set_state"})

# Names by which code sets attributes whose names aren't in its instructions.
_SETTERS = frozenset({"setattr", "delattr", "__setattr__", "__delattr__"})

# Names by which code reads attributes whose names aren't in its instructions.
_LOOKUPS = frozenset(
    {"getattr", "hasattr", "vars", "dir", "attrgetter", "__dict__", "__getattribute__"}
)

_GLOBAL_LOADS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_ATTRIBUTE_LOADS = frozenset(
    {"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "LOAD_SUPER_METHOD", "IMPORT_FROM"}
)


_VARIABLE_LOADS = _GLOBAL_LOADS | {"LOAD_DEREF", "LOAD_CLASSDEREF"}
_CATCHES = frozenset({"CHECK_EXC_MATCH", "CHECK_EG_MATCH", "MATCH_CLASS"})

# Methods and functions that write to NumPy arrays, by name.
_WRITERS = frozenset({"fill", "put", "itemset", "sort", "partition", "copyto", "putmask", "place"})


class Scan(NamedTuple):
    """What a function's code does, the functions inside it included.

    Attributes:
        variables: the globals and builtins that it reads.
        attributes: the names of the attributes that it reads.
        paths: attributes of attributes of variables, as `("np", "random", "rand")`.
        modules: the modules that it imports, each with the number of dots before it.
        looks_up: whether it reads attributes by computed names.
        catches: whether it may go on where an attribute is missing.
        stores_items: whether it assigns items of containers.
        writes: whether it may write to NumPy arrays.
        effect: the reason why it has an effect besides its results; None if none is seen.
    """

    variables: tuple[str, ...]
    attributes: tuple[str, ...]
    paths: tuple[tuple[str, ...], ...]
    modules: tuple[tuple[str, int], ...]
    looks_up: bool
    catches: bool
    stores_items: bool
    writes: bool
    effect: str | None


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


_SCANNED: dict[types.CodeType, Scan] = {}
_MAX_SCANNED = 512


def scan(code: types.CodeType) -> Scan:
    """Scan the code of a function."""
    # Decoding takes about 4 us per instruction, and layers share their classes' code.
    if (known := _SCANNED.get(code)) is None:
        if len(_SCANNED) >= _MAX_SCANNED:
            _SCANNED.clear()
        known = _SCANNED[code] = _scan(code)
    return known


def _scan(code: types.CodeType) -> Scan:
    variables: dict[str, None] = {}
    attributes: dict[str, None] = {}
    paths: dict[tuple[str, ...], None] = {}
    modules: dict[tuple[str, int], None] = {}
    looks_up, catches, stores_items, writes = False, False, False, False
    effect: str | None = None
    for part in _codes(code):
        before: dis.Instruction | None = None
        path: tuple[str, ...] = ()
        level: object = 0
        raised = False
        for one in dis.get_instructions(part):
            loaded, path = path, ()
            if one.opname in _GLOBAL_LOADS:
                variables[one.argval] = None
            elif one.opname in _ATTRIBUTE_LOADS:
                attributes[one.argval] = None
                path = (*loaded, one.argval) if loaded else ()
            elif one.opname == "IMPORT_NAME":
                modules[one.argval, level if isinstance(level, int) else 0] = None
            elif one.opname in ("STORE_SUBSCR", "DELETE_SUBSCR"):
                stores_items = True
            elif one.opname == "MATCH_CLASS" and before is not None:
                # The keywords of a pattern; others are named by the class.
                names = before.argval if isinstance(before.argval, tuple) else ()
                attributes.update(dict.fromkeys((*names, "__match_args__")))
            elif effect is None:
                effect = _assigned(one, before, part, code.co_freevars)
            if one.opname in _VARIABLE_LOADS:
                path = (one.argval,)
            if len(path) > 1:
                paths[path] = None
            catches |= one.opname in _CATCHES
            catches |= one.opname == "POP_TOP" and raised
            raised = one.opname == "PUSH_EXC_INFO"
            writes |= one.opname == "BINARY_OP" and one.argrepr.endswith("=")
            # The number of dots is the last constant but one before an import.
            level = None if before is None else before.argval
            before = one
        effects = _EFFECTS - {"requires_grad_"} if part.co_name in _MAKERS else _EFFECTS
        called = next((name for name in part.co_names if name in effects), None)
        if effect is None and called is not None:
            effect = f"it calls {called}"
        is_maker = part.co_name in OF_NEW
        if effect is None and not is_maker and not _SETTERS.isdisjoint(part.co_names):
            effect = "it sets attributes by functions"
        catches |= "suppress" in part.co_names
        keywords = (names for names in part.co_consts if isinstance(names, tuple))
        writes |= not _WRITERS.isdisjoint(part.co_names)
        writes |= any("out" in names for names in keywords)
        if not _LOOKUPS.isdisjoint(part.co_names):
            looks_up = True
            texts = (text for text in part.co_consts if isinstance(text, str))
            attributes.update(dict.fromkeys(text for text in texts if text.isidentifier()))
    return Scan(
        tuple(variables), tuple(attributes), tuple(paths), tuple(modules),
        looks_up, catches, stores_items, writes or stores_items, effect,
    )  # fmt: skip


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
    if place == "ATTR" and not (code.co_name in _MAKERS and _loads_self(before, code)):
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
