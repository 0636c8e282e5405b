"""What arrays say about where a call is in a table: their device, dtype and contiguity."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from keyfold import _core
from keyfold._errors import BindingError, DeviceError, DTypeError

__all__ = ["is_array", "of_arrays"]


def is_array(value: Any) -> bool:
    """Whether coordinates can be taken from a value; plain numbers and texts are told quickly."""
    plain = type(value) in (bool, int, float, complex, str, type(None))
    return not plain and _core._is_array(value)


def of_arrays(table: str, wanted: Collection[str], arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Give the coordinates of arrays together, on those of the wanted axes that arrays have.

    Args:
        table: what messages call the table.
        wanted: axes; others than `device`, `dtype` and `contiguity` are passed over.
        arrays: each under what messages call it.

    Raises:
        DeviceError: the arrays are on different devices; the message names two of them.
        DTypeError: the arrays have different dtypes; the message names two of them.
        BindingError: something that is no array, or nothing.
    """
    if not arrays:
        raise BindingError(f"{table}: no arrays to take coordinates from; give one at least")
    views = {}
    for name, array in arrays.items():
        if not is_array(array):
            raise BindingError(f"{table}: {name} must be an array, not {type(array).__name__}")
        views[name] = _core._view(array)
    first, *_ = views
    found: dict[str, Any] = {}
    if "device" in wanted:
        for name, view in views.items():
            if view.device != views[first].device:
                raise DeviceError(
                    f"{table}: arguments on different devices: {first} is on "
                    f"{views[first].device}, {name} on {view.device}; move one of them"
                )
        found["device"] = views[first].device.type
    if "dtype" in wanted:
        for name, view in views.items():
            if view.dtype != views[first].dtype:
                raise DTypeError(
                    f"{table}: arguments of different dtypes: {first} is "
                    f"{views[first].dtype.name}, {name} is {view.dtype.name}; convert one of them"
                )
        found["dtype"] = views[first].dtype.name
    if "contiguity" in wanted:
        together = all(view.is_contiguous() for view in views.values())
        found["contiguity"] = "contiguous" if together else "strided"
    return found
