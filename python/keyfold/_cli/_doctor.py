"""`doctor`: what keyfold runs on, and what it found of a GPU's software.

It looks at files, at the loader's search path and at installed packages. It imports nothing of
CUDA's and starts no GPU; libcudnn's version is asked of the helper process that plans with it. What
isn't found is said, with the places that were searched.
"""

from __future__ import annotations

import contextlib
import ctypes.util
import importlib.metadata
import os
import platform
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

import numpy as np

import keyfold as kf
from keyfold import _core, _entry_points
from keyfold._cli import _doctor_cudnn, _json
from keyfold._cli._operators import overloads
from keyfold._cli._terminal import heading, paint, width
from keyfold._show._text import pairs

__all__ = ["doctor"]

# The instruction sets that kernels and the libraries below them are chosen by.
_CPU_FEATURES = ("sse4_2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512_bf16", "amx_tile")
_ARM_FEATURES = ("asimd", "asimdhp", "asimddp", "bf16", "sve", "sve2")
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def doctor(*, load: bool = False, as_json: bool = False) -> int:
    """Print the report. It is a report, not a test: the exit code is 0.

    Args:
        load: whether to load the kernels that installed packages offer.
        as_json: whether to print it as JSON.
    """
    # Before the operators are counted.
    packages = list(_packages(load))
    cudnn = _doctor_cudnn.look()
    if as_json:
        _json.show("doctor", _report() | {"cudnn": cudnn})
        return 0
    print(paint("keyfold doctor", "bold"))
    for title, rows in (
        ("Versions", list(_versions())),
        ("Processor", list(_processor())),
        ("Backends", list(_backends())),
        ("Operators", list(_kernels())),
        ("Kernel packages", packages),
        ("GPU", list(_gpu())),
        ("cuDNN", list(_doctor_cudnn.rows(cudnn))),
    ):
        print(heading(title))
        print(*pairs(rows, width=width()), sep="\n")
    return 0


def _report() -> dict[str, object]:
    """The report's fields: those that programs read as data, and lines of text by their names."""
    return {
        "versions": _json.named(_versions()),
        "processor": _json.named(_processor()),
        "threads": _json.threads(),
        "backends": _json.backends(),
        "operators": {space: _counts(space) for space in dir(kf.ops)},
        "packages": _json.packages(),
        "unreadable_packages": list(_entry_points.unreadable()),
        "gpu": _json.named(_gpu()),
    }


def _versions() -> Iterator[tuple[str, str]]:
    name = Path(_core.__file__ or "").name
    yield "keyfold", kf.__version__
    kind = "abi3: one for CPython 3.11 and later" if ".abi3." in name else "for this CPython alone"
    yield "build", f"{kind} ({name})"
    yield "Python", f"{platform.python_version()} ({platform.python_implementation()})"
    yield "", sys.executable
    yield "NumPy", np.__version__
    yield "system", f"{platform.system()} {platform.release()}, {platform.machine()}"


def _processor() -> Iterator[tuple[str, str]]:
    model, flags = _cpuinfo()
    yield "model", model or platform.processor() or "unknown"
    arm = platform.machine().lower() in ("arm64", "aarch64")
    if flags:
        known = _ARM_FEATURES if arm else _CPU_FEATURES
        found = [flag for flag in known if flag in flags]
        lacking = [flag for flag in known if flag not in flags]
        yield "features", " ".join(found) or "none of those looked for"
        if lacking:
            yield "without", " ".join(lacking)
    else:
        yield "features", "unknown: /proc/cpuinfo can't be read here"
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    count = os.cpu_count()
    limit = "" if usable in (None, count) else f", {usable} usable by this process"
    yield "threads", f"{count}{limit}"
    for variable in _THREAD_VARIABLES:
        if variable in os.environ:
            yield variable, os.environ[variable]


def _cpuinfo() -> tuple[str, set[str]]:
    """Return the first processor's model and feature flags, both empty where they are unknown."""
    text = _text(Path("/proc/cpuinfo"))
    model = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    return model[1] if model else "", set(flags[1].split()) if flags else set()


def _backends() -> Iterator[tuple[str, str]]:
    for backend in kf.backends():
        offered = "offers " + (", ".join(backend.groups) or "no operations")
        yield backend.device_type, f"{backend.name}: {offered}"
        for device in backend.devices:
            stats = kf.memory_stats(device)
            used = f"{stats['live']:,} bytes in use, {stats['cached']:,} kept"
            plural = "" if backend.streams == 1 else "s"
            yield "", f"{device}: {used}, {backend.streams} stream{plural}"


def _kernels() -> Iterator[tuple[str, str]]:
    for space in dir(kf.ops):
        counts = _counts(space)
        listed = ", ".join(f"{number} on {key}" for key, number in counts["kernels"].items())
        yield space, f"{counts['count']} operators, with kernels for {listed}"


class _Counts(TypedDict):
    """How many operators there are, and how many have a kernel at each backend's key."""

    count: int
    kernels: dict[str, int]


def _counts(space: str) -> _Counts:
    """Count the operators of a namespace."""
    backends = [key for key in reversed(list(kf.DispatchKey)) if key.is_backend]
    found = overloads(getattr(kf.ops, space))
    kernels = {str(key): sum(op.has_kernel(key) for op in found) for key in backends}
    return {"count": len(found), "kernels": kernels}


def _packages(load: bool) -> Iterator[tuple[str, str]]:
    """Yield the entry points of installed packages, and whether they load."""
    if load:
        # Each package that fails is reported below.
        with contextlib.suppress(kf.KernelLoadError):
            kf.load_kernels()
    offered = _entry_points.packages_offered()
    for package in offered:
        if package.error is not None:
            state = f"can't be loaded: {type(package.error).__name__}: {package.error}"
        elif package.loaded:
            state = "loaded"
        else:
            state = "not loaded: its first use does that, or doctor --load"
        where = f"{package.value} ({package.distribution} {package.version})"
        yield package.namespace, f"{where}: {state}"
    if not offered:
        yield "none", f"no installed package has an entry point of the group {_entry_points.GROUP}"
    for problem in _entry_points.unreadable():
        yield "unreadable", problem


def _gpu(root: Path = Path("/")) -> Iterator[tuple[str, str]]:
    """Yield what there is of a GPU's software, and where it was looked for if there is none.

    Args:
        root: where the system's files begin.
    """
    proc = root / "proc/driver/nvidia"
    driver = _text(proc / "version").partition("\n")[0].strip()
    version = re.search(r"\b\d+\.\d+(?:\.\d+)?\b", driver)
    if driver:
        yield "driver", version[0] if version else driver
    else:
        yield "driver", f"not found: no {proc / 'version'} (the kernel module isn't loaded)"
    models = [_model(path) for path in sorted(proc.glob("gpus/*"))]
    devices = sorted(str(path) for path in (root / "dev").glob("nvidia[0-9]*"))
    if devices:
        yield "GPUs", ", ".join(models or devices)
    else:
        yield "GPUs", f"none: no {root / 'dev/nvidia0'}"
    yield "libcuda", _library("cuda", "comes with NVIDIA's driver")
    yield "CUDA", _toolkit()
    spaces = (overloads(getattr(kf.ops, space)) for space in dir(kf.ops))
    if not any(op.has_kernel("CUDA") for space in spaces for op in space):
        yield "keyfold", "no operator has a kernel for CUDA in this version: calls run on the CPU"


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _model(path: Path) -> str:
    """Return a GPU's model from the driver's own file about it."""
    model = re.search(r"^Model:\s*(.+)$", _text(path / "information"), re.MULTILINE)
    return model[1].strip() if model else path.name


def _library(name: str, hint: str) -> str:
    found = ctypes.util.find_library(name)
    return found or f"not found: no lib{name} on the loader's path ({hint})"


def _wheels(prefix: str) -> list[str]:
    """Return the installed packages whose name begins so, as `name version`."""
    found = {
        f"{name.lower()} {distribution.version}"
        for distribution in importlib.metadata.distributions()
        # A broken installation may lack its name.
        if (name := distribution.metadata["Name"] or "").lower().startswith(prefix)
    }
    return sorted(found)


def _toolkit() -> str:
    """Return the CUDA toolkits or runtimes that are there: packages, the system's, a toolkit."""
    places = [f"{wheel} (package)" for wheel in _wheels("nvidia-cuda-runtime")]
    system = ctypes.util.find_library("cudart")
    if system:
        places.append(f"{system} (system)")
    home = Path(os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda")
    if (home / "bin" / "nvcc").exists():
        places.append(f"the toolkit in {home.resolve()}")
    return ", ".join(places) or (
        f"not found: no package nvidia-cuda-runtime, no libcudart on the loader's path, "
        f"no toolkit in {home}"
    )
