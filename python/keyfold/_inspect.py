"""Looking inside: an operator's table and the explanation of a call, as data and for people."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from keyfold import _core

__all__ = ["Choice", "Explanation", "OperatorTable"]


class OperatorTable(Mapping[str, "_core.TableEntry"]):
    """An operator's computed table: from a runtime key's name to its entry.

    Keys with nothing are absent. `str()` gives a text table, notebooks show HTML.
    """

    def __init__(self, operator: str, rows: dict[str, _core.TableEntry]) -> None:
        self.operator = operator
        self._rows = rows

    def __getitem__(self, key: object) -> _core.TableEntry:
        return self._rows[str(key)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def _lines(self) -> list[tuple[str, str, str]]:
        rows = []
        for key, entry in self._rows.items():
            at = entry.registered_at
            rule = "" if entry.rule == "Direct" else f" ({entry.rule})"
            rows.append((key, entry.origin, at + rule))
        return rows

    def __str__(self) -> str:
        head = ("key", "kernel", "registered at")
        rows = self._lines()
        if not rows:
            return f"{self.operator}: no kernels"
        widths = [max(len(row[i]) for row in [head, *rows]) for i in range(3)]
        lines = ["  ".join(c.ljust(w) for c, w in zip(head, widths, strict=True)).rstrip()]
        lines.append("  ".join("-" * w for w in widths))
        for row in rows:
            lines.append("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip())
        return "\n".join([self.operator, *lines])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        cells = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
            for row in self._lines()
        )
        head = "".join(f"<th>{name}</th>" for name in ("key", "kernel", "registered at"))
        return (
            f"<table><caption>{html.escape(self.operator)}</caption>"
            f"<thead><tr>{head}</tr></thead><tbody>{cells}</tbody></table>"
        )


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
        text: str,
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
        self._text = text

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

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"<Explanation of {self.operator.name}: {self.key or self.error}>"

    def _repr_html_(self) -> str:
        rows: list[tuple[str, str]] = []
        for name, keys, device in self.arguments:
            rows.append((f"argument {name}", f"{_names(keys)} on {device}"))
        if self.default_backend:
            rows.append(("default device", str(self.backend)))
        if self.included:
            rows.append(("locally included", _names(self.included)))
        if self.excluded:
            rows.append(("locally excluded", _names(self.excluded)))
        rows.append(("key set", _names(self.keyset)))
        if self.skipped:
            rows.append(("skipped", _names(self.skipped)))
        if self.choice is None:
            rows.append(("error", self.error or ""))
        else:
            rows.append(("chosen key", str(self.choice.key)))
            rows.append(("kernel", self.choice.origin))
            rows.append(("because", f"{self.choice.registered_at}: {self.choice.because}"))
            rows += [
                ("lost to it", f"{who} at {at} ({rule})") for at, rule, who in self.choice.losers
            ]
            rows += [("shadowed by it", who) for who in self.choice.shadows]
        rows += [("a redispatch goes to", f"{c.runtime_key}: {c.origin}") for c in self.next]
        body = "".join(
            f"<tr><th style='text-align:left'>{html.escape(head)}</th>"
            f"<td style='text-align:left'>{html.escape(cell)}</td></tr>"
            for head, cell in rows
        )
        return f"<table><caption>{html.escape(self.operator.schema)}</caption>{body}</table>"


def _names(keys: _core.DispatchKeySet) -> str:
    return ", ".join(str(key) for key in keys)
