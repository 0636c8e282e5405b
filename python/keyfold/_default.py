"""The process's own dispatcher, which the functions of the `keyfold` module use."""

from keyfold import _core
from keyfold._entry_points import provide

__all__ = ["dispatcher"]

_core._check_environment()
dispatcher = _core._default_dispatcher()
# Isolated dispatchers have what they are given, and nothing of installed packages.
dispatcher.ops._look_further(provide)
