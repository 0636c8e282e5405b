"""TVM FFI both ways: its functions as kernels, operators as its functions. Real kernels in C++."""

import gc
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest

import keyfold as kf

tvm_ffi = pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi isn't installed")

from keyfold.tvm_ffi import export  # noqa: E402

SOURCE = Path(__file__).parent / "tvm_kernels.cc"


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
def tvm_library(tmp_path_factory):
    return compile_with_package_flags(SOURCE, tmp_path_factory.mktemp("tvm") / "libkernels.so")


@pytest.fixture(scope="session")
def kernels(tvm_library):
    return tvm_ffi.load_module(str(tvm_library))


@pytest.fixture(scope="session")
def testing():
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


def with_objects(function, **options):
    return kf.NativeKernel.from_tvm_ffi(function, tensors="object", **options)


@pytest.fixture
def scale(op, kernels):
    return op(
        "scale(Tensor x, float k=2.0) -> Tensor",
        kernels.scale,
        lambda x, k: kf.empty(x.shape, dtype=x.dtype, device="meta"),
    )


# In.


def test_a_function_is_registered_as_it_is(d, testing):
    d.define("demo::nop(Tensor x, Tensor y, Tensor z) -> ()")
    nop = testing("nop")
    handle = d.impl("demo::nop", "CPU", nop)
    assert d.get_op("demo::nop").kernels["CPU"] is nop
    assert "TVM FFI" in handle.origin
    x = np.ones(1)
    assert d.call("demo::nop", x, x, x) is None


def test_in_a_library(testing):
    with kf.Library("tvm_in_library") as library:
        library.define("nop(Tensor x) -> ()")
        library.impl("nop", testing("nop"), "CPU")
    assert kf.ops.tvm_in_library.nop(np.ones(1)) is None
    library.close()


def test_a_cxx_kernel_on_numpy_and_keyfold_tensors(scale):
    x = np.arange(3.0)
    assert scale(x).tolist() == [0.0, 2.0, 4.0]
    assert type(scale(x)) is np.ndarray
    assert scale(x[::-1], 3.0).tolist() == [6.0, 3.0, 0.0]
    result = scale(kf.from_numpy(x))
    assert type(result) is kf.Tensor
    assert np.from_dlpack(result).tolist() == [0.0, 2.0, 4.0]


def test_a_symbol_of_a_library_linked_with_tvm_ffi(op, tvm_library):
    kernel = kf.NativeKernel.from_library(tvm_library, "__tvm_ffi_sum")
    add = op("sum(int[] numbers, int? more, Tensor key) -> int", kernel)
    with pytest.raises(TypeError, match="Expected 2 but got 3"):
        add([1], None, np.ones(1))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int", -5),
        ("float", 2.5),
        ("bool", True),
        ("str", ""),
        ("str", "short"),
        ("str", "long enough to be an object"),
        ("ScalarType", kf.float32),
        ("Device", kf.Device("cpu")),
        ("int?", None),
        ("int[]", []),
        ("int[]", [1, 2, 3]),
        ("float[]", [1.5, 2.5]),
        ("bool[]", [True, False]),
        ("str[]", ["a", "long enough to be an object"]),
        ("int[]?", None),
    ],
)
def test_values_go_there_and_back(op, testing, kind, value):
    echo = op(f"echo({kind} v, Tensor key) -> {kind}", testing("echo"))
    assert echo(value, np.ones(1)) == value


def test_whole_numbers_in_a_list_of_floats_arrive_as_floats(op, testing):
    echo = op("echo(float[] v, Tensor key) -> float[]", testing("echo"))
    assert [type(x) for x in echo([1, 2.5], np.ones(1))] == [float, float]


def test_lists_of_tensors(op, kernels):
    total = op("total(Tensor[] xs) -> float", kernels.total)
    x = np.arange(3.0)
    assert total([x, kf.from_numpy(x)]) == 6.0
    assert total([x] * 20) == 60.0
    doubles = op("doubles(Tensor[] xs) -> Tensor[]", kernels.doubles)
    assert [y.tolist() for y in doubles([x, x[1:]])] == [[0.0, 2.0, 4.0], [2.0, 4.0]]


def test_lists_of_text(d, kernels):
    d.define("demo::joined(str[] words, str by) -> str")
    d.impl("demo::joined", "CPU", kernels.joined)
    assert d.call_direct("demo::joined", "CPU", ["a", "b" * 30], "-") == "a-" + "b" * 30 + "-"


def test_optional_items(op, testing):
    echo = op("echo(Tensor?[] xs, Tensor key) -> Tensor?[]", testing("echo"))
    first, nothing = echo([np.ones(2), None], np.ones(1))
    assert first.tolist() == [1.0, 1.0]
    assert nothing is None


def test_a_returned_tensor_lies_in_the_kernels_memory(op, kernels):
    doubled = op("doubled(Tensor x) -> Tensor", with_objects(kernels.doubled, outputs="returned"))
    y = doubled(np.arange(3.0))
    assert type(y) is np.ndarray
    assert y.tolist() == [0.0, 2.0, 4.0]
    z = doubled(kf.from_numpy(y))
    del y
    gc.collect()
    assert np.from_dlpack(z).tolist() == [0.0, 4.0, 8.0]


def test_a_returned_argument_is_the_callers_own_object(op, testing):
    kernel = with_objects(testing("echo"), outputs="returned")
    echo = op("echo(Tensor x) -> Tensor", kernel)
    for x in (np.ones(2), kf.ones([2])):
        assert echo(x) is x


def test_several_returned_tensors(op, kernels):
    kernel = with_objects(kernels.pair, outputs="returned")
    pair = op("pair(Tensor x) -> (Tensor, Tensor)", kernel)
    x = np.arange(2.0)
    new, same = pair(x)
    assert new.tolist() == [0.0, 2.0]
    assert same is x


def test_a_kernel_that_keeps_a_tensor_object_keeps_its_memory(op, kernels):
    keep = op("keep(Tensor x) -> ()", with_objects(kernels.keep))
    x = np.full(3, 7.0)
    keep(x)
    del x
    gc.collect()
    junk = [np.zeros(3) for _ in range(100)]
    assert kernels.kept() == 7.0
    kernels.forget()
    assert len(junk) == 100


def test_a_kernel_that_keeps_a_tensor_object_of_torchs_memory(op, kernels, raises_saying):
    torch = pytest.importorskip("torch", reason="torch isn't installed")
    keep = op("keep(Tensor x) -> ()", with_objects(kernels.keep))
    total = op("total(Tensor(a!)[] xs) -> float", kernels.total)
    write = op("write(Tensor(a!) x) -> ()", with_objects(kernels.keep))
    t = torch.full((100,), 7.0, dtype=torch.float64)
    keep(t)
    t.share_memory_()
    junk = [np.zeros(100) for _ in range(100)]
    t.zero_()
    assert kernels.kept() == 7.0
    kernels.forget()
    # A copy is no place to write to.
    for call in (lambda: write(t), lambda: write(kf.asarray(t)), lambda: total([t])):
        with raises_saying(kf.ExchangeError, "argument 'x", "another library may move"):
            version = t._version
            call()
    # The refused list's tensor was not written.
    assert t._version == version
    assert len(junk) == 100


@pytest.mark.parametrize(
    "schema", ["write(Tensor(a!) x, str s) -> ()", "write(Tensor(a!)[] x, str s) -> ()"]
)
def test_a_refused_call_counts_as_no_write(op, kernels, schema, raises_saying):
    write = op(schema, kernels.keep)
    x = kf.asarray([1.0, 2.0]).requires_grad_()
    saved = x * 2.0
    product = kf.sum(saved * saved)
    target = saved.detach()
    with raises_saying(ValueError, "argument 's'", "zero byte"):
        write([target] if "[]" in schema else target, "a\0b")
    # A write would be an error here.
    product.backward()
    assert x.grad.tolist() == [8.0, 16.0]


def test_a_refused_call_counts_as_no_write_to_torchs_memory(op, kernels, raises_saying):
    torch = pytest.importorskip("torch", reason="torch isn't installed")
    write = op("write(Tensor(a!) x, str s) -> ()", kernels.keep)
    t = torch.zeros(3)
    version = t._version
    with raises_saying(ValueError, "zero byte"):
        write(t, "a\0b")
    assert t._version == version


def test_a_view_isnt_a_tensor_object(op, kernels):
    keep = op("keep(Tensor x) -> ()", kernels.keep)
    with pytest.raises(TypeError, match="Tensor"):
        keep(np.ones(1))


# Errors in.


BUILTIN = [ValueError, TypeError, RuntimeError, IndexError, KeyError, NotImplementedError, OSError]


@pytest.mark.parametrize("kind", BUILTIN, ids=lambda kind: kind.__name__)
def test_a_raised_error_is_the_builtin_of_its_kind(op, kernels, kind):
    call = op("raise_(Tensor x, str kind, str message) -> ()", kernels["raise"])
    with pytest.raises(kind) as raised:
        call(np.ones(1), kind.__name__, "no luck")
    assert type(raised.value) is kind
    assert raised.value.args == ("no luck",)
    note = raised.value.__notes__[0]
    assert note.startswith("keyfold: raised in demo::raise_: CPU, by the kernel tvm_ffi.Function")


@pytest.mark.parametrize(
    "kind", ["Unheard", "StopIteration", "KeyboardInterrupt", "UnicodeDecodeError", "print", ""]
)
def test_an_unknown_kind_is_a_failed_kernel_with_kind_and_message(op, kernels, kind):
    call = op("raise_(Tensor x, str kind, str message) -> ()", kernels["raise"])
    with pytest.raises(kf.KernelFailed) as raised:
        call(np.ones(1), kind, "no luck")
    assert str(raised.value).startswith("demo::raise_: the kernel tvm_ffi.Function")
    assert str(raised.value).endswith(f"{kind}: no luck")


def test_an_error_of_the_authors_check(scale):
    with pytest.raises(TypeError, match="scale wants float64"):
        scale(np.arange(3))
    with pytest.raises(ValueError, match="k is 0"):
        scale(np.ones(1), 0.0)
    assert scale(np.ones(1)).tolist() == [2.0]


def test_a_python_function_as_a_tvm_ffi_function(op):
    @tvm_ffi.convert
    def fails(x):
        raise IndexError(f"of {type(x).__name__}")

    call = op("fails(Tensor x) -> ()", fails)
    with pytest.raises(IndexError, match="of Tensor") as raised:
        call(np.ones(1))
    assert "in fails" in raised.value.__notes__[1]


def test_one_note_through_a_python_layer(d, kernels):
    d.define("demo::r(Tensor x, str kind, str message) -> ()")
    d.impl("demo::r", "CPU", kernels["raise"])

    @d.impl("demo::r", "Profiler", with_keyset=True)
    def layer(keyset, x, kind, message):
        return d.redispatch("demo::r", keyset.remove("Profiler"), x, kind, message)

    with kf.include_keys("Profiler"), pytest.raises(ValueError, match="m") as raised:
        d.call("demo::r", np.ones(1), "ValueError", "m")
    ours = [note for note in raised.value.__notes__ if note.startswith("keyfold: ")]
    assert ours == [ours[0]]
    assert "Profiler > CPU" in ours[0]


# Bad input.


def test_a_result_of_a_wrong_kind(op, testing):
    echo = op("echo(str v, Tensor key) -> int", testing("echo"))
    for text in ("short", "long enough to be an object"):
        with pytest.raises(kf.KernelReturnError, match=r"returned str '.*promises int"):
            echo(text, np.ones(1))


def test_a_result_that_is_no_value_of_keyfolds(op, testing):
    call = op("odd(Tensor key) -> int", testing("make_unregistered_object"))
    with pytest.raises(TypeError, match="Expected 0 but got 1"):
        call(np.ones(1))
    call = op("map_(Tensor key) -> int", with_objects(testing("make_map_with_tensor")))
    with pytest.raises(kf.KernelReturnError, match="type index 72"):
        call(np.ones(1))


def test_a_tensor_result_of_a_bad_dtype(op, kernels):
    kernel = with_objects(kernels.odd, outputs="returned")
    odd = op("odd(Tensor x) -> Tensor", kernel)
    with pytest.raises(kf.DTypeError, match=r"demo::odd: the result of the kernel .*4 lanes"):
        odd(np.ones(1))


def test_what_isnt_a_function_is_refused(kernels):
    for wrong in (len, 5, tvm_ffi.from_dlpack(np.ones(1))):
        with pytest.raises(TypeError, match="from_tvm_ffi"):
            kf.NativeKernel.from_tvm_ffi(wrong)
    with pytest.raises(ValueError, match="tensors"):
        kf.NativeKernel.from_tvm_ffi(kernels.scale, tensors="objects")
    with pytest.raises(ValueError, match="outputs"):
        kf.NativeKernel.from_tvm_ffi(kernels.scale, outputs="made")


# Lifetime.


def test_the_function_is_freed_when_its_kernel_is_removed(d):
    class Token:
        pass

    token = Token()
    gone = weakref.ref(token)
    function = tvm_ffi.convert(lambda x, token=token: None)
    d.define("demo::f(Tensor x) -> ()")
    handle = d.impl("demo::f", "CPU", kf.NativeKernel(function))
    del function, token
    gc.collect()
    d.call("demo::f", np.ones(1))
    assert gone() is not None
    handle.remove()
    del handle
    for _ in range(3):
        gc.collect()
        d.define("demo::other() -> ()").remove()
    assert gone() is None


def test_arguments_and_results_leave_no_references(op, testing, kernels):
    count = testing("object_use_count")
    uses = op("uses(Tensor x) -> int", with_objects(count))
    x = np.ones(1)
    # The one object that was made for the call.
    assert [uses(x) for _ in range(3)] == [1, 1, 1]
    before = sys.getrefcount(x)
    echo = op("echo(Tensor[] x, Tensor key) -> Tensor[]", testing("echo"))
    for _ in range(10):
        echo([x, x], x)
    gc.collect()
    assert sys.getrefcount(x) == before


# Out.


@pytest.fixture
def exported(ns):
    """Exports an operator of this schema with this CPU kernel: `exported(schema, kernel)`."""
    library = kf.Library(ns)

    def make(schema, kernel, **options):
        library.define(schema)
        if kernel is not None:
            library.impl(schema.split("(")[0], kernel, "CPU")
        return export(f"{ns}::{schema.split('(')[0]}", **options)

    yield make
    library.close()


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
