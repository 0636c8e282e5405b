"""Compiles fastcall.c against the headers of the Python that runs, and imports it."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import numpy as np

SOURCE = Path(__file__).with_name("fastcall.c")
NAME = "keyfold_fastcall"


class CannotBuildError(Exception):
    """The C peer can't be built here; the message says why."""


@contextmanager
def built(source: Path, name: str, includes: Iterable[str] = ()) -> Iterator[Path]:
    """A shared library from one C file, gone when the block ends.

    Raises:
        CannotBuildError: no compiler, or it refuses.
    """
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    if shutil.which(compiler[0]) is None:
        compiler = ["cc"]
    if shutil.which(compiler[0]) is None:
        raise CannotBuildError("no C compiler (set CC)")
    with tempfile.TemporaryDirectory(prefix="keyfold-bench-") as folder:
        library = Path(folder) / f"{name}{sysconfig.get_config_var('EXT_SUFFIX') or '.so'}"
        flags = ["-O2", "-fPIC", "-shared", *(f"-I{include}" for include in includes)]
        command = [*compiler, *flags, "-o", str(library), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or ["no message"]
            errors = [line for line in lines if "error" in line]
            raise CannotBuildError(f"{compiler[0]} failed: {(errors or lines)[0]}")
        yield library


def load() -> ModuleType:
    """The compiled module.

    Raises:
        CannotBuildError: no compiler, no headers, or the compiler refuses.
    """
    paths = sysconfig.get_paths()
    if not (Path(paths["include"]) / "Python.h").is_file():
        raise CannotBuildError(f"Python.h is not in {paths['include']}")
    includes = dict.fromkeys((paths["include"], paths["platinclude"], np.get_include()))
    with built(SOURCE, NAME, includes) as library:
        spec = importlib.util.spec_from_file_location(NAME, library)
        if spec is None or spec.loader is None:
            raise CannotBuildError(f"{library.name} is no extension module for this Python")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
