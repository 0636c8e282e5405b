"""Classes of arrays are remembered by their address, and forgotten with the class."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import keyfold as kf


@pytest.fixture
def frozen():
    """Collecting garbage looks only at what the test made."""
    gc.collect()
    gc.freeze()


def array_class(device=(1, 0), value=1.0):
    """A new class with DLPack's protocol."""

    class Array:
        def __init__(self):
            self.data = np.full(2, value)

        def __dlpack__(self, **options):
            return self.data.__dlpack__(**options)

        def __dlpack_device__(self):
            return device

    return Array


@pytest.fixture
def where(d):
    """An operator that says at which key it ran."""
    d.define("where(Tensor x) -> str")
    for key in ["CPU", "CUDA", "Sparse"]:
        d.impl("where", key, lambda x, key=key: key)
    return d.get_op("where")


def test_the_device_is_asked_of_every_object(where):
    kind = array_class()
    x = kind()
    assert where(x) == "CPU"
    kind.__dlpack_device__ = lambda self: (2, 0)
    assert where(x) == "CUDA"


def test_a_class_at_the_address_of_a_dead_one_is_looked_at_anew(where, frozen):
    """Types are made and dropped until the allocator gives an address again."""
    seen = {}
    reused = 0
    for turn in range(400):
        device = (2, 0) if turn % 2 else (1, 0)
        kind = array_class(device)
        address = id(kind)
        if seen.get(address, device) != device:
            reused += 1
        seen[address] = device
        assert where(kind()) == ("CUDA" if turn % 2 else "CPU")
        gone = weakref.ref(kind)
        del kind
        gc.collect()
        assert gone() is None, "remembering a class doesn't keep it"
    assert reused, "no address came again; the test shows nothing"


def test_a_plain_class_at_the_address_of_an_array_class_is_no_array(where, frozen):
    addresses = set()
    reused = 0
    for _ in range(400):
        kind = array_class()
        where(kind())
        addresses.add(id(kind))
        del kind
        gc.collect()
        plain = type("Plain", (), {"__init__": lambda self: None})
        reused += id(plain) in addresses
        with pytest.raises(TypeError, match="must be Tensor"):
            where(plain())
        del plain
        gc.collect()
    assert reused, "no address came again; the test shows nothing"


def test_registering_a_class_that_was_seen_changes_what_it_is(where):
    kind = array_class()
    assert where(kind()) == "CPU"
    kf.register_array_type(kind, kf.DispatchKeySet("Sparse", "CPU"))
    assert where(kind()) == "Sparse"


def test_registering_a_base_changes_its_subclasses(where):
    base = array_class()
    derived = type("Derived", (base,), {})
    assert where(derived()) == "CPU"
    kf.register_array_type(base, kf.DispatchKeySet("Sparse", "CPU"))
    assert where(derived()) == "Sparse"


def test_many_classes_at_once(where):
    kinds = [array_class((1 + n % 2, 0)) for n in range(200)]
    for _ in range(3):
        for n, kind in enumerate(kinds):
            assert where(kind()) == ("CUDA" if n % 2 else "CPU")


def test_a_class_without_the_protocol_is_no_array(where):
    half = type("Half", (), {"__dlpack__": lambda self, **options: None})
    with pytest.raises(TypeError, match=r"must be Tensor.*__dlpack__"):
        where(half())


@pytest.mark.parametrize("given", [None, 3, (1,), ("cpu", 0), "cpu"])
def test_a_device_that_is_no_pair_of_numbers(where, given):
    kind = array_class(given)
    with pytest.raises(kf.ExchangeError, match=r"argument 'x'.*__dlpack_device__ must give two"):
        where(kind())


def test_a_device_that_keyfold_lacks(where):
    with pytest.raises(kf.DeviceError, match=r"argument 'x'.*device type 99"):
        where(array_class((99, 0))())


def test_a_device_that_raises(where):
    kind = array_class()

    def raises(self):
        raise ZeroDivisionError("mine")

    kind.__dlpack_device__ = raises
    with pytest.raises(ZeroDivisionError, match="mine") as raised:
        where(kind())
    assert any("where() argument 'x'" in note for note in raised.value.__notes__)


def test_a_device_that_lies():
    kind = array_class((2, 0))
    with pytest.raises((kf.ExchangeError, kf.MissingKernel)):
        kf.ops.aten.neg(kind())


def test_a_device_that_lies_to_a_native_kernel(lib, ns, c_library):
    lib.define("total(Tensor x) -> float")
    kernel = kf.NativeKernel.from_library(c_library, "keyfold_example_sum")
    lib.impl("total", kernel, "CUDA")
    with pytest.raises(kf.ExchangeError, match=r"'x'.*says that it is on cuda.*memory is on cpu"):
        getattr(kf.ops, ns).total(array_class((2, 0))())
