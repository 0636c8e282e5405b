"""`DispatchKey`: one object per key, iterable as a class."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from keyfold import _core
from keyfold._errors import UnknownKey

__all__ = ["DispatchKey"]


class _DispatchKeyMeta(type):
    """Makes the class itself a collection of its keys, which are open: users add more."""

    def __call__(cls, key: Any) -> Any:
        """Return the key of that name; there is one object for each."""
        return _core._key(key)

    def __iter__(cls) -> Iterator[Any]:
        """Iterate over all keys, the user's included, lowest priority first."""
        return iter(_core._keys())

    def __len__(cls) -> int:
        return len(_core._keys())

    def __contains__(cls, key: object) -> bool:
        return any(key == known or key == known.name for known in _core._keys())

    def __getattr__(cls, name: str) -> Any:
        if not name.startswith("_"):
            for key in _core._keys():
                if key.name == name:
                    return key
            try:
                _core._key(name)
            except UnknownKey as error:
                # The suggestion in the text is the only one: see `UnknownOperator`.
                text = f"DispatchKey has no key {name!r}: {error}"
                raise AttributeError(text, obj=None) from None
        raise AttributeError(f"DispatchKey has no key {name!r}", obj=None)

    def __dir__(cls) -> list[str]:
        return [*super().__dir__(), *(key.name for key in _core._keys())]


class DispatchKey(_core.DispatchKeyBase, metaclass=_DispatchKeyMeta):
    """A dispatch key: a backend, or a functionality layered over the backends.

    `DispatchKey("CPU")` and `DispatchKey.CPU` are the same object. Keys order by priority, and
    `list(DispatchKey)` has them all, lowest first.
    """

    __slots__ = ()


_core._set_key_class(DispatchKey)
