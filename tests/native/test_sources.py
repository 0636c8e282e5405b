"""Native kernels from addresses, capsules, ctypes and numba; bad input to each."""

import ctypes
import gc
import os
import struct
import subprocess
import sys
import sysconfig

import numpy as np
import pytest

import keyfold as kf
from tests.helpers.compiler import compile_c

KERNELS = """
#include "keyfold_abi.h"
#define KERNEL(name) KEYFOLD_EXPORT int name(void *handle, const TVMFFIAny *args, int32_t n, \\
                                             TVMFFIAny *result)
KERNEL(count) {
    (void)handle;
    (void)args;
    result->type_index = kTVMFFIInt;
    result->v_int64 = n;
    return 0;
}
KERNEL(tell_handle) {
    (void)args;
    (void)n;
    result->type_index = kTVMFFIInt;
    result->v_int64 = (int64_t)(intptr_t)handle;
    return 0;
}
KERNEL(code) {
    (void)handle;
    (void)result;
    return (int)args[n - 1].v_int64;
}
KERNEL(small_text) {
    (void)handle;
    (void)args;
    (void)n;
    result->type_index = 11;
    result->zero_padding = 5;
    __builtin_memcpy(&result->v_int64, "hello", 5);
    return 0;
}
KERNEL(overrun) {
    (void)handle;
    (void)result;
    const DLTensor *out = (const DLTensor *)args[n - 1].v_ptr;
    for (int64_t i = 0; i <= out->shape[0] + 40; ++i) ((double *)out->data)[i] = 1.0;
    return 0;
}
"""
THROWS = """
#include <cstdint>
#include <stdexcept>
extern "C" int throws(void *, const void *, std::int32_t, void *) {
    throw std::out_of_range("beyond the end");
}
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    source = folder / "kernels.c"
    source.write_text(KERNELS)
    return compile_c(source, folder / "libkernels.so")


@pytest.fixture(scope="module")
def library(path):
    return ctypes.CDLL(str(path))


def address_of(function):
    return ctypes.cast(function, ctypes.c_void_p).value


@pytest.fixture
def call(d):
    """Calls an operator of that schema, served by this kernel."""

    def run(schema, kernel, *args, **kwargs):
        d.define(f"demo::{schema}")
        name = f"demo::{schema.split('(')[0]}"
        d.impl(name, "CPU", kernel)
        return d.call(name, *args, **kwargs)

    return run


# Addresses.


def test_an_address(call, library):
    kernel = kf.NativeKernel.from_address(address_of(library.count))
    assert call("f(Tensor x, int k) -> int", kernel, np.ones(1), 3) == 2
    assert (kernel.path, kernel.symbol) == (None, None)
    assert kernel.name == hex(address_of(library.count))
    assert repr(kernel).startswith("<NativeKernel 0x")


def test_a_name_a_handle_and_what_is_kept_alive(d, library):
    class Owner:
        freed = False

        def __del__(self):
            Owner.freed = True

    kernel = kf.NativeKernel.from_address(
        address_of(library.tell_handle), name="teller", handle=4096, keep_alive=Owner()
    )
    d.define("demo::f(Tensor x) -> int")
    handle = d.impl("demo::f", "CPU", kernel)
    assert "teller" in handle.origin
    assert d.call("demo::f", np.ones(1)) == 4096
    del kernel
    gc.collect()
    assert not Owner.freed
    handle.remove()
    del handle
    gc.collect()
    for _ in range(3):
        d.define("demo::other() -> ()").remove()
    assert Owner.freed


@pytest.mark.parametrize("address", [0, ctypes.CFUNCTYPE(ctypes.c_int)()], ids=["0", "ctypes"])
def test_a_null_address_is_refused(address):
    with pytest.raises(kf.InvalidValue, match="the address is null"):
        kf.NativeKernel.from_address(address)


@pytest.mark.parametrize("address", [-1, 2**64, 8])
def test_a_number_that_is_no_address_is_refused(address):
    with pytest.raises(kf.InvalidValue, match=r"is no address|there is no function"):
        kf.NativeKernel.from_address(address)


@pytest.mark.parametrize("wrong", ["0x10", True, None, len, 2.5])
def test_what_isnt_an_address_is_refused(wrong):
    with pytest.raises(TypeError, match="an address is a whole number"):
        kf.NativeKernel.from_address(wrong)
    with pytest.raises(TypeError, match="a NativeKernel is made of"):
        kf.NativeKernel(wrong)


def test_a_ctypes_function_by_the_plain_call(call, library):
    kernel = kf.NativeKernel(library.count)
    assert call("f(Tensor x) -> int", kernel, np.ones(1)) == 1


def test_a_ctypes_callback_is_kept_alive(d):
    kind = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p
    )
    seen = []

    def kernel(handle, args, count, result):
        seen.append(count)
        return 0

    d.define("demo::f(Tensor x) -> ()")
    d.impl("demo::f", "CPU", kf.NativeKernel(kind(kernel)))
    gc.collect()
    d.call("demo::f", np.ones(1))
    assert seen == [1]


# Capsules.


def capsule(address, name=b"some.name"):
    new = ctypes.pythonapi.PyCapsule_New
    new.restype = ctypes.py_object
    new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    made = new(address, name, None)
    NAMES.append(name)
    return made


# A capsule doesn't copy its name.
NAMES = []


@pytest.mark.parametrize("name", [b"a.kernel", None])
def test_a_capsule(call, library, name):
    holder = capsule(address_of(library.count), name)
    kernel = kf.NativeKernel.from_capsule(holder)
    assert call("f(Tensor x) -> int", kernel, np.ones(1)) == 1
    assert kernel.name == ("a.kernel" if name else hex(address_of(library.count)))


def test_a_capsule_is_registered_as_it_is_and_kept(d, library):
    holder = capsule(address_of(library.count))
    d.define("demo::f(Tensor x) -> int")
    before = sys.getrefcount(holder)
    handle = d.impl("demo::f", "CPU", holder)
    assert d.get_op("demo::f").kernels["CPU"] is holder
    assert sys.getrefcount(holder) > before
    assert "some.name" in handle.origin
    assert d.call("demo::f", np.ones(1)) == 1


def test_a_consumed_capsule_is_refused():
    used = np.ones(1).__dlpack__()
    np.from_dlpack(Once(used))
    with pytest.raises(kf.InvalidValue, match='"used_dltensor" holds an array'):
        kf.NativeKernel.from_capsule(used)
    with pytest.raises(kf.InvalidValue, match='"dltensor" holds an array'):
        kf.NativeKernel.from_capsule(np.ones(1).__dlpack__())


class Once:
    """An array that gives this capsule."""

    def __init__(self, capsule):
        self.capsule = capsule

    def __dlpack__(self, **options):
        return self.capsule

    def __dlpack_device__(self):
        return (1, 0)


def test_a_capsule_with_null_is_refused(library):
    """Python makes no such capsule: the pointer is overwritten behind its back."""
    holder = capsule(address_of(library.count))
    ctypes.memset(id(holder) + object.__basicsize__, 0, ctypes.sizeof(ctypes.c_void_p))
    with pytest.raises(kf.InvalidValue, match=r"the capsule .* holds no function"):
        kf.NativeKernel.from_capsule(holder)


def test_what_isnt_a_capsule_is_refused():
    with pytest.raises(TypeError, match="takes a PyCapsule, not int 5"):
        kf.NativeKernel.from_capsule(5)


# numba.


def test_a_numba_cfunc_is_registered_as_it_is(d, numba):
    types = numba.types
    value = np.dtype([("type_index", "i4"), ("zero", "u4"), ("payload", "i8")])
    pointer = types.CPointer(numba.from_dtype(value))

    @numba.cfunc(types.int32(types.voidptr, pointer, types.int32, pointer))
    def add(handle, args, count, result):
        values, out = numba.carray(args, 3), numba.carray(result, 1)
        out[0].type_index = 1
        out[0].payload = values[1].payload + values[2].payload
        return 0

    d.define("demo::add(Tensor x, int a, int b) -> int")
    handle = d.impl("demo::add", "CPU", add)
    assert d.call("demo::add", np.ones(1), 40, 2) == 42
    assert "test_sources.py" in handle.origin
    assert d.get_op("demo::add").kernels["CPU"] is add
    del add
    gc.collect()
    assert d.call("demo::add", np.ones(1), 1, 2) == 3


def test_a_numba_cfunc_of_another_signature_is_refused(d, numba):
    @numba.cfunc("float64(float64)")
    def square(x):
        return x * x

    d.define("demo::square(Tensor x) -> float")
    with pytest.raises(kf.InvalidValue, match=r"must be int32\(voidptr, voidptr, int32, voidptr\)"):
        d.impl("demo::square", "CPU", square)
    assert d.kernel_count() == 0


# Errors.


def test_a_library_for_another_architecture(tmp_path):
    """The head of an ELF file whose machine is another one (68000)."""
    size = struct.calcsize("P")
    identity = b"\x7fELF" + bytes([size // 4, 1 if sys.byteorder == "little" else 2, 1]) + bytes(9)
    head = struct.pack("=HHIQQQIHHHHHH", 3, 4, 1, 0, 64, 0, 0, 64, 56, 1, 64, 0, 0)
    other = tmp_path / "libother.so"
    other.write_bytes(identity + head + bytes(4096))
    with pytest.raises(OSError, match=r"libother\.so") as raised:
        kf.NativeKernel.from_library(other, "f")
    assert isinstance(raised.value, kf.LibraryLoadError)


@pytest.mark.parametrize("code", [-1, 1, 255])
def test_a_code_without_an_error(call, path, code):
    kernel = kf.NativeKernel.from_library(path, "code")
    with pytest.raises(
        kf.KernelFailed, match=f"demo::f: the kernel code .* failed with code {code}"
    ):
        call("f(Tensor x, int code) -> ()", kernel, np.ones(1), code)


def test_an_exception_through_c(call, tmp_path):
    source = tmp_path / "throws.cc"
    source.write_text(THROWS)
    library = tmp_path / "libthrows.so"
    compiler = (sysconfig.get_config_var("CXX") or "c++").split()
    command = [*compiler, "-shared", "-fPIC", str(source), "-o", str(library)]
    subprocess.run(command, check=True, capture_output=True)
    kernel = kf.NativeKernel.from_library(library, "throws")
    with pytest.raises(kf.KernelFailed, match=r"let a C\+\+ exception out.*: beyond the end"):
        call("f(Tensor x) -> ()", kernel, np.ones(1))


def test_a_short_text_comes_back_without_the_library(call, path):
    kernel = kf.NativeKernel.from_library(path, "small_text")
    with pytest.raises(kf.KernelReturnError, match="returned str 'hello'"):
        call("f(Tensor x) -> int", kernel, np.ones(1))


@pytest.mark.parametrize("options", [{"tensors": "object"}, {"outputs": "returned"}])
def test_options_that_contradict_each_other(library, options):
    with pytest.raises(kf.InvalidValue, match="objects=False rules out"):
        kf.NativeKernel.from_address(address_of(library.count), objects=False, **options)


def test_objects_need_the_library():
    """In a process of its own: this one may have loaded it."""
    program = """
import keyfold as kf
try:
    kf.NativeKernel.from_address(8192, objects=True)
except kf.LibraryLoadError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert "pip install apache-tvm-ffi" in done.stdout


def test_exporting_needs_the_package():
    """In a process of its own, which can't import it."""
    program = """
import sys
sys.modules["tvm_ffi"] = None
import keyfold as kf
try:
    kf.tvm_ffi.export("aten::exp")
except ImportError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert "pip install apache-tvm-ffi" in done.stdout


def test_a_write_past_the_output_is_found_by_the_address_sanitizer(tmp_path):
    """The author's fault, and the author's tool: docs/native-kernels.md says how to use it."""
    source = tmp_path / "kernels.c"
    source.write_text(KERNELS)
    library = tmp_path / "liboverrun.so"
    sanitizer = ("-fsanitize=address", "-g", "-Wno-error")
    compile_c(source, library, *sanitizer)
    compiler = (sysconfig.get_config_var("CC") or "cc").split()
    runtime = subprocess.run(
        [*compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    program = f"""
import numpy as np, keyfold as kf
kf.define("asan::f(Tensor x) -> Tensor")
kf.impl("asan::f", "CPU", kf.NativeKernel.from_library({str(library)!r}, "overrun"))
kf.impl("asan::f", "Meta", lambda x: kf.empty(x.shape, dtype=x.dtype, device="meta"))
print(kf.ops.asan.f(np.ones(4)))
"""
    environment = os.environ | {
        "LD_PRELOAD": runtime,
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=environment,
    )
    assert done.returncode != 0
    assert "AddressSanitizer: heap-buffer-overflow" in done.stderr
    assert "kernels.c" in done.stderr
