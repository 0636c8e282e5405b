"""Fixtures for the tests of TVM FFI: real kernels in C++, and operators made of them."""

import subprocess
import sys
from pathlib import Path

import pytest

import keyfold as kf

SOURCE = Path(__file__).with_name("kernels.cc")


@pytest.fixture(scope="session")
def tvm_ffi():
    """The package, where it is installed."""
    return pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi isn't installed")


def compile_with_package_flags(source, target):
    """Compiles C++ with the flags that the package tells."""
    flags = subprocess.run(
        [sys.executable, "-m", "tvm_ffi.config", "--cxxflags", "--ldflags", "--libs"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    command = ["c++", "-shared", "-fPIC", "-O1", str(source), "-o", str(target), *flags]
    subprocess.run(command, check=True, capture_output=True)
    return target


@pytest.fixture(scope="session")
def tvm_library(tvm_ffi, tmp_path_factory):
    """The path of kernels.cc as a shared library."""
    return compile_with_package_flags(SOURCE, tmp_path_factory.mktemp("tvm") / "libkernels.so")


@pytest.fixture(scope="session")
def kernels(tvm_ffi, tvm_library):
    """The functions of kernels.cc."""
    return tvm_ffi.load_module(str(tvm_library))


@pytest.fixture(scope="session")
def testing(tvm_ffi):
    """`testing("nop")`: a function of the package's own test library."""
    library = Path(tvm_ffi.__file__).parent / "lib" / "libtvm_ffi_testing.so"
    tvm_ffi.load_module(str(library))
    return lambda name: tvm_ffi.get_global_func(f"testing.{name}")


@pytest.fixture
def op(d):
    """Defines an operator with this CPU kernel, and gives what calls it: `op(schema, kernel)`."""

    def define(schema, kernel, meta=None):
        name = f"demo::{schema.split('(')[0]}"
        d.define(f"demo::{schema}")
        d.impl(name, "CPU", kernel)
        if meta is not None:
            d.impl(name, "Meta", meta)
        return lambda *args, **kwargs: d.call(name, *args, **kwargs)

    return define


@pytest.fixture
def exported(tvm_ffi, ns):
    """Exports an operator of this schema with this CPU kernel: `exported(schema, kernel)`."""

    library = kf.Library(ns)

    def make(schema, kernel, **options):
        library.define(schema)
        if kernel is not None:
            library.impl(schema.split("(")[0], kernel, "CPU")
        return kf.tvm_ffi.export(f"{ns}::{schema.split('(')[0]}", **options)

    yield make
    library.close()
