"""Tables over axes: the instance of a kernel that a call needs, by dtype, layout and more."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

from keyfold._dispatch_table._array_coordinates import is_array, of_arrays
from keyfold._dispatch_table._axes import Space, describe, listing
from keyfold._errors import BindingError, InvalidValue, MissingKernel, RegistrationError
from keyfold._show import _html, _text

__all__ = ["DispatchTable"]

_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True, eq=False)
class _Body:
    """A function on a sub-space, which is a tuple of positions per axis."""

    function: Callable[..., Any]
    name: str
    with_coords: bool
    subspace: tuple[tuple[int, ...], ...]
    # How many axes it fixes to one value, and how many it narrows.
    pins: tuple[int, int]


# A table has a place for every point of its space.
_MOST = 1_000_000


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
        self._space = Space(name, axes)
        if self._space.size > _MOST:
            raise InvalidValue(
                f"DispatchTable '{name}' has {self._space.size} points, {_MOST} are the most: "
                f"leave the choice among the values of the largest axes to the functions"
            )
        # A function or None per point, and the body that it is of. Whole lists are put in place, so
        # that a reader on another thread never sees half a registration.
        self._slots: list[Callable[..., Any] | None] = [None] * self._space.size
        self._owners: list[_Body | None] = [None] * self._space.size
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
        subspace = self._space.subspace(coords)

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
        table._register(function, with_coords, table._space.subspace(coords))
        return table

    def copy(self) -> DispatchTable:
        """Give a table with the same functions, which may be filled further on its own."""
        table = DispatchTable(self.name, **self._space.axes)
        with self._lock:
            table._slots, table._owners = self._slots, self._owners
            table._bodies = self._bodies
        return table

    def __copy__(self) -> DispatchTable:
        return self.copy()

    def __reduce__(self) -> tuple[Any, ...]:
        # The registrations in order; the slots follow from them.
        with self._lock:
            bodies = [(body.function, body.with_coords, body.subspace) for body in self._bodies]
        return _rebuild, (type(self), self.name, self._space.axes, bodies)

    def _register(
        self,
        function: Callable[..., Any],
        with_coords: bool,
        subspace: tuple[tuple[int, ...], ...],
    ) -> None:
        if not callable(function):
            raise BindingError(f"{self.name}: impl takes a function, not {function!r}")
        sizes = [(len(part), len(all_)) for part, all_ in zip(subspace, self._space.axes.values())]  # noqa: B905
        pins = (
            sum(part == 1 < whole for part, whole in sizes),
            sum(1 < part < whole for part, whole in sizes),
        )
        body = _Body(function, _name(function), with_coords, subspace, pins)
        with self._lock:
            slots, owners = list(self._slots), list(self._owners)
            for positions in itertools.product(*subspace):
                index = self._space.number(positions)
                other = owners[index]
                if other is None or pins > other.pins:
                    slots[index] = self._instance(body, index)
                    owners[index] = body
                elif pins == other.pins and function is not other.function:
                    raise RegistrationError(
                        f"{self.name}: the functions {other.name} and {body.name} pin equally many "
                        f"axes at {describe(self.point(index))}; cover it by one of them, or "
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
        index = self._space.index(coords)
        found = None if index is None else self._slots[index]
        if found is None:
            raise MissingKernel(self._space.uncovered(coords, self))
        return found

    def try_select(self, **coords: Any) -> Callable[..., Any] | None:
        """Give the function at a point; None if the point isn't covered.

        Args:
            coords: a value for each axis, in any order.

        Raises:
            InvalidValue: as `select`.
            BindingError: as `select`.
        """
        index = self._space.index(coords)
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
        named = {f"argument {at}": array for at, array in enumerate(arrays)}
        return of_arrays(self.name, self._space.axes, named)

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
        coords = {axis: kwargs.pop(axis) for axis in self._space.axes if axis in kwargs}
        named = {f"argument {at}": value for at, value in enumerate(args)} | {
            f"argument {name!r}": value for name, value in kwargs.items()
        }
        arrays = {name: value for name, value in named.items() if is_array(value)}
        if arrays:
            wanted = [axis for axis in self._space.axes if axis not in coords]
            coords = of_arrays(self.name, wanted, arrays) | coords
        return self.select(**coords)(*args, **kwargs)

    # Looking inside.

    @property
    def name(self) -> str:
        """What messages call the table."""
        return self._space.name

    @property
    def axes(self) -> Mapping[str, tuple[Any, ...]]:
        """Each axis with its values."""
        return MappingProxyType(self._space.axes)

    @property
    def size(self) -> int:
        """How many points the whole space has, covered or not."""
        return self._space.size

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
        index = self._space.index(coords)
        if index is None:
            self._space.subspace(coords)  # Says which value.
            raise InvalidValue(f"{self.name}: no point {describe(coords)}")
        return index

    def point(self, index: int) -> dict[str, Any]:
        """Give the coordinates of the point with that number.

        Args:
            index: from 0 to below `size`.

        Raises:
            InvalidValue: any other index.
        """
        return self._space.point(index)

    def __len__(self) -> int:
        """How many points are covered."""
        return sum(slot is not None for slot in self._slots)

    def __bool__(self) -> bool:
        return True

    def __contains__(self, coords: object) -> bool:
        try:
            return isinstance(coords, Mapping) and self.try_select(**coords) is not None
        except Exception:
            # A value whose own comparison fails isn't in the table either.
            return False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self.point(index) for index, slot in enumerate(self._slots) if slot is not None)

    def items(self) -> Iterator[tuple[dict[str, Any], Callable[..., Any]]]:
        """Iterate over the covered points with their functions."""
        for index, slot in enumerate(self._slots):
            if slot is not None:
                yield self.point(index), slot

    def _head(self) -> str:
        return f"{self.name}: {len(self)} of {self.size} points covered"

    def _rows(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """The heads and cells of a table of the functions, or of the axes where there is none."""
        if not self._bodies:
            return ("axis", "values"), [
                (axis, listing(values)) for axis, values in self._space.axes.items()
            ]
        rows = []
        for body in self._bodies:
            parts = []
            for positions, values in zip(body.subspace, self._space.axes.values(), strict=True):
                whole = len(positions) == len(values)
                parts.append("all" if whole else listing(values[at] for at in positions))
            owned = sum(owner is body for owner in self._owners)
            rows.append((body.name, *parts, str(owned)))
        return ("function", *self._space.axes, "points"), rows

    def __repr__(self) -> str:
        heads, rows = self._rows()
        return "\n".join([*_text.folded([self._head()]), *_text.table(rows, heads)])

    def _repr_html_(self) -> str:
        return _html.page(_html.words(self._head()), _html.table(*self._rows()))


def _rebuild(
    cls: type[DispatchTable],
    name: str,
    axes: Mapping[str, Any],
    bodies: list[tuple[Callable[..., Any], bool, tuple[tuple[int, ...], ...]]],
) -> DispatchTable:
    """Make a table anew, for unpickling and deep copies."""
    table = cls(name, **axes)
    for function, with_coords, subspace in bodies:
        table._register(function, with_coords, subspace)
    return table


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", None) or type(function).__name__
