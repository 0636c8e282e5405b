"""Which objects count as tensors: classes that users register, NumPy's subclasses."""

import weakref

import numpy as np
import pytest

import keyfold as kf
from keyfold import DispatchKey, DispatchKeySet


@pytest.fixture
def f(d):
    """`ns::f` with a kernel at CPU, CUDA and Tracer that says which."""
    d.define("ns::f(Tensor x) -> str")
    for key in ["CPU", "CUDA", "Tracer"]:
        d.impl("ns::f", key, lambda x, key=key: key)
    return d.get_op("ns::f")


@pytest.mark.parametrize("keys", ["CUDA", DispatchKey.CUDA, DispatchKeySet("CUDA")])
def test_fixed_keys(f, keys):
    class Fixed:
        pass

    kf.register_array_type(Fixed, keys)
    assert f(Fixed()) == "CUDA"
    assert DispatchKeySet.from_tensors([Fixed()]) == DispatchKeySet("CUDA")


def test_keys_by_a_function_of_the_instance(f):
    class OnDevice:
        def __init__(self, device):
            self.device = device

    kf.register_array_type(OnDevice, lambda x: "CUDA" if x.device == "gpu" else "CPU")
    assert f(OnDevice("gpu")) == "CUDA"
    assert f(OnDevice("host")) == "CPU"


def test_keyword_arguments(f):
    class Named:
        pass

    kf.register_array_type(Named, keys="CUDA")
    assert f(Named()) == "CUDA"


def test_registering_again_replaces(f):
    class Changing:
        pass

    kf.register_array_type(Changing, "CPU")
    kf.register_array_type(Changing, DispatchKeySet("CPU", "Tracer"))
    assert f(Changing()) == "Tracer"


def test_a_subclass_counts(f):
    class Base:
        pass

    class Derived(Base):
        pass

    class Special(Base):
        pass

    kf.register_array_type(Base, "CPU")
    kf.register_array_type(Special, "CUDA")
    assert f(Derived()) == "CPU", "as torch's Parameter does"
    assert f(Special()) == "CUDA", "the nearest registered class"


def test_an_unregistered_class_is_refused(f, raises_saying):
    class Unknown:
        pass

    parts = ["ns::f() argument 'x' must be Tensor", "Unknown", "register_array_type"]
    with raises_saying(TypeError, *parts):
        f(Unknown())


def test_python_kernels_get_the_instance_itself(d):
    class Own:
        pass

    kf.register_array_type(Own, "CPU")
    d.define("f(Tensor x) -> Tensor")
    d.impl("f", "CPU", lambda x: x)
    own = Own()
    assert d.call("f", own) is own


class Wrapped:
    """A class with NumPy memory, readable through DLPack, made again from results by `wrap`."""

    def __init__(self, array):
        self.array = np.asarray(array)

    def __dlpack__(self, **kwargs):
        return self.array.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class Bare(Wrapped):
    """The same, without `wrap`."""


@pytest.fixture(scope="module", autouse=True)
def _registered():
    kf.register_array_type(Wrapped, "CPU", wrap=lambda tensor: Wrapped(np.from_dlpack(tensor)))
    kf.register_array_type(Bare, "CPU")


def test_native_kernels_read_it_through_dlpack(testing):
    x = Wrapped([1.0, 2.0])
    result = kf.ops.aten.add(x, x)
    assert type(result) is Wrapped
    assert result.array.tolist() == [2.0, 4.0]


def test_a_native_identity_gives_the_instance_back(testing):
    x = Wrapped([1.0, 2.0])
    assert testing.identity(x, x) is x


def test_without_wrap_results_are_keyfolds():
    x = Bare([1.0, 2.0])
    result = kf.ops.aten.add(x, x)
    assert type(result) is kf.Tensor
    assert np.from_dlpack(result).tolist() == [2.0, 4.0]


def test_its_memory_lives_as_long_as_a_result_needs_it():
    x = Bare(np.arange(6.0).reshape(2, 3))
    result = kf.ops.aten.transpose(x, 0, 1)
    memory = weakref.ref(x.array)
    del x
    assert memory() is not None
    assert np.from_dlpack(result).tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]


def test_a_failing_wrap_passes_its_exception_on(d):
    class Fails(Wrapped):
        pass

    def wrap(tensor):
        raise KeyError("wrap")

    kf.register_array_type(Fails, "CPU", wrap=wrap)
    with pytest.raises(KeyError, match="wrap"):
        kf.ops.aten.add(Fails([1.0]), Fails([1.0]))


@pytest.mark.parametrize(
    ("arguments", "kind", "part"),
    [
        ((np.ndarray, "CPU"), TypeError, "built in"),
        ((kf.Tensor, "CPU"), TypeError, "built in"),
        ((3, "CPU"), TypeError, "type"),
        ((Wrapped, DispatchKeySet()), ValueError, "at least one dispatch key"),
        ((Wrapped, "Nonsense"), ValueError, "Nonsense"),
        ((Wrapped, 3), TypeError, "DispatchKey"),
    ],
)
def test_a_wrong_registration_is_refused(arguments, kind, part, raises_saying):
    with raises_saying(kind, part):
        kf.register_array_type(*arguments)


def test_a_function_that_gives_nonsense_is_reported(f):
    class Odd:
        pass

    kf.register_array_type(Odd, lambda x: 3)
    with pytest.raises(TypeError, match="DispatchKey"):
        f(Odd())


def test_an_ndarray_subclass_is_accepted():
    class Sub(np.ndarray):
        pass

    x = np.ones(3).view(Sub)
    assert DispatchKeySet.from_tensors([x]) == DispatchKeySet("CPU")
    result = kf.ops.aten.add(x, x)
    assert isinstance(result, np.ndarray)
    assert result.tolist() == [2.0, 2.0, 2.0]


def test_a_memmap_is_accepted(tmp_path, d):
    array = np.memmap(tmp_path / "data", dtype="float32", mode="w+", shape=(3,))
    array[:] = [1, 2, 3]
    result = kf.ops.aten.add(array, array)
    assert isinstance(result, np.ndarray)
    assert result.tolist() == [2.0, 4.0, 6.0]
    d.define("f(Tensor x) -> Tensor")
    d.impl("f", "CPU", lambda x: x)
    assert d.call("f", array) is array


@pytest.mark.parametrize(
    ("array", "name", "hint"),
    [
        (np.ma.masked_array([1.0, 2.0], mask=[True, False]), "MaskedArray", "filled"),
        (np.ones((1, 2)).view(np.matrix), "matrix", "np.asarray"),
    ],
)
def test_masked_arrays_and_matrices_are_refused(d, array, name, hint, raises_saying):
    with raises_saying(TypeError, "aten::neg() argument 'self'", name, hint):
        kf.ops.aten.neg(array)
    d.define("ns::f(Tensor x) -> Tensor")
    d.impl("ns::f", "CPU", lambda x: x)
    with raises_saying(TypeError, "ns::f() argument 'x'", name, hint):
        d.call("ns::f", array)


@pytest.mark.parametrize("dtype", ["U3", "S3", "O", "M8[s]", "V8", ">f8", np.longdouble])
def test_an_unsupported_dtype_is_refused_for_python_kernels_too(d, dtype, raises_saying):
    array = np.zeros(2, dtype=dtype)
    d.define("ns::f(Tensor x) -> Tensor")
    d.impl("ns::f", "CPU", lambda x: x)
    with raises_saying(TypeError, "ns::f() argument 'x'", str(array.dtype)) as raised:
        d.call("ns::f", array)
    assert isinstance(raised.value, kf.DTypeError)


@pytest.mark.parametrize(
    "dtype",
    [
        "bool",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "float16",
        "float32",
        "float64",
        "complex64",
        "complex128",
    ],
)
def test_every_supported_dtype_is_taken(d, testing, dtype):
    array = np.zeros(2, dtype=dtype)
    d.define("f(Tensor x) -> Tensor")
    d.impl("f", "CPU", lambda x: x)
    assert d.call("f", array) is array
    assert testing.identity(array, array) is array


def test_lists_and_numbers_are_no_tensors(f):
    for wrong in [[1.0], 1.0, (1,), "x", object()]:
        with pytest.raises(TypeError, match="must be Tensor"):
            f(wrong)
