"""A device for tests of operators and layers: `delayed_device`.

Its memory is hidden from the host, its work runs on threads of its own and as late as it may, freed
memory is poisoned and used again. Code that reads too early, frees too early or copies to the host
unasked gives wrong numbers or an error on it in each run, where a real device would show that once
a month.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType

from keyfold import _core

__all__ = ["DelayedDevice", "delayed_device"]


class DelayedDevice:
    """A registered delayed device, made by `delayed_device`. A `with` block removes it at its end.

    Attributes:
        name: the type of device.
        devices: its devices, each of which every creation function and `.to` take.
    """

    name: str
    devices: tuple[_core.Device, ...]

    def __init__(self, name: str, devices: int, streams: int, without: Iterable[str]) -> None:
        self._native = _core._DelayedDevice(name, devices, streams, list(without))
        self.name = name
        self.devices = tuple(self._native.devices())

    def remove(self) -> bool:
        """Take the device out of the registry, with its kernels.

        Tensors on it stay valid: they can be copied to the CPU.

        Returns:
            Whether it was there.
        """
        return self._native.remove()

    @property
    def live(self) -> int:
        """How many blocks of its memory are in use, by tensors or by operations that are queued."""
        return self._native.live()

    def count(self, call: str) -> int:
        """Return how often a call was made since the device was registered.

        Args:
            call: `allocate`, `upload`, `download`, `copy`, `fill`, `launch`, `record`, `wait`,
                `synchronize`, or `run` for an operation that ran.

        Raises:
            InvalidValue: there is no such call.
        """
        return self._native.count(call)

    def fail_at(self, nth: int, call: str | None = None) -> None:
        """Make a call fail, once.

        Args:
            nth: which one, counted from now on; none for 0.
            call: of which kind, see `count`; any but `run` by default.

        Raises:
            InvalidValue: there is no such call.
        """
        self._native.fail_at(nth, call)

    def plant(self, mistake: str | None) -> None:
        """Have the device make a mistake from now on, to see that a test finds it.

        Args:
            mistake: `reads_early`, `frees_early`, `waits_too_little`, `copies_silently`,
                `gives_host_memory`, `gives_too_little`; None for none.

        Raises:
            InvalidValue: there is no such mistake.
        """
        self._native.plant(mistake)

    def __enter__(self) -> DelayedDevice:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.remove()

    def __repr__(self) -> str:
        return f"DelayedDevice({self.name!r}, devices={len(self.devices)})"


def delayed_device(
    name: str = "delayed", *, devices: int = 2, streams: int = 3, without: Iterable[str] = ()
) -> DelayedDevice:
    """Register a device for tests, whose kernels are the CPU's, run late on hidden memory.

    Each operation takes one microsecond by the device's own clock, which `kf.profile` shows.

    An operation that fails when it runs is told at the next read or `kf.synchronize`, and reading
    what it should have written fails with the same error.

    Args:
        name: the type of device.
        devices: how many there are.
        streams: how many streams each has.
        without: groups of operations that it doesn't have: `pointwise`, `reduce`, `rows`,
            `scan`, `linalg`, `index`, `random`.

    Raises:
        RegistrationError: the type of device has a backend already.
        InvalidValue: there is no such group, or a count is out of range.

    Example:
        >>> from keyfold.testing import delayed_device
        >>> with delayed_device() as late:
        ...     x = kf.asarray([1.0, 2.0]).to(late.devices[1])
        ...     y = (x * x).sum()
        ...     print(y.device, late.count("download"), y.item(), late.count("download"))
        delayed:1 0 5.0 1
    """
    return DelayedDevice(name, devices, streams, without)
