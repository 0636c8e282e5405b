"""Bad input, one test each: errors name operator, argument, the value given and the right one.

After each test the engine has to work as before.
"""

import ctypes
import gc
import inspect
import re
import sys
import threading

import numpy as np
import pytest

import keyfold as kf
from keyfold import DispatchKeySet
from tests.helpers.dlpack import DLManagedTensor


@pytest.fixture
def demo(d):
    """`demo::scale` in Python, in a dispatcher of its own, which has to work afterwards."""
    d.define('demo::scale(Tensor x, float k=2.0, *, str mode="up") -> Tensor')

    @d.impl("demo::scale", "CPU")
    def scale_cpu(x, k, *, mode):
        return x * k if mode == "up" else x / k

    yield d
    assert d.ops.demo.scale(np.ones(2), 3).tolist() == [3.0, 3.0]
    assert d.ops.demo.scale(np.ones(2), 2, mode="down").tolist() == [0.5, 0.5]


@pytest.fixture(autouse=True)
def native_works_on(works_on):
    """The built-in operators, too."""


@pytest.fixture
def scale(demo):
    return demo.ops.demo.scale


SCHEMA_MISTAKES = {
    "no type": "demo::f(x) -> Tensor",
    "unknown type": "demo::f(Tensr x) -> Tensor",
    "no arrow": "demo::f(Tensor x) Tensor",
    "no return": "demo::f(Tensor x) ->",
    "no closing parenthesis": "demo::f(Tensor x -> Tensor",
    "no name": "demo::(Tensor x) -> Tensor",
    "two namespaces": "a::demo::f(Tensor x) -> Tensor",
    "the same argument twice": "demo::f(Tensor x, int x) -> Tensor",
    "no default after one": "demo::f(int a=1, int b) -> int",
    "default of another type": 'demo::f(int a="x") -> int',
    "default for a tensor": "demo::f(Tensor x=1) -> Tensor",
    "star twice": "demo::f(*, int a, *, int b) -> int",
    "star at the end": "demo::f(int a, *) -> int",
    "open string": 'demo::f(str s="x) -> int',
    "odd characters": "demo::f(Tensor x; int y) -> Tensor",
    "something behind": "demo::f(Tensor x) -> Tensor out more",
    "a number as a name": "demo::1f(Tensor x) -> Tensor",
    "broken alias": "demo::f(Tensor(a! x) -> Tensor",
    "negative list size": "demo::f(int[-1] n) -> int",
    "nothing": "",
}


@pytest.mark.parametrize("mistake", SCHEMA_MISTAKES)
def test_schema_text(demo, mistake):
    text = SCHEMA_MISTAKES[mistake]
    with pytest.raises(kf.SchemaError) as raised:
        demo.define(text)
    message = str(raised.value)
    assert "^" in message, "a caret"
    assert text in message, "under the text"
    assert "column" in message
    assert demo.operator_names() == ["demo::scale"]


def test_a_kernel_whose_signature_contradicts_its_schema(demo, raises_saying):
    def scale_cuda(x):
        return x

    parts = ["demo::scale", "scale_cuda(x)", "positional", "float k=2.0", "contradicts the schema"]
    with raises_saying(ValueError, *parts):
        demo.impl("demo::scale", "CUDA", scale_cuda)
    assert demo.kernel_count() == 1


def test_wrong_arity(scale, raises_saying):
    with raises_saying(TypeError, "demo::scale() missing 1 required positional argument: 'x'"):
        scale()
    with raises_saying(TypeError, "demo::scale() takes from 1 to 2 positional arguments but 3"):
        scale(np.ones(1), 1.0, "up")


def test_an_unknown_keyword(scale, raises_saying):
    with raises_saying(
        TypeError, "demo::scale() got an unexpected keyword argument 'moed'", "mode"
    ):
        scale(np.ones(1), moed="up")


def test_an_argument_given_twice(scale, raises_saying):
    with raises_saying(TypeError, "demo::scale() got multiple values for argument 'x'"):
        scale(np.ones(1), x=np.ones(1))


def test_a_wrong_type(scale, raises_saying):
    with raises_saying(TypeError, "demo::scale() argument 'k' must be float, not str 'two'"):
        scale(np.ones(1), "two")
    with raises_saying(TypeError, "demo::scale() argument 'mode' must be str, not int 3"):
        scale(np.ones(1), mode=3)
    with raises_saying(TypeError, "demo::scale() argument 'x' must be Tensor, not list [1.0]"):
        scale([1.0])


def test_none_for_a_tensor(scale, raises_saying):
    with raises_saying(TypeError, "demo::scale() argument 'x' must be Tensor, not None"):
        scale(None)


def test_a_number_that_fits_no_integer(raises_saying):
    with raises_saying(ValueError, "aten::transpose", "dim0", str(2**70), "64 bits"):
        kf.ops.aten.transpose(np.ones((2, 2)), 2**70, 0)


def test_an_unknown_operator_offers_the_nearest_names(demo, raises_saying):
    for use in [
        lambda: demo.ops.demo.scael,
        lambda: demo.get_op("demo::scael"),
        lambda: demo.call("demo::scael", np.ones(1)),
        lambda: demo.redispatch("demo::scael", "CPU", np.ones(1)),
        lambda: demo.call_direct("demo::scael", "CPU", np.ones(1)),
        lambda: demo.explain("demo::scael", np.ones(1)),
        lambda: demo.get_kernel("demo::scael", "CPU"),
        lambda: demo.impl("demo::scael", "CPU", lambda x: x),
    ]:
        with raises_saying(AttributeError, "demo::scael", "demo::scale") as raised:
            use()
        assert isinstance(raised.value, kf.UnknownOperator)


def test_an_unknown_namespace_says_which_there_are(demo, raises_saying):
    with raises_saying(AttributeError, "dmeo", "demo"):
        demo.ops.dmeo
    with raises_saying(AttributeError, "atne", "aten"):
        kf.ops.atne


def test_an_unknown_key(demo, scale, raises_saying):
    for use in [
        lambda: demo.impl("demo::scale", "Autogard", lambda x, k, mode: x),
        lambda: demo.fallback("Autogard", lambda *args: None),
        lambda: DispatchKeySet("Autogard"),
        lambda: kf.DispatchKey("Autogard"),
        lambda: scale.redispatch("Autogard", np.ones(1)),
        lambda: scale.call_direct("Autogard", np.ones(1)),
        lambda: scale.has_kernel("Autogard"),
        lambda: demo.get_kernel("demo::scale", "Autogard"),
        lambda: kf.include_keys("Autogard"),
        lambda: kf.register_array_type(type("Odd", (), {}), "Autogard"),
    ]:
        with raises_saying(ValueError, "Autogard", "did you mean Autograd?") as raised:
            use()
        assert isinstance(raised.value, kf.UnknownKey)


def test_an_empty_key_set(scale, raises_saying):
    with raises_saying(ValueError, "demo::scale", "empty keyset"):
        scale.redispatch(DispatchKeySet(), np.ones(1))
    with kf.exclude_keys("CPU"), raises_saying(ValueError, "demo::scale", "empty keyset", "CPU"):
        scale(np.ones(1))


def test_no_kernel_for_any_key(demo, scale, word, raises_saying):
    parts = ["demo::scale", "no kernel registered for CUDA", "Autograd, CUDA", "kernels for CPU"]
    with raises_saying(NotImplementedError, *parts) as raised:
        scale(word("x", "CUDA", "Autograd"))
    assert isinstance(raised.value, kf.MissingKernel)
    with raises_saying(NotImplementedError, "demo::scale", "no kernel registered"):
        scale.redispatch(DispatchKeySet("Profiler"), np.ones(1))
    demo.define("demo::bare(Tensor x) -> Tensor")
    with raises_saying(NotImplementedError, "demo::bare", "no kernel registered", "no kernels"):
        demo.call("demo::bare", np.ones(1))


@pytest.mark.parametrize("key", ["Sparse", "Quantized", "Nested", "Vmap", "TestRagged"])
def test_a_representation_key_without_a_kernel(scale, word, ragged, key, raises_saying):
    parts = ["demo::scale", f"no kernel registered for {key}CPU", "what the data is", "fallback"]
    with raises_saying(NotImplementedError, *parts):
        scale(word("x", "CPU", key))


def test_two_tensors_on_different_devices(d, word, npu, raises_saying):
    d.define("demo::add(Tensor a, Tensor b) -> Tensor")
    for key in ["CPU", "CUDA", "Meta", "NPU"]:
        d.impl("demo::add", key, lambda a, b: a)
    pairs = [("CPU", "CUDA"), ("CUDA", "CPU"), ("CPU", "Meta"), ("CUDA", "NPU")]
    for one, two in pairs:
        parts = ["demo::add", "'a' is on " + one.lower(), "'b' is on " + two.lower()]
        with raises_saying(ValueError, *parts) as raised:
            d.call("demo::add", word("a", one), word("b", two))
        assert isinstance(raised.value, kf.DeviceError)
    a = word("a", "CUDA")
    assert d.call("demo::add", a, word("b", "CUDA")) is a


def test_different_devices_of_real_tensors(raises_saying):
    meta = kf.ops.aten.empty([2], device="meta")
    with raises_saying(ValueError, "aten::add", "'self' is on cpu", "'other' is on meta"):
        kf.ops.aten.add(np.ones(2), meta)


def test_includes_dont_make_devices_differ(scale):
    with kf.include_keys("Profiler"):
        assert scale(np.ones(1)).tolist() == [2.0]


class OnCuda:
    """A float32 tensor on a CUDA device that isn't there: nobody may touch its memory."""

    def __init__(self, index):
        self.index = index
        self.shape = (ctypes.c_int64 * 1)(2)
        self.managed = DLManagedTensor()
        tensor = self.managed.tensor
        tensor.data, tensor.device_type, tensor.device_id = 0x1000, 2, index
        tensor.ndim, tensor.code, tensor.bits, tensor.lanes = 1, 2, 32, 1
        tensor.shape = ctypes.addressof(self.shape)

    def __dlpack_device__(self):
        return (2, self.index)

    def __dlpack__(self, **kwargs):
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = (
            ctypes.py_object,
            [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p],
        )
        return new(ctypes.addressof(self.managed), b"dltensor", None)


def test_two_tensors_on_two_indices_of_one_device(d, raises_saying):
    d.define("demo::add(Tensor a, Tensor b) -> Tensor")
    d.impl("demo::add", "CUDA", lambda a, b: a)
    sources = [OnCuda(0), OnCuda(1)]
    zero, one = (kf.from_dlpack(source) for source in sources)
    assert d.call("demo::add", zero, zero) is zero
    with raises_saying(ValueError, "demo::add", "'a' is on cuda:0", "'b' is on cuda:1") as raised:
        d.call("demo::add", zero, one)
    assert isinstance(raised.value, kf.DeviceError)


def test_a_kernel_that_raises(demo, word):
    class Mine(Exception):
        pass

    def fails(x, k, *, mode):
        raise Mine("as it is")

    demo.impl("demo::scale", "CUDA", fails)
    with pytest.raises(Mine, match="as it is") as raised:
        demo.ops.demo.scale(word("x", "CUDA"))
    assert raised.value.__notes__ == ["keyfold: raised in demo::scale: CUDA"]


def test_a_kernel_that_panics(testing, raises_saying, capfd):
    x = np.ones(1)
    for _ in range(3):
        parts = ["keyfold_testing::panics", "panicked", "this kernel always panics", "CPU"]
        with raises_saying(RuntimeError, *parts) as raised:
            testing.panics(x, x)
        assert isinstance(raised.value, kf.KernelPanic)
    assert testing.identity(x, x) is x


@pytest.mark.parametrize(
    ("returned", "shown"),
    [("text", "str 'text'"), (None, "None"), ((1, 2), "tuple (1, 2)"), ([], "list []")],
)
def test_a_kernel_that_returns_the_wrong_kind(demo, word, returned, shown, raises_saying):
    def wrong_kernel(x, k, *, mode):
        return returned

    demo.impl("demo::scale", "CUDA", wrong_kernel)
    with raises_saying(TypeError, "demo::scale", "wrong_kernel", "Tensor", shown) as raised:
        demo.ops.demo.scale(word("x", "CUDA"))
    assert isinstance(raised.value, kf.KernelReturnError)


@pytest.mark.parametrize("returned", [(1,), (1, 2, 3), (), 1, None])
def test_a_kernel_that_returns_the_wrong_number(d, word, returned, raises_saying):
    d.define("demo::pair(Tensor x) -> (int, int)")
    d.impl("demo::pair", "CPU", lambda x: returned)
    with raises_saying(TypeError, "demo::pair", "(int, int)", repr(returned)):
        d.call("demo::pair", word("x"))


def test_a_kernel_that_removes_its_own_registration_while_it_runs(demo, word, raises_saying):
    def once(x, k, *, mode):
        handle.remove()
        gc.collect()
        return word("done")

    handle = demo.impl("demo::scale", "CUDA", once)
    kernel = demo.get_kernel("demo::scale", "CUDA")
    assert demo.ops.demo.scale(word("x", "CUDA")).text == "done"
    with raises_saying(NotImplementedError, "demo::scale", "no kernel registered for CUDA"):
        demo.ops.demo.scale(word("x", "CUDA"))
    with raises_saying(LookupError, "demo::scale", "removed"):
        kernel(word("x", "CUDA"))


def test_a_kernel_that_recurses_without_masking_its_key(demo, word, raises_saying):
    op = demo.get_op("demo::scale")

    @demo.impl("demo::scale", "Tracer", with_keyset=True)
    def forgets(keyset, x, k, *, mode):
        return op.redispatch(keyset, x, k, mode=mode)

    old = sys.getrecursionlimit()
    sys.setrecursionlimit(1_000_000)
    try:
        with raises_saying(RecursionError, "demo::scale", "Tracer"):
            op(word("x", "CPU", "Tracer"))
    finally:
        sys.setrecursionlimit(old)


def test_guards_closed_out_of_order(scale, raises_saying):
    first, second = kf.exclude_keys("Tracer"), kf.exclude_keys("Profiler")
    first.__enter__()
    second.__enter__()
    with raises_saying(RuntimeError, 'exclude_keys("Tracer")', "out of order", "reverse order"):
        first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert not kf.explain("aten::neg", np.ones(1)).excluded


def test_guards_closed_on_another_thread(scale):
    errors = []

    def close(guard):
        try:
            guard.__exit__(None, None, None)
        except RuntimeError as error:
            errors.append(error)

    with kf.exclude_keys("Tracer") as guard:
        thread = threading.Thread(target=close, args=(guard,))
        thread.start()
        thread.join()
    (error,) = errors
    assert isinstance(error, kf.GuardError)
    assert 'exclude_keys("Tracer")' in str(error)
    assert "another thread" in str(error)


UNSUPPORTED = [
    np.array(["text"]),
    np.array([b"bytes"]),
    np.array([object()], dtype=object),
    np.zeros(2, dtype="datetime64[s]"),
    np.zeros(2, dtype="timedelta64[s]"),
    np.zeros(2, dtype=[("a", "f8")]),
    np.zeros(2, dtype=np.longdouble),
]


@pytest.mark.parametrize("array", UNSUPPORTED, ids=lambda a: a.dtype.kind + str(a.dtype.itemsize))
def test_an_array_of_unsupported_dtype(scale, array, raises_saying):
    parts = [f"dtype {array.dtype}", "isn't supported", "float64"]
    with raises_saying(TypeError, "demo::scale() argument 'x'", *parts) as raised:
        scale(array)
    assert isinstance(raised.value, kf.DTypeError)
    with raises_saying(TypeError, "aten::neg() argument 'self'", *parts):
        kf.ops.aten.neg(array)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("name", ["amax", "argmin", "softmax"])
def test_a_dtype_that_an_operator_doesnt_compute(name, dtype, raises_saying):
    with raises_saying(TypeError, f"aten::{name}", "'self'", dtype, "float64") as raised:
        getattr(kf.ops.aten, name)(np.ones((2, 2), dtype=dtype), 0)
    assert isinstance(raised.value, kf.DTypeError)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "complex64"])
def test_a_dtype_that_random_numbers_dont_have(dtype, raises_saying):
    with raises_saying(TypeError, "aten::rand", "'dtype'", dtype, "float64") as raised:
        kf.rand((2,), dtype=dtype)
    assert isinstance(raised.value, kf.DTypeError)


def test_an_array_of_foreign_byte_order(scale, raises_saying):
    foreign = np.arange(3.0).astype(np.dtype("f8").newbyteorder("S"))
    parts = ["byte order", "newbyteorder", str(foreign.dtype)]
    with raises_saying(TypeError, "demo::scale() argument 'x'", *parts):
        scale(foreign)
    with raises_saying(TypeError, "aten::neg() argument 'self'", *parts):
        kf.ops.aten.neg(foreign)
    assert kf.ops.aten.neg(foreign.astype(foreign.dtype.newbyteorder("="))).tolist() == [0, -1, -2]


def test_a_read_only_array_is_read_and_not_written(raises_saying):
    x = np.arange(3.0)
    x.flags.writeable = False
    assert kf.ops.aten.neg(x).tolist() == [0.0, -1.0, -2.0]
    with raises_saying(ValueError, "aten::fill_", "'self'", "read-only", "copy") as raised:
        kf.ops.aten.fill_(x, 1.0)
    assert isinstance(raised.value, kf.ReadOnlyError)
    assert x.tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0, 4)])
def test_an_array_of_zero_size(scale, shape, raises_saying):
    x = np.zeros(shape)
    assert scale(x).shape == shape
    assert kf.ops.aten.add(x, x).shape == shape
    assert kf.ops.aten.sum(x) == 0.0
    with raises_saying(ValueError, "aten::max"):
        kf.ops.aten.max(x)


def test_a_0_dim_array(scale, raises_saying):
    x = np.array(3.0)
    assert scale(x) == 6.0
    result = kf.ops.aten.add(x, x)
    assert (result.shape, float(result)) == ((), 6.0)
    with raises_saying(IndexError, "aten::transpose", "0"):
        kf.ops.aten.transpose(x, 0, 1)


def test_negative_strides(scale):
    x = np.arange(6.0).reshape(2, 3)[::-1, ::-2]
    assert np.array_equal(kf.ops.aten.add(x, x), x + x)
    assert np.array_equal(kf.ops.aten.reshape(x, [4]), x.reshape(4))
    assert np.array_equal(scale(x), x * 2)


def test_overlapping_memory_is_read_and_not_written(raises_saying):
    x = np.lib.stride_tricks.as_strided(np.arange(4.0), shape=(3, 2), strides=(8, 8))
    assert np.array_equal(kf.ops.aten.neg(x), -x)
    before = x.copy()
    with raises_saying(ValueError, "aten::fill_", "share memory", "copy"):
        kf.ops.aten.fill_(x, 1.0)
    assert np.array_equal(x, before)


def test_strides_that_are_no_whole_elements(raises_saying):
    x = np.zeros(3, dtype=[("a", "f8"), ("b", "u1")])["a"]
    with raises_saying(ValueError, "aten::neg() argument 'self'", "9"):
        kf.ops.aten.neg(x)


def test_memory_that_isnt_aligned(raises_saying):
    x = np.zeros(17, dtype="u1")[1:].view("f8")
    assert not x.flags.aligned
    with raises_saying(ValueError, "aten::neg() argument 'self'", "align"):
        kf.ops.aten.neg(x)


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("name", ["empty", "zeros", "ones"])
def test_a_shape_whose_element_count_overflows(name, device, raises_saying):
    factory = getattr(kf.ops.aten, name)
    with raises_saying(ValueError, f"aten::{name}", str(2**40), "too large") as raised:
        factory([2**40, 2**40], device=device)
    assert isinstance(raised.value, kf.ShapeError)


def test_a_shape_that_overflows_by_broadcasting(raises_saying):
    a = np.broadcast_to(np.float64(1), (2**32, 1))
    b = np.broadcast_to(np.float64(1), (1, 2**32))
    with raises_saying(ValueError, "aten::add", "too large"):
        kf.ops.aten.add(a, b)


def test_memory_that_cant_be_had(raises_saying):
    with raises_saying(MemoryError, "aten::empty", str(2**48)) as raised:
        kf.ops.aten.empty([2**45])
    assert isinstance(raised.value, kf.OutOfMemory)


def test_a_negative_size(raises_saying):
    with raises_saying(ValueError, "aten::empty", "-1"):
        kf.ops.aten.empty([2, -1])


def test_shapes_that_dont_fit(raises_saying):
    with raises_saying(ValueError, "aten::add", "[2]", "[3]") as raised:
        kf.ops.aten.add(np.ones(2), np.ones(3))
    assert isinstance(raised.value, kf.ShapeError)
    with raises_saying(ValueError, "aten::matmul", "[2, 3]"):
        kf.ops.aten.matmul(np.ones((2, 3)), np.ones((2, 3)))


def test_an_unknown_device(raises_saying):
    for wrong in ["gpu", "cpu:x", "cuda:-1", ""]:
        with raises_saying(ValueError, "aten::empty() argument 'device'", f'"{wrong}"'):
            kf.ops.aten.empty([1], device=wrong)


def test_a_dlpack_capsule_used_twice(raises_saying):
    capsule = np.arange(3.0).__dlpack__()
    assert np.from_dlpack(kf.from_dlpack(capsule)).tolist() == [0.0, 1.0, 2.0]
    with raises_saying(BufferError, "used", "once") as raised:
        kf.from_dlpack(capsule)
    assert isinstance(raised.value, kf.ExchangeError)


def test_a_capsule_of_ours_used_twice(raises_saying):
    capsule = kf.ops.aten.ones([2]).__dlpack__()
    assert np.from_dlpack(kf.from_dlpack(capsule)).tolist() == [1.0, 1.0]
    with raises_saying(BufferError, "used"):
        kf.from_dlpack(capsule)


def test_a_shared_library_that_lacks_the_symbol(c_library, raises_saying):
    with raises_saying(OSError, str(c_library), "keyfold_example_scael"):
        kf.NativeKernel.from_library(c_library, "keyfold_example_scael")


# Arguments that are right, by the parameters' names; arrays for the others.
RIGHT = {
    "shape": (2, 2),
    "sizes": (),
    "axis": 0,
    "axes": (0, 1),
    "dtype": "float64",
    "device": "cpu",
    "fill_value": 1.0,
    "start": 0,
    "stop": 3,
    "indices": np.array([0]),
    "arrays": [np.ones((2, 2))] * 2,
    "condition": np.ones((2, 2), bool),
    "shapes": (2, 2),
}
WRONG = [object(), "a text", None, [1, "x"], 2 + 1j, 0.5, {}, np.ones((3, 5), complex), np.ones(2)]


def array_functions():
    """The public functions of arrays, with their signatures."""
    for name in kf.__all__:
        function = getattr(kf, name)
        module = getattr(function, "__globals__", {}).get("__name__", "")
        if type(function).__name__ == "OperatorFunction" or module.startswith("keyfold._ops."):
            yield name, function, inspect.signature(function).parameters


def calls_with_one_wrong_argument(parameters):
    """Which argument is wrong, and the arguments of the call."""
    needed = [p for p in parameters.values() if p.default is p.empty and p.kind < p.VAR_KEYWORD]
    for wrong in parameters.values():
        if wrong.kind is wrong.VAR_KEYWORD or wrong.name == "sizes":
            continue
        for value in WRONG:
            args, kwargs = [], {}
            for p in [*needed, *([wrong] if wrong not in needed else [])]:
                given = value if p is wrong else RIGHT.get(p.name, np.ones((2, 2)))
                if p.kind is p.VAR_POSITIONAL:
                    args.extend([] if p.name == "sizes" else [given])
                elif p.kind is p.POSITIONAL_ONLY:
                    # Positional parameters before it that have defaults.
                    others = list(parameters.values())
                    before = others[len(args) : others.index(p)]
                    args.extend([q.default for q in before if q.kind is q.POSITIONAL_ONLY])
                    args.append(given)
                else:
                    kwargs[p.name] = given
            yield wrong.name, args, kwargs


def test_messages_name_the_arguments_that_the_function_shows():
    names, seen = set(), 0
    for name, function, parameters in array_functions():
        names.add(name)
        for wrong, args, kwargs in calls_with_one_wrong_argument(parameters):
            said = ""
            try:
                function(*args, **kwargs)
            except kf.Error as error:
                said = str(error)
            named = set(re.findall(r"'(\w+)(?:\[\d+\])?' (?:is|must|has|got)", said))
            named.update(re.findall(r"argument '(\w+)(?:\[\d+\])?'", said))
            assert named <= set(parameters), (name, wrong, said)
            seen += bool(named)
    assert {"pow", "clip", "where", "sum", "take", "concat", "astype", "logical_and"} <= names
    assert seen > 1000
