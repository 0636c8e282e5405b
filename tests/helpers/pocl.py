"""pocl, an OpenCL device on the CPU's threads, as it comes in pyopencl's wheel."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def environment(cache: Path) -> dict[str, str] | None:
    """What examples/backend-opencl needs to find pocl, or None if its wheel isn't installed.

    The programs are compiled without optimisation, in a third of the time, and kept in `cache`.
    """
    found = importlib.util.find_spec("pyopencl")
    if found is None or found.origin is None:
        return None
    folder = Path(found.origin).parent
    loaders = sorted(folder.glob(".libs/libOpenCL*.so*"))
    drivers = sorted(folder.glob(".libs/libpocl*.so*"))
    if not loaders or not drivers:
        return None
    return {
        "KEYFOLD_OPENCL": str(loaders[0]),
        "KEYFOLD_OPENCL_CACHE": str(cache / "programs"),
        "KEYFOLD_OPENCL_OPTIONS": "-cl-opt-disable",
        "OCL_ICD_VENDORS": str(drivers[0]),
        "POCL_CACHE_DIR": str(cache / "pocl"),
        "PYOPENCL_HOME": str(folder),
    }
