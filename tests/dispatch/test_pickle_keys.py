"""Keys, sets, dtypes and devices by name: pickled, copied, sent to another process."""

import copy
import pickle
import subprocess
import sys

import pytest

import keyfold as kf
from keyfold import DispatchKey, DispatchKeySet

PROTOCOLS = range(2, pickle.HIGHEST_PROTOCOL + 1)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_key_comes_back_as_the_same_object(protocol, npu, audit):
    for key in DispatchKey:
        assert pickle.loads(pickle.dumps(key, protocol)) is key


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("names", [(), ("CPU",), ("Tracer", "Autograd", "CPU")])
def test_a_set_comes_back_equal(protocol, names):
    keys = DispatchKeySet(*names)
    again = pickle.loads(pickle.dumps(keys, protocol))
    assert again == keys
    assert hash(again) == hash(keys)


def test_keys_are_pickled_by_name(audit):
    """Numbers mean something else in the next process."""
    data = pickle.dumps(DispatchKeySet("CPU", "TestAudit"))
    assert b"TestAudit" in data
    assert b"CPU" in data


def test_copies():
    keys = DispatchKeySet("CPU", "Tracer")
    assert copy.copy(keys) == keys
    assert copy.deepcopy(keys) == keys
    assert copy.deepcopy(DispatchKey.CPU) is DispatchKey.CPU
    assert copy.copy(DispatchKey.CPU) is DispatchKey.CPU


def test_a_set_of_a_key_that_is_unknown_there(audit, tmp_path):
    """Another process that hasn't registered the key says so."""
    path = tmp_path / "set.pickle"
    path.write_bytes(pickle.dumps(DispatchKeySet("CPU", "TestAudit")))
    load = f"import pickle, keyfold; print(pickle.loads(open({str(path)!r}, 'rb').read()))"
    bare = subprocess.run([sys.executable, "-c", load], capture_output=True, text=True)
    assert bare.returncode != 0
    assert "TestAudit" in bare.stderr
    register = "import keyfold; keyfold.register_key('TestAudit', above='Tracer');"
    done = subprocess.run([sys.executable, "-c", register + load], capture_output=True, text=True)
    assert done.stdout.strip() == "DispatchKeySet(TestAudit, CPU)"


def test_devices_and_dtypes():
    for device in [kf.Device("cpu"), kf.Device("cuda:1"), kf.Device("meta")]:
        again = pickle.loads(pickle.dumps(device))
        assert again == device
        assert hash(again) == hash(device)
    dtype = kf.DType("float32")
    assert pickle.loads(pickle.dumps(dtype)) == dtype == "float32"


def test_an_error_is_pickled_with_its_message():
    """As multiprocessing sends it."""
    with pytest.raises(kf.UnknownKey) as raised:
        DispatchKeySet("Nonsense")
    again = pickle.loads(pickle.dumps(raised.value))
    assert type(again) is kf.UnknownKey
    assert str(again) == str(raised.value)
