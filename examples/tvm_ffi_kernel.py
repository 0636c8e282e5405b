"""A kernel built for TVM FFI at one of keyfold's keys, and a keyfold operator called from C++.

Needs apache-tvm-ffi and a C++ compiler. The kernel is examples/native/tvm_kernel.cc.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import tvm_ffi

import keyfold as kf
import keyfold.tvm_ffi

source = Path(__file__).parent / "native" / "tvm_kernel.cc"


def compile_kernel(folder: str) -> str:
    """Compile with the flags that the package tells."""
    flags = subprocess.run(
        [sys.executable, "-m", "tvm_ffi.config", "--cxxflags", "--ldflags", "--libs"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    library = f"{folder}/libtvm_kernel.so"
    subprocess.run(
        ["c++", "-shared", "-fPIC", "-O2", str(source), "-o", library, *flags], check=True
    )
    return library


with tempfile.TemporaryDirectory() as folder:
    module = tvm_ffi.load_module(compile_kernel(folder))

kf.define("native_demo::softplus(Tensor x, float beta=1.0) -> Tensor")
kf.impl("native_demo::softplus", "CPU", module.softplus)
kf.impl("native_demo::softplus", "Meta", lambda x, beta: kf.empty_like(x))
softplus = kf.ops.native_demo.softplus

x = np.linspace(-1.0, 1.0, 3)
print("NumPy:       ", softplus(x).round(4))
print("reversed:    ", softplus(x[::-1]).round(4))
print("keyfold:     ", type(softplus(kf.from_numpy(x))).__name__)
try:
    softplus(x, beta=-1.0)
except ValueError as error:
    print("its error:   ", error)

exported = keyfold.tvm_ffi.export("native_demo::softplus", name="keyfold.native_demo.softplus")
print("exported:    ", type(exported(tvm_ffi.from_dlpack(x))).__name__)
print("from C++:    ", round(module.smooth_norm(tvm_ffi.from_dlpack(x)), 4))
