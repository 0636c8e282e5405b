"""The process's own dispatcher, which the functions of the `keyfold` module use."""

from keyfold import _core

__all__ = ["dispatcher"]

dispatcher = _core._default_dispatcher()
