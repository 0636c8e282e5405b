"""`Schema`: an operator's schema as text, and as what the text says."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from keyfold import _core

__all__ = ["Schema", "SchemaArgument", "SchemaReturn"]


@dataclass(frozen=True)
class SchemaReturn:
    """One result that a schema declares.

    Attributes:
        name: its name; None where it has none.
        type: its type as the schema spells it, without alias sets: `Tensor`, `int[]`.
        alias_sets: the sets of the arguments that its memory may be that of; `*` is any set.
        alias_sets_after: the sets that it is in when the call ends, where `->` says so.
        writes: whether it is marked as written, with `!`.
    """

    name: str | None
    type: str
    alias_sets: frozenset[str]
    alias_sets_after: frozenset[str]
    writes: bool

    @property
    def is_tensor(self) -> bool:
        """Whether it is a tensor, an optional one or a list of such."""
        return self.type.startswith("Tensor")


@dataclass(frozen=True)
class SchemaArgument:
    """One argument that a schema declares.

    Attributes:
        name: its name.
        type: its type as the schema spells it, without alias sets: `Tensor?[]`, `int[2]`.
        required: whether a call has to give it: it has no default.
        default: what kernels get where a call leaves it out, a list there, a tuple here, for
            `int[2] stride=1`; None of an argument that is required.
        kwarg_only: whether a call has to name it: it stands behind the `*`.
        alias_sets: the alias sets that it is in. A result that shares a set may share its memory.
        alias_sets_after: the sets that it is in when the call ends, where `->` says so.
        writes: whether the operator writes to it, marked with `!`.
    """

    name: str
    type: str
    required: bool
    default: Any
    kwarg_only: bool
    alias_sets: frozenset[str]
    alias_sets_after: frozenset[str]
    writes: bool

    @property
    def is_tensor(self) -> bool:
        """Whether it is a tensor, an optional one or a list of such."""
        return self.type.startswith("Tensor")


class Schema(str):
    """An operator's schema: the canonical text, and what it says.

    >>> schema = Schema("ns::scale_(Tensor! x, float k=2) -> ()")
    >>> print(schema)
    ns::scale_(Tensor(a0!) x, float k=2.0) -> ()
    >>> [(a.name, a.type, a.writes) for a in schema.arguments]
    [('x', 'Tensor', True), ('k', 'float', False)]

    Args:
        text: a schema, in any spelling that `keyfold.define` takes.

    Raises:
        SchemaError: the text doesn't parse; a caret shows where.
    """

    def __new__(cls, text: str) -> Self:
        """Read a schema's text."""
        return super().__new__(cls, _core._canonical_schema(text))

    @cached_property
    def _parts(self) -> tuple[Any, ...]:
        return _core._schema_parts(self)

    @property
    def name(self) -> str:
        """The operator's name without the overload: `ns::name`."""
        name: str = self._parts[0]
        return name

    @property
    def overload(self) -> str:
        """The overload's name; `"default"` where it has none."""
        overload: str = self._parts[1]
        return overload or "default"

    @cached_property
    def arguments(self) -> tuple[SchemaArgument, ...]:
        """The arguments as declared: those behind the `*` come last."""
        return tuple(
            SchemaArgument(
                name,
                kind,
                required,
                tuple(default) if isinstance(default, list) else default,
                kwarg_only,
                frozenset(sets),
                frozenset(after),
                writes,
            )
            for name, kind, required, default, kwarg_only, (sets, after, writes) in self._parts[2]
        )

    @cached_property
    def returns(self) -> tuple[SchemaReturn, ...]:
        """The results; none of `-> ()`."""
        return tuple(
            SchemaReturn(name, kind, frozenset(sets), frozenset(after), writes)
            for name, kind, (sets, after, writes) in self._parts[3]
        )
