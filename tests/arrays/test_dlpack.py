"""DLPack both ways: capsules, versions, lifetimes, and what is refused."""

import ctypes
import gc
import sys
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import keyfold as kf

CPU = (1, 0)


def name_of(capsule):
    get_name = ctypes.pythonapi.PyCapsule_GetName
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    return get_name(capsule).decode()


def test_capsules_are_versioned_for_consumers_that_read_versions():
    t = kf.zeros(3)
    assert name_of(t.__dlpack__()) == "dltensor"
    assert name_of(t.__dlpack__(max_version=(0, 8))) == "dltensor"
    assert name_of(t.__dlpack__(max_version=(1, 0))) == "dltensor_versioned"
    assert name_of(t.__dlpack__(max_version=(9, 9))) == "dltensor_versioned"
    assert t.__dlpack_device__() == CPU


dtypes = st.sampled_from(["bool", "int8", "uint16", "int32", "int64", "float32", "complex128"])


@given(
    a=hnp.arrays(dtypes, hnp.array_shapes(min_dims=0, min_side=0, max_side=4)),
    flip=st.booleans(),
)
def test_numpy_arrays_go_there_and_back_without_a_copy(a, flip):
    a = np.asarray(np.flip(a) if flip else a)
    t = kf.from_dlpack(a)
    back = np.from_dlpack(t)
    assert t.shape == a.shape
    assert np.array_equal(back, a, equal_nan=a.dtype.kind in "fc")
    assert back.dtype == a.dtype
    if a.size:
        assert t.data_ptr() == a.ctypes.data == back.ctypes.data


def test_dtypes_that_numpy_lacks_go_from_tensor_to_tensor():
    t = kf.full((2, 3), 1.5, dtype="bfloat16").T
    u = kf.from_dlpack(t)
    assert (u.dtype, u.shape, u.strides) == ("bfloat16", (3, 2), (1, 3))
    assert u.data_ptr() == t.data_ptr()


@pytest.mark.parametrize("version", [None, (1, 0)])
def test_a_capsule_is_taken_once(version):
    t = kf.arange(3)
    capsule = t.__dlpack__(max_version=version)
    first = kf.from_dlpack(capsule)
    assert name_of(capsule).startswith("used_dltensor")
    with pytest.raises(kf.ExchangeError, match=r"used already.*once"):
        kf.from_dlpack(capsule)
    with pytest.raises(BufferError):
        kf.from_dlpack(capsule)
    assert first.tolist() == [0, 1, 2]


@pytest.mark.parametrize("version", [None, (1, 0)])
def test_the_memory_lives_as_long_as_anybody_uses_it(version):
    a = np.arange(3.0)
    gone = weakref.ref(a)
    t = kf.from_dlpack(kf.from_numpy(a).__dlpack__(max_version=version))
    del a
    gc.collect()
    assert gone() is not None
    assert t.tolist() == [0, 1, 2]
    del t
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("version", [None, (1, 0)])
def test_a_capsule_that_nobody_takes_frees_what_it_holds(version):
    a = np.zeros(3)
    before = sys.getrefcount(a)
    capsule = kf.from_numpy(a).__dlpack__(max_version=version)
    assert sys.getrefcount(a) > before
    del capsule
    gc.collect()
    assert sys.getrefcount(a) == before


def test_read_only_stays_read_only():
    a = np.zeros(3)
    a.flags.writeable = False
    t = kf.from_dlpack(a)
    assert t.readonly
    assert not np.from_dlpack(t).flags.writeable
    with pytest.raises(kf.ExchangeError, match="read-only"):
        t.__dlpack__()
    assert name_of(t.__dlpack__(copy=True)) == "dltensor"


def test_a_copy_is_made_when_asked_for():
    t = kf.arange(3)
    assert kf.from_dlpack(t, copy=True).data_ptr() != t.data_ptr()
    assert kf.from_dlpack(t, copy=False).data_ptr() == t.data_ptr()
    copied = kf.from_dlpack(t.__dlpack__(copy=True, max_version=(1, 0)))
    assert copied.data_ptr() != t.data_ptr()
    assert copied.tolist() == [0, 1, 2]
    assert np.from_dlpack(t, copy=True).ctypes.data != t.data_ptr()


def test_exporters_from_before_versions_are_taken():
    class Old:
        def __dlpack__(self, *, stream=None):
            return kf.arange(3).__dlpack__()

        def __dlpack_device__(self):
            return CPU

    assert kf.from_dlpack(Old()).tolist() == [0, 1, 2]


def test_what_an_exporter_raises_comes_through():
    class Broken:
        def __dlpack__(self, **options):
            raise ZeroDivisionError("mine")

        def __dlpack_device__(self):
            return CPU

    with pytest.raises(ZeroDivisionError, match="mine"):
        kf.from_dlpack(Broken())


@pytest.mark.parametrize(
    ("export", "message"),
    [
        (lambda: kf.zeros(1).__dlpack__(stream=1), "stream.*1"),
        (lambda: kf.zeros(1).__dlpack__(dl_device=(2, 0)), r"\(1, 0\).*\(2, 0\)"),
        (lambda: kf.zeros(1, device="meta").__dlpack__(), "meta"),
        (lambda: kf.zeros(1, device="meta").__dlpack_device__(), "meta"),
        (lambda: kf.zeros(1).requires_grad_().__dlpack__(), r"requires grad.*detach"),
    ],
)
def test_what_cant_be_exported_is_said(export, message):
    with pytest.raises(kf.ExchangeError, match=message):
        export()


def capsule_named(name):
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = (
        ctypes.py_object,
        [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p],
    )
    return new(1, name, None)


NAME = b"something_else"


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        (lambda: [1, 2], kf.BindingError, "__dlpack__.*list"),
        (lambda: capsule_named(NAME), kf.ExchangeError, "something_else"),
        (lambda: type("X", (), {"__dlpack__": lambda self, **o: 3})(), kf.ExchangeError, "int 3"),
    ],
)
def test_what_cant_be_imported_is_said(given, kind, message):
    with pytest.raises(kind, match=message):
        kf.from_dlpack(given())


def test_a_dtype_that_keyfold_lacks_is_named():
    class Header(ctypes.Structure):
        _fields_ = [
            ("data", ctypes.c_void_p), ("device_type", ctypes.c_int), ("device_id", ctypes.c_int),
            ("ndim", ctypes.c_int), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
            ("lanes", ctypes.c_uint16),
        ]  # fmt: skip

    t = kf.zeros(3)
    capsule = t.__dlpack__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    header = Header.from_address(pointer(capsule, b"dltensor"))
    header.bits = 4
    with pytest.raises(kf.DTypeError, match="4 bits"):
        kf.from_dlpack(capsule)
    header.bits, header.lanes = 64, 2
    with pytest.raises(kf.DTypeError, match="2 lanes"):
        kf.from_dlpack(capsule)
    header.lanes = 1
    # Refusing left the capsule whole.
    assert kf.from_dlpack(capsule).tolist() == [0, 0, 0]


def test_a_device_that_isnt_where_the_memory_is_is_refused():
    assert kf.from_dlpack(np.zeros(1), device="cpu").device == "cpu"
    with pytest.raises(kf.DeviceError, match=r"cpu.*meta"):
        kf.from_dlpack(np.zeros(1), device="meta")
