"""Where keyfold runs, and the header of its C kernels: the first module that is imported."""

from __future__ import annotations

import importlib
import os
import platform
import sys

__all__ = ["get_include"]

_SUPPORTED = "CPython 3.11 or later on Linux, x86-64, with glibc 2.28 or later"


def _load() -> None:
    """Import the extension module, or say where keyfold runs."""
    try:
        if sys.implementation.name != "cpython":
            raise ImportError(f"keyfold needs CPython, and this is {sys.implementation.name}")
        importlib.import_module("keyfold._core")
    except ImportError as error:
        if error.name is not None and not error.name.startswith("keyfold"):
            raise
        python = f"{platform.python_implementation()} {platform.python_version()}"
        libc = " ".join(platform.libc_ver())
        raise ImportError(
            f"keyfold's extension module can't be loaded ({error}). keyfold runs on {_SUPPORTED}; "
            f"this is {python}, {platform.system()} {platform.machine()} {libc}. In a checkout of "
            "the sources, `make build` makes it",
            name=error.name,
            path=error.path,
        ) from error


_load()


def get_include() -> str:
    """Return the folder of the headers for C and C++: `keyfold_abi.h`, `keyfold_plugin.h`.

    The first is for kernels, the second for plugins.

    Example:
        >>> import keyfold as kf
        >>> command = ["cc", "-shared", "-fPIC", f"-I{kf.get_include()}", "kernel.c"]

    Source: the name is that of `numpy.get_include`.
    """
    return os.path.join(os.path.dirname(__file__), "include")
