"""Which backends there are."""

from __future__ import annotations

from typing import NamedTuple

from keyfold import _core

__all__ = ["Backend", "Fallback", "backends", "fallbacks"]


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
    return [Fallback(*ran) for ran in _core._fallbacks()]


def backends() -> list[Backend]:
    """Return the backends that are registered, by device type.

    Example:
        >>> [backend.device_type for backend in kf.backends()]
        ['cpu']
    """
    return [
        Backend(name, device_type, tuple(devices), streams, tuple(groups), number)
        for name, device_type, devices, streams, groups, number in _core._backends()
    ]
