"""Public names say that they are the package's: `keyfold.MissingKernel` in a traceback."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["adopt", "special"]


def adopt(module: str, namespace: Mapping[str, Any], names: Iterable[str]) -> None:
    """Set the `__module__` of a module's public classes and functions to the module.

    Args:
        module: the module's name. What is defined outside of its package stays as it is.
        namespace: the module's globals.
        names: its public names.
    """
    for name in names:
        public = namespace[name]
        defined = getattr(public, "__module__", None)
        if callable(public) and isinstance(defined, str) and defined.startswith("keyfold."):
            public.__module__ = module


def special(namespace: Mapping[str, Any]) -> list[str]:
    """The names that Python itself gives a module, such as `__file__`."""
    return [name for name in namespace if name.startswith("__") and name.endswith("__")]
