"""Which backends there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from keyfold import _core
from keyfold._show import _html, _text

__all__ = ["Backend", "Fallback", "backends", "fallbacks"]

_Row = TypeVar("_Row", bound=tuple[object, ...])


class _Listing(list[_Row]):
    """A list of named tuples that shows itself as a table."""

    _heads: tuple[str, ...]

    def __init__(self, kind: type[_Row], rows: Sequence[_Row]) -> None:
        super().__init__(rows)
        self._heads = kind._fields  # type: ignore[attr-defined]

    def _shown(self) -> tuple[list[str], list[list[str]]]:
        cells = [[_cell(value) for value in row] for row in self]
        kept = [at for at in range(len(self._heads)) if any(row[at] for row in cells)]
        heads = [self._heads[at].replace("_", " ") for at in kept]
        return heads, [[row[at] for at in kept] for row in cells]

    def __repr__(self) -> str:
        heads, rows = self._shown()
        return "\n".join(_text.table(rows, heads)) if rows else "[]"

    def _repr_html_(self) -> str:
        return _html.page("", _html.table(*self._shown()) if self else _html.notes(["none"]))


def _cell(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)


class Backend(NamedTuple):
    """A backend that is registered.

    Attributes:
        name: its name, for messages.
        device_type: how the names of its devices begin.
        devices: its devices.
        streams: how many streams a device has.
        groups: the groups of operations that it offers.
        dlpack_number: its number among DLPack's extension devices: a tensor on its device `i` has
            the `__dlpack_device__` `(12, 256 * dlpack_number + i)`. None where DLPack knows the
            device.
    """

    name: str
    device_type: str
    devices: tuple[_core.Device, ...]
    streams: int
    groups: tuple[str, ...]
    dlpack_number: int | None = None


class Fallback(NamedTuple):
    """An operator that ran on another type of device than its arguments'.

    Attributes:
        op: its name, with its overload.
        device_type: the type of device that its arguments were on.
        to: the type of device that it ran on.
        calls: how often.
    """

    op: str
    device_type: str
    to: str
    calls: int


def fallbacks() -> list[Fallback]:
    """Return the operators that ran elsewhere, as `allow_fallback` allows, with how often."""
    return _Listing(Fallback, [Fallback(*ran) for ran in _core._fallbacks()])


def backends() -> list[Backend]:
    """Return the backends that are registered, by device type.

    Example:
        >>> [backend.device_type for backend in kf.backends()]
        ['cpu']
    """
    found = [
        Backend(name, device_type, tuple(devices), streams, tuple(groups), number)
        for name, device_type, devices, streams, groups, number in _core._backends()
    ]
    return _Listing(Backend, found)
