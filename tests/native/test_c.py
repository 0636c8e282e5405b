"""Kernels in C: compiled here, registered by symbol, called by the documented convention."""

import gc

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import keyfold as kf
from tests.helpers.compiler import compile_c

# The kernel writes down the arguments that a call passes: one decimal digit each.
PROBE = """
#include "keyfold_abi.h"
#define KERNEL(name) KEYFOLD_EXPORT int name(void *handle, const TVMFFIAny *args, int32_t n, \\
                                             TVMFFIAny *result)
KERNEL(probe_kinds) {
    int64_t kinds = handle != NULL;
    for (int32_t i = 0; i < n; ++i) kinds = kinds * 10 + args[i].type_index;
    result->type_index = kTVMFFIInt;
    result->v_int64 = kinds;
    return 0;
}
KERNEL(probe_payload) {
    *result = args[n - 1];
    return handle != NULL;
}
KERNEL(probe_length) {
    const char *text = args[n - 1].v_c_str;
    int64_t length = 0;
    while (text[length] != 0) ++length;
    result->type_index = kTVMFFIInt;
    result->v_int64 = length;
    return handle != NULL;
}
KERNEL(probe_address) {
    const DLTensor *t = (const DLTensor *)args[n - 1].v_ptr;
    result->type_index = kTVMFFIInt;
    result->v_int64 = (int64_t)(intptr_t)((char *)t->data + t->byte_offset);
    return handle != NULL;
}
KERNEL(probe_stride) {
    const DLTensor *t = (const DLTensor *)args[n - 1].v_ptr;
    result->type_index = kTVMFFIInt;
    result->v_int64 = t->strides[0];
    return handle != NULL || t->ndim != 1;
}
KERNEL(probe_nothing) {
    (void)args;
    (void)result;
    return handle != NULL || n < 0;
}
KERNEL(probe_odd) {
    (void)args;
    result->type_index = 4711;
    return handle != NULL || n < 0;
}
KERNEL(probe_fill) {
    const DLTensor *out = (const DLTensor *)args[n - 1].v_ptr;
    (void)result;
    if (out->dtype.code != kDLFloat || out->dtype.bits != 64) return 7;
    for (int64_t i = 0; i < out->shape[0]; ++i) ((double *)out->data)[i] = (double)i;
    return handle != NULL;
}
"""


@pytest.fixture(scope="session")
def probe(tmp_path_factory):
    folder = tmp_path_factory.mktemp("probe")
    source = folder / "probe.c"
    source.write_text(PROBE)
    return compile_c(source, folder / "libprobe.so")


@pytest.fixture
def kernel(c_library):
    return lambda symbol, **options: kf.NativeKernel.from_library(c_library, symbol, **options)


@pytest.fixture
def scale(d, kernel):
    """`demo::scale` served by C, its outputs described by a Python Meta kernel."""
    d.define("demo::scale(Tensor x, float k=2.0) -> Tensor")
    d.impl("demo::scale", "CPU", kernel("keyfold_example_scale"))
    d.impl("demo::scale", "Meta", lambda x, k: kf.ops.aten.clone(x))
    return d.ops.demo.scale


def test_the_example_compiles_without_warnings(c_library):
    assert c_library.exists()


def test_destination_style(scale):
    x = np.arange(6.0).reshape(2, 3)
    result = scale(x, 2.5)
    assert type(result) is np.ndarray
    assert np.array_equal(result, x * 2.5)
    assert np.array_equal(scale(x), x * 2)
    assert result is not x


@pytest.mark.parametrize(
    "x",
    [
        np.arange(6, dtype="float32"),
        np.arange(12.0).reshape(3, 4).T,
        np.arange(12.0).reshape(3, 4)[::-1, ::2],
        np.broadcast_to(np.arange(3.0), (2, 3)),
        np.array(4.0),
        np.zeros((0, 3)),
        np.arange(4.0)[1:],
    ],
    ids=["f32", "transposed", "negative", "broadcast", "0-dim", "empty", "offset"],
)
def test_any_strides(scale, x):
    before = x.copy()
    result = scale(x, 3.0)
    assert np.array_equal(result, before * 3)
    assert result.shape == x.shape
    assert result.dtype == x.dtype
    assert np.array_equal(x, before)


def test_a_read_only_input(scale):
    x = np.arange(3.0)
    x.flags.writeable = False
    assert scale(x).tolist() == [0.0, 2.0, 4.0]


def test_a_keyfold_tensor(scale):
    result = scale(kf.ops.aten.ones([3]), 4.0)
    assert type(result) is kf.Tensor
    assert np.from_dlpack(result).tolist() == [4.0] * 3


def test_a_number_is_returned_through_result(d, kernel):
    d.define("demo::total(Tensor x) -> float")
    d.impl("demo::total", "CPU", kernel("keyfold_example_sum"))
    total = d.call("demo::total", np.arange(5.0))
    assert total == 10.0
    assert type(total) is float


def test_a_failing_kernel_names_operator_and_code(d, kernel, raises_saying):
    d.define("demo::fails(Tensor x) -> float")
    d.impl("demo::fails", "CPU", kernel("keyfold_example_fail"))
    with raises_saying(RuntimeError, "demo::fails", "keyfold_example_fail", "code -1") as raised:
        d.call("demo::fails", np.ones(1))
    assert isinstance(raised.value, kf.KernelFailed)


def test_a_kernel_that_refuses_its_input(scale, raises_saying):
    with raises_saying(RuntimeError, "demo::scale", "code -1"):
        scale(np.arange(3))
    assert scale(np.ones(1)).tolist() == [2.0], "the engine works on"


def test_a_missing_symbol(c_library, raises_saying):
    with raises_saying(OSError, str(c_library), "no symbol", "no_such_symbol") as raised:
        kf.NativeKernel.from_library(c_library, "no_such_symbol")
    assert isinstance(raised.value, kf.LibraryLoadError)


def test_a_missing_library(tmp_path, raises_saying):
    path = tmp_path / "libmissing.so"
    with raises_saying(OSError, str(path), "No such file"):
        kf.NativeKernel.from_library(path, "f")


def test_a_file_that_is_no_library(tmp_path, raises_saying):
    path = tmp_path / "libtext.so"
    path.write_text("no machine code")
    with raises_saying(OSError, str(path), "too short"):
        kf.NativeKernel.from_library(path, "f")


@pytest.mark.parametrize(
    ("schema", "part"),
    [
        ("demo::f(Tensor[] xs) -> float", "'xs' is Tensor[]"),
        ("demo::f(Tensor x, int[] n) -> float", "'n' is int[]"),
        ("demo::f(Tensor x, Generator? g=None) -> float", "'g' is Generator?"),
        ("demo::f(Tensor x, complex z) -> float", "'z' is complex"),
        ("demo::f(Tensor x) -> str", "str"),
        ("demo::f(Tensor x) -> Tensor[]", "Tensor[]"),
        ("demo::f(Tensor x) -> (Tensor, float)", "demo::f"),
    ],
)
def test_a_schema_that_cant_be_passed_is_refused_at_once(d, kernel, schema, part, raises_saying):
    d.define(schema)
    with raises_saying(ValueError, "demo::f", "keyfold_example_sum", part) as raised:
        d.impl("demo::f", "CPU", kernel("keyfold_example_sum"))
    assert isinstance(raised.value, kf.RegistrationError)
    assert d.kernel_count() == 0


def test_a_missing_meta_kernel_is_said(d, kernel, raises_saying):
    d.define("demo::scale(Tensor x, float k) -> Tensor")
    d.impl("demo::scale", "CPU", kernel("keyfold_example_scale"))
    with raises_saying(NotImplementedError, "demo::scale", "Meta"):
        d.call("demo::scale", np.ones(1), 2.0)


def test_an_output_among_the_arguments(d, probe):
    d.define("demo::count(Tensor like, *, Tensor(a!) out) -> Tensor(a!)")
    d.impl("demo::count", "CPU", kf.NativeKernel.from_library(probe, "probe_fill"))
    out = np.zeros(4)
    result = d.call("demo::count", np.ones(1), out=out)
    assert result is out
    assert out.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_an_output_that_the_caller_leaves_out_is_allocated(d, probe):
    d.define("demo::count(Tensor like, *, Tensor(a!)? out=None) -> Tensor(a!)")
    d.impl("demo::count", "CPU", kf.NativeKernel.from_library(probe, "probe_fill"))
    d.impl("demo::count", "Meta", lambda like, *, out: like)
    result = d.call("demo::count", np.ones(3))
    assert result.tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: as_strided(np.zeros(4), (3, 2), (8, 8)), id="windows"),
        pytest.param(
            lambda: kf.asarray(as_strided(np.zeros(4), (3, 2), (8, 8))), id="windows of a tensor"
        ),
        pytest.param(lambda: as_strided(np.zeros(1), (4,), (0,)), id="one element"),
    ],
)
def test_an_output_whose_elements_are_one_is_refused(d, probe, raises_saying, make):
    d.define("demo::count(Tensor like, *, Tensor(a!) out) -> Tensor(a!)")
    d.impl("demo::count", "CPU", kf.NativeKernel.from_library(probe, "probe_fill"))
    out = make()
    with raises_saying(kf.InvalidValue, "demo::count", "'out'", "same element", "copy"):
        d.call("demo::count", np.ones(1), out=out)
    assert np.asarray(out).sum() == 0.0


def test_a_read_only_output_is_refused(d, probe, raises_saying):
    d.define("demo::count(Tensor like, *, Tensor(a!) out) -> Tensor(a!)")
    d.impl("demo::count", "CPU", kf.NativeKernel.from_library(probe, "probe_fill"))
    out = np.zeros(4)
    out.flags.writeable = False
    with raises_saying(ValueError, "read-only") as raised:
        d.call("demo::count", np.ones(1), out=out)
    assert isinstance(raised.value, kf.ReadOnlyError)
    assert out.tolist() == [0.0] * 4


KINDS = [
    ("Tensor x", np.ones(1), 7),
    ("Tensor? x", None, 0),
    ("Tensor? x", np.ones(1), 7),
    ("int x", 3, 1),
    ("bool x", True, 2),
    ("float x", 2.5, 3),
    ("float x", 3, 3),
    ("Scalar x", 3, 1),
    ("Scalar x", 2.5, 3),
    ("Scalar x", True, 2),
    ("int? x", None, 0),
    ("ScalarType x", "float32", 5),
    ("Device x", "cpu", 6),
    ("str x", "text", 8),
]


@pytest.mark.parametrize(("argument", "value", "index"), KINDS)
def test_each_kind_has_its_type_index(d, probe, argument, value, index):
    d.define(f"demo::kinds({argument}, int last=4) -> int")
    d.impl("demo::kinds", "CPU", kf.NativeKernel.from_library(probe, "probe_kinds"))
    assert d.call("demo::kinds", value) == index * 10 + 1


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int", -5),
        ("int", 2**62),
        ("float", 2.5),
        ("float", float("-inf")),
        ("bool", True),
        ("bool", False),
        ("Scalar", 7),
        ("ScalarType", "float32"),
        ("ScalarType", "bool"),
        ("ScalarType", "complex128"),
        ("Device", "cpu"),
    ],
)
def test_values_go_there_and_back(d, probe, kind, value):
    d.define(f"demo::echo({kind} x) -> {kind}")
    d.impl("demo::echo", "CPU", kf.NativeKernel.from_library(probe, "probe_payload"))
    assert d.call("demo::echo", value) == value


def test_text_is_utf8_with_a_zero_at_the_end(d, probe, raises_saying):
    d.define("demo::length(str text) -> int")
    d.impl("demo::length", "CPU", kf.NativeKernel.from_library(probe, "probe_length"))
    assert d.call("demo::length", "") == 0
    assert d.call("demo::length", "zwölf") == 6
    with raises_saying(ValueError, "demo::length", "'text'", "zero"):
        d.call("demo::length", "a\0b")


def test_a_view_is_the_callers_memory(d, probe):
    d.define("demo::address(Tensor x) -> int")
    d.impl("demo::address", "CPU", kf.NativeKernel.from_library(probe, "probe_address"))
    x = np.arange(10.0)
    assert d.call("demo::address", x) == x.ctypes.data
    assert d.call("demo::address", x[3:]) == x.ctypes.data + 24
    assert d.call("demo::address", x[::-1]) == x.ctypes.data + 72


def test_strides_are_in_elements(d, probe):
    d.define("demo::stride(Tensor x) -> int")
    d.impl("demo::stride", "CPU", kf.NativeKernel.from_library(probe, "probe_stride"))
    x = np.arange(10.0)
    assert d.call("demo::stride", x) == 1
    assert d.call("demo::stride", x[::3]) == 3
    assert d.call("demo::stride", x[::-1]) == -1


def test_a_kernel_that_returns_nothing(d, probe):
    d.define("demo::nothing(Tensor x) -> ()")
    d.impl("demo::nothing", "CPU", kf.NativeKernel.from_library(probe, "probe_nothing"))
    assert d.call("demo::nothing", np.ones(1)) is None


@pytest.mark.parametrize("symbol", ["probe_odd", "probe_nothing"])
def test_a_wrong_return_is_refused(d, probe, symbol, raises_saying):
    d.define("demo::wrong(Tensor x) -> int")
    d.impl("demo::wrong", "CPU", kf.NativeKernel.from_library(probe, symbol))
    with raises_saying(TypeError, "demo::wrong", symbol, "int") as raised:
        d.call("demo::wrong", np.ones(1))
    assert isinstance(raised.value, kf.KernelReturnError)


def test_it_can_keep_the_gil(d, kernel):
    d.define("demo::total(Tensor x) -> float")
    d.impl("demo::total", "CPU", kernel("keyfold_example_sum", release_gil=False))
    assert d.call("demo::total", np.ones(3)) == 3.0


def test_it_shows_where_it_is_from(d, kernel, c_library):
    native = kernel("keyfold_example_sum")
    d.define("demo::total(Tensor x) -> float")
    handle = d.impl("demo::total", "CPU", native)
    assert (native.path, native.symbol) == (str(c_library), "keyfold_example_sum")
    assert d.get_op("demo::total").kernels["CPU"] is native
    assert "keyfold_example_sum" in handle.origin
    assert str(c_library) in handle.origin
    assert "keyfold_example_sum" in str(d.explain("demo::total", np.ones(1)))


def test_the_same_symbol_of_the_same_library_is_a_reload(d, kernel):
    """As when a notebook's cell runs again."""
    d.define("demo::total(Tensor x) -> float")
    first = d.impl("demo::total", "CPU", kernel("keyfold_example_sum"))
    d.impl("demo::total", "CPU", kernel("keyfold_example_sum"))
    assert first.remove() is False
    with pytest.raises(kf.RegistrationError):
        d.impl("demo::total", "CPU", kernel("keyfold_example_fail"))
    assert d.call("demo::total", np.ones(2)) == 2.0


def test_the_library_stays_loaded_while_its_kernel_is_registered(d, kernel):
    d.define("demo::total(Tensor x) -> float")
    d.impl("demo::total", "CPU", kernel("keyfold_example_sum"))
    gc.collect()
    assert d.call("demo::total", np.ones(2)) == 2.0


def test_below_a_python_layer(d, kernel):
    d.define("demo::total(Tensor x) -> float")
    d.impl("demo::total", "CPU", kernel("keyfold_example_sum"))

    @d.impl("demo::total", "Profiler", with_keyset=True)
    def layer(keyset, x):
        return d.redispatch("demo::total", keyset.remove("Profiler"), x) + 1

    with kf.include_keys("Profiler"):
        assert d.call("demo::total", np.ones(2)) == 3.0


def test_a_given_output_that_isnt_what_meta_promises_is_refused(d, kernel):
    d.define("into(Tensor x, float k, *, Tensor(a!) out) -> Tensor(a!)")
    d.impl("into", "CPU", kernel("keyfold_example_scale"))
    d.impl("into", "Meta", lambda x, k, *, out: kf.empty(x.shape, dtype=x.dtype, device="meta"))
    x = np.arange(4.0)
    with pytest.raises(kf.ShapeError, match=r"into\(\) argument 'out': its shape is \[2\]"):
        d.call("into", x, 2.0, out=np.zeros(2))
    with pytest.raises(kf.DTypeError, match=r"into\(\) argument 'out': its dtype is float32"):
        d.call("into", x, 2.0, out=np.zeros(4, "f4"))
    out = np.zeros(4)
    assert d.call("into", x, 2.0, out=out) is out
    assert out.tolist() == [0.0, 2.0, 4.0, 6.0]
