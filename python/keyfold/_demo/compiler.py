"""A kernel from a C file of the package, with the C compiler that this machine has."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from importlib import resources
from pathlib import Path

import keyfold as kf


def find_compiler() -> list[str] | None:
    """Return the C compiler's command: $CC, or the first of cc, gcc, clang; None without one."""
    for candidate in (os.environ.get("CC"), "cc", "gcc", "clang"):
        command = shlex.split(candidate or "")
        if command and shutil.which(command[0]):
            return command
    return None


def compile_kernel(name: str) -> tuple[kf.NativeKernel | None, str]:
    """Compile NAME.c, whose function is called like it.

    Args:
        name: of the file in this folder, and of the function.

    Returns:
        The kernel, or None where nothing compiles it, and what came of it in a few words.
    """
    compiler = find_compiler()
    if compiler is None:
        return None, "no C compiler found ($CC, cc, gcc, clang): the Python kernel stays"
    source = resources.files("keyfold") / "_demo" / f"{name}.c"
    # The directory can go as soon as the library is loaded.
    with tempfile.TemporaryDirectory() as folder, resources.as_file(source) as path:
        library = Path(folder) / f"lib{name}.so"
        command = [*compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            problem = (done.stderr.strip().splitlines() or ["it gave no reason"])[0]
            why = f"{compiler[0]} can't compile {name}.c, the Python kernel stays: {problem}"
            return None, why
        kernel = kf.NativeKernel.from_library(library, name)
    return kernel, f"compiled by {Path(compiler[0]).name}"
