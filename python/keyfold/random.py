"""Random numbers of devices: where each is in its stream.

Each device has a stream of its own, of the generator Philox4x32-10: a function of a seed and of how
many blocks were drawn. `manual_seed` goes to the start of a seed's stream on all of them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from keyfold import _core
from keyfold._errors import BindingError, DeviceError

__all__ = ["RandomState", "get_state", "set_state"]


class RandomState(NamedTuple):
    """Where a device's random numbers are, as plain data: it pickles.

    Attributes:
        device: the device's name, index included.
        seed: which stream it is.
        offset: how many blocks of 16 bytes were drawn from it.
    """

    device: str
    seed: int
    offset: int


def get_state(device: Any = "cpu") -> RandomState:
    """Return where a device's random numbers are.

    Args:
        device: the device; the CPU by default.

    Raises:
        DeviceError: there is no such device.

    Example:
        >>> state = kf.random.get_state()
        >>> first = kf.rand(3)
        >>> kf.random.set_state(state)
        >>> bool((kf.rand(3) == first).all())
        True
    """
    return RandomState(*_core._random_state(device))


def set_state(state: RandomState, device: Any = None) -> None:
    """Go to a place in a device's random numbers that `get_state` gave.

    Args:
        state: the state, which knows its device.
        device: the device that it has to be of; the state's own by default.

    Raises:
        BindingError: it isn't a state.
        DeviceError: the state is of another device, or its device isn't there.
        InvalidValue: a number is out of range.
    """
    if not isinstance(state, RandomState):
        raise BindingError(
            "random.set_state(): argument 'state' must be what random.get_state() gives, not "
            f"{type(state).__name__}"
        )
    if device is not None and _core.Device(device) != _core.Device(state.device):
        raise DeviceError(
            f"random.set_state(): this is a state of {state.device} and can't be set on "
            f"{_core.Device(device)}; a state goes back to its own device"
        )
    _core._set_random_state(state.device, state.seed, state.offset)
