"""`asarray` and the functions that make tensors of a shape."""

import array
import gc
import weakref

import numpy as np
import pytest

import keyfold as kf

# ---- asarray -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "dtype", "values"),
    [
        (3, "int64", 3),
        (2.5, "float64", 2.5),
        (True, "bool", True),
        (1 + 2j, "complex128", 1 + 2j),
        ([1, 2], "int64", [1, 2]),
        ([1, 2.5], "float64", [1, 2.5]),
        ([[True], [False]], "bool", [[True], [False]]),
        ((1, 2), "int64", [1, 2]),
        (range(3), "int64", [0, 1, 2]),
        ([], "float64", []),
        (np.float32(1.5), "float32", 1.5),
        (b"ab", "uint8", [97, 98]),
        (bytearray(b"ab"), "uint8", [97, 98]),
        (memoryview(b"ab"), "uint8", [97, 98]),
        (array.array("h", [1, 2]), "int16", [1, 2]),
    ],
)
def test_asarray_takes_pythons_own(given, dtype, values):
    t = kf.asarray(given)
    assert t.dtype == dtype
    assert t.tolist() == values


def test_asarray_takes_lists_of_tensors():
    assert kf.asarray([kf.arange(2), kf.arange(2)]).tolist() == [[0, 1], [0, 1]]


def test_asarray_shares_what_can_be_shared():
    a = np.arange(3.0)
    assert kf.asarray(a).data_ptr() == a.ctypes.data
    assert kf.asarray(a, copy=False).data_ptr() == a.ctypes.data
    assert kf.asarray(a, copy=True).data_ptr() != a.ctypes.data
    t = kf.zeros(3)
    assert kf.asarray(t) is t
    assert kf.asarray(t, copy=True).data_ptr() != t.data_ptr()
    buffer = bytearray(3)
    kf.asarray(buffer)[0] = 7
    assert buffer == b"\x07\x00\x00"
    assert kf.asarray(b"x").readonly


def test_asarray_takes_any_object_with_dlpack():
    class Exporter:
        def __init__(self):
            self.array = np.arange(3.0)

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    exporter = Exporter()
    assert kf.asarray(exporter).data_ptr() == exporter.array.ctypes.data


def test_asarray_copies_out_of_an_object_that_gives_its_own_array():
    class Holder:
        held = np.arange(3.0)

        def __array__(self, dtype=None, copy=None):
            return self.held

    assert kf.asarray(Holder()).data_ptr() == Holder.held.ctypes.data
    assert kf.asarray(Holder(), copy=True).data_ptr() != Holder.held.ctypes.data


def test_asarray_converts_and_moves():
    assert kf.asarray([1, 2], dtype="float32").dtype == "float32"
    assert kf.asarray(np.ones(2), dtype=kf.int64).tolist() == [1, 1]
    assert kf.asarray([1], device="meta").device == "meta"
    assert kf.asarray(kf.zeros(2), dtype=float).dtype == "float64"


@pytest.mark.parametrize(
    "given",
    [
        np.arange(3, dtype=">i4"),
        np.zeros(3, np.dtype([("a", "u1"), ("b", "<i4")]))["b"],
        np.frombuffer(bytearray(13), np.uint8)[1:].view(np.int32),
    ],
    ids=["byte order", "strides", "alignment"],
)
def test_asarray_copies_what_lies_wrong_in_memory(given):
    t = kf.asarray(given)
    assert t.tolist() == given.tolist()
    assert t.dtype == "int32"
    with pytest.raises(kf.InvalidValue, match="without a copy"):
        kf.asarray(given, copy=False)


@pytest.mark.parametrize("options", [{"dtype": "int64"}, {"device": "meta"}])
def test_asarray_says_when_a_copy_is_needed_and_forbidden(options):
    with pytest.raises(kf.InvalidValue, match="without a copy"):
        kf.asarray(np.ones(2), copy=False, **options)
    with pytest.raises(kf.InvalidValue, match=r"list.*without a copy"):
        kf.asarray([1, 2], copy=False)


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ("text", kf.DTypeError, "str"),
        (["a"], kf.DTypeError, "list"),
        (None, kf.DTypeError, "NoneType"),
        ([1, [2, 3]], kf.InvalidValue, "differ in length or depth"),
        (object(), kf.DTypeError, "object"),
        (np.array(["x"]), kf.DTypeError, "<U1"),
        (2**100, kf.InvalidValue, "64 bits"),
    ],
)
def test_asarray_says_what_it_cant_take(given, kind, message):
    with pytest.raises(kind, match=message):
        kf.asarray(given)


def test_what_asarray_shares_lives_as_long_as_the_tensor():
    class Buffer(bytearray):
        pass

    buffer = Buffer(b"abc")
    gone = weakref.ref(buffer)
    t = kf.asarray(buffer)
    del buffer
    gc.collect()
    assert gone() is not None
    assert t.tolist() == [97, 98, 99]
    del t
    gc.collect()
    assert gone() is None


# ---- constants and counts ------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), 3, (3,), [2, 0], (2, 3, 4), np.int64(2), (np.int64(2), 1)])
def test_constants_have_the_shape_that_was_asked_for(shape):
    sizes = np.zeros(shape).shape
    assert kf.empty(shape).shape == sizes
    assert np.array_equal(kf.zeros(shape).numpy(), np.zeros(shape))
    assert np.array_equal(kf.ones(shape).numpy(), np.ones(shape))
    assert np.array_equal(kf.full(shape, 7).numpy(), np.full(shape, 7))


@pytest.mark.parametrize("dtype", ["float32", kf.float32, np.float32, np.dtype("float32")])
def test_a_dtype_is_given_in_many_ways(dtype):
    assert kf.zeros(2, dtype=dtype).dtype == "float32"


@pytest.mark.parametrize(
    ("value", "dtype"), [(True, "bool"), (1, "int64"), (1.0, "float64"), (1j, "complex128")]
)
def test_full_takes_the_dtype_of_its_number(value, dtype):
    assert kf.full(2, value).dtype == dtype
    assert kf.full(2, value).tolist() == [value, value]


@pytest.mark.parametrize(
    "numbers", [(5,), (2, 5), (0, 10, 3), (5, 0, -2), (0.0, 1.0, 0.25), (3, 3), (1, 0)]
)
def test_arange_counts_as_numpy(numbers):
    expected = np.arange(*numbers)
    t = kf.arange(*numbers)
    assert np.allclose(t.numpy(), expected)
    assert t.shape == expected.shape
    assert str(t.dtype) == str(expected.dtype)


def test_the_likes_take_shape_dtype_and_device():
    x = kf.zeros((2, 3), dtype="float32")
    assert kf.ones_like(x).tolist() == [[1] * 3] * 2
    assert kf.full_like(x, 2).dtype == "float32"
    assert kf.zeros_like(x, dtype="int64").dtype == "int64"
    assert kf.empty_like(kf.zeros(2, device="meta")).device == "meta"
    assert kf.ones_like(x, device="meta").device == "meta"


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: kf.zeros((2**40, 2**40)), kf.ShapeError, "aten::zeros.*too large"),
        (lambda: kf.zeros(2**62), (kf.ShapeError, kf.OutOfMemory), "aten::zeros"),
        (lambda: kf.empty((2**70,)), kf.InvalidValue, "64 bits"),
        (lambda: kf.zeros((1,) * 65), kf.ShapeError, "aten::zeros.*64"),
        (lambda: kf.zeros(-1), kf.ShapeError, "aten::zeros.*-1.*negative"),
        (lambda: kf.zeros(2.5), kf.BindingError, r"keyfold\.zeros.*'shape'.*2.5"),
        (lambda: kf.zeros(2, dtype="float33"), kf.Error, r"keyfold\.zeros.*dtype.*float33"),
        (lambda: kf.zeros(2, device="gpu"), kf.Error, "gpu.*cpu"),
        (lambda: kf.full(2, "x"), kf.BindingError, r"keyfold\.full.*fill_value.*'x'"),
        (lambda: kf.full(2, 300, dtype="uint8"), kf.InvalidValue, "aten::full.*300.*uint8"),
        (lambda: kf.arange(0, 5, 0), kf.InvalidValue, "aten::arange.*step is zero"),
        (lambda: kf.zeros(2, device="cuda"), kf.MissingKernel, "aten::zeros.*CUDA"),
    ],
)
def test_what_cant_be_made_is_said(make, kind, message, works_on):
    with pytest.raises(kind, match=message):
        make()
