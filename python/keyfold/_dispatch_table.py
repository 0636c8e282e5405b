"""Tables over axes: the instance of a kernel that a call needs, by dtype, layout and more."""

from __future__ import annotations

import difflib
import functools
import itertools
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

from keyfold import _core
from keyfold._errors import (
    BindingError,
    DeviceError,
    DTypeError,
    InvalidValue,
    MissingKernel,
    RegistrationError,
)

__all__ = ["DispatchTable"]

_F = TypeVar("_F", bound=Callable[..., Any])

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
    known = _CLOSED.get(axis)
    if known is not None and value not in known:
        raise InvalidValue(
            f"{table}: the axis {axis} has no value {value!r};{_nearest(value, known)} "
            f"its values are {_listing(known)}"
        )
    return value


def _nearest(given: Any, known: Iterable[Any]) -> str:
    """The known name that was probably meant, as a question."""
    names = {str(name): name for name in known}
    found = difflib.get_close_matches(str(given), names, n=1, cutoff=0.5)
    return f" did you mean {names[found[0]]!r}?" if found else ""


def _listing(values: Iterable[Any]) -> str:
    values = list(values)
    more = f" and {len(values) - _LISTED} more" if len(values) > _LISTED + 1 else ""
    shown = values[:_LISTED] if more else values
    return ", ".join(str(value) for value in shown) + more


def _describe(coordinates: Mapping[str, Any]) -> str:
    return ", ".join(f"{axis}={value}" for axis, value in coordinates.items())


@dataclass(frozen=True, eq=False)
class _Body:
    """A function on a sub-space, which is a tuple of positions per axis."""

    function: Callable[..., Any]
    name: str
    with_coords: bool
    subspace: tuple[tuple[int, ...], ...]
    # How many axes it fixes to one value, and how many it narrows.
    pins: tuple[int, int]


class DispatchTable:
    """A table of functions over axes, of which each covered point has one.

    The dispatch key picks a backend's kernel; inside it, a table picks the function for the dtype,
    the layout and whatever else matters. Choosing and calling are two steps (`select`), or one
    (calling the table with arrays).

        >>> table = DispatchTable("softplus", device=["cpu"], dtype=["float32", "float64"],
        ...                       contiguity=["contiguous", "strided"])
        >>> @table.impl(contiguity="contiguous")
        ... def softplus_in_a_row(x): ...
        >>> table.select(dtype="float32", device="cpu", contiguity="contiguous")
        <function softplus_in_a_row ...>

    Args:
        name: what messages call the table.
        axes: each axis with the values that it may have here. `device` (types: `"cpu"`, `"cuda"`,
            registered ones), `dtype`, `contiguity` (`"contiguous"`, `"strided"`), `placement`
            (`"in place"`, `"out of place"`), `determinism` (`"not required"`, `"required"`) and
            `scheduling` (`"uniform"`, `"adaptive"`) are keyfold's; any other name is an axis of
            your own, whose values may be whatever is hashable.

    Raises:
        InvalidValue: no axes, an axis without values or with one twice, a value that an axis of
            keyfold's doesn't have.
    """

    def __init__(self, name: str, /, **axes: Iterable[Any]) -> None:
        self.name = name
        if not axes:
            raise InvalidValue(f"{name}: a table needs an axis at least, such as dtype=['float32']")
        self._axes: dict[str, tuple[Any, ...]] = {}
        for axis, given in axes.items():
            values = tuple(_normal(name, axis, value) for value in _as_list(given))
            if not values:
                raise InvalidValue(f"{name}: the axis {axis} has no values")
            for value in values:
                if values.count(value) > 1:
                    raise InvalidValue(f"{name}: the axis {axis} has the value {value!r} twice")
            self._axes[axis] = values
        self._positions: dict[str, dict[Any, int]] = {
            axis: {value: at for at, value in enumerate(values)}
            for axis, values in self._axes.items()
        }
        # Row by row: the last axis runs fastest.
        self._strides: dict[str, int] = {}
        stride = 1
        for axis, values in reversed(self._axes.items()):
            self._strides[axis] = stride
            stride *= len(values)
        self._strides = {axis: self._strides[axis] for axis in self._axes}
        # A function or None per point, and the body that it is of. Whole lists are put in place, so
        # that a reader on another thread never sees half a registration.
        self._slots: list[Callable[..., Any] | None] = [None] * stride
        self._owners: list[_Body | None] = [None] * stride
        self._bodies: tuple[_Body, ...] = ()
        self._lock = threading.Lock()

    # Filling.

    def impl(self, *, with_coords: bool = False, **coords: Any) -> Callable[[_F], _F]:
        """Decorate the function for a point or a sub-space.

        Where several functions cover a point, the one that fixes more axes to one value wins; of
        those that fix as many, the one that leaves less than the whole choice on more axes.

        Args:
            with_coords: the function gets its coordinates as its first argument, a mapping from
                axis to value.
            coords: for each axis a value or a list of values; an axis that isn't named has all.

        Raises:
            InvalidValue: an axis or a value that the table hasn't; the message has the nearest.
            RegistrationError: another function covers a point equally well, and none that is there
                covers it better; the message names both and the point. Nothing was registered.
        """
        subspace = self._subspace(coords)

        def register(function: _F) -> _F:
            self._register(function, with_coords, subspace)
            return function

        return register

    def with_(
        self, function: Callable[..., Any], /, *, with_coords: bool = False, **coords: Any
    ) -> DispatchTable:
        """Give a copy that has one function more; this table stays as it is.

        Args:
            function: the function.
            with_coords: as in `impl`.
            coords: as in `impl`.

        Raises:
            InvalidValue: as `impl`.
            RegistrationError: as `impl`.
        """
        table = self.copy()
        table._register(function, with_coords, table._subspace(coords))
        return table

    def copy(self) -> DispatchTable:
        """Give a table with the same functions, which may be filled further on its own."""
        table = DispatchTable(self.name, **self._axes)
        with self._lock:
            table._slots, table._owners = self._slots, self._owners
            table._bodies = self._bodies
        return table

    def _subspace(self, coords: Mapping[str, Any]) -> tuple[tuple[int, ...], ...]:
        for axis in coords:
            self._check_axis(axis)
        subspace = []
        for axis, positions in self._positions.items():
            if axis not in coords:
                subspace.append(tuple(range(len(positions))))
                continue
            found = []
            for given in _as_list(coords[axis]):
                at = self._position(axis, given)
                if at is None:
                    values = self._axes[axis]
                    raise InvalidValue(
                        f"{self.name}: the table's axis {axis} has no value {given!r};"
                        f"{_nearest(given, values)} its values are {_listing(values)}"
                    )
                found.append(at)
            if not found:
                raise InvalidValue(f"{self.name}: no values are given for the axis {axis}")
            subspace.append(tuple(sorted(set(found))))
        return tuple(subspace)

    def _register(
        self,
        function: Callable[..., Any],
        with_coords: bool,
        subspace: tuple[tuple[int, ...], ...],
    ) -> None:
        if not callable(function):
            raise BindingError(f"{self.name}: impl takes a function, not {function!r}")
        sizes = [(len(part), len(all_)) for part, all_ in zip(subspace, self._axes.values())]  # noqa: B905
        pins = (
            sum(part == 1 < whole for part, whole in sizes),
            sum(1 < part < whole for part, whole in sizes),
        )
        body = _Body(function, _name(function), with_coords, subspace, pins)
        with self._lock:
            slots, owners = list(self._slots), list(self._owners)
            for positions in itertools.product(*subspace):
                index = sum(map(int.__mul__, positions, self._strides.values()))
                other = owners[index]
                if other is None or pins > other.pins:
                    slots[index] = self._instance(body, index)
                    owners[index] = body
                elif pins == other.pins and function is not other.function:
                    raise RegistrationError(
                        f"{self.name}: the functions {other.name} and {body.name} pin equally many "
                        f"axes at {_describe(self.point(index))}; cover it by one of them, or "
                        "first by a third that pins more"
                    )
            self._slots, self._owners = slots, owners
            self._bodies = (*self._bodies, body)

    def _instance(self, body: _Body, index: int) -> Callable[..., Any]:
        if not body.with_coords:
            return body.function
        return functools.partial(body.function, MappingProxyType(self.point(index)))

    # Choosing.

    def select(self, **coords: Any) -> Callable[..., Any]:
        """Give the function at a point.

        Args:
            coords: a value for each axis, in any order.

        Raises:
            MissingKernel: the point isn't covered; the message has the nearest that are.
            InvalidValue: an axis that the table hasn't, or a value that doesn't exist at all.
            BindingError: an axis is missing.
        """
        index = self._index(coords)
        found = None if index is None else self._slots[index]
        if found is None:
            raise MissingKernel(self._uncovered(coords))
        return found

    def try_select(self, **coords: Any) -> Callable[..., Any] | None:
        """Give the function at a point; None if the point isn't covered.

        Args:
            coords: a value for each axis, in any order.

        Raises:
            InvalidValue: as `select`.
            BindingError: as `select`.
        """
        index = self._index(coords)
        return None if index is None else self._slots[index]

    def coordinates(self, *arrays: Any) -> dict[str, Any]:
        """Work out the device, dtype and contiguity of arrays, as far as they are axes here.

        Several arrays are contiguous together only if each is.

        Args:
            arrays: keyfold's tensors, NumPy's arrays, or of another library that is exchanged.

        Raises:
            DeviceError: the arrays are on different devices; the message names two of them.
            DTypeError: the arrays have different dtypes; the message names two of them.
            BindingError: something that is no array, or nothing.
        """
        return self._of_arrays({f"argument {at}": array for at, array in enumerate(arrays)})

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Select by the coordinates of the arrays among the arguments, and call what was found.

        Args:
            args: the function's arguments. What is no array goes along.
            kwargs: coordinates, where the name is an axis of the table: they are for the choice
                alone, and come before what the arrays say. The others are the function's.

        Raises:
            MissingKernel: as `select`.
            DeviceError: as `coordinates`.
            DTypeError: as `coordinates`.
            BindingError: an axis is neither named nor follows from the arrays.
        """
        coords = {axis: kwargs.pop(axis) for axis in self._axes if axis in kwargs}
        named = {f"argument {at}": value for at, value in enumerate(args)} | {
            f"argument {name!r}": value for name, value in kwargs.items()
        }
        arrays = {name: value for name, value in named.items() if _is_array(value)}
        if arrays:
            coords = self._of_arrays(arrays, skip=coords) | coords
        return self.select(**coords)(*args, **kwargs)

    def _of_arrays(
        self, arrays: Mapping[str, Any], skip: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        if not arrays:
            raise BindingError(
                f"{self.name}: no arrays to take coordinates from; give one at least"
            )
        views = {}
        for name, array in arrays.items():
            if not _is_array(array):
                kind = type(array).__name__
                raise BindingError(f"{self.name}: {name} must be an array, not {kind}")
            views[name] = _core._view(array)
        wanted = [axis for axis in self._axes if not skip or axis not in skip]
        first, *_ = views
        found: dict[str, Any] = {}
        if "device" in wanted:
            for name, view in views.items():
                if view.device != views[first].device:
                    raise DeviceError(
                        f"{self.name}: arguments on different devices: {first} is on "
                        f"{views[first].device}, {name} on {view.device}; move one of them"
                    )
            found["device"] = views[first].device.type
        if "dtype" in wanted:
            for name, view in views.items():
                if view.dtype != views[first].dtype:
                    raise DTypeError(
                        f"{self.name}: arguments of different dtypes: {first} is "
                        f"{views[first].dtype.name}, {name} is {view.dtype.name}; convert one of "
                        "them"
                    )
            found["dtype"] = views[first].dtype.name
        if "contiguity" in wanted:
            together = all(view.is_contiguous() for view in views.values())
            found["contiguity"] = "contiguous" if together else "strided"
        return found

    def _check_axis(self, axis: str) -> None:
        if axis not in self._axes:
            raise InvalidValue(
                f"{self.name}: the table has no axis {axis!r};{_nearest(axis, self._axes)} "
                f"its axes are {', '.join(self._axes)}"
            )

    def _position(self, axis: str, value: Any) -> int | None:
        """Where a value is on an axis; None if the table doesn't have it there."""
        positions = self._positions[axis]
        try:
            at = positions.get(value)
        except TypeError:
            raise InvalidValue(
                f"{self.name}: a value of the axis {axis} must be hashable, not {value!r}"
            ) from None
        return positions.get(_normal(self.name, axis, value)) if at is None else at

    def _index(self, coords: Mapping[str, Any]) -> int | None:
        """The number of a point; None if a value isn't among the table's."""
        index: int | None = 0
        for axis, value in coords.items():
            if axis not in self._axes:
                self._check_axis(axis)
            at = self._positions[axis].get(value) if type(value) is str else None
            if at is None:
                at = self._position(axis, value)
            index = None if at is None or index is None else index + at * self._strides[axis]
        if len(coords) < len(self._axes):
            axis = next(axis for axis in self._axes if axis not in coords)
            raise BindingError(
                f"{self.name}: no value is given for the axis {axis}; "
                f"its values are {_listing(self._axes[axis])}"
            )
        return index

    def _uncovered(self, coords: Mapping[str, Any]) -> str:
        wanted = {axis: _normal(self.name, axis, coords[axis]) for axis in self._axes}
        best: list[dict[str, Any]] = []
        distance = len(self._axes) + 1
        for point in self:
            changes = {axis: value for axis, value in point.items() if value != wanted[axis]}
            if len(changes) < distance:
                distance, best = len(changes), []
            if len(changes) == distance:
                best.append(changes)
        text = f"{self.name}: no kernel at {_describe(wanted)}"
        if not best:
            return f"{text}; the table covers nothing"
        axes = "axis differs" if distance == 1 else "axes differ"
        listed = "; ".join(_describe(changes) for changes in best[:_LISTED])
        more = f"; and {len(best) - _LISTED} more" if len(best) > _LISTED else ""
        return f"{text}; nearest covered, where {distance} {axes}: {listed}{more}"

    # Looking inside.

    @property
    def axes(self) -> Mapping[str, tuple[Any, ...]]:
        """Each axis with its values."""
        return MappingProxyType(self._axes)

    @property
    def size(self) -> int:
        """How many points the whole space has, covered or not."""
        return math.prod(map(len, self._axes.values()))

    @property
    def coverage(self) -> tuple[dict[str, Any], ...]:
        """The covered points."""
        return tuple(self)

    def index(self, **coords: Any) -> int:
        """Give the number of a point; the last axis runs fastest.

        Args:
            coords: a value for each axis, in any order.

        Raises:
            InvalidValue: an axis or a value that the table hasn't.
            BindingError: an axis is missing.
        """
        index = self._index(coords)
        if index is None:
            self._subspace(coords)  # Says which value.
            raise InvalidValue(f"{self.name}: no point {_describe(coords)}")
        return index

    def point(self, index: int) -> dict[str, Any]:
        """Give the coordinates of the point with that number.

        Args:
            index: from 0 to below `size`.

        Raises:
            InvalidValue: any other index.
        """
        if not 0 <= index < self.size:
            raise InvalidValue(
                f"{self.name}: no point has the number {index}; the table has {self.size} points"
            )
        return {
            axis: values[index // self._strides[axis] % len(values)]
            for axis, values in self._axes.items()
        }

    def __len__(self) -> int:
        """How many points are covered."""
        return sum(slot is not None for slot in self._slots)

    def __bool__(self) -> bool:
        return True

    def __contains__(self, coords: object) -> bool:
        return isinstance(coords, Mapping) and self.try_select(**coords) is not None

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self.point(index) for index, slot in enumerate(self._slots) if slot is not None)

    def items(self) -> Iterator[tuple[dict[str, Any], Callable[..., Any]]]:
        """Iterate over the covered points with their functions."""
        for index, slot in enumerate(self._slots):
            if slot is not None:
                yield self.point(index), slot

    def __repr__(self) -> str:
        head = f"{self.name}: {len(self)} of {self.size} points covered"
        rows = [("function", *self._axes, "points")]
        for body in self._bodies:
            parts = []
            for positions, values in zip(body.subspace, self._axes.values(), strict=True):
                whole = len(positions) == len(values)
                parts.append("all" if whole else _listing(values[at] for at in positions))
            owned = sum(owner is body for owner in self._owners)
            rows.append((body.name, *parts, str(owned)))
        if not self._bodies:
            return "\n".join(
                [head, *(f"  {axis}: {_listing(values)}" for axis, values in self._axes.items())]
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        rows.insert(1, tuple("-" * width for width in widths))
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        return "\n".join([head, *lines])


def _as_list(given: Any) -> list[Any]:
    """One value, or the values of a list, tuple, set or another iterable of them."""
    if isinstance(given, (list, tuple, set, frozenset, range, dict, Iterator)):
        return list(given)
    # An enum's class: its members.
    if isinstance(given, type) and isinstance(given, Iterable):
        return list(given)
    return [given]


def _is_array(value: Any) -> bool:
    plain = type(value) in (bool, int, float, complex, str, type(None))
    return not plain and _core._is_array(value)


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", None) or type(function).__name__
