"""TVM FFI's functions as kernels."""

import gc
import sys
import weakref

import numpy as np
import pytest

import keyfold as kf
from tests.native.tvm_ffi.objects import with_objects

tvm_ffi = pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi isn't installed")


@pytest.fixture
def scale(op, kernels):
    return op(
        "scale(Tensor x, float k=2.0) -> Tensor",
        kernels.scale,
        lambda x, k: kf.empty(x.shape, dtype=x.dtype, device="meta"),
    )


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
