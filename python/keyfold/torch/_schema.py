"""Schemas as data, and as the text that each of the two libraries reads.

The grammars are nearly one. What differs: torch reads some defaults wrongly or not at all, and
tells in-place and out operators by a tag; keyfold has fewer types.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from keyfold._errors import SchemaError

_KEYFOLD_TYPES = (
    *("Tensor", "Scalar", "int", "float", "bool", "complex", "str"),
    *("Device", "ScalarType", "Layout", "MemoryFormat", "Generator", "Any"),
)
_OPENING, _CLOSING = "([", ")]"


@dataclass(frozen=True)
class Argument:
    """One argument of a schema.

    Attributes:
        type: without the alias: `Tensor?[]`, `int[2]`.
        alias: what stands between the parentheses: `a!`; empty for none.
        name: its name.
        default: as the schema writes it; None for a required argument.
        keyword: whether it comes after the `*`.
    """

    type: str
    alias: str
    name: str
    default: str | None = None
    keyword: bool = False

    @property
    def is_tensor(self) -> bool:
        """Whether it is a tensor, an optional one, or a list of such."""
        return self.type.startswith("Tensor")

    @property
    def is_list(self) -> bool:
        """Whether it is a list."""
        return "[" in self.type

    @property
    def is_written(self) -> bool:
        """Whether the operator writes to it."""
        return "!" in self.alias

    @property
    def sets(self) -> frozenset[str]:
        """The alias sets that it is in, before and after the call."""
        return frozenset(re.findall(r"[\w*]+", self.alias))

    def text(self) -> str:
        """The argument in a schema."""
        head = f"{_with_alias(self.type, self.alias)} {self.name}"
        return head if self.default is None else f"{head}={self.default}"


@dataclass(frozen=True)
class Schema:
    """An operator's schema.

    Attributes:
        namespace: before the `::`.
        name: its name, without the overload.
        overload: empty for the default one.
        arguments: in order.
        returns: in order; names are empty where there are none.
    """

    namespace: str
    name: str
    overload: str
    arguments: tuple[Argument, ...]
    returns: tuple[Argument, ...]

    @property
    def local_name(self) -> str:
        """The name without its namespace: `name.overload`."""
        return f"{self.name}.{self.overload}" if self.overload else self.name

    @property
    def full_name(self) -> str:
        """`namespace::name.overload`."""
        return f"{self.namespace}::{self.local_name}"

    @property
    def written(self) -> list[Argument]:
        """The arguments that the operator writes to."""
        return [argument for argument in self.arguments if argument.is_written]

    @property
    def is_view(self) -> bool:
        """Whether a result may share memory with an argument that isn't written to."""
        read: frozenset[str] = frozenset().union(
            *(a.sets for a in self.arguments if not a.is_written)
        )
        return any(r.alias and (r.sets & read or "*" in r.sets) for r in self.returns)

    def text(self, *, qualified: bool) -> str:
        """The schema as text, with its namespace or without."""
        parts: list[str] = []
        for argument in self.arguments:
            if argument.keyword and "*" not in parts:
                parts.append("*")
            parts.append(argument.text())
        results = [f"{_with_alias(r.type, r.alias)} {r.name}".rstrip() for r in self.returns]
        if len(results) == 1 and not self.returns[0].name:
            returned = results[0]
        else:
            returned = f"({', '.join(results)})"
        name = self.full_name if qualified else self.local_name
        return f"{name}({', '.join(parts)}) -> {returned}"

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The values of a call that fits, one per argument; MISSING where a default applies."""
        values = list(args)
        for argument in self.arguments[len(args) :]:
            values.append(kwargs.get(argument.name, MISSING))
        return values

    def split(self, values: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        """The opposite of `bind`: positional values and those to be given by name."""
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        by_name = False
        for argument, value in zip(self.arguments, values, strict=True):
            # After one that is left out, only names say which one is meant.
            by_name = by_name or argument.keyword or value is MISSING
            if value is MISSING:
                continue
            if by_name:
                kwargs[argument.name] = value
            else:
                args.append(value)
        return args, kwargs


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Any = _Missing()


def _with_alias(kind: str, alias: str) -> str:
    return kind.replace("Tensor", f"Tensor({alias})", 1) if alias else kind


def parse(text: str) -> Schema:
    """Read a schema that one of the two libraries has printed."""
    name, rest = text.split("(", 1)
    end = _closing(rest)
    namespace, _, local = name.strip().rpartition("::")
    base, _, overload = local.partition(".")
    keyword = False
    arguments = []
    for part in _split(rest[:end]):
        if part == "*":
            keyword = True
        else:
            arguments.append(_argument(part, keyword))
    after = rest[end + 1 :].strip()
    returned = after.removeprefix("->").strip()
    if returned.startswith("("):
        returned = returned[1:-1]
    returns = tuple(_argument(part, False) for part in _split(returned))
    return Schema(namespace, base, overload, tuple(arguments), returns)


def _argument(text: str, keyword: bool) -> Argument:
    head, default = text, None
    at = next((i for i, c in _outside(text) if c == "="), None)
    if at is not None:
        head, default = text[:at].strip(), text[at + 1 :].strip()
    alias = ""
    found = re.match(r"Tensor(\?)?\(([^)]*)\)", head)
    if found:
        alias = found[2]
        head = f"Tensor{found[1] or ''}{head[found.end() :]}"
        # torch prints a list of optional tensors so: Tensor?(a!)[].
    kind, _, name = head.partition(" ")
    return Argument(kind, alias, name.strip(), default, keyword)


def _outside(text: str) -> Iterator[tuple[int, str]]:
    """The characters outside of brackets and strings, with their places."""
    depth, quote, skip = 0, "", False
    for i, c in enumerate(text):
        if quote:
            if skip:
                skip = False
            elif c == "\\":
                skip = True
            elif c == quote:
                quote = ""
        elif c in "\"'":
            quote = c
        elif c in _OPENING:
            depth += 1
        elif c in _CLOSING:
            depth -= 1
            if depth < 0:
                yield i, c
                depth = 0
        elif depth == 0:
            yield i, c


def _closing(text: str) -> int:
    return next(i for i, c in _outside(text) if c == ")")


def _split(text: str) -> list[str]:
    parts, begin = [], 0
    for i, c in _outside(text):
        if c == ",":
            parts.append(text[begin:i])
            begin = i + 1
    parts.append(text[begin:])
    return [part.strip() for part in parts if part.strip()]


def _torch_reads(argument: Argument) -> bool:
    """Whether torch reads the default as keyfold means it."""
    default = argument.default
    if default is None or default == "None":
        return True
    base = re.split(r"[?\[]", argument.type)[0]
    if base in ("complex", "ScalarType", "Layout", "MemoryFormat"):
        # torch takes the default 1.0 of a complex for 1j, and enumerators, if at all, for numbers.
        return False
    if base in ("float", "Scalar") and re.search("inf|nan", default):
        return False
    if argument.is_list:
        return base in ("int", "float", "bool") and not re.match(r"\w+\?", argument.type)
    return True


def to_torch(schema: Schema, namespace: str, name: str, overload: str) -> Schema:
    """The schema of a keyfold operator as torch can have it, under another name.

    Raises:
        SchemaError: torch can't express it.
    """
    written = [a for a in schema.arguments if a.is_written]
    arguments = []
    # torch differentiates no keyword-only tensors: all may be given by position, then.
    flat = not written and any(a.keyword and a.is_tensor for a in schema.arguments)
    for argument in schema.arguments:
        if argument.name in ("def", "None", "True", "False"):
            raise SchemaError(
                f"{schema.full_name}: torch can't have an argument of the name {argument.name!r}"
            )
        kind, default = argument.type, argument.default
        sized = re.fullmatch(r"\w+\[(\d+)\]\?", kind)
        if sized and default not in (None, "None") and not str(default).startswith("["):
            default = f"[{', '.join([str(default)] * int(sized[1]))}]"
        if not _torch_reads(argument):
            if kind.endswith("?"):
                raise SchemaError(
                    f"{schema.full_name}: torch can't read the default of "
                    f"{argument.text()!r}, and None, which would stand for it, is a value of its "
                    "own there; give the argument another default or none"
                )
            kind, default = f"{kind}?", "None"
        alias = argument.alias if argument.is_written else ""
        arguments.append(
            Argument(kind, alias, argument.name, default, argument.keyword and not flat)
        )
    returns = []
    for result in schema.returns:
        source = next((a for a in written if result.sets & a.sets), None)
        returns.append(Argument(result.type, source.alias if source else "", result.name))
    made = Schema(namespace, name, overload, tuple(arguments), tuple(returns))
    aliased = [result for result in returns if result.alias]
    if aliased and not is_in_place(made) and not is_out(made):
        raise SchemaError(
            f"{schema.full_name}: torch can't express that {len(aliased)} of its results are "
            "arguments that it writes to: an operator gives back its first argument and writes to "
            "no other, or all of its keyword-only `out` arguments in their order, or none "
            f"(`-> ()`): {schema.text(qualified=True)}"
        )
    return made


def is_in_place(schema: Schema) -> bool:
    """Whether an operator writes to its first argument and gives back just that."""
    return (
        len(schema.written) == 1
        and len(schema.returns) == 1
        and schema.arguments[0].is_written
        and schema.arguments[0].type == schema.returns[0].type == "Tensor"
        and not schema.arguments[0].keyword
        and schema.returns[0].sets == schema.arguments[0].sets
    )


def is_out(schema: Schema) -> bool:
    """Whether an operator writes to keyword-only tensors and gives back just those, in order."""
    return (
        bool(schema.written)
        and all(a.keyword and a.type == "Tensor" for a in schema.written)
        and [a.sets for a in schema.written] == [r.sets for r in schema.returns]
    )


_TORCH_DTYPE_CODES = {
    0: "uint8", 1: "int8", 2: "int16", 3: "int32", 4: "int64", 5: "float16", 6: "float32",
    7: "float64", 9: "complex64", 10: "complex128", 11: "bool", 15: "bfloat16", 27: "uint16",
    28: "uint32", 29: "uint64",
}  # fmt: skip


def to_keyfold(text: str, namespace: str, name: str, overload: str) -> Schema:
    """The schema of a torch operator as keyfold can have it, under another name.

    Raises:
        SchemaError: it has a type that keyfold has not, or a default.
    """
    schema = parse(text)
    for part in (*schema.arguments, *schema.returns):
        base = re.split(r"[?\[]", part.type)[0].replace("SymInt", "int")
        if base not in _KEYFOLD_TYPES:
            raise SchemaError(
                f"{schema.full_name}: keyfold has no type {part.type!r} "
                f"({'argument ' + repr(part.name) if part in schema.arguments else 'a result'}); "
                f"it has {', '.join(sorted(_KEYFOLD_TYPES))}: {text}"
            )
    arguments = []
    for argument in schema.arguments:
        kind = argument.type.replace("SymInt", "int")
        default = argument.default
        if default is not None and default != "None":
            default = _keyfold_default(schema, argument, default)
        arguments.append(Argument(kind, argument.alias, argument.name, default, argument.keyword))
    returns = tuple(
        Argument(r.type.replace("SymInt", "int"), r.alias, r.name) for r in schema.returns
    )
    return Schema(namespace, name, overload, tuple(arguments), returns)


def _keyfold_default(schema: Schema, argument: Argument, default: str) -> str:
    """A default that torch prints, as keyfold writes it."""
    base = re.split(r"[?\[]", argument.type)[0]
    if base == "ScalarType" and default.lstrip("-").isdigit():
        named = _TORCH_DTYPE_CODES.get(int(default))
        if named is None:
            raise SchemaError(
                f"{schema.full_name}: the default of {argument.text()!r} is a dtype that keyfold "
                "has not"
            )
        return named
    if base == "Layout" and default == "0":
        return "strided"
    if base == "MemoryFormat" and default == "0":
        return "contiguous_format"
    if base == "Device" and not default.startswith(('"', "'")):
        return f'"{default}"'
    if base == "complex":
        raise SchemaError(
            f"{schema.full_name}: keyfold can't read the default of {argument.text()!r}"
        )
    return default
