"""Arrays that lie: malformed DLPack structs, wrong capsules, objects whose methods misbehave.

Each is refused with an exception that says what was wrong, or taken for what it is; whatever
happens, each struct's deleter is called once, and the process goes on. Every case runs through
`keyfold.from_dlpack` and as the argument of a built-in operator.
"""

import ctypes
import gc
import sys
import threading
import traceback

import numpy as np
import pytest

import keyfold as kf
from tests.helpers.dlpack import DLManagedTensor, DLManagedTensorVersioned

CPU, CUDA = 1, 2
INT, FLOAT = 0, 2
LARGE = 2**31 - 1

CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
python = ctypes.PyDLL(None)
python.PyCapsule_New.restype = ctypes.py_object
python.PyCapsule_New.argtypes = (ctypes.c_void_p, ctypes.c_char_p, CALLBACK)
# A capsule that is being freed has no references: it is an address here.
python.PyCapsule_IsValid.argtypes = (ctypes.c_void_p, ctypes.c_char_p)
python.PyCapsule_SetName.argtypes = (ctypes.py_object, ctypes.c_char_p)


class Producer:
    """An array object of its own, six float64 elements 0.0 to 5.0, whose structs say anything.

    What a struct shall say is given by name; `exported` counts the structs, `deleted` how often a
    deleter was called, `threads` on which threads.
    """

    dlpack_device = (CPU, 0)

    def __init__(self, *, versioned=True, deleter=True, shape=(2, 3), strides=(3, 1), **said):
        self.memory = np.arange(6.0)
        self.versioned, self.shape, self.strides, self.said = versioned, shape, strides, said
        self.exported, self.deleted, self.threads, self.alive = 0, 0, [], []
        self.deleter = CALLBACK(self._deleted) if deleter else None
        self.destructor = CALLBACK(self._capsule_freed)

    @property
    def name(self):
        return b"dltensor_versioned" if self.versioned else b"dltensor"

    def _deleted(self, managed):
        self.deleted += 1
        self.threads.append(threading.get_ident())

    def _capsule_freed(self, capsule):
        if python.PyCapsule_IsValid(capsule, self.name) and self.deleter is not None:
            self.deleter(None)

    def struct(self):
        """A managed struct, which lives as long as the producer."""
        said = dict(self.said)
        managed = DLManagedTensorVersioned() if self.versioned else DLManagedTensor()
        if self.versioned:
            managed.major, managed.minor = said.pop("version", (1, 0))
            managed.flags = said.pop("flags", 0)
        if self.deleter is not None:
            managed.deleter = ctypes.cast(self.deleter, ctypes.c_void_p)
        tensor = managed.tensor
        tensor.data, tensor.ndim = self.memory.ctypes.data, len(self.shape)
        tensor.device_type, tensor.device_id = CPU, 0
        tensor.code, tensor.bits, tensor.lanes = FLOAT, 64, 1
        for field, numbers in (("shape", self.shape), ("strides", self.strides)):
            if numbers is not None:
                array = (ctypes.c_int64 * len(numbers))(*numbers)
                self.alive.append(array)
                setattr(tensor, field, ctypes.addressof(array))
        for field, value in said.items():
            setattr(tensor, field, value)
        self.alive.append(managed)
        return managed

    def capsule(self):
        self.exported += 1
        address = ctypes.addressof(self.struct())
        return python.PyCapsule_New(address, self.name, self.destructor)

    def __dlpack__(self, *, max_version=None, **options):
        return self.capsule()

    def __dlpack_device__(self):
        return self.dlpack_device

    def settled(self):
        """Whether every struct was given back once."""
        gc.collect()
        return self.deleted == (self.exported if self.deleter is not None else 0)


@pytest.fixture(scope="module")
def doubled():
    """An operator of the tests' own, whose Python kernel takes the object's memory itself."""
    library = kf.Library("bad_arrays")
    library.define("doubled(Tensor x) -> Tensor")
    library.impl("doubled", lambda x: kf.from_dlpack(x) * 2, "CPU")
    yield kf.ops.bad_arrays.doubled
    library.close()


@pytest.fixture(params=["from_dlpack", "built-in operator", "own operator"])
def double(request, doubled):
    """Twice an array, as a tensor: taken in by each of the ways there are."""
    return {
        "from_dlpack": lambda x: kf.from_dlpack(x) * 2,
        "built-in operator": lambda x: kf.ops.aten.add.default(x, x),
        "own operator": doubled,
    }[request.param]


# The process survives every array.
pytestmark = pytest.mark.usefixtures("works_on")

TWICE = [[0.0, 2.0, 4.0], [6.0, 8.0, 10.0]]


def refuses(double, array, kind, *says):
    """Checks that the array is refused with an exception of that class, whose text has these
    parts, that nothing holds on to the array afterwards, and gives the exception's notes.
    """
    before = sys.getrefcount(array)
    with pytest.raises(kind) as raised:
        double(array)
    assert raised.type is kind
    notes = getattr(raised.value, "__notes__", [])
    for part in says:
        assert part in str(raised.value)
    # The traceback holds the frames that hold the array.
    raised.value.__traceback__ = None
    del raised
    gc.collect()
    assert sys.getrefcount(array) == before
    return notes


@pytest.mark.parametrize("versioned", [True, False])
@pytest.mark.parametrize(
    ("said", "kind", "says"),
    [
        pytest.param({"data": 0}, kf.ExchangeError, ["data is null", "[2, 3]"], id="null data"),
        pytest.param({"ndim": -1}, kf.ExchangeError, ["ndim is -1", "0 to 64"], id="ndim below 0"),
        pytest.param({"ndim": 65}, kf.ExchangeError, ["ndim is 65", "0 to 64"], id="ndim 65"),
        pytest.param({"ndim": LARGE}, kf.ExchangeError, [f"ndim is {LARGE}"], id="huge ndim"),
        pytest.param({"shape": (2, -3)}, kf.ExchangeError, ["dimension 1 is -3"], id="size < 0"),
        pytest.param({"shape": (2**62, 3)}, kf.ExchangeError, ["too large"], id="huge size"),
        pytest.param({"strides": (2**62, 1)}, kf.ExchangeError, ["address"], id="far stride"),
        pytest.param(
            {"strides": (-(2**63), 1)}, kf.ExchangeError, ["address space"], id="lowest stride"
        ),
        pytest.param({"lanes": 4}, kf.DTypeError, ["4 lanes", "plain"], id="lanes"),
        pytest.param({"lanes": 0}, kf.DTypeError, ["0 lanes"], id="no lanes"),
        pytest.param({"lanes": 2**16 - 1}, kf.DTypeError, ["65535 lanes"], id="scalable lanes"),
        pytest.param({"code": 77}, kf.DTypeError, ["code 77", "float64"], id="unknown code"),
        pytest.param({"code": 3}, kf.DTypeError, ["code 3"], id="opaque handles"),
        pytest.param({"bits": 80}, kf.DTypeError, ["80 bits", "float64"], id="unknown bits"),
        pytest.param({"bits": 0}, kf.DTypeError, ["0 bits"], id="no bits"),
        pytest.param({"code": INT, "bits": 4}, kf.DTypeError, ["4 bits"], id="half bytes"),
        pytest.param({"device_type": 99}, kf.DeviceError, ["type 99", "cpu"], id="device type 99"),
        pytest.param({"device_type": -1}, kf.DeviceError, ["type -1"], id="device type below 0"),
        pytest.param(
            {"device_type": CUDA, "device_id": 300},
            kf.DeviceError,
            ["300", "0 to 255"],
            id="cuda:300",
        ),
        pytest.param({"byte_offset": 4}, kf.ExchangeError, ["multiple of 8"], id="odd offset"),
        pytest.param(
            {"byte_offset": 2**64 - 8},
            kf.ExchangeError,
            ["byte_offset", "overflows"],
            id="huge offset",
        ),
        *(
            pytest.param(
                {"byte_offset": 2**bits}, kf.ExchangeError, ["byte_offset"], id=f"offset 2**{bits}"
            )
            for bits in (57, 62, 63)
        ),
    ],
)
def test_a_malformed_struct_is_refused_and_given_back_once(double, versioned, said, kind, says):
    producer = Producer(versioned=versioned, **said)
    refuses(double, producer, kind, *says)
    assert (producer.exported, producer.deleted) == (1, 1)


def test_a_null_shape_is_refused(double):
    producer = Producer(shape=(), ndim=2)
    producer.said["shape"] = None
    refuses(double, producer, kf.ExchangeError, "shape is null")
    assert producer.settled()


@pytest.mark.parametrize("version", [(0, 0), (0, 8), (2, 0), (LARGE, 1)])
def test_another_major_version_is_refused_and_its_deleter_called_once(double, version):
    producer = Producer(version=version)
    refuses(double, producer, kf.ExchangeError, f"version {version[0]}.{version[1]}", "version 1")
    assert (producer.exported, producer.deleted) == (1, 1)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        pytest.param({}, TWICE, id="plain"),
        pytest.param({"version": (1, 99)}, TWICE, id="a later minor version"),
        pytest.param({"flags": 2**64 - 2}, TWICE, id="flags of the future"),
        pytest.param({"versioned": False}, TWICE, id="before versions"),
        pytest.param({"strides": None}, TWICE, id="no strides"),
        pytest.param({"strides": None, "versioned": False}, TWICE, id="no strides, old"),
        pytest.param({"byte_offset": 8, "shape": (2, 2)}, [[2, 4], [8, 10]], id="byte offset"),
        pytest.param({"strides": (0, 1)}, [[0, 2, 4]] * 2, id="rows that are one"),
        pytest.param(
            {"strides": (-3, -1), "byte_offset": 40}, [[10, 8, 6], [4, 2, 0]], id="backwards"
        ),
        pytest.param({"shape": (0, 3), "data": 0}, [], id="nothing at a null pointer"),
        pytest.param({"shape": (0, 3), "strides": (2**62, -7)}, [], id="nothing, any strides"),
        pytest.param({"shape": (), "strides": None, "byte_offset": 40}, 10.0, id="a number"),
        pytest.param({"device_type": 3}, TWICE, id="pinned memory"),
    ],
)
def test_what_is_unusual_but_right_is_taken(double, said, expected):
    producer = Producer(**said)
    result = double(producer)
    assert result.tolist() == expected
    del result
    assert producer.exported > 0
    assert producer.settled()


def test_memory_on_a_device_that_isnt_there_is_described_and_never_read(doubled):
    class OnCuda(Producer):
        dlpack_device = (CUDA, 0)

    producer = OnCuda(device_type=CUDA)
    tensor = kf.from_dlpack(producer)
    assert (tensor.device, tensor.shape, tensor.strides) == ("cuda:0", (2, 3), (3, 1))
    with pytest.raises(kf.DeviceError, match="cuda:0"):
        tensor.tolist()
    for operator in (kf.ops.aten.neg, doubled):
        with pytest.raises(kf.MissingKernel, match="CUDA"):
            operator(tensor)
        with pytest.raises(kf.MissingKernel, match="CUDA"):
            operator(producer)
    del tensor
    assert producer.settled()


def test_a_deleter_may_be_missing(double):
    producer = Producer(deleter=False)
    assert double(producer).tolist() == TWICE
    assert producer.exported > 0
    refuses(double, Producer(deleter=False, lanes=3), kf.DTypeError, "3 lanes")


@pytest.mark.parametrize("versioned", [True, False])
@pytest.mark.parametrize("take", [kf.from_dlpack, lambda x: kf.ops.aten.unsqueeze(x, 0)])
def test_the_deleter_is_called_on_whatever_thread_drops_the_tensor(take, versioned):
    producer = Producer(versioned=versioned)
    tensors = [take(producer)]
    assert (producer.exported, producer.deleted) == (1, 0)
    thread = threading.Thread(target=tensors.clear)
    thread.start()
    identity = thread.ident
    thread.join()
    gc.collect()
    assert producer.threads == [identity]


def test_the_memory_outlives_the_object(double):
    tensor = kf.from_dlpack(Producer())
    # The struct's memory is the producer's: a real one keeps itself until its deleter is called.
    producer = Producer()
    view = kf.from_dlpack(producer)
    row = view[1]
    del view
    assert producer.deleted == 0
    assert row.tolist() == [3, 4, 5]
    del row, tensor
    assert producer.settled()


class Misbehaving:
    """An object with a producer, on which the cases below change one method."""

    def __init__(self):
        self.producer = Producer()

    def __dlpack__(self, *, max_version=None, **options):
        return self.producer.capsule()

    def __dlpack_device__(self):
        return (CPU, 0)


def test_what_dlpack_raises_comes_out_as_it_is(double):
    class Raises(Misbehaving):
        def __dlpack__(self, **options):
            raise ZeroDivisionError("mine")

    refuses(double, Raises(), ZeroDivisionError, "mine")


def test_what_dlpack_raises_names_operator_and_argument_in_a_note():
    mine = ZeroDivisionError("mine")

    class RaisesThen(Misbehaving):
        def __dlpack__(self, **options):
            if self.producer.exported > 0:
                raise mine
            return self.producer.capsule()

    array = RaisesThen()
    with pytest.raises(ZeroDivisionError) as raised:
        kf.ops.aten.add(array, array)
    assert array.producer.settled()
    assert raised.value is mine
    assert mine.__notes__ == ["keyfold: raised by aten::add() argument 'other'"]
    assert traceback.extract_tb(mine.__traceback__)[-1].name == "__dlpack__"


@pytest.mark.parametrize("kind", [TypeError, AttributeError, BufferError, KeyboardInterrupt])
def test_an_exception_of_any_class_comes_out(double, kind):
    class Raises(Misbehaving):
        def __dlpack__(self, **options):
            raise kind("mine")

    refuses(double, Raises(), kind, "mine")


def test_a_property_that_raises_is_no_missing_method(double):
    class Raises(Misbehaving):
        @property
        def __dlpack__(self):
            raise ZeroDivisionError("mine")

    refuses(double, Raises(), ZeroDivisionError, "mine")


@pytest.mark.parametrize("given", [3, None, "dltensor", b"dltensor", (), object])
def test_what_is_no_capsule_is_named(double, given):
    class Returns(Misbehaving):
        def __dlpack__(self, **options):
            return given

    refuses(double, Returns(), kf.ExchangeError, "__dlpack__ must return a capsule, not ")


def test_an_object_that_returns_itself_is_refused(double):
    class Returns(Misbehaving):
        def __dlpack__(self, **options):
            return self

    refuses(double, Returns(), kf.ExchangeError, "must return a capsule", "Returns")


def test_a_dlpack_that_is_no_method_is_refused(double):
    class Number(Misbehaving):
        __dlpack__ = 3

    refuses(double, Number(), TypeError, "'int' object is not callable")


def test_a_consumed_capsule_is_refused(double):
    class Used(Misbehaving):
        def __dlpack__(self, **options):
            capsule = self.producer.capsule()
            kf.from_dlpack(capsule)
            return capsule

    array = Used()
    refuses(double, array, kf.ExchangeError, "used already", "once")
    assert (array.producer.exported, array.producer.deleted) == (1, 1)


def test_one_capsule_for_two_arguments_is_taken_once():
    class Same(Misbehaving):
        kept = None

        def __dlpack__(self, **options):
            self.kept = self.kept or self.producer.capsule()
            return self.kept

    array = Same()
    notes = refuses(lambda x: kf.ops.aten.add(x, x), array, kf.ExchangeError, "used already")
    assert notes == ["keyfold: raised by aten::add() argument 'other'"]
    assert (array.producer.exported, array.producer.deleted) == (1, 1)


@pytest.mark.parametrize("name", [b"something_else", b"", b"dltensor_versioned2", None])
def test_a_capsule_of_another_name_is_refused_and_left_alone(double, name):
    class Other(Misbehaving):
        def __dlpack__(self, **options):
            capsule = self.producer.capsule()
            # Its destructor doesn't know the name either, so that nobody deletes the struct.
            python.PyCapsule_SetName(capsule, name)
            return capsule

    array = Other()
    said = '""' if not name else f'"{name.decode()}"'
    refuses(double, array, kf.ExchangeError, f"a capsule named {said}", "dltensor")
    gc.collect()
    assert array.producer.deleted == 0


def test_no_capsule_holds_null():
    with pytest.raises(ValueError, match="null pointer"):
        python.PyCapsule_New(None, b"dltensor", CALLBACK())


def test_a_capsule_itself_is_taken_once_and_given_back_once():
    producer = Producer()
    capsule = producer.capsule()
    tensor = kf.from_dlpack(capsule)
    with pytest.raises(kf.ExchangeError, match="used already"):
        kf.from_dlpack(capsule)
    del capsule
    gc.collect()
    assert producer.deleted == 0
    del tensor
    assert producer.settled()
    unused = producer.capsule()
    del unused
    assert producer.settled()


@pytest.mark.parametrize("arguments", [(), ("max_version",), ("stream", "max_version", "copy")])
def test_keywords_that_it_doesnt_know_arent_given(double, arguments):
    class Some(Misbehaving):
        pass

    scope = {}
    listed = ", ".join(f"{name}=None" for name in arguments)
    star = ", *, " if listed else ""
    exec(f"def export(self{star}{listed}):\n    return self.producer.capsule()", scope)
    Some.__dlpack__ = scope["export"]
    array = Some()
    assert double(array).tolist() == TWICE
    assert array.producer.settled()


def test_keywords_that_it_demands_are_named(double):
    class Demanding(Misbehaving):
        def __dlpack__(self, *, stream, secret):
            return self.producer.capsule()

    refuses(double, Demanding(), TypeError, "'stream' and 'secret'")


def test_what_dlpack_device_raises_comes_out_as_it_is(doubled):
    class Raises(Misbehaving):
        def __dlpack_device__(self):
            raise ZeroDivisionError("mine")

    array = Raises()
    for double in (kf.ops.aten.add.default, doubled):
        arguments = (array,) if double is doubled else (array, array)
        refuses(lambda _, a=arguments, f=double: f(*a), array, ZeroDivisionError, "mine")
    assert array.producer.exported == 0


@pytest.mark.parametrize("given", ["cpu", None, 1, (1,), (2**80, 0), ("cpu", 0), (1.5, 0)])
def test_a_device_that_is_no_pair_of_numbers_is_refused(doubled, given):
    class Says(Misbehaving):
        def __dlpack_device__(self):
            return given

    refuses(doubled, Says(), kf.ExchangeError, "__dlpack_device__ must give two numbers", "'x'")


def test_an_unknown_device_is_refused(doubled):
    class Says(Misbehaving):
        def __dlpack_device__(self):
            return (99, 0)

    refuses(doubled, Says(), kf.DeviceError, "type 99")


def test_memory_that_is_elsewhere_than_the_object_said_is_refused():
    class Lies(Misbehaving):
        def __init__(self):
            self.producer = Producer(device_type=CUDA)

    array = Lies()
    says = ["'self'", "on cpu", "on cuda:0"]
    refuses(lambda x: kf.ops.aten.add.default(x, x), array, kf.ExchangeError, *says)
    assert (array.producer.exported, array.producer.deleted) == (1, 1)


def test_an_object_that_claims_another_device_gets_that_devices_kernel(doubled):
    class Lies(Misbehaving):
        def __dlpack_device__(self):
            return (CUDA, 0)

    array = Lies()
    refuses(doubled, array, kf.MissingKernel, "CUDA")
    assert array.producer.exported == 0


def test_without_dlpack_device_it_is_no_array(doubled):
    class Half:
        def __dlpack__(self, **options):
            raise AssertionError("never called")

    refuses(doubled, Half(), kf.BindingError, "'x' must be Tensor", "Half")


def test_a_shape_that_changes_between_calls_is_the_one_of_each_call(doubled):
    class Changes(Misbehaving):
        def __dlpack__(self, **options):
            self.producer.shape = (1 + self.producer.exported % 2, 3)
            return self.producer.capsule()

    array = Changes()
    # One row for the first argument, two for the second: they broadcast.
    assert kf.ops.aten.add(array, array).tolist() == [[0, 2, 4], [3, 5, 7]]
    shapes = [doubled(array).shape for _ in range(4)]
    assert shapes == [(1, 3), (2, 3)] * 2
    assert array.producer.settled()


def test_an_export_that_calls_back_into_keyfold_works(double):
    class Calls(Misbehaving):
        def __dlpack__(self, **options):
            assert kf.ops.aten.add(np.ones(2), np.ones(2)).tolist() == [2, 2]
            return self.producer.capsule()

    array = Calls()
    assert double(array).tolist() == TWICE
    assert array.producer.settled()
