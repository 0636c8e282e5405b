"""Dispatch keys and key sets: order, sets against Python's own, keys of the user's."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import keyfold as kf
from keyfold import DispatchKey, DispatchKeySet

names = st.sampled_from([key.name for key in DispatchKey])
sets = st.frozensets(names)


def as_set(keys):
    return frozenset(str(key) for key in keys)


@given(sets, sets)
def test_sets_behave_as_pythons_own(a, b):
    x, y = DispatchKeySet(*a), DispatchKeySet(*b)
    assert as_set(x | y) == a | b
    assert as_set(x & y) == a & b
    assert as_set(x - y) == a - b
    if b:
        assert as_set(x.add(*b)) == a | b
        assert as_set(x.remove(*b)) == a - b
    assert len(x) == len(a)
    assert bool(x) == bool(a)
    assert (x == y) == (a == b)
    assert (x <= y) == (a <= b)
    assert (x < y) == (a < b)
    assert (x >= y) == (a >= b)
    assert (x > y) == (a > b)
    assert (y in x) == (b <= a)
    if a == b:
        assert hash(x) == hash(y)


@given(sets)
def test_iteration_is_from_the_highest_priority(a):
    keys = list(DispatchKeySet(*a))
    assert keys == sorted(keys, reverse=True)
    highest = DispatchKeySet(*a).highest()
    assert highest == (keys[0] if keys else None)


@given(sets)
def test_contains_agrees_with_iteration(a):
    keys = DispatchKeySet(*a)
    for key in DispatchKey:
        assert (key in keys) == (str(key) in keys) == (key.name in a)


def test_a_set_prints_as_it_is_written():
    assert repr(DispatchKeySet("CPU", "Autograd")) == "DispatchKeySet(Autograd, CPU)"
    assert repr(DispatchKeySet()) == "DispatchKeySet()"


def test_a_narrowed_name_is_both_keys():
    assert DispatchKeySet("AutogradCUDA") == DispatchKeySet("Autograd", "CUDA")
    assert "AutogradCUDA" in DispatchKeySet("Autograd", "CUDA", "CPU")
    assert "AutogradCUDA" not in DispatchKeySet("Autograd", "CPU")


def test_a_set_is_made_of_keys_names_and_sets():
    inner = DispatchKeySet("CPU")
    assert DispatchKeySet(inner, "Tracer", DispatchKey.Autograd) == DispatchKeySet(
        "CPU", "Tracer", "Autograd"
    )
    assert inner | "Tracer" == DispatchKeySet("CPU", "Tracer")
    assert inner - DispatchKey.CPU == DispatchKeySet()


def test_sets_are_immutable():
    keys = DispatchKeySet("CPU")
    assert keys.add("CUDA") is not keys
    assert keys == DispatchKeySet("CPU")
    with pytest.raises(AttributeError):
        keys.bits = 3
    with pytest.raises(TypeError):
        keys["CPU"] = True


def test_there_is_one_object_per_key():
    assert DispatchKey("CPU") is DispatchKey.CPU
    assert DispatchKey(DispatchKey.CPU) is DispatchKey.CPU
    assert next(iter(DispatchKeySet("CPU"))) is DispatchKey.CPU
    assert isinstance(DispatchKey.CPU, DispatchKey)


def test_str_of_a_key_is_its_name():
    assert str(DispatchKey.Autograd) == DispatchKey.Autograd.name == "Autograd"
    assert repr(DispatchKey.Autograd) == "DispatchKey.Autograd"


def test_keys_compare_hash_and_sort():
    keys = list(DispatchKey)
    shuffled = random.Random(1).sample(keys, len(keys))
    assert sorted(shuffled) == keys
    assert {DispatchKey.CPU: 1}[DispatchKey("CPU")] == 1
    assert DispatchKey.CPU != "CPU"
    assert DispatchKey.CPU != DispatchKey.CUDA
    with pytest.raises(TypeError):
        sorted([DispatchKey.CPU, 3])


def test_the_class_of_keys_is_a_collection():
    assert "CPU" in DispatchKey
    assert DispatchKey.CPU in DispatchKey
    assert "Nonsense" not in DispatchKey
    assert "CPU" in dir(DispatchKey)
    with pytest.raises(AttributeError, match="Nonsense"):
        DispatchKey.Nonsense


@pytest.mark.parametrize("name", ["Tracer", "Profiler", "Pipeline", "Autograd", "Autocast"])
def test_modes_are_skippable(name):
    assert DispatchKey(name).skippable


@pytest.mark.parametrize("name", ["Vmap", "Nested", "Quantized", "Sparse", "CPU", "Meta"])
def test_representations_and_backends_are_not_skippable(name):
    assert not DispatchKey(name).skippable


def test_only_backends_are_backends():
    backends = {key.name for key in DispatchKey if key.is_backend}
    assert {"CPU", "CUDA", "Meta"} <= backends
    assert not backends & {"Autograd", "Sparse", "Tracer"}


def test_a_registered_key_sits_between_two_built_in_ones(audit):
    assert DispatchKey.Autograd < audit < DispatchKey.Vmap
    assert audit in DispatchKey
    assert audit in DispatchKeySet.all()
    assert DispatchKey.TestAudit is audit
    assert audit.skippable


def test_registering_a_key_again_gives_the_same(audit):
    assert kf.register_key("TestAudit", above="Autograd", skippable=True) is audit


def test_a_key_never_moves(audit, raises_saying):
    with raises_saying(ValueError, "TestAudit", "Autograd"):
        kf.register_key("TestAudit", above="Tracer", skippable=True)
    with raises_saying(ValueError, "TestAudit", "skippable"):
        kf.register_key("TestAudit", above="Autograd", skippable=False)


@pytest.mark.parametrize("name", ["CPU", "Autograd", "CompositeImplicitAutograd", "AutogradCPU"])
def test_a_taken_name_is_refused(name, raises_saying):
    with raises_saying(ValueError, name):
        kf.register_key(name, above="Autograd")


@pytest.mark.parametrize("name", ["", "two words", "1st", "a-b", "é"])
def test_a_name_that_is_no_identifier_is_refused(name, raises_saying):
    with raises_saying(ValueError, "identifier"):
        kf.register_key(name, above="Autograd")
    with raises_saying(ValueError, "identifier"):
        kf.register_backend(name)


def test_the_places_above_a_key_run_out(raises_saying):
    # Above Nested, where no other test registers.
    registered = [kf.register_key(f"TestFull{i}", above="Nested") for i in range(4)]
    assert registered == sorted(registered)
    with raises_saying(ValueError, "TestFull4", "no place left", "TestFull0", "never reused"):
        kf.register_key("TestFull4", above="Nested")
    assert "TestFull4" not in DispatchKey


def test_a_key_above_a_users_key(audit):
    higher = kf.register_key("TestAboveAudit", above=audit, skippable=True)
    assert audit < higher < DispatchKey.Vmap


def test_a_key_above_an_unknown_one(raises_saying):
    with raises_saying(ValueError, "Autogard", "did you mean Autograd?"):
        kf.register_key("TestLost", above="Autogard")


def test_a_backend_gives_key_device_type_and_row(npu, d, word):
    assert npu is DispatchKey.NPU
    assert DispatchKey.CUDA < npu < DispatchKey.Meta
    assert kf.register_backend("npu") is npu
    device = kf.Device("npu:1")
    assert (device.type, device.index) == ("npu", 1)
    d.define("f(Tensor x) -> Tensor")
    d.impl("f", "CompositeExplicitAutograd", lambda x: x)
    assert "NPU" in d.get_op("f").table()


def test_a_new_key_is_seen_by_operators_that_exist(d, word):
    d.define("f(Tensor x) -> Tensor")
    d.impl("f", "CPU", lambda x: word("cpu"))
    late = kf.register_key("TestLate", above="Tracer", skippable=True)
    assert d.call("f", word("x", "CPU", late)).text == "cpu"
    d.impl("f", late, lambda x: word("late"))
    assert d.call("f", word("x", "CPU", late)).text == "late"
    assert "TestLateCPU" in d.get_op("f").table()


def test_from_tensors_adds_the_keys_up(word):
    tensors = [word("a", "CPU", "Tracer"), None, word("b", "CPU", "Sparse")]
    assert DispatchKeySet.from_tensors(tensors) == DispatchKeySet("CPU", "Tracer", "Sparse")


def test_from_tensors_leaves_autograd_out_unless_grad_is_enabled(word):
    tensors = [word("a", "CPU", "Autograd")]
    assert "Autograd" not in DispatchKeySet.from_tensors(tensors)
    assert "Autograd" in DispatchKeySet.from_tensors(tensors, grad_enabled=True)


def test_from_tensors_refuses_what_is_no_tensor():
    with pytest.raises(TypeError, match="str"):
        DispatchKeySet.from_tensors(["x"])


@pytest.mark.parametrize("wrong", [1, None, 2.5, ["CPU"]])
def test_a_key_is_given_as_key_or_name(wrong):
    with pytest.raises(TypeError, match="DispatchKey"):
        DispatchKeySet(wrong)
    with pytest.raises(TypeError, match="DispatchKey"):
        DispatchKey(wrong)


@pytest.mark.parametrize("name", ["AutogradCPU", "AutogradCUDA", "SparseCPU"])
def test_a_narrowed_key_is_removed_without_its_backend(name):
    """As in PyTorch: `DispatchKeySet({AutogradCPU, CPU}) - AutogradCPU` is `{CPU}`."""
    functionality, backend = name[:-4] if name.endswith("CUDA") else name[:-3], "CPU"
    backend = "CUDA" if name.endswith("CUDA") else backend
    both = DispatchKeySet(name, "Tracer")
    assert both == DispatchKeySet(functionality, backend, "Tracer")
    left = DispatchKeySet(backend, "Tracer")
    assert both.remove(name) == left
    assert both - name == left
    assert both.remove(name, "Tracer") == DispatchKeySet(backend)
    assert both.remove(backend) == DispatchKeySet(functionality, "Tracer")
    assert both - backend == DispatchKeySet(functionality, "Tracer")
    # A set is the keys that are in it.
    assert both - DispatchKeySet(name) == DispatchKeySet("Tracer")
    assert both.remove(DispatchKeySet(name)) == DispatchKeySet("Tracer")


def test_excluding_a_narrowed_key_leaves_the_backend(d, word):
    d.define("f(Tensor x) -> str")
    d.impl("f", "CPU", lambda x: "CPU")
    d.impl("f", "AutogradCPU", lambda x: "AutogradCPU")
    x = word("x", "CPU", "Autograd")
    assert d.call("f", x) == "AutogradCPU"
    with kf.exclude_keys("AutogradCPU"):
        assert d.call("f", x) == "CPU"
