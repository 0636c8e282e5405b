"""`Dispatcher`: the engine's dispatcher with `impl` as a decorator."""

from __future__ import annotations

from typing import Any

from keyfold import _core
from keyfold._dispatch._registration import _implement

__all__: list[str] = []


def _impl(
    self: _core.Dispatcher,
    op: Any,
    key: Any,
    fn: Any = None,
    *,
    with_keyset: bool = False,
    override: str = "error",
    arrays: str | None = None,
) -> Any:
    """Register a kernel for an operator at a dispatch key. As `keyfold.impl`."""
    return _implement(self, op, key, fn, with_keyset, override, arrays)


# The class is the engine's own; a decorator with a default is easier said in Python.
_core.Dispatcher.impl = _impl  # type: ignore[method-assign]
