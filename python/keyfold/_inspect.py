"""Looking inside: an operator's table and the explanation of a call, as data and for people."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from keyfold import _core
from keyfold._dispatch._keys import DispatchKey
from keyfold._show import _html, _text

__all__ = ["Choice", "Explanation", "OperatorTable", "annotations_of", "signature_of"]

_COMPOSITES = ("CompositeExplicitAutograd", "CompositeImplicitAutograd")


class OperatorTable(Mapping[str, "_core.TableEntry"]):
    """An operator's computed table: from a runtime key's name to its entry.

    Keys with nothing are absent. Its text, and HTML in notebooks, have one line for what is the
    same for several backends.
    """

    def __init__(self, operator: str, rows: dict[str, _core.TableEntry]) -> None:
        self.operator = operator
        self._rows_by_key = rows

    def __getitem__(self, key: object) -> _core.TableEntry:
        return self._rows_by_key[str(key)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows_by_key)

    def __len__(self) -> int:
        return len(self._rows_by_key)

    def _rows(self) -> tuple[list[str], list[list[str]]]:
        """Heads and cells: layers first, and one row for backends that have the same."""
        rank = {str(key): -number for number, key in enumerate(DispatchKey)}
        backends = [str(key) for key in DispatchKey if key.is_backend][::-1]
        shared: dict[tuple[str, ...], list[str]] = {}
        for entry in self._rows_by_key.values():
            layer = entry.functionality or ""
            shared.setdefault((layer, *_described(entry)), []).append(entry.backend)
        order = sorted(shared, key=lambda row: (row[0] == "", rank.get(row[0], 0)))
        rows = [[_keys(row, shared[row], backends), *row[1:]] for row in order]
        # A column that is empty in every row is left out.
        heads = ["key", "kernel", "where", "registered as"]
        kept = [at for at in range(4) if at < 2 or any(row[at] for row in rows)]
        return [heads[at] for at in kept], [[row[at] for at in kept] for row in rows]

    def _lines(self, width: int = _text.WIDTH, indent: int = 0) -> list[str]:
        heads, rows = self._rows()
        rows = [[_text.shorten(cell) for cell in row] for row in rows]
        paths = [at for at, head in enumerate(heads) if head == "where"]
        return _text.table(rows, heads, width=width, indent=indent, paths=paths)

    def __str__(self) -> str:
        if not self._rows_by_key:
            return f"{self.operator}: no kernels"
        return "\n".join([self.operator, *self._lines()])

    __repr__ = __str__

    def _html(self) -> str:
        """The table alone."""
        return _html.table(*self._rows()) if self._rows_by_key else _html.notes(["no kernels"])

    def _repr_html_(self) -> str:
        return _html.page(_html.code(self.operator), self._html())


def _described(entry: _core.TableEntry) -> tuple[str, str, str]:
    """A kernel, where it is written, and as what it is registered if not at the key itself."""
    if entry.rule == "Fallback":
        by = "fallback"
    else:
        by = entry.registered_at if entry.registered_at in _COMPOSITES else ""
    if entry.kernel is _core.fallthrough:
        return "fallthrough", "", by
    if entry.source == "built in":
        return entry.origin, "", by
    text, of_expression, _ = entry.origin.rpartition(" (expression, ")
    name = text.removesuffix(f".{entry.name}") if of_expression else entry.name
    # The enclosing function is clear from the place.
    return name.rpartition("<locals>.")[2], entry.source, by


def _keys(row: tuple[str, ...], some: list[str], backends: list[str]) -> str:
    """The runtime keys of a row: those of its layer, or of none, for some of the backends."""
    layer, *_, registered_as = row
    others = [backend for backend in backends if backend not in some]
    if not others and len(some) > 1:
        return layer or "every backend"
    if (layer or registered_as) and len(others) < len(some):
        return f"{layer or 'every backend'} but {', '.join(layer + other for other in others)}"
    return ", ".join(layer + backend for backend in some)


@dataclass(frozen=True)
class Choice:
    """A kernel that would run, and why."""

    key: Any
    runtime_key: str
    registered_at: str
    rule: str
    because: str
    origin: str
    kernel: Any
    losers: list[tuple[str, str, str]] = field(default_factory=list)
    shadows: list[str] = field(default_factory=list)


class Explanation:
    """What a call would do: nothing of it ran.

    Attributes:
        operator: the operator.
        arguments: `(name, key set, device)` of each argument that brings keys.
        included: keys that calls gain here.
        excluded: keys that calls lose here.
        keyset: the call's set after includes and excludes.
        backend: the backend whose row of the table applies.
        skipped: modes that are passed by.
        choice: the kernel that would run; None where the call would fail.
        next: where a redispatch below each layer would go.
        error: what the call would raise; None where it would work.
    """

    def __init__(
        self,
        *,
        operator: _core.Operator,
        rows: list[tuple[str, str]],
        arguments: list[tuple[str, _core.DispatchKeySet, _core.Device | None]],
        included: _core.DispatchKeySet,
        excluded: _core.DispatchKeySet,
        keyset: _core.DispatchKeySet,
        backend: Any,
        skipped: _core.DispatchKeySet,
        default_backend: bool,
        error: str | None,
        choice: dict[str, Any] | None,
        next: list[dict[str, Any]],
    ) -> None:
        self.operator = operator
        self.arguments = arguments
        self.included = included
        self.excluded = excluded
        self.keyset = keyset
        self.backend = backend
        self.skipped = skipped
        self.default_backend = default_backend
        self.error = error
        self.choice = None if choice is None else Choice(**choice)
        self.next = [Choice(**data) for data in next]
        self._rows = rows

    @property
    def key(self) -> Any:
        """The chosen key; None where the call would fail."""
        return None if self.choice is None else self.choice.key

    @property
    def kernel(self) -> Any:
        """The kernel that would run: the registered function; None where the call would fail."""
        return None if self.choice is None else self.choice.kernel

    @property
    def rule(self) -> str | None:
        """By which rule that kernel is in the table."""
        return None if self.choice is None else self.choice.rule

    def _lines(self, width: int = _text.WIDTH) -> list[str]:
        rows = [(head, _text.shorten(text)) for head, text in self._rows]
        title = _text.folded([str(self.operator.schema)], width=width)
        return [*title, *_text.pairs(rows, width=width)]

    def __str__(self) -> str:
        return "\n".join(self._lines())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return _html.page(_html.code(self.operator.schema), _html.pairs(self._rows))


# The schema's types as Python's. An array is of any library.
_TYPES: dict[str, Any] = {
    "Tensor": Any,
    "Tensor[]": Sequence[Any],
    "Scalar": complex,
    "ScalarType": Any,
    "str": str,
    "bool": bool,
    "float": float,
    "int": int,
    "int[]": Sequence[int],
    **dict.fromkeys(["int[1]", "int[2]", "int[3]"], int | Sequence[int]),
}


def annotations_of(parameters: list[tuple[str, str]]) -> dict[str, Any]:
    """Return the annotations of a function that returns an array.

    Args:
        parameters: names and types, as in a schema.
    """
    types = {name: _TYPES[ty.removesuffix("?")] for name, ty in parameters}
    optional = {name: types[name] | None for name, ty in parameters if ty.endswith("?")}
    return types | optional | {"return": Any}


def signature_of(parameters: str, annotations: Mapping[str, Any]) -> inspect.Signature:
    """Return the signature of a function.

    Args:
        parameters: its parameters, as in a definition without types.
        annotations: their types, and the result's as `return`.
    """
    signature = inspect.signature(eval(f"lambda {parameters}: None"))
    typed = [p.replace(annotation=annotations[p.name]) for p in signature.parameters.values()]
    return signature.replace(parameters=typed, return_annotation=annotations["return"])
