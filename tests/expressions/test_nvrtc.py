"""Expressions as CUDA C, compiled by the real NVRTC, which needs no GPU."""

import ctypes
import re
import struct
import time
from pathlib import Path

import pytest

import keyfold as kf

pytestmark = pytest.mark.one_python

nvidia = pytest.importorskip("nvidia", reason="nvidia-cuda-nvrtc isn't installed")

LIBRARIES = [
    path for root in nvidia.__path__ for path in sorted(Path(root).glob("*/lib/libnvrtc.so.[0-9]*"))
]
if not LIBRARIES:
    pytest.skip("nvidia-cuda-nvrtc isn't installed", allow_module_level=True)

# PTX of the older architecture, and machine code of both.
TARGETS = ["compute_80", "sm_80", "sm_90"]
# docs/cuda.md promises that sums and products are rounded separately.
OPTIONS = ["--std=c++17", "--fmad=false"]

FLOATS = ["float16", "bfloat16", "float32", "float64"]
INTS = ["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"]
COMPLEX = ["complex64", "complex128"]

ARITHMETIC = [
    "x + y",
    "x - y",
    "x * y - x",
    "-x",
    "x == y",
    "x != y",
    "where(x == y, x, -y)",
    "x / y",
]
ORDER = ["minimum(x, y)", "maximum(x, y)", "x < y", "x >= y", "sign(x) * abs(y)", "x // y", "x % y"]
PLACES = [
    "x + index",
    "x * index(0) + index(1)",
    "table[index(1), index(0)] + x",
    "table[-1, index]",
]
COMPLEX_FUNCTIONS = ["exp", "log", "sqrt", "rsqrt", "sin", "cos", "tanh"]
ROUNDING = ["floor", "ceil", "round", "trunc"]
MADE = ["softplus", "gelu", "gelu_tanh", "silu", "relu"]
FUNCTIONS = [
    *COMPLEX_FUNCTIONS,
    *["expm1", "log1p", "sigmoid", "erf", "isnan", "isfinite"],
    *ROUNDING,
    *MADE,
]
GROUPS = {
    "float": (
        FLOATS,
        ARITHMETIC
        + ORDER
        + PLACES
        + [f"{name}(x)" for name in FUNCTIONS]
        + ["x ** y", "t = exp(-x * x); t * beta + t ** 3", "x * 0.1 + inf - nan", "int32(x) + y"],
    ),
    "whole": (
        INTS,
        ARITHMETIC
        + ORDER
        + PLACES
        + ["x & y | ~x ^ y", "x << y >> x", "x ** y", "float32(x) * beta", "sqrt(x)", "bool(x)"]
        + ["table[x, y]"],
    ),
    "complex": (
        COMPLEX,
        ARITHMETIC
        + ["table[index(1), index(0)] * x", "abs(x)", "isnan(x)", "isfinite(x)", "x ** y"]
        + [f"{name}(x)" for name in COMPLEX_FUNCTIONS],
    ),
    "bool": (
        ["bool"],
        ["x & y", "x | ~y", "x ^ y", "x + y", "x * y", "x < y", "where(x, y, True)", "int64(x)"],
    ),
}


class Nvrtc:
    """The library, as far as the tests need it."""

    def __init__(self, path):
        self.library = ctypes.CDLL(str(path))
        major, minor = ctypes.c_int(), ctypes.c_int()
        assert self.library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)) == 0
        self.version = (major.value, minor.value)

    def _text(self, program, what):
        size = ctypes.c_size_t()
        assert getattr(self.library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)) == 0
        buffer = ctypes.create_string_buffer(size.value)
        assert getattr(self.library, f"nvrtcGet{what}")(program, buffer) == 0
        return buffer.raw

    def compile(self, text, target, options=OPTIONS):
        """PTX or machine code; an error or a warning fails the test."""
        program = ctypes.c_void_p()
        create = self.library.nvrtcCreateProgram
        assert create(ctypes.byref(program), text.encode(), b"kernels.cu", 0, None, None) == 0
        try:
            given = [option.encode() for option in [f"--gpu-architecture={target}", *options]]
            array = (ctypes.c_char_p * len(given))(*given)
            failed = self.library.nvrtcCompileProgram(program, len(given), array)
            log = self._text(program, "ProgramLog").rstrip(b"\0").decode().strip()
            assert not failed, log[:4000]
            assert log == ""
            return self._text(program, "PTX" if target.startswith("compute") else "CUBIN")
        finally:
            self.library.nvrtcDestroyProgram(ctypes.byref(program))


@pytest.fixture(scope="module")
def nvrtc():
    return Nvrtc(LIBRARIES[-1])


def emit(text, dtype, **options):
    """The expression as CUDA C, with every name in it of one dtype."""
    names = [name for name in ("x", "y", "table") if re.search(rf"\b{name}\b", text)]
    params = ["beta"] if "beta" in text else []
    return kf.Expression(text, params=params).cuda(dict.fromkeys(names, dtype), **options)


def entries(ptx):
    return re.findall(rb"\.visible \.entry (\w+)\(", ptx)


def chosen(group, number, layout):
    """The expressions that a group's dtype, by its number, is compiled with.

    A layout changes how elements are found, not what is computed of them: with strides a dtype has
    all expressions that read elements by their places, and takes turns with the group's others in
    the rest. Where all were compiled with strides, it took 40 s.
    """
    dtypes, texts = GROUPS[group]
    turns = 4
    if layout == "contiguous" or len(dtypes) < turns:
        return texts
    return [text for at, text in enumerate(texts) if text in PLACES or at % turns == number % turns]


@pytest.mark.parametrize("group", GROUPS)
def test_every_expression_has_its_turn_with_strides(group):
    dtypes, texts = GROUPS[group]
    taken = {text for number in range(len(dtypes)) for text in chosen(group, number, "strided")}
    assert taken == set(texts)


@pytest.mark.parametrize("layout", ["contiguous", "strided"])
@pytest.mark.parametrize("group", GROUPS)
def test_expressions_compile_for_every_dtype_and_layout(nvrtc, group, layout):
    dtypes, texts = GROUPS[group]
    count, start = 0, time.perf_counter()
    for number, dtype in enumerate(dtypes):
        # The text knows nothing of the target: each dtype is compiled for one of them in turn, and
        # for another one where the layout is another.
        target = TARGETS[(number + (layout == "strided")) % len(TARGETS)]
        kernels = {f"{dtype}_{at}": text for at, text in enumerate(chosen(group, number, layout))}
        # Many in one program: shared functions are there once, behind guards.
        program = "".join(
            emit(text, dtype, layout=layout, name=name) for name, text in kernels.items()
        )
        code = nvrtc.compile(program, target)
        if target == "compute_80":
            assert sorted(entries(code)) == sorted(name.encode() for name in kernels)
        else:
            # An ELF file for CUDA, with every kernel's code in a section of its own.
            assert code[:4] == b"\x7fELF"
            assert struct.unpack_from("<H", code, 18) == (190,)
            assert all(f".text.{name}\0".encode() in code for name in kernels)
        count += len(kernels)
    print(
        f"NVRTC {nvrtc.version}: {count} kernels of {len(texts)} expressions and {len(dtypes)} "
        f"dtypes, {layout}, in {time.perf_counter() - start:.1f} s"
    )


@pytest.mark.parametrize("layout", ["contiguous", "strided"])
@pytest.mark.parametrize("target", [*TARGETS, "compute_90"])
def test_a_kernel_alone_is_a_whole_program(nvrtc, target, layout):
    source = emit("softplus(x) * beta + table[index]", "float32", layout=layout)
    assert "#include" not in source
    nvrtc.compile(source, target)
    replaced = emit("x * y", "float32", layout=layout, in_place="x")
    assert "x_data" not in replaced
    nvrtc.compile(replaced, target)


@pytest.mark.parametrize("out", ["float16", "bfloat16", "int8", "complex64", "bool"])
def test_the_result_may_have_another_dtype(nvrtc, out):
    for dtype in ["float64", "int32", "float16"]:
        nvrtc.compile(emit("x + x", dtype, out=out), "sm_80")


def test_contiguous_elements_are_loaded_as_vectors(nvrtc):
    for dtype, load in [
        ("uint8", rb"ld\.global(\.nc)?\.v4\.[ub]32"),
        ("float16", rb"ld\.global(\.nc)?\.v4\.[ub]32"),
        ("float32", rb"ld\.global(\.nc)?\.v4\.[fub]32"),
        ("float64", rb"ld\.global(\.nc)?\.v2\.[fub]64"),
        ("complex128", rb"ld\.global(\.nc)?\.v2\.[fub]64"),
    ]:
        ptx = nvrtc.compile(emit("x * x", dtype), "compute_80")
        assert re.search(load, ptx), dtype
        assert re.search(load.replace(b"ld", b"st", 1), ptx), dtype


def test_strided_elements_are_found_without_a_division(nvrtc):
    text = "x + index(0) + index(1) * y"
    ptx = nvrtc.compile(emit(text, "float32", layout="strided"), "compute_80")
    assert b"mul.hi" in ptx
    assert not re.search(rb"\b(div|rem)\.[su](32|64)", ptx)


def test_sums_and_products_are_rounded_separately(nvrtc):
    source = emit("x * x + y", "float32", layout="strided")
    assert b"fma." not in nvrtc.compile(source, "compute_80")
    assert b"fma." in nvrtc.compile(source, "compute_80", ["--std=c++17"])


def test_an_expression_of_depth_10_000_compiles(nvrtc):
    text = "x" + "".join(f" * x + {i}.25" for i in range(5000))
    source = emit(text, "float32")
    for target in TARGETS:
        nvrtc.compile(source, target)


def test_names_of_an_expression_are_seen_in_the_kernel(nvrtc):
    source = kf.Expression("float_ + scale * double_", params=["scale"]).cuda(
        {"float_": "float32", "double_": "float32"}, params={"scale": float}, name="mix"
    )
    for name in ["mix(", "float_", "double_", "scale"]:
        assert name in source
    assert entries(nvrtc.compile(source, "compute_80")) == [b"mix"]
