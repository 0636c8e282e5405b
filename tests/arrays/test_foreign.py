"""The same operators on the arrays of every library that is installed: kind, memory, values."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

import keyfold as kf
from tests.helpers.array_libraries import MAKERS, Exchanged, Keyfold, imported, to_numpy
from tests.helpers.compiler import compile_c

ADDRESS = """
#include "keyfold_abi.h"
/* The address of the first element. */
KEYFOLD_EXPORT int address(void *handle, const TVMFFIAny *args, int32_t n, TVMFFIAny *result) {
    const DLTensor *x = (const DLTensor *)args[0].v_ptr;
    (void)handle;
    (void)n;
    result->type_index = kTVMFFIInt;
    result->zero_padding = 0;
    result->v_int64 = (int64_t)(intptr_t)((char *)x->data + x->byte_offset);
    return 0;
}
/* Adds one to every element of a row-major f64 tensor, in place. */
KEYFOLD_EXPORT int increment(void *handle, const TVMFFIAny *args, int32_t n, TVMFFIAny *result) {
    const DLTensor *x = (const DLTensor *)args[0].v_ptr;
    int64_t count = 1;
    (void)handle;
    (void)n;
    (void)result;
    for (int32_t i = 0; i < x->ndim; ++i) count *= x->shape[i];
    for (int64_t i = 0; i < count; ++i) ((double *)((char *)x->data + x->byte_offset))[i] += 1.0;
    return 0;
}
"""


@pytest.fixture(scope="session")
def address_library(tmp_path_factory):
    """A C library with `address(Tensor) -> int` and `increment(Tensor(a!)) -> ()`."""
    folder = tmp_path_factory.mktemp("address")
    source = folder / "address.c"
    source.write_text(ADDRESS)
    return compile_c(source, folder / "libaddress.so")


@pytest.fixture
def address(lib, ns, address_library):
    """An operator with a native kernel that says where its argument's memory is."""
    lib.define("address(Tensor x) -> int")
    lib.impl("address", kf.NativeKernel.from_library(address_library, "address"), "CPU")
    return getattr(kf.ops, ns).address


def doubled(x):
    """Twice an array, whatever its library can do itself."""
    if type(x).__module__.startswith("tvm_ffi"):
        return kf.asarray(to_numpy(x) * 2)
    return x * 2


@pytest.fixture
def scale(op):
    """An operator with a Python kernel, and what its kernel was given."""
    seen = []

    def kernel(x, k):
        seen.append(x)
        return doubled(x)

    operator, _ = op("scale(Tensor x, float k=2.0) -> Tensor", kernel)
    return operator, seen


def test_a_python_kernel_gets_the_array_itself(library, scale):
    operator, seen = scale
    x = library.array([[1.0, 2.0], [3.0, 4.0]])
    result = operator(x)
    assert seen[-1] is x
    assert isinstance(result, library.kind)
    assert to_numpy(result).tolist() == [[2.0, 4.0], [6.0, 8.0]]


def test_a_native_kernel_sees_the_arrays_own_memory(library, address):
    x = library.array(np.arange(6.0).reshape(2, 3))
    assert address(x) == library.address(x)


def test_results_of_native_kernels_are_in_kind(library):
    x = library.array([[1.0, 2.0, 3.0]])
    for result in [
        kf.ops.aten.add(x, x),
        kf.ops.aten.exp(x),
        kf.ops.aten.sum(x),
        kf.ops.aten.transpose(x, 0, 1),
        kf.ops.aten.stack([x, x]),
        kf.exp(x),
        kf.concat([x, x]),
    ]:
        assert isinstance(result, library.kind), type(result)
    assert to_numpy(kf.ops.aten.add(x, x)).tolist() == [[2.0, 4.0, 6.0]]
    assert to_numpy(kf.ops.aten.transpose(x, 0, 1)).tolist() == [[1.0], [2.0], [3.0]]


def test_a_native_identity_gives_the_array_itself_back(library, testing):
    x = library.array([1.0, 2.0])
    assert testing.identity(x, x) is x


@pytest.mark.parametrize("view", ["transposed", "sliced", "one row", "empty", "scalar", "seven"])
def test_layouts(library, view, address):
    base = np.arange(24.0).reshape(4, 6)
    views = {
        "transposed": lambda x: x.T,
        "sliced": lambda x: x[1:4:2, 1:],
        "one row": lambda x: x[2],
        "empty": lambda x: x[1:1],
        "scalar": lambda x: x[1, 2],
        "seven": lambda x: x.reshape(2, 2, 1, 2, 1, 3, 1),
    }
    take = views[view]
    if library.name == "own":
        x = Exchanged(np.asarray(take(base)))
    elif library.name == "tvm_ffi":
        x = library.module.from_dlpack(np.asarray(take(base)))
    else:
        x = take(library.array(base))
    want = -take(base)
    result = kf.ops.aten.neg(x)
    assert np.array_equal(to_numpy(result), want)
    if want.size and library.name in ("torch", "own", "tvm_ffi") and view != "scalar":
        assert address(x) == library.address(x)


@pytest.mark.parametrize(
    "dtype", ["bool", "int32", "int64", "uint8", "float16", "float32", "float64", "complex64"]
)
def test_dtypes(library, dtype, address):
    x = library.array(np.ones(3, dtype))
    assert address(x) == library.address(x)
    # keyfold reads the elements that the library wrote.
    assert np.asarray(kf.from_dlpack(x) if library.name != "keyfold" else x).dtype == dtype


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_bfloat16(name):
    library = MAKERS[name]()
    made = {
        "torch": lambda m: m.ones(3, dtype=m.bfloat16),
        "jax": lambda m: m.numpy.ones(3, dtype=m.numpy.bfloat16),
    }
    x = made[name](library.module)
    result = kf.ops.aten.add(x, x)
    assert result.dtype == x.dtype
    assert isinstance(result, library.kind)
    assert [float(value) for value in result] == [2.0, 2.0, 2.0]


def test_what_a_kernel_returns_is_put_into_the_callers_library(library, op):
    operator, _ = op(
        "several(Tensor x) -> (Tensor, Tensor[])", lambda x: (np.ones(2), [kf.ones(2), x])
    )
    one, more = operator(library.array([1.0]))
    assert all(isinstance(item, library.kind) for item in [one, *more])


def test_layers_see_the_array_itself(library, lib, ns):
    seen = []
    lib.define("f(Tensor x) -> Tensor")
    lib.impl("f", doubled, "CPU")

    def layer(keyset, x):
        seen.append(x)
        return kf.redispatch(f"{ns}::f", keyset.remove("Pipeline"), x)

    lib.impl("f", layer, "Pipeline", with_keyset=True)
    x = library.array([1.0, 2.0])
    with kf.include_keys("Pipeline"), kf.profile() as report:
        result = getattr(kf.ops, ns).f(x)
    assert seen[-1] is x
    assert isinstance(result, library.kind)
    assert to_numpy(result).tolist() == [2.0, 4.0]
    assert report.events


def test_the_memory_lives_as_long_as_a_result_needs_it(library):
    x = library.array(np.arange(6.0).reshape(2, 3))
    result = kf.ops.aten.transpose(x, 0, 1)
    del x
    assert to_numpy(result).tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]


def test_writing_in_place_reaches_the_callers_memory(library, lib, ns, address_library):
    lib.define("increment_(Tensor(a!) x) -> ()")
    lib.impl("increment_", kf.NativeKernel.from_library(address_library, "increment"), "CPU")
    x = library.array([1.0, 2.0])
    increment = getattr(kf.ops, ns).increment_
    if library.name == "jax":
        with pytest.raises(kf.ReadOnlyError, match="read-only"):
            increment(x)
        assert np.asarray(x).tolist() == [1.0, 2.0]
    else:
        increment(x)
        assert to_numpy(x).tolist() == [2.0, 3.0]


@pytest.mark.parametrize("first", MAKERS)
@pytest.mark.parametrize("second", MAKERS)
def test_mixed_libraries_are_refused_by_name(first, second, scale, lib, ns):
    a, b = MAKERS[first](), MAKERS[second]()
    x, y = a.array([1.0]), b.array([2.0])
    agreed = {first, second} <= {"numpy", "keyfold"} or first == second
    if agreed:
        assert to_numpy(kf.ops.aten.add(x, y)).tolist() == [3.0]
    else:
        with pytest.raises(TypeError) as raised:
            kf.ops.aten.add(x, y)
        text = str(raised.value)
        assert "aten::add() got arrays of different libraries" in text
        assert type(x).__qualname__.split(".")[-1] in text
        assert type(y).__qualname__.split(".")[-1] in text
        assert "'self'" in text
        assert "'other'" in text
        with pytest.raises(TypeError, match=r"'tensors\[1\]'|'arrays\[1\]'|\[1\]"):
            kf.ops.aten.stack([x, y])
    lib.define("mixed(Tensor x, Tensor y) -> Tensor", mixed_arrays=True)
    lib.impl("mixed", lambda x, y: x, "CPU")
    result = getattr(kf.ops, ns).mixed(x, y)
    want = Keyfold if agreed and first != second else MAKERS[first]
    assert isinstance(result, want().kind)


def test_the_first_array_decides_where_libraries_may_mix(lib, ns):
    lib.define("scale(Tensor x, float k, Tensor? other=None) -> Tensor", mixed_arrays=True)
    lib.impl("scale", lambda x, k, other: kf.asarray(x), "CPU")
    x, y = np.ones(2), Exchanged(np.ones(2))
    scale = getattr(kf.ops, ns).scale
    assert isinstance(scale(x, 1.0, y), np.ndarray)
    assert isinstance(scale(y, 1.0, x), Exchanged)


def test_cupy_is_known_by_name(lib, ns):
    """Without a GPU: a class of CuPy's name, whose memory is never touched."""

    class ndarray:
        def __dlpack__(self, **options):
            raise AssertionError("nobody needs the memory")

        def __dlpack_device__(self):
            return (2, 0)

    ndarray.__module__ = "cupy"
    ndarray.__qualname__ = "ndarray"
    lib.define("f(Tensor x) -> Tensor")
    lib.impl("f", lambda x: x, "CUDA")
    x = ndarray()
    assert kf.DispatchKeySet.from_tensors([x]) == kf.DispatchKeySet("CUDA")
    assert getattr(kf.ops, ns).f(x) is x
    with pytest.raises(TypeError, match="different libraries"):
        kf.ops.aten.add(x, np.ones(1))


def test_an_unsupported_dtype_is_refused_for_python_kernels_too(scale):
    operator, _ = scale
    torch = imported("torch")
    with pytest.raises(kf.DTypeError, match=r"argument 'x'.*float8_e4m3fn"):
        operator(torch.ones(2).to(torch.float8_e4m3fn))
    with contextlib.suppress(ImportError):
        import jax.numpy as jnp

        with pytest.raises(kf.DTypeError, match=r"argument 'x'.*float8"):
            operator(jnp.ones(2).astype(jnp.float8_e4m3fn))


def test_jax_tracers_and_deleted_arrays_are_refused():
    jax = imported("jax")
    with pytest.raises(TypeError, match=r"JAX tracer.*pure_callback"):
        jax.jit(lambda x: kf.ops.aten.neg(x))(jax.numpy.ones(2))
    x = jax.numpy.ones(2)
    x.delete()
    with pytest.raises(RuntimeError, match="deleted") as raised:
        kf.ops.aten.neg(x)
    assert any("aten::neg() argument 'self'" in note for note in raised.value.__notes__)


def test_jax_calls_keyfold_through_a_callback():
    jax = imported("jax")

    @jax.jit
    def f(x):
        return jax.pure_callback(kf.ops.aten.exp, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    assert np.allclose(f(jax.numpy.zeros(3)), 1.0)
