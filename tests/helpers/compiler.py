"""C files made into shared libraries."""

import subprocess
import sysconfig

import keyfold as kf


def compile_c(source, target, *flags):
    """Compiles a C file into a shared library with the compiler that Python was built with.

    keyfold's header is found.
    """
    compiler = (sysconfig.get_config_var("CC") or "cc").split()
    command = [*compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror"]
    command += [f"-I{kf.get_include()}", *flags]
    subprocess.run([*command, "-o", str(target), str(source)], check=True, capture_output=True)
    return target
