"""NumPy arrays as tensors and back: no copy, lifetimes, and what is refused."""

import gc
import sys
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import keyfold as kf

DTYPES = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "complex64", "complex128",
]  # fmt: skip


@st.composite
def views(draw):
    """Arrays of all kinds of layout: any dtype, size, order, negative and zero strides."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=4))
    a = draw(hnp.arrays(dtype, shape, elements={"allow_nan": False}))
    a = a[draw(hnp.basic_indices(shape, allow_newaxis=True, allow_ellipsis=True, max_dims=8))]
    a = np.asarray(a)
    a = a.transpose(draw(st.permutations(range(a.ndim))))
    if draw(st.booleans()):
        a = np.broadcast_to(a, (2, *a.shape))
    return a


@given(a=views())
@settings(max_examples=400)
def test_any_layout_goes_there_and_back_without_a_copy(a):
    t = kf.from_numpy(a)
    assert t.shape == a.shape
    assert str(t.dtype) == str(a.dtype)
    assert t.readonly == (not a.flags.writeable)
    back = t.numpy()
    assert np.array_equal(back, a)
    assert back.dtype == a.dtype
    assert back.flags.writeable == a.flags.writeable
    if a.size:
        assert t.data_ptr() == a.ctypes.data == back.ctypes.data
        far = [i for i, n in enumerate(a.shape) if n > 1]
        assert [t.strides[i] * a.itemsize for i in far] == [a.strides[i] for i in far]


def test_writes_are_seen_on_the_other_side():
    a = np.zeros(3)
    t = kf.from_numpy(a)
    t[0] = 1
    a[1] = 2
    t.numpy()[2] = 3
    assert t.tolist() == a.tolist() == [1, 2, 3]


def test_the_tensor_keeps_the_array_alive():
    a = np.arange(1000.0)
    gone = weakref.ref(a)
    t = kf.from_numpy(a)
    row = t[500:]
    del a, t
    gc.collect()
    assert gone() is not None
    assert row[0].item() == 500
    del row
    gc.collect()
    assert gone() is None


def test_the_array_keeps_the_tensor_alive():
    t = kf.zeros(1000)
    gone = weakref.ref(t)
    a = t.numpy()
    assert a.base is t
    view = a[10:]
    del t, a
    gc.collect()
    assert gone() is not None
    view[:] = 1
    del view
    gc.collect()
    assert gone() is None


def test_each_tensor_holds_one_reference():
    a = np.zeros(3)
    before = sys.getrefcount(a)
    tensors = [kf.from_numpy(a) for _ in range(5)]
    assert sys.getrefcount(a) == before + 5
    del tensors
    assert sys.getrefcount(a) == before


def test_a_tensor_dies_on_a_thread_without_python_state():
    import threading

    a = np.zeros(3)
    before = sys.getrefcount(a)
    holder = [kf.from_numpy(a)]
    thread = threading.Thread(target=holder.clear)
    thread.start()
    thread.join()
    assert sys.getrefcount(a) == before


def test_read_only_stays_read_only():
    a = np.arange(3.0)
    a.flags.writeable = False
    t = kf.from_numpy(a)
    assert t.readonly
    assert t[1:].readonly
    assert not t.numpy().flags.writeable
    assert not t.clone().readonly
    with pytest.raises(kf.ReadOnlyError, match="read-only"):
        t.fill_(1)
    assert (t + 1).tolist() == [1, 2, 3]


def test_zero_sizes_and_zero_dimensions():
    for shape in [(0,), (3, 0, 2), (0, 0)]:
        t = kf.from_numpy(np.empty(shape))
        assert t.shape == shape
        assert t.numpy().shape == shape
        assert (t + 1).shape == shape
        assert t.sum().item() == 0
    t = kf.from_numpy(np.array(2.5))
    assert t.shape == ()
    t += 1
    assert t.item() == 3.5


def test_negative_strides():
    a = np.arange(6).reshape(2, 3)[::-1, ::-1]
    t = kf.from_numpy(a)
    assert t.strides == (-3, -1)
    assert t.tolist() == a.tolist()
    assert (t + t).tolist() == (a + a).tolist()


def test_overlapping_arrays_are_read_and_copied():
    a = np.lib.stride_tricks.as_strided(np.arange(5.0), (3, 3), (8, 8))
    t = kf.from_numpy(a)
    assert t.tolist() == a.tolist()
    assert (t * 2).tolist() == (a * 2).tolist()
    assert t.clone().strides == (3, 1)


def test_writing_to_elements_that_share_memory_is_refused():
    t = kf.from_numpy(np.lib.stride_tricks.as_strided(np.zeros(1), (3,), (0,)))
    with pytest.raises(kf.Error, match=r"aten::copy_.*(overlap|share)"):
        t.copy_(kf.arange(3))


def test_subclasses_that_mean_something_else_are_refused():
    with pytest.raises(kf.BindingError, match=r"from_numpy\(\).*MaskedArray.*mask"):
        kf.from_numpy(np.ma.masked_array([1.0], [True]))
    with pytest.warns(PendingDeprecationWarning):
        matrix = np.matrix([[1.0]])
    with pytest.raises(kf.BindingError, match=r"from_numpy\(\).*matrix"):
        kf.from_numpy(matrix)


def test_a_memory_map_is_taken(tmp_path):
    path = tmp_path / "data"
    np.arange(4.0).tofile(path)
    mapped = np.memmap(path, np.float64, "r")
    t = kf.from_numpy(mapped)
    assert t.readonly
    assert (t + 1).tolist() == [1, 2, 3, 4]
    del t, mapped


# ---- what is refused -----------------------------------------------------------------------------

structured = np.zeros(3, np.dtype([("a", "u1"), ("b", "<f8")]))
unaligned = np.frombuffer(bytearray(25), np.uint8)[1:].view(np.float64)

REFUSED = [
    (np.array(["x"]), kf.DTypeError, "<U1"),
    (np.array([None]), kf.DTypeError, "object"),
    (np.array([0], "M8[s]"), kf.DTypeError, r"datetime64\[s\]"),
    (np.zeros(1, np.longdouble), kf.DTypeError, "float128|longdouble"),
    (np.zeros(2, ">f8"), kf.DTypeError, "byte order.*newbyteorder"),
    (structured, kf.DTypeError, "'a'"),
    (structured["b"], kf.InvalidValue, "9 bytes.*copy|aligned"),
    (unaligned, kf.InvalidValue, "aligned"),
]


@pytest.mark.parametrize(("array", "kind", "message"), REFUSED)
def test_an_array_that_cant_be_shared_is_refused_with_the_reason(array, kind, message, works_on):
    with pytest.raises(kind, match=rf"from_numpy\(\).*({message})"):
        kf.from_numpy(array)


@pytest.mark.parametrize(("array", "kind", "message"), REFUSED)
def test_an_operator_refuses_it_with_its_own_name_and_the_arguments(array, kind, message, works_on):
    with pytest.raises(kind, match=rf"aten::neg.*self.*({message})"):
        kf.ops.aten.neg(array)


@pytest.mark.parametrize("given", [[1, 2], 1.0, None, "x", kf.zeros(1)])
def test_what_is_no_array_is_refused(given):
    with pytest.raises(kf.BindingError, match=r"from_numpy\(\) takes a numpy.ndarray.*asarray"):
        kf.from_numpy(given)


# ---- __array__ -----------------------------------------------------------------------------------


def test_numpy_takes_a_tensor_as_an_array():
    t = kf.arange(3)
    assert np.asarray(t).ctypes.data == t.data_ptr()
    assert np.array(t).ctypes.data != t.data_ptr()
    assert np.asarray(t, dtype=np.float32).dtype == np.float32
    assert np.asarray(t, dtype=np.int64).ctypes.data == t.data_ptr()
    assert np.array(t, copy=False).ctypes.data == t.data_ptr()
    assert np.array([t, t]).shape == (2, 3)
    assert np.add(t, 1).tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match=r"int64.*float32.*copy"):
        np.array(t, dtype=np.float32, copy=False)


def test_numpy_arrays_take_tensors_in_place():
    a = np.ones(3)
    a += kf.arange(3)
    a[:2] = kf.asarray([7.0, 8.0])
    assert a.tolist() == [7, 8, 3]


def test_what_numpy_cant_hold_is_refused():
    with pytest.raises(kf.DTypeError, match="bfloat16"):
        kf.zeros(1, dtype="bfloat16").numpy()
    with pytest.raises(kf.DTypeError, match="bfloat16"):
        np.asarray(kf.zeros(1, dtype="bfloat16"))
    with pytest.raises(kf.DeviceError, match="meta"):
        kf.zeros(1, device="meta").numpy()
    with pytest.raises(kf.ExchangeError, match=r"requires grad.*detach"):
        kf.zeros(1).requires_grad_().numpy()
    assert kf.zeros(1).requires_grad_().detach().numpy().tolist() == [0]
