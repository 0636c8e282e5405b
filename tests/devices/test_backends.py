"""Backends that are written in Python: their memory, and what goes wrong."""

import os
import pickle
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

import keyfold as kf
from keyfold._cli import _doctor


class Plain:
    """Memory on two devices, and no operation."""

    name = "plain"
    device_count = 2


@pytest.fixture
def register(npu):
    """Registers backends for "npu" that are removed after the test."""
    handles = []

    def register(backend):
        handles.append(kf.register_backend("npu", backend))
        return handles[-1]

    yield register
    for handle in handles:
        handle.remove()


@pytest.fixture
def plain(register):
    return register(Plain())


def there(values=(1.0, 2.0, 3.0), device="npu:1", **options):
    return kf.asarray(list(values), **options).to(device)


def test_a_backend_is_listed_with_its_devices(plain):
    found = {backend.device_type: backend for backend in kf.backends()}
    assert found["npu"] == kf.Backend(
        "plain", "npu", (kf.Device("npu:0"), kf.Device("npu:1")), 1, (), plain.dlpack_number
    )
    assert (plain.device_type, plain.key) == ("npu", kf.DispatchKey.NPU)
    assert isinstance(plain.backend, Plain)
    assert repr(plain) == "<backend of npu>"
    assert plain.remove() is True
    assert plain.remove() is False
    assert "npu" not in [backend.device_type for backend in kf.backends()]


def test_doctor_lists_backends_with_their_memory(plain):
    x = there()
    rows = list(_doctor._backends())
    assert ("npu", "plain: offers no operations") in rows
    assert ("", "npu:0: 0 bytes in use, 0 kept, 1 stream") in rows
    assert ("", f"npu:1: {x.nbytes} bytes in use, 0 kept, 1 stream") in rows
    assert any(row[0] == "cpu" and "pointwise" in row[1] for row in rows)


def test_without_an_object_a_name_is_a_key_without_memory(npu, raises_saying):
    assert kf.register_backend("npu") is npu
    with raises_saying(kf.DeviceError, "there is no memory for npu:0", "cpu, meta"):
        kf.ones(2).to("npu")


def test_a_second_backend_is_refused_and_stays_usable(plain, raises_saying):
    class Second(Plain):
        name = "second"

    second = Second()
    with raises_saying(kf.RegistrationError, "npu", "'plain'", "'second'"):
        kf.register_backend("npu", second)
    assert kf.backends()[-1].name == "plain"
    plain.remove()
    handle = kf.register_backend("npu", second)
    try:
        assert handle.backend is second
        assert there().tolist() == [1.0, 2.0, 3.0]
    finally:
        handle.remove()
    with raises_saying(kf.RegistrationError, "cpu", "second"):
        kf.register_backend("cpu", second)
    with raises_saying(kf.RegistrationError, "meta", "second"):
        kf.register_backend("meta", second)


@pytest.mark.parametrize(
    "dtype", ["bool", "uint8", "int16", "float32", "float64", "complex128", "bfloat16"]
)
def test_tensors_go_there_and_back(plain, dtype):
    x = kf.asarray(np.arange(12.0).reshape(3, 4)).to(dtype)
    for view in (x, x.T, x[1:, ::2], x[:0]):
        moved = view.to("npu:1")
        assert (moved.device, moved.dtype, moved.shape) == ("npu:1", dtype, view.shape)
        assert moved.device.type == "npu"
        assert moved.cpu().tolist() == view.tolist()
        assert moved.tolist() == view.tolist()
        other = moved.to("npu:0")
        assert (other.device, other.tolist()) == ("npu:0", view.tolist())
        assert other.to("npu:0") is other
    assert x.to("npu:1").T.cpu().tolist() == x.T.tolist()


def test_a_conversion_runs_on_the_host(plain):
    x = there(dtype="float32")
    assert x.to("cpu", dtype="float64").dtype == "float64"
    moved = kf.asarray([1, 2]).to("npu", dtype="float32")
    assert (moved.dtype, moved.device, moved.tolist()) == ("float32", "npu:0", [1.0, 2.0])
    assert kf.asarray([1.5], dtype="float32", device="npu:1").device == "npu:1"


def test_reading_by_name_downloads_and_says_the_device(plain):
    x = there(dtype="float32")
    assert repr(x) == "Tensor([1., 2., 3.], dtype=float32, device='npu:1')"
    assert str(there([], device="npu")).endswith("device='npu:0')")
    assert there([7.0]).item() == 7.0
    assert float(there([7.0])) == 7.0
    assert x.tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.numpy(),
        np.asarray,
        lambda x: np.add(x, 1),
        lambda x: x.__dlpack__(dl_device=(1, 0)),
        memoryview,
    ],
)
def test_nothing_is_read_unasked(plain, read):
    x = there()
    with pytest.raises((kf.DeviceError, kf.ExchangeError, TypeError)) as caught:
        read(x)
    if isinstance(caught.value, kf.Error):
        assert ".cpu()" in str(caught.value)
        assert "npu:1" in str(caught.value)
    assert x.data_ptr() == 0


def test_two_devices_in_one_call_are_named_with_the_way_out(plain, raises_saying):
    for other, name in ((kf.ones(3), "cpu"), (there(device="npu:0"), "npu:0")):
        with raises_saying(kf.DeviceError, "'self' is on npu:1", f"'other' is on {name}", ".to("):
            there() + other


@pytest.mark.parametrize("device", ["npu:2", "npu:255"])
def test_an_index_that_is_not_there(plain, device, raises_saying):
    with raises_saying(kf.DeviceError, "npu has 2 devices: npu:0, npu:1", f"there is no {device}"):
        kf.ones(2).to(device)


def test_gradients_come_back_to_where_the_elements_were(plain):
    x = kf.asarray([1.0, 2.0]).requires_grad_()
    (back := (x * 2).to("npu:1").to("npu:0").cpu() * 3).sum().backward()
    assert back.requires_grad
    assert x.grad.tolist() == [6.0, 6.0]
    assert x.grad.device == "cpu"


def test_layers_see_copies_between_devices(plain):
    x = kf.asarray(np.arange(6.0).reshape(2, 3))
    moved = kf.vmap(lambda row: row.to("npu:1"))(x)
    assert (moved.device, moved.tolist()) == ("npu:1", x.tolist())
    graph = kf.trace(lambda x: (x * 2).to("npu:1").cpu(), x)
    assert str(graph).count("aten::to.device") == 2
    assert graph(x + 1).tolist() == ((x + 1) * 2).tolist()
    with kf.profile() as profile:
        x.to("npu")
    assert "aten::to.device" in {event["name"] for event in profile.events}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_goes_back_to_its_device(plain, protocol, raises_saying):
    x = there().requires_grad_()
    kept = pickle.dumps(x, protocol)
    again = pickle.loads(kept)
    assert (again.device, again.tolist(), again.requires_grad) == ("npu:1", [1.0, 2.0, 3.0], True)
    plain.remove()
    with raises_saying(kf.DeviceError, "pickled on npu:1", "no memory for npu:1"):
        pickle.loads(kept)


def test_a_pickle_of_a_device_type_that_is_unknown_names_it():
    script = "import pickle, sys; pickle.loads(bytes.fromhex(sys.argv[1]))"
    handle = kf.register_backend("picklednpu", Plain())
    try:
        kept = pickle.dumps(kf.ones(2).to("picklednpu")).hex()
    finally:
        handle.remove()
    done = subprocess.run([sys.executable, "-c", script, kept], capture_output=True, text=True)
    assert done.returncode == 1
    assert "DeviceError: a tensor that was pickled on picklednpu:0: unknown device" in done.stderr


def test_memory_is_counted_per_device(plain):
    before = kf.memory_stats("npu:1")
    x = there()
    now = kf.memory_stats("npu:1")
    assert now["live"] - before["live"] == 24
    assert now["allocations"] == before["allocations"] + 1
    assert kf.memory_stats("npu:0")["live"] == 0
    del x
    after = kf.memory_stats("npu:1")
    assert after["live"] == before["live"]
    assert after["peak"] == 24
    kf.set_cache_limit(100, device="npu:1")
    assert kf.memory_stats("npu:1")["limit"] == 100


def test_an_allocation_fails_where_the_memory_ends_and_the_device_goes_on(register, raises_saying):
    class Small(Plain):
        memory_bytes = 100

    register(Small())
    kept = [there() for _ in range(4)]
    for _ in range(2):
        with raises_saying(kf.OutOfMemory, "npu:1 has 100 bytes", "96 are in use", "24 more"):
            there()
    there(device="npu:0")
    kept.pop()
    assert there().tolist() == kept[0].tolist()


@pytest.mark.parametrize(
    ("attributes", "kind", "parts"),
    [
        ({"device_count": 257}, kf.InvalidValue, ["'odd'", "device_count", "256"]),
        ({"device_count": -1}, kf.InvalidValue, ["device_count", "-1"]),
        ({"device_count": 2.0}, kf.InvalidValue, ["device_count", "float"]),
        ({"device_count": True}, kf.InvalidValue, ["device_count", "bool"]),
        ({"memory_bytes": "all"}, kf.InvalidValue, ["memory_bytes", "str"]),
        ({"matmul": 3}, kf.BindingError, ["'odd'", "matmul", "method", "int"]),
        ({"name": 3}, kf.BindingError, ["name", "int"]),
    ],
)
def test_a_backend_that_cannot_be(attributes, kind, parts, raises_saying, npu):
    odd = type("Odd", (), {"name": "odd"} | attributes)()
    with raises_saying(kind, *parts):
        kf.register_backend("npu", odd)
    assert "npu" not in [backend.device_type for backend in kf.backends()]


def test_a_count_that_changes_later_changes_nothing(register, raises_saying):
    backend = Plain()
    register(backend)
    backend.device_count = 7
    with raises_saying(kf.DeviceError, "npu has 2 devices"):
        kf.ones(2).to("npu:5")


def test_an_attribute_that_raises_is_the_error(npu):
    class Broken:
        @property
        def device_count(self):
            raise OSError("no driver")

    with pytest.raises(OSError, match="no driver"):
        kf.register_backend("npu", Broken())


def test_live_tensors_outlive_their_backend(plain, raises_saying):
    x = there()
    plain.remove()
    assert x.cpu().tolist() == [1.0, 2.0, 3.0]
    assert repr(x) == "Tensor([1., 2., 3.], device='npu:1')"
    with raises_saying(kf.DeviceError, "no memory for npu:0"):
        x.to("npu:0")
    again = kf.register_backend("npu", Plain())
    try:
        # A tensor of the memory before, by way of the host.
        assert kf.asarray(x.cpu()).to("npu:0").tolist() == [1.0, 2.0, 3.0]
        with raises_saying(kf.DeviceError, "npu:1", "was removed", ".cpu()"):
            x.to("npu:0")
    finally:
        again.remove()


def test_a_random_state_of_another_device(plain, raises_saying):
    kf.manual_seed(8)
    state = kf.random.get_state("npu:1")
    assert state == ("npu:1", 8, 0)
    kf.random.set_state(pickle.loads(pickle.dumps(state))._replace(offset=3), device="npu:1")
    assert kf.random.get_state("npu:1").offset == 3
    assert kf.random.get_state("npu:0").offset == 0
    with raises_saying(kf.DeviceError, "npu:1", "npu:0"):
        kf.random.set_state(state, device="npu:0")
    plain.remove()
    with raises_saying(kf.DeviceError, "npu:1"):
        kf.random.set_state(state)


class Late(Plain):
    """Each method would return before its work is done; `synchronize` waits."""

    name = "late"

    def __init__(self):
        self.waited = []

    def synchronize(self, index):
        self.waited.append(index)


def test_memory_is_used_after_what_is_queued(register):
    late = Late()
    register(late)
    x = there()
    late.waited.clear()
    x.tolist()
    assert late.waited == [1]
    kf.synchronize("npu:0")
    assert late.waited == [1, 0]
    kf.synchronize()
    assert late.waited[2:] == [0, 1]


def test_what_synchronize_raises_is_the_error_of_the_read(register):
    class Failing(Late):
        def synchronize(self, index):
            super().synchronize(index)
            if len(self.waited) > 1:
                raise OSError("the device fell off the bus")

    register(Failing())
    x = there()
    with pytest.raises(OSError, match="fell off") as caught:
        x.tolist()
    assert any("'synchronize' of backend 'late'" in note for note in caught.value.__notes__)


def test_a_method_that_calls_its_own_operator_is_told_once(register):
    class Endless(Plain):
        def pointwise(self, name, inputs, out):
            there() + there()

    register(Endless())
    with pytest.raises(kf.RedispatchRecursion, match="inside itself") as caught:
        there() + there()
    notes = getattr(caught.value, "__notes__", [])
    assert len([note for note in notes if "method 'pointwise' of backend" in note]) == 1
    assert len(notes) <= 2


def test_threads_share_a_device(plain):
    results = []

    def work(n):
        for _ in range(50):
            results.append(there([float(n)]).cpu().item() == n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 200
    assert all(results)
    assert kf.memory_stats("npu:1")["live"] == 0


def test_a_child_of_fork_has_the_device_and_its_tensors(plain):
    x = there()
    pid = os.fork()
    if pid == 0:
        fine = x.tolist() == [1.0, 2.0, 3.0] and there([5.0]).item() == 5.0
        fine = fine and kf.random.get_state("npu:1").device == "npu:1"
        os._exit(0 if fine else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert x.tolist() == [1.0, 2.0, 3.0]


def test_the_interpreter_ends_with_a_backend_and_tensors():
    script = """
        import queue, threading
        import keyfold as kf

        class Queued:
            def __init__(self):
                self.jobs = queue.Queue()
                threading.Thread(target=self.work, daemon=True).start()

            def work(self):
                while True:
                    self.jobs.get()()

            def synchronize(self, index):
                done = threading.Event()
                self.jobs.put(done.set)
                done.wait()

        backend = Queued()
        handle = kf.register_backend("npu", backend)
        x = kf.ones(1000).to("npu")
        print(x.cpu().sum().item())
        import time
        for _ in range(3):
            backend.jobs.put(lambda: time.sleep(1000))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1000.0\n", "")


def test_a_removed_backend_keeps_its_place_and_the_error_says_so():
    code = """
import keyfold as kf
for i in range(12):
    kf.register_backend(f"box{i}", type("Memory", (), {"device_count": 1})()).remove()
def one_more():
    try:
        kf.register_backend("box12", type("Memory", (), {"device_count": 1})())
    except kf.UnknownKey as error:
        print(error)
one_more()
kf.register_backend("box3", type("Memory", (), {"device_count": 1})())
print(kf.ones(2).to("box3"))
for i in range(12):
    if i != 3:
        kf.register_backend(f"box{i}", type("Memory", (), {"device_count": 1})())
one_more()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    error, shown, full = done.stdout.splitlines()
    assert "no place left" in error
    assert "keeps its place when its backend is removed" in error
    free = ", ".join(f"box{i}" for i in range(12))
    assert error.endswith(f"; register it under a name that has no backend: {free}")
    assert full.endswith("; use it in another process, which has places of its own")
    assert shown == "Tensor([1., 1.], device='box3:0')"
