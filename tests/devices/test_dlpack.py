"""DLPack of registered devices: the extension device, its numbers, and addresses that lead back."""

import ctypes
import gc
import os
import weakref

import numpy as np
import pytest

import keyfold as kf
from keyfold.testing import delayed_device
from tests.helpers.dlpack import DLTensor

EXTENSION = 12


class Adds:
    """A backend in Python on two devices."""

    name = "adds"
    device_count = 2

    def pointwise(self, name, inputs, out):
        out[...] = {"add": np.add, "mul": np.multiply, "cast": lambda x: x}[name](*inputs)


@pytest.fixture(params=["python", "delayed"])
def name(request):
    """The type of two devices, of a backend in Python and of one that works late."""
    if request.param == "python":
        handle = kf.register_backend("npu", Adds())
    else:
        handle = delayed_device("npu")
    yield "npu"
    handle.remove()


def number_of(name):
    return next(row.dlpack_number for row in kf.backends() if row.device_type == name)


def there(name, values=(1.0, 2.0, 3.0, 4.0)):
    return kf.asarray(list(values)).to(f"{name}:1")


def struct_of(capsule):
    """The DLTensor of an unversioned capsule, which begins with it."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return DLTensor.from_address(pointer(capsule, b"dltensor"))


def test_backends_and_handles_tell_the_numbers(name):
    number = number_of(name)
    assert there(name).__dlpack_device__() == (EXTENSION, 256 * number + 1)
    assert kf.ones(2, device=name).__dlpack_device__() == (EXTENSION, 256 * number)
    assert number_of("cpu") is None
    handle = kf.register_backend("lacking", Adds())
    try:
        assert handle.dlpack_number == number_of("lacking") != number
    finally:
        handle.remove()


def test_a_number_is_the_names_for_the_life_of_the_process():
    first = kf.register_backend("lacking", Adds())
    number, x = first.dlpack_number, kf.ones(2, device="cpu").to("lacking")
    first.remove()
    assert first.dlpack_number == number
    assert x.__dlpack_device__() == (EXTENSION, 256 * number)
    with delayed_device("lacking"):
        assert number_of("lacking") == number


@pytest.mark.parametrize("version", [None, (1, 0)])
def test_a_capsule_comes_back_to_the_very_memory(name, version):
    x = there(name)
    y = kf.from_dlpack(x.__dlpack__(max_version=version))
    assert (y.device, y.dtype, y.shape) == (f"{name}:1", x.dtype, x.shape)
    y[0] = 9.0
    assert x.tolist() == [9.0, 2.0, 3.0, 4.0]
    x[1] = 8.0
    assert (y + x).tolist() == [18.0, 16.0, 6.0, 8.0]
    assert kf.from_dlpack(x).device == f"{name}:1"


@pytest.mark.parametrize("version", [None, (1, 0)])
def test_views_keep_their_layout(name, version):
    x = kf.asarray(np.arange(24.0).reshape(4, 6)).to(f"{name}:1")
    for view in (x.T, x[1:, ::2], x[2], x[3, 5], x[:0], kf.flip(x, axis=0)):
        back = kf.from_dlpack(view.__dlpack__(max_version=version))
        assert (back.shape, back.tolist()) == (view.shape, view.tolist())
        if view.numel():
            assert back.strides == view.strides
    for dtype in ("bool", "int8", "bfloat16", "complex128"):
        x = kf.ones((2, 3)).to(dtype).to(name)
        back = kf.from_dlpack(x.__dlpack__(max_version=version))
        assert (back.dtype, back.tolist()) == (dtype, x.tolist())


def test_memory_lives_as_long_as_capsule_or_tensor(name):
    live = kf.memory_stats(f"{name}:1")["live"]
    x = there(name)
    capsule = x.__dlpack__()
    del x
    y = kf.from_dlpack(capsule)
    del capsule
    assert y.tolist() == [1.0, 2.0, 3.0, 4.0]
    kept = y.__dlpack__(max_version=(1, 0))
    del y
    gc.collect()
    assert kf.memory_stats(f"{name}:1")["live"] > live
    del kept
    assert kf.memory_stats(f"{name}:1")["live"] == live


def test_the_address_is_a_handle_and_no_memory_of_the_host(name):
    x = there(name)
    capsules = [x[2:].__dlpack__(), x.__dlpack__()]
    structs = [struct_of(capsule) for capsule in capsules]
    assert structs[0].data not in (None, 0, structs[1].data)
    assert [struct.byte_offset for struct in structs] == [16, 0]
    assert structs[0].device_type == EXTENSION
    # Nothing of the elements is there.
    assert ctypes.string_at(structs[1].data, 64) == bytes(64)
    assert x.data_ptr() == 0
    assert struct_of(x[:0].__dlpack__()).data is None


def test_an_address_that_nobody_gave_is_refused(name, raises_saying):
    x = there(name)
    for field, value, parts in (
        ("data", lambda s: s.data + 64, ["npu:1", "address 0x", "no memory"]),
        ("data", lambda s: 1 << 40, ["address 0x10000000000", "no memory"]),
        ("byte_offset", lambda s: 4, ["malformed", "a multiple of 8"]),
        ("byte_offset", lambda s: 8, ["offset 1", "reaches beyond its buffer"]),
        ("byte_offset", lambda s: 1 << 60, ["malformed", "byte_offset"]),
        ("device_id", lambda s: s.device_id - 1, ["npu:0", "no memory"]),
        ("device_id", lambda s: 255 * 256, ["number 255", f"{number_of(name)} for npu"]),
        ("device_id", lambda s: -1, ["number -1"]),
        ("device_id", lambda s: 7, ["number 0", "index 7"]),
        ("device_id", lambda s: s.device_id + 6, ["npu:7", "2 devices"]),
    ):
        capsule = x.__dlpack__()
        struct = struct_of(capsule)
        before = getattr(struct, field)
        setattr(struct, field, value(struct))
        with raises_saying(kf.Error, *parts):
            kf.from_dlpack(capsule)
        # A refused struct is still the capsule's.
        setattr(struct, field, before)
        assert kf.from_dlpack(capsule).tolist() == x.tolist()


def test_a_removed_backend_takes_nothing_back(raises_saying):
    handle = kf.register_backend("npu", Adds())
    x = there("npu")
    capsule = x.__dlpack__()
    handle.remove()
    with raises_saying(kf.DeviceError, "npu:1", "was removed"):
        kf.from_dlpack(capsule)
    again = kf.register_backend("npu", Adds())
    try:
        with raises_saying(kf.DeviceError, "npu:1", "was removed", ".cpu()"):
            kf.from_dlpack(capsule)
    finally:
        again.remove()
    assert x.tolist() == [1.0, 2.0, 3.0, 4.0]


def test_device_and_copy_are_observed(name, raises_saying):
    x = there(name)
    same = kf.from_dlpack(x, device=f"{name}:1", copy=False)
    copied = kf.from_dlpack(x, copy=True)
    other = kf.from_dlpack(x, device=f"{name}:0")
    host = kf.from_dlpack(x, device="cpu")
    x[0] = 7.0
    assert same[0].item() == 7.0
    assert [t[0].item() for t in (copied, other, host)] == [1.0, 1.0, 1.0]
    assert [t.device for t in (copied, other, host)] == [f"{name}:1", f"{name}:0", "cpu"]
    assert kf.from_dlpack(np.ones(2), device=name).device == f"{name}:0"
    for device in ("cpu", f"{name}:0"):
        with raises_saying(kf.DeviceError, f"{name}:1", device, "to("):
            kf.from_dlpack(x, device=device, copy=False)
    copied = kf.from_dlpack(x.__dlpack__(copy=True, max_version=(1, 0)))
    copied[1] = 0.0
    assert x.tolist() == [7.0, 2.0, 3.0, 4.0]
    with raises_saying(kf.ExchangeError, f"{name}:1", "(1, 0)", ".cpu()"):
        x.__dlpack__(dl_device=(1, 0))
    assert kf.from_dlpack(x.__dlpack__(dl_device=x.__dlpack_device__())).shape == x.shape
    with raises_saying(kf.ExchangeError, "stream", name):
        x.__dlpack__(stream=1)


def test_a_read_only_tensor_comes_back_read_only(name, raises_saying):
    class ReadOnly:
        """An exporter that says so of a device's memory."""

        def __init__(self, tensor):
            self.tensor = tensor

        def __dlpack_device__(self):
            return self.tensor.__dlpack_device__()

        def __dlpack__(self, **options):
            capsule = self.tensor.__dlpack__(max_version=(1, 0))
            pointer = ctypes.pythonapi.PyCapsule_GetPointer
            pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
            # Behind version, context and deleter.
            flags = pointer(capsule, b"dltensor_versioned") + 24
            ctypes.c_uint64.from_address(flags).value |= 1
            return capsule

    x = there(name)
    y = kf.from_dlpack(ReadOnly(x))
    assert y.tolist() == x.tolist()
    with raises_saying(kf.ReadOnlyError, "read-only"):
        y[0] = 1.0
    # An operator takes the exporter itself, at the key of its device.
    y = ReadOnly(x)
    assert kf.ops.aten.add(y, y).tolist() == [2.0, 4.0, 6.0, 8.0]


def test_other_libraries_refuse_it_unread(name):
    x = there(name)
    with pytest.raises((BufferError, RuntimeError), match=r"[Dd]evice"):
        np.from_dlpack(x)
    kept = weakref.ref(x)
    del x
    assert kept() is None


def test_torch_reads_nothing_by_the_address(name):
    torch = pytest.importorskip("torch", reason="torch isn't installed")
    x = there(name)
    try:
        taken = torch.from_dlpack(x)
    except (RuntimeError, BufferError, ImportError):
        # It knows no backend of the extension device.
        return
    assert taken.device.type == "privateuseone"
    assert kf.from_dlpack(taken).tolist() == x.tolist()


def test_a_child_of_fork_finds_addresses_given_before():
    handle = kf.register_backend("npu", Adds())
    try:
        x = there("npu")
        capsule = x.__dlpack__()
        pid = os.fork()
        if pid == 0:
            os._exit(0 if kf.from_dlpack(capsule).tolist() == x.tolist() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        handle.remove()
