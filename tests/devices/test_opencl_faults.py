"""examples/backend-opencl where OpenCL is missing, fails, or keeps broken files.

The library finds a loader of tests/helpers/opencl_faults.c before the real one. It fails the calls
that a variable names.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import keyfold as kf
from tests.helpers.compiler import compile_c
from tests.helpers.paths import ROOT

pytestmark = pytest.mark.one_python

FAULTS = "KEYFOLD_TEST_FAULTS"
PLATFORMS = "KEYFOLD_TEST_PLATFORMS"

ADD = """\
import sys, keyfold as kf
kf.load_plugin(sys.argv[1])
x = kf.asarray([1.5], dtype="float32", device="opencl")
print((x + x).tolist())
"""


@pytest.fixture(scope="module")
def loader(pocl, tmp_path_factory):
    """The loader that fails on demand."""
    real = Path(pocl["KEYFOLD_OPENCL"])
    flags = ["-Wl,--no-as-needed", str(real), f"-Wl,-rpath,{real.parent}", "-pthread", "-ldl"]
    target = tmp_path_factory.mktemp("loader") / "libfaults.so"
    return compile_c(ROOT / "tests" / "helpers" / "opencl_faults.c", target, *flags)


@pytest.fixture
def faulty(pocl, loader, monkeypatch):
    """Has the library find that loader."""
    monkeypatch.setenv("KEYFOLD_OPENCL", str(loader))
    return monkeypatch


@pytest.fixture
def opencl(faulty, opencl_library):
    """The plugin, loaded by that loader."""
    with kf.load_plugin(opencl_library) as plugin:
        yield plugin


def there(values, device="opencl"):
    return kf.asarray(values, dtype="float32", device=device)


def process(library, variables, text=ADD):
    """A process that loads the library."""
    return subprocess.Popen(
        [sys.executable, "-c", text, str(library)],
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


# Nothing to compute with


def test_no_loader_is_an_error_that_says_what_to_install(
    pocl, opencl_library, monkeypatch, raises_saying
):
    monkeypatch.setenv("KEYFOLD_OPENCL", "/nowhere/libOpenCL.so")
    parts = ["there is no OpenCL loader (/nowhere/libOpenCL.so", "ocl-icd-libopencl1"]
    with raises_saying(kf.LibraryLoadError, *parts):
        kf.load_plugin(opencl_library)


def test_another_library_is_no_loader(pocl, opencl_library, monkeypatch, raises_saying):
    monkeypatch.setenv("KEYFOLD_OPENCL", "libm.so.6")
    says = "libm.so.6 has no function clGetPlatformIDs: it isn't an OpenCL loader"
    with raises_saying(kf.LibraryLoadError, says):
        kf.load_plugin(opencl_library)


def test_a_loader_without_a_driver_is_an_error(pocl, opencl_library, tmp_path):
    child = process(opencl_library, {"OCL_ICD_VENDORS": str(tmp_path)})
    said = child.communicate()[1].strip().rpartition("\n")[2]
    assert said.startswith("keyfold.LibraryLoadError: ")
    assert "the OpenCL loader has no platform; install a device's driver" in said


@pytest.mark.parametrize(
    ("platforms", "fault", "says"),
    [
        ("none", "", "the OpenCL loader has no platform; install a device's driver"),
        ("twice", "clGetPlatformIDs:1-:-6", "has no platform (CL_OUT_OF_HOST_MEMORY (-6))"),
        (
            "empty",
            "clGetDeviceIDs:1-:-1",
            "Empty has no device; Portable Computing Language has no",
        ),
        ("empty", "clGetDeviceIDs:1-:-2", "failed, CL_DEVICE_NOT_AVAILABLE (-2)"),
        ("empty", "clGetDeviceInfo:1-:-33", "but it is older than OpenCL 1.2"),
        ("empty", "clCreateContext:1-:-2", "makes no context, CL_DEVICE_NOT_AVAILABLE (-2)"),
        ("twice", "clCreateCommandQueue:1-:-6", "making a queue: CL_OUT_OF_HOST_MEMORY (-6)"),
        ("twice", "clEnqueueWriteBuffer:1-:-2", "CL_DEVICE_NOT_AVAILABLE (-2), the device is lost"),
    ],
)
def test_no_usable_device_is_an_error(
    faulty, opencl_library, raises_saying, platforms, fault, says
):
    faulty.setenv(PLATFORMS, platforms)
    faulty.setenv(FAULTS, fault)
    with raises_saying(kf.LibraryLoadError, str(opencl_library), says):
        kf.load_plugin(opencl_library)
    assert "opencl" not in [backend.device_type for backend in kf.backends()]


# Several platforms


@pytest.mark.parametrize(
    ("platforms", "fault"),
    [
        ("empty", ""),
        ("twice", "clCreateContext:1:-2"),
        ("twice", "clCreateCommandQueue:1:-5"),
        ("twice", "clGetDeviceIDs:1:-1"),
    ],
)
def test_a_platform_without_a_usable_device_is_passed_over(
    faulty, opencl_library, platforms, fault
):
    faulty.setenv(PLATFORMS, platforms)
    faulty.setenv(FAULTS, fault)
    with kf.load_plugin(opencl_library):
        (row,) = [backend for backend in kf.backends() if backend.device_type == "opencl"]
        assert row.devices == (kf.Device("opencl:0"),)
        x = there([1.5, 2.5])
        assert (x + x).tolist() == [3.0, 5.0]


def test_two_platforms_are_two_devices(faulty, opencl_library, raises_saying):
    faulty.setenv(PLATFORMS, "twice")
    values = np.arange(24, dtype="float32").reshape(4, 6)
    with kf.load_plugin(opencl_library):
        x = there(values)
        moved = x[::2, ::-1].to("opencl:1")
        assert moved.device == "opencl:1"
        np.testing.assert_array_equal(moved.cpu(), values[::2, ::-1])
        assert x[:0].to("opencl:1").shape == (0, 6)
        back = kf.exp(moved).to("opencl:0")
        np.testing.assert_allclose(back.cpu(), np.exp(values[::2, ::-1]), rtol=1e-5)
        with raises_saying(kf.DeviceError, "'self' is on opencl:0, 'other' is on opencl:1"):
            _ = x + x.to("opencl:1")
        faulty.setenv(FAULTS, "clEnqueueCopyBuffer:1:-4")
        with raises_saying(MemoryError, "copying: CL_MEM_OBJECT_ALLOCATION_FAILURE (-4)"):
            x.to("opencl:1")
        # A device that is lost is no other's business.
        faulty.setenv(FAULTS, "clEnqueueReadBuffer:1:-34")
        with raises_saying(kf.KernelFailed, "the device is lost"):
            moved.cpu()
        with raises_saying(kf.KernelFailed, "failed before, the device is lost"):
            moved.to("opencl:0")
        assert x[0].tolist() == values[0].tolist()


# Calls that fail


@pytest.mark.parametrize(
    ("fault", "call", "says"),
    [
        ("clCreateBuffer:1:-4", lambda x: x + x, "aten::add: allocating 32 bytes on "),
        ("clCreateBuffer:1:-61", lambda x: x + x, "CL_INVALID_BUFFER_SIZE (-61)"),
        ("clEnqueueNDRangeKernel:1:-6", lambda x: x + x, "aten::add: "),
        ("clEnqueueNDRangeKernel:1:-4", lambda x: x @ x, "aten::matmul: "),
        ("clSetKernelArg:2:-6", lambda x: kf.softmax(x, 0), "argument 1 of a kernel"),
        ("clEnqueueWriteBuffer:1:-4", lambda x: there([1.0]), "uploading: "),
        ("clEnqueueFillBuffer:1:-4", lambda x: kf.zeros(4, device="opencl"), "filling: "),
        ("clEnqueueReadBuffer:1:-4", lambda x: x.cpu(), "downloading: "),
    ],
)
def test_out_of_memory_is_an_error_of_the_call(opencl, faulty, raises_saying, fault, call, says):
    x = there([0.5] * 8)
    expected = kf.softmax(x.cpu(), 0).tolist()
    np.testing.assert_allclose((kf.softmax(x, 0) + (x + x) + x @ x).cpu(), [3.125] * 8)
    kf.synchronize("opencl")
    faulty.setenv(FAULTS, fault)
    parts = [says, "has no memory left for it", "drop tensors that aren't needed"]
    with raises_saying(MemoryError, *parts, "device opencl of the plugin keyfold-opencl"):
        call(x)
    # The next call is fine.
    assert kf.softmax(x, 0).tolist() == pytest.approx(expected)


def test_memory_that_no_device_has_is_an_error(opencl, raises_saying):
    with raises_saying(MemoryError, "bytes are more than", "allocates at once"):
        kf.empty((1 << 50,), device="opencl")


@pytest.mark.parametrize(
    ("fault", "call", "kind"),
    [
        ("clEnqueueReadBuffer:1:-5", lambda y: y.cpu(), kf.KernelFailed),
        ("clFinish:1:-5", lambda y: kf.synchronize("opencl"), kf.KernelFailed),
        ("clFinish:1:-4", lambda y: kf.synchronize("opencl"), MemoryError),
        ("clEnqueueReadBuffer:1:-14", lambda y: y.tolist(), kf.KernelFailed),
        ("clFinish:1:-9999", lambda y: kf.synchronize("opencl"), kf.KernelFailed),
    ],
)
def test_a_late_error_names_the_operation_before(opencl, faulty, raises_saying, fault, call, kind):
    y = kf.exp(there([1.0, 2.0]))
    faulty.setenv(FAULTS, fault)
    with raises_saying(
        kind, "aten::exp: it or an operation before it: ", f"({fault.split(':')[2]})"
    ):
        call(y)


@pytest.mark.parametrize(
    "fault",
    [
        "clEnqueueReadBuffer:1:-34",
        "clFinish:1:-2",
        "clEnqueueNDRangeKernel:1:-36",
        "clCreateBuffer:1:-9999",
        "cl*:1-:-36",
    ],
)
def test_after_a_loss_each_call_is_an_error(faulty, opencl_library, raises_saying, fault):
    def compute_and_read(y):
        kf.exp(y).cpu()
        kf.synchronize("opencl")

    calls = [
        lambda y: y.cpu(),
        lambda y: y + y,
        lambda y: there([1.0]),
        lambda y: kf.zeros(3, device="opencl"),
        lambda y: y.__setitem__(0, 1.0),
        lambda y: y.T.clone(),
        repr,
        lambda y: kf.synchronize("opencl"),
        kf.grad(lambda y: (y * y).sum()),
    ]
    with kf.load_plugin(opencl_library):
        y = there([[1.0, 2.0], [3.0, 4.0]])
        faulty.setenv(FAULTS, fault)
        with raises_saying(kf.KernelFailed, "the device is lost"):
            compute_and_read(y)
        if "*" not in fault:
            faulty.delenv(FAULTS)
        for call in calls:
            with raises_saying(kf.KernelFailed, "the device is lost", "a new process may use it"):
                call(y)
        del y
        gc.collect()
    # A driver that works again can be loaded again.
    faulty.delenv(FAULTS, raising=False)
    with kf.load_plugin(opencl_library):
        assert there([1.5]).tolist() == [1.5]


def test_a_program_with_an_error_is_shown_with_its_lines(
    pocl, opencl_library, monkeypatch, raises_saying
):
    monkeypatch.setenv("KEYFOLD_OPENCL_OPTIONS", "-Dkernel=kernal")
    with kf.load_plugin(opencl_library):
        x = there([[1.0]])
        parts = ["aten::matmul: the OpenCL program matmul doesn't compile", "| kernel "]
        options = "CL_BUILD_PROGRAM_FAILURE (-11), with KEYFOLD_OPENCL_OPTIONS=-Dkernel=kernal"
        with raises_saying(kf.KernelFailed, *parts, options):
            _ = x @ x


def test_memory_beyond_the_devices_is_refused(faulty, opencl_library, raises_saying):
    faulty.setenv("KEYFOLD_TEST_MEMORY", "1000000")
    with kf.load_plugin(opencl_library):
        x = kf.empty(200_000, dtype="float32", device="opencl")
        with raises_saying(kf.OutOfMemory, "800000 bytes are more than", "of 1000000 are in use"):
            kf.empty(200_000, dtype="float32", device="opencl")
        del x
        gc.collect()
        assert kf.zeros(200_000, dtype="float32", device="opencl").sum().item() == 0.0


# Programs on disk


@pytest.fixture
def cache(faulty, tmp_path):
    """A folder of programs, empty at first."""
    folder = tmp_path / "programs"
    faulty.setenv("KEYFOLD_OPENCL_CACHE", str(folder))
    return folder


def add(library):
    """Adds on the device, and drops the programs that it has in memory."""
    with kf.load_plugin(library):
        x = there([1.5])
        assert (x + x).tolist() == [3.0]


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_programs_are_kept(faulty, opencl_library, cache, raises_saying):
    add(opencl_library)
    first = contents(cache)
    assert all(name.endswith(".bin") for name in first)
    assert all(held.startswith(b"keyfold-opencl 1\n") for held in first.values())
    faulty.setenv(FAULTS, "clCreateProgramWithSource:1-:-6")
    add(opencl_library)
    assert contents(cache) == first
    for name in first:
        (cache / name).unlink()
    with raises_saying(MemoryError, "the program", "CL_OUT_OF_HOST_MEMORY (-6)"):
        add(opencl_library)


@pytest.mark.parametrize(
    "change",
    [
        lambda held: held[:-20],
        lambda held: b"",
        lambda held: held[:40],
        lambda held: held.replace(b"keyfold-opencl 1\n", b"keyfold-opencl 0\n"),
        lambda held: held[:-1] + bytes([held[-1] ^ 1]),
        lambda held: held.replace(b"OpenCL C 1.2", b"OpenCL C 9.9", 1) + b"\0",
        lambda held: os.urandom(len(held)),
    ],
)
def test_a_broken_file_is_compiled_again(opencl_library, cache, change):
    add(opencl_library)
    first = contents(cache)
    for name, held in first.items():
        (cache / name).write_bytes(change(held))
    add(opencl_library)
    again = contents(cache)
    # A compiler's binaries may differ from one time to the next, in size as well.
    assert again.keys() == first.keys()
    assert all(held.startswith(b"keyfold-opencl 1\n") for held in again.values())
    assert all(again[name] != change(held) for name, held in first.items())


def test_a_folder_that_cannot_be_written_costs_only_time(faulty, opencl_library, tmp_path):
    (tmp_path / "file").write_text("no folder")
    for folder in (tmp_path / "file", tmp_path / "file" / "below", "/proc/nowhere", ""):
        faulty.setenv("KEYFOLD_OPENCL_CACHE", str(folder))
        add(opencl_library)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_processes_that_write_at_once_leave_whole_files(pocl, faulty, opencl_library, cache):
    children = [process(opencl_library, {}) for _ in range(3)]
    said = [child.communicate() for child in children]
    assert [out for out, _ in said] == ["[3.0]\n"] * 3, said
    assert all(name.endswith(".bin") for name in contents(cache))
    faulty.setenv(FAULTS, "clCreateProgramWithSource:1-:-6")
    add(opencl_library)
