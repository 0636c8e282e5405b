"""Operators as TVM FFI's functions."""

import gc
import weakref

import numpy as np
import pytest

import keyfold as kf
from tests.native.tvm_ffi.objects import with_objects

tvm_ffi = pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi isn't installed")

from keyfold.tvm_ffi import export  # noqa: E402


def tensor(values):
    return tvm_ffi.from_dlpack(np.asarray(values, dtype="f8"))


def test_an_operator_is_a_tvm_ffi_function():
    add = export("aten::add.Tensor" if "Tensor" in dir(kf.ops.aten.add) else "aten::add")
    assert isinstance(add, tvm_ffi.Function)
    result = add(tensor([1, 2]), tensor([10, 20]))
    assert isinstance(result, tvm_ffi.Tensor)
    assert np.from_dlpack(result).tolist() == [11.0, 22.0]


def test_defaults_may_be_left_out_and_values_come_back(exported):
    def kernel(x, k, *, mode, n):
        return x * k, k, mode * 5, n

    schema = (
        "f(Tensor x, float k=2.0, *, str mode='ab', int[] n=[1]) -> (Tensor, float, str, int[])"
    )
    f = exported(schema, kernel)
    x, k, text, n = f(tensor([1, 2]))
    assert np.from_dlpack(x).tolist() == [2.0, 4.0]
    assert (k, text, list(n)) == (2.0, "ab" * 5, [1])
    _, k, text, n = f(tensor([1]), 3, "z", [4, 5])
    assert (k, text, list(n)) == (3.0, "z" * 5, [4, 5])


def test_dtypes_and_devices_by_object_or_name(exported):
    f = exported(
        "f(Tensor x, ScalarType t, Device d) -> (ScalarType, Device)", lambda x, t, d: (t, d)
    )
    for args in ((tvm_ffi.dtype("float32"), tvm_ffi.device("cpu")), ("float32", "cpu")):
        dtype, device = f(tensor([1]), *args)
        assert (str(dtype), device.type) == ("float32", "cpu")


def test_lists_of_tensors_in_and_out(exported):
    f = exported("f(Tensor[] xs, Tensor? y=None) -> Tensor[]", lambda xs, y: [x + x for x in xs])
    results = f([tensor([1]), tensor([2, 3])])
    assert [np.from_dlpack(x).tolist() for x in results] == [[2.0], [4.0, 6.0]]


def test_memory_is_shared_both_ways(exported):
    f = exported("f(Tensor x) -> Tensor", lambda x: x)
    x = np.arange(3.0)
    y = np.from_dlpack(f(tvm_ffi.from_dlpack(x)))
    assert y.ctypes.data == x.ctypes.data


def test_called_from_cxx_by_its_global_name(exported, kernels, ns):
    name = f"keyfold_test.{ns}"
    exported("f(Tensor x, float k=3.0) -> Tensor", lambda x, k: x * k, name=name)
    try:
        result = kernels.call_global(name, tensor([1, 2]))
        assert np.from_dlpack(result).tolist() == [3.0, 6.0]
        with pytest.raises(kf.RegistrationError, match=name):
            export(f"{ns}::f", name=name)
        export(f"{ns}::f", name=name, override=True)
    finally:
        tvm_ffi.registry.remove_global_func(name)


def test_an_unnamed_export_leaves_no_global_name():
    before = set(tvm_ffi.registry.list_global_func_names())
    export("aten::exp")
    assert set(tvm_ffi.registry.list_global_func_names()) == before


RAISED = [
    ValueError("v"),
    TypeError("t"),
    IndexError("i"),
    NotImplementedError("n"),
    ZeroDivisionError("z"),
    RuntimeError("r"),
]


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
def test_an_exception_of_a_kernel_comes_out_as_its_kind(exported, kernels, ns, error):
    def kernel(x):
        raise error

    name = f"keyfold_test.{ns}"
    f = exported("f(Tensor x) -> Tensor", kernel, name=name)
    try:
        with pytest.raises(type(error), match=str(error)) as raised:
            f(tensor([1]))
        assert type(raised.value) is type(error)
        text = kernels.error_of_global(name, tensor([1]))
        assert text == f"{type(error).__name__}: {error}"
    finally:
        tvm_ffi.registry.remove_global_func(name)


def test_keyfolds_own_errors_name_operator_and_argument(exported, ns):
    f = exported("f(Tensor x, float k=1.0) -> Tensor", lambda x, k: x)
    cases = [
        ((), TypeError, "missing 1 required positional argument: 'x'"),
        ((tensor([1]), "no"), TypeError, "argument 'k' must be float, not str 'no'"),
        ((tensor([1]), 1.0, 2), TypeError, "takes 2 arguments but 3 were given"),
        ((None,), TypeError, "argument 'x' must be Tensor, not None"),
        ((tvm_ffi.convert({"a": 1}),), TypeError, "argument 'x': a value of type index 72"),
        ((len,), TypeError, "argument 'x': a value of type index"),
    ]
    for args, kind, text in cases:
        with pytest.raises(kind) as raised:
            f(*args)
        assert f"{ns}::f()" in str(raised.value)
        assert text in str(raised.value)


def test_a_wrong_return_and_a_missing_kernel(exported, ns):
    f = exported("f(Tensor x) -> Tensor", lambda x: 5)
    with pytest.raises(TypeError, match=f"{ns}::f: .*returned int 5"):
        f(tensor([1]))
    missing = exported("g(Tensor x) -> Tensor", None)
    with pytest.raises(NotImplementedError, match=f"{ns}::g"):
        missing(tensor([1]))


def test_a_removed_operator(ns):
    library = kf.Library(ns)
    library.define("f(Tensor x) -> Tensor")
    library.impl("f", lambda x: x, "CPU")
    f = export(f"{ns}::f")
    f(tensor([1]))
    library.close()
    with pytest.raises(RuntimeError, match=f"{ns}::f"):
        f(tensor([1]))


def test_a_lent_tensor_is_copied_into_the_result(exported, kernels):
    f = exported("f(Tensor x) -> Tensor", lambda x: x)
    x = np.arange(3.0)
    y = np.from_dlpack(kernels.call_lent(f, tvm_ffi.from_dlpack(x)))
    assert y.tolist() == [0.0, 1.0, 2.0]
    assert y.ctypes.data != x.ctypes.data


def test_a_kernel_that_keeps_a_lent_tensor_fails(exported, kernels):
    keeps = []
    f = exported("f(Tensor x) -> ()", keeps.append)
    f(tensor([1]))
    assert len(keeps) == 1
    with pytest.raises(BufferError, match="keeps a tensor that was passed as a DLTensor"):
        kernels.call_lent(f, tensor([1]))
    keeps.clear()


def test_the_operators_object_is_freed_with_the_function(ns):
    class Kernel:
        def __call__(self, x):
            return x

    kernel = Kernel()
    gone = weakref.ref(kernel)
    library = kf.Library(ns)
    library.define("f(Tensor x) -> Tensor")
    library.impl("f", kernel, "CPU")
    f = export(f"{ns}::f")
    del kernel
    f(tensor([1]))
    library.close()
    del f, library
    for _ in range(3):
        gc.collect()
        kf.define(f"{ns}x::other() -> ()").remove()
    assert gone() is None


def test_a_round_trip_through_both(d, exported, ns):
    """An operator as a function as a kernel of another operator."""
    inner = exported("inner(Tensor x) -> Tensor", lambda x: x * 2)
    d.define("demo::outer(Tensor x) -> Tensor")
    d.impl("demo::outer", "CPU", with_objects(inner, outputs="returned"))
    assert d.call("demo::outer", np.arange(3.0)).tolist() == [0.0, 2.0, 4.0]


def test_what_isnt_an_operator_is_refused():
    with pytest.raises(kf.UnknownOperator):
        export("no_such::operator")


def test_an_exported_operator_is_called_inside_a_layer(ns, lib):
    """tvm_ffi lets go of the GIL around the call, inside of keyfold's own frames."""
    lib.define("same(Tensor x) -> Tensor")
    lib.impl("same", lambda x: x, "CPU")
    same = kf.tvm_ffi.export(f"{ns}::same")
    array = tvm_ffi.from_dlpack(np.ones(3))

    def square(x):
        assert np.from_dlpack(same(array)).tolist() == [1.0, 1.0, 1.0]
        return x * x

    assert kf.grad(square)(3.0) == 6.0
