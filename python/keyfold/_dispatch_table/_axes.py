"""Spaces of axes: their values, and points by their coordinates and by their numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from keyfold import _core
from keyfold._errors import BindingError, InvalidValue

__all__ = ["Space", "describe", "listing"]

# The values of the axes that keyfold knows; those of device and dtype are asked for.
_CLOSED = {
    "contiguity": ("contiguous", "strided"),
    "placement": ("in place", "out of place"),
    "determinism": ("not required", "required"),
    "scheduling": ("uniform", "adaptive"),
}

# How many of the nearest points, and of an axis's values, a message lists.
_LISTED = 6


def _normal(table: str, axis: str, value: Any) -> Any:
    """A value of an axis as tables keep it: names for keyfold's axes, own values as they are."""
    try:
        if axis == "device":
            return _core.Device(value).type
        if axis == "dtype":
            return _core.DType(value).name
    except (TypeError, ValueError) as error:
        raise InvalidValue(f"{table}: the axis {axis} has no value {value!r}: {error}") from None
    try:
        hash(value)
    except TypeError:
        raise unhashable(table, axis, value) from None
    known = _CLOSED.get(axis)
    if known is not None and value not in known:
        raise InvalidValue(
            f"{table}: the axis {axis} has no value {value!r};{_nearest(value, known)} "
            f"its values are {listing(known)}"
        )
    return value


def unhashable(table: str, axis: str, value: Any) -> InvalidValue:
    """The error for a value that no table can look up."""
    return InvalidValue(
        f"{table}: a value of the axis {axis} must be hashable, not {value!r}; a tuple instead of "
        "a list, or a name, would do"
    )


def _nearest(given: Any, known: Iterable[Any]) -> str:
    """The known name that was probably meant, as a question."""
    import difflib

    names = {str(name): name for name in known}
    found = difflib.get_close_matches(str(given), names, n=1, cutoff=0.5)
    return f" did you mean {names[found[0]]!r}?" if found else ""


def listing(values: Iterable[Any]) -> str:
    """Give values as text, the first few of many."""
    values = list(values)
    more = f" and {len(values) - _LISTED} more" if len(values) > _LISTED + 1 else ""
    shown = values[:_LISTED] if more else values
    return ", ".join(str(value) for value in shown) + more


def describe(coordinates: Mapping[str, Any]) -> str:
    """Give coordinates as text: `device=cpu, dtype=float32`."""
    return ", ".join(f"{axis}={value}" for axis, value in coordinates.items())


class Space:
    """The product of some axes; messages call it by its table's name.

    Attributes:
        name: the table's.
        axes: each axis with its values.
        size: how many points there are.

    Raises:
        InvalidValue: as `DispatchTable`.
    """

    def __init__(self, name: str, axes: Mapping[str, Any]) -> None:
        self.name = name
        if not axes:
            raise InvalidValue(f"{name}: a table needs an axis at least, such as dtype=['float32']")
        self.axes: dict[str, tuple[Any, ...]] = {}
        for axis, given in axes.items():
            values = tuple(_normal(name, axis, value) for value in _as_list(given))
            if not values:
                raise InvalidValue(f"{name}: the axis {axis} has no values")
            seen = set()
            for value in values:
                if value in seen:
                    raise InvalidValue(f"{name}: the axis {axis} has the value {value!r} twice")
                seen.add(value)
            self.axes[axis] = values
        self._positions = {
            axis: {value: at for at, value in enumerate(values)}
            for axis, values in self.axes.items()
        }
        sizes = [len(values) for values in self.axes.values()]
        # Row by row: the last axis runs fastest.
        self._strides = {axis: math.prod(sizes[at + 1 :]) for at, axis in enumerate(self.axes)}
        self.size = math.prod(sizes)

    def point(self, index: int) -> dict[str, Any]:
        """Give the coordinates of the point with that number."""
        if not 0 <= index < self.size:
            raise InvalidValue(
                f"{self.name}: no point has the number {index}; the table has {self.size} points"
            )
        return {
            axis: values[index // self._strides[axis] % len(values)]
            for axis, values in self.axes.items()
        }

    def number(self, positions: Iterable[int]) -> int:
        """Give the number of the point at these positions, one per axis."""
        return sum(map(int.__mul__, positions, self._strides.values()))

    def subspace(self, coords: Mapping[str, Any]) -> tuple[tuple[int, ...], ...]:
        """Give the positions of the chosen values per axis; of an axis that isn't named, all."""
        for axis in coords:
            self.check_axis(axis)
        subspace = []
        for axis, positions in self._positions.items():
            if axis not in coords:
                subspace.append(tuple(range(len(positions))))
                continue
            found = []
            for given in _as_list(coords[axis]):
                at = self._position(axis, given)
                if at is None:
                    values = self.axes[axis]
                    raise InvalidValue(
                        f"{self.name}: the table's axis {axis} has no value {given!r};"
                        f"{_nearest(given, values)} its values are {listing(values)}"
                    )
                found.append(at)
            if not found:
                raise InvalidValue(f"{self.name}: no values are given for the axis {axis}")
            subspace.append(tuple(sorted(set(found))))
        return tuple(subspace)

    def check_axis(self, axis: str) -> None:
        """Refuse an axis that isn't there, with the nearest."""
        if axis not in self.axes:
            raise InvalidValue(
                f"{self.name}: the table has no axis {axis!r};{_nearest(axis, self.axes)} "
                f"its axes are {', '.join(self.axes)}"
            )

    def _position(self, axis: str, value: Any) -> int | None:
        """Where a value is on an axis; None if the table doesn't have it there."""
        positions = self._positions[axis]
        try:
            at = positions.get(value)
        except TypeError:
            raise unhashable(self.name, axis, value) from None
        return positions.get(_normal(self.name, axis, value)) if at is None else at

    def index(self, coords: Mapping[str, Any]) -> int | None:
        """The number of a point; None if a value isn't among the table's."""
        index: int | None = 0
        for axis, value in coords.items():
            if axis not in self.axes:
                self.check_axis(axis)
            at = self._positions[axis].get(value) if type(value) is str else None
            if at is None:
                at = self._position(axis, value)
            index = None if at is None or index is None else index + at * self._strides[axis]
        if len(coords) < len(self.axes):
            axis = next(axis for axis in self.axes if axis not in coords)
            raise BindingError(
                f"{self.name}: no value is given for the axis {axis}; "
                f"its values are {listing(self.axes[axis])}"
            )
        return index

    def uncovered(self, coords: Mapping[str, Any], covered: Iterable[dict[str, Any]]) -> str:
        """Say that a point isn't covered, and which covered ones are nearest."""
        wanted = {axis: _normal(self.name, axis, coords[axis]) for axis in self.axes}
        best: list[dict[str, Any]] = []
        distance = len(self.axes) + 1
        for point in covered:
            changes = {axis: value for axis, value in point.items() if value != wanted[axis]}
            if len(changes) < distance:
                distance, best = len(changes), []
            if len(changes) == distance:
                best.append(changes)
        text = f"{self.name}: no kernel at {describe(wanted)}"
        if not best:
            return f"{text}; the table covers nothing"
        axes = "axis differs" if distance == 1 else "axes differ"
        listed = "; ".join(describe(changes) for changes in best[:_LISTED])
        more = f"; and {len(best) - _LISTED} more" if len(best) > _LISTED else ""
        return f"{text}; nearest covered, where {distance} {axes}: {listed}{more}"


def _as_list(given: Any) -> list[Any]:
    """One value, or the values of a list, tuple, set or another iterable of them."""
    if isinstance(given, (list, tuple, set, frozenset, range, dict, Iterator)):
        return list(given)
    # An enum's class: its members.
    if isinstance(given, type) and isinstance(given, Iterable):
        return list(given)
    return [given]
