"""OpenCL in tests: pocl, and launches of emitted kernels as docs/opencl.md shows them."""

import atexit
import functools
import importlib.util
import os
import pickle
import re
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np

import keyfold as kf
from tests.helpers.paths import ROOT

OPTIONS = ("-cl-std=CL1.2",)
# For many kernels: pocl compiles them in a third of the time.
QUICK = (*OPTIONS, "-cl-opt-disable")
SENTINEL = 0x5A


@functools.cache
def wheel():
    """pyopencl's folder, its OpenCL loader and pocl's driver; None if a wheel isn't installed."""
    found = importlib.util.find_spec("pyopencl")
    if found is None or found.origin is None:
        return None
    folder = Path(found.origin).parent
    loaders = sorted(folder.glob(".libs/libOpenCL*.so*"))
    drivers = sorted(folder.glob(".libs/libpocl*.so*"))
    return (folder, loaders[0], drivers[0]) if loaders and drivers else None


def pocl(cache):
    """The variables with which examples/backend-opencl finds pocl, an OpenCL device on the CPU's
    threads, as it comes in pyopencl's wheel; None if that isn't installed.

    The programs are compiled without optimisation, in a third of the time, and kept in `cache`.
    """
    if wheel() is None:
        return None
    folder, loader, driver = wheel()
    return {
        "KEYFOLD_OPENCL": str(loader),
        "KEYFOLD_OPENCL_CACHE": str(cache / "programs"),
        "KEYFOLD_OPENCL_OPTIONS": "-cl-opt-disable",
        "OCL_ICD_VENDORS": str(driver),
        "POCL_CACHE_DIR": str(cache / "pocl"),
        "PYOPENCL_HOME": str(folder),
        **chosen_driver(),
    }


def without_avx512(target):
    """A copy of pocl's wheel, of links, that has AVX2's functions for AVX-512, and its driver.

    The driver takes the functions for the features that the processor has, but compiles for the
    newest processor that it has the name of, which may be one without AVX-512, such as Zen 3 for
    Zen 4. The two pass vectors of 64 bytes differently, and a kernel that has some crashes.
    """
    folder, _, driver = wheel()
    there = folder.parent / "pocl_binary_distribution" / ".libs"
    share = Path("share", "pocl")
    libraries = Path("pocl_binary_distribution", ".libs")
    names = dict.fromkeys(there.glob("*.so*"), libraries)
    names |= dict.fromkeys((there / share).glob("*"), libraries / share)
    names |= {file: Path("pyopencl", ".libs") for file in folder.glob(".libs/*")}
    for file, place in names.items():
        (target / place).mkdir(parents=True, exist_ok=True)
        used = file.with_name(file.name.replace("avx512", "avx2"))
        (target / place / file.name).symlink_to(used)
    return target / "pyopencl" / ".libs" / driver.name


def is_mistaken():
    """Whether pocl's compiler, LLVM 14, takes the processor for one without its AVX-512.

    It knows no AMD processor that has it.
    """
    try:
        processor = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return "AuthenticAMD" in processor and "avx512f" in processor


def chosen_driver():
    """The variable that names the driver, if it isn't the wheel's own that runs kernels here."""
    if "OCL_ICD_VENDORS" in os.environ or wheel() is None or not is_mistaken():
        return {}
    return {"OCL_ICD_VENDORS": str(linked_driver())}


@functools.cache
def linked_driver():
    """The driver of a copy of pocl's wheel that is there as long as this process."""
    folder = tempfile.TemporaryDirectory(prefix="keyfold-pocl-avx2-")
    atexit.register(folder.cleanup)
    return without_avx512(Path(folder.name))


@functools.cache
def unusable():
    """Why no OpenCL device runs kernels here, None if one does.

    The driver of pocl's wheel is older than some processors: its compiler then knows none of that
    name, and fails, or ends its process. So a process of its own tries.
    """
    if importlib.util.find_spec("pyopencl") is None:
        return "pyopencl isn't installed"
    with tempfile.TemporaryDirectory(prefix="keyfold-pocl-") as cache:
        environment = chosen_driver() | os.environ
        environment |= {"POCL_CACHE_DIR": cache, "PYTHONPATH": str(ROOT)}
        try:
            done = subprocess.run(
                [sys.executable, "-m", "tests.helpers.opencl_worker", "probe"],
                capture_output=True,
                text=True,
                env=environment,
                cwd=ROOT,
                timeout=300,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return "OpenCL's device computes nothing: a small kernel took five minutes"
    return None if done.returncode == 0 else failure(done)


def failure(done):
    """A sentence about a process that ran no kernel."""
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    # The compiler's sentence, which other lines follow.
    marks = ("unknown target CPU", "LLVM ERROR", "error:")
    named = [line for line in lines if any(mark in line for mark in marks)]
    why = (named or lines[-1:] or [f"exit status {done.returncode}"])[0]
    return f"OpenCL's device computes nothing: {why}"


class Device:
    """The first OpenCL device, in a process of its own."""

    def __init__(self, cache):
        environment = chosen_driver() | os.environ
        environment |= {"POCL_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.helpers.opencl_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            cwd=ROOT,
        )
        self.name = pickle.load(self.process.stdout)

    def run(self, text, launches, options=OPTIONS):
        """Runs the launches (name, arguments); returns each one's buffers, by argument."""
        pickle.dump((text, options, launches), self.process.stdin)
        self.process.stdin.flush()
        answer = pickle.load(self.process.stdout)
        assert not isinstance(answer, str), f"{answer}\n{text}"
        return answer

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self.process.stdout.close()


def bits(array, dtype):
    """An array in the form of a buffer: bfloat16 comes as float32."""
    if dtype == "bfloat16":
        return (array.view("uint32") >> 16).astype("uint16")
    return array


def division(size, wide):
    """The magic number and the shift of quotients."""
    shift = (size - 1).bit_length()
    return (((1 << shift) - size) << (64 if wide else 32)) // size + 1, shift


def words(shape, strides=None, dims=8):
    """The struct of the strides, of all dimensions; without strides the struct of the shape."""
    wide = int(np.prod(shape, dtype=object) > 2**31)
    sizes = [*reversed(shape), *[1] * (dims - len(shape))]
    pairs = [division(size, wide) for size in sizes]
    all_words = [] if strides is None else [len(shape)]
    all_words += [wide, *sizes, *(magic for magic, _ in pairs), *(shift for _, shift in pairs)]
    for steps in strides or []:
        all_words += [*reversed(steps), *[0] * (dims - len(shape))]
    return struct(all_words)


def struct(numbers):
    """A struct of 64-bit words, which goes by value."""
    packed = np.array([number % 2**64 for number in numbers], dtype="uint64")
    return packed.view(f"V{packed.nbytes}")[0]


class Buffer:
    """A view's whole memory, with guard elements around it, and where its element 0 is."""

    def __init__(self, view, dtype, skew=1):
        base = view
        while base.base is not None:
            base = base.base
        first = view.__array_interface__["data"][0] - base.__array_interface__["data"][0]
        self.itemsize = base.itemsize // (2 if dtype == "bfloat16" else 1)
        self.offset = skew + first // base.itemsize
        self.strides = [step // base.itemsize for step in view.strides]
        flat = bits(base.reshape(-1), dtype)
        guards = np.full((skew + 3) * self.itemsize, SENTINEL, dtype="uint8")
        cut = skew * self.itemsize
        self.memory = np.concatenate([guards[:cut], flat.view("uint8"), guards[cut:]])
        self.dtype, self.shape, self.skew = dtype, view.shape, skew

    def elements(self, memory):
        """The view's elements in this memory, which differs from the given one nowhere else."""
        typed = "uint16" if self.dtype == "bfloat16" else self.dtype
        steps = [step * self.itemsize for step in self.strides]
        got = None
        rest = []
        for each in (memory.copy(), self.memory.copy()):
            view = np.lib.stride_tricks.as_strided(
                each.view(typed)[self.offset :], self.shape, steps
            )
            got = view.copy() if got is None else got
            view[...] = np.zeros((), typed)
            rest.append(each)
        assert np.array_equal(*rest), "written outside of the result"
        return (got.astype("uint32") << 16).view("float32") if self.dtype == "bfloat16" else got


def launch(text, name, inputs, out, *, params=(), skew=1, parts=1, in_place=None, **options):
    """The program's text, launches of its parts, and the result's buffer.

    `inputs` has (view, dtype) by name, `out` is a view for the result and its dtype; `params` has
    (name, NumPy scalar, kind).
    """
    expression = kf.Expression(text, inputs=list(inputs), params=[name for name, *_ in params])
    source = expression.opencl(
        {key: dtype for key, (_, dtype) in inputs.items()},
        name=name,
        out=out[1],
        params={key: kind for key, _, kind in params},
        in_place=in_place,
        **options,
    )
    shape = out[0].shape
    target = Buffer(*(inputs[in_place] if in_place else out), skew)
    arguments = [target.memory, np.int64(target.offset)]
    walked = [target.strides]
    for key, (view, dtype) in inputs.items():
        if key == in_place:
            continue
        buffer = Buffer(view, dtype, skew)
        arguments += [buffer.memory, np.int64(buffer.offset)]
        rank = expression.ranks[key]
        if rank is None:
            lacking = len(shape) - view.ndim
            steps = [0] * lacking + buffer.strides
            sizes = [1] * lacking + list(view.shape)
            walked.append([0 if size == 1 else s for s, size in zip(steps, sizes, strict=True)])
        elif rank > 0:
            arguments.append(struct([*view.shape, *buffer.strides]))
    arguments += [number for _, number, _ in params]
    if options.get("layout") == "strided":
        arguments.append(words(shape, walked))
    if dims := max((int(d) + 1 for d in re.findall(r"index\((\d)\)", text)), default=0):
        arguments.append(words(shape[-dims:], dims=dims))
    count = int(np.prod(shape))
    cuts = [count * part // parts for part in range(parts + 1)]
    fault = [np.zeros(1, "uint32")] if "\n    __global uint* fault) {" in source else []
    ranges = [[np.uint64(start), np.uint64(end - start)] for start, end in pairwise(cuts)]
    return source, [(name, [*arguments, *part, *fault]) for part in ranges], target
